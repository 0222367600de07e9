/* The block part of attention over pages (attention_pages_template.h) on matrix tiles, for K and V that BF16 holds
 * exactly. Included after kernels/cpu/simd/tiles_amx.h or tiles_emulated.h.
 *
 * q and the softmax weights are split into two BF16 values, high + low. A sum of products takes 32 elements at a time
 * in ascending order (tile_sum.h), first their high parts, then their low ones. acc = acc · rescale + such a sum once a
 * block. Scores are in units of ln 2: what q is scaled with contains log2 e.
 *
 * K is the first operand as it lies in its pages, so a tile of scores is [16 positions][16 query rows]: lanes are rows,
 * and the softmax needs no sums across lanes. V is transposed to be the first operand too. But for up to 8 rows a
 * vector of the softmax holds several positions; their weights are then the first operand, and V the second, in pairs
 * of positions, which takes less. None of this changes the order of a sum: the weights of positions with one remainder
 * by 4 are added in order, and then the four sums. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_BLOCKS_TILES_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_BLOCKS_TILES_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/attention/attention_query_tile.h"
#include "kernels/cpu/simd/vec_math.h"
#include "kernels/cpu/simd/vec_units.h"

enum {
    TILE = 16,         /* rows, columns and pairs of k */
    TILE_K = 2 * TILE, /* of k */
    TILE_UINT16 = TILE * TILE_K,
    TILE_FLOATS = TILE * TILE,
    BLOCK = QR_ATTENTION_BLOCK,
    PAGES = BLOCK / QR_KV_PAGE_TOKENS, /* of a block */
    HALVES = BLOCK / TILE_K,           /* of a block: one tile of k each */
};

_Static_assert((int)QR_KV_PAGE_TOKENS == (int)TILE, "K of a page and head is the rows of a tile");

#define LOG2_E 1.4426950408889634
#define LN_2 0x1.62e430p-1F

struct blocks {
    tiles_state state;
    qr_attention_tiles_scratch s;
    int64_t dim_tiles;                         /* of 32 dimensions */
    int row_lanes;                             /* query rows side by side in a vector: 4, 8 or 16 */
    int n_groups;                              /* of 16 rows; 1 where row_lanes is less */
    int32_t position[QR_ATTENTION_TILES_ROWS]; /* of the query in each lane of each group */
    /* The block. Pages that are not loaded are NULL. */
    int32_t block_start;
    const unsigned char *k_pages[PAGES], *v_pages[PAGES];
    const unsigned char *k_ahead[PAGES], *v_ahead[PAGES]; /* of the next block */
    struct range seen;                                    /* columns that some row sees */
    struct range common;                                  /* columns that every row sees */
    int first_half, last_half;
};

/* --- Operands --- */

/* 16 elements of one vector, then 16 of the other. */
QR_INLINE __m512i both_bf16(qr_vec first, qr_vec second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }

/* BF16 is the upper half of F32: rounded, if half of the last place is added first. */
QR_INLINE __m512i rounded_up(qr_vec x) { return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)); }
QR_INLINE qr_vec upper_half(__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536))); }

/* high + low ≈ x in the upper halves of lanes; the lower halves mean nothing. */
QR_INLINE void split_bf16(qr_vec x, __m512i *high, __m512i *low) {
    *high = rounded_up(x);
    *low = rounded_up(qr_vec_sub(x, upper_half(*high)));
}

/* The upper halves of lanes as pairs: of `even` first. */
QR_INLINE __m512i upper_pairs(__m512i even, __m512i odd) {
    return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even, 16), odd);
}

QR_INLINE qr_vec as_units(__m512i v) { return _mm512_castsi512_ps(v); }

/* q of one row in 32 dimensions as 16 pairs, high and low. */
QR_INLINE void query_units(const struct tile *t, int row, int64_t j, float factor, qr_vec *high, qr_vec *low) {
    const int64_t dim = t->args->layout.head_dim;
    qr_vec part[2], rest[2];
    QR_UNROLL for (int i = 0; i < 2; i++) {
        const int64_t at = j + i * QR_VEC;
        const qr_vec x = row < t->n_rows && at < dim ? qr_vec_load_n(t->q[row] + at, dim - at) : qr_vec_zero();
        const qr_vec scaled = qr_vec_mul(x, qr_vec_set1(factor));
        part[i] = upper_half(rounded_up(scaled));
        rest[i] = qr_vec_sub(scaled, part[i]);
    }
    *high = as_units(both_bf16(part[0], part[1]));
    *low = as_units(both_bf16(rest[0], rest[1]));
}

QR_INLINE void store_transposed(qr_vec units[TILE], uint16_t *tile) {
    qr_vec_transpose(units);
    QR_UNROLL for (int i = 0; i < TILE; i++) { qr_vec_store((float *)(void *)(tile + i * TILE_K), units[i]); }
}

/* [n_groups][dim_tiles][2], high and low. */
static void pack_queries(const struct tile *t, const struct blocks *b) {
    const qr_attention_args *a = t->args;
    const float factor = a->softcap > 0.0F ? a->scale : (float)((double)a->scale * LOG2_E);
    uint16_t *dst = b->s.q;
    for (int group = 0; group < b->n_groups; group++) {
        for (int64_t j = 0; j < b->dim_tiles * TILE_K; j += TILE_K, dst += 2 * TILE_UINT16) {
            qr_vec high[TILE], low[TILE];
            QR_UNROLL for (int i = 0; i < TILE; i++) { query_units(t, group * TILE + i, j, factor, &high[i], &low[i]); }
            store_transposed(high, dst);
            store_transposed(low, dst + TILE_UINT16);
        }
    }
}

