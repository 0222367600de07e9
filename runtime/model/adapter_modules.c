#include "runtime/model/adapter_modules.h"

#include <stdio.h>
#include <string.h>

#include "base/sizes.h"
#include "runtime/engine/layout.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/split.h"
#include "runtime/model/vocabulary.h"
#include "runtime/model/weight_writer.h"

/* One walk over the model's modules counts bytes, the next one fills the memory. */
typedef struct load_state {
    qrun_adapter *made;
    const qr_adapter *adapter;
    qr_layout layout; /* base NULL: only count */
    int64_t vocab;    /* rows of the tables while the adapter is open */
    int64_t n_matched;
} load_state;

/* By the path inside the model object, as in adapter.c. */
static const qr_adapter_parameter *find_parameter(const load_state *state, const qr_module *module,
                                                  const char *suffix) {
    const qr_family *family = state->made->model->family;
    const char *prefix;
    for (size_t i = 0; (prefix = qr_family_prefix(family, i)) != NULL; i++) {
        char path[QR_STORED_NAME_BYTES], name[QR_STORED_NAME_BYTES + 8];
        qr_family_module_name(family, prefix, module->role, module->layer, path, sizeof path);
        (void)snprintf(name, sizeof name, "%s.%s", path, suffix);
        for (size_t p = 0; p < state->adapter->n_parameters; p++) {
            if (strcmp(state->adapter->parameters[p].name, name) == 0) { return &state->adapter->parameters[p]; }
        }
    }
    return NULL;
}

/* "[2048, 64]" */
static void shape_text(int n_dims, const int64_t *dims, char *text, size_t n_bytes) {
    size_t n = 0;
    for (int d = 0; d < n_dims && n < n_bytes; d++) {
        n += (size_t)snprintf(text + n, n_bytes - n, "%s%lld", d == 0 ? "[" : ", ", (long long)dims[d]);
    }
    if (n < n_bytes) { (void)snprintf(text + n, n_bytes - n, "%s", n_dims == 0 ? "[]" : "]"); }
}

