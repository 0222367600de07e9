/* The device that models are opened on: a thread pool and one backend. */
#ifndef QR_RUNTIME_ENGINE_CONTEXT_H
#define QR_RUNTIME_ENGINE_CONTEXT_H

#include <pthread.h>

#include "base/threads.h"
#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "runtime/engine/named_devices.h"

/* What decides where experts in host memory are computed (expert_way.h). */
typedef struct qr_expert_speeds {
    double link_bytes_per_second; /* host memory to device memory; 0: not measured yet */
    double host_bytes_per_second; /* the processor's reads of host memory */
    double host_flops;            /* its matrix products in BF16 */
} qr_expert_speeds;

struct qrun_context {
    qr_threads *threads;
    qr_backend *backend;
    qr_backend *processor;        /* computes on host memory: the backend itself, where its memory is that */
    pthread_mutex_t compute_lock; /* held by the one thread that issues work on the backend */
    pthread_mutex_t compute_turn; /* held by the one that waits for it next */
    qrun_numerics numerics;
    qr_collectives *ranks;             /* NULL: this process is the only one */
    struct qr_timeline_copy *timeline; /* what qrun_context_timeline_get lent last; NULL: nothing */
    qr_expert_speeds expert_speeds;    /* under the compute lock */
    const qr_named_device *plans_for;  /* nothing but plans is made, for this device's memory; NULL: for its own */
    char device_note[QR_ERROR_MESSAGE_BYTES]; /* why "auto" did not choose a GPU; else empty */
};

/* Of the last step that stopped; all 0 without a timeline. */
qrun_phases qr_context_phases(const qrun_context *context);
/* Around work on the backend. Who lets go of the lock and takes it again lets another thread that waits go first, so
 * work in pieces leaves steps their turn. */
void qr_compute_lock(qrun_context *context);
void qr_compute_unlock(qrun_context *context);

#endif
