/* As lanes_c.h, in AVX2, FMA and F16C. */
#ifndef QR_KERNELS_CPU_SIMD_LANES_AVX2_H
#define QR_KERNELS_CPU_SIMD_LANES_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

/* 12 accumulators, 3 vectors of x and one of w fill the 16 registers. */
#define TILE_MAX_COLS 3
enum { LANES = 8, LANES_TILE_ROWS = 4, LANES_TILE_COLS = TILE_MAX_COLS };

typedef __m256 lanes;
typedef __m256i lanes_index;
typedef struct lanes_table {
    __m256 low, high;
} lanes_table;

static inline lanes lanes_zero(void) { return _mm256_setzero_ps(); }
static inline lanes lanes_load(const float *src) { return _mm256_loadu_ps(src); }
static inline void lanes_store(float *dst, lanes a) { _mm256_storeu_ps(dst, a); }
static inline lanes lanes_set(float value) { return _mm256_set1_ps(value); }
static inline lanes lanes_mul(lanes a, lanes b) { return _mm256_mul_ps(a, b); }
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm256_fmadd_ps(a, b, c); }

static inline lanes lanes_from_bf16(const uint16_t *src) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)src));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline lanes lanes_from_f16(const uint16_t *src) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)src));
}

static inline lanes lanes_from_i8(const int8_t *src) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)src)));
}

static inline lanes lanes_round_bf16(lanes a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, is_nan);
    return _mm256_castsi256_ps(_mm256_and_si256(chosen, _mm256_set1_epi32((int)0xFFFF0000)));
}

static inline lanes lanes_round(lanes a, qr_dtype dtype) {
    if (dtype == QR_DTYPE_BF16) { return lanes_round_bf16(a); }
    return dtype == QR_DTYPE_F16 ? _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)) : a;
}

static inline lanes_table lanes_table_make(const float code[16], float scale, qr_dtype dtype) {
    const __m256 factor = _mm256_set1_ps(scale);
    return (lanes_table){lanes_round(_mm256_mul_ps(_mm256_loadu_ps(code), factor), dtype),
                         lanes_round(_mm256_mul_ps(_mm256_loadu_ps(code + 8), factor), dtype)};
}

static inline lanes_index lanes_index_from_u16(const uint8_t *src) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)src));
}

static inline lanes_index lanes_index_from_u8(const uint8_t *src) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)src));
}

/* vpermps takes the low three bits of the index; the fourth, moved to the sign, chooses the half. */
static inline lanes lanes_lookup(const lanes_table *table, lanes_index index, int shift) {
    const __m256i at = _mm256_srli_epi32(index, shift);
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(at, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table->low, at), _mm256_permutevar8x32_ps(table->high, at), upper);
}

static inline void lanes_reduce(const lanes *acc, float *dst, bool first) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(acc[0], acc[1]), _mm256_hadd_ps(acc[2], acc[3]));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(dst, first ? sums : _mm_add_ps(_mm_loadu_ps(dst), sums));
}

/* lanes_reduce of n_rows rows of accumulators, LANES_TILE_ROWS a row. */
static inline void lanes_reduce_rows(lanes acc[][LANES_TILE_ROWS], int n_rows, float *dst, int64_t stride, bool first) {
    for (int r = 0; r < n_rows; r++) { lanes_reduce(acc[r], dst + r * stride, first); }
}

#endif
