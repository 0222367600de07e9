#include "loaders/files/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/suffix.h"

static qrun_status fail_gguf(const char *path, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: GGUF files are not supported; give the folder of the original model "
                   "with config.json and safetensors, it is quantised while loading",
                   path);
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

/* The folder has no safetensors: the error says what it has instead. */
static qrun_status explain_missing_weights(const char *folder, qr_error *err) {
    if (has_file_ending(folder, ".gguf")) { return fail_gguf(folder, err); }
    if (has_file_ending(folder, ".bin") || has_file_ending(folder, ".pt") || has_file_ending(folder, ".pth")) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: has its weights only as PyTorch pickles (pytorch_model.bin), which "
                       "can run code and are not read; save it once with transformers' save_pretrained, which writes "
                       "safetensors, or download a safetensors revision",
                       folder);
    }
    return qr_fail(err, QRUN_ERROR_NOT_FOUND,
                   "%s: has no model.safetensors and no model.safetensors.index.json; check that "
                   "the download is whole",
                   folder);
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
    if (has_file_ending(folder, ".gguf")) { return fail_gguf(folder, err); }
    return qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: has no config.json, so it is not a Hugging Face model folder",
                   folder);
}

qrun_status qr_model_folder_check(const char *folder, qr_error *err) {
    qrun_status status = QRUN_OK;
    const bool has_config = has_file(folder, "config.json", &status, err);
    const bool has_weights = has_file(folder, "model.safetensors", &status, err) ||
                             has_file(folder, "model.safetensors.index.json", &status, err);
    const bool is_gptq = has_file(folder, "quantize_config.json", &status, err);
    const bool is_awq = has_file(folder, "quant_config.json", &status, err);
    if (status != QRUN_OK) { return status; }
    if (!has_config) { return explain_missing_config(folder, err); }
    if (is_gptq || is_awq) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: is %s model, which is not supported; use the original 16-bit "
                       "model instead, it is quantised while loading",
                       folder, is_gptq ? "a GPTQ" : "an AWQ");
    }
    return has_weights ? QRUN_OK : explain_missing_weights(folder, err);
}

/* ---- the cache of the hub ---------------------------------------------------------------------------------------- */

/* "name" or "org/name" of letters, digits, '-', '_' and '.'. */
static bool is_hub_id(const char *name) {
    int n_slashes = 0;
    for (const char *c = name; *c != '\0'; c++) {
        const bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        n_slashes += *c == '/';
        const bool starts_part = c == name || c[-1] == '/';
        if (!letter && strchr(starts_part ? "_" : "-_./", *c) == NULL) { return false; }
    }
    const size_t length = strlen(name);
    return length > 0 && length <= 200 && n_slashes <= 1 && name[length - 1] != '/';
}

/* Appends the value of a variable, with a leading "~" replaced by HOME. False when it is unset or empty. */
static bool append_variable(const char *name, qr_buffer *path) {
    const char *value = getenv(name);
    if (value == NULL || value[0] == '\0') { return false; }
    const char *home = getenv("HOME");
    if (home != NULL && value[0] == '~' && (value[1] == '/' || value[1] == '\0')) {
        qr_buffer_append_text(path, home);
        value++;
    }
    qr_buffer_append_text(path, value);
    return true;
}

/* The folder that huggingface_hub downloads to; NULL when memory is short or no variable says where. */
static char *cache_folder(void) {
    static const struct {
        const char *variable, *below;
    } variables[] = {
        {"HF_HUB_CACHE", ""},
        {"HUGGINGFACE_HUB_CACHE", ""},
        {"HF_HOME", "/hub"},
        {"XDG_CACHE_HOME", "/huggingface/hub"},
        {"HOME", "/.cache/huggingface/hub"},
    };
    qr_buffer path = {0};
    for (size_t i = 0; i < QR_COUNT_OF(variables); i++) {
        if (!append_variable(variables[i].variable, &path)) { continue; }
        qr_buffer_append_text(&path, variables[i].below);
        return qr_buffer_take(&path);
    }
    qr_buffer_append_text(&path, ".cache/huggingface/hub");
    return qr_buffer_take(&path);
}

