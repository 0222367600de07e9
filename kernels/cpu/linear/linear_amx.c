/* linear on the tiles of AMX-BF16 (Intel, Sapphire Rapids and later). Tested by linear_amx_emulated.c, the same code on
 * emulated tiles. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

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

#include "kernels/cpu/linear/linear_tiles_template.h"

static void exercise(int64_t n_rounds) {
    static const uint16_t zeros[TILE_ELEMENTS];
    tiles_state state;
    tiles_begin(&state, TILE_ROWS, QR_TILES_COLS, TILE_PAIRS);
    tiles_load(&state, TILES_A0, zeros, 64);
    tiles_load(&state, TILES_A1, zeros, 64);
    tiles_load(&state, TILES_B0, zeros, 64);
    tiles_load(&state, TILES_B1, zeros, 64);
    tiles_zero(&state, TILES_C0);
    tiles_zero(&state, TILES_C1);
    tiles_zero(&state, TILES_C2);
    tiles_zero(&state, TILES_C3);
    for (int64_t round = 0; round < n_rounds; round++) {
        tiles_dot(&state, TILES_C0, TILES_A0, TILES_B0);
        tiles_dot(&state, TILES_C1, TILES_A0, TILES_B1);
        tiles_dot(&state, TILES_C2, TILES_A1, TILES_B0);
        tiles_dot(&state, TILES_C3, TILES_A1, TILES_B1);
    }
    tiles_end(&state);
}

const qr_cpu_tiles_kernel qr_cpu_tiles_amx = TILES_KERNEL;
static const qr_cpu_gemm_kernel gemm_amx = TILES_GEMM;
const qr_cpu_matmul qr_cpu_matmul_bf16_amx =
    TILES_MATMUL(.tiles = &qr_cpu_tiles_amx, .gemm_backward = &gemm_amx, .exercise = exercise,
                 .exercise_flops = 4 * 2 * TILE_ROWS * TILE_ELEMENTS);
