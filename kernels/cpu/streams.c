/* The ops of ops_streams.h. Streams are summed column by column, in their order. */
#include "kernels/cpu/stream_sums.h"
#include "kernels/cpu/vector_ops.h"

static void stream_coefs_rows(const void *args, int64_t begin, int64_t end) {
    const qr_stream_coefs_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        float m[QR_MAX_STREAMS] = {0};
        route_row(a, i, m);
        for (int32_t c = 0; c < a->n_coefs; c++) {
            float sum = 0.0F;
            for (int32_t j = 0; j < a->n_streams; j++) { sum += a->mixes[c * a->n_streams + j] * m[j]; }
            a->dst[i * a->n_coefs + c] = sum;
        }
    }
}

static void stream_predict_rows(const void *args, int64_t begin, int64_t end) {
    const qr_stream_predict_args *a = args;
    const int32_t n = a->n_streams;
    for (int64_t i = begin; i < end; i++) {
        const float *coefs = a->coefs + i * n * n;
        float *streams = a->streams + i * n * a->dim;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            qr_vec x[QR_MAX_STREAMS];
            for (int32_t s = 0; s < n; s++) { x[s] = qr_vec_load_n(streams + s * a->dim + j, a->dim - j); }
            for (int32_t b = 0; b < n; b++) {
                qr_vec sum = x[b];
                for (int32_t s = 0; s < n; s++) { sum = qr_vec_fma(qr_vec_set1(coefs[b * n + s]), x[s], sum); }
                qr_vec_store_n(streams + b * a->dim + j, sum, a->dim - j);
                if (b == 0) { qr_vec_store_n(a->active + i * a->dim + j, sum, a->dim - j); }
            }
        }
    }
}

static void stream_correct_rows(const void *args, int64_t begin, int64_t end) {
    const qr_stream_correct_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        float *streams = a->streams + i * a->n_streams * a->dim;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            const qr_vec change = qr_vec_sub(qr_vec_load_n(a->x + i * a->dim + j, n), qr_vec_load_n(streams + j, n));
            for (int32_t b = 0; b < a->n_streams; b++) {
                float *stream = streams + b * a->dim + j;
                const qr_vec factor = qr_vec_set1(1.0F + a->coefs[i * a->n_streams + b]);
                qr_vec_store_n(stream, qr_vec_fma(factor, change, qr_vec_load_n(stream, n)), n);
            }
            const qr_vec scale = a->scale != NULL ? qr_vec_load_n(a->scale + j, n) : qr_vec_set1(1.0F);
            qr_vec_store_act_n(a->dst, a->dst_dtype, i * a->dim + j, qr_vec_mul(scale, qr_vec_load_n(streams + j, n)),
                               n);
        }
    }
}

static void stream_level_rows(const void *args, int64_t begin, int64_t end) {
    const qr_stream_level_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        float *streams = a->streams + i * a->n_streams * a->dim;
        const float target = sqrtf(mean_of_squares(streams, a->dim));
        for (int32_t b = 1; b < a->n_streams; b++) {
            float *x = streams + b * a->dim;
            const float square = mean_of_squares(x, a->dim);
            /* NaN stays. */
            const float size = sqrtf(square < STREAM_LEAST_SQUARE ? STREAM_LEAST_SQUARE : square);
            const qr_vec factor = qr_vec_set1(target / size);
            for (int64_t j = 0; j < a->dim; j += QR_VEC) {
                qr_vec_store_n(x + j, qr_vec_mul(qr_vec_load_n(x + j, a->dim - j), factor), a->dim - j);
            }
        }
    }
}

static void gaussian_topk_rows(const void *args, int64_t begin, int64_t end) {
    const qr_gaussian_topk_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->x + i * a->x_stride;
        float mean, deviation, *dst = a->dst + i * a->dst_stride;
        moments_of(x, a->dim, &mean, &deviation);
        const qr_vec cutoff = qr_vec_set1(mean + a->quantile * deviation);
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const qr_vec above = qr_vec_sub(qr_vec_load_n(x + j, a->dim - j), cutoff);
            qr_vec_store_n(dst + j, qr_vec_relu(above), a->dim - j);
        }
    }
}

QR_CPU_RANGE_OP(stream_coefs, args->n_rows, args->n_streams * args->dim, stream_coefs_rows)
QR_CPU_RANGE_OP(stream_predict, args->n_rows, args->n_streams * args->n_streams * args->dim, stream_predict_rows)
QR_CPU_RANGE_OP(stream_correct, args->n_rows, 2 * args->n_streams * args->dim, stream_correct_rows)
QR_CPU_RANGE_OP(stream_level, args->n_rows, 2 * args->n_streams * args->dim, stream_level_rows)
QR_CPU_RANGE_OP(gaussian_topk, args->n_rows, 3 * args->dim, gaussian_topk_rows)
