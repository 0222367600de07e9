/* NF4 codes to BF16 values in registers (AVX-512 BF16). */
#ifndef QR_KERNELS_CPU_NF4_AVX512_BF16_H
#define QR_KERNELS_CPU_NF4_AVX512_BF16_H

#include <immintrin.h>
#include <stdint.h>

#include "quant/nf4.h"

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

#endif
