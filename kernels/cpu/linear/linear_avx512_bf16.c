/* linear in AVX-512 with vdpbf16ps: x and weights in BF16, 32 k an instruction.
 *
 * Up to 56 rows of x are taken as they are, more in strips (linear_bf16_strips.c).
 *
 * Measured with bench_linear on one core of an AMD Zen 5 server (peak 0.50 TFLOP/s; one core reads 40 GB/s, two 52),
 * 2048 x 2048, thread time: NF4 double-quantised 66 G weights/s at M = 1, 395 us at M = 16, which is two thirds of the
 * peak, 730 us at M = 32; INT8 39 GB/s at M = 1. Sixteen rows can take no less than 269 us at the peak: a batch of 16
 * costs four to six times a single row, which is that fast.
 *
 * Tried for 5 to 64 rows and not kept: products from the codes, with x in tiles of 16 rows in L1 and the values of the
 * next run made while those of this one are multiplied. The inner loop alone runs at 98 % of the peak; with the sums of
 * each row and K block it takes 410 to 450 us at M = 16. */
#include <stdbool.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_bf16.h"
#include "kernels/cpu/linear/nf4_avx512_bf16.h"
#include "kernels/cpu/simd/vec_tile.h"

typedef uint16_t tile_element;
typedef __m512bh tile_vector;
#define TILE_STEP 32
static inline __m512bh tile_load(const uint16_t *src) { return (__m512bh)_mm512_loadu_si512(src); }
static inline __m512 tile_dot(__m512 acc, __m512bh w, __m512bh x) { return _mm512_dpbf16_ps(acc, w, x); }

#include "kernels/cpu/linear/linear_microkernel.h"

enum { K_BLOCK = QR_CPU_BF16_K_BLOCK, DECODE_ACCUMULATORS = 16, PREFETCH_BYTES = 6144 };

#include "kernels/cpu/linear/linear_stored.h"

/* Rows of x from which on fetching beside products pays: the tile that does it then has five at least. */
enum { BESIDE_ROWS = 9 };

/* Rows of the group that are in work at once: with n_x rows of x, 16 accumulators (12 for three). */
static inline int decode_row_count(const int n_x) { return n_x == 1 ? 16 : n_x == 2 ? 8 : 4; }

/* 128 (or the last 64) columns of n_rows rows of a group times n_x rows of x: 16 accumulators stay in registers, a
 * row's codes become values and meet x without touching memory. */
QR_INLINE void decode_run(__m512 acc[DECODE_ACCUMULATORS], const uint8_t *codes, const float *scales, const uint16_t *x,
                          int64_t x_stride, const int n_x, const bool half, const bool is_mxfp4) {
    const __m512 code = code_values(is_mxfp4);
    const int n_rows = decode_row_count(n_x), n_steps = half ? 2 : 4;
    QR_UNROLL for (int r = 0; r < n_rows; r++) {
        const uint8_t *run = codes + r * (half ? 32 : 64);
        __m512i v[4];
        _mm_prefetch(run + PREFETCH_BYTES, _MM_HINT_T0);
        run_values(run, code, scales + r * (K_BLOCK / qr_cpu_scale_cols_of(is_mxfp4)), half, is_mxfp4, v);
        QR_UNROLL for (int step = 0; step < n_steps; step++) {
            QR_UNROLL for (int i = 0; i < n_x; i++) {
                acc[r * n_x + i] =
                    tile_dot(acc[r * n_x + i], (__m512bh)v[step], tile_load(x + i * x_stride + 32 * step));
            }
        }
    }
}

/* One K block of the rows from `row` on. */
QR_INLINE void decode_block(const qr_cpu_panel *panel, const nf4_map *map, const qr_cpu_product *product, int64_t row,
                            int64_t k0, const int n_x, const bool is_mxfp4) {
    const int n_rows = decode_row_count(n_x), scale_cols = qr_cpu_scale_cols_of(is_mxfp4);
    const int64_t n_k = qr_min(product->n_k - k0, K_BLOCK);
    qr_cpu_panel block = *panel, *p = &block;
    block.k = k0;
    block.n_k = n_k;
    const uint16_t *x = (const uint16_t *)product->x + k0;
    float scales[DECODE_ACCUMULATORS * (K_BLOCK / QR_CPU_MXFP4_SCALE_COLS)];
    __m512 acc[DECODE_ACCUMULATORS];
    QR_UNROLL for (int a = 0; a < DECODE_ACCUMULATORS; a++) { acc[a] = _mm512_setzero_ps(); }
    panel_scales_of(map, p, row, n_rows, is_mxfp4, scales, K_BLOCK / scale_cols);
    int64_t k = 0;
    for (; k + 128 <= n_k; k += 128) {
        decode_run(acc, qr_cpu_nf4_run(p->weight, p->layout, row, k0 + k), scales + k / scale_cols, x + k,
                   product->x_stride, n_x, false, is_mxfp4);
    }
    if (k < n_k) {
        decode_run(acc, qr_cpu_nf4_run(p->weight, p->layout, row, k0 + k), scales + k / scale_cols, x + k,
                   product->x_stride, n_x, true, is_mxfp4);
    }
    for (int i = 0; i < n_x; i++) {
        for (int r = 0; r < n_rows; r += 4) {
            const __m512 four[4] = {acc[r * n_x + i], acc[(r + 1) * n_x + i], acc[(r + 2) * n_x + i],
                                    acc[(r + 3) * n_x + i]};
            qr_vec_reduce(four, product->sums + i * product->sum_stride + (row - p->row) + r, k0 == 0);
        }
    }
}

