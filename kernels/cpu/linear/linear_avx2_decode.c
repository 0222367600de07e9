/* linear in AVX2 for a few rows of x, which are packed by pack_row of linear_avx2.c; the order of sums is described
 * there. Lanes are the chains of one sum: the even elements of 16 words, and then the odd ones.
 */
#include <stdbool.h>
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/words_avx2.h"

enum {
    K_BLOCK = AVX2_K_BLOCK,
    RUN = AVX2_RUN,
    MAX_SCALES = AVX2_MAX_SCALES,
    GROUP = QR_CPU_NF4_GROUP_ROWS,
    DECODE_X = QR_CPU_DECODE_ROWS,
    DECODE_AHEAD_BYTES = 4096,
};

enum { MOST_AT_ONCE = 2 }; /* rows of weights */

typedef __m256 decode_sums[GROUP][DECODE_X];

/* 16 columns of a row: their even and odd elements, with n_x rows of x. */
QR_INLINE void add_columns(__m256 *acc, __m256 even, __m256 odd, const float *x, int64_t x_stride, const int n_x) {
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        acc[i] = _mm256_fmadd_ps(even, _mm256_loadu_ps(x + i * x_stride), acc[i]);
        acc[i] = _mm256_fmadd_ps(odd, _mm256_loadu_ps(x + i * x_stride + 8), acc[i]);
    }
}

/* --- Tables ------------------------------------------------------------------------------------------------------ */

/* Values j and 8 + j in the upper halves of lane j, as a table: 4 low bytes of the first, 4 of the last, and the high
 * bytes. */
QR_INLINE void nf4_table_store(__m256i first, __m256i last, nf4_table *table) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
    const __m256i across = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i pairs = _mm256_blend_epi16(_mm256_srli_epi32(first, 16), last, 0xAA);
    const __m256i bytes = _mm256_shuffle_epi8(pairs, _mm256_broadcastsi128_si256(order));
    _mm256_storeu_si256((__m256i *)(void *)table, _mm256_permutevar8x32_epi32(bytes, across));
}

/* Tables of n scales, rounded to BF16. */
static void nf4_tables_of(const float *scales, int64_t n, const float code[16], nf4_table *tables) {
    for (int64_t i = 0; i < n; i++) {
        const __m256 scale = _mm256_broadcast_ss(scales + i);
        const __m256 first = _mm256_mul_ps(_mm256_loadu_ps(code), scale);
        const __m256 last = _mm256_mul_ps(_mm256_loadu_ps(code + 8), scale);
        nf4_table_store(_mm256_castps_si256(qr_vec_round_to(first, QR_DTYPE_BF16)),
                        _mm256_castps_si256(qr_vec_round_to(last, QR_DTYPE_BF16)), &tables[i]);
    }
}

/* The same where scales are ordinary, with halves rounded up. That is wrong for one in 131,072: the lower half of such
 * a value is then 0. Returns whether there is none. */
QR_INLINE bool nf4_tables_rounded_up(const float *scales, int64_t n, const float code[16], nf4_table *tables) {
    const __m256 first_codes = _mm256_loadu_ps(code), last_codes = _mm256_loadu_ps(code + 8);
    const __m256i half = _mm256_set1_epi32(0x8000), lower = _mm256_set1_epi32(0xFFFF);
    __m256i least = _mm256_set1_epi32(-1);
    for (int64_t i = 0; i < n; i++) {
        const __m256 scale = _mm256_broadcast_ss(scales + i);
        const __m256i first = _mm256_add_epi32(_mm256_castps_si256(_mm256_mul_ps(first_codes, scale)), half);
        const __m256i last = _mm256_add_epi32(_mm256_castps_si256(_mm256_mul_ps(last_codes, scale)), half);
        least = _mm256_min_epu16(least, _mm256_min_epu16(first, last));
        nf4_table_store(first, last, &tables[i]);
    }
    const __m256i halves = _mm256_and_si256(_mm256_cmpeq_epi16(least, _mm256_setzero_si256()), lower);
    return _mm256_testz_si256(halves, halves) != 0;
}

