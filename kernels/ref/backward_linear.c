/* linear_backward, weight_backward and lora_backward. */
#include "kernels/ref/ref.h"

/* --- linear_backward --- */

static size_t sums_bytes(const qr_linear_backward_args *args) {
    return (size_t)(args->n_rows * args->weight->desc.cols) * sizeof(double);
}

size_t qr_ref_linear_backward_workspace(const qr_linear_backward_args *args) {
    return sums_bytes(args) + (size_t)args->weight->desc.cols * sizeof(float);
}

/* What row o of the weights is multiplied with: dy, and the row's factor where it is INT8. */
static double scaled_dy(const qr_linear_backward_args *args, int64_t i, int64_t o, float row_absmax) {
    const float dy = qr_ref_load(args->dy, args->dy_dtype, i * args->dy_stride + o);
    if (args->weight->desc.format != QR_WEIGHT_INT8) { return (double)dy; }
    if (args->dy_dtype == QR_DTYPE_BF16) { return (double)qr_ref_round(dy * (row_absmax / 127.0F), QR_DTYPE_BF16); }
    return (double)dy * ((double)row_absmax / 127.0);
}

void qr_ref_linear_backward(const qr_linear_backward_args *args, void *workspace) {
    const int64_t in = args->weight->desc.cols, out = args->weight->desc.rows;
    const bool int8 = args->weight->desc.format == QR_WEIGHT_INT8;
    double *sums = workspace;                                                    /* [n_rows, in] */
    float *w = (float *)(void *)((unsigned char *)workspace + sums_bytes(args)); /* [in], one row at a time */
    for (int64_t j = 0; j < args->n_rows * in; j++) { sums[j] = 0.0; }
    for (int64_t o = 0; o < out; o++) {
        float row_absmax = 0.0F;
        if (int8) {
            row_absmax = qr_ref_int8_row(args->weight, o, w);
        } else {
            qr_ref_weight_row(args->weight, o, w);
        }
        for (int64_t c = 0; !int8 && c < in; c++) { w[c] = qr_ref_round(w[c], args->dy_dtype); }
        for (int64_t i = 0; i < args->n_rows; i++) {
            const double dy = scaled_dy(args, i, o, row_absmax);
            for (int64_t c = 0; c < in; c++) { sums[i * in + c] += dy * (double)w[c]; }
        }
    }
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t c = 0; c < in; c++) {
            float *dx = &args->dx[i * args->dx_stride + c];
            *dx = (float)(sums[i * in + c] + (args->accumulate ? (double)*dx : 0.0));
        }
    }
}

/* --- weight_backward --- */

void qr_ref_weight_backward(const qr_weight_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t o = 0; o < args->out; o++) {
        for (int64_t c = 0; c < args->in; c++) {
            double sum = 0.0;
            for (int64_t i = 0; i < args->n_rows; i++) {
                const double x = (double)qr_ref_load(args->x, args->x_dtype, i * args->x_stride + c);
                sum += (double)args->dy[i * args->dy_stride + o] * x;
            }
            args->dw[o * args->in + c] = (float)((double)args->dw[o * args->in + c] + sum);
        }
        if (args->dbias == NULL) { continue; }
        double sum = 0.0;
        for (int64_t i = 0; i < args->n_rows; i++) { sum += (double)args->dy[i * args->dy_stride + o]; }
        args->dbias[o] = (float)((double)args->dbias[o] + sum);
    }
}

/* --- lora_backward --- */

/* h = A x and dh = scale · dy B, both [n_rows, rank], kept in F32 as the forward op keeps A x. */
size_t qr_ref_lora_backward_workspace(const qr_lora_backward_args *args) {
    return 2 * (size_t)(args->n_rows * args->rank) * sizeof(float);
}

static void down(const qr_lora_backward_args *args, float *h, float *dh) {
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t r = 0; r < args->rank; r++) {
            double sum = 0.0, back = 0.0;
            for (int64_t c = 0; c < args->in; c++) {
                const double x = (double)qr_ref_load(args->x, args->x_dtype, i * args->x_stride + c);
                sum += (double)args->a[r * args->in + c] * x;
            }
            for (int64_t o = 0; o < args->out; o++) {
                back += (double)args->dy[i * args->dy_stride + o] * (double)args->b[o * args->rank + r];
            }
            h[i * args->rank + r] = (float)sum;
            dh[i * args->rank + r] = (float)((double)args->scale * back);
        }
    }
}

static void add_db(const qr_lora_backward_args *args, const float *h) {
    for (int64_t o = 0; o < args->out; o++) {
        for (int64_t r = 0; r < args->rank; r++) {
            double sum = 0.0;
            for (int64_t i = 0; i < args->n_rows; i++) {
                sum += (double)args->dy[i * args->dy_stride + o] * (double)h[i * args->rank + r];
            }
            float *db = &args->db[o * args->rank + r];
            *db = (float)((double)*db + (double)args->scale * sum);
        }
    }
}

static void add_da(const qr_lora_backward_args *args, const float *dh) {
    for (int64_t r = 0; r < args->rank; r++) {
        for (int64_t c = 0; c < args->in; c++) {
            double sum = 0.0;
            for (int64_t i = 0; i < args->n_rows; i++) {
                const double x = (double)qr_ref_load(args->x, args->x_dtype, i * args->x_stride + c);
                sum += (double)dh[i * args->rank + r] * x;
            }
            args->da[r * args->in + c] = (float)((double)args->da[r * args->in + c] + sum);
        }
    }
}

static void add_dx(const qr_lora_backward_args *args, const float *dh) {
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t c = 0; c < args->in; c++) {
            double sum = 0.0;
            for (int64_t r = 0; r < args->rank; r++) {
                sum += (double)dh[i * args->rank + r] * (double)args->a[r * args->in + c];
            }
            float *dx = &args->dx[i * args->dx_stride + c];
            *dx = (float)((double)*dx + sum);
        }
    }
}

void qr_ref_lora_backward(const qr_lora_backward_args *args, void *workspace) {
    float *h = workspace, *dh = h + args->n_rows * args->rank;
    down(args, h, dh);
    add_db(args, h);
    add_da(args, dh);
    if (args->dx != NULL) { add_dx(args, dh); }
}
