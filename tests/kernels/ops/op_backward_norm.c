/* rms_norm_backward and layer_norm_backward. dx is a function of its own row; dweight and dbias are sums over rows. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_ROWS = 65 };

typedef enum norm_mode { OVERWRITE, ACCUMULATE, IN_PLACE } norm_mode;

typedef struct norm_case {
    int64_t n_groups, dim;
    const float *x, *weight, *dy; /* x [N_ROWS, row + op_gap(row)], dy [N_ROWS, n_groups · dim] packed */
    const float *dx;              /* [N_ROWS, n_groups · dim]: what is accumulated onto */
    const float *dweight, *dbias; /* [dim]: what is added to */
    float eps, weight_offset;
    norm_mode mode;
} norm_case;

/* dy as an input with a gap, or dy as what dx will overwrite. */
static void set_dy_dx(op_run *run, const norm_case *c, int64_t first, int64_t n_rows, int64_t dx_stride,
                      const float **dy, float **dx) {
    const int64_t row = c->n_groups * c->dim;
    const size_t row_bytes = (size_t)row * sizeof(float);
    const float *const initials[] = {NULL, c->dx, c->dy}; /* by mode */
    const float *initial = c->mode == OVERWRITE ? NULL : initials[c->mode] + first * row;
    *dx = op_output(run, initial, n_rows, row_bytes, (size_t)dx_stride * sizeof(float));
    *dy = c->mode == IN_PLACE ? *dx : op_input(run, c->dy + first * row, (size_t)n_rows * row_bytes);
}

/* --- rms_norm_backward --- */

static void run_rms(op_run *run, const norm_case *c, int64_t first, int64_t n_rows, float *dx, float *dweight) {
    const int64_t row = c->n_groups * c->dim, x_stride = row + op_gap(row);
    const size_t dim_bytes = (size_t)c->dim * sizeof(float);
    qr_rms_norm_backward_args args = {
        .x = op_input(run, c->x + first * x_stride, (size_t)((n_rows - 1) * x_stride + row) * sizeof(float)),
        .weight = op_input(run, c->weight, dim_bytes),
        .dweight = dweight != NULL ? op_output(run, c->dweight, 1, dim_bytes, dim_bytes) : NULL,
        .n_rows = n_rows,
        .n_groups = c->n_groups,
        .dim = c->dim,
        .x_stride = x_stride,
        .dx_stride = x_stride + 4,
        .eps = c->eps,
        .weight_offset = c->weight_offset,
        .accumulate = c->mode == ACCUMULATE,
    };
    args.dy_stride = c->mode == IN_PLACE ? args.dx_stride : row;
    set_dy_dx(run, c, first, n_rows, args.dx_stride, &args.dy, &args.dx);
    op_call(run, QR_OP_rms_norm_backward, &args);
    if (dx != NULL) { op_read(run, args.dx, dx); }
    if (dweight != NULL) { op_read(run, args.dweight, dweight); }
}

static void exec_rms_dx(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    run_rms(run, data, first, n_rows, out, NULL);
}

static void exec_rms_dweight(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    run_rms(run, data, 0, N_ROWS, NULL, out);
}

/* s errs by ((n + 1) / 2 + 6) u of itself (op_norm.c), the sum of g x by (n + 4) u of its magnitudes. dx is a
 * difference of a term with s and one with s³ and that sum; dweight a sum of N_ROWS · n_groups terms with s. */
static void rms_bounds(const norm_case *c, double *dx, double *dweight) {
    const int64_t row = c->n_groups * c->dim;
    const double n = (double)c->dim, s_error = ((n + 1.0) / 2.0 + 6.0) * OP_U;
    const double terms = (double)(N_ROWS * c->n_groups + 4) * OP_U;
    for (int64_t j = 0; j < c->dim; j++) { dweight[j] = terms * fabs((double)c->dweight[j]); }
    for (int64_t i = 0; i < N_ROWS * c->n_groups; i++) {
        const float *x = c->x + i / c->n_groups * (row + op_gap(row)) + i % c->n_groups * c->dim;
        const float *dy = c->dy + i * c->dim;
        double squares = 0.0, dot = 0.0;
        for (int64_t j = 0; j < c->dim; j++) {
            squares += (double)x[j] * (double)x[j];
            dot += fabs((double)dy[j] * ((double)c->weight[j] + (double)c->weight_offset) * (double)x[j]);
        }
        const double s = 1.0 / sqrt(squares / n + (double)c->eps);
        for (int64_t j = 0; j < c->dim; j++) {
            const double weight = fabs((double)c->weight[j] + (double)c->weight_offset);
            const double left = s * fabs((double)dy[j]) * weight, right = fabs((double)x[j]) * s * s * s * dot / n;
            const double before = c->mode == ACCUMULATE ? fabs((double)c->dx[i * c->dim + j]) : 0.0;
            dx[i * c->dim + j] =
                (s_error + 6.0 * OP_U) * left + (3.0 * s_error + (n + 12.0) * OP_U) * right + 2.0 * OP_U * before;
            dweight[j] += (s_error + terms) * s * fabs((double)dy[j] * (double)x[j]);
        }
    }
}

