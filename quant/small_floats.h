/* Floats of 8 and 4 bits, as the OCP formats define them: what quantised folders store weights and scales in. */
#ifndef QR_QUANT_SMALL_FLOATS_H
#define QR_QUANT_SMALL_FLOATS_H

#include <stdint.h>

#include "base/dtype.h"
#include "base/half.h"

/* The values of all codes of F8_E4M3 (no infinities, a NaN of each sign) or F8_E5M2. */
void qr_float8_values(qr_dtype dtype, float values[256]);

/* E2M1: the values of its 16 codes; the upper half is negative. */
extern const float qr_float4_values[16];

/* E8M0: a power of two, 2^(code − 127); 255 is NaN. */
static inline float qr_e8m0_to_f32(uint8_t code) {
    static const uint32_t half_of_least_normal = UINT32_C(0x00400000), nan = UINT32_C(0x7FC00000);
    return qr_f32_from_bits(code == 0 ? half_of_least_normal : code == 255 ? nan : (uint32_t)code << 23);
}

/* MXFP4 in canonical form (format.h): dst[i] = value of code · 2^(scale − 127) for elements [first, first + n) of the
 * flattened matrix. Exact in F32, but for products beyond its range: those are infinite. */
void qr_mxfp4_dequantize(const uint8_t *codes, const uint8_t *scales, int64_t first, int64_t n, float *dst);

#endif
