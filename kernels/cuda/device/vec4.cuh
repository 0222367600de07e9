/* Rows of a matrix four elements at a time: 16 bytes of F32 or 8 of a 16-bit type in one access where the addresses
 * allow it (`aligned`, which the host finds out for all operands of a launch), else one by one. Which elements a thread
 * takes does not depend on that. */
#ifndef QR_KERNELS_CUDA_VEC4_CUH
#define QR_KERNELS_CUDA_VEC4_CUH

#include "kernels/cuda/device/device.cuh"

enum { VEC4 = 4, VEC4_THREADS = 256, VEC4_WARPS = VEC4_THREADS / WARP_LANES };

/* Whether every row of a matrix begins at a multiple of four elements' size, 16 bytes at most. */
static __host__ QR_DEVICE bool vec4_aligned(const void *matrix, int64_t stride, size_t element_bytes = sizeof(float)) {
    return reinterpret_cast<uintptr_t>(matrix) % (VEC4 * element_bytes) == 0 && stride % VEC4 == 0;
}

/* Four elements at a multiple of 16 bytes. */
QR_DEVICE void load_vec4(float x[VEC4], const float *src) {
    const float4 v = *reinterpret_cast<const float4 *>(src);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

/* Elements [j, j + 4) of a row of n; zeros after its end. */
QR_DEVICE void load_vec4(float x[VEC4], const float *row, int64_t j, int64_t n, bool aligned) {
    if (aligned && j + VEC4 <= n) {
        load_vec4(x, row + j);
        return;
    }
#pragma unroll
    for (int k = 0; k < VEC4; k++) { x[k] = j + k < n ? row[j + k] : 0.0F; }
}

/* Elements [j, j + 8) of a row of n; zeros after its end. */
QR_DEVICE void load_vec8(float x[2 * VEC4], const float *row, int64_t j, int64_t n, bool aligned) {
    load_vec4(x, row, j, n, aligned);
    load_vec4(x + VEC4, row, j + VEC4, n, aligned);
}

QR_DEVICE void store_vec4(float *row, int64_t j, int64_t n, bool aligned, const float x[VEC4]) {
    if (aligned && j + VEC4 <= n) {
        *reinterpret_cast<float4 *>(row + j) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
#pragma unroll
    for (int k = 0; k < VEC4; k++) {
        if (j + k < n) { row[j + k] = x[k]; }
    }
}

/* The same to a row of any act type that begins at element `at` of dst. */
QR_DEVICE void store_vec4(void *dst, qr_dtype dtype, int64_t at, int64_t j, int64_t n, bool aligned,
                          const float x[VEC4]) {
    if (dtype == QR_DTYPE_F32) {
        store_vec4(static_cast<float *>(dst) + at, j, n, aligned, x);
        return;
    }
    uint16_t *row = static_cast<uint16_t *>(dst) + at;
    const bool is_f16 = dtype == QR_DTYPE_F16;
    const uint2 four = make_uint2(is_f16 ? f32_to_f16x2(x[0], x[1]) : f32_to_bf16x2(x[0], x[1]),
                                  is_f16 ? f32_to_f16x2(x[2], x[3]) : f32_to_bf16x2(x[2], x[3]));
    if (aligned && j + VEC4 <= n) {
        *reinterpret_cast<uint2 *>(row + j) = four;
        return;
    }
#pragma unroll
    for (int k = 0; k < VEC4; k++) {
        if (j + k < n) { row[j + k] = static_cast<uint16_t>((k < 2 ? four.x : four.y) >> k % 2 * 16); }
    }
}

/* --- A thread for four elements of a row: no division by the length of one --- */

static inline unsigned vec4_threads(int64_t dim) {
    unsigned n_threads = WARP_LANES;
    while (n_threads < VEC4_THREADS && n_threads * VEC4 < dim) { n_threads *= 2; }
    return n_threads;
}

static inline dim3 vec4_grid(int64_t n_rows, int64_t dim) {
    enum { MOST_ROWS = 65535 }; /* the y dimension; more rows take turns */
    dim3 grid = blocks_for(qr_ceil_div(dim, VEC4), vec4_threads(dim));
    grid.y = static_cast<unsigned>(qr_min(n_rows, MOST_ROWS));
    return grid;
}

/* Launches a kernel that calls for_each_vec4(n_rows, dim, body). */
#define QR_LAUNCH_VEC4(device, err, kernel, n_rows, dim, ...) \
    QR_LAUNCH(device, err, kernel, vec4_grid(n_rows, dim), vec4_threads(dim), 0, __VA_ARGS__)
#define QR_LAUNCH_VEC4_EARLY(device, err, kernel, n_rows, dim, ...) \
    QR_LAUNCH_EARLY(device, err, kernel, vec4_grid(n_rows, dim), vec4_threads(dim), 0, __VA_ARGS__)

/* Calls body(row, j) for the elements [j, j + 4) of this thread. */
template <typename F> QR_DEVICE void for_each_vec4(int64_t n_rows, int64_t dim, const F &body) {
    const int64_t j = global_thread() * VEC4;
    if (j >= dim) { return; }
    for (int64_t row = blockIdx.y; row < n_rows; row += gridDim.y) { body(row, j); }
}

/* --- A warp or a block for a row, by the length of one alone, so that the order of a sum follows from that --- */

enum { VEC4_BLOCK_DIM = 1024 }; /* rows longer than this have a block */

struct row_moments {
    float mean, inverse; /* 1 / sqrt(variance + eps) */
};

template <bool is_block> struct row_team {
    enum { SIZE = is_block ? +VEC4_THREADS : +WARP_LANES };
    float *scratch; /* shared memory for one float a warp; only a block's */

    static dim3 grid(int64_t n_rows) {
        return dim3(static_cast<unsigned>(is_block ? n_rows : qr_ceil_div(n_rows, VEC4_WARPS)));
    }
    static size_t shared_bytes() { return is_block ? VEC4_WARPS * sizeof(float) : 0; }

    QR_DEVICE int64_t row() const {
        return is_block ? blockIdx.x : static_cast<int64_t>(blockIdx.x) * VEC4_WARPS + warp_index();
    }
    QR_DEVICE unsigned rank() const { return is_block ? threadIdx.x : lane_index(); }
    QR_DEVICE float sum(float value) const { return is_block ? block_sum(value, scratch) : warp_sum(value); }
    /* body(j) for the elements [j, j + 4) of this thread. */
    template <typename F> QR_DEVICE void for_each_vec4(int64_t dim, const F &body) const {
        for (int64_t j = rank() * VEC4; j < dim; j += SIZE * VEC4) { body(j); }
    }

    QR_DEVICE row_moments moments_of(const float *src, int64_t dim, float eps, bool aligned) const {
        const float n = static_cast<float>(dim);
        float sum_of = 0.0F, squares = 0.0F, x[VEC4];
        for_each_vec4(dim, [&](int64_t j) {
            load_vec4(x, src, j, dim, aligned);
            for (int k = 0; k < VEC4; k++) { sum_of += x[k]; }
        });
        const float mean = sum(sum_of) / n;
        for_each_vec4(dim, [&](int64_t j) {
            load_vec4(x, src, j, dim, aligned);
            for (int k = 0; k < VEC4; k++) {
                if (j + k < dim) { squares = fmaf(x[k] - mean, x[k] - mean, squares); }
            }
        });
        return {mean, 1.0F / sqrtf(sum(squares) / n + eps)};
    }
};

#endif
