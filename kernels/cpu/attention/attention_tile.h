/* The inner loops of attention on register tiles: R rows by V vectors of accumulators, R and V constants. A lane's sum
 * runs over one index in order, so its bits do not depend on the tile it happens to be in. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_TILE_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_TILE_H

#include "kernels/cpu/attention/attention_tiling.h"
#include "kernels/cpu/simd/vec.h"

/* Six by four accumulators and four operands of 32 registers, or six by two and two of 16. */
#if defined(QR_VEC_AVX512) || defined(QR_VEC_NEON)
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };
#endif

/* scores[r][c] = sum over d of q[r][d] · keys[d][c], for V vectors of columns. keys and scores are BLOCK wide. */
QR_INLINE void score_columns(const float *const *q, int64_t head_dim, const float *keys, float *scores, int n_rows,
                             int n_vectors) {
    qr_vec acc[TILE_ROWS][TILE_VECTORS];
    QR_UNROLL for (int r = 0; r < n_rows; r++) {
        QR_UNROLL for (int v = 0; v < n_vectors; v++) { acc[r][v] = qr_vec_zero(); }
    }
    for (int64_t d = 0; d < head_dim; d++) {
        qr_vec k[TILE_VECTORS];
        QR_UNROLL for (int v = 0; v < n_vectors; v++) {
            k[v] = qr_vec_load(keys + d * QR_ATTENTION_BLOCK + v * QR_VEC);
        }
        QR_UNROLL for (int r = 0; r < n_rows; r++) {
            const qr_vec x = qr_vec_set1(q[r][d]);
            QR_UNROLL for (int v = 0; v < n_vectors; v++) { acc[r][v] = qr_vec_fma(x, k[v], acc[r][v]); }
        }
    }
    QR_UNROLL for (int r = 0; r < n_rows; r++) {
        QR_UNROLL for (int v = 0; v < n_vectors; v++) {
            qr_vec_store(scores + r * QR_ATTENTION_BLOCK + v * QR_VEC, acc[r][v]);
        }
    }
}

/* Columns [begin, end), both multiples of a page. */
QR_INLINE void score_rows_of(const float *const *q, int64_t head_dim, const float *keys, int begin, int end,
                             float *scores, int n_rows) {
    int column = begin;
    for (; column + TILE_VECTORS * QR_VEC <= end; column += TILE_VECTORS * QR_VEC) {
        score_columns(q, head_dim, keys + column, scores + column, n_rows, TILE_VECTORS);
    }
    for (; column < end; column += QR_VEC) { score_columns(q, head_dim, keys + column, scores + column, n_rows, 1); }
}

static inline void score_rows(const float *const *q, int64_t head_dim, const float *keys, int begin, int end,
                              float *scores, int n_rows) {
    switch (n_rows) {
        case 1: score_rows_of(q, head_dim, keys, begin, end, scores, 1); break;
        case 2: score_rows_of(q, head_dim, keys, begin, end, scores, 2); break;
        case 3: score_rows_of(q, head_dim, keys, begin, end, scores, 3); break;
        case 4: score_rows_of(q, head_dim, keys, begin, end, scores, 4); break;
        case 5: score_rows_of(q, head_dim, keys, begin, end, scores, 5); break;
        default: score_rows_of(q, head_dim, keys, begin, end, scores, TILE_ROWS); break;
    }
}

/* acc[r][c] = acc[r][c] · rescale[r] + sum over t in [begin, end) of weights[r][t] · values[t][c]. */
QR_INLINE void mix_columns(const float *weights, const float *rescale, const float *values, int64_t stride, int begin,
                           int end, float *acc, int n_rows, int n_vectors) {
    qr_vec sums[TILE_ROWS][TILE_VECTORS];
    QR_UNROLL for (int r = 0; r < n_rows; r++) {
        const qr_vec scale = qr_vec_set1(rescale[r]);
        QR_UNROLL for (int v = 0; v < n_vectors; v++) {
            sums[r][v] = qr_vec_mul(qr_vec_load(acc + r * stride + v * QR_VEC), scale);
        }
    }
    for (int t = begin; t < end; t++) {
        qr_vec x[TILE_VECTORS];
        QR_UNROLL for (int v = 0; v < n_vectors; v++) { x[v] = qr_vec_load(values + t * stride + v * QR_VEC); }
        QR_UNROLL for (int r = 0; r < n_rows; r++) {
            const qr_vec weight = qr_vec_set1(weights[r * QR_ATTENTION_BLOCK + t]);
            QR_UNROLL for (int v = 0; v < n_vectors; v++) { sums[r][v] = qr_vec_fma(weight, x[v], sums[r][v]); }
        }
    }
    QR_UNROLL for (int r = 0; r < n_rows; r++) {
        QR_UNROLL for (int v = 0; v < n_vectors; v++) { qr_vec_store(acc + r * stride + v * QR_VEC, sums[r][v]); }
    }
}

QR_INLINE void mix_rows_of(const float *weights, const float *rescale, const float *values, int64_t head_dim,
                           int64_t stride, int begin, int end, float *acc, int n_rows) {
    int64_t column = 0;
    for (; column + TILE_VECTORS * QR_VEC <= head_dim; column += TILE_VECTORS * QR_VEC) {
        mix_columns(weights, rescale, values + column, stride, begin, end, acc + column, n_rows, TILE_VECTORS);
    }
    for (; column < head_dim; column += QR_VEC) {
        mix_columns(weights, rescale, values + column, stride, begin, end, acc + column, n_rows, 1);
    }
}

static inline void mix_rows(const float *weights, const float *rescale, const float *values, int64_t head_dim,
                            int64_t stride, int begin, int end, float *acc, int n_rows) {
    switch (n_rows) {
        case 1: mix_rows_of(weights, rescale, values, head_dim, stride, begin, end, acc, 1); break;
        case 2: mix_rows_of(weights, rescale, values, head_dim, stride, begin, end, acc, 2); break;
        case 3: mix_rows_of(weights, rescale, values, head_dim, stride, begin, end, acc, 3); break;
        case 4: mix_rows_of(weights, rescale, values, head_dim, stride, begin, end, acc, 4); break;
        case 5: mix_rows_of(weights, rescale, values, head_dim, stride, begin, end, acc, 5); break;
        default: mix_rows_of(weights, rescale, values, head_dim, stride, begin, end, acc, TILE_ROWS); break;
    }
}

#endif
