/* copy_heads, head_gate, conv1d_causal, gated_delta. */
#include "kernels/cuda/delta.cuh"

#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/device/vec4.cuh"

__global__ void copy_heads_kernel(qr_copy_heads_args a) {
    for_each_vec4(a.n_rows * a.n_heads, a.dim, [&](int64_t i, int64_t j) {
        const int64_t row = i / a.n_heads, head = i % a.n_heads;
        const int64_t from = row * a.src_stride + head * a.src_head_stride;
        const int64_t to = row * a.dst_stride + head * a.dst_head_stride;
        float x[VEC4] = {};
        for (int k = 0; k < VEC4 && j + k < a.dim; k++) {
            if (a.src != nullptr) { x[k] = load_as_f32(a.src, a.dtype, from + j + k); }
            if (a.accumulate) { x[k] += load_as_f32(a.dst, a.dtype, to + j + k); }
        }
        store_vec4(a.dst, a.dtype, to, j, a.dim, false, x);
    });
}

QR_DEVICE float open_gate(const qr_head_gate_args &a, float gate) {
    return a.by_softplus ? softplus(gate) : sigmoid(gate);
}

__global__ void head_gate_kernel(qr_head_gate_args a) {
    for_each_vec4(a.n_rows * a.n_heads, a.dim, [&](int64_t i, int64_t j) {
        const float *gates = a.gate + i / a.n_heads * a.gate_stride + i % a.n_heads * a.gate_head_stride;
        float gate[VEC4], x[VEC4];
        if (a.gate_dim == 1) {
            for (int k = 0; k < VEC4; k++) { gate[k] = gates[0]; }
        } else {
            load_vec4(gate, gates, j, a.dim, false);
        }
        for (int k = 0; k < VEC4; k++) {
            x[k] = j + k < a.dim ? load_as_f32(a.x, a.dtype, i * a.dim + j + k) * open_gate(a, gate[k]) : 0.0F;
        }
        store_vec4(a.dst, a.dtype, i * a.dim, j, a.dim, false, x);
    });
}

/* ---- conv1d_causal: a thread for a channel of a sequence --------------------------------------------------------- */

__global__ void conv1d_causal_kernel(qr_conv1d_causal_args a) {
    const int64_t c = global_thread(), s = blockIdx.y;
    const qr_recurrence &r = a.sequences;
    const int32_t begin = r.start[s], end = r.start[s + 1];
    if (c >= a.dim || begin == end) { return; }
    float *state = state_of(r, s), weight[QR_CONV_MAX_KERNEL], rows[QR_CONV_MAX_KERNEL];
    const float bias = a.bias != NULL ? a.bias[c] : 0.0F;
    for (int32_t j = 0; j < a.kernel; j++) { weight[j] = a.weight[c * a.kernel + j]; }
    for (int32_t j = 0; j < a.kernel - 1; j++) { rows[j] = begins_from_zero(r, s) ? 0.0F : state[j * a.dim + c]; }
    for (int64_t t = begin; t < end; t++) {
        rows[a.kernel - 1] = a.x[t * a.x_stride + c];
        float sum = bias;
        for (int32_t j = 0; j < a.kernel; j++) { sum = fmaf(weight[j], rows[j], sum); }
        a.dst[t * a.dim + c] = act_fn(a.fn, sum);
        for (int32_t j = 0; j < a.kernel - 1; j++) { rows[j] = rows[j + 1]; }
    }
    for (int32_t j = 0; state != NULL && j < a.kernel - 1; j++) { state[j * a.dim + c] = rows[j]; }
}

/* ---- gated_delta ------------------------------------------------------------------------------------------------- */

/* dst = x · factor / sqrt(sum x² + eps), by a warp. */
QR_DEVICE void normalise(const float *x, int32_t n, float factor, float *dst) {
    float squares = 0.0F;
    for (int32_t i = static_cast<int32_t>(lane_index()); i < n; i += WARP_LANES) {
        squares = fmaf(x[i], x[i], squares);
    }
    const float scale = factor / sqrtf(warp_sum(squares) + QR_DELTA_EPS);
    for (int32_t i = static_cast<int32_t>(lane_index()); i < n; i += WARP_LANES) { dst[i] = x[i] * scale; }
}

/* A block for a token: its key heads by warps, then decays and value heads by threads. */
__global__ void delta_prepare_kernel(qr_gated_delta_args a, delta_tokens tokens) {
    const int64_t t = blockIdx.x;
    const int32_t n_warps = DELTA_TOKEN_THREADS / WARP_LANES;
    const float *row = a.qkv + t * a.qkv_stride, factor = 1.0F / sqrtf(static_cast<float>(a.key_dim));
    for (int32_t h = static_cast<int32_t>(warp_index()); h < a.n_key_heads; h += n_warps) {
        const int64_t at = (t * a.n_key_heads + h) * a.key_dim, column = static_cast<int64_t>(h) * a.key_dim;
        normalise(row + column, a.key_dim, factor, tokens.q + at);
        normalise(row + static_cast<int64_t>(a.n_key_heads) * a.key_dim + column, a.key_dim, 1.0F, tokens.k + at);
    }
    const int32_t of_head = a.decays_channels ? a.key_dim : 1, n_decays = a.n_value_heads * of_head;
    for (int32_t d = static_cast<int32_t>(threadIdx.x); d < n_decays; d += DELTA_TOKEN_THREADS) {
        const float step = softplus(a.a[t * a.ab_stride + d] + a.dt_bias[d]);
        tokens.decay[t * n_decays + d] = expf(-expf(a.a_log[d / of_head]) * step);
    }
    for (int32_t h = static_cast<int32_t>(threadIdx.x); h < a.n_value_heads; h += DELTA_TOKEN_THREADS) {
        const float beta = sigmoid(a.b[t * a.ab_stride + h]);
        tokens.beta[t * a.n_value_heads + h] = a.doubles_beta ? 2.0F * beta : beta;
    }
}

