/* Products of a few rows of x with weights of the ROWS layout, read where they are, without a panel. Included by kernel
 * files after linear_microkernel.h and K_BLOCK, the columns of a K block. The accumulations are those of a panel, in
 * the same order.
 *
 * Cascade Lake, one busy core, thread time, 2048 x 2048, a panel before and this after: one row of x, INT8 2.19 → 0.42
 * ms, BF16 2.40 → 0.82; six rows, INT8 2.68 → 0.71, BF16 2.66 → 1.06. */

enum { STORED_AHEAD_BYTES = 12288 };

/* One K block of QR_TILE_ROWS rows that are stored one after another, weights of w_bytes. */
typedef struct stored_block {
    const qr_cpu_product *product;
    const void *rows[QR_TILE_ROWS];
    int64_t o, k, ahead;
} stored_block;

static stored_block stored_block_at(const qr_cpu_panel *p, const qr_cpu_product *product, int64_t o, int64_t k,
                                    int64_t w_bytes) {
    /* From the first row at column k: what has been read of the tile is three rows' more. */
    stored_block block = {product, .o = o, .k = k, .ahead = STORED_AHEAD_BYTES + (QR_TILE_ROWS - 1) * k * w_bytes};
    for (int64_t r = 0; r < QR_TILE_ROWS; r++) {
        const int64_t row = qr_min(p->row + o + r, p->row + p->n_rows - 1);
        block.rows[r] = (const unsigned char *)qr_cpu_row(p->weight, p->layout, row) + k * w_bytes;
    }
    return block;
}

/* Times rows [i, i + n_x) of x, and prefetches part number `part` of `parts`. */
QR_INLINE void multiply_stored(const stored_block *b, tile_load_fn load_w, const size_t w_bytes, int64_t part,
                               const int parts, int64_t i, const int n_x) {
    const qr_cpu_product *product = b->product;
    const int64_t n_k = qr_min(product->n_k - b->k, K_BLOCK);
    const int64_t part_bytes = parts > 0 ? QR_TILE_ROWS * n_k * (int64_t)w_bytes / parts : 0;
    tile_multiply(b->rows, load_w, w_bytes, parts, b->ahead + part * part_bytes,
                  (const tile_element *)product->x + i * product->x_stride + b->k, product->x_stride, n_x, n_k,
                  product->sums + i * product->sum_stride + b->o, product->sum_stride, b->k == 0);
}

QR_INLINE void decode_stored_rows(const qr_cpu_panel *p, const qr_cpu_product *product, tile_load_fn load_w,
                                  const size_t w_bytes, const int n_x) {
    for (int64_t o = 0; o < p->n_rows; o += QR_TILE_ROWS) {
        for (int64_t k = 0; k < product->n_k; k += K_BLOCK) {
            const stored_block block = stored_block_at(p, product, o, k, (int64_t)w_bytes);
            multiply_stored(&block, load_w, w_bytes, 0, 1, 0, n_x);
        }
    }
}
