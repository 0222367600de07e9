/* The backward ops of ops_streams.h. Sums over rows go on from what is there, row by row: rows in several calls have
 * the bits of one. */
#include "kernels/cpu/stream_sums.h"
#include "kernels/cpu/train/train_scratch.h"
#include "kernels/cpu/vector_ops.h"

/* ---- stream_coefs_backward --------------------------------------------------------------------------------------- */

typedef struct coefs_pass {
    const qr_stream_coefs_backward_args *args;
    qr_stream_route *rows;
} coefs_pass;

static void route_gradients(const qr_stream_coefs_backward_args *a, int64_t row, qr_stream_route *route) {
    const qr_stream_coefs_args *f = &a->forward;
    const float *dcoefs = a->dcoefs + row * f->n_coefs;
    route_row(f, row, route->m);
    for (int32_t j = 0; j < f->n_streams; j++) {
        float sum = 0.0F;
        for (int32_t c = 0; c < f->n_coefs; c++) { sum += f->mixes[c * f->n_streams + j] * dcoefs[c]; }
        route->dsum[j] = sum * (1.0F - route->m[j] * route->m[j]) / (float)f->dim;
    }
}

static void coefs_backward_rows(const void *pass, int64_t begin, int64_t end) {
    const coefs_pass *p = pass;
    const qr_stream_coefs_args *f = &p->args->forward;
    for (int64_t i = begin; i < end; i++) {
        qr_stream_route *route = &p->rows[i];
        float *dx = p->args->dx + i * f->dim;
        route_gradients(p->args, i, route);
        for (int64_t d = 0; d < f->dim; d += QR_VEC) {
            qr_vec sum = qr_vec_zero();
            for (int32_t j = 0; j < f->n_streams; j++) {
                sum =
                    qr_vec_fma(qr_vec_load_n(f->router + j * f->dim + d, f->dim - d), qr_vec_set1(route->dsum[j]), sum);
            }
            qr_vec_store_n(dx + d, sum, f->dim - d);
        }
    }
}

enum { COLUMN_BLOCK = 64 };

static void router_columns(const void *pass, int64_t begin, int64_t end) {
    const coefs_pass *p = pass;
    const qr_stream_coefs_args *f = &p->args->forward;
    for (int64_t d = begin * COLUMN_BLOCK; d < qr_min(f->dim, end * COLUMN_BLOCK); d += QR_VEC) {
        for (int32_t j = 0; j < f->n_streams; j++) {
            float *drouter = p->args->drouter + j * f->dim + d;
            qr_vec sum = qr_vec_load_n(drouter, f->dim - d);
            for (int64_t i = 0; i < f->n_rows; i++) {
                const qr_vec x = qr_vec_load_n(f->x + i * f->dim + d, f->dim - d);
                sum = qr_vec_fma(x, qr_vec_set1(p->rows[i].dsum[j]), sum);
            }
            qr_vec_store_n(drouter, sum, f->dim - d);
        }
    }
}

static void add_mixes(const coefs_pass *p) {
    const qr_stream_coefs_args *f = &p->args->forward;
    for (int64_t i = 0; i < f->n_rows; i++) {
        for (int32_t c = 0; c < f->n_coefs; c++) {
            const float dcoef = p->args->dcoefs[i * f->n_coefs + c];
            for (int32_t j = 0; j < f->n_streams; j++) {
                p->args->dmixes[c * f->n_streams + j] += dcoef * p->rows[i].m[j];
            }
        }
    }
}

void QR_ISA(qr_cpu_stream_coefs_backward)(const qr_backend *backend, const qr_stream_coefs_backward_args *args,
                                          void *workspace) {
    const qr_stream_coefs_args *f = &args->forward;
    const coefs_pass pass = {.args = args, .rows = workspace};
    qr_cpu_run_ranges(backend, f->n_rows, 2 * f->n_streams * f->dim, coefs_backward_rows, &pass);
    if (args->drouter != NULL) {
        qr_cpu_run_ranges(backend, qr_ceil_div(f->dim, COLUMN_BLOCK), f->n_rows * f->n_streams * COLUMN_BLOCK,
                          router_columns, &pass);
    }
    if (args->dmixes != NULL) { add_mixes(&pass); }
}

/* ---- stream_predict_backward, stream_correct_backward ------------------------------------------------------------ */

