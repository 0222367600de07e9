/* The ops of ops_streams.h and their backward parts. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_ROWS = 37 };

/* Of all rows; what an op does not read is not made. */
typedef struct streams_case {
    int64_t dim;
    int32_t n, n_coefs;
    bool in_place, has_scale;
    float quantile;
    float *streams, *dstreams; /* [N_ROWS, n, dim] */
    float *coefs, *dcoefs;     /* [N_ROWS, n_coefs] */
    float *x, *active, *dy;    /* [N_ROWS, dim] */
    float *router, *mixes;     /* [n, dim], [n_coefs, n] */
    float *scale;              /* [dim] */
} streams_case;

static streams_case make_case(int64_t dim, int32_t n, int32_t n_coefs) {
    const int64_t all = N_ROWS * n * dim;
    streams_case c = {.dim = dim,
                      .n = n,
                      .n_coefs = n_coefs,
                      .has_scale = dim % 2 == 1,
                      .streams = op_normals(all, 1, 2.0),
                      .dstreams = op_normals(all, 2, 1.0),
                      .coefs = op_normals((int64_t)N_ROWS * n_coefs, 3, 0.5),
                      .dcoefs = op_normals((int64_t)N_ROWS * n_coefs, 4, 1.0),
                      .x = op_normals(N_ROWS * dim, 5, 1.5),
                      .active = op_normals(N_ROWS * dim, 6, 1.5),
                      .dy = op_normals(N_ROWS * dim, 7, 1.0),
                      .router = op_normals(n * dim, 8, 3.0),
                      .mixes = op_normals((int64_t)n_coefs * n, 9, 0.5),
                      .scale = op_normals(dim, 10, 1.0)};
    for (int64_t j = 0; j < dim; j++) { /* rows of zeros: a first stream, and one below the least square */
        c.streams[3 * n * dim + j] = 0.0F;
        if (n > 1) { c.streams[(5 * n + 1) * dim + j] *= 1e-4F; }
    }
    return c;
}

static void free_case(streams_case *c) {
    float *const all[] = {c->streams, c->dstreams, c->coefs,  c->dcoefs, c->x,
                          c->active,  c->dy,       c->router, c->mixes,  c->scale};
    for (size_t i = 0; i < QR_COUNT_OF(all); i++) { qr_free(all[i]); }
}

