/* Bytes of an answer that are left to read. What is taken stands before the end, whatever the bytes are. */
#ifndef QRUN_SERVE_OPENAI_CALL_TEXT_H
#define QRUN_SERVE_OPENAI_CALL_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cursor {
    const char *at, *end;
} cursor;

size_t cursor_left(const cursor *c);
bool cursor_sees(const cursor *c, char next); /* false at the end */
void cursor_skip_space(cursor *c);
void cursor_trim(cursor *c); /* space at both ends */

/* Whether the text comes next, which is taken then. */
bool cursor_takes(cursor *c, const char *text);
/* Everything before the first occurrence of a text, which is taken too. False, and nothing taken: there is none. */
bool cursor_takes_until(cursor *c, const char *text, cursor *before);

/* The first occurrence of a text; NULL: none. */
const char *cursor_find(const cursor *c, const char *text);

/* Space of JSON. */
bool call_is_space(char c);
/* n bytes without the space at their end. */
size_t call_without_space(const char *bytes, size_t n);

#endif
