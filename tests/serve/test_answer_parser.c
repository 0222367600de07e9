/* Answers taken apart: thoughts, calls of tools in the formats of the families, and text that only looks like them.
 * However an answer is cut into pieces, the same comes out. */
#include "check.h"

#include "serve/openai/blocks.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
    "\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"l\":{\"type\":\"array\"},\"n\":{\"type\":[\"string\",\"null\"]"
    "},"
    "\"o\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}}}}},{\"type\":\"function\",\"function\":{\"name\":"
    "\"g\"}}]";

/* "content|thought|name(arguments)…" of an answer that comes in pieces: of at most `most` bytes, at random, or (most 0)
 * one of `split` bytes and the rest. */
static char *taken_apart(const answer_format *format, const cJSON *tools, bool thinks, const char *answer, int most,
                         size_t split, unsigned *seed) {
    answer_parser parser;
    answer_delta whole = {.calls = NULL};
    const size_t n = strlen(answer);
    answer_parser_start(&parser, format, tools, thinks);
    for (size_t at = 0; at < n;) {
        *seed = *seed * 1103515245U + 12345U;
        size_t take = most > 0 ? 1 + (*seed >> 16) % (unsigned)most : at == 0 ? split : n;
        if (take > n - at) { take = n - at; }
        answer_parser_push(&parser, answer + at, take, &whole);
        at += take;
    }
    answer_parser_finish(&parser, &whole);
    serve_text out = {0};
    serve_text_add_format(&out, "%s|%s|", whole.content.size > 0 ? whole.content.data : "",
                          whole.thought.size > 0 ? whole.thought.data : "");
    const cJSON *call;
    cJSON_ArrayForEach(call, whole.calls) {
        serve_text_add_format(&out, "%s(%s)", cJSON_GetObjectItem(call, "name")->valuestring,
                              cJSON_GetObjectItem(call, "arguments")->valuestring);
    }
    answer_delta_free(&whole);
    answer_parser_free(&parser);
    return out.data;
}

typedef struct parser_case {
    const char *answer, *expected;
} parser_case;

static void check_format(const answer_format *format, bool has_tools, bool thinks, const parser_case *cases, size_t n) {
    cJSON *tools = cJSON_Parse(tools_json);
    unsigned seed = 7;
    for (size_t i = 0; i < n; i++) {
        const size_t n_splits = strlen(cases[i].answer) + 1;
        for (size_t round = 1; round < n_splits + 40; round++) {
            const int most = round <= n_splits ? 0 : 1 + (int)(round % 9);
            char *got = taken_apart(format, has_tools ? tools : NULL, thinks, cases[i].answer, most, round, &seed);
            const bool equal = got != NULL && strcmp(got, cases[i].expected) == 0;
            CHECK_MSG(equal, "pieces of %d, or %zu and the rest, of \"%s\"\n    give \"%s\"\n    not  \"%s\"", most,
                      round, cases[i].answer, got, cases[i].expected);
            free(got);
            if (!equal) { break; }
        }
    }
    cJSON_Delete(tools);
}
#define CHECK_FORMAT(format, has_tools, thinks, cases) \
    check_format(format, has_tools, thinks, cases, sizeof cases / sizeof cases[0])

static const answer_format thinking = {.calls = CALLS_TAGGED, .think_begin = "<think>", .think_end = "</think>"};

static void test_thoughts(void) {
    static const parser_case cases[] = {
        {"<think>\nWell.\n</think>\n\nHello", "Hello|Well.|"},
        {"\n <think>a</think>b", "b|a|"},
        {"<think>\n\n</think>\n\nHello ", "Hello ||"},
        {"Hello <think>a</think>", "Hello <think>a</think>||"},
        {"<think>never ends\n", "|never ends|"},
        {"<thin ice", "<thin ice||"},
        {" leading space stays \n", " leading space stays \n||"},
        {"<think>a < b</think> <think>c</think>", "<think>c</think>|a < b|"},
        {"", "||"},
    };
    CHECK_FORMAT(&thinking, false, false, cases);
    static const parser_case begun[] = {
        {"\nWell.\n</think>\n\nHello", "Hello|Well.|"},
        {"still thinking", "|still thinking|"},
        {"</think>Hello", "Hello||"},
    };
    CHECK_FORMAT(&thinking, false, true, begun);
}

