#include "runtime/folders/merged_tensors.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/files/bnb_tensors.h"
#include "loaders/files/suffix.h"
#include "runtime/folders/folder_copy.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/model/model_tensors.h"

#define CODES_SUFFIX "." QR_BNB_CODES_NAME
#define OBJECT_PREFIX "model."

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* The path without the prefix of a checkpoint or a model class. */
static const char *bare_name(const qr_family *family, const char *path) {
    const char *prefix;
    for (size_t i = 1; (prefix = qr_family_prefix(family, i)) != NULL; i++) {
        if (strncmp(path, prefix, strlen(prefix)) == 0) { return path + strlen(prefix); }
    }
    return path;
}

/* The path of the module whose matrix, or its codes, is the tensor `name`, which ends in CODES_SUFFIX. */
static void module_path(const char *name, char path[QR_STORED_NAME_BYTES]) {
    (void)snprintf(path, QR_STORED_NAME_BYTES, "%.*s", (int)(strlen(name) - strlen(CODES_SUFFIX)), name);
}

/* The folder's tensor for "<path><suffix>" of an adapter, whose prefix may differ; NULL when there is none. Outside the
 * language model, files and the model object may differ in "model.": "visual.blocks.0" is "model.visual.blocks.0". */
static const qr_safetensors_tensor *find_tensor(const qr_merged_tensors *merged, const char *path, const char *suffix) {
    char stored[QR_STORED_NAME_BYTES];
    (void)snprintf(stored, sizeof stored, "%s", path);
    qr_family_name_in_files(merged->model->family, stored, sizeof stored);
    const char *bare = bare_name(merged->model->family, stored);
    const size_t n_object = strlen(OBJECT_PREFIX);
    const char *const inner = strncmp(stored, OBJECT_PREFIX, n_object) == 0 ? stored + n_object : stored;
    const char *const prefixes[] = {merged->model->prefix, "", "", "", OBJECT_PREFIX};
    const char *const paths[] = {bare, bare, stored, inner, stored};
    for (size_t i = 0; i < QR_COUNT_OF(paths); i++) {
        char name[QR_STORED_NAME_BYTES];
        const int n = snprintf(name, sizeof name, "%s%s%s", prefixes[i], paths[i], suffix);
        const qr_safetensors_tensor *found = n < (int)sizeof name ? qr_safetensors_find(merged->source, name) : NULL;
        if (found != NULL) { return found; }
    }
    return NULL;
}

/* Whether the path is that of a module that the model has once. */
static bool is_role(const qr_merged_tensors *merged, const char *path, qr_tensor_role role) {
    return strcmp(bare_name(merged->model->family, path), merged->model->family->modules[role]) == 0;
}

static bool is_tied_head(const qr_merged_tensors *merged, const char *path) {
    return merged->model->shape.tied_head && is_role(merged, path, QR_ROLE_HEAD);
}

static qrun_status refuse_unknown(const qr_merged_tensors *merged, const char *verb, const char *path, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "the adapter %s %s, which this %s model does not have; was it made for another model?", verb, path,
                   merged->model->family->name);
}

/* ---- Matrices that may change ------------------------------------------------------------------------------------ */

static qr_merge_matrix *find_matrix(const qr_merged_tensors *merged, const qr_safetensors_tensor *codes) {
    for (size_t i = 0; i < merged->n_matrices; i++) {
        if (merged->matrices[i].stored.codes == codes) { return &merged->matrices[i]; }
    }
    return NULL;
}

/* The shape of the result. */
static void matrix_dims(const qr_merge_matrix *matrix, int64_t dims[2]) {
    const qr_weight_desc *desc = &matrix->stored.desc;
    dims[0] = matrix->transposed ? desc->cols : desc->rows;
    dims[1] = matrix->transposed ? desc->rows : desc->cols;
}

static qr_merge_matrix *add_matrix(qr_merged_tensors *merged, const qr_stored_weight *stored, bool transposed) {
    qr_merge_matrix *matrix = &merged->matrices[merged->n_matrices++];
    *matrix = (qr_merge_matrix){.stored = *stored, .transposed = transposed, .quant = merged->quant};
    return matrix;
}

