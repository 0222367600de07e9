#include <string.h>

#include "serve/openai/call_forms.h"
#include "serve/openai/call_json.h"

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* Whether the quote before `after` can end a text. Many templates write texts as they are, quotes in them included: one
 * that nothing of Python can follow is part of the text. */
static bool can_end_text(cursor after) {
    cursor_skip_space(&after);
    return after.at < after.end && strchr(",)]}:", *after.at) != NULL && *after.at != '\0';
}

/* Over a text in quotes, one or three of them. False: it has no end (yet). */
static bool take_quoted(cursor *c, cursor *inside) {
    const char quote[] = {*c->at, '\0'}, triple[] = {*c->at, *c->at, *c->at, '\0'};
    const bool is_long = cursor_takes(c, triple);
    if (!is_long) { (void)cursor_takes(c, quote); }
    inside->at = c->at;
    while (c->at < c->end) {
        inside->end = c->at;
        if (cursor_sees(c, '\\')) {
            c->at += cursor_left(c) > 1 ? 2 : 1;
        } else if (!cursor_takes(c, is_long ? triple : quote)) {
            c->at++;
        } else if (can_end_text(*c)) {
            return true;
        }
    }
    return false;
}

static void put_character(serve_text *out, unsigned long code) {
    const bool is_none = code > 0x10FFFF || (code >= 0xD800 && code < 0xE000);
    const unsigned c = is_none ? 0xFFFD : (unsigned)code;
    const int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    char bytes[4] = {(char)c};
    static const unsigned leads[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = n - 1; n > 1 && i >= 0; i--) {
        const unsigned part = c >> (6 * (n - 1 - i));
        bytes[i] = (char)(i == 0 ? leads[n] | part : 0x80 | (part & 0x3F));
    }
    serve_text_add(out, bytes, (size_t)n);
}

/* Digits of an escape: exactly `n` of base 16, or at most `n` of base 8. */
static bool take_code(cursor *c, int n, unsigned base, unsigned long *code) {
    static const char digits[] = "0123456789abcdef";
    cursor rest = *c;
    int i = 0;
    for (*code = 0; i < n && rest.at < rest.end; i++, rest.at++) {
        const char *digit = strchr(digits, *rest.at >= 'A' && *rest.at <= 'F' ? *rest.at + 'a' - 'A' : *rest.at);
        if (digit == NULL || *digit == '\0' || digit >= digits + base) { break; }
        *code = *code * base + (unsigned long)(digit - digits);
    }
    if (i == 0 || (base == 16 && i < n)) { return false; }
    *c = rest;
    return true;
}

/* Of two escapes that are one character in UTF-16, as JSON writes them. */
static void take_second_half(cursor *c, unsigned long *code) {
    cursor rest = *c;
    unsigned long half;
    if (*code < 0xD800 || *code > 0xDBFF || !cursor_takes(&rest, "\\u") || !take_code(&rest, 4, 16, &half)) { return; }
    if (half < 0xDC00 || half > 0xDFFF) { return; }
    *code = 0x10000 + ((*code - 0xD800) << 10) + (half - 0xDC00);
    *c = rest;
}

/* What follows a backslash. What is no escape of Python stays, with its backslash. */
static void put_escape(cursor *c, serve_text *out) {
    static const char names[] = "\\'\"abfnrtv", meant[] = "\\'\"\a\b\f\n\r\t\v";
    static const struct {
        char name[2];
        int n_digits;
    } codes[] = {{"x", 2}, {"u", 4}, {"U", 8}};
    unsigned long code;
    const char *name = c->at < c->end && *c->at != '\0' ? strchr(names, *c->at) : NULL;
    if (cursor_takes(c, "\n")) { return; }
    if (name != NULL) {
        serve_text_add(out, &meant[name - names], 1);
        c->at++;
        return;
    }
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        cursor rest = *c;
        if (!cursor_takes(&rest, codes[i].name) || !take_code(&rest, codes[i].n_digits, 16, &code)) { continue; }
        take_second_half(&rest, &code);
        put_character(out, code);
        *c = rest;
        return;
    }
    if (take_code(c, 3, 8, &code)) {
        put_character(out, code);
    } else {
        serve_text_add(out, "\\", 1);
    }
}

