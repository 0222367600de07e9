/* Panels of weights in BF16, 32 at a time. An NF4 block has 16 values, bf16(code · absmax): a table of them fits half a
 * register, and one vpermw then looks up 32 weights. */
#include "kernels/cpu/linear_bf16_fetch.h"

#include <immintrin.h>
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/nf4_avx512_bf16.h"

static void fetch_nf4_row(const qr_cpu_panel *p, int64_t row, uint16_t *dst) {
    enum { SCALES_AT_ONCE = 32 };
    float scales[SCALES_AT_ONCE];
    const __m512 code = _mm512_loadu_ps(qr_nf4_code);
    for (int64_t k = 0; k < p->n_k; k += 64 * SCALES_AT_ONCE) {
        const int64_t n_k = qr_min(p->n_k - k, 64 * SCALES_AT_ONCE);
        qr_cpu_nf4_scales(p->weight, p->layout, row, p->k + k, n_k / 64, scales);
        for (int64_t j = 0; j < n_k; j += 128) {
            const uint8_t *codes = qr_cpu_nf4_run(p->weight, p->layout, row, p->k + k + j);
            const bool half = n_k - j < 128;
            __m512i v[4];
            nf4_values(half ? nf4_words_half(codes) : nf4_words(codes), code, scales[j / 64], scales[j / 64 + !half], v);
            for (int q = 0; q < (half ? 2 : 4); q++) { _mm512_storeu_si512(dst + k + j + 32 * q, v[q]); }
        }
    }
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
        return bf16_from_f32(_mm512_cvtph_ps(_mm512_castsi512_si256(f16)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1)));
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
    const qr_weight_format format = p->weight->desc.format;
    const int64_t bytes = format == QR_WEIGHT_F32 ? 4 : format == QR_WEIGHT_INT8 ? 1 : 2;
    const unsigned char *src = (const unsigned char *)qr_cpu_row(p->weight, p->layout, row) + p->k * bytes;
    for (int64_t j = 0; j < p->n_k; j += 32) {
        _mm512_storeu_si512(dst + j, element_vector(format, src + j * bytes, p->n_k - j));
    }
}

void qr_cpu_fetch_bf16(const qr_cpu_panel *p) {
    for (int64_t r = 0; r < p->n_rows; r++) {
        uint16_t *dst = (uint16_t *)p->dst + r * p->dst_stride;
        switch (p->layout->kind) {
        case QR_CPU_ROWS: fetch_element_row(p, p->row + r, dst); break;
        case QR_CPU_NF4_GROUPS: fetch_nf4_row(p, p->row + r, dst); break;
        case QR_CPU_NF4_FLAT: qr_cpu_nf4_flat_row_bf16(p, p->row + r, dst); break;
        }
        memset(dst + p->n_k, 0, (size_t)(p->n_k_padded - p->n_k) * sizeof *dst);
    }
}
