/* attention over pages: softmax over K/V blocks in order, with a running maximum (Milakov & Gimelshein, "Online
 * normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022; splits of the positions as in
 * Flash-Decoding). attention_tiling.h says how a call is cut, and why that does not change the bits.
 *
 * What happens inside a block is the block part, attention_blocks_vectors.h or attention_blocks_tiles.h, which is
 * included before this file and defines struct blocks and
 *
 *   blocks_open(t), blocks_close(t)      a task: q of the tile is there
 *   split_begin(t), split_end(t)         highest, sum and acc of every row are from none; are in t->scratch
 *   load_block(t, block_start, visible, tile_visible)
 *                                        K and V of the positions `visible` of one block
 *   attend_block(t, block_start)         adds that block to the split */
#include <string.h>

#include "kernels/cpu/attention/attention_query_tile.h"
#include "kernels/cpu/attention/attention_softmax.h"
#include "kernels/cpu/simd/vec_math.h"

static struct range split_positions(int64_t split) {
    const int32_t begin = (int32_t)split * QR_ATTENTION_SPLIT;
    return (struct range){begin, begin + QR_ATTENTION_SPLIT};
}

/* highest, sum and acc of every row over the positions of one split. */
static void attend_split(struct tile *t, int64_t split) {
    const struct range tile_visible = visible_to_tile(t);
    const struct range positions = intersect(tile_visible, split_positions(split));
    split_begin(t);
    int32_t block_start = positions.begin - positions.begin % QR_ATTENTION_BLOCK;
    for (; block_start < positions.end; block_start += QR_ATTENTION_BLOCK) {
        const struct range block = {block_start, block_start + QR_ATTENTION_BLOCK};
        load_block(t, block_start, intersect(positions, block), tile_visible);
        attend_block(t, block_start);
    }
    split_end(t);
}

/* Joins one row of a split to the total of the splits before it. */
static void merge_row(const struct tile *t, int row, float split_highest, float split_sum, const float *split_acc,
                      bool is_first) {
    const qr_attention_scratch *s = &t->scratch;
    float *total = s->total + row * t->tiling->dim_padded;
    const int64_t dim = t->args->layout.head_dim;
    if (is_first) {
        s->total_highest[row] = split_highest;
        s->total_sum[row] = split_sum;
        memcpy(total, split_acc, (size_t)dim * sizeof *total);
        return;
    }
    const float highest = split_highest > s->total_highest[row] ? split_highest : s->total_highest[row];
    const qr_vec old_scale = qr_vec_exp(qr_vec_set1(s->total_highest[row] - highest));
    const qr_vec new_scale = qr_vec_exp(qr_vec_set1(split_highest - highest));
    s->total_highest[row] = highest;
    s->total_sum[row] = s->total_sum[row] * qr_vec_get(old_scale) + split_sum * qr_vec_get(new_scale);
    for (int64_t j = 0; j < dim; j += QR_VEC) {
        const qr_vec old = qr_vec_mul(qr_vec_load_n(total + j, dim - j), old_scale);
        qr_vec_store_n(total + j, qr_vec_fma(qr_vec_load_n(split_acc + j, dim - j), new_scale, old), dim - j);
    }
}

/* Merges the result of a split (laid out as one entry of tiling->partial) into the totals of the rows that see it. */
static void merge_split(const struct tile *t, int64_t split, const float *highest, const float *sum, const float *acc) {
    const struct range positions = split_positions(split);
    for (int row = 0; row < t->n_rows; row++) {
        const struct range seen = visible_to_row(t, row);
        if (seen.begin >= positions.end || seen.end <= positions.begin) { continue; }
        merge_row(t, row, highest[row], sum[row], acc + row * t->tiling->dim_padded, seen.begin >= positions.begin);
    }
}

static void write_rows(const struct tile *t) {
    const qr_attention_args *a = t->args;
    const int64_t dim = a->layout.head_dim;
    for (int row = 0; row < t->n_rows; row++) {
        const int64_t token = t->tokens->first_row + row / t->n_heads, head = t->first_head + row % t->n_heads;
        const float *total = t->scratch.total + row * t->tiling->dim_padded;
        float highest = t->scratch.total_highest[row], sum = t->scratch.total_sum[row];
        const float share = a->sinks != NULL ? qr_softmax_add_sink(a->sinks[head], &highest, &sum) : 1.0F;
        const qr_vec scale = qr_vec_set1(share / sum);
        if (t->lse != NULL) { t->lse[token * a->n_heads + head] = qr_softmax_lse(highest, sum); }
        for (int64_t j = 0; j < dim; j += QR_VEC) {
            const qr_vec y = qr_vec_mul(qr_vec_load_n(total + j, dim - j), scale);
            qr_vec_store_act_n(a->dst, a->dst_dtype, (token * a->n_heads + head) * dim + j, y, dim - j);
        }
    }
}

