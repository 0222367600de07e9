/* rope_table, rope and rope_backward: a thread a pair. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

enum { THREADS = 256 };

/* cosf and sinf reduce arguments of any size exactly; the table is made once a step. */
__global__ void rope_table_kernel(qr_rope_table_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_tokens * a.half) { return; }
    const int64_t token = i / a.half;
    const int32_t slot = a.token_slot[token];
    const float angle = static_cast<float>(a.position[token]) * a.inv_freq[slot * a.half + i % a.half];
    a.cos_table[i] = cosf(angle) * a.factor[slot];
    a.sin_table[i] = sinf(angle) * a.factor[slot];
}

__global__ void rope_kernel(qr_rope_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_tokens * a.n_heads * a.half) { return; }
    const int64_t j = i % a.half, head = i / a.half % a.n_heads, token = i / a.half / a.n_heads;
    float *x = a.x + token * a.x_stride + head * a.head_dim + j;
    const float c = a.cos_table[token * a.half + j], s = a.sin_table[token * a.half + j];
    const float first = x[0], second = x[a.half];
    x[0] = first * c - second * s;
    x[a.half] = second * c + first * s;
}

/* The transpose of what rope multiplies with. */
__global__ void rope_backward_kernel(qr_rope_backward_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_tokens * a.n_heads * a.half) { return; }
    const int64_t j = i % a.half, head = i / a.half % a.n_heads, token = i / a.half / a.n_heads;
    float *dx = a.dx + token * a.dx_stride + head * a.head_dim + j;
    const float c = a.cos_table[token * a.half + j], s = a.sin_table[token * a.half + j];
    const float first = dx[0], second = dx[a.half];
    dx[0] = first * c + second * s;
    dx[a.half] = second * c - first * s;
}

static qrun_status run_rope_backward(qr_cuda_backend &cuda, const qr_rope_backward_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, rope_backward_kernel,
                     blocks_for(args.n_tokens * args.n_heads * args.half, THREADS), THREADS, 0, args);
}

QR_CUDA_OP(rope_backward, no_workspace<qr_rope_backward_args>, run_rope_backward)

static qrun_status run_rope_table(qr_cuda_backend &cuda, const qr_rope_table_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, rope_table_kernel, blocks_for(args.n_tokens * args.half, THREADS), THREADS, 0,
                     args);
}

static qrun_status run_rope(qr_cuda_backend &cuda, const qr_rope_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, rope_kernel, blocks_for(args.n_tokens * args.n_heads * args.half, THREADS),
                     THREADS, 0, args);
}

QR_CUDA_OP(rope_table, no_workspace<qr_rope_table_args>, run_rope_table)
QR_CUDA_OP(rope, no_workspace<qr_rope_args>, run_rope)
