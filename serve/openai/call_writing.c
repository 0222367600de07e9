#include "serve/openai/call_writing.h"

#include <string.h>

#include "serve/openai/answer_parser.h"

/* ---- The usual forms --------------------------------------------------------------------------------------------- */

/* What is known of a style: how a template shows a call, and how models of the style write one where it does not. */
typedef struct call_writing {
    const char *begins[3];       /* a call begins at the last of these before its name, the first that is there */
    bool skips_begin;            /* after it, rather */
    const char *ends[2];         /* after the arguments, each up to its own end, where it is there */
    const char *key, *value_end; /* the tags of an argument; NULL: arguments are JSON */
    call_form usual;
} call_writing;

static const call_writing writings[N_CALL_STYLES] = {
    [CALLS_TAGGED] = {.begins = {"<tool_call>", "<function="},
                      .key = "<parameter=",
                      .value_end = "</parameter>",
                      .usual = {.before = "<tool_call>\n{\"name\": \"",
                                .between = "\", \"arguments\": ",
                                .after = "}\n</tool_call>",
                                .is_json = true,
                                .is_known = true}},
    [CALLS_SEED] = {.begins = {"<seed:tool_call>"},
                    .ends = {"</function>", "</seed:tool_call>"},
                    .key = "<parameter=",
                    .value_end = "</parameter>",
                    .usual = {.before = "<seed:tool_call>\n<function=",
                              .between = ">\n",
                              .before_key = "<parameter=",
                              .after_key = ">",
                              .after_value = "</parameter>\n",
                              .after = "</function>\n</seed:tool_call>",
                              .is_tagged = true,
                              .is_known = true}},
    [CALLS_ARG_KEYS] = {.begins = {"<tool_call>"},
                        .ends = {"</tool_call>"},
                        .key = "<arg_key>",
                        .value_end = "</arg_value>",
                        .usual = {.before = "<tool_call>",
                                  .between = "\n",
                                  .before_key = "<arg_key>",
                                  .after_key = "</arg_key>\n<arg_value>",
                                  .after_value = "</arg_value>\n",
                                  .after = "</tool_call>",
                                  .is_tagged = true,
                                  .is_known = true}},
    [CALLS_INVOKE] = {.begins = {"<minimax:tool_call>"},
                      .ends = {"</invoke>", "</minimax:tool_call>"},
                      .key = "<parameter name=\"",
                      .value_end = "</parameter>",
                      .usual = {.before = "<minimax:tool_call>\n<invoke name=\"",
                                .between = "\">\n",
                                .before_key = "<parameter name=\"",
                                .after_key = "\">",
                                .after_value = "</parameter>\n",
                                .after = "</invoke>\n</minimax:tool_call>",
                                .is_tagged = true,
                                .is_known = true}},
    [CALLS_LLAMA] = {.begins = {"<|python_tag|>", "{"},
                     .usual = {.before = "{\"name\": \"",
                               .between = "\", \"parameters\": ",
                               .after = "}",
                               .is_json = true,
                               .is_known = true}},
    [CALLS_LIST] = {.begins = {"<|tool_call|>", "<tool_call>[", "functools["},
                    .ends = {"]", "</tool_call>"},
                    .usual = {.before = "<|tool_call|>[{\"name\": \"",
                              .between = "\", \"arguments\": ",
                              .after = "}]",
                              .is_json = true,
                              .is_known = true}},
    [CALLS_DEEPSEEK] = {.begins = {"<｜tool▁calls▁begin｜>"},
                        .ends = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
                        .usual = {.before = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
                                  .between = "<｜tool▁sep｜>",
                                  .after = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                                  .is_known = true}},
    [CALLS_KIMI] = {.begins = {"<|tool_calls_section_begin|>"},
                    .ends = {"<|tool_call_end|>", "<|tool_calls_section_end|>"},
                    .usual = {.before = "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
                              .between = ":0<|tool_call_argument_begin|>",
                              .after = "<|tool_call_end|><|tool_calls_section_end|>",
                              .is_known = true}},
    [CALLS_MISTRAL] = {.begins = {"[TOOL_CALLS]"},
                       .usual = {.before = "[TOOL_CALLS][{\"name\": \"",
                                 .between = "\", \"arguments\": ",
                                 .after = "}]",
                                 .is_json = true,
                                 .is_known = true}},
    [CALLS_HARMONY] = {.begins = {"<|start|>assistant"},
                       .skips_begin = true,
                       .usual = {.before = "<|channel|>commentary to=functions.",
                                 .between = " <|constrain|>json<|message|>",
                                 .after = "",
                                 .is_known = true}},
    [CALLS_GEMMA] = {.usual = {.why = "its calls have arguments that are not JSON (call:name{key:value})"}},
    [CALLS_PYTHON] = {.usual = {.why = "its calls have arguments that are not JSON (name(key=value))"}},
    [CALLS_BARE_PYTHON] = {.usual = {.why = "its calls have arguments that are not JSON (name(key=value))"}},
    [CALLS_NONE] = {.usual = {.why = "its chat template does not show how it calls tools"}},
};

