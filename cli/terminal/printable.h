/* Text as a terminal may get it. A terminal obeys control characters, and names, files and answers may have some. So
 * all that is printed to one passes this filter: C0 but newline and tab, DEL, C1 (U+0080 to U+009F) and bytes that are
 * no UTF-8 become U+FFFD, and a carriage return becomes nothing. It works byte by byte: however a text is cut into
 * pieces, the same is shown. */
#ifndef QRUN_CLI_TERMINAL_PRINTABLE_H
#define QRUN_CLI_TERMINAL_PRINTABLE_H

#include <stddef.h>

/* Zero-initialise. */
typedef struct printable {
    char held[4]; /* the beginning of a character */
    size_t n_held;
} printable;

enum { PRINTABLE_BYTES = 6 };

/* Takes one byte and writes what can now be shown; returns how many bytes that is. */
size_t printable_take(printable *p, unsigned char byte, char out[PRINTABLE_BYTES]);

/* Makes a text, in place, one line that a terminal may get: what it may not is '?', newlines and tabs included. */
void printable_line(char *text);

#endif
