/* qr_vec in AVX2, FMA and F16C. */
#ifndef QR_KERNELS_CPU_SIMD_VEC_AVX2_H
#define QR_KERNELS_CPU_SIMD_VEC_AVX2_H

#include <immintrin.h>

#define QR_VEC 8
#define QR_VEC_AVX2
typedef __m256 qr_vec;

QR_INLINE __m256i qr_vec_lanes(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
QR_INLINE __m256i qr_vec_first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > QR_VEC ? QR_VEC : (int)n), qr_vec_lanes());
}

QR_INLINE qr_vec qr_vec_zero(void) { return _mm256_setzero_ps(); }
QR_INLINE qr_vec qr_vec_set1(float x) { return _mm256_set1_ps(x); }
QR_INLINE qr_vec qr_vec_load(const float *p) { return _mm256_loadu_ps(p); }
QR_INLINE qr_vec qr_vec_load_n(const float *p, int64_t n) {
    return n >= QR_VEC ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, qr_vec_first(n));
}
QR_INLINE void qr_vec_store(float *p, qr_vec v) { _mm256_storeu_ps(p, v); }
QR_INLINE void qr_vec_store_n(float *p, qr_vec v, int64_t n) {
    if (n >= QR_VEC) {
        _mm256_storeu_ps(p, v);
    } else {
        _mm256_maskstore_ps(p, qr_vec_first(n), v);
    }
}

QR_INLINE void qr_vec_deinterleave(qr_vec a, qr_vec b, qr_vec *even, qr_vec *odd) {
    const __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xDD);
}
QR_INLINE void qr_vec_interleave(qr_vec even, qr_vec odd, qr_vec *a, qr_vec *b) {
    const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    *a = _mm256_permute2f128_ps(low, high, 0x20);
    *b = _mm256_permute2f128_ps(low, high, 0x31);
}

QR_INLINE qr_vec qr_vec_add(qr_vec a, qr_vec b) { return _mm256_add_ps(a, b); }
QR_INLINE qr_vec qr_vec_sub(qr_vec a, qr_vec b) { return _mm256_sub_ps(a, b); }
QR_INLINE qr_vec qr_vec_mul(qr_vec a, qr_vec b) { return _mm256_mul_ps(a, b); }
QR_INLINE qr_vec qr_vec_div(qr_vec a, qr_vec b) { return _mm256_div_ps(a, b); }
QR_INLINE qr_vec qr_vec_fma(qr_vec a, qr_vec b, qr_vec c) { return _mm256_fmadd_ps(a, b, c); }
/* a² − square, where square is a² rounded: exact. */
QR_INLINE qr_vec qr_vec_square_rest(qr_vec a, qr_vec square) { return _mm256_fmsub_ps(a, a, square); }
QR_INLINE qr_vec qr_vec_max(qr_vec a, qr_vec b) { return _mm256_max_ps(a, b); }
QR_INLINE qr_vec qr_vec_min(qr_vec a, qr_vec b) { return _mm256_min_ps(a, b); }
QR_INLINE qr_vec qr_vec_abs(qr_vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a); }
QR_INLINE qr_vec qr_vec_sqrt(qr_vec a) { return _mm256_sqrt_ps(a); }
QR_INLINE qr_vec qr_vec_copysign(qr_vec magnitude, qr_vec sign) {
    const __m256 bit = _mm256_set1_ps(-0.0F);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}
