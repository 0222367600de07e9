/* state_space_backward: a block for a part of the heads of a group of a sequence. Heads of a part add to the same
 * gradients of B and C in order; a last kernel adds the parts up. The states are computed again, a thread for a column
 * of one: kept at the borders of blocks of tokens, then inside each. */
#include "kernels/cuda/device/vec4.cuh"
#include "kernels/cuda/state_space.cuh"

enum { THREADS = 256, N_WARPS = THREADS / WARP_LANES, BLOCK_TOKENS = 64, MOST_BLOCKS = 32, PARTS = 8, SUMS = 3 };

static inline int32_t parts_of(const qr_state_space_args &a) {
    const int32_t per_group = a.n_heads / a.n_groups;
    return per_group < PARTS ? per_group : static_cast<int32_t>(PARTS);
}

/* What the blocks leave for the last kernels. */
struct space_partial {
    float *keys;   /* [n_groups, parts, n_tokens, 2, state_dim]: gradients of B and of C */
    float *sums;   /* [n_seqs, n_heads, SUMS]: of a_log, dt_bias and skip */
    int32_t parts; /* of a group's heads */
};

/* A block's scratch. */
struct space_scratch {
    float *borders; /* [n_blocks, state_dim, head_dim]: the state before each block of tokens */
    float *states;  /* [BLOCK_TOKENS + 1, state_dim, head_dim]: before each token of one */
    float *dstate;  /* [state_dim, head_dim] */
    float *ddecay;  /* [head_dim]: of each column, as the next */
    float *dstep, *dskip;
};

static inline int64_t state_floats(const qr_state_space_args &a) {
    return static_cast<int64_t>(a.state_dim) * a.head_dim;
}

static inline int64_t scratch_floats(const qr_state_space_args &a) {
    const int64_t n_blocks = qr_ceil_div(a.sequences.max_seq_tokens, BLOCK_TOKENS);
    return (n_blocks + BLOCK_TOKENS + 2) * state_floats(a) + 3 * static_cast<int64_t>(a.head_dim);
}

struct space_task {
    const qr_state_space_backward_args &args;
    const space_steps &steps;
    space_scratch s;
    float *keys;      /* [n_tokens, 2, state_dim] of its part */
    int64_t first, n; /* tokens */
    int32_t head;
    float da_log, ddt_bias, dskip; /* the first lane's of the first warp */
};

