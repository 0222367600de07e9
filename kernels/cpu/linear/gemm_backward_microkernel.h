/* The register-blocked products of gemm_backward.h, included once by each kernel file after vec_tile.h. The file
 * defines first:
 *     gemm_vector                     QR_VEC units of a row of B
 *     gemm_load(const float *)        loads them
 *     gemm_broadcast(const float *)   one unit of A in every lane
 *     gemm_dot(acc, a, b)             acc (a qr_vec) plus the products
 *
 * With 32 registers a tile is 6 rows by 4 vectors, or 12 rows where few columns are left. With 16 it is half as wide.
 * In plain C, where a product needs a register before it is added, it has 4 rows. */

enum { GEMM_VECTORS = QR_TILE_MAX_COLS >= 6 ? 4 : 2, GEMM_ROWS = QR_TILE_MAX_COLS >= 3 ? 6 : 4, GEMM_TALL_ROWS = 12 };

/* How A lies: in scratch, by rows or by k, or where the caller has it. */
enum gemm_a { GEMM_A_ROWS, GEMM_A_BY_K, GEMM_A_IN_PLACE };

/* All but the product is a constant after inlining, and so are the strides of packed operands. */
QR_INLINE void gemm_tile(const qr_cpu_gemm_product *p, int64_t row, int64_t col, const int n_rows, const int n_vectors,
                         const enum gemm_a lies) {
    const int64_t rows_apart = lies == GEMM_A_IN_PLACE ? p->a_stride : QR_CPU_GEMM_A_STRIDE;
    const int64_t a_row = lies == GEMM_A_BY_K ? 1 : rows_apart;
    const int64_t a_unit = lies == GEMM_A_BY_K ? QR_CPU_GEMM_A_BY_K_STRIDE : 1;
    const float *a = p->a + row * a_row, *b = p->b + col;
    float *c = p->c + row * p->c_stride + col;
    for (int i = 0; p->ahead != NULL && i < 2; i++) { qr_cpu_ask(&p->ahead[i]); }
    qr_vec acc[GEMM_TALL_ROWS][GEMM_VECTORS];
    gemm_vector bv[GEMM_VECTORS];
    QR_UNROLL for (int r = 0; r < n_rows; r++) {
        QR_UNROLL for (int v = 0; v < n_vectors; v++) {
            acc[r][v] = qr_vec_load(c + r * p->c_stride + v * QR_VEC);
            __builtin_prefetch(c + (r + GEMM_TALL_ROWS) * p->c_stride + v * QR_VEC); /* where C is not in scratch */
        }
    }
    /* Four at a time: the loop itself is an eighth of the instructions of a narrow tile. */
    _Pragma("GCC unroll 4") for (int64_t u = 0; u < p->n_units; u++, a += a_unit, b += QR_CPU_GEMM_B_STRIDE) {
        QR_UNROLL for (int v = 0; v < n_vectors; v++) { bv[v] = gemm_load(b + v * QR_VEC); }
        QR_UNROLL for (int r = 0; r < n_rows; r++) {
            const gemm_vector av = gemm_broadcast(a + r * a_row);
            QR_UNROLL for (int v = 0; v < n_vectors; v++) { acc[r][v] = gemm_dot(acc[r][v], av, bv[v]); }
        }
    }
    QR_UNROLL for (int r = 0; r < n_rows; r++) {
        QR_UNROLL for (int v = 0; v < n_vectors; v++) { qr_vec_store(c + r * p->c_stride + v * QR_VEC, acc[r][v]); }
    }
}

/* All rows of n_vectors vectors of columns: B's strip stays in L1 while the rows of A pass. */
QR_INLINE void gemm_strip(const qr_cpu_gemm_product *p, int64_t col, const int n_vectors, const enum gemm_a lies) {
    int64_t row = 0;
    if (n_vectors <= GEMM_VECTORS / 2) {
        for (; row + GEMM_TALL_ROWS <= p->n_rows; row += GEMM_TALL_ROWS) {
            gemm_tile(p, row, col, GEMM_TALL_ROWS, n_vectors, lies);
        }
    }
    for (; row + GEMM_ROWS <= p->n_rows; row += GEMM_ROWS) { gemm_tile(p, row, col, GEMM_ROWS, n_vectors, lies); }
    for (; row + 2 <= p->n_rows; row += 2) { gemm_tile(p, row, col, 2, n_vectors, lies); }
    if (row < p->n_rows) { gemm_tile(p, row, col, 1, n_vectors, lies); }
}

QR_INLINE void gemm_strips(const qr_cpu_gemm_product *p, const enum gemm_a lies) {
    const int64_t n_tiles = qr_ceil_div(p->n_rows, GEMM_ROWS) * qr_ceil_div(p->n_cols, GEMM_VECTORS * QR_VEC);
    for (int i = 0; p->ahead != NULL && i < 2; i++) { qr_cpu_ask_in(&p->ahead[i], n_tiles); }
    for (int64_t col = 0, n; col < p->n_cols; col += n * QR_VEC) {
        n = qr_min((p->n_cols - col) / QR_VEC, GEMM_VECTORS);
        switch (n) {
#if QR_TILE_MAX_COLS >= 6
            case 4: gemm_strip(p, col, 4, lies); break;
            case 3: gemm_strip(p, col, 3, lies); break;
#endif
            case 2: gemm_strip(p, col, 2, lies); break;
            default: gemm_strip(p, col, 1, lies); break;
        }
    }
}
