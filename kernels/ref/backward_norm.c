/* rms_norm_backward and layer_norm_backward. The sums of dweight and dbias over rows are kept in the workspace; a row's
 * share is taken before its dx is written, because dx may be dy. */
#include <math.h>

#include "kernels/ref/ref.h"

static void store_dx(float *dx, double value, bool accumulate) {
    *dx = (float)(value + (accumulate ? (double)*dx : 0.0));
}

/* Adds sums [dim] to dst, which may be NULL. */
static void add_sums(float *dst, const double *sums, int64_t dim) {
    for (int64_t j = 0; dst != NULL && j < dim; j++) { dst[j] = (float)((double)dst[j] + sums[j]); }
}

/* --- rms_norm_backward --- */

size_t qr_ref_rms_norm_backward_workspace(const qr_rms_norm_backward_args *args) {
    return (size_t)args->dim * sizeof(double);
}

static void rms_norm_group(const qr_rms_norm_backward_args *args, const float *x, const float *dy, float *dx,
                           double *dweight) {
    const int64_t dim = args->dim;
    double squares = 0.0, dot = 0.0;
    for (int64_t j = 0; j < dim; j++) {
        const double weight = (double)args->weight[j] + (double)args->weight_offset;
        squares += (double)x[j] * (double)x[j];
        dot += (double)dy[j] * weight * (double)x[j];
    }
    const double s = 1.0 / sqrt(squares / (double)dim + (double)args->eps);
    for (int64_t j = 0; j < dim; j++) { dweight[j] += (double)dy[j] * (double)x[j] * s; }
    for (int64_t j = 0; j < dim; j++) {
        const double g = (double)dy[j] * ((double)args->weight[j] + (double)args->weight_offset);
        store_dx(&dx[j], s * (g - (double)x[j] * s * s * dot / (double)dim), args->accumulate);
    }
}

void qr_ref_rms_norm_backward(const qr_rms_norm_backward_args *args, void *workspace) {
    double *dweight = workspace;
    for (int64_t j = 0; j < args->dim; j++) { dweight[j] = 0.0; }
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t g = 0; g < args->n_groups; g++) {
            const int64_t at = g * args->dim;
            rms_norm_group(args, args->x + i * args->x_stride + at, args->dy + i * args->dy_stride + at,
                           args->dx + i * args->dx_stride + at, dweight);
        }
    }
    add_sums(args->dweight, dweight, args->dim);
}

/* --- layer_norm_backward --- */

size_t qr_ref_layer_norm_backward_workspace(const qr_layer_norm_backward_args *args) {
    return 2 * (size_t)args->dim * sizeof(double);
}

/* With n = (x − mean) / sqrt(var + eps) and g = dy · (weight + weight_offset): dx = (g − mean(g) − n · mean(g · n)) /
 * sqrt(var + eps). */
static void layer_norm_row(const qr_layer_norm_backward_args *args, const float *x, const float *dy, float *dx,
                           double *dweight, double *dbias) {
    const int64_t dim = args->dim;
    double mean = 0.0, variance = 0.0, mean_g = 0.0, mean_gn = 0.0;
    for (int64_t j = 0; j < dim; j++) { mean += (double)x[j] / (double)dim; }
    for (int64_t j = 0; j < dim; j++) { variance += ((double)x[j] - mean) * ((double)x[j] - mean) / (double)dim; }
    const double s = 1.0 / sqrt(variance + (double)args->eps);
    for (int64_t j = 0; j < dim; j++) {
        const double g = (double)dy[j] * ((double)args->weight[j] + (double)args->weight_offset);
        const double n = ((double)x[j] - mean) * s;
        mean_g += g / (double)dim;
        mean_gn += g * n / (double)dim;
        dweight[j] += (double)dy[j] * n;
        dbias[j] += (double)dy[j];
    }
    for (int64_t j = 0; j < dim; j++) {
        const double g = (double)dy[j] * ((double)args->weight[j] + (double)args->weight_offset);
        const double n = ((double)x[j] - mean) * s;
        store_dx(&dx[j], s * (g - mean_g - n * mean_gn), args->accumulate);
    }
}

void qr_ref_layer_norm_backward(const qr_layer_norm_backward_args *args, void *workspace) {
    double *dweight = workspace, *dbias = dweight + args->dim;
    for (int64_t j = 0; j < 2 * args->dim; j++) { dweight[j] = 0.0; }
    for (int64_t i = 0; i < args->n_rows; i++) {
        const int64_t at = i * args->dim;
        layer_norm_row(args, args->x + at, args->dy + at, args->dx + at, dweight, dbias);
    }
    add_sums(args->dweight, dweight, args->dim);
    add_sums(args->dbias, dbias, args->dim);
}
