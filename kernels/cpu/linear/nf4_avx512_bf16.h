/* NF4 and MXFP4 codes to BF16 values in registers (AVX-512 BF16). */
#ifndef QR_KERNELS_CPU_LINEAR_NF4_AVX512_BF16_H
#define QR_KERNELS_CPU_LINEAR_NF4_AVX512_BF16_H

#include <immintrin.h>
#include <stdint.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_scales.h"
#include "quant/dynamic8.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

static inline __m512i nf4_words(const uint8_t *run) { return _mm512_loadu_si512(run); }
static inline __m512i nf4_words_half(const uint8_t *run) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)run));
}

/* bf16(code · scale) for the 16 codes, in both halves. */
static inline __m512i nf4_table(__m512 code, float scale) {
    const __m512 values = _mm512_mul_ps(code, _mm512_set1_ps(scale));
    return (__m512i)_mm512_cvtne2ps_pbh(values, values);
}

/* Columns [32j, 32j + 32) of a run in v[j]; the first two of the block of scale0, the others of that of scale1. vpermw
 * ignores the upper bits of an index. */
static inline void nf4_values(__m512i words, __m512 code, float scale0, float scale1, __m512i v[4]) {
    const __m512i t0 = nf4_table(code, scale0), t1 = nf4_table(code, scale1);
    v[0] = _mm512_permutexvar_epi16(words, t0);
    v[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), t0);
    v[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), t1);
    v[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), t1);
}

/* The same of MXFP4: each of the four has a scale. Its products are exact. */
static inline void mxfp4_values(__m512i words, __m512 code, const float scales[4], __m512i v[4]) {
    v[0] = _mm512_permutexvar_epi16(words, nf4_table(code, scales[0]));
    v[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), nf4_table(code, scales[1]));
    v[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), nf4_table(code, scales[2]));
    v[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), nf4_table(code, scales[3]));
}

/* A run of either, or (half) the last 64 columns: v[2] and v[3] then mean nothing, and the scales that they would have
 * are not read. */
static inline void run_values(const uint8_t *run, __m512 code, const float *scales, const bool half,
                              const bool is_mxfp4, __m512i v[4]) {
    const __m512i words = half ? nf4_words_half(run) : nf4_words(run);
    if (is_mxfp4) {
        const float all[4] = {scales[0], scales[1], half ? 0.0F : scales[2], half ? 0.0F : scales[3]};
        mxfp4_values(words, code, all, v);
    } else {
        nf4_values(words, code, scales[0], half ? scales[0] : scales[1], v);
    }
}

/* The values of codes, of either. */
static inline __m512 code_values(const bool is_mxfp4) {
    return _mm512_loadu_ps(is_mxfp4 ? qr_float4_values : qr_nf4_code);
}

/* The map of nested absmax codes, its values' upper and lower 16 bits apart. */
typedef struct nf4_map {
    __m512i high[8], low[8];
} nf4_map;

static inline void nf4_map_split(nf4_map *map) {
    const float *values = qr_dynamic8_map(true);
    for (int i = 0; i < 8; i++) {
        const __m512i first = _mm512_loadu_si512(values + 32 * i), second = _mm512_loadu_si512(values + 32 * i + 16);
        const __m512i order = _mm512_setr_epi64(0, 1, 2, 3, 8, 9, 10, 11);
        map->low[i] = _mm512_permutex2var_epi64(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(first)), order,
                                                _mm512_castsi256_si512(_mm512_cvtepi32_epi16(second)));
        map->high[i] = _mm512_permutex2var_epi64(
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(first, 16))), order,
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(second, 16))));
    }
}

/* table[index] for 32 indices below 256. */
static inline __m512i nf4_map_half(const __m512i table[8], __m512i index, __mmask32 bit6, __mmask32 bit7) {
    const __m512i a = _mm512_permutex2var_epi16(table[0], index, table[1]);
    const __m512i b = _mm512_permutex2var_epi16(table[2], index, table[3]);
    const __m512i c = _mm512_permutex2var_epi16(table[4], index, table[5]);
    const __m512i d = _mm512_permutex2var_epi16(table[6], index, table[7]);
    return _mm512_mask_blend_epi16(bit7, _mm512_mask_blend_epi16(bit6, a, b), _mm512_mask_blend_epi16(bit6, c, d));
}

/* map[codes] of two times 16 codes: in a third of the time of a gather, which takes 20 cycles for 16. */
static inline void nf4_map_lookup(const nf4_map *map, __m128i c0, __m128i c1, __m512 values[2]) {
    /* Each 128 bits of indices: four of the first, four of the second; unpacking then gives each its own register. */
    const __m512i index =
        _mm512_cvtepu8_epi16(_mm256_set_m128i(_mm_unpackhi_epi32(c0, c1), _mm_unpacklo_epi32(c0, c1)));
    const __mmask32 bit6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
    const __mmask32 bit7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
    const __m512i high = nf4_map_half(map->high, index, bit6, bit7), low = nf4_map_half(map->low, index, bit6, bit7);
    values[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low, high));
    values[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low, high));
}

