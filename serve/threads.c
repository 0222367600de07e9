#include "serve/threads.h"

#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <event2/event.h>

/* What a thread raises itself stays: blocked, it would end the process. The library has a handler of SIGBUS for files
 * that are cut short while they are mapped. */
bool thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg) {
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) { sigdelset(&others, own[i]); }
    pthread_sigmask(SIG_SETMASK, &others, &before);
    const bool started = pthread_create(thread, NULL, run, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void on_ready(evutil_socket_t descriptor, short what, void *arg) {
    const wakeup *w = arg;
    uint64_t count;
    (void)what;
    (void)!read(descriptor, &count, sizeof count);
    w->woken(w->user);
}

bool wakeup_open(wakeup *w, struct event_base *base, void (*woken)(void *user), void *user) {
    *w = (wakeup){.woken = woken, .user = user};
    const int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (descriptor < 0) { return false; }
    w->descriptor = descriptor;
    w->event = event_new(base, descriptor, EV_READ | EV_PERSIST, on_ready, w);
    if (w->event != NULL && event_add(w->event, NULL) == 0) { return true; }
    if (w->event == NULL) { close(descriptor); }
    return false;
}

void wakeup_send(const wakeup *w) {
    const uint64_t one = 1;
    (void)!write(w->descriptor, &one, sizeof one);
}

void wakeup_close(wakeup *w) {
    if (w->event == NULL) { return; }
    event_free(w->event);
    close(w->descriptor);
    w->event = NULL;
}
