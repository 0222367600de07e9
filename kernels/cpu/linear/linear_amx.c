/* linear on the tiles of AMX-BF16 (Intel, Sapphire Rapids and later). Tested by
 * linear_amx_emulated.c, the same code on emulated tiles. On hardware only an earlier sketch of it has run: 31 to 37 G
 * weights/s from NF4 at M = 1 on two cores, 43 % of the tile peak at M = 512. */
#include <immintrin.h>
#include <stdbool.h>

#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_bf16_fetch.h"
#include "kernels/cpu/linear/tile_layout.h"

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

/* GCC 12 declares only 8 of the 64 bytes as read by LDTILECFG, and none of the memory of tile loads and stores: the
 * barriers keep earlier stores before them and later loads after them. */
#define MEMORY_BARRIER() __asm__ volatile("" ::: "memory")

static inline void tiles_begin(tiles_state *state, int64_t n_cols) {
    tiles_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        const bool is_a = t == 4 || t == 5;
        config.rows[t] = 16;
        config.row_bytes[t] = (uint16_t)(is_a ? 64 : 4 * n_cols);
    }
    state->unused = 0;
    __asm__ volatile("" ::"m"(config) : "memory");
    _tile_loadconfig(&config);
}

static inline void tiles_end(tiles_state *state) {
    (void)state;
    _tile_release();
    MEMORY_BARRIER();
}

/* The state is the CPU's. */
#define WITHOUT(state, instruction) \
    do {                            \
        (void)(state);              \
        instruction;                \
    } while (0)
#define tiles_zero(state, t) WITHOUT(state, _tile_zero(t))
#define tiles_load(state, t, base, stride) WITHOUT(state, _tile_loadd(t, base, stride))
#define tiles_store(state, t, base, stride) WITHOUT(state, _tile_stored(t, base, stride))
#define tiles_dot(state, c, a, b) WITHOUT(state, _tile_dpbf16ps(c, a, b))

#include "kernels/cpu/linear/linear_amx_body.h"

static void exercise(int64_t n_rounds) {
    static const uint16_t zeros[TILE_ROWS * TILE_K];
    tiles_state state;
    tiles_begin(&state, TILE_ROWS);
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

const qr_cpu_matmul qr_cpu_matmul_bf16_amx =
    AMX_MATMUL(.exercise = exercise, .exercise_flops = 4 * 2 * TILE_ROWS * TILE_ROWS * TILE_K);
