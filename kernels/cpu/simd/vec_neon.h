/* qr_vec in NEON, as every 64-bit Arm CPU has it: 32 registers of four lanes, FMA, conversions of binary16. */
#ifndef QR_KERNELS_CPU_SIMD_VEC_NEON_H
#define QR_KERNELS_CPU_SIMD_VEC_NEON_H

#include <arm_neon.h>

#define QR_VEC 4
#define QR_VEC_NEON
typedef float32x4_t qr_vec;

QR_INLINE qr_vec qr_vec_zero(void) { return vdupq_n_f32(0.0F); }
QR_INLINE qr_vec qr_vec_set1(float x) { return vdupq_n_f32(x); }
/* By bytes: sources may have any alignment. */
QR_INLINE qr_vec qr_vec_load(const float *p) {
    return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)(const void *)p));
}
QR_INLINE qr_vec qr_vec_load_n(const float *p, int64_t n) {
    if (n >= QR_VEC) { return qr_vec_load(p); }
    float lanes[QR_VEC] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return vld1q_f32(lanes);
}
QR_INLINE void qr_vec_store(float *p, qr_vec v) { vst1q_u8((uint8_t *)(void *)p, vreinterpretq_u8_f32(v)); }
QR_INLINE void qr_vec_store_n(float *p, qr_vec v, int64_t n) {
    if (n >= QR_VEC) {
        qr_vec_store(p, v);
    } else {
        memcpy(p, &v, (size_t)n * sizeof *p);
    }
}

QR_INLINE void qr_vec_deinterleave(qr_vec a, qr_vec b, qr_vec *even, qr_vec *odd) {
    *even = vuzp1q_f32(a, b);
    *odd = vuzp2q_f32(a, b);
}
QR_INLINE void qr_vec_interleave(qr_vec even, qr_vec odd, qr_vec *a, qr_vec *b) {
    *a = vzip1q_f32(even, odd);
    *b = vzip2q_f32(even, odd);
}