/* All scales are 0 or within [2^-100, 2^100): products with the code's values are then normal, or 0. */
QR_INLINE bool nf4_scales_are_ordinary(const float *scales, int64_t n) {
    const __m256i one = _mm256_set1_epi32(1), magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i least = _mm256_set1_epi32(-1), most = _mm256_setzero_si256(); /* less 1: a zero is the most of all */
    for (int64_t i = 0; i < n; i += QR_VEC) {
        const __m256i bits = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(scales + i)), magnitude);
        most = _mm256_max_epu32(most, bits);
        least = _mm256_min_epu32(least, _mm256_sub_epi32(bits, one));
    }
    const __m256i too_much = _mm256_cmpgt_epi32(most, _mm256_set1_epi32((227 << 23) - 1));
    const __m256i least_allowed = _mm256_set1_epi32((27 << 23) - 1);
    const __m256i enough = _mm256_cmpeq_epi32(_mm256_max_epu32(least, least_allowed), least);
    return _mm256_testz_si256(too_much, too_much) != 0 && _mm256_testc_si256(enough, _mm256_set1_epi32(-1)) != 0;
}

QR_INLINE void make_tables(const qr_cpu_panel *p, int64_t row, int64_t n_rows, int64_t k, int64_t n_k,
                           const bool is_mxfp4, nf4_table *tables) {
    const int scale_cols = qr_cpu_scale_cols_of(is_mxfp4), most = tables_of_row(is_mxfp4);
    const float *code = is_mxfp4 ? qr_float4_values : qr_nf4_code;
    const int64_t n = n_k / scale_cols;
    float scales[GROUP * MAX_SCALES];
    if (n < most) { memset(scales, 0, sizeof scales); } /* all are looked at */
    fetch_scales(p, row, n_rows, k, n_k, scale_cols, scales, most);
    const bool ordinary = nf4_scales_are_ordinary(scales, n_rows * most);
    for (int64_t i = 0; i < n_rows * most; i += most) {
        const bool made = ordinary && (n == most ? nf4_tables_rounded_up(scales + i, most, code, tables + i)
                                                 : nf4_tables_rounded_up(scales + i, n, code, tables + i));
        if (!made) { nf4_tables_of(scales + i, n, code, tables + i); }
    }
}

void qr_cpu_nf4_tables_avx2(const qr_cpu_panel *p, int64_t row, int64_t n_rows, int64_t k, int64_t n_k,
                            nf4_table *tables) {
    if (p->weight->desc.format == QR_WEIGHT_MXFP4) {
        make_tables(p, row, n_rows, k, n_k, true, tables);
    } else {
        make_tables(p, row, n_rows, k, n_k, false, tables);
    }
}

/* --- Codes ------------------------------------------------------------------------------------------------------- */

/* 64 columns of `at_once` rows: half number s of their runs, or all of short ones. */
QR_INLINE void decode_columns(__m256 acc[][DECODE_X], const uint8_t *run, const int s, const bool half_run,
                              const nf4_table *tables, const float *x, int64_t x_stride, const int n_x,
                              const int at_once, const bool is_mxfp4) {
    const int run_bytes = half_run ? 32 : 64, most = tables_of_row(is_mxfp4);
    __m256 now[MOST_AT_ONCE][DECODE_X];
    __m256i codes[MOST_AT_ONCE];
    QR_UNROLL for (int r = 0; r < at_once; r++) {
        codes[r] = nf4_load_codes(run + r * run_bytes, s, half_run);
        QR_UNROLL for (int i = 0; i < n_x; i++) { now[r][i] = acc[r][i]; }
    }
    QR_UNROLL for (int part = 0; part < 2; part++) {
        QR_UNROLL for (int r = 0; r < at_once; r++) {
            __m256i words[2];
            nf4_words(codes[r], part, &tables[r * most + (is_mxfp4 ? part : 0)], words);
            QR_UNROLL for (int h = 0; h < 2; h++) {
                add_columns(now[r], bf16_even(words[h]), bf16_odd(words[h]), x + 32 * part + 16 * h, x_stride, n_x);
            }
        }
    }
    QR_UNROLL for (int r = 0; r < at_once; r++) {
        QR_UNROLL for (int i = 0; i < n_x; i++) { acc[r][i] = now[r][i]; }
    }
}

