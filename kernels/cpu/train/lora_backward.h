/* lora_backward in two halves, for linear_backward: where its dx is a product by pairs, that goes on in the sums of
 * dy · W. */
#ifndef QR_KERNELS_CPU_TRAIN_LORA_BACKWARD_H
#define QR_KERNELS_CPU_TRAIN_LORA_BACKWARD_H

#include "kernels/cpu/linear/gemm_backward.h"

/* Of the workspace of lora_backward, from its beginning: what is kept between the halves. A multiple of 64. */
size_t qr_cpu_lora_backward_kept_bytes(const qr_lora_backward_args *args);

/* Whether there are such halves, with the kernel `matmul`; the caller may still have another dx. */
bool qr_cpu_lora_backward_has_halves(const qr_backend *backend, const qr_lora_backward_args *args,
                                     const qr_cpu_matmul *matmul);

/* The first: returns what is to be added to dx. It reads what is kept. */
qr_cpu_gemm_args qr_cpu_lora_backward_sums(qr_backend *backend, const qr_lora_backward_args *args, void *workspace);
/* The second: da and db. */
void qr_cpu_lora_backward_factors(qr_backend *backend, const qr_lora_backward_args *args, void *workspace);

#endif
