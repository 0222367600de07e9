/* gemm_backward on BF16 pairs with vdpbf16ps (AVX-512 BF16). Tiles take the same operands. */
#include <stdbool.h>
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/simd/vec_tile.h"

typedef __m512bh gemm_vector;
static inline __m512bh gemm_load(const float *src) { return (__m512bh)_mm512_loadu_si512(src); }
static inline __m512bh gemm_broadcast(const float *src) {
    int32_t pair;
    memcpy(&pair, src, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}
static inline __m512 gemm_dot(__m512 acc, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(acc, a, b); }

#include "kernels/cpu/linear/gemm_backward_microkernel.h"

static void multiply(const qr_cpu_gemm_product *p) {
    if (p->a_stride == QR_CPU_GEMM_A_STRIDE) {
        gemm_strips(p, GEMM_A_ROWS);
    } else {
        gemm_strips(p, GEMM_A_IN_PLACE);
    }
}

void qr_cpu_gemm_pack_bf16(const void *untyped, qr_dtype dtype, const float *factors, int64_t n, void *dst_untyped) {
    (void)dtype;
    const uint16_t *src = untyped;
    uint16_t *dst = dst_untyped;
    if (factors == NULL) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
    } else {
        int64_t i = 0;
        for (; i + QR_VEC <= n; i += QR_VEC) {
            const __m512 value = _mm512_mul_ps(qr_vec_load_bf16_n(src + i, QR_VEC), _mm512_loadu_ps(factors + i));
            _mm256_storeu_si256((__m256i *)(void *)(dst + i), (__m256i)_mm512_cvtneps_pbh(value));
        }
        for (; i < n; i++) { dst[i] = qr_f32_to_bf16(qr_bf16_to_f32(src[i]) * factors[i]); }
    }
    if (n % 2 != 0) { dst[n] = 0; }
}

void qr_cpu_gemm_interleave_bf16(const uint16_t *src, int64_t src_stride, int64_t n_rows, int64_t n, float *dst) {
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    for (int64_t r = 0; r < n_rows; r += 2) {
        for (int64_t j = 0; j < n; j += 32) {
            const uint16_t *pair = src + r * src_stride + j;
            const __m512i even = _mm512_loadu_si512(pair);
            const __m512i odd = r + 1 < n_rows ? _mm512_loadu_si512(pair + src_stride) : _mm512_setzero_si512();
            float *out = dst + r / 2 * QR_CPU_GEMM_B_STRIDE + j;
            _mm512_storeu_si512(out, _mm512_permutex2var_epi16(even, first, odd));
            _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi16(even, second, odd));
        }
    }
}

const qr_cpu_gemm_kernel qr_cpu_gemm_bf16 = {
    .unit_k = 2,
    .row_step = GEMM_TALL_ROWS,
    .pack = qr_cpu_gemm_pack_bf16,
    .interleave = qr_cpu_gemm_interleave_bf16,
    .pack_parts = qr_cpu_gemm_pack_parts_bf16,
    .multiply = multiply,
    .takes_in_place = true,
};
