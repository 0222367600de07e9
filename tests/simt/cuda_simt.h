/* The backend "cuda" of tests/simt: kernels/cuda over host memory, its kernels executed thread by thread. */
#ifndef QR_TESTS_CUDA_SIMT_H
#define QR_TESTS_CUDA_SIMT_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

qrun_status qr_backend_cuda_simt_create(qr_threads *threads, qr_backend **backend, qr_error *err);

/* The order in which blocks, warps and lanes run from now on. */
void qr_cuda_simt_seed(uint64_t seed);

/* Whether the kernel of this name, `length` bytes long, has run in this program. */
bool qr_cuda_simt_was_launched(const char *kernel, size_t length);

#ifdef __cplusplus
}
#endif

#endif
