/* Who updates what. The arena of parameters is cut into a shard for each rank, one after the other and as equal as may
 * be: between blocks of QR_SHARD_BLOCK elements of a tensor, as optimisers with 8-bit states have them, or between
 * whole tensors. A shard may be empty. */
#ifndef QR_RUNTIME_RANKS_SHARDS_H
#define QR_RUNTIME_RANKS_SHARDS_H

#include "base/sizes.h"
#include "kernels/collectives.h"
#include "runtime/layers/parameters.h"

enum { QR_SHARD_BLOCK = 256 };

typedef struct qr_shards {
    int32_t rank, n_ranks;           /* this one, of so many */
    int64_t begin[QR_MAX_RANKS + 1]; /* floats of the arena: rank r has [begin[r], begin[r + 1]) */
} qr_shards;

void qr_shards_make(const qr_parameters *parameters, bool whole_tensors, int32_t rank, int32_t n_ranks,
                    qr_shards *shards);

static inline int64_t qr_shards_floats(const qr_shards *shards, int32_t rank) {
    return shards->begin[rank + 1] - shards->begin[rank];
}

/* Sums of squares (sum_squares) are made of chunks of the arena. A rank has those that begin in its shard: [chunk(r),
 * chunk(r + 1)). */
static inline int64_t qr_shards_chunk(const qr_shards *shards, int32_t rank) {
    return qr_ceil_div(shards->begin[rank], QR_SQUARES_CHUNK);
}

/* Floats [*first, returned + *first) after a rank's shard that its last chunk has too; 0: none. */
int64_t qr_shards_tail(const qr_shards *shards, int32_t rank, int64_t *first);

/* The floats that two ranges have in common, [*first, *first + returned); 0: none. */
static inline int64_t qr_shards_common(int64_t begin, int64_t end, int64_t other_begin, int64_t other_end,
                                       int64_t *first) {
    *first = qr_max(begin, other_begin);
    return qr_max(0, qr_min(end, other_end) - *first);
}

#endif
