/* linear by products of 16-bit integers, for x in BF16 and weights of 4 bits or INT8: which integers, and the order of
 * sums. Integer products and their sums are exact, so they may be made in any order; what rounds is said here.
 *
 * x is taken in blocks of 64 columns of a row. A block's factor is a power of two, such that the largest magnitude is
 * within [2^14, 2^15) of it, and its integers are x / factor, to the nearest, halves to even. BF16 has eight bits: so a
 * value is exact unless it is below 1/128 of the block's largest, and is then off by 2^-15 of that at most. Factors are
 * 2^-126 at least. A block with an infinity or a NaN has NaN as its factor.
 *
 * Weights have these integers and, for the columns of a block, this factor:
 *     INT8     the code, and 1 (the row's factor multiplies the sum, as always)
 *     MXFP4    twice the value of the code, and half the scale, for 32 columns
 *     NF4      the value of the code times 7853.8, to the nearest, and absmax · (1 / 7853.8)
 * The integers of NF4 are within 2^-12.9 of the weight, for the worst of the 16 codes, where BF16 is off by up to 2^-9;
 * the others are exact. A block has 64 columns, also where one of NF4 is larger. Factors are products of two F32.
 *
 * For one row of weights and one of x, lane l of eight has in a block of n columns the integer
 *     sum_l = Σ over j < n / 16 of w[16j + 2l] · x[16j + 2l] + w[16j + 2l + 1] · x[16j + 2l + 1],
 * which is below 2^31. With F32 operations and the blocks b of up to 512 columns,
 *     lane_l = fma(float(sum_l), factor_w[b] · factor_x[b], lane_l), b ascending, from 0
 *     sum += ((lane_0 + lane_1) + (lane_2 + lane_3)) + ((lane_4 + lane_5) + (lane_6 + lane_7)), 512 columns at a time.
 */
#ifndef QR_KERNELS_INT16_SUM_H
#define QR_KERNELS_INT16_SUM_H

#include <math.h>
#include <stdint.h>

#include "base/half.h"
#include "quant/format.h"

enum { QR_INT16_COLS = 64, QR_INT16_K_BLOCK = 512 };

/* Whether weights are taken as integers: INT8, and 4 bits where blocks are whole ones of a row. */
static inline bool qr_int16_takes(const qr_weight_desc *desc) {
    if (desc->format == QR_WEIGHT_INT8) { return true; }
    return qr_weight_has_blocks(desc->format) && desc->cols % QR_INT16_COLS == 0 &&
           (desc->format == QR_WEIGHT_MXFP4 || desc->block % QR_INT16_COLS == 0);
}

/* Of weights: columns of a block. */
static inline int qr_int16_cols(const qr_weight_desc *desc) {
    return desc->format == QR_WEIGHT_MXFP4 ? QR_MXFP4_BLOCK : QR_INT16_COLS;
}

/* The integer of an NF4 code whose value is 1, before rounding: of 4,096 to 8,224, of which products fit, the one whose
 * 16 values are nearest to integers. */
#define QR_INT16_NF4_ONE 7853.8F
#define QR_INT16_NF4_UNIT (1.0F / QR_INT16_NF4_ONE)
#define QR_INT16_MXFP4_UNIT 0.5F

typedef struct qr_int16_factor {
    float factor, inverse;
} qr_int16_factor;

/* Of a block of x whose largest magnitude has these bits in BF16. */
static inline qr_int16_factor qr_int16_factor_of(uint16_t largest) {
    enum { BIAS = 127, LEAST = 1 + 14, NOT_FINITE = 255 };
    const uint32_t biased = largest >> 7;
    const uint32_t exponent = biased < LEAST ? (uint32_t)LEAST : biased;
    if (biased == NOT_FINITE) { return (qr_int16_factor){NAN, 0.0F}; }
    return (qr_int16_factor){qr_f32_from_bits((exponent - 14) << 23),
                             qr_f32_from_bits((uint32_t)(2 * BIAS + 14 - exponent) << 23)};
}

#endif
