#include "cli/requests/request_line.h"

#include <cjson/cJSON.h>
#include <string.h>

/* A member of the object, as offsets into the line. */
typedef struct member {
    size_t before;         /* of the comma or brace before it */
    size_t name, name_end; /* without quotes */
    size_t value, end;
    size_t after; /* of the comma or brace after it */
} member;

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static size_t skip_space(const text_buffer *line, size_t at) {
    while (at < line->size && is_space(line->data[at])) { at++; }
    return at;
}

/* Past the string that begins at `at`; the line's size where it does not end. */
static size_t skip_string(const text_buffer *line, size_t at) {
    for (at++; at < line->size && line->data[at] != '"'; at++) { at += line->data[at] == '\\'; }
    return at < line->size ? at + 1 : line->size;
}

/* Past the value that begins at `at`, by brackets and quotes alone. */
static size_t skip_value(const text_buffer *line, size_t at) {
    int64_t depth = 0;
    while (at < line->size) {
        const char c = line->data[at];
        if (c == '"') {
            at = skip_string(line, at);
            if (depth == 0) { return at; }
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']' || is_space(c))) { return at; }
        at++;
        depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
        if (depth == 0 && (c == '}' || c == ']')) { return at; }
    }
    return at;
}

/* The member after the comma or brace at m->after; false at the end, and where there is none. */
static bool next_member(const text_buffer *line, member *m) {
    m->before = m->after;
    const size_t quote = skip_space(line, m->before + 1);
    if (quote >= line->size || line->data[quote] != '"') { return false; }
    m->name = quote + 1;
    m->name_end = skip_string(line, quote) - 1;
    const size_t colon = skip_space(line, m->name_end + 1);
    if (colon >= line->size || line->data[colon] != ':') { return false; }
    m->value = skip_space(line, colon + 1);
    m->end = skip_value(line, m->value);
    m->after = skip_space(line, m->end);
    return m->after < line->size && m->end > m->value && (line->data[m->after] == ',' || line->data[m->after] == '}');
}

static bool begin(const text_buffer *line, member *m) {
    *m = (member){0};
    m->after = skip_space(line, 0);
    return m->after < line->size && line->data[m->after] == '{';
}

static bool has_name(const text_buffer *line, const member *m, const char *name) {
    return strlen(name) == m->name_end - m->name && memcmp(line->data + m->name, name, strlen(name)) == 0;
}

/* A whole number as JSON writes it. */
static bool is_whole(const char *text, size_t n_bytes) {
    enum { MAX_DIGITS = 15 }; /* exact as a double, which other readers take it for */
    const size_t sign = n_bytes > 0 && text[0] == '-';
    const size_t n_digits = strspn(text + sign, "0123456789");
    return n_digits > 0 && n_digits <= MAX_DIGITS && sign + n_digits == n_bytes && (n_digits == 1 || text[sign] != '0');
}

/* Whether JSON's text has the character U+0000, at which it would be cut. */
static bool has_zero(const char *text, size_t n_bytes) {
    static const char zero[] = "u0000";
    for (size_t i = 0; i + sizeof zero <= n_bytes; i++) {
        if (text[i] != '\\') { continue; }
        if (memcmp(text + i + 1, zero, sizeof zero - 1) == 0) { return true; }
        i++;
    }
    return false;
}

/* Appends the value where it may be an id. */
static bool put_id(const text_buffer *line, const member *m, const char *name, text_buffer *id) {
    const char *value = line->data + m->value;
    const size_t n_bytes = m->end - m->value;
    if (is_whole(value, n_bytes)) {
        text_format(id, ",\"%s\":%.*s", name, (int)n_bytes, value);
        return true;
    }
    const bool is_text = value[0] == '"' && !has_zero(value, n_bytes);
    cJSON *parsed = is_text ? cJSON_ParseWithLength(value, n_bytes) : NULL;
    if (cJSON_IsString(parsed)) {
        text_format(id, ",\"%s\":", name);
        text_json_string(id, parsed->valuestring, strlen(parsed->valuestring));
    }
    const bool done = cJSON_IsString(parsed);
    cJSON_Delete(parsed);
    return done;
}

/* Makes blanks of the member and of one of the commas around it. m->after is then the comma or brace before the next
 * member. */
static void blank(text_buffer *line, member *m) {
    const bool is_last = line->data[m->after] == '}';
    const bool is_first = line->data[m->before] == '{';
    const size_t first = is_last && !is_first ? m->before : m->before + 1;
    const size_t last = is_last ? m->after : m->after + 1;
    memset(line->data + first, ' ', last - first);
    if (!is_last) { m->after = m->before; }
}

void request_line_take_id(text_buffer *line, text_buffer *id) {
    static const char *const names[] = {"id", "custom_id"};
    bool taken[2] = {false, false};
    member m;
    if (line->data == NULL || !begin(line, &m)) { return; }
    while (line->data[m.after] != '}' && next_member(line, &m)) {
        for (size_t i = 0; i < 2; i++) {
            if (taken[i] || !has_name(line, &m, names[i]) || !put_id(line, &m, names[i], id)) { continue; }
            taken[i] = true;
            blank(line, &m);
            break;
        }
    }
}

void request_line_copy_prompt(const text_buffer *line, text_buffer *prompt) {
    static const char *const names[] = {"prompt", "messages", "token_ids"};
    member m;
    if (line->data == NULL || !begin(line, &m)) { return; }
    while (line->data[m.after] != '}' && next_member(line, &m)) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (!has_name(line, &m, names[i])) { continue; }
            text_format(prompt, ",\"%s\":", names[i]);
            text_append(prompt, line->data + m.value, m.end - m.value);
        }
    }
}
