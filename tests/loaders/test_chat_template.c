/* Chat templates of model folders: where they are read from, what they see, and what a broken one says. */
#include "check.h"

#include <inttypes.h>
#include <time.h>

#include "base/file.h"
#include "loaders/template/chat_template.h"
#include "temporary.h"

static const char chatml[] =
    "{%- if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif -%}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role not in ['system', 'user', 'assistant'] %}\n"
    "        {{- raise_exception('unknown role: ' ~ message.role) }}\n"
    "    {%- endif %}\n"
    "    {{- bos_token if loop.first }}<|{{ message.role }}|>{{ message.content | trim }}{{ eos_token }}\n"
    "{% endfor %}\n"
    "{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<think></think>{% endif %}{% endif "
    "%}";

static qr_json *json(const char *text) {
    qr_json *root = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_json_parse(text, strlen(text), "json", &root, &err) == QRUN_OK, "%s", err.message);
    return root;
}

/* Renders with everything given as JSON text (tools and extra may be NULL) and compares the text or the message. */
static void expect(const qr_chat_template *chat_template, const char *messages, const char *tools, const char *extra,
                   bool add_generation_prompt, const char *expected) {
    qr_json *message_list = json(messages);
    qr_json *tool_list = tools != NULL ? json(tools) : NULL;
    qr_json *arguments = extra != NULL ? json(extra) : NULL;
    qr_buffer out = {0};
    qr_error err = {0};
    const qrun_status status = qr_chat_template_render(chat_template, message_list, tool_list, arguments,
                                                       add_generation_prompt, 1752150600, &out, &err);
    CHECK_INT(status, err.message[0] != '\0' ? QRUN_ERROR_INPUT : QRUN_OK);
    CHECK_STR(status == QRUN_OK ? (out.data != NULL ? out.data : "") : err.message, expected);
    if (status != QRUN_OK) { CHECK_INT(out.size, 0); }
    qr_buffer_free(&out);
    qr_json_free(message_list);
    qr_json_free(tool_list);
    qr_json_free(arguments);
}

static qr_chat_template *open_folder(const temporary_folder *folder) {
    qr_chat_template *opened = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_chat_template_open(folder->path, &opened, &err) == QRUN_OK, "%s", err.message);
    return opened;
}

static void write_config(const temporary_folder *folder, const char *members, const char *chat_template) {
    qr_buffer text = {0};
    qr_buffer_append_format(&text, "{%s, \"chat_template\": ", members);
    if (chat_template[0] == '[' || chat_template[0] == '1') {
        qr_buffer_append_text(&text, chat_template);
    } else {
        qr_buffer_append_json_string(&text, chat_template, strlen(chat_template));
    }
    qr_buffer_append_text(&text, "}");
    (void)temporary_text(folder, "tokenizer_config.json", text.data);
    qr_buffer_free(&text);
}

static void test_config(void) {
    const temporary_folder folder = temporary_create();
    write_config(&folder, "\"bos_token\": {\"content\": \"<s>\", \"lstrip\": false}, \"eos_token\": \"</s>\"", chatml);
    qr_chat_template *opened = open_folder(&folder);
    REQUIRE(opened != NULL);
    const char *messages =
        "[{\"role\": \"user\", \"content\": \" hi \"}, {\"role\": \"assistant\", \"content\": \"yo\"}]";
    expect(opened, messages, NULL, NULL, false, "<s><|user|>hi</s>\n<|assistant|>yo</s>\n");
    expect(opened, messages, NULL, NULL, true, "<s><|user|>hi</s>\n<|assistant|>yo</s>\n<|assistant|>");
    expect(opened, messages, NULL, "{\"enable_thinking\": false, \"bos_token\": \"B\"}", true,
           "B<|user|>hi</s>\n<|assistant|>yo</s>\n<|assistant|><think></think>");
    expect(opened, "[]", "[{\"name\": \"é\"}]", NULL, false, "<tools>[{\"name\": \"é\"}]</tools>\n");
    expect(opened, "[{\"role\": \"bot\"}]", NULL, NULL, false, "unknown role: bot");
    expect(opened, "[{\"role\": \"user\", \"content\": \"a\"}, 5]", NULL, NULL, false, "message 2 is not an object");
    expect(opened, "{}", NULL, NULL, false, "\"messages\" should be a list of messages");
    expect(opened, "[]", "{}", NULL, false, "\"tools\" should be a list of tools");
    expect(opened, "[]", NULL, "[]", false, "the template's arguments should be an object");
    qr_chat_template_free(opened);
    temporary_remove(&folder);
}

