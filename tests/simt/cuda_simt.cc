#include "kernels/cuda/backend/links.h"

#include "cuda_simt.h"
#include "simt.h"

qrun_status qr_backend_cuda_simt_create(qr_threads *threads, qr_backend **backend, qr_error *err) {
    const qr_gpu_choice first = {-1, 0};
    qr_backend *host = NULL;
    QR_RETURN_IF_ERROR(qr_backend_cpu_create(NULL, threads, &host, err));
    return qr_cuda_backend_create_for(&first, threads, host, backend, err);
}

void qr_cuda_simt_seed(uint64_t seed) { simt::set_seed(seed); }

bool qr_cuda_simt_was_launched(const char *kernel, size_t length) { return simt::was_launched(kernel, length); }
