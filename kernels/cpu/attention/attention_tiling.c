#include "kernels/cpu/attention/attention_tiling.h"

#include "base/sizes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_ops.h"

enum { FLOATS_PER_LINE = 16 };

static int64_t tile_rows(const qr_attention_tiling *tiling) {
    return (int64_t)tiling->heads_per_tile * tiling->tokens_per_tile;
}

/* Tasks per thread below which positions are split too: enough for the last ones to even out. */
static bool wants_splits(const qr_backend *backend, const qr_attention_args *args, const qr_attention_tiling *tiling,
                         int64_t n_tokens) {
    enum { TASKS_PER_THREAD = 4 };
    const int64_t n_tasks = n_tokens * args->layout.n_kv_heads * tiling->n_head_tiles;
    return qr_threads_count(backend->threads) > 1 && n_tasks < TASKS_PER_THREAD * qr_threads_count(backend->threads);
}

qr_attention_on_tiles qr_attention_on_tiles_of(const qr_backend *backend, const qr_attention_args *args) {
    const bool exact = args->layout.format == QR_KV_BF16 || args->layout.format == QR_KV_INT8;
    return exact && args->dst_dtype != QR_DTYPE_F32 ? qr_cpu(backend)->kernels->attention_on_tiles : NULL;
}

/* Points every part of a worker's scratch into `first` (NULL: counts only) and returns the number of floats. */
#define TAKE(field, n_floats) (scratch->field = first == NULL ? NULL : (void *)(first + n), n += (n_floats))

static int64_t cut_tiles_scratch(int64_t head_dim, float *first, qr_attention_tiles_scratch *scratch) {
    const int64_t dim = qr_round_up(head_dim, 32), block = QR_ATTENTION_BLOCK, rows = QR_ATTENTION_TILES_ROWS;
    int64_t n = 0;
    TAKE(q, rows * dim);
    TAKE(keys, block * dim / 2);
    TAKE(values, block * dim / 2);
    TAKE(weights, block * 16);
    TAKE(zeros, dim / 2);
    TAKE(sums, 2 * block * 16);
    TAKE(acc, rows * dim);
    TAKE(highest, rows);
    TAKE(sum, rows);
    TAKE(rescale, rows);
    return n;
}

static int64_t cut_scratch(const qr_attention_tiling *tiling, int64_t head_dim, float *first,
                           qr_attention_scratch *scratch) {
    const int64_t rows = tiling->most_rows;
    int64_t n = 0;
    TAKE(k_scales, QR_ATTENTION_BLOCK);
    TAKE(v_scales, QR_ATTENTION_BLOCK);
    TAKE(highest, rows);
    TAKE(sum, rows);
    TAKE(acc, rows * tiling->dim_padded);
    TAKE(total_highest, rows);
    TAKE(total_sum, rows);
    TAKE(total, rows * tiling->dim_padded);
    if (tiling->on_tiles) {
        return n + cut_tiles_scratch(head_dim, first == NULL ? NULL : first + n, &scratch->on_tiles);
    }
    TAKE(keys, qr_round_up(head_dim, 64) * QR_ATTENTION_BLOCK);
    TAKE(values, QR_ATTENTION_BLOCK * tiling->dim_padded);
    TAKE(weights, rows * QR_ATTENTION_BLOCK);
    TAKE(rescale, rows);
    return n;
}
#undef TAKE

static void shape_tiling(const qr_backend *backend, const qr_attention_args *args, int64_t n_tokens,
                         qr_attention_tiling *tiling) {
    const int64_t head_dim = args->layout.head_dim;
    *tiling = (qr_attention_tiling){.on_tiles = qr_attention_on_tiles_of(backend, args) != NULL,
                                    .group = args->n_heads / args->layout.n_kv_heads,
                                    .n_splits = 1};
    tiling->most_rows = tiling->on_tiles ? QR_ATTENTION_TILES_ROWS : QR_ATTENTION_ROWS;
    tiling->heads_per_tile = (int32_t)qr_min(tiling->group, tiling->most_rows);
    tiling->n_head_tiles = (int32_t)qr_ceil_div(tiling->group, tiling->heads_per_tile);
    tiling->tokens_per_tile = tiling->most_rows / tiling->heads_per_tile;
    tiling->dim_padded = qr_round_up(head_dim, FLOATS_PER_LINE);
    if (wants_splits(backend, args, tiling, n_tokens)) {
        tiling->tokens_per_tile = 1;
        tiling->n_splits = qr_ceil_div(args->table_stride * QR_KV_PAGE_TOKENS, QR_ATTENTION_SPLIT);
    }
    tiling->partial_floats = qr_round_up(tile_rows(tiling) * (tiling->dim_padded + 2), FLOATS_PER_LINE);
    qr_attention_scratch scratch;
    tiling->scratch_floats = cut_scratch(tiling, head_dim, NULL, &scratch);
}