/* Rows [first, first + n_rows) of an input with rows of `row` elements; and an output that begins as they are. */
static const float *rows_in(op_run *run, const float *src, int64_t first, int64_t n_rows, int64_t row) {
    return op_input(run, src + first * row, (size_t)(n_rows * row) * sizeof(float));
}
static float *rows_over(op_run *run, const float *src, int64_t first, int64_t n_rows, int64_t row) {
    const size_t n_bytes = (size_t)row * sizeof(float);
    return op_output(run, src != NULL ? src + first * row : NULL, n_rows, n_bytes, n_bytes);
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static qr_stream_coefs_args coefs_args(op_run *run, const streams_case *c, int64_t first, int64_t n_rows) {
    return (qr_stream_coefs_args){.x = rows_in(run, c->x, first, n_rows, c->dim),
                                  .router = rows_in(run, c->router, 0, c->n, c->dim),
                                  .mixes = rows_in(run, c->mixes, 0, c->n_coefs, c->n),
                                  .n_rows = n_rows,
                                  .dim = c->dim,
                                  .n_streams = c->n,
                                  .n_coefs = c->n_coefs};
}

static void exec_coefs(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const streams_case *c = data;
    qr_stream_coefs_args args = coefs_args(run, c, first, n_rows);
    args.dst = rows_over(run, NULL, first, n_rows, c->n_coefs);
    op_call(run, QR_OP_stream_coefs, &args);
    op_read(run, args.dst, out);
}

static void predict(op_run *run, const streams_case *c, int64_t first, int64_t n_rows, bool wants_active, void *out) {
    const qr_stream_predict_args args = {.streams = rows_over(run, c->streams, first, n_rows, c->n * c->dim),
                                         .coefs = rows_in(run, c->coefs, first, n_rows, c->n_coefs),
                                         .active = rows_over(run, NULL, first, n_rows, c->dim),
                                         .n_rows = n_rows,
                                         .dim = c->dim,
                                         .n_streams = c->n};
    op_call(run, QR_OP_stream_predict, &args);
    op_read(run, wants_active ? args.active : args.streams, out);
}

static void exec_predict(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    predict(run, data, first, n_rows, false, out);
}

static void exec_active(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    predict(run, data, first, n_rows, true, out);
}

static void correct(op_run *run, const streams_case *c, int64_t first, int64_t n_rows, qr_dtype dtype, bool wants_dst,
                    void *out) {
    const size_t row_bytes = (size_t)c->dim * qr_dtype_bytes(dtype);
    const qr_stream_correct_args args = {.streams = rows_over(run, c->streams, first, n_rows, c->n * c->dim),
                                         .coefs = rows_in(run, c->coefs, first, n_rows, c->n_coefs),
                                         .x = rows_in(run, c->x, first, n_rows, c->dim),
                                         .scale = c->has_scale ? rows_in(run, c->scale, 0, 1, c->dim) : NULL,
                                         .dst = op_output(run, NULL, n_rows, row_bytes, row_bytes),
                                         .dst_dtype = dtype,
                                         .n_rows = n_rows,
                                         .dim = c->dim,
                                         .n_streams = c->n};
    op_call(run, QR_OP_stream_correct, &args);
    op_read(run, wants_dst ? args.dst : (void *)args.streams, out);
}

static void exec_correct(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    correct(run, data, first, n_rows, dtype, false, out);
}

static void exec_corrected(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    correct(run, data, first, n_rows, dtype, true, out);
}

static void exec_level(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const streams_case *c = data;
    const qr_stream_level_args args = {.streams = rows_over(run, c->streams, first, n_rows, c->n * c->dim),
                                       .n_rows = n_rows,
                                       .dim = c->dim,
                                       .n_streams = c->n};
    op_call(run, QR_OP_stream_level, &args);
    op_read(run, args.streams, out);
}

/* Of rows that lie apart: those of `streams` without their ends. */
static void exec_topk(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const streams_case *c = data;
    const int64_t stride = c->n * c->dim;
    const size_t row_bytes = (size_t)c->dim * sizeof(float), stride_bytes = (size_t)stride * sizeof(float);
    float *rows = qr_alloc((size_t)n_rows * row_bytes);
    for (int64_t i = 0; i < n_rows; i++) { memcpy(rows + i * c->dim, c->streams + (first + i) * stride, row_bytes); }
    qr_gaussian_topk_args args = {
        .n_rows = n_rows, .dim = c->dim, .x_stride = stride, .dst_stride = stride, .quantile = c->quantile};
    args.dst = op_output(run, c->in_place ? rows : NULL, n_rows, row_bytes, stride_bytes);
    args.x = c->in_place
                 ? args.dst
                 : op_input(run, c->streams + first * stride, (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float));
    op_call(run, QR_OP_gaussian_topk, &args);
    op_read(run, args.dst, out);
    qr_free(rows);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

static qr_stream_coefs_backward_args coefs_backward_args(op_run *run, const streams_case *c, int64_t first,
                                                         int64_t n_rows) {
    return (qr_stream_coefs_backward_args){.forward = coefs_args(run, c, first, n_rows),
                                           .dcoefs = rows_in(run, c->dcoefs, first, n_rows, c->n_coefs),
                                           .dx = rows_over(run, NULL, first, n_rows, c->dim)};
}

static void exec_coefs_dx(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const qr_stream_coefs_backward_args args = coefs_backward_args(run, data, first, n_rows);
    op_call(run, QR_OP_stream_coefs_backward, &args);
    op_read(run, args.dx, out);
}

/* drouter and dmixes, which grow from router and mixes. */
static void exec_coefs_weights(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                               void *out) {
    (void)dtype, (void)first, (void)n_rows;
    const streams_case *c = data;
    qr_stream_coefs_backward_args args = coefs_backward_args(run, c, 0, N_ROWS);
    args.drouter = rows_over(run, c->router, 0, c->n, c->dim);
    args.dmixes = rows_over(run, c->mixes, 0, c->n_coefs, c->n);
    op_call(run, QR_OP_stream_coefs_backward, &args);
    op_read(run, args.drouter, out);
    op_read(run, args.dmixes, (float *)out + c->n * c->dim);
}

static void predict_backward(op_run *run, const streams_case *c, int64_t first, int64_t n_rows, bool wants_coefs,
                             void *out) {
    const qr_stream_predict_backward_args args = {.streams = rows_in(run, c->streams, first, n_rows, c->n * c->dim),
                                                  .coefs = rows_in(run, c->coefs, first, n_rows, c->n_coefs),
                                                  .dactive = rows_in(run, c->dy, first, n_rows, c->dim),
                                                  .dstreams = rows_over(run, c->dstreams, first, n_rows, c->n * c->dim),
                                                  .dcoefs = rows_over(run, NULL, first, n_rows, c->n_coefs),
                                                  .n_rows = n_rows,
                                                  .dim = c->dim,
                                                  .n_streams = c->n};
    op_call(run, QR_OP_stream_predict_backward, &args);
    op_read(run, wants_coefs ? args.dcoefs : args.dstreams, out);
}

static void exec_predict_dstreams(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                  void *out) {
    (void)dtype;
    predict_backward(run, data, first, n_rows, false, out);
}

static void exec_predict_dcoefs(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                void *out) {
    (void)dtype;
    predict_backward(run, data, first, n_rows, true, out);
}

static qr_stream_correct_backward_args correct_backward_args(op_run *run, const streams_case *c, int64_t first,
                                                             int64_t n_rows) {
    return (qr_stream_correct_backward_args){.active = rows_in(run, c->active, first, n_rows, c->dim),
                                             .coefs = rows_in(run, c->coefs, first, n_rows, c->n_coefs),
                                             .x = rows_in(run, c->x, first, n_rows, c->dim),
                                             .scale = c->has_scale ? rows_in(run, c->scale, 0, 1, c->dim) : NULL,
                                             .dy = rows_in(run, c->dy, first, n_rows, c->dim),
                                             .dstreams = rows_over(run, c->dstreams, first, n_rows, c->n * c->dim),
                                             .dx = rows_over(run, NULL, first, n_rows, c->dim),
                                             .dcoefs = rows_over(run, NULL, first, n_rows, c->n_coefs),
                                             .n_rows = n_rows,
                                             .dim = c->dim,
                                             .n_streams = c->n};
}

static void exec_correct_dstreams(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                  void *out) {
    (void)dtype;
    const qr_stream_correct_backward_args args = correct_backward_args(run, data, first, n_rows);
    op_call(run, QR_OP_stream_correct_backward, &args);
    op_read(run, args.dstreams, out);
}

static void exec_correct_dx(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const qr_stream_correct_backward_args args = correct_backward_args(run, data, first, n_rows);
    op_call(run, QR_OP_stream_correct_backward, &args);
    op_read(run, args.dx, out);
}

static void exec_correct_dcoefs(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                void *out) {
    (void)dtype;
    const qr_stream_correct_backward_args args = correct_backward_args(run, data, first, n_rows);
    op_call(run, QR_OP_stream_correct_backward, &args);
    op_read(run, args.dcoefs, out);
}

/* dscale, which grows from scale. */
static void exec_correct_dscale(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                void *out) {
    (void)dtype, (void)first, (void)n_rows;
    const streams_case *c = data;
    qr_stream_correct_backward_args args = correct_backward_args(run, c, 0, N_ROWS);
    args.dscale = rows_over(run, c->scale, 0, 1, c->dim);
    op_call(run, QR_OP_stream_correct_backward, &args);
    op_read(run, args.dscale, out);
}

static void exec_level_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                void *out) {
    (void)dtype;
    const streams_case *c = data;
    const qr_stream_level_backward_args args = {.streams = rows_in(run, c->streams, first, n_rows, c->n * c->dim),
                                                .dstreams = rows_over(run, c->dstreams, first, n_rows, c->n * c->dim),
                                                .n_rows = n_rows,
                                                .dim = c->dim,
                                                .n_streams = c->n};
    op_call(run, QR_OP_stream_level_backward, &args);
    op_read(run, args.dstreams, out);
}

/* dx over dy, or apart. */
static void exec_topk_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                               void *out) {
    (void)dtype;
    const streams_case *c = data;
    const int64_t stride = c->n * c->dim;
    const size_t src_bytes = (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float);
    qr_gaussian_topk_backward_args args = {.forward = {.x = op_input(run, c->streams + first * stride, src_bytes),
                                                       .n_rows = n_rows,
                                                       .dim = c->dim,
                                                       .x_stride = stride,
                                                       .dst_stride = c->dim,
                                                       .quantile = c->quantile},
                                           .dy_stride = c->dim,
                                           .dx_stride = c->dim};
    args.dx = rows_over(run, c->in_place ? c->dy : NULL, first, n_rows, c->dim);
    args.dy = c->in_place ? args.dx : rows_in(run, c->dy, first, n_rows, c->dim);
    op_call(run, QR_OP_gaussian_topk_backward, &args);
    op_read(run, args.dx, out);
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/* Sums of n terms, in any order, err by at most n + 1 u of the sum of their sizes; each factor and step by one more. */

/* m[j] of a row, and what it errs by. */
static double routed(const streams_case *c, int64_t i, int32_t j, double *error) {
    double sum = 0.0, size = 0.0;
    for (int64_t d = 0; d < c->dim; d++) {
        const double term = (double)c->router[j * c->dim + d] * (double)c->x[i * c->dim + d];
        sum += term;
        size += fabs(term);
    }
    *error = ((double)c->dim + 4.0) * OP_U * size / (double)c->dim + 8.0 * OP_U;
    return tanh(sum / (double)c->dim);
}

static void bound_coefs(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < (int64_t)N_ROWS * c->n_coefs; i++) {
        for (int32_t j = 0; j < c->n; j++) {
            double error;
            const double m = routed(c, i / c->n_coefs, j, &error);
            const double mix = fabs((double)c->mixes[i % c->n_coefs * c->n + j]);
            bound[i] += mix * (error + (c->n + 2) * OP_U * fabs(m));
        }
    }
}

