#include "runtime/folders/folder_copy.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/json_edit.h"
#include "loaders/files/model_folder.h"
#include "loaders/files/suffix.h"
#include "loaders/source/model_source.h"
#include "loaders/template/chat_template.h"
#include "runtime/model/model_open.h"

enum { COPY_BYTES = 1 << 23 };

/* ---- From beginning to end --------------------------------------------------------------------------------------- */

qrun_status qr_folder_copy_check(const char *path, const char *out, int64_t max_shard_bytes, qr_error *err) {
    if (path == NULL) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "no model path was given"); }
    if (out == NULL || out[0] == '\0') { return qr_fail(err, QRUN_ERROR_ARGUMENT, "no folder to write was given"); }
    if (max_shard_bytes < 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a shard of %lld bytes is not possible", (long long)max_shard_bytes);
    }
    return QRUN_OK;
}

qrun_status qr_folder_copy_read(qr_folder_copy *copy, qrun_context *context, const char *path, qr_error *err) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    QR_RETURN_IF_ERROR(qr_model_prepare(context, &params, &copy->model, &copy->source, err));
    return qr_source_require_folder(copy->model.folder, copy->verb, err);
}

qrun_status qr_folder_copy_finish(qr_folder_copy *copy, qr_config_edit_fn edit, void *arg, qr_error *err) {
    const char *from = copy->model.folder, *to = copy->folder.partial_path;
    QR_RETURN_IF_ERROR(qr_safetensors_check(copy->source, err));
    QR_RETURN_IF_ERROR(qr_config_copy(from, to, edit, arg, err));
    QR_RETURN_IF_ERROR(qr_model_files_copy(from, to, err));
    return qr_folder_writer_commit(&copy->folder, err);
}

void qr_folder_copy_release(qr_folder_copy *copy) {
    qr_safetensors_close(copy->source);
    qr_model_release(&copy->model);
    qr_folder_writer_abort(&copy->folder);
}

qrun_status qr_folder_copy_advance(qr_folder_copy *copy, int64_t n_bytes, qr_error *err) {
    copy->done_bytes += n_bytes;
    if (copy->progress == NULL || copy->progress(copy->progress_user, copy->done_bytes, copy->total_bytes)) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "%s %s was cancelled", copy->verb, copy->model.folder);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

qr_safetensors_spec qr_tensor_spec(const qr_safetensors_tensor *tensor) {
    qr_safetensors_spec spec = {.name = tensor->name, .dtype = tensor->dtype, .n_dims = tensor->n_dims};
    memcpy(spec.dims, tensor->dims, sizeof spec.dims);
    return spec;
}

qrun_status qr_tensor_spec_add_bytes(const qr_safetensors_spec *spec, size_t *n_bytes, qr_error *err) {
    size_t own;
    if (!qr_safetensors_tensor_bytes(spec->dtype, spec->n_dims, spec->dims, &own)) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "%s: its size is not known", spec->name);
    }
    *n_bytes += own;
    return QRUN_OK;
}

qrun_status qr_tensors_write(const char *folder, const qr_safetensors_spec *specs, size_t n_specs,
                             int64_t max_shard_bytes, qr_tensor_write_fn write, void *arg, qr_error *err) {
    qr_safetensors_writer *writer = NULL;
    const int64_t shard_bytes = max_shard_bytes > 0 ? max_shard_bytes : QR_SAFETENSORS_SHARD_BYTES;
    QR_RETURN_IF_ERROR(qr_safetensors_writer_create(folder, "model", specs, n_specs, shard_bytes, &writer, err));
    qrun_status status = QRUN_OK;
    const qr_safetensors_spec *spec;
    while (status == QRUN_OK && (spec = qr_safetensors_writer_next(writer)) != NULL) {
        status = write(arg, (size_t)(spec - specs), writer, err);
    }
    if (status == QRUN_OK) { return qr_safetensors_writer_commit(writer, err); }
    qr_safetensors_writer_abort(writer);
    return status;
}

