/* rms_norm_backward and layer_norm_backward in three steps: what a row's gradient needs of the whole row, by a warp a
 * row; the gradients of weight and bias, by a thread a column over the rows in order; then dx, which may be dy. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP_LANES };

/* --- rms_norm_backward --- */

/* Of a group: s = 1 / sqrt(mean(x²) + eps), and mean(g · x). */
struct rms_moments {
    float s, dot;
};

__global__ void rms_norm_moments_kernel(qr_rms_norm_backward_args a, rms_moments *moments) {
    const int64_t group = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    if (group >= a.n_rows * a.n_groups) { return; }
    const int64_t row = group / a.n_groups, at = group % a.n_groups * a.dim;
    const float *x = a.x + row * a.x_stride + at, *dy = a.dy + row * a.dy_stride + at;
    float squares = 0.0F, dot = 0.0F;
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) {
        squares = fmaf(x[j], x[j], squares);
        dot = fmaf(dy[j] * (a.weight[j] + a.weight_offset), x[j], dot);
    }
    squares = warp_sum(squares);
    dot = warp_sum(dot);
    const float n = static_cast<float>(a.dim);
    if (lane_index() == 0) { moments[group] = {1.0F / sqrtf(squares / n + a.eps), dot / n}; }
}

__global__ void rms_norm_dweight_kernel(qr_rms_norm_backward_args a, const rms_moments *moments) {
    const int64_t j = global_thread();
    if (j >= a.dim) { return; }
    float sum = 0.0F;
    for (int64_t group = 0; group < a.n_rows * a.n_groups; group++) {
        const int64_t row = group / a.n_groups, at = group % a.n_groups * a.dim + j;
        sum = fmaf(a.dy[row * a.dy_stride + at] * a.x[row * a.x_stride + at], moments[group].s, sum);
    }
    a.dweight[j] += sum;
}

__global__ void rms_norm_dx_kernel(qr_rms_norm_backward_args a, const rms_moments *moments) {
    const int64_t i = global_thread(), row_length = a.n_groups * a.dim;
    if (i >= a.n_rows * row_length) { return; }
    const int64_t row = i / row_length, at = i % row_length;
    const rms_moments m = moments[row * a.n_groups + at / a.dim];
    const float g = a.dy[row * a.dy_stride + at] * (a.weight[at % a.dim] + a.weight_offset);
    const float value = m.s * (g - a.x[row * a.x_stride + at] * m.s * m.s * m.dot);
    float *dx = &a.dx[row * a.dx_stride + at];
    *dx = a.accumulate ? *dx + value : value;
}

static size_t rms_norm_workspace(const qr_rms_norm_backward_args &args) {
    return static_cast<size_t>(args.n_rows * args.n_groups) * sizeof(rms_moments);
}

static qrun_status run_rms_norm_backward(qr_cuda_backend &cuda, const qr_rms_norm_backward_args &args, void *workspace,
                                         qr_error *err) {
    rms_moments *moments = static_cast<rms_moments *>(workspace);
    const int64_t n_groups = args.n_rows * args.n_groups;
    qrun_status status = QRUN_OK;
    QR_TRY(QR_LAUNCH(cuda.device, err, rms_norm_moments_kernel, blocks_for(n_groups, WARPS), THREADS, 0, args,
                     moments));
    if (args.dweight != NULL) {
        QR_TRY(QR_LAUNCH(cuda.device, err, rms_norm_dweight_kernel, blocks_for(args.dim, THREADS), THREADS, 0, args,
                         moments));
    }
    QR_TRY(QR_LAUNCH(cuda.device, err, rms_norm_dx_kernel, blocks_for(n_groups * args.dim, THREADS), THREADS, 0, args,
                     moments));
out:
    return status;
}

QR_CUDA_OP(rms_norm_backward, rms_norm_workspace, run_rms_norm_backward)

/* --- layer_norm_backward: with n = (x − mean) · s and g = dy · weight, dx = s · (g − mean(g) − n · mean(g · n)) --- */

struct layer_moments {
    float mean, s, mean_g, mean_gn;
};

__global__ void layer_norm_moments_kernel(qr_layer_norm_backward_args a, layer_moments *moments) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    if (row >= a.n_rows) { return; }
    const float *x = a.x + row * a.dim, *dy = a.dy + row * a.dim;
    const float n = static_cast<float>(a.dim);
    float sum = 0.0F, squares = 0.0F, sum_g = 0.0F, sum_gn = 0.0F;
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) { sum += x[j]; }
    const float mean = warp_sum(sum) / n;
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) { squares = fmaf(x[j] - mean, x[j] - mean, squares); }
    const float s = 1.0F / sqrtf(warp_sum(squares) / n + a.eps);
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) {
        const float g = dy[j] * a.weight[j];
        sum_g += g;
        sum_gn = fmaf(g, (x[j] - mean) * s, sum_gn);
    }
    sum_g = warp_sum(sum_g);
    sum_gn = warp_sum(sum_gn);
    if (lane_index() == 0) { moments[row] = {mean, s, sum_g / n, sum_gn / n}; }
}

__global__ void layer_norm_dweight_kernel(qr_layer_norm_backward_args a, const layer_moments *moments) {
    const int64_t j = global_thread();
    if (j >= a.dim) { return; }
    float dweight = 0.0F, dbias = 0.0F;
    for (int64_t row = 0; row < a.n_rows; row++) {
        const float dy = a.dy[row * a.dim + j];
        dweight = fmaf(dy, (a.x[row * a.dim + j] - moments[row].mean) * moments[row].s, dweight);
        dbias += dy;
    }
    if (a.dweight != NULL) { a.dweight[j] += dweight; }
    if (a.dbias != NULL) { a.dbias[j] += dbias; }
}

__global__ void layer_norm_dx_kernel(qr_layer_norm_backward_args a, const layer_moments *moments) {
    const int64_t i = global_thread();
    if (i >= a.n_rows * a.dim) { return; }
    const layer_moments m = moments[i / a.dim];
    const float g = a.dy[i] * a.weight[i % a.dim], n = (a.x[i] - m.mean) * m.s;
    const float value = m.s * (g - m.mean_g - n * m.mean_gn);
    a.dx[i] = a.accumulate ? a.dx[i] + value : value;
}

static size_t layer_norm_workspace(const qr_layer_norm_backward_args &args) {
    return static_cast<size_t>(args.n_rows) * sizeof(layer_moments);
}

static qrun_status run_layer_norm_backward(qr_cuda_backend &cuda, const qr_layer_norm_backward_args &args,
                                           void *workspace, qr_error *err) {
    layer_moments *moments = static_cast<layer_moments *>(workspace);
    qrun_status status = QRUN_OK;
    QR_TRY(QR_LAUNCH(cuda.device, err, layer_norm_moments_kernel, blocks_for(args.n_rows, WARPS), THREADS, 0, args,
                     moments));
    if (args.dweight != NULL || args.dbias != NULL) {
        QR_TRY(QR_LAUNCH(cuda.device, err, layer_norm_dweight_kernel, blocks_for(args.dim, THREADS), THREADS, 0, args,
                         moments));
    }
    QR_TRY(QR_LAUNCH(cuda.device, err, layer_norm_dx_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS, 0,
                     args, moments));
out:
    return status;
}

QR_CUDA_OP(layer_norm_backward, layer_norm_workspace, run_layer_norm_backward)
