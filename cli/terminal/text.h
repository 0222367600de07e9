/* Text that grows, JSON written into it, and files read whole. Out of memory ends the program (see allocate). */
#ifndef QRUN_CLI_TERMINAL_TEXT_H
#define QRUN_CLI_TERMINAL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/terminal/messages.h"

/* Zero-initialise; `train_data` is NUL-terminated once anything was appended. */
typedef struct text_buffer {
    char *data;
    size_t size, capacity;
} text_buffer;

void text_append(text_buffer *t, const char *bytes, size_t n_bytes);
void text_puts(text_buffer *t, const char *s);
void text_format(text_buffer *t, const char *format, ...) CLI_PRINTF(2, 3);
/* A JSON string literal with its quotes; bytes that are no UTF-8 become U+FFFD. */
void text_json_string(text_buffer *t, const char *bytes, size_t n_bytes);
/* A JSON number with as many digits as tell a float (9) or a double (15 to 17) from its neighbours; null unless
 * finite. */
void text_json_float(text_buffer *t, double value);
void text_json_double(text_buffer *t, double value);
void text_clear(text_buffer *t);
void text_free(text_buffer *t);

/* The whole of a file, or of stdin for "-". False after telling the user why not. */
bool text_read_file(text_buffer *t, const char *path);
/* The same, of what has to be a text: a file with zero bytes is refused. */
bool text_read_plain(text_buffer *t, const char *path);

/* FNV-1a, 64 bits, of bytes after those that `hash` stands for; begin with HASH_START. */
#define HASH_START 0xcbf29ce484222325ULL
uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n_bytes);

/* Columns of UTF-8 text in a terminal, where a character takes one. */
int text_columns(const char *bytes, size_t n_bytes);

/* Into out, which is returned: "1.2 GiB", "640 KiB". */
enum { SIZE_TEXT_BYTES = 32 };
const char *size_text(int64_t bytes, char out[SIZE_TEXT_BYTES]);
/* "1 example", "2 examples": the noun's plural ends in s. */
enum { COUNT_TEXT_BYTES = 48 };
const char *count_text(int64_t count, const char *noun, char out[COUNT_TEXT_BYTES]);
/* "1.5 billion", "0.2 million", "5120": of parameters. */
const char *large_text(int64_t count, char out[COUNT_TEXT_BYTES]);

#endif
