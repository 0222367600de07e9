/* linear in AVX-512 BF16 for many rows of x. */
#ifndef QR_KERNELS_CPU_LINEAR_LINEAR_BF16_STRIPS_H
#define QR_KERNELS_CPU_LINEAR_LINEAR_BF16_STRIPS_H

#include "kernels/cpu/linear/linear.h"

extern const qr_cpu_strips qr_cpu_strips_bf16;

#endif
