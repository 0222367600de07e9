/* What the ops of experts that are no product share with their gradients. */
#ifndef QR_KERNELS_CUDA_EXPERTS_CUH
#define QR_KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/device/vec4.cuh"
#include "kernels/cuda/expert_slots.cuh"

/* In F64: 1 − share of a large g is that of −g, and no digits are lost. */
QR_DEVICE double share_of_gate(float g) { return 1.0 / (1.0 + exp(-static_cast<double>(g))); }

#endif
