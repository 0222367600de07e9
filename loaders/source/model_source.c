#include "loaders/source/model_source.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "loaders/files/gguf.h"
#include "loaders/source/gguf_model.h"
#include "loaders/source/published_names.h"

static qrun_status read_from_folder(const char *folder, const char *name, size_t max_bytes, qr_source_file *file,
                                    qr_error *err) {
    file->name = qr_path_join(folder, name);
    if (file->name == NULL) { return qr_fail_memory(err, name, strlen(folder)); }
    return qr_file_exists(file->name) ? qr_file_read(file->name, max_bytes, &file->text, &file->n_bytes, err) : QRUN_OK;
}

static qrun_status read_from_gguf(const char *path, const char *name, size_t max_bytes, qr_source_file *file,
                                  qr_error *err) {
    qr_gguf *gguf;
    qr_buffer text = {0}, label = {0};
    qr_buffer_append_format(&label, "%s (%s)", path, name);
    file->name = qr_buffer_take(&label);
    if (file->name == NULL) { return qr_fail_memory(err, name, strlen(path)); }
    QR_RETURN_IF_ERROR(qr_gguf_open(path, &gguf, err));
    qrun_status status = QRUN_OK;
    QR_TRY(qr_gguf_write_file(gguf, name, &text, err));
    QR_TRY(qr_gguf_check(gguf, err));
    if (!qr_buffer_ok(&text)) { QR_TRY(qr_fail_memory(err, file->name, text.size)); }
    if (text.size > max_bytes) {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: has more than %zu bytes", file->name, max_bytes));
    }
    if (text.data != NULL) {
        file->n_bytes = text.size;
        file->text = qr_buffer_take(&text);
    }
out:
    qr_buffer_free(&text);
    qr_gguf_close(gguf);
    return status;
}

qrun_status qr_source_read(const char *model, const char *name, size_t max_bytes, qr_source_file *file, qr_error *err) {
    *file = (qr_source_file){0};
    const qrun_status status = qr_gguf_recognise(model) ? read_from_gguf(model, name, max_bytes, file, err)
                                                        : read_from_folder(model, name, max_bytes, file, err);
    if (status != QRUN_OK) { qr_source_file_free(file); }
    return status;
}

void qr_source_file_free(qr_source_file *file) {
    qr_free(file->name);
    qr_free(file->text);
    *file = (qr_source_file){0};
}

qrun_status qr_source_read_json(const char *model, const char *name, size_t max_bytes, qr_json **root, char **what,
                                qr_error *err) {
    qr_source_file file;
    *root = NULL;
    if (what != NULL) { *what = NULL; }
    QR_RETURN_IF_ERROR(qr_source_read(model, name, max_bytes, &file, err));
    const qrun_status status =
        file.text != NULL ? qr_json_parse_python(file.text, file.n_bytes, file.name, root, err) : QRUN_OK;
    if (status == QRUN_OK && what != NULL) {
        *what = file.name;
        file.name = NULL;
    }
    qr_source_file_free(&file);
    return status;
}

bool qr_source_is_converted(const char *model) { return qr_gguf_recognise(model); }

qrun_status qr_source_has_tokenizer(const char *model, bool *found, qr_error *err) {
    if (qr_gguf_recognise(model)) { return qr_gguf_has_tokenizer(model, found, err); }
    char *path = qr_path_join(model, "tokenizer.json");
    if (path == NULL) { return qr_fail_memory(err, model, strlen(model)); }
    *found = qr_file_is_folder(model) && qr_file_exists(path);
    qr_free(path);
    return QRUN_OK;
}

qrun_status qr_source_open_tensors(const char *model, qr_safetensors **tensors, qr_error *err) {
    if (qr_gguf_recognise(model)) { return qr_gguf_open_tensors(model, tensors, err); }
    QR_RETURN_IF_ERROR(qr_safetensors_open(model, tensors, err));
    const qrun_status status = qr_published_names_translate(*tensors, err);
    if (status == QRUN_OK) { return QRUN_OK; }
    qr_safetensors_close(*tensors);
    *tensors = NULL;
    return status;
}

qrun_status qr_source_require_folder(const char *model, const char *what, qr_error *err) {
    if (!qr_gguf_recognise(model)) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_UNSUPPORTED,
        "%s: is a GGUF file, and %s needs the folder of the original model, with config.json and safetensors", model,
        what);
}
