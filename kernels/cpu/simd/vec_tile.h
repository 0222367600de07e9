/* What only the matrix products need of a vector: the sizes of their register tiles, rounding to an element type, the
 * values of NF4 codes, and the sums that finish a tile.
 *
 *   QR_TILE_MAX_COLS             columns of a tile of QR_TILE_ROWS rows, so that its accumulators stay in registers
 *   qr_vec_round_to(v, dtype)    each lane rounded to the nearest value of a type: BF16 (subnormals to zero first, as
 *                                vcvtneps2bf16 does), F16, or F32 (unchanged)
 *   qr_vec_values_make           the 16 products code[i] · scale, rounded to a type (qr_vec_round_value)
 *   qr_vec_codes_16, …_8         codes of QR_VEC_CODES little-endian words of 16 bits, or of bytes
 *   qr_vec_lookup                the values of the codes at bits [shift, shift + 4) of each word; where QR_VEC_LOOKS_UP
 * is defined it takes few instructions qr_vec_store_values          writes the values of the codes at bits [shift,
 * shift + 4) of each word qr_vec_reduce                dst[r] = the sum of the lanes of acc[r] in a fixed tree; added
 * to dst unless first qr_vec_reduce_rows           qr_vec_reduce of n_rows rows of accumulators, which is a constant
 * after inlining */
#ifndef QR_KERNELS_CPU_SIMD_VEC_TILE_H
#define QR_KERNELS_CPU_SIMD_VEC_TILE_H

#include <float.h>
#include <stdbool.h>

#include "base/dtype.h"
#include "kernels/cpu/simd/vec.h"

enum { QR_TILE_ROWS = 4 };

QR_INLINE qr_vec qr_vec_round_to(qr_vec v, qr_dtype dtype) {
    if (dtype == QR_DTYPE_BF16) {
        const qr_vec zero = qr_vec_copysign(qr_vec_zero(), v);
        return qr_vec_round_bf16(qr_vec_select_less(qr_vec_abs(v), qr_vec_set1(FLT_MIN), zero, v));
    }
    return dtype == QR_DTYPE_F16 ? qr_vec_round_f16(v) : v;
}

/* The same, where magnitudes are 0 or within [FLT_MIN, FLT_MAX / 2]: nothing is flushed and nothing is NaN. */
QR_INLINE qr_vec qr_vec_round_ordinary(qr_vec v, qr_dtype dtype) {
#if defined(QR_VEC_AVX512)
    if (dtype == QR_DTYPE_BF16) {
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
        return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32((int)0xFFFF0000)));
    }
#elif defined(QR_VEC_AVX2)
    if (dtype == QR_DTYPE_BF16) {
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
        return _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32((int)0xFFFF0000)));
    }
#endif
    return qr_vec_round_to(v, dtype);
}
/* `ordinary`, a constant after inlining: v is so. */
QR_INLINE qr_vec qr_vec_round_value(qr_vec v, qr_dtype dtype, const bool ordinary) {
    return ordinary ? qr_vec_round_ordinary(v, dtype) : qr_vec_round_to(v, dtype);
}

#ifdef QR_VEC_AVX512

/* 24 accumulators, 6 vectors of x and one of w of the 32 registers. */
#define QR_TILE_MAX_COLS 6

typedef __m512i qr_vec_codes;
typedef struct qr_vec_values {
    __m512 of_code;
} qr_vec_values;

QR_INLINE qr_vec_values qr_vec_values_make(const float code[16], float scale, qr_dtype dtype, const bool ordinary) {
    const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(code), _mm512_set1_ps(scale));
    return (qr_vec_values){qr_vec_round_value(values, dtype, ordinary)};
}

QR_INLINE qr_vec_codes qr_vec_codes_16(const uint8_t *src) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)src));
}
QR_INLINE qr_vec_codes qr_vec_codes_8(const uint8_t *src) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)src));
}

#define QR_VEC_LOOKS_UP
/* vpermps uses the low four bits of an index. */
QR_INLINE qr_vec qr_vec_lookup(const qr_vec_values *values, qr_vec_codes codes, int shift) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(codes, (unsigned)shift), values->of_code);
}

/* The two halves are added first, so that three adds of pairs finish four accumulators at once. */
QR_INLINE void qr_vec_reduce(const qr_vec *acc, float *dst, bool first) {
    __m256 half[4];
    for (int r = 0; r < 4; r++) {
        half[r] = _mm256_add_ps(_mm512_castps512_ps256(acc[r]), _mm512_extractf32x8_ps(acc[r], 1));
    }
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(dst, first ? sums : _mm_add_ps(_mm_loadu_ps(dst), sums));
}

/* The sums of qr_vec_reduce, added in the same order. Registers are kept full, so that a row needs half as many
 * instructions. n_rows is at most 6. */
