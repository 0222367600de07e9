/* Scales of a K block of NF4_GROUPS, included after vec_tile.h. */
#ifndef QR_KERNELS_CPU_LINEAR_LINEAR_SCALES_H
#define QR_KERNELS_CPU_LINEAR_LINEAR_SCALES_H

#include <stdbool.h>
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/vec_tile.h"
#include "quant/dynamic8.h"
#include "quant/nf4.h"

enum { SCALES_MAX_K = 1024 }; /* of a K block */

#ifdef QR_VEC_AVX512

enum { NESTED_AT_ONCE = 8 }; /* scales of a row, in half a vector */

/* map[code] of 16 codes, from the map's 16 registers: a gather takes longer where its microcode was mended. */
QR_INLINE __m512 nested_lookup(const float map[256], __m128i codes) {
    const __m512i index = _mm512_cvtepu8_epi32(codes);
    __m512 v[8];
    QR_UNROLL for (int i = 0; i < 8; i++) {
        v[i] = _mm512_permutex2var_ps(_mm512_loadu_ps(map + 32 * i), index, _mm512_loadu_ps(map + 32 * i + 16));
    }
    QR_UNROLL for (int n = 4, bit = 32; n > 0; n /= 2, bit *= 2) {
        const __mmask16 upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(bit));
        QR_UNROLL for (int i = 0; i < n; i++) { v[i] = _mm512_mask_blend_ps(upper, v[2 * i], v[2 * i + 1]); }
    }
    return v[0];
}

/* absmax of up to 8 blocks from `first` on, which have two nested scales at most: values · nested + offset, two
 * roundings. */
QR_INLINE __m256 nested_scaled(__m256 values, const float *nested, int64_t first, int64_t n, float offset) {
    const int64_t at = first / QR_NESTED_BLOCK, left = (at + 1) * QR_NESTED_BLOCK - first;
    __m256 scale = _mm256_set1_ps(nested[at]);
    if (left < n) { scale = _mm256_mask_mov_ps(scale, (__mmask8)(0xFFU << left), _mm256_set1_ps(nested[at + 1])); }
    return _mm256_add_ps(_mm256_mul_ps(values, scale), _mm256_set1_ps(offset));
}

/* absmax of blocks [first, first + n) of n_rows rows, which are row_blocks apart. Whole halves of vectors are written.
 * One by one they take a third of the time of a product with one row of x. */
QR_INLINE void fetch_nested(const qr_cpu_panel *p, int64_t first, int64_t row_blocks, int64_t n_rows, int64_t n,
                            float *scales, int64_t stride) {
    const unsigned char *data = p->weight->data;
    const uint8_t *codes = data + p->layout->scales_offset;
    const float *nested = (const float *)(const void *)(data + p->layout->nested_offset), *map = qr_dynamic8_map(true);
    const __mmask16 there = (__mmask16)((1U << n) - 1);
    for (int64_t r = 0; r < n_rows; r += 2) {
        const int64_t other = qr_min(r + 1, n_rows - 1); /* the last row may be alone */
        const int64_t first0 = first + r * row_blocks, first1 = first + other * row_blocks;
        const __m512 values = nested_lookup(map, _mm_unpacklo_epi64(_mm_maskz_loadu_epi8(there, codes + first0),
                                                                    _mm_maskz_loadu_epi8(there, codes + first1)));
        const __m256 low = _mm512_castps512_ps256(values), high = _mm512_extractf32x8_ps(values, 1);
        const float offset = p->weight->nested_offset;
        _mm256_storeu_ps(scales + r * stride, nested_scaled(low, nested, first0, n, offset));
        _mm256_storeu_ps(scales + other * stride, nested_scaled(high, nested, first1, n, offset));
    }
}

/* 16 scales of E8M0; 255 is refused where files are read. */
QR_INLINE __m512 mxfp4_scale_vector(__m128i codes) {
    const __m512i exponents = _mm512_cvtepu8_epi32(codes), half_of_least_normal = _mm512_set1_epi32(0x00400000);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(
        _mm512_slli_epi32(exponents, 23), _mm512_testn_epi32_mask(exponents, exponents), half_of_least_normal));
}

/* Scales of the rows that the matrix has, where n of a row fit a vector; returns how many rows. */
QR_INLINE int64_t fetch_scale_vectors(const qr_cpu_panel *p, int64_t row, int64_t n_rows, int64_t k, int64_t n,
                                      const int scale_cols, float *scales, int64_t stride) {
    const qr_weight_desc *desc = &p->weight->desc;
    const int64_t first = (row * desc->cols + k) / scale_cols, row_blocks = desc->cols / scale_cols;
    if (qr_weight_block(desc) != scale_cols || n * scale_cols > 64 * NESTED_AT_ONCE) { return 0; }
    const int64_t n_there = qr_max(qr_min(n_rows, desc->rows - row), 0);
    const __mmask16 there = (__mmask16)(n >= 16 ? 0xFFFFU : (1U << n) - 1);
    const unsigned char *of_rows = (const unsigned char *)p->weight->data + p->layout->scales_offset;
    if (desc->format == QR_WEIGHT_NF4_DQ) {
        fetch_nested(p, first, row_blocks, n_there, n, scales, stride);
    } else if (desc->format == QR_WEIGHT_MXFP4) {
        for (int64_t r = 0; r < n_there; r++) {
            const __m128i codes = _mm_maskz_loadu_epi8(there, of_rows + first + r * row_blocks);
            _mm512_storeu_ps(scales + r * stride, mxfp4_scale_vector(codes));
        }
    } else {
        for (int64_t r = 0; r < n_there; r++) {
            const float *absmax = (const float *)(const void *)of_rows + first + r * row_blocks;
            _mm256_storeu_ps(scales + r * stride, _mm256_maskz_loadu_ps((__mmask8)there, absmax));
        }
    }
    return n_there;
}