qrun_status delta_prepare(qr_cuda_backend &cuda, const qr_gated_delta_args &args, const delta_tokens &tokens,
                          qr_error *err) {
    return QR_LAUNCH(cuda.device, err, delta_prepare_kernel, dim3(static_cast<unsigned>(args.n_tokens)),
                     DELTA_TOKEN_THREADS, 0, args, tokens);
}

/* A warp for 32 columns of a head of a sequence, one a lane, in shared memory [key_dim, 32] while its tokens run. */
template <bool BY_CHANNEL> __global__ void gated_delta_kernel(qr_gated_delta_args a, delta_tokens tokens) {
    const qr_recurrence &r = a.sequences;
    const int64_t s = blockIdx.z, j = static_cast<int64_t>(blockIdx.x) * WARP_LANES + lane_index();
    const int32_t head = static_cast<int32_t>(blockIdx.y), begin = r.start[s], end = r.start[s + 1];
    if (j >= a.value_dim || begin == end) { return; }
    float *column = shared_memory<float>() + lane_index(), *state = state_of(r, s);
    if (state != NULL) { state += static_cast<int64_t>(head) * a.key_dim * a.value_dim + j; }
    for (int32_t i = 0; i < a.key_dim; i++) {
        column[i * WARP_LANES] = begins_from_zero(r, s) ? 0.0F : state[static_cast<int64_t>(i) * a.value_dim];
    }
    for (int64_t t = begin; t < end; t++) {
        const delta_token in = delta_token_of(a, tokens, t, head);
        float error;
        a.dst[(t * a.n_value_heads + head) * a.value_dim + j] =
            delta_column<BY_CHANNEL>(in, a.key_dim, column, column, WARP_LANES, in.v[j], &error);
    }
    for (int32_t i = 0; state != NULL && i < a.key_dim; i++) {
        state[static_cast<int64_t>(i) * a.value_dim] = column[i * WARP_LANES];
    }
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static qrun_status run_copy_heads(qr_cuda_backend &cuda, const qr_copy_heads_args &args, void *, qr_error *err) {
    return QR_LAUNCH_VEC4(cuda.device, err, copy_heads_kernel, args.n_rows * args.n_heads, args.dim, args);
}

static qrun_status run_head_gate(qr_cuda_backend &cuda, const qr_head_gate_args &args, void *, qr_error *err) {
    return QR_LAUNCH_VEC4(cuda.device, err, head_gate_kernel, args.n_rows * args.n_heads, args.dim, args);
}

static qrun_status run_conv1d_causal(qr_cuda_backend &cuda, const qr_conv1d_causal_args &args, void *, qr_error *err) {
    dim3 grid = blocks_for(args.dim, VEC4_THREADS);
    grid.y = static_cast<unsigned>(args.sequences.n_seqs);
    return QR_LAUNCH(cuda.device, err, conv1d_causal_kernel, grid, VEC4_THREADS, 0, args);
}

static size_t gated_delta_workspace(const qr_gated_delta_args &args) {
    return delta_tokens_floats(args) * sizeof(float);
}

static qrun_status run_gated_delta(qr_cuda_backend &cuda, const qr_gated_delta_args &args, void *workspace,
                                   qr_error *err) {
    const delta_tokens tokens = delta_tokens_at(args, workspace);
    dim3 grid = blocks_for(args.value_dim, WARP_LANES);
    grid.y = static_cast<unsigned>(args.n_value_heads);
    grid.z = static_cast<unsigned>(args.sequences.n_seqs);
    QR_RETURN_IF_ERROR(delta_prepare(cuda, args, tokens, err));
    const size_t shared_bytes = static_cast<size_t>(args.key_dim) * WARP_LANES * sizeof(float);
    return args.decays_channels
               ? QR_LAUNCH(cuda.device, err, gated_delta_kernel<true>, grid, WARP_LANES, shared_bytes, args, tokens)
               : QR_LAUNCH(cuda.device, err, gated_delta_kernel<false>, grid, WARP_LANES, shared_bytes, args, tokens);
}

QR_CUDA_OP(copy_heads, no_workspace<qr_copy_heads_args>, run_copy_heads)
QR_CUDA_OP(head_gate, no_workspace<qr_head_gate_args>, run_head_gate)
QR_CUDA_OP(conv1d_causal, no_workspace<qr_conv1d_causal_args>, run_conv1d_causal)
QR_CUDA_OP(gated_delta, gated_delta_workspace, run_gated_delta)