static void test_file_comes_first(void) {
    const temporary_folder folder = temporary_create();
    write_config(&folder, "\"bos_token\": \"<s>\", \"eos_token\": null", "from the config");
    (void)temporary_text(&folder, "chat_template.jinja", "{{ bos_token }}{{ eos_token is defined }} from the file\n");
    qr_chat_template *opened = open_folder(&folder);
    REQUIRE(opened != NULL);
    expect(opened, "[]", NULL, NULL, false, "<s>False from the file");
    qr_chat_template_free(opened);
    temporary_remove(&folder);
}

static void test_named_templates(void) {
    const temporary_folder folder = temporary_create();
    write_config(&folder, "\"x\": 1",
                 "[{\"name\": \"rag\", \"template\": \"rag\"}, {\"name\": \"tool_use\", \"template\": \"tools\"}, "
                 "{\"name\": \"default\", \"template\": \"plain {{ tools is none }}\"}]");
    qr_chat_template *opened = open_folder(&folder);
    REQUIRE(opened != NULL);
    expect(opened, "[]", NULL, NULL, false, "plain True");
    expect(opened, "[]", "null", NULL, false, "plain True");
    expect(opened, "[]", "[]", NULL, false, "tools");
    qr_chat_template_free(opened);
    temporary_remove(&folder);
}

/* As transformers 5 reads a folder: the files replace what tokenizer_config.json holds. */
static void test_additional_templates(void) {
    const temporary_folder folder = temporary_create();
    write_config(&folder, "\"x\": 1", "from the config");
    REQUIRE(mkdir(temporary_path(&folder, "additional_chat_templates"), 0700) == 0);
    (void)temporary_text(&folder, "additional_chat_templates/tool_use.jinja", "tool use {{ tools|length }}");
    (void)temporary_text(&folder, "additional_chat_templates/rag.jinja", "{% not even a template");
    (void)temporary_text(&folder, "additional_chat_templates/README.md", "no template");
    qr_chat_template *opened = NULL;
    qr_error err = {0};
    CHECK_INT(qr_chat_template_open(folder.path, &opened, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "named \"default\"") != NULL, "%s", err.message);
    (void)temporary_text(&folder, "chat_template.jinja", "plain {{ tools is none }}");
    opened = open_folder(&folder);
    REQUIRE(opened != NULL);
    expect(opened, "[]", NULL, NULL, false, "plain True");
    expect(opened, "[]", "[1, 2]", NULL, false, "tool use 2");
    qr_chat_template_free(opened);
    (void)temporary_text(&folder, "additional_chat_templates/default.jinja", "the other default");
    opened = open_folder(&folder);
    REQUIRE(opened != NULL);
    expect(opened, "[]", NULL, NULL, false, "the other default");
    qr_chat_template_free(opened);
    (void)temporary_text(&folder, "additional_chat_templates/tool_use.jinja", "{% if");
    qr_error_clear(&err);
    CHECK_INT(qr_chat_template_open(folder.path, &opened, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "additional_chat_templates/tool_use.jinja: line 1: ") != NULL, "%s", err.message);
    temporary_remove(&folder);
}

