#include "runtime/folders/merge_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/files/bnb_tensors.h"
#include "loaders/files/suffix.h"

static bool is_plain(qr_weight_format format) { return format < QR_WEIGHT_INT8; }

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* The path without what a checkpoint or a model class puts before it. */
static const char *bare_name(const qr_family *family, const char *path) {
    for (size_t i = 0; i < QR_COUNT_OF(family->prefixes) && family->prefixes[i] != NULL; i++) {
        const size_t length = strlen(family->prefixes[i]);
        if (strncmp(path, family->prefixes[i], length) == 0) { return path + length; }
    }
    return path;
}

/* The folder's tensor for "<path><suffix>" of an adapter, whose prefix may be another one; NULL when there is none. */
static const qr_safetensors_tensor *find_tensor(const qr_merge_plan *plan, const char *path, const char *suffix) {
    const char *bare = bare_name(plan->model->family, path);
    const char *const prefixes[] = {plan->model->prefix, "", ""};
    const char *const paths[] = {bare, bare, path};
    for (size_t i = 0; i < QR_COUNT_OF(paths); i++) {
        char name[QR_STORED_NAME_BYTES];
        const int n = snprintf(name, sizeof name, "%s%s%s", prefixes[i], paths[i], suffix);
        const qr_safetensors_tensor *found = n < (int)sizeof name ? qr_safetensors_find(plan->source, name) : NULL;
        if (found != NULL) { return found; }
    }
    return NULL;
}

/* Whether the path is that of a module which stands once in the model. */
static bool is_role(const qr_merge_plan *plan, const char *path, qr_tensor_role role) {
    return strcmp(bare_name(plan->model->family, path), plan->model->family->modules[role]) == 0;
}

static bool is_tied_head(const qr_merge_plan *plan, const char *path) {
    return plan->model->shape.tied_head && is_role(plan, path, QR_ROLE_HEAD);
}

static qrun_status refuse_unknown(const qr_merge_plan *plan, const char *verb, const char *path, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "the adapter %s %s, which this %s model does not have; was it made for another model?", verb, path,
                   plan->model->family->name);
}

/* ---- Matrices that may change ------------------------------------------------------------------------------------ */

static qr_merge_matrix *find_matrix(const qr_merge_plan *plan, const qr_safetensors_tensor *codes) {
    for (size_t i = 0; i < plan->n_matrices; i++) {
        if (plan->matrices[i].stored.codes == codes) { return &plan->matrices[i]; }
    }
    return NULL;
}

static qr_merge_matrix *add_matrix(qr_merge_plan *plan, const qr_stored_weight *stored, bool transposed) {
    qr_merge_matrix *matrix = &plan->matrices[plan->n_matrices++];
    *matrix = (qr_merge_matrix){.stored = *stored, .transposed = transposed, .quant = plan->quant};
    return matrix;
}

static qrun_status add_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    qr_merge_plan *plan = arg;
    qr_stored_weight stored;
    const qr_weight_desc *desc = &linear->weight.desc;
    QR_RETURN_IF_ERROR(qr_model_find_stored(plan->model, plan->source, role, layer, desc, &stored, err));
    qr_merge_matrix *matrix = add_matrix(plan, &stored, plan->model->family->transposed);
    matrix->quantize = plan->quantize && is_plain(stored.desc.format);
    return QRUN_OK;
}

static qrun_status add_table(qr_merge_plan *plan, qr_tensor_role role, const qr_weight *weight, qr_error *err) {
    qr_stored_weight stored;
    const qrun_status status = qr_model_find_stored(plan->model, plan->source, role, 0, &weight->desc, &stored, err);
    if (status == QRUN_OK) { (void)add_matrix(plan, &stored, false); }
    return status;
}

static qrun_status add_model_matrices(qr_merge_plan *plan, qr_error *err) {
    qrun_model *model = plan->model;
    qrun_status status = qr_model_each_linear(model, add_linear, plan, err);
    if (status == QRUN_OK) { status = add_table(plan, QR_ROLE_EMBEDDING, &model->embedding, err); }
    if (status == QRUN_OK && !model->shape.tied_head) { status = add_table(plan, QR_ROLE_HEAD, &model->head, err); }
    return status;
}

/* ---- What the adapter changes ------------------------------------------------------------------------------------ */

