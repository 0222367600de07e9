/* What the terminal at the other end of stdout or stderr is like, and what it gets. */
#ifndef QRUN_CLI_TERMINAL_TERMINAL_H
#define QRUN_CLI_TERMINAL_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* From here on, what is printed to stdout and stderr passes the filter of printable.h where they are terminals. Files
 * and pipes get exact bytes. Called once, before anything is printed; false when there is no memory for it. */
bool terminal_guard_output(void);

bool terminal_is(FILE *stream);

/* Columns; 80 where the stream is no terminal or will not say. */
int terminal_width(FILE *stream);

/* Whether lines may be cleared and redrawn (a terminal, and not TERM=dumb). */
bool terminal_redraws(FILE *stream);

/* Whether to colour: as terminal_redraws, and NO_COLOR is not set (https://no-color.org). */
bool terminal_colours(FILE *stream);

/* Control sequences, which printing would filter: a style, where the stream has colours; an empty line in place of the
 * current one; one column less. For the last two the stream has to be a terminal. */
typedef enum terminal_style { STYLE_PLAIN, STYLE_BOLD, STYLE_DIM, STYLE_CYAN } terminal_style;
void terminal_put_style(FILE *stream, terminal_style style);
void terminal_clear_line(FILE *stream);
void terminal_erase_column(FILE *stream);

#endif
