/* Weights of the reference backend: the canonical codes, then the canonical scales, each part 64-byte aligned. */
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/host_memory.h"
#include "kernels/op_check.h"
#include "kernels/ref/ref.h"
#include "quant/int8.h"
#include "quant/nf4.h"

enum { ALIGNMENT = 64 };

static size_t aligned(size_t n_bytes) { return (n_bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1); }

/* The scales as in host_memory.h. */
static void *first_scales(const qr_weight *weight) {
    return (unsigned char *)weight->data + aligned(qr_weight_code_bytes(&weight->desc));
}

static void *nested_scales(const qr_weight *weight) {
    size_t nested_bytes;
    return (unsigned char *)first_scales(weight) + aligned(qr_host_scale_bytes(&weight->desc, &nested_bytes));
}

static size_t weight_bytes(const qr_backend *backend, const qr_weight_desc *desc) {
    (void)backend;
    size_t nested_bytes;
    const size_t first_bytes = qr_host_scale_bytes(desc, &nested_bytes);
    return aligned(qr_weight_code_bytes(desc)) + aligned(first_bytes) + aligned(nested_bytes);
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

static qrun_status weight_put_scales(qr_backend *backend, qr_weight *weight, const qr_weight_scales *scales,
                                     qr_error *err) {
    (void)backend;
    return qr_host_put_scales(weight, scales, first_scales(weight), nested_scales(weight), err);
}

static qrun_status weight_get_scales(qr_backend *backend, const qr_weight *weight, float *row_absmax, float *absmax,
                                     uint8_t *absmax_codes, float *nested_absmax, qr_error *err) {
    (void)backend, (void)err;
    qr_host_get_scales(&weight->desc, first_scales(weight), nested_scales(weight), row_absmax, absmax, absmax_codes,
                       nested_absmax);
    return QRUN_OK;
}

void qr_ref_set_weight_functions(qr_backend *backend) {
    backend->weight_bytes = weight_bytes;
    backend->weight_put_rows = weight_put_rows;
    backend->weight_put_scales = weight_put_scales;
    backend->weight_get_rows = weight_get_rows;
    backend->weight_get_scales = weight_get_scales;
}

qr_dtype qr_ref_plain_dtype(qr_weight_format format) {
    switch (format) {
        case QR_WEIGHT_F16: return QR_DTYPE_F16;
        case QR_WEIGHT_BF16: return QR_DTYPE_BF16;
        default: return QR_DTYPE_F32;
    }
}

float qr_ref_int8_row(const qr_weight *weight, int64_t row, float *codes) {
    const int8_t *src = (const int8_t *)weight->data + row * weight->desc.cols;
    for (int64_t c = 0; c < weight->desc.cols; c++) { codes[c] = (float)src[c]; }
    return ((const float *)first_scales(weight))[row];
}

/* NF4_DQ: element by element, because a row may begin and end inside a block. */
static void nf4_dq_row(const qr_weight *weight, int64_t first, float *dst) {
    for (int64_t c = 0; c < weight->desc.cols; c++) {
        const int64_t index = first + c;
        const int64_t block = index / weight->desc.block;
        const unsigned byte = ((const uint8_t *)weight->data)[index / 2];
        float absmax;
        qr_nf4_unnest(first_scales(weight), nested_scales(weight), weight->nested_offset, block, 1, &absmax);
        dst[c] = qr_nf4_code[index % 2 == 0 ? byte >> 4 : byte & 0xFU] * absmax;
    }
}

void qr_ref_weight_row(const qr_weight *weight, int64_t row, float *dst) {
    const int64_t cols = weight->desc.cols, first = row * cols;
    const float *absmax = first_scales(weight);
    switch (weight->desc.format) {
        case QR_WEIGHT_NF4: qr_nf4_dequantize(weight->data, absmax, weight->desc.block, first, cols, dst); break;
        case QR_WEIGHT_NF4_DQ: nf4_dq_row(weight, first, dst); break;
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