/* Scales of the blocks of 32 of rows [row, row + n_rows) in a panel's K block, `stride` floats a row. */
static inline void mxfp4_panel_scales(const qr_cpu_panel *p, int64_t row, int64_t n_rows, float *scales,
                                      int64_t stride) {
    const unsigned char *data = p->weight->data;
    const int64_t n = p->n_k / QR_MXFP4_BLOCK, row_blocks = p->weight->desc.cols / QR_MXFP4_BLOCK;
    for (int64_t r = 0; r < n_rows; r++) {
        const uint8_t *codes = data + p->layout->scales_offset + (row + r) * row_blocks + p->k / QR_MXFP4_BLOCK;
        for (int64_t j = 0; j < n; j += 16) {
            const __mmask16 mask = (__mmask16)(n - j >= 16 ? 0xFFFFU : (1U << (n - j)) - 1);
            /* One past the end gives zeros. */
            const __mmask16 in_rows = (__mmask16)(row + r < p->weight->desc.rows ? mask : 0U);
            const __m512 values = mxfp4_scale_vector(_mm_maskz_loadu_epi8(in_rows, codes + j));
            _mm512_mask_storeu_ps(scales + r * stride + j, mask, _mm512_maskz_mov_ps(in_rows, values));
        }
    }
}

/* absmax of 16 blocks from `first` on, which have two nested scales at most; lanes from n on mean nothing. */
static inline __m512 nf4_unnested(__m512 values, const float *nested, int64_t first, int64_t n, __m512 offset) {
    const int64_t at = first / QR_NESTED_BLOCK, left = (at + 1) * QR_NESTED_BLOCK - first;
    __m512 scale = _mm512_set1_ps(nested[at]);
    if (left < n) { scale = _mm512_mask_mov_ps(scale, (__mmask16)(0xFFFFU << left), _mm512_set1_ps(nested[at + 1])); }
    return _mm512_add_ps(_mm512_mul_ps(values, scale), offset);
}

static inline __m128i nf4_load_codes(const uint8_t *codes, int64_t n) {
    return n == 16 ? _mm_loadu_si128((const __m128i *)(const void *)codes)
                   : _mm_maskz_loadu_epi8((__mmask16)((1U << n) - 1), codes);
}

/* absmax of blocks [first[i], first[i] + n) of a double-quantised matrix into scales[i], for two rows i. Whole vectors
 * are written: up to 15 floats more than n. A masked store would make those wait that read its lanes. */
static inline void nf4_unnest_pair(const nf4_map *map, const qr_weight *weight, const qr_cpu_layout *layout,
                                   const int64_t first[2], int64_t n, float *const scales[2]) {
    const unsigned char *data = weight->data;
    const uint8_t *codes = data + layout->scales_offset;
    const float *nested = (const float *)(const void *)(data + layout->nested_offset);
    const __m512 offset = _mm512_set1_ps(weight->nested_offset);
    for (int64_t j = 0; j < n; j += 16) {
        const int64_t left = qr_min(n - j, 16);
        __m512 values[2];
        nf4_map_lookup(map, nf4_load_codes(codes + first[0] + j, left), nf4_load_codes(codes + first[1] + j, left),
                       values);
        for (int i = 0; i < 2; i++) {
            _mm512_storeu_ps(scales[i] + j, nf4_unnested(values[i], nested, first[i] + j, left, offset));
        }
    }
}

/* absmax of the blocks of 64 of rows [row, row + n_rows) in a panel's K block, `stride` floats a row: those of a whole
 * K block, as whole vectors are written. One by one, nested ones took a quarter of the time of a product with one row
 * of x. */
static inline void nf4_panel_scales(const nf4_map *map, const qr_cpu_panel *p, int64_t row, int64_t n_rows,
                                    float *scales, int64_t stride) {
    const qr_weight *weight = p->weight;
    const qr_weight_desc *desc = &weight->desc;
    const int64_t n = p->n_k / 64, n_there = qr_max(qr_min(n_rows, desc->rows - row), 0);
    int64_t r = 0;
    if (desc->format == QR_WEIGHT_NF4_DQ && desc->block == 64) {
        for (; r < n_there; r += 2) {
            const int64_t other = r + 1 < n_there ? r + 1 : r; /* the last row may be alone */
            const int64_t first[2] = {((row + r) * desc->cols + p->k) / 64, ((row + other) * desc->cols + p->k) / 64};
            float *const of_rows[2] = {scales + r * stride, scales + other * stride};
            nf4_unnest_pair(map, weight, p->layout, first, n, of_rows);
        }
        r = n_there;
    }
    /* Plain NF4 has a line of scales a row and K block, which no hardware follows. */
    const bool plain = desc->format == QR_WEIGHT_NF4;
    const float *stored = qr_cpu_scales(weight, p->layout);
    for (; r < n_rows; r++) {
        if (plain) { __builtin_prefetch(stored + ((row + r + 2 * n_rows) * desc->cols + p->k) / desc->block); }
        qr_cpu_nf4_scales(weight, p->layout, row + r, p->k, n, scales + r * stride);
    }
}

/* map: not looked at for MXFP4. */
static inline void panel_scales_of(const nf4_map *map, const qr_cpu_panel *p, int64_t row, int64_t n_rows,
                                   const bool is_mxfp4, float *scales, int64_t stride) {
    if (is_mxfp4) {
        mxfp4_panel_scales(p, row, n_rows, scales, stride);
    } else {
        nf4_panel_scales(map, p, row, n_rows, scales, stride);
    }
}

#endif