/* 32 elements of K or V as BF16, from element j of a row on. */
QR_INLINE __m512i kv_elements(const unsigned char *row, qr_kv_format format, int64_t j, int64_t dim) {
    const int64_t n = dim - j;
    if (format == QR_KV_BF16) {
        if (n >= TILE_K) { return _mm512_loadu_si512(row + 2 * j); }
        return _mm512_maskz_loadu_epi16((1U << n) - 1U, row + 2 * j);
    }
    const __m256i codes = n >= TILE_K ? _mm256_loadu_si256((const __m256i *)(const void *)(row + j))
                                      : _mm256_maskz_loadu_epi8((1U << n) - 1U, row + j);
    return both_bf16(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes))),
                     _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1))));
}

QR_INLINE void pack_keys_as(const struct tile *t, const struct blocks *b, qr_kv_format format) {
    const int64_t dim = t->args->layout.head_dim, stride = b->dim_tiles * TILE_K;
    const int64_t row_bytes = dim * (format == QR_KV_INT8 ? 1 : 2);
    for (int page = 0; page < PAGES; page++) {
        if (b->k_pages[page] == NULL) { continue; }
        for (int i = 0; i < TILE; i++) {
            uint16_t *dst = b->s.keys + (page * TILE + i) * stride;
            for (int64_t j = 0; j < stride; j += TILE_K) {
                _mm512_store_si512(dst + j, kv_elements(b->k_pages[page] + i * row_bytes, format, j, dim));
            }
        }
    }
}

/* K as it lies in its pages fits tiles if it is BF16 in whole tiles. */
static bool reads_keys_in_place(const struct tile *t) {
    return t->args->layout.format == QR_KV_BF16 && t->args->layout.head_dim % TILE_K == 0;
}

/* Where the keys of a page are; of a page that is not loaded, those of another, whose scores are not used. */
static const uint16_t *page_keys(const struct tile *t, const struct blocks *b, int page) {
    while (b->k_pages[page] == NULL) { page = page == 0 ? PAGES - 1 : page - 1; }
    if (!reads_keys_in_place(t)) { return b->s.keys + page * TILE * b->dim_tiles * TILE_K; }
    return (const uint16_t *)(const void *)b->k_pages[page];
}

