/* rope_backward, activation_backward, gate_backward, embedding_backward, scatter_rows, dropout, round_act and
 * store_weight. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"

enum { N_ROWS = 65, N_FNS = 6 };

/* Below every normal result, as in op_elementwise.c. */
#define TINY 1e-30

static const int64_t dims[] = {1, 3, 15, 16, 31, 64, 172, 321};

/* --- activation_backward and gate_backward --- */

/* fn'(x), and what an F32 one may err by. A factor that is 1 minus something near 1 errs by 4 u of 1, hence the terms
 * with x: silu' = σ (1 + x (1 − σ)) with σ ≤ e^x, and 1 − σ is 0 beyond 20; gelu' multiplies 1 − tanh², 0 beyond 6, by
 * x and the slope of the argument; the density in gelu's erf form errs by x² / 2 u of itself. */
static double act_slope(qr_act_fn fn, double x) {
    const double k = sqrt(2.0 / 3.14159265358979323846);
    switch (fn) {
        case QR_ACT_SILU: return 1.0 / (1.0 + exp(-x)) + (fabs(x) < 700.0 ? x / (2.0 + exp(x) + exp(-x)) : 0.0);
        case QR_ACT_GELU_TANH: {
            if (fabs(x) > 30.0) { return x > 0.0 ? 1.0 : 0.0; }
            const double t = tanh(k * (x + 0.044715 * x * x * x));
            return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 0.134145 * x * x);
        }
        case QR_ACT_GELU_ERF:
            return 0.5 * erfc(-x * sqrt(0.5)) + (fabs(x) < 40.0 ? x * 0.5 * k * exp(-0.5 * x * x) : 0.0);
        case QR_ACT_RELU2: return x < 0.0 ? 0.0 : 2.0 * x;
        case QR_ACT_NONE: return 1.0;
        case QR_ACT_SIGMOID: return 1.0 / (2.0 + exp(x) + exp(-x));
    }
    return NAN;
}

static double act_slope_bound(qr_act_fn fn, double x) {
    const double size = fabs(x), near = fmin(size, 6.0);
    switch (fn) {
        case QR_ACT_SILU:
            return TINY +
                   8.0 * OP_U * (x > 0.0 ? 1.0 + fmin(size, 20.0) : (1.0 + fmin(size, 200.0)) / (1.0 + exp(size)));
        case QR_ACT_GELU_TANH: return TINY + 8.0 * OP_U * (1.0 + near * 0.8 * (1.0 + 0.134145 * near * near));
        case QR_ACT_GELU_ERF: return TINY + 8.0 * OP_U * (1.0 + size * (1.0 + size * size) * exp(-0.5 * size * size));
        case QR_ACT_RELU2: /* 2 x is exact */
        case QR_ACT_NONE: return TINY;
        case QR_ACT_SIGMOID: return TINY + 16.0 * OP_U / (2.0 + exp(x) + exp(-x));
    }
    return NAN;
}

typedef struct act_case {
    qr_act_fn fn;
    int64_t dim;
    bool in_place;           /* dg is g and du is u; activation: dx is dy, or x where the dimension is odd */
    const float *x, *u, *dy; /* x [N_ROWS, dim] with rows x_stride apart, u u_stride, dy contiguous */
} act_case;

static int64_t x_stride(int64_t dim) { return dim + op_gap(dim); }
static int64_t u_stride(int64_t dim) { return x_stride(dim) + 12; }

/* Rows [first, first + n_rows) of an input with gaps, without them. */
static float *packed_rows(const act_case *c, const float *src, int64_t stride, int64_t first, int64_t n_rows) {
    float *rows = qr_alloc((size_t)(n_rows * c->dim) * sizeof(float));
    for (int64_t i = 0; i < n_rows; i++) {
        memcpy(rows + i * c->dim, src + (first + i) * stride, (size_t)c->dim * sizeof(float));
    }
    return rows;
}

