/* The register-blocked product of linear, included once by each kernel file, which defines before:
 *     tile_element, tile_vector             the element type, and a vector of TILE_STEP of them
 *     TILE_STEP                             elements of k that one accumulation takes
 *     tile_load(const tile_element *)       and
 *     tile_dot(acc, w, x)                   acc (a qr_vec) plus the products of w and x
 * and includes vec_tile.h. The same accumulations happen, in the same order, whatever the shape of the tile. */

typedef tile_vector (*tile_load_fn)(const void *src);
static inline tile_vector tile_load_element(const void *src) { return tile_load(src); }

/* QR_TILE_ROWS weight rows by n_x rows of x. load_w reads a vector of weights of w_bytes each. Of as many
 * bytes as are read, one part of `parts` is prefetched (0: none), in the order of addresses, from `ahead` bytes after
 * w[0] on: two threads then read INT8 rows at 97 % of the bandwidth, at 85 % where each row's own continuation was
 * prefetched. load_w, w_bytes, parts and n_x are constants after inlining. */
QR_INLINE void tile_multiply(const void *const w[QR_TILE_ROWS], tile_load_fn load_w, const size_t w_bytes,
                             const int parts, int64_t ahead, const tile_element *x, int64_t x_stride, const int n_x,
                             int64_t n_k, float *sums, int64_t sum_stride, bool first) {
    qr_vec acc[QR_TILE_MAX_COLS][QR_TILE_ROWS];
    tile_vector xv[QR_TILE_MAX_COLS];
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) { acc[i][r] = qr_vec_zero(); }
    }
    for (int64_t k = 0; k < n_k; k += TILE_STEP) {
        if (parts > 0) {
            const size_t n_bytes = QR_TILE_ROWS * TILE_STEP * w_bytes / (size_t)parts;
            const unsigned char *next = (const unsigned char *)w[0] + ahead + (size_t)(k / TILE_STEP) * n_bytes;
            for (size_t i = 0; i < n_bytes; i += 64) { __builtin_prefetch(next + i); }
        }
        QR_UNROLL for (int i = 0; i < n_x; i++) { xv[i] = tile_load(x + i * x_stride + k); }
        QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) {
            const tile_vector wv = load_w((const unsigned char *)w[r] + (size_t)k * w_bytes);
            QR_UNROLL for (int i = 0; i < n_x; i++) { acc[i][r] = tile_dot(acc[i][r], wv, xv[i]); }
        }
    }
    qr_vec_reduce_rows(acc, n_x, sums, sum_stride, first);
}

/* The x rows stay in L1 while the weights pass. A panel that ends inside a tile repeats its last row. */
QR_INLINE void multiply_rows(const qr_cpu_product *p, int64_t i, const int n_x, const bool prefetches) {
    const tile_element *x = (const tile_element *)p->x + i * p->x_stride, *w = p->w;
    for (int64_t o = 0; o < p->n_w; o += QR_TILE_ROWS) {
        const void *rows[QR_TILE_ROWS];
        for (int r = 0; r < QR_TILE_ROWS; r++) { rows[r] = w + qr_min(o + r, p->n_w - 1) * p->w_stride; }
        tile_multiply(rows, tile_load_element, sizeof *w, prefetches ? 1 : 0,
                      QR_TILE_ROWS * p->w_stride * (int64_t)sizeof *w, x, p->x_stride, n_x, p->n_k,
                      p->sums + i * p->sum_stride + o, p->sum_stride, p->first);
    }
}

/* Rows of x of the next tile. Even tiles: 16 rows are 6 + 5 + 5. */
static inline int64_t tile_cols_of(int64_t n_left) {
    return qr_ceil_div(n_left, qr_ceil_div(n_left, QR_TILE_MAX_COLS));
}

/* Weights in place are prefetched; a panel never is. It has just been written, and what follows a piece of it is not
 * needed. It may even be memory that nothing has touched: each prefetch then walks the page tables in vain. Cascade
 * Lake, one busy core, thread time, NF4, 2048 x 2048, 16 rows of x: with the prefetches 6.5 ms where the rest of the
 * panel was untouched, 2.4 where it was not; without them 1.9. */
QR_INLINE void multiply_tile(const qr_cpu_product *p, int64_t i, const int n_x) {
    if (p->w_in_place && (i == 0 || p->n_x <= QR_CPU_FEW_ROWS)) {
        multiply_rows(p, i, n_x, true);
    } else {
        multiply_rows(p, i, n_x, false);
    }
}

static void multiply(const qr_cpu_product *p) {
    for (int64_t i = 0, n; i < p->n_x; i += n) {
        n = tile_cols_of(p->n_x - i);
        switch (n) {
#if QR_TILE_MAX_COLS >= 6
            case 6: multiply_tile(p, i, 6); break;
            case 5: multiply_tile(p, i, 5); break;
            case 4: multiply_tile(p, i, 4); break;
#endif
#if QR_TILE_MAX_COLS >= 3
            case 3: multiply_tile(p, i, 3); break;
#endif
#if QR_TILE_MAX_COLS >= 2
            case 2: multiply_tile(p, i, 2); break;
#endif
            default: multiply_tile(p, i, 1); break;
        }
    }
}

#include "kernels/cpu/linear/linear_exercise.h"
