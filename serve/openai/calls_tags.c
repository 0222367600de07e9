#include <string.h>

#include "serve/openai/call_forms.h"
#include "serve/openai/call_json.h"

/* What stands around the parts of a call. */
typedef struct tag_form {
    const char *name, *name_end; /* NULL: the name stands before the first key, or is all there is */
    const char *call_end;        /* NULL: the body's end */
    const char *key, *key_end;
    const char *value, *value_end; /* value NULL: it begins after key_end */
    bool has_lines;                /* a value stands on lines of its own */
} tag_form;

static const tag_form qwen = {.name = "<function=",
                              .name_end = ">",
                              .call_end = "</function>",
                              .key = "<parameter=",
                              .key_end = ">",
                              .value_end = "</parameter>",
                              .has_lines = true};
static const tag_form seed = {.name = "<function=",
                              .name_end = ">",
                              .call_end = "</function>",
                              .key = "<parameter=",
                              .key_end = ">",
                              .value_end = "</parameter>"};
static const tag_form glm = {
    .key = "<arg_key>", .key_end = "</arg_key>", .value = "<arg_value>", .value_end = "</arg_value>"};
static const tag_form invoke = {.name = "<invoke name=\"",
                                .name_end = "\">",
                                .call_end = "</invoke>",
                                .key = "<parameter name=\"",
                                .key_end = "\">",
                                .value_end = "</parameter>"};

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* JSON may have the closing tag in a string. */
static bool take_json_value(cursor *body, const tag_form *form, cursor *value) {
    cursor rest = *body;
    cursor_skip_space(&rest);
    value->at = rest.at;
    if (!call_json_skip_value(&rest)) { return false; }
    value->end = rest.at;
    cursor_skip_space(&rest);
    cJSON *parsed = cursor_takes(&rest, form->value_end) ? call_json_parse(value) : NULL;
    if (parsed == NULL) { return false; }
    cJSON_Delete(parsed);
    *body = rest;
    return true;
}

/* A value up to its closing tag, which is taken too. */
static bool take_value(cursor *body, const tag_form *form, value_kind kind, cursor *value) {
    if (kind != VALUE_TEXT && take_json_value(body, form, value)) { return true; }
    if (!cursor_takes_until(body, form->value_end, value)) { return false; }
    if (form->has_lines && cursor_sees(value, '\n')) { value->at++; }
    if (form->has_lines && value->at < value->end && value->end[-1] == '\n') { value->end--; }
    return true;
}

/* Templates print what is no text as Python does: True, ['a']. */
static bool put_value(serve_text *out, const cursor *value, value_kind kind) {
    cursor literal = *value;
    cursor_trim(&literal);
    if (kind == VALUE_TEXT_OR_NULL && cursor_takes(&literal, "None") && literal.at == literal.end) {
        serve_text_add(out, "null", 4);
        return !out->failed;
    }
    if (kind == VALUE_NO_TEXT && (call_put_json(out, literal) || calls_put_python(out, literal))) { return true; }
    return call_put_value(out, value, kind);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* As many as there are. */
static bool take_arguments(cursor *body, const tag_form *form, const cJSON *function, serve_text *out) {
    cursor key, value;
    serve_text_add(out, "{", 1);
    for (cursor_skip_space(body); cursor_takes(body, form->key); cursor_skip_space(body)) {
        if (!cursor_takes_until(body, form->key_end, &key)) { return false; }
        if (form->value != NULL) { cursor_skip_space(body); }
        if (form->value != NULL && !cursor_takes(body, form->value)) { return false; }
        cursor_trim(&key);
        const value_kind kind = call_value_kind(function, key.at, cursor_left(&key));
        if (!take_value(body, form, kind, &value)) { return false; }
        if (!call_put_key(out, key) || !put_value(out, &value, kind)) { return false; }
    }
    serve_text_add(out, "}", 1);
    return true;
}

static bool take_rest_of_call(cursor *c, const tag_form *form, cursor name, const cJSON *function, cJSON *calls) {
    serve_text arguments = {0};
    const bool added = take_arguments(c, form, function, &arguments) &&
                       (form->call_end == NULL || cursor_takes(c, form->call_end)) &&
                       call_add(calls, &name, &arguments);
    serve_text_free(&arguments);
    return added;
}

static bool take_named_calls(cursor *c, const tag_form *form, const cJSON *tools, cJSON *calls) {
    cursor name;
    for (cursor_skip_space(c); cursor_takes(c, form->name); cursor_skip_space(c)) {
        if (!cursor_takes_until(c, form->name_end, &name)) { return false; }
        cursor_trim(&name);
        const cJSON *function = call_find_tool(tools, name.at, cursor_left(&name));
        if (!take_rest_of_call(c, form, name, function, calls)) { return false; }
    }
    return c->at == c->end;
}

bool calls_take_tagged(cursor *c, const cJSON *tools, cJSON *calls) {
    return cursor_sees(c, '<') ? take_named_calls(c, &qwen, tools, calls) : calls_take_json(c, tools, calls);
}

bool calls_take_seed(cursor *c, const cJSON *tools, cJSON *calls) { return take_named_calls(c, &seed, tools, calls); }

bool calls_take_invoke(cursor *c, const cJSON *tools, cJSON *calls) {
    return take_named_calls(c, &invoke, tools, calls);
}

/* A word alone is a call if it names a tool of the request. */
bool calls_take_arg_keys(cursor *c, const cJSON *tools, cJSON *calls) {
    const char *first_key = cursor_find(c, glm.key);
    cursor name = {c->at, first_key != NULL ? first_key : c->end};
    c->at = name.end;
    cursor_trim(&name);
    for (const char *at = name.at; at < name.end; at++) {
        if (call_is_space(*at) || *at == '<') { return false; }
    }
    const cJSON *function = call_find_tool(tools, name.at, cursor_left(&name));
    if (first_key == NULL && function == NULL) { return false; }
    return take_rest_of_call(c, &glm, name, function, calls) && c->at == c->end;
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

/* Of a body that does not begin with a call, the first. */
static const char *end_of_calls(cursor body, const tag_form *form, const char *mark, bool is_last) {
    cursor inside = body;
    cursor_skip_space(&inside);
    return cursor_takes(&inside, form->name) ? calls_end_after(body, form->call_end, mark, is_last)
                                             : cursor_find(&body, mark);
}

const char *calls_seed_end(cursor body, const char *mark, bool is_last) {
    return end_of_calls(body, &seed, mark, is_last);
}

const char *calls_invoke_end(cursor body, const char *mark, bool is_last) {
    return end_of_calls(body, &invoke, mark, is_last);
}

const char *calls_tagged_end(cursor body, const char *mark, bool is_last) {
    cursor inside = body;
    cursor_skip_space(&inside);
    const bool has_tags = cursor_takes(&inside, qwen.name) && strcmp(mark, qwen.call_end) != 0;
    return has_tags ? calls_end_after(body, qwen.call_end, mark, is_last) : calls_json_end(body, mark, is_last);
}

const char *calls_arg_keys_end(cursor body, const char *mark, bool is_last) {
    const char *first_key = cursor_find(&body, glm.key), *first_mark = cursor_find(&body, mark);
    const bool is_word = first_key == NULL || (first_mark != NULL && first_mark < first_key);
    return is_word ? first_mark : calls_end_after(body, glm.value_end, mark, is_last);
}
