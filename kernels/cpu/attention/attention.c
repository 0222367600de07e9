/* attention: softmax over K/V blocks in order, with a running maximum (Milakov & Gimelshein, "Online normalizer
 * calculation for softmax", 2018; Dao et al., "FlashAttention", 2022; splits of the positions as in Flash-Decoding).
 * All arithmetic is F32. attention_tiling.h says how a call is cut, and why that does not change the bits. */
#include "kernels/cpu/attention/attention_pages.h"
#include "kernels/cpu/attention/attention_softmax.h"
#include "kernels/cpu/attention/attention_tile.h"
#include "kernels/cpu/simd/vec_math.h"
#include "kernels/cpu/vector_ops_isa.h"

/* One tile at one K/V head: everything that its blocks share. */
struct tile {
    const qr_attention_args *args;
    float *lse; /* [n_tokens, n_heads] or NULL */
    const qr_attention_tiling *tiling;
    const qr_attention_tile *tokens;
    int32_t kv_head;
    int32_t first_head, n_heads; /* query heads [first_head, first_head + n_heads) */
    int n_rows;
    const float *q[QR_ATTENTION_ROWS];
    qr_attention_scratch scratch;
};

/* Positions [begin, end). */
struct range {
    int32_t begin, end;
};

static struct range visible_to(const qr_attention_args *args, int32_t position) {
    const int32_t window = args->window;
    return (struct range){window > 0 && position >= window ? position - window + 1 : 0, position + 1};
}

