/* Ops that wait for those after them, so that a backend can run several as one (qr_backend.run_group). What comes out
 * is what comes out of the ops one after the other. Where a backend takes no groups, or ops are timed one by one, every
 * op runs at once, and a list is never used. */
#ifndef QR_KERNELS_OP_LIST_H
#define QR_KERNELS_OP_LIST_H

#include "kernels/backend.h"

enum { QR_OP_LIST_MOST = 16 };

/* An op that may wait. Its arguments and its weight's description are copied; the memory that they point to stays. */
typedef struct qr_op_entry {
    qr_op op;
    union {
        qr_rms_norm_args rms_norm;
        qr_linear_args linear;
        qr_rope_args rope;
        qr_kv_write_args kv_write;
        qr_gate_args gate;
    } args;
    qr_weight weight; /* linear's */
} qr_op_entry;

/* Of one thread. Begin from {0}. */
typedef struct qr_op_list {
    int32_t n;
    qr_op_entry entries[QR_OP_LIST_MOST];
} qr_op_list;

/* Runs an op after all that are in the list, or adds it. list NULL: it runs at once. An error may be that of an op
 * before. */
qrun_status qr_op_list_run(qr_op_list *list, qr_backend *backend, qr_op op, const void *args, qr_workspace workspace,
                           qr_error *err);

/* Runs what is in the list, which is empty then, also after an error. */
qrun_status qr_op_list_end(qr_op_list *list, qr_backend *backend, qr_workspace workspace, qr_error *err);

#endif
