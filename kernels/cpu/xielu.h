/* What xielu and its backward part share. */
#ifndef QR_KERNELS_CPU_XIELU_H
#define QR_KERNELS_CPU_XIELU_H

#include <math.h>

#include "kernels/cpu/simd/vec_slopes.h"

typedef struct qr_xielu_factors {
    float p, n, beta, eps;
} qr_xielu_factors;

static inline float qr_softplus(float x) {
    const double wide = (double)x;
    return (float)(fmax(wide, 0.0) + log1p(exp(-fabs(wide))));
}

static inline qr_xielu_factors qr_xielu_factors_of(const qr_xielu_args *a) {
    return (qr_xielu_factors){.p = qr_softplus(a->alpha_p[0]),
                              .n = a->beta[0] + qr_softplus(a->alpha_n[0]),
                              .beta = a->beta[0],
                              .eps = a->eps[0]};
}

/* e^min(x, eps) − 1 − x, for x ≤ 0. */
QR_INLINE qr_vec qr_xielu_below(const qr_xielu_factors *f, qr_vec x) {
    return qr_vec_sub(qr_vec_expm1_below(qr_vec_at_most(x, f->eps)), x);
}

#endif
