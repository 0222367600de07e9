/* rms_norm and layer_norm: a warp or a block for a row (or head), by its length (vec4.cuh). */
#include "kernels/cuda/norm.cuh"

template <bool is_block> __global__ void rms_norm_kernel(qr_rms_norm_args a, bool aligned) {
    await_previous();
    admit_next();
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t group = team.row();
    if (group >= a.n_rows * a.n_groups) { return; }
    const int64_t row = a.n_groups == 1 ? group : group / a.n_groups, at = (group - row * a.n_groups) * a.dim;
    const row_norm<is_block> norm(team, a, aligned);
    norm.run(a.src + row * a.src_stride + at, [&](int64_t j, const float x[VEC4]) {
        store_vec4(a.dst, a.dst_dtype, row * a.dst_stride + at, j, a.dim, aligned, x);
    });
}

template <bool is_block> __global__ void layer_norm_kernel(qr_layer_norm_args a, bool aligned) {
    await_previous();
    admit_next();
    const row_team<is_block> team = {shared_memory<float>()};
    const int64_t row = team.row();
    if (row >= a.n_rows) { return; }
    const float *src = a.src + row * a.dim;
    const row_moments m = team.moments_of(src, a.dim, a.eps, aligned);
    float x[VEC4], w[VEC4], b[VEC4] = {};
    team.for_each_vec4(a.dim, [&](int64_t j) {
        load_vec4(x, src, j, a.dim, aligned);
        load_vec4(w, a.weight, j, a.dim, aligned);
        if (a.bias != NULL) { load_vec4(b, a.bias, j, a.dim, aligned); }
        for (int k = 0; k < VEC4; k++) { x[k] = (x[k] - m.mean) * m.inverse * (w[k] + a.weight_offset) + b[k]; }
        store_vec4(a.dst, a.dst_dtype, row * a.dim, j, a.dim, aligned, x);
    });
}

template <bool is_block>
static qrun_status launch_rms_norm(qr_cuda_backend &cuda, const qr_rms_norm_args &args, qr_error *err) {
    return QR_LAUNCH_EARLY(cuda.device, err, rms_norm_kernel<is_block>,
                           row_team<is_block>::grid(args.n_rows * args.n_groups), VEC4_THREADS,
                           row_team<is_block>::shared_bytes(), args, rms_norm_is_aligned(args));
}

static qrun_status run_rms_norm(qr_cuda_backend &cuda, const qr_rms_norm_args &args, void *, qr_error *err) {
    return args.dim > VEC4_BLOCK_DIM ? launch_rms_norm<true>(cuda, args, err) : launch_rms_norm<false>(cuda, args, err);
}

template <bool is_block>
static qrun_status launch_layer_norm(qr_cuda_backend &cuda, const qr_layer_norm_args &args, qr_error *err) {
    const bool aligned = vec4_aligned(args.src, args.dim) && vec4_aligned(args.weight, 0) &&
                         vec4_aligned(args.bias, 0) && vec4_aligned(args.dst, args.dim, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_EARLY(cuda.device, err, layer_norm_kernel<is_block>, row_team<is_block>::grid(args.n_rows),
                           VEC4_THREADS, row_team<is_block>::shared_bytes(), args, aligned);
}

static qrun_status run_layer_norm(qr_cuda_backend &cuda, const qr_layer_norm_args &args, void *, qr_error *err) {
    return args.dim > VEC4_BLOCK_DIM ? launch_layer_norm<true>(cuda, args, err)
                                     : launch_layer_norm<false>(cuda, args, err);
}

QR_CUDA_OP(rms_norm, no_workspace<qr_rms_norm_args>, run_rms_norm)
QR_CUDA_OP(layer_norm, no_workspace<qr_layer_norm_args>, run_layer_norm)