static qrun_status add_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    qr_merged_tensors *merged = arg;
    qr_stored_weight stored;
    const qr_weight_desc *desc = &linear->weight.desc;
    QR_RETURN_IF_ERROR(qr_model_find_stored(merged->model, merged->source, role, layer, desc, &stored, err));
    qr_merge_matrix *matrix = add_matrix(merged, &stored, merged->model->family->transposed);
    matrix->quantize = merged->quantize && qr_weight_is_plain(stored.desc.format) && qr_role_is_quantised(role);
    return QRUN_OK;
}

/* LoRA on experts: gate and up are halves of one pair. */
static qrun_status apply_to_expert(qr_merged_tensors *merged, const qr_module *module, qr_merge_matrix *matrix,
                                   qr_error *err) {
    const qr_tensor_role role = module->role == QR_ROLE_EXPERT_OUT ? QR_ROLE_EXPERT_OUT : QR_ROLE_EXPERT_GATE;
    const qr_adapter_module *pair = qr_expert_pair_find(merged->model, merged->adapter, module->layer, role);
    if (pair == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_expert_pair_check(merged->model, pair, &merged->model->layers[module->layer], role, err));
    const bool is_up = module->role == QR_ROLE_EXPERT_UP;
    matrix->module = pair;
    matrix->expert = module->expert;
    matrix->row_step = qr_expert_pair_turns(merged->model, role);
    matrix->first_row = !is_up ? 0 : matrix->row_step > 1 ? 1 : merged->model->shape.expert_mlp;
    merged->n_merged_pairs += module->expert == 0 && module->role == role;
    return QRUN_OK;
}

/* Plain stacks of gpt-oss are [E, cols, rows], gate and up in turn; packed ones become that. Others of that shape have
 * one after the other. */
static void place_in_stack(const qr_merged_tensors *merged, const qr_module *module, qr_merge_matrix *matrix) {
    const qr_stored_weight *stored = &matrix->stored;
    const qr_family *family = merged->model->family;
    const bool is_decoded = stored->packed.kind == QR_PACKING_MXFP4 && family->stacks_in_turn;
    matrix->row_step = 1;
    if (stored->wide_rows == 0 && !is_decoded) { return; }
    matrix->row_step = qr_expert_pair_turns(merged->model, module->role);
    matrix->wide_rows = stored->desc.rows * (module->role == QR_ROLE_EXPERT_OUT ? 1 : qr_family_experts_in(family));
    matrix->first_column = module->role != QR_ROLE_EXPERT_UP ? 0 : matrix->row_step > 1 ? 1 : stored->desc.rows;
}

/* Those of a stack follow each other in the order that they are stored in: gate and up, or the last matrices. */
static qrun_status add_expert(qr_merged_tensors *merged, const qr_module *module, bool is_out, qr_error *err) {
    qr_stored_weight stored;
    if (!qr_role_is_expert(module->role) || (module->role == QR_ROLE_EXPERT_OUT) != is_out) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_module_find_stored(merged->model, merged->source, module, &stored, err));
    qr_merge_matrix *matrix = add_matrix(merged, &stored, false);
    place_in_stack(merged, module, matrix);
    matrix->quantize = merged->quantize && qr_weight_is_plain(stored.desc.format);
    if (matrix->quantize && stored.wide_rows > 0) {
        return qr_fail(
            err, QRUN_ERROR_UNSUPPORTED,
            "%s: has gate and up as columns of one matrix, which is not written quantised; merge onto the original "
            "weights",
            stored.codes->name);
    }
    return apply_to_expert(merged, module, matrix, err);
}

static qrun_status add_expert_in(void *arg, const qr_module *module, qr_error *err) {
    return add_expert(arg, module, false, err);
}

static qrun_status add_expert_out(void *arg, const qr_module *module, qr_error *err) {
    return add_expert(arg, module, true, err);
}

const qr_merge_matrix *qr_merged_experts(const qr_merged_tensors *merged, int64_t layer, qr_tensor_role role,
                                         int64_t *step) {
    const qrun_model *model = merged->model;
    const int64_t n_in = qr_family_experts_in(model->family);
    int64_t before = 0, all = 0; /* layers with experts */
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const bool has_experts = model->layers[l].expert_gate != NULL;
        before += has_experts && l < layer;
        all += has_experts;
    }
    const qr_merge_matrix *first_in = merged->matrices + merged->n_linear;
    const qr_merge_matrix *first_out = first_in + n_in * all * model->shape.n_experts;
    *step = role == QR_ROLE_EXPERT_OUT ? 1 : n_in;
    return role == QR_ROLE_EXPERT_OUT ? first_out + before * model->shape.n_experts
                                      : first_in + n_in * before * model->shape.n_experts + (role == QR_ROLE_EXPERT_UP);
}

