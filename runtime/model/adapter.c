#include "runtime/model/adapter.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/files/suffix.h"
#include "runtime/engine/layout.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/split.h"
#include "runtime/model/weight_writer.h"

static size_t table_bytes(const qrun_model *model) {
    return (size_t)model->n_slots * QR_MAX_ADAPTERS * sizeof(qr_lora_factor);
}

static qr_lora_factor *table_entry(const qrun_adapter *adapter, int32_t slot) {
    return adapter->model->lora_table + (int64_t)slot * QR_MAX_ADAPTERS + adapter->index;
}

/* ---- Which module is which layer --------------------------------------------------------------------------------- */

/* One walk over the model's linear layers counts bytes, the next one fills the memory. */
typedef struct load_state {
    qrun_adapter *made;
    const qr_adapter *adapter;
    qr_layout layout; /* base NULL: only count */
    size_t n_matched;
    qr_workspace workspace; /* of dora_norm; its memory is NULL while sizes are counted */
} load_state;

/* PEFT writes the path inside the model object, which may have a prefix that the checkpoint lacks, or lack one. */
static const qr_adapter_module *find_module(const load_state *state, int64_t layer, qr_tensor_role role) {
    const qr_family *family = state->made->model->family;
    const qr_adapter_module *found = NULL;
    const char *prefix;
    for (size_t i = 0; found == NULL && (prefix = qr_family_prefix(family, i)) != NULL; i++) {
        char name[QR_STORED_NAME_BYTES];
        qr_family_module_name(family, prefix, role, layer, name, sizeof name);
        found = qr_adapter_find(state->adapter, name);
    }
    return found;
}

qrun_status qr_adapter_check_shape(const qr_adapter_module *module, int64_t rows, int64_t cols,
                                   const qr_weight_desc *desc, qr_error *err) {
    if (rows == desc->rows && cols == desc->cols && module->n_stacked == 1) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: the adapter is made for [%lld, %lld] and the model's layer is [%lld, %lld]", module->name,
                   (long long)rows, (long long)cols, (long long)desc->rows, (long long)desc->cols);
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* The rows of a share, each of `width` elements. */
static qrun_status put_rows(load_state *state, const qr_safetensors_tensor *tensor, int64_t width,
                            const qr_row_share *share, const float **factor, qr_error *err) {
    qr_backend *backend = state->made->model->context->backend;
    float *device = qr_layout_take(&state->layout, qr_row_share_rows(share) * width, sizeof *device);
    *factor = device;
    for (int32_t i = 0; device != NULL && i < share->n_ranges; i++) {
        const qr_row_range *rows = &share->ranges[i];
        const qr_float_range range = {.first = rows->first * width, .step = 1, .n = rows->n * width};
        QR_RETURN_IF_ERROR(qr_weight_write_some_floats(backend, device, tensor, &range, err));
        device += range.n;
    }
    return QRUN_OK;
}

static qrun_status put_factor(load_state *state, const qr_safetensors_tensor *tensor, const float **factor,
                              qr_error *err) {
    const qr_row_share all = {.n_ranges = 1, .ranges = {{0, qr_tensor_elements(tensor)}}};
    return put_rows(state, tensor, 1, &all, factor, err);
}

/* Of a tensor with `width` elements for every row of the matrix: those of the rows that this rank has. */
static qrun_status put_own(load_state *state, const qr_safetensors_tensor *tensor, int64_t width,
                           const qr_linear_layer *linear, const float **factor, qr_error *err) {
    const qr_row_share all = {.n_ranges = 1, .ranges = {{0, linear->weight.desc.rows}}};
    const bool is_part = qr_row_share_is_part(&linear->share);
    return put_rows(state, tensor, width, is_part ? &linear->share : &all, factor, err);
}

