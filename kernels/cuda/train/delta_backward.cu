/* gated_delta_backward: a block for a key head of a sequence, whose value heads add to the same gradients in order. The
 * states are computed again, a thread for a column of one: kept at the borders of blocks of tokens, then inside each.
 */
#include "kernels/cuda/delta.cuh"

enum { THREADS = 256, N_WARPS = THREADS / WARP_LANES, BLOCK_TOKENS = 64, MOST_BLOCKS = 32 };

/* A block's scratch in the workspace. */
struct delta_scratch {
    float *borders; /* [n_blocks, key_dim, value_dim]: the state before each block of tokens */
    float *states;  /* [BLOCK_TOKENS + 1, key_dim, value_dim]: before each token of one */
    float *dstate;  /* [key_dim, value_dim] */
    float *errors;  /* [BLOCK_TOKENS, value_dim]: v − (decay · state)ᵀ k' */
    float *ddelta;  /* [value_dim] */
    float *ddecay;  /* [key_dim]: of each row */
};

static inline int64_t scratch_floats(const qr_gated_delta_args &a) {
    const int64_t state = static_cast<int64_t>(a.key_dim) * a.value_dim;
    const int64_t n_blocks = qr_ceil_div(a.sequences.max_seq_tokens, BLOCK_TOKENS);
    return (n_blocks + BLOCK_TOKENS + 2) * state + (BLOCK_TOKENS + 1) * static_cast<int64_t>(a.value_dim) + a.key_dim;
}

