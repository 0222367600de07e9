/* NF4 codes of the lanes of vectors, bit-equal to quant/nf4.h: a binary search among its midpoints by `>`, so that a
 * tie and NaN go down. Elements come as two vectors, the even ones (high halves of bytes) and the odd ones.
 *
 *   qr_vec_split(a, b, odd)   returns the even elements of a followed by b, and puts the odd ones in *odd
 *   qr_vec_store_nf4          writes QR_VEC bytes */
#ifndef QR_KERNELS_CPU_SIMD_VEC_NF4_H
#define QR_KERNELS_CPU_SIMD_VEC_NF4_H

#include "kernels/cpu/simd/vec.h"
#include "quant/nf4.h"

#ifdef QR_VEC_AVX512

/* The midpoint to compare with when the code is known down to the bit of `step`, at the index of what is known. */
typedef struct qr_vec_nf4 {
    __m512 step8, step4, step2, step1;
} qr_vec_nf4;

QR_INLINE __m512 qr_vec_nf4_midpoints(int step) {
    float midpoints[16] = {0};
    for (int known = 0; known < 16; known += 2 * step) { midpoints[known] = qr_nf4_midpoints[known + step - 1]; }
    return _mm512_loadu_ps(midpoints);
}
QR_INLINE qr_vec_nf4 qr_vec_nf4_make(void) {
    return (qr_vec_nf4){_mm512_set1_ps(qr_nf4_midpoints[7]), qr_vec_nf4_midpoints(4), qr_vec_nf4_midpoints(2),
                        qr_vec_nf4_midpoints(1)};
}
QR_INLINE __m512i qr_vec_nf4_refine(__m512i code, qr_vec x, __m512 midpoints, int step) {
    const __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_permutexvar_ps(code, midpoints), _CMP_GT_OQ);
    return _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(step));
}
QR_INLINE __m512i qr_vec_nf4_code_of(qr_vec x, const qr_vec_nf4 *tables) {
    __m512i code = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(x, tables->step8, _CMP_GT_OQ), 8);
    code = qr_vec_nf4_refine(code, x, tables->step4, 4);
    code = qr_vec_nf4_refine(code, x, tables->step2, 2);
    return qr_vec_nf4_refine(code, x, tables->step1, 1);
}
QR_INLINE void qr_vec_store_nf4(uint8_t *dst, qr_vec even, qr_vec odd, const qr_vec_nf4 *tables) {
    const __m512i high = _mm512_slli_epi32(qr_vec_nf4_code_of(even, tables), 4);
    const __m512i bytes = _mm512_or_si512(high, qr_vec_nf4_code_of(odd, tables));
    _mm_storeu_si128((__m128i *)(void *)dst, _mm512_cvtepi32_epi8(bytes));
}
QR_INLINE qr_vec qr_vec_split(qr_vec a, qr_vec b, qr_vec *odd) {
    const __m512i even_lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(even_lanes, _mm512_set1_epi32(1)), b);
    return _mm512_permutex2var_ps(a, even_lanes, b);
}

#elif defined(QR_VEC_AVX2)

/* Tables of 8: at each step the index is the code so far, shifted down. */
typedef struct qr_vec_nf4 {
    __m256 step8, step4, step2, step1;
} qr_vec_nf4;