static struct range intersect(struct range a, struct range b) {
    return (struct range){a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

static struct range visible_to_tile(const struct tile *t) {
    const int32_t first = t->tokens->position, last = first + t->tokens->n_tokens - 1;
    return (struct range){visible_to(t->args, first).begin, visible_to(t->args, last).end};
}

static struct range visible_to_row(const struct tile *t, int row) {
    return visible_to(t->args, t->tokens->position + row / t->n_heads);
}

static const unsigned char *page_of(const struct tile *t, int32_t position) {
    const qr_attention_args *a = t->args;
    const int32_t page = a->block_table[t->tokens->seq * a->table_stride + position / QR_KV_PAGE_TOKENS];
    return a->pages + (size_t)page * a->page_stride_bytes;
}

/* Pages are scattered, so the CPU's own prefetcher stops at the end of each. */
static void prefetch_part(const unsigned char *part, size_t n_bytes) {
    for (size_t at = 0; at < n_bytes; at += 64) { __builtin_prefetch(part + at); }
}

/* Converts the pages of one block that hold `visible` positions; prefetches those of the next block meanwhile. */
static void load_block(struct tile *t, int32_t block_start, struct range visible, struct range tile_visible) {
    const qr_kv_layout *layout = &t->args->layout;
    const size_t head_bytes = (size_t)(QR_KV_PAGE_TOKENS * layout->head_dim) * qr_kv_element_bytes(layout->format);
    const size_t k_part = (size_t)t->kv_head * head_bytes, v_part = qr_kv_v_offset(layout) + k_part;
    const size_t scales = qr_kv_scale_offset(layout) + (size_t)t->kv_head * QR_KV_PAGE_TOKENS * sizeof(float);
    const int32_t first_page = visible.begin - visible.begin % QR_KV_PAGE_TOKENS;
    for (int32_t position = first_page; position < visible.end; position += QR_KV_PAGE_TOKENS) {
        const unsigned char *page = page_of(t, position);
        const int32_t column = position - block_start;
        if (position + QR_ATTENTION_BLOCK < tile_visible.end) {
            const unsigned char *ahead = page_of(t, position + QR_ATTENTION_BLOCK);
            prefetch_part(ahead + k_part, head_bytes);
            prefetch_part(ahead + v_part, head_bytes);
        }
        load_keys(layout, page + k_part, t->scratch.keys + column);
        load_values(layout, page + v_part, t->scratch.values + column * t->tiling->dim_padded, t->tiling->dim_padded);
        if (layout->format == QR_KV_INT8) {
            memcpy(t->scratch.k_scales + column, page + scales, QR_KV_PAGE_TOKENS * sizeof(float));
            memcpy(t->scratch.v_scales + column, page + qr_kv_v_offset(layout) + scales,
                   QR_KV_PAGE_TOKENS * sizeof(float));
        }
    }
}

/* Turns the dot products of one row and block into weights, and brings the row's maximum and sum up to date. Columns
 * outside [begin, end) are not read: their weights become 0. first and last are those columns, to whole pages. */
static void weigh_row(struct tile *t, int row, int begin, int end) {
    const qr_attention_args *a = t->args;
    const bool is_int8 = a->layout.format == QR_KV_INT8;
    const int first = begin - begin % QR_KV_PAGE_TOKENS, last = (int)qr_round_up(end, QR_KV_PAGE_TOKENS);
    float *weights = t->scratch.weights + row * QR_ATTENTION_BLOCK;
    qr_vec highest = qr_vec_set1(-INFINITY);
    for (int c = first; c < last; c += QR_VEC) {
        qr_vec score = qr_vec_mul(qr_vec_load(weights + c), qr_vec_set1(a->scale));
        if (is_int8) { score = qr_vec_mul(score, qr_vec_load(t->scratch.k_scales + c)); }
        if (a->softcap > 0.0F) { score = qr_vec_softcap(score, a->softcap); }
        score = qr_vec_select_range(score, qr_vec_set1(-INFINITY), begin - c, end - c);
        highest = qr_vec_max(score, highest);
        qr_vec_store(weights + c, score);
    }
    const float before = t->scratch.highest[row], block_highest = qr_vec_highest(highest);
    const float now = block_highest > before ? block_highest : before;
    qr_vec sum = qr_vec_zero();
    for (int c = first; c < last; c += QR_VEC) {
        qr_vec weight = qr_vec_exp(qr_vec_sub(qr_vec_load(weights + c), qr_vec_set1(now)));
        weight = qr_vec_select_range(weight, qr_vec_zero(), begin - c, end - c);
        sum = qr_vec_add(sum, weight);
        if (is_int8) { weight = qr_vec_mul(weight, qr_vec_load(t->scratch.v_scales + c)); }
        qr_vec_store(weights + c, weight);
    }
    const float rescale = qr_vec_get(qr_vec_exp(qr_vec_set1(before - now)));
    t->scratch.highest[row] = now;
    t->scratch.rescale[row] = rescale;
    t->scratch.sum[row] = t->scratch.sum[row] * rescale + qr_vec_sum(sum);
}

/* Rows from `row` on that see the same columns of the block, at most TILE_ROWS; *columns receives those. */
static int rows_alike(const struct tile *t, int row, int32_t block_start, struct range *columns) {
    const struct range block = {block_start, block_start + QR_ATTENTION_BLOCK};
    int n = 0;
    for (; n < TILE_ROWS && row + n < t->n_rows; n++) {
        const struct range seen = intersect(visible_to_row(t, row + n), block);
        if (n > 0 && (seen.begin != columns->begin || seen.end != columns->end)) { break; }
        *columns = seen;
    }
    return n;
}

static void attend_block(struct tile *t, int32_t block_start) {
    struct range columns;
    const int64_t dim = t->args->layout.head_dim, stride = t->tiling->dim_padded;
    for (int row = 0, n; row < t->n_rows; row += n) {
        n = rows_alike(t, row, block_start, &columns);
        if (columns.begin >= columns.end) { continue; }
        const int begin = columns.begin - block_start, end = columns.end - block_start;
        score_rows(t->q + row, dim, t->scratch.keys, begin - begin % QR_KV_PAGE_TOKENS,
                   (int)qr_round_up(end, QR_KV_PAGE_TOKENS), t->scratch.weights + row * QR_ATTENTION_BLOCK, n);
        for (int i = 0; i < n; i++) { weigh_row(t, row + i, begin, end); }
    }
    for (int row = 0, n; row < t->n_rows; row += n) {
        n = rows_alike(t, row, block_start, &columns);
        if (columns.begin >= columns.end) { continue; }
        mix_rows(t->scratch.weights + row * QR_ATTENTION_BLOCK, t->scratch.rescale + row, t->scratch.values, dim,
                 stride, columns.begin - block_start, columns.end - block_start, t->scratch.acc + row * stride, n);
    }
}

static struct range split_positions(int64_t split) {
    const int32_t begin = (int32_t)split * QR_ATTENTION_SPLIT;
    return (struct range){begin, begin + QR_ATTENTION_SPLIT};
}

/* highest, sum and acc of every row over the positions of one split. */
static void attend_split(struct tile *t, int64_t split) {
    const struct range tile_visible = visible_to_tile(t);
    const struct range positions = intersect(tile_visible, split_positions(split));
    for (int row = 0; row < t->n_rows; row++) {
        t->scratch.highest[row] = -INFINITY;
        t->scratch.sum[row] = 0.0F;
    }
    memset(t->scratch.acc, 0, (size_t)(t->n_rows * t->tiling->dim_padded) * sizeof(float));
    int32_t block_start = positions.begin - positions.begin % QR_ATTENTION_BLOCK;
    for (; block_start < positions.end; block_start += QR_ATTENTION_BLOCK) {
        const struct range block = {block_start, block_start + QR_ATTENTION_BLOCK};
        load_block(t, block_start, intersect(positions, block), tile_visible);
        attend_block(t, block_start);
    }
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
    const struct range splits = splits_of(&t);
    for (int32_t split = splits.begin; split < splits.end; split++) {
        attend_split(&t, split);
        merge_split(&t, split, t.scratch.highest, t.scratch.sum, t.scratch.acc);
    }
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
    attend_split(&t, split);
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

void QR_ISA(qr_cpu_attention_lse)(const qr_backend *backend, const qr_attention_args *args, float *lse,
                                  void *workspace) {
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

void QR_ISA(qr_cpu_attention)(const qr_backend *backend, const qr_attention_args *args, void *workspace) {
    QR_ISA(qr_cpu_attention_lse)(backend, args, NULL, workspace);
}