/* Rows of V; those that no row may see are zeros. */
static void value_rows(const struct tile *t, const struct blocks *b, struct range columns,
                       const unsigned char *rows[BLOCK]) {
    const qr_kv_layout *layout = &t->args->layout;
    const long long row_bytes = (long long)layout->head_dim * (long long)qr_kv_element_bytes(layout->format);
    const __m512i steps = _mm512_mullo_epi64(_mm512_set1_epi64(row_bytes), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    for (int c = 0; c < BLOCK; c += 8) { /* eight addresses at a time */
        const unsigned char *first = b->v_pages[c / TILE];
        if (first == NULL) { continue; }
        first += c % TILE * row_bytes;
        _mm512_storeu_si512(rows + c, _mm512_add_epi64(_mm512_set1_epi64((long long)(intptr_t)first), steps));
    }
    const unsigned char *zeros = (const unsigned char *)(const void *)b->s.zeros;
    for (int c = 0; c < columns.begin; c++) { rows[c] = zeros; }
    for (int c = columns.end; c < BLOCK; c++) { rows[c] = zeros; }
}

/* For many rows: V transposed, [dim_tiles · 32][BLOCK]. Unpacking leaves the dimensions in runs of four. */
QR_INLINE void pack_values_transposed(const struct blocks *b, const unsigned char *const *rows, qr_kv_format format,
                                      int64_t dim) {
    for (int half = b->first_half; half < b->last_half; half++) {
        for (int64_t j = 0; j < b->dim_tiles * TILE_K; j += TILE_K) {
            qr_vec low[TILE], high[TILE];
            QR_UNROLL for (int i = 0; i < TILE; i++) {
                const __m512i even = kv_elements(rows[half * TILE_K + 2 * i], format, j, dim);
                const __m512i odd = kv_elements(rows[half * TILE_K + 2 * i + 1], format, j, dim);
                low[i] = as_units(_mm512_unpacklo_epi16(even, odd));
                high[i] = as_units(_mm512_unpackhi_epi16(even, odd));
            }
            uint16_t *dst = b->s.values + j * BLOCK + half * TILE_K;
            qr_vec_transpose(low);
            QR_UNROLL for (int i = 0; i < TILE; i++) {
                qr_vec_store((float *)(void *)(dst + (i / 4 * 8 + i % 4) * BLOCK), low[i]);
            }
            qr_vec_transpose(high);
            QR_UNROLL for (int i = 0; i < TILE; i++) {
                qr_vec_store((float *)(void *)(dst + (i / 4 * 8 + 4 + i % 4) * BLOCK), high[i]);
            }
        }
    }
}

/* For few rows: pairs of positions, [HALVES][dim_tiles][2] tiles, of which the first of two has dimensions 0-3, 8-11,
 * 16-19 and 24-27, and the second the others. */
QR_INLINE void pack_values_in_pairs(const struct blocks *b, const unsigned char *const *rows, qr_kv_format format,
                                    int64_t dim) {
    for (int half = b->first_half; half < b->last_half; half++) {
        for (int64_t j = 0; j < b->dim_tiles * TILE_K; j += TILE_K) {
            uint16_t *dst = b->s.values + (half * b->dim_tiles * TILE_K + j) * TILE_K;
            for (int i = 0; i < TILE; i++, dst += TILE_K) {
                const __m512i even = kv_elements(rows[half * TILE_K + 2 * i], format, j, dim);
                const __m512i odd = kv_elements(rows[half * TILE_K + 2 * i + 1], format, j, dim);
                _mm512_store_si512(dst, _mm512_unpacklo_epi16(even, odd));
                _mm512_store_si512(dst + TILE_UINT16, _mm512_unpackhi_epi16(even, odd));
            }
        }
    }
}

static void pack_values(const struct tile *t, struct range columns) {
    const struct blocks *b = t->blocks;
    const int64_t dim = t->args->layout.head_dim;
    const bool few = b->row_lanes < TILE, is_int8 = t->args->layout.format == QR_KV_INT8;
    const unsigned char *rows[BLOCK];
    value_rows(t, b, columns, rows);
    if (few && is_int8) {
        pack_values_in_pairs(b, rows, QR_KV_INT8, dim);
    } else if (few) {
        pack_values_in_pairs(b, rows, QR_KV_BF16, dim);
    } else if (is_int8) {
        pack_values_transposed(b, rows, QR_KV_INT8, dim);
    } else {
        pack_values_transposed(b, rows, QR_KV_BF16, dim);
    }
}

/* --- A task and its splits --- */

static void blocks_open(struct tile *t) {
    struct blocks *b = t->blocks;
    b->s = t->scratch.on_tiles;
    b->dim_tiles = qr_ceil_div(t->args->layout.head_dim, TILE_K);
    b->row_lanes = t->n_rows <= 4 ? 4 : t->n_rows <= 8 ? 8 : TILE;
    b->n_groups = (int)qr_ceil_div(t->n_rows, TILE);
    for (int lane = 0; lane < b->n_groups * TILE; lane++) {
        const int row = b->row_lanes < TILE ? lane % b->row_lanes : lane;
        b->position[lane] = t->tokens->position + (row < t->n_rows ? row : t->n_rows - 1) / t->n_heads;
    }
    memset(b->s.zeros, 0, (size_t)(b->dim_tiles * TILE_K) * sizeof *b->s.zeros);
    pack_queries(t, b);
    tiles_begin(&b->state, TILE, TILE, TILE);
}

static void blocks_close(struct tile *t) { tiles_end(&t->blocks->state); }

static void split_begin(struct tile *t) {
    const struct blocks *b = t->blocks;
    for (int lane = 0; lane < b->n_groups * TILE; lane++) {
        b->s.highest[lane] = -INFINITY;
        b->s.sum[lane] = 0.0F;
    }
    memset(b->s.acc, 0, (size_t)(b->n_groups * TILE * b->dim_tiles * TILE_K) * sizeof *b->s.acc);
}

static void split_end(struct tile *t) {
    const struct blocks *b = t->blocks;
    const int64_t stride = t->tiling->dim_padded, dim = b->dim_tiles * TILE_K;
    for (int row = 0; row < t->n_rows; row++) {
        t->scratch.highest[row] = b->s.highest[row] * LN_2;
        t->scratch.sum[row] = b->s.sum[row];
    }
    if (b->row_lanes < TILE) {
        for (int row = 0; row < t->n_rows; row++) {
            memcpy(t->scratch.acc + row * stride, b->s.acc + row * dim, (size_t)stride * sizeof(float));
        }
        return;
    }
    for (int group = 0; group < b->n_groups; group++) {
        const int n_rows = (int)qr_min(TILE, t->n_rows - group * TILE);
        for (int64_t j = 0; j < stride; j += TILE) {
            qr_vec v[TILE];
            QR_UNROLL for (int i = 0; i < TILE; i++) { v[i] = qr_vec_load(b->s.acc + (group * dim + j + i) * TILE); }
            qr_vec_transpose(v);
            for (int i = 0; i < n_rows; i++) { qr_vec_store(t->scratch.acc + (group * TILE + i) * stride + j, v[i]); }
        }
    }
}

QR_INLINE void prefetch_l1(const void *p) { __builtin_prefetch(p, 0, 3); }
QR_INLINE void prefetch_l2(const void *p) { __builtin_prefetch(p, 0, 2); }

/* A part of the next block, from 0 to 3: all of it at once would wait for memory. Many rows need L1 for what they have;
 * to few, K and V are all. */
static void prefetch_ahead(const struct tile *t, int part) {
    const struct blocks *b = t->blocks;
    const unsigned char *k = b->k_ahead[part], *v = b->v_ahead[part];
    if (k == NULL) { return; }
    const int64_t n_bytes =
        (int64_t)QR_KV_PAGE_TOKENS * t->args->layout.head_dim * (int64_t)qr_kv_element_bytes(t->args->layout.format);
    const bool few = b->row_lanes < TILE;
    for (int64_t at = 0; few && at < n_bytes; at += 64) { prefetch_l1(k + at), prefetch_l1(v + at); }
    for (int64_t at = 0; !few && at < n_bytes; at += 64) { prefetch_l2(k + at), prefetch_l2(v + at); }
}

static void load_block(struct tile *t, int32_t block_start, struct range visible, struct range tile_visible) {
    const qr_kv_layout *layout = &t->args->layout;
    const size_t head_bytes = (size_t)(QR_KV_PAGE_TOKENS * layout->head_dim) * qr_kv_element_bytes(layout->format);
    const size_t k_part = (size_t)t->kv_head * head_bytes, v_part = qr_kv_v_offset(layout) + k_part;
    const size_t scales = qr_kv_scale_offset(layout) + (size_t)t->kv_head * QR_KV_PAGE_TOKENS * sizeof(float);
    struct blocks *b = t->blocks;
    const struct range first = visible_to_row(t, 0), last = visible_to_row(t, t->n_rows - 1);
    b->seen = (struct range){visible.begin - block_start, visible.end - block_start};
    b->common = (struct range){last.begin - block_start, first.end - block_start};
    b->first_half = b->seen.begin / TILE_K;
    b->last_half = (b->seen.end - 1) / TILE_K + 1;
    for (int i = 0; i < PAGES; i++) {
        const int32_t column = i * QR_KV_PAGE_TOKENS, position = block_start + column;
        const bool loaded = column + QR_KV_PAGE_TOKENS > b->seen.begin && column < b->seen.end;
        b->k_pages[i] = b->v_pages[i] = b->k_ahead[i] = b->v_ahead[i] = NULL;
        if (!loaded) { continue; }
        const unsigned char *page = page_of(t, position);
        if (position + QR_ATTENTION_BLOCK < tile_visible.end) {
            const unsigned char *ahead = page_of(t, position + QR_ATTENTION_BLOCK);
            b->k_ahead[i] = ahead + k_part;
            b->v_ahead[i] = ahead + v_part;
        }
        b->k_pages[i] = page + k_part;
        b->v_pages[i] = page + v_part;
        if (layout->format == QR_KV_INT8) {
            memcpy(t->scratch.k_scales + column, page + scales, QR_KV_PAGE_TOKENS * sizeof(float));
            memcpy(t->scratch.v_scales + column, page + qr_kv_v_offset(layout) + scales,
                   QR_KV_PAGE_TOKENS * sizeof(float));
        }
    }
    if (layout->format == QR_KV_INT8) {
        pack_keys_as(t, b, QR_KV_INT8);
    } else if (!reads_keys_in_place(t)) {
        pack_keys_as(t, b, QR_KV_BF16);
    }
    prefetch_ahead(t, 0);
    pack_values(t, b->seen);
}

/* --- Products --- */

enum { GROUP_FLOATS = BLOCK * TILE };

/* Sums of products of a group: scores, and when these are weights, sums of values. Two groups take turns. */
static float *sums_of(const struct blocks *b, int group) { return b->s.sums + group % 2 * GROUP_FLOATS; }

/* c [n_tiles · 16][16] = rows · pairs. Tiles of 16 rows begin at each of `a`; `b` is tiles of pairs, high and low ones
 * in turn. n_tiles, 2 or 4, is a constant after inlining. */
QR_INLINE void multiply_tiles(tiles_state *state, const uint16_t *const *a, size_t a_bytes, const uint16_t *b,
                              int64_t n_k, const int n_tiles, float *c) {
    tiles_zero(state, TILES_C0);
    tiles_zero(state, TILES_C1);
    if (n_tiles > 2) {
        tiles_zero(state, TILES_C2);
        tiles_zero(state, TILES_C3);
    }
    for (int64_t k = 0; k < n_k; k++, b += 2 * TILE_UINT16) {
        tiles_load(state, TILES_B0, b, 2 * TILE_K);
        tiles_load(state, TILES_A0, a[0] + k * TILE_K, a_bytes);
        tiles_dot(state, TILES_C0, TILES_A0, TILES_B0);
        tiles_load(state, TILES_A1, a[1] + k * TILE_K, a_bytes);
        tiles_dot(state, TILES_C1, TILES_A1, TILES_B0);
        tiles_load(state, TILES_B1, b + TILE_UINT16, 2 * TILE_K);
        tiles_dot(state, TILES_C0, TILES_A0, TILES_B1);
        tiles_dot(state, TILES_C1, TILES_A1, TILES_B1);
        if (n_tiles == 2) { continue; }
        tiles_load(state, TILES_A0, a[2] + k * TILE_K, a_bytes);
        tiles_dot(state, TILES_C2, TILES_A0, TILES_B0);
        tiles_load(state, TILES_A1, a[3] + k * TILE_K, a_bytes);
        tiles_dot(state, TILES_C3, TILES_A1, TILES_B0);
        tiles_dot(state, TILES_C2, TILES_A0, TILES_B1);
        tiles_dot(state, TILES_C3, TILES_A1, TILES_B1);
    }
    tiles_store(state, TILES_C0, c, 4 * TILE);
    tiles_store(state, TILES_C1, c + TILE_FLOATS, 4 * TILE);
    if (n_tiles == 2) { return; }
    tiles_store(state, TILES_C2, c + 2 * TILE_FLOATS, 4 * TILE);
    tiles_store(state, TILES_C3, c + 3 * TILE_FLOATS, 4 * TILE);
}

/* [BLOCK][16] */
static void score_group(const struct tile *t, int group) {
    struct blocks *b = t->blocks;
    const size_t key_bytes = 2 * (size_t)(b->dim_tiles * TILE_K);
    const uint16_t *q = b->s.q + group * b->dim_tiles * 2 * TILE_UINT16, *keys[PAGES];
    float *scores = sums_of(b, group);
    for (int page = 0; page < PAGES; page++) { keys[page] = page_keys(t, b, page); }
    TILES_BARRIER();
    if (b->last_half - b->first_half == HALVES) {
        multiply_tiles(&b->state, keys, key_bytes, q, b->dim_tiles, 4, scores);
    } else {
        multiply_tiles(&b->state, keys + 2 * b->first_half, key_bytes, q, b->dim_tiles, 2,
                       scores + b->first_half * 2 * TILE_FLOATS);
    }
    TILES_BARRIER();
}

/* --- Softmax: lane i of vector v is row i % row_lanes at column v · (16 / row_lanes) + i / row_lanes --- */

/* 2^x for x ≤ 0, within 3 · 2^-24 of it; 1 for 0, and 0 for −infinity. */
QR_INLINE qr_vec exp2_vector(qr_vec x) {
    const qr_vec r = _mm512_reduce_ps(x, 0x09); /* x − floor x */
    qr_vec p = qr_vec_set1(0x1.e974fap-10F);
    p = qr_vec_fma(p, r, qr_vec_set1(0x1.277856p-7F));
    p = qr_vec_fma(p, r, qr_vec_set1(0x1.c91ce6p-5F));
    p = qr_vec_fma(p, r, qr_vec_set1(0x1.ebdb56p-3F));
    p = qr_vec_fma(p, r, qr_vec_set1(0x1.62e4bap-1F));
    p = qr_vec_fma(p, r, qr_vec_set1(1.0F));
    return _mm512_scalef_ps(p, x); /* · 2^floor x */
}

QR_INLINE qr_vec score_vector(const float *scores, int v, const int row_lanes) {
    const float *at = scores + v * (TILE / row_lanes) * TILE;
    if (row_lanes == TILE) { return qr_vec_load(at); }
    if (row_lanes == 8) {
        return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(at)), _mm256_loadu_ps(at + TILE), 1);
    }
    qr_vec v4 = _mm512_castps128_ps512(_mm_loadu_ps(at));
    v4 = _mm512_insertf32x4(v4, _mm_loadu_ps(at + TILE), 1);
    v4 = _mm512_insertf32x4(v4, _mm_loadu_ps(at + 2 * TILE), 2);
    return _mm512_insertf32x4(v4, _mm_loadu_ps(at + 3 * TILE), 3);
}

