/* The bytes of device memory that an op must read and write at least: every input once, every output once. For shares
 * of a machine's bandwidth. */
#ifndef QR_KERNELS_OP_BYTES_H
#define QR_KERNELS_OP_BYTES_H

#include "kernels/backend.h"

/* args: a `const qr_<op>_args *`, of which only sizes and descriptions are read. What the host cannot know is taken at
 * its most, as in op_flops.h. 0: not counted. */
double qr_op_bytes(const qr_backend *backend, qr_op op, const void *args);

/* The sizes of an op for people: "8 x 4096 x 14336 nf4-dq" (rows, inputs, outputs) of a matrix product, else rows and
 * their length, or nothing. */
enum { QR_OP_SHAPE_BYTES = 48 };
void qr_op_shape(qr_op op, const void *args, char shape[QR_OP_SHAPE_BYTES]);

/* The same as numbers, which take less time to note than to write out. */
typedef struct qr_op_extent {
    int64_t rows, in, dim; /* rows 0: the op has no shape; in 0: it is no matrix product */
    int32_t format;        /* qr_weight_format of its weight; −1: it has none */
} qr_op_extent;

qr_op_extent qr_op_measure(qr_op op, const void *args);
void qr_op_write_shape(const qr_op_extent *extent, char shape[QR_OP_SHAPE_BYTES]);

#endif
