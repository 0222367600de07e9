/* Requests of the OpenAI API: what of them reaches the engine, and how the rest is refused. */
#include "check.h"

#include "serve/messages/request.h"
#include "serve/openai/answer.h"
#include "serve/openai/request.h"
#include "serve/openai/text.h"
#include "serve/responses/request.h"

#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define ALLOWED(mode, tools) \
    "{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"" mode "\",\"tools\":[" tools "]}}"

/* The line that the engine gets for the first prompt; NULL when the request is refused. */
static char *line_of(const char *json, openai_kind kind, openai_error *error) {
    openai_request request;
    *error = (openai_error){0};
    char *line = NULL;
    if (openai_request_read(json, strlen(json), kind, NULL, &request, error)) {
        line = openai_request_line(&request, 0, NULL);
    }
    openai_request_free(&request);
    return line;
}

static void test_members_under_their_names_here(void) {
    static const struct {
        const char *json;
        openai_kind kind;
        const char *line;
    } cases[] = {
        {"{\"prompt\":\"a\"}", OPENAI_TEXT, "{\"prompt\":\"a\",\"n\":1,\"adapter\":\"\"}"},
        {"{\"prompt\":[1,2],\"max_tokens\":3,\"logprobs\":0}", OPENAI_TEXT,
         "{\"max_tokens\":3,\"token_ids\":[1,2],\"n\":1,\"logprobs\":0,\"adapter\":\"\"}"},
        {"{\"prompt\":[1],\"min_tokens\":2,\"stop_token_ids\":[3,128009]}", OPENAI_TEXT,
         "{\"min_tokens\":2,\"stop_token_ids\":[3,128009],\"token_ids\":[1],\"n\":1,\"adapter\":\"\"}"},
        {"{\"prompt\":[[7],[8]],\"n\":2,\"logit_bias\":{},\"echo\":false,\"user\":\"u\"}", OPENAI_TEXT,
         "{\"token_ids\":[7],\"n\":2,\"adapter\":\"\"}"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_completion_tokens\":4,\"seed\":9007199254740991}",
         OPENAI_CHAT,
         "{\"max_tokens\":4,\"seed\":9007199254740991,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"n\":1,"
         "\"adapter\":\"\"}"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
         "\"text\":"
         "\"b\"}]}],\"logprobs\":true,\"top_logprobs\":2,\"chat_template_kwargs\":{\"x\":1},\"temperature\":null}",
         OPENAI_CHAT,
         "{\"template_args\":{\"x\":1},\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}],\"n\":1,\"logprobs\":2,"
         "\"adapter\":\"\"}"},
        {"{\"prompt\":\"a\",\"max_tokens\":0,\"echo\":true,\"logprobs\":2,\"best_of\":1}", OPENAI_TEXT,
         "{\"prompt\":\"a\",\"n\":1,\"logprobs\":2,\"prompt_logprobs\":2,\"prompt_only\":true,\"adapter\":\"\"}"},
        /* -1 is no seed; others of 64 bits are folded */
        {"{\"prompt\":\"a\",\"seed\":-1}", OPENAI_TEXT, "{\"seed\":-1,\"prompt\":\"a\",\"n\":1,\"adapter\":\"\"}"},
        {"{\"prompt\":\"a\",\"seed\":-2}", OPENAI_TEXT,
         "{\"seed\":7862588892774400,\"prompt\":\"a\",\"n\":1,\"adapter\":\"\"}"},
        {"{\"prompt\":\"a\",\"seed\":9223372036854775807}", OPENAI_TEXT,
         "{\"seed\":1125882538372096,\"prompt\":\"a\",\"n\":1,\"adapter\":\"\"}"},
        {"{\"prompt\":\"a\",\"seed\":-9223372036854775808}", OPENAI_TEXT,
         "{\"seed\":3365208715308032,\"prompt\":\"a\",\"n\":1,\"adapter\":\"\"}"},
        {"{\"prompt\":\"a\",\"logit_bias\":{\"5\":-100,\"7\":1.5}}", OPENAI_TEXT,
         "{\"sequence_bias\":[[[5],-100],[[7],1.5]],\"prompt\":\"a\",\"n\":1,\"adapter\":\"\"}"},
        {"{\"input\":[\"a\"],\"encoding_format\":\"base64\",\"user\":\"u\"}", OPENAI_EMBEDDING,
         "{\"prompt\":\"a\",\"n\":1,\"prompt_only\":true,\"adapter\":\"\"}"},
        {"{\"messages\":[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{"
         "\"function\":"
         "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}}]}]}",
         OPENAI_CHAT,
         "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
         "{\"name\":\"f\",\"arguments\":{\"x\":1}}}]}],\"n\":1,\"adapter\":\"\"}"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":[{\"function\":{\"name\":\"f\"}}],\"response_format\":null}",
         OPENAI_CHAT,
         "{\"tools\":[{\"function\":{\"name\":\"f\"}}],\"messages\":[{\"role\":\"user\"}],\"n\":1,\"adapter\":\"\"}"},
        {"{\"prompt\":\"a\",\"response_format\":{\"enum\":[9007199254740991,0.30000000000000004,-3,2.5e-7]}}",
         OPENAI_TEXT,
         "{\"response_format\":{\"enum\":[9007199254740991,0.30000000000000004,-3,2.5e-07]},"
         "\"prompt\":\"a\",\"n\":1,\"adapter\":\"\"}"},
        {"{\"messages\":[{}],\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\","
         "\"parallel_tool_calls\":false}",
         OPENAI_CHAT, "{\"tools\":[{\"function\":{\"name\":\"f\"}}],\"messages\":[{}],\"n\":1,\"adapter\":\"\"}"},
        {"{\"messages\":[{}],\"tools\":[" TOOL("f") "," TOOL("g") "," TOOL("h") "],\"tool_choice\":" ALLOWED(
             "auto", TOOL("h") "," TOOL("f") "," TOOL("h")) "}",
         OPENAI_CHAT, "{\"tools\":[" TOOL("f") "," TOOL("h") "],\"messages\":[{}],\"n\":1,\"adapter\":\"\"}"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":null}],\"tools\":[1],\"tool_choice\":\"none\"}", OPENAI_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":null}],\"n\":1,\"adapter\":\"\"}"},
        {"{\"messages\":[{}],\"reasoning_effort\":\"minimal\",\"verbosity\":\"low\",\"prompt_cache_retention\":"
         "\"24h\"}",
         OPENAI_CHAT, "{\"template_args\":{\"reasoning_effort\":\"low\"},\"messages\":[{}],\"n\":1,\"adapter\":\"\"}"},
        {"{\"messages\":[{}],\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"thinking\":true}}", OPENAI_CHAT,
         "{\"template_args\":{\"thinking\":true,\"enable_thinking\":false},\"messages\":[{}],\"n\":1,\"adapter\":"
         "\"\"}"},
        {"{\"messages\":[{}],\"reasoning_effort\":null,\"chat_template_kwargs\":null}", OPENAI_CHAT,
         "{\"messages\":[{}],\"n\":1,\"adapter\":\"\"}"},
        {"{\"messages\":[{}],\"reasoning_effort\":\"high\",\"chat_template_kwargs\":null}", OPENAI_CHAT,
         "{\"template_args\":{\"reasoning_effort\":\"high\"},\"messages\":[{}],\"n\":1,\"adapter\":\"\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        openai_error error;
        char *line = line_of(cases[i].json, cases[i].kind, &error);
        CHECK_MSG(line != NULL && strcmp(line, cases[i].line) == 0, "%s: %s %s", cases[i].json,
                  line != NULL ? line : "refused", error.message);
        cJSON_free(line);
    }
}

static void test_refusals(void) {
    static const struct {
        const char *json;
        openai_kind kind;
        const char *member, *message;
    } cases[] = {
        {"", OPENAI_TEXT, "", "not a JSON object"},
        {"[1]", OPENAI_CHAT, "", "not a JSON object"},
        {"{\"prompt\":\"a\",\"n\":NaN}", OPENAI_TEXT, "", "beyond byte 18 of 22"},
        {"{\"messages\":[],\"max_tokens\":1,\"max_completion_tokens\":2}", OPENAI_CHAT, "max_completion_tokens",
         "\"max_completion_tokens\" is said twice, by another name"},
        {"{}", OPENAI_TEXT, "prompt", "missing"},
        {"{\"prompt\":[]}", OPENAI_TEXT, "prompt", "must be a text"},
        {"{\"prompt\":{}}", OPENAI_TEXT, "prompt", "must be a text"},
        {"{\"prompt\":\"a\",\"messages\":[]}", OPENAI_TEXT, "messages", "not a member"},
        {"{\"messages\":[]}", OPENAI_CHAT, "messages", "list of messages"},
        {"{\"messages\":[1]}", OPENAI_CHAT, "messages", "list of messages"},
        {"{\"messages\":[{\"content\":[{\"type\":\"image_url\"}]}]}", OPENAI_CHAT, "messages",
         "\"image_url\" is not supported"},
        {"{\"prompt\":\"a\",\"n\":2,\"n\":3}", OPENAI_TEXT, "n", "given twice"},
        {"{\"prompt\":\"a\",\"stream_options\":true}", OPENAI_TEXT, "stream_options", "must be an object"},
        {"{\"prompt\":\"a\",\"n\":2,\"max_tokens\":0}", OPENAI_TEXT, "n", "\"n\" must be 1"},
        {"{\"prompt\":\"a\",\"n\":0}", OPENAI_TEXT, "n", "from 1 to 256"},
        {"{\"prompt\":\"a\",\"n\":1.5}", OPENAI_TEXT, "n", "from 1 to 256"},
        {"{\"prompt\":\"a\",\"stream\":1}", OPENAI_TEXT, "stream", "true or false"},
        {"{\"prompt\":\"a\",\"logprobs\":21}", OPENAI_TEXT, "logprobs", "from 0 to 20"},
        {"{\"prompt\":\"a\",\"logit_bias\":[1]}", OPENAI_TEXT, "logit_bias", "object of at most"},
        {"{\"prompt\":\"a\",\"logit_bias\":{\"a\":2}}", OPENAI_TEXT, "logit_bias", "\"a\" must be a token id"},
        {"{\"prompt\":\"a\",\"logit_bias\":{\"1\":101}}", OPENAI_TEXT, "logit_bias", "from -100 to 100"},
        {"{\"prompt\":\"a\",\"best_of\":2}", OPENAI_TEXT, "best_of", "not supported yet"},
        {"{\"prompt\":\"a\\u0000b\"}", OPENAI_TEXT, "", "U+0000"},
        {"{\"prompt\":\"a\"} {}", OPENAI_TEXT, "", "not a JSON object"},
        {"{\"prompt\":\"a\\ud83d\"}", OPENAI_TEXT, "", "half of a surrogate pair"}, /* a text that was cut */
        {"{\"prompt\":\"\\ude00\\ud83d\"}", OPENAI_TEXT, "", "half of a surrogate pair"},
        {"{\"prompt\":\"\\ud83d\\ude00 \\\\ud83d [\"}}", OPENAI_TEXT, "", "cannot be read beyond byte"},
        {"{\"prompt\":\"\xC3\"}", OPENAI_TEXT, "", "not UTF-8"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"no\"}}]}]}",
         OPENAI_CHAT, "messages", "must be a JSON object in a text"},
        {"{\"messages\":[{\"tool_calls\":[{\"function\":{\"arguments\":\"{} x\"}}]}]}", OPENAI_CHAT, "messages",
         "must be a JSON object in a text"},
        {"{\"messages\":[{\"tool_calls\":[{\"function\":{\"arguments\":\"{\\\"a\\\":\\\"\\\\u0000\\\"}\"}}]}]}",
         OPENAI_CHAT, "messages", "must be a JSON object in a text"},
        {"{\"input\":\"a\",\"temperature\":1}", OPENAI_EMBEDDING, "temperature", "not a member"},
        {"{\"input\":\"a\",\"pooling\":\"max\"}", OPENAI_EMBEDDING, "pooling", "\"last\" or \"mean\""},
        {"{\"input\":\"a\",\"dimensions\":5}", OPENAI_EMBEDDING, "dimensions", "not supported yet"},
        {"{}", OPENAI_EMBEDDING, "input", "missing"},
        {"{\"prompt\":\"a\",\"seed\":9223372036854777856}", OPENAI_TEXT, "seed", "too large"},
        {"{\"prompt\":\"a\",\"temperature\":1e999}", OPENAI_TEXT, "temperature", "too large"},
        {"{\"prompt\":\"a\",\"echo\":1}", OPENAI_TEXT, "echo", "true or false"},
        {"{\"messages\":[{}],\"echo\":true}", OPENAI_CHAT, "echo", "not a member"},
        {"{\"prompt\":\"a\",\"model\":3}", OPENAI_TEXT, "model", "must be a name"},
        {"{\"messages\":[{}],\"top_logprobs\":2}", OPENAI_CHAT, "top_logprobs", "needs \"logprobs\""},
        {"{\"messages\":[{}],\"tool_choice\":\"required\"}", OPENAI_CHAT, "tool_choice", "there are no \"tools\""},
        {"{\"messages\":[{}],\"tool_choice\":\"maybe\",\"tools\":[{}]}", OPENAI_CHAT, "tool_choice", "\"required\", {"},
        {"{\"messages\":[{}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"tools\":[{}]}",
         OPENAI_CHAT, "tool_choice", "\"f\" is none of the request's"},
        {"{\"messages\":[{}],\"tools\":[" TOOL("f") "],\"response_format\":{\"type\":\"json_object\"}}", OPENAI_CHAT,
         "response_format", "with \"tools\" is not supported"},
        {"{\"messages\":[{}],\"tools\":[" TOOL("f") "],\"tool_choice\":" ALLOWED("auto", TOOL("g")) "}", OPENAI_CHAT,
         "tool_choice", "\"g\" is none of the request's"},
        {"{\"messages\":[{}],\"tools\":[" TOOL("f") "],\"tool_choice\":" ALLOWED("maybe", TOOL("f")) "}", OPENAI_CHAT,
         "tool_choice", "can be"},
        {"{\"messages\":[{}],\"tools\":[" TOOL("f") "],\"tool_choice\":" ALLOWED("required", "") "}", OPENAI_CHAT,
         "tool_choice", "can be"},
        {"{\"messages\":[{}],\"tool_choice\":" ALLOWED("auto", TOOL("f")) "}", OPENAI_CHAT, "tool_choice",
         "\"f\" is none of the request's"},
        {"{\"messages\":[{}],\"tools\":3}", OPENAI_CHAT, "tools", "must be a list of tools"},
        {"{\"messages\":[{\"role\":\"assistant\"}],\"continue_final_message\":true}", OPENAI_CHAT, "messages",
         "has a text and no calls"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"continue_final_message\":true}", OPENAI_CHAT,
         "messages", "has a text and no calls"},
        {"{\"messages\":[{}],\"add_generation_prompt\":false}", OPENAI_CHAT, "add_generation_prompt", "true where"},
        {"{\"messages\":[{}],\"add_generation_prompt\":true,\"continue_final_message\":true}", OPENAI_CHAT,
         "add_generation_prompt", "true where"},
        {"{\"messages\":[{}],\"continue_final_message\":1}", OPENAI_CHAT, "continue_final_message", "true or false"},
        {"{\"messages\":[{}],\"tools\":[\"f\"]}", OPENAI_CHAT, "tools", "a tool must be {"},
        {"{\"messages\":[{}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":5}}]}", OPENAI_CHAT, "tools",
         "a tool must be {"},
        {"{\"messages\":[{}],\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"f\"}}]}", OPENAI_CHAT, "tools",
         "tools of type \"custom\" are not supported"},
        {"{\"messages\":[{\"tool_calls\":\"f\"}]}", OPENAI_CHAT, "messages", "must be a list of calls"},
        {"{\"messages\":[{\"tool_calls\":[5]}]}", OPENAI_CHAT, "messages", "a \"function\" with a \"name\""},
        {"{\"messages\":[{}],\"reasoning_effort\":\"huge\"}", OPENAI_CHAT, "reasoning_effort",
         "\"reasoning_effort\" can be \"none\""},
        {"{\"prompt\":\"a\",\"reasoning_effort\":\"low\"}", OPENAI_TEXT, "reasoning_effort", "not a member"},
        {"{\"prompt\":\"a\",\"response_format\":{\"enum\":[9007199254740993]}}", OPENAI_TEXT, "response_format",
         "to 9007199254740991"},
        {"{\"prompt\":\"a\",\"response_format\":{\"enum\":[1e999]}}", OPENAI_TEXT, "response_format",
         "to 9007199254740991"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        openai_error error;
        char *line = line_of(cases[i].json, cases[i].kind, &error);
        CHECK_MSG(line == NULL && error.status == 400 && strcmp(error.member, cases[i].member) == 0 &&
                      strstr(error.message, cases[i].message) != NULL,
                  "%s: %s about \"%s\"", cases[i].json, line != NULL ? line : error.message, error.member);
        cJSON_free(line);
    }
}

