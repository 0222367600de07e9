#include "serve/openai/tool_choice.h"

#include <stdlib.h>
#include <string.h>

#include "serve/openai/answer_parser.h"

enum {
    MAX_NAME_BYTES = 128, /* as tool_calls.c reads them */
    MAX_TOOLS = 256,      /* the forms that a request may have */
};

/* ---- The usual forms --------------------------------------------------------------------------------------------- */

static const call_form tagged = {.before = "<tool_call>\n{\"name\": \"",
                                 .between = "\", \"arguments\": ",
                                 .after = "}\n</tool_call>",
                                 .is_json = true,
                                 .is_known = true};
static const call_form llama = {
    .before = "{\"name\": \"", .between = "\", \"parameters\": ", .after = "}", .is_json = true, .is_known = true};
static const call_form mistral = {.before = "[TOOL_CALLS][{\"name\": \"",
                                  .between = "\", \"arguments\": ",
                                  .after = "}]",
                                  .is_json = true,
                                  .is_known = true};
static const call_form harmony = {.before = "<|channel|>commentary to=functions.",
                                  .between = " <|constrain|>json<|message|>",
                                  .after = "",
                                  .is_known = true};

static call_form usual_form(call_style style) {
    switch (style) {
        case CALLS_TAGGED: return tagged;
        case CALLS_LLAMA: return llama;
        case CALLS_MISTRAL: return mistral;
        case CALLS_HARMONY: return harmony;
        case CALLS_GEMMA:
            return (call_form){.why = "its calls have arguments that are not JSON (call:name{key:value})"};
        case CALLS_SEED:
        case CALLS_INVOKE: return (call_form){.why = "its calls have arguments that are not JSON (<parameter…>)"};
        case CALLS_ARG_KEYS: return (call_form){.why = "its calls have arguments that are not JSON (<arg_key>)"};
        case CALLS_LIST:
        case CALLS_DEEPSEEK:
        case CALLS_KIMI: return (call_form){.why = "calls in its form are read, and cannot be required"};
        case CALLS_PYTHON:
        case CALLS_BARE_PYTHON:
            return (call_form){.why = "its calls have arguments that are not JSON (name(key=value))"};
        default: return (call_form){.why = "its chat template does not show how it calls tools"};
    }
}

/* ---- The template's form ----------------------------------------------------------------------------------------- */

/* The last occurrence that begins before `end`; NULL: there is none. */
static const char *find_last(const char *text, const char *mark, const char *end) {
    const char *last = NULL;
    for (const char *at = strstr(text, mark); at != NULL && at < end; at = strstr(at + 1, mark)) { last = at; }
    return last;
}

static bool copy_piece(char *piece, size_t capacity, const char *begin, const char *end) {
    const size_t n = (size_t)(end - begin);
    if (n >= capacity) { return false; }
    memcpy(piece, begin, n);
    piece[n] = '\0';
    return true;
}

/* Where a call begins whose name is at `name`; NULL: not found. */
static const char *find_begin(call_style style, const char *text, const char *name) {
    static const char assistant[] = "<|start|>assistant";
    const char *at;
    switch (style) {
        case CALLS_TAGGED:
            at = find_last(text, "<tool_call>", name);
            return at != NULL ? at : find_last(text, "<function=", name);
        case CALLS_LLAMA:
            at = find_last(text, "<|python_tag|>", name);
            return at != NULL ? at : find_last(text, "{", name);
        case CALLS_MISTRAL: return find_last(text, "[TOOL_CALLS]", name);
        case CALLS_HARMONY: at = find_last(text, assistant, name); return at != NULL ? at + strlen(assistant) : NULL;
        default: return NULL;
    }
}

/* Where it ends: the arguments end at `at`. NULL: not found. */
static const char *find_end(call_style style, const char *before, const char *at) {
    const char *mark = strncmp(before, "<tool_call>", strlen("<tool_call>")) == 0 ? "</tool_call>" : "</function>";
    const char *end;
    switch (style) {
        case CALLS_TAGGED: end = strstr(at, mark); return end != NULL ? end + strlen(mark) : NULL;
        case CALLS_LLAMA: return *at == '}' ? at + 1 : NULL;
        default: return at;
    }
}

