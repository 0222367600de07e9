#include "runtime/model/model_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/half.h"
#include "base/sizes.h"
#include "loaders/files/suffix.h"

/* "<prefix><module>.<suffix>"; empty where that is too long for any tensor. */
static void tensor_name(const qrun_model *model, const char *prefix, qr_tensor_role role, int64_t layer,
                        const char *suffix, char name[QR_STORED_NAME_BYTES]) {
    const size_t length = qr_family_tensor_name(model->family, prefix, role, layer, suffix, name, QR_STORED_NAME_BYTES);
    if (length >= QR_STORED_NAME_BYTES) { name[0] = '\0'; }
}

/* Whether files call the module the same. */
static bool has_same_name(const qr_family *family, const qr_family *renamed, qr_tensor_role role) {
    const qr_family *const both[] = {family, renamed};
    char names[2][QR_STORED_NAME_BYTES];
    if (family->modules[role] == NULL) { return false; }
    for (int i = 0; i < 2; i++) {
        qr_family_module_name(both[i], "", role, 0, names[i], sizeof names[i]);
        qr_family_name_in_files(both[i], names[i], sizeof names[i]);
    }
    return strcmp(names[0], names[1]) == 0;
}

/* Whether a tensor has a name of the other ones alone. */
static bool has_other_names(const qrun_model *model, const qr_safetensors *source, const qr_family *renamed) {
    for (qr_tensor_role role = 0; role < QR_ROLE_COUNT; role++) {
        const char *other = renamed->modules[role];
        const bool is_in_layers = other != NULL && strstr(other, "%d") != NULL && !qr_role_is_expert(role);
        if (!is_in_layers || has_same_name(model->family, renamed, role)) { continue; }
        for (int64_t l = 0; l < model->shape.n_layers; l++) {
            char name[QR_STORED_NAME_BYTES], module[QR_STORED_NAME_BYTES];
            if (!qr_family_layer_has(renamed, &model->config, l, role)) { continue; }
            qr_family_module_name(renamed, model->prefix, role, l, module, sizeof module);
            qr_family_name_in_files(renamed, module, sizeof module);
            const int n = snprintf(name, sizeof name, "%s.weight", module);
            if (n < QR_STORED_NAME_BYTES && qr_safetensors_find(source, name) != NULL) { return true; }
        }
    }
    return false;
}

static void choose_names(qrun_model *model, const qr_safetensors *source) {
    const qr_family *renamed = qr_family_renamed(model->family);
    for (; renamed != NULL && has_other_names(model, source, renamed); renamed = qr_family_renamed(renamed)) {
        model->family = renamed;
    }
}

/* ---- Found by role ----------------------------------------------------------------------------------------------- */

