/* The product of the backward pass (gemm_backward.h) on tiles. Included by linear_tiles_template.h. A, rows of pairs of
 * k, and B, pairs of k by columns, are tiles as they lie in their scratch. An element of C takes 16 pairs of k at a
 * time, ascending, in the order of tile_sum.h. */

enum { GEMM_TILE_UNITS = 16 };

/* C from row and column on, with 16 units of k a tile. */
typedef struct gemm_block {
    const float *a, *b;
    float *c;
    const float *next_c; /* the C of the block after it */
    size_t c_stride;     /* elements */
    int64_t n_tiles;
    qr_cpu_ahead *ahead; /* of A */
} gemm_block;

/* One or two tiles of rows by one or two of columns. The C of the next block is prefetched meanwhile. */
QR_INLINE void gemm_multiply_block(tiles_state *state, const gemm_block *p, const bool two_a, const bool two_b) {
    enum { PREFETCH_TILES = 2 * TILE_ROWS / 4 };
    qr_cpu_ahead ahead = *p->ahead;
    const size_t a_bytes = QR_CPU_GEMM_A_STRIDE * 4, b_bytes = QR_CPU_GEMM_B_STRIDE * 4, c_bytes = p->c_stride * 4;
    float *c2 = p->c + TILE_ROWS * p->c_stride;
    tiles_load(state, TILES_C0, p->c, c_bytes);
    if (two_b) { tiles_load(state, TILES_C1, p->c + QR_TILES_COLS, c_bytes); }
    if (two_a) { tiles_load(state, TILES_C2, c2, c_bytes); }
    if (two_a && two_b) { tiles_load(state, TILES_C3, c2 + QR_TILES_COLS, c_bytes); }
    for (int64_t t = 0; t < p->n_tiles; t++) {
        const float *a = p->a + GEMM_TILE_UNITS * t, *b = p->b + GEMM_TILE_UNITS * t * QR_CPU_GEMM_B_STRIDE;
        tiles_stream(state, TILES_A0, a, a_bytes);
        if (two_a) { tiles_stream(state, TILES_A1, a + TILE_ROWS * QR_CPU_GEMM_A_STRIDE, a_bytes); }
        tiles_load(state, TILES_B0, b, b_bytes);
        if (two_b) { tiles_load(state, TILES_B1, b + QR_TILES_COLS, b_bytes); }
        tiles_dot(state, TILES_C0, TILES_A0, TILES_B0);
        if (two_b) { tiles_dot(state, TILES_C1, TILES_A0, TILES_B1); }
        if (two_a) { tiles_dot(state, TILES_C2, TILES_A1, TILES_B0); }
        if (two_a && two_b) { tiles_dot(state, TILES_C3, TILES_A1, TILES_B1); }
        for (int64_t r = 4 * t; t < PREFETCH_TILES && r < 4 * t + 4; r++) {
            _mm_prefetch((const char *)(p->next_c + r * (int64_t)p->c_stride), _MM_HINT_T0);
            _mm_prefetch((const char *)(p->next_c + r * (int64_t)p->c_stride + QR_TILES_COLS), _MM_HINT_T0);
        }
        qr_cpu_ask(&ahead);
    }
    *p->ahead = ahead;
    tiles_store(state, TILES_C0, p->c, c_bytes);
    if (two_b) { tiles_store(state, TILES_C1, p->c + QR_TILES_COLS, c_bytes); }
    if (two_a) { tiles_store(state, TILES_C2, c2, c_bytes); }
    if (two_a && two_b) { tiles_store(state, TILES_C3, c2 + QR_TILES_COLS, c_bytes); }
}

/* Rows [row, row + n_rows) and n_tiles tiles of units from `unit` on; n_rows is a multiple of tile_rows, which is what
 * the tiles are configured for. */
static void gemm_region(tiles_state *state, const qr_cpu_gemm_product *p, int64_t row, int64_t n_rows,
                        int64_t tile_rows, int64_t unit, int64_t n_tiles, qr_cpu_ahead *ahead) {
    for (int64_t col = 0; col < p->n_cols; col += 2 * QR_TILES_COLS) {
        const bool two_b = p->n_cols - col > QR_TILES_COLS;
        for (int64_t r = row; r < row + n_rows; r += 2 * tile_rows) {
            const bool two_a = row + n_rows - r > tile_rows, ends = r + 2 * tile_rows >= row + n_rows;
            float *c = p->c + r * p->c_stride + col;
            const gemm_block block = {
                .a = p->a + r * QR_CPU_GEMM_A_STRIDE + unit,
                .b = p->b + unit * QR_CPU_GEMM_B_STRIDE + col,
                .c = c,
                .next_c = ends ? c : c + 2 * tile_rows * p->c_stride,
                .c_stride = (size_t)p->c_stride,
                .n_tiles = n_tiles,
                .ahead = ahead,
            };
            if (two_a) {
                two_b ? gemm_multiply_block(state, &block, true, true)
                      : gemm_multiply_block(state, &block, true, false);
            } else {
                two_b ? gemm_multiply_block(state, &block, false, true)
                      : gemm_multiply_block(state, &block, false, false);
            }
        }
    }
}

/* Rows and pairs of a tile are what is configured: a last tile of fewer pairs, and a last strip of fewer rows, come
 * after the others. */
static void gemm_multiply(const qr_cpu_gemm_product *p) {
    const int64_t whole_units = p->n_units / GEMM_TILE_UNITS * GEMM_TILE_UNITS;
    const int64_t whole_rows = p->n_rows / TILE_ROWS * TILE_ROWS;
    qr_cpu_ahead ahead = {0};
    if (p->ahead != NULL) { ahead = p->ahead[0]; }
    ahead.at_once = 4; /* a step: as many as products of that time hide */
    TILES_BARRIER();
    for (int part = 0; part < 2; part++) {
        const int64_t unit = part == 0 ? 0 : whole_units;
        const int64_t n_pairs = part == 0 ? GEMM_TILE_UNITS : p->n_units - whole_units;
        const int64_t n_tiles = part == 0 ? whole_units / GEMM_TILE_UNITS : n_pairs > 0;
        for (int strip = 0; strip < 2 && n_tiles > 0; strip++) {
            const int64_t row = strip == 0 ? 0 : whole_rows, n_rows = strip == 0 ? whole_rows : p->n_rows - whole_rows;
            const int64_t tile_rows = strip == 0 ? TILE_ROWS : n_rows;
            if (n_rows == 0) { continue; }
            tiles_state state;
            tiles_begin(&state, tile_rows, QR_TILES_COLS, n_pairs);
            gemm_region(&state, p, row, n_rows, tile_rows, unit, n_tiles, &ahead);
            tiles_end(&state);
        }
    }
}