static qrun_status check_module(const qr_adapter_module *module, const qr_weight_desc *desc, qr_error *err) {
    const int64_t rows = module->is_embedding ? module->in_features : module->out_features;
    const int64_t cols = module->is_embedding ? module->out_features : module->in_features;
    if (rows != desc->rows || cols != desc->cols) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: the adapter is made for [%lld, %lld] and the model's layer is [%lld, %lld]", module->name,
                       (long long)rows, (long long)cols, (long long)desc->rows, (long long)desc->cols);
    }
    if (module->is_embedding && module->magnitude != NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: DoRA on an embedding cannot be merged here; merge it with PEFT", module->name);
    }
    return QRUN_OK;
}

/* A linear layer that the forward pass does not know: part of a picture encoder. */
static qrun_status add_other_linear(qr_merge_plan *plan, const qr_adapter_module *module,
                                    const qr_safetensors_tensor *tensor, qr_merge_matrix **matrix, qr_error *err) {
    char path[QR_STORED_NAME_BYTES];
    (void)snprintf(path, sizeof path, "%.*s", (int)(strlen(tensor->name) - strlen("." QR_BNB_CODES_NAME)),
                   tensor->name);
    qr_stored_weight stored;
    const qrun_status status =
        qr_stored_weight_find(plan->source, path, module->out_features, module->in_features, false, &stored, err);
    if (status == QRUN_OK) { *matrix = add_matrix(plan, &stored, false); }
    return status;
}

/* The output head of a tied model, which is the embedding until an adapter makes it another matrix. */
static qr_merge_matrix *add_tied_head(qr_merge_plan *plan) {
    const qr_safetensors_tensor *embedding = plan->head_source;
    qr_merge_matrix *head = add_matrix(plan, &find_matrix(plan, embedding)->stored, false);
    plan->head = head;
    plan->unties_head = true;
    return head;
}

static qrun_status apply_module(qr_merge_plan *plan, const qr_adapter_module *module, qr_error *err) {
    qr_merge_matrix *matrix = NULL;
    if (is_tied_head(plan, module->name)) {
        matrix = add_tied_head(plan);
    } else {
        const qr_safetensors_tensor *tensor = find_tensor(plan, module->name, "." QR_BNB_CODES_NAME);
        if (tensor == NULL) { return refuse_unknown(plan, "adapts", module->name, err); }
        matrix = find_matrix(plan, tensor);
        const qrun_status status = matrix == NULL ? add_other_linear(plan, module, tensor, &matrix, err) : QRUN_OK;
        if (status != QRUN_OK) { return status; }
    }
    matrix->module = module;
    if (is_role(plan, module->name, QR_ROLE_EMBEDDING)) { plan->unties_head |= plan->model->shape.tied_head; }
    return check_module(module, &matrix->stored.desc, err);
}

static qrun_status check_parameter(const qr_merge_plan *plan, const qr_adapter_parameter *parameter,
                                   const qr_safetensors_tensor *old, qr_error *err) {
    const qr_safetensors_tensor *own = parameter->tensor;
    const qr_merge_matrix *matrix = find_matrix(plan, old);
    int64_t dims[QR_MAX_DIMS];
    int n_dims = old->n_dims;
    memcpy(dims, old->dims, sizeof dims);
    if (matrix != NULL) {
        const qr_weight_desc *desc = &matrix->stored.desc;
        n_dims = 2;
        dims[0] = matrix->transposed ? desc->cols : desc->rows;
        dims[1] = matrix->transposed ? desc->rows : desc->cols;
    }
    bool same = own->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++) { same = own->dims[i] == dims[i]; }
    if (same) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: the adapter replaces it by [%lld%s] where the model has [%lld%s]; was the vocabulary resized, "
                   "or the adapter made for another model?",
                   parameter->name, (long long)own->dims[0], own->n_dims > 1 ? ", …" : "", (long long)dims[0],
                   n_dims > 1 ? ", …" : "");
}

/* A copy that PEFT trains beside the module ("modules_to_save") is that module's alone, so what was tied to it stays;
 * a parameter stored under the module's own name is the module's, and what is tied to it follows. */
