/* Elementary functions on vectors of F32. The polynomials are minimax fits of our own; the errors stated are checked
 * over the range of F32 arguments by tests/kernels/test_cpu_ops.c. */
#ifndef QR_KERNELS_CPU_SIMD_VEC_MATH_H
#define QR_KERNELS_CPU_SIMD_VEC_MATH_H

#include "kernels/cpu/simd/vec.h"
#include "kernels/ops.h"

/* e^x within 1 ulp: 2^n · e^r with |r| ≤ ln 2 / 2. Above 88.7228 it is infinite, below −103.97 zero; NaN stays. */
QR_INLINE qr_vec qr_vec_exp(qr_vec x) {
    x = qr_vec_min(qr_vec_set1(89.0F), qr_vec_max(qr_vec_set1(-104.0F), x));
    const qr_vec n = qr_vec_round(qr_vec_mul(x, qr_vec_set1(0x1.715476p+0F)));
    /* ln 2 in two parts; n times the first, of 9 bits, is exact. */
    qr_vec r = qr_vec_fma(n, qr_vec_set1(-0.693359375F), x);
    r = qr_vec_fma(n, qr_vec_set1(0x1.bd0106p-13F), r);
    qr_vec p = qr_vec_set1(0x1.6db42ap-10F);
    p = qr_vec_fma(p, r, qr_vec_set1(0x1.123b56p-7F));
    p = qr_vec_fma(p, r, qr_vec_set1(0x1.55545ep-5F));
    p = qr_vec_fma(p, r, qr_vec_set1(0x1.55548ep-3F));
    p = qr_vec_fma(p, r, qr_vec_set1(0.5F));
    p = qr_vec_fma(p, qr_vec_mul(r, r), r);
    return qr_vec_scale2(qr_vec_add(p, qr_vec_set1(1.0F)), n);
}

/* e^x − 1 for x ≤ 0, to a few roundings of itself (test_op_xielu): a Taylor polynomial above −0.5, where the difference
 * would lose digits. */
QR_INLINE qr_vec qr_vec_expm1_below(qr_vec x) {
    const qr_vec small = qr_vec_max(qr_vec_set1(-0.5F), x);
    qr_vec p = qr_vec_set1(1.0F / 40320.0F);
    p = qr_vec_fma(p, small, qr_vec_set1(1.0F / 5040.0F));
    p = qr_vec_fma(p, small, qr_vec_set1(1.0F / 720.0F));
    p = qr_vec_fma(p, small, qr_vec_set1(1.0F / 120.0F));
    p = qr_vec_fma(p, small, qr_vec_set1(1.0F / 24.0F));
    p = qr_vec_fma(p, small, qr_vec_set1(1.0F / 6.0F));
    p = qr_vec_fma(p, small, qr_vec_set1(0.5F));
    const qr_vec near = qr_vec_fma(qr_vec_mul(small, small), p, small);
    return qr_vec_select_less(x, qr_vec_set1(-0.5F), qr_vec_sub(qr_vec_exp(x), qr_vec_set1(1.0F)), near);
}

/* tanh x within 2 ulp: an odd polynomial below 0.55, 1 − 2 / (e^2|x| + 1) above. */
QR_INLINE qr_vec qr_vec_tanh(qr_vec x) {
    const qr_vec magnitude = qr_vec_abs(x), one = qr_vec_set1(1.0F), z = qr_vec_mul(x, x);
    qr_vec p = qr_vec_set1(-0.0062875585F);
    p = qr_vec_fma(p, z, qr_vec_set1(0.021081738F));
    p = qr_vec_fma(p, z, qr_vec_set1(-0.053854953F));
    p = qr_vec_fma(p, z, qr_vec_set1(0.13332614F));
    p = qr_vec_fma(p, z, qr_vec_set1(-0.3333332F));
    const qr_vec small = qr_vec_fma(qr_vec_mul(p, z), x, x);
    const qr_vec e = qr_vec_exp(qr_vec_add(magnitude, magnitude));
    const qr_vec large = qr_vec_sub(one, qr_vec_div(qr_vec_set1(2.0F), qr_vec_add(e, one)));
    return qr_vec_copysign(qr_vec_select_less(magnitude, qr_vec_set1(0.55F), small, large), x);
}

QR_INLINE qr_vec qr_vec_softcap(qr_vec x, float cap) {
    return qr_vec_mul(qr_vec_set1(cap), qr_vec_tanh(qr_vec_div(x, qr_vec_set1(cap))));
}

/* x / (1 + e^−x) */
QR_INLINE qr_vec qr_vec_silu(qr_vec x) {
    const qr_vec e = qr_vec_exp(qr_vec_sub(qr_vec_zero(), x));
    return qr_vec_div(x, qr_vec_add(qr_vec_set1(1.0F), e));
}

/* 0.5 x (1 + tanh u) = x / (1 + e^−2u), u = √(2/π) (x + 0.044715 x³): the same without cancellation. */
QR_INLINE qr_vec qr_vec_gelu_tanh(qr_vec x) {
    const qr_vec inner = qr_vec_fma(qr_vec_mul(x, x), qr_vec_set1(0.044715F), qr_vec_set1(1.0F));
    const qr_vec e = qr_vec_exp(qr_vec_mul(qr_vec_mul(x, inner), qr_vec_set1(-1.5957691216F)));
    return qr_vec_div(x, qr_vec_add(qr_vec_set1(1.0F), e));
}

