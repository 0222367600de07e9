/* linear in AVX2 with x in BF16 and weights of 4 bits or INT8, by products of 16-bit integers: kernels/int16_sum.h says
 * which, and in which order they are added.
 *
 * A vector holds 16 columns of a row. vpmaddwd multiplies them with 16 of x and adds pairs, in 32 bits; four of these
 * make a block of 64 columns, which is converted and added to eight lanes of F32 with the factors of its weights and of
 * x by one FMA. So a block takes 10 instructions for a row of weights and one of x, where F32 takes eight for the
 * products and more to convert the weights; and the integers of 4-bit codes are the same in every block, so no table is
 * made for each of them, which took a third of the time of one row of x (docs/speed.md).
 *
 * A K block of a row of x is packed as 512 integers and then the factors of their eight blocks. Those of all rows
 * follow each other: of rows that lie whole, at 2,048 columns, 16 would use the same few sets of L1. */
#include <stdbool.h>
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_scales.h"
#include "kernels/cpu/simd/vec_tile.h"
#include "kernels/int16_sum.h"

enum {
    K_BLOCK = QR_INT16_K_BLOCK,
    RUN = 128, /* columns of a run of codes */
    COLS = QR_INT16_COLS,
    VECTORS = COLS / 16, /* of a block */
    BLOCKS = K_BLOCK / COLS,
    MOST_FACTORS = K_BLOCK / QR_CPU_MXFP4_SCALE_COLS, /* of a row of weights */
    X_BLOCK = K_BLOCK + 2 * BLOCKS,                   /* elements that a K block of x takes */
    GROUP = QR_CPU_NF4_GROUP_ROWS,
    DECODE_X = QR_CPU_DECODE_ROWS,
    TILE_W = 8, /* weight rows that meet a row of x at once */
};

QR_INLINE __m256i load_words(const void *src) { return _mm256_loadu_si256((const __m256i *)src); }
QR_INLINE void store_words(void *dst, __m256i words) { _mm256_storeu_si256((__m256i *)dst, words); }

/* --- x ----------------------------------------------------------------------------------------------------------- */

/* The largest of 64 magnitudes of BF16. */
QR_INLINE int largest_magnitude(const __m256i words[VECTORS]) {
    const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
    __m256i most = _mm256_setzero_si256();
    QR_UNROLL for (int j = 0; j < VECTORS; j++) {
        most = _mm256_max_epu16(most, _mm256_and_si256(words[j], magnitude));
    }
    const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    const __m128i inverted = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1))); /* the least of them */
    return 0xFFFF & ~_mm_extract_epi16(inverted, 0);
}

/* 64 values of x as integers; returns their factor. */
QR_INLINE float pack_block(const uint16_t *x, int16_t *dst) {
    __m256i words[VECTORS];
    QR_UNROLL for (int j = 0; j < VECTORS; j++) { words[j] = load_words(x + 16 * j); }
    const qr_int16_factor factor = qr_int16_factor_of((uint16_t)largest_magnitude(words));
    const __m256 inverse = _mm256_set1_ps(factor.inverse);
    QR_UNROLL for (int j = 0; j < VECTORS; j++) {
        const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(words[j], 16));
        const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(words[j], _mm256_set1_epi32((int)0xFFFF0000)));
        const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(even, inverse));
        const __m256i high = _mm256_slli_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(odd, inverse)), 16);
        store_words(dst + 16 * j, _mm256_blend_epi16(low, high, 0xAA));
    }
    return factor.factor;
}

static void pack_row(const uint16_t *x, int64_t n, int64_t k_stride, void *untyped) {
    int16_t *dst = untyped;
    for (int64_t k = 0; k < n; k += COLS) {
        uint16_t last[COLS] = {0};
        const uint16_t *src = n - k >= COLS ? x + k : memcpy(last, x + k, (size_t)(n - k) * sizeof *x);
        int16_t *block = dst + k / K_BLOCK * k_stride;
        float *factors = (float *)(void *)(block + K_BLOCK);
        factors[k % K_BLOCK / COLS] = pack_block(src, block + k % K_BLOCK);
    }
}