/* A run of a group's rows. Rows' sums do not wait for each other: after 64 columns the next ones take their turn. */
QR_INLINE void decode_run(decode_sums acc, const uint8_t *run, const bool half_run, const nf4_table *tables,
                          const float *x, int64_t x_stride, const int n_x, const bool is_mxfp4) {
    const int run_bytes = half_run ? 32 : 64, most = tables_of_row(is_mxfp4), tables_of_half = is_mxfp4 ? 2 : 1;
    const int at_once = n_x <= 2 ? MOST_AT_ONCE : 1, n_halves = half_run ? 1 : 2;
    for (int row = 0; row < GROUP; row++) { __builtin_prefetch(run + row * run_bytes + DECODE_AHEAD_BYTES); }
    QR_UNROLL for (int s = 0; s < n_halves; s++) {
        for (int row = 0; row < GROUP; row += at_once) {
            decode_columns(acc + row, run + row * run_bytes, s, half_run, tables + row * most + s * tables_of_half,
                           x + 64 * s, x_stride, n_x, at_once, is_mxfp4);
        }
    }
}

/* Columns [k0, k0 + n_k) of a group. */
QR_INLINE void decode_codes(decode_sums acc, const qr_cpu_panel *p, int64_t row, int64_t k0, int64_t n_k,
                            const float *x, int64_t x_stride, const int n_x, const bool is_mxfp4) {
    const int scale_cols = qr_cpu_scale_cols_of(is_mxfp4);
    nf4_table tables[GROUP * MAX_SCALES];
    qr_cpu_nf4_tables_avx2(p, row, GROUP, k0, n_k, tables);
    int64_t k = 0;
    for (; k + RUN <= n_k; k += RUN) {
        decode_run(acc, qr_cpu_nf4_run(p->weight, p->layout, row, k0 + k), false, tables + k / scale_cols, x + k,
                   x_stride, n_x, is_mxfp4);
    }
    if (k < n_k) {
        decode_run(acc, qr_cpu_nf4_run(p->weight, p->layout, row, k0 + k), true, tables + k / scale_cols, x + k,
                   x_stride, n_x, is_mxfp4);
    }
}

/* --- Elements ---------------------------------------------------------------------------------------------------- */

/* One K block of QR_TILE_ROWS rows that are stored as they are, times up to two rows of x. The rows follow each other
 * in memory, and `ahead` bytes after the first are prefetched in the order of addresses. */
QR_INLINE void decode_elements(const unsigned char *const rows[QR_TILE_ROWS], int64_t ahead, int64_t n_k,
                               const float *x, int64_t x_stride, const int n_x, const qr_weight_format format,
                               float *sums, int64_t sum_stride, bool first) {
    const int64_t bytes = bytes_of(format), ahead_bytes = QR_TILE_ROWS * 16 * bytes;
    __m256 acc[QR_TILE_ROWS][2];
    QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) { acc[r][0] = acc[r][1] = _mm256_setzero_ps(); }
    for (int64_t k = 0; k < n_k; k += 16) {
        const unsigned char *next = rows[0] + ahead + k / 16 * ahead_bytes;
        for (int64_t i = 0; i < ahead_bytes; i += 64) { __builtin_prefetch(next + i); }
        QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) {
            __m256 even, odd;
            if (format == QR_WEIGHT_INT8) {
                int8_values((const int8_t *)rows[r] + k, &even, &odd);
            } else {
                const __m256i words = element_words(format, rows[r] + k * bytes);
                even = bf16_even(words);
                odd = bf16_odd(words);
            }
            add_columns(acc[r], even, odd, x + k, x_stride, n_x);
        }
    }
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        const qr_vec four[QR_TILE_ROWS] = {acc[0][i], acc[1][i], acc[2][i], acc[3][i]};
        qr_vec_reduce(four, sums + i * sum_stride, first);
    }
}

