/* rope_table: a thread for each pair; rope and rope_backward: a thread for four pairs of a head. */
#include "kernels/cuda/rope.cuh"

enum { THREADS = 256 };

/* cosf and sinf reduce arguments of any size exactly; the table is made once a step. */
static QR_DEVICE float temperature(const qr_rope_table_args &a, int32_t position) {
    if (a.temperature_tokens == 0) { return 1.0F; }
    return 1.0F + a.temperature_beta * logf(1.0F + static_cast<float>(position / a.temperature_tokens));
}

__global__ void rope_table_kernel(qr_rope_table_args a) {
    const int64_t i = global_thread();
    if (i >= a.n_tokens * a.half) { return; }
    const int64_t token = i / a.half;
    const int32_t slot = a.token_slot[token];
    const float angle = static_cast<float>(a.position[token]) * a.inv_freq[slot * a.half + i % a.half];
    const float factor = a.factor[slot] * temperature(a, a.position[token]);
    a.cos_table[i] = cosf(angle) * factor;
    a.sin_table[i] = sinf(angle) * factor;
}

static QR_DEVICE void rotate(const rotation &r, bool aligned) {
    const unsigned per_head = static_cast<unsigned>((r.n_pairs + VEC4 - 1) / VEC4);
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x, head = index / per_head;
    if (head >= r.n_heads) { return; }
    const int64_t j = (index - head * per_head) * VEC4;
    for (int64_t token = blockIdx.y; token < r.n_tokens; token += gridDim.y) {
        rotate_vec4(r, token, head, j, aligned);
    }
}

__global__ void rope_kernel(rotation r, bool aligned) {
    await_previous();
    admit_next();
    rotate(r, aligned);
}

__global__ void rope_backward_kernel(rotation r, bool aligned) { rotate(r, aligned); }

/* Threads for four pairs each in a row of the grid, which is a token. */
static int64_t row_elements(const rotation &r) { return r.n_heads * qr_ceil_div(r.n_pairs, VEC4) * VEC4; }

static qrun_status run_rope_backward(qr_cuda_backend &cuda, const qr_rope_backward_args &args, void *, qr_error *err) {
    const rotation r = rotation_of(args, args.dx, args.dx_stride, -1.0F);
    return QR_LAUNCH_VEC4(cuda.device, err, rope_backward_kernel, r.n_tokens, row_elements(r), r,
                          rotation_is_aligned(r));
}

static qrun_status run_rope(qr_cuda_backend &cuda, const qr_rope_args &args, void *, qr_error *err) {
    const rotation r = rotation_of(args, args.x, args.x_stride, 1.0F);
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, rope_kernel, r.n_tokens, row_elements(r), r, rotation_is_aligned(r));
}

static qrun_status run_rope_table(qr_cuda_backend &cuda, const qr_rope_table_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, rope_table_kernel, blocks_for(args.n_tokens * args.half, THREADS), THREADS, 0,
                     args);
}

QR_CUDA_OP(rope_table, no_workspace<qr_rope_table_args>, run_rope_table)
QR_CUDA_OP(rope, no_workspace<qr_rope_args>, run_rope)
QR_CUDA_OP(rope_backward, no_workspace<qr_rope_backward_args>, run_rope_backward)