/* --- Weights ----------------------------------------------------------------------------------------------------- */

/* The integers of the 16 codes: their low bytes, and their high ones, each in both halves of a register. */
typedef struct code_bytes {
    __m256i low, high;
} code_bytes;

QR_INLINE code_bytes bytes_of_codes(const bool is_mxfp4) {
    static const int16_t nf4[16] = {-7854, -5468, -4124, -3102, -2234, -1451, -715, 0,
                                    625,   1264,  1933,  2654,  3461,  4419,  5678, 7854};
    static const int16_t mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12,
                                           14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i bytes = _mm256_shuffle_epi8(load_words(is_mxfp4 ? mxfp4 : nf4), order);
    return (code_bytes){_mm256_permute4x64_epi64(bytes, 0x88), _mm256_permute4x64_epi64(bytes, 0xDD)};
}

/* A block of codes (NF4_GROUPS, in blocks) as integers, in order. The upper halves of bytes are moved by a product:
 * shifts share two of Zen 3's four ports with the shuffles, which have enough to do. */
QR_INLINE void block_of_codes(const uint8_t *block, const code_bytes *of, __m256i words[VECTORS]) {
    const __m256i codes = load_words(block), shifted = _mm256_mulhi_epu16(codes, _mm256_set1_epi16(1 << 12));
    QR_UNROLL for (int part = 0; part < 2; part++) {
        const __m256i code = _mm256_and_si256(part == 0 ? codes : shifted, _mm256_set1_epi8(15));
        const __m256i low = _mm256_shuffle_epi8(of->low, code), high = _mm256_shuffle_epi8(of->high, code);
        words[2 * part] = _mm256_unpacklo_epi8(low, high);
        words[2 * part + 1] = _mm256_unpackhi_epi8(low, high);
    }
}

QR_INLINE void block_of_int8(const int8_t *src, __m256i words[VECTORS]) {
    QR_UNROLL for (int j = 0; j < VECTORS; j++) {
        words[j] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(src + 16 * j)));
    }
}

/* factors[r][b]: those of columns [k, k + n_k) of n_rows rows. */
QR_INLINE void fetch_factors(const qr_cpu_panel *p, int64_t row, int64_t n_rows, int64_t k, int64_t n_k,
                             const bool is_mxfp4, float factors[][MOST_FACTORS]) {
    const int n = K_BLOCK / qr_cpu_scale_cols_of(is_mxfp4);
    const __m256 unit = _mm256_set1_ps(is_mxfp4 ? QR_INT16_MXFP4_UNIT : QR_INT16_NF4_UNIT);
    fetch_scales(p, row, n_rows, k, n_k, qr_cpu_scale_cols_of(is_mxfp4), &factors[0][0], MOST_FACTORS);
    for (int64_t r = 0; r < n_rows; r++) {
        for (int i = 0; i < n; i += 8) {
            _mm256_storeu_ps(factors[r] + i, _mm256_mul_ps(_mm256_loadu_ps(factors[r] + i), unit));
        }
    }
}

/* --- Panels: tiles of eight rows --------------------------------------------------------------------------------- */

typedef struct tile {
    int16_t rows[TILE_W][K_BLOCK];
    float factors[MOST_FACTORS][TILE_W];
} tile;

/* A panel has room for rows of K_BLOCK elements and one vector each (linear.c). */
_Static_assert(sizeof(tile) <= TILE_W * (K_BLOCK * sizeof(int16_t) + QR_CPU_VECTOR_BYTES), "a panel is too small");

QR_INLINE void store_block(int16_t *dst, const __m256i words[VECTORS]) {
    QR_UNROLL for (int j = 0; j < VECTORS; j++) { store_words(dst + 16 * j, words[j]); }
}