QR_INLINE void qr_vec_reduce_rows(qr_vec acc[][4], const int n_rows, float *dst, int64_t stride, bool first) {
    __m512 pairs[8], quads[4];
    QR_UNROLL for (int r = 0; r < n_rows; r++) {
        const __m512 half01 = _mm512_add_ps(_mm512_shuffle_f32x4(acc[r][0], acc[r][1], 0x44),
                                            _mm512_shuffle_f32x4(acc[r][0], acc[r][1], 0xEE));
        const __m512 half23 = _mm512_add_ps(_mm512_shuffle_f32x4(acc[r][2], acc[r][3], 0x44),
                                            _mm512_shuffle_f32x4(acc[r][2], acc[r][3], 0xEE));
        pairs[r] = _mm512_add_ps(_mm512_shuffle_ps(half01, half23, 0x88), _mm512_shuffle_ps(half01, half23, 0xDD));
    }
    QR_UNROLL for (int r = 0; r < n_rows; r += 2) {
        const __m512 other = r + 1 < n_rows ? pairs[r + 1] : pairs[r];
        quads[r / 2] =
            _mm512_add_ps(_mm512_shuffle_ps(pairs[r], other, 0x88), _mm512_shuffle_ps(pairs[r], other, 0xDD));
    }
    /* Now 128 bits hold accumulators 0 and 2 of two rows, the next 1 and 3. */
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    for (int r = 0; r < n_rows; r += 4) {
        const __m512 one = quads[r / 2], other = r + 2 < n_rows ? quads[r / 2 + 1] : one;
        const __m512 sums = _mm512_permutexvar_ps(
            order, _mm512_add_ps(_mm512_shuffle_f32x4(one, other, 0x88), _mm512_shuffle_f32x4(one, other, 0xDD)));
        const __m128 rows[4] = {_mm512_castps512_ps128(sums), _mm512_extractf32x4_ps(sums, 1),
                                _mm512_extractf32x4_ps(sums, 2), _mm512_extractf32x4_ps(sums, 3)};
        for (int i = 0; i < 4 && r + i < n_rows; i++) {
            float *at = dst + (r + i) * stride;
            _mm_storeu_ps(at, first ? rows[i] : _mm_add_ps(_mm_loadu_ps(at), rows[i]));
        }
    }
}

#else

#ifdef QR_VEC_AVX2

/* 12 accumulators, 3 vectors of x and one of w fill the 16 registers. */
#define QR_TILE_MAX_COLS 3

typedef __m256i qr_vec_codes;
typedef struct qr_vec_values {
    __m256 of_low, of_high; /* of codes below 8, and of the others */
} qr_vec_values;

QR_INLINE qr_vec_values qr_vec_values_make(const float code[16], float scale, qr_dtype dtype, const bool ordinary) {
    const __m256 factor = _mm256_set1_ps(scale);
    return (qr_vec_values){qr_vec_round_value(_mm256_mul_ps(_mm256_loadu_ps(code), factor), dtype, ordinary),
                           qr_vec_round_value(_mm256_mul_ps(_mm256_loadu_ps(code + 8), factor), dtype, ordinary)};
}

QR_INLINE qr_vec_codes qr_vec_codes_16(const uint8_t *src) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)src));
}
QR_INLINE qr_vec_codes qr_vec_codes_8(const uint8_t *src) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)src));
}

#define QR_VEC_LOOKS_UP
/* vpermps uses the low three bits of an index; the fourth, moved to the sign, selects the half. */
QR_INLINE qr_vec qr_vec_lookup(const qr_vec_values *values, qr_vec_codes codes, int shift) {
    const __m256i at = _mm256_srli_epi32(codes, shift);
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(at, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(values->of_low, at), _mm256_permutevar8x32_ps(values->of_high, at),
                            upper);
}

QR_INLINE void qr_vec_reduce(const qr_vec *acc, float *dst, bool first) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(acc[0], acc[1]), _mm256_hadd_ps(acc[2], acc[3]));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(dst, first ? sums : _mm_add_ps(_mm_loadu_ps(dst), sums));
}

#elif defined(QR_VEC_NEON)

/* As with AVX-512, but for the lanes. */
#define QR_TILE_MAX_COLS 6

/* tbl looks up bytes: a table for each of the four bytes of the values, and 16 codes at once. */
#define QR_VEC_CODES 16
typedef uint8x16x2_t qr_vec_codes; /* the low bytes of 16 words, and the high ones */
typedef struct qr_vec_values {
    uint8x16x4_t of_code; /* byte i of the values */
} qr_vec_values;

QR_INLINE qr_vec_values qr_vec_values_make(const float code[16], float scale, qr_dtype dtype, const bool ordinary) {
    float values[16];
    for (int i = 0; i < 16; i += QR_VEC) {
        const qr_vec product = qr_vec_mul(qr_vec_load(code + i), qr_vec_set1(scale));
        qr_vec_store(values + i, qr_vec_round_value(product, dtype, ordinary));
    }
    return (qr_vec_values){vld4q_u8((const uint8_t *)(const void *)values)};
}

