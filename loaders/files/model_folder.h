/* Where a model is: a folder, or an id of the Hugging Face hub in the local cache. Nothing is downloaded. Only this
 * file reads the environment variables for it: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HOME. */
#ifndef QR_LOADERS_FILES_MODEL_FOLDER_H
#define QR_LOADERS_FILES_MODEL_FOLDER_H

#include "base/status.h"

/* The folder of a model, in a new qr_alloc'ed string: name_or_path itself when there is such a folder, otherwise the
 * snapshot of refs/main of the cached model "org/name" or "name". QRUN_ERROR_NOT_FOUND says where it looked and what to
 * do; QRUN_ERROR_UNSUPPORTED as qr_model_folder_check. */
qrun_status qr_model_folder_resolve(const char *name_or_path, char **folder, qr_error *err);

/* Checks that the folder holds a model in a form that can be read: config.json and safetensors. Pickled weights
 * (pytorch_model.bin), GGUF, GPTQ and AWQ are refused by name with what to do instead. */
qrun_status qr_model_folder_check(const char *folder, qr_error *err);

#endif