/* DoRA: the magnitudes, which become the ratios that outputs are scaled by; the base model does not change. */
static qrun_status put_ratio(load_state *state, const qr_adapter_module *module, const qr_linear_layer *linear,
                             qr_lora_factor *factor, qr_error *err) {
    qr_backend *backend = state->made->model->context->backend;
    QR_RETURN_IF_ERROR(put_own(state, module->magnitude, 1, linear, &factor->ratio, err));
    const qr_dora_norm_args args = {.weight = &linear->weight,
                                    .a = factor->a,
                                    .b = factor->b,
                                    .rank = factor->rank,
                                    .scale = factor->scale,
                                    .magnitude = factor->ratio,
                                    .ratio = (float *)(uintptr_t)factor->ratio};
    if (state->layout.base != NULL) {
        QR_RETURN_IF_ERROR(qr_layer_stream_use_linear(state->made->model, backend, linear, err));
    }
    if (state->layout.base != NULL) { return qr_dora_norm(backend, &args, state->workspace, err); }
    const size_t n_bytes = qr_dora_norm_workspace(backend, &args);
    state->workspace.n_bytes = n_bytes > state->workspace.n_bytes ? n_bytes : state->workspace.n_bytes;
    return QRUN_OK;
}

static qrun_status check_rank(const qr_adapter_module *module, qr_error *err) {
    if (module->rank <= QR_MAX_LORA_RANK) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: rank %lld is above the %d supported", module->name,
                   (long long)module->rank, QR_MAX_LORA_RANK);
}

/* Around what one module writes; nothing while sizes are counted. Steps of sessions run in between. */
static void begin_module(const load_state *state) {
    if (state->layout.base != NULL) { qr_compute_lock(state->made->model->context); }
}

static void end_module(const load_state *state) {
    if (state->layout.base != NULL) { qr_compute_unlock(state->made->model->context); }
}

static qrun_status put_linear(load_state *state, const qr_adapter_module *module, const qr_linear_layer *linear,
                              qr_error *err) {
    qr_lora_factor factor = {.rank = (int32_t)module->rank, .scale = (float)module->scale};
    QR_RETURN_IF_ERROR(put_factor(state, module->a, &factor.a, err));
    QR_RETURN_IF_ERROR(put_own(state, module->b, module->rank, linear, &factor.b, err));
    if (module->magnitude != NULL) { QR_RETURN_IF_ERROR(put_ratio(state, module, linear, &factor, err)); }
    if (state->layout.base == NULL) { return QRUN_OK; }
    qr_backend *backend = state->made->model->context->backend;
    return backend->copy_in(backend, table_entry(state->made, linear->slot), &factor, sizeof factor, err);
}

static qrun_status visit_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    load_state *state = arg;
    const qr_adapter_module *module = find_module(state, layer, role);
    if (module == NULL) { return QRUN_OK; }
    qr_weight_desc whole = linear->weight.desc;
    whole.rows = qr_max(whole.rows, linear->share.all);
    QR_RETURN_IF_ERROR(qr_adapter_check_shape(module, module->out_features, module->in_features, &whole, err));
    QR_RETURN_IF_ERROR(check_rank(module, err));
    state->n_matched++;
    begin_module(state);
    const qrun_status status = put_linear(state, module, linear, err);
    end_module(state);
    return status;
}

static qrun_status put_experts(load_state *state, const qr_adapter_module *module, const qr_layer *layer,
                               qr_tensor_role role, qr_error *err) {
    const qrun_model *model = state->made->model;
    const qr_row_share share = qr_expert_pair_share(model, layer, role);
    const int64_t turns = qr_expert_pair_turns(model, role);
    const int32_t slot = qr_expert_pair_shape_of(model, layer, role).slot;
    qr_backend *backend = model->context->backend;
    const int64_t n_b = module->n_stacked * qr_row_share_rows(&share) * module->rank;
    float *a = qr_layout_take(&state->layout, qr_tensor_elements(module->a), sizeof *a);
    float *b = qr_layout_take(&state->layout, n_b, sizeof *b);
    if (a == NULL) { return QRUN_OK; }
    const qr_lora_factor factor = {.a = a, .b = b, .rank = (int32_t)module->rank, .scale = (float)module->scale};
    QR_RETURN_IF_ERROR(qr_expert_pair_put(backend, module, &share, turns, a, b, err));
    return backend->copy_in(backend, table_entry(state->made, slot), &factor, sizeof factor, err);
}

