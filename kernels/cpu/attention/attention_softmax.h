/* Steps of the softmax that attention on vectors and on matrix tiles share. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_SOFTMAX_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_SOFTMAX_H

#include <math.h>

#include "kernels/cpu/simd/vec_math.h"

/* A score without a value joins the sum, last of all. Returns what the sums of values are multiplied with. */
static inline float qr_softmax_add_sink(float sink, float *highest, float *sum) {
    const float now = sink > *highest ? sink : *highest;
    const float rescale = qr_vec_get(qr_vec_exp(qr_vec_set1(*highest - now)));
    *sum = *sum * rescale + qr_vec_get(qr_vec_exp(qr_vec_set1(sink - now)));
    *highest = now;
    return rescale;
}

static inline float qr_softmax_lse(float highest, float sum) { return (float)((double)highest + log((double)sum)); }

#endif
