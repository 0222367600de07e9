/* state_space. */
#include "kernels/cuda/state_space.cuh"

#include "kernels/cuda/device/vec4.cuh"

/* A thread for a token and head. */
__global__ void space_prepare_kernel(qr_state_space_args a, space_steps steps) {
    const int64_t i = global_thread();
    if (i >= a.n_tokens * a.n_heads) { return; }
    const int64_t token = i / a.n_heads, head = i % a.n_heads;
    const float step = softplus(a.dt[token * a.dt_stride + head] + a.dt_bias[head]);
    steps.step[i] = step;
    steps.decay[i] = expf(-expf(a.a_log[head]) * step);
}

qrun_status space_prepare(qr_cuda_backend &cuda, const qr_state_space_args &args, const space_steps &steps,
                          qr_error *err) {
    return QR_LAUNCH(cuda.device, err, space_prepare_kernel, blocks_for(args.n_tokens * args.n_heads, VEC4_THREADS),
                     VEC4_THREADS, 0, args, steps);
}

/* A warp for 32 columns of a head of a sequence, one a lane, in shared memory [state_dim, 32] while its tokens run. */
__global__ void state_space_kernel(qr_state_space_args a, space_steps steps) {
    const qr_recurrence &r = a.sequences;
    const int64_t s = blockIdx.z, j = static_cast<int64_t>(blockIdx.x) * WARP_LANES + lane_index();
    const int32_t head = static_cast<int32_t>(blockIdx.y), begin = r.start[s], end = r.start[s + 1];
    if (j >= a.head_dim || begin == end) { return; }
    float *column = shared_memory<float>() + lane_index();
    float *state = state_of(r, s);
    const bool from_zero = begins_from_zero(r, s);
    if (state != NULL) { state += static_cast<int64_t>(head) * a.state_dim * a.head_dim + j; }
    for (int32_t i = 0; i < a.state_dim; i++) {
        column[i * WARP_LANES] = from_zero ? 0.0F : state[static_cast<int64_t>(i) * a.head_dim];
    }
    for (int64_t t = begin; t < end; t++) {
        const space_token in = space_token_of(a, steps, t, head);
        const float out = space_column(in, a.state_dim, column, column, WARP_LANES, in.x[j]);
        a.dst[(t * a.n_heads + head) * a.head_dim + j] = fmaf(a.skip[head], in.x[j], out);
    }
    for (int32_t i = 0; state != NULL && i < a.state_dim; i++) {
        state[static_cast<int64_t>(i) * a.head_dim] = column[i * WARP_LANES];
    }
}

static size_t state_space_workspace(const qr_state_space_args &args) {
    return space_steps_floats(args) * sizeof(float);
}

static qrun_status run_state_space(qr_cuda_backend &cuda, const qr_state_space_args &args, void *workspace,
                                   qr_error *err) {
    const space_steps steps = space_steps_at(args, workspace);
    dim3 grid = blocks_for(args.head_dim, WARP_LANES);
    grid.y = static_cast<unsigned>(args.n_heads);
    grid.z = static_cast<unsigned>(args.sequences.n_seqs);
    QR_RETURN_IF_ERROR(space_prepare(cuda, args, steps, err));
    return QR_LAUNCH(cuda.device, err, state_space_kernel, grid, WARP_LANES,
                     static_cast<size_t>(args.state_dim) * WARP_LANES * sizeof(float), args, steps);
}

QR_CUDA_OP(state_space, state_space_workspace, run_state_space)
