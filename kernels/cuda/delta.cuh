/* What gated_delta and its gradient share: what is computed once for each token, and a token's step on one column of a
 * head's state. Columns are independent of each other, and sums run over the rows in order, so a column has the same
 * bits however its sequence is cut. */
#ifndef QR_KERNELS_CUDA_DELTA_CUH
#define QR_KERNELS_CUDA_DELTA_CUH

#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/recurrence.cuh"

#define QR_DELTA_EPS 1e-6F

enum { DELTA_TOKEN_THREADS = 128 };

/* In a workspace. */
struct delta_tokens {
    float *q, *k; /* [n_tokens, n_key_heads, key_dim]: q', k' */
    float *decay; /* [n_tokens, n_value_heads, qr_delta_decays] */
    float *beta;  /* [n_tokens, n_value_heads] */
};

static inline size_t delta_tokens_floats(const qr_gated_delta_args &a) {
    const int64_t keys = static_cast<int64_t>(a.n_key_heads) * a.key_dim, of_head = 1 + qr_delta_decays(&a);
    return static_cast<size_t>(a.n_tokens * (2 * keys + of_head * a.n_value_heads));
}

static inline delta_tokens delta_tokens_at(const qr_gated_delta_args &a, void *workspace) {
    const int64_t keys = a.n_tokens * a.n_key_heads * a.key_dim, values = a.n_tokens * a.n_value_heads;
    float *at = static_cast<float *>(workspace);
    return {at, at + keys, at + 2 * keys, at + 2 * keys + values * qr_delta_decays(&a)};
}

/* A token of a value head. */
struct delta_token {
    const float *q, *k, *v;
    const float *decays; /* [qr_delta_decays] */
    float beta;
};

QR_DEVICE delta_token delta_token_of(const qr_gated_delta_args &a, const delta_tokens &tokens, int64_t token,
                                     int32_t head) {
    const int64_t key = token * a.n_key_heads + head / (a.n_value_heads / a.n_key_heads);
    const int64_t values_at = 2 * static_cast<int64_t>(a.n_key_heads) * a.key_dim;
    return {tokens.q + key * a.key_dim, tokens.k + key * a.key_dim,
            a.qkv + token * a.qkv_stride + values_at + static_cast<int64_t>(head) * a.value_dim,
            tokens.decay + (token * a.n_value_heads + head) * (a.decays_channels ? a.key_dim : 1),
            tokens.beta[token * a.n_value_heads + head]};
}

/* One column, its rows `stride` apart; after may be before. Returns the output; *error = v − (decay · state)ᵀ k'.
 * BY_CHANNEL: each row has a decay of its own. */
template <bool BY_CHANNEL>
QR_DEVICE float delta_column(const delta_token &in, int32_t key_dim, const float *before, float *after, int64_t stride,
                             float v, float *error) {
    const float of_all = in.decays[0];
    float read = 0.0F, out = 0.0F;
    for (int32_t i = 0; i < key_dim; i++) {
        const float decayed = BY_CHANNEL ? in.decays[i] * before[i * stride] : before[i * stride];
        read = fmaf(decayed, in.k[i], read);
    }
    *error = v - (BY_CHANNEL ? read : of_all * read);
    const float delta = in.beta * *error;
    for (int32_t i = 0; i < key_dim; i++) {
        const float state = fmaf(in.k[i], delta, (BY_CHANNEL ? in.decays[i] : of_all) * before[i * stride]);
        after[i * stride] = state;
        out = fmaf(state, in.q[i], out);
    }
    return out;
}

/* Fills the tokens of a call. */
qrun_status delta_prepare(qr_cuda_backend &cuda, const qr_gated_delta_args &args, const delta_tokens &tokens,
                          qr_error *err);

#endif
