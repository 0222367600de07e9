/* linear and lora. */
#include <assert.h>

#include "base/sizes.h"
#include "kernels/ref/ref.h"
#include "kernels/tile_sum.h"

static double dot(const float *w, const void *x, qr_dtype x_dtype, int64_t first, int64_t n) {
    double sum = 0.0;
    for (int64_t c = 0; c < n; c++) { sum += (double)w[c] * (double)qr_ref_load(x, x_dtype, first + c); }
    return sum;
}

double qr_ref_product_row(const qr_weight *weight, qr_dtype x_dtype, int64_t row, float *dst) {
    if (weight->desc.format == QR_WEIGHT_INT8) { return (double)qr_ref_int8_row(weight, row, dst) / 127.0; }
    qr_ref_weight_row(weight, row, dst);
    for (int64_t c = 0; c < weight->desc.cols; c++) { dst[c] = qr_ref_round(dst[c], x_dtype); }
    return 1.0;
}

size_t qr_ref_linear_workspace(const qr_linear_args *args) {
    const size_t own = (size_t)args->weight->desc.cols * sizeof(float);
    const size_t lora = args->lora != NULL ? qr_ref_lora_workspace(args->lora) : 0;
    return lora > own ? lora : own;
}

void qr_ref_linear(const qr_linear_args *args, void *workspace) {
    const qr_weight *weight = args->weight;
    float *w = workspace; /* [in], one row at a time */
    for (int64_t o = 0; o < weight->desc.rows; o++) {
        const double factor = qr_ref_product_row(weight, args->x_dtype, o, w);
        for (int64_t i = 0; i < args->n_rows; i++) {
            float *y = &args->y[i * args->y_stride + o];
            double sum = factor * dot(w, args->x, args->x_dtype, i * args->x_stride, weight->desc.cols);
            if (args->bias != NULL) { sum += (double)args->bias[o]; }
            if (args->accumulate) { sum += (double)*y; }
            *y = (float)sum;
        }
    }
    if (args->lora != NULL) { qr_ref_lora(args->lora, workspace); }
}

/* Weights, and x, are BF16 values in F32; every operation is of F32. */
static float tile_order_sum(const qr_linear_args *args, const float *w, int64_t i) {
    const int64_t n_k = args->weight->desc.cols;
    float sum = 0.0F;
    for (int64_t k = 0; k < n_k; k += QR_TILE_K) {
        const int64_t n = qr_min(n_k - k, QR_TILE_K);
        float x[QR_TILE_K];
        for (int64_t c = 0; c < n; c++) { x[c] = qr_ref_load(args->x, args->x_dtype, i * args->x_stride + k + c); }
        sum = qr_tile_sum(sum, w + k, x, n);
    }
    return sum;
}

void qr_ref_linear_in_tile_order(const qr_linear_args *args, void *workspace) {
    const qr_weight *weight = args->weight;
    const bool is_int8 = weight->desc.format == QR_WEIGHT_INT8;
    float *w = workspace; /* [in], one row at a time */
    for (int64_t o = 0; o < weight->desc.rows; o++) {
        float factor = 1.0F;
        if (is_int8) {
            factor = qr_ref_int8_row(weight, o, w) / 127.0F;
        } else {
            qr_ref_weight_row(weight, o, w);
            for (int64_t c = 0; c < weight->desc.cols; c++) { w[c] = qr_bf16_to_f32(qr_tile_weight(w[c])); }
        }
        for (int64_t i = 0; i < args->n_rows; i++) {
            float *y = &args->y[i * args->y_stride + o];
            float sum = tile_order_sum(args, w, i);
            if (is_int8) { sum *= factor; }
            if (args->bias != NULL) { sum += args->bias[o]; }
            if (args->accumulate) { sum += *y; }
            *y = sum;
        }
    }
    if (args->lora != NULL) { qr_ref_lora(args->lora, workspace); }
}

size_t qr_ref_lora_workspace(const qr_lora_args *args) { return (size_t)args->max_rank * sizeof(float); }

void qr_ref_lora(const qr_lora_args *args, void *workspace) {
    float *ax = workspace; /* [rank] */
    for (int64_t i = 0; i < args->n_rows; i++) {
        if (args->row_adapter[i] < 0) { continue; }
        assert(args->row_adapter[i] < args->n_adapters);
        const qr_lora_factor *factor = &args->factors[args->row_adapter[i]];
        assert(factor->rank >= 0 && factor->rank <= args->max_rank);
        if (factor->rank == 0) { continue; }
        for (int32_t r = 0; r < factor->rank; r++) {
            ax[r] = (float)dot(factor->a + r * args->in, args->x, args->x_dtype, i * args->x_stride, args->in);
        }
        for (int64_t o = 0; o < args->out; o++) {
            float *y = &args->y[i * args->y_stride + o];
            const double sum = dot(factor->b + o * factor->rank, ax, QR_DTYPE_F32, 0, factor->rank);
            *y = (float)((double)*y + (double)factor->scale * sum);
        }
    }
}
