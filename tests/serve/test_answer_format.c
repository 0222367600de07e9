/* What templates tell of how their models write calls and thoughts: small ones of each kind here, and real ones where
 * there are some beside the checkout. With a folder as argument it prints what it learns of every file in it. */
#include "check.h"

#include <dirent.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "serve/openai/answer_format.h"
#include "serve/openai/tool_choice.h"

static bool write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) { return false; }
    fputs(text, file);
    return fclose(file) == 0;
}

/* A tokenizer with this template, and with this tokenizer.json or (NULL) the shipped model's; NULL when it is refused.
 */
static qrun_tokenizer *with_files(const char *text, const char *tokenizer_json) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    char folder[] = "/tmp/qrun-format.XXXXXX", paths[3][256], target[512];
    qrun_tokenizer *tokenizer = NULL;
    if (mkdtemp(folder) == NULL) { return NULL; }
    for (int i = 0; i < 3; i++) { snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]); }
    for (int i = 0; i < 2 && tokenizer_json == NULL; i++) {
        snprintf(target, sizeof target, QRUN_SOURCE_DIR "/examples/model/%s", names[i]);
        (void)!symlink(target, paths[i]);
    }
    if ((tokenizer_json == NULL || write_text(paths[0], tokenizer_json)) && write_text(paths[2], text)) {
        (void)qrun_tokenizer_open(NULL, folder, &tokenizer, NULL);
    }
    for (int i = 0; i < 3; i++) { unlink(paths[i]); }
    rmdir(folder);
    return tokenizer;
}

/* "before|between|after" of the form that a template's calls have. */
static const char *form_of(const char *text) {
    static char made[512];
    answer_format format;
    call_form form;
    qrun_tokenizer *tokenizer = with_files(text, NULL);
    answer_format_learn(tokenizer, &format);
    call_form_learn(tokenizer, &format, &form);
    snprintf(made, sizeof made, "%s%s%s|%s|%s", form.is_known ? "" : form.why, form.is_tagged ? "tags: " : "",
             form.before, form.between, form.after);
    qrun_tokenizer_destroy(tokenizer);
    return made;
}

static bool learn(const char *text, answer_format *format) {
    qrun_tokenizer *tokenizer = with_files(text, NULL);
    answer_format_learn(tokenizer, format);
    const bool opened = tokenizer != NULL;
    qrun_tokenizer_destroy(tokenizer);
    return opened;
}

/* A template that writes calls as `call`, and what a message thought as `thought`. */
#define TEMPLATE(call, thought)                                                                                \
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}" thought "{% endif %}"                  \
    "{% if m.tool_calls %}{% for c in m.tool_calls %}" call "{% endfor %}{% else %}{{ m.content }}{% endif %}" \
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