/* Row r of a group, whose first run is given. */
QR_INLINE void fetch_codes(const uint8_t *run, int64_t r, int64_t n_k, const code_bytes *of, int16_t *dst) {
    for (int64_t k = 0; k < n_k; k += RUN, run += GROUP * RUN / 2) {
        const int64_t n = qr_min(n_k - k, RUN);
        for (int64_t j = 0; j < n; j += COLS) {
            __m256i words[VECTORS];
            block_of_codes(run + (r * n + j) / 2, of, words);
            store_block(dst + k + j, words);
        }
    }
}

/* Rows of one group. `ahead`: what is fetched after them. */
QR_INLINE void fetch_group(const qr_cpu_panel *p, int64_t row, int64_t n_rows, const uint8_t *ahead,
                           const bool is_mxfp4, tile *tiles) {
    const code_bytes of = bytes_of_codes(is_mxfp4);
    const int64_t in_group = row % GROUP, n_bytes = GROUP * p->n_k / 2, n = p->n_k / qr_cpu_scale_cols_of(is_mxfp4);
    const uint8_t *run = qr_cpu_nf4_run(p->weight, p->layout, row - in_group, p->k);
    float factors[GROUP][MOST_FACTORS];
    memset(factors, 0, sizeof factors); /* whole vectors are multiplied */
    fetch_factors(p, row, n_rows, p->k, p->n_k, is_mxfp4, factors);
    for (int64_t r = 0; r < n_rows; r++) {
        tile *t = &tiles[r / TILE_W];
        for (int64_t i = r * 64; i < n_bytes; i += GROUP * 64) { __builtin_prefetch(ahead + i); }
        fetch_codes(run, in_group + r, p->n_k, &of, t->rows[r % TILE_W]);
        for (int64_t i = 0; i < n; i++) { t->factors[i][r % TILE_W] = factors[r][i]; }
    }
}

static void fetch_int8_row(const qr_cpu_panel *p, int64_t row, const uint8_t *ahead, tile *t, int64_t r) {
    const int8_t *src = (const int8_t *)qr_cpu_row(p->weight, p->layout, row) + p->k;
    for (int64_t k = 0; k < p->n_k; k += COLS) {
        __m256i words[VECTORS];
        __builtin_prefetch(ahead + k);
        block_of_int8(src + k, words);
        store_block(t->rows[r] + k, words);
        t->factors[k / COLS][r] = 1.0F;
    }
}

/* Rows past the last, up to a whole tile, are zeros. */
static void fetch(const qr_cpu_panel *p) {
    tile *const tiles = p->dst;
    const bool is_int8 = p->weight->desc.format == QR_WEIGHT_INT8;
    if (p->n_rows % TILE_W != 0) { memset(&tiles[p->n_rows / TILE_W], 0, sizeof *tiles); }
    for (int64_t r = 0, n_rows; r < p->n_rows; r += n_rows) {
        n_rows = is_int8 ? 1 : qr_min(p->n_rows - r, GROUP);
        int64_t next_row, next_k;
        qr_cpu_position_ahead(p, p->row + r, is_int8 ? p->n_rows : n_rows, &next_row, &next_k);
        if (is_int8) {
            const uint8_t *ahead = (const uint8_t *)qr_cpu_row(p->weight, p->layout, next_row) + next_k;
            fetch_int8_row(p, p->row + r, ahead, &tiles[r / TILE_W], r % TILE_W);
            continue;
        }
        const uint8_t *ahead = qr_cpu_nf4_run(p->weight, p->layout, next_row, next_k);
        if (p->weight->desc.format == QR_WEIGHT_MXFP4) {
            fetch_group(p, p->row + r, n_rows, ahead, true, &tiles[r / TILE_W]);
        } else {
            fetch_group(p, p->row + r, n_rows, ahead, false, &tiles[r / TILE_W]);
        }
    }
}

