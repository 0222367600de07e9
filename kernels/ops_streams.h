/* The ops of a model that has several residual streams, N rows of D for every token [n_rows, N, D], instead of one:
 * alternating updates (AltUp; Baykal et al., "Alternating Updates for Efficient Transformers", 2023). A layer computes
 * with one stream, and cheap sums of the streams, weighed anew for every token, take the others along. They belong to
 * ops.h and keep its promises.
 *
 * Around a layer they run as
 *     rms_norm, stream_coefs, stream_predict, the layer, rms_norm, stream_coefs, stream_correct,
 * and where streams are made of the embeddings, or become one row again, stream_level gives them one size.
 * gaussian_topk, which the same models have, is here too. */
#ifndef QR_KERNELS_OPS_STREAMS_H
#define QR_KERNELS_OPS_STREAMS_H

#include "kernels/ops.h"

enum { QR_MAX_STREAMS = 4, QR_MAX_STREAM_COEFS = QR_MAX_STREAMS * QR_MAX_STREAMS };

/* stream_coefs: with m[j] = tanh(sum over d of router[j, d] · x[d] / dim), dst[c] = sum over j of mixes[c, j] · m[j].
 */
typedef struct qr_stream_coefs_args {
    const float *x;      /* [n_rows, dim] contiguous: a stream after its norm */
    const float *router; /* [n_streams, dim] */
    const float *mixes;  /* [n_coefs, n_streams] */
    float *dst;          /* [n_rows, n_coefs] */
    int64_t n_rows, dim;
    int32_t n_streams, n_coefs; /* at most QR_MAX_STREAMS, QR_MAX_STREAM_COEFS */
} qr_stream_coefs_args;

/* stream_predict, in place: stream b += sum over a of coefs[b, a] · stream a; and active = stream 0 after that. */
typedef struct qr_stream_predict_args {
    float *streams;     /* [n_rows, n_streams, dim] */
    const float *coefs; /* [n_rows, n_streams, n_streams] */
    float *active;      /* [n_rows, dim] */
    int64_t n_rows, dim;
    int32_t n_streams;
} qr_stream_predict_args;

/* stream_correct, in place: every stream b += (1 + coefs[b]) · (x − stream 0), of stream 0 as it was; and dst =
 * scale · stream 0 after that. */
typedef struct qr_stream_correct_args {
    float *streams;     /* [n_rows, n_streams, dim] */
    const float *coefs; /* [n_rows, n_streams] */
    const float *x;     /* [n_rows, dim]: what the layer has made of stream 0 */
    const float *scale; /* [dim]; NULL: 1 */
    void *dst;          /* act, [n_rows, dim] */
    qr_dtype dst_dtype;
    int64_t n_rows, dim;
    int32_t n_streams;
} qr_stream_correct_args;

/* stream_level, in place: all streams but stream 0 times r(stream 0) / max(r(stream), sqrt(1e-5)), where r is the root
 * of the mean of squares. */
typedef struct qr_stream_level_args {
    float *streams; /* [n_rows, n_streams, dim] */
    int64_t n_rows, dim;
    int32_t n_streams;
} qr_stream_level_args;

/* gaussian_topk: dst = max(x − mean − quantile · deviation, 0), of the mean and the standard deviation of a row, whose
 * elements are taken for normally distributed: what is left is the largest part of them. dst may be x where the strides
 * agree. */
typedef struct qr_gaussian_topk_args {
    const float *x; /* [n_rows, dim], rows x_stride apart */
    float *dst;     /* [n_rows, dim], rows dst_stride apart */
    int64_t n_rows, dim, x_stride, dst_stride;
    float quantile; /* of the standard normal distribution */
} qr_gaussian_topk_args;

/* stream_coefs_backward: dx, and of weights that change the sums over rows, in order, added to what is there. */
typedef struct qr_stream_coefs_backward_args {
    qr_stream_coefs_args forward; /* dst is not read */
    const float *dcoefs;          /* [n_rows, n_coefs] */
    float *dx;                    /* [n_rows, dim] */
    float *drouter, *dmixes;      /* as router and mixes; NULL: not wanted */
} qr_stream_coefs_backward_args;

/* stream_predict_backward: dstreams, in place from the gradient of what stream_predict left to that of what it read;
 * and dcoefs. */
typedef struct qr_stream_predict_backward_args {
    const float *streams; /* [n_rows, n_streams, dim]: what it read */
    const float *coefs;   /* [n_rows, n_streams, n_streams] */
    const float *dactive; /* [n_rows, dim] */
    float *dstreams;      /* [n_rows, n_streams, dim] */
    float *dcoefs;        /* [n_rows, n_streams, n_streams] */
    int64_t n_rows, dim;
    int32_t n_streams;
} qr_stream_predict_backward_args;

/* stream_correct_backward: dstreams, in place as above; dx and dcoefs; and dscale, the sum over rows, in order, added
 * to what is there. */
typedef struct qr_stream_correct_backward_args {
    const float *active; /* [n_rows, dim]: stream 0 as it was */
    const float *coefs;  /* [n_rows, n_streams] */
    const float *x;      /* [n_rows, dim] */
    const float *scale;  /* [dim]; NULL: 1 */
    const float *dy;     /* [n_rows, dim], of dst */
    float *dstreams;     /* [n_rows, n_streams, dim] */
    float *dx;           /* [n_rows, dim] */
    float *dcoefs;       /* [n_rows, n_streams] */
    float *dscale;       /* [dim]; NULL: not wanted */
    int64_t n_rows, dim;
    int32_t n_streams;
} qr_stream_correct_backward_args;

/* stream_level_backward: dstreams, in place as above; 0 where r(stream 0) is 0. */
typedef struct qr_stream_level_backward_args {
    const float *streams; /* [n_rows, n_streams, dim]: what it read */
    float *dstreams;      /* [n_rows, n_streams, dim] */
    int64_t n_rows, dim;
    int32_t n_streams;
} qr_stream_level_backward_args;

/* gaussian_topk_backward: dx, through the mean and the deviation too. dx may be x or dy where the strides agree. */
typedef struct qr_gaussian_topk_backward_args {
    qr_gaussian_topk_args forward; /* dst is not read */
    const float *dy;               /* [n_rows, dim], rows dy_stride apart */
    float *dx;                     /* [n_rows, dim], rows dx_stride apart */
    int64_t dy_stride, dx_stride;
} qr_gaussian_topk_backward_args;

#endif
