/* rope_table: a thread a pair; rope and rope_backward: a thread for four pairs of a head. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

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

/* Pairs [j, j + 4) of each head of a token are n_pairs elements apart: (x, y) becomes (x · c − y · s, y · c + x · s),
 * or with the sign of s turned, of which the gradient is the transpose. */
static __device__ __forceinline__ void rotate_vec4(float *x, int64_t x_stride, int64_t n_tokens, int64_t n_heads,
                                                   int64_t head_dim, int64_t n_pairs, const float *cos_table,
                                                   const float *sin_table, bool aligned, float sign) {
    const unsigned fours = static_cast<unsigned>((n_pairs + VEC4 - 1) / VEC4);
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x, head = index / fours;
    if (head >= n_heads) { return; }
    const int64_t j = (index - head * fours) * VEC4;
    for (int64_t token = blockIdx.y; token < n_tokens; token += gridDim.y) {
        float *first = x + token * x_stride + head * head_dim, *second = first + n_pairs;
        float a[VEC4], b[VEC4], c[VEC4], s[VEC4];
        load_vec4(a, first, j, n_pairs, aligned);
        load_vec4(b, second, j, n_pairs, aligned);
        load_vec4(c, cos_table + token * n_pairs, j, n_pairs, aligned);
        load_vec4(s, sin_table + token * n_pairs, j, n_pairs, aligned);
#pragma unroll
        for (int k = 0; k < VEC4; k++) {
            const float before = a[k], sine = s[k] * sign;
            a[k] = before * c[k] - b[k] * sine;
            b[k] = b[k] * c[k] + before * sine;
        }
        store_vec4(first, j, n_pairs, aligned, a);
        store_vec4(second, j, n_pairs, aligned, b);
    }
}

__global__ void rope_kernel(qr_rope_args a, bool aligned) {
    await_previous();
    admit_next();
    rotate_vec4(a.x, a.x_stride, a.n_tokens, a.n_heads, a.head_dim, a.half, a.cos_table, a.sin_table, aligned, 1.0F);
}

__global__ void rope_backward_kernel(qr_rope_backward_args a, bool aligned) {
    rotate_vec4(a.dx, a.dx_stride, a.n_tokens, a.n_heads, a.head_dim, a.half, a.cos_table, a.sin_table, aligned, -1.0F);
}

/* Rows of the grid are tokens. */
static unsigned rope_threads(int64_t n_heads, int64_t n_pairs) {
    return vec4_threads(n_heads * qr_ceil_div(n_pairs, VEC4) * VEC4);
}

static dim3 rope_grid(int64_t n_tokens, int64_t n_heads, int64_t n_pairs) {
    return vec4_grid(n_tokens, n_heads * qr_ceil_div(n_pairs, VEC4) * VEC4);
}

static bool rope_aligned(const float *x, int64_t x_stride, int64_t head_dim, int64_t n_pairs, const float *cos_table,
                         const float *sin_table) {
    return head_dim % VEC4 == 0 && vec4_aligned(x, x_stride) && vec4_aligned(cos_table, n_pairs) &&
           vec4_aligned(sin_table, n_pairs);
}

static qrun_status run_rope_backward(qr_cuda_backend &cuda, const qr_rope_backward_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, rope_backward_kernel, rope_grid(args.n_tokens, args.n_heads, args.half),
                     rope_threads(args.n_heads, args.half), 0, args,
                     rope_aligned(args.dx, args.dx_stride, args.head_dim, args.half, args.cos_table, args.sin_table));
}

static qrun_status run_rope(qr_cuda_backend &cuda, const qr_rope_args &args, void *, qr_error *err) {
    return QR_LAUNCH_EARLY(
        cuda.device, err, rope_kernel, rope_grid(args.n_tokens, args.n_heads, args.half),
        rope_threads(args.n_heads, args.half), 0, args,
        rope_aligned(args.x, args.x_stride, args.head_dim, args.half, args.cos_table, args.sin_table));
}

static qrun_status run_rope_table(qr_cuda_backend &cuda, const qr_rope_table_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, rope_table_kernel, blocks_for(args.n_tokens * args.half, THREADS), THREADS, 0,
                     args);
}

QR_CUDA_OP(rope_table, no_workspace<qr_rope_table_args>, run_rope_table)
QR_CUDA_OP(rope, no_workspace<qr_rope_args>, run_rope)
QR_CUDA_OP(rope_backward, no_workspace<qr_rope_backward_args>, run_rope_backward)
