/* linear on F32 elements, compiled once for each instruction set. */
#include <stdbool.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/isa_name.h"
#include "quant/nf4.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "kernels/cpu/simd/lanes_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "kernels/cpu/simd/lanes_avx2.h"
#else
#include "kernels/cpu/simd/lanes_c.h"
#endif

typedef float tile_element;
typedef lanes tile_vector;
#define TILE_STEP LANES
static inline lanes tile_load(const float *src) { return lanes_load(src); }
static inline lanes tile_dot(lanes acc, lanes w, lanes x) { return lanes_fma(w, x, acc); }

#include "kernels/cpu/linear/linear_fetch_body.h"
#include "kernels/cpu/linear/linear_tile_body.h"
#include "kernels/cpu/linear/outer_f32_body.h"

enum { K_BLOCK = 512 };

static void combine(const float *rows, const float *factors, int64_t n, float *sums) {
    for (int64_t o = 0; o < QR_CPU_PANEL_ROWS; o += LANES) {
        lanes sum = lanes_zero();
        for (int64_t r = 0; r < n; r++) {
            sum = lanes_fma(lanes_set(factors[r]), lanes_load(rows + r * QR_CPU_PANEL_ROWS + o), sum);
        }
        lanes_store(sums + o, sum);
    }
}

const qr_cpu_matmul QR_ISA(qr_cpu_matmul_f32) = {
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

const qr_cpu_matmul QR_ISA(qr_cpu_matmul_bf16) = {
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

const qr_cpu_matmul QR_ISA(qr_cpu_matmul_f16) = {
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
