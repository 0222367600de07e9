/* activation, gate, add, scale, scale_columns, softcap and nll. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_ROWS = 65, N_FNS = 6 };

/* Below every normal result: where exp has underflowed, zero is as right as a denormal number. */
#define TINY 1e-30

typedef struct act_case {
    qr_act_fn fn;
    int64_t dim;
    const float *x, *u; /* [N_ROWS, dim + op_gap(dim)] */
} act_case;

double op_act_value(qr_act_fn fn, double x) {
    switch (fn) {
        case QR_ACT_SILU: return x / (1.0 + exp(-x));
        case QR_ACT_GELU_TANH:
            return x / (1.0 + exp(-2.0 * sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        case QR_ACT_GELU_ERF: return 0.5 * x * erfc(-x * sqrt(0.5));
        case QR_ACT_RELU2: return x < 0.0 ? 0.0 : x * x;
        case QR_ACT_NONE: return x;
        case QR_ACT_SIGMOID: return 1.0 / (1.0 + exp(-x));
    }
    return NAN;
}

/* relu2 is one product. silu and a sigmoid have no cancellation: a few roundings of itself (exp errs by 4 u). gelu
 * computes 1 + tanh or 1 + erf, which err by a few u of 1, so its error is relative to x. */
double op_act_bound(qr_act_fn fn, double x) {
    if (fn == QR_ACT_RELU2) { return TINY + OP_U * op_act_value(fn, x); }
    return TINY + 8.0 * OP_U * (fn == QR_ACT_SILU || fn == QR_ACT_SIGMOID ? fabs(op_act_value(fn, x)) : fabs(x));
}

static void exec_activation(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const act_case *c = data;
    const int64_t stride = c->dim + op_gap(c->dim);
    const size_t row_bytes = (size_t)c->dim * qr_dtype_bytes(dtype);
    const qr_activation_args args = {
        .fn = c->fn,
        .x = op_input(run, c->x + first * stride, (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float)),
        .dst = op_output(run, NULL, n_rows, row_bytes, row_bytes),
        .dst_dtype = dtype,
        .n_rows = n_rows,
        .dim = c->dim,
        .x_stride = stride,
    };
    op_call(run, QR_OP_activation, &args);
    op_read(run, args.dst, out);
}

static void exec_gate(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const act_case *c = data;
    const int64_t stride = c->dim + op_gap(c->dim);
    const size_t row_bytes = (size_t)c->dim * qr_dtype_bytes(dtype);
    const size_t src_bytes = (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float);
    const qr_gate_args args = {
        .fn = c->fn,
        .g = op_input(run, c->x + first * stride, src_bytes),
        .u = op_input(run, c->u + first * stride, src_bytes),
        .dst = op_output(run, NULL, n_rows, row_bytes, row_bytes),
        .dst_dtype = dtype,
        .n_rows = n_rows,
        .dim = c->dim,
        .g_stride = stride,
        .u_stride = stride,
    };
    op_call(run, QR_OP_gate, &args);
    op_read(run, args.dst, out);
}

/* Normal numbers, and in every fifth place one that takes exp, tanh and erf to their ends. */
float *op_act_inputs(int64_t n, uint64_t stream) {
    static const float ends[] = {0.0F, -0.0F, 20.0F,  -20.0F, 88.5F,   -88.5F,
                                 1e4F, -1e4F, 1e-20F, -6.0F,  3.4e38F, -3.4e38F};
    float *x = op_normals(n, stream, 3.0);
    for (int64_t i = 0; i < n; i += 5) { x[i] = ends[i / 5 % (int64_t)QR_COUNT_OF(ends)]; }
    return x;
}

static void check_act(qr_act_fn fn, int64_t dim, bool gated) {
    const int64_t stride = dim + op_gap(dim);
    float *x = op_act_inputs(N_ROWS * stride, 1), *u = op_normals(N_ROWS * stride, 2, 0.5);
    double *bound = op_doubles(N_ROWS * dim);
    const act_case data = {.fn = fn, .dim = dim, .x = x, .u = u};
    op_case c = {
        .n_rows = N_ROWS, .row = dim, .exec = gated ? exec_gate : exec_activation, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "%s fn %d dim %lld", gated ? "gate" : "activation", (int)fn, (long long)dim);
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        const int64_t at = i / dim * stride + i % dim;
        const double factor = gated ? fabs((double)u[at]) : 1.0;
        bound[i] = factor * (op_act_bound(fn, (double)x[at]) + OP_U * fabs(op_act_value(fn, (double)x[at])));
    }
    op_check_case(&c, QR_DTYPE_F32);
    op_check_case(&c, QR_DTYPE_BF16);
    op_check_case(&c, QR_DTYPE_F16);
    qr_free(x);
    qr_free(u);
    qr_free(bound);
}

static const int64_t dims[] = {1, 3, 15, 16, 31, 64, 172, 321};

void test_op_activation(void) {
    for (size_t i = 0; i < N_FNS * QR_COUNT_OF(dims); i++) {
        check_act((qr_act_fn)(i % N_FNS), dims[i / N_FNS], false);
    }
}

void test_op_gate(void) {
    for (size_t i = 0; i < N_FNS * QR_COUNT_OF(dims); i++) { check_act((qr_act_fn)(i % N_FNS), dims[i / N_FNS], true); }
}

/* The flat ops are cases of rows of one element, so that parts of the range are run alone. */
typedef struct flat_case {
    const float *x, *y;
    float cap;
} flat_case;

static void exec_add(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype;
    const flat_case *c = data;
    const size_t n_bytes = (size_t)n * sizeof(float);
    const qr_add_args args = {
        .x = op_output(run, c->x + first, 1, n_bytes, n_bytes),
        .y = op_input(run, c->y + first, n_bytes),
        .n = n,
    };
    op_call(run, QR_OP_add, &args);
    op_read(run, args.x, out);
}

static void exec_scale(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype;
    const flat_case *c = data;
    const size_t n_bytes = (size_t)n * sizeof(float);
    const qr_scale_args args = {.x = op_output(run, c->x + first, 1, n_bytes, n_bytes),
                                .n = n,
                                .factor = c->cap,
                                .by = c->y != NULL ? op_input(run, c->y, sizeof(float)) : NULL};
    op_call(run, QR_OP_scale, &args);
    op_read(run, args.x, out);
}

static void exec_softcap(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype;
    const flat_case *c = data;
    const size_t n_bytes = (size_t)n * sizeof(float);
    const qr_softcap_args args = {.x = op_output(run, c->x + first, 1, n_bytes, n_bytes), .n = n, .cap = c->cap};
    op_call(run, QR_OP_softcap, &args);
    op_read(run, args.x, out);
}

static const int64_t flat_sizes[] = {1, 2, 15, 16, 17, 63, 1000, 4099};

void test_op_add(void) {
    for (size_t s = 0; s < QR_COUNT_OF(flat_sizes); s++) {
        const int64_t n = flat_sizes[s];
        float *x = op_normals(n, 3, 1.0), *y = op_normals(n, 4, 1e-3);
        if (n > 20) {
            x[3] = INFINITY;
            x[17] = NAN;
            y[18] = -INFINITY;
        }
        const flat_case data = {.x = x, .y = y};
        op_case c = {.n_rows = n, .row = 1, .exec = exec_add, .data = &data};
        snprintf(c.label, sizeof c.label, "add of %lld", (long long)n);
        op_check_case(&c, QR_DTYPE_F32);
        qr_free(x);
        qr_free(y);
    }
}

void test_op_scale(void) {
    const float by = 0.7F;
    for (size_t s = 0; s < 2 * QR_COUNT_OF(flat_sizes); s++) {
        const int64_t n = flat_sizes[s / 2];
        float *x = op_normals(n, 6, 1.0);
        if (n > 20) {
            x[3] = INFINITY;
            x[17] = NAN;
        }
        const flat_case data = {.x = x, .y = s % 2 == 0 ? NULL : &by, .cap = -0.22F};
        op_case c = {.n_rows = n, .row = 1, .exec = exec_scale, .data = &data};
        snprintf(c.label, sizeof c.label, "scale of %lld%s", (long long)n, s % 2 == 0 ? "" : ", by a value");
        op_check_case(&c, QR_DTYPE_F32);
        qr_free(x);
    }
}

typedef struct columns_case {
    const float *x; /* [n, stride] */
    int64_t stride, n_parts;
    const int64_t *widths;
} columns_case;

static void exec_scale_columns(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype;
    static const float factors[QR_MAX_SCALED_PARTS] = {0.7F, -1.3F, 0.11F, 1.0F, 3.5F};
    const columns_case *c = data;
    const size_t row_bytes = (size_t)c->stride * sizeof(float);
    qr_scale_columns_args args = {
        .x = op_output(run, c->x + first * c->stride, n, row_bytes, row_bytes), .n_rows = n, .x_stride = c->stride};
    for (int64_t p = 0; p < c->n_parts; p++) { args.parts[p] = (qr_scaled_part){c->widths[p], factors[p]}; }
    op_call(run, QR_OP_scale_columns, &args);
    op_read(run, args.x, out);
}

/* Columns after the last part are among those compared: they stay. */
void test_op_scale_columns(void) {
    enum { N_CASES = 5 };
    static const int64_t widths[N_CASES][QR_MAX_SCALED_PARTS] = {
        {1, 0, 0, 0, 0}, {3, 2, 1, 5, 1}, {17, 1, 31, 4, 9}, {64, 64, 16, 16, 4}, {172, 0, 0, 0, 0}};
    static const int64_t strides[N_CASES] = {1, 13, 65, 164, 344};
    for (int i = 0; i < N_CASES; i++) {
        float *x = op_normals(N_ROWS * strides[i], 8, 1.0);
        if (i > 0) {
            x[3] = INFINITY;
            x[7] = NAN;
        }
        const columns_case data = {.x = x, .stride = strides[i], .n_parts = QR_MAX_SCALED_PARTS, .widths = widths[i]};
        op_case c = {.n_rows = N_ROWS, .row = strides[i], .exec = exec_scale_columns, .data = &data};
        snprintf(c.label, sizeof c.label, "scale_columns of %lld", (long long)strides[i]);
        op_check_case(&c, QR_DTYPE_F32);
        qr_free(x);
    }
}

/* tanh errs by at most 4 u of 1 near its ends and where it is computed from exp; then two roundings. */
void test_op_softcap(void) {
    for (size_t s = 0; s < QR_COUNT_OF(flat_sizes); s++) {
        const int64_t n = flat_sizes[s];
        float *x = op_normals(n, 5, 40.0);
        double *bound = op_doubles(n);
        if (n > 20) {
            x[7] = 1e30F;
            x[8] = -1e30F;
            x[18] = 0.0F;
        }
        const flat_case data = {.x = x, .cap = s % 2 == 0 ? 30.0F : 50.0F};
        for (int64_t i = 0; i < n; i++) {
            const double value = (double)data.cap * tanh((double)x[i] / (double)data.cap);
            bound[i] = 4.0 * OP_U * (double)data.cap + 4.0 * OP_U * fabs(value);
        }
        op_case c = {.n_rows = n, .row = 1, .exec = exec_softcap, .data = &data, .bound = bound};
        snprintf(c.label, sizeof c.label, "softcap of %lld at %g", (long long)n, (double)data.cap);
        op_check_case(&c, QR_DTYPE_F32);
        qr_free(x);
        qr_free(bound);
    }
}

typedef struct nll_case {
    int64_t vocab;
    const float *logits;
    const int32_t *target;
} nll_case;

static void exec_nll(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const nll_case *c = data;
    const qr_nll_args args = {
        .logits = op_input(run, c->logits + first * c->vocab, (size_t)(n_rows * c->vocab) * sizeof(float)),
        .target = op_input(run, c->target + first, (size_t)n_rows * sizeof(int32_t)),
        .dst = op_output(run, NULL, n_rows, sizeof(float), sizeof(float)),
        .n_rows = n_rows,
        .vocab = c->vocab,
    };
    op_call(run, QR_OP_nll, &args);
    op_read(run, args.dst, out);
}

/* F32 exponentials of differences d from the largest logit err by (d + 4) u of themselves: d u is the rounding of the
 * difference. The logarithm makes that absolute. The result is rounded once, and the F64 sums err by a little more. */
static double nll_bound(const float *logits, int64_t vocab, int64_t target) {
    double largest = -INFINITY, sum = 0.0, error = 0.0;
    for (int64_t v = 0; v < vocab; v++) { largest = fmax(largest, (double)logits[v]); }
    for (int64_t v = 0; v < vocab; v++) {
        const double difference = largest - (double)logits[v], term = exp(-difference);
        sum += term;
        error += term * (difference + 4.0) * OP_U;
    }
    const double value = log(sum) + (largest - (double)logits[target]);
    return error / sum + OP_U * value + (double)(vocab + 8) * 0x1p-52 * (fabs(largest) + 1.0);
}

static void check_nll(int64_t vocab, double magnitude) {
    float *logits = op_normals(N_ROWS * vocab, 6, magnitude);
    int32_t target[N_ROWS];
    double bound[N_ROWS];
    for (int64_t i = 0; i < N_ROWS; i++) {
        target[i] = (int32_t)op_below(7, i, vocab);
        bound[i] = nll_bound(logits + i * vocab, vocab, target[i]);
    }
    const nll_case data = {.vocab = vocab, .logits = logits, .target = target};
    op_case c = {.n_rows = N_ROWS, .row = 1, .exec = exec_nll, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "nll vocabulary %lld, logits about %g", (long long)vocab, magnitude);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(logits);
}

void test_op_nll(void) {
    static const int64_t vocabularies[] = {2, 31, 512, 1003, 4099};
    for (size_t i = 0; i < QR_COUNT_OF(vocabularies); i++) {
        check_nll(vocabularies[i], 1.0);
        check_nll(vocabularies[i], 200.0); /* exp overflows F64 without the shift */
    }
}
