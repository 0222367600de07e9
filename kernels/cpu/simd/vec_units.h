/* 32-bit units of memory held in the lanes of a qr_vec: a unit is one F32, two BF16 or F16, or four INT8 elements. Used
 * to transpose K, whatever its type, with the shuffles that 32-bit elements need.
 *
 *   qr_vec_load_units(p, n_bytes)   the first n_bytes (≥ 1; 4 · QR_VEC or more means all) as they lie, zeros after
 *   qr_vec_transpose(v)             lane j of v[i] and lane i of v[j] change places
 *   qr_vec_unit_bf16(v, k), …_f16, …_i8   element k of every unit, as F32 */
#ifndef QR_KERNELS_CPU_SIMD_VEC_UNITS_H
#define QR_KERNELS_CPU_SIMD_VEC_UNITS_H

#include "kernels/cpu/simd/vec.h"

/* Transposes the 4 × 4 blocks of 128-bit lanes: rows 4a … 4a + 3 of v into quad[4a …]. */
#define TRANSPOSE_IN_LANES(bits, v, quad)                                  \
    QR_UNROLL for (int i = 0; i < QR_VEC; i += 4) {                        \
        const qr_vec low01 = _mm##bits##_unpacklo_ps(v[i], v[i + 1]);      \
        const qr_vec high01 = _mm##bits##_unpackhi_ps(v[i], v[i + 1]);     \
        const qr_vec low23 = _mm##bits##_unpacklo_ps(v[i + 2], v[i + 3]);  \
        const qr_vec high23 = _mm##bits##_unpackhi_ps(v[i + 2], v[i + 3]); \
        quad[i] = _mm##bits##_shuffle_ps(low01, low23, 0x44);              \
        quad[i + 1] = _mm##bits##_shuffle_ps(low01, low23, 0xEE);          \
        quad[i + 2] = _mm##bits##_shuffle_ps(high01, high23, 0x44);        \
        quad[i + 3] = _mm##bits##_shuffle_ps(high01, high23, 0xEE);        \
    }

#ifdef QR_VEC_AVX512

QR_INLINE qr_vec qr_vec_load_units(const void *p, int64_t n_bytes) {
    if (n_bytes >= 64) { return _mm512_loadu_ps(p); }
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi8((UINT64_C(1) << n_bytes) - 1, p));
}

QR_INLINE void qr_vec_transpose(qr_vec v[QR_VEC]) {
    qr_vec quad[QR_VEC];
    TRANSPOSE_IN_LANES(512, v, quad);
    /* quad[4a + c] lane group g holds column 4g + c of rows 4a … 4a + 3. */
    QR_UNROLL for (int c = 0; c < 4; c++) {
        const __m512 low01 = _mm512_shuffle_f32x4(quad[c], quad[4 + c], 0x88);
        const __m512 high01 = _mm512_shuffle_f32x4(quad[c], quad[4 + c], 0xDD);
        const __m512 low23 = _mm512_shuffle_f32x4(quad[8 + c], quad[12 + c], 0x88);
        const __m512 high23 = _mm512_shuffle_f32x4(quad[8 + c], quad[12 + c], 0xDD);
        v[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
        v[8 + c] = _mm512_shuffle_f32x4(low01, low23, 0xDD);
        v[4 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
        v[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xDD);
    }
}

QR_INLINE qr_vec qr_vec_unit_bf16(qr_vec v, int k) {
    const __m512i bits = _mm512_castps_si512(v);
    if (k == 0) { return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)); }
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)));
}
QR_INLINE qr_vec qr_vec_unit_f16(qr_vec v, int k) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(v), (unsigned)(16 * k));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(low));
}
QR_INLINE qr_vec qr_vec_unit_i8(qr_vec v, int k) {
    const __m512i top = _mm512_slli_epi32(_mm512_castps_si512(v), (unsigned)(24 - 8 * k));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
}

#elif defined(QR_VEC_AVX2)

QR_INLINE qr_vec qr_vec_load_units(const void *p, int64_t n_bytes) {
    if (n_bytes >= 32) { return _mm256_loadu_ps(p); }
    float lanes[QR_VEC] = {0};
    memcpy(lanes, p, (size_t)n_bytes);
    return _mm256_loadu_ps(lanes);
}

QR_INLINE void qr_vec_transpose(qr_vec v[QR_VEC]) {
    qr_vec quad[QR_VEC];
    TRANSPOSE_IN_LANES(256, v, quad);
    QR_UNROLL for (int c = 0; c < 4; c++) {
        v[c] = _mm256_permute2f128_ps(quad[c], quad[4 + c], 0x20);
        v[4 + c] = _mm256_permute2f128_ps(quad[c], quad[4 + c], 0x31);
    }
}

