/* dora_norm, by a warp a row of the weights; dora, by a thread for four elements; dora_backward, in two stages
 * (column_sums.cuh). */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/matrix.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP_LANES };

__global__ void dora_norm_kernel(qr_dora_norm_args a, matrix w) {
    const int64_t o = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    if (o >= w.rows) { return; }
    float squares = 0.0F;
    for (int64_t c = lane_index(); c < w.cols; c += WARP_LANES) {
        float update = 0.0F;
        for (int32_t r = 0; r < a.rank; r++) { update = fmaf(a.b[o * a.rank + r], a.a[r * w.cols + c], update); }
        const float element = fmaf(a.scale, update, matrix_element(w, o, c));
        squares = fmaf(element, element, squares);
    }
    const float norm = sqrtf(warp_sum(squares));
    if (lane_index() != 0) { return; }
    if (a.magnitude != NULL) { a.ratio[o] = a.magnitude[o] / norm; }
    if (a.norm != NULL) { a.norm[o] = norm; }
}

/* An adapter's ratios have an address of their own: they are read one by one unless it is a multiple of 16 bytes. */
__global__ void dora_kernel(qr_dora_args a, bool aligned) {
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t o) {
        const int32_t adapter = a.row_adapter[row];
        const float *ratio = adapter >= 0 ? a.factors[adapter].ratio : NULL;
        if (ratio == NULL) { return; }
        float src[VEC4], factor[VEC4], bias[VEC4] = {}, before[VEC4] = {};
        load_vec4(src, a.src + row * a.src_stride, o, a.dim, aligned);
        load_vec4(factor, ratio, o, a.dim, vec4_aligned(ratio, 0));
        if (a.bias != NULL) { load_vec4(bias, a.bias, o, a.dim, aligned); }
        if (a.accumulate) { load_vec4(before, a.dst + row * a.dst_stride, o, a.dim, aligned); }
        for (int k = 0; k < VEC4; k++) {
            const float value = (factor[k] - a.minus) * (src[k] - bias[k]);
            src[k] = a.accumulate ? before[k] + value : value;
        }
        store_vec4(a.dst + row * a.dst_stride, o, a.dim, aligned, src);
    });
}

/* sums [n_chunks, dim] */
__global__ void dora_backward_kernel(qr_dora_backward_args a, bool aligned, int64_t chunk_rows, float *sums) {
    const int64_t o = global_thread() * VEC4;
    if (o >= a.dim) { return; }
    float total[VEC4] = {}, dy[VEC4], z[VEC4], norm[VEC4];
    for_chunk(a.n_rows, chunk_rows, [&](int64_t row) {
        load_vec4(dy, a.dy + row * a.dy_stride, o, a.dim, aligned);
        load_vec4(z, a.z + row * a.z_stride, o, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { total[k] = fmaf(dy[k], z[k], total[k]); }
    });
    load_vec4(norm, a.norm, o, a.dim, aligned);
    for (int k = 0; k < VEC4; k++) { total[k] /= norm[k]; }
    store_vec4(sums + blockIdx.y * a.dim, o, a.dim, a.dim % VEC4 == 0, total);
}

static qrun_status run_dora_norm(qr_cuda_backend &cuda, const qr_dora_norm_args &args, void *, qr_error *err) {
    const matrix w = matrix_of(cuda, *args.weight);
    return QR_LAUNCH(cuda.device, err, dora_norm_kernel, blocks_for(w.rows, WARPS), THREADS, 0, args, w);
}

static qrun_status run_dora(qr_cuda_backend &cuda, const qr_dora_args &args, void *, qr_error *err) {
    const bool aligned = vec4_aligned(args.src, args.src_stride) && vec4_aligned(args.dst, args.dst_stride) &&
                         vec4_aligned(args.bias, 0);
    return QR_LAUNCH_VEC4(cuda.device, err, dora_kernel, args.n_rows, args.dim, args, aligned);
}

static size_t dora_backward_workspace(const qr_dora_backward_args &args) {
    return static_cast<size_t>(n_chunks_of(args.n_rows) * args.dim) * sizeof(float);
}

static qrun_status run_dora_backward(qr_cuda_backend &cuda, const qr_dora_backward_args &args, void *workspace,
                                     qr_error *err) {
    float *sums = static_cast<float *>(workspace);
    const bool aligned =
        vec4_aligned(args.dy, args.dy_stride) && vec4_aligned(args.z, args.z_stride) && vec4_aligned(args.norm, 0);
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, dora_backward_kernel, chunks_grid(args.n_rows, args.dim),
                                 vec4_threads(args.dim), 0, args, aligned, chunk_rows_of(args.n_rows), sums));
    return qr_cuda_add_chunks(cuda, args.dmagnitude, sums, n_chunks_of(args.n_rows), args.dim, err);
}

QR_CUDA_OP(dora_norm, no_workspace<qr_dora_norm_args>, run_dora_norm)
QR_CUDA_OP(dora, no_workspace<qr_dora_args>, run_dora)
QR_CUDA_OP(dora_backward, dora_backward_workspace, run_dora_backward)
