/* What a GGUF file says about a model: for llama.cpp to compute the same, and to split texts into the same tokens. What
 * it cannot compute is refused here, with the reason. Reading the same is loaders/source. */
#ifndef QR_RUNTIME_FOLDERS_GGUF_METADATA_H
#define QR_RUNTIME_FOLDERS_GGUF_METADATA_H

#include "loaders/files/gguf_writer.h"
#include "loaders/source/gguf_order.h"
#include "runtime/model/model.h"

/* The architecture that the model is written as. QRUN_ERROR_UNSUPPORTED where llama.cpp computes something else. */
qrun_status qr_gguf_choose_arch(const qrun_model *model, const qr_gguf_arch **arch, qr_error *err);

/* What the order of its rows follows from. */
qr_gguf_heads qr_gguf_heads_of(const qrun_model *model);

/* The context that the file says: no more than a window that llama.cpp does not have. */
int64_t qr_gguf_context_tokens(const qrun_model *model);

/* Everything but the tokenizer. n_rope_factors vectors of the rotary dividers become tensors: see below. */
void qr_gguf_put_model(qr_gguf_writer *writer, const qrun_model *model, const qr_gguf_arch *arch);

/* The tokenizer and the chat template of the folder, for a table of n_rows rows; nothing where it has none. */
qrun_status qr_gguf_put_tokenizer(qr_gguf_writer *writer, const qrun_model *model, int64_t n_rows, qr_error *err);

/* The dividers of the rotary frequencies that are tensors of a GGUF file: [rotary_dim / 2] each, in `values`, which has
 * room for two. Returns their number, 0 to 2, and sets their names. */
int qr_gguf_rope_factors(const qrun_model *model, const char *names[2], float *values);

#endif
