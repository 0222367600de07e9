/* Weights between the host's canonical bytes and device memory, and the quantize op, of which source and destination
 * are host memory: the host's CPU does it. What is loaded into the device's memory is quantised there (staging.cu). */
#include "kernels/cuda/backend/staging.h"
#include "kernels/cuda/cuda.h"

static size_t align64(size_t n_bytes) { return (n_bytes + 63) & ~static_cast<size_t>(63); }

static size_t nested_bytes(const qr_weight_desc *desc) {
    return static_cast<size_t>(qr_ceil_div(qr_weight_blocks(desc), QR_NESTED_BLOCK)) * sizeof(float);
}

static size_t scale_bytes(const qr_weight_desc *desc) {
    switch (desc->format) {
        case QR_WEIGHT_INT8: return static_cast<size_t>(desc->rows) * sizeof(float);
        case QR_WEIGHT_NF4: return static_cast<size_t>(qr_weight_blocks(desc)) * sizeof(float);
        case QR_WEIGHT_NF4_DQ:
        case QR_WEIGHT_MXFP4: return static_cast<size_t>(qr_weight_blocks(desc));
        default: return 0;
    }
}

qr_cuda_layout qr_cuda_layout_of(const qr_weight_desc *desc) {
    qr_cuda_layout layout;
    layout.scales_offset = align64(qr_weight_code_bytes(desc));
    layout.nested_offset = layout.scales_offset + align64(scale_bytes(desc));
    layout.total_bytes = layout.nested_offset + (desc->format == QR_WEIGHT_NF4_DQ ? align64(nested_bytes(desc)) : 0);
    return layout;
}

size_t qr_cuda_weight_bytes(const qr_backend *, const qr_weight_desc *desc) {
    return qr_cuda_layout_of(desc).total_bytes;
}

static unsigned char *part(const qr_weight *weight, size_t offset) {
    return static_cast<unsigned char *>(weight->data) + offset;
}

static size_t rows_bytes(const qr_weight_desc *desc, int64_t row, int64_t n_rows) {
    return qr_weight_row_offset(desc, row + n_rows) - qr_weight_row_offset(desc, row);
}

qrun_status qr_cuda_weight_put_rows(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                    const void *codes, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_check_weight_rows(&weight->desc, row, n_rows, err));
    qr_cuda_backend *cuda = qr_cuda(backend);
    unsigned char *dst = part(weight, qr_weight_row_offset(&weight->desc, row));
    const size_t n_bytes = rows_bytes(&weight->desc, row, n_rows);
    return cuda->staging != NULL ? qr_cuda_staging_send(cuda, dst, codes, n_bytes, err)
                                 : qr_device_copy_in(cuda->device, dst, codes, n_bytes, err);
}

qrun_status qr_cuda_weight_get_rows(qr_backend *backend, const qr_weight *weight, int64_t row, int64_t n_rows,
                                    void *codes, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_check_weight_rows(&weight->desc, row, n_rows, err));
    return qr_device_copy_out(qr_cuda(backend)->device, codes, part(weight, qr_weight_row_offset(&weight->desc, row)),
                              rows_bytes(&weight->desc, row, n_rows), err);
}

/* The first part of the scales, by format; NULL for formats without. */
static const void *first_scales(const qr_weight_desc *desc, const qr_weight_scales *scales) {
    switch (desc->format) {
        case QR_WEIGHT_INT8: return scales->row_absmax;
        case QR_WEIGHT_NF4: return scales->absmax;
        case QR_WEIGHT_NF4_DQ:
        case QR_WEIGHT_MXFP4: return scales->absmax_codes;
        default: return NULL;
    }
}

qrun_status qr_cuda_weight_put_scales(qr_backend *backend, qr_weight *weight, const qr_weight_scales *scales,
                                      qr_error *err) {
    qr_device *device = qr_cuda(backend)->device;
    const qr_weight_desc *desc = &weight->desc;
    const qr_cuda_layout layout = qr_cuda_layout_of(desc);
    QR_RETURN_IF_ERROR(qr_check_weight_scales(desc, scales, err));
    QR_RETURN_IF_ERROR(qr_device_copy_in(device, part(weight, layout.scales_offset), first_scales(desc, scales),
                                         scale_bytes(desc), err));
    if (desc->format == QR_WEIGHT_NF4_DQ) {
        QR_RETURN_IF_ERROR(qr_device_copy_in(device, part(weight, layout.nested_offset), scales->nested_absmax,
                                             nested_bytes(desc), err));
        weight->nested_offset = scales->nested_offset;
    }
    return QRUN_OK;
}

qrun_status qr_cuda_weight_get_scales(qr_backend *backend, const qr_weight *weight, float *row_absmax, float *absmax,
                                      uint8_t *absmax_codes, float *nested_absmax, qr_error *err) {
    qr_device *device = qr_cuda(backend)->device;
    const qr_weight_desc *desc = &weight->desc;
    const qr_cuda_layout layout = qr_cuda_layout_of(desc);
    void *first = desc->format == QR_WEIGHT_INT8  ? static_cast<void *>(row_absmax)
                  : desc->format == QR_WEIGHT_NF4 ? static_cast<void *>(absmax)
                                                  : static_cast<void *>(absmax_codes);
    if (first != NULL) {
        QR_RETURN_IF_ERROR(
            qr_device_copy_out(device, first, part(weight, layout.scales_offset), scale_bytes(desc), err));
    }
    if (nested_absmax != NULL && desc->format == QR_WEIGHT_NF4_DQ) {
        QR_RETURN_IF_ERROR(
            qr_device_copy_out(device, nested_absmax, part(weight, layout.nested_offset), nested_bytes(desc), err));
    }
    return QRUN_OK;
}

static qrun_status run_quantize(qr_cuda_backend &cuda, const qr_quantize_args &args, void *workspace, qr_error *err) {
    return qr_quantize(cuda.host, &args, {workspace, 0}, err);
}

QR_CUDA_OP(quantize, no_workspace<qr_quantize_args>, run_quantize)
