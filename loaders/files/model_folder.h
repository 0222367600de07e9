/* Where a model is: a folder, a GGUF file, or an id of the Hugging Face hub in the local cache (files/hub.h). */
#ifndef QR_LOADERS_FILES_MODEL_FOLDER_H
#define QR_LOADERS_FILES_MODEL_FOLDER_H

#include "base/status.h"

/* The folder of a model, in a new qr_alloc'ed string. It is name_or_path itself when there is such a folder or GGUF
 * file, otherwise the snapshot of the cached model "org/name", "name" or "org/name@revision". QRUN_ERROR_NOT_FOUND says
 * where it looked and what to do; QRUN_ERROR_UNSUPPORTED as qr_model_folder_check. */
qrun_status qr_model_folder_resolve(const char *name_or_path, char **folder, qr_error *err);

/* Checks that the folder holds a model in a form that can be read: config.json and safetensors. Pickled weights
 * (pytorch_model.bin) are refused by name with what to do instead. */
qrun_status qr_model_folder_check(const char *folder, qr_error *err);

/* The file `name` of a folder, for copying it: *path is qr_alloc'ed and led through no link any more. A link may lead
 * to another file of the folder or, where the folder is a snapshot in the cache, to the blobs of the same model, as the
 * cache itself makes them. QRUN_ERROR_INPUT when it leads elsewhere: a folder from outside could point at any file of
 * the user's. QRUN_ERROR_NOT_FOUND when it leads to nothing. */
qrun_status qr_model_folder_file(const char *folder, const char *name, char **path, qr_error *err);

#endif
