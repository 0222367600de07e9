/* linear_backward, weight_backward and lora_backward. */
#include "kernels/ref/ref.h"

/* --- linear_backward --- */

static size_t sums_bytes(const qr_linear_backward_args *args) {
    return (size_t)(args->n_rows * args->weight->desc.cols) * sizeof(double);
}

size_t qr_ref_linear_backward_workspace(const qr_linear_backward_args *args) {
    const size_t own = sums_bytes(args) + (size_t)args->weight->desc.cols * sizeof(float);
    const size_t lora = args->lora != NULL ? qr_ref_lora_backward_workspace(args->lora) : 0;
    return lora > own ? lora : own;
}

/* dy times the factor of row o of the weights, as a product with x of dy's type reads it. */
static double scaled_dy(const qr_linear_backward_args *args, int64_t i, int64_t o, double factor) {
    const float dy = qr_ref_load(args->dy, args->dy_dtype, i * args->dy_stride + o);
    if (args->dy_dtype == QR_DTYPE_BF16) { return (double)qr_ref_round(dy * (float)factor, QR_DTYPE_BF16); }
    return (double)dy * factor;
}

void qr_ref_linear_backward(const qr_linear_backward_args *args, void *workspace) {
    const int64_t in = args->weight->desc.cols, out = args->weight->desc.rows;
    double *sums = workspace;                                                    /* [n_rows, in] */
    float *w = (float *)(void *)((unsigned char *)workspace + sums_bytes(args)); /* [in], one row at a time */
    for (int64_t j = 0; j < args->n_rows * in; j++) { sums[j] = 0.0; }
    for (int64_t o = 0; o < out; o++) {
        const double factor = qr_ref_product_row(args->weight, args->dy_dtype, o, w);
        for (int64_t i = 0; i < args->n_rows; i++) {
            const double dy = scaled_dy(args, i, o, factor);
            for (int64_t c = 0; c < in; c++) { sums[i * in + c] += dy * (double)w[c]; }
        }
    }
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t c = 0; c < in; c++) {
            float *dx = &args->dx[i * args->dx_stride + c];
            *dx = (float)(sums[i * in + c] + (args->accumulate ? (double)*dx : 0.0));
        }
    }
    if (args->lora != NULL) { qr_ref_lora_backward(args->lora, workspace); }
}

/* Σ over i of a[i · a_step] · b[b_first + i · b_step]. */
static double dot(const float *a, int64_t a_step, const void *b, qr_dtype b_dtype, int64_t b_first, int64_t b_step,
                  int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)a[i * a_step] * (double)qr_ref_load(b, b_dtype, b_first + i * b_step);
    }
    return sum;
}

static void add_to(float *dst, double sum) { *dst = (float)((double)*dst + sum); }

/* --- weight_backward --- */

void qr_ref_weight_backward(const qr_weight_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t o = 0; o < args->out; o++) {
        for (int64_t c = 0; c < args->in; c++) {
            add_to(&args->dw[o * args->in + c],
                   dot(args->dy + o, args->dy_stride, args->x, args->x_dtype, c, args->x_stride, args->n_rows));
        }
        if (args->dbias == NULL) { continue; }
        double sum = 0.0;
        for (int64_t i = 0; i < args->n_rows; i++) { sum += (double)args->dy[i * args->dy_stride + o]; }
        add_to(&args->dbias[o], sum);
    }
}

/* --- lora_backward --- */

/* h = A x and dh = scale · dy B, both [n_rows, rank], kept in F32 as the forward op keeps A x. */
size_t qr_ref_lora_backward_workspace(const qr_lora_backward_args *args) {
    return 2 * (size_t)(args->n_rows * args->rank) * sizeof(float);
}

void qr_ref_lora_backward(const qr_lora_backward_args *args, void *workspace) {
    const int64_t n = args->n_rows, rank = args->rank, in = args->in, out = args->out, dy_stride = args->dy_stride;
    const double scale = (double)args->scale;
    float *h = workspace, *dh = h + n * rank;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t r = 0; r < rank; r++) {
            h[i * rank + r] = (float)dot(args->a + r * in, 1, args->x, args->x_dtype, i * args->x_stride, 1, in);
            dh[i * rank + r] = (float)(scale * dot(args->dy + i * dy_stride, 1, args->b, QR_DTYPE_F32, r, rank, out));
        }
    }
    for (int64_t r = 0; r < rank; r++) {
        for (int64_t o = 0; o < out; o++) {
            add_to(&args->db[o * rank + r], scale * dot(args->dy + o, dy_stride, h, QR_DTYPE_F32, r, rank, n));
        }
        for (int64_t c = 0; c < in; c++) {
            add_to(&args->da[r * in + c], dot(dh + r, rank, args->x, args->x_dtype, c, args->x_stride, n));
        }
    }
    for (int64_t i = 0; args->dx != NULL && i < n; i++) {
        for (int64_t c = 0; c < in; c++) {
            add_to(&args->dx[i * args->dx_stride + c], dot(dh + i * rank, 1, args->a, QR_DTYPE_F32, c, in, rank));
        }
    }
}
