/* The block part of attention over pages (attention_pages_template.h) on matrix tiles, for K and V that BF16 holds
 * exactly. Included after kernels/cpu/simd/tiles_amx.h or tiles_emulated.h.
 *
 * q and the softmax weights are split into two BF16 values, high + low, whose products go to sums of their own. A
 * score is the sum of the two; acc = acc · rescale + (high + low) once a block. Both take 32 elements at a time in
 * ascending order (tile_sum.h). Scores are in units of ln 2: what q is scaled with contains log2 e.
 *
 * K is the first operand as it lies in its pages, so a tile of scores is [16 positions][16 query rows]: lanes are rows,
 * and the softmax needs no sums across lanes. Up to 8 rows share one tile with their low parts, and a vector holds
 * several positions of them. The weights are then the first operand, and V the second, in pairs of positions. More
 * rows take groups of 16, and V transposed as the first operand, for which weights need not be. None of this changes
 * the order of any sum: the weights of positions with one remainder by 4 are added in order, and then the four sums. */
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
    int64_t dim_tiles;                   /* of 32 dimensions */
    int row_lanes;                       /* query rows side by side in a vector: 4, 8 or 16 */
    int n_groups;                        /* of 16 rows; 1 where row_lanes is less */
    int32_t position[QR_ATTENTION_ROWS]; /* of the query in each lane of each group */
    /* The block. Pages that are not loaded are NULL. */
    int32_t block_start;
    const unsigned char *k_pages[PAGES], *v_pages[PAGES];
    struct range seen;   /* columns that some row sees */
    struct range common; /* columns that every row sees */
    int first_half, last_half;
};

/* --- Operands --- */

/* 16 elements of one vector, then 16 of the other. */
QR_INLINE __m512i both_bf16(qr_vec first, qr_vec second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }

/* high + low ≈ x: BF16 in the upper halves of lanes, the lower halves are of no meaning. */
QR_INLINE void split_bf16(qr_vec x, __m512i *high, __m512i *low) {
    const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(-65536);
    *high = _mm512_add_epi32(_mm512_castps_si512(x), half);
    const qr_vec rest = qr_vec_sub(x, _mm512_castsi512_ps(_mm512_and_si512(*high, upper)));
    *low = _mm512_add_epi32(_mm512_castps_si512(rest), half);
}

/* The upper halves of lanes as pairs: of `even` first. */
QR_INLINE __m512i upper_pairs(__m512i even, __m512i odd) {
    return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even, 16), odd);
}

QR_INLINE qr_vec as_units(__m512i v) { return _mm512_castsi512_ps(v); }

/* q of one row in 32 dimensions as 16 pairs, high and low. */
QR_INLINE void query_units(const struct tile *t, int row, int64_t j, float factor, qr_vec *high, qr_vec *low) {
    *high = *low = qr_vec_zero();
    if (row >= t->n_rows) { return; }
    const int64_t dim = t->args->layout.head_dim;
    qr_vec part[2], rest[2];
    for (int i = 0; i < 2; i++) {
        const int64_t at = j + i * QR_VEC;
        const qr_vec x = at < dim ? qr_vec_load_n(t->q[row] + at, dim - at) : qr_vec_zero();
        const qr_vec scaled = qr_vec_mul(x, qr_vec_set1(factor));
        part[i] = qr_vec_round_bf16(scaled);
        rest[i] = qr_vec_sub(scaled, part[i]);
    }
    *high = as_units(both_bf16(part[0], part[1]));
    *low = as_units(both_bf16(rest[0], rest[1]));
}

QR_INLINE void store_transposed(qr_vec units[TILE], uint16_t *tile) {
    qr_vec_transpose(units);
    QR_UNROLL for (int i = 0; i < TILE; i++) { qr_vec_store((float *)(void *)(tile + i * TILE_K), units[i]); }
}

