#include "kernels/cuda/cuda.h"

#include "cuda_simt.h"
#include "simt.h"

qrun_status qr_backend_cuda_simt_create(qr_threads *threads, qr_backend **backend, qr_error *err) {
    return qr_cuda_backend_create(threads, backend, err);
}

void qr_cuda_simt_seed(uint64_t seed) { simt::set_seed(seed); }

bool qr_cuda_simt_was_launched(const char *kernel, size_t length) { return simt::was_launched(kernel, length); }
