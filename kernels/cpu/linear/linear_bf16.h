/* What the files of linear in AVX-512 BF16 have from each other. */
#ifndef QR_KERNELS_CPU_LINEAR_LINEAR_BF16_H
#define QR_KERNELS_CPU_LINEAR_LINEAR_BF16_H

#include "kernels/cpu/linear/linear.h"

/* In which products of vdpbf16ps walk K. */
enum { QR_CPU_BF16_K_BLOCK = 1024 };

/* Panels of weights in BF16, for vdpbf16ps and for tiles (linear_bf16_fetch.c). */
void qr_cpu_fetch_bf16(const qr_cpu_panel *panel);

/* As qr_cpu_matmul.decode, for 8 rows of x or more: NF4 in groups, and INT8 (linear_bf16_few_rows.c). */
bool qr_cpu_multiply_few_bf16(const qr_cpu_panel *panel, const qr_cpu_product *product);

/* Many rows of x (linear_bf16_strips.c). */
extern const qr_cpu_strips qr_cpu_strips_bf16;

#endif