qrun_status qr_adapter_check_parameter(const qr_adapter_parameter *parameter, int n_dims, const int64_t *dims,
                                       qr_error *err) {
    const qr_safetensors_tensor *tensor = parameter->tensor;
    bool same = tensor->n_dims == n_dims;
    for (int d = 0; same && d < n_dims; d++) { same = tensor->dims[d] == dims[d]; }
    if (same) { return QRUN_OK; }
    char adapter[QR_MAX_DIMS * 24], model[QR_MAX_DIMS * 24];
    shape_text(tensor->n_dims, tensor->dims, adapter, sizeof adapter);
    shape_text(n_dims, dims, model, sizeof model);
    return qr_fail(
        err, QRUN_ERROR_INPUT,
        "%s: the adapter replaces it by %s where the model has %s; was the vocabulary resized, or the adapter "
        "made for another model? PEFT can merge it into a model of its own",
        parameter->name, adapter, model);
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

/* A tied head follows the embedding where the adapter stores the embedding's own parameter; a copy in modules_to_save
 * belongs to the embedding alone. */
static qrun_status head_follows(const load_state *state, qr_tensor_role role, bool *follows, qr_error *err) {
    const qrun_model *model = state->made->model;
    *follows = false;
    if (role != QR_ROLE_EMBEDDING || !model->shape.tied_head) { return QRUN_OK; }
    bool alone = true;
    QR_RETURN_IF_ERROR(qr_adapter_config_saves(&state->adapter->config, model->family->modules[role], &alone, err));
    *follows = !alone;
    return QRUN_OK;
}

/* Of the whole matrix, as the adapter stores it. */
static qr_weight_desc stored_desc(const load_state *state, const qr_module *module) {
    const qrun_model *model = state->made->model;
    const bool may_grow = qr_role_has_token_rows(module->role) && !qr_model_has_short_head(model);
    const int64_t n_rows = may_grow ? state->vocab : qr_module_stored_n(module);
    return (qr_weight_desc){
        .format = qr_model_compute_format(model), .rows = n_rows, .cols = module->matrix->desc.cols};
}

/* This rank's rows of a model that is split, or all. A head of the adapter's own is split also where the model's is the
 * embedding, which it is whole. */
static qr_row_share share_of(const load_state *state, const qr_module *module, int64_t n_rows) {
    qr_row_share share = {0};
    if (module->role != QR_ROLE_HEAD) { return module->share != NULL ? *module->share : share; }
    (void)qr_split_rows(state->made->model, module->layer, module->role, n_rows, &share);
    share.whole_format = qr_model_compute_format(state->made->model);
    return share;
}

static qrun_status write_matrix(qr_backend *backend, qr_weight *weight, const qr_weight_desc *whole,
                                const qr_row_share *share, const qr_row_source *source, const char *name,
                                qr_error *err) {
    return qr_row_share_is_part(share) ? qr_weight_write_rows_of(backend, weight, whole, share, source, name, err)
                                       : qr_weight_write(backend, weight, source, name, err);
}

static qrun_status put_matrix(load_state *state, const qr_module *module, const qr_adapter_parameter *parameter,
                              qr_error *err) {
    qrun_model *model = state->made->model;
    qr_backend *backend = model->context->backend;
    const qr_safetensors_tensor *tensor = parameter->tensor;
    const bool transposed = qr_model_is_transposed(model, module->role);
    const qr_weight_desc whole = stored_desc(state, module);
    const qr_row_share share = share_of(state, module, whole.rows);
    const int64_t dims[] = {transposed ? whole.cols : whole.rows, transposed ? whole.rows : whole.cols};
    QR_RETURN_IF_ERROR(qr_adapter_check_parameter(parameter, 2, dims, err));
    state->n_matched++;
    qr_weight weight = {.desc = whole};
    if (qr_row_share_is_part(&share)) { weight.desc.rows = qr_row_share_rows(&share); }
    weight.data = qr_layout_take(&state->layout, 1, backend->weight_bytes(backend, &weight.desc));
    if (weight.data == NULL) { return QRUN_OK; }
    const qr_row_source source = {.src = tensor->data, .dtype = tensor->dtype, .transposed = transposed};
    bool follows = false;
    QR_RETURN_IF_ERROR(write_matrix(backend, &weight, &whole, &share, &source, parameter->name, err));
    QR_RETURN_IF_ERROR(head_follows(state, module->role, &follows, err));
    qr_override_matrix(&state->made->overrides, module->matrix, &weight);
    if (module->role == QR_ROLE_HEAD) { model->head_share = share; }
    if (follows) { qr_override_matrix(&state->made->overrides, &state->made->model->head, &weight); }
    return QRUN_OK;
}

/* ---- Vectors ----------------------------------------------------------------------------------------------------- */

/* All of its elements, or this rank's. */
static qrun_status write_vector(qr_backend *backend, const qr_module *module, const qr_safetensors_tensor *tensor,
                                float *device, qr_error *err) {
    if (!qr_module_is_part(module)) { return qr_weight_write_floats(backend, device, tensor, err); }
    for (int64_t s = 0; s < qr_module_n_shares(module); s++) {
        for (int32_t i = 0; i < module->share->n_ranges; i++) {
            const qr_row_range *rows = &module->share->ranges[i];
            const qr_float_range range = {s * module->share->all + rows->first, 1, rows->n};
            QR_RETURN_IF_ERROR(qr_weight_write_some_floats(backend, device, tensor, &range, err));
            device += range.n;
        }
    }
    return QRUN_OK;
}

static qrun_status put_vector(load_state *state, const qr_module *module, const float **vector, const char *suffix,
                              qr_error *err) {
    const qr_adapter_parameter *parameter = vector != NULL ? find_parameter(state, module, suffix) : NULL;
    const int64_t n_stored = qr_module_stored_n(module);
    if (parameter == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_adapter_check_parameter(parameter, 1, &n_stored, err));
    state->n_matched++;
    float *device = qr_layout_take(&state->layout, module->n, sizeof *device);
    if (device == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(write_vector(state->made->model->context->backend, module, parameter->tensor, device, err));
    qr_override_vector(&state->made->overrides, vector, device);
    return QRUN_OK;
}

static qrun_status visit_module(void *arg, const qr_module *module, qr_error *err) {
    load_state *state = arg;
    const qr_adapter_parameter *parameter = module->matrix != NULL ? find_parameter(state, module, "weight") : NULL;
    if (parameter != NULL) { QR_RETURN_IF_ERROR(put_matrix(state, module, parameter, err)); }
    QR_RETURN_IF_ERROR(put_vector(state, module, module->weight, "weight", err));
    return put_vector(state, module, module->bias, "bias", err);
}

/* ---- Tables with rows for new tokens ----------------------------------------------------------------------------- */

static int64_t stored_rows(const load_state *state, qr_tensor_role role) {
    const qr_module module = {.role = role};
    const qr_adapter_parameter *parameter = find_parameter(state, &module, "weight");
    return parameter != NULL && parameter->tensor->n_dims == 2 ? parameter->tensor->dims[0] : 0;
}

/* The rows of both tables with the adapter. They are more than the model's where it has both tables with as many rows,
 * and the folder's tokenizer has tokens that the model lacks. A short head stays as it is. */
static qrun_status choose_vocab(load_state *state, const char *path, qr_error *err) {
    qrun_model *model = state->made->model;
    const int64_t own = model->shape.vocab, embedding = stored_rows(state, QR_ROLE_EMBEDDING);
    int64_t head = stored_rows(state, QR_ROLE_HEAD);
    bool follows = false;
    state->vocab = own;
    if (qr_model_has_short_head(model)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(head_follows(state, QR_ROLE_EMBEDDING, &follows, err));
    if (head == 0) { head = follows && embedding > 0 ? embedding : own; }
    if (qr_max(embedding, head) <= own) { return QRUN_OK; }
    if (embedding != head) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: has an embedding of %lld tokens for a head of %lld; both tables are needed for new tokens",
                       path, (long long)(embedding > 0 ? embedding : own), (long long)head);
    }
    const int64_t known = qr_model_tokenizer_ids(model);
    if (model->tokenizer != NULL && known <= own) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: has tables of %lld tokens, and the tokenizer of %s knows %lld; open the folder with the "
                       "tokenizer that the adapter was trained with",
                       path, (long long)embedding, model->folder, (long long)known);
    }
    state->vocab = embedding;
    return QRUN_OK;
}

