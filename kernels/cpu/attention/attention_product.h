/* The matrix product of attention_tiles_template.h: c [n_rows, n_cols] = or += a · b, of BF16 operands into F32. A
 * header that defines tiles_begin, tiles_end and
 *
 *   multiply(tiles_state *state, const tiles_product *p)
 *
 * is included before the template: attention_product_tiles.h or attention_product_avx512_bf16.h. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_PRODUCT_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    TILE = 16,         /* rows, columns and pairs of k */
    TILE_K = 2 * TILE, /* of k */
    TILE_UINT16 = TILE * TILE_K,
};

/* Rows and columns in multiples of 32, k too. a is rows as they lie; b is tiles of pairs of k by 16 columns. */
typedef struct tiles_product {
    const uint16_t *a;
    const uint16_t *b;
    float *c;
    int64_t a_stride, c_stride; /* elements from row to row */
    int64_t b_col, b_k;         /* elements from tile to tile along columns, and along k */
    int64_t n_rows, n_cols, n_k;
    bool first; /* c begins at zero */
} tiles_product;

#endif
