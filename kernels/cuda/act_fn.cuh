/* The activation functions and their derivatives, in F32. */
#ifndef QR_KERNELS_CUDA_ACT_FN_CUH
#define QR_KERNELS_CUDA_ACT_FN_CUH

#include "kernels/cuda/device/device.cuh"

QR_DEVICE float gelu_tanh_argument(float x) { return 0.79788456080286535588F * (x + 0.044715F * x * x * x); }

QR_DEVICE float act_fn(qr_act_fn fn, float x) {
    switch (fn) {
        case QR_ACT_SILU: return x / (1.0F + expf(-x));
        case QR_ACT_RELU2: return x < 0.0F ? 0.0F : x * x;
        case QR_ACT_NONE: return x;
        case QR_ACT_SIGMOID: return 1.0F / (1.0F + expf(-x));
        case QR_ACT_GELU_TANH: return 0.5F * x * (1.0F + tanhf(gelu_tanh_argument(x)));
        default: return 0.5F * x * (1.0F + erff(x * 0.70710678118654752440F));
    }
}

/* fn'(x). 1 − tanh² is taken as 1 / cosh², which does not cancel; beyond ±20 it is 0, and so is gelu's second term. */
QR_DEVICE float act_derivative(qr_act_fn fn, float x) {
    switch (fn) {
        case QR_ACT_SILU: {
            const float on = 1.0F / (1.0F + expf(-x)), off = 1.0F / (1.0F + expf(x));
            return on + x * on * off;
        }
        case QR_ACT_RELU2: return x < 0.0F ? 0.0F : 2.0F * x;
        case QR_ACT_NONE: return 1.0F;
        case QR_ACT_SIGMOID: return 1.0F / (1.0F + expf(-x)) / (1.0F + expf(x));
        case QR_ACT_GELU_TANH: {
            const float near = fminf(fmaxf(x, -20.0F), 20.0F), u = gelu_tanh_argument(near), cosine = coshf(u);
            const float slope = 0.79788456080286535588F * (1.0F + 3.0F * 0.044715F * near * near);
            return 0.5F * (1.0F + tanhf(u)) + 0.5F * near * slope / cosine / cosine;
        }
        default: {
            const float near = fminf(fmaxf(x, -20.0F), 20.0F);
            return 0.5F * erfcf(-near * 0.70710678118654752440F) +
                   near * 0.39894228040143267794F * expf(-0.5F * near * near);
        }
    }
}

QR_DEVICE float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

/* NaN stays NaN. */
QR_DEVICE float at_most(float x, float limit) { return x > limit ? limit : x; }
QR_DEVICE float held_to(float x, float limit) { return x < -limit ? -limit : at_most(x, limit); }

/* xielu's p and n, and e^min(x, eps) − 1 − x for x ≤ 0; NaN stays NaN. */
QR_DEVICE float softplus_of(float x) { return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x))); }
QR_DEVICE float xielu_above(const qr_xielu_args &a) { return softplus_of(a.alpha_p[0]); }
QR_DEVICE float xielu_below(const qr_xielu_args &a) { return a.beta[0] + softplus_of(a.alpha_n[0]); }
QR_DEVICE float xielu_curve(float x, float eps) { return expm1f(at_most(x, eps)) - x; }

QR_DEVICE float softcap_value(float x, float cap) { return cap * tanhf(x / cap); }

#endif
