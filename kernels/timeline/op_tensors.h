/* What an op touches: where each of its arguments in device memory begins, and which of them it overwrites, whatever
 * they held before. What it adds to, works on in place, or writes in part only, counts as read. Weights are not listed:
 * they are held always. */
#ifndef QR_KERNELS_TIMELINE_OP_TENSORS_H
#define QR_KERNELS_TIMELINE_OP_TENSORS_H

#include "kernels/ops.h"

enum { QR_MOST_OP_READS = 20, QR_MOST_OP_WRITES = 8 };

typedef struct qr_op_tensors {
    int n_reads, n_writes;
    const void *reads[QR_MOST_OP_READS], *writes[QR_MOST_OP_WRITES]; /* none is NULL */
} qr_op_tensors;

/* args: a `const qr_<op>_args *`. */
void qr_op_list_tensors(qr_op op, const void *args, qr_op_tensors *tensors);

#endif
