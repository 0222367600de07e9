/* activation, gate, add and softcap: a thread for four elements. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/fours.cuh"

__global__ void activation_kernel(qr_activation_args a, bool aligned) {
    await_previous();
    admit_next();
    for_fours(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float x[FOUR];
        load_four(x, a.x + row * a.x_stride, j, a.dim, aligned);
        for (int k = 0; k < FOUR; k++) { x[k] = act_fn(a.fn, x[k]); }
        store_four(a.dst, a.dst_dtype, row * a.dim, j, a.dim, aligned, x);
    });
}

__global__ void gate_kernel(qr_gate_args a, bool aligned) {
    await_previous();
    admit_next();
    for_fours(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float g[FOUR], u[FOUR];
        load_four(g, a.g + row * a.g_stride, j, a.dim, aligned);
        load_four(u, a.u + row * a.u_stride, j, a.dim, aligned);
        for (int k = 0; k < FOUR; k++) { g[k] = act_fn(a.fn, g[k]) * u[k]; }
        store_four(a.dst, a.dst_dtype, row * a.dim, j, a.dim, aligned, g);
    });
}

__global__ void add_kernel(qr_add_args a, bool aligned) {
    await_previous();
    admit_next();
    for_fours(1, a.n, [&](int64_t, int64_t j) {
        float x[FOUR], y[FOUR];
        load_four(x, a.x, j, a.n, aligned);
        load_four(y, a.y, j, a.n, aligned);
        for (int k = 0; k < FOUR; k++) { x[k] += y[k]; }
        store_four(a.x, j, a.n, aligned, x);
    });
}

__global__ void softcap_kernel(qr_softcap_args a, bool aligned) {
    for_fours(1, a.n, [&](int64_t, int64_t j) {
        float x[FOUR];
        load_four(x, a.x, j, a.n, aligned);
        for (int k = 0; k < FOUR; k++) { x[k] = softcap_value(x[k], a.cap); }
        store_four(a.x, j, a.n, aligned, x);
    });
}

static qrun_status run_activation(qr_cuda_backend &cuda, const qr_activation_args &args, void *, qr_error *err) {
    const bool aligned =
        fours_aligned(args.x, args.x_stride) && fours_aligned(args.dst, args.dim, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_EARLY(cuda.device, err, activation_kernel, fours_grid(args.n_rows, args.dim),
                           fours_threads(args.dim), 0, args, aligned);
}

static qrun_status run_gate(qr_cuda_backend &cuda, const qr_gate_args &args, void *, qr_error *err) {
    const bool aligned = fours_aligned(args.g, args.g_stride) && fours_aligned(args.u, args.u_stride) &&
                         fours_aligned(args.dst, args.dim, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_EARLY(cuda.device, err, gate_kernel, fours_grid(args.n_rows, args.dim), fours_threads(args.dim), 0,
                           args, aligned);
}

static qrun_status run_add(qr_cuda_backend &cuda, const qr_add_args &args, void *, qr_error *err) {
    return QR_LAUNCH_EARLY(cuda.device, err, add_kernel, fours_grid(1, args.n), fours_threads(args.n), 0, args,
                           fours_aligned(args.x, 0) && fours_aligned(args.y, 0));
}

static qrun_status run_softcap(qr_cuda_backend &cuda, const qr_softcap_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, softcap_kernel, fours_grid(1, args.n), fours_threads(args.n), 0, args,
                     fours_aligned(args.x, 0));
}

QR_CUDA_OP(activation, no_workspace<qr_activation_args>, run_activation)
QR_CUDA_OP(gate, no_workspace<qr_gate_args>, run_gate)
QR_CUDA_OP(add, no_workspace<qr_add_args>, run_add)
QR_CUDA_OP(softcap, no_workspace<qr_softcap_args>, run_softcap)
