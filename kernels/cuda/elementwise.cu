/* activation, gate, add and softcap: a thread an element. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

__global__ void activation_kernel(qr_activation_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_rows * a.dim) { return; }
    store_from_f32(a.dst, a.dst_dtype, i, act_fn(a.fn, a.x[i / a.dim * a.x_stride + i % a.dim]));
}

__global__ void gate_kernel(qr_gate_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_rows * a.dim) { return; }
    const int64_t row = i / a.dim, col = i % a.dim;
    const float value = act_fn(a.fn, a.g[row * a.g_stride + col]) * a.u[row * a.u_stride + col];
    store_from_f32(a.dst, a.dst_dtype, i, value);
}

__global__ void add_kernel(qr_add_args a) {
    const int64_t i = global_thread();
    if (i < a.n) { a.x[i] += a.y[i]; }
}

__global__ void softcap_kernel(qr_softcap_args a) {
    const int64_t i = global_thread();
    if (i < a.n) { a.x[i] = softcap_value(a.x[i], a.cap); }
}

static qrun_status run_activation(qr_cuda_backend &cuda, const qr_activation_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, activation_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS, 0,
                     args);
}

static qrun_status run_gate(qr_cuda_backend &cuda, const qr_gate_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, gate_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS, 0, args);
}

static qrun_status run_add(qr_cuda_backend &cuda, const qr_add_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, add_kernel, blocks_for(args.n, THREADS), THREADS, 0, args);
}

static qrun_status run_softcap(qr_cuda_backend &cuda, const qr_softcap_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, softcap_kernel, blocks_for(args.n, THREADS), THREADS, 0, args);
}

QR_CUDA_OP(activation, no_workspace<qr_activation_args>, run_activation)
QR_CUDA_OP(gate, no_workspace<qr_gate_args>, run_gate)
QR_CUDA_OP(add, no_workspace<qr_add_args>, run_add)
QR_CUDA_OP(softcap, no_workspace<qr_softcap_args>, run_softcap)