static void test_other_forms(void) {
    static const struct {
        const char *file, *text, *expected;
    } cases[] = {
        {"tokenizer_config.json", "{\"chat_template\": {\"tool_use\": \"t\", \"default\": \"an object\"}}",
         "an object"},
        {"chat_template.json", "{\"chat_template\": \"a processor's\"}", "a processor's"},
        {"chat_template.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"a list\"}]}", "a list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const temporary_folder folder = temporary_create();
        (void)temporary_text(&folder, cases[i].file, cases[i].text);
        qr_chat_template *opened = open_folder(&folder);
        REQUIRE(opened != NULL);
        expect(opened, "[]", NULL, NULL, false, cases[i].expected);
        qr_chat_template_free(opened);
        temporary_remove(&folder);
    }
}

static void test_special_tokens(void) {
    static const char show[] =
        "{{ [bos_token, image_token, video_token, box_token, eos_token, add_bos_token is defined] }}";
    const temporary_folder folder = temporary_create();
    write_config(&folder,
                 "\"image_token\": \"<i>\", \"add_bos_token\": true, \"bos_token\": \"<s>\", \"box_token\": \"old\", "
                 "\"extra_special_tokens\": {\"video_token\": \"<v>\", \"box_token\": {\"content\": \"<box>\"}}",
                 show);
    qr_chat_template *opened = open_folder(&folder);
    REQUIRE(opened != NULL);
    expect(opened, "[]", NULL, NULL, false, "['<s>', '<i>', '<v>', '<box>', Undefined, False]");
    qr_chat_template_free(opened);
    /* special_tokens_map.json counts only beside a config of its time. */
    (void)temporary_text(&folder, "special_tokens_map.json",
                         "{\"bos_token\": \"<B>\", \"eos_token\": {\"content\": \"<E>\"}}");
    opened = open_folder(&folder);
    REQUIRE(opened != NULL);
    expect(opened, "[]", NULL, NULL, false, "['<B>', '<i>', '<v>', '<box>', '<E>', False]");
    qr_chat_template_free(opened);
    write_config(&folder, "\"bos_token\": \"<s>\", \"added_tokens_decoder\": {}, \"extra_special_tokens\": [\"<x>\"]",
                 show);
    opened = open_folder(&folder);
    REQUIRE(opened != NULL);
    expect(opened, "[]", NULL, NULL, false, "['<s>', Undefined, Undefined, Undefined, Undefined, False]");
    qr_chat_template_free(opened);
    temporary_remove(&folder);
}

/* transformers' own rule (utils/chat_template_utils.py, _alias_reasoning_fields), which templates such as Qwen3's and
 * gpt-oss' rely on. */
static void test_reasoning(void) {
    static const struct {
        const char *message, *expected;
    } cases[] = {
        {"\"reasoning\": \"r\"", "{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}"},
        {"\"reasoning_content\": \"c\"", "{'thinking': 'c', 'role': 'a', 'reasoning_content': 'c'}"},
        {"\"thinking\": \"t\"", "{'thinking': 't', 'role': 'a', 'reasoning_content': 't'}"},
        {"\"thinking\": \"t\", \"reasoning\": \"r\", \"reasoning_content\": null",
         "{'thinking': 't', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 't'}"},
        {"\"reasoning_content\": \"c\", \"thinking\": \"t\"",
         "{'thinking': 't', 'role': 'a', 'reasoning_content': 'c'}"},
        {"\"reasoning\": \"\"", "{'thinking': '', 'role': 'a', 'reasoning': '', 'reasoning_content': ''}"},
        {"\"content\": null, \"reasoning\": null, \"tool_calls\": null, \"x\": [null]", "{'role': 'a', 'x': [None]}"},
    };
    static const char text[] = "{% for m in messages %}{{ m }}{% endfor %}";
    qr_chat_template *parsed = NULL;
    REQUIRE(qr_chat_template_parse(text, sizeof text - 1, "t", &parsed, NULL) == QRUN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char messages[256], expected[512];
        snprintf(messages, sizeof messages, "[{\"role\": \"a\", %s}, {\"role\": null}]", cases[i].message);
        snprintf(expected, sizeof expected, "%s{}", cases[i].expected);
        expect(parsed, messages, NULL, NULL, false, expected);
    }
    qr_chat_template_free(parsed);
}

static void test_numbers(void) {
    static const char text[] = "{{ tools|tojson }}{{ tools[0] is integer }}{{ tools[1] is float }}";
    qr_chat_template *parsed = NULL;
    REQUIRE(qr_chat_template_parse(text, sizeof text - 1, "t", &parsed, NULL) == QRUN_OK);
    expect(parsed, "[]", "[1, 1.0, -0.0, 1e3, 100000000000000000000, 0.1, -2]", NULL, false,
           "[1, 1.0, -0.0, 1000.0, 100000000000000000000, 0.1, -2]TrueTrue");
    qr_chat_template_free(parsed);
}

/* ---- Harmony: conversations on channels, as transformers renders them ------------------------------------------- */

static uint64_t fnv1a64(const char *bytes, size_t n) {
    uint64_t value = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) { value = (value ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3); }
    return value;
}

