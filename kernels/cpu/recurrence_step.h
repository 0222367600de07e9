/* The functions that the gates of recurrences have in common. */
#ifndef QR_KERNELS_CPU_RECURRENCE_STEP_H
#define QR_KERNELS_CPU_RECURRENCE_STEP_H

#include <math.h>

#include "kernels/cpu/simd/vec.h"

QR_INLINE float recurrence_sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
QR_INLINE float recurrence_softplus(float x) { return x > 0.0F ? x + log1pf(expf(-x)) : log1pf(expf(x)); }

#endif
