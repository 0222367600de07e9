/* rms_norm and layer_norm: a warp a row (or head), lanes over its elements in steps of 32, sums by a butterfly: the
 * order of a sum follows from dim alone. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP_LANES };

__global__ void rms_norm_kernel(qr_rms_norm_args a) {
    const int64_t group = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    if (group >= a.n_rows * a.n_groups) { return; }
    const int64_t row = group / a.n_groups, at = group % a.n_groups * a.dim;
    const float *x = a.src + row * a.src_stride + at;
    float squares = 0.0F;
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) { squares = fmaf(x[j], x[j], squares); }
    squares = warp_sum(squares);
    const float inverse = 1.0F / sqrtf(squares / static_cast<float>(a.dim) + a.eps);
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) {
        store_from_f32(a.dst, a.dst_dtype, row * a.dst_stride + at + j,
                       x[j] * inverse * (a.weight[j] + a.weight_offset));
    }
}

__global__ void layer_norm_kernel(qr_layer_norm_args a) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    if (row >= a.n_rows) { return; }
    const float *x = a.src + row * a.dim;
    const float n = static_cast<float>(a.dim);
    float sum = 0.0F, squares = 0.0F;
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) { sum += x[j]; }
    const float mean = warp_sum(sum) / n;
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) { squares = fmaf(x[j] - mean, x[j] - mean, squares); }
    const float inverse = 1.0F / sqrtf(warp_sum(squares) / n + a.eps);
    for (int64_t j = lane_index(); j < a.dim; j += WARP_LANES) {
        const float bias = a.bias != NULL ? a.bias[j] : 0.0F;
        store_from_f32(a.dst, a.dst_dtype, row * a.dim + j, (x[j] - mean) * inverse * a.weight[j] + bias);
    }
}

static qrun_status run_rms_norm(qr_cuda_backend &cuda, const qr_rms_norm_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, rms_norm_kernel, blocks_for(args.n_rows * args.n_groups, WARPS), THREADS, 0,
                     args);
}

static qrun_status run_layer_norm(qr_cuda_backend &cuda, const qr_layer_norm_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, layer_norm_kernel, blocks_for(args.n_rows, WARPS), THREADS, 0, args);
}

QR_CUDA_OP(rms_norm, no_workspace<qr_rms_norm_args>, run_rms_norm)
QR_CUDA_OP(layer_norm, no_workspace<qr_layer_norm_args>, run_layer_norm)
