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

/* Rounded to BF16, in the upper 16 bits of each lane; what the lower bits are is not said. `ordinary`:
 * qr_vec_round_ordinary. */
QR_INLINE __m256i nf4_rounded(__m256 value, const bool ordinary) {
    if (!ordinary) { return _mm256_castps_si256(qr_vec_round_to(value, QR_DTYPE_BF16)); }
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
}

/* Of n scales of each of n_rows rows, which are AVX2_MAX_SCALES apart, as the scales are. */
QR_INLINE void nf4_tables_of(const float *scales, int64_t n_rows, int64_t n, const float code[16], const bool ordinary,
                             nf4_table *tables) {
    const __m256 first_codes = _mm256_loadu_ps(code), last_codes = _mm256_loadu_ps(code + 8);
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
    const __m256i in_halves = _mm256_broadcastsi128_si256(order);
    const __m256i across = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = r * AVX2_MAX_SCALES; i < r * AVX2_MAX_SCALES + n; i++) {
            const __m256 scale = _mm256_broadcast_ss(scales + i);
            const __m256i first = nf4_rounded(_mm256_mul_ps(first_codes, scale), ordinary);
            const __m256i last = nf4_rounded(_mm256_mul_ps(last_codes, scale), ordinary);
            /* Values j and 8 + j in each lane; then 4 low bytes of the first, 4 of the last, and the high bytes. */
            const __m256i pairs = _mm256_blend_epi16(_mm256_srli_epi32(first, 16), last, 0xAA);
            const __m256i bytes = _mm256_shuffle_epi8(pairs, in_halves);
            _mm256_storeu_si256((__m256i *)(void *)&tables[i], _mm256_permutevar8x32_epi32(bytes, across));
        }
    }
}

QR_INLINE void nf4_tables_make(const float *scales, int64_t n_rows, int64_t n, const bool is_mxfp4, nf4_table *tables) {
    const float *code = is_mxfp4 ? qr_float4_values : qr_nf4_code;
    if (scales_are_ordinary(scales, n_rows, n, AVX2_MAX_SCALES)) {
        nf4_tables_of(scales, n_rows, n, code, true, tables);
    } else {
        nf4_tables_of(scales, n_rows, n, code, false, tables);
    }
}

/* The codes of a run (NF4_GROUPS). The low halves of the bytes of columns[s] are columns 64s + [0, 32), the high halves
 * the 32 after them, in the order 0 …, 16 …, 8 …, 24 … of each: interleaving bytes in the halves of a register then
 * gives words in order. */
typedef struct nf4_codes {
    __m256i columns[2]; /* of a run of 64 columns the first alone */
} nf4_codes;

QR_INLINE nf4_codes nf4_load_run(const uint8_t *run) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)run);
    const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(run + 32));
    const __m256i low_bytes = _mm256_set1_epi16(0x00FF);
    return (nf4_codes){{_mm256_packus_epi16(_mm256_and_si256(a, low_bytes), _mm256_and_si256(b, low_bytes)),
                        _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8))}};
}

QR_INLINE nf4_codes nf4_load_half_run(const uint8_t *run) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)run);
    return (nf4_codes){{_mm256_permute4x64_epi64(bytes, 0xD8), _mm256_setzero_si256()}};
}

QR_INLINE __m256i nf4_bytes(const uint8_t bytes[16]) { /* in both halves */
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)bytes));
}

/* Columns [32 · part, + 32) of the run as BF16: words[0] holds the first 16, in order. */
QR_INLINE void nf4_words(const nf4_codes *codes, const int part, const nf4_table *table, __m256i words[2]) {
    const __m256i bytes = codes->columns[part / 2];
    const __m256i code = _mm256_and_si256(part % 2 == 0 ? bytes : _mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(nf4_bytes(table->low), code);
    const __m256i high = _mm256_shuffle_epi8(nf4_bytes(table->high), code);
    words[0] = _mm256_unpacklo_epi8(low, high);
    words[1] = _mm256_unpackhi_epi8(low, high);
}

/* --- Elements ---------------------------------------------------------------------------------------------------- */

/* 16 codes of INT8. */
QR_INLINE void int8_values(const int8_t *src, __m256 *even, __m256 *odd) {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)src));
    *even = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 16), 16));
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