/* Identifiers of calls are the server's to give. */
static void leave_out_id(char *between) {
    static const char mark[] = "[CALL_ID]" CALL_EXAMPLE_ID;
    char *at = strstr(between, mark);
    if (at != NULL) { memmove(at, at + strlen(mark), strlen(at + strlen(mark)) + 1); }
}

/* Of a call that begins at `begin` and has its name at `name`. */
static bool read_form(call_style style, const char *begin, const char *name, call_form *form) {
    static const char *const arguments[] = {"{\"b\": \"c\"}", "{\"b\":\"c\"}", "<parameter=b>\nc\n</parameter>\n"};
    if (!copy_piece(form->before, sizeof form->before, begin, name)) { return false; }
    name += strlen(CALL_EXAMPLE_NAME);
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        const char *at = strstr(name, arguments[i]);
        if (at == NULL || !copy_piece(form->between, sizeof form->between, name, at)) { continue; }
        at += strlen(arguments[i]);
        const char *end = find_end(style, form->before, at);
        form->is_tagged = arguments[i][0] == '<';
        form->is_json = strchr(form->before, '{') != NULL;
        if (style == CALLS_MISTRAL) { strcpy(form->after, form->is_json ? "}]" : ""); }
        leave_out_id(form->between);
        return style == CALLS_MISTRAL || (end != NULL && copy_piece(form->after, sizeof form->after, at, end));
    }
    return false;
}

