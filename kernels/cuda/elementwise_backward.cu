/* activation_backward, gate_backward, dropout, round_act and store_weight: a thread an element, or four of dropout. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/philox.cuh"

enum { THREADS = 256, DRAWS = 4 };

__global__ void activation_backward_kernel(qr_activation_backward_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_rows * a.dim) { return; }
    const int64_t row = i / a.dim, col = i % a.dim;
    const float slope = act_derivative(a.fn, a.x[row * a.x_stride + col]);
    a.dx[row * a.dx_stride + col] = a.dy[row * a.dy_stride + col] * slope;
}

__global__ void gate_backward_kernel(qr_gate_backward_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_rows * a.dim) { return; }
    const int64_t row = i / a.dim, col = i % a.dim, at = row * a.gu_stride + col, to = row * a.dgu_stride + col;
    const float g = a.g[at], u = a.u[at], dy = a.dy[i];
    a.dg[to] = dy * u * act_derivative(a.fn, g);
    a.du[to] = dy * act_fn(a.fn, g);
}

/* threshold = ⌈p · 2³²⌉: a number below it drops the element. */
__global__ void dropout_kernel(qr_dropout_args a, uint32_t threshold, float kept) {
    const int64_t groups = (a.dim + DRAWS - 1) / DRAWS, index = global_thread();
    if (index >= a.n_rows * groups) { return; }
    const int64_t row = index / groups, group = index % groups;
    const uint64_t row_key = static_cast<uint64_t>(a.row_key[row]);
    const philox_numbers draw = philox(a.key, static_cast<uint32_t>(group), static_cast<uint32_t>(row_key),
                                       static_cast<uint32_t>(row_key >> 32), 0);
    const uint32_t words[DRAWS] = {draw.x, draw.y, draw.z, draw.w};
#pragma unroll
    for (int k = 0; k < DRAWS; k++) {
        const int64_t col = group * DRAWS + k;
        if (col >= a.dim) { return; }
        const float x = load_as_f32(a.x, a.x_dtype, row * a.x_stride + col);
        store_from_f32(a.dst, a.x_dtype, row * a.dst_stride + col, words[k] < threshold ? 0.0F : x / kept);
    }
}

__global__ void round_act_kernel(qr_round_act_args a) {
    const int64_t i = global_thread();
    if (i < a.n_rows * a.dim) { store_from_f32(a.dst, a.dst_dtype, i, a.src[i / a.dim * a.src_stride + i % a.dim]); }
}

__global__ void store_weight_kernel(const float *src, void *dst, qr_dtype dtype, int64_t n) {
    const int64_t i = global_thread();
    if (i < n) { store_from_f32(dst, dtype, i, src[i]); }
}

static qrun_status run_activation_backward(qr_cuda_backend &cuda, const qr_activation_backward_args &args, void *,
                                           qr_error *err) {
    return QR_LAUNCH(cuda.device, err, activation_backward_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS,
                     0, args);
}

static qrun_status run_gate_backward(qr_cuda_backend &cuda, const qr_gate_backward_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, gate_backward_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS, 0,
                     args);
}

static qrun_status run_dropout(qr_cuda_backend &cuda, const qr_dropout_args &args, void *, qr_error *err) {
    const double p = static_cast<double>(args.p);
    return QR_LAUNCH(cuda.device, err, dropout_kernel, blocks_for(args.n_rows * qr_ceil_div(args.dim, DRAWS), THREADS),
                     THREADS, 0, args, static_cast<uint32_t>(ceil(p * 0x1p32)), static_cast<float>(1.0 - p));
}

static qrun_status run_round_act(qr_cuda_backend &cuda, const qr_round_act_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, round_act_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS, 0, args);
}

static qrun_status run_store_weight(qr_cuda_backend &cuda, const qr_store_weight_args &args, void *, qr_error *err) {
    const qr_weight_desc *desc = &args.weight->desc;
    const qr_dtype dtype = desc->format == QR_WEIGHT_F32   ? QR_DTYPE_F32
                           : desc->format == QR_WEIGHT_F16 ? QR_DTYPE_F16
                                                           : QR_DTYPE_BF16;
    const int64_t n = qr_weight_elements(desc);
    return QR_LAUNCH(cuda.device, err, store_weight_kernel, blocks_for(n, THREADS), THREADS, 0, args.src,
                     args.weight->data, dtype, n);
}

QR_CUDA_OP(activation_backward, no_workspace<qr_activation_backward_args>, run_activation_backward)
QR_CUDA_OP(gate_backward, no_workspace<qr_gate_backward_args>, run_gate_backward)
QR_CUDA_OP(dropout, no_workspace<qr_dropout_args>, run_dropout)
QR_CUDA_OP(round_act, no_workspace<qr_round_act_args>, run_round_act)
QR_CUDA_OP(store_weight, no_workspace<qr_store_weight_args>, run_store_weight)
