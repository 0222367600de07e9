/* rms_norm and layer_norm. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_ROWS = 65 };

typedef struct norm_case {
    int64_t n_groups, dim;
    const float *src, *weight, *bias; /* src [N_ROWS, row + op_gap(row)] */
    float eps, weight_offset;
    bool in_place;
} norm_case;

/* Into another matrix with a stride of its own, or in place (F32 only). */
static void exec_rms_norm(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const norm_case *c = data;
    const int64_t row = c->n_groups * c->dim, src_stride = row + op_gap(row);
    const float *src = c->src + first * src_stride;
    qr_rms_norm_args args = {
        .weight = op_input(run, c->weight, (size_t)c->dim * sizeof(float)),
        .dst_dtype = dtype,
        .n_rows = n_rows,
        .n_groups = c->n_groups,
        .dim = c->dim,
        .src_stride = src_stride,
        .eps = c->eps,
        .weight_offset = c->weight_offset,
    };
    if (c->in_place && dtype == QR_DTYPE_F32) {
        float *packed = qr_alloc((size_t)(n_rows * row) * sizeof(float));
        for (int64_t i = 0; i < n_rows; i++) {
            memcpy(packed + i * row, src + i * src_stride, (size_t)row * sizeof(float));
        }
        args.dst = op_output(run, packed, n_rows, (size_t)row * sizeof(float), (size_t)src_stride * sizeof(float));
        args.src = args.dst;
        args.dst_stride = src_stride;
        qr_free(packed);
    } else {
        const size_t size = qr_dtype_bytes(dtype);
        args.src = op_input(run, src, (size_t)((n_rows - 1) * src_stride + row) * sizeof(float));
        args.dst_stride = src_stride + 4;
        args.dst = op_output(run, NULL, n_rows, (size_t)row * size, (size_t)args.dst_stride * size);
    }
    op_call(run, QR_OP_rms_norm, &args);
    op_read(run, args.dst, out);
}

/* The sum of squares has positive terms, so its relative error is at most (n + 1) u, the root halves it; six more
 * roundings for the mean, eps, the root, the quotient and the two products, one for weight + offset. */
static void rms_norm_bound(const norm_case *c, double *bound) {
    const int64_t row = c->n_groups * c->dim;
    for (int64_t i = 0; i < N_ROWS * row; i++) {
        const int64_t r = i / row, g = i % row / c->dim, j = i % c->dim;
        const float *x = c->src + r * (row + op_gap(row)) + g * c->dim;
        double sum = 0.0;
        for (int64_t k = 0; k < c->dim; k++) { sum += (double)x[k] * (double)x[k]; }
        const double weight = fabs((double)c->weight[j] + (double)c->weight_offset);
        const double value = fabs((double)x[j]) / sqrt(sum / (double)c->dim + (double)c->eps) * weight;
        bound[i] = ((double)(c->dim + 1) / 2.0 + 8.0) * OP_U * value;
    }
}

static void check_rms_norm(int64_t n_groups, int64_t dim, double magnitude, float offset, bool in_place) {
    const int64_t row = n_groups * dim;
    float *src = op_normals(N_ROWS * (row + op_gap(row)), 1, magnitude), *weight = op_normals(dim, 2, 1.0);
    for (int64_t j = 0; j < row; j++) { src[2 * (row + op_gap(row)) + j] = 0.0F; } /* a row of zeros */
    double *bound = op_doubles(N_ROWS * row);
    const norm_case data = {.n_groups = n_groups,
                            .dim = dim,
                            .src = src,
                            .weight = weight,
                            .eps = 1e-5F,
                            .weight_offset = offset,
                            .in_place = in_place};
    op_case c = {.n_rows = N_ROWS, .row = row, .exec = exec_rms_norm, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "rms_norm %lld x %lld, values about %g%s", (long long)n_groups, (long long)dim,
             magnitude, in_place ? ", in place" : "");
    rms_norm_bound(&data, bound);
    op_check_case(&c, QR_DTYPE_F32);
    op_check_case(&c, QR_DTYPE_BF16);
    op_check_case(&c, QR_DTYPE_F16);
    qr_free(src);
    qr_free(weight);
    qr_free(bound);
}

