#include "serve/openai/tool_choice.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_NAME_BYTES = 128, /* as tool_calls.c reads them */
    MAX_TOOLS = 256,      /* the forms that a request may have */
};

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
                                                          .value = form->is_tagged ? QRUN_FORM_TAGGED : QRUN_FORM_JSON,
                                                          .before_name = form->before_key,
                                                          .after_name = form->after_key,
                                                          .after_value = form->after_value};
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