static qrun_status visit_experts(load_state *state, int64_t l, qr_tensor_role role, qr_error *err) {
    const qrun_model *model = state->made->model;
    const qr_layer *layer = &model->layers[l];
    const qr_adapter_module *module = qr_expert_pair_find(model, state->adapter, l, role);
    if (module == NULL) { return QRUN_OK; }
    if (model->host_experts.computed) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: this adapter changes experts, and the processor computes them without adapters; open the "
                       "model with `expert_compute=device`",
                       module->name);
    }
    QR_RETURN_IF_ERROR(qr_expert_pair_check(model, module, layer, role, err));
    QR_RETURN_IF_ERROR(check_rank(module, err));
    state->n_matched++;
    begin_module(state);
    const qrun_status status = put_experts(state, module, layer, role, err);
    end_module(state);
    return status;
}

/* Every linear layer, and the experts of every layer that has any. */
static qrun_status visit_all(load_state *state, qr_error *err) {
    qrun_model *model = state->made->model;
    QR_RETURN_IF_ERROR(qr_model_each_linear(model, visit_linear, state, err));
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        for (int i = 0; i < QR_EXPERT_PAIRS && model->layers[l].expert_gate != NULL; i++) {
            QR_RETURN_IF_ERROR(visit_experts(state, l, qr_expert_pair_roles[i], err));
        }
    }
    return QRUN_OK;
}

static bool has_layer_for(const load_state *state, const qr_adapter_module *module) {
    const qrun_model *model = state->made->model;
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        for (qr_tensor_role role = QR_ROLE_Q; role <= QR_ROLE_ROUTER; role++) {
            if (!qr_family_layer_has(model->family, &model->config, l, role)) { continue; }
            if (find_module(state, l, role) == module) { return true; }
        }
        for (int i = 0; i < QR_EXPERT_PAIRS && model->layers[l].expert_gate != NULL; i++) {
            if (qr_expert_pair_find(model, state->adapter, l, qr_expert_pair_roles[i]) == module) { return true; }
        }
    }
    return false;
}

/* Whether one of the first two names of a path is this. */
static bool begins_with_name(const char *path, const char *name, size_t n) {
    for (int i = 0; i < 2; i++) {
        const size_t n_part = strcspn(path, ".");
        if (n_part == n && memcmp(path, name, n) == 0) { return true; }
        if (path[n_part] == '\0') { return false; }
        path += n_part + 1;
    }
    return false;
}

/* Whether a module is of a part that text needs none of and that is left out of the model, such as its image encoder:
 * the last name of "model.visual" is in its path. A number is no such name. */
static bool is_left_out(const qrun_model *model, const char *module) {
    const char *part = model->left_out;
    while (part != NULL && *part != '\0') {
        const size_t n_part = strcspn(part, ",");
        size_t last = n_part;
        while (last > 0 && part[last - 1] != '.') { last--; }
        const bool is_number = part[last] >= '0' && part[last] <= '9';
        if (!is_number && begins_with_name(module, part + last, n_part - last)) { return true; }
        part += n_part;
        part += strspn(part, ", ");
    }
    return false;
}

/* Whether a module is the embedding or the output head. */
static bool is_table(const qrun_model *model, const char *module) {
    const char *const *modules = model->family->modules;
    return qr_is_last_part(module, modules[QR_ROLE_EMBEDDING]) || qr_is_last_part(module, modules[QR_ROLE_HEAD]);
}