/* ---- The template's form ----------------------------------------------------------------------------------------- */

/* The last occurrence that begins before `end`; NULL: there is none. */
static const char *find_last(const char *text, const char *mark, const char *end) {
    const char *last = NULL;
    for (const char *at = strstr(text, mark); at != NULL && at < end; at = strstr(at + 1, mark)) { last = at; }
    return last;
}

static const char *skip_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static bool copy_piece(char *piece, size_t capacity, const char *begin, const char *end) {
    const size_t n = (size_t)(end - begin);
    if (n >= capacity) { return false; }
    memcpy(piece, begin, n);
    piece[n] = '\0';
    return true;
}

#define COPY_PIECE(piece, begin, end) copy_piece(piece, sizeof(piece), begin, end)

/* Where a call begins whose name is at `name`; NULL: not found. */
static const char *find_begin(const call_writing *writing, const char *text, const char *name) {
    for (size_t i = 0; i < sizeof writing->begins / sizeof writing->begins[0] && writing->begins[i] != NULL; i++) {
        const char *at = find_last(text, writing->begins[i], name);
        if (at != NULL) { return writing->skips_begin ? at + strlen(writing->begins[i]) : at; }
    }
    return NULL;
}

/* Where it ends: the arguments end at `at`. NULL: not found. */
static const char *find_end(call_style style, const char *before, const char *at) {
    const call_writing *writing = &writings[style];
    const char *end = at;
    if (style == CALLS_TAGGED) {
        const char *mark = strncmp(before, "<tool_call>", strlen("<tool_call>")) == 0 ? "</tool_call>" : "</function>";
        end = strstr(at, mark);
        return end != NULL ? end + strlen(mark) : NULL;
    }
    if (style == CALLS_LLAMA) { return *at == '}' ? at + 1 : NULL; }
    for (size_t i = 0; i < sizeof writing->ends / sizeof writing->ends[0] && writing->ends[i] != NULL; i++) {
        const char *found = strstr(end, writing->ends[i]);
        if (found == NULL && i == 0) { return NULL; }
        if (found != NULL) { end = found + strlen(writing->ends[i]); }
    }
    return end;
}

/* Identifiers of calls are the server's to give. */
static void leave_out_id(char *between) {
    static const char mark[] = "[CALL_ID]" CALL_EXAMPLE_ID;
    char *at = strstr(between, mark);
    if (at != NULL) { memmove(at, at + strlen(mark), strlen(at + strlen(mark)) + 1); }
}

/* The one argument, "c" of the key "b", between tags: what is around it, and where it all ends. NULL: it is not so. */
static const char *read_tags(const call_writing *writing, const char *name_end, call_form *form) {
    const char *key = writing->key != NULL ? strstr(name_end, writing->key) : NULL;
    const char *value_end = key != NULL ? strstr(key, writing->value_end) : NULL;
    if (value_end == NULL || !COPY_PIECE(form->between, name_end, key)) { return NULL; }
    const char *after_key = key + strlen(writing->key) + 1, *value = value_end;
    while (value > after_key && strchr(" \t\r\n", value[-1]) != NULL) { value--; }
    if (value <= after_key || after_key[-1] != 'b' || value[-1] != 'c') { return NULL; }
    const char *end = skip_space(value_end + strlen(writing->value_end));
    const bool fits = COPY_PIECE(form->before_key, key, after_key - 1) &&
                      COPY_PIECE(form->after_key, after_key, value - 1) && COPY_PIECE(form->after_value, value, end);
    return fits ? end : NULL;
}

/* Where the arguments end as JSON; NULL: there are none. */
static const char *read_json(const char *name_end, call_form *form) {
    static const char *const arguments[] = {"{\"b\": \"c\"}", "{\"b\":\"c\"}"};
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        const char *at = strstr(name_end, arguments[i]);
        if (at != NULL && COPY_PIECE(form->between, name_end, at)) { return at + strlen(arguments[i]); }
    }
    return NULL;
}

