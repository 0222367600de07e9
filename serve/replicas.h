/* The replicas that answer: a session each, and the thread that steps it. Requests are dealt by placement.h. */
#ifndef QRUN_SERVE_REPLICAS_H
#define QRUN_SERVE_REPLICAS_H

#include "serve/placement.h"
#include "serve/server.h"
#include "serve/worker.h"

typedef struct replica {
    struct replicas *all;
    int number;
    const serve_replica *of; /* lent */
    worker *worker;
} replica;

typedef struct replicas {
    replica each[PLACEMENT_REPLICAS_MAX]; /* [n] */
    int n;
    placement placement;
    worker_failure_fn on_failure; /* the message names the replica, where there are several */
    void *user;
} replicas;

/* False when memory or descriptors are short. serve_replicas_stop in any case; a zeroed one is fine. on_event,
 * on_failure: as worker_start has them. */
bool serve_replicas_start(replicas *r, const serve_params *params, struct event_base *base, worker_event_fn on_event,
                          worker_failure_fn on_failure, void *user);
/* Ends the threads. */
void serve_replicas_stop(replicas *r);

/* What one session would say that does the work of all: sums, and of limits the smallest. */
void serve_replicas_stats(const replicas *r, qrun_session_stats *stats);

#endif