/* The gradient of the sum that m[j] is the tanh of, and what it errs by. */
static double routed_back(const streams_case *c, int64_t i, int32_t j, double *error) {
    double m_error, sum = 0.0, size = 0.0;
    const double m = routed(c, i, j, &m_error), slope = 1.0 - m * m;
    for (int32_t k = 0; k < c->n_coefs; k++) {
        const double term = (double)c->mixes[k * c->n + j] * (double)c->dcoefs[i * c->n_coefs + k];
        sum += term;
        size += fabs(term);
    }
    const double of_slope = 2.0 * fabs(m) * m_error + 6.0 * OP_U;
    *error = (size * (c->n_coefs + 4) * OP_U * slope + size * of_slope) / (double)c->dim;
    return sum * slope / (double)c->dim;
}

static void bound_coefs_dx(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < N_ROWS; i++) {
        for (int32_t j = 0; j < c->n; j++) {
            double error;
            const double dsum = routed_back(c, i, j, &error);
            for (int64_t d = 0; d < c->dim; d++) {
                const double router = fabs((double)c->router[j * c->dim + d]);
                bound[i * c->dim + d] += router * (error + (c->n + 3) * OP_U * fabs(dsum));
            }
        }
    }
}

static void bound_coefs_weights(const streams_case *c, double *bound) {
    const int64_t n_router = c->n * c->dim;
    for (int64_t k = 0; k < n_router; k++) { bound[k] = N_ROWS * OP_U * fabs((double)c->router[k]); }
    for (int64_t k = 0; k < (int64_t)c->n_coefs * c->n; k++) {
        bound[n_router + k] = N_ROWS * OP_U * fabs((double)c->mixes[k]);
    }
    for (int64_t i = 0; i < N_ROWS; i++) {
        for (int32_t j = 0; j < c->n; j++) {
            double error, m_error;
            const double dsum = routed_back(c, i, j, &error), m = routed(c, i, j, &m_error);
            for (int64_t d = 0; d < c->dim; d++) {
                bound[j * c->dim + d] +=
                    fabs((double)c->x[i * c->dim + d]) * (error + (N_ROWS + 4) * OP_U * fabs(dsum));
            }
            for (int32_t k = 0; k < c->n_coefs; k++) {
                bound[n_router + k * c->n + j] +=
                    fabs((double)c->dcoefs[i * c->n_coefs + k]) * (m_error + (N_ROWS + 4) * OP_U * fabs(m));
            }
        }
    }
}

