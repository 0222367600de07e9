/* lora and lora_backward by the vendor's library, where the caller permits pairs (lora_products.cu). */
#ifndef QR_KERNELS_CUDA_LORA_PRODUCTS_CUH
#define QR_KERNELS_CUDA_LORA_PRODUCTS_CUH

#include "kernels/cuda/cuda.h"

/* 0: not these sizes, not permitted, or no library. */
size_t qr_cuda_lora_products_workspace(const qr_cuda_backend &cuda, const qr_lora_args &args);
size_t qr_cuda_lora_backward_products_workspace(const qr_cuda_backend &cuda, const qr_lora_backward_args &args);

/* Whether these arguments, where rows lie included, go this way. */
bool qr_cuda_lora_products_takes(const qr_cuda_backend &cuda, const qr_lora_args &args);
bool qr_cuda_lora_backward_products_takes(const qr_cuda_backend &cuda, const qr_lora_backward_args &args);

qrun_status qr_cuda_lora_products(qr_cuda_backend &cuda, const qr_lora_args &args, void *workspace, qr_error *err);
qrun_status qr_cuda_lora_backward_products(qr_cuda_backend &cuda, const qr_lora_backward_args &args, void *workspace,
                                           qr_error *err);

#endif
