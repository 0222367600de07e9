/* Ctrl-C (SIGINT), SIGTERM and SIGHUP. The first one asks the program to stop, and it has two seconds for that. Then it
 * is ended where it is, unless something is being saved (interrupt_hold). A second Ctrl-C or SIGTERM ends it at once.
 * Nothing half written has a final name at any time, so no more is lost than what was not written yet. */
#ifndef QRUN_CLI_TERMINAL_INTERRUPT_H
#define QRUN_CLI_TERMINAL_INTERRUPT_H

#include <stdbool.h>

void interrupt_install(void);
bool interrupted(void);
/* Whether it was not Ctrl-C: the program is to end, whatever it does. */
bool terminated(void);

/* From here on nothing is cut off, also not by a pipe that nobody reads: who calls this stops by itself, and saves
 * something first. */
void interrupt_hold(void);
/* From here on Ctrl-C asks for something less than the end of the program, and sets no limit (chat: it stops the
 * answer). */
void interrupt_is_a_request(void);
/* Takes the request to stop as served and listens again. */
void interrupt_reset(void);

/* Calls act(user) when the first signal comes: in its handler, so it may do only what is safe there. NULL: nothing. */
void interrupt_on_signal(void (*act)(void *user), void *user);
/* What the program says when it is cut off, after "qrun: interrupted"; lent. NULL: nothing. */
void interrupt_last_words(const char *words);

#endif
