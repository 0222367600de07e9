/* The activation functions and their derivatives, in F32. */
#ifndef QR_KERNELS_CUDA_ACT_FN_CUH
#define QR_KERNELS_CUDA_ACT_FN_CUH

#include "kernels/cuda/device.cuh"

__device__ __forceinline__ float gelu_tanh_argument(float x) {
    return 0.79788456080286535588F * (x + 0.044715F * x * x * x);
}

__device__ __forceinline__ float act_fn(qr_act_fn fn, float x) {
    switch (fn) {
    case QR_ACT_SILU: return x / (1.0F + expf(-x));
    case QR_ACT_GELU_TANH: return 0.5F * x * (1.0F + tanhf(gelu_tanh_argument(x)));
    default: return 0.5F * x * (1.0F + erff(x * 0.70710678118654752440F));
    }
}

__device__ __forceinline__ float softcap_value(float x, float cap) { return cap * tanhf(x / cap); }

#endif
