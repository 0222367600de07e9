/* What the two kernels of attention_packed's gradient share: from dot products to probabilities and to the gradients of
 * q · k. */
#ifndef QR_KERNELS_CUDA_ATTENTION_PACKED_GRADIENTS_CUH
#define QR_KERNELS_CUDA_ATTENTION_PACKED_GRADIENTS_CUH

#include "kernels/cuda/attention/attention_packed_mma.cuh"

/* Of N products of a warp, q · k to p and dp to p · (dp − delta) · slope of the soft-cap; stats_of(n, i) are those of
 * the query of element i of product n. */
template <bool capped, int N, typename S>
static QR_DEVICE void make_all_gradients(const qr_attention_packed_args &a, float (*scores)[4], float (*dp)[4],
                                         const S &stats_of) {
    const float scale2 = a.scale * PACKED_LOG2E, cap2 = a.softcap * PACKED_LOG2E;
    const float inside = capped ? a.scale / a.softcap : 0.0F;
    for_each_sum<N>([&](int n, int i) {
        const query_stats stats = stats_of(n, i);
        const float share = capped ? tanhf(scores[n][i] * inside) : 0.0F;
        const float p = exp2_flushed(capped ? fmaf(share, cap2, -stats.lse2) : fmaf(scores[n][i], scale2, -stats.lse2));
        const float ds = p * (dp[n][i] - stats.delta);
        scores[n][i] = p;
        dp[n][i] = capped ? ds * (1.0F - share * share) : ds;
    });
}

/* The same with zeros where is_seen(n, i) is false; `whole`: it is true everywhere. What is left of the gradient of
 * q · k is the factor `scale`, which the sums get. */
template <int N, typename S, typename V>
static QR_DEVICE void make_gradients(const qr_attention_packed_args &a, bool whole, float (*scores)[4], float (*dp)[4],
                                     const S &stats_of, const V &is_seen) {
    if (a.softcap > 0.0F) {
        make_all_gradients<true, N>(a, scores, dp, stats_of);
    } else {
        make_all_gradients<false, N>(a, scores, dp, stats_of);
    }
    if (whole) { return; }
    for_each_sum<N>([&](int n, int i) {
        const bool seen = is_seen(n, i);
        scores[n][i] = seen ? scores[n][i] : 0.0F;
        dp[n][i] = seen ? dp[n][i] : 0.0F;
    });
}

#endif
