/* What expert_lora and its gradient share. */
#ifndef QR_KERNELS_CUDA_EXPERT_LORA_CUH
#define QR_KERNELS_CUDA_EXPERT_LORA_CUH

#include "kernels/cuda/expert_slots.cuh"

enum { EXPERT_LORA_SLOTS = 8, EXPERT_LORA_THREADS = 256, EXPERT_LORA_WARPS = EXPERT_LORA_THREADS / WARP_LANES };

/* h [rank] = A x, a warp for an element; x from element x_first on. The order of a sum follows from `in` alone. */
static QR_DEVICE void expert_lora_down(const float *a, int32_t rank, int64_t in, const void *x, qr_dtype dtype,
                                       int64_t x_first, float *h) {
    for (int32_t j = static_cast<int32_t>(warp_index()); j < rank; j += EXPERT_LORA_WARPS) {
        float sum = 0.0F;
        for (int64_t c = lane_index(); c < in; c += WARP_LANES) {
            sum = fmaf(a[j * in + c], load_as_f32(x, dtype, x_first + c), sum);
        }
        sum = warp_sum(sum);
        if (lane_index() == 0) { h[j] = sum; }
    }
}

#endif
