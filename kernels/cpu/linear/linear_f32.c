/* linear on F32 elements, compiled once for each instruction set. */
#include <stdbool.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/vec_tile.h"
#include "quant/nf4.h"

typedef float tile_element;
typedef qr_vec tile_vector;
#define TILE_STEP QR_VEC
static inline qr_vec tile_load(const float *src) { return qr_vec_load(src); }
static inline qr_vec tile_dot(qr_vec acc, qr_vec w, qr_vec x) { return qr_vec_fma(w, x, acc); }

#include "kernels/cpu/linear/gemm_backward_f32_body.h"
#include "kernels/cpu/linear/linear_fetch_body.h"
#include "kernels/cpu/linear/linear_tile_body.h"

enum { K_BLOCK = 512 };

static void combine(const float *rows, const float *factors, int64_t n, float *sums) {
    for (int64_t o = 0; o < QR_CPU_PANEL_ROWS; o += QR_VEC) {
        qr_vec sum = qr_vec_zero();
        for (int64_t r = 0; r < n; r++) {
            sum = qr_vec_fma(qr_vec_set1(factors[r]), qr_vec_load(rows + r * QR_CPU_PANEL_ROWS + o), sum);
        }
        qr_vec_store(sums + o, sum);
    }
}

#define F32_MATMUL(...)                                                                           \
    {                                                                                             \
        .element_bytes = 4, .k_block = K_BLOCK, .piece_rows = QR_TILE_ROWS, .multiply = multiply, \
        .exercise = exercise, .exercise_flops = EXERCISE_FLOPS, __VA_ARGS__                       \
    }

const qr_cpu_matmul QR_ISA(qr_cpu_matmul_f32) = F32_MATMUL(.x_dtype = QR_DTYPE_F32, .fetch = fetch_f32,
                                                           .gemm_backward = &gemm_f32, .combine = combine);
const qr_cpu_matmul QR_ISA(qr_cpu_matmul_bf16) = F32_MATMUL(.x_dtype = QR_DTYPE_BF16, .fetch = fetch_rounded_to_bf16,
                                                            .gemm_backward = &gemm_rounded);
const qr_cpu_matmul QR_ISA(qr_cpu_matmul_f16) = F32_MATMUL(.x_dtype = QR_DTYPE_F16, .fetch = fetch_rounded_to_f16,
                                                           .gemm_backward = &gemm_f32);