/* --- Products ---------------------------------------------------------------------------------------------------- */

/* Sums of products of n vectors, in integers. */
QR_INLINE __m256i products(const __m256i *words, const int16_t *other, const int n) {
    __m256i sums[VECTORS];
    QR_UNROLL for (int j = 0; j < n; j++) { sums[j] = _mm256_madd_epi16(words[j], load_words(other + 16 * j)); }
    QR_UNROLL for (int j = 0; j < n; j += 2) { sums[j] = _mm256_add_epi32(sums[j], sums[j + 1]); }
    return n == 2 ? sums[0] : _mm256_add_epi32(sums[0], sums[2]);
}

QR_INLINE __m256 add_products(__m256 lanes, __m256i sums, __m256 factor) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), factor, lanes);
}

QR_INLINE const float *factors_of(const int16_t *x) { return (const float *)(const void *)(x + K_BLOCK); }

/* Element r of both halves of v, in all lanes. */
QR_INLINE __m256 element(__m256 v, const int r) {
    switch (r) {
        case 0: return _mm256_permute_ps(v, 0x00);
        case 1: return _mm256_permute_ps(v, 0x55);
        case 2: return _mm256_permute_ps(v, 0xAA);
        default: return _mm256_permute_ps(v, 0xFF);
    }
}

/* Four factors of a tile, in both halves, by that of x. They stay in registers: written to memory and read one by one
 * they take longer where x comes from L2 (docs/speed.md). */
QR_INLINE __m256 four_factors(const float *of_w, __m256 of_x) {
    return _mm256_mul_ps(_mm256_broadcast_ps((const __m128 *)(const void *)of_w), of_x);
}

/* A tile by one row of x, where weights have a factor every `cols` columns, a constant after inlining. The next row is
 * asked for: it comes from L2, and the tile stays in L1. */
QR_INLINE void multiply_row(const tile *t, const int16_t *x, const int16_t *next, int64_t n_blocks, const int cols,
                            float *sums, bool first) {
    const int n_vectors = cols / 16;
    const float *of_x = factors_of(x), *of_w = t->factors[0];
    const int16_t *w = t->rows[0];
    __m256 lanes[TILE_W];
    QR_UNROLL for (int r = 0; r < TILE_W; r++) { lanes[r] = _mm256_setzero_ps(); }
    for (int64_t b = 0; b < n_blocks; b++, w += COLS, x += COLS, next += COLS) {
        const __m256 factor = _mm256_broadcast_ss(of_x + b);
        __m256i words[VECTORS];
        __builtin_prefetch(next);
        __builtin_prefetch(next + COLS / 2);
        QR_UNROLL for (int j = 0; j < VECTORS; j++) { words[j] = load_words(x + 16 * j); }
        QR_UNROLL for (int v = 0; v < VECTORS; v += n_vectors, of_w += TILE_W) {
            const __m256 four[2] = {four_factors(of_w, factor), four_factors(of_w + 4, factor)};
            QR_UNROLL for (int r = 0; r < TILE_W; r++) {
                const __m256i n = products(words + v, w + r * K_BLOCK + 16 * v, n_vectors);
                lanes[r] = add_products(lanes[r], n, element(four[r / 4], r % 4));
            }
        }
    }
    qr_vec_reduce(lanes, sums, first);
    qr_vec_reduce(lanes + 4, sums + 4, first);
}

QR_INLINE void multiply_panel(const qr_cpu_product *p, const int cols) {
    const tile *t = p->w;
    for (int64_t o = 0; o < p->n_w; o += TILE_W, t++) {
        const int16_t *x = p->x;
        float *sums = p->sums + o;
        for (int64_t i = 0; i < p->n_x; i++, x += p->x_stride, sums += p->sum_stride) {
            multiply_row(t, x, x + p->x_stride, p->n_k / COLS, cols, sums, p->first);
        }
    }
}

