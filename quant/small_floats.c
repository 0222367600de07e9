#include "quant/small_floats.h"

#include <assert.h>
#include <math.h>

#include "base/half.h"

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

float qr_e8m0_to_f32(uint8_t code) { return code == 255 ? NAN : ldexpf(1.0F, code - 127); }