static qrun_status apply_parameter(qr_merge_plan *plan, const qr_adapter_parameter *parameter, qr_error *err) {
    char path[QR_STORED_NAME_BYTES];
    const char *dot = strrchr(parameter->name, '.');
    (void)snprintf(path, sizeof path, "%.*s", dot != NULL ? (int)(dot - parameter->name) : 0, parameter->name);
    const bool is_head = is_tied_head(plan, path);
    const qr_safetensors_tensor *old = is_head ? plan->head_source : find_tensor(plan, parameter->name, "");
    if (old == NULL) { return refuse_unknown(plan, "replaces", parameter->name, err); }
    qrun_status status = check_parameter(plan, parameter, old, err);
    if (status != QRUN_OK) { return status; }
    bool alone = true;
    if (plan->model->shape.tied_head && is_role(plan, path, QR_ROLE_EMBEDDING)) {
        status = qr_adapter_config_saves(&plan->adapter->config, path, &alone, err);
        plan->unties_head |= alone;
    }
    for (size_t i = 0; i < qr_safetensors_count(plan->source) && !is_head; i++) {
        if (qr_safetensors_get(plan->source, i) == old) { plan->replaced[i] = parameter->tensor; }
    }
    if (is_head || (!alone && plan->head_source == old)) { plan->head_source = parameter->tensor; }
    plan->unties_head |= is_head;
    return status;
}

/* Both stored, and equal: still tied. */
static void tie_equal_tables(qr_merge_plan *plan, const qr_safetensors_tensor *embedding) {
    for (size_t i = 0; i < qr_safetensors_count(plan->source); i++) {
        const qr_safetensors_tensor *own = plan->replaced[i], *head = plan->head_source;
        if (qr_safetensors_get(plan->source, i) != embedding || own == NULL || plan->head != NULL) { continue; }
        if (own->dtype == head->dtype && own->n_bytes == head->n_bytes &&
            memcmp(own->data, head->data, own->n_bytes) == 0) {
            plan->unties_head = false;
        }
    }
}

static qrun_status apply_adapter(qr_merge_plan *plan, qr_error *err) {
    const qr_adapter *adapter = plan->adapter;
    const qr_safetensors_tensor *embedding = NULL;
    if (plan->model->shape.tied_head) {
        embedding = find_tensor(plan, plan->model->family->modules[QR_ROLE_EMBEDDING], "." QR_BNB_CODES_NAME);
        plan->head_source = embedding;
    }
    for (size_t i = 0; i < adapter->n_modules; i++) {
        QR_RETURN_IF_ERROR(apply_module(plan, &adapter->modules[i], err));
    }
    for (size_t i = 0; i < adapter->n_parameters; i++) {
        QR_RETURN_IF_ERROR(apply_parameter(plan, &adapter->parameters[i], err));
    }
    if (embedding != NULL) { tie_equal_tables(plan, embedding); }
    return QRUN_OK;
}

/* ---- Tensors of the new folder ----------------------------------------------------------------------------------- */

/* Whether it belongs to a quantised matrix, beside the codes. */
static bool is_part(const qr_merge_plan *plan, const char *name) {
    for (int part = QR_BNB_CODES + 1; part < QR_BNB_PART_COUNT; part++) {
        const char *suffix = qr_bnb_part_suffix((qr_bnb_part)part);
        char codes[QR_STORED_NAME_BYTES];
        if (!qr_is_last_part(name, suffix)) { continue; }
        const size_t length = strlen(name) - strlen(suffix);
        const int n = snprintf(codes, sizeof codes, "%.*s" QR_BNB_CODES_NAME, (int)length, name);
        const qr_safetensors_tensor *found = n < (int)sizeof codes ? qr_safetensors_find(plan->source, codes) : NULL;
        const qr_merge_matrix *matrix = found != NULL ? find_matrix(plan, found) : NULL;
        if (matrix != NULL && !is_plain(matrix->stored.desc.format)) { return true; }
    }
    return false;
}

static bool is_float(qr_dtype dtype) { return (QR_DTYPES_FLOAT & QR_DTYPE_BIT(dtype)) != 0; }