qrun_status qr_folder_copy_tensor(qr_folder_copy *copy, qr_safetensors_writer *writer,
                                  const qr_safetensors_tensor *tensor, qr_error *err) {
    for (size_t offset = 0; offset < tensor->n_bytes; offset += COPY_BYTES) {
        const size_t n_bytes = (size_t)qr_min((int64_t)(tensor->n_bytes - offset), COPY_BYTES);
        QR_RETURN_IF_ERROR(qr_safetensors_writer_write(writer, tensor->data + offset, n_bytes, err));
        QR_RETURN_IF_ERROR(qr_folder_copy_advance(copy, (int64_t)n_bytes, err));
    }
    return qr_safetensors_finish(copy->source, tensor, err);
}

/* ---- Other files ------------------------------------------------------------------------------------------------- */

static bool is_copied(const char *name) {
    static const char *const names[] = {
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "preprocessor_config.json",
        "processor_config.json",
        "NOTICE",
    };
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) { return true; }
    }
    return strncmp(name, "chat_template", 13) == 0 || strncmp(name, "LICENSE", 7) == 0 || qr_ends_with(name, ".model");
}

static qrun_status copy_file(const char *from_folder, const char *to_folder, const char *name, qr_error *err) {
    char *from = NULL, *to = qr_path_join(to_folder, name);
    qrun_status status = QRUN_OK;
    if (to == NULL) { QR_TRY(qr_fail_memory(err, name, strlen(name))); }
    QR_TRY(qr_model_folder_file(from_folder, name, &from, err));
    if (!qr_file_is_folder(from)) { QR_TRY(qr_file_copy(from, to, err)); }
out:
    qr_free(from);
    qr_free(to);
    return status;
}

static bool is_template(const char *name) { return qr_ends_with(name, ".jinja"); }

/* The files of from/inner ("": of from) that `takes` names, into the same place below `to`. */
static qrun_status copy_files(const char *from, const char *to, const char *inner, bool (*takes)(const char *),
                              qr_error *err) {
    qrun_status status = QRUN_OK;
    char *path = qr_path_join(from, inner), *name = NULL;
    DIR *folder = path != NULL ? opendir(path) : NULL;
    if (path == NULL) { QR_TRY(qr_fail_memory(err, inner, strlen(from))); }
    if (folder == NULL) { QR_TRY(qr_fail(err, QRUN_ERROR_IO, "%s: cannot be listed", path)); }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (!takes(entry->d_name)) { continue; }
        qr_free(name);
        name = qr_path_join(inner, entry->d_name);
        QR_TRY(name != NULL ? copy_file(from, to, name, err) : qr_fail_memory(err, path, strlen(path)));
    }
out:
    if (folder != NULL) { closedir(folder); }
    qr_free(name);
    qr_free(path);
    return status;
}

static qrun_status copy_more_templates(const char *from, const char *to, qr_error *err) {
    char *inner = qr_path_join(from, QR_MORE_TEMPLATES), *inner_to = qr_path_join(to, QR_MORE_TEMPLATES);
    qrun_status status = QRUN_OK;
    if (inner == NULL || inner_to == NULL) { QR_TRY(qr_fail_memory(err, QR_MORE_TEMPLATES, strlen(from))); }
    if (!qr_file_is_folder(inner)) { goto out; }
    QR_TRY(qr_folder_create_marked(inner_to, err));
    QR_TRY(copy_files(from, to, QR_MORE_TEMPLATES, is_template, err));
    if (!qr_file_sync_folder(inner_to)) { QR_TRY(qr_file_fail_errno(err, inner_to, "write")); }
out:
    qr_free(inner);
    qr_free(inner_to);
    return status;
}

