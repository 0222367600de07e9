/* a · b + c rounded once, in scalar C, on any processor: what a hardware FMA gives. For code that must have the bits of
 * vector kernels; they use the instruction. */
#ifndef QR_BASE_FMA_H
#define QR_BASE_FMA_H

#include <stdint.h>
#include <string.h>

/* p + c rounded to odd: the last bit says whether anything was lost, so that rounding the result to F32 afterwards
 * rounds as the exact sum would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). */
static inline double qr_sum_to_odd(double p, double c) {
    const double sum = p + c, back = sum - p, lost = (p - (sum - back)) + (c - back);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((lost > 0.0 || lost < 0.0) && (bits & 1U) == 0) { bits += (lost > 0.0) == (sum > 0.0) ? 1U : UINT64_MAX; }
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return odd;
}

/* A product of two F32 is exact in F64. */
static inline float qr_fma_f32(float a, float b, float c) {
    return (float)qr_sum_to_odd((double)a * (double)b, (double)c);
}

#endif