qrun_status qr_model_find_prefix(qrun_model *model, const qr_safetensors *source, qr_error *err) {
    char name[QR_STORED_NAME_BYTES];
    const char *prefix;
    for (size_t i = 0; (prefix = qr_family_prefix(model->family, i)) != NULL; i++) {
        tensor_name(model, prefix, QR_ROLE_EMBEDDING, 0, "weight", name);
        if (qr_safetensors_find(source, name) == NULL) { continue; }
        model->prefix = prefix;
        choose_names(model, source);
        return QRUN_OK;
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
    qr_family_name_in_files(model->family, module, sizeof module);
    return qr_stored_weight_find(source, module, desc->rows, desc->cols, qr_model_is_transposed(model, role),
                                 &model->config.quantization.packing, stored, err);
}

/* desc: of the whole matrix. */
static qrun_status find_expert(const qrun_model *model, const qr_safetensors *source, const qr_module *module,
                               const qr_weight_desc *desc, qr_stored_weight *stored, qr_error *err) {
    const qr_family *family = model->family;
    const char *stack = module->role == QR_ROLE_EXPERT_OUT ? family->stacked_out : family->stacked_gate_up;
    const qr_packing *packing = &model->config.quantization.packing;
    char name[QR_STORED_NAME_BYTES];
    if (stack != NULL) {
        qr_family_write_name(model->prefix, stack, module->layer, 0, name, sizeof name);
        qr_family_name_in_files(family, name, sizeof name);
        if (qr_stored_has_stack(source, name)) { /* gate and up are in one */
            const qr_stack of_layer = {.name = name,
                                       .n_experts = model->shape.n_experts,
                                       .n_parts = module->role == QR_ROLE_EXPERT_OUT ? 1 : qr_family_experts_in(family),
                                       .in_turn = family->stacks_in_turn,
                                       .may_be_wide = family->stacks_may_be_wide};
            return qr_stored_slice_find(source, &of_layer, module->expert, module->role == QR_ROLE_EXPERT_UP,
                                        desc->rows, desc->cols, packing, stored, err);
        }
    }
    qr_family_write_name(model->prefix, family->modules[module->role], module->layer, module->expert, name,
                         sizeof name);
    return qr_stored_weight_find(source, name, desc->rows, desc->cols, false, packing, stored, err);
}

qrun_status qr_module_find_stored(const qrun_model *model, const qr_safetensors *source, const qr_module *module,
                                  qr_stored_weight *stored, qr_error *err) {
    qr_weight_desc whole = module->matrix->desc;
    whole.rows = qr_module_stored_n(module);
    return qr_role_is_expert(module->role)
               ? find_expert(model, source, module, &whole, stored, err)
               : qr_model_find_stored(model, source, module->role, module->layer, &whole, stored, err);
}

static const qr_safetensors_tensor *find_table(const qrun_model *model, const qr_safetensors *source,
                                               qr_tensor_role role) {
    char name[QR_STORED_NAME_BYTES];
    tensor_name(model, is_head_without_prefix(model, source, role) ? "" : model->prefix, role, 0, "weight", name);
    return qr_safetensors_find(source, name);
}

static bool is_equal(const qr_safetensors_tensor *a, const qr_safetensors_tensor *b) {
    return a->dtype == b->dtype && a->n_dims == b->n_dims &&
           memcmp(a->dims, b->dims, (size_t)a->n_dims * sizeof *a->dims) == 0 &&
           memcmp(a->data, b->data, a->n_bytes) == 0;
}

qrun_status qr_model_settle_head(qrun_model *model, const qr_safetensors *source, qr_error *err) {
    if (!model->shape.tied_head) { return QRUN_OK; }
    const qr_safetensors_tensor *head = find_table(model, source, QR_ROLE_HEAD);
    const qr_safetensors_tensor *embedding = find_table(model, source, QR_ROLE_EMBEDDING);
    if (head == NULL || embedding == NULL) { return QRUN_OK; }
    model->shape.tied_head = is_equal(head, embedding);
    return qr_safetensors_finish(source, head, err);
}

void qr_model_settle_choice_bias(qrun_model *model, const qr_safetensors *source) {
    qr_expert_config *experts = &model->config.experts;
    char name[QR_STORED_NAME_BYTES];
    if (!model->family->choice_bias_may_lack || !experts->has_choice_bias) { return; }
    experts->has_choice_bias = false;
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        tensor_name(model, model->prefix, QR_ROLE_CHOICE_BIAS, l, "weight", name);
        experts->has_choice_bias |= experts->layer_has_experts[l] && qr_safetensors_find(source, name) != NULL;
    }
}

/* The name of a part of a convolution; empty where that is too long for any tensor. */
static void conv_part_name(const qrun_model *model, int64_t layer, int part, char name[QR_STORED_NAME_BYTES]) {
    qr_family_write_name(model->prefix, model->family->conv_parts[part], layer, 0, name, QR_STORED_NAME_BYTES);
    const size_t length = strlen(name);
    const int n = snprintf(name + length, QR_STORED_NAME_BYTES - length, ".weight");
    if (length + (size_t)n >= QR_STORED_NAME_BYTES) { name[0] = '\0'; }
}

static bool has_conv_parts(const qrun_model *model, const qr_safetensors *source, int64_t layer) {
    char name[QR_STORED_NAME_BYTES];
    if (model->family->conv_parts[0] == NULL) { return false; }
    conv_part_name(model, layer, 0, name);
    return qr_safetensors_find(source, name) != NULL;
}

/* Together they have all channels. Where they are cut is not asked: transformers writes three that are alike, and
 * published folders have those of q, of k and of v. */