static int64_t tiles_bytes(int64_t n_tokens) { return qr_round_up(n_tokens * (int64_t)sizeof(qr_attention_tile), 64); }

static int64_t partial_bytes(const qr_attention_args *args, const qr_attention_tiling *tiling, int64_t n_tokens) {
    if (tiling->n_splits == 1) { return 0; }
    const int64_t n_tiles = n_tokens * args->layout.n_kv_heads * tiling->n_head_tiles;
    return n_tiles * tiling->n_splits * tiling->partial_floats * (int64_t)sizeof(float);
}

/* The plan asks for the largest n_tokens, but only small calls are split: the largest of those counts as well. */
size_t qr_cpu_attention_workspace(const qr_backend *backend, const qr_attention_args *args) {
    qr_attention_tiling tiling;
    int64_t most_partial_bytes = 0;
    for (int64_t n_tokens = 1; n_tokens <= args->n_tokens; n_tokens++) {
        shape_tiling(backend, args, n_tokens, &tiling);
        if (!wants_splits(backend, args, &tiling, n_tokens)) { break; }
        most_partial_bytes = qr_max(most_partial_bytes, partial_bytes(args, &tiling, n_tokens));
    }
    shape_tiling(backend, args, args->n_tokens, &tiling);
    const int64_t scratch_bytes = tiling.scratch_floats * (int64_t)sizeof(float) * qr_threads_count(backend->threads);
    return (size_t)(tiles_bytes(args->n_tokens) + scratch_bytes + most_partial_bytes);
}

/* Makes the tiles, and lowers n_splits to what they reach. */
static void cut_tiles(const qr_attention_args *args, qr_attention_tiling *tiling) {
    int64_t most_splits = 1;
    for (int32_t seq = 0; seq < args->n_seqs; seq++) {
        const int32_t begin = args->q_start[seq], end = args->q_start[seq + 1];
        for (int32_t row = begin; row < end; row += tiling->tokens_per_tile) {
            tiling->tiles[tiling->n_tiles++] = (qr_attention_tile){
                .seq = seq,
                .first_row = row,
                .n_tokens = (int32_t)qr_min(tiling->tokens_per_tile, end - row),
                .position = args->first_position[seq] + row - begin,
            };
        }
        most_splits = qr_max(most_splits, qr_ceil_div(args->first_position[seq] + (end - begin), QR_ATTENTION_SPLIT));
    }
    tiling->n_splits = qr_min(tiling->n_splits, most_splits);
}

void qr_attention_tiling_make(const qr_backend *backend, const qr_attention_args *args, void *workspace,
                              qr_attention_tiling *tiling) {
    shape_tiling(backend, args, args->n_tokens, tiling);
    unsigned char *memory = workspace;
    tiling->tiles = (qr_attention_tile *)(void *)memory;
    memory += tiles_bytes(args->n_tokens);
    tiling->scratch = (float *)(void *)memory;
    memory += tiling->scratch_floats * (int64_t)sizeof(float) * qr_threads_count(backend->threads);
    tiling->partial = (float *)(void *)memory;
    cut_tiles(args, tiling);
}

void qr_attention_scratch_of(const qr_attention_tiling *tiling, const qr_attention_args *args, int worker,
                             qr_attention_scratch *scratch) {
    cut_scratch(tiling, args->layout.head_dim, tiling->scratch + worker * tiling->scratch_floats, scratch);
}
