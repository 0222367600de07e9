/* Shared by the backends whose device memory is host memory: the count of bytes held, copies, which are done when the
 * call returns, and the scales of weights. */
#ifndef QR_KERNELS_HOST_MEMORY_H
#define QR_KERNELS_HOST_MEMORY_H

#include <stdatomic.h>

#include "kernels/backend.h"

/* The first member of such a backend's own struct, which qr_alloc made. */
typedef struct qr_host_backend {
    qr_backend base;
    atomic_size_t held_bytes, peak_bytes; /* of memory_held; any thread may count */
} qr_host_backend;

void qr_host_memory_taken(qr_backend *backend, size_t n_bytes);
void qr_host_memory_released(qr_backend *backend, size_t n_bytes);

/* Fills in destroy, memory_held, the copies, fill_zero, sync and the transfers of a qr_host_backend. */
void qr_host_memory_set_functions(qr_backend *backend);

/* The scales of a weight in host memory: `first` is row_absmax (INT8), absmax (NF4) or the absmax codes (NF4_DQ), and
 * `nested` the nested absmax (NF4_DQ). Returns the bytes of `first`; 0 where the format has no scales. */
size_t qr_host_scale_bytes(const qr_weight_desc *desc, size_t *nested_bytes);
/* weight_put_scales and weight_get_scales. */
qrun_status qr_host_put_scales(qr_weight *weight, const qr_weight_scales *scales, void *first, void *nested,
                               qr_error *err);
void qr_host_get_scales(const qr_weight_desc *desc, const void *first, const void *nested, float *row_absmax,
                        float *absmax, uint8_t *absmax_codes, float *nested_absmax);

#endif
