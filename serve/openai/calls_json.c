#include <string.h>

#include "serve/openai/call_forms.h"
#include "serve/openai/call_json.h"

/* ---- {"name", "arguments"} --------------------------------------------------------------------------------------- */

/* Or "parameters" in the place of "arguments", or {"function": {…}}. tools NULL: any name will do. */
static bool take_object(cursor *c, const cJSON *tools, cJSON *calls) {
    cursor_skip_space(c);
    cursor object = *c, arguments, inner;
    if (!cursor_sees(c, '{') || !call_json_skip_value(c)) { return false; }
    object.end = c->at;
    cJSON *root = call_json_parse(&object);
    bool added = false;
    if (root != NULL && call_json_find_member(object, "function", &inner) && *inner.at == '{') {
        added = take_object(&inner, tools, calls);
    } else if (root != NULL) {
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "name"));
        const cursor name = {text, text != NULL ? text + strlen(text) : NULL};
        const bool known = text != NULL && (tools == NULL || call_find_tool(tools, text, strlen(text)) != NULL);
        const bool has_arguments = call_json_find_member(object, "arguments", &arguments) ||
                                   call_json_find_member(object, "parameters", &arguments);
        added = known && call_add_any_json(calls, &name, has_arguments ? &arguments : NULL);
    }
    cJSON_Delete(root);
    return added;
}

/* Calls after each other, between which there may be separators, and nothing else. */
static bool take_objects(cursor *c, const char *separators, const cJSON *tools, cJSON *calls) {
    do {
        if (!take_object(c, tools, calls)) { return false; }
        while (c->at < c->end && (call_is_space(*c->at) || strchr(separators, *c->at) != NULL)) { c->at++; }
    } while (c->at < c->end);
    return true;
}

/* Takes [ and the ] at the very end off. */
static bool take_brackets(cursor *c) {
    if (!cursor_takes(c, "[") || c->at >= c->end || c->end[-1] != ']') { return false; }
    c->end--;
    cursor_trim(c);
    return true;
}

bool calls_take_json(cursor *c, const cJSON *tools, cJSON *calls) {
    (void)tools;
    if (cursor_sees(c, '[')) { return take_brackets(c) && take_objects(c, ",", NULL, calls); }
    return take_objects(c, "", NULL, calls);
}

bool calls_take_known_json(cursor *c, const cJSON *tools, cJSON *calls) { return take_objects(c, ";", tools, calls); }

bool calls_json_may_begin(cursor text, const cJSON *tools) {
    static const char *const keys[] = {"\"name\"", "\"type\"", "\"function\"", "\"parameters\"", "\"arguments\""};
    (void)tools;
    cursor_skip_space(&text);
    if (text.at == text.end) { return true; }
    if (!cursor_takes(&text, "{")) { return false; }
    cursor_skip_space(&text);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const size_t n = strlen(keys[i]), n_left = cursor_left(&text);
        if (memcmp(text.at, keys[i], n < n_left ? n : n_left) == 0) { return true; }
    }
    return false;
}

const char *calls_json_end(cursor body, const char *mark, bool is_last) {
    const cursor whole = body;
    bool in_string = false;
    cursor_skip_space(&body);
    if (!cursor_sees(&body, '{') && !cursor_sees(&body, '[')) { return cursor_find(&body, mark); }
    for (; body.at < body.end; body.at++) {
        cursor rest = body;
        if (!in_string && cursor_takes(&rest, mark)) { return body.at; }
        if (*body.at == '"') { in_string = !in_string; }
        if (*body.at == '\\' && in_string && ++body.at == body.end) { break; }
    }
    return in_string && is_last ? cursor_find(&whole, mark) : NULL;
}

/* ---- Mistral ----------------------------------------------------------------------------------------------------- */

/* [{…}, {…}], or name[ARGS]{…}, the next of which has a marker of its own. */
bool calls_take_mistral(cursor *c, const cJSON *tools, cJSON *calls) {
    (void)tools;
    if (cursor_sees(c, '[')) { return take_brackets(c) && take_objects(c, ",", NULL, calls); }
    do {
        cursor name = {c->at, NULL}, arguments;
        while (c->at < c->end && *c->at != '{') { c->at++; }
        name.end = arguments.at = c->at;
        if (c->at >= c->end || !call_json_skip_value(c)) { return false; }
        arguments.end = c->at;
        const char *mark = cursor_find(&name, "[");
        if (mark != NULL) { name.end = mark; } /* [CALL_ID]…, [ARGS] */
        cursor_trim(&name);
        if (!call_add_json(calls, &name, &arguments)) { return false; }
        cursor_skip_space(c);
    } while (cursor_takes(c, "[TOOL_CALLS]"));
    return c->at == c->end;
}