/* Which column each lane has, relative to the vector's first. */
QR_INLINE __m512i lane_columns(const int row_lanes) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_srli_epi32(lane, row_lanes == TILE ? 4 : row_lanes == 8 ? 3 : 2);
}

QR_INLINE qr_vec column_scales(const float *scales, int v, const int row_lanes) {
    if (row_lanes == TILE) { return qr_vec_set1(scales[v]); }
    return _mm512_permutexvar_ps(lane_columns(row_lanes), qr_vec_load(scales + v * (TILE / row_lanes)));
}

/* Lanes that see their column. */
QR_INLINE __mmask16 seen_lanes(int v, const int row_lanes, __m512i begin, __m512i end) {
    const __m512i column = _mm512_add_epi32(_mm512_set1_epi32(v * (TILE / row_lanes)), lane_columns(row_lanes));
    return _mm512_mask_cmplt_epi32_mask(_mm512_cmple_epi32_mask(begin, column), column, end);
}

/* Combines the lanes of one row: afterwards all have its value. Sums take columns by their remainder by 4. */
QR_INLINE qr_vec highest_of_lanes(qr_vec v, const int row_lanes) {
    if (row_lanes == 4) { v = qr_vec_max(v, _mm512_shuffle_f32x4(v, v, 0xB1)); }
    if (row_lanes <= 8) { v = qr_vec_max(v, _mm512_shuffle_f32x4(v, v, 0x4E)); }
    return v;
}
QR_INLINE qr_vec sum_of_lanes(const qr_vec *sums, const int row_lanes) {
    if (row_lanes == 4) {
        const qr_vec two = qr_vec_add(sums[0], _mm512_shuffle_f32x4(sums[0], sums[0], 0xB1));
        return qr_vec_add(two, _mm512_shuffle_f32x4(two, two, 0x4E));
    }
    if (row_lanes == 8) {
        return qr_vec_add(qr_vec_add(sums[0], _mm512_shuffle_f32x4(sums[0], sums[0], 0x4E)),
                          qr_vec_add(sums[1], _mm512_shuffle_f32x4(sums[1], sums[1], 0x4E)));
    }
    return qr_vec_add(qr_vec_add(sums[0], sums[1]), qr_vec_add(sums[2], sums[3]));
}