/* Φ(x), the normal distribution, and *density = e^(−x²/2): Φ(−|x|) = e^(−x²/2) · G(1 / (1 + |x| / 4)), G a polynomial,
 * so that the left tail keeps its relative precision. x² is carried in two parts: its rounding error alone would be
 * 6e-6 of e^(−x²/2) at −14. */
QR_INLINE qr_vec qr_vec_normal(qr_vec x, qr_vec *density) {
    const qr_vec one = qr_vec_set1(1.0F), zero = qr_vec_zero();
    const qr_vec magnitude = qr_vec_min(qr_vec_set1(16.0F), qr_vec_abs(x));
    const qr_vec t = qr_vec_div(one, qr_vec_fma(magnitude, qr_vec_set1(0.25F), one));
    qr_vec g = qr_vec_set1(0.03342562F);
    g = qr_vec_fma(g, t, qr_vec_set1(-0.19337857F));
    g = qr_vec_fma(g, t, qr_vec_set1(0.38849005F));
    g = qr_vec_fma(g, t, qr_vec_set1(-0.32487097F));
    g = qr_vec_fma(g, t, qr_vec_set1(0.29739672F));
    g = qr_vec_fma(g, t, qr_vec_set1(-0.016603775F));
    g = qr_vec_fma(g, t, qr_vec_set1(0.12026652F));
    g = qr_vec_fma(g, t, qr_vec_set1(0.095098905F));
    g = qr_vec_fma(g, t, qr_vec_set1(0.10019535F));
    g = qr_vec_fma(g, t, qr_vec_set1(-1.9854793e-05F));
    const qr_vec square = qr_vec_mul(magnitude, magnitude);
    const qr_vec lost = qr_vec_square_rest(magnitude, square);
    qr_vec e = qr_vec_exp(qr_vec_mul(square, qr_vec_set1(-0.5F)));
    e = qr_vec_fma(e, qr_vec_mul(lost, qr_vec_set1(-0.5F)), e);
    const qr_vec tail = qr_vec_mul(e, g);
    *density = e;
    return qr_vec_select_less(x, zero, tail, qr_vec_sub(one, tail));
}

/* x Φ(x) */
QR_INLINE qr_vec qr_vec_gelu_erf(qr_vec x) {
    qr_vec density;
    return qr_vec_mul(x, qr_vec_normal(x, &density));
}

/* σ(x) = 1 / (1 + e^−x), and *rest = 1 − σ(x). */
QR_INLINE qr_vec qr_vec_sigmoid(qr_vec x, qr_vec *rest) {
    const qr_vec e = qr_vec_exp(qr_vec_sub(qr_vec_zero(), qr_vec_abs(x)));
    const qr_vec high = qr_vec_div(qr_vec_set1(1.0F), qr_vec_add(qr_vec_set1(1.0F), e));
    const qr_vec low = qr_vec_mul(e, high);
    *rest = qr_vec_select_less(x, qr_vec_zero(), high, low);
    return qr_vec_select_less(x, qr_vec_zero(), low, high);
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e), e = e^−|x|; the logarithm is 2 artanh(e / (2 + e)), whose series ends here. */
QR_INLINE qr_vec qr_vec_softplus(qr_vec x) {
    const qr_vec e = qr_vec_exp(qr_vec_sub(qr_vec_zero(), qr_vec_abs(x)));
    const qr_vec s = qr_vec_div(e, qr_vec_add(qr_vec_set1(2.0F), e)), square = qr_vec_mul(s, s);
    qr_vec p = qr_vec_set1(2.0F / 15.0F);
    p = qr_vec_fma(p, square, qr_vec_set1(2.0F / 13.0F));
    p = qr_vec_fma(p, square, qr_vec_set1(2.0F / 11.0F));
    p = qr_vec_fma(p, square, qr_vec_set1(2.0F / 9.0F));
    p = qr_vec_fma(p, square, qr_vec_set1(2.0F / 7.0F));
    p = qr_vec_fma(p, square, qr_vec_set1(2.0F / 5.0F));
    p = qr_vec_fma(p, square, qr_vec_set1(2.0F / 3.0F));
    const qr_vec log = qr_vec_fma(qr_vec_mul(p, square), s, qr_vec_add(s, s));
    return qr_vec_add(qr_vec_max(qr_vec_zero(), x), log);
}

/* x, and 0 where it is negative; NaN stays. */
QR_INLINE qr_vec qr_vec_relu(qr_vec x) { return qr_vec_max(qr_vec_zero(), x); }

QR_INLINE qr_vec qr_vec_act(qr_act_fn fn, qr_vec x) {
    qr_vec rest;
    switch (fn) {
        case QR_ACT_SILU: return qr_vec_silu(x);
        case QR_ACT_GELU_TANH: return qr_vec_gelu_tanh(x);
        case QR_ACT_RELU2: return qr_vec_mul(qr_vec_relu(x), qr_vec_relu(x));
        case QR_ACT_NONE: return x;
        case QR_ACT_SIGMOID: return qr_vec_sigmoid(x, &rest);
        case QR_ACT_GELU_ERF: break;
    }
    return qr_vec_gelu_erf(x);
}

#endif