static qrun_status add_table(qr_merged_tensors *merged, qr_tensor_role role, const qr_weight *weight, qr_error *err) {
    qr_stored_weight stored;
    QR_RETURN_IF_ERROR(qr_model_find_stored(merged->model, merged->source, role, 0, &weight->desc, &stored, err));
    (void)add_matrix(merged, &stored, false);
    return QRUN_OK;
}

static qrun_status add_model_matrices(qr_merged_tensors *merged, qr_error *err) {
    qrun_model *model = merged->model;
    QR_RETURN_IF_ERROR(qr_model_each_linear(model, add_linear, merged, err));
    merged->n_linear = merged->n_matrices;
    QR_RETURN_IF_ERROR(qr_model_each_module(model, add_expert_in, merged, err));
    QR_RETURN_IF_ERROR(qr_model_each_module(model, add_expert_out, merged, err));
    QR_RETURN_IF_ERROR(add_table(merged, QR_ROLE_EMBEDDING, &model->embedding, err));
    if (model->shape.layer_input > 0) {
        QR_RETURN_IF_ERROR(add_table(merged, QR_ROLE_INPUTS_EMBEDDING, &model->inputs.embedding, err));
    }
    return model->shape.tied_head ? QRUN_OK : add_table(merged, QR_ROLE_HEAD, &model->head, err);
}

/* ---- What the adapter changes ------------------------------------------------------------------------------------ */

static qrun_status check_module(const qr_adapter_module *module, const qr_weight_desc *desc, qr_error *err) {
    const int64_t rows = module->is_embedding ? module->in_features : module->out_features;
    const int64_t cols = module->is_embedding ? module->out_features : module->in_features;
    QR_RETURN_IF_ERROR(qr_adapter_check_shape(module, rows, cols, desc, err));
    if (module->is_embedding && module->magnitude != NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: DoRA on an embedding cannot be merged here; merge it with PEFT", module->name);
    }
    return QRUN_OK;
}

/* A linear layer outside the language model: part of an image encoder. */
static qrun_status add_other_linear(qr_merged_tensors *merged, const qr_adapter_module *module,
                                    const qr_safetensors_tensor *tensor, qr_merge_matrix **matrix, qr_error *err) {
    char path[QR_STORED_NAME_BYTES];
    qr_stored_weight stored;
    module_path(tensor->name, path);
    QR_RETURN_IF_ERROR(qr_stored_weight_find(merged->source, path, module->out_features, module->in_features, false,
                                             NULL, &stored, err));
    *matrix = add_matrix(merged, &stored, false);
    return QRUN_OK;
}

/* The output head of a tied model becomes a matrix of its own when an adapter changes it, or the embedding alone. */
static qr_merge_matrix *add_tied_head(qr_merged_tensors *merged) {
    qr_merge_matrix *head = add_matrix(merged, &find_matrix(merged, merged->head_source)->stored, false);
    merged->head = head;
    merged->unties_head = true;
    return head;
}

static qrun_status apply_module(qr_merged_tensors *merged, const qr_adapter_module *module, qr_error *err) {
    qr_merge_matrix *matrix = NULL;
    if (is_tied_head(merged, module->name)) {
        matrix = add_tied_head(merged);
    } else {
        const qr_safetensors_tensor *tensor = find_tensor(merged, module->name, CODES_SUFFIX);
        if (tensor == NULL) { return refuse_unknown(merged, "adapts", module->name, err); }
        matrix = find_matrix(merged, tensor);
        if (matrix == NULL) { QR_RETURN_IF_ERROR(add_other_linear(merged, module, tensor, &matrix, err)); }
    }
    matrix->module = module;
    if (is_role(merged, module->name, QR_ROLE_EMBEDDING)) { merged->unties_head |= merged->model->shape.tied_head; }
    return check_module(module, &matrix->stored.desc, err);
}

static qrun_status check_parameter(const qr_merged_tensors *merged, const qr_adapter_parameter *parameter,
                                   const qr_safetensors_tensor *old, qr_error *err) {
    const qr_merge_matrix *matrix = find_matrix(merged, old);
    if (matrix == NULL) { return qr_adapter_check_parameter(parameter, old->n_dims, old->dims, err); }
    int64_t dims[2];
    matrix_dims(matrix, dims);
    return qr_adapter_check_parameter(parameter, 2, dims, err);
}