static void test_small_templates(void) {
    static const struct {
        const char *text;
        call_style calls;
        const char *think_begin;
    } cases[] = {
        {TEMPLATE("<tool_call>\n{\"name\": \"{{ c.function.name }}\"}</tool_call>", ""), CALLS_TAGGED, NULL},
        {TEMPLATE("<tool_call>\n<function={{ c.function.name }}>", "<think>{{ m.reasoning_content }}</think>"),
         CALLS_TAGGED, "<think>"},
        {TEMPLATE("{\"name\": \"{{ c.function.name }}\", \"parameters\": {}}", ""), CALLS_LLAMA, NULL},
        {TEMPLATE("[TOOL_CALLS]{{ c.function.name }}[ARGS]{}", "[THINK]{{ m.reasoning_content }}[/THINK]"),
         CALLS_MISTRAL, "[THINK]"},
        {TEMPLATE("<start_function_call>call:{{ c.function.name }}{}", ""), CALLS_GEMMA, NULL},
        {TEMPLATE("<|tool_call>call:{{ c.function.name }}{}", ""), CALLS_GEMMA, NULL},
        {TEMPLATE("<tool_call>{{ c.function.name }}\n<arg_key>b</arg_key>\n<arg_value>c</arg_value>\n</tool_call>", ""),
         CALLS_ARG_KEYS, NULL},
        {TEMPLATE("<seed:tool_call>\n<function={{ c.function.name }}>\n</function>\n</seed:tool_call>",
                  "<seed:think>{{ m.reasoning_content }}</seed:think>"),
         CALLS_SEED, "<seed:think>"},
        {TEMPLATE("<minimax:tool_call>\n<invoke name=\"{{ c.function.name }}\">\n</invoke>\n</minimax:tool_call>", ""),
         CALLS_INVOKE, NULL},
        {TEMPLATE("<|tool_call|>[{\"name\": \"{{ c.function.name }}\"}]", ""), CALLS_LIST, NULL},
        {"{% if tools %}answer with <|tool_call|> and a list{% endif %}", CALLS_LIST, NULL},
        {"{% if tools %}functools[{\"name\": \"x\"}]{% endif %}" TEMPLATE("{\"name\": \"{{ c.function.name }}\"}", ""),
         CALLS_LIST, NULL},
        /* Of arguments that are a text alone. */
        {TEMPLATE("{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments }}", ""),
         CALLS_DEEPSEEK, NULL},
        {TEMPLATE("<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}", ""), CALLS_KIMI, NULL},
        {TEMPLATE("<|tool_call_start|>[{{ c.function.name }}(b=\"c\")]<|tool_call_end|>", ""), CALLS_PYTHON, NULL},
        {TEMPLATE("<function_calls>\n{{ c.function.name }}(b='c')\n</function_calls>",
                  "<think>{{ m.thinking }}</think>"),
         CALLS_PYTHON, "<think>"},
        {"{% if tools %}<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}", CALLS_PYTHON, NULL},
        {TEMPLATE("[{{ c.function.name }}(b=c)]", ""), CALLS_BARE_PYTHON, NULL},
        {TEMPLATE("(calls {{ c.function.name }})", ""), CALLS_NONE, NULL},
        {TEMPLATE("to=functions.{{ c.function.name }}<|channel|>commentary", ""), CALLS_HARMONY, NULL},
        {TEMPLATE("", "<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>"), CALLS_HARMONY, NULL},
        {TEMPLATE("", "") "<think>\n", CALLS_NONE, "<think>"}, /* the prompt ends within a thought */
        {"{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}", CALLS_NONE, "<think>"},
        {"{% for m in messages %}{{ m.content }}{% endfor %}", CALLS_NONE, NULL},
        {"{{ raise_exception('never') }}", CALLS_NONE, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        answer_format format;
        CHECK(learn(cases[i].text, &format));
        const bool same_mark = (format.think_begin == NULL) == (cases[i].think_begin == NULL) &&
                               (format.think_begin == NULL || strcmp(format.think_begin, cases[i].think_begin) == 0);
        CHECK_MSG(format.calls == cases[i].calls && same_mark, "%s: %d, %s", cases[i].text, (int)format.calls,
                  format.think_begin);
    }
    const answer_format thinks = {.think_begin = "<think>"};
    CHECK(answer_format_prompt_thinks(&thinks, "a<think>\n", 9) &&
          !answer_format_prompt_thinks(&thinks, "a<think>b", 9));
    CHECK(!answer_format_prompt_thinks(&(const answer_format){.calls = CALLS_LLAMA}, "<think>", 7));
    static const char budget[] = "<seed:think><seed:cot_budget_reflect>\n";
    CHECK(answer_format_prompt_thinks(&(const answer_format){.think_begin = "<seed:think>"}, budget, strlen(budget)));
}

#define ARGS "{{ c.function.arguments | tojson }}"

/* The form of a call is the template's, or the usual one where it does not show one that is read. */
static void test_call_forms(void) {
    static const char *const cases[][2] = {
        {TEMPLATE("<tool_call>{\"name\":\"{{ c.function.name }}\",\"arguments\":" ARGS "}</tool_call>", ""),
         "<tool_call>{\"name\":\"|\",\"arguments\":|}</tool_call>"},
        {TEMPLATE("<tool_call>{\"arguments\": " ARGS ", \"name\": \"{{ c.function.name }}\"}</tool_call>", ""),
         "<tool_call>\n{\"name\": \"|\", \"arguments\": |}\n</tool_call>"},
        {TEMPLATE("<tool_call>{{ c.function.name }}<arg_key>", ""),
         "its chat template writes calls in a form that is not read here||"},
        {TEMPLATE("<tool_call>{{ c.function.name }}(b=c)</tool_call>", ""),
         "its chat template writes calls in a form that is not read here||"},
        {TEMPLATE(
             "<tool_call>\n<function={{ c.function.name }}>\n<parameter=b>\nc\n</parameter>\n</function>\n</tool_call>",
             ""),
         "tags: <tool_call>\n<function=|>\n|</function>\n</tool_call>"},
        {TEMPLATE("{\"name\": \"{{ c.function.name }}\", \"parameters\": " ARGS "}", ""),
         "{\"name\": \"|\", \"parameters\": |}"},
        {TEMPLATE("[TOOL_CALLS] [{\"name\": \"{{ c.function.name }}\", \"arguments\": " ARGS
                  ", \"id\": \"{{ c.id }}\"}]",
                  ""),
         "[TOOL_CALLS] [{\"name\": \"|\", \"arguments\": |}]"},
        {TEMPLATE("[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]" ARGS, ""), "[TOOL_CALLS]|[ARGS]|"},
        {TEMPLATE("[TOOL_CALLS]{{ c.function.name }}", ""), "[TOOL_CALLS][{\"name\": \"|\", \"arguments\": |}]"},
        {TEMPLATE("<|start|>assistant to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>" ARGS,
                  ""),
         " to=functions.|<|channel|>commentary json<|message|>|"},
        {TEMPLATE("", "<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>"),
         "<|channel|>commentary to=functions.| <|constrain|>json<|message|>|"},
        {TEMPLATE("(calls {{ c.function.name }})", ""), "its chat template does not show how it calls tools||"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) { CHECK_STR(form_of(cases[i][0]), cases[i][1]); }
}

static char *read_all(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) { return NULL; }
    fseek(file, 0, SEEK_END);
    const long n = ftell(file);
    rewind(file);
    char *text = calloc(1, (size_t)n + 1);
    if (text != NULL && fread(text, 1, (size_t)n, file) != (size_t)n) { text[0] = '\0'; }
    fclose(file);
    return text;
}

/* Real templates by a part of their names. */
static void test_real_templates(void) {
    static const struct {
        const char *name;
        call_style calls;
        bool thinks;
    } known[] = {
        {"Qwen2.5-7B-Instruct", CALLS_TAGGED, false},
        {"meta-llama/Llama-3.1", CALLS_LLAMA, false},
        {"meta-llama/Llama-3.2", CALLS_LLAMA, false},
        {"DeepSeek-R1-Distill", CALLS_DEEPSEEK, true},
        {"Qwen3", CALLS_TAGGED, true},
        {"mistralai/Mistral-Nemo", CALLS_MISTRAL, false},
        {"Mistral-7B-Instruct-v0.3", CALLS_MISTRAL, false},
        {"Hermes-2-Pro", CALLS_TAGGED, false},
        {"LiquidAI/LFM2.5", CALLS_PYTHON, true},
        {"moonshotai/Kimi-K2", CALLS_KIMI, false},
        {"deepseek-ai/DeepSeek-R1", CALLS_DEEPSEEK, true},
        {"zai-org/GLM-5.1", CALLS_ARG_KEYS, true},
    };
    const char *path = check_shared_data("chat-templates/real-templates.json");
    if (path == NULL) {
        check_skip("there are no real templates beside the checkout");
        return;
    }
    char *text = read_all(path);
    cJSON *root = cJSON_Parse(text);
    const cJSON *item;
    int n = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, "cases")) {
        const char *name = cJSON_GetObjectItem(item, "name")->valuestring;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            answer_format format;
            if (strstr(name, known[i].name) == NULL) { continue; }
            if (!learn(cJSON_GetObjectItem(item, "template")->valuestring, &format)) { continue; }
            n++;
            CHECK_MSG(known[i].calls == CALLS_NONE || format.calls == known[i].calls, "%s: %d", name,
                      (int)format.calls);
            CHECK_MSG((format.think_begin != NULL) == known[i].thinks, "%s: %s", name, format.think_begin);
        }
    }
    printf("  %d real templates\n", n);
    CHECK(n > 0);
    cJSON_Delete(root);
    free(text);
}

