/* What the ops of streams and their backward parts share (streams.c, train/streams_backward.c). */
#ifndef QR_KERNELS_CPU_STREAM_SUMS_H
#define QR_KERNELS_CPU_STREAM_SUMS_H

#include "kernels/cpu/norm_sums.h"
#include "kernels/cpu/simd/vec_math.h"

/* Sum of x · y, in the order of norm_sums.h. */
QR_INLINE float dot_row(const float *x, const float *y, int64_t n) {
    qr_vec sums[N_SUMS] = {qr_vec_zero(), qr_vec_zero(), qr_vec_zero(), qr_vec_zero()};
    for (int64_t i = 0; i < n; i += N_SUMS * QR_VEC) {
        QR_UNROLL for (int k = 0; k < N_SUMS; k++) {
            const int64_t j = i + k * QR_VEC;
            if (j >= n) { break; }
            sums[k] = qr_vec_fma(qr_vec_load_n(x + j, n - j), qr_vec_load_n(y + j, n - j), sums[k]);
        }
    }
    return sums_total(sums);
}

/* m[j] of stream_coefs for a row. */
QR_INLINE void route_row(const qr_stream_coefs_args *a, int64_t row, float m[QR_MAX_STREAMS]) {
    float lanes[QR_VEC] = {0}; /* QR_MAX_STREAMS at least */
    for (int32_t j = 0; j < a->n_streams; j++) {
        lanes[j] = dot_row(a->router + j * a->dim, a->x + row * a->dim, a->dim) / (float)a->dim;
    }
    qr_vec_store(lanes, qr_vec_tanh(qr_vec_load(lanes)));
    for (int32_t j = 0; j < a->n_streams; j++) { m[j] = lanes[j]; }
}

/* The mean and the deviation of a row. */
QR_INLINE void moments_of(const float *x, int64_t n, float *mean, float *deviation) {
    *mean = sum_row(x, n, 0.0F, false) / (float)n;
    *deviation = sqrtf(sum_row(x, n, *mean, true) / (float)n);
}

/* Below it a stream is levelled as if its mean square were this. */
static const float STREAM_LEAST_SQUARE = 1e-5F;

QR_INLINE float mean_of_squares(const float *x, int64_t n) { return sum_row(x, n, 0.0F, true) / (float)n; }

#endif
