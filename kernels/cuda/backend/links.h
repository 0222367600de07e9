/* The links of GPUs to those of other ranks (kernels/device_links.h), by NCCL. It is opened at run time:
 * `libnccl.so.2`, 2.14 or newer, looked for as cuBLASLt is (device/library_search.h). No header of it is needed.
 * QRUN_CUDA_NCCL: 0 does without; a path with a "/" is the file to open. */
#ifndef QR_KERNELS_CUDA_BACKEND_LINKS_H
#define QR_KERNELS_CUDA_BACKEND_LINKS_H

#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/device_links.h"
}

extern const qr_device_links qr_cuda_links;

void qr_cuda_links_close(qr_cuda_backend *cuda);

/* What the entry point of libqrun_cuda.so gives out (kernels/cuda_plugin.h). */
qrun_status qr_cuda_backend_create_for(const qr_gpu_choice *choice, qr_threads *threads, qr_backend *host,
                                       qr_backend **backend, qr_error *err);

#endif
