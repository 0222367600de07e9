/* Gradients of the ops of experts that are no product: a warp or a block for a slot or row, by its length. */
#include "kernels/cuda/experts.cuh"

template <bool is_block>
__global__ void expert_share_backward_kernel(qr_expert_share_backward_args a, int64_t n_slots) {
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t slot = team.row(), first = slot * a.dim;
    if (slot >= n_slots) { return; }
    const float share = a.routing.share[slot];
    float sum = 0.0F;
    team.for_each_vec4(a.dim, [&](int64_t j) {
        for (int64_t i = j; i < j + VEC4 && i < a.dim; i++) {
            const float dh = a.dh[first + i];
            sum = fmaf(dh, load_as_f32(a.h, a.h_dtype, first + i), sum);
            a.dh[first + i] = dh * share;
        }
    });
    sum = team.sum(sum);
    if (team.rank() == 0) { a.dshare[slot] = sum; }
}

template <bool is_block> __global__ void share_rows_backward_kernel(qr_share_rows_backward_args a) {
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t row = team.row(), first = row * a.dim;
    if (row >= a.n_rows) { return; }
    const float g = a.g[row], share = static_cast<float>(share_of_gate(g));
    float sum = 0.0F;
    team.for_each_vec4(a.dim, [&](int64_t j) {
        for (int64_t i = j; i < j + VEC4 && i < a.dim; i++) {
            const float dx = a.dx[first + i];
            sum = fmaf(dx, load_as_f32(a.x, a.x_dtype, first + i), sum);
            a.dx[first + i] = dx * share;
        }
    });
    sum = team.sum(sum); /* of a block: after it every thread has read g, which dg may be */
    if (team.rank() == 0) { a.dg[row] = static_cast<float>(share_of_gate(-g) * static_cast<double>(sum)); }
}

/* A warp for a slot, in F64. */
__global__ void expert_bias_backward_kernel(qr_expert_bias_backward_args a, int64_t n_slots) {
    const int64_t slot = static_cast<int64_t>(blockIdx.x) * VEC4_WARPS + warp_index();
    if (slot >= n_slots) { return; }
    const float *bias = a.bias + expert_of_slot(a.routing, slot) * a.dim, *dy = a.dy + a.routing.slot_row[slot] * a.dim;
    double sum = 0.0;
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) { sum += static_cast<double>(dy[j] * bias[j]); }
    sum = warp_sum(sum);
    if (lane_index() == 0) { a.dshare[slot] = static_cast<float>(static_cast<double>(a.dshare[slot]) + sum); }
}

template <bool is_block>
static qrun_status launch_share(qr_cuda_backend &cuda, const qr_expert_share_backward_args &args, qr_error *err) {
    const int64_t n_slots = qr_routing_slots(&args.routing);
    return QR_LAUNCH(cuda.device, err, expert_share_backward_kernel<is_block>, row_team<is_block>::grid(n_slots),
                     VEC4_THREADS, row_team<is_block>::shared_bytes(), args, n_slots);
}

template <bool is_block>
static qrun_status launch_rows(qr_cuda_backend &cuda, const qr_share_rows_backward_args &args, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, share_rows_backward_kernel<is_block>, row_team<is_block>::grid(args.n_rows),
                     VEC4_THREADS, row_team<is_block>::shared_bytes(), args);
}

static qrun_status run_expert_share_backward(qr_cuda_backend &cuda, const qr_expert_share_backward_args &args, void *,
                                             qr_error *err) {
    return args.dim > VEC4_BLOCK_DIM ? launch_share<true>(cuda, args, err) : launch_share<false>(cuda, args, err);
}

static qrun_status run_share_rows_backward(qr_cuda_backend &cuda, const qr_share_rows_backward_args &args, void *,
                                           qr_error *err) {
    return args.dim > VEC4_BLOCK_DIM ? launch_rows<true>(cuda, args, err) : launch_rows<false>(cuda, args, err);
}

static qrun_status run_expert_bias_backward(qr_cuda_backend &cuda, const qr_expert_bias_backward_args &args, void *,
                                            qr_error *err) {
    const int64_t n_slots = qr_routing_slots(&args.routing);
    return QR_LAUNCH(cuda.device, err, expert_bias_backward_kernel, blocks_for(n_slots, VEC4_WARPS), VEC4_THREADS, 0,
                     args, n_slots);
}

QR_CUDA_OP(expert_share_backward, no_workspace<qr_expert_share_backward_args>, run_expert_share_backward)
QR_CUDA_OP(share_rows_backward, no_workspace<qr_share_rows_backward_args>, run_share_rows_backward)
QR_CUDA_OP(expert_bias_backward, no_workspace<qr_expert_bias_backward_args>, run_expert_bias_backward)
