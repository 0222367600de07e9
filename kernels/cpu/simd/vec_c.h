/* qr_vec in portable C: what a CPU without AVX2 runs, and, 16 lanes wide, every CPU without AVX-512 that is to have its
 * bits. The vector extension of GCC and Clang is used because it becomes the vectors that a CPU has, of 128 bits nearly
 * everywhere, which loops over arrays do not do reliably. */
#ifndef QR_KERNELS_CPU_SIMD_VEC_C_H
#define QR_KERNELS_CPU_SIMD_VEC_C_H

#include "base/fma.h"

#ifdef QR_CPU_WIDE
#define QR_VEC 16
#define QR_VEC_LANES(x) \
    x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7), x(8), x(9), x(10), x(11), x(12), x(13), x(14), x(15)
#else
#define QR_VEC 4
#define QR_VEC_LANES(x) x(0), x(1), x(2), x(3)
#endif
typedef float qr_vec __attribute__((vector_size(4 * QR_VEC)));
typedef int32_t qr_vec_mask __attribute__((vector_size(4 * QR_VEC)));

QR_INLINE qr_vec qr_vec_set1(float x) {
#define QR_X(lane) x
    return (qr_vec){QR_VEC_LANES(QR_X)};
#undef QR_X
}
QR_INLINE qr_vec qr_vec_zero(void) { return qr_vec_set1(0.0F); }
QR_INLINE qr_vec qr_vec_load(const float *p) {
    qr_vec v;
    memcpy(&v, p, sizeof v);
    return v;
}
QR_INLINE qr_vec qr_vec_load_n(const float *p, int64_t n) {
    if (n >= QR_VEC) { return qr_vec_load(p); }
    qr_vec v = qr_vec_zero();
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}
QR_INLINE void qr_vec_store(float *p, qr_vec v) { memcpy(p, &v, sizeof v); }
QR_INLINE void qr_vec_store_n(float *p, qr_vec v, int64_t n) {
    if (n >= QR_VEC) {
        qr_vec_store(p, v);
    } else {
        memcpy(p, &v, (size_t)n * sizeof *p);
    }
}

QR_INLINE void qr_vec_deinterleave(qr_vec a, qr_vec b, qr_vec *even, qr_vec *odd) {
    for (int i = 0; i < QR_VEC / 2; i++) {
        (*even)[i] = a[2 * i], (*odd)[i] = a[2 * i + 1];
        (*even)[QR_VEC / 2 + i] = b[2 * i], (*odd)[QR_VEC / 2 + i] = b[2 * i + 1];
    }
}
QR_INLINE void qr_vec_interleave(qr_vec even, qr_vec odd, qr_vec *a, qr_vec *b) {
    for (int i = 0; i < QR_VEC / 2; i++) {
        (*a)[2 * i] = even[i], (*a)[2 * i + 1] = odd[i];
        (*b)[2 * i] = even[QR_VEC / 2 + i], (*b)[2 * i + 1] = odd[QR_VEC / 2 + i];
    }
}

QR_INLINE qr_vec qr_vec_where(qr_vec_mask mask, qr_vec x, qr_vec y) {
    return (qr_vec)((mask & (qr_vec_mask)x) | (~mask & (qr_vec_mask)y));
}
QR_INLINE qr_vec qr_vec_add(qr_vec a, qr_vec b) { return a + b; }
QR_INLINE qr_vec qr_vec_sub(qr_vec a, qr_vec b) { return a - b; }
QR_INLINE qr_vec qr_vec_mul(qr_vec a, qr_vec b) { return a * b; }
QR_INLINE qr_vec qr_vec_div(qr_vec a, qr_vec b) { return a / b; }
#if defined(QR_CPU_WIDE) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
QR_INLINE qr_vec qr_vec_fma(qr_vec a, qr_vec b, qr_vec c) {
    for (int i = 0; i < QR_VEC; i++) { c[i] = __builtin_fmaf(a[i], b[i], c[i]); }
    return c;
}
#elif defined(QR_CPU_WIDE)
QR_INLINE qr_vec qr_vec_fma(qr_vec a, qr_vec b, qr_vec c) {
    for (int i = 0; i < QR_VEC; i++) { c[i] = qr_fma_f32(a[i], b[i], c[i]); }
    return c;
}
#else
QR_INLINE qr_vec qr_vec_fma(qr_vec a, qr_vec b, qr_vec c) { return a * b + c; }
#endif
/* a² − square, where square is a² rounded: exact. */
QR_INLINE qr_vec qr_vec_square_rest(qr_vec a, qr_vec square) {
    for (int i = 0; i < QR_VEC; i++) { a[i] = (float)((double)a[i] * (double)a[i] - (double)square[i]); }
    return a;
}
QR_INLINE qr_vec qr_vec_max(qr_vec a, qr_vec b) { return qr_vec_where(a > b, a, b); }
QR_INLINE qr_vec qr_vec_min(qr_vec a, qr_vec b) { return qr_vec_where(a < b, a, b); }
QR_INLINE qr_vec qr_vec_abs(qr_vec a) { return (qr_vec)((qr_vec_mask)a & 0x7FFFFFFF); }
QR_INLINE qr_vec qr_vec_sqrt(qr_vec a) {
    for (int i = 0; i < QR_VEC; i++) { a[i] = sqrtf(a[i]); }
    return a;
}
QR_INLINE qr_vec qr_vec_copysign(qr_vec magnitude, qr_vec sign) {
    return (qr_vec)(((qr_vec_mask)magnitude & 0x7FFFFFFF) | ((qr_vec_mask)sign & INT32_MIN));
}
/* a < b ? x : y */
QR_INLINE qr_vec qr_vec_select_less(qr_vec a, qr_vec b, qr_vec x, qr_vec y) { return qr_vec_where(a < b, x, y); }
/* Lane i is inside[i] where begin ≤ i < end, else outside[i]. */
QR_INLINE qr_vec qr_vec_select_range(qr_vec inside, qr_vec outside, int begin, int end) {
#define QR_X(number) number
    const qr_vec_mask lane = {QR_VEC_LANES(QR_X)};
#undef QR_X
    return qr_vec_where((lane >= begin) & (lane < end), inside, outside);
}
/* To the nearest even integer, for |a| < 2^22: at 1.5 · 2^23 a unit in the last place is 1. */
QR_INLINE qr_vec qr_vec_round(qr_vec a) { return (a + 0x1.8p+23F) - 0x1.8p+23F; }
/* a · 2^n for integral n, rounded once: the first of two factors never leaves the normal range for n in [-160, 160]. */
QR_INLINE qr_vec qr_vec_scale2(qr_vec a, qr_vec n) {
    const qr_vec number = qr_vec_where(n == n, n, qr_vec_zero());
    const qr_vec_mask whole = __builtin_convertvector(number, qr_vec_mask), half = whole >> 1;
    return a * (qr_vec)((half + 127) << 23) * (qr_vec)((whole - half + 127) << 23);
}