/* Weights of 16 columns by few rows: quad[k] and so on hold row k, columns in the order 0, 4, 8, 12, 1, 5, …. */
QR_INLINE void gather_rows(const float *weights, const int row_lanes, qr_vec *rows) {
    if (row_lanes == 4) {
        qr_vec v[TILE], quad[TILE];
        QR_UNROLL for (int i = 0; i < 4; i++) { v[i] = qr_vec_load(weights + i * TILE); }
        QR_UNROLL for (int i = 4; i < TILE; i++) { v[i] = qr_vec_zero(); }
        TRANSPOSE_IN_LANES(512, v, quad);
        QR_UNROLL for (int i = 0; i < 4; i++) { rows[i] = quad[i]; }
        return;
    }
    qr_vec v[TILE], quad[TILE];
    QR_UNROLL for (int i = 0; i < 4; i++) {
        const qr_vec a = qr_vec_load(weights + 2 * i * TILE), c = qr_vec_load(weights + (2 * i + 1) * TILE);
        v[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        v[4 + i] = _mm512_shuffle_f32x4(a, c, 0xDD);
    }
    QR_UNROLL for (int i = 8; i < TILE; i++) { v[i] = qr_vec_zero(); }
    TRANSPOSE_IN_LANES(512, v, quad);
    QR_UNROLL for (int i = 0; i < 8; i++) { rows[i] = quad[i]; }
}

/* Weights of few rows as the first operand, [2 · row_lanes][BLOCK]: high parts, then low ones. */
QR_INLINE void pack_few_weights(const struct blocks *b, const float *weights, const int row_lanes) {
    /* The upper half of column c of 32: lane c % 4 · 4 + c / 4 of the first or second vector. */
    const __m512i order = _mm512_set_epi16(63, 55, 47, 39, 61, 53, 45, 37, 59, 51, 43, 35, 57, 49, 41, 33, 31, 23, 15,
                                           7, 29, 21, 13, 5, 27, 19, 11, 3, 25, 17, 9, 1);
    for (int half = b->first_half; half < b->last_half; half++) {
        qr_vec first[8], second[8];
        gather_rows(weights + half * TILE_K * row_lanes, row_lanes, first);
        gather_rows(weights + (half * TILE_K + TILE) * row_lanes, row_lanes, second);
        QR_UNROLL for (int row = 0; row < row_lanes; row++) {
            __m512i high[2], low[2];
            split_bf16(first[row], &high[0], &low[0]);
            split_bf16(second[row], &high[1], &low[1]);
            uint16_t *dst = b->s.weights + row * BLOCK + half * TILE_K;
            _mm512_store_si512(dst, _mm512_permutex2var_epi16(high[0], order, high[1]));
            _mm512_store_si512(dst + row_lanes * BLOCK, _mm512_permutex2var_epi16(low[0], order, low[1]));
        }
    }
}

/* Turns the scores of one group into weights, and brings highest and sum up to date. `masks`: not every row sees all
 * columns. `extras`: INT8 scales or a soft-cap. Both are constants after inlining, as is row_lanes. */
QR_INLINE void weigh_lanes(const struct tile *t, int group, const int row_lanes, const bool masks, const bool extras) {
    const qr_attention_args *a = t->args;
    const struct blocks *b = t->blocks;
    const bool is_int8 = extras && a->layout.format == QR_KV_INT8, capped = extras && a->softcap > 0.0F;
    const int per_half = 2 * row_lanes, first = b->first_half * per_half, last = b->last_half * per_half;
    const int n_sums = row_lanes / 4;
    float *scores = sums_of(b, group);
    /* Scores that are not taken as they are come back here; those of few rows move together. */
    const bool rewrites = row_lanes < TILE || masks || extras;
    float *weights = row_lanes < TILE ? sums_of(b, 1) : scores;
    const __m512i position = _mm512_loadu_si512(b->position + group * TILE);
    const __m512i end = _mm512_sub_epi32(position, _mm512_set1_epi32(b->block_start - 1));
    const __m512i begin = a->window > 0 ? _mm512_sub_epi32(end, _mm512_set1_epi32(a->window)) : _mm512_setzero_si512();
    qr_vec highest[4], sums[4];
    QR_UNROLL for (int i = 0; i < 4; i++) {
        highest[i] = qr_vec_set1(-INFINITY);
        sums[i] = qr_vec_zero();
    }
    for (int v = first; v < last; v += 4) {
        QR_UNROLL for (int i = 0; i < 4; i++) {
            qr_vec score = score_vector(scores, v + i, row_lanes);
            if (is_int8) { score = qr_vec_mul(score, column_scales(t->scratch.k_scales, v + i, row_lanes)); }
            if (capped) { score = qr_vec_mul(qr_vec_softcap(score, a->softcap), qr_vec_set1((float)LOG2_E)); }
            if (masks) {
                score = _mm512_mask_mov_ps(qr_vec_set1(-INFINITY), seen_lanes(v + i, row_lanes, begin, end), score);
            }
            highest[i] = qr_vec_max(score, highest[i]);
            if (rewrites) { qr_vec_store(weights + (v + i) * TILE, score); }
        }
    }
    const qr_vec block_highest =
        highest_of_lanes(qr_vec_max(qr_vec_max(highest[0], highest[1]), qr_vec_max(highest[2], highest[3])), row_lanes);
    const qr_vec before = qr_vec_load(b->s.highest + group * TILE), now = qr_vec_max(block_highest, before);
    /* A row that has seen nothing yet subtracts 0: its weights become 2^−infinity. */
    const qr_vec base =
        _mm512_mask_mov_ps(now, _mm512_cmp_ps_mask(now, qr_vec_set1(-INFINITY), _CMP_EQ_OQ), qr_vec_zero());
    for (int v = first; v < last; v += 4) {
        __m512i high[4], low[4];
        QR_UNROLL for (int i = 0; i < 4; i++) {
            qr_vec weight = exp2_vector(qr_vec_sub(qr_vec_load(weights + (v + i) * TILE), base));
            sums[i % n_sums] = qr_vec_add(sums[i % n_sums], weight);
            if (is_int8) {
                weight = qr_vec_mul(weight, column_scales(t->scratch.v_scales, v + i, row_lanes));
                if (masks) { weight = _mm512_maskz_mov_ps(seen_lanes(v + i, row_lanes, begin, end), weight); }
            }
            if (row_lanes < TILE) {
                qr_vec_store(weights + (v + i) * TILE, weight);
            } else {
                split_bf16(weight, &high[i], &low[i]);
            }
        }
        if (row_lanes < TILE) { continue; }
        uint16_t *dst = b->s.weights + v / TILE_K * 2 * TILE_UINT16 + v % TILE_K / 2 * TILE_K;
        QR_UNROLL for (int i = 0; i < 4; i += 2) {
            _mm512_store_si512(dst + i / 2 * TILE_K, upper_pairs(high[i], high[i + 1]));
            _mm512_store_si512(dst + TILE_UINT16 + i / 2 * TILE_K, upper_pairs(low[i], low[i + 1]));
        }
    }
    const qr_vec rescale = exp2_vector(qr_vec_sub(before, base));
    const qr_vec sum = qr_vec_load(b->s.sum + group * TILE);
    qr_vec_store(b->s.highest + group * TILE, now);
    qr_vec_store(b->s.rescale + group * TILE, rescale);
    qr_vec_store(b->s.sum + group * TILE, qr_vec_fma(sum, rescale, sum_of_lanes(sums, row_lanes)));
    if (row_lanes < TILE) { pack_few_weights(b, weights, row_lanes); }
}

QR_INLINE void weigh_group_of(const struct tile *t, int group, const int row_lanes) {
    const struct blocks *b = t->blocks;
    const bool masks = b->common.begin > 0 || b->common.end < BLOCK;
    if (t->args->layout.format == QR_KV_INT8 || t->args->softcap > 0.0F) {
        if (masks) {
            weigh_lanes(t, group, row_lanes, true, true);
        } else {
            weigh_lanes(t, group, row_lanes, false, true);
        }
    } else if (masks) {
        weigh_lanes(t, group, row_lanes, true, false);
    } else {
        weigh_lanes(t, group, row_lanes, false, false);
    }
}

static void weigh_group(const struct tile *t, int group) {
    switch (t->blocks->row_lanes) {
        case 4: weigh_group_of(t, group, 4); break;
        case 8: weigh_group_of(t, group, 8); break;
        default: weigh_group_of(t, group, TILE); break;
    }
}

/* --- Sums of values --- */

/* acc = acc · rescale + sums of n dimensions, for the rows in `lanes`. */
QR_INLINE void add_values(const float *sums, qr_vec rescale, int64_t n, __mmask16 lanes, float *acc) {
    for (int64_t i = 0; i < n; i++) {
        const qr_vec old = qr_vec_load(acc + i * TILE), now = qr_vec_fma(old, rescale, qr_vec_load(sums + i * TILE));
        qr_vec_store(acc + i * TILE, lanes == 0xFFFF ? now : _mm512_mask_mov_ps(old, lanes, now));
    }
}

/* For the rows in `lanes` of one group. */
static void mix_group(struct blocks *b, int group, __mmask16 lanes) {
    const qr_vec rescale = qr_vec_load(b->s.rescale + group * TILE);
    const int64_t dim = b->dim_tiles * TILE_K, n_k = b->last_half - b->first_half;
    const uint16_t *weights = b->s.weights + b->first_half * 2 * TILE_UINT16;
    float *sums = sums_of(b, group);
    for (int64_t j = 0; j < dim; j += BLOCK) {
        const uint16_t *v = b->s.values + j * BLOCK + b->first_half * TILE_K, *of_tile[4];
        for (int i = 0; i < 4; i++) { of_tile[i] = v + i * TILE * BLOCK; }
        const bool is_whole = j + BLOCK <= dim;
        TILES_BARRIER();
        if (is_whole) {
            multiply_tiles(&b->state, of_tile, 2 * BLOCK, weights, n_k, 4, sums);
        } else {
            multiply_tiles(&b->state, of_tile, 2 * BLOCK, weights, n_k, 2, sums);
        }
        TILES_BARRIER();
        float *acc = b->s.acc + (group * dim + j) * TILE;
        if (lanes == 0xFFFF) {
            add_values(sums, rescale, is_whole ? BLOCK : TILE_K, 0xFFFF, acc);
        } else {
            add_values(sums, rescale, is_whole ? BLOCK : TILE_K, lanes, acc);
        }
    }
}

/* sums [n_tiles][16 rows][16]: weights of few rows by V in pairs, for 16 dimensions a tile. */
QR_INLINE void multiply_few(struct blocks *b, int64_t j, const int n_tiles, float *sums) {
    const uint16_t *weights = b->s.weights + b->first_half * TILE_K, *low = weights + b->row_lanes * BLOCK;
    tiles_zero(&b->state, TILES_C0);
    tiles_zero(&b->state, TILES_C1);
    tiles_zero(&b->state, TILES_C2);
    tiles_zero(&b->state, TILES_C3);
    for (int half = b->first_half; half < b->last_half; half++, weights += TILE_K, low += TILE_K) {
        const uint16_t *v = b->s.values + (half * b->dim_tiles * TILE_K + j) * TILE_K;
        tiles_load(&b->state, TILES_A0, weights, 2 * BLOCK);
        tiles_load(&b->state, TILES_B0, v, 2 * TILE_K);
        tiles_dot(&b->state, TILES_C0, TILES_A0, TILES_B0);
        tiles_load(&b->state, TILES_B1, v + TILE_UINT16, 2 * TILE_K);
        tiles_dot(&b->state, TILES_C1, TILES_A0, TILES_B1);
        tiles_load(&b->state, TILES_A1, low, 2 * BLOCK);
        tiles_dot(&b->state, TILES_C0, TILES_A1, TILES_B0);
        tiles_dot(&b->state, TILES_C1, TILES_A1, TILES_B1);
        if (n_tiles == 2) { continue; }
        tiles_load(&b->state, TILES_B0, v + 2 * TILE_UINT16, 2 * TILE_K);
        tiles_dot(&b->state, TILES_C2, TILES_A0, TILES_B0);
        tiles_load(&b->state, TILES_B1, v + 3 * TILE_UINT16, 2 * TILE_K);
        tiles_dot(&b->state, TILES_C3, TILES_A0, TILES_B1);
        tiles_dot(&b->state, TILES_C2, TILES_A1, TILES_B0);
        tiles_dot(&b->state, TILES_C3, TILES_A1, TILES_B1);
    }
    tiles_store(&b->state, TILES_C0, sums, 4 * TILE);
    tiles_store(&b->state, TILES_C1, sums + TILE_FLOATS, 4 * TILE);
    if (n_tiles == 2) { return; }
    tiles_store(&b->state, TILES_C2, sums + 2 * TILE_FLOATS, 4 * TILE);
    tiles_store(&b->state, TILES_C3, sums + 3 * TILE_FLOATS, 4 * TILE);
}

/* Both halves of 32 dimensions, in the order of pack_values_in_pairs, to 16 of them in order. */
QR_INLINE qr_vec order_dims(qr_vec first, qr_vec second, __m512i order) {
    return _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(first), order, _mm512_castps_pd(second)));
}

