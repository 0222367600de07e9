/* adamw, adamw8bit, sgd and adafactor. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

static const int64_t sizes[] = {1, 3, 16, 17, 1000, 20011};

/* --- adamw and sgd: an element is a row of p and its states --- */

typedef struct element_case {
    const float *p, *g, *m, *v; /* v NULL: sgd */
    int64_t step;
    float grad_scale, lr, eps, weight_decay;
    bool of_8bit;
} element_case;

#define BETA1 0.9F
#define BETA2 0.999F
#define MOMENTUM 0.9F

/* out [n, n_parts]: element i of every part side by side. */
static void read_parts(op_run *run, const float *const *parts, int n_parts, int64_t n, float *out) {
    float *part = qr_alloc((size_t)n * sizeof *part);
    for (int k = 0; k < n_parts; k++) {
        op_read(run, parts[k], part);
        for (int64_t i = 0; i < n; i++) { out[i * n_parts + k] = part[i]; }
    }
    qr_free(part);
}

static void exec_adamw(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype;
    const element_case *c = data;
    const size_t n_bytes = (size_t)n * sizeof(float);
    const qr_adamw_args args = {
        .p = op_output(run, c->p + first, 1, n_bytes, n_bytes),
        .g = op_input(run, c->g + first, n_bytes),
        .m = op_output(run, c->m + first, 1, n_bytes, n_bytes),
        .v = op_output(run, c->v + first, 1, n_bytes, n_bytes),
        .n = n,
        .step = c->step,
        .grad_scale = c->grad_scale,
        .lr = c->lr,
        .beta1 = BETA1,
        .beta2 = BETA2,
        .eps = c->eps,
        .weight_decay = c->weight_decay,
        .of_8bit = c->of_8bit,
    };
    op_call(run, QR_OP_adamw, &args);
    read_parts(run, (const float *const[]){args.p, args.m, args.v}, 3, n, out);
}

/* m and v are sums of two terms with a few roundings each; v's are both positive. The step divides m by a root that
 * errs by half of v's error and a few u; the corrections are computed in F64. */
static void adamw_bound(const element_case *c, int64_t i, double *bound) {
    const double g = fabs((double)c->g[i] * (double)c->grad_scale), p = fabs((double)c->p[i]), lr = (double)c->lr;
    const double m = (double)BETA1 * fabs((double)c->m[i]) + (1.0 - (double)BETA1) * g;
    const double v = (double)BETA2 * (double)c->v[i] + (1.0 - (double)BETA2) * g * g;
    const double correction1 = 1.0 - pow((double)BETA1, (double)c->step);
    const double correction2 = 1.0 - pow((double)BETA2, (double)c->step);
    const double step = lr / correction1 * m / (sqrt(v / correction2) + (double)c->eps);
    bound[0] = 5.0 * OP_U * p + (5.0 + 4.0 + 12.0) * OP_U * step;
    bound[1] = 5.0 * OP_U * m;
    bound[2] = 7.0 * OP_U * v;
}

static void exec_sgd(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype;
    const element_case *c = data;
    const size_t n_bytes = (size_t)n * sizeof(float);
    const qr_sgd_args args = {
        .p = op_output(run, c->p + first, 1, n_bytes, n_bytes),
        .g = op_input(run, c->g + first, n_bytes),
        .m = op_output(run, c->m + first, 1, n_bytes, n_bytes),
        .n = n,
        .step = c->step,
        .grad_scale = c->grad_scale,
        .lr = c->lr,
        .momentum = MOMENTUM,
        .weight_decay = c->weight_decay,
    };
    op_call(run, QR_OP_sgd, &args);
    read_parts(run, (const float *const[]){args.p, args.m}, 2, n, out);
}

/* At step 1 what m held is not read: it may be anything. */
static void sgd_bound(const element_case *c, int64_t i, double *bound) {
    const double p = fabs((double)c->p[i]), g = fabs((double)c->g[i] * (double)c->grad_scale);
    const double before = c->step == 1 ? 0.0 : (double)MOMENTUM * fabs((double)c->m[i]);
    const double m = g + (double)c->weight_decay * p + before;
    bound[0] = 2.0 * OP_U * p + 8.0 * OP_U * (double)c->lr * m;
    bound[1] = 5.0 * OP_U * m;
}

