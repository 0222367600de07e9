/* What the ops of streams and their backward parts share: sums over a row by a block of VEC4_THREADS, each thread's
 * elements in turn. */
#ifndef QR_KERNELS_CUDA_STREAMS_CUH
#define QR_KERNELS_CUDA_STREAMS_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

enum { ROW_SCRATCH = VEC4_WARPS * sizeof(float) }; /* shared bytes of a sum */

static inline dim3 row_blocks(int64_t n_rows) { return dim3(static_cast<unsigned>(n_rows)); }

static QR_DEVICE float dot_row(const float *x, const float *y, int64_t dim, float *scratch) {
    float sum = 0.0F;
    for (int64_t d = threadIdx.x; d < dim; d += VEC4_THREADS) { sum = fmaf(x[d], y[d], sum); }
    return block_sum(sum, scratch);
}

/* m[j] of stream_coefs for a row. */
static QR_DEVICE void route_row(const qr_stream_coefs_args &a, int64_t row, float *scratch, float m[QR_MAX_STREAMS]) {
    for (int j = 0; j < a.n_streams; j++) {
        m[j] = tanhf(dot_row(a.router + j * a.dim, a.x + row * a.dim, a.dim, scratch) / static_cast<float>(a.dim));
    }
}

static QR_DEVICE float mean_of_squares(const float *x, int64_t dim, float *scratch) {
    return dot_row(x, x, dim, scratch) / static_cast<float>(dim);
}

#define STREAM_LEAST_SQUARE 1e-5F

/* The root of a mean square, no less than that of the least; NaN stays. */
static QR_DEVICE float stream_size(float square) {
    return sqrtf(square < STREAM_LEAST_SQUARE ? STREAM_LEAST_SQUARE : square);
}

struct gate_moments {
    float mean, deviation;
};

static QR_DEVICE gate_moments gate_moments_of(const float *x, int64_t dim, float *scratch) {
    float sum = 0.0F, squares = 0.0F;
    for (int64_t j = threadIdx.x; j < dim; j += VEC4_THREADS) { sum += x[j]; }
    const float mean = block_sum(sum, scratch) / static_cast<float>(dim);
    for (int64_t j = threadIdx.x; j < dim; j += VEC4_THREADS) { squares = fmaf(x[j] - mean, x[j] - mean, squares); }
    return {mean, sqrtf(block_sum(squares, scratch) / static_cast<float>(dim))};
}

#endif
