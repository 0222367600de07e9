/* The ops of ops_streams.h, forward and backward. */
#include <math.h>

#include "kernels/ref/ref.h"

/* What several coefficients are sums of: m[j] of stream_coefs. */
static void route_row(const qr_stream_coefs_args *a, int64_t row, double m[QR_MAX_STREAMS]) {
    for (int32_t j = 0; j < a->n_streams; j++) {
        double sum = 0.0;
        for (int64_t d = 0; d < a->dim; d++) {
            sum += (double)a->router[j * a->dim + d] * (double)a->x[row * a->dim + d];
        }
        m[j] = tanh(sum / (double)a->dim);
    }
}

void qr_ref_stream_coefs(const qr_stream_coefs_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        double m[QR_MAX_STREAMS];
        route_row(args, i, m);
        for (int32_t c = 0; c < args->n_coefs; c++) {
            double sum = 0.0;
            for (int32_t j = 0; j < args->n_streams; j++) {
                sum += (double)args->mixes[c * args->n_streams + j] * m[j];
            }
            args->dst[i * args->n_coefs + c] = (float)sum;
        }
    }
}

void qr_ref_stream_predict(const qr_stream_predict_args *args, void *workspace) {
    (void)workspace;
    const int32_t n = args->n_streams;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const float *coefs = args->coefs + i * n * n;
        float *x = args->streams + i * n * args->dim;
        for (int64_t d = 0; d < args->dim; d++) {
            double sums[QR_MAX_STREAMS];
            for (int32_t b = 0; b < n; b++) {
                sums[b] = (double)x[b * args->dim + d];
                for (int32_t a = 0; a < n; a++) { sums[b] += (double)coefs[b * n + a] * (double)x[a * args->dim + d]; }
            }
            for (int32_t b = 0; b < n; b++) { x[b * args->dim + d] = (float)sums[b]; }
            args->active[i * args->dim + d] = x[d];
        }
    }
}

void qr_ref_stream_correct(const qr_stream_correct_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t d = 0; d < args->dim; d++) {
            float *x = args->streams + i * args->n_streams * args->dim + d;
            const double change = (double)args->x[i * args->dim + d] - (double)x[0];
            for (int32_t b = 0; b < args->n_streams; b++) {
                const double factor = 1.0 + (double)args->coefs[i * args->n_streams + b];
                x[b * args->dim] = (float)((double)x[b * args->dim] + factor * change);
            }
            const double scale = args->scale != NULL ? (double)args->scale[d] : 1.0;
            qr_ref_store(args->dst, args->dst_dtype, i * args->dim + d, scale * (double)x[0]);
        }
    }
}

static const double LEAST_SQUARE = 1e-5;

static double mean_of_squares(const float *x, int64_t n) {
    double sum = 0.0;
    for (int64_t d = 0; d < n; d++) { sum += (double)x[d] * (double)x[d]; }
    return sum / (double)n;
}

void qr_ref_stream_level(const qr_stream_level_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        float *x = args->streams + i * args->n_streams * args->dim;
        const double target = sqrt(mean_of_squares(x, args->dim));
        for (int32_t b = 1; b < args->n_streams; b++) {
            float *stream = x + b * args->dim;
            const double factor = target / sqrt(fmax(mean_of_squares(stream, args->dim), LEAST_SQUARE));
            for (int64_t d = 0; d < args->dim; d++) { stream[d] = (float)((double)stream[d] * factor); }
        }
    }
}

static void moments_of(const float *x, int64_t n, double *mean, double *deviation) {
    double sum = 0.0, squares = 0.0;
    for (int64_t j = 0; j < n; j++) { sum += (double)x[j]; }
    *mean = sum / (double)n;
    for (int64_t j = 0; j < n; j++) { squares += ((double)x[j] - *mean) * ((double)x[j] - *mean); }
    *deviation = sqrt(squares / (double)n);
}

void qr_ref_gaussian_topk(const qr_gaussian_topk_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const float *x = args->x + i * args->x_stride;
        double mean, deviation;
        moments_of(x, args->dim, &mean, &deviation);
        for (int64_t j = 0; j < args->dim; j++) {
            const double above = (double)x[j] - (mean + (double)args->quantile * deviation);
            args->dst[i * args->dst_stride + j] = (float)(above < 0.0 ? 0.0 : above); /* NaN stays */
        }
    }
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

void qr_ref_stream_coefs_backward(const qr_stream_coefs_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_stream_coefs_args *f = &args->forward;
    const int32_t n = f->n_streams;
    for (int64_t i = 0; i < f->n_rows; i++) {
        const float *dcoefs = args->dcoefs + i * f->n_coefs;
        double m[QR_MAX_STREAMS], dsum[QR_MAX_STREAMS] = {0};
        route_row(f, i, m);
        for (int32_t c = 0; c < f->n_coefs; c++) {
            for (int32_t j = 0; j < n; j++) {
                dsum[j] += (double)f->mixes[c * n + j] * (double)dcoefs[c];
                float *dmix = args->dmixes != NULL ? &args->dmixes[c * n + j] : NULL;
                if (dmix != NULL) { *dmix = (float)((double)*dmix + (double)dcoefs[c] * m[j]); }
            }
        }
        for (int32_t j = 0; j < n; j++) { dsum[j] *= (1.0 - m[j] * m[j]) / (double)f->dim; }
        for (int64_t d = 0; d < f->dim; d++) {
            double dx = 0.0;
            for (int32_t j = 0; j < n; j++) {
                dx += (double)f->router[j * f->dim + d] * dsum[j];
                float *drouter = args->drouter != NULL ? &args->drouter[j * f->dim + d] : NULL;
                if (drouter != NULL) { *drouter = (float)((double)*drouter + (double)f->x[i * f->dim + d] * dsum[j]); }
            }
            args->dx[i * f->dim + d] = (float)dx;
        }
    }
}

