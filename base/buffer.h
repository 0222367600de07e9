/* A growing byte buffer, for text and for bytes. Errors are sticky: appends after a failed one do nothing, and
 * qr_buffer_ok tells at the end, so that building a text needs one check. */
#ifndef QR_BASE_BUFFER_H
#define QR_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Zero-initialise before first use. `data` is always NUL-terminated once anything was appended (the NUL is not
 * counted in `size`). */
typedef struct qr_buffer {
    char *data;
    size_t size;
    size_t capacity;
    bool failed;
} qr_buffer;

void qr_buffer_append(qr_buffer *buffer, const void *bytes, size_t n_bytes);
void qr_buffer_append_text(qr_buffer *buffer, const char *text);
void qr_buffer_append_char(qr_buffer *buffer, char c);
void qr_buffer_append_format(qr_buffer *buffer, const char *fmt, ...) QR_PRINTF(2, 3);
/* The text as a JSON string literal with quotes; invalid UTF-8 becomes U+FFFD. */
void qr_buffer_append_json_string(qr_buffer *buffer, const char *text, size_t n_bytes);
void qr_buffer_clear(qr_buffer *buffer); /* keeps the capacity */
void qr_buffer_free(qr_buffer *buffer);  /* back to the zero state */
/* The content as a qr_alloc'ed NUL-terminated string, the caller's to qr_free; NULL after a failure. */
char *qr_buffer_take(qr_buffer *buffer);
static inline bool qr_buffer_ok(const qr_buffer *buffer) { return !buffer->failed; }

#endif