static void add_output(qr_merge_plan *plan, const char *name, const qr_safetensors_tensor *source,
                       const qr_merge_matrix *matrix) {
    const bool changes =
        matrix != NULL && (matrix->module != NULL || matrix->quantize || !is_plain(matrix->stored.desc.format));
    qr_safetensors_spec *spec = &plan->specs[plan->n_outputs];
    plan->outputs[plan->n_outputs++] = (qr_merge_output){source, changes ? matrix : NULL};
    *spec = (qr_safetensors_spec){.name = name, .dtype = source->dtype, .n_dims = source->n_dims};
    memcpy(spec->dims, source->dims, sizeof spec->dims);
    if (changes) {
        const qr_weight_desc *desc = &matrix->stored.desc;
        spec->n_dims = 2;
        spec->dims[0] = matrix->transposed ? desc->cols : desc->rows;
        spec->dims[1] = matrix->transposed ? desc->rows : desc->cols;
    }
    if (changes || is_float(source->dtype)) { spec->dtype = plan->dtype; }
}

static qrun_status add_tensor(qr_merge_plan *plan, size_t i, qr_error *err) {
    const qr_safetensors_tensor *tensor = qr_safetensors_get(plan->source, i);
    const qr_merge_matrix *matrix = find_matrix(plan, tensor);
    if (plan->replaced[i] != NULL) {
        add_output(plan, tensor->name, plan->replaced[i], NULL);
        return QRUN_OK;
    }
    if (matrix == NULL && is_part(plan, tensor->name)) { return QRUN_OK; }
    if (matrix == NULL && (tensor->dtype == QR_DTYPE_I8 || strstr(tensor->name, ".quant_state.") != NULL)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: belongs to a quantised matrix outside the language model, which cannot be written in 16 "
                       "bits; merge into the original model instead",
                       tensor->name);
    }
    add_output(plan, tensor->name, tensor, matrix);
    return QRUN_OK;
}

/* Where transformers looks for the head: at the top, but for checkpoints with "language_model." before everything. */
static void name_head(qr_merge_plan *plan) {
    const char *prefix = strcmp(plan->model->prefix, "language_model.") == 0 ? plan->model->prefix : "";
    (void)snprintf(plan->head_name, sizeof plan->head_name, "%s%s." QR_BNB_CODES_NAME, prefix,
                   plan->model->family->modules[QR_ROLE_HEAD]);
}

static qrun_status plan_outputs(qr_merge_plan *plan, qr_error *err) {
    qrun_status status = QRUN_OK;
    name_head(plan);
    for (size_t i = 0; i < qr_safetensors_count(plan->source) && status == QRUN_OK; i++) {
        const char *name = qr_safetensors_get(plan->source, i)->name;
        if (qr_ends_with(name, "." QR_BNB_CODES_NAME)) {
            char path[QR_STORED_NAME_BYTES];
            (void)snprintf(path, sizeof path, "%.*s", (int)(strlen(name) - strlen("." QR_BNB_CODES_NAME)), name);
            if (is_tied_head(plan, path)) { continue; } /* a second copy of the embedding */
        }
        status = add_tensor(plan, i, err);
    }
    if (status == QRUN_OK && plan->unties_head) { add_output(plan, plan->head_name, plan->head_source, plan->head); }
    return status;
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

qrun_status qr_merge_plan_make(qr_merge_plan *plan, qr_error *err) {
    const size_t n_sources = qr_safetensors_count(plan->source);
    const size_t n_matrices = (size_t)plan->model->n_slots + 2 + plan->adapter->n_modules;
    plan->matrices = qr_alloc_array(n_matrices, sizeof *plan->matrices);
    plan->outputs = qr_alloc_array(n_sources + 1, sizeof *plan->outputs);
    plan->specs = qr_alloc_array(n_sources + 1, sizeof *plan->specs);
    plan->replaced = qr_alloc_array_zeroed(n_sources + 1, sizeof *plan->replaced);
    if (plan->matrices == NULL || plan->outputs == NULL || plan->specs == NULL || plan->replaced == NULL) {
        return qr_fail_memory(err, "the list of tensors", n_sources * sizeof *plan->specs);
    }
    QR_RETURN_IF_ERROR(add_model_matrices(plan, err));
    QR_RETURN_IF_ERROR(apply_adapter(plan, err));
    QR_RETURN_IF_ERROR(plan_outputs(plan, err));
    return QRUN_OK;
}

void qr_merge_plan_free(qr_merge_plan *plan) {
    qr_free(plan->matrices);
    qr_free(plan->outputs);
    qr_free(plan->specs);
    qr_free(plan->replaced);
}
