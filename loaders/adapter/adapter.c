#include "loaders/adapter/adapter.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/hub.h"
#include "loaders/files/suffix.h"

static const char PREFIX[] = "base_model.model.";

/* What the end of a tensor's name says about it. */
typedef enum tensor_role {
    ROLE_A,
    ROLE_B,
    ROLE_EMBEDDING_A,
    ROLE_EMBEDDING_B,
    ROLE_MAGNITUDE,
    ROLE_PARAMETER
} tensor_role;

static const struct {
    const char *suffix;
    tensor_role role;
} suffixes[] = {
    {".lora_A.weight", ROLE_A},
    {".lora_B.weight", ROLE_B},
    {".lora_embedding_A", ROLE_EMBEDDING_A},
    {".lora_embedding_B", ROLE_EMBEDDING_B},
    {".lora_magnitude_vector", ROLE_MAGNITUDE},
};

static qrun_status fail_tensor(const qr_adapter *adapter, const qr_safetensors_tensor *tensor, const char *problem,
                               qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor \"%.200s\" %s", qr_safetensors_shard_path(adapter->file, 0),
                   tensor->name, problem);
}

/* ---- sorting the tensors into modules ---------------------------------------------------------------------------- */

/* Splits "base_model.model.<module><suffix>" into a role and a module path (a new string). */
static qrun_status split_name(const qr_adapter *adapter, const qr_safetensors_tensor *tensor, tensor_role *role,
                              char **module, qr_error *err) {
    *module = NULL;
    if (strncmp(tensor->name, PREFIX, sizeof PREFIX - 1) != 0) {
        return fail_tensor(adapter, tensor, "does not begin with \"base_model.model.\" as PEFT writes it", err);
    }
    const char *rest = tensor->name + sizeof PREFIX - 1;
    size_t length = strlen(rest);
    *role = ROLE_PARAMETER;
    for (size_t i = 0; i < QR_COUNT_OF(suffixes); i++) {
        if (!qr_ends_with(rest, suffixes[i].suffix)) { continue; }
        *role = suffixes[i].role;
        length -= strlen(suffixes[i].suffix);
    }
    if (*role == ROLE_PARAMETER && strstr(rest, "lora_") != NULL) {
        return fail_tensor(adapter, tensor, "is not a tensor of a LoRA adapter", err);
    }
    *module = qr_strndup(rest, length);
    return *module != NULL ? QRUN_OK : qr_fail_memory(err, tensor->name, length);
}

/* PEFT stores the weights of an embedding or a head next to its LoRA, under the wrapper's name. True: these are such.
 */
static bool drop_wrapper(char *parameter) {
    static const char wrapper[] = ".base_layer";
    char *found = strstr(parameter, ".base_layer.");
    if (found != NULL) { memmove(found, found + sizeof wrapper - 1, strlen(found + sizeof wrapper - 1) + 1); }
    return found != NULL;
}

static bool is_embedding_weight(const char *parameter) {
    static const char *const names[] = {"lm_head.weight", "embed_tokens.weight", "wte.weight"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (qr_is_last_part(parameter, names[i])) { return true; }
    }
    return false;
}

/* Takes over `name`. */
static qrun_status add_parameter(qr_adapter *adapter, const qr_safetensors_tensor *tensor, char *name, qr_error *err) {
    const bool is_base = drop_wrapper(name);
    bool saved = is_embedding_weight(name);
    qrun_status status = saved ? QRUN_OK : qr_adapter_config_saves(&adapter->config, name, &saved, err);
    if (status == QRUN_OK && !saved && qr_is_last_part(name, "bias")) {
        status = qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                         "%s: an adapter with trained biases (\"bias\" of adapter_config.json) is not supported",
                         qr_safetensors_shard_path(adapter->file, 0));
    }
    if (status == QRUN_OK && !saved) {
        status = fail_tensor(adapter, tensor, "is a whole parameter that \"modules_to_save\" does not name", err);
    }
    if (status == QRUN_OK && !qr_array_reserve(&adapter->parameters, &adapter->parameters_capacity,
                                               adapter->n_parameters + 1, sizeof *adapter->parameters)) {
        status = qr_fail_memory(err, tensor->name, sizeof *adapter->parameters);
    }
    if (status != QRUN_OK) {
        qr_free(name);
        return status;
    }
    adapter->parameters[adapter->n_parameters++] = (qr_adapter_parameter){name, tensor, is_base};
    return QRUN_OK;
}