static void check_elements(bool adamw, int64_t n, int64_t step, float weight_decay, bool of_8bit) {
    float *p = op_normals(n, 1, 1.0), *g = op_normals(n, 2, 3.0), *m = op_normals(n, 3, 0.5);
    float *v = op_normals(n, 4, 1.0);
    for (int64_t i = 0; i < n; i++) {
        v[i] = step == 1 ? 0.0F : v[i] * v[i];
        if (step == 1) { m[i] = adamw ? 0.0F : NAN; }
        if (i % 13 == 5) { g[i] = 0.0F; }
        if (i % 17 == 6) { g[i] *= 1e-12F; }
    }
    const int64_t row = adamw ? 3 : 2;
    double *bound = op_doubles(n * row);
    const element_case data = {.p = p,
                               .g = g,
                               .m = m,
                               .v = v,
                               .step = step,
                               .grad_scale = 0.37F,
                               .lr = 1e-2F,
                               .eps = 1e-8F,
                               .weight_decay = weight_decay,
                               .of_8bit = of_8bit};
    for (int64_t i = 0; i < n && !of_8bit; i++) { (adamw ? adamw_bound : sgd_bound)(&data, i, bound + i * row); }
    op_case c = {.n_rows = n, .row = row, .exec = adamw ? exec_adamw : exec_sgd, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "%s%s of %lld, step %lld, decay %g", adamw ? "adamw" : "sgd",
             of_8bit ? " of 8-bit" : "", (long long)n, (long long)step, (double)weight_decay);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(p);
    qr_free(g);
    qr_free(m);
    qr_free(v);
    qr_free(bound);
}

static void check_all_sizes(bool adamw) {
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        check_elements(adamw, sizes[i], 1, 0.1F, false);
        check_elements(adamw, sizes[i], 2, 0.0F, false);
        check_elements(adamw, sizes[i], 1000, 0.01F, false);
        if (adamw) { check_elements(true, sizes[i], 1000, 0.01F, true); } /* equal to the bit: bounds of 0 */
    }
}

void test_op_adamw(void) { check_all_sizes(true); }

void test_op_sgd(void) { check_all_sizes(false); }

/* --- adamw8bit: bit-equal; a block is a row --- */

enum { BLOCK = 256, BLOCK_ROW = 3 * BLOCK + 2 };

typedef struct block_case {
    int64_t n, step;
    const float *p, *g, *m_absmax, *v_absmax;
    const uint8_t *m, *v;
    float weight_decay;
} block_case;

/* Row: p, the codes of m and of v as numbers, and the two absmax; zeros fill the last one. */
static void exec_adamw8bit(op_run *run, const void *data, int64_t first, int64_t n_blocks, qr_dtype dtype, void *out) {
    (void)dtype;
    const block_case *c = data;
    const int64_t at = first * BLOCK, n = qr_min(n_blocks * BLOCK, c->n - at);
    const size_t n_bytes = (size_t)n * sizeof(float), absmax_bytes = (size_t)n_blocks * sizeof(float);
    const qr_adamw8bit_args args = {
        .p = op_output(run, c->p + at, 1, n_bytes, n_bytes),
        .g = op_input(run, c->g + at, n_bytes),
        .m = op_output(run, c->m + at, 1, (size_t)n, (size_t)n),
        .v = op_output(run, c->v + at, 1, (size_t)n, (size_t)n),
        .m_absmax = op_output(run, c->m_absmax + first, 1, absmax_bytes, absmax_bytes),
        .v_absmax = op_output(run, c->v_absmax + first, 1, absmax_bytes, absmax_bytes),
        .n = n,
        .step = c->step,
        .grad_scale = 0.37F,
        .lr = 1e-2F,
        .beta1 = BETA1,
        .beta2 = BETA2,
        .eps = 1e-8F,
        .weight_decay = c->weight_decay,
    };
    op_call(run, QR_OP_adamw8bit, &args);
    float *p = qr_alloc(n_bytes), *absmax = qr_alloc(2 * absmax_bytes);
    uint8_t *codes = qr_alloc(2 * (size_t)n);
    op_read(run, args.p, p);
    op_read(run, args.m, codes);
    op_read(run, args.v, codes + n);
    op_read(run, args.m_absmax, absmax);
    op_read(run, args.v_absmax, absmax + n_blocks);
    memset(out, 0, (size_t)(n_blocks * BLOCK_ROW) * sizeof(float));
    for (int64_t b = 0; b < n_blocks; b++) {
        float *row = (float *)out + b * BLOCK_ROW;
        for (int64_t j = 0; j < BLOCK && b * BLOCK + j < n; j++) {
            row[j] = p[b * BLOCK + j];
            row[BLOCK + j] = (float)codes[b * BLOCK + j];
            row[2 * BLOCK + j] = (float)codes[n + b * BLOCK + j];
        }
        row[3 * BLOCK] = absmax[b];
        row[3 * BLOCK + 1] = absmax[n_blocks + b];
    }
    qr_free(p);
    qr_free(absmax);
    qr_free(codes);
}