/* Makes the inputs; the caller frees them with free_inputs. */
static norm_case norm_inputs(int64_t n_groups, int64_t dim, double magnitude, norm_mode mode) {
    const int64_t row = n_groups * dim;
    return (norm_case){
        .n_groups = n_groups,
        .dim = dim,
        .x = op_normals(N_ROWS * (row + op_gap(row)), 1, magnitude),
        .weight = op_normals(dim, 2, 1.0),
        .dy = op_normals(N_ROWS * row, 3, 1.0),
        .dx = op_normals(N_ROWS * row, 4, 1.0),
        .dweight = op_normals(dim, 5, 1.0),
        .dbias = op_normals(dim, 6, 1.0),
        .eps = 1e-5F,
        .mode = mode,
    };
}

static void free_inputs(const norm_case *c) {
    const float *const all[] = {c->x, c->weight, c->dy, c->dx, c->dweight, c->dbias};
    for (size_t i = 0; i < QR_COUNT_OF(all); i++) { qr_free((void *)(uintptr_t)all[i]); }
}

static const char *const mode_names[] = {"overwrite", "accumulate", "in place"};

static void check_rms_norm_backward(int64_t n_groups, int64_t dim, double magnitude, float offset, norm_mode mode) {
    norm_case data = norm_inputs(n_groups, dim, magnitude, mode);
    data.weight_offset = offset;
    double *dx = op_doubles(N_ROWS * n_groups * dim), *dweight = op_doubles(dim);
    rms_bounds(&data, dx, dweight);
    op_case c = {.n_rows = N_ROWS, .row = n_groups * dim, .exec = exec_rms_dx, .data = &data, .bound = dx};
    snprintf(c.label, sizeof c.label, "rms_norm_backward %lld x %lld, values about %g, %s", (long long)n_groups,
             (long long)dim, magnitude, mode_names[mode]);
    /* One element is its own norm: without eps its gradient would be zero, and what eps leaves is lost in the bound. */
    if (dim > 1) { op_check_case(&c, QR_DTYPE_F32); }
    c.n_rows = 1;
    c.row = dim;
    c.exec = exec_rms_dweight;
    c.bound = dweight;
    c.whole = true;
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(dx);
    qr_free(dweight);
    free_inputs(&data);
}

static const int64_t dims[] = {1, 2, 15, 31, 64, 80, 172, 320, 2112};

void test_op_rms_norm_backward(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        check_rms_norm_backward(1, dims[i], 1.0, 0.0F, (norm_mode)(i % 3));
        check_rms_norm_backward(1, dims[i], i % 2 == 0 ? 1e-2 : 300.0, 1.0F, (norm_mode)((i + 1) % 3));
        if (dims[i] <= 172) { check_rms_norm_backward(3, dims[i], 1.0, 0.0F, (norm_mode)((i + 2) % 3)); }
    }
}

/* --- layer_norm_backward --- */

/* x is contiguous here: the rows of the case without their gaps. */
static void run_layer(op_run *run, const norm_case *c, int64_t first, int64_t n_rows, float *dx, float *dparams) {
    const size_t dim_bytes = (size_t)c->dim * sizeof(float);
    qr_layer_norm_backward_args args = {
        .x = op_input(run, c->x + first * c->dim, (size_t)n_rows * dim_bytes),
        .weight = op_input(run, c->weight, dim_bytes),
        .dweight = dparams != NULL ? op_output(run, c->dweight, 1, dim_bytes, dim_bytes) : NULL,
        .dbias = dparams != NULL ? op_output(run, c->dbias, 1, dim_bytes, dim_bytes) : NULL,
        .n_rows = n_rows,
        .dim = c->dim,
        .eps = c->eps,
        .weight_offset = c->weight_offset,
        .accumulate = c->mode == ACCUMULATE,
    };
    set_dy_dx(run, c, first, n_rows, c->dim, &args.dy, &args.dx);
    op_call(run, QR_OP_layer_norm_backward, &args);
    if (dx != NULL) { op_read(run, args.dx, dx); }
    if (dparams == NULL) { return; }
    op_read(run, args.dweight, dparams);
    op_read(run, args.dbias, dparams + c->dim);
}

