/* linear on the tiles of AMX-BF16 (Intel, Sapphire Rapids and later). Tested by linear_amx_emulated.c, the same code on
 * emulated tiles. */
#include "kernels/cpu/simd/tiles_amx.h"

#include "kernels/cpu/linear/linear_tiles_template.h"

/* With numbers as products have them: multiplying zeros takes less power, and a faster clock than any product sees. */
static void exercise(int64_t n_rounds) {
    uint16_t numbers[TILE_ELEMENTS];
    for (int i = 0; i < TILE_ELEMENTS; i++) { numbers[i] = (uint16_t)(0x3C00 + 37 * i % 256 + (i % 2 << 15)); }
    tiles_state state;
    tiles_begin(&state, TILE_ROWS, QR_TILES_COLS, TILE_PAIRS);
    TILES_BARRIER();
    tiles_load(&state, TILES_A0, numbers, 64);
    tiles_load(&state, TILES_A1, numbers, 64);
    tiles_load(&state, TILES_B0, numbers, 64);
    tiles_load(&state, TILES_B1, numbers, 64);
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
