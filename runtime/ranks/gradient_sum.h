/* The gradient of a step: those of its micro-batches, computed one by one from zero and added in an order that the
 * number of ranks does not change (sum_order.h), whichever rank has computed which. So the sum has the same bits for
 * any number of ranks.
 *
 * Where a rank's micro-batches are neighbours in that order, it adds them up itself first, in sums of its own that are
 * of all layers, and sends with the last of them what they come to. Each rank adds up its shard of the parameters
 * (shards.h) and receives the others' parts of it, which is what a reduce-scatter sends. At the end all get all shards,
 * or, where each updates its shard alone, none does: then the shards of the parameters are gathered after the update,
 * and before it the sums of squares that the norm is made of.
 *
 * Where layers share a place for their gradients, those of each become part of a sum as soon as the backward pass has
 * them. So a rank that adds up its own has its sums, of all layers, and the gradients of one.
 *
 * Or one rank's sum is in host memory (qr_parameters_hold_on_host). A layer's gradients leave its place while the next
 * layer of the backward pass computes in the other one. The sum that they are added to comes to a stage meanwhile, is
 * added on the device, and leaves with them: the host waits for nothing, and the order is the same. So what is on the
 * device at once is of two layers, of what belongs to none, and of one layer's sum.
 *
 * What a step sends is counted in wire.h. */
#ifndef QR_RUNTIME_RANKS_GRADIENT_SUM_H
#define QR_RUNTIME_RANKS_GRADIENT_SUM_H

#include "runtime/layers/parameters.h"
#include "runtime/layers/shards.h"
#include "runtime/ranks/ranks.h"
#include "runtime/ranks/sum_order.h"

typedef struct qr_gradient_sum qr_gradient_sum;

/* What it is for. */
typedef struct qr_gradient_options {
    int64_t n_accumulate;    /* the most micro-batches of a step */
    int64_t n_loss_sums;     /* numbers that each rank tells of its losses; 0: 1 */
    int64_t n_parts;         /* that these are cut into (sum_order.h) */
    const qr_shards *shards; /* lent */
    bool stays;              /* a sum stays with the rank whose shard it is of */
    bool values_stay;        /* and so do the values of the parameters, once they are updated */
    bool between_devices;    /* parts go from device to device (qr_collectives_are_linked), not through host memory */
    int64_t host_floats;     /* of a sum, in host memory; 0: it is on the device */
    int64_t place_floats;    /* of a layer's gradients on the device; 0: layers do not share places */
} qr_gradient_options;

/* Of a chunk of the arena. */
typedef struct qr_chunk_squares {
    double sum;
    int64_t n_nonfinite;
} qr_chunk_squares;

/* Device and host memory; nothing for one rank and steps of one micro-batch. */
size_t qr_gradient_sum_bytes(const qr_gradient_options *options);
size_t qr_gradient_sum_host_bytes(const qr_gradient_options *options);

/* Parameters, ranks (NULL: alone) and shards are lent while the sum lives. */
qrun_status qr_gradient_sum_create(qr_parameters *parameters, qr_collectives *ranks, const qr_gradient_options *options,
                                   qr_gradient_sum **sum, qr_error *err);
void qr_gradient_sum_destroy(qr_gradient_sum *sum); /* NULL is fine */

/* How a step of so many micro-batches is dealt to the ranks. */
qr_deal qr_gradient_sum_deal(const qr_gradient_sum *sum, int64_t n_batches);

/* A step, on every rank: `begin`. In each of its rounds `begin_round` with this rank's micro-batch, or −1 where it has
 * none or has failed; where layers share places for their gradients, `layer` after each layer of the backward pass;
 * then `rest`, which does so for those that are left, also after the pass has failed; and `end_batch`, if there was one
 * that has not. In a round that sends, last `end_round`, if no rank has failed. After the last round every rank's arena
 * has the sum, unless it stays (qr_gradient_sum_stays). */
void qr_gradient_sum_begin(qr_gradient_sum *sum, const qr_deal *deal);
void qr_gradient_sum_begin_round(qr_gradient_sum *sum, int64_t round, int64_t batch);
qrun_status qr_gradient_sum_layer(void *sum, int64_t layer, qr_error *err); /* a qr_train_layer_fn */
qrun_status qr_gradient_sum_rest(qr_gradient_sum *sum, qr_error *err);
qrun_status qr_gradient_sum_end_batch(qr_gradient_sum *sum, qr_error *err);
qrun_status qr_gradient_sum_end_round(qr_gradient_sum *sum, qr_error *err);

/* ---- Where sums stay --------------------------------------------------------------------------------------------- */

/* Whether the update takes the gradients from the sum, and not from the parameters' arena. */
bool qr_gradient_sum_stays(const qr_gradient_sum *sum);

/* On the device or in host memory: the own shard of the sum, its parts one after the other. Or the whole arena, in
 * which a rank that adds up sums of its own has only its parts of the sum of all. */
const float *qr_gradient_sum_own(const qr_gradient_sum *sum);
bool qr_gradient_sum_has_all(const qr_gradient_sum *sum); /* the latter */

/* Every rank's shard of an arena to all. */
qrun_status qr_gradient_sum_gather(qr_gradient_sum *sum, float *arena, qr_error *err);

/* On every rank: the last of its chunks of a section (shards.h) with the floats that other ranks have, on the device
 * until the next call. It is left as it was on a rank whose chunks all end in its own part. */
qrun_status qr_gradient_sum_cut_chunk(qr_gradient_sum *sum, int64_t section, const float **chunk, qr_error *err);
/* Where a rank puts the squares of its chunks, in their order, lent. Share adds those of all ranks up, in the order of
 * the arena. */
qr_chunk_squares *qr_gradient_sum_squares(qr_gradient_sum *sum);
qrun_status qr_gradient_sum_share_squares(qr_gradient_sum *sum, qr_chunk_squares *total, qr_error *err);

#endif
