#include "loaders/files/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/gguf.h"
#include "loaders/files/hub.h"
#include "loaders/files/suffix.h"

static qrun_status fail_gguf_folder(const char *path, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: is a folder with GGUF files; give one of them as the model", path);
}

/* ---- what is in a folder ----------------------------------------------------------------------------------------- */

static bool has_file(const char *folder, const char *name, qrun_status *status, qr_error *err) {
    if (*status != QRUN_OK) { return false; }
    char *path = qr_path_join(folder, name);
    if (path == NULL) {
        *status = qr_fail_memory(err, folder, strlen(folder) + strlen(name));
        return false;
    }
    const bool found = qr_file_exists(path);
    qr_free(path);
    return found;
}

static bool has_file_ending(const char *folder, const char *ending) {
    DIR *listing = opendir(folder);
    bool found = false;
    for (const struct dirent *entry; listing != NULL && !found && (entry = readdir(listing)) != NULL;) {
        found = qr_ends_with(entry->d_name, ending);
    }
    if (listing != NULL) { closedir(listing); }
    return found;
}

/* A file that is not there: of a snapshot in the cache the rest can be downloaded. */
static qrun_status fail_incomplete(const char *folder, const char *what, qr_error *err) {
    qr_buffer command = {0};
    qr_hub_append_command(folder, &command);
    const char *help = command.size > 0 ? command.data : "; check that the download is whole";
    const qrun_status status = qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: %s%s", folder, what, help);
    qr_buffer_free(&command);
    return status;
}

/* The folder has no safetensors: the error says what it has instead. */
static qrun_status explain_missing_weights(const char *folder, qr_error *err) {
    if (has_file_ending(folder, ".gguf")) { return fail_gguf_folder(folder, err); }
    if (has_file_ending(folder, ".bin") || has_file_ending(folder, ".pt") || has_file_ending(folder, ".pth")) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: has its weights only as PyTorch pickles (pytorch_model.bin), which "
                       "can run code and are not read; save it once with transformers' save_pretrained, which writes "
                       "safetensors, or download a safetensors revision",
                       folder);
    }
    return fail_incomplete(folder, "has no model.safetensors and no model.safetensors.index.json", err);
}

static qrun_status explain_missing_config(const char *folder, qr_error *err) {
    qrun_status status = QRUN_OK;
    if (has_file(folder, "adapter_config.json", &status, err)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: is an adapter, not a model; give the folder of its base model, and "
                       "this as the adapter",
                       folder);
    }
    if (status != QRUN_OK) { return status; }
    if (access(folder, R_OK | X_OK) != 0) {
        return qr_fail(err, QRUN_ERROR_IO, "%s: cannot read the folder: %s; check its permissions", folder,
                       strerror(errno));
    }
    if (has_file_ending(folder, ".gguf")) { return fail_gguf_folder(folder, err); }
    return fail_incomplete(folder, "has no config.json, so it is not a Hugging Face model folder", err);
}

qrun_status qr_model_folder_check(const char *folder, qr_error *err) {
    qrun_status status = QRUN_OK;
    const bool has_config = has_file(folder, "config.json", &status, err);
    const bool has_weights = has_file(folder, "model.safetensors", &status, err) ||
                             has_file(folder, "model.safetensors.index.json", &status, err);
    if (status != QRUN_OK) { return status; }
    if (!has_config) { return explain_missing_config(folder, err); }
    return has_weights ? QRUN_OK : explain_missing_weights(folder, err);
}

/* ---- links in a folder ------------------------------------------------------------------------------------------- */

/* Whether the path is below the folder; both without links. */
static bool is_below(const char *path, const char *folder, size_t length) {
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/* The length of the repository's path in that of a snapshot of it, as the cache has them; 0 where the folder is none.
 */
static size_t repository_length(const char *folder) {
    static const char kind[] = "models--", snapshots[] = "/snapshots";
    const char *commit = strrchr(folder, '/');
    const size_t length = commit != NULL ? (size_t)(commit - folder) : 0, tail = sizeof snapshots - 1;
    if (length <= tail || strncmp(commit - tail, snapshots, tail) != 0) { return 0; }
    size_t name = length - tail;
    while (name > 0 && folder[name - 1] != '/') { name--; }
    return strncmp(folder + name, kind, sizeof kind - 1) == 0 ? length - tail : 0;
}

static bool may_lead_to(const char *target, const char *folder) {
    if (is_below(target, folder, strlen(folder))) { return true; }
    const size_t length = repository_length(folder);
    return length > 0 && is_below(target, folder, length) && strncmp(target + length, "/blobs/", 7) == 0;
}

qrun_status qr_model_folder_file(const char *folder, const char *name, char **path, qr_error *err) {
    char root[PATH_MAX], target[PATH_MAX];
    char *joined = qr_path_join(folder, name);
    qrun_status status = QRUN_OK;
    *path = NULL;
    if (joined == NULL) { return qr_fail_memory(err, name, strlen(folder)); }
    if (realpath(folder, root) == NULL) {
        status = qr_file_fail_errno(err, folder, "open the folder");
    } else if (realpath(joined, target) == NULL) {
        status = qr_file_fail_errno(err, joined, "open");
    } else if (!may_lead_to(target, root)) {
        status = qr_fail(err, QRUN_ERROR_INPUT,
                         "%s: is a symbolic link out of the model's folder, so it is not copied; put the file itself "
                         "there, or remove the link",
                         joined);
    } else {
        *path = qr_strdup(target);
        status = *path != NULL ? QRUN_OK : qr_fail_memory(err, name, strlen(target));
    }
    qr_free(joined);
    return status;
}

/* ---- finding a folder
 * ------------------------------------------------------------------------------------------------- */

qrun_status qr_model_folder_resolve(const char *name_or_path, char **folder, qr_error *err) {
    *folder = NULL;
    qrun_status status;
    const bool is_gguf = qr_gguf_recognise(name_or_path);
    if (is_gguf || qr_file_is_folder(name_or_path)) {
        *folder = qr_strdup(name_or_path);
        status = *folder != NULL ? QRUN_OK : qr_fail_memory(err, name_or_path, strlen(name_or_path));
    } else if (qr_file_exists(name_or_path) && qr_ends_with(name_or_path, ".gguf")) {
        status = qr_fail(err, QRUN_ERROR_INPUT,
                         "%s: does not begin as a GGUF file does; is the download complete, and no pointer of Git LFS?",
                         name_or_path);
    } else if (qr_file_exists(name_or_path)) {
        status = qr_fail(err, QRUN_ERROR_ARGUMENT,
                         "%s: is a file; give the folder that holds config.json and the weights, or a GGUF file",
                         name_or_path);
    } else if (name_or_path[0] == '\0') {
        status =
            qr_fail(err, QRUN_ERROR_ARGUMENT, "the model's path is empty; give a folder, or the id of a cached model");
    } else if (qr_ends_with(name_or_path, ".json") || qr_ends_with(name_or_path, ".gguf")) {
        status = qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: there is no such file; check the path", name_or_path);
    } else if (qr_hub_is_id(name_or_path)) {
        status = qr_hub_resolve(name_or_path, folder, err);
    } else {
        status = qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: there is no such folder; check the path", name_or_path);
    }
    if (status == QRUN_OK && !is_gguf) { status = qr_model_folder_check(*folder, err); }
    if (status != QRUN_OK) {
        qr_free(*folder);
        *folder = NULL;
    }
    return status;
}
