/* A vector of F32 lanes: the few operations from which every op but the matrix products is written, once, and compiled
 * for each instruction set. QR_VEC lanes: 16 with AVX-512, 8 with AVX2 and FMA, else 4.
 *
 * Common to the three:
 *   qr_vec_fma(a, b, c)     a · b + c, rounded once where the processor has FMA, twice in plain C
 *   qr_vec_max, qr_vec_min  give b when either operand is NaN
 *   …_n(p, n)               the first n lanes, 1 ≤ n; n ≥ QR_VEC means all; a load leaves zeros in the others
 *   qr_vec_sum, qr_vec_highest   over all lanes in one fixed order */
#ifndef QR_KERNELS_CPU_SIMD_VEC_H
#define QR_KERNELS_CPU_SIMD_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/cpu/simd/isa_name.h"

/* For loops over register tiles, whose bounds must be constants after inlining. */
#define QR_INLINE static inline __attribute__((always_inline))
#define QR_UNROLL _Pragma("GCC unroll 32")

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "kernels/cpu/simd/vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "kernels/cpu/simd/vec_avx2.h"
#else
#include "kernels/cpu/simd/vec_c.h"
#endif

/* All lanes, in order. */
QR_INLINE double qr_vec_f64_total(const qr_vec_f64 *sums) {
    double total = 0.0;
    for (int i = 0; i < QR_VEC; i++) { total += sums->lanes[i]; }
    return total;
}

#endif
