#include "runtime/ranks/shards.h"

/* The cut nearest to a float of the arena, at most there unless tensors stay whole. */
static int64_t cut_at(const qr_parameters *p, bool whole_tensors, int64_t target) {
    int64_t low = 0, high = p->n; /* of the last tensor that begins at most there */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (p->list[middle].offset <= target) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const int64_t begin = p->list[low].offset, end = low + 1 < p->n ? p->list[low + 1].offset : p->n_floats;
    if (whole_tensors) { return target - begin < end - target ? begin : end; }
    return begin + (target - begin) / QR_SHARD_BLOCK * QR_SHARD_BLOCK;
}

void qr_shards_make(const qr_parameters *p, bool whole_tensors, int32_t rank, int32_t n_ranks, qr_shards *shards) {
    shards->rank = rank;
    shards->n_ranks = n_ranks;
    shards->begin[0] = 0;
    for (int32_t r = 1; r < n_ranks; r++) {
        const int64_t target = p->n_floats / n_ranks * r + p->n_floats % n_ranks * r / n_ranks;
        shards->begin[r] = p->n > 0 ? cut_at(p, whole_tensors, target) : 0;
    }
    shards->begin[n_ranks] = p->n_floats;
}

int64_t qr_shards_tail(const qr_shards *shards, int32_t rank, int64_t *first) {
    const int64_t chunk = qr_shards_chunk(shards, rank), next = qr_shards_chunk(shards, rank + 1);
    const int64_t end = qr_min(next * QR_SQUARES_CHUNK, shards->begin[shards->n_ranks]);
    *first = shards->begin[rank + 1];
    return chunk < next ? qr_max(0, end - *first) : 0;
}
