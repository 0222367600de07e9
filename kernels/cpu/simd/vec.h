/* A vector of F32 lanes: the few operations that the ops are written in, once, to be compiled for each instruction set.
 * QR_VEC lanes: 16 with AVX-512, 8 with AVX2 and FMA, else 4 (NEON too); with QR_CPU_WIDE always 16, and then all of
 * them give the bits of AVX-512 (`numerics=portable`).
 *
 * Common to all:
 *   qr_vec_fma(a, b, c)     a · b + c, rounded once; in plain C that is not wide, where it is slow, twice
 *   qr_vec_max, qr_vec_min  give b when either operand is NaN
 *   …_n(p, n)               the first n lanes, 1 ≤ n; n ≥ QR_VEC means all; a load leaves zeros in the others
 *   qr_vec_sum, qr_vec_highest   over all lanes in one fixed order
 *   qr_vec_deinterleave     of two vectors, one after the other, the elements of even and those of odd number
 *   qr_vec_interleave       the inverse of it */
#ifndef QR_KERNELS_CPU_SIMD_VEC_H
#define QR_KERNELS_CPU_SIMD_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"
#include "base/half.h"
#include "base/sizes.h"

/* QR_CPU_ISA (avx512, avx2, neon, c, wide_avx2, wide_c) is what a source of every instruction set is being compiled
 * for: its symbols carry it. Sources of a single instruction set are compiled without. */
#ifdef QR_CPU_ISA
#define QR_ISA_JOIN2(name, isa) name##_##isa
#define QR_ISA_JOIN(name, isa) QR_ISA_JOIN2(name, isa)
#define QR_ISA(name) QR_ISA_JOIN(name, QR_CPU_ISA)
#endif

/* For loops over register tiles, whose bounds must be constants after inlining. */
#define QR_INLINE static inline __attribute__((always_inline))
#define QR_UNROLL _Pragma("GCC unroll 32")

#if defined(QR_CPU_WIDE)
#include "kernels/cpu/simd/vec_c.h"
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "kernels/cpu/simd/vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "kernels/cpu/simd/vec_avx2.h"
#elif defined(QR_CPU_WITH_NEON)
#include "kernels/cpu/simd/vec_neon.h"
#else
#include "kernels/cpu/simd/vec_c.h"
#endif

#if defined(QR_VEC_AVX512) || defined(QR_VEC_AVX2) || defined(QR_VEC_NEON)
/* Sums of lanes in F64. */
typedef union qr_vec_f64 {
    struct {
        qr_vec_half low, high;
    };
    double lanes[QR_VEC];
} qr_vec_f64;
QR_INLINE void qr_vec_f64_add(qr_vec_f64 *sums, qr_vec v) {
    sums->low = qr_vec_half_add(sums->low, qr_vec_low(v));
    sums->high = qr_vec_half_add(sums->high, qr_vec_high(v));
}
QR_INLINE void qr_vec_f64_add_squares(qr_vec_f64 *sums, qr_vec v) {
    const qr_vec_half low = qr_vec_low(v), high = qr_vec_high(v);
    sums->low = qr_vec_half_fma(low, low, sums->low);
    sums->high = qr_vec_half_fma(high, high, sums->high);
}
#endif

/* Elements [index, index + n) of a tensor of F32, BF16 or F16, in F32; and back, rounded to nearest. */
QR_INLINE qr_vec qr_vec_load_act_n(const void *src, qr_dtype dtype, int64_t index, int64_t n) {
    if (dtype == QR_DTYPE_BF16) { return qr_vec_load_bf16_n((const uint16_t *)src + index, n); }
    if (dtype == QR_DTYPE_F16) { return qr_vec_load_f16_n((const uint16_t *)src + index, n); }
    return qr_vec_load_n((const float *)src + index, n);
}
QR_INLINE void qr_vec_store_act_n(void *dst, qr_dtype dtype, int64_t index, qr_vec v, int64_t n) {
    if (dtype == QR_DTYPE_BF16) {
        qr_vec_store_bf16_n((uint16_t *)dst + index, v, n);
    } else if (dtype == QR_DTYPE_F16) {
        qr_vec_store_f16_n((uint16_t *)dst + index, v, n);
    } else {
        qr_vec_store_n((float *)dst + index, v, n);
    }
}

/* The first n of QR_VEC pairs that follow each other; as with …_n, zeros in the other lanes. */
QR_INLINE void qr_vec_load_pairs_n(const float *p, int64_t n, qr_vec *first, qr_vec *second) {
    const bool is_long = 2 * n > QR_VEC;
    const qr_vec high = is_long ? qr_vec_load_n(p + QR_VEC, 2 * n - QR_VEC) : qr_vec_zero();
    qr_vec_deinterleave(qr_vec_load_n(p, 2 * n), high, first, second);
}
QR_INLINE void qr_vec_store_pairs_n(float *p, qr_vec first, qr_vec second, int64_t n) {
    qr_vec low, high;
    qr_vec_interleave(first, second, &low, &high);
    qr_vec_store_n(p, low, 2 * n);
    if (2 * n > QR_VEC) { qr_vec_store_n(p + QR_VEC, high, 2 * n - QR_VEC); }
}

/* All lanes, in order. */
QR_INLINE double qr_vec_f64_total(const qr_vec_f64 *sums) {
    double total = 0.0;
    for (int i = 0; i < QR_VEC; i++) { total += sums->lanes[i]; }
    return total;
}

#endif