/* A module with one tensor each; those of the same name are merged later. Takes over `name`. */
static qrun_status add_piece(qr_adapter *adapter, const qr_safetensors_tensor *tensor, tensor_role role, char *name,
                             qr_error *err) {
    if (!qr_array_reserve(&adapter->modules, &adapter->modules_capacity, adapter->n_modules + 1,
                          sizeof *adapter->modules)) {
        qr_free(name);
        return qr_fail_memory(err, tensor->name, sizeof *adapter->modules);
    }
    qr_adapter_module *piece = &adapter->modules[adapter->n_modules++];
    *piece = (qr_adapter_module){.name = name};
    piece->is_embedding = role == ROLE_EMBEDDING_A || role == ROLE_EMBEDDING_B;
    if (role == ROLE_A || role == ROLE_EMBEDDING_A) {
        piece->a = tensor;
    } else if (role == ROLE_MAGNITUDE) {
        piece->magnitude = tensor;
    } else {
        piece->b = tensor;
    }
    return QRUN_OK;
}

static qrun_status sort_tensor(qr_adapter *adapter, const qr_safetensors_tensor *tensor, qr_error *err) {
    tensor_role role = ROLE_PARAMETER;
    char *name;
    if ((QR_DTYPES_FLOAT & QR_DTYPE_BIT(tensor->dtype)) == 0) {
        return fail_tensor(adapter, tensor, "is not F32, F16 or BF16", err);
    }
    QR_RETURN_IF_ERROR(split_name(adapter, tensor, &role, &name, err));
    return role == ROLE_PARAMETER ? add_parameter(adapter, tensor, name, err)
                                  : add_piece(adapter, tensor, role, name, err);
}

