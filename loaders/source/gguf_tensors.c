/* The tensors of a GGUF file under the names of transformers. */
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/source/gguf_model.h"
#include "loaders/source/gguf_names.h"

/* They are a part of config.json. */
static bool is_rotary(qr_gguf_text name) {
    return qr_gguf_text_is(name, "rope_freqs.weight") || qr_gguf_text_is(name, "rope_factors_long.weight") ||
           qr_gguf_text_is(name, "rope_factors_short.weight");
}

static qrun_status read_head_dim(const qr_gguf *file, const qr_gguf_arch *arch, int64_t *head_dim, qr_error *err) {
    int64_t hidden = 0, n_heads = 0;
    *head_dim = 0;
    if (!arch->pairs_rows) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "embedding_length", 1, 1 << 20, &hidden, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "attention.head_count", 1, 1 << 12, &n_heads, err));
    if (n_heads > 0) { *head_dim = hidden / n_heads; }
    return qr_gguf_get_arch_int(file, arch, "attention.key_length", 1, 1 << 12, head_dim, err);
}

static qrun_status use_tensor(const qr_gguf *file, const qr_gguf_arch *arch, const qr_gguf_tensor *from,
                              int64_t head_dim, char name[QR_GGUF_NAME_BYTES], qr_safetensors_tensor *tensor,
                              qr_error *err) {
    char own[QR_GGUF_NAME_BYTES];
    const size_t n = from->name.n < sizeof own ? from->name.n : sizeof own - 1;
    memcpy(own, from->name.bytes, n);
    own[n] = '\0';
    if (!qr_gguf_name_to_hf(arch, own, name)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: tensor %s is none of those that a %s model has",
                       qr_gguf_path(file), own, arch->name);
    }
    *tensor = (qr_safetensors_tensor){
        .name = name, .dtype = from->dtype, .n_dims = from->n_dims, .data = from->data, .n_bytes = from->n_bytes};
    for (int i = 0; i < from->n_dims; i++) { tensor->dims[i] = from->dims[i]; }
    if (!qr_gguf_has_paired_rows(arch, name)) { return QRUN_OK; }
    if (head_dim <= 0 || head_dim % 2 != 0 || from->n_dims == 0 || from->dims[0] % head_dim != 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor %s has %lld rows, no multiple of heads of %lld",
                       qr_gguf_path(file), own, (long long)(from->n_dims > 0 ? from->dims[0] : 1), (long long)head_dim);
    }
    tensor->head_dim = head_dim;
    return QRUN_OK;
}

qrun_status qr_gguf_open_tensors(const char *path, qr_safetensors **tensors, qr_error *err) {
    qr_gguf *file;
    const qr_gguf_arch *arch;
    int64_t head_dim;
    qr_safetensors_tensor *list = NULL;
    char *names = NULL;
    size_t n = 0;
    *tensors = NULL;
    QR_RETURN_IF_ERROR(qr_gguf_open(path, &file, err));
    const size_t n_most = qr_gguf_tensor_count(file);
    qrun_status status = QRUN_OK;
    QR_TRY(qr_gguf_read_arch(file, &arch, err));
    QR_TRY(read_head_dim(file, arch, &head_dim, err));
    list = qr_alloc_array(n_most, sizeof *list);
    names = qr_alloc_array(n_most, QR_GGUF_NAME_BYTES);
    if (list == NULL || names == NULL) { QR_TRY(qr_fail_memory(err, path, n_most * sizeof *list)); }
    for (size_t i = 0; i < n_most; i++) {
        const qr_gguf_tensor *from = qr_gguf_get_tensor(file, i);
        if (is_rotary(from->name)) { continue; }
        QR_TRY(use_tensor(file, arch, from, head_dim, names + n * QR_GGUF_NAME_BYTES, &list[n], err));
        n++;
    }
    qr_file_map map = qr_gguf_take_map(file);
    status = qr_safetensors_from_map(path, &map, list, n, names, tensors, err);
    list = NULL;
    names = NULL;
out:
    qr_free(list);
    qr_free(names);
    qr_gguf_close(file);
    return status;
}
