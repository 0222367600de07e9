/* JSON written member by member: {"a":1, "b":"two"}. Errors are those of the buffer. */
#ifndef QR_LOADERS_FILES_JSON_PUT_H
#define QR_LOADERS_FILES_JSON_PUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

/* A member of the object that is open, or with key NULL the next item of the list that is open. */
void qr_json_put_text(qr_buffer *out, const char *key, const char *value); /* NULL: null */
void qr_json_put_bytes(qr_buffer *out, const char *key, const char *text, size_t n_bytes);
void qr_json_put_int(qr_buffer *out, const char *key, int64_t value);
void qr_json_put_id(qr_buffer *out, const char *key, int64_t value); /* −1: null */
void qr_json_put_double(qr_buffer *out, const char *key, double value);
void qr_json_put_bool(qr_buffer *out, const char *key, bool value);
void qr_json_put_ints(qr_buffer *out, const char *key, const int64_t *values, int n);
void qr_json_put_raw(qr_buffer *out, const char *key, const char *json); /* text that is JSON already */

/* Opens an object '{' or a list '['; `end` closes it with the bracket that fits. */
void qr_json_put_begin(qr_buffer *out, const char *key, char bracket);
void qr_json_put_end(qr_buffer *out, char bracket);

#endif
