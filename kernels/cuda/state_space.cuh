/* What state_space and its gradient share: a token's step on one column of a head's state. Columns are independent of
 * each other, and sums run over the rows in order, so a column has the same bits however its sequence is cut. */
#ifndef QR_KERNELS_CUDA_STATE_SPACE_CUH
#define QR_KERNELS_CUDA_STATE_SPACE_CUH

#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/recurrence.cuh"

/* In a workspace: of each token and head, made once by space_prepare. */
struct space_steps {
    float *step, *decay; /* [n_tokens, n_heads] */
};

static inline size_t space_steps_floats(const qr_state_space_args &a) {
    return static_cast<size_t>(2 * a.n_tokens * a.n_heads);
}

static inline space_steps space_steps_at(const qr_state_space_args &a, void *workspace) {
    float *at = static_cast<float *>(workspace);
    return {at, at + a.n_tokens * a.n_heads};
}

/* A token of a head. */
struct space_token {
    const float *x, *b, *c;
    float step, decay;
};

QR_DEVICE space_token space_token_of(const qr_state_space_args &a, const space_steps &steps, int64_t token,
                                     int32_t head) {
    const int64_t keys = static_cast<int64_t>(a.n_groups) * a.state_dim, group = head / (a.n_heads / a.n_groups);
    const float *row = a.xbc + token * a.xbc_stride;
    const float *b = row + static_cast<int64_t>(a.n_heads) * a.head_dim + group * a.state_dim;
    return {row + static_cast<int64_t>(head) * a.head_dim, b, b + keys, steps.step[token * a.n_heads + head],
            steps.decay[token * a.n_heads + head]};
}

/* One column, its rows `stride` apart; after may be before. Returns stateᵀ C. */
QR_DEVICE float space_column(const space_token &in, int32_t state_dim, const float *before, float *after,
                             int64_t stride, float x) {
    const float input = in.step * x;
    float out = 0.0F;
    for (int32_t i = 0; i < state_dim; i++) {
        const float state = fmaf(in.b[i], input, in.decay * before[i * stride]);
        after[i * stride] = state;
        out = fmaf(in.c[i], state, out);
    }
    return out;
}

/* Fills the steps of a call. */
qrun_status space_prepare(qr_cuda_backend &cuda, const qr_state_space_args &args, const space_steps &steps,
                          qr_error *err);

#endif