/* The index of a tensor of the old folder. */
static size_t index_of(const qr_merged_tensors *merged, const qr_safetensors_tensor *tensor) {
    size_t i = 0;
    while (qr_safetensors_get(merged->source, i) != tensor) { i++; }
    return i;
}

/* The matrix of LoRA whose own weights the adapter has too: an embedding, or a head. NULL: it has none. */
static qr_merge_matrix *find_adapted(const qr_merged_tensors *merged, const qr_adapter_parameter *parameter,
                                     const qr_safetensors_tensor *old, bool is_head) {
    qr_merge_matrix *matrix = is_head ? merged->head : find_matrix(merged, old);
    return parameter->is_base && matrix != NULL && matrix->module != NULL ? matrix : NULL;
}

/* A copy that PEFT trains ("modules_to_save") belongs to that module alone, and what was tied to it stays. A parameter
 * stored under the module's own name is the module's, and what is tied to it follows. */
static qrun_status apply_parameter(qr_merged_tensors *merged, const qr_adapter_parameter *parameter, qr_error *err) {
    char path[QR_STORED_NAME_BYTES];
    const char *dot = strrchr(parameter->name, '.');
    (void)snprintf(path, sizeof path, "%.*s", dot != NULL ? (int)(dot - parameter->name) : 0, parameter->name);
    const bool is_head = is_tied_head(merged, path);
    const qr_safetensors_tensor *old = is_head ? merged->head_source : find_tensor(merged, parameter->name, "");
    if (old == NULL) { return refuse_unknown(merged, "replaces", parameter->name, err); }
    QR_RETURN_IF_ERROR(check_parameter(merged, parameter, old, err));
    bool alone = true;
    if (merged->model->shape.tied_head && is_role(merged, path, QR_ROLE_EMBEDDING)) {
        QR_RETURN_IF_ERROR(qr_adapter_config_saves(&merged->adapter->config, path, &alone, err));
        merged->unties_head |= alone;
    }
    qr_merge_matrix *adapted = find_adapted(merged, parameter, old, is_head);
    if (adapted != NULL) {
        adapted->base = parameter->tensor;
    } else if (!is_head) {
        merged->replaced[index_of(merged, old)] = parameter->tensor;
    }
    merged->n_replaced += adapted == NULL;
    if (is_head || (!alone && merged->head_source == old)) { merged->head_source = parameter->tensor; }
    merged->unties_head |= is_head;
    return QRUN_OK;
}

/* An adapter with both tables, which are equal, leaves them tied. */
static void tie_equal_tables(qr_merged_tensors *merged, const qr_safetensors_tensor *embedding) {
    const qr_safetensors_tensor *own = merged->replaced[index_of(merged, embedding)], *head = merged->head_source;
    if (own == NULL || merged->head != NULL || own->dtype != head->dtype || own->n_bytes != head->n_bytes) { return; }
    if (memcmp(own->data, head->data, own->n_bytes) == 0) { merged->unties_head = false; }
}

static qrun_status apply_adapter(qr_merged_tensors *merged, qr_error *err) {
    const qr_adapter *adapter = merged->adapter;
    const qr_safetensors_tensor *embedding = NULL;
    if (merged->model->shape.tied_head) {
        embedding = find_tensor(merged, merged->model->family->modules[QR_ROLE_EMBEDDING], CODES_SUFFIX);
        merged->head_source = embedding;
    }
    size_t n_pairs = 0;
    for (size_t i = 0; i < adapter->n_modules; i++) {
        const bool is_pair = adapter->modules[i].n_stacked > 1;
        n_pairs += is_pair;
        if (!is_pair) { QR_RETURN_IF_ERROR(apply_module(merged, &adapter->modules[i], err)); }
    }
    if (n_pairs != merged->n_merged_pairs) { return refuse_unknown(merged, "adapts", "experts", err); }
    for (size_t i = 0; i < adapter->n_parameters; i++) {
        QR_RETURN_IF_ERROR(apply_parameter(merged, &adapter->parameters[i], err));
    }
    if (embedding != NULL) { tie_equal_tables(merged, embedding); }
    return QRUN_OK;
}

