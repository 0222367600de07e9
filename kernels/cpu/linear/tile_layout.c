#include "kernels/cpu/linear/tile_layout.h"

#include <immintrin.h>
#include <string.h>

static __m128 load4(const unsigned char *src) { return _mm_loadu_ps((const float *)(const void *)src); }
static void store4(unsigned char *dst, __m128 a) { _mm_storeu_ps((float *)(void *)dst, a); }

static void transpose_4x4(const unsigned char *src, int64_t src_bytes, unsigned char *dst, int64_t dst_bytes) {
    __m128 a = load4(src), b = load4(src + src_bytes), c = load4(src + 2 * src_bytes), d = load4(src + 3 * src_bytes);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    store4(dst, a);
    store4(dst + dst_bytes, b);
    store4(dst + 2 * dst_bytes, c);
    store4(dst + 3 * dst_bytes, d);
}

/* dst[c, r] = src[r, c] for 32-bit elements, rows src_bytes and dst_bytes apart. Elements are moved, not computed with.
 */
static void transpose(const void *src, int64_t src_bytes, int64_t n_rows, int64_t n_cols, void *dst,
                      int64_t dst_bytes) {
    for (int64_t r = 0; r < n_rows; r += 4) {
        for (int64_t c = 0; c < n_cols; c += 4) {
            const unsigned char *from = (const unsigned char *)src + r * src_bytes + c * 4;
            unsigned char *to = (unsigned char *)dst + c * dst_bytes + r * 4;
            if (r + 4 <= n_rows && c + 4 <= n_cols) {
                transpose_4x4(from, src_bytes, to, dst_bytes);
                continue;
            }
            for (int64_t i = 0; i < 4 && r + i < n_rows; i++) {
                for (int64_t j = 0; j < 4 && c + j < n_cols; j++) {
                    memcpy(to + j * dst_bytes + i * 4, from + i * src_bytes + j * 4, 4);
                }
            }
        }
    }
}

void qr_cpu_tile_pack(const uint16_t *x, int64_t x_stride, int64_t n_rows, int64_t tile_cols, int64_t n_k,
                      int64_t n_k_padded, uint16_t *dst) {
    if (n_rows < tile_cols || n_k < n_k_padded) { memset(dst, 0, (size_t)(n_k_padded * tile_cols) * sizeof *dst); }
    transpose(x, x_stride * 2, n_rows, n_k / 2, dst, tile_cols * 4);
    if (n_k % 2 != 0) {
        for (int64_t r = 0; r < n_rows; r++) { dst[(n_k / 2 * tile_cols + r) * 2] = x[r * x_stride + n_k - 1]; }
    }
}

void qr_cpu_tile_turn(const float *sums, int64_t sum_stride, int64_t n_w, int64_t n_x, float *dst, int64_t dst_stride) {
    transpose(sums, sum_stride * 4, n_w, n_x, dst, dst_stride * 4);
}