static void bound_predict(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < N_ROWS * c->n * c->dim; i++) {
        const int64_t row = i / (c->n * c->dim), b = i / c->dim % c->n, d = i % c->dim;
        double size = fabs((double)c->streams[i]);
        for (int32_t a = 0; a < c->n; a++) {
            const double coef = (double)c->coefs[row * c->n_coefs + b * c->n + a];
            size += fabs(coef * (double)c->streams[(row * c->n + a) * c->dim + d]);
        }
        bound[i] = (c->n + 2) * OP_U * size;
    }
}

static void bound_active(const streams_case *c, double *bound) {
    double *all = op_doubles(N_ROWS * c->n * c->dim);
    bound_predict(c, all);
    for (int64_t i = 0; i < N_ROWS * c->dim; i++) { bound[i] = all[i / c->dim * c->n * c->dim + i % c->dim]; }
    qr_free(all);
}

static double bound_of_correct(const streams_case *c, int64_t row, int64_t b, int64_t d) {
    const float *streams = c->streams + row * c->n * c->dim;
    const double factor = fabs(1.0 + (double)c->coefs[row * c->n_coefs + b]) + 1.0;
    const double change = fabs((double)c->x[row * c->dim + d]) + fabs((double)streams[d]);
    return 6.0 * OP_U * (fabs((double)streams[b * c->dim + d]) + factor * change);
}