/* The folder of a repository in the cache: "models", organisation and name, with two dashes between them. */
static char *repository_folder(const char *cache, const char *id) {
    static const char separator[] = {'-', '-', '\0'};
    qr_buffer path = {0};
    qr_buffer_append_format(&path, "%s/models%s", cache, separator);
    for (const char *c = id; *c != '\0'; c++) { qr_buffer_append(&path, *c == '/' ? separator : c, *c == '/' ? 2 : 1); }
    return qr_buffer_take(&path);
}

/* The commit in refs/main, cut at its line end; it becomes a part of a path, so it must be one plain word. */
static qrun_status read_commit(const char *repository, char **commit, qr_error *err) {
    *commit = NULL;
    char *path = qr_path_join(repository, "refs/main");
    if (path == NULL) { return qr_fail_memory(err, repository, strlen(repository)); }
    size_t n_bytes;
    qrun_status status = qr_file_read(path, 128, commit, &n_bytes, err);
    if (status == QRUN_OK) {
        const size_t length = strspn(*commit, "0123456789abcdefABCDEF");
        if (length == 0 || length + strspn(*commit + length, " \r\n") != n_bytes) {
            status = qr_fail(err, QRUN_ERROR_INPUT, "%s: does not hold a commit; download the model again", path);
        } else {
            (*commit)[length] = '\0';
        }
    }
    if (status != QRUN_OK) {
        qr_free(*commit);
        *commit = NULL;
    }
    qr_free(path);
    return status;
}

static qrun_status resolve_snapshot(const char *repository, char **folder, qr_error *err) {
    char *commit;
    QR_RETURN_IF_ERROR(read_commit(repository, &commit, err));
    qr_buffer path = {0};
    qr_buffer_append_format(&path, "%s/snapshots/%s", repository, commit);
    qr_free(commit);
    *folder = qr_buffer_take(&path);
    if (*folder == NULL) { return qr_fail_memory(err, repository, strlen(repository)); }
    if (qr_file_is_folder(*folder)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: is not there, though refs/main names it; download the model again",
                   *folder);
}

static qrun_status resolve_cached(const char *id, char **folder, qr_error *err) {
    char *cache = cache_folder();
    char *repository = cache != NULL ? repository_folder(cache, id) : NULL;
    qrun_status status;
    if (repository == NULL) {
        status = qr_fail_memory(err, id, strlen(id));
    } else if (!qr_file_is_folder(repository)) {
        status = qr_fail(
            err, QRUN_ERROR_NOT_FOUND,
            "\"%s\" is neither a folder nor a model in the cache %s; give a path, or get it with: hf download %s", id,
            cache, id);
    } else {
        status = resolve_snapshot(repository, folder, err);
    }
    qr_free(cache);
    qr_free(repository);
    return status;
}

qrun_status qr_model_folder_resolve(const char *name_or_path, char **folder, qr_error *err) {
    *folder = NULL;
    qrun_status status;
    if (qr_file_is_folder(name_or_path)) {
        *folder = qr_strdup(name_or_path);
        status = *folder != NULL ? QRUN_OK : qr_fail_memory(err, name_or_path, strlen(name_or_path));
    } else if (qr_ends_with(name_or_path, ".gguf")) {
        status = fail_gguf(name_or_path, err);
    } else if (qr_file_exists(name_or_path)) {
        status = qr_fail(err, QRUN_ERROR_ARGUMENT,
                         "%s: is a file; give the folder that holds config.json and the weights", name_or_path);
    } else if (name_or_path[0] == '\0') {
        status =
            qr_fail(err, QRUN_ERROR_ARGUMENT, "the model's path is empty; give a folder, or the id of a cached model");
    } else if (qr_ends_with(name_or_path, ".json")) {
        status = qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: there is no such file; check the path", name_or_path);
    } else if (is_hub_id(name_or_path)) {
        status = resolve_cached(name_or_path, folder, err);
    } else {
        status = qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: there is no such folder; check the path", name_or_path);
    }
    if (status == QRUN_OK) { status = qr_model_folder_check(*folder, err); }
    if (status != QRUN_OK) {
        qr_free(*folder);
        *folder = NULL;
    }
    return status;
}
