/* A model as files by name and as tensors, whatever it is stored as. It is a folder as Hugging Face has them, or a GGUF
 * file, which is seen as the folder that it was converted from. Its config.json, generation_config.json,
 * tokenizer.json, tokenizer_config.json and chat_template.jinja are made from the metadata. Tensors have the names of
 * transformers. Whoever reads a model reads it through here, and need not know which of the two it is.
 *
 * `model` is the path that qr_model_folder_resolve gives. */
#ifndef QR_LOADERS_SOURCE_MODEL_SOURCE_H
#define QR_LOADERS_SOURCE_MODEL_SOURCE_H

#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"

/* A file of a model. Zero-initialise; qr_source_file_free releases it. */
typedef struct qr_source_file {
    char *name; /* for messages: its path, or that of the GGUF file and its name in brackets */
    char *text; /* NUL-terminated; NULL: the model has no such file */
    size_t n_bytes;
} qr_source_file;

/* Reads the file `name`. A model without it is no error: text is NULL then, and name is set. */
qrun_status qr_source_read(const char *model, const char *name, size_t max_bytes, qr_source_file *file, qr_error *err);
void qr_source_file_free(qr_source_file *file);

/* The same, parsed as JSON: *root NULL where there is none. *what is the name for messages, to be freed, or NULL. */
qrun_status qr_source_read_json(const char *model, const char *name, size_t max_bytes, qr_json **root, char **what,
                                qr_error *err);

/* Whether a converter has changed the weights: Gemma's norms have 1 added, and every matrix is [out, in]. */
bool qr_source_is_converted(const char *model);

/* Whether the model has a tokenizer; a path that is no model has none. */
qrun_status qr_source_has_tokenizer(const char *model, bool *found, qr_error *err);

qrun_status qr_source_open_tensors(const char *model, qr_safetensors **tensors, qr_error *err);

/* For what works on folders alone ("quantising", "merging into it"): QRUN_ERROR_UNSUPPORTED for a GGUF file. */
qrun_status qr_source_require_folder(const char *model, const char *what, qr_error *err);

#endif
