/* Inside this room: what llama.cpp writes about a model, and what transformers calls it. */
#ifndef QR_LOADERS_SOURCE_GGUF_MODEL_H
#define QR_LOADERS_SOURCE_GGUF_MODEL_H

#include "base/buffer.h"
#include "loaders/files/gguf.h"
#include "loaders/files/safetensors.h"

/* Appends the text of a file of the folder that the model was converted from; nothing where it has no such file. */
qrun_status qr_gguf_write_file(const qr_gguf *file, const char *name, qr_buffer *out, qr_error *err);

/* Its parts. */
qrun_status qr_gguf_write_config(const qr_gguf *file, qr_buffer *out, qr_error *err);
qrun_status qr_gguf_write_generation_config(const qr_gguf *file, qr_buffer *out, qr_error *err);
qrun_status qr_gguf_write_tokenizer(const qr_gguf *file, qr_buffer *out, qr_error *err);
qrun_status qr_gguf_write_tokenizer_config(const qr_gguf *file, qr_buffer *out, qr_error *err);
qrun_status qr_gguf_write_merges(const qr_gguf_text *tokens, const float *scores, const int64_t *types, size_t n_tokens,
                                 qr_buffer *out, qr_error *err);

qrun_status qr_gguf_has_tokenizer(const char *path, bool *found, qr_error *err);
qrun_status qr_gguf_open_tensors(const char *path, qr_safetensors **tensors, qr_error *err);

/* "tokenizer.ggml.token_type" */
enum {
    QR_GGUF_TOKEN_NORMAL = 1,
    QR_GGUF_TOKEN_UNKNOWN = 2,
    QR_GGUF_TOKEN_CONTROL = 3,
    QR_GGUF_TOKEN_USER_DEFINED = 4,
    QR_GGUF_TOKEN_UNUSED = 5,
    QR_GGUF_TOKEN_BYTE = 6
};

#endif