/* Any codes are a state that may occur. Among the gradients: a block of zeros, zeros, tiny ones, and none finite. */
static void check_adamw8bit(int64_t n, int64_t step, float weight_decay) {
    const int64_t n_blocks = qr_ceil_div(n, BLOCK);
    float *p = op_normals(n, 1, 1.0), *g = op_normals(n, 2, 3.0), *m_absmax = op_normals(n_blocks, 3, 1.0);
    float *v_absmax = op_normals(n_blocks, 4, 1.0);
    uint8_t *m = qr_alloc_zeroed((size_t)n), *v = qr_alloc_zeroed((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        m[i] = (uint8_t)(step == 1 ? 0 : op_below(5, i, 256));
        v[i] = (uint8_t)(step == 1 ? 0 : op_below(6, i, 256));
        if (i / BLOCK % 4 == 1) { g[i] = 0.0F; }
        if (i % 13 == 5) { g[i] = 0.0F; }
        if (i % 17 == 6) { g[i] *= 1e-6F; }
        if (i % 101 == 50) { g[i] = i % 2 == 0 ? NAN : INFINITY; }
    }
    for (int64_t b = 0; b < n_blocks; b++) {
        m_absmax[b] = step == 1 ? 0.0F : fabsf(m_absmax[b]);
        v_absmax[b] = step == 1 ? 0.0F : fabsf(v_absmax[b]);
    }
    const block_case data = {.n = n,
                             .step = step,
                             .p = p,
                             .g = g,
                             .m_absmax = m_absmax,
                             .v_absmax = v_absmax,
                             .m = m,
                             .v = v,
                             .weight_decay = weight_decay};
    op_case c = {.n_rows = n_blocks, .row = BLOCK_ROW, .exec = exec_adamw8bit, .data = &data};
    snprintf(c.label, sizeof c.label, "adamw8bit of %lld, step %lld, decay %g", (long long)n, (long long)step,
             (double)weight_decay);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(p);
    qr_free(g);
    qr_free(m_absmax);
    qr_free(v_absmax);
    qr_free(m);
    qr_free(v);
}

void test_op_adamw8bit(void) {
    static const int64_t lengths[] = {1, 255, 256, 257, 1031, 20011};
    for (size_t i = 0; i < QR_COUNT_OF(lengths); i++) {
        check_adamw8bit(lengths[i], 1, 0.01F);
        check_adamw8bit(lengths[i], 2, 0.0F);
        check_adamw8bit(lengths[i], 300, 0.1F);
    }
}

/* --- adafactor: the whole matrix hangs together --- */

typedef struct factor_case {
    int64_t rows, cols, step;
    const float *p, *g, *row_moment, *col_moment;
    float weight_decay;
} factor_case;

static int64_t row_moments(const factor_case *c) { return c->rows > 1 ? c->rows : c->cols; }

/* p, then row_moment, then col_moment where there is one. */
static void exec_adafactor(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)first, (void)n, (void)dtype;
    const factor_case *c = data;
    const size_t p_bytes = (size_t)(c->rows * c->cols) * sizeof(float), col_bytes = (size_t)c->cols * sizeof(float);
    const size_t row_bytes = (size_t)row_moments(c) * sizeof(float);
    const qr_adafactor_args args = {
        .p = op_output(run, c->p, 1, p_bytes, p_bytes),
        .g = op_input(run, c->g, p_bytes),
        .row_moment = op_output(run, c->row_moment, 1, row_bytes, row_bytes),
        .col_moment = c->rows > 1 ? op_output(run, c->col_moment, 1, col_bytes, col_bytes) : NULL,
        .update = op_output(run, NULL, 1, p_bytes, p_bytes),
        .rows = c->rows,
        .cols = c->cols,
        .step = c->step,
        .grad_scale = 0.37F,
        .lr = 1e-2F,
        .eps1 = 1e-30F,
        .clip_threshold = 1.0F,
        .decay_rate = -0.8F,
        .weight_decay = c->weight_decay,
    };
    op_call(run, QR_OP_adafactor, &args);
    op_read(run, args.p, out);
    op_read(run, args.row_moment, (float *)out + c->rows * c->cols);
    if (c->rows > 1) { op_read(run, args.col_moment, (float *)out + c->rows * c->cols + c->rows); }
}

