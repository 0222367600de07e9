/* xielu and its backward part. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_ROWS = 37 };

/* Of a published model's kind: eps is −1e-6 in BF16. */
static const float ALPHA_P = 0.55F, ALPHA_N = -1.2F, BETA = 0.5F, EPS = -9.98378e-07F;

typedef struct xielu_case {
    int64_t dim;
    bool in_place;
    const float *x, *dy; /* [N_ROWS, dim + gap] */
} xielu_case;

static double softplus_of(double x) { return log1p(exp(x)); }
static double above(void) { return softplus_of((double)ALPHA_P); }
static double below(void) { return (double)BETA + softplus_of((double)ALPHA_N); }

static qr_xielu_args args_of(op_run *run, const xielu_case *c, int64_t first, int64_t n_rows) {
    const int64_t stride = c->dim + op_gap(c->dim);
    return (qr_xielu_args){
        .x = op_input(run, c->x + first * stride, (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float)),
        .alpha_p = op_input(run, &ALPHA_P, sizeof ALPHA_P),
        .alpha_n = op_input(run, &ALPHA_N, sizeof ALPHA_N),
        .beta = op_input(run, &BETA, sizeof BETA),
        .eps = op_input(run, &EPS, sizeof EPS),
        .n_rows = n_rows,
        .dim = c->dim,
        .x_stride = stride};
}

static void exec_forward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const xielu_case *c = data;
    const size_t row_bytes = (size_t)c->dim * qr_dtype_bytes(dtype);
    qr_xielu_args args = args_of(run, c, first, n_rows);
    args.dst = op_output(run, NULL, n_rows, row_bytes, row_bytes);
    args.dst_dtype = dtype;
    op_call(run, QR_OP_xielu, &args);
    op_read(run, args.dst, out);
}

/* dx, over dy or apart. */
static void exec_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const xielu_case *c = data;
    const int64_t stride = c->dim + op_gap(c->dim);
    const size_t src_bytes = (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float);
    const size_t row_bytes = (size_t)c->dim * sizeof(float), d_bytes = (size_t)stride * sizeof(float);
    float *dy = qr_alloc((size_t)(n_rows * c->dim) * sizeof *dy);
    for (int64_t i = 0; i < n_rows; i++) { memcpy(dy + i * c->dim, c->dy + (first + i) * stride, row_bytes); }
    qr_xielu_backward_args args = {.forward = args_of(run, c, first, n_rows), .dy_stride = stride, .dx_stride = stride};
    args.dx = op_output(run, c->in_place ? dy : NULL, n_rows, row_bytes, d_bytes);
    args.dy = c->in_place ? args.dx : op_input(run, c->dy + first * stride, src_bytes);
    op_call(run, QR_OP_xielu_backward, &args);
    op_read(run, args.dx, out);
    qr_free(dy);
}

static const float BEFORE[2] = {0.25F, -3.0F};

/* What the sums over all elements add to. */
static void exec_sums(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype, (void)first, (void)n_rows;
    const xielu_case *c = data;
    const int64_t stride = c->dim + op_gap(c->dim);
    const size_t src_bytes = (size_t)((N_ROWS - 1) * stride + c->dim) * sizeof(float);
    const size_t row_bytes = (size_t)c->dim * sizeof(float);
    qr_xielu_backward_args args = {.forward = args_of(run, c, 0, N_ROWS), .dy_stride = stride, .dx_stride = c->dim};
    args.dy = op_input(run, c->dy, src_bytes);
    args.dx = op_output(run, NULL, N_ROWS, row_bytes, row_bytes);
    args.dalpha_p = op_output(run, &BEFORE[0], 1, sizeof(float), sizeof(float));
    args.dalpha_n = op_output(run, &BEFORE[1], 1, sizeof(float), sizeof(float));
    op_call(run, QR_OP_xielu_backward, &args);
    op_read(run, args.dalpha_p, out);
    op_read(run, args.dalpha_n, (float *)out + 1);
}

