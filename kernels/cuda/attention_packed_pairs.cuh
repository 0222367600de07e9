/* What the two kernels of attention_packed's gradient share: probabilities and the gradients of q · k from dot
 * products. */
#ifndef QR_KERNELS_CUDA_ATTENTION_PACKED_PAIRS_CUH
#define QR_KERNELS_CUDA_ATTENTION_PACKED_PAIRS_CUH

#include "kernels/cuda/attention_packed_mma.cuh"

/* The softmax weight of a pair whose dot product this is, and the slope of the soft-cap there. */
static __device__ __forceinline__ float weight_of(const qr_attention_packed_args &a, float dot, float lse2,
                                                  float &slope) {
    slope = 1.0F;
    if (a.softcap == 0.0F) { return exp2_flushed(fmaf(dot, a.scale * PACKED_LOG2E, -lse2)); }
    const float score = softcap_value(dot * a.scale, a.softcap), share = score / a.softcap;
    slope = 1.0F - share * share;
    return exp2_flushed(fmaf(score, PACKED_LOG2E, -lse2));
}

/* Of a pair: score q · k to weight p, dp to p · (dp − delta) · slope; zeros where the query does not see the key. What
 * is left of the gradient of q · k is the factor `scale`, which the sums get. */
static __device__ __forceinline__ void make_pair(const qr_attention_packed_args &a, bool is_seen,
                                                 const query_stats &stats, float &score, float &dp) {
    float slope;
    const float p = weight_of(a, score, stats.lse2, slope);
    dp = is_seen ? p * (dp - stats.delta) * slope : 0.0F;
    score = is_seen ? p : 0.0F;
}

#endif