static void test_strings_are_utf8(void) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } cases[] = {
        {"a\xC3\xA9", 3, "a\xC3\xA9"},
        {"\xC3", 1, "\xEF\xBF\xBD"},
        {"\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF0\x9F\x98\x80x", 5, "\xF0\x9F\x98\x80x"},
        {"a\0b", 3,
         "a\xEF\xBF\xBD"
         "b"},
        {"\xC0\x80", 2, "\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *string = serve_text_to_json(cases[i].bytes, cases[i].n);
        CHECK_MSG(cJSON_IsString(string) && strcmp(string->valuestring, cases[i].text) == 0, "case %zu", i);
        cJSON_Delete(string);
    }
}

/* What is JSON and cannot be read is not told to be something else. */
static void test_deep_bodies(void) {
    char deep[4096], why[SERVE_WHY_BYTES];
    memset(deep, '[', sizeof deep);
    CHECK(serve_text_parse_json(deep, sizeof deep, why) == NULL && strstr(why, "nested too deeply") != NULL);
    memset(deep + 1, '[', 900);
    deep[0] = '"'; /* brackets of a text count for nothing */
    CHECK(serve_text_parse_json(deep, sizeof deep, why) == NULL && strstr(why, "cannot be read beyond") != NULL);
}

/* "text_offset" counts characters, as clients index their strings. */
static void test_offsets_count_characters(void) {
    CHECK_INT(serve_text_count_characters("a\xC3\xA9\xF0\x9F\x98\x80", 7), 3);
    CHECK_INT(serve_text_count_characters("", 0), 0);
}