/* Whether an answer in this form is read as the call that it is. */
static bool is_read_back(const answer_format *format, const call_form *form) {
    cJSON *tools = cJSON_Parse("[{\"type\":\"function\",\"function\":{\"name\":\"" CALL_EXAMPLE_NAME "\"}}]");
    serve_text text = {0};
    answer_parser parser;
    answer_delta delta = {.calls = NULL};
    const char *arguments = form->is_tagged ? "<parameter=b>\nc\n</parameter>\n" : "{\"b\":\"c\"}";
    serve_text_add_format(&text, "%s" CALL_EXAMPLE_NAME "%s%s%s", form->before, form->between, arguments, form->after);
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

void call_form_learn(const qrun_tokenizer *tokenizer, const answer_format *format, call_form *form) {
    *form = usual_form(format->calls);
    for (int i = 0; form->is_known && i < N_CALL_EXAMPLES; i++) {
        char *example = answer_format_call_example(tokenizer, i);
        call_form learned = *form;
        if (example == NULL) { continue; }
        const char *name = strstr(example, CALL_EXAMPLE_NAME);
        const char *begin = name != NULL ? find_begin(format->calls, example, name) : NULL;
        if (begin != NULL && read_form(format->calls, begin, name, &learned) && is_read_back(format, &learned)) {
            *form = learned;
        } else if (begin != NULL && format->calls == CALLS_TAGGED && find_last(begin, "{", name) == NULL) {
            *form = (call_form){.why = "its chat template writes calls in a form that is not read here"};
        }
        qrun_free(example);
        if (begin != NULL) { return; }
    }
}

/* ---- The forms of a request -------------------------------------------------------------------------------------- */

static bool check_name(const call_form *form, const char *name, openai_error *error) {
    if (name[0] == '\0' || strlen(name) > MAX_NAME_BYTES) {
        return openai_refuse(error, 400, "tools", "the name of a tool that can be required has 1 to %d bytes",
                             MAX_NAME_BYTES);
    }
    if (form->is_json || strpbrk(name, " \t\r\n<>[]{}\"") == NULL) { return true; }
    return openai_refuse(error, 400, "tools",
                         "this model cannot be held to calls of \"%.64s\", as it writes names without quotes; name the "
                         "tool with letters, digits, \"_\", \"-\" and \".\"",
                         name);
}

/* As it stands in a call; cJSON_free. */
static char *written_name(const call_form *form, const char *name) {
    cJSON *string = cJSON_CreateString(name);
    char *written = form->is_json ? cJSON_PrintUnformatted(string) : NULL;
    cJSON_Delete(string);
    if (written != NULL) { /* without its quotes */
        const size_t n = strlen(written);
        memmove(written, written + 1, n - 2);
        written[n - 2] = '\0';
    } else if (!form->is_json && (written = cJSON_malloc(strlen(name) + 1)) != NULL) {
        strcpy(written, name);
    }
    return written;
}

/* OpenAI's: a tool without parameters takes none. {} accepts any arguments. */
static char *schema_of(const cJSON *function, openai_error *error) {
    static const char nothing[] = "{\"type\":\"object\",\"additionalProperties\":false}",
                      any[] = "{\"type\":\"object\"}";
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(parameters, "type");
    const bool is_missing = parameters == NULL || cJSON_IsNull(parameters);
    const bool is_any = cJSON_IsObject(parameters) && parameters->child == NULL;
    const bool is_object = cJSON_IsString(type) && strcmp(type->valuestring, "object") == 0;
    char *text = NULL;
    if (is_missing || is_any) {
        text = cJSON_malloc(sizeof nothing);
        if (text != NULL) { strcpy(text, is_missing ? nothing : any); }
    } else if (is_object) {
        cJSON *exact = cJSON_Duplicate(parameters, true);
        const bool is_written = exact != NULL && openai_write_numbers(exact, "tools", error);
        text = is_written ? cJSON_PrintUnformatted(exact) : NULL;
        cJSON_Delete(exact);
        if (exact != NULL && !is_written) { return NULL; }
    } else {
        (void)openai_refuse(error, 400, "tools", "\"parameters\" of \"%.64s\" must be a schema of \"type\": \"object\"",
                            cJSON_GetObjectItemCaseSensitive(function, "name")->valuestring);
        return NULL;
    }
    if (text == NULL) { (void)openai_refuse(error, 503, NULL, "the server is out of memory"); }
    return text;
}

static bool add_form(const call_form *form, const cJSON *function, const char *think_end, tool_choice *choice,
                     openai_error *error) {
    const char *name = cJSON_GetObjectItemCaseSensitive(function, "name")->valuestring;
    tool_form_texts *texts = &choice->texts[choice->n_texts++];
    if (!check_name(form, name, error)) { return false; }
    texts->schema = schema_of(function, error);
    if (texts->schema == NULL) { return false; }
    char *written = written_name(form, name);
    serve_text_add_format(&texts->name, "\"parameters\" of \"%s\"", name);
    if (think_end != NULL) { serve_text_add_format(&texts->before, "\n%s\n\n", think_end); }
    serve_text_add_format(&texts->before, "%s%s%s", form->before, written != NULL ? written : "", form->between);
    const bool failed = written == NULL || texts->name.failed || texts->before.failed;
    cJSON_free(written);
    if (failed) { return openai_refuse(error, 503, NULL, "the server is out of memory"); }
    choice->forms[choice->n_forms++] = (qrun_answer_form){.name = texts->name.data,
                                                          .before = texts->before.data,
                                                          .schema = texts->schema,
                                                          .after = form->after,
                                                          .value = form->is_tagged ? QRUN_FORM_TAGGED : QRUN_FORM_JSON};
    return true;
}

bool tool_choice_make(const call_form *form, const cJSON *tools, const char *called, const char *think_end,
                      tool_choice *choice, openai_error *error) {
    const size_t n_tools = (size_t)cJSON_GetArraySize(tools);
    const cJSON *tool;
    if (!form->is_known) {
        return openai_refuse(
            error, 400, "tool_choice",
            "this model cannot be held to a call: %s; give \"tool_choice\": \"auto\", or the schema as "
            "\"response_format\" without \"tools\"",
            form->why);
    }
    if (called == NULL && n_tools > MAX_TOOLS) {
        return openai_refuse(error, 400, "tools",
                             "at most %d tools can be there where one of them is required, not %zu", MAX_TOOLS,
                             n_tools);
    }
    choice->forms = calloc(n_tools, sizeof *choice->forms);
    choice->texts = calloc(n_tools, sizeof *choice->texts);
    if (choice->forms == NULL || choice->texts == NULL) {
        return openai_refuse(error, 503, NULL, "the server is out of memory");
    }
    cJSON_ArrayForEach(tool, tools) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(function, "name");
        if (called != NULL && strcmp(called, name->valuestring) != 0) { continue; }
        if (!add_form(form, function, think_end, choice, error)) { return false; }
    }
    return true;
}

void tool_choice_free(tool_choice *choice) {
    for (int i = 0; i < choice->n_texts; i++) {
        serve_text_free(&choice->texts[i].name);
        serve_text_free(&choice->texts[i].before);
        cJSON_free(choice->texts[i].schema);
    }
    free(choice->forms);
    free(choice->texts);
    *choice = (tool_choice){0};
}
