/* A changed copy of a model folder: what quantising one and merging an adapter into one have in common. The new folder
 * is written aside and appears whole or not at all; tensors stream from the old folder's map; files beside the weights
 * are copied. */
#ifndef QR_RUNTIME_FOLDERS_FOLDER_COPY_H
#define QR_RUNTIME_FOLDERS_FOLDER_COPY_H

#include "base/buffer.h"
#include "base/file.h"
#include "loaders/files/safetensors_writer.h"
#include "runtime/model/model.h"

typedef struct qr_folder_copy {
    const char *verb; /* in messages: "quantising" */
    qrun_progress_fn progress;
    void *progress_user;
    qrun_model model; /* described; no weights */
    qr_safetensors *source;
    qr_folder_writer folder;
    int64_t done_bytes, total_bytes; /* of the old folder's tensors, as often as they are read; for progress */
} qr_folder_copy;

/* What the caller was given: a model, a folder to write, a size of shards (0: the default). */
qrun_status qr_folder_copy_check(const char *path, const char *out, int64_t max_shard_bytes, qr_error *err);

/* Reads the old folder's configs and describes its model; verb and progress are set by the caller. On success and on
 * failure the caller ends with qr_folder_copy_release. */
qrun_status qr_folder_copy_read(qr_folder_copy *copy, qrun_context *context, const char *path, qr_error *err);
/* Opens the new folder. It must not exist, and its parent must. */
qrun_status qr_folder_copy_begin(qr_folder_copy *copy, const char *out, qr_error *err);
/* Gives the new folder its name. */
qrun_status qr_folder_copy_commit(qr_folder_copy *copy, qr_error *err);
/* Takes everything back; a folder that was not committed disappears. */
void qr_folder_copy_release(qr_folder_copy *copy);

/* Reports that n_bytes of the old folder were read. QRUN_ERROR_CANCELLED when the caller wants no more. */
qrun_status qr_folder_copy_advance(qr_folder_copy *copy, int64_t n_bytes, qr_error *err);

/* Writes the tensors of specs[0, n_specs): `write` is asked for the bytes of specs[i] in the order of the file. */
typedef qrun_status (*qr_tensor_write_fn)(void *arg, size_t i, qr_safetensors_writer *writer, qr_error *err);
qrun_status qr_folder_copy_tensors(qr_folder_copy *copy, const qr_safetensors_spec *specs, size_t n_specs,
                                   int64_t max_shard_bytes, qr_tensor_write_fn write, void *arg, qr_error *err);
/* A tensor of the old folder as it is. */
qrun_status qr_folder_copy_tensor(qr_folder_copy *copy, qr_safetensors_writer *writer,
                                  const qr_safetensors_tensor *tensor, qr_error *err);

/* Writes config.json: `edit` appends the new text to *out. */
typedef qrun_status (*qr_config_edit_fn)(void *arg, const char *text, size_t n_bytes, const char *what, qr_buffer *out,
                                         qr_error *err);
qrun_status qr_folder_copy_config(qr_folder_copy *copy, qr_config_edit_fn edit, void *arg, qr_error *err);
/* Copies what describes the model beside config.json and the weights: tokenizer, template, generation defaults,
 * picture processor, licence. */
qrun_status qr_folder_copy_files(const qr_folder_copy *copy, qr_error *err);
/* The same from any folder into another one. */
qrun_status qr_model_files_copy(const char *from, const char *to, qr_error *err);

#endif
