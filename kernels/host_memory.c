#include "kernels/host_memory.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/op_check.h"

static void destroy(qr_backend *backend) { qr_free(backend); }

void qr_host_memory_taken(qr_backend *backend, size_t n_bytes) {
    qr_host_backend *host = (qr_host_backend *)backend;
    const size_t now = atomic_fetch_add(&host->held_bytes, n_bytes) + n_bytes;
    size_t peak = atomic_load(&host->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&host->peak_bytes, &peak, now)) {}
}

void qr_host_memory_released(qr_backend *backend, size_t n_bytes) {
    atomic_fetch_sub(&((qr_host_backend *)backend)->held_bytes, n_bytes);
}

static void memory_held(const qr_backend *backend, size_t *now, size_t *peak) {
    const qr_host_backend *host = (const qr_host_backend *)backend;
    *now = atomic_load(&host->held_bytes);
    *peak = atomic_load(&host->peak_bytes);
}

static qrun_status copy(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    (void)backend, (void)err;
    if (n_bytes > 0) { memmove(dst, src, n_bytes); }
    return QRUN_OK;
}

static qrun_status fill_zero(qr_backend *backend, void *device, size_t n_bytes, qr_error *err) {
    (void)backend, (void)err;
    if (n_bytes > 0) { memset(device, 0, n_bytes); }
    return QRUN_OK;
}

static qrun_status sync(qr_backend *backend, qr_error *err) {
    (void)backend, (void)err;
    return QRUN_OK;
}

/* No copy runs concurrently with anything, so there is nothing to wait for. */
static qrun_status transfer(qr_backend *backend, void *dst, const void *src, size_t n_bytes, uint64_t *ticket,
                            qr_error *err) {
    *ticket = 0;
    return backend->copy_in(backend, dst, src, n_bytes, err);
}

static qrun_status transfer_wait(qr_backend *backend, uint64_t ticket, qr_error *err) {
    (void)ticket;
    return sync(backend, err);
}

/* --- Weights --- */

size_t qr_host_scale_bytes(const qr_weight_desc *desc, size_t *nested_bytes) {
    const int64_t n_blocks = qr_weight_blocks(desc);
    *nested_bytes = 0;
    switch (desc->format) {
        case QR_WEIGHT_INT8: return (size_t)desc->rows * sizeof(float);
        case QR_WEIGHT_NF4: return (size_t)n_blocks * sizeof(float);
        case QR_WEIGHT_MXFP4: return (size_t)n_blocks;
        case QR_WEIGHT_NF4_DQ:
            *nested_bytes = (size_t)qr_ceil_div(n_blocks, QR_NESTED_BLOCK) * sizeof(float);
            return (size_t)n_blocks;
        default: return 0;
    }
}

static void copy_part(void *dst, const void *src, size_t n_bytes) {
    if (n_bytes > 0 && dst != NULL) { memcpy(dst, src, n_bytes); }
}

static const qr_host_weights *weights_of(const qr_backend *backend) {
    return ((const qr_host_backend *)backend)->weights;
}

static size_t weight_bytes(const qr_backend *backend, const qr_weight_desc *desc) {
    size_t first, nested;
    return weights_of(backend)->layout(desc, &first, &nested);
}

static qrun_status weight_put_rows(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                   const void *codes, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_check_weight_rows(&weight->desc, row, n_rows, err));
    weights_of(backend)->move_rows(weight, row, n_rows, (void *)(uintptr_t)codes, true);
    return QRUN_OK;
}

static qrun_status weight_get_rows(qr_backend *backend, const qr_weight *weight, int64_t row, int64_t n_rows,
                                   void *codes, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_check_weight_rows(&weight->desc, row, n_rows, err));
    weights_of(backend)->move_rows(weight, row, n_rows, codes, false);
    return QRUN_OK;
}

static qrun_status weight_put_scales(qr_backend *backend, qr_weight *weight, const qr_weight_scales *scales,
                                     qr_error *err) {
    const qr_weight_format format = weight->desc.format;
    unsigned char *data = weight->data;
    QR_RETURN_IF_ERROR(qr_check_weight_scales(&weight->desc, scales, err));
    size_t first, nested, nested_bytes;
    weights_of(backend)->layout(&weight->desc, &first, &nested);
    const size_t first_bytes = qr_host_scale_bytes(&weight->desc, &nested_bytes);
    copy_part(data + first,
              format == QR_WEIGHT_INT8  ? (const void *)scales->row_absmax
              : format == QR_WEIGHT_NF4 ? (const void *)scales->absmax
                                        : scales->absmax_codes,
              first_bytes);
    copy_part(data + nested, scales->nested_absmax, nested_bytes);
    if (format == QR_WEIGHT_NF4_DQ) { weight->nested_offset = scales->nested_offset; }
    return QRUN_OK;
}

static qrun_status weight_get_scales(qr_backend *backend, const qr_weight *weight, float *row_absmax, float *absmax,
                                     uint8_t *absmax_codes, float *nested_absmax, qr_error *err) {
    (void)err;
    const qr_weight_format format = weight->desc.format;
    const unsigned char *data = weight->data;
    size_t first, nested, nested_bytes;
    weights_of(backend)->layout(&weight->desc, &first, &nested);
    const size_t first_bytes = qr_host_scale_bytes(&weight->desc, &nested_bytes);
    copy_part(format == QR_WEIGHT_INT8  ? (void *)row_absmax
              : format == QR_WEIGHT_NF4 ? (void *)absmax
                                        : absmax_codes,
              data + first, first_bytes);
    copy_part(nested_absmax, data + nested, nested_bytes);
    return QRUN_OK;
}

size_t qr_host_no_workspace(const qr_backend *backend, const void *args) {
    (void)backend, (void)args;
    return 0;
}

void qr_host_memory_set_functions(qr_host_backend *host, const qr_host_weights *weights) {
    qr_backend *backend = &host->base;
    host->weights = weights;
    backend->destroy = destroy;
    backend->memory_held = memory_held;
    backend->copy_in = copy;
    backend->copy_in_async = copy;
    backend->copy_out = copy;
    backend->copy_within = copy;
    backend->fill_zero = fill_zero;
    backend->sync = sync;
    backend->transfer_in = transfer;
    backend->transfer_out = transfer;
    backend->transfer_wait = transfer_wait;
    backend->weight_bytes = weight_bytes;
    backend->weight_put_rows = weight_put_rows;
    backend->weight_put_scales = weight_put_scales;
    backend->weight_get_rows = weight_get_rows;
    backend->weight_get_scales = weight_get_scales;
}