static void bound_correct(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < N_ROWS * c->n * c->dim; i++) {
        bound[i] = bound_of_correct(c, i / (c->n * c->dim), i / c->dim % c->n, i % c->dim);
    }
}

static void bound_corrected(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < N_ROWS * c->dim; i++) {
        const double scale = c->has_scale ? fabs((double)c->scale[i % c->dim]) : 1.0;
        bound[i] = 2.0 * scale * bound_of_correct(c, i / c->dim, 0, i % c->dim);
    }
}

static double size_of(const float *x, int64_t dim) {
    double sum = 0.0;
    for (int64_t d = 0; d < dim; d++) { sum += (double)x[d] * (double)x[d]; }
    return sqrt(sum / (double)dim);
}

static double levelled_size(const float *x, int64_t dim) { return fmax(size_of(x, dim), sqrt(1e-5)); }

static void bound_level(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < N_ROWS * c->n * c->dim; i++) {
        const int64_t row = i / (c->n * c->dim), b = i / c->dim % c->n;
        const float *streams = c->streams + row * c->n * c->dim;
        const double factor = size_of(streams, c->dim) / levelled_size(streams + b * c->dim, c->dim);
        bound[i] = b == 0 ? 0.0 : ((double)c->dim + 12.0) * OP_U * factor * fabs((double)c->streams[i]);
    }
}

static void bound_level_backward(const streams_case *c, double *bound) {
    const double errs = (2.0 * (double)c->dim + 24.0) * OP_U;
    for (int64_t i = 0; i < N_ROWS; i++) {
        const float *x = c->streams + i * c->n * c->dim, *dx = c->dstreams + i * c->n * c->dim;
        double *row = bound + i * c->n * c->dim, dtarget = 0.0;
        const double target = size_of(x, c->dim);
        for (int32_t b = 1; b < c->n; b++) {
            const float *stream = x + b * c->dim, *dstream = dx + b * c->dim;
            const double size = levelled_size(stream, c->dim);
            double along = 0.0;
            for (int64_t d = 0; d < c->dim; d++) { along += fabs((double)stream[d] * (double)dstream[d]); }
            dtarget += along / size;
            for (int64_t d = 0; d < c->dim; d++) {
                const double back = fabs((double)stream[d]) * along / (size * size * (double)c->dim);
                row[b * c->dim + d] = errs * (fabs((double)dstream[d]) + back) * target / size;
            }
        }
        const double factor = target > 0.0 ? dtarget / (target * (double)c->dim) : 0.0;
        for (int64_t d = 0; d < c->dim; d++) {
            row[d] = errs * fabs((double)x[d]) * factor + 2.0 * OP_U * fabs((double)dx[d]);
        }
    }
}

