#include "base/half.h"

float qr_f16_to_f32(qr_f16 value) {
    const uint32_t sign = (uint32_t)(value & 0x8000U) << 16;
    const uint32_t exponent = value >> 10 & 0x1FU;
    const uint32_t mantissa = value & 0x3FFU;
    if (exponent == 0x1FU) { return qr_f32_from_bits(sign | 0x7F800000U | mantissa << 13); }
    if (exponent != 0) { return qr_f32_from_bits(sign | (exponent + 112U) << 23 | mantissa << 13); }
    const float magnitude = (float)mantissa * 0x1p-24F; /* subnormal: exact */
    return qr_f32_from_bits(sign | qr_f32_bits(magnitude));
}

qr_f16 qr_f32_to_f16(float value) {
    const uint32_t bits = qr_f32_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000U;
    const uint32_t magnitude = bits & 0x7FFFFFFFU;
    if (magnitude > 0x7F800000U) { return (qr_f16)(sign | 0x7E00U | (magnitude >> 13 & 0x3FFU)); }
    if (magnitude >= 0x477FF000U) { return (qr_f16)(sign | 0x7C00U); } /* rounds to 65536 or is infinite */
    if (magnitude < 0x38800000U) { /* below 2^-14: the hardware rounds to a multiple of 2^-24 when 0.5 is added */
        const float shifted = qr_f32_from_bits(magnitude) + 0.5F;
        return (qr_f16)(sign | (qr_f32_bits(shifted) - qr_f32_bits(0.5F)));
    }
    const uint32_t rounded = magnitude + 0xFFFU + (magnitude >> 13 & 1U);
    return (qr_f16)(sign | ((rounded - 0x38000000U) >> 13));
}

void qr_elements_to_f32(qr_dtype dtype, const void *src, int64_t first, int64_t n, float *dst) {
    const unsigned char *bytes = (const unsigned char *)src + (size_t)first * qr_dtype_bytes(dtype);
    if (dtype == QR_DTYPE_F32) {
        memcpy(dst, bytes, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, bytes + i * 2, sizeof half);
        dst[i] = dtype == QR_DTYPE_F16 ? qr_f16_to_f32(half) : qr_bf16_to_f32(half);
    }
}

void qr_elements_from_f32(qr_dtype dtype, const float *src, int64_t n, void *dst) {
    if (dtype == QR_DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof *src);
        return;
    }
    unsigned char *bytes = dst;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t half = dtype == QR_DTYPE_F16 ? qr_f32_to_f16(src[i]) : qr_f32_to_bf16(src[i]);
        memcpy(bytes + i * 2, &half, sizeof half);
    }
}

/* Eight bytes at a time. The exponent bits of an element and one unit of theirs carry into the place of its sign where
 * all are set, and nowhere else. */
bool qr_elements_are_finite(qr_dtype dtype, const void *src, int64_t n) {
    const uint64_t lanes = dtype == QR_DTYPE_F32 ? UINT64_C(0x0000000100000001) : UINT64_C(0x0001000100010001);
    const uint64_t exponent = lanes * (dtype == QR_DTYPE_F32    ? 0x7F800000U
                                       : dtype == QR_DTYPE_BF16 ? 0x7F80U
                                                                : 0x7C00U);
    const uint64_t unit = lanes * (dtype == QR_DTYPE_F32 ? 0x00800000U : dtype == QR_DTYPE_BF16 ? 0x0080U : 0x0400U);
    const uint64_t sign = lanes * (dtype == QR_DTYPE_F32 ? 0x80000000U : 0x8000U);
    const unsigned char *bytes = src;
    const size_t n_bytes = (size_t)n * qr_dtype_bytes(dtype);
    uint64_t found = 0, word;
    size_t at = 0;
    for (; at + sizeof word <= n_bytes; at += sizeof word) {
        memcpy(&word, bytes + at, sizeof word);
        found |= (word & exponent) + unit;
    }
    word = 0;
    if (at < n_bytes) { memcpy(&word, bytes + at, n_bytes - at); }
    found |= (word & exponent) + unit;
    return (found & sign) == 0;
}