/* Of rows [first_row, last_row). */
static void mix_few(struct blocks *b, int first_row, int last_row) {
    const __m512i order0 = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i order1 = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    const int64_t dim = b->dim_tiles * TILE_K;
    float *sums = sums_of(b, 0);
    for (int64_t j = 0; j < dim; j += 2 * TILE_K) {
        const bool is_whole = j + TILE_K < dim;
        TILES_BARRIER();
        if (is_whole) {
            multiply_few(b, j, 4, sums);
        } else {
            multiply_few(b, j, 2, sums);
        }
        TILES_BARRIER();
        for (int64_t i = 0; i < (is_whole ? 2 : 1); i++) {
            for (int row = first_row; row < last_row; row++) {
                const qr_vec first = qr_vec_load(sums + i * 2 * TILE_FLOATS + row * TILE);
                const qr_vec second = qr_vec_load(sums + (i * 2 + 1) * TILE_FLOATS + row * TILE);
                const qr_vec rescale = qr_vec_set1(b->s.rescale[row]);
                float *acc = b->s.acc + row * dim + j + i * TILE_K;
                qr_vec_store(acc, qr_vec_fma(qr_vec_load(acc), rescale, order_dims(first, second, order0)));
                acc += TILE;
                qr_vec_store(acc, qr_vec_fma(qr_vec_load(acc), rescale, order_dims(first, second, order1)));
            }
        }
    }
}