/* No part of an adapter is ignored silently, but for those of what the model leaves out. */
static qrun_status refuse_unmatched(const load_state *state, const char *path, qr_error *err) {
    const qr_adapter *adapter = state->adapter;
    for (size_t i = 0; state->n_matched < adapter->n_modules && i < adapter->n_modules; i++) {
        const char *name = adapter->modules[i].name;
        if (has_layer_for(state, &adapter->modules[i]) || is_left_out(state->made->model, name)) { continue; }
        if (is_table(state->made->model, name)) {
            return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                           "%s: adapts %s, which is possible in layers alone; merge the adapter into the model first",
                           path, name);
        }
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: adapts %s, which this %s model does not have or cannot adapt; was the "
                       "adapter made for another model?",
                       path, name, state->made->model->family->name);
    }
    return QRUN_OK;
}

static qrun_status make_table(qrun_model *model, qr_error *err) {
    if (model->lora_table != NULL) { return QRUN_OK; }
    void *table;
    qr_backend *backend = model->context->backend;
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, table_bytes(model), &table, err));
    model->lora_table = table;
    return QRUN_OK;
}

/* Memory for what the first walk has counted, and the second one writes. */
static qrun_status make_memory(load_state *state, qr_error *err) {
    qrun_adapter *made = state->made;
    qr_backend *backend = made->model->context->backend;
    const size_t n_bytes = state->layout.offset, n_workspace = state->workspace.n_bytes;
    made->is_on_device = true;
    QR_RETURN_IF_ERROR(make_table(made->model, err));
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &made->memory, err));
    made->memory_bytes = n_bytes;
    state->layout = (qr_layout){.base = made->memory};
    return backend->memory_create(backend, QR_MEMORY_DEVICE, n_workspace, &state->workspace.memory, err);
}

/* The lock is held for one module at a time: no step waits for the whole adapter. No request names it before all of
 * it is there. */
static qrun_status load(qrun_adapter *made, const qr_adapter *adapter, const char *path, qr_error *err) {
    qrun_context *context = made->model->context;
    load_state state = {.made = made, .adapter = adapter};
    QR_RETURN_IF_ERROR(visit_all(&state, err));
    QR_RETURN_IF_ERROR(refuse_unmatched(&state, path, err));
    qr_compute_lock(context);
    qrun_status status = make_memory(&state, err);
    qr_compute_unlock(context);
    if (status == QRUN_OK) { status = visit_all(&state, err); }
    qr_compute_lock(context);
    if (status == QRUN_OK) { status = qr_adapter_modules_load(made, adapter, path, err); }
    if (status == QRUN_OK && adapter->config.use_dora) {
        atomic_fetch_or(&made->model->dora_adapters, UINT64_C(1) << made->index);
    }
    qr_backend *backend = context->backend;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, state.workspace.memory, state.workspace.n_bytes);
    qr_compute_unlock(context);
    return status;
}

/* Under the lock, where anything of it is on the device. */
static void release(qrun_adapter *adapter) {
    qrun_model *model = adapter->model;
    qr_backend *backend = model->context->backend;
    if (adapter->is_on_device) {
        for (int32_t slot = 0; model->lora_table != NULL && slot < model->n_slots; slot++) {
            (void)backend->fill_zero(backend, table_entry(adapter, slot), sizeof(qr_lora_factor), NULL);
        }
        atomic_fetch_and(&model->dora_adapters, ~(UINT64_C(1) << adapter->index));
        qr_adapter_modules_release(adapter);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, adapter->memory, adapter->memory_bytes);
    }
    if (adapter->index >= 0 && model->adapters[adapter->index] == adapter) { model->adapters[adapter->index] = NULL; }
    qr_free(adapter->name);
    qr_free(adapter);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* Under the model's lock. */
static qrun_adapter *find_named(const qrun_model *model, const char *name) {
    for (int i = 0; i < QR_MAX_ADAPTERS; i++) {
        if (model->adapters[i] != NULL && strcmp(model->adapters[i]->name, name) == 0) { return model->adapters[i]; }
    }
    return NULL;
}

static bool is_name_taken(qrun_model *model, const char *name) {
    pthread_mutex_lock(&model->lock);
    const bool taken = find_named(model, name) != NULL;
    pthread_mutex_unlock(&model->lock);
    return taken;
}

