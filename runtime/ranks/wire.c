#include "runtime/ranks/wire.h"

#include "base/sizes.h"

/* Floats of the own shard that another rank's chunks have. */
static int64_t count_tails(const qr_shards *shards) {
    int64_t n = 0, first;
    for (int64_t s = 0; s < shards->parameters->n_sections; s++) {
        for (int32_t r = 0; r < shards->rank; r++) {
            const qr_shard_chunks chunks = qr_shards_chunks(shards, s, r);
            if (chunks.tail == chunks.end) { continue; }
            n += qr_shards_common(shards, shards->rank, chunks.tail, chunks.end, &first);
        }
    }
    return n;
}

int64_t qr_wire_step_bytes(const qr_gradient_options *o) {
    const qr_shards *shards = o->shards;
    const int64_t others = shards->n_ranks - 1, n_floats = shards->parameters->n_floats;
    const int64_t n_own = qr_shards_floats(shards, shards->rank);
    const int64_t n_chunks = qr_shards_count_chunks(shards, shards->rank);
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
    const int64_t n = o->shards->n_ranks, n_bytes = o->shards->parameters->n_floats * (int64_t)sizeof(float);
    return ((o->values_stay ? 1 : 2) * (n_bytes / n) + gathered_bytes / n) * (n - 1);
}
