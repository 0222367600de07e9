/* The floating-point operations of an op: those of matrix products and of attention, a multiply-add counting two. All
 * else is 0: it is bound by memory. For plans and for shares of a machine's peak. */
#ifndef QR_KERNELS_OP_FLOPS_H
#define QR_KERNELS_OP_FLOPS_H

#include "kernels/ops.h"

/* args: a `const qr_<op>_args *`, of which only sizes and descriptions are read. What the host cannot know is taken at
 * its most: attention's sequences are as long as their block tables, or as max_seq_tokens, and every row has an adapter
 * of max_rank. */
double qr_op_flops(qr_op op, const void *args);

#endif