static qrun_status find_conv_parts(const qrun_model *model, const qr_safetensors *source, int64_t layer,
                                   qr_stored_vector *vector, qr_error *err) {
    char name[QR_STORED_NAME_BYTES];
    int64_t dims[3], n_left;
    const int n_dims = qr_model_conv_dims(model, dims);
    n_left = dims[0];
    vector->n_parts = QR_CONV_PARTS;
    for (int i = 0; i < QR_CONV_PARTS; i++) {
        conv_part_name(model, layer, i, name);
        const qr_safetensors_tensor *found = qr_safetensors_find(source, name);
        const int64_t n_rest = QR_CONV_PARTS - 1 - i, most = n_left - n_rest;
        dims[0] = i == QR_CONV_PARTS - 1 ? n_left : most;
        if (i < QR_CONV_PARTS - 1 && found != NULL && found->n_dims == n_dims && found->dims[0] >= 1) {
            dims[0] = qr_min(found->dims[0], most);
        }
        QR_RETURN_IF_ERROR(qr_safetensors_require(source, name, QR_DTYPES_FLOAT, n_dims, dims, &vector->parts[i], err));
        n_left -= dims[0];
    }
    return QRUN_OK;
}

qrun_status qr_module_find_vector(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                  int64_t layer, const char *suffix, int64_t n, qr_stored_vector *vector,
                                  qr_error *err) {
    char name[QR_STORED_NAME_BYTES];
    const qr_safetensors_tensor **tensor = &vector->parts[0];
    *vector = (qr_stored_vector){.n_parts = 1};
    tensor_name(model, model->prefix, role, layer, suffix, name);
    if (role == QR_ROLE_CONV && has_conv_parts(model, source, layer)) {
        return find_conv_parts(model, source, layer, vector, err);
    }
    if (role == QR_ROLE_CONV) {
        int64_t dims[3];
        const int n_dims = qr_model_conv_dims(model, dims);
        return qr_safetensors_require(source, name, QR_DTYPES_FLOAT, n_dims, dims, tensor, err);
    }
    if (role == QR_ROLE_RECURRENT_A_LOG && model->family->a_log_is_wide) {
        int64_t dims[QR_MAX_DIMS];
        const int n_dims = qr_wide_a_log_dims(n, dims);
        return qr_safetensors_require(source, name, QR_DTYPES_FLOAT, n_dims, dims, tensor, err);
    }
    if (qr_role_is_expert_bias(role)) {
        const int64_t n_experts = model->shape.n_experts;
        const int64_t dims[2] = {n_experts, n / n_experts * qr_vector_step(model, role)};
        return qr_safetensors_require(source, name, QR_DTYPES_FLOAT, 2, dims, tensor, err);
    }
    if (qr_role_is_stream_mix(role)) {
        int64_t dims[QR_MAX_DIMS];
        const int n_dims = qr_stream_mix_dims(model, role, n, dims);
        return qr_safetensors_require(source, name, QR_DTYPES_FLOAT, n_dims, dims, tensor, err);
    }
    const int64_t row[2] = {1, n};
    const bool is_row = role == QR_ROLE_CHOICE_BIAS && model->family->choice_bias_is_row;
    const int n_dims = qr_role_is_constant(role) ? 0 : is_row ? 2 : 1;
    return qr_safetensors_require(source, name, QR_DTYPES_FLOAT, n_dims, is_row ? row : &n, tensor, err);
}

/* ---- Unknown ones ------------------------------------------------------------------------------------------------ */

/* Buffers of old checkpoints that hold nothing learned. */
static bool is_known_buffer(const char *name) {
    static const char *const buffers[] = {"self_attn.rotary_emb.inv_freq", "attn.bias",      "attn.masked_bias",
                                          "attention.rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"};
    for (size_t i = 0; i < QR_COUNT_OF(buffers); i++) {
        if (strcmp(name, buffers[i]) == 0) { return true; }
    }
    return false;
}

/* Scales of a K/V cache of 8 bits: how it is held is asked for when a session is made. */
static bool is_cache_scale(const qrun_model *model, const char *name) {
    static const char *const names[] = {"self_attn.q_scale", "self_attn.k_scale", "self_attn.v_scale",
                                        "self_attn.k_zero_point", "self_attn.v_zero_point"};
    if (model->config.quantization.packing.kind < QR_PACKING_INT) { return false; }
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) { return true; }
    }
    return false;
}

