/* linear and linear_backward by the vendor's library, where the order of sums is left open (linear_panel.cu). */
#ifndef QR_KERNELS_CUDA_LINEAR_PANEL_CUH
#define QR_KERNELS_CUDA_LINEAR_PANEL_CUH

#include "kernels/cuda/cuda.h"

/* 0: not these sizes, or no library. */
size_t qr_cuda_linear_panel_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args);
size_t qr_cuda_linear_backward_panel_workspace(const qr_cuda_backend &cuda, const qr_linear_backward_args &args);

/* Whether these arguments, where x and y lie included, go this way. */
bool qr_cuda_linear_panel_takes(const qr_cuda_backend &cuda, const qr_linear_args &args);
bool qr_cuda_linear_backward_panel_takes(const qr_cuda_backend &cuda, const qr_linear_backward_args &args);

qrun_status qr_cuda_linear_panel(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err);
qrun_status qr_cuda_linear_backward_panel(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                                          qr_error *err);

#endif