struct call {
    const qr_attention_args *args;
    float *lse;
    qr_attention_tiling tiling;
};

/* The tile and K/V head with number `index`; late tiles, which see the most positions, come first. */
static void open_tile(const struct call *call, int64_t index, int worker, struct tile *t) {
    const qr_attention_args *a = call->args;
    const qr_attention_tiling *tiling = &call->tiling;
    const int64_t n_heads_of_tiles = (int64_t)a->layout.n_kv_heads * tiling->n_head_tiles;
    const int32_t head_index = (int32_t)(index % n_heads_of_tiles);
    t->args = a;
    t->lse = call->lse;
    t->tiling = tiling;
    t->tokens = &tiling->tiles[tiling->n_tiles - 1 - index / n_heads_of_tiles];
    t->kv_head = head_index / tiling->n_head_tiles;
    const int32_t head_in_group = head_index % tiling->n_head_tiles * tiling->heads_per_tile;
    t->first_head = t->kv_head * tiling->group + head_in_group;
    t->n_heads = (int32_t)qr_min(tiling->heads_per_tile, tiling->group - head_in_group);
    t->n_rows = t->n_heads * t->tokens->n_tokens;
    for (int row = 0; row < t->n_rows; row++) {
        const int64_t token = t->tokens->first_row + row / t->n_heads, head = t->first_head + row % t->n_heads;
        t->q[row] = a->q + token * a->q_stride + head * a->layout.head_dim;
    }
    qr_attention_scratch_of(tiling, a, worker, &t->scratch);
}

static struct range splits_of(const struct tile *t) {
    const struct range seen = visible_to_tile(t);
    return (struct range){seen.begin / QR_ATTENTION_SPLIT, (seen.end - 1) / QR_ATTENTION_SPLIT + 1};
}

static void run_tile(void *arg, int64_t index, int worker) {
    struct tile t;
    open_tile(arg, index, worker, &t);
    struct blocks blocks;
    t.blocks = &blocks;
    blocks_open(&t);
    const struct range splits = splits_of(&t);
    for (int32_t split = splits.begin; split < splits.end; split++) {
        attend_split(&t, split);
        merge_split(&t, split, t.scratch.highest, t.scratch.sum, t.scratch.acc);
    }
    blocks_close(&t);
    write_rows(&t);
}

/* One split of a tile, left in tiling->partial. */
static void run_partial(void *arg, int64_t index, int worker) {
    const struct call *call = arg;
    const qr_attention_tiling *tiling = &call->tiling;
    struct tile t;
    open_tile(call, index / tiling->n_splits, worker, &t);
    const int64_t split = index % tiling->n_splits;
    const struct range splits = splits_of(&t);
    if (split < splits.begin || split >= splits.end) { return; }
    float *partial = tiling->partial + index * tiling->partial_floats;
    t.scratch.highest = partial;
    t.scratch.sum = partial + t.n_rows;
    t.scratch.acc = partial + 2 * t.n_rows;
    struct blocks blocks;
    t.blocks = &blocks;
    blocks_open(&t);
    attend_split(&t, split);
    blocks_close(&t);
}

static void run_merge(void *arg, int64_t index, int worker) {
    const struct call *call = arg;
    const qr_attention_tiling *tiling = &call->tiling;
    struct tile t;
    open_tile(call, index, worker, &t);
    const struct range splits = splits_of(&t);
    for (int32_t split = splits.begin; split < splits.end; split++) {
        const float *partial = tiling->partial + (index * tiling->n_splits + split) * tiling->partial_floats;
        merge_split(&t, split, partial, partial + t.n_rows, partial + 2 * t.n_rows);
    }
    write_rows(&t);
}

/* lse [n_tokens, n_heads] or NULL. */
static void attend_pages(const qr_backend *backend, const qr_attention_args *args, float *lse, void *workspace) {
    struct call call = {.args = args, .lse = lse};
    qr_attention_tiling_make(backend, args, workspace, &call.tiling);
    const int64_t n_tasks = call.tiling.n_tiles * args->layout.n_kv_heads * call.tiling.n_head_tiles;
    if (call.tiling.n_splits == 1) {
        qr_threads_run(backend->threads, n_tasks, run_tile, &call);
        return;
    }
    qr_threads_run(backend->threads, n_tasks * call.tiling.n_splits, run_partial, &call);
    qr_threads_run(backend->threads, n_tasks, run_merge, &call);
}
