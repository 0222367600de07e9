#include "cli/terminal/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reserve(text_buffer *t, size_t n_more) {
    const size_t wanted = t->size + n_more + 1;
    if (wanted <= t->capacity) { return; }
    size_t capacity = t->capacity < 64 ? 64 : t->capacity;
    while (capacity < wanted) { capacity *= 2; }
    t->data = reallocate(t->data, capacity);
    t->capacity = capacity;
}

void text_append(text_buffer *t, const char *bytes, size_t n_bytes) {
    reserve(t, n_bytes);
    if (n_bytes > 0) { memcpy(t->data + t->size, bytes, n_bytes); }
    t->size += n_bytes;
    t->data[t->size] = '\0';
}

void text_puts(text_buffer *t, const char *s) { text_append(t, s, strlen(s)); }

void text_format(text_buffer *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) { return; }
    reserve(t, (size_t)length);
    va_start(arguments, format);
    vsnprintf(t->data + t->size, (size_t)length + 1, format, arguments);
    va_end(arguments);
    t->size += (size_t)length;
}

/* Bytes of the well-formed UTF-8 character at s[0, n), or 0. */
static size_t character_length(const unsigned char *s, size_t n) {
    if (s[0] < 0x80U) { return 1; }
    const size_t length = s[0] >= 0xF0U ? 4 : s[0] >= 0xE0U ? 3 : 2;
    if (s[0] < 0xC2U || s[0] > 0xF4U || length > n) { return 0; }
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0U) != 0x80U) { return 0; }
    }
    const bool too_long = (s[0] == 0xE0U && s[1] < 0xA0U) || (s[0] == 0xF0U && s[1] < 0x90U);
    const bool surrogate = s[0] == 0xEDU && s[1] > 0x9FU;
    const bool too_large = s[0] == 0xF4U && s[1] > 0x8FU;
    return too_long || surrogate || too_large ? 0 : length;
}

static void append_escaped(text_buffer *t, unsigned char c) {
    switch (c) {
        case '"': text_puts(t, "\\\""); return;
        case '\\': text_puts(t, "\\\\"); return;
        case '\n': text_puts(t, "\\n"); return;
        case '\r': text_puts(t, "\\r"); return;
        case '\t': text_puts(t, "\\t"); return;
        default: text_format(t, "\\u%04x", c); return;
    }
}

void text_json_string(text_buffer *t, const char *bytes, size_t n_bytes) {
    const unsigned char *s = (const unsigned char *)bytes;
    text_puts(t, "\"");
    for (size_t i = 0; i < n_bytes;) {
        const size_t length = character_length(s + i, n_bytes - i);
        if (length == 0) {
            text_puts(t, "\xEF\xBF\xBD");
            i++;
        } else if (s[i] < 0x20U || s[i] == '"' || s[i] == '\\' || s[i] == 0x7FU) {
            append_escaped(t, s[i++]);
        } else {
            text_append(t, bytes + i, length);
            i += length;
        }
    }
    text_puts(t, "\"");
}

static void json_number(text_buffer *t, double value, int digits) {
    if (isfinite(value)) {
        text_format(t, "%.*g", digits, value);
    } else {
        text_puts(t, "null");
    }
}

void text_json_float(text_buffer *t, double value) { json_number(t, value, 9); }

void text_json_double(text_buffer *t, double value) {
    char digits[32];
    int n = 15;
    do { snprintf(digits, sizeof digits, "%.*g", n, value); } while (strtod(digits, NULL) != value && ++n < 17);
    json_number(t, value, n);
}

void text_clear(text_buffer *t) {
    t->size = 0;
    if (t->data != NULL) { t->data[0] = '\0'; }
}

void text_free(text_buffer *t) {
    free(t->data);
    *t = (text_buffer){0};
}

bool text_read_file(text_buffer *t, const char *path) {
    const bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    if (file == NULL) {
        notify("cannot open '%s': %s", path, strerror(errno));
        return false;
    }
    char chunk[16384];
    size_t n_read;
    errno = 0;
    text_append(t, "", 0);
    while ((n_read = fread(chunk, 1, sizeof chunk, file)) > 0) { text_append(t, chunk, n_read); }
    const bool failed = ferror(file) != 0;
    if (failed) { notify("cannot read '%s': %s", is_stdin ? "stdin" : path, strerror(errno)); }
    if (!is_stdin) { fclose(file); }
    return !failed;
}

bool text_read_plain(text_buffer *t, const char *path) {
    if (!text_read_file(t, path)) { return false; }
    if (memchr(t->data, '\0', t->size) == NULL) { return true; }
    notify("'%s' is not a text: it has zero bytes", path);
    return false;
}

uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) { hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3ULL; }
    return hash;
}

int text_columns(const char *bytes, size_t n_bytes) {
    int n = 0;
    for (size_t i = 0; i < n_bytes; i++) { n += ((unsigned char)bytes[i] & 0xC0U) != 0x80U; }
    return n;
}

const char *size_text(int64_t bytes, char out[SIZE_TEXT_BYTES]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, SIZE_TEXT_BYTES, unit == 0 ? "%.0f %s" : value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
    return out;
}

const char *count_text(int64_t count, const char *noun, char out[COUNT_TEXT_BYTES]) {
    snprintf(out, COUNT_TEXT_BYTES, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
    return out;
}

const char *large_text(int64_t count, char out[COUNT_TEXT_BYTES]) {
    if (count < 100000) {
        snprintf(out, COUNT_TEXT_BYTES, "%lld", (long long)count);
    } else {
        const bool billions = count >= 1000000000;
        snprintf(out, COUNT_TEXT_BYTES, "%.1f %s", (double)count / (billions ? 1e9 : 1e6),
                 billions ? "billion" : "million");
    }
    return out;
}