QR_INLINE __m256 qr_vec_nf4_midpoints(int step) {
    float midpoints[8] = {0};
    for (int i = 0; i * 2 * step < 16; i++) { midpoints[i] = qr_nf4_midpoints[i * 2 * step + step - 1]; }
    return _mm256_loadu_ps(midpoints);
}
QR_INLINE qr_vec_nf4 qr_vec_nf4_make(void) {
    return (qr_vec_nf4){_mm256_set1_ps(qr_nf4_midpoints[7]), qr_vec_nf4_midpoints(4), qr_vec_nf4_midpoints(2),
                        qr_vec_nf4_midpoints(1)};
}
/* 2 · code, and one more where x is above the midpoint: a comparison gives −1. */
QR_INLINE __m256i qr_vec_nf4_refine(__m256i code, qr_vec x, __m256 midpoints) {
    const __m256 above = _mm256_cmp_ps(x, _mm256_permutevar8x32_ps(midpoints, code), _CMP_GT_OQ);
    return _mm256_sub_epi32(_mm256_add_epi32(code, code), _mm256_castps_si256(above));
}
QR_INLINE __m256i qr_vec_nf4_code_of(qr_vec x, const qr_vec_nf4 *tables) {
    __m256i code = qr_vec_nf4_refine(_mm256_setzero_si256(), x, tables->step8);
    code = qr_vec_nf4_refine(code, x, tables->step4);
    code = qr_vec_nf4_refine(code, x, tables->step2);
    return qr_vec_nf4_refine(code, x, tables->step1);
}
QR_INLINE void qr_vec_store_nf4(uint8_t *dst, qr_vec even, qr_vec odd, const qr_vec_nf4 *tables) {
    const __m256i high = _mm256_slli_epi32(qr_vec_nf4_code_of(even, tables), 4);
    const __m256i bytes = _mm256_or_si256(high, qr_vec_nf4_code_of(odd, tables));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64((__m128i *)(void *)dst, _mm_packus_epi16(words, words));
}
QR_INLINE __m256 qr_vec_in_order(__m256 v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xD8));
}
QR_INLINE qr_vec qr_vec_split(qr_vec a, qr_vec b, qr_vec *odd) {
    *odd = qr_vec_in_order(_mm256_shuffle_ps(a, b, 0xDD));
    return qr_vec_in_order(_mm256_shuffle_ps(a, b, 0x88));
}

#elif defined(QR_VEC_NEON)

/* The midpoints ascend, so a code is the number of them that lie below: 15 fit the registers, where a search would have
 * to look each one up. */
enum { QR_VEC_NF4_MIDPOINTS = 15 };
typedef struct qr_vec_nf4 {
    float32x4_t midpoint[QR_VEC_NF4_MIDPOINTS];
} qr_vec_nf4;

QR_INLINE qr_vec_nf4 qr_vec_nf4_make(void) {
    qr_vec_nf4 tables;
    QR_UNROLL for (int i = 0; i < QR_VEC_NF4_MIDPOINTS; i++) { tables.midpoint[i] = vdupq_n_f32(qr_nf4_midpoints[i]); }
    return tables;
}
/* A comparison gives −1. */
QR_INLINE uint32x4_t qr_vec_nf4_code_of(qr_vec x, const qr_vec_nf4 *tables) {
    uint32x4_t code = vdupq_n_u32(0);
    QR_UNROLL for (int i = 0; i < QR_VEC_NF4_MIDPOINTS; i++) {
        code = vsubq_u32(code, vcgtq_f32(x, tables->midpoint[i]));
    }
    return code;
}
QR_INLINE void qr_vec_store_nf4(uint8_t *dst, qr_vec even, qr_vec odd, const qr_vec_nf4 *tables) {
    const uint32x4_t high = vshlq_n_u32(qr_vec_nf4_code_of(even, tables), 4);
    const uint16x4_t words = vmovn_u32(vorrq_u32(high, qr_vec_nf4_code_of(odd, tables)));
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(words, words));
    memcpy(dst, &bytes, QR_VEC);
}
QR_INLINE qr_vec qr_vec_split(qr_vec a, qr_vec b, qr_vec *odd) {
    *odd = vuzp2q_f32(a, b);
    return vuzp1q_f32(a, b);
}

#else

typedef struct qr_vec_nf4 {
    char none;
} qr_vec_nf4;

QR_INLINE qr_vec_nf4 qr_vec_nf4_make(void) { return (qr_vec_nf4){0}; }
QR_INLINE void qr_vec_store_nf4(uint8_t *dst, qr_vec even, qr_vec odd, const qr_vec_nf4 *tables) {
    (void)tables;
    for (int i = 0; i < QR_VEC; i++) { dst[i] = (uint8_t)(qr_nf4_encode(even[i]) << 4 | qr_nf4_encode(odd[i])); }
}
QR_INLINE qr_vec qr_vec_split(qr_vec a, qr_vec b, qr_vec *odd) {
    qr_vec even = a;
    for (int i = 0; i < QR_VEC / 2; i++) {
        even[i] = a[2 * i];
        even[QR_VEC / 2 + i] = b[2 * i];
        (*odd)[i] = a[2 * i + 1];
        (*odd)[QR_VEC / 2 + i] = b[2 * i + 1];
    }
    return even;
}

#endif

#endif
