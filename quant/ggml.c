#include "quant/ggml.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"

enum { SMALL = 32, LARGE = QR_GGML_MAX_BLOCK };

static float read_f16(const uint8_t *bytes) { return qr_f16_to_f32((qr_f16)(bytes[0] | bytes[1] << 8)); }

static void write_f16(float value, uint8_t *bytes) {
    const qr_f16 half = qr_f32_to_f16(value);
    bytes[0] = (uint8_t)half;
    bytes[1] = (uint8_t)(half >> 8);
}

/* ---- Blocks of 32 ------------------------------------------------------------------------------------------------ */

/* Of 32 codes of 4 bits, the first 16 are in the low halves of the bytes. */
static int low_code(const uint8_t *codes, int i) { return i < SMALL / 2 ? codes[i] & 15 : codes[i - SMALL / 2] >> 4; }

/* The fifth bits: 32 of them, little-endian. */
static int high_bit(const uint8_t *bits, int i) { return (bits[i / 8] >> i % 8 & 1) << 4; }

static void decode_q4_0(const uint8_t *block, float *dst) {
    const float d = read_f16(block);
    for (int i = 0; i < SMALL; i++) { dst[i] = d * (float)(low_code(block + 2, i) - 8); }
}

static void decode_q4_1(const uint8_t *block, float *dst) {
    const float d = read_f16(block), m = read_f16(block + 2);
    for (int i = 0; i < SMALL; i++) { dst[i] = d * (float)low_code(block + 4, i) + m; }
}

static void decode_q5_0(const uint8_t *block, float *dst) {
    const float d = read_f16(block);
    for (int i = 0; i < SMALL; i++) { dst[i] = d * (float)((low_code(block + 6, i) | high_bit(block + 2, i)) - 16); }
}

static void decode_q5_1(const uint8_t *block, float *dst) {
    const float d = read_f16(block), m = read_f16(block + 2);
    for (int i = 0; i < SMALL; i++) { dst[i] = d * (float)(low_code(block + 8, i) | high_bit(block + 4, i)) + m; }
}

static void decode_q8_0(const uint8_t *block, float *dst) {
    const float d = read_f16(block);
    for (int i = 0; i < SMALL; i++) { dst[i] = (float)(int8_t)block[2 + i] * d; }
}

static void decode_iq4_nl(const uint8_t *block, float *dst) {
    static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const float d = read_f16(block);
    for (int i = 0; i < SMALL; i++) { dst[i] = d * (float)values[low_code(block + 2, i)]; }
}

/* Twice the values of E2M1, times half of the power of two that E8M0 stands for. */
static void decode_mxfp4(const uint8_t *block, float *dst) {
    static const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint32_t e = block[0];
    const float d = qr_f32_from_bits(e < 2 ? UINT32_C(0x00200000) << e : (e - 1) << 23);
    for (int i = 0; i < SMALL; i++) { dst[i] = d * (float)values[low_code(block + 1, i)]; }
}

/* ---- Blocks of 256 ----------------------------------------------------------------------------------------------- */

/* Eight scales and eight minima of 6 bits in 12 bytes: the last four have their upper two bits in the first eight. */
static void read_scales(const uint8_t *packed, float d, float dmin, float scales[8], float minima[8]) {
    for (int j = 0; j < 4; j++) {
        const uint8_t s = packed[j], m = packed[4 + j], both = packed[8 + j];
        scales[j] = d * (float)(s & 63);
        minima[j] = dmin * (float)(m & 63);
        scales[4 + j] = d * (float)((both & 15) | (s >> 2 & 48));
        minima[4 + j] = dmin * (float)(both >> 4 | (m >> 2 & 48));
    }
}

static void decode_q4_k(const uint8_t *block, float *dst) {
    float scales[8], minima[8];
    read_scales(block + 4, read_f16(block), read_f16(block + 2), scales, minima);
    const uint8_t *codes = block + 16;
    for (int i = 0; i < LARGE; i++) {
        const int group = i / 32;
        const int q = codes[group / 2 * 32 + i % 32] >> group % 2 * 4 & 15;
        dst[i] = scales[group] * (float)q - minima[group];
    }
}

static void decode_q5_k(const uint8_t *block, float *dst) {
    float scales[8], minima[8];
    read_scales(block + 4, read_f16(block), read_f16(block + 2), scales, minima);
    const uint8_t *high = block + 16, *codes = block + 48;
    for (int i = 0; i < LARGE; i++) {
        const int group = i / 32;
        const int q = (codes[group / 2 * 32 + i % 32] >> group % 2 * 4 & 15) | (high[i % 32] >> group & 1) << 4;
        dst[i] = scales[group] * (float)q - minima[group];
    }
}

