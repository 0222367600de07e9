/* Rows and columns that a GGUF file has in another order than the folder. llama.cpp rotates neighbours, so rows of q
 * and k are in pairs. And it has the value heads of the gated delta rule by turns, one of every key head after the
 * other, where the folder has those of a key head together. */
#ifndef QR_RUNTIME_FOLDERS_GGUF_ORDER_H
#define QR_RUNTIME_FOLDERS_GGUF_ORDER_H

#include "loaders/source/gguf_names.h"
#include "runtime/model/model.h"

typedef struct qr_gguf_order {
    int64_t head_dim;                             /* of rows in pairs; 0: they are not */
    int64_t first;                                /* where value heads begin */
    int64_t n_key_heads, heads_per_key, head_len; /* of value heads, elements each; n_key_heads 0: there are none */
} qr_gguf_order;

/* Of the tensor with that name of transformers, without the prefix of a checkpoint. */
qr_gguf_order qr_gguf_row_order(const qrun_model *model, const qr_gguf_arch *arch, const char *name);
qr_gguf_order qr_gguf_column_order(const qrun_model *model, const char *name);

static inline bool qr_gguf_is_in_order(const qr_gguf_order *order) {
    return order->head_dim == 0 && order->n_key_heads == 0;
}
/* Which row, or column, of the folder the file has at `index`. */
int64_t qr_gguf_source_index(const qr_gguf_order *order, int64_t index);

#endif