/* gpt-oss' own template, and the one of the tests that has its constructs. */
static void test_harmony(void) {
    for (int i = 0; i < 2; i++) {
        answer_format format;
        const char *path = i == 0 ? QRUN_SOURCE_DIR "/tests/fixtures/templates/harmony.jinja"
                                  : check_shared_data("chat-templates/gpt-oss.jinja");
        if (path == NULL) {
            check_skip("there is no chat-templates/gpt-oss.jinja among the real data");
            return;
        }
        char *text = read_all(path);
        CHECK(learn(text, &format));
        CHECK_INT(format.calls, CALLS_HARMONY);
        CHECK(format.think_begin == NULL);
        free(text);
    }
}

/* Markers that are special tokens are found by their ids; of Harmony's model those of Harmony alone. */
static void test_hidden(void) {
    static const char template[] = TEMPLATE("to=functions.{{ c.function.name }}", "");
    static const char tokenizer[] =
        "{\"version\":\"1.0\",\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"<|end|>\":1,\"<|channel|>\":2,"
        "\"<think>\":3},\"unk_token\":\"a\"},\"added_tokens\":[{\"id\":1,\"content\":\"<|end|>\",\"special\":true},"
        "{\"id\":2,\"content\":\"<|channel|>\",\"special\":true},{\"id\":3,\"content\":\"<think>\",\"special\":true}]}";
    answer_format format = {.n_hidden = 0};
    qrun_tokenizer *opened = with_files(template, tokenizer);
    REQUIRE(opened != NULL);
    answer_format_learn(opened, &format);
    CHECK_INT(format.calls, CALLS_HARMONY);
    CHECK_STR(answer_format_hidden(&format, 1), "<|end|>");
    CHECK_STR(answer_format_hidden(&format, 2), "<|channel|>");
    CHECK(answer_format_hidden(&format, 3) == NULL && format.n_hidden == 2);
    qrun_tokenizer_destroy(opened);
}

static int print_folder(const char *folder) {
    static const char *const styles[] = {"none",   "tagged",      "seed",     "arg keys", "invoke",
                                         "llama",  "list",        "deepseek", "kimi",     "mistral",
                                         "python", "bare python", "gemma",    "harmony"};
    DIR *list = opendir(folder);
    for (const struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        char path[1024];
        answer_format format;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        char *text = entry->d_name[0] != '.' ? read_all(path) : NULL;
        if (text != NULL && learn(text, &format)) {
            printf("%s\n", form_of(text));
            printf("%-8s %-8s %s\n", styles[format.calls], format.think_begin != NULL ? format.think_begin : "-",
                   entry->d_name);
        }
        free(text);
    }
    if (list != NULL) { closedir(list); }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '/') { return print_folder(argv[1]); }
    check_begin(argc, argv);
    CHECK_RUN(test_small_templates);
    CHECK_RUN(test_call_forms);
    CHECK_RUN(test_real_templates);
    CHECK_RUN(test_harmony);
    CHECK_RUN(test_hidden);
    return check_end();
}