QR_DEVICE space_scratch scratch_at(const qr_state_space_args &a, float *base) {
    const int64_t state = static_cast<int64_t>(a.state_dim) * a.head_dim;
    const int64_t n_blocks = (a.sequences.max_seq_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    space_scratch s;
    s.borders = base;
    s.states = s.borders + n_blocks * state;
    s.dstate = s.states + (BLOCK_TOKENS + 1) * state;
    s.ddecay = s.dstate + state;
    s.dstep = s.ddecay + a.head_dim;
    s.dskip = s.dstep + a.head_dim;
    return s;
}

/* Columns of this thread; every thread has its own, so nothing waits. */
template <typename F> QR_DEVICE void for_each_column(int32_t n, const F &body) {
    for (int32_t j = static_cast<int32_t>(threadIdx.x); j < n; j += THREADS) { body(j); }
}

QR_DEVICE void step_column(const space_task &task, int64_t t, const float *before, float *after, int32_t j) {
    const qr_state_space_args &f = task.args.forward;
    const space_token in = space_token_of(f, task.steps, task.first + t, task.head);
    (void)space_column(in, f.state_dim, before, after, f.head_dim, in.x[j]);
}

QR_DEVICE void keep_borders(const space_task &task, int32_t j) {
    const qr_state_space_args &f = task.args.forward;
    const int64_t state = static_cast<int64_t>(f.state_dim) * f.head_dim;
    float *at = task.s.borders + j;
    for (int32_t i = 0; i < f.state_dim; i++) { at[static_cast<int64_t>(i) * f.head_dim] = 0.0F; }
    for (int64_t first = 0; first + BLOCK_TOKENS < task.n; first += BLOCK_TOKENS) {
        for (int64_t t = 0; t < BLOCK_TOKENS; t++) {
            step_column(task, first + t, t == 0 ? at : at + state, at + state, j);
        }
        at += state;
    }
}

QR_DEVICE void fill_block(const space_task &task, int64_t block, int64_t n, int32_t j) {
    const qr_state_space_args &f = task.args.forward;
    const int64_t state = static_cast<int64_t>(f.state_dim) * f.head_dim;
    for (int32_t i = 0; i < f.state_dim; i++) {
        const int64_t at = static_cast<int64_t>(i) * f.head_dim + j;
        task.s.states[at] = task.s.borders[block * state + at];
    }
    for (int64_t t = 0; t < n; t++) {
        step_column(task, block * BLOCK_TOKENS + t, task.s.states + t * state + j, task.s.states + (t + 1) * state + j,
                    j);
    }
}

/* The gradient dy of the output enters that of the state; x's gradient, and the column's parts of other sums. */
QR_DEVICE void enter_column(const space_task &task, const space_token &in, const float *before, const float *dy,
                            float *dx, int32_t j) {
    const qr_state_space_args &f = task.args.forward;
    float dinput = 0.0F, ddecay = 0.0F;
    for (int32_t i = 0; i < f.state_dim; i++) {
        const int64_t at = static_cast<int64_t>(i) * f.head_dim + j;
        const float dstate = fmaf(in.c[i], dy[j], task.s.dstate[at]);
        task.s.dstate[at] = dstate;
        dinput = fmaf(in.b[i], dstate, dinput);
        ddecay = fmaf(before[at], dstate, ddecay);
    }
    dx[j] = fmaf(f.skip[task.head], dy[j], in.step * dinput);
    task.s.ddecay[j] = ddecay;
    task.s.dstep[j] = dinput * in.x[j];
    task.s.dskip[j] = dy[j] * in.x[j];
}

/* Row i by a warp: the gradients of B[i] and C[i], and that of the state before the token. */
QR_DEVICE void leave_row(const space_task &task, const space_token &in, const float *after, const float *dy,
                         float *keys, int32_t i) {
    const qr_state_space_args &f = task.args.forward;
    const int64_t row = static_cast<int64_t>(i) * f.head_dim;
    float db = 0.0F, dc = 0.0F;
    for (int32_t j = static_cast<int32_t>(lane_index()); j < f.head_dim; j += WARP_LANES) {
        const float dstate = task.s.dstate[row + j];
        db = fmaf(dstate, in.step * in.x[j], db);
        dc = fmaf(after[row + j], dy[j], dc);
        task.s.dstate[row + j] = in.decay * dstate;
    }
    db = warp_sum(db);
    dc = warp_sum(dc);
    if (lane_index() == 0) {
        keys[i] += db;
        keys[f.state_dim + i] += dc;
    }
}

/* The gradient of dt, by the first warp. */
QR_DEVICE void step_backward(space_task &task, const space_token &in, int64_t token) {
    const qr_state_space_backward_args &args = task.args;
    const qr_state_space_args &f = args.forward;
    float ddecay = 0.0F, dstep = 0.0F, dskip = 0.0F;
    for (int32_t j = static_cast<int32_t>(lane_index()); j < f.head_dim; j += WARP_LANES) {
        ddecay += task.s.ddecay[j];
        dstep += task.s.dstep[j];
        dskip += task.s.dskip[j];
    }
    ddecay = warp_sum(ddecay);
    dstep = warp_sum(dstep);
    dskip = warp_sum(dskip);
    if (lane_index() > 0) { return; }
    const float rate = expf(f.a_log[task.head]), dexponent = in.decay * ddecay; /* of −rate · step */
    const float slope = sigmoid(f.dt[token * f.dt_stride + task.head] + f.dt_bias[task.head]);
    const float ddt = (dstep - rate * dexponent) * slope;
    args.ddt[token * args.ddt_stride + task.head] = ddt;
    task.da_log -= dexponent * rate * in.step;
    task.ddt_bias += ddt;
    task.dskip += dskip;
}

QR_DEVICE void token_backward(space_task &task, int64_t t, int64_t in_block) {
    const qr_state_space_backward_args &args = task.args;
    const qr_state_space_args &f = args.forward;
    const int64_t token = task.first + t, state = static_cast<int64_t>(f.state_dim) * f.head_dim;
    const space_token in = space_token_of(f, task.steps, token, task.head);
    const float *dy = args.dy + (token * f.n_heads + task.head) * f.head_dim;
    const float *before = task.s.states + in_block * state;
    float *dx = args.dxbc + token * args.dxbc_stride + static_cast<int64_t>(task.head) * f.head_dim;
    float *keys = task.keys + token * 2 * f.state_dim;
    for_each_column(f.head_dim, [&](int32_t j) { enter_column(task, in, before, dy, dx, j); });
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(warp_index()); i < f.state_dim; i += N_WARPS) {
        leave_row(task, in, before + state, dy, keys, i);
    }
    if (warp_index() == 0) { step_backward(task, in, token); }
    __syncthreads();
}