static void exec_activation_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                     void *out) {
    (void)dtype;
    const act_case *c = data;
    const int64_t stride = x_stride(c->dim), dx_stride = stride + 4;
    const size_t row_bytes = (size_t)c->dim * sizeof(float);
    const float *dy = c->dy + first * c->dim;
    const bool is_dy = c->in_place && c->dim % 2 == 0, is_x = c->in_place && !is_dy;
    float *x = packed_rows(c, c->x, x_stride(c->dim), first, n_rows);
    float *dx = op_output(run, is_dy ? dy : is_x ? x : NULL, n_rows, row_bytes, (size_t)dx_stride * sizeof(float));
    const size_t x_bytes = (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float);
    const qr_activation_backward_args args = {
        .fn = c->fn,
        .x = is_x ? dx : op_input(run, c->x + first * stride, x_bytes),
        .dy = is_dy ? dx : op_input(run, dy, (size_t)n_rows * row_bytes),
        .dx = dx,
        .n_rows = n_rows,
        .dim = c->dim,
        .x_stride = is_x ? dx_stride : stride,
        .dy_stride = is_dy ? dx_stride : c->dim,
        .dx_stride = dx_stride,
    };
    op_call(run, QR_OP_activation_backward, &args);
    op_read(run, args.dx, out);
    qr_free(x);
}

/* Row: dg, then du. Four strides; in place two, of dg and of du. */
static void exec_gate_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                               void *out) {
    (void)dtype;
    const act_case *c = data;
    const int64_t g_stride = x_stride(c->dim), dg_stride = g_stride + 4, du_stride = g_stride + 8;
    const int64_t from_u = u_stride(c->dim);
    const size_t g_bytes = (size_t)((n_rows - 1) * g_stride + c->dim) * sizeof(float);
    const size_t u_bytes = (size_t)((n_rows - 1) * from_u + c->dim) * sizeof(float);
    const size_t row_bytes = (size_t)c->dim * sizeof(float);
    float *g = packed_rows(c, c->x, x_stride(c->dim), first, n_rows),
          *u = packed_rows(c, c->u, u_stride(c->dim), first, n_rows);
    float *to_g = op_output(run, c->in_place ? g : NULL, n_rows, row_bytes, (size_t)dg_stride * sizeof(float));
    float *to_u = op_output(run, c->in_place ? u : NULL, n_rows, row_bytes, (size_t)du_stride * sizeof(float));
    const qr_gate_backward_args args = {
        .fn = c->fn,
        .g = c->in_place ? to_g : op_input(run, c->x + first * g_stride, g_bytes),
        .u = c->in_place ? to_u : op_input(run, c->u + first * from_u, u_bytes),
        .dy = op_input(run, c->dy + first * c->dim, (size_t)n_rows * row_bytes),
        .dg = to_g,
        .du = to_u,
        .n_rows = n_rows,
        .dim = c->dim,
        .g_stride = c->in_place ? dg_stride : g_stride,
        .u_stride = c->in_place ? du_stride : from_u,
        .dg_stride = dg_stride,
        .du_stride = du_stride,
    };
    op_call(run, QR_OP_gate_backward, &args);
    float *dg = qr_alloc((size_t)n_rows * row_bytes), *du = qr_alloc((size_t)n_rows * row_bytes);
    op_read(run, args.dg, dg);
    op_read(run, args.du, du);
    for (int64_t i = 0; i < n_rows; i++) {
        memcpy((float *)out + 2 * i * c->dim, dg + i * c->dim, row_bytes);
        memcpy((float *)out + (2 * i + 1) * c->dim, du + i * c->dim, row_bytes);
    }
    qr_free(dg);
    qr_free(du);
    qr_free(g);
    qr_free(u);
}

/* The slope of relu2 has no end: of arguments that F32 doubles, and whose products with it F32 holds. */
static void hold_to_slopes(qr_act_fn fn, float *x, int64_t n) {
    for (int64_t i = 0; fn == QR_ACT_RELU2 && i < n; i++) { x[i] = fmaxf(fminf(x[i], 1e30F), -1e30F); }
}

