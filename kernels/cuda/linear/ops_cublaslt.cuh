/* linear, lora and their gradients by cuBLASLt, where the caller leaves the order of sums open (linear_cublaslt.cu), or
 * for lora permits bf16x2 splits too (lora_cublaslt.cu). */
#ifndef QR_KERNELS_CUDA_OPS_CUBLASLT_CUH
#define QR_KERNELS_CUDA_OPS_CUBLASLT_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/cublaslt.h"

/* 0: not for these sizes, not permitted, or no library. */
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args);
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_backward_args &args);
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_lora_args &args);
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_lora_backward_args &args);

/* Whether cuBLASLt computes the op with these arguments, addresses and strides included. */
bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_args &args);
bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_backward_args &args);
bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_lora_args &args);
bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_lora_backward_args &args);

/* QR_CUBLASLT_REFUSED (device/cublaslt.h): the library does not take a product of it, and nothing outside the workspace
 * was touched. */
qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err);
qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                             qr_error *err);
qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_lora_args &args, void *workspace, qr_error *err);
qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_lora_backward_args &args, void *workspace, qr_error *err);

/* Whether the library has computed, or failed at, the op: else our own kernels do. */
template <typename A>
static bool qr_cuda_by_cublaslt(qr_cuda_backend &cuda, const A &args, void *workspace, qrun_status *status,
                                qr_error *err) {
    if (!qr_cuda_cublaslt_takes(cuda, args)) { return false; }
    *status = qr_cuda_cublaslt(cuda, args, workspace, err);
    return *status != QR_CUBLASLT_REFUSED;
}

#endif
