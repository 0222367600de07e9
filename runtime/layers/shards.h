/* Who updates what. Each layer's parameters are cut into a part for each rank, as equal as may be, between blocks of
 * QR_SHARD_BLOCK elements of a tensor, as optimisers with 8-bit states have them. So all ranks have a part of every
 * layer, whose gradients and values they send each other at the same time. What belongs to no layer is cut in the same
 * way, section by section (parameters.h). Where tensors stay whole, ranks have as many neighbours of them as make an
 * equal share of the arena. A rank's shard are its parts of all sections, one after the other; some may be empty. */
#ifndef QR_RUNTIME_LAYERS_SHARDS_H
#define QR_RUNTIME_LAYERS_SHARDS_H

#include "base/sizes.h"
#include "kernels/ops.h"
#include "runtime/layers/parameters.h"

enum { QR_SHARD_BLOCK = 256 };

typedef struct qr_shards {
    const qr_parameters *parameters; /* lent */
    bool whole_tensors;
    int32_t rank, n_ranks; /* this one, of so many */
} qr_shards;

/* Floats [begin, end) of the arena. */
typedef struct qr_shard_part {
    int64_t begin, end;
} qr_shard_part;

/* Where in a section a rank's part begins; that of rank n_ranks is the end. Over all sections of a layer, the parts
 * of a rank follow each other. */
int64_t qr_shards_begin(const qr_shards *shards, int64_t section, int32_t rank);
/* What a rank has of a section. */
qr_shard_part qr_shards_part(const qr_shards *shards, int64_t section, int32_t rank);
/* Floats [*first, *first + returned) are what a rank has of [begin, end), which is of one section; 0: none. */
int64_t qr_shards_common(const qr_shards *shards, int32_t rank, int64_t begin, int64_t end, int64_t *first);

int64_t qr_shards_floats(const qr_shards *shards, int32_t rank); /* of a shard */
/* Floats of a rank's shard before one that it has. */
int64_t qr_shards_place(const qr_shards *shards, int32_t rank, int64_t position);

/* Sums of squares (sum_squares) are made of chunks of a section, from its first float on. A rank has those that begin
 * in its part: floats [begin, end), of which [tail, end) are of other ranks' parts. */
typedef struct qr_shard_chunks {
    int64_t n; /* chunks; the last one of a section may be shorter */
    int64_t begin, tail, end;
} qr_shard_chunks;

qr_shard_chunks qr_shards_chunks(const qr_shards *shards, int64_t section, int32_t rank);
int64_t qr_shards_count_chunks(const qr_shards *shards, int32_t rank); /* of all sections */

#endif
