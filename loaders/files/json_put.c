#include "loaders/files/json_put.h"

#include <string.h>

#include "base/number.h"

/* A comma, unless this is the first value; then the key. */
static void put_key(qr_buffer *out, const char *key) {
    const char last = out->size > 0 ? out->data[out->size - 1] : '{';
    if (last != '{' && last != '[' && last != ':') { qr_buffer_append_text(out, ", "); }
    if (key == NULL) { return; }
    qr_buffer_append_json_string(out, key, strlen(key));
    qr_buffer_append_char(out, ':');
}

void qr_json_put_raw(qr_buffer *out, const char *key, const char *json) {
    put_key(out, key);
    qr_buffer_append_text(out, json);
}

void qr_json_put_bytes(qr_buffer *out, const char *key, const char *text, size_t n_bytes) {
    put_key(out, key);
    qr_buffer_append_json_string(out, text, n_bytes);
}

void qr_json_put_text(qr_buffer *out, const char *key, const char *value) {
    if (value == NULL) {
        qr_json_put_raw(out, key, "null");
    } else {
        qr_json_put_bytes(out, key, value, strlen(value));
    }
}

void qr_json_put_int(qr_buffer *out, const char *key, int64_t value) {
    put_key(out, key);
    qr_buffer_append_format(out, "%lld", (long long)value);
}

void qr_json_put_id(qr_buffer *out, const char *key, int64_t value) {
    if (value >= 0) {
        qr_json_put_int(out, key, value);
    } else {
        qr_json_put_text(out, key, NULL);
    }
}

void qr_json_put_double(qr_buffer *out, const char *key, double value) {
    char text[QR_NUMBER_BYTES];
    qr_number_format(value, text);
    qr_json_put_raw(out, key, text);
}

void qr_json_put_bool(qr_buffer *out, const char *key, bool value) {
    qr_json_put_raw(out, key, value ? "true" : "false");
}

void qr_json_put_begin(qr_buffer *out, const char *key, char bracket) {
    put_key(out, key);
    qr_buffer_append_char(out, bracket);
}

void qr_json_put_end(qr_buffer *out, char bracket) { qr_buffer_append_char(out, bracket); }

void qr_json_put_ints(qr_buffer *out, const char *key, const int64_t *values, int n) {
    qr_json_put_begin(out, key, '[');
    for (int i = 0; i < n; i++) { qr_json_put_int(out, NULL, values[i]); }
    qr_json_put_end(out, ']');
}