QR_INLINE float qr_vec_get(qr_vec v) { return v[0]; } /* lane 0 */
/* The upper half is added to the lower one until one lane is left. */
QR_INLINE float qr_vec_sum(qr_vec v) {
    for (int half = QR_VEC / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) { v[i] += v[i + half]; }
    }
    return v[0];
}
QR_INLINE float qr_vec_highest(qr_vec v) {
    float highest = v[0];
    for (int i = 1; i < QR_VEC; i++) { highest = highest > v[i] ? highest : v[i]; }
    return highest;
}

/* Sums of lanes in F64. */
typedef struct qr_vec_f64 {
    double lanes[QR_VEC];
} qr_vec_f64;
QR_INLINE void qr_vec_f64_add(qr_vec_f64 *sums, qr_vec v) {
    for (int i = 0; i < QR_VEC; i++) { sums->lanes[i] += (double)v[i]; }
}
QR_INLINE void qr_vec_f64_add_squares(qr_vec_f64 *sums, qr_vec v) {
    for (int i = 0; i < QR_VEC; i++) { sums->lanes[i] += (double)v[i] * (double)v[i]; }
}

/* One lane at a time through a scalar conversion; whole vectors by a loop of constant length. Sources may have any
 * alignment (tensors of a mapped file). */
#define QR_VEC_LOAD(name, type, convert)                                  \
    QR_INLINE qr_vec name(const type *p, int64_t n) {                     \
        qr_vec v = qr_vec_zero();                                         \
        type elements[QR_VEC] = {0};                                      \
        if (n >= QR_VEC) {                                                \
            memcpy(elements, p, sizeof elements);                         \
        } else {                                                          \
            memcpy(elements, p, (size_t)n * sizeof *p);                   \
        }                                                                 \
        for (int i = 0; i < QR_VEC; i++) { v[i] = convert(elements[i]); } \
        return v;                                                         \
    }
#define QR_VEC_STORE(name, type, convert)                              \
    QR_INLINE void name(type *p, qr_vec v, int64_t n) {                \
        if (n >= QR_VEC) {                                             \
            for (int i = 0; i < QR_VEC; i++) { p[i] = convert(v[i]); } \
        } else {                                                       \
            for (int i = 0; i < (int)n; i++) { p[i] = convert(v[i]); } \
        }                                                              \
    }

QR_INLINE float qr_vec_i8_to_f32(int8_t code) { return (float)code; }
/* Rounded to the nearest even integer and held to int8; NaN gives 0. */
QR_INLINE int8_t qr_vec_f32_to_i8(float x) {
    const float whole = rintf(x);
    if (!(whole > -128.0F)) { return isnan(x) ? 0 : INT8_MIN; }
    return whole < 127.0F ? (int8_t)whole : INT8_MAX;
}

QR_VEC_LOAD(qr_vec_load_bf16_n, uint16_t, qr_bf16_to_f32)
QR_VEC_LOAD(qr_vec_load_f16_n, uint16_t, qr_f16_to_f32)
QR_VEC_LOAD(qr_vec_load_i8_n, int8_t, qr_vec_i8_to_f32)
QR_VEC_STORE(qr_vec_store_bf16_n, uint16_t, qr_f32_to_bf16)
QR_VEC_STORE(qr_vec_store_f16_n, uint16_t, qr_f32_to_f16)
QR_VEC_STORE(qr_vec_store_i8_n, int8_t, qr_vec_f32_to_i8)
#undef QR_VEC_LOAD
#undef QR_VEC_STORE

/* Each lane rounded to the nearest BF16, or binary16, value. */
QR_INLINE qr_vec qr_vec_round_bf16(qr_vec v) {
    for (int i = 0; i < QR_VEC; i++) { v[i] = qr_bf16_to_f32(qr_f32_to_bf16(v[i])); }
    return v;
}
QR_INLINE qr_vec qr_vec_round_f16(qr_vec v) {
    for (int i = 0; i < QR_VEC; i++) { v[i] = qr_f16_to_f32(qr_f32_to_f16(v[i])); }
    return v;
}

#endif