/* [n_groups][dim_tiles][2], high and low; few rows: [dim_tiles], high in the first columns, low after them. */
static void pack_queries(const struct tile *t, struct blocks *b) {
    const qr_attention_args *a = t->args;
    const float factor = a->softcap > 0.0F ? a->scale : (float)((double)a->scale * LOG2_E);
    const bool few = b->row_lanes < TILE;
    uint16_t *dst = b->s.q;
    for (int group = 0; group < b->n_groups; group++) {
        for (int64_t j = 0; j < b->dim_tiles * TILE_K; j += TILE_K) {
            qr_vec high[TILE], low[TILE];
            for (int i = 0; i < TILE; i++) { query_units(t, group * TILE + i, j, factor, &high[i], &low[i]); }
            if (few) {
                for (int i = b->row_lanes; i < 2 * b->row_lanes; i++) { high[i] = low[i - b->row_lanes]; }
            }
            store_transposed(high, dst);
            dst += TILE_UINT16;
            if (few) { continue; }
            store_transposed(low, dst);
            dst += TILE_UINT16;
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
    const size_t row_bytes = (size_t)layout->head_dim * qr_kv_element_bytes(layout->format);
    for (int c = 0; c < BLOCK; c++) {
        const bool seen = c >= columns.begin && c < columns.end;
        rows[c] = seen ? b->v_pages[c / TILE] + (size_t)(c % TILE) * row_bytes
                       : (const unsigned char *)(const void *)b->s.zeros;
    }
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
        b->k_pages[i] = b->v_pages[i] = NULL;
        if (!loaded) { continue; }
        const unsigned char *page = page_of(t, position);
        if (position + QR_ATTENTION_BLOCK < tile_visible.end) {
            const unsigned char *ahead = page_of(t, position + QR_ATTENTION_BLOCK);
            prefetch_part(ahead + k_part, head_bytes);
            prefetch_part(ahead + v_part, head_bytes);
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
    pack_values(t, b->seen);
}

/* --- Scores --- */

/* [PAGES][2][16][16], high and low, of the pages of one half of a block and one group. */
static void score_group(struct blocks *b, const uint16_t *const *keys, size_t key_bytes, int half, const uint16_t *q,
                        float *scores) {
    const uint16_t *k0 = keys[2 * half], *k1 = keys[2 * half + 1];
    tiles_zero(&b->state, TILES_C0);
    tiles_zero(&b->state, TILES_C1);
    tiles_zero(&b->state, TILES_C2);
    tiles_zero(&b->state, TILES_C3);
    for (int64_t i = 0; i < b->dim_tiles; i++, k0 += TILE_K, k1 += TILE_K, q += 2 * TILE_UINT16) {
        tiles_load(&b->state, TILES_A0, k0, key_bytes);
        tiles_load(&b->state, TILES_B0, q, 2 * TILE_K);
        tiles_load(&b->state, TILES_B1, q + TILE_UINT16, 2 * TILE_K);
        tiles_load(&b->state, TILES_A1, k1, key_bytes);
        tiles_dot(&b->state, TILES_C0, TILES_A0, TILES_B0);
        tiles_dot(&b->state, TILES_C1, TILES_A0, TILES_B1);
        tiles_dot(&b->state, TILES_C2, TILES_A1, TILES_B0);
        tiles_dot(&b->state, TILES_C3, TILES_A1, TILES_B1);
    }
    float *c = scores + 2 * half * 2 * TILE_FLOATS;
    tiles_store(&b->state, TILES_C0, c, 4 * TILE);
    tiles_store(&b->state, TILES_C1, c + TILE_FLOATS, 4 * TILE);
    tiles_store(&b->state, TILES_C2, c + 2 * TILE_FLOATS, 4 * TILE);
    tiles_store(&b->state, TILES_C3, c + 3 * TILE_FLOATS, 4 * TILE);
}

/* [BLOCK][16]: columns are rows with their high parts, then with their low parts. */
static void score_few(struct blocks *b, const uint16_t *const *keys, size_t key_bytes, const uint16_t *q,
                      float *scores) {
    tiles_zero(&b->state, TILES_C0);
    tiles_zero(&b->state, TILES_C1);
    tiles_zero(&b->state, TILES_C2);
    tiles_zero(&b->state, TILES_C3);
    for (int64_t i = 0; i < b->dim_tiles; i++) {
        tiles_load(&b->state, TILES_B0, q + i * TILE_UINT16, 2 * TILE_K);
        tiles_load(&b->state, TILES_A0, keys[0] + i * TILE_K, key_bytes);
        tiles_dot(&b->state, TILES_C0, TILES_A0, TILES_B0);
        tiles_load(&b->state, TILES_A1, keys[1] + i * TILE_K, key_bytes);
        tiles_dot(&b->state, TILES_C1, TILES_A1, TILES_B0);
        tiles_load(&b->state, TILES_A0, keys[2] + i * TILE_K, key_bytes);
        tiles_dot(&b->state, TILES_C2, TILES_A0, TILES_B0);
        tiles_load(&b->state, TILES_A1, keys[3] + i * TILE_K, key_bytes);
        tiles_dot(&b->state, TILES_C3, TILES_A1, TILES_B0);
    }
    tiles_store(&b->state, TILES_C0, scores, 4 * TILE);
    tiles_store(&b->state, TILES_C1, scores + TILE_FLOATS, 4 * TILE);
    tiles_store(&b->state, TILES_C2, scores + 2 * TILE_FLOATS, 4 * TILE);
    tiles_store(&b->state, TILES_C3, scores + 3 * TILE_FLOATS, 4 * TILE);
}

static void score_block(const struct tile *t) {
    struct blocks *b = t->blocks;
    const bool in_place = reads_keys_in_place(t);
    const size_t key_bytes = 2 * (size_t)(in_place ? t->args->layout.head_dim : b->dim_tiles * TILE_K);
    const uint16_t *keys[PAGES];
    for (int page = 0; page < PAGES; page++) { keys[page] = page_keys(t, b, page); }
    TILES_BARRIER();
    if (b->row_lanes < TILE) {
        score_few(b, keys, key_bytes, b->s.q, b->s.scores);
    } else {
        for (int group = 0; group < b->n_groups; group++) {
            const uint16_t *q = b->s.q + group * b->dim_tiles * 2 * TILE_UINT16;
            float *scores = b->s.scores + group * PAGES * 2 * TILE_FLOATS;
            for (int half = b->first_half; half < b->last_half; half++) {
                score_group(b, keys, key_bytes, half, q, scores);
            }
        }
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
    if (row_lanes == TILE) {
        const float *page = scores + v / TILE * 2 * TILE_FLOATS + v % TILE * TILE;
        return qr_vec_add(qr_vec_load(page), qr_vec_load(page + TILE_FLOATS));
    }
    if (row_lanes == 8) {
        const qr_vec a = qr_vec_load(scores + 2 * v * TILE), c = qr_vec_load(scores + (2 * v + 1) * TILE);
        return qr_vec_add(_mm512_shuffle_f32x4(a, c, 0x44), _mm512_shuffle_f32x4(a, c, 0xEE));
    }
    const float *at = scores + 4 * v * TILE;
    const qr_vec a = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(at)), _mm256_loadu_ps(at + TILE), 1);
    const qr_vec c =
        _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(at + 2 * TILE)), _mm256_loadu_ps(at + 3 * TILE), 1);
    return qr_vec_add(_mm512_shuffle_f32x4(a, c, 0x88), _mm512_shuffle_f32x4(a, c, 0xDD));
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
    const float *scores = b->s.scores + group * PAGES * 2 * TILE_FLOATS;
    float *weights = b->s.exponents;
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
            qr_vec_store(weights + (v + i) * TILE, score);
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
        uint16_t *dst = b->s.weights + (group * HALVES + v / TILE_K) * 2 * TILE_UINT16 + v % TILE_K / 2 * TILE_K;
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

/* Dimensions [j, j + 32) of a group: [2][2][16][16], 16 dimensions with the high and with the low parts, then 16 more.
 */
static void multiply_values(struct blocks *b, int group, int64_t j, float *products) {
    const uint16_t *v = b->s.values + j * BLOCK, *p = b->s.weights + group * HALVES * 2 * TILE_UINT16;
    tiles_zero(&b->state, TILES_C0);
    tiles_zero(&b->state, TILES_C1);
    tiles_zero(&b->state, TILES_C2);
    tiles_zero(&b->state, TILES_C3);
    for (int half = b->first_half; half < b->last_half; half++) {
        tiles_load(&b->state, TILES_A0, v + half * TILE_K, 2 * BLOCK);
        tiles_load(&b->state, TILES_B0, p + half * 2 * TILE_UINT16, 2 * TILE_K);
        tiles_load(&b->state, TILES_B1, p + (half * 2 + 1) * TILE_UINT16, 2 * TILE_K);
        tiles_load(&b->state, TILES_A1, v + TILE * BLOCK + half * TILE_K, 2 * BLOCK);
        tiles_dot(&b->state, TILES_C0, TILES_A0, TILES_B0);
        tiles_dot(&b->state, TILES_C1, TILES_A0, TILES_B1);
        tiles_dot(&b->state, TILES_C2, TILES_A1, TILES_B0);
        tiles_dot(&b->state, TILES_C3, TILES_A1, TILES_B1);
    }
    tiles_store(&b->state, TILES_C0, products, 4 * TILE);
    tiles_store(&b->state, TILES_C1, products + TILE_FLOATS, 4 * TILE);
    tiles_store(&b->state, TILES_C2, products + 2 * TILE_FLOATS, 4 * TILE);
    tiles_store(&b->state, TILES_C3, products + 3 * TILE_FLOATS, 4 * TILE);
}

/* Of the rows in `lanes` of one group. */
static void mix_group(struct blocks *b, int group, __mmask16 lanes) {
    const qr_vec rescale = qr_vec_load(b->s.rescale + group * TILE);
    const int64_t dim = b->dim_tiles * TILE_K;
    for (int64_t j = 0; j < dim; j += 2 * TILE_K) {
        const int64_t n = qr_min(2 * TILE_K, dim - j);
        TILES_BARRIER();
        for (int64_t i = 0; i < n; i += TILE_K) {
            multiply_values(b, group, j + i, b->s.products + i / TILE_K * 4 * TILE_FLOATS);
        }
        TILES_BARRIER();
        float *acc = b->s.acc + (group * dim + j) * TILE;
        for (int64_t i = 0; i < n; i++) {
            const float *high = b->s.products + i / TILE * 2 * TILE_FLOATS + i % TILE * TILE;
            const qr_vec sum = qr_vec_add(qr_vec_load(high), qr_vec_load(high + TILE_FLOATS));
            const qr_vec old = qr_vec_load(acc + i * TILE);
            qr_vec_store(acc + i * TILE, _mm512_mask_mov_ps(old, lanes, qr_vec_fma(old, rescale, sum)));
        }
    }
}

/* Dimensions [j, j + 64) or the 32 that are left: [n / 16][16][16]. */
static void multiply_few_values(struct blocks *b, int64_t j, bool both, float *products) {
    tiles_zero(&b->state, TILES_C0);
    tiles_zero(&b->state, TILES_C1);
    tiles_zero(&b->state, TILES_C2);
    tiles_zero(&b->state, TILES_C3);
    for (int half = b->first_half; half < b->last_half; half++) {
        const uint16_t *v = b->s.values + (half * b->dim_tiles * TILE_K + j) * TILE_K;
        tiles_load(&b->state, TILES_A0, b->s.weights + half * TILE_K, 2 * BLOCK);
        tiles_load(&b->state, TILES_B0, v, 2 * TILE_K);
        tiles_dot(&b->state, TILES_C0, TILES_A0, TILES_B0);
        tiles_load(&b->state, TILES_B1, v + TILE_UINT16, 2 * TILE_K);
        tiles_dot(&b->state, TILES_C1, TILES_A0, TILES_B1);
        if (!both) { continue; }
        tiles_load(&b->state, TILES_B0, v + 2 * TILE_UINT16, 2 * TILE_K);
        tiles_dot(&b->state, TILES_C2, TILES_A0, TILES_B0);
        tiles_load(&b->state, TILES_B1, v + 3 * TILE_UINT16, 2 * TILE_K);
        tiles_dot(&b->state, TILES_C3, TILES_A0, TILES_B1);
    }
    tiles_store(&b->state, TILES_C0, products, 4 * TILE);
    tiles_store(&b->state, TILES_C1, products + TILE_FLOATS, 4 * TILE);
    if (!both) { return; }
    tiles_store(&b->state, TILES_C2, products + 2 * TILE_FLOATS, 4 * TILE);
    tiles_store(&b->state, TILES_C3, products + 3 * TILE_FLOATS, 4 * TILE);
}

/* Of rows [first_row, last_row). */
static void mix_few(struct blocks *b, int first_row, int last_row) {
    const __m512i order0 = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i order1 = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    const int64_t dim = b->dim_tiles * TILE_K;
    for (int64_t j = 0; j < dim; j += 2 * TILE_K) {
        const bool both = j + TILE_K < dim;
        TILES_BARRIER();
        multiply_few_values(b, j, both, b->s.products);
        TILES_BARRIER();
        for (int64_t i = 0; i < (both ? 2 : 1); i++) {
            for (int row = first_row; row < last_row; row++) {
                const float *high = b->s.products + i * 2 * TILE_FLOATS + row * TILE;
                const float *low = high + b->row_lanes * TILE;
                const qr_vec x = qr_vec_add(qr_vec_load(high), qr_vec_load(low));
                const qr_vec y = qr_vec_add(qr_vec_load(high + TILE_FLOATS), qr_vec_load(low + TILE_FLOATS));
                const qr_vec rescale = qr_vec_set1(b->s.rescale[row]);
                float *acc = b->s.acc + row * dim + j + i * TILE_K;
                const qr_vec v0 =
                    _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(x), order0, _mm512_castps_pd(y)));
                const qr_vec v1 =
                    _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(x), order1, _mm512_castps_pd(y)));
                qr_vec_store(acc, qr_vec_fma(qr_vec_load(acc), rescale, v0));
                qr_vec_store(acc + TILE, qr_vec_fma(qr_vec_load(acc + TILE), rescale, v1));
            }
        }
    }
}

