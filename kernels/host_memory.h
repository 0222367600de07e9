/* What backends share whose device memory is host memory: the count of bytes held, and copies, which are done when the
 * call returns. */
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

#endif