QR_INLINE void decode_rows(const qr_cpu_panel *p, const qr_cpu_product *product, const int n_x, const bool is_mxfp4) {
    nf4_map map;
    if (!is_mxfp4) { nf4_map_split(&map); }
    for (int64_t row = 0; row < p->n_rows; row += decode_row_count(n_x)) {
        for (int64_t k = 0; k < product->n_k; k += K_BLOCK) {
            decode_block(p, &map, product, p->row + row, k, n_x, is_mxfp4);
        }
    }
}

/* 32 INT8 codes as BF16, which is exact. */
static inline __m512bh int8_values(const void *untyped) {
    const int8_t *src = untyped;
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)src)));
    const __m512 high =
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(src + 16))));
    return _mm512_cvtne2ps_pbh(high, low);
}

/* A block of BF16 by all rows of x, tile by tile. The first `parts` tiles prefetch a part each: memory is then read
 * while the others are multiplied too. */
QR_INLINE void multiply_stored_tiles(const stored_block *b, const int parts) {
    const int64_t n_rows = b->product->n_x;
    for (int64_t i = 0, n, tile = 0; i < n_rows; i += n, tile++) {
        n = tile_cols_of(n_rows - i);
#define CASE(n_x)                                                          \
    case n_x:                                                              \
        if (tile < parts) {                                                \
            multiply_stored(b, tile_load_element, 2, tile, parts, i, n_x); \
        } else {                                                           \
            multiply_stored(b, tile_load_element, 2, 0, 0, i, n_x);        \
        }                                                                  \
        break;
        switch (n) {
            CASE(6)
            CASE(5)
            CASE(4)
            CASE(3)
        }
#undef CASE
    }
}

/* More rows of x than a tile has: all but the first tile find the weights in L1. */
static void decode_stored_tiles(const qr_cpu_panel *p, const qr_cpu_product *product) {
    for (int64_t o = 0; o < p->n_rows; o += QR_TILE_ROWS) {
        for (int64_t k = 0; k < product->n_k; k += K_BLOCK) {
            const stored_block block = stored_block_at(p, product, o, k, 2);
            if (product->n_x > 3 * QR_TILE_MAX_COLS) { /* four tiles at least */
                multiply_stored_tiles(&block, 4);
            } else {
                multiply_stored_tiles(&block, 2);
            }
        }
    }
}

QR_INLINE bool decode_groups(const qr_cpu_panel *p, const qr_cpu_product *product, const bool is_mxfp4) {
    switch (product->n_x) {
        case 1: decode_rows(p, product, 1, is_mxfp4); return true;
        case 2: decode_rows(p, product, 2, is_mxfp4); return true;
        case 3: decode_rows(p, product, 3, is_mxfp4); return true;
        case 4: decode_rows(p, product, 4, is_mxfp4); return true;
        default: return product->n_x >= BESIDE_ROWS && qr_cpu_multiply_few_bf16(p, product);
    }
}

static bool decode_stored(const qr_cpu_panel *p, const qr_cpu_product *product, const bool is_int8) {
#define CASE(n)                                                      \
    case n:                                                          \
        if (is_int8) {                                               \
            decode_stored_rows(p, product, int8_values, 1, n);       \
        } else {                                                     \
            decode_stored_rows(p, product, tile_load_element, 2, n); \
        }                                                            \
        return true;
    switch (product->n_x) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        default: break;
    }
#undef CASE
    if (is_int8) { return product->n_x >= BESIDE_ROWS && qr_cpu_multiply_few_bf16(p, product); }
    decode_stored_tiles(p, product);
    return true;
}

static bool decode(const qr_cpu_panel *p, const qr_cpu_product *product) {
    const qr_weight_format format = p->weight->desc.format;
    if (p->layout->kind == QR_CPU_NF4_GROUPS) {
        return format == QR_WEIGHT_MXFP4 ? decode_groups(p, product, true) : decode_groups(p, product, false);
    }
    return (format == QR_WEIGHT_INT8 || format == QR_WEIGHT_BF16) &&
           decode_stored(p, product, format == QR_WEIGHT_INT8);
}

const qr_cpu_matmul qr_cpu_matmul_bf16_avx512_bf16 = {
    .element_bytes = 2,
    .k_block = K_BLOCK,
    .k_step = TILE_STEP,
    .piece_rows = QR_TILE_ROWS,
    .x_dtype = QR_DTYPE_BF16,
    .strips = &qr_cpu_strips_bf16,
    .fetch = qr_cpu_fetch_bf16,
    .multiply = multiply,
    .gemm_backward = &qr_cpu_gemm_bf16,
    .decode = decode,
    .exercise = exercise,
    .exercise_flops = EXERCISE_FLOPS,
};
