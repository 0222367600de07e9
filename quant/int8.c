#include "quant/int8.h"

#include <math.h>

#include "base/half.h"

static float round_to_f16(float value) { return qr_f16_to_f32(qr_f32_to_f16(value)); }

float qr_int8_absmax(const float *src, int64_t n) {
    float absmax = 0.0F;
    for (int64_t i = 0; i < n; i++) { absmax = fmaxf(absmax, fabsf(round_to_f16(src[i]))); }
    return absmax;
}

void qr_int8_encode(const float *src, int64_t n, float row_absmax, int8_t *codes) {
    const float scale = row_absmax > 0.0F ? 127.0F * (1.0F / row_absmax) : 0.0F;
    for (int64_t i = 0; i < n; i++) {
        const float scaled = round_to_f16(src[i]) * scale;
        codes[i] = isnan(scaled) ? 0 : (int8_t)rintf(scaled);
    }
}

float qr_int8_quantize_row(const float *src, int64_t n, int8_t *codes) {
    const float row_absmax = qr_int8_absmax(src, n);
    qr_int8_encode(src, n, row_absmax, codes);
    return row_absmax;
}

void qr_int8_dequantize_row(const int8_t *codes, float row_absmax, int64_t n, float *dst) {
    for (int64_t i = 0; i < n; i++) { dst[i] = (float)codes[i] * row_absmax * (1.0F / 127.0F); }
}