static void test_tagged(void) {
    static const parser_case cases[] = {
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.50}}\n</tool_call>", "||f({\"a\": 1.50})"},
        {"I "
         "look.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>\n",
         "I look.||f({})g({})"},
        {"<think>hm</think>\n<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":2}\"}</tool_call>",
         "|hm|f({\"a\":2})"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</b> }{\\\"\"}}</tool_call>",
         "||f({\"a\":\"</b> }{\\\"\"})"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "||f({\"a\": 1})"}, /* the end mark is missing */
        {"<tool_call>{\"name\":\"f\"", "<tool_call>{\"name\":\"f\"||"},
        {"a <tool_call>nonsense</tool_call> b", "a <tool_call>nonsense</tool_call> b||"},
        {"<tool_call>{\"name\":5}</tool_call>", "<tool_call>{\"name\":5}</tool_call>||"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
         "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>||"},
        {"<tool_call></tool_call>", "<tool_call></tool_call>||"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"b\":\"</tool_call>\\\"\"}}</tool_call> so",
         "so||f({\"b\":\"</tool_call>\\\"\"})"}, /* the end mark in a string is none */
        {"<tool_call>{\"name\":\"f</tool_call> so", "<tool_call>{\"name\":\"f</tool_call> so||"},
        {"<function=g>\n<parameter=x>\n[\"</parameter>\"]\n</parameter>\n</function>",
         "||g({\"x\":[\"</parameter>\"]})"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":2} \\n\"}</tool_call>", "||f({\"a\":2})"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":2} x\"}</tool_call>",
         "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":2} x\"}</tool_call>||"}, /* more than an object */
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":01, \"b\":\"x\ny\"}}</tool_call>",
         "||f({\"a\":1,\"b\":\"x\\ny\"})"}, /* what not every parser takes is printed anew */
        {"a < b and <tool", "a < b and <tool||"},
        {"plain text\n", "plain text\n||"},
        {"<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n<parameter=b>\n6\n</parameter>\n</function>\n"
         "</tool_call>",
         "||f({\"a\":5,\"b\":\"6\"})"},
        {"<function=g>\n<parameter=x>\ntwo\nlines \"q\"\n</parameter>\n<parameter=y>\n[1, {\"z\": "
         "null}]\n</parameter>\n"
         "</function>",
         "||g({\"x\":\"two\\nlines \\\"q\\\"\",\"y\":[1, {\"z\": null}]})"},
        {"<function=g></function>", "||g({})"},
        {"<tool_call><function=g>\n<parameter=x>\n[\"</tool_call>\"]\n</parameter>\n</function>\n</tool_call> so",
         "so||g({\"x\":[\"</tool_call>\"]})"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"b\":\"<function=\"}}</tool_call>", "||f({\"b\":\"<function=\"})"},
        {"<function=g>\n<parameter=x>1", "<function=g>\n<parameter=x>1||"},
    };
    CHECK_FORMAT(&thinking, true, false, cases);
    static const parser_case without[] = {
        {"<tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call>{\"name\":\"f\"}</tool_call>||"}};
    CHECK_FORMAT(&thinking, false, false, without);
}

