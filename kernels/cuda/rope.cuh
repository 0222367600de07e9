/* The rotation of four pairs, wherever a head is rotated. */
#ifndef QR_KERNELS_CUDA_ROPE_CUH
#define QR_KERNELS_CUDA_ROPE_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

/* Pairs of elements of each head of a token, n_pairs elements apart or, interleaved, side by side: (x, y) becomes
 * (x · c − y · s, y · c + x · s), or with the sign of s turned, of which the gradient is the transpose. */
struct rotation {
    float *x;
    int64_t x_stride, n_tokens, n_heads, head_dim, n_pairs;
    const float *cos_table, *sin_table;
    float sign;
    bool interleaved;
};

/* Pairs [j, j + 4) of one head. */
QR_DEVICE void rotate_vec4(const rotation &r, int64_t token, int64_t head, int64_t j, bool aligned) {
    float *first = r.x + token * r.x_stride + head * r.head_dim, *second = first + r.n_pairs;
    float a[VEC4], b[VEC4], c[VEC4], s[VEC4], both[2 * VEC4];
    if (r.interleaved) {
        load_vec8(both, first, 2 * j, 2 * r.n_pairs, aligned);
#pragma unroll
        for (int k = 0; k < VEC4; k++) { a[k] = both[2 * k], b[k] = both[2 * k + 1]; }
    } else {
        load_vec4(a, first, j, r.n_pairs, aligned);
        load_vec4(b, second, j, r.n_pairs, aligned);
    }
    load_vec4(c, r.cos_table + token * r.n_pairs, j, r.n_pairs, aligned);
    load_vec4(s, r.sin_table + token * r.n_pairs, j, r.n_pairs, aligned);
#pragma unroll
    for (int k = 0; k < VEC4; k++) {
        const float before = a[k], sine = s[k] * r.sign;
        a[k] = before * c[k] - b[k] * sine;
        b[k] = b[k] * c[k] + before * sine;
    }
    if (r.interleaved) {
#pragma unroll
        for (int k = 0; k < VEC4; k++) { both[2 * k] = a[k], both[2 * k + 1] = b[k]; }
        store_vec4(first, 2 * j, 2 * r.n_pairs, aligned, both);
        store_vec4(first, 2 * j + VEC4, 2 * r.n_pairs, aligned, both + VEC4);
        return;
    }
    store_vec4(first, j, r.n_pairs, aligned, a);
    store_vec4(second, j, r.n_pairs, aligned, b);
}

static inline bool rotation_is_aligned(const rotation &r) {
    return r.head_dim % VEC4 == 0 && vec4_aligned(r.x, r.x_stride) && vec4_aligned(r.cos_table, r.n_pairs) &&
           vec4_aligned(r.sin_table, r.n_pairs);
}

/* Of the arguments of rope or its gradient. */
template <typename T> static inline rotation rotation_of(const T &args, float *x, int64_t x_stride, float sign) {
    rotation r = {};
    r.x = x, r.x_stride = x_stride, r.sign = sign, r.interleaved = args.interleaved;
    r.n_tokens = args.n_tokens, r.n_heads = args.n_heads, r.head_dim = args.head_dim, r.n_pairs = args.half;
    r.cos_table = args.cos_table, r.sin_table = args.sin_table;
    return r;
}

#endif
