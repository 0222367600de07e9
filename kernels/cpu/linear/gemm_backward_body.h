/* The register-blocked outer products of outer.h, included once by each kernel file beside a lanes_<isa>.h, which
 * defines before:
 *     outer_vector                     LANES units of a row of B
 *     outer_load(const float *)        them
 *     outer_broadcast(const float *)   one unit of A in every lane
 *     outer_dot(acc, a, b)             acc (lanes) plus the products
 * With 32 registers a tile is 6 rows by 4 vectors, or 12 rows where few columns are left; with 16, half as wide, and in
 * plain C, where a product needs a register before it is added, 4 rows. */

enum { OUTER_VECTORS = TILE_MAX_COLS >= 6 ? 4 : 2, OUTER_ROWS = TILE_MAX_COLS >= 3 ? 6 : 4, OUTER_TALL_ROWS = 12 };

/* All but the product is a constant after inlining, and so are the strides of A and B. */
static inline __attribute__((always_inline)) void outer_tile(const qr_cpu_outer_product *p, int64_t row, int64_t col,
                                                             const int n_rows, const int n_vectors, const bool a_by_k) {
    const int64_t a_row = a_by_k ? 1 : QR_CPU_OUTER_A_STRIDE, a_unit = a_by_k ? QR_CPU_OUTER_A_BY_K_STRIDE : 1;
    const float *a = p->a + row * a_row, *b = p->b + col;
    float *c = p->c + row * p->c_stride + col;
    lanes acc[OUTER_TALL_ROWS][OUTER_VECTORS];
    outer_vector bv[OUTER_VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) {
            acc[r][v] = lanes_load(c + r * p->c_stride + v * LANES);
            __builtin_prefetch(c + (r + OUTER_TALL_ROWS) * p->c_stride + v * LANES); /* where C is not in scratch */
        }
    }
    for (int64_t u = 0; u < p->n_units; u++, a += a_unit, b += QR_CPU_OUTER_B_STRIDE) {
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) { bv[v] = outer_load(b + v * LANES); }
#pragma GCC unroll 12
        for (int r = 0; r < n_rows; r++) {
            const outer_vector av = outer_broadcast(a + r * a_row);
#pragma GCC unroll 4
            for (int v = 0; v < n_vectors; v++) { acc[r][v] = outer_dot(acc[r][v], av, bv[v]); }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) { lanes_store(c + r * p->c_stride + v * LANES, acc[r][v]); }
    }
}

/* All rows of n_vectors vectors of columns: B's strip stays in L1 while the rows of A pass. */
static inline __attribute__((always_inline)) void outer_strip(const qr_cpu_outer_product *p, int64_t col,
                                                              const int n_vectors, const bool a_by_k) {
    int64_t row = 0;
    if (n_vectors <= OUTER_VECTORS / 2) {
        for (; row + OUTER_TALL_ROWS <= p->n_rows; row += OUTER_TALL_ROWS) {
            outer_tile(p, row, col, OUTER_TALL_ROWS, n_vectors, a_by_k);
        }
    }
    for (; row + OUTER_ROWS <= p->n_rows; row += OUTER_ROWS) { outer_tile(p, row, col, OUTER_ROWS, n_vectors, a_by_k); }
    for (; row + 2 <= p->n_rows; row += 2) { outer_tile(p, row, col, 2, n_vectors, a_by_k); }
    if (row < p->n_rows) { outer_tile(p, row, col, 1, n_vectors, a_by_k); }
}

static inline __attribute__((always_inline)) void outer_strips(const qr_cpu_outer_product *p, const bool a_by_k) {
    for (int64_t col = 0, n; col < p->n_cols; col += n * LANES) {
        n = qr_min((p->n_cols - col) / LANES, OUTER_VECTORS);
        switch (n) {
#if TILE_MAX_COLS >= 6
            case 4: outer_strip(p, col, 4, a_by_k); break;
            case 3: outer_strip(p, col, 3, a_by_k); break;
#endif
            case 2: outer_strip(p, col, 2, a_by_k); break;
            default: outer_strip(p, col, 1, a_by_k); break;
        }
    }
}
