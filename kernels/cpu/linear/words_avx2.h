/* Weights as BF16 words in AVX2, and words as F32. For linear_avx2.c and linear_avx2_decode.c, which share its order of
 * sums.
 *
 * NF4 and MXFP4: a block has 16 values, bf16(code · scale). vpshufb looks up bytes, 32 at a time, so a table is two
 * registers: the values' low bytes, and their high ones. */
#ifndef QR_KERNELS_CPU_LINEAR_WORDS_AVX2_H
#define QR_KERNELS_CPU_LINEAR_WORDS_AVX2_H

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_scales.h"
#include "kernels/cpu/simd/vec_tile.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

enum {
    AVX2_K_BLOCK = 512,
    AVX2_RUN = 128, /* columns of a run of codes */
    AVX2_MAX_SCALES = AVX2_K_BLOCK / QR_CPU_MXFP4_SCALE_COLS,
};

/* Even and odd elements of 16 BF16 values, as F32. */
QR_INLINE __m256 bf16_even(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
QR_INLINE __m256 bf16_odd(__m256i words) {
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xFFFF0000)));
}

/* --- Codes ------------------------------------------------------------------------------------------------------- */

typedef struct nf4_table {
    uint8_t low[16], high[16];
} nf4_table;

/* Tables of a row of a K block. */
QR_INLINE int tables_of_row(const bool is_mxfp4) { return AVX2_K_BLOCK / qr_cpu_scale_cols_of(is_mxfp4); }

/* Of columns [k, k + n_k) of n_rows rows of a group (NF4_GROUPS), tables_of_row apart. */
void qr_cpu_nf4_tables_avx2(const qr_cpu_panel *p, int64_t row, int64_t n_rows, int64_t k, int64_t n_k,
                            nf4_table *tables);

/* Columns 64s + [0, 64) of a run (NF4_GROUPS). The low halves of the bytes are the first 32 columns, the high halves
 * the others, in the order 0 …, 16 …, 8 …, 24 … of each: interleaving bytes in the halves of a register then gives
 * words in order. */
QR_INLINE __m256i nf4_load_codes(const uint8_t *run, const int s, const bool half_run) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)run);
    if (half_run) { return _mm256_permute4x64_epi64(a, 0xD8); }
    const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(run + 32));
    const __m256i low_bytes = _mm256_set1_epi16(0x00FF);
    return s == 0 ? _mm256_packus_epi16(_mm256_and_si256(a, low_bytes), _mm256_and_si256(b, low_bytes))
                  : _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
}

QR_INLINE __m256i nf4_bytes(const uint8_t bytes[16]) { /* in both halves */
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)bytes));
}

/* Half number `part` of 64 columns as BF16: words[0] holds the first 16, in order. */
QR_INLINE void nf4_words(__m256i codes, const int part, const nf4_table *table, __m256i words[2]) {
    const __m256i code = _mm256_and_si256(part == 0 ? codes : _mm256_srli_epi16(codes, 4), _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(nf4_bytes(table->low), code);
    const __m256i high = _mm256_shuffle_epi8(nf4_bytes(table->high), code);
    words[0] = _mm256_unpacklo_epi8(low, high);
    words[1] = _mm256_unpackhi_epi8(low, high);
}

/* --- Elements ---------------------------------------------------------------------------------------------------- */

/* 16 codes of INT8. */
QR_INLINE void int8_values(const int8_t *src, __m256 *even, __m256 *odd) {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)src));
    *even = _mm256_cvtepi32_ps(_mm256_madd_epi16(words, _mm256_set1_epi32(1))); /* the lower word, its sign extended */
    *odd = _mm256_cvtepi32_ps(_mm256_srai_epi32(words, 16));
}

QR_INLINE __m256i words_of(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd), 0xAA);
}

QR_INLINE __m256i words_in_order(qr_vec first, qr_vec last) {
    const __m256i a = _mm256_srli_epi32(_mm256_castps_si256(qr_vec_round_to(first, QR_DTYPE_BF16)), 16);
    const __m256i b = _mm256_srli_epi32(_mm256_castps_si256(qr_vec_round_to(last, QR_DTYPE_BF16)), 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8);
}

/* 16 elements of a ROWS row, which zeros follow up to 64 bytes. */
static inline __m256i element_words(qr_weight_format format, const unsigned char *src) {
    switch (format) {
        case QR_WEIGHT_F32: {
            const float *f32 = (const float *)(const void *)src;
            return words_in_order(qr_vec_load(f32), qr_vec_load(f32 + 8));
        }
        case QR_WEIGHT_F16: {
            const uint16_t *f16 = (const uint16_t *)(const void *)src;
            return words_in_order(qr_vec_load_f16_n(f16, 8), qr_vec_load_f16_n(f16 + 8, 8));
        }
        case QR_WEIGHT_INT8: {
            __m256 even, odd;
            int8_values((const int8_t *)src, &even, &odd);
            return words_of(even, odd);
        }
        default: return _mm256_loadu_si256((const __m256i *)(const void *)src);
    }
}

QR_INLINE int64_t bytes_of(qr_weight_format format) {
    return format == QR_WEIGHT_F32 ? 4 : format == QR_WEIGHT_INT8 ? 1 : 2;
}

QR_INLINE void store_words(uint16_t *dst, __m256i words) { _mm256_storeu_si256((__m256i *)(void *)dst, words); }

/* decode of linear.h, of all layouts but NF4_FLAT. */
bool qr_cpu_decode_avx2(const qr_cpu_panel *p, const qr_cpu_product *product);

#endif