QR_INLINE qr_vec_codes qr_vec_codes_16(const uint8_t *src) { return vld2q_u8(src); }
QR_INLINE qr_vec_codes qr_vec_codes_8(const uint8_t *src) { return (qr_vec_codes){{vld1q_u8(src), vdupq_n_u8(0)}}; }

/* The codes at bits [shift, shift + 4), a constant. */
QR_INLINE uint8x16_t qr_vec_codes_at(qr_vec_codes codes, int shift) {
    const uint8x16_t bytes = codes.val[shift / 8];
    return shift % 8 == 0 ? vandq_u8(bytes, vdupq_n_u8(15)) : vshrq_n_u8(bytes, 4);
}
QR_INLINE void qr_vec_store_values(float *dst, const qr_vec_values *values, qr_vec_codes codes, int shift) {
    const uint8x16_t code = qr_vec_codes_at(codes, shift);
    uint8x16x4_t bytes;
    QR_UNROLL for (int i = 0; i < 4; i++) { bytes.val[i] = vqtbl1q_u8(values->of_code.val[i], code); }
    vst4q_u8((uint8_t *)(void *)dst, bytes);
}

/* The same as BF16, of values that were rounded to it: their two upper bytes. */
QR_INLINE void qr_vec_store_values_bf16(uint16_t *dst, const qr_vec_values *values, qr_vec_codes codes, int shift) {
    const uint8x16_t code = qr_vec_codes_at(codes, shift);
    const uint8x16x2_t bytes = {{vqtbl1q_u8(values->of_code.val[2], code), vqtbl1q_u8(values->of_code.val[3], code)}};
    vst2q_u8((uint8_t *)(void *)dst, bytes);
}

QR_INLINE void qr_vec_reduce(const qr_vec *acc, float *dst, bool first) {
    const qr_vec sums = vpaddq_f32(vpaddq_f32(acc[0], acc[1]), vpaddq_f32(acc[2], acc[3]));
    qr_vec_store(dst, first ? sums : vaddq_f32(qr_vec_load(dst), sums));
}

#else

#define QR_TILE_MAX_COLS 2

/* In loops that the compiler makes vectors of. */
typedef struct qr_vec_codes {
    uint32_t lanes[QR_VEC];
} qr_vec_codes;
typedef struct qr_vec_values {
    float of_code[16];
} qr_vec_values;

QR_INLINE qr_vec_values qr_vec_values_make(const float code[16], float scale, qr_dtype dtype, const bool ordinary) {
    qr_vec_values values;
    for (int i = 0; i < 16; i += QR_VEC) {
        const qr_vec product = qr_vec_mul(qr_vec_load(code + i), qr_vec_set1(scale));
        qr_vec_store(values.of_code + i, qr_vec_round_value(product, dtype, ordinary));
    }
    return values;
}

QR_INLINE qr_vec_codes qr_vec_codes_16(const uint8_t *src) {
    qr_vec_codes codes;
    for (int i = 0; i < QR_VEC; i++) { codes.lanes[i] = (uint32_t)src[2 * i] | (uint32_t)src[2 * i + 1] << 8; }
    return codes;
}
QR_INLINE qr_vec_codes qr_vec_codes_8(const uint8_t *src) {
    qr_vec_codes codes;
    for (int i = 0; i < QR_VEC; i++) { codes.lanes[i] = src[i]; }
    return codes;
}

QR_INLINE qr_vec qr_vec_lookup(const qr_vec_values *values, qr_vec_codes codes, int shift) {
    qr_vec v = qr_vec_zero();
    for (int i = 0; i < QR_VEC; i++) { v[i] = values->of_code[codes.lanes[i] >> shift & 15]; }
    return v;
}

#ifdef QR_CPU_WIDE
/* The tree of AVX-512: halves, then neighbours, neighbouring pairs, and the two quarters that are left. */
QR_INLINE float qr_vec_reduced(qr_vec v) {
    for (int i = 0; i < 8; i++) { v[i] += v[i + 8]; }
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}
#else
QR_INLINE float qr_vec_reduced(qr_vec v) { return qr_vec_sum(v); }
#endif

QR_INLINE void qr_vec_reduce(const qr_vec *acc, float *dst, bool first) {
    for (int r = 0; r < QR_TILE_ROWS; r++) {
        dst[r] = first ? qr_vec_reduced(acc[r]) : dst[r] + qr_vec_reduced(acc[r]);
    }
}

#endif

QR_INLINE void qr_vec_reduce_rows(qr_vec acc[][QR_TILE_ROWS], const int n_rows, float *dst, int64_t stride,
                                  bool first) {
    for (int r = 0; r < n_rows; r++) { qr_vec_reduce(acc[r], dst + r * stride, first); }
}

#endif

#ifndef QR_VEC_CODES
#define QR_VEC_CODES QR_VEC
QR_INLINE void qr_vec_store_values(float *dst, const qr_vec_values *values, qr_vec_codes codes, int shift) {
    qr_vec_store(dst, qr_vec_lookup(values, codes, shift));
}
#endif

#endif