void qr_ref_stream_predict_backward(const qr_stream_predict_backward_args *args, void *workspace) {
    (void)workspace;
    const int32_t n = args->n_streams;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const float *coefs = args->coefs + i * n * n, *x = args->streams + i * n * args->dim;
        float *dx = args->dstreams + i * n * args->dim;
        double dcoefs[QR_MAX_STREAM_COEFS] = {0};
        for (int64_t d = 0; d < args->dim; d++) {
            double dy[QR_MAX_STREAMS] = {0};
            for (int32_t b = 0; b < n; b++) { dy[b] = (double)dx[b * args->dim + d]; }
            dy[0] += (double)args->dactive[i * args->dim + d];
            for (int32_t a = 0; a < n; a++) {
                double sum = dy[a];
                for (int32_t b = 0; b < n; b++) {
                    sum += (double)coefs[b * n + a] * dy[b];
                    dcoefs[b * n + a] += (double)x[a * args->dim + d] * dy[b];
                }
                dx[a * args->dim + d] = (float)sum;
            }
        }
        for (int32_t c = 0; c < n * n; c++) { args->dcoefs[i * n * n + c] = (float)dcoefs[c]; }
    }
}

void qr_ref_stream_correct_backward(const qr_stream_correct_backward_args *args, void *workspace) {
    (void)workspace;
    const int32_t n = args->n_streams;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const float *coefs = args->coefs + i * n;
        double dcoefs[QR_MAX_STREAMS] = {0};
        for (int64_t d = 0; d < args->dim; d++) {
            const int64_t at = i * args->dim + d;
            float *dstreams = args->dstreams + i * n * args->dim + d;
            const double dy = (double)args->dy[at], active = (double)args->active[at];
            const double change = (double)args->x[at] - active;
            double dchange = 0.0;
            for (int32_t b = 0; b < n; b++) {
                const double through = (double)dstreams[b * args->dim] +
                                       (b > 0 ? 0.0 : dy * (args->scale != NULL ? (double)args->scale[d] : 1.0));
                dchange += (1.0 + (double)coefs[b]) * through;
                dcoefs[b] += change * through;
                if (b == 0) { dstreams[0] = (float)through; }
            }
            dstreams[0] = (float)((double)dstreams[0] - dchange);
            args->dx[at] = (float)dchange;
            if (args->dscale == NULL) { continue; }
            const double left = active + (1.0 + (double)coefs[0]) * change;
            args->dscale[d] = (float)((double)args->dscale[d] + dy * left);
        }
        for (int32_t b = 0; b < n; b++) { args->dcoefs[i * n + b] = (float)dcoefs[b]; }
    }
}

void qr_ref_stream_level_backward(const qr_stream_level_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const float *x = args->streams + i * args->n_streams * args->dim;
        float *dx = args->dstreams + i * args->n_streams * args->dim;
        const double target = sqrt(mean_of_squares(x, args->dim));
        double dtarget = 0.0;
        for (int32_t b = 1; b < args->n_streams; b++) {
            const float *stream = x + b * args->dim;
            float *dstream = dx + b * args->dim;
            const double square = mean_of_squares(stream, args->dim), size = sqrt(fmax(square, LEAST_SQUARE));
            double along = 0.0;
            for (int64_t d = 0; d < args->dim; d++) { along += (double)stream[d] * (double)dstream[d]; }
            dtarget += along / size;
            const double back = square > LEAST_SQUARE ? along / (square * (double)args->dim) : 0.0;
            for (int64_t d = 0; d < args->dim; d++) {
                dstream[d] = (float)(((double)dstream[d] - (double)stream[d] * back) * (target / size));
            }
        }
        const double factor = target > 0.0 ? dtarget / (target * (double)args->dim) : 0.0;
        for (int64_t d = 0; d < args->dim; d++) { dx[d] = (float)((double)dx[d] + (double)x[d] * factor); }
    }
}

void qr_ref_gaussian_topk_backward(const qr_gaussian_topk_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_gaussian_topk_args *f = &args->forward;
    const double n = (double)f->dim, quantile = (double)f->quantile;
    for (int64_t i = 0; i < f->n_rows; i++) {
        const float *x = f->x + i * f->x_stride, *dy = args->dy + i * args->dy_stride;
        double mean, deviation, sum = 0.0;
        moments_of(x, f->dim, &mean, &deviation);
        const double cutoff = mean + quantile * deviation;
        for (int64_t j = 0; j < f->dim; j++) { sum += (double)x[j] > cutoff ? (double)dy[j] : 0.0; }
        for (int64_t j = 0; j < f->dim; j++) {
            const double own = (double)x[j] > cutoff ? (double)dy[j] : 0.0;
            const double steep = deviation > 0.0 ? quantile * ((double)x[j] - mean) / deviation : 0.0;
            args->dx[i * args->dx_stride + j] = (float)(own - sum / n * (1.0 + steep));
        }
    }
}
