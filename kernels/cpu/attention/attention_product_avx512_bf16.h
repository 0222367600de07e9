/* The product of attention_product.h by VDPBF16PS: every sum is one chain over pairs of k, ascending. Included before
 * attention_tiles_template.h by attention_avx512_bf16.c. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_PRODUCT_AVX512_BF16_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_PRODUCT_AVX512_BF16_H

#include <string.h>

#include "kernels/cpu/attention/attention_product.h"
#include "kernels/cpu/simd/vec.h"

/* There is nothing to configure. */
typedef struct tiles_state {
    char unused;
} tiles_state;
static inline void tiles_begin(tiles_state *state, int64_t n_rows, int64_t n_cols, int64_t n_pairs) {
    (void)n_rows, (void)n_cols, (void)n_pairs;
    state->unused = 0;
}
static inline void tiles_end(tiles_state *state) { (void)state; }

/* 16 accumulators hide the latency, and 10 loads serve 16 products: both pipes are busy. */
enum { PRODUCT_ROWS = 8, PRODUCT_COLS = 2 * TILE };

QR_INLINE __m512bh pair_everywhere(const uint16_t *a) {
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* 8 rows by 32 columns. */
QR_INLINE void multiply_rows(const tiles_product *p, int64_t row, int64_t col) {
    const uint16_t *a = p->a + row * p->a_stride, *b = p->b + col / TILE * p->b_col;
    float *c = p->c + row * p->c_stride + col;
    __m512 acc[PRODUCT_ROWS][2];
    QR_UNROLL for (int r = 0; r < PRODUCT_ROWS; r++) {
        QR_UNROLL for (int half = 0; half < 2; half++) {
            acc[r][half] = p->first ? _mm512_setzero_ps() : _mm512_load_ps(c + r * p->c_stride + half * TILE);
        }
    }
    for (int64_t k = 0; k < p->n_k; k += TILE_K, a += TILE_K, b += p->b_k) {
        for (int pair = 0; pair < TILE; pair++) {
            const __m512bh b0 = (__m512bh)_mm512_load_si512(b + pair * TILE_K);
            const __m512bh b1 = (__m512bh)_mm512_load_si512(b + p->b_col + pair * TILE_K);
            QR_UNROLL for (int r = 0; r < PRODUCT_ROWS; r++) {
                const __m512bh both = pair_everywhere(a + r * p->a_stride + 2 * pair);
                acc[r][0] = _mm512_dpbf16_ps(acc[r][0], both, b0);
                acc[r][1] = _mm512_dpbf16_ps(acc[r][1], both, b1);
            }
        }
    }
    QR_UNROLL for (int r = 0; r < PRODUCT_ROWS; r++) {
        QR_UNROLL for (int half = 0; half < 2; half++) {
            _mm512_store_ps(c + r * p->c_stride + half * TILE, acc[r][half]);
        }
    }
}

static __attribute__((noinline)) void multiply(tiles_state *state, const tiles_product *p) {
    (void)state;
    for (int64_t col = 0; col < p->n_cols; col += PRODUCT_COLS) {
        for (int64_t row = 0; row < p->n_rows; row += PRODUCT_ROWS) { multiply_rows(p, row, col); }
    }
}

#endif
