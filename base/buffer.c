#include "base/buffer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/sizes.h"
#include "base/utf8.h"

static bool reserve(qr_buffer *buffer, size_t extra) {
    size_t needed;
    if (buffer->failed || !qr_size_add(buffer->size, extra, &needed) || !qr_size_add(needed, 1, &needed) ||
        !qr_array_reserve(&buffer->data, &buffer->capacity, needed, 1)) {
        buffer->failed = true;
        return false;
    }
    return true;
}

void qr_buffer_append(qr_buffer *buffer, const void *bytes, size_t n_bytes) {
    if (!reserve(buffer, n_bytes)) { return; }
    if (n_bytes > 0) { memcpy(buffer->data + buffer->size, bytes, n_bytes); }
    buffer->size += n_bytes;
    buffer->data[buffer->size] = '\0';
}

void qr_buffer_append_text(qr_buffer *buffer, const char *text) { qr_buffer_append(buffer, text, strlen(text)); }

void qr_buffer_append_char(qr_buffer *buffer, char c) { qr_buffer_append(buffer, &c, 1); }

void qr_buffer_append_format(qr_buffer *buffer, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const int length = qr_vformat(NULL, 0, fmt, args);
    va_end(args);
    if (length < 0) { buffer->failed = true; }
    if (length < 0 || !reserve(buffer, (size_t)length)) { return; }
    va_start(args, fmt);
    (void)qr_vformat(buffer->data + buffer->size, (size_t)length + 1, fmt, args);
    va_end(args);
    buffer->size += (size_t)length;
}

void qr_buffer_append_json_string(qr_buffer *buffer, const char *text, size_t n_bytes) {
    static const char replacement[] = "\xEF\xBF\xBD";
    qr_buffer_append_char(buffer, '"');
    for (size_t i = 0; i < n_bytes;) {
        const unsigned char c = (unsigned char)text[i];
        const char *escapes = "\"\\\b\f\n\r\t";
        const char *letters = "\"\\bfnrt";
        const char *found = c != '\0' ? strchr(escapes, c) : NULL;
        size_t length = 1;
        if (found != NULL) {
            qr_buffer_append_char(buffer, '\\');
            qr_buffer_append_char(buffer, letters[found - escapes]);
        } else if (c < 0x20U || c == 0x7FU) {
            qr_buffer_append_format(buffer, "\\u%04x", (unsigned)c);
        } else if ((length = qr_utf8_sequence_length(text + i, n_bytes - i)) > 0) {
            qr_buffer_append(buffer, text + i, length);
        } else {
            qr_buffer_append(buffer, replacement, 3);
            length = 1;
        }
        i += length;
    }
    qr_buffer_append_char(buffer, '"');
}

void qr_buffer_clear(qr_buffer *buffer) {
    buffer->size = 0;
    buffer->failed = false;
    if (buffer->data != NULL) { buffer->data[0] = '\0'; }
}

void qr_buffer_free(qr_buffer *buffer) {
    qr_free(buffer->data);
    *buffer = (qr_buffer){0};
}

char *qr_buffer_take(qr_buffer *buffer) {
    char *text = NULL;
    if (reserve(buffer, 0)) {
        buffer->data[buffer->size] = '\0';
        text = buffer->data;
        *buffer = (qr_buffer){0};
    } else {
        qr_buffer_free(buffer);
    }
    return text;
}
