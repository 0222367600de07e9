/* How the queries of packed attention are cut, on vectors and on matrix tiles. Positions are rows of a sequence.
 *
 * A query tile is rows of consecutive tokens and the query heads that share a K/V head: row r is token first + r /
 * n_heads, head first_head + r % n_heads. Tiles begin at multiples of tokens_per_tile, blocks of keys at multiples of
 * QR_ATTENTION_BLOCK, from the sequence's first token on. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_PACKED_CUT_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_PACKED_CUT_H

#include "base/sizes.h"
#include "kernels/cpu/attention/attention_tiling.h"

typedef struct qr_packed_cut {
    int32_t window, group, heads_per_tile, n_head_tiles, tokens_per_tile; /* as in qr_attention_tiling */
} qr_packed_cut;

/* A sequence at one K/V head. */
typedef struct qr_packed_sequence {
    const qr_packed_cut *cut;
    int32_t index, first_token, n_tokens, kv_head;
} qr_packed_sequence;

typedef struct qr_packed_tile {
    int32_t first, n_tokens;
    int32_t first_head, n_heads;
    int n_rows;
} qr_packed_tile;

/* Columns [begin, end) of a block, or rows of a tile. */
typedef struct qr_packed_span {
    int begin, end;
} qr_packed_span;

/* Tiles of up to n_rows rows. */
static inline qr_packed_cut qr_packed_cut_of(const qr_attention_packed_args *args, int32_t n_rows) {
    qr_packed_cut cut = {.window = args->window, .group = args->n_heads / args->n_kv_heads};
    cut.heads_per_tile = (int32_t)qr_min(cut.group, n_rows);
    cut.n_head_tiles = (int32_t)qr_ceil_div(cut.group, cut.heads_per_tile);
    cut.tokens_per_tile = n_rows / cut.heads_per_tile;
    return cut;
}

/* The sequence and K/V head with number `index`. */
static inline qr_packed_sequence qr_packed_sequence_at(const qr_packed_cut *cut, const qr_attention_packed_args *args,
                                                       int64_t index) {
    qr_packed_sequence s = {.cut = cut};
    s.index = (int32_t)(index / args->n_kv_heads);
    s.kv_head = (int32_t)(index % args->n_kv_heads);
    s.first_token = args->seq_start[s.index];
    s.n_tokens = args->seq_start[s.index + 1] - s.first_token;
    return s;
}

/* Tile number `index` of the head tile. */
static inline qr_packed_tile qr_packed_tile_at(const qr_packed_sequence *s, int32_t head_tile, int32_t index) {
    const qr_packed_cut *cut = s->cut;
    const int32_t head_in_group = head_tile * cut->heads_per_tile;
    qr_packed_tile tile = {
        .first = index * cut->tokens_per_tile,
        .first_head = s->kv_head * cut->group + head_in_group,
        .n_heads = (int32_t)qr_min(cut->heads_per_tile, cut->group - head_in_group),
    };
    tile.n_tokens = (int32_t)qr_min(cut->tokens_per_tile, s->n_tokens - tile.first);
    tile.n_rows = tile.n_tokens * tile.n_heads;
    return tile;
}

static inline int64_t qr_packed_token_of(const qr_packed_sequence *s, const qr_packed_tile *tile, int row) {
    return s->first_token + tile->first + row / tile->n_heads;
}

static inline int64_t qr_packed_head_of(const qr_packed_tile *tile, int row) {
    return tile->first_head + row % tile->n_heads;
}

static inline int qr_packed_clamp(int64_t x, int64_t low, int64_t high) { return (int)qr_max(low, qr_min(x, high)); }

/* The columns of the block at block_start that one of the tokens [first, last] sees. */
static inline qr_packed_span qr_packed_seen(const qr_packed_sequence *s, int32_t block_start, int32_t first,
                                            int32_t last) {
    const int64_t lowest = s->cut->window > 0 ? (int64_t)first - s->cut->window + 1 : 0;
    return (qr_packed_span){qr_packed_clamp(lowest - block_start, 0, QR_ATTENTION_BLOCK),
                            qr_packed_clamp((int64_t)last + 1 - block_start, 0, QR_ATTENTION_BLOCK)};
}

static inline qr_packed_span qr_packed_tile_columns(const qr_packed_sequence *s, const qr_packed_tile *tile,
                                                    int32_t block_start) {
    return qr_packed_seen(s, block_start, tile->first, tile->first + tile->n_tokens - 1);
}

/* Those that rows [row, row + n) see. */
static inline qr_packed_span qr_packed_row_columns(const qr_packed_sequence *s, const qr_packed_tile *tile,
                                                   int32_t block_start, int row, int n) {
    return qr_packed_seen(s, block_start, tile->first + row / tile->n_heads,
                          tile->first + (row + n - 1) / tile->n_heads);
}

/* The first block that a tile sees. */
static inline int32_t qr_packed_first_block(const qr_packed_sequence *s, const qr_packed_tile *tile) {
    const int32_t window = s->cut->window;
    const int32_t lowest = window > 0 && tile->first >= window ? tile->first - window + 1 : 0;
    return lowest - lowest % QR_ATTENTION_BLOCK;
}

/* The tasks of a backward pass are whole sequences: there are enough of them. */
static inline bool qr_packed_takes_sequences(const qr_backend *backend, const qr_attention_packed_args *args) {
    enum { TASKS_PER_THREAD = 2 };
    const int64_t n_threads = qr_threads_count(backend->threads);
    return n_threads == 1 || (int64_t)args->n_seqs * args->n_kv_heads >= TASKS_PER_THREAD * n_threads;
}

static inline int64_t qr_packed_most_blocks(const qr_attention_packed_args *args) {
    return qr_ceil_div(args->max_seq_tokens, QR_ATTENTION_BLOCK);
}

static inline int64_t qr_packed_most_tiles(const qr_packed_cut *cut, const qr_attention_packed_args *args) {
    return qr_ceil_div(args->max_seq_tokens, cut->tokens_per_tile) * cut->n_head_tiles;
}

#endif