static void decode_q6_k(const uint8_t *block, float *dst) {
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    const float d = read_f16(block + 208);
    for (int i = 0; i < LARGE; i++) {
        const int half = i / 128, within = i % 128;
        const int l = low[half * 64 + within % 64] >> within / 64 * 4 & 15;
        const int h = high[half * 32 + within % 32] >> within / 32 * 2 & 3;
        dst[i] = d * (float)(int8_t)scales[i / 16] * (float)((l | h << 4) - 32);
    }
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

void qr_ggml_dequantize(qr_dtype dtype, const void *blocks, int64_t n_blocks, float *dst) {
    static void (*const decoders[QR_DTYPE_COUNT])(const uint8_t *block, float *dst) = {
        [QR_DTYPE_Q4_0] = decode_q4_0,   [QR_DTYPE_Q4_1] = decode_q4_1, [QR_DTYPE_Q5_0] = decode_q5_0,
        [QR_DTYPE_Q5_1] = decode_q5_1,   [QR_DTYPE_Q8_0] = decode_q8_0, [QR_DTYPE_Q4_K] = decode_q4_k,
        [QR_DTYPE_Q5_K] = decode_q5_k,   [QR_DTYPE_Q6_K] = decode_q6_k, [QR_DTYPE_IQ4_NL] = decode_iq4_nl,
        [QR_DTYPE_MXFP4] = decode_mxfp4,
    };
    assert(decoders[dtype] != NULL);
    const uint8_t *block = blocks;
    for (int64_t i = 0; i < n_blocks; i++) {
        decoders[dtype](block, dst);
        block += qr_dtype_block_bytes(dtype);
        dst += qr_dtype_block_elements(dtype);
    }
}

void qr_ggml_dequantize_range(qr_dtype dtype, const void *blocks, int64_t first, int64_t n, float *dst) {
    const int64_t size = qr_dtype_block_elements(dtype);
    const uint8_t *block = (const uint8_t *)blocks + first / size * qr_dtype_block_bytes(dtype);
    while (n > 0) {
        const int64_t skipped = first % size, taken = qr_min(n, size - skipped);
        if (taken == size) {
            const int64_t n_blocks = n / size;
            qr_ggml_dequantize(dtype, block, n_blocks, dst);
            block += n_blocks * qr_dtype_block_bytes(dtype);
            first += n_blocks * size, dst += n_blocks * size, n -= n_blocks * size;
            continue;
        }
        float values[QR_GGML_MAX_BLOCK];
        qr_ggml_dequantize(dtype, block, 1, values);
        memcpy(dst, values + skipped, (size_t)taken * sizeof *dst);
        block += qr_dtype_block_bytes(dtype);
        first += taken, dst += taken, n -= taken;
    }
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

static float inverse(float d) { return d != 0 ? 1.0F / d : 0.0F; }

static void encode_q8_0(const float *src, uint8_t *block) {
    float largest = 0;
    for (int i = 0; i < SMALL; i++) { largest = fmaxf(largest, fabsf(src[i])); }
    const float d = largest / 127.0F, id = inverse(d);
    write_f16(d, block);
    for (int i = 0; i < SMALL; i++) { block[2 + i] = (uint8_t)(int8_t)roundf(src[i] * id); }
}

/* The element of largest magnitude becomes -8 exactly. */
static void encode_q4_0(const float *src, uint8_t *block) {
    float extreme = 0;
    for (int i = 0; i < SMALL; i++) {
        if (fabsf(src[i]) > fabsf(extreme)) { extreme = src[i]; }
    }
    const float d = extreme / -8.0F, id = inverse(d);
    write_f16(d, block);
    for (int i = 0; i < SMALL / 2; i++) {
        const int low = (int)(src[i] * id + 8.5F), high = (int)(src[i + SMALL / 2] * id + 8.5F);
        block[2 + i] = (uint8_t)(qr_min(low, 15) | qr_min(high, 15) << 4);
    }
}

void qr_ggml_quantize(qr_dtype dtype, const float *src, int64_t n_blocks, void *blocks) {
    assert(dtype == QR_DTYPE_Q8_0 || dtype == QR_DTYPE_Q4_0);
    uint8_t *block = blocks;
    for (int64_t i = 0; i < n_blocks; i++) {
        if (dtype == QR_DTYPE_Q8_0) {
            encode_q8_0(src + i * SMALL, block);
        } else {
            encode_q4_0(src + i * SMALL, block);
        }
        block += qr_dtype_block_bytes(dtype);
    }
}
