/* What the threads beside the event loop have in common: how they are started, and how they wake the loop. */
#ifndef QRUN_SERVE_THREADS_H
#define QRUN_SERVE_THREADS_H

#include <pthread.h>
#include <stdbool.h>

struct event;
struct event_base;

/* Signals are for the loop: the thread gets none. */
bool thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* Calls a function on the loop's thread, once for any number of wakeup_send before it. A zeroed one is closed. */
typedef struct wakeup {
    int descriptor;
    struct event *event;
    void (*woken)(void *user);
    void *user;
} wakeup;

/* False when descriptors or memory are short; wakeup_close in any case. */
bool wakeup_open(wakeup *w, struct event_base *base, void (*woken)(void *user), void *user);
void wakeup_send(const wakeup *w); /* from any thread */
void wakeup_close(wakeup *w);

#endif
