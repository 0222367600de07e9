/* Which tensors of a GGUF file have rows or columns in another order than transformers (row_order.h). */
#ifndef QR_LOADERS_SOURCE_GGUF_ORDER_H
#define QR_LOADERS_SOURCE_GGUF_ORDER_H

#include "loaders/files/row_order.h"
#include "loaders/source/gguf_names.h"

/* What the orders of a model follow from. */
typedef struct qr_gguf_heads {
    int64_t head_dim;                                       /* of attention */
    int64_t n_key_heads, n_value_heads, key_dim, value_dim; /* of the gated delta rule; 0: there is none */
    int64_t n_latent_heads, plain_dim, latent_value_dim;    /* of keys and values that are made of a latent */
} qr_gguf_heads;

/* Of the tensor with that name of transformers, without the prefix of a checkpoint. */
qr_row_order qr_gguf_row_order(const qr_gguf_heads *heads, const qr_gguf_arch *arch, const char *name);
qr_row_order qr_gguf_column_order(const qr_gguf_heads *heads, const qr_gguf_arch *arch, const char *name);

/* A part of a matrix of transformers that a file has a tensor for: the rows of its groups, one after the other. */
typedef struct qr_gguf_part {
    char name[QR_GGUF_NAME_BYTES]; /* as a family calls it that has the part as a matrix of its own */
    qr_row_groups groups[3];       /* those with n_rows 0 are none */
    int64_t n_heads;               /* not 0: the tensor is a matrix for each head, */
    bool is_turned;                /* and columns are rows there */
} qr_gguf_part;

/* The two parts of a matrix of so many rows that is two there; 0: it is not. */
int qr_gguf_split(const qr_gguf_heads *heads, const qr_gguf_arch *arch, const char *name, int64_t rows,
                  qr_gguf_part parts[2]);

/* The other way round, where a file has two matrices in one: whether it is such a one (of Qwen3-Next, gates of the
 * delta rule), and then its parts' names and the orders of their rows. */
bool qr_gguf_is_joined(const char *name);
void qr_gguf_part_of_joined(const qr_gguf_heads *heads, const char *name, int part, char part_name[QR_GGUF_NAME_BYTES],
                            qr_row_order *rows);

#endif