QR_INLINE void decode_element_rows(const qr_cpu_panel *p, const qr_cpu_product *product, const float *x, const int n_x,
                                   const qr_weight_format format, float *sums) {
    enum { AHEAD_BYTES = 12288 };
    const int64_t bytes = bytes_of(format);
    for (int64_t r = 0; r < p->n_rows; r += QR_TILE_ROWS) {
        for (int64_t k = 0; k < product->n_k; k += K_BLOCK) {
            const unsigned char *rows[QR_TILE_ROWS];
            for (int64_t i = 0; i < QR_TILE_ROWS; i++) { /* past the panel's end its last row again */
                const int64_t row = p->row + qr_min(r + i, p->n_rows - 1);
                rows[i] = (const unsigned char *)qr_cpu_row(p->weight, p->layout, row) + k * bytes;
            }
            for (int i = 0; i < n_x; i += 2) {
                const float *xi = x + i * product->x_stride + k;
                const int64_t ahead = AHEAD_BYTES + (QR_TILE_ROWS - 1) * k * bytes,
                              n_k = qr_min(product->n_k - k, K_BLOCK);
                float *to = sums + i * product->sum_stride + r;
                if (n_x - i >= 2) {
                    decode_elements(rows, ahead, n_k, xi, product->x_stride, 2, format, to, product->sum_stride,
                                    k == 0);
                } else {
                    decode_elements(rows, ahead, n_k, xi, product->x_stride, 1, format, to, product->sum_stride,
                                    k == 0);
                }
            }
        }
    }
}

QR_INLINE void decode_code_rows(const qr_cpu_panel *p, const qr_cpu_product *product, const float *x, const int n_x,
                                const bool is_mxfp4, float *sums) {
    for (int64_t r = 0; r < p->n_rows; r += GROUP) {
        for (int64_t k = 0; k < product->n_k; k += K_BLOCK) {
            decode_sums acc;
            for (int a = 0; a < GROUP; a++) {
                QR_UNROLL for (int i = 0; i < n_x; i++) { acc[a][i] = _mm256_setzero_ps(); }
            }
            decode_codes(acc, p, p->row + r, k, qr_min(product->n_k - k, K_BLOCK), x + k, product->x_stride, n_x,
                         is_mxfp4);
            for (int i = 0; i < n_x; i++) {
                for (int a = 0; a < GROUP; a += QR_TILE_ROWS) {
                    const qr_vec four[QR_TILE_ROWS] = {acc[a][i], acc[a + 1][i], acc[a + 2][i], acc[a + 3][i]};
                    qr_vec_reduce(four, sums + i * product->sum_stride + r + a, k == 0);
                }
            }
        }
    }
}

/* format is a constant after inlining; NF4_DQ is NF4. */
QR_INLINE void decode_rows(const qr_cpu_panel *p, const qr_cpu_product *product, int64_t i, const int n_x,
                           const qr_weight_format format) {
    const float *x = (const float *)product->x + i * product->x_stride;
    float *sums = product->sums + i * product->sum_stride;
    if (format == QR_WEIGHT_NF4 || format == QR_WEIGHT_MXFP4) {
        decode_code_rows(p, product, x, n_x, format == QR_WEIGHT_MXFP4, sums);
    } else {
        decode_element_rows(p, product, x, n_x, format, sums);
    }
}

QR_INLINE void decode_format(const qr_cpu_panel *p, const qr_cpu_product *product, const qr_weight_format format) {
    for (int64_t i = 0, n; i < product->n_x; i += n) {
        n = qr_min(product->n_x - i, DECODE_X);
        switch (n) {
            case 1: decode_rows(p, product, i, 1, format); break;
            case 2: decode_rows(p, product, i, 2, format); break;
            case 3: decode_rows(p, product, i, 3, format); break;
            default: decode_rows(p, product, i, DECODE_X, format); break;
        }
    }
}

bool qr_cpu_decode_avx2(const qr_cpu_panel *p, const qr_cpu_product *product) {
    switch (p->weight->desc.format) {
        case QR_WEIGHT_MXFP4: decode_format(p, product, QR_WEIGHT_MXFP4); break;
        case QR_WEIGHT_INT8: decode_format(p, product, QR_WEIGHT_INT8); break;
        case QR_WEIGHT_BF16: decode_format(p, product, QR_WEIGHT_BF16); break;
        case QR_WEIGHT_F16: decode_format(p, product, QR_WEIGHT_F16); break;
        case QR_WEIGHT_F32: decode_format(p, product, QR_WEIGHT_F32); break;
        default: decode_format(p, product, QR_WEIGHT_NF4); break;
    }
    return true;
}