static void mix_rows_between(struct tile *t, int first_row, int last_row) {
    struct blocks *b = t->blocks;
    if (b->row_lanes < TILE) {
        mix_few(b, first_row, last_row);
        return;
    }
    for (int group = 0; group < b->n_groups; group++) {
        const int first = first_row - group * TILE, last = last_row - group * TILE;
        if (last <= 0 || first >= TILE) { continue; }
        const uint32_t below_last = qr_vec_first(last), below_first = first > 0 ? qr_vec_first(first) : 0U;
        mix_group(b, group, (__mmask16)(below_last & ~below_first));
    }
}

/* Is there an infinity or NaN in V at a column that some rows see and others do not? A weight of 0 would not do. */
static bool has_hidden_infinity(const struct tile *t) {
    const struct blocks *b = t->blocks;
    const int64_t dim = t->args->layout.head_dim;
    const __m512i exponent = _mm512_set1_epi16(0x7F80);
    if (t->args->layout.format != QR_KV_BF16) { return false; }
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

static void attend_block(struct tile *t, int32_t block_start) {
    struct blocks *b = t->blocks;
    b->block_start = block_start;
    score_block(t);
    for (int group = 0; group < b->n_groups; group++) { weigh_group(t, group); }
    if (!has_hidden_infinity(t)) {
        mix_rows_between(t, 0, t->n_rows);
        return;
    }
    for (int row = 0; row < t->n_rows; row += t->n_heads) {
        const struct range seen = visible_to_row(t, row);
        const struct range columns =
            intersect((struct range){seen.begin - block_start, seen.end - block_start}, b->seen);
        if (columns.begin >= columns.end) { continue; }
        pack_values(t, columns);
        mix_rows_between(t, row, row + t->n_heads);
    }
}

#endif
