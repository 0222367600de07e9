/* dora_norm, by a warp a row of the weights; dora, by a thread an element; dora_backward, by a thread a column over the
 * rows in order. */
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

__global__ void dora_kernel(qr_dora_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_rows * a.dim) { return; }
    const int64_t row = i / a.dim, o = i % a.dim;
    const int32_t adapter = a.row_adapter[row];
    const float *ratio = adapter >= 0 ? a.factors[adapter].ratio : NULL;
    if (ratio == NULL) { return; }
    const float src = a.src[row * a.src_stride + o], bias = a.bias != NULL ? a.bias[o] : 0.0F;
    const float value = (ratio[o] - a.less) * (src - bias);
    float *dst = &a.dst[row * a.dst_stride + o];
    *dst = a.accumulate ? *dst + value : value;
}

__global__ void dora_backward_kernel(qr_dora_backward_args a) {
    const int64_t o = global_thread();
    if (o >= a.dim) { return; }
    float sum = 0.0F;
    for (int64_t i = 0; i < a.n_rows; i++) { sum = fmaf(a.dy[i * a.dy_stride + o], a.z[i * a.z_stride + o], sum); }
    a.dmagnitude[o] += sum / a.norm[o];
}

static qrun_status run_dora_norm(qr_cuda_backend &cuda, const qr_dora_norm_args &args, void *, qr_error *err) {
    const matrix w = matrix_of(cuda, *args.weight);
    return QR_LAUNCH(cuda.device, err, dora_norm_kernel, blocks_for(w.rows, WARPS), THREADS, 0, args, w);
}

static qrun_status run_dora(qr_cuda_backend &cuda, const qr_dora_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, dora_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS, 0, args);
}

static qrun_status run_dora_backward(qr_cuda_backend &cuda, const qr_dora_backward_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, dora_backward_kernel, blocks_for(args.dim, THREADS), THREADS, 0, args);
}

QR_CUDA_OP(dora_norm, no_workspace<qr_dora_norm_args>, run_dora_norm)
QR_CUDA_OP(dora, no_workspace<qr_dora_args>, run_dora)
QR_CUDA_OP(dora_backward, no_workspace<qr_dora_backward_args>, run_dora_backward)