const struct qrun_adapter *qr_adapter_take(qrun_model *model, const char *name) {
    pthread_mutex_lock(&model->lock);
    qrun_adapter *found = find_named(model, name);
    if (found != NULL) { found->n_requests++; }
    pthread_mutex_unlock(&model->lock);
    return found;
}

/* The last part of a path, or of an id without its revision. */
static char *name_of_path(const char *path) {
    size_t end = qr_file_exists(path) ? strlen(path) : strcspn(path, "@");
    while (end > 1 && path[end - 1] == '/') { end--; }
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') { start--; }
    return qr_strndup(path + start, end - start);
}

static qrun_status take_index(qrun_model *model, qrun_adapter *adapter, qr_error *err) {
    for (int i = 0; i < QR_MAX_ADAPTERS; i++) {
        if (model->adapters[i] != NULL) { continue; }
        adapter->index = i;
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "a model can have %d adapters open at once; close one first",
                   QR_MAX_ADAPTERS);
}

static uint64_t hash_tensor(uint64_t hash, const char *name, const qr_safetensors_tensor *tensor) {
    hash = qr_hash_bytes(hash, name, strlen(name) + 1);
    if (tensor == NULL) { return hash; }
    const uint64_t facts[] = {(uint64_t)tensor->dtype, qr_hash_words(QR_HASH_START, tensor->data, tensor->n_bytes)};
    return qr_hash_bytes(hash, facts, sizeof facts);
}

static uint64_t hash_content(const qr_adapter *adapter) {
    uint64_t hash = QR_HASH_START;
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const qr_adapter_module *module = &adapter->modules[i];
        hash = hash_tensor(hash, module->name, module->a);
        hash = hash_tensor(hash, "B", module->b);
        hash = hash_tensor(hash, "magnitude", module->magnitude);
        hash = qr_hash_bytes(hash, &module->rank, sizeof module->rank);
        hash = qr_hash_bytes(hash, &module->scale, sizeof module->scale);
    }
    for (size_t i = 0; i < adapter->n_parameters; i++) {
        hash = hash_tensor(hash, adapter->parameters[i].name, adapter->parameters[i].tensor);
    }
    return qr_hash_mix(hash);
}

/* What comes from a slow disk is read while the engine computes: the sum looks at all of it. */
static qrun_status open_folder(qrun_adapter *made, const char *path, qr_error *err) {
    qr_adapter *adapter;
    QR_RETURN_IF_ERROR(qr_adapter_open(path, &adapter, err));
    made->content_hash = hash_content(adapter);
    qrun_status status = qr_safetensors_check(adapter->file, err);
    if (status == QRUN_OK) { status = load(made, adapter, path, err); }
    if (status == QRUN_OK) { status = qr_safetensors_check(adapter->file, err); }
    const bool names_path = err == NULL || strncmp(err->message, path, strlen(path)) == 0;
    if (status != QRUN_OK && !names_path) { qr_error_prefix(err, path); }
    qr_adapter_close(adapter);
    return status;
}

/* One that could not be opened. Files that are refused never make a step wait. */
static void discard(qrun_adapter *made) {
    qrun_context *context = made->model->context;
    const bool is_on_device = made->is_on_device;
    if (is_on_device) { qr_compute_lock(context); }
    release(made);
    if (is_on_device) { qr_compute_unlock(context); }
}

