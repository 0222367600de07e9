/* The product of attention_product.h on matrix tiles, in tile_sum.h's order over 32 elements of k at a time. Included
 * after kernels/cpu/simd/tiles_amx.h or tiles_emulated.h. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_PRODUCT_TILES_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_PRODUCT_TILES_H

#include "kernels/cpu/attention/attention_product.h"
#include "kernels/cpu/simd/vec.h"

/* 32 rows by 32 columns. */
QR_INLINE void multiply_quad(tiles_state *state, const tiles_product *p, int64_t row, int64_t col) {
    const size_t a_bytes = 2 * (size_t)p->a_stride, c_bytes = 4 * (size_t)p->c_stride;
    const uint16_t *a = p->a + row * p->a_stride, *b = p->b + col / TILE * p->b_col;
    float *c0 = p->c + row * p->c_stride + col, *c2 = c0 + TILE * p->c_stride;
    if (p->first) {
        tiles_zero(state, TILES_C0);
        tiles_zero(state, TILES_C1);
        tiles_zero(state, TILES_C2);
        tiles_zero(state, TILES_C3);
    } else {
        tiles_load(state, TILES_C0, c0, c_bytes);
        tiles_load(state, TILES_C1, c0 + TILE, c_bytes);
        tiles_load(state, TILES_C2, c2, c_bytes);
        tiles_load(state, TILES_C3, c2 + TILE, c_bytes);
    }
    for (int64_t k = 0; k < p->n_k; k += TILE_K, a += TILE_K, b += p->b_k) {
        tiles_load(state, TILES_A0, a, a_bytes);
        tiles_load(state, TILES_A1, a + TILE * p->a_stride, a_bytes);
        tiles_load(state, TILES_B0, b, 2 * TILE_K);
        tiles_load(state, TILES_B1, b + p->b_col, 2 * TILE_K);
        tiles_dot(state, TILES_C0, TILES_A0, TILES_B0);
        tiles_dot(state, TILES_C1, TILES_A0, TILES_B1);
        tiles_dot(state, TILES_C2, TILES_A1, TILES_B0);
        tiles_dot(state, TILES_C3, TILES_A1, TILES_B1);
    }
    tiles_store(state, TILES_C0, c0, c_bytes);
    tiles_store(state, TILES_C1, c0 + TILE, c_bytes);
    tiles_store(state, TILES_C2, c2, c_bytes);
    tiles_store(state, TILES_C3, c2 + TILE, c_bytes);
}

static __attribute__((noinline)) void multiply(tiles_state *state, const tiles_product *p) {
    TILES_BARRIER();
    for (int64_t row = 0; row < p->n_rows; row += TILE_K) {
        for (int64_t col = 0; col < p->n_cols; col += TILE_K) { multiply_quad(state, p, row, col); }
    }
    TILES_BARRIER();
}

#endif