/* ---- Harmony ----------------------------------------------------------------------------------------------------- */

/* A message: its header, which has to=functions.name, and after <|message|> the arguments. */
bool calls_take_harmony(cursor *c, const cJSON *tools, cJSON *calls) {
    cursor header, name;
    (void)tools;
    if (!cursor_takes_until(c, "<|message|>", &header) || !cursor_takes_until(&header, "to=functions.", &name)) {
        return false;
    }
    name = (cursor){header.at, header.at};
    while (name.end < header.end && !call_is_space(*name.end) && *name.end != '<') { name.end++; }
    return call_add_json(calls, &name, c);
}

/* ---- Granite, Phi-4 ---------------------------------------------------------------------------------------------- */

bool calls_take_list(cursor *c, const cJSON *tools, cJSON *calls) {
    (void)cursor_takes(c, "functools");
    cursor_skip_space(c);
    return c->at < c->end && calls_take_json(c, tools, calls);
}

/* ---- DeepSeek, Kimi ---------------------------------------------------------------------------------------------- */

/* The tokens around a call, and between its parts. */
typedef struct token_form {
    const char *begin, *separator, *end;
} token_form;

static const token_form deepseek = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"};
static const token_form kimi = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"};

/* The next call: what is before the separator, and after it up to the token that ends the call. */
static bool take_parts(cursor *c, const token_form *form, cursor *before, cursor *after) {
    cursor_skip_space(c);
    if (!cursor_takes(c, form->begin) || !cursor_takes_until(c, form->separator, before)) { return false; }
    const char *end = calls_json_end(*c, form->end, true);
    if (end == NULL) { return false; }
    *after = (cursor){c->at, end};
    c->at = end + strlen(form->end);
    cursor_skip_space(c);
    cursor_trim(before);
    cursor_trim(after);
    return true;
}

/* name<sep>{…}, or type<sep>name ```json {…} ```. */
bool calls_take_deepseek(cursor *c, const cJSON *tools, cJSON *calls) {
    static const char fence[] = "```";
    cursor name, arguments, line;
    (void)tools;
    do {
        if (!take_parts(c, &deepseek, &name, &arguments)) { return false; }
        if (!cursor_sees(&arguments, '{')) {
            if (!cursor_takes_until(&arguments, fence, &line)) { return false; }
            name = line;
            cursor_trim(&name);
            (void)cursor_takes(&arguments, "json");
            const size_t n = cursor_left(&arguments), n_fence = sizeof fence - 1;
            if (n < n_fence || memcmp(arguments.end - n_fence, fence, n_fence) != 0) { return false; }
            arguments.end -= n_fence;
        }
        if (!call_add_json(calls, &name, &arguments)) { return false; }
    } while (c->at < c->end);
    return true;
}

/* functions.name:0 */
static void read_kimi_name(cursor *name) {
    const char *end = name->end;
    (void)cursor_takes(name, "functions.");
    while (end > name->at && end[-1] >= '0' && end[-1] <= '9') { end--; }
    if (end > name->at && end[-1] == ':') { name->end = end - 1; }
}

bool calls_take_kimi(cursor *c, const cJSON *tools, cJSON *calls) {
    cursor name, arguments;
    (void)tools;
    do {
        if (!take_parts(c, &kimi, &name, &arguments)) { return false; }
        read_kimi_name(&name);
        if (!call_add_json(calls, &name, &arguments)) { return false; }
    } while (c->at < c->end);
    return true;
}

static const char *end_of_tokens(cursor body, const token_form *form, const char *mark, bool is_last) {
    cursor inside = body;
    cursor_skip_space(&inside);
    return cursor_takes(&inside, form->begin) ? calls_end_after(body, form->end, mark, is_last)
                                              : cursor_find(&body, mark);
}

const char *calls_deepseek_end(cursor body, const char *mark, bool is_last) {
    return end_of_tokens(body, &deepseek, mark, is_last);
}

const char *calls_kimi_end(cursor body, const char *mark, bool is_last) {
    return end_of_tokens(body, &kimi, mark, is_last);
}