/* Whether a rendering is what the case says of gpt-oss' own template: its length and checksum. */
static bool is_recorded(const qr_json *item, const char *text, size_t n) {
    const qr_json *recorded = qr_json_get(item, "gpt_oss");
    const char *sum = "";
    char got[17];
    int64_t n_bytes = -1;
    qr_error err = {0};
    (void)qr_json_get_int(recorded, "bytes", 0, INT64_MAX, &n_bytes, "case", &err);
    (void)qr_json_get_string(recorded, "fnv1a64", &sum, "case", &err);
    (void)snprintf(got, sizeof got, "%016" PRIx64, fnv1a64(text, n));
    return (size_t)n_bytes == n && strcmp(got, sum) == 0;
}

/* One conversation; is_own: with the template of the tests, whose text is recorded as it is. */
static void check_conversation(const qr_chat_template *chat_template, const qr_json *item, bool is_own) {
    const char *name = "", *expected = NULL;
    bool prompt = false;
    qr_buffer out = {0};
    qr_error err = {0};
    (void)qr_json_get_string(item, "name", &name, "case", &err);
    (void)qr_json_get_string(item, "expected", &expected, "case", &err);
    (void)qr_json_get_bool(item, "add_generation_prompt", &prompt, "case", &err);
    const bool is_refused = is_own ? expected == NULL : qr_json_is_null(qr_json_get(item, "gpt_oss"));
    const qrun_status status =
        qr_chat_template_render(chat_template, qr_json_get(item, "messages"), qr_json_get(item, "tools"),
                                qr_json_get(item, "arguments"), prompt, 1752150600, &out, &err);
    const char *got = out.data != NULL ? out.data : "";
    CHECK_MSG(status == (is_refused ? QRUN_ERROR_INPUT : QRUN_OK), "%s: %s", name, err.message);
    if (!is_refused && is_own) { CHECK_STR(got, expected); }
    if (!is_refused && !is_own) { CHECK_MSG(is_recorded(item, got, out.size), "%s: differs:\n%s", name, got); }
    qr_buffer_free(&out);
}

