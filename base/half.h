/* 16-bit floating point in scalar C: BF16 and IEEE binary16, converted with round-to-nearest-even as PyTorch does.
 * NaN stays NaN. These are the definitions that the vector kernels are tested against. */
#ifndef QR_BASE_HALF_H
#define QR_BASE_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

typedef uint16_t qr_bf16; /* the upper half of a float */
typedef uint16_t qr_f16;  /* IEEE 754 binary16 */

static inline uint32_t qr_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float qr_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float qr_bf16_to_f32(qr_bf16 value) { return qr_f32_from_bits((uint32_t)value << 16); }

static inline qr_bf16 qr_f32_to_bf16(float value) {
    const uint32_t bits = qr_f32_bits(value);
    if ((bits & 0x7FFFFFFFU) > 0x7F800000U) { return (qr_bf16)(bits >> 16 | 0x0040U); }
    return (qr_bf16)((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

float qr_f16_to_f32(qr_f16 value);
qr_f16 qr_f32_to_f16(float value);

/* dst[i] = element first + i of src, an array of F32, F16 or BF16 at any alignment (a mapped file). */
void qr_elements_to_f32(qr_dtype dtype, const void *src, int64_t first, int64_t n, float *dst);
/* The inverse: n elements of dtype from src, rounded to nearest even, to dst at any alignment. */
void qr_elements_from_f32(qr_dtype dtype, const float *src, int64_t n, void *dst);
/* Whether none of n elements of F32, F16 or BF16 at src, at any alignment, is infinite or NaN. */
bool qr_elements_are_finite(qr_dtype dtype, const void *src, int64_t n);

#endif
