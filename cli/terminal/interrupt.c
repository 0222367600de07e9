#include "cli/terminal/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/terminal/keyboard.h"
#include "cli/terminal/messages.h"

enum { SECONDS_TO_STOP = 2 };

static volatile sig_atomic_t signal_seen;
static volatile sig_atomic_t ctrl_c_is_a_request, held;
static void (*volatile action)(void *user);
static void *volatile action_user;
static const char *volatile last_words;
static bool shares_line; /* stderr is a terminal, whose line may have progress, or "^C" */

static void say(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) { return; /* there is nobody left to tell */ }
}

static void end_now(void) {
    const char *words = last_words;
    keyboard_restore();
    if (shares_line) { say("\n"); }
    say("qrun: interrupted");
    if (words != NULL) { say(words); }
    say("\n");
    _exit(EXIT_INTERRUPTED);
}

static void limit_time(void) {
    const bool wants_end = signal_seen != 0 && (signal_seen != SIGINT || ctrl_c_is_a_request == 0);
    (void)alarm(wants_end && held == 0 ? SECONDS_TO_STOP : 0);
}

static void on_signal(int number) {
    const int error_number = errno;
    if (signal_seen == 0) {
        signal_seen = number;
        limit_time();
        if (action != NULL) { action(action_user); }
    } else if (number != SIGHUP) { /* a terminal that goes away sends several of them */
        end_now();
    }
    errno = error_number;
}

static void on_alarm(int number) {
    (void)number;
    end_now();
}

static void handle(int number, void (*handler)(int)) {
    struct sigaction usual;
    if (sigaction(number, NULL, &usual) == 0 && usual.sa_handler == SIG_IGN && number == SIGHUP) { return; } /* nohup */
    struct sigaction taken;
    memset(&taken, 0, sizeof taken);
    taken.sa_handler = handler; /* without SA_RESTART: a read from the terminal ends */
    sigemptyset(&taken.sa_mask);
    sigaddset(&taken.sa_mask, SIGINT);
    sigaddset(&taken.sa_mask, SIGTERM);
    sigaddset(&taken.sa_mask, SIGHUP);
    sigaddset(&taken.sa_mask, SIGALRM);
    sigaction(number, &taken, NULL);
}

void interrupt_install(void) {
    shares_line = isatty(STDERR_FILENO) == 1;
    handle(SIGALRM, on_alarm);
    handle(SIGINT, on_signal);
    handle(SIGTERM, on_signal);
    handle(SIGHUP, on_signal);
    signal(SIGPIPE, SIG_DFL); /* `qrun … | head` ends quietly */
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is a failed write with a message */
}

bool interrupted(void) { return signal_seen != 0; }

bool terminated(void) { return signal_seen != 0 && signal_seen != SIGINT; }

void interrupt_hold(void) {
    held = 1;
    signal(SIGPIPE, SIG_IGN); /* who read what is printed may leave; writing to it fails */
    limit_time();
}

void interrupt_is_a_request(void) {
    ctrl_c_is_a_request = 1;
    limit_time();
}

void interrupt_reset(void) {
    signal_seen = 0;
    limit_time();
}

void interrupt_on_signal(void (*act)(void *user), void *user) {
    action = NULL;
    action_user = user;
    action = act;
}

void interrupt_last_words(const char *words) { last_words = words; }