static void predict_backward_row(const qr_stream_predict_backward_args *a, int64_t row) {
    const int32_t n = a->n_streams;
    const float *coefs = a->coefs + row * n * n, *streams = a->streams + row * n * a->dim;
    float *dstreams = a->dstreams + row * n * a->dim;
    qr_vec sums[QR_MAX_STREAM_COEFS];
    for (int32_t c = 0; c < n * n; c++) { sums[c] = qr_vec_zero(); }
    for (int64_t j = 0; j < a->dim; j += QR_VEC) {
        qr_vec dy[QR_MAX_STREAMS];
        for (int32_t b = 0; b < n; b++) { dy[b] = qr_vec_load_n(dstreams + b * a->dim + j, a->dim - j); }
        dy[0] = qr_vec_add(dy[0], qr_vec_load_n(a->dactive + row * a->dim + j, a->dim - j));
        for (int32_t s = 0; s < n; s++) {
            const qr_vec x = qr_vec_load_n(streams + s * a->dim + j, a->dim - j);
            qr_vec dx = dy[s];
            for (int32_t b = 0; b < n; b++) {
                dx = qr_vec_fma(qr_vec_set1(coefs[b * n + s]), dy[b], dx);
                sums[b * n + s] = qr_vec_fma(x, dy[b], sums[b * n + s]);
            }
            qr_vec_store_n(dstreams + s * a->dim + j, dx, a->dim - j);
        }
    }
    for (int32_t c = 0; c < n * n; c++) { a->dcoefs[row * n * n + c] = qr_vec_sum(sums[c]); }
}

static void predict_backward_rows(const void *args, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) { predict_backward_row(args, i); }
}

static void correct_backward_row(const qr_stream_correct_backward_args *a, int64_t row) {
    const int32_t n_streams = a->n_streams;
    qr_vec sums[QR_MAX_STREAMS];
    for (int32_t b = 0; b < n_streams; b++) { sums[b] = qr_vec_zero(); }
    for (int64_t j = 0; j < a->dim; j += QR_VEC) {
        const int64_t n = a->dim - j, at = row * a->dim + j;
        float *dstreams = a->dstreams + row * n_streams * a->dim + j;
        const qr_vec change = qr_vec_sub(qr_vec_load_n(a->x + at, n), qr_vec_load_n(a->active + at, n));
        const qr_vec scale = a->scale != NULL ? qr_vec_load_n(a->scale + j, n) : qr_vec_set1(1.0F);
        const qr_vec first = qr_vec_fma(qr_vec_load_n(a->dy + at, n), scale, qr_vec_load_n(dstreams, n));
        qr_vec dchange = qr_vec_zero();
        for (int32_t b = 0; b < n_streams; b++) {
            const qr_vec through = b == 0 ? first : qr_vec_load_n(dstreams + b * a->dim, n);
            dchange = qr_vec_fma(qr_vec_set1(1.0F + a->coefs[row * n_streams + b]), through, dchange);
            sums[b] = qr_vec_fma(change, through, sums[b]);
        }
        qr_vec_store_n(dstreams, qr_vec_sub(first, dchange), n);
        qr_vec_store_n(a->dx + at, dchange, n);
    }
    for (int32_t b = 0; b < n_streams; b++) { a->dcoefs[row * n_streams + b] = qr_vec_sum(sums[b]); }
}

static void correct_backward_rows(const void *args, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) { correct_backward_row(args, i); }
}

/* dscale, for which stream 0 is computed again. */
static void scale_columns(const void *args, int64_t begin, int64_t end) {
    const qr_stream_correct_backward_args *a = args;
    for (int64_t d = begin * COLUMN_BLOCK; d < qr_min(a->dim, end * COLUMN_BLOCK); d += QR_VEC) {
        const int64_t n = a->dim - d;
        qr_vec sum = qr_vec_load_n(a->dscale + d, n);
        for (int64_t i = 0; i < a->n_rows; i++) {
            const qr_vec active = qr_vec_load_n(a->active + i * a->dim + d, n);
            const qr_vec change = qr_vec_sub(qr_vec_load_n(a->x + i * a->dim + d, n), active);
            const qr_vec left = qr_vec_fma(qr_vec_set1(1.0F + a->coefs[i * a->n_streams]), change, active);
            sum = qr_vec_fma(qr_vec_load_n(a->dy + i * a->dim + d, n), left, sum);
        }
        qr_vec_store_n(a->dscale + d, sum, n);
    }
}

void QR_ISA(qr_cpu_stream_correct_backward)(const qr_backend *backend, const qr_stream_correct_backward_args *args) {
    if (args->dscale != NULL) {
        qr_cpu_run_ranges(backend, qr_ceil_div(args->dim, COLUMN_BLOCK), 2 * args->n_rows * COLUMN_BLOCK, scale_columns,
                          args);
    }
    qr_cpu_run_ranges(backend, args->n_rows, 3 * args->n_streams * args->dim, correct_backward_rows, args);
}

