/* Into and out of the layouts of AMX tiles: both are transpositions of 32-bit elements. */
#ifndef QR_KERNELS_CPU_LINEAR_TILE_LAYOUT_H
#define QR_KERNELS_CPU_LINEAR_TILE_LAYOUT_H

#include <stdint.h>

/* n_rows of x as a tile of tile_cols rows: dst [n_k_padded / 2][tile_cols][2]; rows and k that are missing are zeros.
 */
void qr_cpu_tile_pack(const uint16_t *x, int64_t x_stride, int64_t n_rows, int64_t tile_cols, int64_t n_k,
                      int64_t n_k_padded, uint16_t *dst);

/* dst[i * dst_stride + o] = sums[o * sum_stride + i] for n_x rows i and n_w columns o. */
void qr_cpu_tile_turn(const float *sums, int64_t sum_stride, int64_t n_w, int64_t n_x, float *dst, int64_t dst_stride);

#endif