static void check_act_backward(qr_act_fn fn, int64_t dim, bool gated, bool in_place) {
    const int64_t row = gated ? 2 * dim : dim;
    float *x = op_act_inputs(N_ROWS * x_stride(dim), 1), *u = op_normals(N_ROWS * u_stride(dim), 2, 0.5);
    float *dy = op_normals(N_ROWS * dim, 3, 1.0);
    double *bound = op_doubles(N_ROWS * row);
    hold_to_slopes(fn, x, N_ROWS * x_stride(dim));
    const act_case data = {.fn = fn, .dim = dim, .in_place = in_place, .x = x, .u = u, .dy = dy};
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        const double value = (double)x[i / dim * x_stride(dim) + i % dim];
        const double size_of_u = fabs((double)u[i / dim * u_stride(dim) + i % dim]);
        const double slope = act_slope_bound(fn, value) + 2.0 * OP_U * fabs(act_slope(fn, value));
        const double y = op_act_bound(fn, value) + 2.0 * OP_U * fabs(op_act_value(fn, value));
        const double factor = fabs((double)dy[i]), from_u = gated ? size_of_u : 1.0;
        bound[i / dim * row + i % dim] = factor * from_u * slope;
        if (gated) { bound[i / dim * row + dim + i % dim] = factor * y; }
    }
    op_case c = {.n_rows = N_ROWS,
                 .row = row,
                 .exec = gated ? exec_gate_backward : exec_activation_backward,
                 .data = &data,
                 .bound = bound};
    snprintf(c.label, sizeof c.label, "%s fn %d dim %lld%s", gated ? "gate_backward" : "activation_backward", (int)fn,
             (long long)dim, in_place ? " in place" : "");
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(x);
    qr_free(u);
    qr_free(dy);
    qr_free(bound);
}

void test_op_activation_backward(void) {
    for (size_t i = 0; i < N_FNS * QR_COUNT_OF(dims); i++) {
        check_act_backward((qr_act_fn)(i % N_FNS), dims[i / N_FNS], false, i % 4 != 0);
    }
}

void test_op_gate_backward(void) {
    for (size_t i = 0; i < N_FNS * QR_COUNT_OF(dims); i++) {
        check_act_backward((qr_act_fn)(i % N_FNS), dims[i / N_FNS], true, i % 2 == 0);
    }
}

/* --- embedding_backward --- */

typedef struct embedding_case {
    int64_t n_tokens, dim, vocab;
    const int32_t *ids;
    const float *dy, *dtable;
    float scale;
    bool first_beyond;
} embedding_case;

static void exec_embedding_backward(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype,
                                    void *out) {
    (void)first, (void)n, (void)dtype;
    const embedding_case *c = data;
    const size_t table_bytes = (size_t)(c->vocab * c->dim) * sizeof(float);
    const qr_embedding_backward_args args = {
        .ids = op_input(run, c->ids, (size_t)c->n_tokens * sizeof(int32_t)),
        .dy = op_input(run, c->dy, (size_t)(c->n_tokens * c->dim) * sizeof(float)),
        .dtable = op_output(run, c->dtable, 1, table_bytes, table_bytes),
        .n_tokens = c->n_tokens,
        .dim = c->dim,
        .vocab = c->vocab,
        .scale = c->scale,
        .first_beyond = c->first_beyond,
    };
    op_call(run, QR_OP_embedding_backward, &args);
    op_read(run, args.dtable, out);
}

/* Every token adds a product to its row: two roundings, or one when fused, of what the sum then is. Rows that no token
 * has stay as they are: bound 0. */