/* What checkpoints keep of layers that read another's keys and values, and nobody uses. */
static bool is_unused_kv(const qrun_model *model, int64_t layer, const char *name) {
    static const char *const modules[] = {"self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm."};
    if (qr_model_config_kv_owner(&model->config, layer) == layer) { return false; }
    for (size_t i = 0; i < QR_COUNT_OF(modules); i++) {
        if (strncmp(name, modules[i], strlen(modules[i])) == 0) { return true; }
    }
    return false;
}

/* A norm that checkpoints have of all layers, and those with experts alone read. */
static bool is_unused_norm(const qrun_model *model, int64_t layer, const char *name) {
    const qr_family *family = model->family;
    char norm[QR_STORED_NAME_BYTES];
    if (!family->norms_experts_alone || qr_family_layer_has(family, &model->config, layer, QR_ROLE_POST_MLP_NORM)) {
        return false;
    }
    qr_family_tensor_name(family, "", QR_ROLE_POST_MLP_NORM, layer, "weight", norm, sizeof norm);
    return strcmp(name, strstr(norm, "post_mlp")) == 0;
}

/* A scale of residual streams that checkpoints have and config.json says not to use. */
static bool is_unused_scale(const qrun_model *model, const char *name) {
    const char *module = model->family->modules[QR_ROLE_STREAM_SCALE];
    return module != NULL && !model->config.streams.scales && strcmp(name, qr_family_name_in_layer(module)) == 0;
}

/* What follows `module` in `name`, a number below n_experts where the module has %d; NULL: something else is there. */
static const char *after_module(const char *module, const char *name, int64_t n_experts) {
    const char *number = strstr(module, "%d");
    const size_t length = number != NULL ? (size_t)(number - module) : strlen(module);
    if (strncmp(name, module, length) != 0) { return NULL; }
    name += length;
    if (number == NULL) { return name; }
    const size_t n_digits = strspn(name, "0123456789");
    if (n_digits == 0 || n_digits > 4 || strtoll(name, NULL, 10) >= n_experts) { return NULL; }
    return after_module(number + 2, name + n_digits, n_experts);
}

/* A stack of experts, or its scales. */
static bool is_stack(const qr_family *family, bool is_packed, const char *name) {
    static const char *const endings[] = {"", "_scale_inv", "_blocks", "_scales"};
    const char *const stacks[] = {family->stacked_gate_up, family->stacked_out};
    for (size_t i = 0; stacks[0] != NULL && i < QR_COUNT_OF(stacks); i++) {
        char stack[QR_STORED_NAME_BYTES];
        (void)snprintf(stack, sizeof stack, "%s", qr_family_name_in_layer(stacks[i]));
        qr_family_name_in_files(family, stack, sizeof stack);
        const char *end = after_module(stack, name, 0);
        if (end == NULL) { continue; }
        for (size_t k = 0; k < (is_packed ? QR_COUNT_OF(endings) : 1); k++) {
            if (strcmp(end, endings[k]) == 0) { return true; }
        }
    }
    return false;
}

/* A part of a convolution, which the model reads in place of the whole. */
static bool is_conv_part(const qrun_model *model, int64_t layer, const char *name) {
    const qr_family *family = model->family;
    if (family->conv_parts[0] == NULL || !qr_family_layer_has(family, &model->config, layer, QR_ROLE_CONV)) {
        return false;
    }
    for (int i = 0; i < QR_CONV_PARTS; i++) {
        const char *end = after_module(qr_family_name_in_layer(family->conv_parts[i]), name, 0);
        if (end != NULL && strcmp(end, ".weight") == 0) { return true; }
    }
    return false;
}

