/* Text that grows, and UTF-8 on its way into and out of JSON. */
#ifndef QRUN_SERVE_OPENAI_TEXT_H
#define QRUN_SERVE_OPENAI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

/* Bytes that grow. A zeroed one is empty. After a failed allocation it keeps what it had and says so. */
typedef struct serve_text {
    char *data; /* [size], NUL-terminated where it is not NULL */
    size_t size, capacity;
    bool failed;
} serve_text;

void serve_text_add(serve_text *t, const char *bytes, size_t n_bytes);
void serve_text_add_format(serve_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void serve_text_drop_front(serve_text *t, size_t n_bytes);
void serve_text_clear(serve_text *t); /* keeps the memory */
void serve_text_free(serve_text *t);

/* Bytes of the UTF-8 character at `bytes`, 0 where there is none; NUL is none. */
size_t serve_text_character_bytes(const char *bytes, size_t n_bytes);
bool serve_text_is_utf8(const char *bytes, size_t n_bytes);
/* Unicode characters of UTF-8 text. */
int64_t serve_text_count_characters(const char *bytes, size_t n_bytes);

/* A JSON string of bytes that may be no UTF-8: what is none becomes U+FFFD. NULL when memory is short. */
cJSON *serve_text_to_json(const char *bytes, size_t n_bytes);

enum { SERVE_WHY_BYTES = 128 };

/* Parses one whole JSON value of a client. NULL with `why` set: no JSON, more than one value, no UTF-8, or with U+0000,
 * at which texts would end early here. */
cJSON *serve_text_parse_json(const char *bytes, size_t n_bytes, char why[SERVE_WHY_BYTES]);

#endif