QR_DEVICE delta_scratch scratch_at(const qr_gated_delta_args &a, float *base) {
    const int64_t state = static_cast<int64_t>(a.key_dim) * a.value_dim;
    const int64_t n_blocks = (a.sequences.max_seq_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    delta_scratch s;
    s.borders = base;
    s.states = s.borders + n_blocks * state;
    s.dstate = s.states + (BLOCK_TOKENS + 1) * state;
    s.errors = s.dstate + state;
    s.ddelta = s.errors + BLOCK_TOKENS * static_cast<int64_t>(a.value_dim);
    s.ddecay = s.ddelta + a.value_dim;
    return s;
}

struct delta_task {
    const qr_gated_delta_backward_args &args;
    const delta_tokens &tokens;
    delta_scratch s;
    int64_t first, n; /* tokens */
    int32_t head, key_head;
    float *da_log, *ddt_bias; /* [1], [qr_delta_decays]; the first warp's */
};

/* Columns of this thread; every thread has its own, so nothing waits. */
template <typename F> QR_DEVICE void for_each_column(int32_t n, const F &body) {
    for (int32_t j = static_cast<int32_t>(threadIdx.x); j < n; j += THREADS) { body(j); }
}

template <bool BY_CHANNEL> QR_DEVICE void keep_borders(const delta_task &task, int32_t j) {
    const qr_gated_delta_args &f = task.args.forward;
    const int64_t state = static_cast<int64_t>(f.key_dim) * f.value_dim;
    float *at = task.s.borders + j, error;
    for (int32_t i = 0; i < f.key_dim; i++) { at[static_cast<int64_t>(i) * f.value_dim] = 0.0F; }
    for (int64_t first = 0; first + BLOCK_TOKENS < task.n; first += BLOCK_TOKENS) {
        for (int64_t t = 0; t < BLOCK_TOKENS; t++) {
            const delta_token in = delta_token_of(f, task.tokens, task.first + first + t, task.head);
            delta_column<BY_CHANNEL>(in, f.key_dim, t == 0 ? at : at + state, at + state, f.value_dim, in.v[j], &error);
        }
        at += state;
    }
}

template <bool BY_CHANNEL> QR_DEVICE void fill_block(const delta_task &task, int64_t block, int64_t n, int32_t j) {
    const qr_gated_delta_args &f = task.args.forward;
    const int64_t state = static_cast<int64_t>(f.key_dim) * f.value_dim;
    for (int32_t i = 0; i < f.key_dim; i++) {
        const int64_t at = static_cast<int64_t>(i) * f.value_dim + j;
        task.s.states[at] = task.s.borders[block * state + at];
    }
    for (int64_t t = 0; t < n; t++) {
        const delta_token in = delta_token_of(f, task.tokens, task.first + block * BLOCK_TOKENS + t, task.head);
        delta_column<BY_CHANNEL>(in, f.key_dim, task.s.states + t * state + j, task.s.states + (t + 1) * state + j,
                                 f.value_dim, in.v[j], task.s.errors + t * f.value_dim + j);
    }
}

/* The gradient dy of the output enters that of the state; ddelta = dstateᵀ k', and v's gradient. */
QR_DEVICE void enter(const delta_task &task, const delta_token &in, const float *dy, float *dv, int32_t j) {
    const qr_gated_delta_args &f = task.args.forward;
    float ddelta = 0.0F;
    for (int32_t i = 0; i < f.key_dim; i++) {
        float *dstate = task.s.dstate + static_cast<int64_t>(i) * f.value_dim + j;
        *dstate = fmaf(in.q[i], dy[j], *dstate);
        ddelta = fmaf(in.k[i], *dstate, ddelta);
    }
    task.s.ddelta[j] = ddelta;
    dv[j] = in.beta * ddelta;
}

/* Row i by a warp: the gradients of q'[i] and k'[i], and that of the state before the token. */
QR_DEVICE void leave_row(const delta_task &task, const delta_token &in, const float *before, const float *error,
                         const float *dy, float *dq, float *dk, int32_t i) {
    const qr_gated_delta_args &f = task.args.forward;
    const float *old_row = before + static_cast<int64_t>(i) * f.value_dim, k = in.k[i];
    const float decay = in.decays[f.decays_channels ? i : 0];
    float *row = task.s.dstate + static_cast<int64_t>(i) * f.value_dim, dq_sum = 0.0F, dk_sum = 0.0F, dd_sum = 0.0F;
    for (int32_t j = static_cast<int32_t>(lane_index()); j < f.value_dim; j += WARP_LANES) {
        const float delta = in.beta * error[j], dread = -in.beta * task.s.ddelta[j], decayed = decay * old_row[j];
        const float ddecayed = fmaf(k, dread, row[j]);
        dq_sum = fmaf(fmaf(k, delta, decayed), dy[j], dq_sum);
        dk_sum = fmaf(row[j], delta, fmaf(decayed, dread, dk_sum));
        dd_sum = fmaf(old_row[j], ddecayed, dd_sum);
        row[j] = decay * ddecayed;
    }
    dq_sum = warp_sum(dq_sum);
    dk_sum = warp_sum(dk_sum);
    dd_sum = warp_sum(dd_sum);
    if (lane_index() == 0) {
        dq[i] += dq_sum;
        dk[i] += dk_sum;
        task.s.ddecay[i] = dd_sum;
    }
}

/* Decay d of the head: the gradients of its a and dt_bias. Returns its part of a_log's. */
QR_DEVICE float decay_backward(const delta_task &task, const delta_token &in, int64_t token, int32_t d, float ddecay) {
    const qr_gated_delta_args &f = task.args.forward;
    const int64_t at = static_cast<int64_t>(task.head) * (f.decays_channels ? f.key_dim : 1) + d;
    const float x = f.a[token * f.ab_stride + at] + f.dt_bias[at];
    const float dsoftplus = -expf(f.a_log[task.head]) * in.decays[d] * ddecay, da = dsoftplus * sigmoid(x);
    task.args.da[token * task.args.dab_stride + at] = da;
    task.ddt_bias[d] += da;
    return dsoftplus * softplus(x);
}

/* The gradients of a and b, by the first warp. */
QR_DEVICE void gates_backward(const delta_task &task, const delta_token &in, int64_t token, const float *error) {
    const qr_gated_delta_backward_args &args = task.args;
    const qr_gated_delta_args &f = args.forward;
    float dbeta = 0.0F;
    for (int32_t j = static_cast<int32_t>(lane_index()); j < f.value_dim; j += WARP_LANES) {
        dbeta = fmaf(task.s.ddelta[j], error[j], dbeta);
    }
    dbeta = warp_sum(dbeta);
    if (lane_index() == 0) {
        args.db[token * args.dab_stride + task.head] = dbeta * in.beta * sigmoid(-f.b[token * f.ab_stride + task.head]);
    }
    if (f.decays_channels) {
        float da_log = 0.0F;
        for (int32_t i = static_cast<int32_t>(lane_index()); i < f.key_dim; i += WARP_LANES) {
            da_log += decay_backward(task, in, token, i, task.s.ddecay[i]);
        }
        da_log = warp_sum(da_log);
        if (lane_index() == 0) { *task.da_log += da_log; }
    } else if (lane_index() == 0) {
        float ddecay = 0.0F;
        for (int32_t i = 0; i < f.key_dim; i++) { ddecay += task.s.ddecay[i]; }
        *task.da_log += decay_backward(task, in, token, 0, ddecay);
    }
}

QR_DEVICE void token_backward(const delta_task &task, int64_t t, int64_t in_block) {
    const qr_gated_delta_backward_args &args = task.args;
    const qr_gated_delta_args &f = args.forward;
    const int64_t token = task.first + t, keys = static_cast<int64_t>(f.n_key_heads) * f.key_dim;
    const int64_t state = static_cast<int64_t>(f.key_dim) * f.value_dim;
    const delta_token in = delta_token_of(f, task.tokens, token, task.head);
    const float *dy = args.dy + (token * f.n_value_heads + task.head) * f.value_dim;
    const float *error = task.s.errors + in_block * f.value_dim;
    float *row = args.dqkv + token * args.dqkv_stride, *dq = row + static_cast<int64_t>(task.key_head) * f.key_dim;
    float *dv = row + 2 * keys + static_cast<int64_t>(task.head) * f.value_dim;
    for_each_column(f.value_dim, [&](int32_t j) { enter(task, in, dy, dv, j); });
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(warp_index()); i < f.key_dim; i += N_WARPS) {
        leave_row(task, in, task.s.states + in_block * state, error, dy, dq, dq + keys, i);
    }
    __syncthreads();
    if (warp_index() == 0) { gates_backward(task, in, token, error); }
    __syncthreads();
}

