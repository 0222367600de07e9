#include "cli/terminal/interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t signal_seen;

static void on_signal(int number) { signal_seen = number; }

void interrupt_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = (int)SA_RESETHAND; /* and no SA_RESTART: a read from the terminal ends */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_DFL); /* `qrun … | head` ends quietly */
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is a failed write with a message */
}

bool interrupted(void) { return signal_seen != 0; }

bool terminated(void) { return signal_seen == SIGTERM; }

void interrupt_reset(void) {
    signal_seen = 0;
    interrupt_install();
}