static int compare_modules(const void *a, const void *b) {
    const qr_adapter_module *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int compare_parameters(const void *a, const void *b) {
    const qr_adapter_parameter *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static qrun_status merge_piece(const qr_adapter *adapter, qr_adapter_module *module, const qr_adapter_module *piece,
                               qr_error *err) {
    const bool clash = (module->a != NULL && piece->a != NULL) || (module->b != NULL && piece->b != NULL);
    if (clash) {
        return fail_tensor(adapter, piece->a != NULL ? piece->a : piece->b,
                           "exists both as lora_… and as lora_embedding_…", err);
    }
    module->is_embedding |= piece->is_embedding;
    if (piece->a != NULL) { module->a = piece->a; }
    if (piece->b != NULL) { module->b = piece->b; }
    if (piece->magnitude != NULL) { module->magnitude = piece->magnitude; }
    return QRUN_OK;
}

static qrun_status merge_modules(qr_adapter *adapter, qr_error *err) {
    if (adapter->n_modules == 0) { return QRUN_OK; }
    qsort(adapter->modules, adapter->n_modules, sizeof *adapter->modules, compare_modules);
    const size_t n_pieces = adapter->n_modules;
    size_t n = 1;
    qrun_status status = QRUN_OK;
    for (size_t i = 1; i < n_pieces; i++) {
        qr_adapter_module *piece = &adapter->modules[i], *module = &adapter->modules[n - 1];
        if (strcmp(module->name, piece->name) != 0) {
            adapter->modules[n++] = *piece;
            continue;
        }
        if (status == QRUN_OK) { status = merge_piece(adapter, module, piece, err); }
        qr_free(piece->name);
    }
    adapter->n_modules = n;
    return status;
}

/* ---- checking the modules ---------------------------------------------------------------------------------------- */

static qrun_status fail_module(const qr_adapter *adapter, const qr_adapter_module *module, const char *problem,
                               qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: module \"%.200s\" %s", qr_safetensors_shard_path(adapter->file, 0),
                   module->name, problem);
}

static qrun_status check_shapes(const qr_adapter *adapter, qr_adapter_module *module, qr_error *err) {
    const int64_t a_dims[2] = {module->n_stacked * module->rank, -1};
    const int64_t b_dims[2] = {-1, module->n_stacked * module->rank};
    const qr_safetensors_tensor *found;
    QR_RETURN_IF_ERROR(qr_safetensors_require(adapter->file, module->a->name, QR_DTYPES_FLOAT, 2, a_dims, &found, err));
    QR_RETURN_IF_ERROR(qr_safetensors_require(adapter->file, module->b->name, QR_DTYPES_FLOAT, 2, b_dims, &found, err));
    module->in_features = module->a->dims[1];
    module->out_features = module->b->dims[0];
    if (module->in_features == 0 || module->out_features == 0) {
        return fail_module(adapter, module, "has a matrix without elements", err);
    }
    if (module->magnitude == NULL) { return QRUN_OK; }
    return qr_safetensors_require(adapter->file, module->magnitude->name, QR_DTYPES_FLOAT, 1, &module->out_features,
                                  &found, err);
}

/* Whether there is LoRA on two parameters of this module. */
static qrun_status find_other(const qr_adapter *adapter, const qr_adapter_module *module, bool *is_one_of_two,
                              qr_error *err) {
    static const char wrapped[] = ".base_layer";
    qr_buffer inner = {0};
    qr_buffer_append_format(&inner, "%s%s", module->name, wrapped);
    const bool ok = qr_buffer_ok(&inner);
    *is_one_of_two = qr_ends_with(module->name, wrapped) || (ok && qr_adapter_find(adapter, inner.data) != NULL);
    qr_buffer_free(&inner);
    return ok ? QRUN_OK : qr_fail_memory(err, module->name, strlen(module->name));
}

/* What the LoRA of a module is on: the module, or a parameter of it. An entry of target_parameters that is a name alone
 * may be of any module. */
static qrun_status find_target(const qr_adapter *adapter, const qr_adapter_module *module, const char **parameter,
                               qr_error *err) {
    const qr_adapter_config *config = &adapter->config;
    bool targeted, two = false;
    *parameter = NULL;
    if (config->target_parameters.n_names > 0) {
        QR_RETURN_IF_ERROR(find_other(adapter, module, &two, err));
        *parameter = qr_adapter_config_parameter(config, module->name, two, false);
    }
    if (*parameter != NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_adapter_config_targets(config, module->name, &targeted, err));
    if (targeted) { return QRUN_OK; }
    if (config->target_parameters.n_names > 0) {
        *parameter = qr_adapter_config_parameter(config, module->name, two, true);
    }
    if (*parameter != NULL) { return QRUN_OK; }
    return fail_module(adapter, module, "has LoRA tensors, and adapter_config.json does not target it", err);
}

static qrun_status check_module(const qr_adapter *adapter, qr_adapter_module *module, qr_error *err) {
    const qr_adapter_config *config = &adapter->config;
    if (module->a == NULL) { return fail_module(adapter, module, "has no tensor lora_A", err); }
    if (module->b == NULL) { return fail_module(adapter, module, "has no tensor lora_B", err); }
    if (config->use_dora != (module->magnitude != NULL)) {
        return fail_module(adapter, module,
                           config->use_dora ? "has no lora_magnitude_vector, though the config says use_dora"
                                            : "has a lora_magnitude_vector, though the config does not say use_dora",
                           err);
    }
    const char *parameter;
    QR_RETURN_IF_ERROR(find_target(adapter, module, &parameter, err));
    QR_RETURN_IF_ERROR(
        qr_adapter_config_scale(config, module->name, parameter, &module->rank, &module->alpha, &module->scale, err));
    module->n_stacked = parameter != NULL && module->a->n_dims == 2 ? module->a->dims[0] / module->rank : 1;
    if (module->n_stacked < 1) { module->n_stacked = 1; }
    return check_shapes(adapter, module, err);
}

/* Weights under a wrapper's name are what LoRA is added to only where there is LoRA. */
static qrun_status check_base(const qr_adapter *adapter, qr_adapter_parameter *parameter, qr_error *err) {
    const char *dot = strrchr(parameter->name, '.');
    const size_t length = dot != NULL ? (size_t)(dot - parameter->name) : 0;
    char *module = qr_strndup(parameter->name, length);
    if (module == NULL) { return qr_fail_memory(err, parameter->name, length); }
    parameter->is_base = parameter->is_base && qr_adapter_find(adapter, module) != NULL;
    qr_free(module);
    return QRUN_OK;
}

static qrun_status read_tensors(qr_adapter *adapter, qr_error *err) {
    for (size_t i = 0; i < qr_safetensors_count(adapter->file); i++) {
        QR_RETURN_IF_ERROR(sort_tensor(adapter, qr_safetensors_get(adapter->file, i), err));
    }
    QR_RETURN_IF_ERROR(merge_modules(adapter, err));
    for (size_t i = 0; i < adapter->n_modules; i++) {
        QR_RETURN_IF_ERROR(check_module(adapter, &adapter->modules[i], err));
    }
    if (adapter->n_parameters > 0) {
        qsort(adapter->parameters, adapter->n_parameters, sizeof *adapter->parameters, compare_parameters);
    }
    for (size_t i = 0; i < adapter->n_parameters; i++) {
        QR_RETURN_IF_ERROR(check_base(adapter, &adapter->parameters[i], err));
    }
    for (size_t i = 1; i < adapter->n_parameters; i++) {
        if (strcmp(adapter->parameters[i - 1].name, adapter->parameters[i].name) != 0) { continue; }
        QR_RETURN_IF_ERROR(
            fail_tensor(adapter, adapter->parameters[i].tensor, "exists twice, also as base_layer", err));
    }
    if (adapter->n_modules + adapter->n_parameters == 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds no tensors", qr_safetensors_shard_path(adapter->file, 0));
    }
    return QRUN_OK;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static qrun_status open_tensors(const char *folder, qr_adapter *adapter, qr_error *err) {
    char *path = qr_path_join(folder, "adapter_model.safetensors");
    char *pickle = qr_path_join(folder, "adapter_model.bin");
    qrun_status status;
    if (path == NULL || pickle == NULL) {
        status = qr_fail_memory(err, folder, strlen(folder));
    } else if (!qr_file_exists(path) && qr_file_exists(pickle)) {
        status = qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                         "%s: is a PyTorch pickle, which can run code and is not read; save the "
                         "adapter once with PEFT's save_pretrained, which writes adapter_model.safetensors",
                         pickle);
    } else {
        status = qr_safetensors_open(path, &adapter->file, err);
    }
    qr_free(path);
    qr_free(pickle);
    return status;
}

/* A path to a folder, or what an id is in the cache: in a new qr_alloc'ed string. */
static qrun_status find_folder(const char *name_or_path, char **folder, qr_error *err) {
    *folder = NULL;
    if (!qr_file_exists(name_or_path) && qr_hub_is_id(name_or_path)) {
        return qr_hub_resolve(name_or_path, folder, err);
    }
    *folder = qr_strdup(name_or_path);
    return *folder != NULL ? QRUN_OK : qr_fail_memory(err, name_or_path, strlen(name_or_path));
}

qrun_status qr_adapter_open(const char *name_or_path, qr_adapter **out, qr_error *err) {
    *out = NULL;
    qr_adapter *adapter = qr_alloc_zeroed(sizeof *adapter);
    char *folder = NULL, *path = NULL;
    qrun_status status;
    QR_TRY(find_folder(name_or_path, &folder, err));
    path = qr_path_join(folder, "adapter_config.json");
    if (adapter == NULL || path == NULL) { QR_TRY(qr_fail_memory(err, folder, sizeof *adapter)); }
    QR_TRY(qr_adapter_config_read(path, &adapter->config, err));
    QR_TRY(open_tensors(folder, adapter, err));
    QR_TRY(read_tensors(adapter, err));
    *out = adapter;
    adapter = NULL;
out:
    qr_adapter_close(adapter);
    qr_free(path);
    qr_free(folder);
    return status;
}

void qr_adapter_close(qr_adapter *adapter) {
    if (adapter == NULL) { return; }
    for (size_t i = 0; i < adapter->n_modules; i++) { qr_free(adapter->modules[i].name); }
    for (size_t i = 0; i < adapter->n_parameters; i++) { qr_free(adapter->parameters[i].name); }
    qr_free(adapter->modules);
    qr_free(adapter->parameters);
    qr_safetensors_close(adapter->file);
    qr_adapter_config_free(&adapter->config);
    qr_free(adapter);
}

static int compare_with_name(const void *name, const void *module) {
    return strcmp(name, ((const qr_adapter_module *)module)->name);
}

const qr_adapter_module *qr_adapter_find(const qr_adapter *adapter, const char *module) {
    if (adapter->n_modules == 0) { return NULL; }
    return bsearch(module, adapter->modules, adapter->n_modules, sizeof *adapter->modules, compare_with_name);
}
