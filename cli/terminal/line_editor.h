/* A line that is typed at a terminal with the keys of libedit (Emacs or vi, as ~/.editrc says) and a history. It may
 * have several lines: pasted text stays whole, and Alt-Enter adds a line. For terminals that redraw; others have
 * keyboard.h, on top of which this works. */
#ifndef QRUN_CLI_TERMINAL_LINE_EDITOR_H
#define QRUN_CLI_TERMINAL_LINE_EDITOR_H

#include <stdbool.h>

#include "cli/terminal/keyboard.h"
#include "cli/terminal/text.h"

/* After keyboard_open; closed before keyboard_close. False where the terminal cannot redraw a line, or the system has
 * no UTF-8 locale. `words`, NULL-terminated and lent, are what Tab completes at the beginning of a line. */
bool line_editor_open(const char *const *words);
void line_editor_close(void);

/* Reads a line, without the newline at its end. `prompt` is shown in bold, with a blank after it. */
keyboard_event line_editor_read(const char *prompt, text_buffer *line);

/* What the arrow keys bring back. */
void line_editor_remember(const char *line);

#endif