qrun_status qrun_adapter_open(qrun_model *model, const char *path, const char *name, qrun_adapter **adapter,
                              qrun_error *error) {
    *adapter = NULL;
    static atomic_llong n_made;
    if (path == NULL) { return qr_fail(error, QRUN_ERROR_ARGUMENT, "no path of an adapter was given"); }
    if (model->split.n_ranks > 0 && qr_model_count_sessions(model, 0) > 0) {
        return qr_fail(error, QRUN_ERROR_UNSUPPORTED,
                       "with `tensor_parallel`, adapters are opened by all ranks, before there is a session");
    }
    qrun_adapter *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "an adapter", sizeof *made); }
    made->model = model;
    made->index = -1;
    made->identity = atomic_fetch_add(&n_made, 1) + 1;
    qrun_status status = QRUN_OK;
    QR_TRY(take_index(model, made, error));
    if (name != NULL && name[0] == '\0') {
        QR_TRY(qr_fail(error, QRUN_ERROR_ARGUMENT, "`name` is empty, and no request can choose it; give a name"));
    }
    made->name = name != NULL ? qr_strdup(name) : name_of_path(path);
    if (made->name == NULL) { QR_TRY(qr_fail_memory(error, "an adapter's name", strlen(path))); }
    if (is_name_taken(model, made->name)) {
        QR_TRY(qr_fail(error, QRUN_ERROR_ARGUMENT, "an adapter named \"%s\" is already open; choose another name",
                       made->name));
    }
    status = open_folder(made, path, error);
    if (model->split.n_ranks > 0) { status = qr_agree(model->context->ranks, status, error); }
    QR_TRY(status);
    pthread_mutex_lock(&model->lock);
    model->adapters[made->index] = made;
    pthread_mutex_unlock(&model->lock);
    *adapter = made;
    return QRUN_OK;
out:
    discard(made);
    return status;
}

/* No request finds it any more; false: one uses it. */
static bool take_out(const qrun_adapter *adapter) {
    qrun_model *model = adapter->model;
    pthread_mutex_lock(&model->lock);
    const bool is_free = adapter->n_requests == 0;
    if (is_free) { model->adapters[adapter->index] = NULL; }
    pthread_mutex_unlock(&model->lock);
    return is_free;
}

qrun_status qrun_adapter_close(qrun_adapter *adapter, qrun_error *error) {
    if (adapter == NULL) { return QRUN_OK; }
    qrun_model *model = adapter->model;
    if (model->replaced_by == adapter && qr_model_count_sessions(model, 0) > 0) {
        return qr_fail(error, QRUN_ERROR_BUSY, "adapter %s replaces whole modules, and a session of its model exists",
                       adapter->name);
    }
    qr_compute_lock(model->context); /* until its rows of the table are free again */
    const bool is_free = take_out(adapter);
    if (is_free) { release(adapter); }
    qr_compute_unlock(model->context);
    return is_free ? QRUN_OK : qr_fail(error, QRUN_ERROR_BUSY, "adapter %s: a request still uses it", adapter->name);
}

void qr_adapter_count_requests(const qrun_adapter *adapter, int64_t change) {
    if (adapter == NULL) { return; }
    pthread_mutex_lock(&adapter->model->lock);
    adapter->model->adapters[adapter->index]->n_requests += change;
    pthread_mutex_unlock(&adapter->model->lock);
}

const char *qrun_adapter_name(const qrun_adapter *adapter) { return adapter->name; }

qrun_status qr_adapter_check_owner(const qrun_model *model, const struct qrun_adapter *adapter, qr_error *err) {
    if (adapter != NULL && adapter->model != model) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "adapter %s belongs to another model", adapter->name);
    }
    if (model->replaced_by == NULL || model->replaced_by == adapter) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_ARGUMENT,
        "the adapter %s replaces whole modules of the model, so every request has to use it while it is open",
        model->replaced_by->name);
}

int64_t qr_adapters_bytes(qrun_model *model) {
    int64_t total = model->lora_table != NULL ? qr_round_up((int64_t)table_bytes(model), 64) : 0;
    pthread_mutex_lock(&model->lock);
    for (int i = 0; i < QR_MAX_ADAPTERS; i++) {
        if (model->adapters[i] != NULL) {
            total += (int64_t)(model->adapters[i]->memory_bytes + model->adapters[i]->module_bytes);
        }
    }
    pthread_mutex_unlock(&model->lock);
    return total;
}

void qr_adapters_release(qrun_model *model) {
    for (int i = 0; i < QR_MAX_ADAPTERS; i++) {
        if (model->adapters[i] != NULL) { release(model->adapters[i]); }
    }
    qr_backend *backend = model->context->backend;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, model->lora_table, table_bytes(model));
    model->lora_table = NULL;
}
