/* Writing a GGUF file of version 3: metadata and the list of tensors first, then their bytes in the order of the list,
 * so that no second copy of a model is ever held. The file appears whole or not at all. */
#ifndef QR_LOADERS_FILES_GGUF_WRITER_H
#define QR_LOADERS_FILES_GGUF_WRITER_H

#include "base/buffer.h"
#include "base/file.h"
#include "loaders/files/gguf.h"

/* Zero-initialise. Errors of the texts that it collects are told by qr_gguf_writer_begin. */
typedef struct qr_gguf_writer {
    qr_buffer values, tensors; /* metadata and list of tensors, as the file has them */
    uint64_t n_values, n_tensors, data_bytes;
    qr_file_writer file;
    uint64_t written; /* of the data */
} qr_gguf_writer;

/* ---- Metadata; each key once ------------------------------------------------------------------------------------- */

void qr_gguf_put_u32(qr_gguf_writer *writer, const char *key, uint32_t value);
void qr_gguf_put_f32(qr_gguf_writer *writer, const char *key, float value);
void qr_gguf_put_bool(qr_gguf_writer *writer, const char *key, bool value);
void qr_gguf_put_text(qr_gguf_writer *writer, const char *key, const char *text, size_t n_bytes);

/* A list of n items of a type; the caller puts the items after it. */
void qr_gguf_put_list(qr_gguf_writer *writer, const char *key, qr_gguf_type type, uint64_t n);
void qr_gguf_put_text_item(qr_gguf_writer *writer, const char *text, size_t n_bytes);
void qr_gguf_put_f32_item(qr_gguf_writer *writer, float value);
void qr_gguf_put_i32_item(qr_gguf_writer *writer, int32_t value);
void qr_gguf_put_bool_item(qr_gguf_writer *writer, bool value);

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* Bytes of a matrix or vector; rows of blocks must be whole. */
uint64_t qr_gguf_tensor_bytes(qr_dtype dtype, int n_dims, const int64_t *dims);

/* Declares the next tensor: dims row-major. */
void qr_gguf_add_tensor(qr_gguf_writer *writer, const char *name, qr_dtype dtype, int n_dims, const int64_t *dims);

/* Writes all of the above to a new file. After it come the bytes of the tensors, each ended by qr_gguf_end_tensor. */
qrun_status qr_gguf_writer_begin(qr_gguf_writer *writer, const char *path, qr_error *err);
qrun_status qr_gguf_write(qr_gguf_writer *writer, const void *bytes, size_t n_bytes, qr_error *err);
qrun_status qr_gguf_end_tensor(qr_gguf_writer *writer, qr_error *err);

/* QRUN_ERROR_INTERNAL where bytes are missing. Ends with qr_gguf_writer_free, as a failure does. */
qrun_status qr_gguf_writer_commit(qr_gguf_writer *writer, qr_error *err);
void qr_gguf_writer_free(qr_gguf_writer *writer); /* a file that was not committed disappears */

#endif
