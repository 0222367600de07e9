/* The block part of attention over pages (attention_pages_template.h) on vectors: all arithmetic is F32, for pages of
 * any format, which are converted block by block. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_BLOCKS_VECTORS_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_BLOCKS_VECTORS_H

#include "kernels/cpu/attention/attention_pages.h"
#include "kernels/cpu/attention/attention_query_tile.h"
#include "kernels/cpu/attention/attention_tile.h"
#include "kernels/cpu/simd/vec_math.h"

struct blocks {
    char unused;
};

static void blocks_open(struct tile *t) { t->blocks->unused = 0; }
static void blocks_close(struct tile *t) { (void)t; }

static void split_begin(struct tile *t) {
    for (int row = 0; row < t->n_rows; row++) {
        t->scratch.highest[row] = -INFINITY;
        t->scratch.sum[row] = 0.0F;
    }
    memset(t->scratch.acc, 0, (size_t)(t->n_rows * t->tiling->dim_padded) * sizeof(float));
}
static void split_end(struct tile *t) { (void)t; }

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

#endif
