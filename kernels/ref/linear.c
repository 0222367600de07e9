/* linear and lora. */
#include <assert.h>
#include <math.h>

#include "base/fma.h"
#include "base/sizes.h"
#include "kernels/int16_sum.h"
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

/* --- By integers (int16_sum.h) ----------------------------------------------------------------------------------- */

/* A row, zeros up to a whole block of x, and the factors of its blocks. */
typedef struct int16_row {
    int16_t *values;
    float *factors;
} int16_row;

static int64_t int16_cols(const qr_linear_args *args) { return qr_round_up(args->weight->desc.cols, QR_INT16_COLS); }

static size_t int16_row_bytes(const qr_linear_args *args) {
    const size_t n = (size_t)int16_cols(args);
    return n * sizeof(int16_t) + n / QR_MXFP4_BLOCK * sizeof(float);
}

static int16_row int16_row_at(const qr_linear_args *args, unsigned char *memory) {
    return (int16_row){.factors = (float *)(void *)memory,
                       .values =
                           (int16_t *)(void *)(memory + (size_t)(int16_cols(args) / QR_MXFP4_BLOCK) * sizeof(float))};
}

size_t qr_ref_linear_in_int16_workspace(const qr_linear_args *args) {
    const size_t own = 2 * int16_row_bytes(args), other = qr_ref_linear_workspace(args);
    return own > other ? own : other;
}

static void x_as_int16(const qr_linear_args *args, int64_t i, int16_row *x) {
    const qr_bf16 *row = (const qr_bf16 *)args->x + i * args->x_stride;
    for (int64_t k = 0; k < args->weight->desc.cols; k += QR_INT16_COLS) {
        const int64_t n = qr_min(args->weight->desc.cols - k, QR_INT16_COLS);
        uint16_t largest = 0;
        for (int64_t c = 0; c < n; c++) {
            const uint16_t magnitude = row[k + c] & 0x7FFFU;
            if (magnitude > largest) { largest = magnitude; }
        }
        const qr_int16_factor factor = qr_int16_factor_of(largest);
        x->factors[k / QR_INT16_COLS] = factor.factor;
        for (int64_t c = 0; c < QR_INT16_COLS; c++) {
            const bool counts = c < n && !isnan(factor.factor);
            x->values[k + c] = counts ? (int16_t)lrintf(qr_bf16_to_f32(row[k + c]) * factor.inverse) : 0;
        }
    }
}

/* Lane l of a block of n columns. */
static int32_t int16_lane(const int16_t *w, const int16_t *x, int64_t n, int l) {
    int32_t sum = 0;
    for (int64_t j = 0; j < n; j += 16) { sum += w[j + 2 * l] * x[j + 2 * l] + w[j + 2 * l + 1] * x[j + 2 * l + 1]; }
    return sum;
}

/* Of weights with a factor every `block` columns. */
static float int16_sum(const int16_row *w, const int16_row *x, int64_t n_k, int block) {
    float sum = 0.0F;
    for (int64_t k0 = 0; k0 < n_k; k0 += QR_INT16_K_BLOCK) {
        float lanes[8] = {0};
        for (int64_t k = k0; k < qr_min(n_k, k0 + QR_INT16_K_BLOCK); k += block) {
            const float factor = w->factors[k / block] * x->factors[k / QR_INT16_COLS];
            for (int l = 0; l < 8; l++) {
                const int32_t products = int16_lane(w->values + k, x->values + k, block, l);
                lanes[l] = qr_fma_f32((float)products, factor, lanes[l]);
            }
        }
        const float of_block =
            ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
        sum = k0 == 0 ? of_block : sum + of_block;
    }
    return sum;
}

void qr_ref_linear_in_int16(const qr_linear_args *args, void *workspace) {
    const qr_weight *weight = args->weight;
    const int64_t cols = weight->desc.cols;
    int16_row w = int16_row_at(args, workspace);
    int16_row x = int16_row_at(args, (unsigned char *)workspace + int16_row_bytes(args));
    for (int64_t i = 0; i < args->n_rows; i++) {
        x_as_int16(args, i, &x);
        for (int64_t o = 0; o < weight->desc.rows; o++) {
            qr_ref_int16_row(weight, o, w.values, w.factors);
            for (int64_t c = cols; c < int16_cols(args); c++) { w.values[c] = 0; }
            float *y = &args->y[i * args->y_stride + o];
            float sum = int16_sum(&w, &x, cols, qr_int16_cols(&weight->desc));
            if (weight->desc.format == QR_WEIGHT_INT8) { sum *= qr_ref_int8_scale(weight, o) / 127.0F; }
            if (args->bias != NULL) { sum += args->bias[o]; }
            if (args->accumulate) { sum += *y; }
            *y = sum;
        }
    }
    if (args->lora != NULL) { qr_ref_lora(args->lora, workspace); }
}

/* --- lora -------------------------------------------------------------------------------------------------------- */

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