/* a < b ? x : y */
QR_INLINE qr_vec qr_vec_select_less(qr_vec a, qr_vec b, qr_vec x, qr_vec y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
/* Lane i is inside[i] where begin ≤ i < end, else outside[i]. */
QR_INLINE qr_vec qr_vec_select_range(qr_vec inside, qr_vec outside, int begin, int end) {
    const __m256i below_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), qr_vec_lanes());
    const __m256i below_begin = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), qr_vec_lanes());
    return _mm256_blendv_ps(outside, inside, _mm256_castsi256_ps(_mm256_andnot_si256(below_begin, below_end)));
}
QR_INLINE qr_vec qr_vec_round(qr_vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* a · 2^n for integral n, rounded once: the first of two factors never leaves the normal range for n in [-160, 160]. */
QR_INLINE qr_vec qr_vec_scale2(qr_vec a, qr_vec n) {
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

QR_INLINE float qr_vec_get(qr_vec v) { return _mm256_cvtss_f32(v); } /* lane 0 */
QR_INLINE float qr_vec_sum(qr_vec v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
QR_INLINE float qr_vec_highest(qr_vec v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Half of the lanes in F64. */
typedef __m256d qr_vec_half;
QR_INLINE qr_vec_half qr_vec_low(qr_vec v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
QR_INLINE qr_vec_half qr_vec_high(qr_vec v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
QR_INLINE qr_vec_half qr_vec_half_add(qr_vec_half a, qr_vec_half b) { return _mm256_add_pd(a, b); }
QR_INLINE qr_vec_half qr_vec_half_fma(qr_vec_half a, qr_vec_half b, qr_vec_half c) { return _mm256_fmadd_pd(a, b, c); }

/* The first n 16-bit elements. */
QR_INLINE __m128i qr_vec_load_16_n(const uint16_t *p, int64_t n) {
    if (n >= QR_VEC) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
    uint16_t lanes[QR_VEC] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return _mm_loadu_si128((const __m128i *)(const void *)lanes);
}
QR_INLINE void qr_vec_store_16_n(uint16_t *p, __m128i v, int64_t n) {
    if (n >= QR_VEC) {
        _mm_storeu_si128((__m128i *)(void *)p, v);
        return;
    }
    uint16_t lanes[QR_VEC];
    _mm_storeu_si128((__m128i *)(void *)lanes, v);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}

QR_INLINE qr_vec qr_vec_from_bf16(__m128i v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
QR_INLINE qr_vec qr_vec_load_bf16_n(const uint16_t *p, int64_t n) { return qr_vec_from_bf16(qr_vec_load_16_n(p, n)); }
/* Rounded to BF16 in the upper 16 bits. */
QR_INLINE __m256i qr_vec_bf16_bits(qr_vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
QR_INLINE void qr_vec_store_bf16_n(uint16_t *p, qr_vec v, int64_t n) {
    const __m256i upper = _mm256_srli_epi32(qr_vec_bf16_bits(v), 16);
    qr_vec_store_16_n(p, _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1)), n);
}
/* Each lane rounded to the nearest BF16 value. */
QR_INLINE qr_vec qr_vec_round_bf16(qr_vec v) {
    return _mm256_castsi256_ps(_mm256_and_si256(qr_vec_bf16_bits(v), _mm256_set1_epi32((int)0xFFFF0000)));
}

QR_INLINE qr_vec qr_vec_load_f16_n(const uint16_t *p, int64_t n) { return _mm256_cvtph_ps(qr_vec_load_16_n(p, n)); }
/* Each lane rounded to the nearest binary16 value. */
QR_INLINE qr_vec qr_vec_round_f16(qr_vec v) { return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
QR_INLINE void qr_vec_store_f16_n(uint16_t *p, qr_vec v, int64_t n) {
    qr_vec_store_16_n(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT), n);
}

QR_INLINE qr_vec qr_vec_load_i8_n(const int8_t *p, int64_t n) {
    int8_t lanes[QR_VEC] = {0};
    if (n < QR_VEC) { p = memcpy(lanes, p, (size_t)n); }
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
/* Rounded to the nearest even integer, which fits int8; NaN gives 0. */
QR_INLINE void qr_vec_store_i8_n(int8_t *p, qr_vec v, int64_t n) {
    const __m256i number = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_ORD_Q));
    const __m256i codes = _mm256_and_si256(_mm256_cvtps_epi32(v), number);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    int8_t lanes[QR_VEC];
    _mm_storel_epi64((__m128i *)(void *)(n >= QR_VEC ? p : lanes), _mm_packs_epi16(words, words));
    if (n < QR_VEC) { memcpy(p, lanes, (size_t)n); }
}

#endif