/* Arguments of earlier calls are JSON to most templates, and the clients' text to others. */
static void test_text_arguments(void) {
    static const char json[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
        "{"
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"b\\\": 1}\"}}]}]}";
    openai_request request;
    openai_error error = {.status = 0};
    REQUIRE(openai_request_read(json, strlen(json), OPENAI_CHAT, NULL, &request, &error));
    char *line = openai_request_line(&request, 0, NULL);
    CHECK(line != NULL && strstr(line, "\"arguments\":{\"b\":1}") != NULL);
    cJSON_free(line);
    CHECK(openai_request_keep_text_arguments(&request, &error));
    line = openai_request_line(&request, 0, NULL);
    CHECK(line != NULL && strstr(line, "\"arguments\":\"{\\\"b\\\":1}\"") != NULL);
    cJSON_free(line);
    openai_request_free(&request);
}

/* Requests of other protocols become those of chats. */
static void test_translations(void) {
    static const struct {
        openai_translation translate;
        const char *json, *line, *member; /* line NULL: refused, about this member */
    } cases[] = {
        {messages_to_chat,
         "{\"max_tokens\":3,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stop_sequences\":[\"x\"],\"system\":"
         "\"s\",\"metadata\":{}}",
         "{\"max_tokens\":3,\"stop\":[\"x\"],\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
         "\"content\":\"a\"}],\"n\":1,\"adapter\":\"\"}",
         NULL},
        {messages_to_chat,
         "{\"max_tokens\":3,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{"
         "\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":{\"x\":9007199254740991}}]},{\"role\":\"user\","
         "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\",\"content\":\"r\"},{\"type\":\"text\",\"text\":"
         "\"b\"}]}]}",
         "{\"max_tokens\":3,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":"
         "[{\"function\":{\"arguments\":{\"x\":9007199254740991},\"name\":\"f\"},\"id\":\"i\",\"type\":\"function\"}],"
         "\"content\":null},{\"content\":\"r\",\"role\":\"tool\",\"tool_call_id\":\"i\",\"name\":\"f\"},{\"role\":"
         "\"user\",\"content\":\"b\"}],\"n\":1,\"adapter\":\"\"}",
         NULL},
        {messages_to_count,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"cache_"
         "control\":{}}],\"thinking\":{\"type\":\"disabled\"}}",
         "{\"template_args\":{\"enable_thinking\":false,\"thinking\":false},\"tools\":[{\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"parameters\":{}}}],\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"n\":"
         "1,\"adapter\":\"\"}",
         NULL},
        {responses_to_chat,
         "{\"input\":\"a\",\"instructions\":\"s\",\"max_output_tokens\":3,\"store\":true,\"reasoning\":{\"effort\":"
         "\"max\"}}",
         "{\"max_tokens\":3,\"template_args\":{\"reasoning_effort\":\"high\"},\"messages\":[{\"role\":\"system\","
         "\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}],\"n\":1,\"adapter\":\"\"}",
         NULL},
        {responses_to_chat,
         "{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"function_call\",\"call_id\":\"i\",\"name\":"
         "\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"i\",\"output\":\"r\"}],\"text\":"
         "{\"format\":{\"type\":\"json_object\"}}}",
         "{\"response_format\":{\"type\":\"json_object\"},\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{"
         "\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":{},\"name\":\"f\"},\"id\":\"i\",\"type\":"
         "\"function\"}],\"content\":null},{\"content\":\"r\",\"role\":\"tool\",\"tool_call_id\":\"i\",\"name\":\"f\"}]"
         ",\"n\":1,\"adapter\":\"\"}",
         NULL},
        {responses_to_chat,
         "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"function\",\"name\":\"g\"}],"
         "\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"function\",\"name\":"
         "\"g\"}]}}",
         "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}],\"messages\":[{\"role\":\"user\","
         "\"content\":\"a\"}],\"n\":1,\"adapter\":\"\"}",
         NULL},
        {responses_to_chat,
         "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"allowed_"
         "tools\","
         "\"mode\":\"auto\",\"tools\":[{\"type\":\"mcp\",\"server_label\":\"s\"}]}}",
         NULL, "tool_choice"},
        {messages_to_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", NULL, "max_tokens"},
        {messages_to_count,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\"}]}]}", NULL,
         "messages"},
        {messages_to_count, "[]", NULL, ""},
        {responses_to_chat, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"i\"}]}", NULL, "input"},
        {responses_to_chat, "{\"input\":\"a\",\"previous_response_id\":\"r\"}", NULL, "previous_response_id"},
        {responses_to_chat, "{}", NULL, "input"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        openai_request request;
        openai_error error = {.status = 0};
        const bool read = openai_request_read(cases[i].json, strlen(cases[i].json), OPENAI_CHAT, cases[i].translate,
                                              &request, &error);
        if (cases[i].line == NULL) {
            CHECK_MSG(!read && error.status == 400 && strcmp(error.member, cases[i].member) == 0, "%s: %s about \"%s\"",
                      cases[i].json, error.message, error.member);
        } else {
            char *line = read ? openai_request_line(&request, 0, NULL) : NULL;
            CHECK_MSG(line != NULL && strcmp(line, cases[i].line) == 0, "%s: %s %s", cases[i].json,
                      line != NULL ? line : "refused", error.message);
            cJSON_free(line);
        }
        openai_request_free(&request);
    }
}

/* A message of the system after others becomes part of the user's turn around it. */
static void test_late_system(void) {
    static const struct {
        const char *messages, *moved;
    } cases[] = {
        {"[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}]",
         "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}]"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"},{\"role\":\"user\","
         "\"content\":\"c\"}]",
         "[{\"role\":\"user\",\"content\":\"a\\n\\nb\\n\\nc\"}]"},
        {"[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"},{\"role\":\"tool\","
         "\"content\":\"c\"}]",
         "[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"tool\","
         "\"content\":\"c\"}]"},
        {"[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"},{\"role\":\"system\"}]",
         "[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\\n\\n\"}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[512];
        openai_request request;
        openai_error error = {.status = 0};
        (void)snprintf(json, sizeof json, "{\"messages\":%s}", cases[i].messages);
        REQUIRE(openai_request_read(json, strlen(json), OPENAI_CHAT, NULL, &request, &error));
        CHECK(openai_request_move_late_system(&request, &error));
        char *moved = cJSON_PrintUnformatted(request.prompts->child);
        CHECK_STR(moved, cases[i].moved);
        cJSON_free(moved);
        openai_request_free(&request);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_members_under_their_names_here);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_strings_are_utf8);
    CHECK_RUN(test_deep_bodies);
    CHECK_RUN(test_offsets_count_characters);
    CHECK_RUN(test_text_arguments);
    CHECK_RUN(test_late_system);
    CHECK_RUN(test_translations);
    return check_end();
}