static void check_embedding_backward(int64_t n_tokens, int64_t dim, int64_t vocab, float scale, bool first_beyond) {
    int32_t *ids = qr_alloc_array((size_t)n_tokens, sizeof *ids);
    for (int64_t i = 0; i < n_tokens; i++) { ids[i] = (int32_t)op_below(1, i, vocab); }
    float *dy = op_normals(n_tokens * dim, 2, 1.0), *dtable = op_normals(vocab * dim, 3, 1.0);
    double *bound = op_doubles(vocab * dim);
    int64_t *n_hits = qr_alloc_array_zeroed((size_t)vocab, sizeof *n_hits);
    for (int64_t i = 0; i < n_tokens; i++) {
        const int64_t row = first_beyond && i % 3 == 0 ? 0 : ids[i];
        n_hits[row]++;
        if (first_beyond && i % 3 == 0) { ids[i] = (int32_t)(vocab + i); }
        for (int64_t j = 0; j < dim; j++) { bound[row * dim + j] += fabs((double)dy[i * dim + j] * (double)scale); }
    }
    for (int64_t i = 0; i < vocab * dim; i++) {
        const int64_t n = n_hits[i / dim];
        if (n > 0) { bound[i] = (double)(n + 2) * OP_U * (bound[i] + fabs((double)dtable[i])); }
    }
    const embedding_case data = {.n_tokens = n_tokens,
                                 .dim = dim,
                                 .vocab = vocab,
                                 .ids = ids,
                                 .dy = dy,
                                 .dtable = dtable,
                                 .scale = scale,
                                 .first_beyond = first_beyond};
    op_case c = {
        .n_rows = vocab, .row = dim, .exec = exec_embedding_backward, .data = &data, .bound = bound, .whole = true};
    snprintf(c.label, sizeof c.label, "embedding_backward %lld tokens of %lld into [%lld]%s", (long long)n_tokens,
             (long long)dim, (long long)vocab, first_beyond ? ", the first for others" : "");
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(ids);
    qr_free(dy);
    qr_free(dtable);
    qr_free(bound);
    qr_free(n_hits);
}

void test_op_embedding_backward(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        check_embedding_backward(1, dims[i], 3, 1.0F, false);
        check_embedding_backward(65, dims[i], 103, 50.5F, false);
        check_embedding_backward(300, dims[i], 7, 1.0F, false);
        check_embedding_backward(65, dims[i], 31, 1.5F, true);
    }
}

/* --- scatter_rows --- */

typedef struct scatter_case {
    int64_t n_rows, n_dst_rows, dim;
    const float *src;
    const int32_t *rows;
} scatter_case;

static void exec_scatter_rows(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)first, (void)n, (void)dtype;
    const scatter_case *c = data;
    const size_t row_bytes = (size_t)c->dim * sizeof(float);
    const qr_scatter_rows_args args = {
        .src = op_input(run, c->src, (size_t)c->n_rows * row_bytes),
        .rows = op_input(run, c->rows, (size_t)c->n_rows * sizeof(int32_t)),
        .dst = op_output(run, NULL, c->n_dst_rows, row_bytes, row_bytes),
        .n_rows = c->n_rows,
        .n_dst_rows = c->n_dst_rows,
        .dim = c->dim,
    };
    op_call(run, QR_OP_scatter_rows, &args);
    op_read(run, args.dst, out);
}

void test_op_scatter_rows(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims) * 3; i++) {
        const int64_t dim = dims[i / 3], n_dst_rows = i % 3 == 0 ? 1 : 65, step = i % 3 == 2 ? 3 : 1;
        int32_t rows[65];
        int64_t n_rows = 0;
        for (int64_t r = (int64_t)(i % 3) / 2; r < n_dst_rows; r += step) { rows[n_rows++] = (int32_t)r; }
        float *src = op_normals(n_rows * dim, 4, 1.0);
        if (n_rows > 1) { src[dim] = NAN; }
        const scatter_case data = {.n_rows = n_rows, .n_dst_rows = n_dst_rows, .dim = dim, .src = src, .rows = rows};
        op_case c = {.n_rows = n_dst_rows, .row = dim, .exec = exec_scatter_rows, .data = &data, .whole = true};
        snprintf(c.label, sizeof c.label, "scatter_rows %lld of %lld rows of %lld", (long long)n_rows,
                 (long long)n_dst_rows, (long long)dim);
        op_check_case(&c, QR_DTYPE_F32);
        qr_free(src);
    }
}

/* --- dropout and round_act --- */