/* Whether `name` (what follows "model.layers.N.") is a tensor that this model reads. */
static bool is_expected(const qrun_model *model, int64_t layer, const char *name) {
    const qr_family *family = model->family;
    const qr_model_config *config = &model->config;
    for (qr_tensor_role role = QR_ROLE_ATTN_NORM; role < QR_ROLE_COUNT; role++) {
        if (qr_role_is_of_model(role) || !qr_family_layer_has(family, config, layer, role)) { continue; }
        char module[QR_STORED_NAME_BYTES];
        (void)snprintf(module, sizeof module, "%s", qr_family_name_in_layer(family->modules[role]));
        qr_family_name_in_files(family, module, sizeof module);
        const char *end = after_module(module, name, config->experts.n_experts);
        if (end == NULL) { continue; }
        if (qr_role_is_bare(role) && *end == '\0') { return true; }
        if (qr_role_is_bare(role) || *end != '.') { continue; }
        if (strcmp(end, ".bias") != 0) { return true; } /* weight and the parts of a quantised one */
        if (role < QR_ROLE_Q ? family->norm_biases : qr_family_has_bias(config, role)) { return true; }
    }
    const bool has_experts = qr_family_layer_has(family, config, layer, QR_ROLE_ROUTER);
    const bool is_packed = config->quantization.packing.kind != QR_PACKING_NONE;
    return (has_experts && is_stack(family, is_packed, name)) || is_known_buffer(name) || is_cache_scale(model, name) ||
           is_unused_kv(model, layer, name) || is_unused_norm(model, layer, name) || is_unused_scale(model, name) ||
           is_conv_part(model, layer, name);
}

/* The layer of a tensor inside the layers, and what follows its number and a dot; NULL where it is not inside. */
static const char *name_in_layer(const char *stem, const char *name, int64_t *layer) {
    char *end;
    *layer = -1;
    if (strncmp(name, stem, strlen(stem)) != 0) { return NULL; }
    *layer = strtoll(name + strlen(stem), &end, 10);
    return *layer >= 0 && *end == '.' ? end + 1 : "";
}

/* "model.layers." with the checkpoint's prefix. */
static void layers_stem(const qrun_model *model, char stem[QR_STORED_NAME_BYTES]) {
    const char *module = model->family->modules[QR_ROLE_ATTN_OUT];
    (void)snprintf(stem, QR_STORED_NAME_BYTES, "%s%.*s", model->prefix, (int)(strstr(module, "%d") - module), module);
}

/* Whether it is a layer after the last one, which predicts further tokens and is not read. */
static bool is_ahead(const qrun_model *model, int64_t layer) {
    return layer >= model->shape.n_layers && layer < model->shape.n_layers + model->config.n_layers_ahead;
}

static bool reads_tensor(const qrun_model *model, const char *name) {
    char stem[QR_STORED_NAME_BYTES], module[QR_STORED_NAME_BYTES];
    layers_stem(model, stem);
    int64_t layer;
    if (name_in_layer(stem, name, &layer) != NULL) { return !is_ahead(model, layer); }
    for (qr_tensor_role role = QR_ROLE_EMBEDDING; role <= QR_ROLE_STREAM_OUT_3; role++) {
        if (model->family->modules[role] == NULL || !qr_role_is_of_model(role)) { continue; }
        const char *const prefixes[] = {model->prefix, role == QR_ROLE_HEAD ? "" : model->prefix};
        for (size_t i = 0; i < QR_COUNT_OF(prefixes); i++) {
            qr_family_module_name(model->family, prefixes[i], role, 0, module, sizeof module);
            const size_t length = strlen(module);
            if (strncmp(name, module, length) == 0 && name[length] == '.') { return true; }
        }
    }
    return false;
}

/* What a tensor that the model does not read belongs to: "model.visual", "mtp", "model.layers.46". */
static size_t part_bytes(const char *name) {
    static const char layers[] = "model.layers.";
    const size_t first = strcspn(name, "."), n_layers = strlen(layers);
    if (strncmp(name, layers, n_layers) == 0) { return n_layers + strcspn(name + n_layers, "."); }
    if (first != strlen("model") || memcmp(name, "model", first) != 0 || name[first] == '\0') { return first; }
    return first + 1 + strcspn(name + first + 1, ".");
}

bool qr_model_next_left_out(const qrun_model *model, const qr_safetensors *source, size_t *at, qr_left_out *part) {
    *part = (qr_left_out){0};
    for (; *at < qr_safetensors_count(source); ++*at) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, *at);
        const size_t n_bytes = part_bytes(tensor->name);
        const bool is_of_part =
            part->n_tensors > 0 && n_bytes == part->name_bytes && memcmp(tensor->name, part->name, n_bytes) == 0;
        const bool is_read = reads_tensor(model, tensor->name);
        if (part->n_tensors > 0 && (is_read || !is_of_part)) { return true; }
        if (is_read) { continue; }
        part->name = tensor->name;
        part->name_bytes = n_bytes;
        part->n_tensors++;
        part->total_bytes += (int64_t)tensor->n_bytes;
    }
    return part->n_tensors > 0;
}

