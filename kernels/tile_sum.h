/* The order and the arithmetic in which AMX sums, in scalar C: what `numerics=portable` promises, and what the tiles
 * are tested against.
 *
 * TDPBF16PS (Intel SDM, volume 2; compared bit for bit with hardware over 46 million results) takes 32 columns of k, as
 * 16 pairs, for one weight row and one row of x:
 *     even = odd = 0
 *     for p = 0 … 15:  even = fma(w[2p], x[2p], even)    odd = fma(w[2p + 1], x[2p + 1], odd)
 *     c = c + (even + odd)
 * Every operation rounds to nearest even, reads subnormals as zero and turns subnormal results into zero, always with
 * their sign. As on every x86 CPU, a result is subnormal if it would be after rounding with an unbounded exponent.
 *
 * linear starts from c = 0 and takes 32 columns at a time in ascending order; columns past the end are zeros. */
#ifndef QR_KERNELS_TILE_SUM_H
#define QR_KERNELS_TILE_SUM_H

#include <float.h>
#include <math.h>

#include "base/fma.h"
#include "base/half.h"

enum { QR_TILE_K = 32 };

static inline float qr_tile_flush(float value) { return fabsf(value) < FLT_MIN ? copysignf(0.0F, value) : value; }

static inline float qr_tile_fma(float a, float b, float c) {
    /* Halfway between the smallest normal number and the 24-bit number below it: from here on rounding reaches it. */
    static const double least_normal = 0x1p-126 - 0x1p-151;
    const double sum = qr_sum_to_odd((double)qr_tile_flush(a) * (double)qr_tile_flush(b), (double)qr_tile_flush(c));
    return fabs(sum) < least_normal ? copysignf(0.0F, (float)sum) : (float)sum;
}

/* A subnormal sum of F32 is exact. */
static inline float qr_tile_add(float a, float b) { return qr_tile_flush(qr_tile_flush(a) + qr_tile_flush(b)); }

/* c plus the products of up to 32 columns. */
static inline float qr_tile_sum(float c, const float *w, const float *x, int64_t n) {
    float even = 0.0F, odd = 0.0F;
    for (int64_t k = 0; k < QR_TILE_K; k += 2) {
        even = qr_tile_fma(k < n ? w[k] : 0.0F, k < n ? x[k] : 0.0F, even);
        odd = qr_tile_fma(k + 1 < n ? w[k + 1] : 0.0F, k + 1 < n ? x[k + 1] : 0.0F, odd);
    }
    return qr_tile_add(c, qr_tile_add(even, odd));
}

/* A weight as a product reads it: F32 to BF16, subnormals to zero first (vcvtneps2bf16 does that). */
static inline qr_bf16 qr_tile_weight(float value) { return qr_f32_to_bf16(qr_tile_flush(value)); }

#endif
