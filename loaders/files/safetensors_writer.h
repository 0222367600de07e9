/* Writing safetensors as a stream: every tensor is declared first, then their bytes are appended in the order that
 * the writer asks for, so that no second copy of a model is ever held. Files look as those of the format's own
 * library: compact header padded with spaces to 8 bytes, tensors by falling alignment of their type, then by name. */
#ifndef QR_LOADERS_FILES_SAFETENSORS_WRITER_H
#define QR_LOADERS_FILES_SAFETENSORS_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

typedef struct qr_safetensors_spec {
    const char *name; /* UTF-8; must live as long as the writer */
    qr_dtype dtype;
    int n_dims;
    int64_t dims[QR_MAX_DIMS];
} qr_safetensors_spec;

/* As `max_shard_bytes`: the size at which Hugging Face tools split a model. */
#define QR_SAFETENSORS_SHARD_BYTES INT64_C(5000000000)

typedef struct qr_safetensors_writer qr_safetensors_writer;

/* Plans <folder>/<stem>.safetensors or, when the tensors need more than max_shard_bytes (0 = never split),
 * <stem>-00001-of-0000N.safetensors … and <stem>.safetensors.index.json. Tensors are dealt to shards in the order
 * given; a tensor larger than the limit has a shard to itself. The folder must exist; `tensors` is the caller's and
 * must stay until the writer is gone. Refuses invalid, repeated and reserved names. */
qrun_status qr_safetensors_writer_create(const char *folder, const char *stem, const qr_safetensors_spec *tensors,
                                         size_t n_tensors, int64_t max_shard_bytes, qr_safetensors_writer **writer,
                                         qr_error *err);

/* The tensor whose bytes come next (one of the array passed to create); NULL when every byte was appended. Tensors
 * without bytes are never asked for. */
const qr_safetensors_spec *qr_safetensors_writer_next(const qr_safetensors_writer *writer);

/* Appends bytes of the next tensor, in as many pieces as is convenient; at its last byte the writer moves on. More
 * bytes than the tensor has left is QRUN_ERROR_ARGUMENT. */
qrun_status qr_safetensors_writer_write(qr_safetensors_writer *writer, const void *bytes, size_t n_bytes,
                                        qr_error *err);

/* Gives every file its final name and frees the writer, also on failure. QRUN_ERROR_ARGUMENT when tensors are
 * incomplete. */
qrun_status qr_safetensors_writer_commit(qr_safetensors_writer *writer, qr_error *err);

/* Frees the writer and removes what it wrote, shards already complete included. NULL is fine. */
void qr_safetensors_writer_abort(qr_safetensors_writer *writer);

#endif
