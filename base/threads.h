/* A fixed pool of worker threads for parallel loops. The calling thread works too. Not OpenMP: host programs bring
 * their own, and ThreadSanitizer cannot see through libgomp.
 *
 * A loop body must not depend on which worker runs an index, nor on the order. Then the bits do not depend on the
 * number of threads. Workers run with the default floating-point environment (MXCSR 0x1F80: round to nearest, no flush
 * to zero), and qr_threads_run sets and restores the caller's, so that a host's settings cannot change results. */
#ifndef QR_BASE_THREADS_H
#define QR_BASE_THREADS_H

#include <stdint.h>

#include "base/status.h"

typedef struct qr_threads qr_threads;

/* Runs one index of a loop. worker is 0 … n_threads − 1, for per-thread scratch. */
typedef void (*qr_loop_fn)(void *arg, int64_t index, int worker);

/* n_threads 0 takes all CPUs that this process may run on (at most 256). One loop at a time runs in a pool: calls of
 * qr_threads_run from several threads wait for each other; a call from inside a loop body is not allowed. */
qrun_status qr_threads_create(int n_threads, qr_threads **threads, qr_error *err);
void qr_threads_destroy(qr_threads *threads);    /* NULL is fine */
int qr_threads_count(const qr_threads *threads); /* 1 for NULL */

/* Calls fn(arg, i, worker) once for every i in [0, n) and returns when all are done. Indices are handed out in
 * increasing order; a worker takes several at once while many are left. NULL runs them in the calling thread. Allocates
 * nothing. */
void qr_threads_run(qr_threads *threads, int64_t n, qr_loop_fn fn, void *arg);

#endif
