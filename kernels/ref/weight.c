/* Weights of the reference backend: the canonical codes, then the canonical scales, each part 64-byte aligned. */
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/op_check.h"
#include "kernels/ref/ref.h"
#include "quant/int8.h"
#include "quant/nf4.h"

enum { ALIGNMENT = 64 };

typedef struct scale_sizes {
    size_t row_absmax, absmax, absmax_codes, nested_absmax; /* bytes; 0 where the format has none */
} scale_sizes;

typedef struct scale_parts {
    float *row_absmax, *absmax, *nested_absmax;
    uint8_t *absmax_codes;
} scale_parts;

static size_t aligned(size_t n_bytes) { return (n_bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1); }

static scale_sizes sizes_of(const qr_weight_desc *desc) {
    scale_sizes sizes = {0};
    const size_t n_blocks = (size_t)qr_weight_blocks(desc);
    if (desc->format == QR_WEIGHT_INT8) { sizes.row_absmax = (size_t)desc->rows * sizeof(float); }
    if (desc->format == QR_WEIGHT_NF4) { sizes.absmax = n_blocks * sizeof(float); }
    if (desc->format == QR_WEIGHT_NF4_DQ) {
        sizes.absmax_codes = n_blocks;
        sizes.nested_absmax = (size_t)qr_ceil_div((int64_t)n_blocks, QR_NESTED_BLOCK) * sizeof(float);
    }
    return sizes;
}

static scale_parts parts_of(const qr_weight *weight) {
    const scale_sizes sizes = sizes_of(&weight->desc);
    unsigned char *scales = (unsigned char *)weight->data + aligned(qr_weight_code_bytes(&weight->desc));
    return (scale_parts){
        .row_absmax = (float *)(void *)scales,
        .absmax = (float *)(void *)scales,
        .nested_absmax = (float *)(void *)scales,
        .absmax_codes = scales + aligned(sizes.nested_absmax),
    };
}

static size_t weight_bytes(const qr_backend *backend, const qr_weight_desc *desc) {
    (void)backend;
    const scale_sizes sizes = sizes_of(desc);
    return aligned(qr_weight_code_bytes(desc)) + aligned(sizes.row_absmax) + aligned(sizes.absmax) +
           aligned(sizes.nested_absmax) + aligned(sizes.absmax_codes);
}

static size_t rows_bytes(const qr_weight_desc *desc, int64_t row, int64_t n_rows) {
    return qr_weight_row_offset(desc, row + n_rows) - qr_weight_row_offset(desc, row);
}

static qrun_status weight_put_rows(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                   const void *codes, qr_error *err) {
    (void)backend;
    QR_RETURN_IF_ERROR(qr_check_weight_rows(&weight->desc, row, n_rows, err));
    memcpy((unsigned char *)weight->data + qr_weight_row_offset(&weight->desc, row), codes,
           rows_bytes(&weight->desc, row, n_rows));
    return QRUN_OK;
}

static qrun_status weight_get_rows(qr_backend *backend, const qr_weight *weight, int64_t row, int64_t n_rows,
                                   void *codes, qr_error *err) {
    (void)backend;
    QR_RETURN_IF_ERROR(qr_check_weight_rows(&weight->desc, row, n_rows, err));
    memcpy(codes, (const unsigned char *)weight->data + qr_weight_row_offset(&weight->desc, row),
           rows_bytes(&weight->desc, row, n_rows));
    return QRUN_OK;
}

static void copy_part(void *dst, const void *src, size_t n_bytes) {
    if (n_bytes > 0 && dst != NULL) { memcpy(dst, src, n_bytes); }
}