/* ---- stream_level_backward, gaussian_topk_backward --------------------------------------------------------------- */

/* Through the level of one stream; returns its part of the gradient of stream 0's. */
static float level_backward_stream(const float *x, float *dx, int64_t dim, float target) {
    const float square = mean_of_squares(x, dim), along = dot_row(x, dx, dim);
    const bool is_least = square < STREAM_LEAST_SQUARE;
    const float size = sqrtf(is_least ? STREAM_LEAST_SQUARE : square);
    const qr_vec back = qr_vec_set1(is_least ? 0.0F : along / square / (float)dim);
    const qr_vec factor = qr_vec_set1(target / size);
    for (int64_t j = 0; j < dim; j += QR_VEC) {
        const qr_vec rest = qr_vec_sub(qr_vec_load_n(dx + j, dim - j), qr_vec_mul(qr_vec_load_n(x + j, dim - j), back));
        qr_vec_store_n(dx + j, qr_vec_mul(rest, factor), dim - j);
    }
    return along / size;
}

static void level_backward_rows(const void *args, int64_t begin, int64_t end) {
    const qr_stream_level_backward_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->streams + i * a->n_streams * a->dim;
        float *dx = a->dstreams + i * a->n_streams * a->dim, dtarget = 0.0F;
        const float target = sqrtf(mean_of_squares(x, a->dim));
        for (int32_t b = 1; b < a->n_streams; b++) {
            dtarget += level_backward_stream(x + b * a->dim, dx + b * a->dim, a->dim, target);
        }
        const qr_vec factor = qr_vec_set1(target == 0.0F ? 0.0F : dtarget / target / (float)a->dim);
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            qr_vec_store_n(dx + j, qr_vec_fma(qr_vec_load_n(x + j, n), factor, qr_vec_load_n(dx + j, n)), n);
        }
    }
}

/* Sum of dy where x is above the cutoff. */
static float sum_above(const float *x, const float *dy, int64_t n, float cutoff) {
    const qr_vec limit = qr_vec_set1(cutoff), zero = qr_vec_zero();
    qr_vec sum = zero;
    for (int64_t j = 0; j < n; j += QR_VEC) { /* lanes past the end add zeros, because those of dy hold them */
        const qr_vec gradient = qr_vec_load_n(dy + j, n - j);
        sum = qr_vec_add(sum, qr_vec_select_less(limit, qr_vec_load_n(x + j, n - j), gradient, zero));
    }
    return qr_vec_sum(sum);
}

static void gaussian_topk_backward_rows(const void *args, int64_t begin, int64_t end) {
    const qr_gaussian_topk_backward_args *a = args;
    const qr_gaussian_topk_args *f = &a->forward;
    const qr_vec zero = qr_vec_zero();
    for (int64_t i = begin; i < end; i++) {
        const float *x = f->x + i * f->x_stride, *dy = a->dy + i * a->dy_stride;
        float mean, deviation, *dx = a->dx + i * a->dx_stride;
        moments_of(x, f->dim, &mean, &deviation);
        const float cutoff = mean + f->quantile * deviation;
        const float share = sum_above(x, dy, f->dim, cutoff) / (float)f->dim;
        const qr_vec limit = qr_vec_set1(cutoff), centre = qr_vec_set1(mean), common = qr_vec_set1(share);
        const qr_vec steep = qr_vec_set1(deviation == 0.0F ? 0.0F : share * f->quantile / deviation);
        for (int64_t j = 0; j < f->dim; j += QR_VEC) {
            const int64_t n = f->dim - j;
            const qr_vec at = qr_vec_load_n(x + j, n);
            const qr_vec own = qr_vec_select_less(limit, at, qr_vec_load_n(dy + j, n), zero);
            const qr_vec shared = qr_vec_fma(qr_vec_sub(at, centre), steep, common);
            qr_vec_store_n(dx + j, qr_vec_sub(own, shared), n);
        }
    }
}

QR_CPU_RANGE_OP(stream_predict_backward, args->n_rows, 2 * args->n_streams * args->n_streams * args->dim,
                predict_backward_rows)
QR_CPU_RANGE_OP(stream_level_backward, args->n_rows, 4 * args->n_streams * args->dim, level_backward_rows)
QR_CPU_RANGE_OP(gaussian_topk_backward, args->forward.n_rows, 4 * args->forward.dim, gaussian_topk_backward_rows)
