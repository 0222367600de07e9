/* The order that a GGUF file has the rows, or columns, of a matrix in, where it is not that of transformers.
 *
 * llama.cpp rotates neighbours, transformers the halves of a head: so row i of the first half of a head of q or k comes
 * before row i of the second. And llama.cpp has the value heads of the gated delta rule by turns, one of every key head
 * after the other, where transformers has those of a key head together. */
#ifndef QR_LOADERS_FILES_ROW_ORDER_H
#define QR_LOADERS_FILES_ROW_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* Rows that lie among those of other matrices: `len` of them from row `first` on, as many `stride` rows further, … */
typedef struct qr_row_groups {
    int64_t first, len, stride; /* len 0: they do not */
    int64_t n_rows;             /* in all */
} qr_row_groups;

static inline int64_t qr_grouped_row(const qr_row_groups *groups, int64_t row) {
    return groups->first + row / groups->len * groups->stride + row % groups->len;
}

typedef struct qr_row_order {
    int64_t head_dim;                             /* of heads whose halves lie in turn; 0: they do not */
    int64_t first;                                /* the row that the first value head begins at */
    int64_t n_key_heads, heads_per_key, head_len; /* of value heads of head_len rows; n_key_heads 0: there are none */
    qr_row_groups groups; /* of a matrix that is one with another in the file: it is read only */
} qr_row_order;           /* zeros: the usual order */

static inline bool qr_row_order_is_usual(const qr_row_order *order) {
    return order->head_dim == 0 && order->n_key_heads == 0 && order->groups.len == 0;
}

/* Head `head` of n_outer groups of n_inner, where there are n_inner groups of n_outer. */
static inline int64_t qr_turned_head(const qr_row_order *order, int64_t row, int64_t n_outer, int64_t n_inner) {
    const int64_t within = (row - order->first) % order->head_len, head = (row - order->first) / order->head_len;
    const int64_t turned = head % n_inner * n_outer + head / n_inner;
    return row < order->first ? row : order->first + turned * order->head_len + within;
}

/* Where row `row` of the matrix lies. */
static inline int64_t qr_stored_row(const qr_row_order *order, int64_t row) {
    if (order->groups.len > 0) { return qr_grouped_row(&order->groups, row); }
    if (order->n_key_heads > 0) { return qr_turned_head(order, row, order->n_key_heads, order->heads_per_key); }
    if (order->head_dim == 0) { return row; }
    const int64_t half = order->head_dim / 2, within = row % order->head_dim;
    return row - within + within % half * 2 + within / half;
}

/* The inverse: which row of the matrix lies at row `stored`. */
static inline int64_t qr_row_of_stored(const qr_row_order *order, int64_t stored) {
    if (order->n_key_heads > 0) { return qr_turned_head(order, stored, order->heads_per_key, order->n_key_heads); }
    if (order->head_dim == 0) { return stored; }
    const int64_t half = order->head_dim / 2, within = stored % order->head_dim;
    return stored - within + within % 2 * half + within / 2;
}

#endif