typedef struct dropout_case {
    int64_t dim;
    const float *x; /* [N_ROWS, dim + op_gap(dim)], exact in BF16 and F16 */
    const int64_t *row_key;
    uint64_t key;
    float p;
    bool in_place;
} dropout_case;

static void exec_dropout(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const dropout_case *c = data;
    const int64_t stride = c->dim + op_gap(c->dim);
    const size_t size = qr_dtype_bytes(dtype), row_bytes = (size_t)c->dim * size;
    unsigned char *x = op_to_dtype(c->x + first * stride, n_rows * stride, dtype);
    unsigned char *packed = qr_alloc((size_t)n_rows * row_bytes);
    for (int64_t i = 0; i < n_rows; i++) {
        memcpy(packed + (size_t)i * row_bytes, x + (size_t)(i * stride) * size, row_bytes);
    }
    void *dst = op_output(run, c->in_place ? packed : NULL, n_rows, row_bytes, (size_t)stride * size);
    const qr_dropout_args args = {
        .x = c->in_place ? dst : op_input(run, x, (size_t)((n_rows - 1) * stride + c->dim) * size),
        .x_dtype = dtype,
        .dst = dst,
        .row_key = op_input(run, c->row_key + first, (size_t)n_rows * sizeof(int64_t)),
        .key = c->key,
        .p = c->p,
        .n_rows = n_rows,
        .dim = c->dim,
        .x_stride = stride,
        .dst_stride = stride,
    };
    op_call(run, QR_OP_dropout, &args);
    op_read(run, args.dst, out);
    op_run_end(run); /* before the inputs made here go */
    qr_free(x);
    qr_free(packed);
}

static bool is_kept(const dropout_case *c, int64_t row, int64_t col) {
    const uint64_t row_key = (uint64_t)c->row_key[row];
    const uint32_t counter[4] = {(uint32_t)(col / 4), (uint32_t)row_key, (uint32_t)(row_key >> 32), 0};
    uint32_t words[4];
    qr_philox(c->key, counter, words);
    return (double)words[col % 4] >= (double)c->p * 4294967296.0;
}

/* 1 − p, its inverse and the product are a rounding each; what is dropped is zero exactly. */
static void check_dropout(int64_t dim, float p, bool in_place) {
    const int64_t stride = dim + op_gap(dim);
    float *x = op_normals(N_ROWS * stride, 5, 1.0);
    for (int64_t i = 0; i < N_ROWS * stride; i++) {
        const float value = qr_bf16_to_f32(qr_f32_to_bf16(x[i]));
        x[i] = qr_f16_to_f32(qr_f32_to_f16(value));
    }
    int64_t row_key[N_ROWS];
    for (int64_t i = 0; i < N_ROWS; i++) { row_key[i] = op_below(6, i, INT64_C(1) << 50); }
    double *bound = op_doubles(N_ROWS * dim);
    const dropout_case data = {
        .dim = dim, .x = x, .row_key = row_key, .key = UINT64_C(0x123456789ABCDEF0), .p = p, .in_place = in_place};
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        const double value = fabs((double)x[i / dim * stride + i % dim]) / (1.0 - (double)p);
        bound[i] = is_kept(&data, i / dim, i % dim) && p > 0.0F ? 3.0 * OP_U * value : 0.0;
    }
    op_case c = {.n_rows = N_ROWS, .row = dim, .exec = exec_dropout, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "dropout %g of %lld%s", (double)p, (long long)dim, in_place ? ", in place" : "");
    op_check_case(&c, QR_DTYPE_F32);
    op_check_case(&c, QR_DTYPE_BF16);
    op_check_case(&c, QR_DTYPE_F16);
    qr_free(x);
    qr_free(bound);
}

void test_op_dropout(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        check_dropout(dims[i], 0.1F, i % 2 == 0);
        check_dropout(dims[i], 0.5F, i % 2 == 1);
        check_dropout(dims[i], 0.0F, i % 2 == 0);
    }
}

typedef struct round_case {
    int64_t dim;
    const float *src;
} round_case;

