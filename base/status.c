#include "base/status.h"

#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

/* Drops a UTF-8 sequence that the end of the buffer cut in half. */
static void trim_partial_character(char *text, size_t length) {
    size_t start = length;
    while (start > 0 && length - start < 4 && ((unsigned char)text[start - 1] & 0xC0U) == 0x80U) { start--; }
    if (start == 0) { return; }
    const unsigned char lead = (unsigned char)text[start - 1];
    const size_t have = length - start + 1;
    const size_t want = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : lead >= 0xC0U ? 2 : 1;
    if (have < want) { text[start - 1] = '\0'; }
}

/* Control characters, C1 among them (U+0080 to U+009F), and bytes that are no UTF-8 become '?'. */
static void make_printable(char *text) {
    const size_t n_bytes = strlen(text);
    size_t size = 0;
    for (size_t at = 0, length; at < n_bytes; at += length) {
        uint32_t c;
        length = qr_utf8_decode(text + at, n_bytes - at, &c);
        if (length == 0 || c < 0x20U || (c >= 0x7FU && c < 0xA0U)) {
            text[size++] = '?';
            length = length > 0 ? length : 1;
            continue;
        }
        memmove(text + size, text + at, length);
        size += length;
    }
    text[size] = '\0';
}

qrun_status qr_vfail(qr_error *err, qrun_status status, const char *fmt, va_list args) {
    if (err == NULL || err->status != QRUN_OK) { return status; }
    err->status = status;
    const int written = qr_vformat(err->message, sizeof err->message, fmt, args);
    if (written < 0) {
        err->message[0] = '\0';
    } else if ((size_t)written >= sizeof err->message) {
        trim_partial_character(err->message, sizeof err->message - 1);
    }
    make_printable(err->message);
    return status;
}

qrun_status qr_fail(qr_error *err, qrun_status status, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    qr_vfail(err, status, fmt, args);
    va_end(args);
    return status;
}

qrun_status qr_fail_memory(qr_error *err, const char *what, unsigned long long bytes) {
    return qr_fail(err, QRUN_ERROR_MEMORY,
                   "out of memory: %s needs %llu bytes; close other programs or use `memory_bytes`", what, bytes);
}

void qr_error_clear(qr_error *err) {
    if (err == NULL) { return; }
    err->status = QRUN_OK;
    err->message[0] = '\0';
}

void qr_error_prefix(qr_error *err, const char *context) {
    if (err == NULL || err->status == QRUN_OK) { return; }
    char deeper[QR_ERROR_MESSAGE_BYTES];
    memcpy(deeper, err->message, sizeof deeper);
    const qrun_status status = err->status;
    qr_error_clear(err);
    qr_fail(err, status, "%s: %s", context, deeper);
}