void test_op_rms_norm(void) {
    static const int64_t dims[] = {1, 8, 15, 31, 64, 80, 172, 320, 2112};
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        check_rms_norm(1, dims[i], 1.0, 0.0F, false);
        check_rms_norm(1, dims[i], i % 2 == 0 ? 1e-3 : 300.0, 1.0F, true);
        if (dims[i] <= 172) { check_rms_norm(3, dims[i], 1.0, 0.0F, i % 2 == 0); }
    }
}

static void exec_layer_norm(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const norm_case *c = data;
    const size_t row_bytes = (size_t)c->dim * qr_dtype_bytes(dtype);
    const qr_layer_norm_args args = {
        .src = op_input(run, c->src + first * c->dim, (size_t)(n_rows * c->dim) * sizeof(float)),
        .weight = op_input(run, c->weight, (size_t)c->dim * sizeof(float)),
        .bias = op_input(run, c->bias, (size_t)c->dim * sizeof(float)),
        .dst = op_output(run, NULL, n_rows, row_bytes, row_bytes),
        .dst_dtype = dtype,
        .n_rows = n_rows,
        .dim = c->dim,
        .eps = c->eps,
        .weight_offset = c->weight_offset,
    };
    op_call(run, QR_OP_layer_norm, &args);
    op_read(run, args.dst, out);
}

/* The mean errs by at most m = (n + 1) u mean|x|, and so does every difference, besides its own rounding. The variance
 * of differences that all err by the same m is off by m² and by (n + 3) u of itself. */
static void layer_norm_bound(const norm_case *c, double *bound) {
    const double n = (double)c->dim;
    for (int64_t r = 0; r < N_ROWS; r++) {
        const float *x = c->src + r * c->dim;
        double mean = 0.0, mean_abs = 0.0, variance = 0.0;
        for (int64_t k = 0; k < c->dim; k++) {
            mean += (double)x[k] / n;
            mean_abs += fabs((double)x[k]) / n;
        }
        for (int64_t k = 0; k < c->dim; k++) { variance += ((double)x[k] - mean) * ((double)x[k] - mean) / n; }
        const double mean_error = (n + 1.0) * OP_U * mean_abs;
        const double inverse = 1.0 / sqrt(variance + (double)c->eps);
        const double relative = ((n + 5.0) / 2.0 + 8.0) * OP_U + mean_error * mean_error * inverse * inverse;
        for (int64_t j = 0; j < c->dim; j++) {
            const double weight = fabs((double)c->weight[j]) + (double)c->weight_offset;
            const double bias = c->bias != NULL ? fabs((double)c->bias[j]) : 0.0;
            const double difference = fabs((double)x[j] - mean);
            bound[r * c->dim + j] =
                inverse * weight * (mean_error + relative * (difference + mean_error)) + 2.0 * OP_U * bias;
        }
    }
}

static void check_layer_norm(int64_t dim, double shift, bool with_bias, float offset) {
    float *src = op_normals(N_ROWS * dim, 3, 1.0), *weight = op_normals(dim, 4, 1.0), *bias = op_normals(dim, 5, 1.0);
    for (int64_t i = 0; i < N_ROWS * dim; i++) { src[i] += (float)shift; }
    double *bound = op_doubles(N_ROWS * dim);
    const norm_case data = {.dim = dim,
                            .src = src,
                            .weight = weight,
                            .bias = with_bias ? bias : NULL,
                            .eps = 1e-5F,
                            .weight_offset = offset};
    op_case c = {.n_rows = N_ROWS, .row = dim, .exec = exec_layer_norm, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "layer_norm %lld, mean %g%s, offset %g", (long long)dim, shift,
             with_bias ? ", bias" : "", (double)offset);
    layer_norm_bound(&data, bound);
    op_check_case(&c, QR_DTYPE_F32);
    op_check_case(&c, QR_DTYPE_BF16);
    op_check_case(&c, QR_DTYPE_F16);
    qr_free(src);
    qr_free(weight);
    qr_free(bias);
    qr_free(bound);
}

void test_op_layer_norm(void) {
    static const int64_t dims[] = {2, 8, 15, 31, 64, 80, 172, 320, 2112};
    check_layer_norm(1, 0.0, true, 0.0F); /* one element is its own mean: the bias alone */
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        check_layer_norm(dims[i], 0.0, true, i % 2 == 0 ? 1.0F : 0.0F);
        check_layer_norm(dims[i], i % 2 == 0 ? 10.0 : -100.0, false, 0.0F);
    }
}
