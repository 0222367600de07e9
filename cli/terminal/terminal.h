/* What the terminal at the other end of stdout or stderr is like. */
#ifndef QRUN_CLI_TERMINAL_TERMINAL_H
#define QRUN_CLI_TERMINAL_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

bool terminal_is(FILE *stream);

/* Columns; 80 where the stream is no terminal or will not say. */
int terminal_width(FILE *stream);

/* Whether lines may be cleared and redrawn (a terminal, and not TERM=dumb). */
bool terminal_redraws(FILE *stream);

/* Whether to colour: as terminal_redraws, and NO_COLOR is not set (https://no-color.org). */
bool terminal_colours(FILE *stream);

/* The escape sequence of a style, or "" where the stream has no colours. */
typedef enum terminal_style { STYLE_PLAIN, STYLE_BOLD, STYLE_DIM, STYLE_CYAN } terminal_style;
const char *terminal_sequence(FILE *stream, terminal_style style);

#endif
