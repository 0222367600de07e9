/* The gradient of a step: those of its micro-batches, computed one by one from zero and added in their order,
 * ((g0 + g1) + g2) + …, whichever rank has computed which. So the sum has the same bits for any number of ranks.
 *
 * Each rank adds up a shard of all parameters and receives the others' parts of it, which is what a reduce-scatter
 * sends; at the end all get all shards. */
#ifndef QR_RUNTIME_RANKS_GRADIENT_SUM_H
#define QR_RUNTIME_RANKS_GRADIENT_SUM_H

#include "runtime/layers/parameters.h"
#include "runtime/ranks/ranks.h"

typedef struct qr_gradient_sum qr_gradient_sum;

/* What it is for. */
typedef struct qr_gradient_options {
    int64_t n_accumulate; /* the most micro-batches of a step */
    int32_t rank, n_ranks;
} qr_gradient_options;

/* Device and host memory; nothing for one rank and steps of one micro-batch. */
size_t qr_gradient_sum_bytes(const qr_parameters *parameters, const qr_gradient_options *options);
size_t qr_gradient_sum_host_bytes(const qr_gradient_options *options);

/* Parameters and ranks are lent while the sum lives. */
qrun_status qr_gradient_sum_create(qr_parameters *parameters, qr_collectives *ranks, int64_t n_accumulate,
                                   qr_gradient_sum **sum, qr_error *err);
void qr_gradient_sum_destroy(qr_gradient_sum *sum); /* NULL is fine */

/* Takes a round: the gradients of micro-batches first, first + 1, … of a step of n, as many as there are ranks, each
 * in the arena of the rank of that place. After the last round every rank's arena has the sum. */
qrun_status qr_gradient_sum_add(qr_gradient_sum *sum, int64_t first, int64_t n, qr_error *err);

#endif