QR_INLINE qr_vec qr_vec_unit_bf16(qr_vec v, int k) {
    const __m256i bits = _mm256_castps_si256(v);
    if (k == 0) { return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)); }
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-65536)));
}
QR_INLINE qr_vec qr_vec_unit_f16(qr_vec v, int k) {
    const __m256i upper = _mm256_slli_epi32(_mm256_castps_si256(v), 16 - 16 * k), low = _mm256_srli_epi32(upper, 16);
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
QR_INLINE qr_vec qr_vec_unit_i8(qr_vec v, int k) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(_mm256_castps_si256(v), 24 - 8 * k), 24));
}

#elif defined(QR_VEC_NEON)

QR_INLINE qr_vec qr_vec_load_units(const void *p, int64_t n_bytes) {
    float lanes[QR_VEC] = {0};
    memcpy(lanes, p, n_bytes >= (int64_t)sizeof lanes ? sizeof lanes : (size_t)n_bytes);
    return qr_vec_load(lanes);
}

QR_INLINE void qr_vec_transpose(qr_vec v[QR_VEC]) {
    const qr_vec even01 = vtrn1q_f32(v[0], v[1]), odd01 = vtrn2q_f32(v[0], v[1]);
    const qr_vec even23 = vtrn1q_f32(v[2], v[3]), odd23 = vtrn2q_f32(v[2], v[3]);
    v[0] = vcombine_f32(vget_low_f32(even01), vget_low_f32(even23));
    v[1] = vcombine_f32(vget_low_f32(odd01), vget_low_f32(odd23));
    v[2] = vcombine_f32(vget_high_f32(even01), vget_high_f32(even23));
    v[3] = vcombine_f32(vget_high_f32(odd01), vget_high_f32(odd23));
}

QR_INLINE qr_vec qr_vec_unit_bf16(qr_vec v, int k) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    return vreinterpretq_f32_u32(k == 0 ? vshlq_n_u32(bits, 16) : vandq_u32(bits, vdupq_n_u32(0xFFFF0000U)));
}
QR_INLINE qr_vec qr_vec_unit_f16(qr_vec v, int k) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    return qr_vec_from_f16(k == 0 ? vmovn_u32(bits) : vshrn_n_u32(bits, 16));
}
QR_INLINE qr_vec qr_vec_unit_i8(qr_vec v, int k) {
    const int32x4_t top = vshlq_s32(vreinterpretq_s32_f32(v), vdupq_n_s32(24 - 8 * k));
    return vcvtq_f32_s32(vshrq_n_s32(top, 24));
}

#else

QR_INLINE qr_vec qr_vec_load_units(const void *p, int64_t n_bytes) {
    qr_vec v = qr_vec_zero();
    memcpy(&v, p, n_bytes >= (int64_t)sizeof v ? sizeof v : (size_t)n_bytes);
    return v;
}

QR_INLINE void qr_vec_transpose(qr_vec v[QR_VEC]) {
    for (int i = 0; i < QR_VEC; i++) {
        for (int j = i + 1; j < QR_VEC; j++) {
            const float lane = v[i][j];
            v[i][j] = v[j][i];
            v[j][i] = lane;
        }
    }
}

/* By bytes, not by shifts of the unit: right in either byte order. */
QR_INLINE qr_vec qr_vec_unit_bf16(qr_vec v, int k) {
    uint16_t elements[2 * QR_VEC];
    memcpy(elements, &v, sizeof v);
    qr_vec result = v; /* every lane is written below; GCC does not see it in every build */
    for (int i = 0; i < QR_VEC; i++) { result[i] = qr_bf16_to_f32(elements[2 * i + k]); }
    return result;
}
QR_INLINE qr_vec qr_vec_unit_f16(qr_vec v, int k) {
    uint16_t elements[2 * QR_VEC];
    memcpy(elements, &v, sizeof v);
    qr_vec result = v;
    for (int i = 0; i < QR_VEC; i++) { result[i] = qr_f16_to_f32(elements[2 * i + k]); }
    return result;
}
QR_INLINE qr_vec qr_vec_unit_i8(qr_vec v, int k) {
    int8_t elements[4 * QR_VEC];
    memcpy(elements, &v, sizeof v);
    qr_vec result = v; /* every lane is written below; GCC does not see it in every build */
    for (int i = 0; i < QR_VEC; i++) { result[i] = (float)elements[4 * i + k]; }
    return result;
}

#endif

#endif
