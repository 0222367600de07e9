#include "runtime/model/model_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"

/* "<prefix><module>.<suffix>"; empty where that is too long for any tensor. */
static void tensor_name(const qrun_model *model, const char *prefix, qr_tensor_role role, int64_t layer,
                        const char *suffix, char name[QR_STORED_NAME_BYTES]) {
    char module[QR_STORED_NAME_BYTES];
    qr_family_module_name(model->family, prefix, role, layer, module, sizeof module);
    if (snprintf(name, QR_STORED_NAME_BYTES, "%s.%s", module, suffix) >= QR_STORED_NAME_BYTES) { name[0] = '\0'; }
}

/* ---- Found by role ----------------------------------------------------------------------------------------------- */

qrun_status qr_model_find_prefix(qrun_model *model, const qr_safetensors *source, qr_error *err) {
    char name[QR_STORED_NAME_BYTES];
    const char *prefix;
    for (size_t i = 0; (prefix = qr_family_prefix(model->family, i)) != NULL; i++) {
        tensor_name(model, prefix, QR_ROLE_EMBEDDING, 0, "weight", name);
        if (qr_safetensors_find(source, name) != NULL) {
            model->prefix = prefix;
            return QRUN_OK;
        }
    }
    tensor_name(model, "", QR_ROLE_EMBEDDING, 0, "weight", name);
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: has no tensor %s, which a %s model needs; is the download complete?",
                   model->folder, name, model->family->name);
}

/* Checkpoints with a prefix before the modules of the base model have the head with it or without it. */
static bool is_head_without_prefix(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role) {
    char name[QR_STORED_NAME_BYTES];
    if (role != QR_ROLE_HEAD || model->prefix[0] == '\0') { return false; }
    tensor_name(model, model->prefix, role, 0, "weight", name);
    return qr_safetensors_find(source, name) == NULL;
}

qrun_status qr_model_find_stored(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                 int64_t layer, const qr_weight_desc *desc, qr_stored_weight *stored, qr_error *err) {
    char module[QR_STORED_NAME_BYTES];
    const char *prefix = is_head_without_prefix(model, source, role) ? "" : model->prefix;
    qr_family_module_name(model->family, prefix, role, layer, module, sizeof module);
    return qr_stored_weight_find(source, module, desc->rows, desc->cols, qr_model_is_transposed(model, role), stored,
                                 err);
}

qrun_status qr_module_find_vector(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                  int64_t layer, const char *suffix, int64_t n, const qr_safetensors_tensor **tensor,
                                  qr_error *err) {
    char name[QR_STORED_NAME_BYTES];
    tensor_name(model, model->prefix, role, layer, suffix, name);
    return qr_safetensors_require(source, name, QR_DTYPES_FLOAT, 1, &n, tensor, err);
}

/* ---- Unknown ones ------------------------------------------------------------------------------------------------ */

/* Buffers of old checkpoints that hold nothing learned. */
static bool is_known_buffer(const char *name) {
    static const char *const buffers[] = {"self_attn.rotary_emb.inv_freq", "attn.bias", "attn.masked_bias"};
    for (size_t i = 0; i < QR_COUNT_OF(buffers); i++) {
        if (strcmp(name, buffers[i]) == 0) { return true; }
    }
    return false;
}

/* Whether `name` (what follows "model.layers.N.") is a tensor that this model reads. */
static bool is_expected(const qrun_model *model, const char *name) {
    for (qr_tensor_role role = QR_ROLE_ATTN_NORM; role < QR_ROLE_COUNT; role++) {
        const char *module = model->family->modules[role];
        if (module == NULL) { continue; }
        module = strstr(module, "%d") + strlen("%d.");
        const size_t length = strlen(module);
        if (strncmp(name, module, length) != 0 || name[length] != '.') { continue; }
        if (strcmp(name + length, ".bias") != 0) { return true; } /* weight and the parts of a quantised one */
        return role < QR_ROLE_Q ? model->family->layer_norm : qr_family_has_bias(&model->config, role);
    }
    return is_known_buffer(name);
}

qrun_status qr_model_refuse_unknown_tensors(const qrun_model *model, const qr_safetensors *source, qr_error *err) {
    const char *module = model->family->modules[QR_ROLE_ATTN_NORM];
    char stem[QR_STORED_NAME_BYTES]; /* "model.layers." */
    (void)snprintf(stem, sizeof stem, "%s%.*s", model->prefix, (int)(strstr(module, "%d") - module), module);
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const char *name = qr_safetensors_get(source, i)->name;
        if (strncmp(name, stem, strlen(stem)) != 0) { continue; }
        char *end;
        if (strtoll(name + strlen(stem), &end, 10) >= model->shape.n_layers) {
            return qr_fail(err, QRUN_ERROR_INPUT,
                           "%s: has %s, but config.json says num_hidden_layers %lld; do they belong together?",
                           model->folder, name, (long long)model->shape.n_layers);
        }
        if (*end != '.' || !is_expected(model, end + 1)) {
            return qr_fail(err, QRUN_ERROR_INPUT,
                           "%s: has %s, which a %s model with this config.json does not have; do they belong "
                           "together?",
                           model->folder, name, model->family->name);
        }
    }
    return QRUN_OK;
}

void qr_matrix_rows_to_f32(qr_dtype dtype, const void *data, int64_t rows, int64_t cols, bool transposed, int64_t first,
                           int64_t n_rows, float *dst) {
    if (!transposed) {
        qr_elements_to_f32(dtype, data, first * cols, n_rows * cols, dst);
        return;
    }
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            qr_elements_to_f32(dtype, data, c * rows + first + r, 1, dst + r * cols + c);
        }
    }
}
