/* Packing x into tiles. */
#include <string.h>

#include "kernels/cpu/linear.h"

void qr_cpu_tile_pack(const uint16_t *x, int64_t x_stride, int64_t n_rows, int64_t tile_cols, int64_t n_k,
                      int64_t n_k_padded, uint16_t *dst) {
    if (n_rows < tile_cols || n_k < n_k_padded) { memset(dst, 0, (size_t)(n_k_padded * tile_cols) * sizeof *dst); }
    for (int64_t m = 0; m < n_rows; m++) {
        const uint16_t *row = x + m * x_stride;
        for (int64_t k = 0; k < n_k; k++) { dst[(k / 2 * tile_cols + m) * 2 + k % 2] = row[k]; }
    }
}
