#include <string.h>

#include "serve/openai/call_forms.h"
#include "serve/openai/call_json.h"

static const char *const quotes[] = {"<escape>", "<|\"|>"};

static bool take_value(cursor *c, int depth, serve_text *out);

static bool take_object(cursor *c, int depth, serve_text *out) {
    cursor key;
    serve_text_add(out, "{", 1);
    for (cursor_skip_space(c); !cursor_takes(c, "}"); cursor_skip_space(c)) {
        if (!cursor_takes_until(c, ":", &key)) { return false; }
        for (size_t i = 0; i < sizeof quotes / sizeof quotes[0]; i++) {
            if (cursor_takes(&key, quotes[i])) { key.end -= strlen(quotes[i]); }
        }
        if (key.end < key.at || !call_put_key(out, key) || !take_value(c, depth + 1, out)) { return false; }
        cursor_skip_space(c);
        if (!cursor_takes(c, ",") && !cursor_sees(c, '}')) { return false; }
    }
    serve_text_add(out, "}", 1);
    return true;
}

static bool take_list(cursor *c, int depth, serve_text *out) {
    serve_text_add(out, "[", 1);
    for (cursor_skip_space(c); !cursor_takes(c, "]"); cursor_skip_space(c)) {
        serve_text_add(out, ",", out->data[out->size - 1] != '[' ? 1 : 0);
        if (!take_value(c, depth + 1, out)) { return false; }
        cursor_skip_space(c);
        if (!cursor_takes(c, ",") && !cursor_sees(c, ']')) { return false; }
    }
    serve_text_add(out, "]", 1);
    return true;
}

static bool take_value(cursor *c, int depth, serve_text *out) {
    cursor value;
    cursor_skip_space(c);
    if (depth > CALL_MAX_DEPTH || out->failed) { return false; }
    if (cursor_takes(c, "{")) { return take_object(c, depth, out); }
    if (cursor_takes(c, "[")) { return take_list(c, depth, out); }
    for (size_t i = 0; i < sizeof quotes / sizeof quotes[0]; i++) {
        if (!cursor_takes(c, quotes[i])) { continue; }
        return cursor_takes_until(c, quotes[i], &value) && call_put_value(out, &value, VALUE_TEXT);
    }
    value.at = c->at;
    while (c->at < c->end && strchr(",}]", *c->at) == NULL) { c->at++; }
    value.end = c->at;
    cursor_trim(&value);
    return value.at < value.end && call_put_value(out, &value, VALUE_ANY);
}

bool calls_take_gemma(cursor *c, const cJSON *tools, cJSON *calls) {
    (void)tools;
    for (cursor_skip_space(c); cursor_takes(c, "call:"); cursor_skip_space(c)) {
        cursor name;
        serve_text arguments = {0};
        if (!cursor_takes_until(c, "{", &name)) { return false; }
        cursor_trim(&name);
        const bool added = take_object(c, 0, &arguments) && call_add(calls, &name, &arguments);
        serve_text_free(&arguments);
        if (!added) { return false; }
    }
    return c->at == c->end;
}
