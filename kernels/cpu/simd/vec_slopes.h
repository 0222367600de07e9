/* Derivatives of the elementary functions of vec_math.h. Where a derivative goes to zero it keeps its relative
 * precision: 1 − σ and 1 − tanh² come from the exponential, not from a difference. */
#ifndef QR_KERNELS_CPU_SIMD_VEC_SLOPES_H
#define QR_KERNELS_CPU_SIMD_VEC_SLOPES_H

#include "kernels/cpu/simd/vec_math.h"

/* The derivative of softcap, 1 − tanh²(x / cap) = 4 σ(2x / cap) (1 − σ(2x / cap)). */
QR_INLINE qr_vec qr_vec_softcap_slope(qr_vec x, float cap) {
    qr_vec rest;
    const qr_vec sigma = qr_vec_sigmoid(qr_vec_div(x, qr_vec_set1(0.5F * cap)), &rest);
    return qr_vec_mul(qr_vec_mul(qr_vec_set1(4.0F), sigma), rest);
}

/* x, and limit where x is beyond it; NaN stays. */
QR_INLINE qr_vec qr_vec_at_most(qr_vec x, float limit) { return qr_vec_min(qr_vec_set1(limit), x); }

/* x held to ±limit; NaN stays. Beyond the limit the slopes are 0 or 1 and no product may overflow on the way there. */
QR_INLINE qr_vec qr_vec_held(qr_vec x, float limit) {
    return qr_vec_min(qr_vec_set1(limit), qr_vec_max(qr_vec_set1(-limit), x));
}

/* fn'(x), and fn(x) in *value: for fn(x) = x · σ(u(x)), which all but the first three are, σ + x · σ (1 − σ) · u'. */
QR_INLINE qr_vec qr_vec_act_slope(qr_act_fn fn, qr_vec x, qr_vec *value) {
    const qr_vec one = qr_vec_set1(1.0F);
    qr_vec rest;
    if (fn == QR_ACT_NONE) {
        *value = x;
        return one;
    }
    if (fn == QR_ACT_SIGMOID) {
        *value = qr_vec_sigmoid(x, &rest);
        return qr_vec_mul(*value, rest);
    }
    if (fn == QR_ACT_RELU2) {
        const qr_vec positive = qr_vec_relu(x);
        *value = qr_vec_mul(positive, positive);
        return qr_vec_add(positive, positive);
    }
    if (fn == QR_ACT_GELU_ERF) { /* Φ + x φ */
        const qr_vec sigma = qr_vec_normal(x, &rest);
        *value = qr_vec_mul(x, sigma);
        return qr_vec_fma(qr_vec_mul(qr_vec_held(x, 16.0F), qr_vec_set1(0.3989422804F)), rest, sigma);
    }
    if (fn == QR_ACT_SILU) {
        const qr_vec sigma = qr_vec_sigmoid(x, &rest);
        *value = qr_vec_mul(x, sigma);
        return qr_vec_mul(sigma, qr_vec_fma(qr_vec_held(x, 128.0F), rest, one));
    }
    const qr_vec z = qr_vec_held(x, 16.0F), square = qr_vec_mul(z, z), two_root = qr_vec_set1(1.5957691216F);
    const qr_vec inner = qr_vec_mul(z, qr_vec_fma(square, qr_vec_set1(0.044715F), one));
    const qr_vec sigma = qr_vec_sigmoid(qr_vec_mul(inner, two_root), &rest);
    const qr_vec slope = qr_vec_mul(two_root, qr_vec_fma(square, qr_vec_set1(0.134145F), one));
    *value = qr_vec_mul(x, sigma);
    return qr_vec_mul(sigma, qr_vec_fma(qr_vec_mul(z, rest), slope, one));
}

#endif
