/* qr_vec in AVX-512 F, BW, DQ, VL. */
#ifndef QR_KERNELS_CPU_SIMD_VEC_AVX512_H
#define QR_KERNELS_CPU_SIMD_VEC_AVX512_H

#include <immintrin.h>

#define QR_VEC 16
#define QR_VEC_AVX512
typedef __m512 qr_vec;

/* Masked loads, and masked stores far more, cost several plain ones on some CPUs: whole vectors do without. */
QR_INLINE __mmask16 qr_vec_first(int64_t n) { return (__mmask16)(n >= QR_VEC ? 0xFFFFU : (1U << n) - 1U); }

QR_INLINE qr_vec qr_vec_zero(void) { return _mm512_setzero_ps(); }
QR_INLINE qr_vec qr_vec_set1(float x) { return _mm512_set1_ps(x); }
QR_INLINE qr_vec qr_vec_load(const float *p) { return _mm512_loadu_ps(p); }
QR_INLINE qr_vec qr_vec_load_n(const float *p, int64_t n) {
    return n >= QR_VEC ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(qr_vec_first(n), p);
}
QR_INLINE void qr_vec_store(float *p, qr_vec v) { _mm512_storeu_ps(p, v); }
QR_INLINE void qr_vec_store_n(float *p, qr_vec v, int64_t n) {
    if (n >= QR_VEC) {
        _mm512_storeu_ps(p, v);
    } else {
        _mm512_mask_storeu_ps(p, qr_vec_first(n), v);
    }
}

QR_INLINE void qr_vec_deinterleave(qr_vec a, qr_vec b, qr_vec *even, qr_vec *odd) {
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, order, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(order, _mm512_set1_epi32(1)), b);
}
QR_INLINE void qr_vec_interleave(qr_vec even, qr_vec odd, qr_vec *a, qr_vec *b) {
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *a = _mm512_permutex2var_ps(even, order, odd);
    *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(order, _mm512_set1_epi32(8)), odd);
}