static void multiply(const qr_cpu_product *p) {
    if (p->format == QR_WEIGHT_MXFP4) {
        multiply_panel(p, QR_CPU_MXFP4_SCALE_COLS);
    } else {
        multiply_panel(p, COLS);
    }
}

/* --- A few rows of x: from the codes ----------------------------------------------------------------------------- */

/* Products of the factors of a group's rows and of x. */
typedef struct decode_factors {
    float of[DECODE_X][GROUP][MOST_FACTORS];
} decode_factors;

/* Of columns [k, k + n_k). */
QR_INLINE void fetch_decode_factors(const qr_cpu_panel *p, int64_t row, int64_t k, int64_t n_k, const int16_t *x,
                                    int64_t x_stride, const int n_x, const bool is_mxfp4, decode_factors *dst) {
    const __m256i twice[2] = {_mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)};
    const __m256 unit = _mm256_set1_ps(is_mxfp4 ? QR_INT16_MXFP4_UNIT : QR_INT16_NF4_UNIT);
    float of_w[GROUP][MOST_FACTORS];
    if (n_k < K_BLOCK) { memset(of_w, 0, sizeof of_w); } /* whole vectors are multiplied */
    fetch_scales(p, row, GROUP, k, n_k, qr_cpu_scale_cols_of(is_mxfp4), &of_w[0][0], MOST_FACTORS);
    for (int half = 0; half < (is_mxfp4 ? 2 : 1); half++) {
        __m256 of_x[DECODE_X];
        QR_UNROLL for (int i = 0; i < n_x; i++) {
            of_x[i] = _mm256_loadu_ps(factors_of(x + i * x_stride));
            if (is_mxfp4) { of_x[i] = _mm256_permutevar8x32_ps(of_x[i], twice[half]); }
        }
        for (int r = 0; r < GROUP; r++) {
            const __m256 factors = _mm256_mul_ps(_mm256_loadu_ps(of_w[r] + 8 * half), unit);
            QR_UNROLL for (int i = 0; i < n_x; i++) {
                _mm256_storeu_ps(dst->of[i][r] + 8 * half, _mm256_mul_ps(factors, of_x[i]));
            }
        }
    }
}

/* A block of a row with n_x rows of x. factors: of the first row of x. */
QR_INLINE void decode_block(__m256 *lanes, const __m256i words[VECTORS], const int16_t *x, int64_t x_stride,
                            const int n_x, const float *factors, const int cols) {
    const int n_vectors = cols / 16;
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        QR_UNROLL for (int v = 0; v < VECTORS; v += n_vectors) {
            const float *factor = factors + i * GROUP * MOST_FACTORS + v / n_vectors;
            const __m256i n = products(words + v, x + i * x_stride + 16 * v, n_vectors);
            lanes[i] = add_products(lanes[i], n, _mm256_broadcast_ss(factor));
        }
    }
}

/* sums[i · stride + r] of QR_TILE_ROWS rows. */
QR_INLINE void reduce_rows(__m256 lanes[QR_TILE_ROWS][DECODE_X], const int n_x, float *sums, int64_t stride,
                           bool first) {
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        const qr_vec four[QR_TILE_ROWS] = {lanes[0][i], lanes[1][i], lanes[2][i], lanes[3][i]};
        qr_vec_reduce(four, sums + i * stride, first);
    }
}

