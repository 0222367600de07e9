/* Weights of the reference backend: the canonical codes, then the canonical scales, each part 64-byte aligned. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernels/host_memory.h"
#include "kernels/int16_sum.h"
#include "kernels/ref/ref.h"
#include "quant/int8.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

enum { ALIGNMENT = 64 };

static size_t aligned(size_t n_bytes) { return (n_bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1); }

static size_t layout(const qr_weight_desc *desc, size_t *first, size_t *nested) {
    size_t nested_bytes;
    *first = aligned(qr_weight_code_bytes(desc));
    *nested = *first + aligned(qr_host_scale_bytes(desc, &nested_bytes));
    return *nested + aligned(nested_bytes);
}

static const void *first_scales(const qr_weight *weight) {
    size_t first, nested;
    (void)layout(&weight->desc, &first, &nested);
    return (const unsigned char *)weight->data + first;
}

static const void *nested_scales(const qr_weight *weight) {
    size_t first, nested;
    (void)layout(&weight->desc, &first, &nested);
    return (const unsigned char *)weight->data + nested;
}

static void move_rows(const qr_weight *weight, int64_t row, int64_t n_rows, void *codes, bool is_put) {
    const size_t begin = qr_weight_row_offset(&weight->desc, row);
    unsigned char *stored = (unsigned char *)weight->data + begin;
    memcpy(is_put ? stored : codes, is_put ? codes : stored, qr_weight_row_offset(&weight->desc, row + n_rows) - begin);
}

const qr_host_weights qr_ref_weights = {.move_rows = move_rows, .layout = layout};

qr_dtype qr_ref_plain_dtype(qr_weight_format format) {
    switch (format) {
        case QR_WEIGHT_F16: return QR_DTYPE_F16;
        case QR_WEIGHT_BF16: return QR_DTYPE_BF16;
        default: return QR_DTYPE_F32;
    }
}

float qr_ref_int8_scale(const qr_weight *weight, int64_t row) { return ((const float *)first_scales(weight))[row]; }

float qr_ref_int8_row(const qr_weight *weight, int64_t row, float *codes) {
    const int8_t *src = (const int8_t *)weight->data + row * weight->desc.cols;
    for (int64_t c = 0; c < weight->desc.cols; c++) { codes[c] = (float)src[c]; }
    return qr_ref_int8_scale(weight, row);
}

static unsigned code_of(const qr_weight *weight, int64_t index) {
    const unsigned byte = ((const uint8_t *)weight->data)[index / 2];
    return index % 2 == 0 ? byte >> 4 : byte & 0xFU;
}

/* absmax of the block that an element is in. */
static float nf4_absmax(const qr_weight *weight, int64_t index) {
    const int64_t block = index / weight->desc.block;
    const float *scales = first_scales(weight);
    if (weight->desc.format == QR_WEIGHT_NF4) { return scales[block]; }
    float absmax;
    qr_nf4_unnest(first_scales(weight), nested_scales(weight), weight->nested_offset, block, 1, &absmax);
    return absmax;
}

/* NF4_DQ: element by element, because a row may begin and end inside a block. */
static void nf4_dq_row(const qr_weight *weight, int64_t first, float *dst) {
    for (int64_t c = 0; c < weight->desc.cols; c++) {
        const int64_t index = first + c;
        dst[c] = qr_nf4_code[code_of(weight, index)] * nf4_absmax(weight, index);
    }
}

/* The integer of an element, and the factor of its block. */
static int16_t int16_value(const qr_weight *weight, int64_t index) {
    switch (weight->desc.format) {
        case QR_WEIGHT_INT8: return ((const int8_t *)weight->data)[index];
        case QR_WEIGHT_MXFP4: return (int16_t)lrintf(2.0F * qr_float4_values[code_of(weight, index)]);
        default: return (int16_t)lrintf(QR_INT16_NF4_ONE * qr_nf4_code[code_of(weight, index)]);
    }
}

static float int16_factor(const qr_weight *weight, int64_t index) {
    switch (weight->desc.format) {
        case QR_WEIGHT_INT8: return 1.0F;
        case QR_WEIGHT_MXFP4:
            return qr_e8m0_to_f32(((const uint8_t *)first_scales(weight))[index / QR_MXFP4_BLOCK]) *
                   QR_INT16_MXFP4_UNIT;
        default: return nf4_absmax(weight, index) * QR_INT16_NF4_UNIT;
    }
}

void qr_ref_int16_row(const qr_weight *weight, int64_t row, int16_t *dst, float *factors) {
    const int64_t cols = weight->desc.cols, first = row * cols;
    const int block = qr_int16_cols(&weight->desc);
    for (int64_t c = 0; c < cols; c++) { dst[c] = int16_value(weight, first + c); }
    for (int64_t c = 0; c < cols; c += block) { factors[c / block] = int16_factor(weight, first + c); }
}

void qr_ref_weight_row(const qr_weight *weight, int64_t row, float *dst) {
    const int64_t cols = weight->desc.cols, first = row * cols;
    const float *absmax = first_scales(weight);
    switch (weight->desc.format) {
        case QR_WEIGHT_NF4: qr_nf4_dequantize(weight->data, absmax, weight->desc.block, first, cols, dst); break;
        case QR_WEIGHT_NF4_DQ: nf4_dq_row(weight, first, dst); break;
        case QR_WEIGHT_MXFP4: qr_mxfp4_dequantize(weight->data, first_scales(weight), first, cols, dst); break;
        case QR_WEIGHT_INT8:
            qr_int8_dequantize_row((const int8_t *)weight->data + first, absmax[row], cols, dst);
            break;
        default:
            for (int64_t c = 0; c < cols; c++) {
                dst[c] = qr_ref_load(weight->data, qr_ref_plain_dtype(weight->desc.format), first + c);
            }
            break;
    }
}
