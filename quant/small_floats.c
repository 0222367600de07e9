#include "quant/small_floats.h"

#include <assert.h>
#include <math.h>

#include "base/half.h"
#include "quant/format.h"

const float qr_float4_values[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                    -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

/* Sign, 4 bits of exponent with bias 7, 3 bits of mantissa. */
static float e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size = (code & 0x7F) == 0x7F ? NAN
                       : exponent == 0       ? ldexpf((float)mantissa, -9)
                                             : ldexpf((float)(8 + mantissa), exponent - 10);
    return (code & 0x80) != 0 ? -size : size;
}

void qr_float8_values(qr_dtype dtype, float values[256]) {
    assert(dtype == QR_DTYPE_F8_E4M3 || dtype == QR_DTYPE_F8_E5M2);
    for (int code = 0; code < 256; code++) { /* E5M2 is the upper half of an F16 */
        values[code] = dtype == QR_DTYPE_F8_E4M3 ? e4m3((uint8_t)code) : qr_f16_to_f32((qr_f16)(code << 8));
    }
}

void qr_mxfp4_dequantize(const uint8_t *codes, const uint8_t *scales, int64_t first, int64_t n, float *dst) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t index = first + i;
        const unsigned byte = codes[index / 2];
        const unsigned code = index % 2 == 0 ? byte >> 4 : byte & 15U;
        dst[i] = qr_float4_values[code] * qr_e8m0_to_f32(scales[index / QR_MXFP4_BLOCK]);
    }
}