/* n_cols columns (a run, or the last block) of a group's rows. factors: of row 0 and row 0 of x. */
QR_INLINE void decode_run(__m256 lanes[GROUP][DECODE_X], const uint8_t *run, const int n_cols, const code_bytes *of,
                          const int16_t *x, int64_t x_stride, const int n_x, const float *factors, const int cols) {
    enum { AHEAD_BYTES = 4096 };
    for (int r = 0; r < GROUP; r++, run += n_cols / 2, factors += MOST_FACTORS) {
        __m256 sums[DECODE_X];
        __builtin_prefetch(run + AHEAD_BYTES);
        QR_UNROLL for (int i = 0; i < n_x; i++) { sums[i] = lanes[r][i]; }
        QR_UNROLL for (int k = 0; k < n_cols; k += COLS) {
            __m256i words[VECTORS];
            block_of_codes(run + k / 2, of, words);
            decode_block(sums, words, x + k, x_stride, n_x, factors + k / cols, cols);
        }
        QR_UNROLL for (int i = 0; i < n_x; i++) { lanes[r][i] = sums[i]; }
    }
}

/* A K block of a group, in the order of its addresses: that is up to a tenth faster from memory than row by row, though
 * the rows' lanes wait in L1 meanwhile. */
QR_INLINE void decode_codes(const qr_cpu_panel *p, int64_t row, int64_t k0, int64_t n_k, const int16_t *x,
                            int64_t x_stride, const int n_x, const bool is_mxfp4, __m256 lanes[GROUP][DECODE_X]) {
    const int cols = qr_cpu_scale_cols_of(is_mxfp4);
    const code_bytes of = bytes_of_codes(is_mxfp4);
    const uint8_t *run = qr_cpu_nf4_run(p->weight, p->layout, row, k0);
    decode_factors factors;
    fetch_decode_factors(p, row, k0, n_k, x, x_stride, n_x, is_mxfp4, &factors);
    for (int r = 0; r < GROUP; r++) {
        QR_UNROLL for (int i = 0; i < n_x; i++) { lanes[r][i] = _mm256_setzero_ps(); }
    }
    int64_t k = 0;
    for (; k + RUN <= n_k; k += RUN, run += GROUP * RUN / 2) {
        decode_run(lanes, run, RUN, &of, x + k, x_stride, n_x, factors.of[0][0] + k / cols, cols);
    }
    if (k < n_k) { decode_run(lanes, run, COLS, &of, x + k, x_stride, n_x, factors.of[0][0] + k / cols, cols); }
}

QR_INLINE void decode_code_rows(const qr_cpu_panel *p, const qr_cpu_product *product, const int n_x,
                                const bool is_mxfp4) {
    for (int64_t r = 0; r < p->n_rows; r += GROUP) {
        const int16_t *x = product->x;
        for (int64_t k = 0; k < product->n_k; k += K_BLOCK, x += product->x_k_stride) {
            const int64_t n_k = qr_min(product->n_k - k, K_BLOCK);
            __m256 lanes[GROUP][DECODE_X];
            decode_codes(p, p->row + r, k, n_k, x, product->x_stride, n_x, is_mxfp4, lanes);
            for (int a = 0; a < GROUP; a += QR_TILE_ROWS) {
                reduce_rows(lanes + a, n_x, product->sums + r + a, product->sum_stride, k == 0);
            }
        }
    }
}

/* A K block of a row of INT8. What `ahead` points to is asked for. */
QR_INLINE void decode_int8(const int8_t *w, const int8_t *ahead, int64_t n_k, const int16_t *x, int64_t x_stride,
                           const int n_x, __m256 lanes[DECODE_X]) {
    QR_UNROLL for (int i = 0; i < n_x; i++) { lanes[i] = _mm256_setzero_ps(); }
    for (int64_t k = 0; k < n_k; k += COLS) {
        __m256i words[VECTORS];
        __builtin_prefetch(ahead + k);
        block_of_int8(w + k, words);
        QR_UNROLL for (int i = 0; i < n_x; i++) {
            const int16_t *xi = x + i * x_stride;
            const __m256 factor = _mm256_broadcast_ss(factors_of(xi) + k / COLS);
            lanes[i] = add_products(lanes[i], products(words, xi + k, VECTORS), factor);
        }
    }
}

