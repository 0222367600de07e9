/* The local cache of the Hugging Face hub: where the models and adapters are that were downloaded by id. Nothing is
 * downloaded here. Only this file reads the environment variables for it: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME,
 * XDG_CACHE_HOME, HOME. */
#ifndef QR_LOADERS_FILES_HUB_H
#define QR_LOADERS_FILES_HUB_H

#include <stdbool.h>

#include "base/buffer.h"
#include "base/status.h"

/* "name" or "org/name", with "@revision" after it or not: a branch, a tag, or the beginning of a commit. */
bool qr_hub_is_id(const char *name);

/* The snapshot of an id in the cache, of its revision or of main, in a new qr_alloc'ed string. QRUN_ERROR_NOT_FOUND
 * says where it looked, and how to get it. */
qrun_status qr_hub_resolve(const char *id, char **folder, qr_error *err);

/* "org/name@commit" of a folder that is a snapshot in a cache, also through links, in a new qr_alloc'ed string; NULL
 * for any other folder. */
qrun_status qr_hub_name_of(const char *folder, char **name, qr_error *err);

/* Appends "; complete the download with: hf download …" for a snapshot; nothing for any other folder. */
void qr_hub_append_command(const char *folder, qr_buffer *out);

#endif