static void exec_layer_dx(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    run_layer(run, data, first, n_rows, out, NULL);
}

static void exec_layer_dparams(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                               void *out) {
    (void)first, (void)n_rows, (void)dtype;
    run_layer(run, data, 0, N_ROWS, NULL, out);
}

/* The errors of mean and s are those of op_norm.c's layer_norm; with n the normalised values, g = dy · weight and
 * M = mean|g n|: n errs by n_error, mean(g) by (n + 3) u mean|g|, mean(g n) by (n + 4) u M and mean|g| n_error. */
static void layer_row_bound(const norm_case *c, int64_t i, double *dx, double *dweight, double *dbias) {
    const float *x = c->x + i * c->dim, *dy = c->dy + i * c->dim;
    const double n = (double)c->dim, terms = (double)(N_ROWS + 4) * OP_U;
    double mean = 0.0, mean_abs = 0.0, variance = 0.0, mean_g = 0.0, mean_gn = 0.0, mean_gn_error = 0.0;
    for (int64_t j = 0; j < c->dim; j++) {
        mean += (double)x[j] / n;
        mean_abs += fabs((double)x[j]) / n;
    }
    for (int64_t j = 0; j < c->dim; j++) { variance += ((double)x[j] - mean) * ((double)x[j] - mean) / n; }
    const double mean_error = (n + 1.0) * OP_U * mean_abs, s = 1.0 / sqrt(variance + (double)c->eps);
    const double relative = ((n + 5.0) / 2.0 + 8.0) * OP_U + mean_error * mean_error * s * s;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t j = 0; j < c->dim; j++) {
            const double g = fabs((double)dy[j]) * (fabs((double)c->weight[j]) + (double)c->weight_offset);
            const double normed = fabs((double)x[j] - mean) * s;
            const double n_error = s * mean_error + relative * (normed + s * mean_error);
            if (pass == 0) {
                mean_g += g / n;
                mean_gn += g * normed / n;
                mean_gn_error += (g * n_error + (n + 4.0) * OP_U * g * normed) / n;
                dweight[j] += fabs((double)dy[j]) * (n_error + terms * (normed + n_error));
                dbias[j] += terms * fabs((double)dy[j]);
                continue;
            }
            const double error = 2.0 * OP_U * g + (n + 3.0) * OP_U * mean_g + normed * mean_gn_error +
                                 n_error * (mean_gn + mean_gn_error);
            const double before = c->mode == ACCUMULATE ? fabs((double)c->dx[i * c->dim + j]) : 0.0;
            dx[i * c->dim + j] =
                s * (error + (relative + 6.0 * OP_U) * (g + mean_g + normed * mean_gn)) + 2.0 * OP_U * before;
        }
    }
}

static void check_layer_norm_backward(int64_t dim, double shift, norm_mode mode, float offset) {
    norm_case data = norm_inputs(1, dim, 1.0, mode);
    data.weight_offset = offset;
    float *shifted = op_normals(N_ROWS * dim, 7, 1.0);
    for (int64_t i = 0; i < N_ROWS * dim; i++) { shifted[i] += (float)shift; }
    qr_free((void *)(uintptr_t)data.x);
    data.x = shifted;
    double *dx = op_doubles(N_ROWS * dim), *dparams = op_doubles(2 * dim);
    for (int64_t j = 0; j < dim; j++) {
        dparams[j] = (double)(N_ROWS + 4) * OP_U * fabs((double)data.dweight[j]);
        dparams[dim + j] = (double)(N_ROWS + 4) * OP_U * fabs((double)data.dbias[j]);
    }
    for (int64_t i = 0; i < N_ROWS; i++) { layer_row_bound(&data, i, dx, dparams, dparams + dim); }
    op_case c = {.n_rows = N_ROWS, .row = dim, .exec = exec_layer_dx, .data = &data, .bound = dx};
    snprintf(c.label, sizeof c.label, "layer_norm_backward %lld, mean %g, %s", (long long)dim, shift, mode_names[mode]);
    if (dim > 2) { op_check_case(&c, QR_DTYPE_F32); } /* with two, n is ±1 and nothing but eps and rounding is left */
    c.n_rows = 1;
    c.row = 2 * dim;
    c.exec = exec_layer_dparams;
    c.bound = dparams;
    c.whole = true;
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(dx);
    qr_free(dparams);
    free_inputs(&data);
}

void test_op_layer_norm_backward(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        check_layer_norm_backward(dims[i], 0.0, (norm_mode)(i % 3), 1.0F);
        check_layer_norm_backward(dims[i], i % 2 == 0 ? 10.0 : -30.0, (norm_mode)((i + 1) % 3), 0.0F);
    }
}