QR_DEVICE void head_backward(space_task &task) {
    const qr_state_space_args &f = task.args.forward;
    const int64_t n_blocks = (task.n + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    const int64_t state = static_cast<int64_t>(f.state_dim) * f.head_dim;
    task.da_log = task.ddt_bias = task.dskip = 0.0F;
    for_each_column(f.head_dim, [&](int32_t j) {
        for (int64_t i = j; i < state; i += f.head_dim) { task.s.dstate[i] = 0.0F; }
        keep_borders(task, j);
    });
    for (int64_t b = n_blocks; b-- > 0;) {
        const int64_t first = b * BLOCK_TOKENS;
        int64_t n = task.n - first;
        if (n > BLOCK_TOKENS) { n = BLOCK_TOKENS; }
        for_each_column(f.head_dim, [&](int32_t j) { fill_block(task, b, n, j); });
        __syncthreads();
        for (int64_t t = n; t-- > 0;) { token_backward(task, first + t, t); }
    }
}

__global__ void state_space_backward_kernel(qr_state_space_backward_args a, space_steps steps, space_partial partial,
                                            float *scratch, int64_t floats) {
    const qr_state_space_args &f = a.forward;
    const int32_t per_group = f.n_heads / f.n_groups, parts = partial.parts;
    const space_scratch s = scratch_at(f, scratch + blockIdx.x * floats);
    for (int64_t i = blockIdx.x; i < static_cast<int64_t>(f.sequences.n_seqs) * f.n_groups * parts; i += gridDim.x) {
        const int32_t part = static_cast<int32_t>(i % parts);
        const int64_t group = i / parts % f.n_groups, seq = i / parts / f.n_groups;
        const int64_t first = f.sequences.start[seq], n = f.sequences.start[seq + 1] - first;
        float *keys = partial.keys + (group * parts + part) * f.n_tokens * 2 * f.state_dim;
        for (int64_t k = threadIdx.x; k < n * 2 * f.state_dim; k += THREADS) {
            keys[first * 2 * f.state_dim + k] = 0.0F;
        }
        __syncthreads();
        for (int32_t h = part * per_group / parts; h < (part + 1) * per_group / parts; h++) {
            space_task task = {a,    steps, s,   keys, first, n, static_cast<int32_t>(group * per_group + h),
                               0.0F, 0.0F,  0.0F};
            head_backward(task);
            float *sum = partial.sums + (seq * f.n_heads + task.head) * SUMS;
            if (threadIdx.x == 0) { sum[0] = task.da_log, sum[1] = task.ddt_bias, sum[2] = task.dskip; }
            __syncthreads();
        }
    }
}

/* B and C: the parts' sums in order, a thread for an element. */
__global__ void space_keys_kernel(qr_state_space_backward_args a, space_partial partial) {
    const qr_state_space_args &f = a.forward;
    const int64_t columns = 2 * static_cast<int64_t>(f.n_groups) * f.state_dim, at = global_thread();
    if (at >= f.n_tokens * columns) { return; }
    const int64_t token = at / columns, column = at % columns, i = column % f.state_dim;
    const int64_t group = column / f.state_dim % f.n_groups, of_c = column / f.state_dim / f.n_groups;
    float sum = 0.0F;
    for (int64_t part = 0; part < partial.parts; part++) {
        const int64_t row = ((group * partial.parts + part) * f.n_tokens + token) * 2 + of_c;
        sum += partial.keys[row * f.state_dim + i];
    }
    a.dxbc[token * a.dxbc_stride + static_cast<int64_t>(f.n_heads) * f.head_dim + column] = sum;
}

/* Sequences in order, a thread for a head. */
__global__ void space_sums_kernel(qr_state_space_backward_args a, const float *sums) {
    const int64_t h = global_thread(), n = a.forward.n_heads;
    if (h >= n) { return; }
    for (int64_t s = 0; s < a.forward.sequences.n_seqs; s++) {
        const float *sum = sums + (s * n + h) * SUMS;
        if (a.da_log != NULL) { a.da_log[h] += sum[0]; }
        if (a.ddt_bias != NULL) { a.ddt_bias[h] += sum[1]; }
        if (a.dskip != NULL) { a.dskip[h] += sum[2]; }
    }
}

static unsigned n_blocks_of(const qr_state_space_args &f) {
    const int64_t n_tasks = static_cast<int64_t>(f.sequences.n_seqs) * f.n_groups * parts_of(f);
    return static_cast<unsigned>(qr_min(n_tasks, MOST_BLOCKS));
}

static int64_t keys_floats(const qr_state_space_args &f) {
    return static_cast<int64_t>(f.n_groups) * parts_of(f) * f.n_tokens * 2 * f.state_dim;
}

static int64_t sums_floats(const qr_state_space_args &f) {
    return static_cast<int64_t>(SUMS) * f.sequences.n_seqs * f.n_heads;
}

static size_t state_space_backward_workspace(const qr_state_space_backward_args &args) {
    const qr_state_space_args &f = args.forward;
    const int64_t floats = keys_floats(f) + sums_floats(f) + n_blocks_of(f) * scratch_floats(f);
    return (space_steps_floats(f) + static_cast<size_t>(floats)) * sizeof(float);
}

static qrun_status run_state_space_backward(qr_cuda_backend &cuda, const qr_state_space_backward_args &args,
                                            void *workspace, qr_error *err) {
    const qr_state_space_args &f = args.forward;
    const space_steps steps = space_steps_at(f, workspace);
    float *keys = static_cast<float *>(workspace) + space_steps_floats(f), *sums = keys + keys_floats(f);
    const space_partial partial = {keys, sums, parts_of(f)};
    const int64_t columns = 2 * static_cast<int64_t>(f.n_groups) * f.state_dim;
    QR_RETURN_IF_ERROR(space_prepare(cuda, f, steps, err));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, state_space_backward_kernel, dim3(n_blocks_of(f)), THREADS, 0, args,
                                 steps, partial, sums + sums_floats(f), scratch_floats(f)));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, space_keys_kernel, blocks_for(f.n_tokens * columns, THREADS),
                                 THREADS, 0, args, partial));
    return QR_LAUNCH(cuda.device, err, space_sums_kernel, blocks_for(f.n_heads, THREADS), THREADS, 0, args,
                     static_cast<const float *>(sums));
}

QR_CUDA_OP(state_space_backward, state_space_backward_workspace, run_state_space_backward)
