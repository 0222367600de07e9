/* A backend that computes nothing and records what it is asked for: the memory, the workspace and the floating-point
 * operations of code that runs on it. So a plan runs the very code that will run later, and no size is written down a
 * second time.
 *
 * Its memory, host memory included, is counted but not allocated: addresses may be added to and passed on, but never
 * read or written. Copies, fills and transfers do nothing, but copy_out gives zeros, as if nothing had been written. It
 * cannot record. One thread at a time uses it. */
#ifndef QR_KERNELS_PLAN_PLAN_H
#define QR_KERNELS_PLAN_PLAN_H

#include "kernels/backend.h"

typedef struct qr_planned {
    size_t workspace_bytes; /* the most that an op has asked for */
    int64_t n_calls;        /* of ops */
    double flops;           /* op_flops.h */
    int64_t copied_bytes;   /* by transfer_in, transfer_out, weight_put_rows and expert_fetch */
} qr_planned;

/* Larger than any workspace: to pass to code that runs on this backend, where addresses cost nothing. */
#define QR_PLAN_ANY_BYTES ((size_t)1 << 60)

/* For a run on `of`, which is asked what ops it takes, what workspace they need and how large weights are, and which
 * must outlive the new one. An op that `of` does not take fails as it would there. */
qrun_status qr_backend_plan_create(const qr_backend *of, qr_backend **backend, qr_error *err);

/* Whether a backend is one of these. */
bool qr_backend_plans(const qr_backend *backend);

/* What was asked of it since it was created. */
const qr_planned *qr_backend_planned(const qr_backend *backend);

/* Counts what was asked of it since `before` n_times more: of code that asks for the same in each round of a loop. */
void qr_backend_plan_again(qr_backend *backend, const qr_planned *before, int64_t n_times);

#endif
