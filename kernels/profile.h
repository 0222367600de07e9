/* How long each op takes: while a backend has a profile, every op that qr_backend_run runs is timed. Ops of the same
 * sizes are one entry. Where the device works on its own (qr_backend.mark), its clock tells, and steps are not replayed
 * from recordings meanwhile. */
#ifndef QR_KERNELS_PROFILE_H
#define QR_KERNELS_PROFILE_H

#include "kernels/op_bytes.h"

typedef struct qr_op_time {
    qr_op op;
    char shape[QR_OP_SHAPE_BYTES]; /* op_bytes.h */
    int64_t n_calls;
    double seconds, bytes, flops; /* of all calls */
} qr_op_time;

/* QRUN_ERROR_ARGUMENT: there is one already. Only the thread that issues work calls these. */
qrun_status qr_profile_begin(qr_backend *backend, qr_error *err);
/* The entries, the longest first, *times released by qr_free. The profile is gone, also after an error. NULL: not
 * wanted. */
qrun_status qr_profile_end(qr_backend *backend, qr_op_time **times, int32_t *n_times, qr_error *err);

/* Runs an op and notes how long it takes: qr_backend_run's. */
qrun_status qr_profile_run(qr_backend *backend, qr_op op, const void *args, void *workspace, qr_error *err);

#endif
