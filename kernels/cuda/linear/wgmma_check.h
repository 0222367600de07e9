/* Whether linear_wgmma.cu is used on this device. */
#ifndef QR_KERNELS_CUDA_LINEAR_WGMMA_CHECK_H
#define QR_KERNELS_CUDA_LINEAR_WGMMA_CHECK_H

#include "kernels/cuda/cuda.h"

/* Sets has_wgmma and isa: on Hopper, where its products of a warpgroup give the bits of those of a warp, found out by
 * both kernels on the same values. QRUN_FORCE_ISA=sm_80 does without them; another name that begins with "sm_" and is
 * not this GPU's is refused, and other names are the CPU's. What fails is the device's fault. */
qrun_status qr_cuda_choose_wgmma(qr_cuda_backend *cuda, qr_error *err);

#endif
