/* Scratch of the training ops of vector_ops.h but attention, whose scratch attention/attention_packed.h cuts: what is
 * in it and how many bytes it takes. */
#ifndef QR_KERNELS_CPU_TRAIN_TRAIN_SCRATCH_H
#define QR_KERNELS_CPU_TRAIN_TRAIN_SCRATCH_H

#include "base/sizes.h"
#include "kernels/ops.h"

/* What the gradient of a norm needs of one group of a row, kept between its sums over rows and over columns:
 * n = (x − mean) · scale is the normalised group, g = dy · weight. The means are 0 in an rms_norm. */
typedef struct qr_norm_moments {
    float mean, scale;
    float mean_g, mean_gn;
} qr_norm_moments;

static inline size_t qr_norm_moments_bytes(int64_t n_rows, int64_t n_groups) {
    return (size_t)(n_rows * n_groups) * sizeof(qr_norm_moments);
}

/* xielu_backward: what each row adds to either sum. */
static inline size_t qr_xielu_backward_bytes(int64_t n_rows) { return (size_t)n_rows * 2 * sizeof(double); }

/* stream_coefs_backward: of each row m[j], and the gradients of the sums that they are made of. */
typedef struct qr_stream_route {
    float m[QR_MAX_STREAMS], dsum[QR_MAX_STREAMS];
} qr_stream_route;

static inline size_t qr_stream_coefs_backward_bytes(int64_t n_rows) { return (size_t)n_rows * sizeof(qr_stream_route); }

/* adafactor: the squares of each row's update, then what each column's gradients are multiplied with. */
static inline size_t qr_adafactor_bytes(int64_t rows, int64_t cols) {
    return (size_t)rows * sizeof(double) + (size_t)cols * sizeof(float);
}

#endif
