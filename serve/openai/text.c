#include "serve/openai/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static bool reserve(serve_text *t, size_t n_bytes) {
    if (t->failed) { return false; }
    if (t->size + n_bytes < t->capacity) { return true; }
    const size_t capacity = 2 * (t->size + n_bytes) + 64;
    char *grown = realloc(t->data, capacity);
    t->failed = grown == NULL;
    if (t->failed) { return false; }
    t->data = grown;
    t->capacity = capacity;
    return true;
}

void serve_text_add(serve_text *t, const char *bytes, size_t n_bytes) {
    if (!reserve(t, n_bytes)) { return; }
    if (n_bytes > 0) { memcpy(t->data + t->size, bytes, n_bytes); }
    t->size += n_bytes;
    t->data[t->size] = '\0';
}

void serve_text_add_format(serve_text *t, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    if (n >= 0 && reserve(t, (size_t)n)) {
        (void)vsnprintf(t->data + t->size, (size_t)n + 1, format, again);
        t->size += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

void serve_text_drop_front(serve_text *t, size_t n_bytes) {
    if (n_bytes == 0) { return; }
    t->size -= n_bytes;
    memmove(t->data, t->data + n_bytes, t->size);
    t->data[t->size] = '\0';
}

void serve_text_clear(serve_text *t) {
    t->size = 0;
    if (t->data != NULL) { t->data[0] = '\0'; }
}

void serve_text_free(serve_text *t) {
    free(t->data);
    *t = (serve_text){0};
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

size_t serve_text_character_bytes(const char *bytes, size_t n) {
    const unsigned char *b = (const unsigned char *)bytes;
    const unsigned char c = b[0];
    const size_t length = c < 0x80                ? 1
                          : c >= 0xC2 && c < 0xE0 ? 2
                          : c >= 0xE0 && c < 0xF0 ? 3
                          : c >= 0xF0 && c < 0xF5 ? 4
                                                  : 0;
    if (length == 0 || length > n || c == 0) { return 0; }
    for (size_t i = 1; i < length; i++) {
        if ((b[i] & 0xC0U) != 0x80U) { return 0; }
    }
    const bool too_long = (c == 0xE0 && b[1] < 0xA0) || (c == 0xF0 && b[1] < 0x90);
    const bool no_character = (c == 0xED && b[1] >= 0xA0) || (c == 0xF4 && b[1] >= 0x90);
    return too_long || no_character ? 0 : length;
}

bool serve_text_is_utf8(const char *bytes, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes;) {
        const size_t length = serve_text_character_bytes(bytes + i, n_bytes - i);
        if (length == 0) { return false; }
        i += length;
    }
    return true;
}

int64_t serve_text_count_characters(const char *bytes, size_t n_bytes) {
    int64_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) { n += ((unsigned char)bytes[i] & 0xC0U) != 0x80U; }
    return n;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

cJSON *serve_text_to_json(const char *bytes, size_t n_bytes) {
    static const char replacement[] = "\xEF\xBF\xBD";
    enum { MOST = sizeof replacement - 1 };
    char *copy = malloc(n_bytes * MOST + 1);
    size_t n = 0;
    if (copy == NULL) { return NULL; }
    for (size_t i = 0; i < n_bytes;) {
        const size_t length = serve_text_character_bytes(bytes + i, n_bytes - i);
        memcpy(copy + n, length > 0 ? bytes + i : replacement, length > 0 ? length : MOST);
        n += length > 0 ? length : MOST;
        i += length > 0 ? length : 1;
    }
    copy[n] = '\0';
    cJSON *string = cJSON_CreateString(copy);
    free(copy);
    return string;
}

/* Whether a string has the escape of U+0000. Backslashes occur in strings alone. */
static bool has_escaped_nul(const char *bytes, size_t n_bytes) {
    for (size_t i = 0; i + 1 < n_bytes; i++) {
        if (bytes[i] != '\\') { continue; }
        i++;
        if (bytes[i] == 'u' && n_bytes - i > 4 && memcmp(bytes + i + 1, "0000", 4) == 0) { return true; }
    }
    return false;
}

/* The first four digits after a \u at `escape`, or -1. */
static int escaped_unit(const char *escape, const char *end) {
    char digits[5] = "";
    char *rest;
    if (end - escape < 6 || escape[0] != '\\' || escape[1] != 'u') { return -1; }
    memcpy(digits, escape + 2, 4);
    const long unit = strtol(digits, &rest, 16);
    return *rest == '\0' ? (int)unit : -1;
}

/* What the JSON reader stumbled over, where it is none of its syntax; NULL: it is. */
static const char *known_reason(const char *bytes, size_t n_bytes) {
    const char *end = bytes + n_bytes;
    int depth = 0;
    bool in_text = false;
    for (const char *c = bytes; c < end; c++) {
        if (*c == '\\' && in_text && end - c > 1) {
            const int unit = escaped_unit(c, end), next = unit >= 0 ? escaped_unit(c + 6, end) : -1;
            const bool is_pair = unit >= 0xD800 && unit < 0xDC00 && next >= 0xDC00 && next < 0xE000;
            if (unit >= 0xD800 && unit < 0xE000 && !is_pair) {
                return "a text of the body ends within a character: one of its \\u escapes is half of a surrogate pair";
            }
            c += is_pair ? 11 : 1;
        } else if (*c == '"') {
            in_text = !in_text;
        } else if (!in_text && (*c == '{' || *c == '[') && ++depth > CJSON_NESTING_LIMIT) {
            return "the body is JSON that is nested too deeply";
        } else if (!in_text && (*c == '}' || *c == ']')) {
            depth--;
        }
    }
    return NULL;
}

static cJSON *refuse_json(char why[SERVE_WHY_BYTES], const char *message) {
    (void)snprintf(why, SERVE_WHY_BYTES, "%s", message);
    return NULL;
}

cJSON *serve_text_parse_json(const char *bytes, size_t n_bytes, char why[SERVE_WHY_BYTES]) {
    const char *end = bytes;
    if (n_bytes == 0) { return refuse_json(why, "the body is empty, and not a JSON object"); }
    if (!serve_text_is_utf8(bytes, n_bytes)) { return refuse_json(why, "the body is not UTF-8"); }
    if (has_escaped_nul(bytes, n_bytes)) { return refuse_json(why, "texts with U+0000 are not supported"); }
    cJSON *root = cJSON_ParseWithLengthOpts(bytes, n_bytes, &end, false);
    while (root != NULL && end < bytes + n_bytes && strchr(" \t\r\n", *end) != NULL && *end != '\0') { end++; }
    if (root != NULL && end == bytes + n_bytes) { return root; }
    cJSON_Delete(root);
    const char *reason = known_reason(bytes, n_bytes);
    if (reason != NULL) { return refuse_json(why, reason); }
    (void)snprintf(why, SERVE_WHY_BYTES, "the body is not a JSON object: it cannot be read beyond byte %zu of %zu",
                   (size_t)(end - bytes), n_bytes);
    return NULL;
}