/* Of a row: its mean and deviation, and what the mean errs by. */
static void moments(const streams_case *c, int64_t i, double *mean, double *deviation, double *error) {
    const float *x = c->streams + i * c->n * c->dim;
    double sum = 0.0, size = 0.0, squares = 0.0;
    for (int64_t j = 0; j < c->dim; j++) {
        sum += (double)x[j];
        size += fabs((double)x[j]);
    }
    *mean = sum / (double)c->dim;
    for (int64_t j = 0; j < c->dim; j++) { squares += ((double)x[j] - *mean) * ((double)x[j] - *mean); }
    *deviation = sqrt(squares / (double)c->dim);
    *error = ((double)c->dim + 3.0) * OP_U * size / (double)c->dim;
}

static void bound_topk(const streams_case *c, double *bound) {
    const double quantile = fabs((double)c->quantile);
    for (int64_t i = 0; i < N_ROWS * c->dim; i++) {
        double mean, deviation, error;
        moments(c, i / c->dim, &mean, &deviation, &error);
        const double of_deviation = error + ((double)c->dim / 2.0 + 6.0) * OP_U * deviation;
        const double size = fabs((double)c->streams[i / c->dim * c->n * c->dim + i % c->dim]) + fabs(mean);
        bound[i] = error + quantile * of_deviation + 4.0 * OP_U * (size + quantile * deviation);
    }
}

static void bound_topk_backward(const streams_case *c, double *bound) {
    const double quantile = fabs((double)c->quantile), n = (double)c->dim;
    for (int64_t i = 0; i < N_ROWS; i++) {
        double mean, deviation, error, size = 0.0;
        moments(c, i, &mean, &deviation, &error);
        for (int64_t j = 0; j < c->dim; j++) { size += fabs((double)c->dy[i * c->dim + j]) / n; }
        for (int64_t j = 0; j < c->dim; j++) {
            const double apart = fabs((double)c->streams[i * c->n * c->dim + j] - mean);
            const double steep = deviation > 0.0 ? quantile / deviation : 0.0;
            const double of_deviation = deviation > 0.0 ? error / deviation : 0.0;
            bound[i * c->dim + j] = size * (2.0 * n + 16.0) * OP_U * (1.0 + steep * apart) +
                                    size * steep * (error + apart * of_deviation) +
                                    2.0 * OP_U * fabs((double)c->dy[i * c->dim + j]);
        }
    }
}

static void bound_predict_dstreams(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < N_ROWS * c->n * c->dim; i++) {
        const int64_t row = i / (c->n * c->dim), a = i / c->dim % c->n, d = i % c->dim;
        double size = 0.0;
        for (int32_t b = 0; b < c->n; b++) {
            const double dy = fabs((double)c->dstreams[(row * c->n + b) * c->dim + d]) +
                              (b == 0 ? fabs((double)c->dy[row * c->dim + d]) : 0.0);
            size += (fabs((double)c->coefs[row * c->n_coefs + b * c->n + a]) + (a == b ? 1.0 : 0.0)) * dy;
        }
        bound[i] = (c->n + 4) * OP_U * size;
    }
}

static void bound_predict_dcoefs(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < (int64_t)N_ROWS * c->n_coefs; i++) {
        const int64_t row = i / c->n_coefs, b = i % c->n_coefs / c->n, a = i % c->n;
        for (int64_t d = 0; d < c->dim; d++) {
            const double dy = fabs((double)c->dstreams[(row * c->n + b) * c->dim + d]) +
                              (b == 0 ? fabs((double)c->dy[row * c->dim + d]) : 0.0);
            bound[i] += ((double)c->dim + 4.0) * OP_U * dy * fabs((double)c->streams[(row * c->n + a) * c->dim + d]);
        }
    }
}

/* The gradient of a stream after it was corrected, at most. */
static double through(const streams_case *c, int64_t row, int64_t b, int64_t d) {
    const double scale = c->has_scale ? fabs((double)c->scale[d]) : 1.0;
    return fabs((double)c->dstreams[(row * c->n + b) * c->dim + d]) +
           (b == 0 ? scale * fabs((double)c->dy[row * c->dim + d]) : 0.0);
}

