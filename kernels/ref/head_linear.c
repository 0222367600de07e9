/* head_linear. */
#include "kernels/ref/ref.h"

/* One row of x at one head. */
typedef struct head_row {
    const qr_head_linear_args *args;
    const float *w;               /* [dim, cols]: the head's */
    const qr_lora_factor *factor; /* NULL: none */
    int64_t first_row;            /* of the head, in the matrix */
    int64_t x_first, y_first;     /* elements */
} head_row;

static double x_at(const head_row *r, int64_t j) {
    return (double)qr_ref_load(r->args->x, r->args->x_dtype, r->x_first + j);
}

static double ratio_of(const head_row *r, int64_t o) {
    const bool has = r->factor != NULL && r->factor->ratio != NULL;
    return has ? (double)r->factor->ratio[r->first_row + o] : 1.0;
}

static double a_at(const head_row *r, int64_t j, int64_t c) {
    return (double)r->factor->a[j * r->args->weight->desc.cols + c];
}

static double b_at(const head_row *r, int64_t o, int64_t j) {
    return (double)r->factor->b[(r->first_row + o) * r->factor->rank + j];
}

/* t [rank] = A x. */
static void make_t_by_row(const head_row *r, double *t) {
    for (int32_t j = 0; j < r->factor->rank; j++) {
        t[j] = 0.0;
        for (int64_t c = 0; c < r->args->weight->desc.cols; c++) { t[j] += a_at(r, j, c) * x_at(r, c); }
    }
}

static void by_row(const head_row *r, double *t) {
    const int64_t cols = r->args->weight->desc.cols;
    if (r->factor != NULL) { make_t_by_row(r, t); }
    for (int64_t o = 0; o < r->args->dim; o++) {
        double sum = 0.0, update = 0.0;
        for (int64_t c = 0; c < cols; c++) { sum += (double)r->w[o * cols + c] * x_at(r, c); }
        for (int32_t j = 0; r->factor != NULL && j < r->factor->rank; j++) { update += b_at(r, o, j) * t[j]; }
        if (r->factor != NULL) { sum += (double)r->factor->scale * update; }
        qr_ref_store(r->args->y, r->args->y_dtype, r->y_first + o, ratio_of(r, o) * sum);
    }
}

/* t [rank] = Bᵀ x'. */
static void make_t_by_column(const head_row *r, double *t) {
    for (int32_t j = 0; j < r->factor->rank; j++) {
        t[j] = 0.0;
        for (int64_t o = 0; o < r->args->dim; o++) { t[j] += b_at(r, o, j) * ratio_of(r, o) * x_at(r, o); }
    }
}

static void by_column(const head_row *r, double *t) {
    const int64_t cols = r->args->weight->desc.cols;
    if (r->factor != NULL) { make_t_by_column(r, t); }
    for (int64_t c = 0; c < cols; c++) {
        double sum = 0.0, update = 0.0;
        for (int64_t o = 0; o < r->args->dim; o++) { sum += (double)r->w[o * cols + c] * ratio_of(r, o) * x_at(r, o); }
        for (int32_t j = 0; r->factor != NULL && j < r->factor->rank; j++) { update += a_at(r, j, c) * t[j]; }
        if (r->factor != NULL) { sum += (double)r->factor->scale * update; }
        qr_ref_store(r->args->y, r->args->y_dtype, r->y_first + c, sum);
    }
}

static size_t matrix_bytes(const qr_head_linear_args *args) {
    const size_t n_bytes = (size_t)(args->dim * args->weight->desc.cols) * sizeof(float);
    return (n_bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double);
}

size_t qr_ref_head_linear_workspace(const qr_head_linear_args *args) {
    return matrix_bytes(args) + (size_t)args->max_rank * sizeof(double);
}

void qr_ref_head_linear(const qr_head_linear_args *args, void *workspace) {
    const int64_t cols = args->weight->desc.cols;
    float *w = workspace;
    double *t = (double *)(void *)((unsigned char *)workspace + matrix_bytes(args));
    for (int64_t h = 0; h < args->n_heads; h++) {
        const int64_t first = args->first_row + h * args->row_stride;
        for (int64_t o = 0; o < args->dim; o++) { qr_ref_weight_row(args->weight, first + o, w + o * cols); }
        for (int64_t i = 0; i < args->n_rows; i++) {
            const int32_t adapter = args->factors != NULL ? args->row_adapter[i] : -1;
            const qr_lora_factor *factor = adapter >= 0 ? &args->factors[adapter] : NULL;
            const head_row r = {.args = args,
                                .w = w,
                                .factor = factor != NULL && factor->rank > 0 ? factor : NULL,
                                .first_row = first,
                                .x_first = i * args->x_stride + h * args->x_head_stride,
                                .y_first = i * args->y_stride + h * args->y_head_stride};
            if (args->by_column) {
                by_column(&r, t);
            } else {
                by_row(&r, t);
            }
        }
    }
}
