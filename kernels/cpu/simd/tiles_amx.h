/* Matrix tiles of AMX-BF16 (Intel, Sapphire Rapids and later), for templates that are included after this file or after
 * tiles_emulated.h, which has the same names on arrays:
 *
 *   tiles_begin(state, n_rows, n_cols, n_pairs), tiles_end(state)   configure and release: 180 cycles, once a task
 *   tiles_zero(state, t), tiles_load(state, t, base, stride)        strides in bytes; t is a literal
 *   tiles_stream(state, t, base, stride)                            a load past L1
 *   tiles_store(state, t, base, stride)
 *   tiles_dot(state, c, a, b)                                       c += a · b, as tile_sum.h defines it
 *
 * tiles_names.h says what each tile is. */
#ifndef QR_KERNELS_CPU_SIMD_TILES_AMX_H
#define QR_KERNELS_CPU_SIMD_TILES_AMX_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/simd/tiles_names.h"

typedef struct tiles_state {
    char unused;
} tiles_state;

/* The 64 bytes that LDTILECFG reads (Intel SDM, volume 1, chapter 18). */
typedef struct tiles_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles_config;

_Static_assert(sizeof(tiles_config) == 64, "LDTILECFG reads 64 bytes");

/* In asm: the intrinsic of GCC 12 declares only 8 of the 64 bytes as read, so that stores to the others may be dropped.
 */
static inline void tiles_begin(tiles_state *state, int64_t n_rows, int64_t n_cols, int64_t n_pairs) {
    tiles_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        const bool is_a = t == 4 || t == 5, is_b = t >= 6;
        config.rows[t] = (uint8_t)(is_b ? n_pairs : n_rows);
        config.row_bytes[t] = (uint16_t)(4 * (is_a ? n_pairs : n_cols));
    }
    state->unused = 0;
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

static inline void tiles_end(tiles_state *state) {
    (void)state;
    _tile_release();
    __asm__ volatile("" ::: "memory"); /* what the tiles stored is read from memory afterwards */
}

/* The state is the CPU's. */
#define WITHOUT(state, instruction) \
    do {                            \
        (void)(state);              \
        instruction;                \
    } while (0)
#define tiles_zero(state, t) WITHOUT(state, _tile_zero(t))
#define tiles_load(state, t, base, stride) WITHOUT(state, _tile_loadd(t, base, stride))
#define tiles_stream(state, t, base, stride) WITHOUT(state, _tile_stream_loadd(t, base, stride))
#define tiles_store(state, t, base, stride) WITHOUT(state, _tile_stored(t, base, stride))
#define tiles_dot(state, c, a, b) WITHOUT(state, _tile_dpbf16ps(c, a, b))

#endif