static double dchange_size(const streams_case *c, int64_t row, int64_t d) {
    double size = 0.0;
    for (int32_t b = 0; b < c->n; b++) {
        size += (fabs(1.0 + (double)c->coefs[row * c->n_coefs + b]) + 1.0) * through(c, row, b, d);
    }
    return size;
}

static void bound_correct_dx(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < N_ROWS * c->dim; i++) {
        bound[i] = (c->n + 6) * OP_U * dchange_size(c, i / c->dim, i % c->dim);
    }
}

static void bound_correct_dstreams(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < N_ROWS * c->dim; i++) {
        const int64_t row = i / c->dim, d = i % c->dim; /* other streams' stay as they are */
        bound[row * c->n * c->dim + d] = (c->n + 8) * OP_U * (dchange_size(c, row, d) + through(c, row, 0, d));
    }
}

static void bound_correct_dcoefs(const streams_case *c, double *bound) {
    for (int64_t i = 0; i < (int64_t)N_ROWS * c->n; i++) {
        const int64_t row = i / c->n;
        for (int64_t d = 0; d < c->dim; d++) {
            const double change = fabs((double)c->x[row * c->dim + d]) + fabs((double)c->active[row * c->dim + d]);
            bound[i] += ((double)c->dim + 6.0) * OP_U * change * through(c, row, i % c->n, d);
        }
    }
}

static void bound_correct_dscale(const streams_case *c, double *bound) {
    for (int64_t d = 0; d < c->dim; d++) {
        bound[d] = N_ROWS * OP_U * fabs((double)c->scale[d]);
        for (int64_t i = 0; i < N_ROWS; i++) {
            const double active = fabs((double)c->active[i * c->dim + d]);
            const double factor = fabs(1.0 + (double)c->coefs[i * c->n_coefs]) + 1.0;
            const double left = active + factor * (fabs((double)c->x[i * c->dim + d]) + active);
            bound[d] += (N_ROWS + 8) * OP_U * fabs((double)c->dy[i * c->dim + d]) * left;
        }
    }
}

/* ---- The tests --------------------------------------------------------------------------------------------------- */

typedef void (*exec_fn)(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out);
typedef void (*bound_fn)(const streams_case *c, double *bound);

static void check_output(const char *what, const streams_case *data, int64_t n_rows, int64_t row, exec_fn exec,
                         bound_fn bound_of, qr_dtype dtype) {
    double *bound = op_doubles(n_rows * row);
    bound_of(data, bound);
    op_case c = {.n_rows = n_rows, .row = row, .exec = exec, .data = data, .bound = bound, .whole = n_rows != N_ROWS};
    snprintf(c.label, sizeof c.label, "%s dim %lld, %d streams%s", what, (long long)data->dim, (int)data->n,
             data->in_place ? " in place" : "");
    op_check_case(&c, dtype);
    qr_free(bound);
}

static const int64_t dims[] = {1, 3, 15, 16, 31, 64, 172, 321};
static const int32_t counts[] = {1, 2, 3, 4};

/* Calls `check` for every size with each number of streams in turn. */
static void for_sizes(void (*check)(const streams_case *c), bool has_square) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        for (size_t k = 0; k < QR_COUNT_OF(counts); k++) {
            if (dims[i] > 16 && (i + k) % 2 == 0) { continue; }
            const int32_t n = counts[k];
            streams_case c = make_case(dims[i], n, has_square ? n * n : n);
            check(&c);
            free_case(&c);
        }
    }
}

static void check_coefs(const streams_case *c) {
    check_output("stream_coefs", c, N_ROWS, c->n_coefs, exec_coefs, bound_coefs, QR_DTYPE_F32);
}

static void check_coefs_backward(const streams_case *c) {
    const int64_t n_weights = c->n * c->dim + (int64_t)c->n_coefs * c->n;
    check_output("stream_coefs_backward", c, N_ROWS, c->dim, exec_coefs_dx, bound_coefs_dx, QR_DTYPE_F32);
    check_output("stream_coefs_backward's sums", c, 1, n_weights, exec_coefs_weights, bound_coefs_weights,
                 QR_DTYPE_F32);
}

