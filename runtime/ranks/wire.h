/* What a step sends, in bytes of the parcels (collectives.h), as qr_collectives counts them too. */
#ifndef QR_RUNTIME_RANKS_WIRE_H
#define QR_RUNTIME_RANKS_WIRE_H

#include "runtime/ranks/gradient_sum.h"

/* Of the rank of options->shards, in a step of options->n_accumulate micro-batches that changes the parameters, without
 * what its passes gather of layers. */
int64_t qr_wire_step_bytes(const qr_gradient_options *options);
/* What a ring would send for it: a reduce-scatter of all parameters' gradients, and an all-gather, by each rank.
 * gathered_bytes: of layers that are gathered besides. */
int64_t qr_wire_ring_bytes(const qr_gradient_options *options, int64_t gathered_bytes);

#endif