static void test_llama(void) {
    static const answer_format format = {.calls = CALLS_LLAMA, .hidden = {{9, "<|python_tag|>"}}, .n_hidden = 1};
    static const parser_case cases[] = {
        {"{\"name\": \"f\", \"parameters\": {\"a\": \"1\"}}", "||f({\"a\": \"1\"})"},
        {"\n{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}", "||f({})"},
        {"{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{}}", "||f({})g({})"},
        {"<|python_tag|>{\"name\":\"g\",\"parameters\":{}}", "||g({})"},
        {"<|python_tag|>print(1)", "print(1)||"},
        {"{\"name\": \"Anna\", \"age\": 5}", "{\"name\": \"Anna\", \"age\": 5}||"}, /* no tool of the request */
        {"{\"colour\": \"red\"}", "{\"colour\": \"red\"}||"},
        {"{\"name\":\"f\",\"parameters\":{}} and more", "{\"name\":\"f\",\"parameters\":{}} and more||"},
        {"Call {\"name\":\"f\",\"parameters\":{}}", "Call {\"name\":\"f\",\"parameters\":{}}||"},
        {" \n", " \n||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
    static const answer_format thinks = {.calls = CALLS_LLAMA, .think_begin = "<think>", .think_end = "</think>"};
    static const parser_case thoughtful[] = {
        {"\n<think>hm</think>\n{\"name\":\"f\",\"parameters\":{}}", "|hm|f({})"},
        {"\n\n<think>hm</think>\n{\"colour\":1}", "{\"colour\":1}|hm|"},
    };
    CHECK_FORMAT(&thinks, true, false, thoughtful);
}

static void test_mistral(void) {
    static const answer_format format = {
        .calls = CALLS_MISTRAL, .hidden = {{5, "[TOOL_CALLS]"}, {6, "[ARGS]"}, {7, "[CALL_ID]"}}, .n_hidden = 3};
    static const parser_case cases[] = {
        {"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
         "||f({\"a\": 1})g({})"},
        {"[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}", "||f({\"a\": 1})g({})"},
        {"Well. [TOOL_CALLS]f{\"a\": {\"b\": []}}", "Well.||f({\"a\": {\"b\": []}})"},
        {"Well. [TOOL_CALLS] nothing", "Well.  nothing||"},
        {"[TOOL_CALLS] [{\"name\": \"f\"}", " [{\"name\": \"f\"}||"},
        {"[TOOL", "[TOOL||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
}

#define GLM_ARG(key, value) "<arg_key>" key "</arg_key>\n<arg_value>" value "</arg_value>\n"

static void test_arg_keys(void) {
    static const answer_format format = {.calls = CALLS_ARG_KEYS, .think_begin = "<think>", .think_end = "</think>"};
    static const parser_case cases[] = {
        {"\n<think>hm</think>\nI look.\n<tool_call>f\n" GLM_ARG("a", "5") GLM_ARG("b", "6") "</tool_call>",
         "I look.|hm|f({\"a\":5,\"b\":\"6\"})"},
        /* As GLM-4.7 writes it, and two calls. */
        {"<tool_call>f<arg_key>b</arg_key><arg_value> {\"x\"}\n</arg_value></tool_call><tool_call>g\n</tool_call>",
         "||f({\"b\":\" {\\\"x\\\"}\\n\"})g({})"},
        {"<tool_call>g\n" GLM_ARG("x", " [1, {\"y\": null}] ") GLM_ARG("z", "two\nlines") "</tool_call> so",
         "so||g({\"x\":[1, {\"y\": null}],\"z\":\"two\\nlines\"})"},
        {"<tool_call>f\n" GLM_ARG("b", "</tool_call>") "</tool_call>", "||f({\"b\":\"</tool_call>\"})"},
        {"<tool_call>g\n" GLM_ARG("x", "[\"</arg_value>\"]") "</tool_call>", "||g({\"x\":[\"</arg_value>\"]})"},
        {"<tool_call>other\n" GLM_ARG("x", "True") "</tool_call>", "||other({\"x\":\"True\"})"},
        {"<tool_call>f\n" GLM_ARG("b", ""), "||f({\"b\":\"\"})"}, /* the end mark is missing */
        {"<tool_call>f\n" GLM_ARG("n", "text") GLM_ARG("n", "null") GLM_ARG("l", "[True, 'x']") GLM_ARG("o", "\"q\"")
             GLM_ARG("o", "null") GLM_ARG("o", "5") "</tool_call>",
         "||f({\"n\":\"text\",\"n\":null,\"l\":[true,\"x\"],\"o\":\"q\",\"o\":null,\"o\":\"5\"})"},
        /* What is no call stays. */
        {"a <tool_call>nonsense</tool_call> b", "a <tool_call>nonsense</tool_call> b||"},
        {"a <tool_call>nonsense</tool_call> b <tool_call>g</tool_call>", "a <tool_call>nonsense</tool_call> b||g({})"},
        {"<tool_call>two words\n" GLM_ARG("a", "1") "</tool_call>",
         "<tool_call>two words\n" GLM_ARG("a", "1") "</tool_call>||"},
        {"<tool_call>f\n<arg_key>a</arg_key>\n1</tool_call>", "<tool_call>f\n<arg_key>a</arg_key>\n1</tool_call>||"},
        {"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1||"},
        {"<tool_call>f\n<arg_key></arg_key><arg_value>1</arg_value></tool_call>",
         "<tool_call>f\n<arg_key></arg_key><arg_value>1</arg_value></tool_call>||"},
        {"<tool_call>\n" GLM_ARG("a", "1") "</tool_call>", "<tool_call>\n" GLM_ARG("a", "1") "</tool_call>||"},
        {"<tool_call></tool_call>", "<tool_call></tool_call>||"},
        {"<tool_call>f\n<arg", "<tool_call>f\n<arg||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
}

#define SEED_F(parameters) "<seed:tool_call>\n<function=f>\n" parameters "</function>\n</seed:tool_call>"

static void test_seed(void) {
    static const answer_format format = {
        .calls = CALLS_SEED, .think_begin = "<seed:think>", .think_end = "</seed:think>"};
    static const parser_case cases[] = {
        {"<seed:think>hm</seed:think>\n" SEED_F("<parameter=a>5</parameter>\n<parameter=b>6</parameter>\n"),
         "|hm|f({\"a\":5,\"b\":\"6\"})"},
        {"Well.\n" SEED_F("<parameter=b>two\nlines\n</parameter>\n") "\n" SEED_F(""),
         "Well.||f({\"b\":\"two\\nlines\\n\"})f({})"},
        {"<seed:tool_call><function=g></function><function=f><parameter=a>\n5\n</parameter></function></"
         "seed:tool_call>",
         "||g({})f({\"a\":5})"},
        /* Of what is no text by its schema, literals of Python. */
        {SEED_F("<parameter=l>[True, 'a', None]</parameter><parameter=l>{'k': 1}</parameter>"),
         "||f({\"l\":[true,\"a\",null],\"l\":{\"k\":1}})"},
        {SEED_F("<parameter=x>True</parameter><parameter=l>word</parameter>"), "||f({\"x\":\"True\",\"l\":\"word\"})"},
        {SEED_F("<parameter=b></seed:tool_call></parameter>"), "||f({\"b\":\"</seed:tool_call>\"})"},
        {"<seed:tool_call>{\"name\":\"f\"}</seed:tool_call> b",
         "<seed:tool_call>{\"name\":\"f\"}</seed:tool_call> b||"},
        {SEED_F("<parameter=a>5"), SEED_F("<parameter=a>5") "||"},
        {"<seed:tool_call>\n<function=f", "<seed:tool_call>\n<function=f||"},
        {"<seed:tool", "<seed:tool||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
}

static void test_invoke(void) {
    static const answer_format format = {.calls = CALLS_INVOKE, .think_begin = "<think>", .think_end = "</think>"};
    static const parser_case cases[] = {
        {"I look.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">5</parameter>\n<parameter "
         "name=\"b\"> 6\n</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
         "I look.||f({\"a\":5,\"b\":\" 6\\n\"})g({})"},
        {"<minimax:tool_call><invoke name=\"g\"><parameter name=\"x\">\"</minimax:tool_call></parameter>\"</parameter>"
         "</invoke></minimax:tool_call>",
         "||g({\"x\":\"</minimax:tool_call></parameter>\"})"},
        {"<minimax:tool_call><invoke name=\"\"></invoke></minimax:tool_call>",
         "<minimax:tool_call><invoke name=\"\"></invoke></minimax:tool_call>||"},
        {"<minimax:tool_call><invoke name=\"g\"></minimax:tool_call> b",
         "<minimax:tool_call><invoke name=\"g\"></minimax:tool_call> b||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
}

static void test_list(void) {
    static const answer_format format = {.calls = CALLS_LIST};
    static const parser_case cases[] = {
        {"<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
         "||f({\"a\": 1})g({})"},
        {"Well. <|tool_call|>{\"name\": \"f\", \"arguments\": {\"b\": \"<|/tool_call|>\"}}<|/tool_call|> so",
         "Well.\nso||f({\"b\": \"<|/tool_call|>\"})"},
        {"<tool_call>[{\"name\": \"g\"}]", "||g({})"},
        {"functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "||f({\"a\": 1})"},
        {"<|tool_call|>[]<|/tool_call|> b", "<|tool_call|>[]<|/tool_call|> b||"},
        {"<|tool_call|>[{\"name\": \"f\"", "<|tool_call|>[{\"name\": \"f\"||"},
        {"functools[lru_cache]", "functools[lru_cache]||"},
        {"functools", "functools||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
}

#define DEEPSEEK(calls) "<｜tool▁calls▁begin｜>" calls "<｜tool▁calls▁end｜>"
#define DEEPSEEK_CALL(text) "<｜tool▁call▁begin｜>" text "<｜tool▁call▁end｜>"
#define KIMI(calls) "<|tool_calls_section_begin|>" calls "<|tool_calls_section_end|>"
#define KIMI_CALL(id, text) "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" text "<|tool_call_end|>"

static void test_tokens(void) {
    static const answer_format deepseek = {.calls = CALLS_DEEPSEEK, .think_begin = "<think>", .think_end = "</think>"};
    static const parser_case deepseek_cases[] = {
        {"<think>hm</think>Well. " DEEPSEEK(DEEPSEEK_CALL("f<｜tool▁sep｜>{\"a\": 1}")
                                                DEEPSEEK_CALL("g<｜tool▁sep｜>{}")),
         "Well.|hm|f({\"a\": 1})g({})"},
        {DEEPSEEK(DEEPSEEK_CALL("function<｜tool▁sep｜>f\n```json\n{\"b\": \"```\"}\n```") "\n" DEEPSEEK_CALL(
             "function<｜tool▁sep｜>g\n```json\n{}\n```")) " so",
         "so||f({\"b\": \"```\"})g({})"},
        {DEEPSEEK(DEEPSEEK_CALL("f<｜tool▁sep｜>{\"b\": \"<｜tool▁calls▁end｜>\"}")),
         "||f({\"b\": \"<｜tool▁calls▁end｜>\"})"},
        {DEEPSEEK(DEEPSEEK_CALL("f<｜tool▁sep｜>[1]")), DEEPSEEK(DEEPSEEK_CALL("f<｜tool▁sep｜>[1]")) "||"},
        {DEEPSEEK("f"), DEEPSEEK("f") "||"},
        {DEEPSEEK(DEEPSEEK_CALL("f<｜tool▁sep｜>f\n```json\n{}")),
         DEEPSEEK(DEEPSEEK_CALL("f<｜tool▁sep｜>f\n```json\n{}")) "||"},
        {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{||"},
    };
    CHECK_FORMAT(&deepseek, true, false, deepseek_cases);
    static const answer_format kimi = {.calls = CALLS_KIMI};
    static const parser_case kimi_cases[] = {
        {KIMI(KIMI_CALL("functions.f:0", "{\"a\": 1}") KIMI_CALL("g", "{}")), "||f({\"a\": 1})g({})"},
        {KIMI(KIMI_CALL("functions.a:b:12", " {\"b\": \"<|tool_call_end|>\"} ")),
         "||a:b({\"b\": \"<|tool_call_end|>\"})"},
        {KIMI(KIMI_CALL("functions.:0", "{}")), KIMI(KIMI_CALL("functions.:0", "{}")) "||"},
        {KIMI(KIMI_CALL("f", "1")), KIMI(KIMI_CALL("f", "1")) "||"},
        {KIMI("") "a", KIMI("") "a||"},
    };
    CHECK_FORMAT(&kimi, true, false, kimi_cases);
}

#define LFM(calls) "<|tool_call_start|>" calls "<|tool_call_end|>"

static void test_python(void) {
    static const answer_format format = {
        .calls = CALLS_PYTHON, .hidden = {{5, "<|tool_call_start|>"}, {6, "<|tool_call_end|>"}}, .n_hidden = 2};
    static const parser_case cases[] = {
        {LFM("[f(a=1, b=\"x\")]"), "||f({\"a\":1,\"b\":\"x\"})"},
        {"I look. " LFM("[f(a=-1.5e3), any.tool-name()]") " Done.",
         "I look.\nDone.||f({\"a\":-1.5e3})any.tool-name({})"},
        {LFM("[f()]") "\n" LFM("[g(x=None)]"), "||f({})g({\"x\":null})"},
        {LFM("[ g ( x = [True, False , None,], y=(1, 'two'), z={'p': {}, \"q\": [[]]} , ) ]"),
         "||g({\"x\":[true,false,null],\"y\":[1,\"two\"],\"z\":{\"p\":{},\"q\":[[]]}})"},
        {LFM("[g(x={\"p\": true, \"q\": null})]"), "||g({\"x\":{\"p\":true,\"q\":null}})"},
        {LFM("f(b='no list')"), "||f({\"b\":\"no list\"})"},
        /* Texts of Python: escapes, quotes of the other kind, three quotes, lines. */
        {LFM("[f(b='\\'\\\"\\\\ \\n\\t\\x41\\u00e9\\101\\d')]"), "||f({\"b\":\"'\\\"\\\\ \\n\\tA\303\251A\\\\d\"})"},
        {LFM("[f(b='\\ud83d\\ude00\\U0001F600\\ud83d\\0')]"),
         "||f({\"b\":\"\360\237\230\200\360\237\230\200\357\277\275\357\277\275\"})"},
        {LFM("[f(b=\"it's\", c='\"')]"), "||f({\"b\":\"it's\",\"c\":\"\\\"\"})"},
        {LFM("[f(b='''two\nlines, 'quoted' '''), g(x='', y=\"\"\"\"\"\")]"),
         "||f({\"b\":\"two\\nlines, 'quoted' \"})g({\"x\":\"\",\"y\":\"\"})"},
        {LFM("[f(b='a\\\nb\nc')]"), "||f({\"b\":\"ab\\nc\"})"},
        {LFM("[f(b='it's \"so\"')]"), "||f({\"b\":\"it's \\\"so\\\"\"})"}, /* as templates write it */
        {LFM("[f(b='[<|tool_call_end|>')]") " so", "so||f({\"b\":\"[<|tool_call_end|>\"})"},
        {"<|tool_call_start|>[f(a=1)]", "||f({\"a\":1})"}, /* the end mark is missing */
        {LFM("[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]"), "||f({\"a\": 1})g({})"},
        {"<function_calls>\nf(b='x')\ng()\n</function_calls>", "||f({\"b\":\"x\"})g({})"},
        /* What is no call stays, without the markers that the text leaves out. */
        {"a " LFM("nonsense") " b", "a nonsense b||"},
        {"a " LFM("don't") " b " LFM("[f()]"), "a don't b||f({})"},
        {LFM("[]"), "[]||"},
        {LFM("[f(1)]"), "[f(1)]||"},
        {LFM("[f(a=1]"), "[f(a=1]||"},
        {LFM("[f(a=Paris)]"), "[f(a=Paris)]||"},
        {LFM("[f(a=01)]"), "[f(a=01)]||"},
        {LFM("[f(a=nan)]"), "[f(a=nan)]||"},
        {LFM("[f(a=1)) ]"), "[f(a=1)) ]||"},
        {LFM("[f(a={1: 2})]"), "[f(a={1: 2})]||"},
        {LFM("[f(b='x)]"), "[f(b='x)]||"},
        {LFM("[f(b='x\\"), "[f(b='x\\||"},
        {LFM("[f(a=1), g(]"), "[f(a=1), g(]||"},
        {LFM("[(a=1)]"), "[(a=1)]||"},
        {"<|tool_call_st", "<|tool_call_st||"},
        {"[f(a=1)]", "[f(a=1)]||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
    static const parser_case without[] = {
        {"<function_calls>f()</function_calls>", "<function_calls>f()</function_calls>||"}};
    CHECK_FORMAT(&format, false, false, without);
}

static void test_bare_python(void) {
    static const answer_format format = {.calls = CALLS_BARE_PYTHON};
    static const parser_case cases[] = {
        {"[f(a=1), g()]", "||f({\"a\":1})g({})"},
        {" \n[ f ( b = 'x' ) ]\n", "||f({\"b\":\"x\"})"},
        {"[h(a=1)]", "[h(a=1)]||"}, /* no tool of the request */
        {"[f(a=1), h()]", "[f(a=1), h()]||"},
        {"[f(a=1)] and more", "[f(a=1)] and more||"},
        {"[f]", "[f]||"},
        {"[first](https://a.b)", "[first](https://a.b)||"},
        {"f(a=1)", "f(a=1)||"},
        {"Call [f(a=1)]", "Call [f(a=1)]||"},
        {"[f(a=1)", "[f(a=1)||"},
        {"[", "[||"},
        {"", "||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
}

static void test_gemma(void) {
    static const answer_format format = {.calls = CALLS_GEMMA};
    static const parser_case cases[] = {
        {"<start_function_call>call:f{a:5,b:<escape>x, {y}<escape>}<end_function_call>",
         "||f({\"a\":5,\"b\":\"x, {y}\"})"},
        {"<|tool_call>call:g{l:[1,true,<|\"|>two<|\"|>],o:{p:null}}<tool_call|>",
         "||g({\"l\":[1,true,\"two\"],\"o\":{\"p\":null}})"},
        {"<start_function_call>call:f{}<end_function_call><start_function_call>call:g{x:word}<end_function_call>",
         "||f({})g({\"x\":\"word\"})"},
        {"<start_function_call>call:f{a:<end_function_call>", "<start_function_call>call:f{a:<end_function_call>||"},
        {"<start_function_call>tell:f{}<end_function_call>", "<start_function_call>tell:f{}<end_function_call>||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
}

#define CALL_F "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"

static void test_harmony(void) {
    static const answer_format format = {.calls = CALLS_HARMONY};
    static const parser_case cases[] = {
        {"<|channel|>final<|message|>Hello", "Hello||"},
        {"<|channel|>analysis<|message|>Hm. <|end|><|start|>assistant<|channel|>final<|message|> Hi\n<|return|>",
         " Hi\n|Hm. |"},
        {"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>", "|a\nb|"},
        {"<|channel|>analysis<|message|>Look.<|end|><|start|>assistant" CALL_F "{\"a\": 1.50}<|call|>",
         "|Look.|f({\"a\": 1.50})"},
        {" to=functions.f<|channel|>commentary json<|message|>{}", "||f({})"}, /* as templates write it */
        {CALL_F "{\"a\":1}<|end|><|start|>assistant<|channel|>commentary to=functions.g<|message|>{}",
         "||f({\"a\":1})g({})"},
        /* A preamble is for the reader, and not the answer yet. */
        {"<|channel|>commentary<|message|>I look.<|end|>\n<|start|>assistant" CALL_F "{}<|call|>", "I look.||f({})"},
        {"<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.",
         "One.\nTwo.||"},
        /* A tool of the model's own, for its thoughts. */
        {"<|channel|>analysis to=python code<|message|>print(1)<|call|><|start|>assistant<|channel|>final<|message|>1",
         "1|print(1)|"},
        {"<|channel|>commentary to=browser.search<|message|>{\"q\":1}<|call|>", "|{\"q\":1}|"},
        {CALL_F "{\"a\": <|call|>", "{\"a\": ||"},
        {CALL_F "[1]<|call|>", "[1]||"},
        {CALL_F "{\"b\":\"<|end|>\"}", "||f({\"b\":\"<|end|>\"})"},
        {CALL_F "{} {}<|call|>", "{} {}||"},
        {CALL_F "", "||"},
        {"<|channel|>commentary to=functions.<|message|>{}", "{}||"},
        {"<|channel|>commentary to=functions.f <|cons", "||"}, /* cut short */
        {"<|channel|>final<|message|>a <|en", "a <|en||"},
        {"<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b", "a\nb||"}, /* no end */
        {"Hello", "Hello||"},                                                                     /* not on a channel */
        {" \n Hello <|end|> ", " \n Hello ||"},
        {"to", "to||"},
        {"to=5 is <", "to=5 is <||"},
        {" \n", " \n||"},
        {"", "||"},
    };
    CHECK_FORMAT(&format, true, false, cases);
    static const parser_case without[] = {
        {"<|channel|>analysis<|message|>a<|end|><|start|>assistant" CALL_F "{}<|call|>", "{}|a|"},
    };
    CHECK_FORMAT(&format, false, false, without);
}

/* Markers that an answer's text leaves out come beside it; those that say nothing where they come stay out. */
static void test_hidden_markers(void) {
    static const answer_format format = {.calls = CALLS_HARMONY};
    static const char *const pieces[] = {"<|channel|>",
                                         "analysis",
                                         "<|message|>",
                                         "Hm",
                                         "<|constrain|>",
                                         ".",
                                         "<|end|>",
                                         "<|start|>",
                                         "assistant",
                                         "<|channel|>",
                                         "commentary to=functions.f ",
                                         "<|constrain|>",
                                         "json",
                                         "<|message|>",
                                         "{\"b\": \"x",
                                         "<|channel|>",
                                         "\"}",
                                         "<|call|>"};
    cJSON *tools = cJSON_Parse(tools_json);
    answer_parser parser;
    answer_delta whole = {.calls = NULL};
    answer_parser_start(&parser, &format, tools, false);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        if (pieces[i][0] == '<') {
            answer_parser_push_hidden(&parser, pieces[i], &whole);
        } else {
            answer_parser_push(&parser, pieces[i], strlen(pieces[i]), &whole);
        }
    }
    answer_parser_finish(&parser, &whole);
    CHECK(whole.content.size == 0);
    CHECK_STR(whole.thought.data, "Hm.");
    const cJSON *call = cJSON_GetArrayItem(whole.calls, 0);
    CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItem(call, "name")), "f");
    CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItem(call, "arguments")), "{\"b\": \"x\"}");
    answer_delta_free(&whole);
    answer_parser_free(&parser);
    cJSON_Delete(tools);
}

/* What is left of a call that is none has no bounds to its depth or number of tries. */
static void test_deep_and_long(void) {
    static const answer_format format = {.calls = CALLS_GEMMA};
    cJSON *tools = cJSON_Parse(tools_json);
    enum { DEPTH = 5000 };
    serve_text answer = {0};
    unsigned seed = 3;
    serve_text_add_format(&answer, "<start_function_call>call:f{a:");
    for (int i = 0; i < DEPTH; i++) { serve_text_add_format(&answer, i % 2 == 0 ? "[" : "{a:"); }
    char *got = taken_apart(&format, tools, false, answer.data, 0, SIZE_MAX, &seed);
    CHECK(got != NULL && strlen(got) == answer.size + 2);
    free(got);
    serve_text_clear(&answer);
    for (int i = 0; i < DEPTH; i++) { serve_text_add_format(&answer, "{\"function\":"); }
    got = taken_apart(&(const answer_format){.calls = CALLS_TAGGED}, tools, false, answer.data, 0, SIZE_MAX, &seed);
    CHECK(got != NULL && strlen(got) == answer.size + 2);
    free(got);
    serve_text_clear(&answer);
    serve_text_add_format(&answer, "<function_calls>f(a=");
    for (int i = 0; i < DEPTH; i++) { serve_text_add_format(&answer, i % 2 == 0 ? "[" : "{'a':"); }
    got = taken_apart(&(const answer_format){.calls = CALLS_PYTHON}, tools, false, answer.data, 0, SIZE_MAX, &seed);
    CHECK(got != NULL && strlen(got) == answer.size + 2);
    free(got);
    serve_text_free(&answer);
    cJSON_Delete(tools);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static void begin_block(void *user, const answer_blocks *b) {
    static const char *const names[] = {[BLOCK_THOUGHT] = "thought", [BLOCK_TEXT] = "text", [BLOCK_CALL] = "call"};
    serve_text_add_format(user, "%d %s[", b->number, names[b->open]);
}
static void grow_block(void *user, const answer_blocks *b, const char *bytes, size_t n_bytes) {
    (void)b;
    serve_text_add(user, bytes, n_bytes);
}
static void end_block(void *user, const answer_blocks *b) {
    (void)b;
    serve_text_add(user, "]", 1);
}

/* Texts and calls are blocks in the order in which they came, whether the answer is taken whole or in pieces. */
static void test_blocks(void) {
    static const block_events events = {begin_block, grow_block, end_block};
    static const char *const answer =
        "<think>Hm.</think>I look. <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
        "1}}</tool_call> and\nagain <tool_call>{\"name\": \"g\", \"arguments\": "
        "{}}</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call> end.";
    static const char *const expected = "0 thought[Hm.]1 text[I look.]2 call[{\"a\": 1}]3 text[and\nagain]"
                                        "4 call[{}]5 call[{}]6 text[end.]";
    cJSON *tools = cJSON_Parse(tools_json);
    const size_t n = strlen(answer);
    for (size_t most = 1; most <= n; most++) {
        for (int whole = 0; whole < 2; whole++) {
            answer_parser parser;
            answer_blocks blocks = {.n = 0};
            answer_delta all = {.calls = NULL};
            serve_text out = {0};
            answer_parser_start(&parser, &thinking, tools, false);
            for (size_t at = 0; at <= n; at += most) {
                answer_delta piece = {.calls = NULL};
                answer_delta *delta = whole ? &all : &piece;
                answer_parser_push(&parser, answer + at, n - at < most ? n - at : most, delta);
                if (at + most > n) { answer_parser_finish(&parser, delta); }
                if (!whole) { answer_blocks_take(&blocks, &piece, &events, &out); }
                answer_delta_free(&piece);
            }
            if (whole) { answer_blocks_take(&blocks, &all, &events, &out); }
            answer_blocks_end(&blocks, &events, &out);
            CHECK_STR(out.data, expected);
            answer_delta_free(&all);
            answer_blocks_free(&blocks);
            answer_parser_free(&parser);
            serve_text_free(&out);
        }
    }
    cJSON_Delete(tools);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_thoughts);
    CHECK_RUN(test_tagged);
    CHECK_RUN(test_llama);
    CHECK_RUN(test_mistral);
    CHECK_RUN(test_arg_keys);
    CHECK_RUN(test_seed);
    CHECK_RUN(test_invoke);
    CHECK_RUN(test_list);
    CHECK_RUN(test_tokens);
    CHECK_RUN(test_python);
    CHECK_RUN(test_bare_python);
    CHECK_RUN(test_gemma);
    CHECK_RUN(test_harmony);
    CHECK_RUN(test_hidden_markers);
    CHECK_RUN(test_deep_and_long);
    CHECK_RUN(test_blocks);
    return check_end();
}
