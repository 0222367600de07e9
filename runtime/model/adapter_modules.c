#include "runtime/model/adapter_modules.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "runtime/engine/layout.h"
#include "runtime/model/vocabulary.h"
#include "runtime/model/weight_writer.h"

/* One walk over the model's modules counts, the next one fills. */
typedef struct load_state {
    qrun_adapter *made;
    const qr_adapter *adapter;
    qr_layout layout;
    int64_t vocab; /* rows of the tables while the adapter is open */
    int64_t n_matched;
    bool fill;
} load_state;

/* PEFT writes the path inside the model object, which may carry a prefix that the checkpoint lacks, or lack one. */
static const qr_adapter_parameter *find_parameter(const load_state *state, const qr_module *module,
                                                  const char *suffix) {
    const qr_family *family = state->made->model->family;
    for (int i = -1; i < (int)QR_COUNT_OF(family->prefixes); i++) {
        const char *prefix = i < 0 ? "" : family->prefixes[i];
        if (prefix == NULL) { break; }
        char path[QR_STORED_NAME_BYTES], name[QR_STORED_NAME_BYTES + 8];
        qr_family_module_name(family, prefix, module->role, module->layer, path, sizeof path);
        (void)snprintf(name, sizeof name, "%s.%s", path, suffix);
        for (size_t p = 0; p < state->adapter->n_parameters; p++) {
            if (strcmp(state->adapter->parameters[p].name, name) == 0) { return &state->adapter->parameters[p]; }
        }
    }
    return NULL;
}

static qrun_status refuse_shape(const qr_adapter_parameter *parameter, int64_t rows, int64_t cols, qr_error *err) {
    const qr_safetensors_tensor *tensor = parameter->tensor;
    return qr_fail(
        err, QRUN_ERROR_INPUT,
        "%s: the adapter replaces it by [%lld%s] where the model has %lld × %lld; was the vocabulary resized, "
        "or the adapter made for another model? Merged with PEFT it becomes a model of its own",
        parameter->name, (long long)(tensor->n_dims > 0 ? tensor->dims[0] : 0), tensor->n_dims > 1 ? ", …" : "",
        (long long)rows, (long long)cols);
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

/* The head that is the embedding's matrix follows it where the adapter stores the module's own parameter; a copy in
 * modules_to_save is that module's alone. */
static qrun_status head_follows(const load_state *state, const qr_module *module, bool *follows, qr_error *err) {
    const qrun_model *model = state->made->model;
    *follows = false;
    if (module->role != QR_ROLE_EMBEDDING || !model->shape.tied_head) { return QRUN_OK; }
    bool alone = true;
    const qrun_status status =
        qr_adapter_config_saves(&state->adapter->config, model->family->modules[module->role], &alone, err);
    *follows = !alone;
    return status;
}

static qrun_status put_matrix(load_state *state, const qr_module *module, const qr_adapter_parameter *parameter,
                              qr_error *err) {
    const qrun_model *model = state->made->model;
    qr_backend *backend = model->context->backend;
    const qr_safetensors_tensor *tensor = parameter->tensor;
    const bool transposed = model->family->transposed && module->role >= QR_ROLE_Q;
    const int64_t rows = qr_role_has_token_rows(module->role) ? state->vocab : module->matrix->desc.rows;
    qr_weight weight = {
        .desc = {.format = qr_model_compute_format(model), .rows = rows, .cols = module->matrix->desc.cols}};
    const int64_t stored_rows = transposed ? weight.desc.cols : weight.desc.rows;
    const int64_t stored_cols = transposed ? weight.desc.rows : weight.desc.cols;
    if (tensor->n_dims != 2 || tensor->dims[0] != stored_rows || tensor->dims[1] != stored_cols) {
        return refuse_shape(parameter, stored_rows, stored_cols, err);
    }
    state->n_matched++;
    weight.data = qr_layout_take(&state->layout, 1, backend->weight_bytes(backend, &weight.desc));
    if (!state->fill) { return QRUN_OK; }
    const qr_row_source source = {.src = tensor->data, .dtype = tensor->dtype, .transposed = transposed};
    bool follows = false;
    qrun_status status = qr_weight_write(backend, &weight, &source, parameter->name, err);
    if (status == QRUN_OK) { status = head_follows(state, module, &follows, err); }
    if (status != QRUN_OK) { return status; }
    qr_stand_in_matrix(&state->made->stand_ins, module->matrix, &weight);
    if (follows) { qr_stand_in_matrix(&state->made->stand_ins, &state->made->model->head, &weight); }
    return QRUN_OK;
}

/* ---- Vectors ----------------------------------------------------------------------------------------------------- */

static qrun_status put_vector(load_state *state, const qr_module *module, const float **place, const char *suffix,
                              qr_error *err) {
    const qr_adapter_parameter *parameter = place != NULL ? find_parameter(state, module, suffix) : NULL;
    if (parameter == NULL) { return QRUN_OK; }
    const qr_safetensors_tensor *tensor = parameter->tensor;
    if (tensor->n_dims != 1 || tensor->dims[0] != module->n) { return refuse_shape(parameter, 1, module->n, err); }
    state->n_matched++;
    float *device = qr_layout_take(&state->layout, module->n, sizeof *device);
    if (!state->fill) { return QRUN_OK; }
    float *values = qr_alloc_array((size_t)module->n, sizeof *values);
    if (values == NULL) { return qr_fail_memory(err, parameter->name, (size_t)module->n * sizeof *values); }
    qr_elements_to_f32(tensor->dtype, tensor->data, 0, module->n, values);
    qr_backend *backend = state->made->model->context->backend;
    const qrun_status status = backend->copy_in(backend, device, values, (size_t)module->n * sizeof *values, err);
    qr_free(values);
    if (status == QRUN_OK) { qr_stand_in_vector(&state->made->stand_ins, place, device); }
    return status;
}

static qrun_status visit_module(void *arg, const qr_module *module, qr_error *err) {
    load_state *state = arg;
    qrun_status status = QRUN_OK;
    const qr_adapter_parameter *parameter = module->matrix != NULL ? find_parameter(state, module, "weight") : NULL;
    if (parameter != NULL) { status = put_matrix(state, module, parameter, err); }
    if (status == QRUN_OK) { status = put_vector(state, module, module->weight, "weight", err); }
    return status == QRUN_OK ? put_vector(state, module, module->bias, "bias", err) : status;
}

/* ---- Tables with rows for new tokens ----------------------------------------------------------------------------- */

static int64_t stored_rows(const load_state *state, qr_tensor_role role, qr_weight *table) {
    const qr_module module = {.role = role, .matrix = table};
    const qr_adapter_parameter *parameter = find_parameter(state, &module, "weight");
    return parameter != NULL && parameter->tensor->n_dims == 2 ? parameter->tensor->dims[0] : 0;
}

/* The rows of both tables with the adapter: more than the model's where it brings both with as many, and the folder's
 * tokenizer knows tokens that the model does not. */
static qrun_status choose_vocab(load_state *state, const char *path, qr_error *err) {
    qrun_model *model = state->made->model;
    const int64_t own = model->shape.vocab, embedding = stored_rows(state, QR_ROLE_EMBEDDING, &model->embedding);
    int64_t head = stored_rows(state, QR_ROLE_HEAD, &model->head);
    bool follows = false;
    const qr_module module = {.role = QR_ROLE_EMBEDDING};
    const qrun_status status = head_follows(state, &module, &follows, err);
    state->vocab = own;
    if (status != QRUN_OK) { return status; }
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
    pthread_mutex_lock(&model->lock);
    const bool busy = model->n_sessions > 0 && adapter->n_parameters > 0;
    pthread_mutex_unlock(&model->lock);
    if (busy) {
        return qr_fail(err, QRUN_ERROR_BUSY, "%s: replaces %s, so it has to be opened before the model's sessions",
                       path, adapter->parameters[0].name);
    }
    if (model->replaced_by != NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: cannot be open beside the adapter %s, which replaces whole modules of the model", path,
                       model->replaced_by->name);
    }
    for (int i = 0; i < QR_MAX_ADAPTERS && adapter->n_parameters > 0; i++) {
        if (model->adapters[i] == NULL || model->adapters[i] == made) { continue; }
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s: replaces %s, so it cannot be open beside other adapters; merge it into a model of its own",
                       path, adapter->parameters[0].name);
    }
    return QRUN_OK;
}

