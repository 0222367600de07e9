/* rope_backward, activation_backward, gate_backward, xielu_backward, embedding_backward, scatter_rows, dropout,
 * round_act and store_weight. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "kernels/ref/ref.h"

/* The transpose of the rotation, with the attention factor in the tables. */
void qr_ref_rope_backward(const qr_rope_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_tokens; i++) {
        for (int64_t h = 0; h < args->n_heads; h++) {
            float *dx = args->dx + i * args->dx_stride + h * args->head_dim;
            qr_ref_rotate(dx, args->cos_table + i * args->half, args->sin_table + i * args->half, args->half,
                          args->interleaved, -1.0);
        }
    }
}

/* fn'(x). 1 − tanh² is taken as 4 / (e^u + e^−u)², which does not cancel. */
double qr_ref_act_derivative(qr_act_fn fn, double x) {
    const double sqrt_half = 0.70710678118654752440, sqrt_two_over_pi = 0.79788456080286535588;
    const double one_over_sqrt_two_pi = 0.39894228040143267794;
    switch (fn) {
        case QR_ACT_SILU: {
            const double on = 1.0 / (1.0 + exp(-x)), off = 1.0 / (1.0 + exp(x));
            return on + x * on * off;
        }
        case QR_ACT_GELU_TANH: {
            const double u = sqrt_two_over_pi * (x + 0.044715 * x * x * x);
            const double slope = sqrt_two_over_pi * (1.0 + 3.0 * 0.044715 * x * x), cosine = cosh(u);
            return 0.5 * (1.0 + tanh(u)) + 0.5 * x * slope / cosine / cosine;
        }
        case QR_ACT_GELU_ERF: return 0.5 * erfc(-x * sqrt_half) + x * one_over_sqrt_two_pi * exp(-0.5 * x * x);
        case QR_ACT_RELU2: return x < 0.0 ? 0.0 : 2.0 * x;
        case QR_ACT_NONE: return 1.0;
        case QR_ACT_SIGMOID: return 1.0 / (1.0 + exp(-x)) / (1.0 + exp(x));
    }
    return 0.0;
}

void qr_ref_activation_backward(const qr_activation_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            const double slope = qr_ref_act_derivative(args->fn, (double)args->x[i * args->x_stride + j]);
            args->dx[i * args->dx_stride + j] = (float)((double)args->dy[i * args->dy_stride + j] * slope);
        }
    }
}

void qr_ref_xielu_backward(const qr_xielu_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_xielu_args *f = &args->forward;
    const double beta = (double)f->beta[0], eps = (double)f->eps[0];
    const double p = qr_ref_softplus((double)f->alpha_p[0]), n = beta + qr_ref_softplus((double)f->alpha_n[0]);
    double dp = 0.0, dn = 0.0;
    for (int64_t i = 0; i < f->n_rows; i++) {
        for (int64_t j = 0; j < f->dim; j++) {
            const double x = (double)f->x[i * f->x_stride + j], dy = (double)args->dy[i * args->dy_stride + j];
            const double slope = x > 0.0 ? 2.0 * p * x : n * (x < eps ? expm1(x) : x - x - 1.0);
            if (x > 0.0) {
                dp += dy * x * x;
            } else {
                dn += dy * (expm1(qr_ref_at_most(x, eps)) - x);
            }
            args->dx[i * args->dx_stride + j] = (float)(dy * (slope + beta));
        }
    }
    if (args->dalpha_p != NULL) { args->dalpha_p[0] += (float)(dp / (1.0 + exp(-(double)f->alpha_p[0]))); }
    if (args->dalpha_n != NULL) { args->dalpha_n[0] += (float)(dn / (1.0 + exp(-(double)f->alpha_n[0]))); }
}

void qr_ref_gate_backward(const qr_gate_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            const double g = (double)args->g[i * args->g_stride + j], u = (double)args->u[i * args->u_stride + j];
            const double dy = (double)args->dy[i * args->dim + j];
            args->dg[i * args->dg_stride + j] = (float)(dy * u * qr_ref_act_derivative(args->fn, g));
            args->du[i * args->du_stride + j] = (float)(dy * qr_ref_act_fn(args->fn, g));
        }
    }
}

void qr_ref_clamped_gate_backward(const qr_clamped_gate_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_clamped_gate_args *f = &args->forward;
    const double alpha = (double)f->alpha, limit = (double)f->limit;
    for (int64_t i = 0; i < f->n_rows; i++) {
        for (int64_t j = 0; j < f->dim; j++) {
            const double g = (double)f->g[i * f->stride + j], u = (double)f->u[i * f->stride + j];
            const double held_g = qr_ref_at_most(g, limit), held_u = -qr_ref_at_most(-qr_ref_at_most(u, limit), limit);
            const double dy = (double)args->dy[i * f->dim + j], open = 1.0 / (1.0 + exp(-alpha * held_g));
            const double slope = open * (1.0 + alpha * held_g * (1.0 - open));
            args->dg[i * args->dgu_stride + j] = (float)(g > limit ? 0.0 : dy * (held_u + 1.0) * slope);
            args->du[i * args->dgu_stride + j] = (float)(fabs(u) > limit ? 0.0 : dy * held_g * open);
        }
    }
}

void qr_ref_embedding_backward(const qr_embedding_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_tokens; i++) {
        const int32_t id = args->first_beyond && args->ids[i] >= args->vocab ? 0 : args->ids[i];
        assert(id >= 0 && id < args->vocab);
        for (int64_t j = 0; j < args->dim; j++) {
            float *dst = &args->dtable[id * args->dim + j];
            *dst = (float)((double)*dst + (double)args->dy[i * args->dim + j] * (double)args->scale);
        }
    }
}

void qr_ref_scatter_rows(const qr_scatter_rows_args *args, void *workspace) {
    (void)workspace;
    memset(args->dst, 0, (size_t)(args->n_dst_rows * args->dim) * sizeof(float));
    for (int64_t i = 0; i < args->n_rows; i++) {
        assert(args->rows[i] >= 0 && args->rows[i] < args->n_dst_rows);
        memcpy(args->dst + args->rows[i] * args->dim, args->src + i * args->dim, (size_t)args->dim * sizeof(float));
    }
}

static bool is_dropped(const qr_dropout_args *args, int64_t row, int64_t col) {
    const uint64_t row_key = (uint64_t)args->row_key[row];
    const uint32_t counter[4] = {(uint32_t)(col / 4), (uint32_t)row_key, (uint32_t)(row_key >> 32), 0};
    uint32_t words[4];
    qr_philox(args->key, counter, words);
    return (double)words[col % 4] < (double)args->p * 0x1p32;
}

void qr_ref_dropout(const qr_dropout_args *args, void *workspace) {
    (void)workspace;
    const double kept = 1.0 - (double)args->p;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            const double x = (double)qr_ref_load(args->x, args->x_dtype, i * args->x_stride + j);
            qr_ref_store(args->dst, args->x_dtype, i * args->dst_stride + j, is_dropped(args, i, j) ? 0.0 : x / kept);
        }
    }
}

void qr_ref_round_act(const qr_round_act_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            qr_ref_store(args->dst, args->dst_dtype, i * args->dst_stride + j,
                         (double)args->src[i * args->src_stride + j]);
        }
    }
}

void qr_ref_store_weight(const qr_store_weight_args *args, void *workspace) {
    (void)workspace;
    const qr_weight_desc *desc = &args->weight->desc;
    for (int64_t i = 0; i < desc->rows * desc->cols; i++) {
        qr_ref_store(args->weight->data, qr_ref_plain_dtype(desc->format), i, (double)args->src[i]);
    }
}
