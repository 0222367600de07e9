/* Shared by the backends whose device memory is host memory: the count of bytes held, copies, which are done when the
 * call returns, and the moving of weights into and out of it. */
#ifndef QR_KERNELS_HOST_MEMORY_H
#define QR_KERNELS_HOST_MEMORY_H

#include <stdatomic.h>

#include "kernels/backend.h"

/* How such a backend keeps weights. */
typedef struct qr_host_weights {
    /* Rows [row, row + n_rows), which have been checked, from (put) or to canonical codes. */
    void (*move_rows)(const qr_weight *weight, int64_t row, int64_t n_rows, void *codes, bool is_put);
    /* The byte offsets of the scales: of `first`, which is row_absmax (INT8), absmax (NF4) or the absmax codes
     * (NF4_DQ) or scales (MXFP4), and of the nested absmax (NF4_DQ). Returns the bytes of the whole weight. */
    size_t (*layout)(const qr_weight_desc *desc, size_t *first, size_t *nested);
} qr_host_weights;

/* The first member of such a backend's own struct, which qr_alloc made. */
typedef struct qr_host_backend {
    qr_backend base;
    const qr_host_weights *weights;
    atomic_size_t held_bytes, peak_bytes; /* of memory_held; any thread may count */
} qr_host_backend;

void qr_host_memory_taken(qr_backend *backend, size_t n_bytes);
void qr_host_memory_released(qr_backend *backend, size_t n_bytes);

/* Fills in destroy, memory_held, the copies, fill_zero, sync, the transfers and the functions of weights, those with
 * `weights` (NULL: they are not called). */
void qr_host_memory_set_functions(qr_host_backend *host, const qr_host_weights *weights);

/* Bytes of the scales `first` and `nested` of a weight; 0 where the format has none. */
size_t qr_host_scale_bytes(const qr_weight_desc *desc, size_t *nested_bytes);

/* The workspace of an op that needs none. */
size_t qr_host_no_workspace(const qr_backend *backend, const void *args);

#endif
