/* Panels of weights in BF16, 32 at a time. A block of NF4 or MXFP4 has 16 values, bf16(code · absmax): a table of them
 * fits half a register, and one vpermw then looks up 32 weights. */
#include "kernels/cpu/linear/linear_bf16.h"

#include <immintrin.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/nf4_avx512_bf16.h"
#include "kernels/cpu/simd/vec.h"

enum { GROUP = QR_CPU_NF4_GROUP_ROWS };

/* 128 columns of n_rows rows of a group. */
QR_INLINE void fetch_run(const uint8_t *codes, const uint8_t *next, const float *scales, int64_t scale_stride,
                         int64_t n_rows, const bool is_mxfp4, uint16_t *dst, int64_t dst_stride) {
    const __m512 code = code_values(is_mxfp4);
    for (int64_t r = 0; r < n_rows; r++) {
        __m512i v[4];
        _mm_prefetch(next + r * 64, _MM_HINT_T0);
        run_values(codes + r * 64, code, scales + r * scale_stride, false, is_mxfp4, v);
        QR_UNROLL for (int j = 0; j < 4; j++) { _mm512_storeu_si512(dst + r * dst_stride + 32 * j, v[j]); }
    }
}

/* The last 64 columns where cols % 128 == 64. */
QR_INLINE void fetch_half_run(const uint8_t *codes, const float *scales, int64_t scale_stride, int64_t n_rows,
                              const bool is_mxfp4, uint16_t *dst, int64_t dst_stride) {
    const __m512 code = code_values(is_mxfp4);
    for (int64_t r = 0; r < n_rows; r++) {
        __m512i v[4];
        run_values(codes + r * 32, code, scales + r * scale_stride, true, is_mxfp4, v);
        _mm512_storeu_si512(dst + r * dst_stride, v[0]);
        _mm512_storeu_si512(dst + r * dst_stride + 32, v[1]);
    }
}

/* Up to 16 rows of one group, in the order in which their codes lie. */
QR_INLINE void fetch_group(const qr_cpu_panel *p, const nf4_map *map, int64_t row, int64_t n_rows, const bool is_mxfp4,
                           uint16_t *dst) {
    const int scale_cols = qr_cpu_scale_cols_of(is_mxfp4), most = QR_CPU_BF16_K_BLOCK / scale_cols;
    float scales[GROUP * (QR_CPU_BF16_K_BLOCK / QR_CPU_MXFP4_SCALE_COLS)];
    panel_scales_of(map, p, row, n_rows, is_mxfp4, scales, most);
    int64_t next_row, next_k;
    qr_cpu_position_ahead(p, row, n_rows, &next_row, &next_k);
    const uint8_t *codes = qr_cpu_nf4_run(p->weight, p->layout, row, p->k);
    const uint8_t *next = qr_cpu_nf4_run(p->weight, p->layout, next_row, next_k);
    int64_t k = 0;
    for (; k + 128 <= p->n_k; k += 128) {
        const int64_t offset = k / 2 * GROUP;
        fetch_run(codes + offset, next + offset, scales + k / scale_cols, most, n_rows, is_mxfp4, dst + k,
                  p->dst_stride);
    }
    if (k < p->n_k) {
        fetch_half_run(qr_cpu_nf4_run(p->weight, p->layout, row, p->k + k), scales + k / scale_cols, most, n_rows,
                       is_mxfp4, dst + k, p->dst_stride);
    }
}

static void fetch_nf4_group(const qr_cpu_panel *p, const nf4_map *map, int64_t row, int64_t n_rows, uint16_t *dst) {
    fetch_group(p, map, row, n_rows, false, dst);
}

static void fetch_mxfp4_group(const qr_cpu_panel *p, int64_t row, int64_t n_rows, uint16_t *dst) {
    fetch_group(p, NULL, row, n_rows, true, dst);
}

static __m512i bf16_from_f32(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/* 32 elements of a ROWS row. What is read past the end of the row are the zeros that fill it up to 64 bytes, or, for
 * F32, nothing: the upper 16 are left out where n_left does not reach them. */
static __m512i element_vector(qr_weight_format format, const unsigned char *src, int64_t n_left) {
    switch (format) {
        case QR_WEIGHT_F32:
            return bf16_from_f32(_mm512_loadu_ps(src), n_left > 16 ? _mm512_loadu_ps(src + 64) : _mm512_setzero_ps());
        case QR_WEIGHT_F16: {
            const __m512i f16 = _mm512_loadu_si512(src);
            return bf16_from_f32(_mm512_cvtph_ps(_mm512_castsi512_si256(f16)),
                                 _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1)));
        }
        case QR_WEIGHT_INT8: {
            const __m256i i8 = _mm256_loadu_si256((const __m256i *)(const void *)src);
            return bf16_from_f32(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(i8))),
                                 _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(i8, 1))));
        }
        default: return _mm512_loadu_si512(src);
    }
}

static void fetch_element_row(const qr_cpu_panel *p, int64_t row, uint16_t *dst) {
    enum { ROWS_AHEAD = 6 };
    int64_t next_row, next_k;
    qr_cpu_position_ahead(p, row, ROWS_AHEAD, &next_row, &next_k);
    const qr_weight_format format = p->weight->desc.format;
    const int64_t bytes = format == QR_WEIGHT_F32 ? 4 : format == QR_WEIGHT_INT8 ? 1 : 2;
    const unsigned char *src = (const unsigned char *)qr_cpu_row(p->weight, p->layout, row) + p->k * bytes;
    const unsigned char *next = (const unsigned char *)qr_cpu_row(p->weight, p->layout, next_row) + next_k * bytes;
    for (int64_t j = 0; j < p->n_k; j += 32) {
        _mm_prefetch(next + j * bytes, _MM_HINT_T0);
        _mm512_storeu_si512(dst + j, element_vector(format, src + j * bytes, p->n_k - j));
    }
}

void qr_cpu_fetch_bf16(const qr_cpu_panel *p) {
    const bool groups = p->layout->kind == QR_CPU_NF4_GROUPS, is_mxfp4 = p->weight->desc.format == QR_WEIGHT_MXFP4;
    nf4_map map;
    if (groups && !is_mxfp4) { nf4_map_split(&map); }
    for (int64_t r = 0, n = 1; r < p->n_rows; r += n) {
        const int64_t row = p->row + r;
        if (groups) { n = qr_min(p->n_rows - r, GROUP - row % GROUP); }
        uint16_t *dst = (uint16_t *)p->dst + r * p->dst_stride;
        switch (p->layout->kind) {
            case QR_CPU_ROWS: fetch_element_row(p, row, dst); break;
            case QR_CPU_NF4_GROUPS:
                if (is_mxfp4) {
                    fetch_mxfp4_group(p, row, n, dst);
                } else {
                    fetch_nf4_group(p, &map, row, n, dst);
                }
                break;
            case QR_CPU_NF4_FLAT: qr_cpu_nf4_flat_row_bf16(p, row, dst); break;
        }
        for (int64_t k = p->n_k; k < p->n_k_padded; k++) { dst[k] = 0; }
    }
}
