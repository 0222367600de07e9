#include "runtime/folders/config_edit.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/json_edit.h"

enum { MAX_CONFIG_BYTES = 1 << 24 };

qrun_status qr_config_copy(const char *from, const char *to, qr_config_edit_fn edit, void *arg, qr_error *err) {
    char *path = qr_path_join(from, "config.json"), *out_path = qr_path_join(to, "config.json");
    char *text = NULL;
    size_t n_bytes;
    qr_buffer config = {0};
    qrun_status status = QRUN_OK;
    if (path == NULL || out_path == NULL) { QR_TRY(qr_fail_memory(err, "config.json", strlen(from))); }
    QR_TRY(qr_file_read(path, MAX_CONFIG_BYTES, &text, &n_bytes, err));
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
    QR_RETURN_IF_ERROR(set_member(config, what, "quantization_config", NULL, err));
    QR_RETURN_IF_ERROR(set_common(changes, config, what, "torch_dtype", err));
    QR_RETURN_IF_ERROR(qr_json_edit_find(config->data, config->size, what, "text_config", &begin, &end, err));
    return begin < end ? apply_inside(changes, config, begin, end, what, err) : set_vocab(changes, config, what, err);
}
