#include "cli/terminal/text.h"

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

void text_format_list(text_buffer *t, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    if (length >= 0) {
        reserve(t, (size_t)length);
        vsnprintf(t->data + t->size, (size_t)length + 1, format, again);
        t->size += (size_t)length;
    }
    va_end(again);
}

void text_format(text_buffer *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    text_format_list(t, format, arguments);
    va_end(arguments);
}

/* How many bytes the character that `lead` begins has, or 0. */
static size_t character_length(unsigned char lead) {
    if (lead < 0x80U) { return 1; }
    if (lead < 0xC2U || lead > 0xF4U) { return 0; }
    return lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : 2;
}

/* Whether s[0, n) is a well-formed character, or the beginning of one. */
static bool fits_character(const unsigned char *s, size_t n) {
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0U) != 0x80U) { return false; }
    }
    if (n < 2) { return true; }
    const bool overlong = (s[0] == 0xE0U && s[1] < 0xA0U) || (s[0] == 0xF0U && s[1] < 0x90U);
    const bool surrogate = s[0] == 0xEDU && s[1] > 0x9FU;
    const bool too_large = s[0] == 0xF4U && s[1] > 0x8FU;
    return !overlong && !surrogate && !too_large;
}

size_t text_character_bytes(const char *bytes, size_t n_bytes) {
    const unsigned char *s = (const unsigned char *)bytes;
    const size_t length = character_length(s[0]);
    return length <= n_bytes && fits_character(s, length) ? length : 0;
}

bool text_character_begins(const char *bytes, size_t n_bytes) {
    const unsigned char *s = (const unsigned char *)bytes;
    return n_bytes < character_length(s[0]) && fits_character(s, n_bytes);
}

int text_require_utf8(const char *what, const char *bytes, size_t n_bytes) {
    for (size_t at = 0, length; at < n_bytes; at += length) {
        length = text_character_bytes(bytes + at, n_bytes - at);
        if (length == 0) {
            return complain(EXIT_USAGE, "%s is not UTF-8: byte %zu of it is 0x%02x", what, at + 1,
                            (unsigned)(unsigned char)bytes[at]);
        }
    }
    return EXIT_OK;
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
        const size_t length = text_character_bytes(bytes + i, n_bytes - i);
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

short_text json_float(double value) {
    short_text out = {"null"};
    if (isfinite(value)) { snprintf(out.text, sizeof out.text, "%.9g", value); }
    return out;
}

short_text json_double(double value) {
    short_text out = {"null"};
    int n = 15;
    if (!isfinite(value)) { return out; }
    do { snprintf(out.text, sizeof out.text, "%.*g", n, value); } while (strtod(out.text, NULL) != value && ++n < 18);
    return out;
}

void text_clear(text_buffer *t) {
    t->size = 0;
    if (t->data != NULL) { t->data[0] = '\0'; }
}

void text_free(text_buffer *t) {
    free(t->data);
    *t = (text_buffer){0};
}

int text_columns(const char *bytes, size_t n_bytes) {
    int n = 0;
    for (size_t i = 0; i < n_bytes; i++) { n += ((unsigned char)bytes[i] & 0xC0U) != 0x80U; }
    return n;
}

static short_text scaled_text(double value, double step, const char *const units[5]) {
    short_text out;
    int unit = 0;
    for (; value >= 1000 && unit < 4; unit++) { value /= step; }
    snprintf(out.text, sizeof out.text, unit == 0 ? "%.0f %s" : value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
    return out;
}

short_text size_text(int64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return scaled_text((double)bytes, 1024, units);
}

short_text given_size_text(int64_t bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    short_text out;
    snprintf(out.text, sizeof out.text, "%.20s = %.20s", size_text(bytes).text,
             scaled_text((double)bytes, 1000, units).text);
    return out;
}

short_text count_text(int64_t count, const char *noun) {
    short_text out;
    snprintf(out.text, sizeof out.text, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
    return out;
}

short_text large_text(int64_t count) {
    short_text out;
    const bool billions = count >= 1000000000;
    if (count < 100000) {
        snprintf(out.text, sizeof out.text, "%lld", (long long)count);
    } else {
        snprintf(out.text, sizeof out.text, "%.1f %s", (double)count / (billions ? 1e9 : 1e6),
                 billions ? "billion" : "million");
    }
    return out;
}

short_text duration_text(double seconds) {
    const long long whole = seconds > 0 && seconds < 1e9 ? (long long)(seconds + 0.5) : 0;
    short_text t;
    if (whole >= 3600) {
        snprintf(t.text, sizeof t.text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
        snprintf(t.text, sizeof t.text, "%lld:%02lld", whole / 60, whole % 60);
    }
    return t;
}
