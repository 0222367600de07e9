/* Products of a panel with a few rows of x (AVX-512 BF16), in pieces of QR_TILE_ROWS weight rows by one K block. While
 * the last tile of a piece is multiplied, the codes of the next piece become BF16 values, in the place of those that
 * the tile has passed: products leave the CPU's other units free, and L1 holds one piece beside x. */
#ifndef QR_KERNELS_CPU_LINEAR_LINEAR_BF16_FEW_ROWS_H
#define QR_KERNELS_CPU_LINEAR_LINEAR_BF16_FEW_ROWS_H

#include "kernels/cpu/linear/linear.h"

/* As qr_cpu_matmul.decode, for 8 rows of x or more: NF4 in groups, and INT8. */
bool qr_cpu_multiply_few_bf16(const qr_cpu_panel *panel, const qr_cpu_product *product);

#endif