/* Whether the list "a, b" has the name. */
static bool has_name(const char *names, const qr_left_out *part) {
    for (const char *at = names; at != NULL; at = strstr(at, ", ")) {
        if (at != names) { at += strlen(", "); }
        if (strcspn(at, ",") == part->name_bytes && memcmp(at, part->name, part->name_bytes) == 0) { return true; }
    }
    return false;
}

enum { MOST_NAMED = 8 };

qrun_status qr_model_name_left_out(qrun_model *model, const qr_safetensors *source, qr_error *err) {
    qr_buffer names = {0};
    qr_left_out part;
    size_t at = 0;
    int n_named = 0;
    while (qr_model_next_left_out(model, source, &at, &part)) {
        if (has_name(names.data, &part)) { continue; } /* its tensors are in several files */
        if (++n_named > MOST_NAMED) {
            qr_buffer_append_text(&names, ", …");
            break;
        }
        qr_buffer_append_format(&names, "%s%.*s", names.size > 0 ? ", " : "", (int)part.name_bytes, part.name);
    }
    if (names.size == 0) { return QRUN_OK; }
    const size_t n_bytes = names.size;
    model->left_out = qr_buffer_take(&names);
    return model->left_out != NULL ? QRUN_OK : qr_fail_memory(err, "the names of what is left out", n_bytes);
}

bool qr_model_is_idle_bias(const qrun_model *model, const qr_safetensors_tensor *tensor) {
    char stem[QR_STORED_NAME_BYTES];
    int64_t layer;
    layers_stem(model, stem);
    const char *end = name_in_layer(stem, tensor->name, &layer);
    if (model->config.quantization.packing.kind != QR_PACKING_GPTQ || end == NULL || layer >= model->shape.n_layers ||
        !qr_ends_with(end, ".bias") || is_expected(model, layer, end)) {
        return false;
    }
    for (size_t i = 0; i < tensor->n_bytes; i++) {
        if (tensor->data[i] != 0) { return false; }
    }
    return true;
}

qrun_status qr_model_refuse_unknown_tensors(const qrun_model *model, const qr_safetensors *source, qr_error *err) {
    char stem[QR_STORED_NAME_BYTES];
    layers_stem(model, stem);
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        int64_t layer;
        const char *name = tensor->name, *end = name_in_layer(stem, name, &layer);
        if (end == NULL) { continue; }
        if (is_ahead(model, layer)) { continue; }
        if (layer >= model->shape.n_layers) {
            return qr_fail(err, QRUN_ERROR_INPUT,
                           "%s: has %s, but config.json says num_hidden_layers %lld; do they belong together?",
                           model->folder, name, (long long)model->shape.n_layers);
        }
        if (*end == '\0' || (!is_expected(model, layer, end) && !qr_model_is_idle_bias(model, tensor))) {
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

void qr_stored_rows_to_f32(const qr_stored_weight *stored, bool transposed, int64_t first, int64_t n_rows, float *dst) {
    const int64_t rows = stored->desc.rows, cols = stored->desc.cols;
    const qr_dtype dtype = stored->codes->dtype;
    if (stored->wide_rows == 0) {
        qr_matrix_rows_to_f32(dtype, stored->data, rows, cols, transposed, first, n_rows, dst);
        return;
    }
    for (int64_t r = 0; r < n_rows; r++) {
        const int64_t column = stored->first_row + (first + r) * stored->row_step;
        for (int64_t c = 0; c < cols; c++) {
            qr_elements_to_f32(dtype, stored->data, c * stored->wide_rows + column, 1, dst + r * cols + c);
        }
    }
}

const char *qr_source_block_type(const qr_safetensors *source) {
    int64_t n_bytes[QR_DTYPE_COUNT] = {0};
    int most = -1;
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        if ((QR_DTYPES_BLOCKS & QR_DTYPE_BIT(tensor->dtype)) == 0) { continue; }
        n_bytes[tensor->dtype] += (int64_t)tensor->n_bytes;
        if (most < 0 || n_bytes[tensor->dtype] > n_bytes[most]) { most = (int)tensor->dtype; }
    }
    return most < 0 ? NULL : qr_dtype_name((qr_dtype)most);
}
