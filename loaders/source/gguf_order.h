/* Which tensors of a GGUF file have rows or columns in another order than transformers (row_order.h). */
#ifndef QR_LOADERS_SOURCE_GGUF_ORDER_H
#define QR_LOADERS_SOURCE_GGUF_ORDER_H

#include "loaders/files/row_order.h"
#include "loaders/source/gguf_names.h"

/* What the orders of a model follow from. */
typedef struct qr_gguf_heads {
    int64_t head_dim;                                       /* of attention */
    int64_t n_key_heads, n_value_heads, key_dim, value_dim; /* of the gated delta rule; 0: there is none */
} qr_gguf_heads;

/* Of the tensor with that name of transformers, without the prefix of a checkpoint. */
qr_row_order qr_gguf_row_order(const qr_gguf_heads *heads, const qr_gguf_arch *arch, const char *name);
qr_row_order qr_gguf_column_order(const qr_gguf_heads *heads, const qr_gguf_arch *arch, const char *name);

#endif