static void check_predict(const streams_case *c) {
    check_output("stream_predict", c, N_ROWS, c->n * c->dim, exec_predict, bound_predict, QR_DTYPE_F32);
    check_output("stream_predict's active", c, N_ROWS, c->dim, exec_active, bound_active, QR_DTYPE_F32);
}

static void check_predict_backward(const streams_case *c) {
    check_output("stream_predict_backward", c, N_ROWS, c->n * c->dim, exec_predict_dstreams, bound_predict_dstreams,
                 QR_DTYPE_F32);
    check_output("stream_predict_backward's coefficients", c, N_ROWS, c->n_coefs, exec_predict_dcoefs,
                 bound_predict_dcoefs, QR_DTYPE_F32);
}

static void check_correct(const streams_case *c) {
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_BF16, QR_DTYPE_F16};
    check_output("stream_correct", c, N_ROWS, c->n * c->dim, exec_correct, bound_correct, QR_DTYPE_F32);
    for (size_t i = 0; i < QR_COUNT_OF(dtypes); i++) {
        check_output("stream_correct's dst", c, N_ROWS, c->dim, exec_corrected, bound_corrected, dtypes[i]);
    }
}

static void check_correct_backward(const streams_case *c) {
    check_output("stream_correct_backward", c, N_ROWS, c->n * c->dim, exec_correct_dstreams, bound_correct_dstreams,
                 QR_DTYPE_F32);
    check_output("stream_correct_backward's dx", c, N_ROWS, c->dim, exec_correct_dx, bound_correct_dx, QR_DTYPE_F32);
    check_output("stream_correct_backward's coefficients", c, N_ROWS, c->n_coefs, exec_correct_dcoefs,
                 bound_correct_dcoefs, QR_DTYPE_F32);
    check_output("stream_correct_backward's scale", c, 1, c->dim, exec_correct_dscale, bound_correct_dscale,
                 QR_DTYPE_F32);
}

static void check_level(const streams_case *c) {
    check_output("stream_level", c, N_ROWS, c->n * c->dim, exec_level, bound_level, QR_DTYPE_F32);
}

static void check_level_backward(const streams_case *c) {
    check_output("stream_level_backward", c, N_ROWS, c->n * c->dim, exec_level_backward, bound_level_backward,
                 QR_DTYPE_F32);
}

/* Of quantiles below, at and above the mean. */
static void for_quantiles(const streams_case *of, const char *what, exec_fn exec, bound_fn bound_of) {
    const float quantiles[] = {-0.5F, 0.0F, of->dim < 16 ? 0.7F : 1.6448536F}; /* few have none far above */
    for (size_t i = 0; i < QR_COUNT_OF(quantiles); i++) {
        for (int k = 0; k < 2; k++) {
            streams_case c = *of;
            c.quantile = quantiles[i];
            c.in_place = k == 1;
            check_output(what, &c, N_ROWS, c.dim, exec, bound_of, QR_DTYPE_F32);
        }
    }
}

/* A single element is its own mean: nothing is left of it. */
static void check_topk(const streams_case *c) {
    if (c->dim > 1) { for_quantiles(c, "gaussian_topk", exec_topk, bound_topk); }
}

static void check_topk_backward(const streams_case *c) {
    if (c->dim > 1) { for_quantiles(c, "gaussian_topk_backward", exec_topk_backward, bound_topk_backward); }
}

void test_op_stream_coefs(void) {
    for_sizes(check_coefs, true);
    for_sizes(check_coefs, false);
}
void test_op_stream_predict(void) { for_sizes(check_predict, true); }
void test_op_stream_correct(void) { for_sizes(check_correct, false); }
void test_op_stream_level(void) { for_sizes(check_level, false); }
void test_op_gaussian_topk(void) { for_sizes(check_topk, false); }
void test_op_stream_coefs_backward(void) {
    for_sizes(check_coefs_backward, true);
    for_sizes(check_coefs_backward, false);
}
void test_op_stream_predict_backward(void) { for_sizes(check_predict_backward, true); }
void test_op_stream_correct_backward(void) { for_sizes(check_correct_backward, false); }
void test_op_stream_level_backward(void) { for_sizes(check_level_backward, false); }
void test_op_gaussian_topk_backward(void) { for_sizes(check_topk_backward, false); }
