/* Lines that are typed or pasted at the terminal, of any length: the line editing of the terminal itself would cut them
 * at 4,095 bytes. So that is off from keyboard_open to keyboard_close, and what it did is done here: echo, Backspace,
 * Ctrl-W, Ctrl-U and Ctrl-D. Ctrl-C stays a signal. What is typed between two reads is not echoed until it is read. */
#ifndef QRUN_CLI_TERMINAL_KEYBOARD_H
#define QRUN_CLI_TERMINAL_KEYBOARD_H

#include <stdbool.h>

#include "cli/terminal/text.h"

/* False where stdin or stdout is no terminal. However the program ends, the terminal gets its own settings back. */
bool keyboard_open(void);
void keyboard_close(void);

typedef enum keyboard_event {
    KEYBOARD_LINE,
    KEYBOARD_END,        /* Ctrl-D in an empty line, or the terminal went away */
    KEYBOARD_INTERRUPTED /* by a signal; what was typed is dropped, as a terminal does */
} keyboard_event;

/* Reads a line without its newline. */
keyboard_event keyboard_read(text_buffer *line);

/* Safe in a signal handler. Does nothing where the keyboard is not open. */
void keyboard_restore(void);

/* For the line editor. Takes the terminal again after it; tells the terminal to mark what is pasted; whether the
 * program was stopped (Ctrl-Z) and continued since the last call, so that the line has to be drawn again. */
void keyboard_take(void);
void keyboard_bracket_paste(bool on);
bool keyboard_was_stopped(void);

#endif
