#include "quant/nf4.h"

#include <math.h>

#include "base/sizes.h"
#include "quant/dynamic8.h"
#include "quant/format.h"

const float qr_nf4_code[16] = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

/* The decimal constants of the CUDA kernel, rounded once to F32 as its compiler does. Four differ by one unit from the
 * F32 halves of the sums of neighbouring codes, and three from what reading them as doubles gives. */
const float qr_nf4_midpoints[15] = {
    -0.8480964004993439F,  -0.6106329262256622F,   -0.4599952697753906F, -0.33967943489551544F, -0.23460740596055984F,
    -0.13791173323988914F, -0.045525018125772476F, 0.03979014977812767F, 0.1202552504837513F,   0.2035212516784668F,
    0.2920137718319893F,   0.3893125355243683F,    0.5016634166240692F,  0.6427869200706482F,   0.8614784178118011F,
};

uint8_t qr_nf4_encode(float x) {
    int code = 0;
    for (int i = 0; i < 15; i++) { code += x > qr_nf4_midpoints[i]; }
    return (uint8_t)code;
}

/* fmaxf drops NaN, as the CUDA kernel's does. */
static float block_absmax(const float *src, int64_t n) {
    float absmax = 0.0F;
    for (int64_t i = 0; i < n; i++) { absmax = fmaxf(absmax, fabsf(src[i])); }
    return absmax;
}

/* An even element comes first and writes the code of zero next to it, which stays if the matrix ends there. */
static void put_code(uint8_t *codes, int64_t index, uint8_t code) {
    if (index % 2 == 0) {
        codes[index / 2] = (uint8_t)(code << 4 | 7);
    } else {
        codes[index / 2] = (uint8_t)((codes[index / 2] & 0xF0U) | code);
    }
}

void qr_nf4_quantize(const float *src, int64_t n, int block, uint8_t *codes, float *absmax) {
    for (int64_t first = 0; first < n; first += block) {
        const int64_t end = qr_min(first + block, n);
        const float largest = block_absmax(src + first, end - first);
        const float inverse = largest > 0.0F ? 1.0F / largest : 0.0F; /* of zeros: x · 0 has code 7 */
        absmax[first / block] = largest;
        for (int64_t i = first; i < end; i++) { put_code(codes, i, qr_nf4_encode(src[i] * inverse)); }
    }
}

void qr_nf4_dequantize(const uint8_t *codes, const float *absmax, int block, int64_t first, int64_t n, float *dst) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t index = first + i;
        const unsigned byte = codes[index / 2];
        const unsigned code = index % 2 == 0 ? byte >> 4 : byte & 0xFU;
        dst[i] = qr_nf4_code[code] * absmax[index / block];
    }
}

float qr_nf4_nested_offset(const float *absmax, int64_t n_blocks) {
    double sum = 0.0;
    for (int64_t i = 0; i < n_blocks; i++) { sum += (double)absmax[i]; }
    return (float)(sum / (double)n_blocks);
}

/* A block in which every absmax equals the offset divides by zero: 0 · inf is NaN, which takes code 0, and code 0 times
 * a nested absmax of 0 is the right value. */
void qr_nf4_nest(const float *absmax, int64_t n_blocks, float offset, uint8_t *codes, float *nested_absmax) {
    for (int64_t first = 0; first < n_blocks; first += QR_NESTED_BLOCK) {
        const int64_t end = qr_min(first + QR_NESTED_BLOCK, n_blocks);
        float largest = 0.0F;
        for (int64_t i = first; i < end; i++) { largest = fmaxf(largest, fabsf(absmax[i] - offset)); }
        const float inverse = 1.0F / largest;
        nested_absmax[first / QR_NESTED_BLOCK] = largest;
        for (int64_t i = first; i < end; i++) { codes[i] = qr_dynamic8_encode((absmax[i] - offset) * inverse, true); }
    }
}

void qr_nf4_unnest(const uint8_t *codes, const float *nested_absmax, float offset, int64_t first, int64_t n,
                   float *absmax) {
    const float *map = qr_dynamic8_map(true);
    for (int64_t i = 0; i < n;) {
        const int64_t nested = (first + i) / QR_NESTED_BLOCK;
        const int64_t end = qr_min((nested + 1) * QR_NESTED_BLOCK - first, n);
        const float scale = nested_absmax[nested];
        for (; i < end; i++) { absmax[i] = map[codes[first + i]] * scale + offset; }
    }
}
