/* Reading NF4 and MXFP4 weights: what does not depend on the instruction set. */
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/tile_sum.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

/* Scales of blocks [first, first + n). */
static void block_scales(const qr_weight *weight, const qr_cpu_layout *layout, int64_t first, int64_t n, float *dst) {
    const unsigned char *data = weight->data;
    if (weight->desc.format == QR_WEIGHT_NF4) {
        memcpy(dst, qr_cpu_scales(weight, layout) + first, (size_t)n * sizeof(float));
        return;
    }
    if (weight->desc.format == QR_WEIGHT_MXFP4) {
        const uint8_t *codes = data + layout->scales_offset + first;
        for (int64_t i = 0; i < n; i++) { dst[i] = qr_e8m0_to_f32(codes[i]); }
        return;
    }
    qr_nf4_unnest(data + layout->scales_offset, (const float *)(const void *)(data + layout->nested_offset),
                  weight->nested_offset, first, n, dst);
}

void qr_cpu_nf4_scales(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, int64_t k, int64_t n,
                       float *dst) {
    if (row >= weight->desc.rows) {
        memset(dst, 0, (size_t)n * sizeof(float));
        return;
    }
    const int64_t first = row * weight->desc.cols + k;
    const int block = qr_weight_block(&weight->desc);
    if (block == qr_cpu_scale_cols(weight)) {
        block_scales(weight, layout, first / block, n, dst);
        return;
    }
    for (int64_t j = 0; j < n; j++) { block_scales(weight, layout, (first + 64 * j) / block, 1, dst + j); }
}

static float round_to_dtype(float value, qr_dtype dtype) {
    if (dtype == QR_DTYPE_BF16) { return qr_bf16_to_f32(qr_tile_weight(value)); }
    return dtype == QR_DTYPE_F16 ? qr_f16_to_f32(qr_f32_to_f16(value)) : value;
}

static void make_table(float table[16], const float values[16], float scale, qr_dtype round_to) {
    for (int i = 0; i < 16; i++) { table[i] = round_to_dtype(values[i] * scale, round_to); }
}

void qr_cpu_nf4_flat_row_f32(const qr_cpu_panel *panel, int64_t row, qr_dtype round_to, float *dst) {
    const qr_weight *weight = panel->weight;
    const uint8_t *codes = weight->data;
    const int64_t begin = row * weight->desc.cols + panel->k, end = begin + panel->n_k;
    const float *values = qr_weight_code_values(weight->desc.format);
    const int block = qr_weight_block(&weight->desc);
    for (int64_t i = begin; i < end;) {
        const int64_t block_end = qr_min((i / block + 1) * block, end);
        float absmax, table[16];
        block_scales(weight, panel->layout, i / block, 1, &absmax);
        make_table(table, values, absmax, round_to);
        for (; i < block_end; i++) { dst[i - begin] = table[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15]; }
    }
}

void qr_cpu_nf4_flat_row_bf16(const qr_cpu_panel *panel, int64_t row, uint16_t *dst) {
    enum { PIECE = 256 };
    float piece[PIECE];
    qr_cpu_panel part = *panel;
    for (int64_t k = 0; k < panel->n_k; k += PIECE) {
        part.k = panel->k + k;
        part.n_k = qr_min(panel->n_k - k, PIECE);
        qr_cpu_nf4_flat_row_f32(&part, row, QR_DTYPE_BF16, piece);
        for (int64_t j = 0; j < part.n_k; j++) { dst[k + j] = (uint16_t)(qr_f32_bits(piece[j]) >> 16); }
    }
}
