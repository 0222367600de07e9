/* NF4 codes of the lanes of a vector, bit-equal to quant/nf4.h: a binary search among its midpoints by `>`, so that a
 * tie and NaN go down. qr_vec_store_nf4 writes QR_VEC / 2 bytes, the even lane of each pair in the high half. */
#ifndef QR_KERNELS_CPU_VEC_NF4_H
#define QR_KERNELS_CPU_VEC_NF4_H

#include "kernels/cpu/vec.h"
#include "quant/nf4.h"

#if QR_VEC == 16

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
QR_INLINE void qr_vec_store_nf4(uint8_t *dst, qr_vec x, const qr_vec_nf4 *tables) {
    __m512i code = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(x, tables->step8, _CMP_GT_OQ), 8);
    code = qr_vec_nf4_refine(code, x, tables->step4, 4);
    code = qr_vec_nf4_refine(code, x, tables->step2, 2);
    code = qr_vec_nf4_refine(code, x, tables->step1, 1);
    const __m512i pairs = _mm512_or_si512(_mm512_slli_epi64(code, 4), _mm512_srli_epi64(code, 32));
    _mm_storel_epi64((__m128i *)(void *)dst, _mm512_cvtepi64_epi8(pairs));
}

#elif QR_VEC == 8

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
QR_INLINE void qr_vec_store_nf4(uint8_t *dst, qr_vec x, const qr_vec_nf4 *tables) {
    __m256i code = qr_vec_nf4_refine(_mm256_setzero_si256(), x, tables->step8);
    code = qr_vec_nf4_refine(code, x, tables->step4);
    code = qr_vec_nf4_refine(code, x, tables->step2);
    code = qr_vec_nf4_refine(code, x, tables->step1);
    const __m256i pairs = _mm256_or_si256(_mm256_slli_epi64(code, 4), _mm256_srli_epi64(code, 32));
    const __m256i pick = _mm256_setr_epi8(0, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 8, -1, -1,
                                          -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i bytes = _mm256_shuffle_epi8(pairs, pick);
    const int four = _mm_cvtsi128_si32(_mm_or_si128(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
    memcpy(dst, &four, sizeof four);
}

#else

typedef struct qr_vec_nf4 {
    char none;
} qr_vec_nf4;

QR_INLINE qr_vec_nf4 qr_vec_nf4_make(void) { return (qr_vec_nf4){0}; }
QR_INLINE void qr_vec_store_nf4(uint8_t *dst, qr_vec x, const qr_vec_nf4 *tables) {
    (void)tables;
    for (int i = 0; i < QR_VEC / 2; i++) {
        dst[i] = (uint8_t)(qr_nf4_encode(x[2 * i]) << 4 | qr_nf4_encode(x[2 * i + 1]));
    }
}

#endif

#endif
