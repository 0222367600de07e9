/* As lanes_c.h, in AVX-512 F, BW, DQ and VL. */
#ifndef QR_KERNELS_CPU_SIMD_LANES_AVX512_H
#define QR_KERNELS_CPU_SIMD_LANES_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

/* 24 accumulators, 6 vectors of x and one of w of the 32 registers. */
#define TILE_MAX_COLS 6
enum { LANES = 16, LANES_TILE_ROWS = 4, LANES_TILE_COLS = TILE_MAX_COLS };

typedef __m512 lanes;
typedef __m512i lanes_index;
typedef struct lanes_table {
    __m512 values;
} lanes_table;

static inline lanes lanes_zero(void) { return _mm512_setzero_ps(); }
static inline lanes lanes_load(const float *src) { return _mm512_loadu_ps(src); }
static inline void lanes_store(float *dst, lanes a) { _mm512_storeu_ps(dst, a); }
static inline lanes lanes_set(float value) { return _mm512_set1_ps(value); }
static inline lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }

static inline lanes lanes_from_bf16(const uint16_t *src) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)src));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline lanes lanes_from_f16(const uint16_t *src) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)src));
}

static inline lanes lanes_from_i8(const int8_t *src) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)src)));
}

static inline lanes lanes_round_bf16(lanes a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32((int)0xFFFF0000)));
}

static inline lanes lanes_round(lanes a, qr_dtype dtype) {
    if (dtype == QR_DTYPE_BF16) { return lanes_round_bf16(a); }
    return dtype == QR_DTYPE_F16 ? _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)) : a;
}

static inline lanes_table lanes_table_make(const float code[16], float scale, qr_dtype dtype) {
    return (lanes_table){lanes_round(_mm512_mul_ps(_mm512_loadu_ps(code), _mm512_set1_ps(scale)), dtype)};
}

static inline lanes_index lanes_index_from_u16(const uint8_t *src) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)src));
}

static inline lanes_index lanes_index_from_u8(const uint8_t *src) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)src));
}

/* vpermps takes the low four bits of the index. */
static inline lanes lanes_lookup(const lanes_table *table, lanes_index index, int shift) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(index, (unsigned)shift), table->values);
}

/* The two halves are added first, so that three adds of pairs finish four accumulators at once. */
static inline void lanes_reduce(const lanes *acc, float *dst, bool first) {
    __m256 half[4];
    for (int r = 0; r < 4; r++) {
        half[r] = _mm256_add_ps(_mm512_castps512_ps256(acc[r]), _mm512_extractf32x8_ps(acc[r], 1));
    }
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(dst, first ? sums : _mm_add_ps(_mm_loadu_ps(dst), sums));
}

/* lanes_reduce of n_rows rows at once, with the very same sums: registers are kept full, so that a row takes half as
 * many instructions. n_rows is a constant after inlining, at most 6. */
static inline __attribute__((always_inline)) void lanes_reduce_rows(__m512 acc[][4], const int n_rows, float *dst,
                                                                    int64_t stride, bool first) {
    __m512 pairs[8], quads[4];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
        const __m512 half01 = _mm512_add_ps(_mm512_shuffle_f32x4(acc[r][0], acc[r][1], 0x44),
                                            _mm512_shuffle_f32x4(acc[r][0], acc[r][1], 0xEE));
        const __m512 half23 = _mm512_add_ps(_mm512_shuffle_f32x4(acc[r][2], acc[r][3], 0x44),
                                            _mm512_shuffle_f32x4(acc[r][2], acc[r][3], 0xEE));
        pairs[r] = _mm512_add_ps(_mm512_shuffle_ps(half01, half23, 0x88), _mm512_shuffle_ps(half01, half23, 0xDD));
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r += 2) {
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

#endif
