/* The tiles of tiles_amx.h emulated with AVX-512, for tests, with the bits of the instruction: FMAs that treat
 * subnormals as AMX does, because the CPU is told to (MXCSR). kernels/tile_sum.h has the definition. */
#ifndef QR_KERNELS_CPU_SIMD_TILES_EMULATED_H
#define QR_KERNELS_CPU_SIMD_TILES_EMULATED_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/simd/tiles_names.h"

typedef struct emulated_tile {
    unsigned char rows[16][64];
} emulated_tile;
typedef struct tiles_state {
    emulated_tile tiles[8];
    size_t rows[8], row_bytes[8];
} tiles_state;

static inline void tiles_begin(tiles_state *state, int64_t n_rows, int64_t n_cols, int64_t n_pairs) {
    memset(state, 0, sizeof *state);
    for (int t = 0; t < 8; t++) {
        const bool is_a = t == 4 || t == 5, is_b = t >= 6;
        state->rows[t] = (size_t)(is_b ? n_pairs : n_rows);
        state->row_bytes[t] = 4 * (size_t)(is_a ? n_pairs : n_cols);
    }
}

static inline void tiles_end(tiles_state *state) { (void)state; }

static inline void tiles_zero(tiles_state *state, int t) { memset(&state->tiles[t], 0, sizeof(emulated_tile)); }

static inline void tiles_load(tiles_state *state, int t, const void *base, size_t stride) {
    tiles_zero(state, t);
    for (size_t r = 0; r < state->rows[t]; r++) {
        memcpy(state->tiles[t].rows[r], (const unsigned char *)base + r * stride, state->row_bytes[t]);
    }
}
#define tiles_stream tiles_load

static inline void tiles_store(const tiles_state *state, int t, void *base, size_t stride) {
    for (size_t r = 0; r < state->rows[t]; r++) {
        memcpy((unsigned char *)base + r * stride, state->tiles[t].rows[r], state->row_bytes[t]);
    }
}

static inline __m512 lower_bf16(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
static inline __m512 upper_bf16(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}

/* Lanes run along the columns of C. Not inlined: no operation may move to where MXCSR is another. */
static __attribute__((noinline)) void add_products(emulated_tile *c, size_t n_rows, const emulated_tile *a,
                                                   const emulated_tile *b, size_t n_pairs) {
    for (size_t m = 0; m < n_rows; m++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (size_t k = 0; k < n_pairs; k++) {
            int32_t pair;
            memcpy(&pair, &a->rows[m][4 * k], sizeof pair);
            const __m512i w = _mm512_set1_epi32(pair), x = _mm512_loadu_si512(b->rows[k]);
            even = _mm512_fmadd_ps(lower_bf16(w), lower_bf16(x), even);
            odd = _mm512_fmadd_ps(upper_bf16(w), upper_bf16(x), odd);
        }
        const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(c->rows[m]), _mm512_add_ps(even, odd));
        _mm512_storeu_ps(c->rows[m], sum);
    }
}

static inline void tiles_dot(tiles_state *state, int c, int a, int b) {
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040, DEFAULT = 0x1F80 };
    const unsigned int saved = _mm_getcsr();
    _mm_setcsr(DEFAULT | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
    add_products(&state->tiles[c], state->rows[c], &state->tiles[a], &state->tiles[b], state->rows[b]);
    _mm_setcsr(saved);
}

#endif