/* The moments are sums of positive terms: n + 8 roundings for a mean over n. An update divides by two roots of them,
 * one of which has the mean of row_moment below it; the root mean square of all updates errs by as much and by half of
 * what the sum of its squares does. */
static void adafactor_bound(const factor_case *c, double *bound) {
    const int64_t n = c->rows * c->cols;
    const double row_error = (double)((c->rows > 1 ? c->cols : 1) + 8) * OP_U, col_error = (double)(c->rows + 8) * OP_U;
    const double update_error = c->rows > 1 ? row_error + 0.5 * col_error + (double)(c->rows + 16) * OP_U : 8.0 * OP_U;
    const double lr = 1e-2, error = 2.0 * update_error + (0.5 * (double)n + 12.0) * OP_U;
    float *out = qr_alloc_array((size_t)(n + row_moments(c) + c->cols), sizeof *out);
    op_run run = {.backend = op_everything.ref, .label = "adafactor bound"};
    exec_adafactor(&run, c, 0, 1, QR_DTYPE_F32, out);
    op_run_end(&run);
    for (int64_t i = 0; i < n; i++) {
        const double p = (double)c->p[i], change = fabs((double)out[i] - p * (1.0 - lr * (double)c->weight_decay));
        bound[i] = 5.0 * OP_U * fabs(p) + error * (change + OP_U * fabs(p));
    }
    for (int64_t i = 0; i < row_moments(c); i++) { bound[n + i] = row_error * (double)out[n + i]; }
    for (int64_t i = n + c->rows; c->rows > 1 && i < n + c->rows + c->cols; i++) {
        bound[i] = col_error * (double)out[i];
    }
    qr_free(out);
}

static void check_adafactor(int64_t rows, int64_t cols, int64_t step, float weight_decay) {
    const int64_t n = rows * cols, n_out = n + (rows > 1 ? rows + cols : cols);
    float *p = op_normals(n, 1, 1.0), *g = op_normals(n, 2, 3.0);
    float *row_moment = op_normals(qr_max(rows, cols), 3, 1.0), *col_moment = op_normals(cols, 4, 1.0);
    for (int64_t i = 0; i < qr_max(rows, cols); i++) {
        row_moment[i] = step == 1 ? 0.0F : row_moment[i] * row_moment[i];
    }
    for (int64_t i = 0; i < cols; i++) { col_moment[i] = step == 1 ? 0.0F : col_moment[i] * col_moment[i]; }
    double *bound = op_doubles(n_out);
    const factor_case data = {.rows = rows,
                              .cols = cols,
                              .step = step,
                              .p = p,
                              .g = g,
                              .row_moment = row_moment,
                              .col_moment = col_moment,
                              .weight_decay = weight_decay};
    adafactor_bound(&data, bound);
    op_case c = {.n_rows = 1, .row = n_out, .exec = exec_adafactor, .data = &data, .bound = bound, .whole = true};
    snprintf(c.label, sizeof c.label, "adafactor [%lld, %lld], step %lld, decay %g", (long long)rows, (long long)cols,
             (long long)step, (double)weight_decay);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(p);
    qr_free(g);
    qr_free(row_moment);
    qr_free(col_moment);
    qr_free(bound);
}

void test_op_adafactor(void) {
    static const int64_t shapes[][2] = {{1, 1}, {1, 1003}, {2, 1}, {16, 64}, {17, 31}, {300, 7}, {129, 172}};
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) {
        check_adafactor(shapes[i][0], shapes[i][1], 1, 0.0F);
        check_adafactor(shapes[i][0], shapes[i][1], 7, 0.1F);
    }
}
