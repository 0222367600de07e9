/* The model's vocabulary (the rows of its embedding and head) against that of its tokenizer. A tokenizer may have been
 * given tokens that the model has no row for: add_tokens of transformers, before resize_token_embeddings. Training both
 * tables adds these rows. Until then such a token is refused. */
#ifndef QR_RUNTIME_MODEL_VOCABULARY_H
#define QR_RUNTIME_MODEL_VOCABULARY_H

#include "loaders/data/dataset.h"
#include "loaders/files/safetensors.h"
#include "runtime/model/model.h"

/* Whether a role is that of a table with one row per token. */
static inline bool qr_role_has_token_rows(qr_tensor_role role) {
    return role == QR_ROLE_EMBEDDING || role == QR_ROLE_HEAD;
}

/* Whether the embedding has rows for tokens that the head has none for. Texts have no such tokens, and new ones cannot
 * follow them. */
static inline bool qr_model_has_short_head(const qrun_model *model) {
    return model->config.embedding_rows > model->config.vocab_size;
}

/* Tokens of the folder's tokenizer; 0: it has none. */
int64_t qr_model_tokenizer_ids(const qrun_model *model);

/* The first token of the examples that the model has no row for: its id, and its example. False: there is none, or
 * dataset is NULL. Reads the examples only where the tokenizer has such tokens. */
bool qr_new_token_find(const qrun_model *model, const qr_dataset *dataset, int32_t *id, int64_t *found);

/* Fails with QRUN_ERROR_INPUT: this example has a token without a row, and the run does not add one. */
qrun_status qr_new_token_refuse(const qrun_model *model, const qr_dataset *dataset, int64_t example, int32_t id,
                                qr_error *err);

/* QRUN_ERROR_INPUT for an id that the model has no row for: token number `position` of `what` (a "prompt"). */
qrun_status qr_token_id_check(const qrun_model *model, int32_t id, int64_t position, const char *what, qr_error *err);

/* A stored table [n, cols] with rows up to n_rows ≥ n, in its own type: every new row is the mean of the old ones. The
 * caller frees *table with qr_free. */
qrun_status qr_new_token_rows(const qr_safetensors_tensor *stored, int64_t n_rows, void **table, qr_error *err);

#endif
