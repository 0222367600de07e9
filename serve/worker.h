/* The thread that steps the session. Its events come back on the thread of the event loop, in order. */
#ifndef QRUN_SERVE_WORKER_H
#define QRUN_SERVE_WORKER_H

#include "qrun.h"

struct event_base;
typedef struct worker worker;

/* Called on the loop's thread; the event is lent, and its `user` is that of the request. */
typedef void (*worker_event_fn)(void *user, const qrun_event *event);
/* Called on the loop's thread when the session failed, after which nothing is computed any more. */
typedef void (*worker_failure_fn)(void *user, qrun_status status, const char *message);

/* NULL when memory or descriptors are short. */
worker *worker_start(qrun_session *session, struct event_base *base, worker_event_fn on_event,
                     worker_failure_fn on_failure, void *failure_user);
/* Ends the thread after its step. Events that were not delivered are dropped. NULL is fine. */
void worker_stop(worker *w);

/* Goes into a request's parameters: on_event worker_take_event, user a worker_request. Lives until its last event. What
 * comes before worker_deliver is kept for it. */
typedef struct worker_request {
    worker *worker;
    void *user;
    bool delivers; /* of the loop's thread, as what follows */
    struct held_event *first, **end;
} worker_request;
void worker_take_event(void *request, const qrun_event *event);

/* The owner is ready for the request's events, and gets those that have come. On the loop's thread. */
void worker_deliver(worker_request *request);
/* Frees what has come and was not delivered, of one that gets no more. */
void worker_forget(worker_request *request);

#endif