/* Of rows [first_row, last_row) of the tile, those in one group; all of them updates unused lanes too. */
static void mix_rows_between(struct tile *t, int group, int first_row, int last_row) {
    struct blocks *b = t->blocks;
    if (b->row_lanes < TILE) {
        mix_few(b, first_row, last_row);
        return;
    }
    const int first = first_row - group * TILE, last = last_row - group * TILE;
    if (last <= 0 || first >= TILE) { return; }
    const uint32_t below_last = last_row == t->n_rows ? 0xFFFFU : qr_vec_first(last);
    const uint32_t below_first = first > 0 ? qr_vec_first(first) : 0U;
    mix_group(b, group, (__mmask16)(below_last & ~below_first));
}

/* Is there an infinity or NaN in V at a column that some rows see and others do not? A weight of 0 would not do. */
static bool has_hidden_infinity(const struct tile *t) {
    const struct blocks *b = t->blocks;
    const int64_t dim = t->args->layout.head_dim;
    const __m512i exponent = _mm512_set1_epi16(0x7F80);
    if (t->args->layout.format != QR_KV_BF16) { return false; }
    if (b->common.begin <= b->seen.begin && b->common.end >= b->seen.end) { return false; }
    __mmask32 found = 0;
    for (int c = b->seen.begin; c < b->seen.end; c++) {
        if (c >= b->common.begin && c < b->common.end) { continue; }
        const unsigned char *row = b->v_pages[c / TILE] + (size_t)(c % TILE) * (size_t)dim * sizeof(uint16_t);
        for (int64_t j = 0; j < dim; j += TILE_K) {
            const __m512i x = _mm512_and_si512(kv_elements(row, QR_KV_BF16, j, dim), exponent);
            found |= _mm512_cmpeq_epi16_mask(x, exponent);
        }
    }
    return found != 0;
}

/* The rows of each token with what it sees of V alone. */
static void mix_by_token(struct tile *t, int group) {
    const struct blocks *b = t->blocks;
    for (int row = 0; row < t->n_rows; row += t->n_heads) {
        const struct range seen = visible_to_row(t, row);
        const struct range columns =
            intersect((struct range){seen.begin - b->block_start, seen.end - b->block_start}, b->seen);
        if (columns.begin >= columns.end) { continue; }
        pack_values(t, columns);
        mix_rows_between(t, group, row, row + t->n_heads);
    }
}

/* The products of the next group are under way while the weights of one are made. */
static void attend_block(struct tile *t, int32_t block_start) {
    struct blocks *b = t->blocks;
    b->block_start = block_start;
    const bool by_token = has_hidden_infinity(t);
    prefetch_ahead(t, 1);
    score_group(t, 0);
    prefetch_ahead(t, 2);
    for (int group = 0; group < b->n_groups; group++) {
        weigh_group(t, group);
        if (group + 1 < b->n_groups) { score_group(t, group + 1); }
        if (group == 0) { prefetch_ahead(t, 3); }
        if (by_token) {
            mix_by_token(t, group);
        } else {
            mix_rows_between(t, group, 0, t->n_rows);
        }
    }
}

#endif
