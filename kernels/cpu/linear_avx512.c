/* linear in AVX-512. */
#include <stdbool.h>

#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/linear_f32_body.h"

const qr_cpu_matmul qr_cpu_matmul_f32_avx512 = {
    .element_bytes = 4,
    .k_block = K_BLOCK,
    .piece_rows = LANES_TILE_ROWS,
    .fetch = fetch_f32,
    .multiply = multiply,
    .outer = &outer_f32,
    .exercise = exercise,
    .exercise_flops = EXERCISE_FLOPS,
    .combine = combine,
};

const qr_cpu_matmul qr_cpu_matmul_bf16_avx512 = {
    .element_bytes = 4,
    .k_block = K_BLOCK,
    .piece_rows = LANES_TILE_ROWS,
    .x_dtype = QR_DTYPE_BF16,
    .fetch = fetch_rounded_to_bf16,
    .multiply = multiply,
    .outer = &outer_rounded,
    .exercise = exercise,
    .exercise_flops = EXERCISE_FLOPS,
};

const qr_cpu_matmul qr_cpu_matmul_f16_avx512 = {
    .element_bytes = 4,
    .k_block = K_BLOCK,
    .piece_rows = LANES_TILE_ROWS,
    .x_dtype = QR_DTYPE_F16,
    .fetch = fetch_rounded_to_f16,
    .multiply = multiply,
    .outer = &outer_f32,
    .exercise = exercise,
    .exercise_flops = EXERCISE_FLOPS,
};