template <bool BY_CHANNEL> QR_DEVICE void head_backward(const delta_task &task) {
    const qr_gated_delta_args &f = task.args.forward;
    const int64_t n_blocks = (task.n + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    for_each_column(1 + (BY_CHANNEL ? f.key_dim : 1), [&](int32_t d) { task.da_log[d] = 0.0F; }); /* and ddt_bias */
    for_each_column(f.value_dim, [&](int32_t j) {
        for (int32_t i = 0; i < f.key_dim; i++) { task.s.dstate[static_cast<int64_t>(i) * f.value_dim + j] = 0.0F; }
        keep_borders<BY_CHANNEL>(task, j);
    });
    for (int64_t b = n_blocks; b-- > 0;) {
        const int64_t first = b * BLOCK_TOKENS;
        int64_t n = task.n - first;
        if (n > BLOCK_TOKENS) { n = BLOCK_TOKENS; }
        for_each_column(f.value_dim, [&](int32_t j) { fill_block<BY_CHANNEL>(task, b, n, j); });
        __syncthreads();
        for (int64_t t = n; t-- > 0;) { token_backward(task, first + t, t); }
    }
}

/* In place, from the gradient of x' = factor · x / sqrt(sum x² + eps) to that of x; by a warp. */
QR_DEVICE void norm_backward(const float *x, float factor, int32_t n, float *dx) {
    float squares = 0.0F, dot = 0.0F;
    for (int32_t i = static_cast<int32_t>(lane_index()); i < n; i += WARP_LANES) {
        squares = fmaf(x[i], x[i], squares);
        dot = fmaf(x[i], dx[i], dot);
    }
    const float inverse = 1.0F / sqrtf(warp_sum(squares) + QR_DELTA_EPS);
    const float along = inverse * inverse * warp_sum(dot);
    for (int32_t i = static_cast<int32_t>(lane_index()); i < n; i += WARP_LANES) {
        dx[i] = factor * inverse * (dx[i] - x[i] * along);
    }
}

/* sums [n_seqs, n_value_heads, 1 + qr_delta_decays]: da_log, ddt_bias. */
template <bool BY_CHANNEL>
__global__ void gated_delta_backward_kernel(qr_gated_delta_backward_args a, delta_tokens tokens, float *sums,
                                            float *scratch, int64_t floats) {
    const qr_gated_delta_args &f = a.forward;
    const int32_t per_key = f.n_value_heads / f.n_key_heads, dim = f.key_dim;
    const int64_t keys = static_cast<int64_t>(f.n_key_heads) * dim;
    const delta_scratch s = scratch_at(f, scratch + blockIdx.x * floats);
    for (int64_t i = blockIdx.x; i < static_cast<int64_t>(f.sequences.n_seqs) * f.n_key_heads; i += gridDim.x) {
        const int64_t seq = i / f.n_key_heads, first = f.sequences.start[seq], n = f.sequences.start[seq + 1] - first;
        const int32_t key_head = static_cast<int32_t>(i % f.n_key_heads);
        float *dq = a.dqkv + first * a.dqkv_stride + static_cast<int64_t>(key_head) * dim;
        const float *q = f.qkv + first * f.qkv_stride + static_cast<int64_t>(key_head) * dim;
        for (int64_t t = 0; t < n; t++) {
            for_each_column(dim,
                            [&](int32_t j) { dq[t * a.dqkv_stride + j] = dq[t * a.dqkv_stride + keys + j] = 0.0F; });
        }
        __syncthreads();
        for (int32_t h = 0; h < per_key; h++) {
            const int32_t head = key_head * per_key + h;
            float *sum = sums + (seq * f.n_value_heads + head) * (1 + (BY_CHANNEL ? dim : 1));
            head_backward<BY_CHANNEL>({a, tokens, s, first, n, head, key_head, sum, sum + 1});
            __syncthreads();
        }
        for (int64_t t = warp_index(); t < n; t += N_WARPS) {
            float *row = dq + t * a.dqkv_stride;
            norm_backward(q + t * f.qkv_stride, 1.0F / sqrtf(static_cast<float>(dim)), dim, row);
            norm_backward(q + t * f.qkv_stride + keys, 1.0F, dim, row + keys);
        }
        __syncthreads();
    }
}

/* Sequences in order, a thread for a sum. */
__global__ void delta_sums_kernel(qr_gated_delta_backward_args a, const float *sums) {
    const int64_t of_head = 1 + (a.forward.decays_channels ? a.forward.key_dim : 1);
    const int64_t i = global_thread(), n = a.forward.n_value_heads * of_head, h = i / of_head, d = i % of_head - 1;
    if (i >= n) { return; }
    float *dst = d < 0 ? a.da_log : a.ddt_bias;
    if (dst == NULL) { return; }
    dst += d < 0 ? h : h * (of_head - 1) + d;
    for (int64_t s = 0; s < a.forward.sequences.n_seqs; s++) { *dst += sums[s * n + i]; }
}

static unsigned n_blocks_of(const qr_gated_delta_args &f) {
    return static_cast<unsigned>(qr_min(static_cast<int64_t>(f.sequences.n_seqs) * f.n_key_heads, MOST_BLOCKS));
}

static int64_t sums_floats(const qr_gated_delta_args &f) {
    return (1 + static_cast<int64_t>(qr_delta_decays(&f))) * f.sequences.n_seqs * f.n_value_heads;
}

static size_t gated_delta_backward_workspace(const qr_gated_delta_backward_args &args) {
    const qr_gated_delta_args &f = args.forward;
    const size_t floats = static_cast<size_t>(sums_floats(f) + n_blocks_of(f) * scratch_floats(f));
    return (delta_tokens_floats(f) + floats) * sizeof(float);
}

static qrun_status run_gated_delta_backward(qr_cuda_backend &cuda, const qr_gated_delta_backward_args &args,
                                            void *workspace, qr_error *err) {
    const qr_gated_delta_args &f = args.forward;
    const delta_tokens tokens = delta_tokens_at(f, workspace);
    float *sums = static_cast<float *>(workspace) + delta_tokens_floats(f);
    QR_RETURN_IF_ERROR(delta_prepare(cuda, f, tokens, err));
    const dim3 grid = dim3(n_blocks_of(f));
    float *scratch = sums + sums_floats(f);
    QR_RETURN_IF_ERROR(f.decays_channels ? QR_LAUNCH(cuda.device, err, gated_delta_backward_kernel<true>, grid, THREADS,
                                                     0, args, tokens, sums, scratch, scratch_floats(f))
                                         : QR_LAUNCH(cuda.device, err, gated_delta_backward_kernel<false>, grid,
                                                     THREADS, 0, args, tokens, sums, scratch, scratch_floats(f)));
    const int64_t n_sums = f.n_value_heads * (1 + static_cast<int64_t>(qr_delta_decays(&f)));
    return QR_LAUNCH(cuda.device, err, delta_sums_kernel, blocks_for(n_sums, THREADS), THREADS, 0, args,
                     static_cast<const float *>(sums));
}

QR_CUDA_OP(gated_delta_backward, gated_delta_backward_workspace, run_gated_delta_backward)
