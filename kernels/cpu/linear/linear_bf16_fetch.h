/* Panels of weights in BF16 (AVX-512 BF16), for vdpbf16ps and for tiles. */
#ifndef QR_KERNELS_CPU_LINEAR_LINEAR_BF16_FETCH_H
#define QR_KERNELS_CPU_LINEAR_LINEAR_BF16_FETCH_H

#include "kernels/cpu/linear/linear.h"

/* In which products of vdpbf16ps walk K. */
enum { QR_CPU_BF16_K_BLOCK = 1024 };

void qr_cpu_fetch_bf16(const qr_cpu_panel *panel);

#endif