static void check_conversations(const char *template_path, bool is_own) {
    char *text = NULL;
    size_t n_bytes = 0;
    qr_json *root = NULL;
    qr_chat_template *parsed = NULL;
    qr_error err = {0};
    int n = 0;
    REQUIRE(qr_file_read(template_path, 1 << 20, &text, &n_bytes, &err) == QRUN_OK);
    CHECK_MSG(qr_chat_template_parse(text, n_bytes, "t", &parsed, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(qr_json_read(QRUN_SOURCE_DIR "/tests/fixtures/templates/harmony.json", 1 << 20, &root, &err) == QRUN_OK);
    for (const qr_json *item = qr_json_first(qr_json_get(root, "cases")); item != NULL; item = item->next, n++) {
        check_conversation(parsed, item, is_own);
    }
    CHECK_MSG(n >= 27, "%d conversations", n);
    qr_json_free(root);
    qr_chat_template_free(parsed);
    qr_free(text);
}

static void test_harmony(void) { check_conversations(QRUN_SOURCE_DIR "/tests/fixtures/templates/harmony.jinja", true); }

static void test_gpt_oss_template(void) {
    const char *path = check_shared_data("chat-templates/gpt-oss.jinja");
    if (path == NULL) {
        check_skip("there is no chat-templates/gpt-oss.jinja among the real data");
        return;
    }
    check_conversations(path, false);
}

static void test_absent(void) {
    const temporary_folder folder = temporary_create();
    CHECK(open_folder(&folder) == NULL);
    (void)temporary_text(&folder, "tokenizer_config.json", "{\"bos_token\": \"<s>\"}");
    CHECK(open_folder(&folder) == NULL);
    temporary_remove(&folder);
}

static void test_malformed(void) {
    static const struct {
        const char *config, *message;
    } cases[] = {
        {"{\"chat_template\": 5}", "neither a text nor a list"},
        {"{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}", "none of the chat templates is named"},
        {"{\"chat_template\": [{\"name\": \"default\"}]}", "has no name or no text"},
        {"{\"chat_template\": [{\"name\": \"default\", \"template\": \"a\"}, {\"name\": \"default\", "
         "\"template\": \"b\"}]}",
         "the same name"},
        {"{\"chat_template\": \"a\\n{% if %}\"}", "tokenizer_config.json: line 2: "},
        {"{\"chat_template\": \"a\", \"bos_token\": 5}", "bos_token"},
        {"[]", "should hold a JSON object"},
        {"{", "tokenizer_config.json"},
    };
    const temporary_folder folder = temporary_create();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)temporary_text(&folder, "tokenizer_config.json", cases[i].config);
        qr_chat_template *opened = NULL;
        qr_error err = {0};
        CHECK_INT(qr_chat_template_open(folder.path, &opened, &err), QRUN_ERROR_INPUT);
        CHECK(opened == NULL);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s: %s", cases[i].config, err.message);
    }
    temporary_remove(&folder);
}

static qrun_status open_and_render(void *context, qr_error *err) {
    qr_chat_template *opened = NULL;
    qr_buffer out = {0};
    qrun_status status = qr_chat_template_open(((const temporary_folder *)context)->path, &opened, err);
    qr_json *messages = NULL;
    if (status == QRUN_OK) {
        status = qr_json_parse("[{\"role\": \"user\", \"content\": \"a\"}]", 34, "m", &messages, err);
    }
    if (status == QRUN_OK) { status = qr_chat_template_render(opened, messages, NULL, NULL, true, 0, &out, err); }
    qr_json_free(messages);
    qr_chat_template_free(opened);
    qr_buffer_free(&out);
    return status;
}

static void test_failing_allocations(void) {
    temporary_folder folder = temporary_create();
    write_config(&folder, "\"bos_token\": \"<s>\"", chatml);
    check_failing_allocations(open_and_render, &folder, false);
    temporary_remove(&folder);
}

int main(int argc, char **argv) {
    setenv("TZ", "UTC", 1); /* strftime_now is in local time */
    tzset();
    check_begin(argc, argv);
    CHECK_RUN(test_config);
    CHECK_RUN(test_file_comes_first);
    CHECK_RUN(test_named_templates);
    CHECK_RUN(test_additional_templates);
    CHECK_RUN(test_other_forms);
    CHECK_RUN(test_special_tokens);
    CHECK_RUN(test_reasoning);
    CHECK_RUN(test_numbers);
    CHECK_RUN(test_harmony);
    CHECK_RUN(test_gpt_oss_template);
    CHECK_RUN(test_absent);
    CHECK_RUN(test_malformed);
    CHECK_RUN(test_failing_allocations);
    return check_end();
}
