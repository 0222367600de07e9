/* linear on F32 elements, compiled once for each instruction set. */
#include <stdbool.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/vec_tile.h"
#include "kernels/cpu/simd/vec_units.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

typedef float tile_element;
typedef qr_vec tile_vector;
#define TILE_STEP QR_VEC
static inline qr_vec tile_load(const float *src) { return qr_vec_load(src); }
static inline qr_vec tile_dot(qr_vec acc, qr_vec w, qr_vec x) { return qr_vec_fma(w, x, acc); }

QR_INLINE void fetch_values(float *dst, const qr_vec_values *values, qr_vec_codes codes, int shift) {
    qr_vec_store_values(dst, values, codes, shift);
}
QR_INLINE void fetch_store(float *dst, qr_vec v) { qr_vec_store(dst, v); }
QR_INLINE void fetch_flat_row(const qr_cpu_panel *panel, int64_t row, qr_dtype round_to, float *dst) {
    qr_cpu_nf4_flat_row_f32(panel, row, round_to, dst);
}

#include "kernels/cpu/linear/gemm_backward_f32.h"
#include "kernels/cpu/linear/linear_dequantise.h"
#include "kernels/cpu/linear/linear_microkernel.h"

static void fetch_f32(const qr_cpu_panel *p) { fetch_panel(p, QR_DTYPE_F32); }
static void fetch_rounded_to_bf16(const qr_cpu_panel *p) { fetch_panel(p, QR_DTYPE_BF16); }
static void fetch_rounded_to_f16(const qr_cpu_panel *p) { fetch_panel(p, QR_DTYPE_F16); }

enum { K_BLOCK = 512 };

#ifdef QR_VEC_LOOKS_UP
#include "kernels/cpu/linear/linear_decode.h"
static bool decode_f32(const qr_cpu_panel *p, const qr_cpu_product *product) {
    return decode(p, product, QR_DTYPE_F32);
}
static bool decode_bf16(const qr_cpu_panel *p, const qr_cpu_product *product) {
    return decode(p, product, QR_DTYPE_BF16);
}
static bool decode_f16(const qr_cpu_panel *p, const qr_cpu_product *product) {
    return decode(p, product, QR_DTYPE_F16);
}
#define DECODE(of_type) .decode = of_type,
#else
#define DECODE(of_type)
#endif

/* Four vectors of sums at once: each sum waits for its last product. */
static void combine(const float *rows, const float *factors, int64_t n, float *sums) {
    for (int64_t o = 0; o < QR_CPU_PANEL_ROWS; o += 4 * QR_VEC) {
        qr_vec sum[4] = {qr_vec_zero(), qr_vec_zero(), qr_vec_zero(), qr_vec_zero()};
        for (int64_t r = 0; r < n; r++) {
            const qr_vec factor = qr_vec_set1(factors[r]);
            const float *row = rows + r * QR_CPU_PANEL_ROWS + o;
            for (int64_t v = 0; v < 4; v++) { sum[v] = qr_vec_fma(factor, qr_vec_load(row + v * QR_VEC), sum[v]); }
        }
        for (int64_t v = 0; v < 4; v++) { qr_vec_store(sums + o + v * QR_VEC, sum[v]); }
    }
}

#define F32_MATMUL(...)                                                                                         \
    {                                                                                                           \
        .element_bytes = 4, .k_block = K_BLOCK, .k_step = 16, .piece_rows = QR_TILE_ROWS, .multiply = multiply, \
        .exercise = exercise, .exercise_flops = EXERCISE_FLOPS, __VA_ARGS__                                     \
    }

const qr_cpu_matmul QR_ISA(qr_cpu_matmul_f32) = F32_MATMUL(DECODE(decode_f32).x_dtype = QR_DTYPE_F32,
                                                           .fetch = fetch_f32, .gemm_backward = &gemm_f32,
                                                           .combine = combine);
const qr_cpu_matmul QR_ISA(qr_cpu_matmul_bf16) = F32_MATMUL(DECODE(decode_bf16).x_dtype = QR_DTYPE_BF16,
                                                            .fetch = fetch_rounded_to_bf16,
                                                            .gemm_backward = &gemm_rounded);
const qr_cpu_matmul QR_ISA(qr_cpu_matmul_f16) = F32_MATMUL(DECODE(decode_f16).x_dtype = QR_DTYPE_F16,
                                                           .fetch = fetch_rounded_to_f16, .gemm_backward = &gemm_f32);

#if QR_VEC == 16
/* Rows of x that are in work at once: two accumulators each, of 32 or of 16 registers. */
enum { ORDER_COLS = QR_TILE_MAX_COLS >= 6 ? 8 : 2 };
#include "kernels/cpu/linear/linear_tile_order.h"
const qr_cpu_matmul QR_ISA(qr_cpu_matmul_tile_order) = TILE_ORDER_MATMUL;
#endif