static bool take_text(cursor *c, serve_text *out) {
    cursor inside;
    serve_text text = {0};
    if (!take_quoted(c, &inside)) { return false; }
    while (inside.at < inside.end) {
        const char *next = memchr(inside.at, '\\', cursor_left(&inside));
        if (next == NULL) { next = inside.end; }
        serve_text_add(&text, inside.at, (size_t)(next - inside.at));
        inside.at = next;
        if (cursor_takes(&inside, "\\")) { put_escape(&inside, &text); }
    }
    const bool added = !text.failed && call_put_text(out, text.data != NULL ? text.data : "", text.size);
    serve_text_free(&text);
    return added;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static bool take_value(cursor *c, int depth, serve_text *out);

static bool sees_quote(const cursor *c) { return cursor_sees(c, '"') || cursor_sees(c, '\''); }

/* A list, or a tuple, which JSON has as a list. */
static bool take_list(cursor *c, const char *end, int depth, serve_text *out) {
    serve_text_add(out, "[", 1);
    for (cursor_skip_space(c); !cursor_takes(c, end); cursor_skip_space(c)) {
        serve_text_add(out, ",", out->data[out->size - 1] != '[' ? 1 : 0);
        if (!take_value(c, depth + 1, out)) { return false; }
        cursor_skip_space(c);
        if (!cursor_takes(c, ",") && !cursor_sees(c, *end)) { return false; }
    }
    serve_text_add(out, "]", 1);
    return true;
}

static bool take_dict(cursor *c, int depth, serve_text *out) {
    serve_text_add(out, "{", 1);
    for (cursor_skip_space(c); !cursor_takes(c, "}"); cursor_skip_space(c)) {
        serve_text_add(out, ",", out->data[out->size - 1] != '{' ? 1 : 0);
        if (!sees_quote(c) || !take_text(c, out)) { return false; }
        cursor_skip_space(c);
        if (!cursor_takes(c, ":")) { return false; }
        serve_text_add(out, ":", 1);
        if (!take_value(c, depth + 1, out)) { return false; }
        cursor_skip_space(c);
        if (!cursor_takes(c, ",") && !cursor_sees(c, '}')) { return false; }
    }
    serve_text_add(out, "}", 1);
    return true;
}

/* Of Python, or of JSON, which some templates write in their place. */
static bool take_constant(cursor *c, serve_text *out) {
    static const char *const constants[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                               {"true", "true"}, {"false", "false"}, {"null", "null"}};
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (!cursor_takes(c, constants[i][0])) { continue; }
        serve_text_add(out, constants[i][1], strlen(constants[i][1]));
        return true;
    }
    return false;
}

static bool take_value(cursor *c, int depth, serve_text *out) {
    cursor_skip_space(c);
    if (depth > CALL_MAX_DEPTH || out->failed) { return false; }
    if (sees_quote(c)) { return take_text(c, out); }
    if (cursor_takes(c, "{")) { return take_dict(c, depth, out); }
    if (cursor_takes(c, "[")) { return take_list(c, "]", depth, out); }
    if (cursor_takes(c, "(")) { return take_list(c, ")", depth, out); }
    const char *first = c->at;
    if (take_constant(c, out)) { return true; }
    if (!call_json_skip_number(c)) { return false; }
    serve_text_add(out, first, (size_t)(c->at - first));
    return true;
}

