/* linear and gemm_backward in NEON with BFDOT: x and weights in BF16, 8 k an instruction, half as many instructions as
 * in F32. Its sums are rounded to odd, and subnormals are zero, on every CPU that has it (FPCR.EBF is 0:
 * base/threads.c).
 *
 * Not used: BFMMLA, whose 2 by 2 sums would need the weights of two rows interleaved and make each sum one chain; it
 * has twice the products of BFDOT an instruction. SDOT and the instructions of i8mm, because no op multiplies INT8 by
 * INT8: x is never quantised. The speed of this code is not measured: it has run under emulation only. */
#include <stdbool.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/vec_tile.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

typedef uint16_t tile_element;
typedef bfloat16x8_t tile_vector;
#define TILE_STEP 8
static inline bfloat16x8_t tile_load(const uint16_t *src) {
    return vreinterpretq_bf16_u8(vld1q_u8((const uint8_t *)(const void *)src));
}
static inline float32x4_t tile_dot(float32x4_t acc, bfloat16x8_t w, bfloat16x8_t x) { return vbfdotq_f32(acc, w, x); }

QR_INLINE void fetch_values(uint16_t *dst, const qr_vec_values *values, qr_vec_codes codes, int shift) {
    qr_vec_store_values_bf16(dst, values, codes, shift);
}
QR_INLINE void fetch_store(uint16_t *dst, qr_vec v) { qr_vec_store_bf16_n(dst, v, QR_VEC); }
QR_INLINE void fetch_flat_row(const qr_cpu_panel *panel, int64_t row, qr_dtype round_to, uint16_t *dst) {
    (void)round_to; /* BF16 */
    qr_cpu_nf4_flat_row_bf16(panel, row, dst);
}

#include "kernels/cpu/linear/linear_dequantise.h"
#include "kernels/cpu/linear/linear_microkernel.h"

static void fetch(const qr_cpu_panel *p) { fetch_panel(p, QR_DTYPE_BF16); }

/* --- gemm_backward, on pairs of k --- */

typedef bfloat16x8_t gemm_vector;
static inline bfloat16x8_t gemm_load(const float *src) { return tile_load((const uint16_t *)(const void *)src); }
static inline bfloat16x8_t gemm_broadcast(const float *src) { return vreinterpretq_bf16_f32(vld1q_dup_f32(src)); }
static inline float32x4_t gemm_dot(float32x4_t acc, bfloat16x8_t a, bfloat16x8_t b) { return vbfdotq_f32(acc, a, b); }

#include "kernels/cpu/linear/gemm_backward_microkernel.h"

static void gemm_multiply(const qr_cpu_gemm_product *p) { gemm_strips(p, false); }

static void gemm_pack(const void *untyped, qr_dtype dtype, const float *factors, int64_t n, void *dst_untyped) {
    (void)dtype; /* BF16 */
    const uint16_t *src = untyped;
    uint16_t *dst = dst_untyped;
    if (factors == NULL) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
    } else {
        for (int64_t i = 0; i < n; i += QR_VEC) {
            const qr_vec value = qr_vec_mul(qr_vec_load_bf16_n(src + i, n - i), qr_vec_load_n(factors + i, n - i));
            qr_vec_store_bf16_n(dst + i, value, n - i);
        }
    }
    if (n % 2 != 0) { dst[n] = 0; }
}

static void gemm_interleave(const uint16_t *src, int64_t src_stride, int64_t n_rows, int64_t n, float *dst) {
    for (int64_t r = 0; r < n_rows; r += 2) {
        const uint16_t *row = src + r * src_stride;
        uint16_t *out = (uint16_t *)(void *)(dst + r / 2 * QR_CPU_GEMM_B_STRIDE);
        for (int64_t j = 0; j < n; j += 8) {
            const uint16x8_t odd = r + 1 < n_rows ? vld1q_u16(row + src_stride + j) : vdupq_n_u16(0);
            vst2q_u16(out + 2 * j, (uint16x8x2_t){{vld1q_u16(row + j), odd}});
        }
    }
}

static const qr_cpu_gemm_kernel gemm = {.unit_k = 2,
                                        .row_step = GEMM_TALL_ROWS,
                                        .pack = gemm_pack,
                                        .interleave = gemm_interleave,
                                        .multiply = gemm_multiply};

const qr_cpu_matmul qr_cpu_matmul_bf16_neon_bf16 = {
    .element_bytes = 2,
    .k_block = 1024,
    .k_step = 32,
    .piece_rows = QR_TILE_ROWS,
    .x_dtype = QR_DTYPE_BF16,
    .fetch = fetch,
    .multiply = multiply,
    .gemm_backward = &gemm,
    .exercise = exercise,
    .exercise_flops = EXERCISE_FLOPS,
};
