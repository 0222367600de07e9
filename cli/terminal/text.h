/* Text that grows, JSON written into it, and numbers as text. Out of memory ends the program (see allocate). */
#ifndef QRUN_CLI_TERMINAL_TEXT_H
#define QRUN_CLI_TERMINAL_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/terminal/messages.h"

/* Zero-initialise; `data` is NUL-terminated once anything was appended. */
typedef struct text_buffer {
    char *data;
    size_t size, capacity;
} text_buffer;

void text_append(text_buffer *t, const char *bytes, size_t n_bytes);
void text_puts(text_buffer *t, const char *s);
void text_format(text_buffer *t, const char *format, ...) CLI_PRINTF(2, 3);
void text_format_list(text_buffer *t, const char *format, va_list arguments) CLI_PRINTF(2, 0);
/* A JSON string literal with its quotes; bytes that are no UTF-8 become U+FFFD. */
void text_json_string(text_buffer *t, const char *bytes, size_t n_bytes);
void text_clear(text_buffer *t);
void text_free(text_buffer *t);

/* Bytes of the well-formed UTF-8 character at the start of bytes[0, n_bytes), n_bytes > 0; 0 where there is none. */
size_t text_character_bytes(const char *bytes, size_t n_bytes);
/* Whether the n_bytes (1 to 3) are the beginning of such a character, and not yet all of it. */
bool text_character_begins(const char *bytes, size_t n_bytes);
/* 0 for UTF-8, or an exit code after telling the user where it is not; `what` names the text: "the prompt". */
int text_require_utf8(const char *what, const char *bytes, size_t n_bytes);

/* Columns of UTF-8 text in a terminal, where a character takes one. */
int text_columns(const char *bytes, size_t n_bytes);

/* A text by value: an argument of printf, as in size_text(n).text. */
typedef struct short_text {
    char text[48];
} short_text;

/* A JSON number with as many digits as tell a float (9) or a double (15 to 17) from its neighbours; null unless
 * finite. */
short_text json_float(double value);
short_text json_double(double value);
/* "1.2 GiB", "640 KiB". */
short_text size_text(int64_t bytes);
/* "5.59 GiB = 6.00 GB": a size that somebody gave, in both units, so that it shows which of them was understood. */
short_text given_size_text(int64_t bytes);
/* "1:02:03", "4:05" */
short_text duration_text(double seconds);
/* "1 example", "2 examples": the noun's plural ends in s. */
short_text count_text(int64_t count, const char *noun);
/* "1.5 billion", "0.2 million", "5120": of parameters. */
short_text large_text(int64_t count);

#endif
