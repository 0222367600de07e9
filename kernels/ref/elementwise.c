/* activation, gate, xielu, add, scale, scale_columns, softcap and nll. */
#include <assert.h>
#include <math.h>

#include "kernels/ref/ref.h"

double qr_ref_act_fn(qr_act_fn fn, double x) {
    const double sqrt_half = 0.70710678118654752440, sqrt_two_over_pi = 0.79788456080286535588;
    switch (fn) {
        case QR_ACT_SILU: return x / (1.0 + exp(-x));
        case QR_ACT_GELU_TANH: return 0.5 * x * (1.0 + tanh(sqrt_two_over_pi * (x + 0.044715 * x * x * x)));
        case QR_ACT_GELU_ERF: return 0.5 * x * (1.0 + erf(x * sqrt_half));
        case QR_ACT_RELU2: return x < 0.0 ? 0.0 : x * x;
        case QR_ACT_NONE: return x;
        case QR_ACT_SIGMOID: return 1.0 / (1.0 + exp(-x));
    }
    return 0.0;
}

double qr_ref_softcap_value(double x, double cap) { return cap * tanh(x / cap); }

void qr_ref_activation(const qr_activation_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            const double value = qr_ref_act_fn(args->fn, (double)args->x[i * args->x_stride + j]);
            qr_ref_store(args->dst, args->dst_dtype, i * args->dim + j, value);
        }
    }
}

void qr_ref_gate(const qr_gate_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            const double gate = qr_ref_act_fn(args->fn, (double)args->g[i * args->g_stride + j]);
            const double value = gate * (double)args->u[i * args->u_stride + j];
            qr_ref_store(args->dst, args->dst_dtype, i * args->dim + j, value);
        }
    }
}

void qr_ref_clamped_gate(const qr_clamped_gate_args *args, void *workspace) {
    (void)workspace;
    const double alpha = (double)args->alpha, limit = (double)args->limit;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            const double g = qr_ref_at_most((double)args->g[i * args->stride + j], limit);
            const double u = -qr_ref_at_most(-qr_ref_at_most((double)args->u[i * args->stride + j], limit), limit);
            qr_ref_store(args->dst, args->dst_dtype, i * args->dim + j, g / (1.0 + exp(-alpha * g)) * (u + 1.0));
        }
    }
}

void qr_ref_xielu(const qr_xielu_args *args, void *workspace) {
    (void)workspace;
    const double beta = (double)args->beta[0], eps = (double)args->eps[0];
    const double p = qr_ref_softplus((double)args->alpha_p[0]), n = beta + qr_ref_softplus((double)args->alpha_n[0]);
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            const double x = (double)args->x[i * args->x_stride + j];
            const double curve = x > 0.0 ? p * x * x : n * (expm1(qr_ref_at_most(x, eps)) - x);
            qr_ref_store(args->dst, args->dst_dtype, i * args->dim + j, curve + beta * x);
        }
    }
}

void qr_ref_add(const qr_add_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n; i++) { args->x[i] += args->y[i]; }
}

void qr_ref_scale(const qr_scale_args *args, void *workspace) {
    (void)workspace;
    const float factor = args->by != NULL ? args->factor * args->by[0] : args->factor;
    for (int64_t i = 0; i < args->n; i++) { args->x[i] *= factor; }
}

void qr_ref_scale_columns(const qr_scale_columns_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        float *x = args->x + i * args->x_stride;
        for (int p = 0; p < QR_MAX_SCALED_PARTS; p++) {
            for (int64_t j = 0; j < args->parts[p].n; j++) { *x++ *= args->parts[p].factor; }
        }
    }
}

void qr_ref_softcap(const qr_softcap_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n; i++) {
        args->x[i] = (float)qr_ref_softcap_value((double)args->x[i], (double)args->cap);
    }
}

void qr_ref_nll(const qr_nll_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const float *logits = args->logits + i * args->vocab;
        assert(args->target[i] >= 0 && args->target[i] < args->vocab);
        double largest = (double)logits[0], sum = 0.0;
        for (int64_t v = 1; v < args->vocab; v++) { largest = fmax(largest, (double)logits[v]); }
        for (int64_t v = 0; v < args->vocab; v++) { sum += exp((double)logits[v] - largest); }
        args->dst[i] = (float)(largest + log(sum) - (double)logits[args->target[i]]);
    }
}