QR_INLINE qr_vec qr_vec_add(qr_vec a, qr_vec b) { return vaddq_f32(a, b); }
QR_INLINE qr_vec qr_vec_sub(qr_vec a, qr_vec b) { return vsubq_f32(a, b); }
QR_INLINE qr_vec qr_vec_mul(qr_vec a, qr_vec b) { return vmulq_f32(a, b); }
QR_INLINE qr_vec qr_vec_div(qr_vec a, qr_vec b) { return vdivq_f32(a, b); }
QR_INLINE qr_vec qr_vec_fma(qr_vec a, qr_vec b, qr_vec c) { return vfmaq_f32(c, a, b); }
/* a² − square, where square is a² rounded: exact. */
QR_INLINE qr_vec qr_vec_square_rest(qr_vec a, qr_vec square) { return vfmaq_f32(vnegq_f32(square), a, a); }
/* Not fmax and fmin, which give NaN when either operand is one. */
QR_INLINE qr_vec qr_vec_max(qr_vec a, qr_vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
QR_INLINE qr_vec qr_vec_min(qr_vec a, qr_vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
QR_INLINE qr_vec qr_vec_abs(qr_vec a) { return vabsq_f32(a); }
QR_INLINE qr_vec qr_vec_sqrt(qr_vec a) { return vsqrtq_f32(a); }
QR_INLINE qr_vec qr_vec_copysign(qr_vec magnitude, qr_vec sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000U), sign, magnitude);
}
/* a < b ? x : y */
QR_INLINE qr_vec qr_vec_select_less(qr_vec a, qr_vec b, qr_vec x, qr_vec y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
/* Lane i is inside[i] where begin ≤ i < end, else outside[i]. */
QR_INLINE qr_vec qr_vec_select_range(qr_vec inside, qr_vec outside, int begin, int end) {
    static const int32_t numbers[QR_VEC] = {0, 1, 2, 3};
    const int32x4_t lane = vld1q_s32(numbers);
    return vbslq_f32(vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end))), inside,
                     outside);
}
QR_INLINE qr_vec qr_vec_round(qr_vec a) { return vrndnq_f32(a); }
/* a · 2^n for integral n, rounded once: the first of two factors never leaves the normal range for n in [-160, 160]. */
QR_INLINE qr_vec qr_vec_scale2(qr_vec a, qr_vec n) {
    const int32x4_t bias = vdupq_n_s32(127), whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
    const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23);
    return vmulq_f32(vmulq_f32(a, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}

QR_INLINE float qr_vec_get(qr_vec v) { return vgetq_lane_f32(v, 0); } /* lane 0 */
QR_INLINE float qr_vec_sum(qr_vec v) {
    const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
QR_INLINE float qr_vec_highest(qr_vec v) {
    const qr_vec two = qr_vec_max(v, vextq_f32(v, v, 2));
    return qr_vec_get(qr_vec_max(two, vextq_f32(two, two, 1)));
}

/* Half of the lanes in F64. */
typedef float64x2_t qr_vec_half;
QR_INLINE qr_vec_half qr_vec_low(qr_vec v) { return vcvt_f64_f32(vget_low_f32(v)); }
QR_INLINE qr_vec_half qr_vec_high(qr_vec v) { return vcvt_high_f64_f32(v); }
QR_INLINE qr_vec_half qr_vec_half_add(qr_vec_half a, qr_vec_half b) { return vaddq_f64(a, b); }
QR_INLINE qr_vec_half qr_vec_half_fma(qr_vec_half a, qr_vec_half b, qr_vec_half c) { return vfmaq_f64(c, a, b); }

/* The first n 16-bit elements. */
QR_INLINE uint16x4_t qr_vec_load_16_n(const uint16_t *p, int64_t n) {
    if (n >= QR_VEC) { return vreinterpret_u16_u8(vld1_u8((const uint8_t *)(const void *)p)); }
    uint16_t lanes[QR_VEC] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return vld1_u16(lanes);
}
QR_INLINE void qr_vec_store_16_n(uint16_t *p, uint16x4_t v, int64_t n) {
    if (n >= QR_VEC) {
        vst1_u8((uint8_t *)(void *)p, vreinterpret_u8_u16(v));
    } else {
        memcpy(p, &v, (size_t)n * sizeof *p);
    }
}

QR_INLINE qr_vec qr_vec_from_bf16(uint16x4_t v) { return vreinterpretq_f32_u32(vshll_n_u16(v, 16)); }
QR_INLINE qr_vec qr_vec_load_bf16_n(const uint16_t *p, int64_t n) { return qr_vec_from_bf16(qr_vec_load_16_n(p, n)); }
/* Rounded to BF16 in the upper 16 bits. */
QR_INLINE uint32x4_t qr_vec_bf16_bits(qr_vec v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
    return vbslq_u32(vceqq_f32(v, v), rounded, vorrq_u32(bits, vdupq_n_u32(0x400000)));
}
QR_INLINE uint16x4_t qr_vec_to_bf16(qr_vec v) { return vshrn_n_u32(qr_vec_bf16_bits(v), 16); }
QR_INLINE void qr_vec_store_bf16_n(uint16_t *p, qr_vec v, int64_t n) { qr_vec_store_16_n(p, qr_vec_to_bf16(v), n); }
/* Each lane rounded to the nearest BF16 value. */
QR_INLINE qr_vec qr_vec_round_bf16(qr_vec v) {
    return vreinterpretq_f32_u32(vandq_u32(qr_vec_bf16_bits(v), vdupq_n_u32(0xFFFF0000U)));
}

QR_INLINE qr_vec qr_vec_from_f16(uint16x4_t v) { return vcvt_f32_f16(vreinterpret_f16_u16(v)); }
QR_INLINE uint16x4_t qr_vec_to_f16(qr_vec v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
QR_INLINE qr_vec qr_vec_load_f16_n(const uint16_t *p, int64_t n) { return qr_vec_from_f16(qr_vec_load_16_n(p, n)); }
/* Each lane rounded to the nearest binary16 value. */
QR_INLINE qr_vec qr_vec_round_f16(qr_vec v) { return qr_vec_from_f16(qr_vec_to_f16(v)); }
QR_INLINE void qr_vec_store_f16_n(uint16_t *p, qr_vec v, int64_t n) { qr_vec_store_16_n(p, qr_vec_to_f16(v), n); }

QR_INLINE qr_vec qr_vec_load_i8_n(const int8_t *p, int64_t n) {
    uint32_t codes = 0;
    memcpy(&codes, p, n >= QR_VEC ? QR_VEC : (size_t)n);
    const int16x8_t words = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(codes)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
}
/* Rounded to the nearest even integer and held to int8; NaN gives 0. */
QR_INLINE void qr_vec_store_i8_n(int8_t *p, qr_vec v, int64_t n) {
    const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(v));
    const int8x8_t codes = vqmovn_s16(vcombine_s16(words, words));
    memcpy(p, &codes, n >= QR_VEC ? QR_VEC : (size_t)n);
}

#endif