/* Four rows at a time, K block by K block. They follow each other in memory, and are asked for in the order of
 * addresses (linear_microkernel.h says what that gains). */
QR_INLINE void decode_int8_rows(const qr_cpu_panel *p, const qr_cpu_product *product, const int n_x) {
    enum { AHEAD_BYTES = 12288 };
    for (int64_t r = 0; r < p->n_rows; r += QR_TILE_ROWS) {
        const int16_t *x = product->x;
        const int8_t *ahead = (const int8_t *)qr_cpu_row(p->weight, p->layout, p->row + r) + AHEAD_BYTES;
        for (int64_t k = 0; k < product->n_k; k += K_BLOCK, x += product->x_k_stride) {
            const int64_t n_k = qr_min(product->n_k - k, K_BLOCK);
            __m256 lanes[QR_TILE_ROWS][DECODE_X];
            for (int64_t a = 0; a < QR_TILE_ROWS; a++, ahead += n_k) { /* past the panel's end its last row again */
                const int64_t row = p->row + qr_min(r + a, p->n_rows - 1);
                const int8_t *w = (const int8_t *)qr_cpu_row(p->weight, p->layout, row) + k;
                decode_int8(w, ahead, n_k, x, product->x_stride, n_x, lanes[a]);
            }
            reduce_rows(lanes, n_x, product->sums + r, product->sum_stride, k == 0);
        }
    }
}

/* format is a constant after inlining; NF4_DQ is NF4. */
QR_INLINE void decode_rows(const qr_cpu_panel *p, const qr_cpu_product *product, const int n_x,
                           const qr_weight_format format) {
    if (format == QR_WEIGHT_INT8) {
        decode_int8_rows(p, product, n_x);
    } else {
        decode_code_rows(p, product, n_x, format == QR_WEIGHT_MXFP4);
    }
}

QR_INLINE void decode_format(const qr_cpu_panel *p, const qr_cpu_product *product, const qr_weight_format format) {
    switch (product->n_x) {
        case 1: decode_rows(p, product, 1, format); break;
        case 2: decode_rows(p, product, 2, format); break;
        case 3: decode_rows(p, product, 3, format); break;
        default: decode_rows(p, product, 4, format); break;
    }
}

/* Rows of x up to which this takes less time than panels do (docs/speed.md). */
static int most_rows(qr_weight_format format) {
    switch (format) {
        case QR_WEIGHT_INT8: return 4 * DECODE_X;
        case QR_WEIGHT_MXFP4: return DECODE_X;
        default: return 3 * DECODE_X;
    }
}

/* More rows of x than registers have room for: some at a time. Weights come from L2 then but for the first of them. */
static bool decode(const qr_cpu_panel *p, const qr_cpu_product *product) {
    qr_cpu_product part = *product;
    if (product->n_x > most_rows(p->weight->desc.format)) { return false; }
    for (int64_t i = 0; i < product->n_x; i += part.n_x) {
        part.n_x = qr_min(product->n_x - i, DECODE_X);
        part.x = (const int16_t *)product->x + i * product->x_stride;
        part.sums = product->sums + i * product->sum_stride;
        switch (p->weight->desc.format) {
            case QR_WEIGHT_INT8: decode_format(p, &part, QR_WEIGHT_INT8); break;
            case QR_WEIGHT_MXFP4: decode_format(p, &part, QR_WEIGHT_MXFP4); break;
            default: decode_format(p, &part, QR_WEIGHT_NF4); break;
        }
    }
    return true;
}

const qr_cpu_matmul qr_cpu_matmul_int16_avx2 = {
    .element_bytes = sizeof(int16_t),
    .k_block = K_BLOCK,
    .x_block = X_BLOCK,
    .k_step = COLS,
    .piece_rows = GROUP,
    .x_dtype = QR_DTYPE_BF16,
    .pack_row = pack_row,
    .fetch = fetch,
    .multiply = multiply,
    .decode = decode,
};
