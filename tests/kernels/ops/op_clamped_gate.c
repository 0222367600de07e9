/* clamped_gate and its backward part. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_ROWS = 23 };

static const float ALPHA = 1.702F, LIMIT = 2.5F; /* a limit that many inputs are beyond */

typedef struct gate_case {
    int64_t dim;
    bool in_place;
    const float *g, *u; /* [N_ROWS, dim + gap] */
    const float *dy;    /* [N_ROWS, dim] */
} gate_case;

static qr_clamped_gate_args args_of(int64_t n_rows, int64_t dim, int64_t stride) {
    return (qr_clamped_gate_args){.n_rows = n_rows, .dim = dim, .stride = stride, .alpha = ALPHA, .limit = LIMIT};
}

static void exec_forward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const gate_case *c = data;
    const int64_t stride = c->dim + op_gap(c->dim);
    const size_t row_bytes = (size_t)c->dim * qr_dtype_bytes(dtype);
    const size_t src_bytes = (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float);
    qr_clamped_gate_args args = args_of(n_rows, c->dim, stride);
    args.g = op_input(run, c->g + first * stride, src_bytes);
    args.u = op_input(run, c->u + first * stride, src_bytes);
    args.dst = op_output(run, NULL, n_rows, row_bytes, row_bytes);
    args.dst_dtype = dtype;
    op_call(run, QR_OP_clamped_gate, &args);
    op_read(run, args.dst, out);
}

/* Rows [first, first + n_rows) of a strided matrix, packed; qr_free. */
static float *packed_rows(const gate_case *c, const float *src, int64_t first, int64_t n_rows) {
    const int64_t stride = c->dim + op_gap(c->dim);
    float *rows = qr_alloc((size_t)(n_rows * c->dim) * sizeof *rows);
    for (int64_t i = 0; i < n_rows; i++) {
        memcpy(rows + i * c->dim, src + (first + i) * stride, (size_t)c->dim * sizeof *rows);
    }
    return rows;
}

/* Row: dg, then du. */
static void exec_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const gate_case *c = data;
    const int64_t stride = c->dim + op_gap(c->dim), d_stride = stride + 4;
    const size_t src_bytes = (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float);
    const size_t row_bytes = (size_t)c->dim * sizeof(float), d_bytes = (size_t)d_stride * sizeof(float);
    float *g = packed_rows(c, c->g, first, n_rows), *u = packed_rows(c, c->u, first, n_rows);
    qr_clamped_gate_backward_args args = {.forward = args_of(n_rows, c->dim, c->in_place ? d_stride : stride),
                                          .dgu_stride = d_stride};
    args.dg = op_output(run, c->in_place ? g : NULL, n_rows, row_bytes, d_bytes);
    args.du = op_output(run, c->in_place ? u : NULL, n_rows, row_bytes, d_bytes);
    args.dy = op_input(run, c->dy + first * c->dim, (size_t)n_rows * row_bytes);
    args.forward.g = c->in_place ? args.dg : op_input(run, c->g + first * stride, src_bytes);
    args.forward.u = c->in_place ? args.du : op_input(run, c->u + first * stride, src_bytes);
    op_call(run, QR_OP_clamped_gate_backward, &args);
    op_read(run, args.dg, g);
    op_read(run, args.du, u);
    for (int64_t i = 0; i < n_rows; i++) {
        memcpy((float *)out + 2 * i * c->dim, g + i * c->dim, row_bytes);
        memcpy((float *)out + (2 * i + 1) * c->dim, u + i * c->dim, row_bytes);
    }
    qr_free(g);
    qr_free(u);
}

/* The sigmoid errs by a few u of itself, and as much more as its argument, which is rounded, is large; then come three
 * products and a sum. The slope's two terms are of magnitude 1 and |x| (1 − s). */
static void bounds_of(const gate_case *c, int64_t at, double dy, double *forward, double *dg, double *du) {
    const double g = fmin((double)c->g[at], (double)LIMIT), x = (double)ALPHA * g;
    const double u = fmax(fmin((double)c->u[at], (double)LIMIT), -(double)LIMIT);
    const double open = 1.0 / (1.0 + exp(-x)), shut = 1.0 / (1.0 + exp(x)), tiny = 0x1p-126;
    const double relative = (8.0 + fmin(fabs(x), 128.0)) * OP_U, size = fabs(g) * open * fabs(u + 1.0);
    *forward = relative * size + fabs(g) * open * 4.0 * OP_U + tiny * (1.0 + fabs(g));
    *dg = fabs(dy) * fabs(u + 1.0) * open * (1.0 + fabs(x) * shut) * 2.0 * relative + fabs(dy) * tiny * 256.0;
    *du = fabs(dy) * (fabs(g) * open * relative + tiny * (1.0 + fabs(g)));
    *dg += fabs(dy) * open * (1.0 + fabs(x) * shut) * 4.0 * OP_U; /* u + 1 is rounded */
}

static void check_gate(int64_t dim, bool backward, bool in_place) {
    const int64_t stride = dim + op_gap(dim), row = backward ? 2 * dim : dim;
    float *g = op_act_inputs(N_ROWS * stride, 1), *u = op_normals(N_ROWS * stride, 2, 2.0);
    float *dy = op_normals(N_ROWS * dim, 3, 1.0);
    double *bound = op_doubles(N_ROWS * row);
    const gate_case data = {dim, in_place, g, u, dy};
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        double *at = bound + i / dim * row + i % dim, forward, dg, du;
        bounds_of(&data, i / dim * stride + i % dim, (double)dy[i], &forward, &dg, &du);
        at[0] = backward ? dg : forward;
        if (backward) { at[dim] = du; }
    }
    op_case c = {.n_rows = N_ROWS, .row = row, .data = &data, .bound = bound};
    c.exec = backward ? exec_backward : exec_forward;
    snprintf(c.label, sizeof c.label, "clamped_gate%s dim %lld%s", backward ? "_backward" : "", (long long)dim,
             in_place ? " in place" : "");
    op_check_case(&c, QR_DTYPE_F32);
    if (!backward) {
        op_check_case(&c, QR_DTYPE_BF16);
        op_check_case(&c, QR_DTYPE_F16);
    }
    qr_free(g);
    qr_free(u);
    qr_free(dy);
    qr_free(bound);
}

static const int64_t dims[] = {1, 3, 16, 31, 172};

void test_op_clamped_gate(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) { check_gate(dims[i], false, false); }
}

void test_op_clamped_gate_backward(void) {
    for (size_t i = 0; i < 2 * QR_COUNT_OF(dims); i++) { check_gate(dims[i / 2], true, i % 2 == 1); }
}
