/* How weights get from a file's map to the device: a ring of pinned slots, each with as much device memory, through
 * which threads send rows without waiting; kernels (quantize.cu) write them into the weight from there. */
#ifndef QR_KERNELS_CUDA_BACKEND_STAGING_H
#define QR_KERNELS_CUDA_BACKEND_STAGING_H

#include "kernels/cuda/cuda.h"

/* As in qr_backend. */
qrun_status qr_cuda_loading_begin(qr_backend *backend, qr_error *err);
qrun_status qr_cuda_loading_wait(qr_backend *backend, qr_error *err);
void qr_cuda_loading_end(qr_backend *backend);
qrun_status qr_cuda_weight_put_source(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                      qr_dtype dtype, const void *src, float *absmax, qr_error *err);

/* Sends bytes to device memory through the ring. */
qrun_status qr_cuda_staging_send(qr_cuda_backend *cuda, void *dst, const void *src, size_t n_bytes, qr_error *err);

/* Elements [first, first + n) of the flattened matrix, in device memory at `src`, into the weight: its codes, and its
 * scales but for NF4_DQ, whose F32 absmax go to `absmax` (device). first lies at a block's beginning, and INT8 takes
 * whole rows. (quantize.cu) */
qrun_status qr_cuda_quantize(qr_cuda_backend *cuda, qr_weight *weight, int64_t first, int64_t n, qr_dtype dtype,
                             const void *src, float *absmax, qr_error *err);

#endif
