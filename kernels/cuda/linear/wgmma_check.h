/* Whether linear_wgmma.cu and linear_wgmma_wide.cu are used on this device. */
#ifndef QR_KERNELS_CUDA_LINEAR_WGMMA_CHECK_H
#define QR_KERNELS_CUDA_LINEAR_WGMMA_CHECK_H

#include "kernels/cuda/cuda.h"

/* Differences up to this share of the largest sum of a tile are rounding; above it something is wrong. */
#define QR_WGMMA_ROUNDING 1e-3

/* Sets has_wgmma, has_wgmma_wide, isa and wgmma_note: on Hopper, where its products of a warpgroup give the bits of
 * those of a warp, found out by all kernels on the same values. QRUN_FORCE_ISA=sm_80 does without them, as
 * QRUN_CUDA_WGMMA=0 does; another name that begins with "sm_" and is not this GPU's is refused, and other names are the
 * CPU's. fault: what the GPU failed with when this was tried before, or "". An error is the device's fault, which
 * the caller opens again. */
qrun_status qr_cuda_choose_wgmma(qr_cuda_backend *cuda, const char *fault, qr_error *err);

#endif