/* ---- Tensors of the new folder ----------------------------------------------------------------------------------- */

/* Whether the tensor belongs to a quantised matrix, the codes excepted. */
static bool is_part(const qr_merged_tensors *merged, const char *name) {
    for (int part = QR_BNB_CODES + 1; part < QR_BNB_PART_COUNT; part++) {
        const char *suffix = qr_bnb_part_suffix((qr_bnb_part)part);
        char codes[QR_STORED_NAME_BYTES];
        if (!qr_is_last_part(name, suffix)) { continue; }
        const size_t length = strlen(name) - strlen(suffix);
        const int n = snprintf(codes, sizeof codes, "%.*s" QR_BNB_CODES_NAME, (int)length, name);
        const qr_safetensors_tensor *found = n < (int)sizeof codes ? qr_safetensors_find(merged->source, codes) : NULL;
        const qr_merge_matrix *matrix = found != NULL ? find_matrix(merged, found) : NULL;
        if (matrix != NULL && !qr_weight_is_plain(matrix->stored.desc.format)) { return true; }
    }
    return false;
}

/* Whether the tensor has the scales of packed matrices that are decoded. */
static bool is_packed_part(const qr_merged_tensors *merged, const qr_safetensors_tensor *tensor) {
    for (size_t i = 0; i < merged->n_matrices && !merged->keeps_packed; i++) {
        if (merged->matrices[i].stored.packed.scale_tensor == tensor) { return true; }
    }
    return false;
}

/* How many of its matrices a tensor holds. */
static int64_t count_matrices(const qr_merged_tensors *merged, const qr_merge_matrix *first) {
    const qr_merge_matrix *end = merged->matrices + merged->n_matrices, *next = first;
    while (next < end && next->stored.codes == first->stored.codes &&
           next->stored.n_bytes < next->stored.codes->n_bytes) {
        next++;
    }
    return next == first ? 1 : next - first;
}

static bool is_float(qr_dtype dtype) { return (QR_DTYPES_FLOAT & QR_DTYPE_BIT(dtype)) != 0; }

static bool changes_matrix(const qr_merged_tensors *merged, const qr_merge_matrix *matrix) {
    if (matrix == NULL) { return false; }
    const bool is_kept = merged->keeps_packed && matrix->stored.packed.kind != QR_PACKING_NONE;
    return matrix->module != NULL || matrix->quantize || (!qr_weight_is_plain(matrix->stored.desc.format) && !is_kept);
}

/* A packed stack becomes a plain one, whose name does not end in that of its codes. */
static void describe_decoded(qr_merged_tensors *merged, const qr_merge_matrix *first, int64_t n_matrices,
                             qr_safetensors_spec *spec) {
    const int64_t n_experts = merged->model->shape.n_experts, cols = first->stored.desc.cols;
    const int64_t rows = n_matrices / n_experts * first->stored.desc.rows;
    char *name = merged->decoded_names[merged->n_decoded++];
    const size_t length = strlen(spec->name) - strlen(QR_MXFP4_CODES_SUFFIX);
    (void)snprintf(name, QR_STORED_NAME_BYTES, "%.*s", (int)length, spec->name);
    *spec = (qr_safetensors_spec){.name = name, .n_dims = 3, .dims = {n_experts, rows, cols}};
    if (first->wide_rows > 0) { spec->dims[1] = cols, spec->dims[2] = rows; }
}

static void add_output(qr_merged_tensors *merged, const char *name, const qr_safetensors_tensor *source,
                       const qr_merge_matrix *matrix) {
    const bool changes = changes_matrix(merged, matrix);
    qr_safetensors_spec *spec = &merged->specs[merged->n_outputs];
    const int64_t n_matrices = changes ? count_matrices(merged, matrix) : 0;
    merged->outputs[merged->n_outputs++] =
        (qr_merge_output){.source = source, .matrix = changes ? matrix : NULL, .n_matrices = n_matrices, .n_parts = 1};
    *spec = qr_tensor_spec(source);
    spec->name = name;
    if (n_matrices == 1) {
        spec->n_dims = 2;
        matrix_dims(matrix, spec->dims);
    }
    if (changes && matrix->wide_rows > 0) {
        merged->outputs[merged->n_outputs - 1].n_parts = matrix->wide_rows / matrix->stored.desc.rows;
    }
    if (changes && matrix->stored.packed.kind != QR_PACKING_NONE) {
        describe_decoded(merged, matrix, n_matrices, spec);
    }
    if (changes || is_float(source->dtype)) { spec->dtype = merged->dtype; }
}