/* ---- The adapter ------------------------------------------------------------------------------------------------- */

static qrun_status refuse_others(const qrun_adapter *made, const qr_adapter *adapter, const char *path, qr_error *err) {
    qrun_model *model = made->model;
    if (adapter->n_parameters > 0 && qr_model_count_sessions(model, 0) > 0) {
        return qr_fail(err, QRUN_ERROR_BUSY, "%s: replaces %s, so it has to be opened before the model's sessions",
                       path, adapter->parameters[0].name);
    }
    if (model->replaced_by != NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: cannot be open together with the adapter %s, which replaces whole modules of the model",
                       path, model->replaced_by->name);
    }
    for (int i = 0; i < QR_MAX_ADAPTERS && adapter->n_parameters > 0; i++) {
        if (model->adapters[i] == NULL || model->adapters[i] == made) { continue; }
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: replaces %s, so no other adapter can be open with it; merge it into a model of its own",
                       path, adapter->parameters[0].name);
    }
    return QRUN_OK;
}

static qrun_status refuse_unmatched(const load_state *state, const char *path, qr_error *err) {
    if (state->n_matched == (int64_t)state->adapter->n_parameters) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_INPUT,
        "%s: replaces %zu parameter%s, and this %s model has %lld of them (the first in the file is %s); was "
        "the adapter made for another model?",
        path, state->adapter->n_parameters, state->adapter->n_parameters == 1 ? "" : "s",
        state->made->model->family->name, (long long)state->n_matched, state->adapter->parameters[0].name);
}

qrun_status qr_adapter_modules_load(qrun_adapter *made, const qr_adapter *adapter, const char *path, qr_error *err) {
    qrun_model *model = made->model;
    qr_backend *backend = model->context->backend;
    load_state state = {.made = made, .adapter = adapter};
    QR_RETURN_IF_ERROR(refuse_others(made, adapter, path, err));
    if (adapter->n_parameters == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(choose_vocab(&state, path, err));
    QR_RETURN_IF_ERROR(qr_model_each_module(model, visit_module, &state, err));
    QR_RETURN_IF_ERROR(refuse_unmatched(&state, path, err));
    const size_t n_bytes = state.layout.offset;
    made->original_head = model->head_share;
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &made->module_memory, err));
    made->module_bytes = n_bytes;
    QR_RETURN_IF_ERROR(qr_weight_overrides_reserve(&made->overrides, state.n_matched + 1, err));
    state.layout = (qr_layout){.base = made->module_memory};
    QR_RETURN_IF_ERROR(qr_model_each_module(model, visit_module, &state, err));
    if (state.vocab != model->shape.vocab) { made->original_vocab = model->shape.vocab; }
    model->shape.vocab = state.vocab;
    model->replaced_by = made;
    return QRUN_OK;
}

void qr_adapter_modules_release(qrun_adapter *adapter) {
    qrun_model *model = adapter->model;
    qr_backend *backend = model->context->backend;
    qr_weight_overrides_undo(&adapter->overrides);
    if (adapter->module_memory != NULL) { model->head_share = adapter->original_head; }
    if (adapter->original_vocab > 0) { model->shape.vocab = adapter->original_vocab; }
    adapter->original_vocab = 0;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, adapter->module_memory, adapter->module_bytes);
    adapter->module_memory = NULL;
    adapter->module_bytes = 0;
    if (model->replaced_by == adapter) { model->replaced_by = NULL; }
}
