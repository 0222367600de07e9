/* Sums over one row, for norms and their gradients. They run in four vectors at once, in an order that depends on the
 * row's length only. */
#ifndef QR_KERNELS_CPU_NORM_SUMS_H
#define QR_KERNELS_CPU_NORM_SUMS_H

#include "kernels/cpu/simd/vec.h"

enum { N_SUMS = 4 };

QR_INLINE float sums_total(const qr_vec sums[N_SUMS]) {
    return qr_vec_sum(qr_vec_add(qr_vec_add(sums[0], sums[1]), qr_vec_add(sums[2], sums[3])));
}

/* Sum of (x − centre)^2, or of x where `squared` is false. */
QR_INLINE float sum_row(const float *x, int64_t n, float centre, bool squared) {
    qr_vec sums[N_SUMS] = {qr_vec_zero(), qr_vec_zero(), qr_vec_zero(), qr_vec_zero()};
    const qr_vec shift = qr_vec_set1(centre);
    for (int64_t i = 0; i < n; i += N_SUMS * QR_VEC) {
        QR_UNROLL for (int k = 0; k < N_SUMS; k++) {
            const int64_t j = i + k * QR_VEC;
            if (j >= n) { break; }
            qr_vec v = qr_vec_sub(qr_vec_load_n(x + j, n - j), shift);
            if (n - j < QR_VEC) { v = qr_vec_select_range(v, qr_vec_zero(), 0, (int)(n - j)); }
            sums[k] = squared ? qr_vec_fma(v, v, sums[k]) : qr_vec_add(sums[k], v);
        }
    }
    return sums_total(sums);
}

#endif