static qrun_status add_tensor(qr_merged_tensors *merged, size_t i, qr_error *err) {
    const qr_safetensors_tensor *tensor = qr_safetensors_get(merged->source, i);
    const qr_merge_matrix *matrix = find_matrix(merged, tensor);
    if (merged->replaced[i] != NULL) {
        add_output(merged, tensor->name, merged->replaced[i], NULL);
        return QRUN_OK;
    }
    if (matrix == NULL && (is_part(merged, tensor->name) || is_packed_part(merged, tensor))) { return QRUN_OK; }
    if (matrix == NULL && (tensor->dtype == QR_DTYPE_I8 || strstr(tensor->name, ".quant_state.") != NULL)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: belongs to a quantised matrix outside the language model, which cannot be written in 16 "
                       "bits; merge into the original model instead",
                       tensor->name);
    }
    add_output(merged, tensor->name, tensor, matrix);
    return QRUN_OK;
}

static qrun_status list_outputs(qr_merged_tensors *merged, qr_error *err) {
    (void)qr_family_tensor_name(merged->model->family, merged->model->prefix, QR_ROLE_HEAD, 0, QR_BNB_CODES_NAME,
                                merged->head_name, sizeof merged->head_name);
    for (size_t i = 0; i < qr_safetensors_count(merged->source); i++) {
        const char *name = qr_safetensors_get(merged->source, i)->name;
        if (qr_ends_with(name, CODES_SUFFIX)) {
            char path[QR_STORED_NAME_BYTES];
            module_path(name, path);
            if (is_tied_head(merged, path)) { continue; } /* a second copy of the embedding */
        }
        QR_RETURN_IF_ERROR(add_tensor(merged, i, err));
    }
    if (merged->unties_head && merged->head == NULL && find_matrix(merged, merged->head_source) != NULL) {
        (void)add_tied_head(merged); /* its values may be quantised */
    }
    if (merged->unties_head) { add_output(merged, merged->head_name, merged->head_source, merged->head); }
    return QRUN_OK;
}

qrun_status qr_merge_refuse_packed(const qrun_model *model, qr_error *err) {
    const qr_packing *packing = &model->config.quantization.packing;
    if (packing->kind == QR_PACKING_NONE) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: is stored as %s, which is read but not written; take the original model, or a copy of this "
                   "one that is quantised to nf4-dq, nf4 or int8",
                   model->folder, qr_packing_name(packing));
}

/* ---- The list ---------------------------------------------------------------------------------------------------- */

qrun_status qr_merged_tensors_list(qr_merged_tensors *merged, qr_error *err) {
    const size_t n_sources = qr_safetensors_count(merged->source);
    const size_t n_experts = (size_t)qr_model_expert_matrices(merged->model);
    const size_t n_matrices = (size_t)merged->model->n_slots + n_experts + 4 + merged->adapter->n_modules;
    merged->matrices = qr_alloc_array(n_matrices, sizeof *merged->matrices);
    merged->outputs = qr_alloc_array(n_sources + 1, sizeof *merged->outputs);
    merged->specs = qr_alloc_array(n_sources + 1, sizeof *merged->specs);
    merged->replaced = qr_alloc_array_zeroed(n_sources + 1, sizeof *merged->replaced);
    merged->decoded_names = qr_alloc_array(n_sources + 1, sizeof *merged->decoded_names);
    if (merged->matrices == NULL || merged->outputs == NULL || merged->specs == NULL || merged->replaced == NULL ||
        merged->decoded_names == NULL) {
        return qr_fail_memory(err, "the list of tensors", n_sources * sizeof *merged->specs);
    }
    QR_RETURN_IF_ERROR(add_model_matrices(merged, err));
    merged->keeps_packed &= merged->n_merged_pairs == 0;
    QR_RETURN_IF_ERROR(apply_adapter(merged, err));
    return list_outputs(merged, err);
}

void qr_merged_tensors_free(qr_merged_tensors *merged) {
    qr_free(merged->matrices);
    qr_free(merged->outputs);
    qr_free(merged->specs);
    qr_free(merged->replaced);
    qr_free(merged->decoded_names);
}
