#include <string.h>

#include "serve/openai/call_forms.h"
#include "serve/openai/call_json.h"

/* A value up to its closing tag. JSON may have such a tag in a string. */
static bool take_value(cursor *body, value_kind kind, cursor *value) {
    static const char end[] = "</parameter>";
    cursor json = *body;
    cursor_skip_space(&json);
    if (kind != VALUE_TEXT && call_json_skip_value(&json)) {
        *value = (cursor){body->at, json.at};
        cursor_skip_space(&json);
        if (cursor_takes(&json, end)) {
            *body = json;
            return true;
        }
    }
    return cursor_takes_until(body, end, value);
}

/* Up to the tag that closes the function, which is taken too. */
static bool take_parameters(cursor *body, const cJSON *function, serve_text *out) {
    cursor key, value;
    serve_text_add(out, "{", 1);
    for (cursor_skip_space(body); cursor_takes(body, "<parameter="); cursor_skip_space(body)) {
        if (!cursor_takes_until(body, ">", &key)) { return false; }
        cursor_trim(&key);
        const value_kind kind = call_value_kind(function, key.at, cursor_left(&key));
        if (!take_value(body, kind, &value)) { return false; }
        if (value.at < value.end && *value.at == '\n') { value.at++; }
        if (value.at < value.end && value.end[-1] == '\n') { value.end--; }
        if (!call_put_key(out, key) || !call_put_value(out, &value, kind)) { return false; }
    }
    serve_text_add(out, "}", 1);
    return cursor_takes(body, "</function>");
}

static bool take_functions(cursor *c, const cJSON *tools, cJSON *calls) {
    for (cursor_skip_space(c); cursor_takes(c, "<function="); cursor_skip_space(c)) {
        cursor name;
        serve_text arguments = {0};
        if (!cursor_takes_until(c, ">", &name)) { return false; }
        cursor_trim(&name);
        const cJSON *function = call_find_tool(tools, name.at, cursor_left(&name));
        const bool added = take_parameters(c, function, &arguments) && call_add(calls, &name, &arguments);
        serve_text_free(&arguments);
        if (!added) { return false; }
    }
    return c->at == c->end;
}

bool calls_take_tagged(cursor *c, const cJSON *tools, cJSON *calls) {
    return cursor_sees(c, '<') ? take_functions(c, tools, calls) : calls_take_json(c, tools, calls);
}

const char *calls_tagged_end(cursor body, const char *mark, bool is_last) {
    static const char closing[] = "</function>";
    const size_t n = sizeof closing - 1;
    cursor function = body, rest = body;
    cursor_skip_space(&function);
    if (!cursor_takes(&function, "<function=") || strcmp(mark, closing) == 0) {
        return calls_json_end(body, mark, is_last);
    }
    for (cursor before; cursor_takes_until(&rest, mark, &before);) {
        const size_t n_before = call_without_space(body.at, (size_t)(before.end - body.at));
        if (n_before >= n && memcmp(body.at + n_before - n, closing, n) == 0) { return before.end; }
    }
    return is_last ? cursor_find(&body, mark) : NULL;
}