/* Of a call that begins at `begin` and has its name at `name`. */
static bool read_form(call_style style, const char *begin, const char *name, call_form *form) {
    const char *name_end = name + strlen(CALL_EXAMPLE_NAME);
    if (!COPY_PIECE(form->before, begin, name)) { return false; }
    const char *at = read_json(name_end, form);
    form->is_tagged = at == NULL;
    if (at == NULL) { at = read_tags(&writings[style], name_end, form); }
    if (at == NULL) { return false; }
    form->is_json = strchr(form->before, '{') != NULL;
    leave_out_id(form->between);
    if (style == CALLS_MISTRAL) { strcpy(form->after, form->is_json ? "}]" : ""); }
    const char *end = find_end(style, form->before, at);
    return style == CALLS_MISTRAL || (end != NULL && COPY_PIECE(form->after, at, end));
}

/* Whether an answer in this form is read as the call that it is. */
static bool is_read_back(const answer_format *format, const call_form *form) {
    cJSON *tools = cJSON_Parse("[{\"type\":\"function\",\"function\":{\"name\":\"" CALL_EXAMPLE_NAME "\"}}]");
    serve_text text = {0};
    answer_parser parser;
    answer_delta delta = {.calls = NULL};
    serve_text_add_format(&text, "%s" CALL_EXAMPLE_NAME "%s", form->before, form->between);
    if (form->is_tagged) {
        serve_text_add_format(&text, "%sb%sc%s", form->before_key, form->after_key, form->after_value);
    } else {
        serve_text_add_format(&text, "{\"b\":\"c\"}");
    }
    serve_text_add_format(&text, "%s", form->after);
    answer_parser_start(&parser, format, tools, false);
    answer_parser_push(&parser, text.data, text.size, &delta);
    answer_parser_finish(&parser, &delta);
    const cJSON *call = cJSON_GetArrayItem(delta.calls, 0);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(call, "name");
    const cJSON *read = cJSON_GetObjectItemCaseSensitive(call, "arguments");
    const bool is_same = cJSON_GetArraySize(delta.calls) == 1 && delta.content.size == 0 &&
                         strcmp(name->valuestring, CALL_EXAMPLE_NAME) == 0 &&
                         strcmp(read->valuestring, "{\"b\":\"c\"}") == 0;
    answer_delta_free(&delta);
    answer_parser_free(&parser);
    serve_text_free(&text);
    cJSON_Delete(tools);
    return is_same;
}

/* A style of several markers: the usual form has the template's own. */
static void use_own_marker(const char *example, call_form *form) {
    if (strstr(example, "functools[") != NULL) {
        strcpy(form->before, "functools[{\"name\": \"");
    } else if (strstr(example, "<|tool_call|>") == NULL && strstr(example, "<tool_call>") != NULL) {
        strcpy(form->before, "<tool_call>[{\"name\": \"");
        strcpy(form->after, "}]</tool_call>");
    }
}

/* Whether the template writes calls in a way that the usual form cannot stand for. */
static bool is_own(call_style style, const char *begin, const char *name) {
    const call_writing *writing = &writings[style];
    return style == CALLS_TAGGED ? find_last(begin, "{", name) == NULL
                                 : writing->ends[0] != NULL && !writing->usual.is_json;
}

void call_form_learn(const qrun_tokenizer *tokenizer, const answer_format *format, call_form *form) {
    const call_writing *writing = &writings[format->calls];
    *form = writing->usual;
    for (int i = 0; form->is_known && i < N_CALL_EXAMPLES; i++) {
        char *example = answer_format_call_example(tokenizer, i);
        call_form learned = *form;
        if (example == NULL) { continue; }
        if (format->calls == CALLS_LIST) { use_own_marker(example, form); }
        const char *name = strstr(example, CALL_EXAMPLE_NAME);
        const char *begin = name != NULL ? find_begin(writing, example, name) : NULL;
        if (begin != NULL && read_form(format->calls, begin, name, &learned) && is_read_back(format, &learned)) {
            *form = learned;
        } else if (begin != NULL && is_own(format->calls, begin, name)) {
            *form = (call_form){.why = "its chat template writes calls in a form that is not read here"};
        }
        qrun_free(example);
        if (begin != NULL) { return; }
    }
}