QR_INLINE qr_vec qr_vec_add(qr_vec a, qr_vec b) { return _mm512_add_ps(a, b); }
QR_INLINE qr_vec qr_vec_sub(qr_vec a, qr_vec b) { return _mm512_sub_ps(a, b); }
QR_INLINE qr_vec qr_vec_mul(qr_vec a, qr_vec b) { return _mm512_mul_ps(a, b); }
QR_INLINE qr_vec qr_vec_div(qr_vec a, qr_vec b) { return _mm512_div_ps(a, b); }
QR_INLINE qr_vec qr_vec_fma(qr_vec a, qr_vec b, qr_vec c) { return _mm512_fmadd_ps(a, b, c); }
/* a² − square, where square is a² rounded: exact. */
QR_INLINE qr_vec qr_vec_square_rest(qr_vec a, qr_vec square) { return _mm512_fmsub_ps(a, a, square); }
QR_INLINE qr_vec qr_vec_max(qr_vec a, qr_vec b) { return _mm512_max_ps(a, b); }
QR_INLINE qr_vec qr_vec_min(qr_vec a, qr_vec b) { return _mm512_min_ps(a, b); }
QR_INLINE qr_vec qr_vec_abs(qr_vec a) { return _mm512_abs_ps(a); }
QR_INLINE qr_vec qr_vec_sqrt(qr_vec a) { return _mm512_sqrt_ps(a); }
QR_INLINE qr_vec qr_vec_copysign(qr_vec magnitude, qr_vec sign) {
    const __m512i bit = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude), 0xCA));
}
/* a < b ? x : y */
QR_INLINE qr_vec qr_vec_select_less(qr_vec a, qr_vec b, qr_vec x, qr_vec y) {
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), x);
}
/* Lane i is inside[i] where begin ≤ i < end, else outside[i]. */
QR_INLINE qr_vec qr_vec_select_range(qr_vec inside, qr_vec outside, int begin, int end) {
    const uint32_t below_end = end <= 0 ? 0U : qr_vec_first(end);
    const uint32_t below_begin = begin <= 0 ? 0U : qr_vec_first(begin);
    return _mm512_mask_mov_ps(outside, (__mmask16)(below_end & ~below_begin), inside);
}
QR_INLINE qr_vec qr_vec_round(qr_vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
/* a · 2^n for integral n, rounded once. */
QR_INLINE qr_vec qr_vec_scale2(qr_vec a, qr_vec n) { return _mm512_scalef_ps(a, n); }

QR_INLINE float qr_vec_get(qr_vec v) { return _mm512_cvtss_f32(v); } /* lane 0 */
QR_INLINE float qr_vec_sum(qr_vec v) {
    const __m256 low = _mm512_castps512_ps256(v), high = _mm512_extractf32x8_ps(v, 1);
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
QR_INLINE float qr_vec_highest(qr_vec v) { return _mm512_reduce_max_ps(v); }

/* Half of the lanes in F64. */
typedef __m512d qr_vec_half;
QR_INLINE qr_vec_half qr_vec_low(qr_vec v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
QR_INLINE qr_vec_half qr_vec_high(qr_vec v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
QR_INLINE qr_vec_half qr_vec_half_add(qr_vec_half a, qr_vec_half b) { return _mm512_add_pd(a, b); }
QR_INLINE qr_vec_half qr_vec_half_fma(qr_vec_half a, qr_vec_half b, qr_vec_half c) { return _mm512_fmadd_pd(a, b, c); }

/* The first n 16-bit elements. */
QR_INLINE __m256i qr_vec_load_16_n(const uint16_t *p, int64_t n) {
    if (n >= QR_VEC) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
    return _mm256_maskz_loadu_epi16(qr_vec_first(n), p);
}
QR_INLINE void qr_vec_store_16_n(uint16_t *p, __m256i v, int64_t n) {
    if (n >= QR_VEC) {
        _mm256_storeu_si256((__m256i *)(void *)p, v);
    } else {
        _mm256_mask_storeu_epi16(p, qr_vec_first(n), v);
    }
}

QR_INLINE qr_vec qr_vec_from_bf16(__m256i v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
QR_INLINE qr_vec qr_vec_load_bf16_n(const uint16_t *p, int64_t n) { return qr_vec_from_bf16(qr_vec_load_16_n(p, n)); }
/* Rounded to BF16 in the upper 16 bits. Integer arithmetic, not vcvtneps2bf16: that one flushes subnormals to zero. */
QR_INLINE __m512i qr_vec_bf16_bits(qr_vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
}
QR_INLINE __m256i qr_vec_to_bf16(qr_vec v) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(qr_vec_bf16_bits(v), 16)); }
/* Each lane rounded to the nearest BF16 value. */
QR_INLINE qr_vec qr_vec_round_bf16(qr_vec v) {
    return _mm512_castsi512_ps(_mm512_and_si512(qr_vec_bf16_bits(v), _mm512_set1_epi32((int)0xFFFF0000)));
}
QR_INLINE void qr_vec_store_bf16_n(uint16_t *p, qr_vec v, int64_t n) { qr_vec_store_16_n(p, qr_vec_to_bf16(v), n); }

QR_INLINE qr_vec qr_vec_load_f16_n(const uint16_t *p, int64_t n) { return _mm512_cvtph_ps(qr_vec_load_16_n(p, n)); }
/* Each lane rounded to the nearest binary16 value. */
QR_INLINE qr_vec qr_vec_round_f16(qr_vec v) { return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
QR_INLINE void qr_vec_store_f16_n(uint16_t *p, qr_vec v, int64_t n) {
    qr_vec_store_16_n(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT), n);
}

QR_INLINE qr_vec qr_vec_load_i8_n(const int8_t *p, int64_t n) {
    const __m128i codes =
        n >= QR_VEC ? _mm_loadu_si128((const __m128i *)(const void *)p) : _mm_maskz_loadu_epi8(qr_vec_first(n), p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
}
/* Rounded to the nearest even integer, which fits int8; NaN gives 0. */
QR_INLINE void qr_vec_store_i8_n(int8_t *p, qr_vec v, int64_t n) {
    const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
    const __m128i codes = _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(number, v));
    if (n >= QR_VEC) {
        _mm_storeu_si128((__m128i *)(void *)p, codes);
    } else {
        _mm_mask_storeu_epi8(p, qr_vec_first(n), codes);
    }
}

#endif