/* Both signs, and what is far from zero, next to it, or between eps and it. */
static float *inputs(int64_t n) {
    static const float ends[] = {0.0F,  -0.0F, 20.0F,   -20.0F,  88.5F,  -88.5F, 1e4F,   -1e4F,  1e-20F, -1e-20F,
                                 -6.0F, 1e15F, -5e-07F, -2e-06F, -1e-3F, -0.49F, -0.51F, -1e15F, 1e-3F};
    float *x = op_normals(n, 1, 2.0);
    for (int64_t i = 0; i < n; i += 5) { x[i] = ends[i / 5 % (int64_t)QR_COUNT_OF(ends)]; }
    return x;
}

/* The exponential less 1 errs by a few u of itself, softplus by u, and each product and sum rounds once. */
static void bounds_of(double x, double dy, double *forward, double *dx) {
    const double size = x > 0.0 ? above() * x * x : below() * (fabs(expm1(x)) + 1e-6 + fabs(x));
    const double slope = x > 0.0 ? 2.0 * above() * x : below();
    *forward = 8.0 * OP_U * size + 4.0 * OP_U * (double)BETA * fabs(x) + 1e-38;
    *dx = fabs(dy) * (8.0 * OP_U * slope + 4.0 * OP_U * (double)BETA) + 1e-38;
}

static void check_forward(int64_t dim) {
    const int64_t stride = dim + op_gap(dim);
    float *x = inputs(N_ROWS * stride);
    double *bound = op_doubles(N_ROWS * dim), unused;
    const xielu_case data = {.dim = dim, .x = x};
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        bounds_of((double)x[i / dim * stride + i % dim], 0.0, &bound[i], &unused);
    }
    op_case c = {.n_rows = N_ROWS, .row = dim, .exec = exec_forward, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "xielu dim %lld", (long long)dim);
    op_check_case(&c, QR_DTYPE_F32);
    op_check_case(&c, QR_DTYPE_BF16);
    op_check_case(&c, QR_DTYPE_F16);
    qr_free(x);
    qr_free(bound);
}

static void check_backward(int64_t dim, bool in_place) {
    const int64_t stride = dim + op_gap(dim);
    float *x = inputs(N_ROWS * stride), *dy = op_normals(N_ROWS * stride, 2, 1.0);
    double *bound = op_doubles(N_ROWS * dim), unused;
    const xielu_case data = {.dim = dim, .in_place = in_place, .x = x, .dy = dy};
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        const int64_t at = i / dim * stride + i % dim;
        bounds_of((double)x[at], (double)dy[at], &unused, &bound[i]);
    }
    op_case c = {.n_rows = N_ROWS, .row = dim, .exec = exec_backward, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "xielu_backward dim %lld%s", (long long)dim, in_place ? " in place" : "");
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(x);
    qr_free(dy);
    qr_free(bound);
}

/* Sums of so many terms, in any order, err by as many u of the sum of their sizes. */
static void check_sums(int64_t dim) {
    const int64_t stride = dim + op_gap(dim);
    float *x = op_normals(N_ROWS * stride, 1, 2.0), *dy = op_normals(N_ROWS * stride, 2, 1.0);
    double sizes[2] = {fabs((double)BEFORE[0]), fabs((double)BEFORE[1])}, bound[2];
    const double factors[2] = {1.0 / (1.0 + exp(-(double)ALPHA_P)), 1.0 / (1.0 + exp(-(double)ALPHA_N))};
    const xielu_case data = {.dim = dim, .x = x, .dy = dy};
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        const double at = (double)x[i / dim * stride + i % dim], d = fabs((double)dy[i / dim * stride + i % dim]);
        if (at > 0.0) { sizes[0] += factors[0] * d * at * at; }
        if (!(at > 0.0)) { sizes[1] += factors[1] * d * (fabs(expm1(at)) + fabs(at)); }
    }
    for (int i = 0; i < 2; i++) { bound[i] = (double)(N_ROWS + dim + 16) * OP_U * sizes[i]; }
    op_case c = {.n_rows = 1, .row = 2, .exec = exec_sums, .data = &data, .bound = bound, .whole = true};
    snprintf(c.label, sizeof c.label, "xielu_backward's sums dim %lld", (long long)dim);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(x);
    qr_free(dy);
}

static const int64_t dims[] = {1, 3, 15, 16, 31, 64, 172, 321};

void test_op_xielu(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) { check_forward(dims[i]); }
}

void test_op_xielu_backward(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        check_backward(dims[i], false);
        check_backward(dims[i], true);
        check_sums(dims[i]);
    }
}