static void exec_round_act(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const round_case *c = data;
    const int64_t stride = c->dim + op_gap(c->dim);
    const size_t row_bytes = (size_t)c->dim * qr_dtype_bytes(dtype);
    const qr_round_act_args args = {
        .src = op_input(run, c->src + first * stride, (size_t)((n_rows - 1) * stride + c->dim) * sizeof(float)),
        .dst = op_output(run, NULL, n_rows, row_bytes, (size_t)stride * qr_dtype_bytes(dtype)),
        .dst_dtype = dtype,
        .n_rows = n_rows,
        .dim = c->dim,
        .src_stride = stride,
        .dst_stride = stride,
    };
    op_call(run, QR_OP_round_act, &args);
    op_read(run, args.dst, out);
}

/* Bit-equal to base/half.h: normal numbers, NaN, infinities, ties and what rounds up to infinity. */
void test_op_round_act(void) {
    static const float odd[] = {NAN,      INFINITY,  -INFINITY,   1.00390625F, 1.01171875F,    3.4e38F, 1e-40F,  -0.0F,
                                65519.0F, -65520.0F, 1.00048828F, 1.00146484F, 2.98023224e-8F, 8.9e-8F, -6.1e-5F};
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        const int64_t n = N_ROWS * (dims[i] + op_gap(dims[i]));
        float *src = op_normals(n, 7, 1.0);
        for (int64_t j = 0; j < n; j += 7) { src[j] = odd[j / 7 % (int64_t)QR_COUNT_OF(odd)]; }
        const round_case data = {.dim = dims[i], .src = src};
        op_case c = {.n_rows = N_ROWS, .row = dims[i], .exec = exec_round_act, .data = &data};
        snprintf(c.label, sizeof c.label, "round_act %lld", (long long)dims[i]);
        op_check_case(&c, QR_DTYPE_F32);
        op_check_case(&c, QR_DTYPE_BF16);
        op_check_case(&c, QR_DTYPE_F16);
        qr_free(src);
    }
}

/* --- store_weight --- */

static qr_weight_format format_of(qr_dtype dtype) {
    return dtype == QR_DTYPE_F32 ? QR_WEIGHT_F32 : dtype == QR_DTYPE_F16 ? QR_WEIGHT_F16 : QR_WEIGHT_BF16;
}

static void exec_store_weight(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const round_case *c = data;
    qr_error err = {0};
    qr_weight weight = {.desc = {.format = format_of(dtype), .rows = n_rows, .cols = c->dim}};
    const size_t n_bytes = run->backend->weight_bytes(run->backend, &weight.desc);
    weight.data = op_output(run, NULL, 1, n_bytes, n_bytes);
    const qr_store_weight_args args = {
        .src = op_input(run, c->src + first * c->dim, (size_t)(n_rows * c->dim) * sizeof(float)),
        .weight = &weight,
    };
    op_call(run, QR_OP_store_weight, &args);
    CHECK_MSG(run->backend->weight_get_rows(run->backend, &weight, 0, n_rows, out, &err) == QRUN_OK, "%s", err.message);
}

/* What get_rows gives back is what half.h makes of the numbers. */
void test_op_store_weight(void) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 1.00390625F, 65519.0F, 3.4e38F, 1e-40F, -0.0F, 3e-8F};
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        const int64_t n = N_ROWS * dims[i];
        float *src = op_normals(n, 23, 1.0);
        for (int64_t j = 0; j < n; j += 7) { src[j] = odd[j / 7 % (int64_t)QR_COUNT_OF(odd)]; }
        const round_case data = {.dim = dims[i], .src = src};
        op_case c = {.n_rows = N_ROWS, .row = dims[i], .exec = exec_store_weight, .data = &data};
        snprintf(c.label, sizeof c.label, "store_weight %lld", (long long)dims[i]);
        op_check_case(&c, QR_DTYPE_F32);
        op_check_case(&c, QR_DTYPE_BF16);
        op_check_case(&c, QR_DTYPE_F16);
        qr_free(src);
    }
}