#elif defined(QR_VEC_AVX2)

/* map[code] of the 8 bytes of a word. They are put together in registers: a vector that is loaded from lanes that were
 * just stored waits for all of them. */
QR_INLINE __m256 nested_lookup(const float map[256], uint64_t codes) {
    return _mm256_setr_ps(map[codes & 0xFF], map[codes >> 8 & 0xFF], map[codes >> 16 & 0xFF], map[codes >> 24 & 0xFF],
                          map[codes >> 32 & 0xFF], map[codes >> 40 & 0xFF], map[codes >> 48 & 0xFF], map[codes >> 56]);
}

/* absmax of blocks [first, first + n), n ≤ 8, of n_rows rows, which are row_blocks apart. Whole vectors are written.
 * Not inlined: beside a product's registers there are none for eight addresses. */
static __attribute__((noinline)) void fetch_nested(const qr_cpu_panel *p, uint64_t first, uint64_t row_blocks,
                                                   int64_t n_rows, int64_t n, float *scales, int64_t stride) {
    const unsigned char *data = p->weight->data;
    const uint8_t *codes = data + p->layout->scales_offset;
    const float *nested = (const float *)(const void *)(data + p->layout->nested_offset), *map = qr_dynamic8_map(true);
    const __m256 offset = _mm256_set1_ps(p->weight->nested_offset);
    for (int64_t r = 0; r < n_rows; r++, first += row_blocks, scales += stride) {
        const int64_t left = QR_NESTED_BLOCK - (int64_t)(first % QR_NESTED_BLOCK);
        const float *of_first = nested + first / QR_NESTED_BLOCK;
        __m256 factor = _mm256_set1_ps(of_first[0]);
        if (left < n) { factor = qr_vec_select_range(factor, _mm256_set1_ps(of_first[1]), 0, (int)left); }
        uint64_t eight; /* past the last codes are the nested scales */
        memcpy(&eight, codes + first, sizeof eight);
        const __m256 product = _mm256_mul_ps(nested_lookup(map, eight), factor);
        _mm256_storeu_ps(scales, _mm256_add_ps(product, offset));
    }
}

/* Scales of NF4 of the rows that the matrix has, up to 8 of a row; returns how many rows. */
QR_INLINE int64_t fetch_scale_vectors(const qr_cpu_panel *p, int64_t row, int64_t n_rows, int64_t k, int64_t n,
                                      const int scale_cols, float *scales, int64_t stride) {
    const qr_weight_desc *desc = &p->weight->desc;
    if (desc->format == QR_WEIGHT_MXFP4 || qr_weight_block(desc) != scale_cols || n > QR_VEC) { return 0; }
    const int64_t n_there = qr_max(qr_min(n_rows, desc->rows - row), 0), row_blocks = desc->cols / scale_cols;
    const int64_t first = (row * desc->cols + k) / scale_cols;
    if (desc->format == QR_WEIGHT_NF4_DQ) {
        fetch_nested(p, (uint64_t)first, (uint64_t)row_blocks, n_there, n, scales, stride);
        return n_there;
    }
    const float *absmax = qr_cpu_scales(p->weight, p->layout) + first;
    for (int64_t r = 0; r < n_there; r++) {
        _mm256_storeu_ps(scales + r * stride, qr_vec_load_n(absmax + r * row_blocks, n));
    }
    return n_there;
}

#endif

/* n scales of each row are 0 or within [2^-100, 2^100): products with the code's values are then ordinary
 * (qr_vec_round_ordinary). */
QR_INLINE bool scales_are_ordinary(const float *scales, int64_t n_rows, int64_t n, int64_t stride) {
    enum { LEAST = (127 - 100) << 23, RANGE = 200 << 23 };
    uint32_t others = 0;
    for (int64_t r = 0; r < n_rows; r++) {
#ifdef QR_VEC_AVX512
        for (int64_t i = 0; i < n; i += QR_VEC) {
            const __m512 row = qr_vec_load_n(scales + r * stride + i, n - i);
            const __m512i bits = _mm512_castps_si512(_mm512_abs_ps(row));
            const __mmask16 outside =
                _mm512_cmpge_epu32_mask(_mm512_sub_epi32(bits, _mm512_set1_epi32(LEAST)), _mm512_set1_epi32(RANGE));
            others |= _mm512_mask_cmp_ps_mask(outside, row, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        }
#else
        for (int64_t i = 0; i < n; i++) {
            const uint32_t magnitude = qr_f32_bits(scales[r * stride + i]) & 0x7FFFFFFFU;
            others |= (uint32_t)(magnitude != 0) & (uint32_t)(magnitude - LEAST >= (uint32_t)RANGE);
        }
#endif
    }
    return others == 0;
}

/* Scales of columns [k, k + n_k) of rows [row, row + n_rows): scales[r · stride + j]. stride: at least 512 /
 * scale_cols, as whole vectors are written. */
QR_INLINE void fetch_scales(const qr_cpu_panel *p, int64_t row, int64_t n_rows, int64_t k, int64_t n_k,
                            const int scale_cols, float *scales, int64_t stride) {
    const int64_t n = n_k / scale_cols;
    int64_t r = 0;
#if defined(QR_VEC_AVX512) || defined(QR_VEC_AVX2)
    r = fetch_scale_vectors(p, row, n_rows, k, n, scale_cols, scales, stride);
#endif
    for (; r < n_rows; r++) { qr_cpu_nf4_scales(p->weight, p->layout, row + r, k, n, scales + r * stride); }
}

#endif
