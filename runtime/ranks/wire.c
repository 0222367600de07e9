#include "runtime/ranks/wire.h"

#include "base/sizes.h"

/* Floats of the own shard that another rank's tail has. */
static int64_t count_tails(const qr_shards *shards) {
    const int32_t own = shards->rank;
    int64_t n = 0, tail, first;
    for (int32_t r = 0; r < own; r++) {
        const int64_t n_tail = qr_shards_tail(shards, r, &tail);
        n += qr_shards_common(tail, tail + n_tail, shards->begin[own], shards->begin[own + 1], &first);
    }
    return n;
}

int64_t qr_wire_step_bytes(const qr_gradient_options *o) {
    const qr_shards *shards = o->shards;
    const int64_t others = shards->n_ranks - 1, n_floats = shards->begin[shards->n_ranks];
    const int64_t n_own = qr_shards_floats(shards, shards->rank);
    const int64_t n_chunks = qr_shards_chunk(shards, shards->rank + 1) - qr_shards_chunk(shards, shards->rank);
    const qr_deal deal = qr_deal_make(o->n_accumulate, o->n_parts, shards->rank, shards->n_ranks);
    const int64_t n_rounds = qr_deal_count_sending_rounds(&deal);
    const int64_t loss_bytes = qr_max(o->n_loss_sums, 1) * (int64_t)sizeof(double);
    if (others == 0) { return 0; }
    int64_t n_bytes = shards->rank == 0 ? others * (int64_t)sizeof(qr_rank_command) : 0;
    n_bytes += n_rounds * others * ((int64_t)sizeof(int32_t) + loss_bytes); /* how each fares, and its losses */
    n_bytes += qr_deal_count_sent(&deal) * (n_floats - n_own) * (int64_t)sizeof(float);
    if (!o->values_stay) { n_bytes += others * n_own * (int64_t)sizeof(float); } /* of the sums, or the parameters */
    if (o->stays) {
        n_bytes += count_tails(shards) * (int64_t)sizeof(float) + others * n_chunks * (int64_t)sizeof(qr_chunk_squares);
    }
    return n_bytes;
}

int64_t qr_wire_ring_bytes(const qr_gradient_options *o, int64_t gathered_bytes) {
    const int64_t n = o->shards->n_ranks, n_bytes = o->shards->begin[n] * (int64_t)sizeof(float);
    return ((o->values_stay ? 1 : 2) * (n_bytes / n) + gathered_bytes / n) * (n - 1);
}
