/* linear in AVX2 for a few rows of x, which are packed by pack_row of linear_avx2.c; the order of sums is described
 * there. Lanes are the chains of one sum: the even elements of 16 words, and then the odd ones.
 */
#include <stdbool.h>

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

typedef __m256 decode_sums[GROUP][DECODE_X];

/* 16 columns of a row: their even and odd elements, with n_x rows of x. */
QR_INLINE void add_columns(__m256 *acc, __m256 even, __m256 odd, const float *x, int64_t x_stride, const int n_x) {
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        acc[i] = _mm256_fmadd_ps(even, _mm256_loadu_ps(x + i * x_stride), acc[i]);
        acc[i] = _mm256_fmadd_ps(odd, _mm256_loadu_ps(x + i * x_stride + 8), acc[i]);
    }
}

/* Rows of weights in work at once: their sums do not wait for each other. */
enum { MOST_AT_ONCE = 4 };
QR_INLINE int rows_at_once(const int n_x) { return n_x <= 2 ? MOST_AT_ONCE : 2; }

/* A run of a group's rows. */
QR_INLINE void decode_run(decode_sums acc, const uint8_t *run, const bool half, const nf4_table *tables, const float *x,
                          int64_t x_stride, const int n_x, const bool is_mxfp4) {
    const int at_once = rows_at_once(n_x), run_bytes = half ? 32 : 64, n_parts = half ? 2 : 4;
    const int parts_of_scale = qr_cpu_scale_cols_of(is_mxfp4) / 32;
    for (int row = 0; row < GROUP; row += at_once) {
        __m256 now[MOST_AT_ONCE][DECODE_X];
        nf4_codes codes[MOST_AT_ONCE];
        QR_UNROLL for (int r = 0; r < at_once; r++) {
            const uint8_t *of_row = run + (row + r) * run_bytes;
            __builtin_prefetch(of_row + DECODE_AHEAD_BYTES);
            codes[r] = half ? nf4_load_half_run(of_row) : nf4_load_run(of_row);
            QR_UNROLL for (int i = 0; i < n_x; i++) { now[r][i] = acc[row + r][i]; }
        }
        QR_UNROLL for (int part = 0; part < n_parts; part++) {
            QR_UNROLL for (int r = 0; r < at_once; r++) {
                __m256i words[2];
                nf4_words(&codes[r], part, &tables[(row + r) * MAX_SCALES + part / parts_of_scale], words);
                QR_UNROLL for (int h = 0; h < 2; h++) {
                    add_columns(now[r], bf16_even(words[h]), bf16_odd(words[h]), x + 32 * part + 16 * h, x_stride, n_x);
                }
            }
        }
        QR_UNROLL for (int r = 0; r < at_once; r++) {
            QR_UNROLL for (int i = 0; i < n_x; i++) { acc[row + r][i] = now[r][i]; }
        }
    }
}

/* Columns [k0, k0 + n_k) of a group. */
QR_INLINE void decode_codes(decode_sums acc, const qr_cpu_panel *p, int64_t row, int64_t k0, int64_t n_k,
                            const float *x, int64_t x_stride, const int n_x, const bool is_mxfp4) {
    const int scale_cols = qr_cpu_scale_cols_of(is_mxfp4);
    float scales[GROUP * MAX_SCALES];
    nf4_table tables[GROUP * MAX_SCALES];
    fetch_scales(p, row, GROUP, k0, n_k, scale_cols, scales, MAX_SCALES);
    nf4_tables_make(scales, GROUP, n_k / scale_cols, is_mxfp4, tables);
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