qrun_status qr_model_files_copy(const char *from, const char *to, qr_error *err) {
    QR_RETURN_IF_ERROR(copy_files(from, to, "", is_copied, err));
    return copy_more_templates(from, to, err);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

qrun_status qr_config_copy(const char *from, const char *to, qr_config_edit_fn edit, void *arg, qr_error *err) {
    char *path = qr_path_join(from, "config.json"), *out_path = qr_path_join(to, "config.json");
    char *text = NULL;
    size_t n_bytes;
    qr_buffer config = {0};
    qrun_status status = QRUN_OK;
    if (path == NULL || out_path == NULL) { QR_TRY(qr_fail_memory(err, "config.json", strlen(from))); }
    QR_TRY(qr_file_read(path, QR_MODEL_CONFIG_BYTES, &text, &n_bytes, err));
    qr_buffer_append(&config, text, n_bytes);
    if (!qr_buffer_ok(&config)) { QR_TRY(qr_fail_memory(err, path, n_bytes)); }
    QR_TRY(edit(arg, &config, path, err));
    QR_TRY(qr_file_write(out_path, config.data, config.size, err));
out:
    qr_buffer_free(&config);
    qr_free(text);
    qr_free(path);
    qr_free(out_path);
    return status;
}

/* NULL removes the member. */
static qrun_status set_member(qr_buffer *config, const char *what, const char *key, const char *value, qr_error *err) {
    qr_buffer edited = {0};
    const qrun_status status = qr_json_edit_set(config->data, config->size, what, key, value, &edited, err);
    qr_buffer_free(config);
    *config = edited;
    return status;
}

/* The element type, under each name that the object has for it, or under `otherwise` (may be NULL). */
static qrun_status set_dtype(qr_buffer *config, const char *what, qr_dtype dtype, const char *otherwise,
                             qr_error *err) {
    static const char *const keys[] = {"torch_dtype", "dtype"}; /* transformers 4 and 5 */
    const char *value = dtype == QR_DTYPE_F32 ? "\"float32\"" : dtype == QR_DTYPE_F16 ? "\"float16\"" : "\"bfloat16\"";
    bool is_set = false;
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) {
        size_t begin, end;
        QR_RETURN_IF_ERROR(qr_json_edit_find(config->data, config->size, what, keys[i], &begin, &end, err));
        if (begin == end) { continue; }
        is_set = true;
        QR_RETURN_IF_ERROR(set_member(config, what, keys[i], value, err));
    }
    return is_set || otherwise == NULL ? QRUN_OK : set_member(config, what, otherwise, value, err);
}

static qrun_status set_common(const qr_config_changes *changes, qr_buffer *config, const char *what,
                              const char *dtype_key, qr_error *err) {
    QR_RETURN_IF_ERROR(set_dtype(config, what, changes->dtype, dtype_key, err));
    return changes->unties_head ? set_member(config, what, "tie_word_embeddings", "false", err) : QRUN_OK;
}

static qrun_status set_vocab(const qr_config_changes *changes, qr_buffer *config, const char *what, qr_error *err) {
    char size[24];
    (void)snprintf(size, sizeof size, "%lld", (long long)changes->vocab_size);
    return changes->vocab_size > 0 ? set_member(config, what, "vocab_size", size, err) : QRUN_OK;
}

/* text[begin, end): the value of "text_config", with spaces before it. */
static qrun_status apply_inside(const qr_config_changes *changes, qr_buffer *config, size_t begin, size_t end,
                                const char *what, qr_error *err) {
    while (begin < end && config->data[begin] != '{') { begin++; }
    qr_buffer inner = {0};
    qrun_status status = QRUN_OK;
    qr_buffer_append(&inner, config->data + begin, end - begin);
    if (!qr_buffer_ok(&inner)) { QR_TRY(qr_fail_memory(err, what, end - begin)); }
    QR_TRY(set_common(changes, &inner, what, NULL, err));
    QR_TRY(set_vocab(changes, &inner, what, err));
    QR_TRY(set_member(config, what, "text_config", inner.data, err));
out:
    qr_buffer_free(&inner);
    return status;
}

qrun_status qr_config_apply(void *arg, qr_buffer *config, const char *what, qr_error *err) {
    const qr_config_changes *changes = arg;
    size_t begin, end;
    if (!changes->keeps_quantization) {
        QR_RETURN_IF_ERROR(set_member(config, what, "quantization_config", NULL, err));
    }
    QR_RETURN_IF_ERROR(set_common(changes, config, what, "torch_dtype", err));
    QR_RETURN_IF_ERROR(qr_json_edit_find(config->data, config->size, what, "text_config", &begin, &end, err));
    return begin < end ? apply_inside(changes, config, begin, end, what, err) : set_vocab(changes, config, what, err);
}