static qrun_status refuse_unmatched(const load_state *state, const char *path, qr_error *err) {
    if (state->n_matched == (int64_t)state->adapter->n_parameters) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: replaces modules of which this %s model has %lld of %zu (the first in the file is %s); was the "
                   "adapter made for another model?",
                   path, state->made->model->family->name, (long long)state->n_matched, state->adapter->n_parameters,
                   state->adapter->parameters[0].name);
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
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &made->module_memory, err));
    made->module_bytes = n_bytes;
    QR_RETURN_IF_ERROR(qr_stand_ins_reserve(&made->stand_ins, state.n_matched + 1, err));
    state = (load_state){
        .made = made, .adapter = adapter, .layout = {made->module_memory, 0}, .vocab = state.vocab, .fill = true};
    QR_RETURN_IF_ERROR(qr_model_each_module(model, visit_module, &state, err));
    if (state.vocab != model->shape.vocab) { made->own_vocab = model->shape.vocab; }
    model->shape.vocab = state.vocab;
    model->replaced_by = made;
    return QRUN_OK;
}

void qr_adapter_modules_release(qrun_adapter *adapter) {
    qrun_model *model = adapter->model;
    qr_backend *backend = model->context->backend;
    qr_stand_ins_end(&adapter->stand_ins);
    if (adapter->own_vocab > 0) { model->shape.vocab = adapter->own_vocab; }
    adapter->own_vocab = 0;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, adapter->module_memory, adapter->module_bytes);
    adapter->module_memory = NULL;
    adapter->module_bytes = 0;
    if (model->replaced_by == adapter) { model->replaced_by = NULL; }
}