static qrun_status weight_put_scales(qr_backend *backend, qr_weight *weight, const qr_weight_scales *scales,
                                     qr_error *err) {
    (void)backend;
    QR_RETURN_IF_ERROR(qr_check_weight_scales(&weight->desc, scales, err));
    const scale_sizes sizes = sizes_of(&weight->desc);
    const scale_parts parts = parts_of(weight);
    copy_part(parts.row_absmax, scales->row_absmax, sizes.row_absmax);
    copy_part(parts.absmax, scales->absmax, sizes.absmax);
    copy_part(parts.absmax_codes, scales->absmax_codes, sizes.absmax_codes);
    copy_part(parts.nested_absmax, scales->nested_absmax, sizes.nested_absmax);
    weight->nested_offset = weight->desc.format == QR_WEIGHT_NF4_DQ ? scales->nested_offset : 0.0F;
    return QRUN_OK;
}

static qrun_status weight_get_scales(qr_backend *backend, const qr_weight *weight, float *row_absmax, float *absmax,
                                     uint8_t *absmax_codes, float *nested_absmax, qr_error *err) {
    (void)backend;
    (void)err;
    const scale_sizes sizes = sizes_of(&weight->desc);
    const scale_parts parts = parts_of(weight);
    copy_part(row_absmax, parts.row_absmax, sizes.row_absmax);
    copy_part(absmax, parts.absmax, sizes.absmax);
    copy_part(absmax_codes, parts.absmax_codes, sizes.absmax_codes);
    copy_part(nested_absmax, parts.nested_absmax, sizes.nested_absmax);
    return QRUN_OK;
}

void qr_ref_set_weight_functions(qr_backend *backend) {
    backend->weight_bytes = weight_bytes;
    backend->weight_put_rows = weight_put_rows;
    backend->weight_put_scales = weight_put_scales;
    backend->weight_get_rows = weight_get_rows;
    backend->weight_get_scales = weight_get_scales;
}

float qr_ref_int8_row(const qr_weight *weight, int64_t row, float *codes) {
    const int8_t *src = (const int8_t *)weight->data + row * weight->desc.cols;
    for (int64_t c = 0; c < weight->desc.cols; c++) { codes[c] = (float)src[c]; }
    return parts_of(weight).row_absmax[row];
}

/* NF4_DQ: element by element, because a row may begin and end inside a block. */
static void nf4_dq_row(const qr_weight *weight, const scale_parts *parts, int64_t first, float *dst) {
    for (int64_t c = 0; c < weight->desc.cols; c++) {
        const int64_t index = first + c;
        const int64_t block = index / weight->desc.block;
        const unsigned byte = ((const uint8_t *)weight->data)[index / 2];
        float absmax;
        qr_nf4_unnest(parts->absmax_codes, parts->nested_absmax, weight->nested_offset, block, 1, &absmax);
        dst[c] = qr_nf4_code[index % 2 == 0 ? byte >> 4 : byte & 0xFU] * absmax;
    }
}

void qr_ref_weight_row(const qr_weight *weight, int64_t row, float *dst) {
    const int64_t cols = weight->desc.cols, first = row * cols;
    const scale_parts parts = parts_of(weight);
    switch (weight->desc.format) {
        case QR_WEIGHT_NF4: qr_nf4_dequantize(weight->data, parts.absmax, weight->desc.block, first, cols, dst); break;
        case QR_WEIGHT_NF4_DQ: nf4_dq_row(weight, &parts, first, dst); break;
        case QR_WEIGHT_INT8:
            qr_int8_dequantize_row((const int8_t *)weight->data + first, parts.row_absmax[row], cols, dst);
            break;
        case QR_WEIGHT_F16:
            for (int64_t c = 0; c < cols; c++) { dst[c] = qr_ref_load(weight->data, QR_DTYPE_F16, first + c); }
            break;
        case QR_WEIGHT_BF16:
            for (int64_t c = 0; c < cols; c++) { dst[c] = qr_ref_load(weight->data, QR_DTYPE_BF16, first + c); }
            break;
        default:
            for (int64_t c = 0; c < cols; c++) { dst[c] = qr_ref_load(weight->data, QR_DTYPE_F32, first + c); }
            break;
    }
}
