/* Ctrl-C and SIGTERM: the first asks the program to stop at the next step, a second one ends it at once. */
#ifndef QRUN_CLI_TERMINAL_INTERRUPT_H
#define QRUN_CLI_TERMINAL_INTERRUPT_H

#include <stdbool.h>

void interrupt_install(void);
bool interrupted(void);
/* Whether SIGTERM asked: the program is to end, whatever it does. */
bool terminated(void);
/* Takes the request to stop as served (chat: only the answer stops) and listens again. */
void interrupt_reset(void);

#endif
