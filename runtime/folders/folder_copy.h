/* A changed copy of a model folder: what quantising a model and merging an adapter into one have in common, and partly
 * writing a trained one. The new folder is written aside and appears whole or not at all. Tensors stream from the map
 * of the old folder; the files that describe the model are copied. */
#ifndef QR_RUNTIME_FOLDERS_FOLDER_COPY_H
#define QR_RUNTIME_FOLDERS_FOLDER_COPY_H

#include "base/folder.h"
#include "loaders/files/safetensors_writer.h"
#include "runtime/model/model.h"

/* ---- config.json of a folder whose weights were changed: what no longer holds is set, the rest stays as it was --- */

/* Changes the object in *config; `what` names it in messages. */
typedef qrun_status (*qr_config_edit_fn)(void *arg, qr_buffer *config, const char *what, qr_error *err);

/* Copies config.json from one folder into another, as `edit` changes it. */
qrun_status qr_config_copy(const char *from, const char *to, qr_config_edit_fn edit, void *arg, qr_error *err);

/* Of weights that are stored plain now, packed ones excepted. */
typedef struct qr_config_changes {
    qr_dtype dtype;     /* F32, F16, BF16 */
    int64_t vocab_size; /* 0: unchanged */
    bool unties_head;
    bool keeps_quantization; /* packed matrices are as they were */
} qr_config_changes;

/* A qr_config_edit_fn; arg is the qr_config_changes. In a model with an image encoder it also changes the part about
 * the language model, "text_config". */
qrun_status qr_config_apply(void *arg, qr_buffer *config, const char *what, qr_error *err);

/* ---- The copy ---------------------------------------------------------------------------------------------------- */

typedef struct qr_folder_copy {
    const char *verb; /* in messages: "quantising" */
    qrun_progress_fn progress;
    void *progress_user;
    qrun_model model; /* described; no weights */
    qr_safetensors *source;
    qr_folder_writer folder;
    int64_t done_bytes, total_bytes; /* of the old folder's tensors, each as often as it is read; for progress */
} qr_folder_copy;

/* Checks the fields that every copy has: a model, a folder to write, a size of shards (0: the default). */
qrun_status qr_folder_copy_check(const char *path, const char *out, int64_t max_shard_bytes, qr_error *err);

/* Reads the old folder's configs and describes its model; verb and progress are set by the caller, who then opens the
 * new folder with qr_folder_writer_open. On success and on failure the caller ends with qr_folder_copy_release. */
qrun_status qr_folder_copy_read(qr_folder_copy *copy, qrun_context *context, const char *path, qr_error *err);
/* Writes config.json as `edit` changes it, copies the other files and gives the new folder its name. */
qrun_status qr_folder_copy_finish(qr_folder_copy *copy, qr_config_edit_fn edit, void *arg, qr_error *err);
/* Releases everything; a folder that was not finished disappears. */
void qr_folder_copy_release(qr_folder_copy *copy);

/* Reports that n_bytes of the old folder were read. QRUN_ERROR_CANCELLED when the caller cancels. */
qrun_status qr_folder_copy_advance(qr_folder_copy *copy, int64_t n_bytes, qr_error *err);

/* A tensor of the old folder, unchanged. */
qrun_status qr_folder_copy_tensor(qr_folder_copy *copy, qr_safetensors_writer *writer,
                                  const qr_safetensors_tensor *tensor, qr_error *err);

/* ---- Parts, also for a folder that is written otherwise ---------------------------------------------------------- */

/* Name, type and shape of a stored tensor. */
qr_safetensors_spec qr_tensor_spec(const qr_safetensors_tensor *tensor);
/* Adds its bytes to *n_bytes. */
qrun_status qr_tensor_spec_add_bytes(const qr_safetensors_spec *spec, size_t *n_bytes, qr_error *err);

/* Writes the tensors of specs[0, n_specs) into an existing folder, in shards of max_shard_bytes (0: the default):
 * `write` is asked for the bytes of specs[i] in the order of the file. */
typedef qrun_status (*qr_tensor_write_fn)(void *arg, size_t i, qr_safetensors_writer *writer, qr_error *err);
qrun_status qr_tensors_write(const char *folder, const qr_safetensors_spec *specs, size_t n_specs,
                             int64_t max_shard_bytes, qr_tensor_write_fn write, void *arg, qr_error *err);

/* Copies what describes a model besides config.json and weights: tokenizer, template, generation defaults, image
 * processor, licence. */
qrun_status qr_model_files_copy(const char *from, const char *to, qr_error *err);

#endif