bool calls_put_python(serve_text *out, cursor value) {
    serve_text literal = {0};
    const bool is_whole = take_value(&value, 0, &literal) && value.at == value.end && !literal.failed;
    if (is_whole) { serve_text_add(out, literal.data, literal.size); }
    serve_text_free(&literal);
    return is_whole && !out->failed;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Of a function, which may have dots and dashes, or of an argument. */
static cursor take_name(cursor *c) {
    cursor name = {c->at, NULL};
    while (c->at < c->end && !call_is_space(*c->at) && strchr("()[]{}<>=,:;|'\"\\", *c->at) == NULL) { c->at++; }
    name.end = c->at;
    return name;
}

static bool take_arguments(cursor *c, serve_text *out) {
    serve_text_add(out, "{", 1);
    for (cursor_skip_space(c); !cursor_takes(c, ")"); cursor_skip_space(c)) {
        const cursor key = take_name(c);
        cursor_skip_space(c);
        if (!cursor_takes(c, "=") || !call_put_key(out, key) || !take_value(c, 0, out)) { return false; }
        cursor_skip_space(c);
        if (!cursor_takes(c, ",") && !cursor_sees(c, ')')) { return false; }
    }
    serve_text_add(out, "}", 1);
    return true;
}

/* tools NULL: any name will do. */
static bool take_call(cursor *c, const cJSON *tools, cJSON *calls) {
    serve_text arguments = {0};
    const cursor name = take_name(c);
    cursor_skip_space(c);
    if (tools != NULL && call_find_tool(tools, name.at, cursor_left(&name)) == NULL) { return false; }
    const bool added = cursor_takes(c, "(") && take_arguments(c, &arguments) && call_add(calls, &name, &arguments);
    serve_text_free(&arguments);
    return added;
}

/* In brackets, or not; with commas between them, or each on a line. */
static bool take_calls(cursor *c, const cJSON *tools, cJSON *calls) {
    const bool is_list = cursor_takes(c, "[");
    cursor_skip_space(c);
    do {
        if (!take_call(c, tools, calls)) { return false; }
        cursor_skip_space(c);
        (void)cursor_takes(c, ",");
        cursor_skip_space(c);
    } while (c->at < c->end && *c->at != ']');
    return (!is_list || cursor_takes(c, "]")) && c->at == c->end;
}

bool calls_take_python(cursor *c, const cJSON *tools, cJSON *calls) {
    cursor inside = *c;
    if (cursor_takes(&inside, "[")) { cursor_skip_space(&inside); }
    return cursor_sees(&inside, '{') ? calls_take_json(c, tools, calls) : take_calls(c, NULL, calls);
}

bool calls_take_known_python(cursor *c, const cJSON *tools, cJSON *calls) {
    return cursor_sees(c, '[') && take_calls(c, tools, calls);
}

/* Whether a tool of the request has a name that begins so. */
static bool begins_tool(const cJSON *tools, const cursor *name) {
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const char *known =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(function != NULL ? function : tool, "name"));
        if (known != NULL && strncmp(known, name->at, cursor_left(name)) == 0) { return true; }
    }
    return false;
}

bool calls_python_may_begin(cursor text, const cJSON *tools) {
    cursor_skip_space(&text);
    if (text.at == text.end) { return true; }
    if (!cursor_takes(&text, "[")) { return false; }
    cursor_skip_space(&text);
    const cursor name = take_name(&text);
    if (text.at == text.end) { return begins_tool(tools, &name); }
    cursor_skip_space(&text);
    return (text.at == text.end || *text.at == '(') && call_find_tool(tools, name.at, cursor_left(&name)) != NULL;
}

const char *calls_python_end(cursor body, const char *mark, bool is_last) {
    const cursor whole = body;
    while (body.at < body.end) {
        cursor rest = body, inside;
        if (cursor_takes(&rest, mark)) { return body.at; }
        if (!sees_quote(&body)) {
            body.at++;
        } else if (!take_quoted(&body, &inside)) {
            return is_last ? cursor_find(&whole, mark) : NULL;
        }
    }
    return NULL;
}
