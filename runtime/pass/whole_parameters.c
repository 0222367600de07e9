#include "runtime/pass/whole_parameters.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/source/model_source.h"
#include "runtime/engine/layout.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/vocabulary.h"
#include "runtime/pass/whole_codes.h"
#include "runtime/pass/whole_shards.h"

enum { CHUNK_ELEMENTS = 1 << 20, TASK_ELEMENTS = 1 << 14 };

/* ---- Which modules ----------------------------------------------------------------------------------------------- */

/* The first of *names, which are separated by commas, is at *name; false where none is left. NULL: no names. */
static bool take_name(const char **names, const char **name, size_t *n_bytes) {
    *name = *names;
    if (*name == NULL || **name == '\0') { return false; }
    *n_bytes = strcspn(*name, ",");
    *names += *n_bytes + ((*name)[*n_bytes] == ',');
    return true;
}

static bool is_named(const qr_family *family, const char *names, qr_tensor_role role) {
    size_t n_bytes;
    if (qr_role_is_bare(role)) { return false; } /* PEFT saves modules, and this is a parameter of another */
    for (const char *at; take_name(&names, &at, &n_bytes);) {
        if (qr_module_is_called(family, role, at, n_bytes)) { return true; }
    }
    return false;
}

static qrun_status refuse_unknown(const qr_family *family, const char *names, qr_error *err) {
    size_t n_bytes;
    for (const char *at; take_name(&names, &at, &n_bytes);) {
        bool known = false;
        for (int role = 0; role < QR_ROLE_COUNT && !known; role++) {
            known = !qr_role_is_bare((qr_tensor_role)role) &&
                    qr_module_is_called(family, (qr_tensor_role)role, at, n_bytes);
        }
        if (!known) {
            const char *norm = family->modules[QR_ROLE_FINAL_NORM]; /* NULL: without a weight */
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "a %s model has no module \"%.*s\"; its tables are %s and %s%s%s",
                           family->name, (int)qr_min((int64_t)n_bytes, 60), at, family->modules[QR_ROLE_EMBEDDING],
                           family->modules[QR_ROLE_HEAD], norm != NULL ? ", its last norm " : "",
                           norm != NULL ? norm : "");
        }
    }
    return QRUN_OK;
}

typedef struct describe_state {
    qr_parameters *parameters;
    const qr_whole_options *options;
} describe_state;

static qrun_status add_tensor(qr_parameters *p, const qr_module *module, const qr_parameter *parameter,
                              const float **vector, qr_error *err) {
    qr_whole_modules *whole = &p->whole;
    if (!qr_array_reserve(&whole->tensors, &whole->capacity, (size_t)whole->n + 1, sizeof *whole->tensors)) {
        return qr_fail_memory(err, "the trained modules", (size_t)whole->n * sizeof *whole->tensors);
    }
    qr_whole_tensor tensor = {.parameter = p->n, .matrix = vector == NULL ? module->matrix : NULL, .vector = vector};
    if (tensor.matrix != NULL) { tensor.override.desc = module->matrix->desc; }
    if (tensor.matrix != NULL && !whole->full) {
        tensor.override.desc.format = qr_model_compute_format(p->model);
        tensor.override.desc.block = 0;
    }
    whole->tensors[whole->n++] = tensor;
    int64_t offset;
    return qr_parameters_add(p, *parameter, &offset, err);
}

static qrun_status refuse_untrainable(const qrun_model *model, const qr_module *module, qr_error *err) {
    char name[256];
    (void)qr_family_tensor_name(model->family, model->prefix, module->role, module->layer, "", name, sizeof name);
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "`full` changes every weight, and %s is held in %s; open the model as trainable, or train an "
                   "adapter on it",
                   name, qr_weight_format_name(module->matrix->desc.format));
}

static qrun_status refuse_experts(const qr_family *family, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "the modules to train whole are in experts, which %s models train with `full` alone; train an "
                   "adapter on experts instead",
                   family->name);
}

static qrun_status describe_module(void *arg, const qr_module *module, qr_error *err) {
    const describe_state *state = arg;
    qr_parameters *p = state->parameters;
    const bool full = state->options->full;
    if (full && module->role == QR_ROLE_HEAD && p->model->shape.tied_head) { return QRUN_OK; }
    if (qr_role_is_buffer(module->role)) { return QRUN_OK; }
    if (!full && !is_named(p->model->family, state->options->modules, module->role)) { return QRUN_OK; }
    if (!full && qr_role_is_expert(module->role)) { return refuse_experts(p->model->family, err); }
    if (full && module->matrix != NULL && module->matrix->desc.format != qr_model_compute_format(p->model)) {
        return refuse_untrainable(p->model, module, err);
    }
    qr_parameter parameter = {.kind = QR_PARAMETER_NORM,
                              .role = module->role,
                              .layer = module->layer,
                              .expert = module->expert,
                              .rows = 1,
                              .cols = module->n};
    if (module->matrix != NULL) {
        parameter.kind = QR_PARAMETER_MATRIX;
        parameter.rows = module->matrix->desc.rows;
        parameter.cols = module->matrix->desc.cols;
    }
    QR_RETURN_IF_ERROR(add_tensor(p, module, &parameter, module->weight, err));
    if (module->bias == NULL) { return QRUN_OK; }
    parameter.kind = QR_PARAMETER_BIAS;
    parameter.rows = 1;
    parameter.cols = module->n;
    return add_tensor(p, module, &parameter, module->bias, err);
}

/* Where both tables are trained, describes them with the wanted rows, so that everything is planned for them. Nothing
 * reads the tables before the new ones exist. */
static void grow_tables(qr_parameters *p, const qr_whole_options *options) {
    qrun_model *model = p->model;
    const bool both = options->full || (is_named(model->family, options->modules, QR_ROLE_EMBEDDING) &&
                                        is_named(model->family, options->modules, QR_ROLE_HEAD));
    if (!both || options->n_token_rows <= model->shape.vocab || qr_model_has_short_head(model)) { return; }
    p->whole.original_vocab = model->shape.vocab;
    model->shape.vocab = model->embedding.desc.rows = model->head.desc.rows = options->n_token_rows;
}

static bool stands_beside(const qr_parameters *p, const qr_whole_tensor *tensor) {
    if (tensor->matrix == NULL) { return false; }
    return !p->whole.full || (p->whole.original_vocab > 0 && qr_role_has_token_rows(p->list[tensor->parameter].role));
}

/* Places the matrices that are not in the model's own memory (base NULL: only counts). */
static size_t place_overrides(qr_parameters *p, void *base) {
    const qr_backend *backend = p->backend;
    qr_layout layout = {.base = base};
    for (int64_t i = 0; i < p->whole.n; i++) {
        if (!stands_beside(p, &p->whole.tensors[i])) { continue; }
        qr_weight *matrix = &p->whole.tensors[i].override;
        matrix->data = qr_layout_take(&layout, 1, backend->weight_bytes(backend, &matrix->desc));
    }
    return layout.offset;
}

qrun_status qr_whole_parameters_describe(qr_parameters *p, const qr_whole_options *options, qr_error *err) {
    describe_state state = {p, options};
    p->whole.full = options->full;
    if (!options->full && options->modules == NULL) { return QRUN_OK; }
    if (!options->full) { QR_RETURN_IF_ERROR(refuse_unknown(p->model->family, options->modules, err)); }
    grow_tables(p, options);
    QR_RETURN_IF_ERROR(qr_model_each_module(p->model, describe_module, &state, err));
    p->whole.override_bytes = place_overrides(p, NULL);
    return QRUN_OK;
}

/* ---- Values from the model's files ------------------------------------------------------------------------------- */

static qrun_status refuse_quantised(const qr_stored_weight *stored, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: is stored as %s, so it cannot be trained whole; use the original model, or leave it out",
                   stored->codes->name, qr_weight_format_name(stored->desc.format));
}

static qrun_status find_matrix(const qrun_model *model, const qr_safetensors *source, const qr_parameter *parameter,
                               const qr_whole_tensor *whole, qr_stored_weight *stored, qr_error *err) {
    /* A tied head begins as a copy of the embedding. */
    const bool tied = parameter->role == QR_ROLE_HEAD && model->shape.tied_head;
    const int64_t rows = parameter->role == QR_ROLE_EMBEDDING ? model->config.embedding_rows
                         : parameter->role == QR_ROLE_HEAD    ? model->config.vocab_size
                                                              : parameter->rows;
    const qr_weight_desc desc = {.rows = rows, .cols = parameter->cols};
    const qr_module module = {.role = parameter->role,
                              .layer = parameter->layer,
                              .expert = parameter->expert,
                              .matrix = whole->matrix,
                              .n = rows};
    QR_RETURN_IF_ERROR(qr_role_is_expert(parameter->role)
                           ? qr_module_find_stored(model, source, &module, stored, err)
                           : qr_model_find_stored(model, source, tied ? QR_ROLE_EMBEDDING : parameter->role,
                                                  parameter->layer, &desc, stored, err));
    return stored->desc.format < QR_WEIGHT_INT8 ? QRUN_OK : refuse_quantised(stored, err);
}

static int64_t chunk_rows(const qr_parameter *parameter) {
    const int64_t n_groups = CHUNK_ELEMENTS / parameter->cols / QR_WEIGHT_ROW_GROUP;
    return qr_min(parameter->rows, qr_max(1, n_groups) * QR_WEIGHT_ROW_GROUP);
}

static qrun_status put_rows(const qr_parameters *p, const qr_whole_tensor *tensor, int64_t first, int64_t n,
                            const float *values, qr_error *err) {
    const qr_parameter *parameter = &p->list[tensor->parameter];
    if (p->shards != NULL) { return qr_whole_shards_put(p, tensor - p->whole.tensors, first, n, values, err); }
    return qr_parameters_write(p, parameter->offset + first * parameter->cols, n * parameter->cols, values, err);
}

/* Every which element of a vector that files have as a tensor of its own. */
static qrun_status load_vector(const qr_parameters *p, const qr_safetensors *source, const qr_whole_tensor *whole,
                               float *staging, qr_error *err) {
    const qr_parameter *parameter = &p->list[whole->parameter];
    const char *suffix = parameter->kind == QR_PARAMETER_BIAS ? "bias" : "weight";
    const int64_t step = qr_vector_step(p->model, parameter->role);
    const int64_t first = step > 1 && parameter->role == QR_ROLE_EXPERT_UP_BIAS ? 1 : 0;
    qr_stored_vector vector;
    float *at = staging;
    QR_RETURN_IF_ERROR(qr_module_find_vector(p->model, source, parameter->role, parameter->layer, suffix,
                                             parameter->cols, &vector, err));
    for (int k = 0; k < vector.n_parts; k++) {
        const qr_safetensors_tensor *part = vector.parts[k];
        const int64_t n = vector.n_parts > 1 ? qr_stored_part_elements(part) : parameter->cols;
        for (int64_t i = 0; i < n; i++) { qr_elements_to_f32(part->dtype, part->data, first + i * step, 1, at++); }
    }
    QR_RETURN_IF_ERROR(put_rows(p, whole, 0, 1, staging, err));
    for (int k = 0; k < vector.n_parts; k++) {
        QR_RETURN_IF_ERROR(qr_safetensors_finish(source, vector.parts[k], err));
    }
    return QRUN_OK;
}

static qrun_status load_matrix(const qr_parameters *p, const qr_safetensors *source, const qr_whole_tensor *whole,
                               float *staging, qr_error *err) {
    const qr_parameter *parameter = &p->list[whole->parameter];
    const bool transposed = qr_parameter_is_transposed(p->model, parameter);
    qr_stored_weight stored;
    void *grown = NULL;
    qrun_status status;
    QR_TRY(find_matrix(p->model, source, parameter, whole, &stored, err));
    if (!transposed && parameter->rows > stored.desc.rows) {
        QR_TRY(qr_new_token_rows(stored.codes, parameter->rows, &grown, err));
        stored.data = grown;
        stored.desc.rows = parameter->rows;
    }
    for (int64_t first = 0; first < parameter->rows; first += chunk_rows(parameter)) {
        const int64_t n = qr_min(chunk_rows(parameter), parameter->rows - first);
        qr_stored_rows_to_f32(&stored, transposed, first, n, staging);
        QR_TRY(put_rows(p, whole, first, n, staging, err));
    }
    status = stored.is_last ? qr_safetensors_finish(source, stored.codes, err) : QRUN_OK;
out:
    qr_free(grown);
    return status;
}

static qrun_status load_tensor(const qr_parameters *p, const qr_safetensors *source, const qr_whole_tensor *whole,
                               float *staging, qr_error *err) {
    return whole->matrix == NULL ? load_vector(p, source, whole, staging, err)
                                 : load_matrix(p, source, whole, staging, err);
}

static qrun_status load_values(const qr_parameters *p, float *staging, qr_error *err) {
    qr_safetensors *source = NULL;
    if (p->model->random_weights) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s was opened with random weights, so it has none to continue from; give `full` and "
                       "`init_random` to train from random ones",
                       p->model->folder);
    }
    qrun_status status;
    QR_TRY(qr_source_require_folder(p->model->folder, "training whole matrices", err));
    QR_TRY(qr_source_open_tensors(p->model->folder, &source, err));
    for (int64_t i = 0; i < p->whole.n; i++) { QR_TRY(load_tensor(p, source, &p->whole.tensors[i], staging, err)); }
out:
    qr_safetensors_close(source);
    return status;
}

/* ---- Random values, as transformers initialises each family ------------------------------------------------------ */

typedef struct random_task {
    uint64_t seed, stream;
    double std;
    int64_t first, n;
    float *dst;
} random_task;

static void fill_normal(void *arg, int64_t index, int worker) {
    (void)worker;
    const random_task *task = arg;
    const int64_t end = qr_min(task->n, (index + 1) * TASK_ELEMENTS);
    for (int64_t i = index * TASK_ELEMENTS; i < end; i++) {
        task->dst[i] = (float)(task->std * qr_random_normal(task->seed, task->stream, (uint64_t)(task->first + i)));
    }
}

static double initial_std(const qrun_model *model, const qr_whole_options *options, qr_tensor_role role) {
    const double range = model->config.initializer_range;
    const bool is_table =
        role == QR_ROLE_EMBEDDING || role == QR_ROLE_POSITION_EMBEDDING || role == QR_ROLE_INPUTS_EMBEDDING;
    if (is_table && options->embedding_std > 0) { return options->embedding_std; }
    /* GPT-2 scales what is added to the residual stream by the number of additions. */
    const bool is_branch = role == QR_ROLE_ATTN_OUT || role == QR_ROLE_MLP_OUT || role == QR_ROLE_SHARED_OUT;
    const bool is_gpt2 = model->family->family == QR_FAMILY_GPT2;
    return is_branch && is_gpt2 ? range / sqrt(2.0 * (double)model->shape.n_layers) : range;
}

static qrun_status init_matrix(const qr_parameters *p, const qr_whole_options *options, const qr_whole_tensor *whole,
                               float *staging, qr_error *err) {
    const qr_parameter *parameter = &p->list[whole->parameter];
    random_task task = {.seed = options->seed,
                        .stream = (uint64_t)whole->parameter,
                        .std = initial_std(p->model, options, parameter->role),
                        .dst = staging};
    for (int64_t first = 0; first < parameter->rows; first += chunk_rows(parameter)) {
        const int64_t n = qr_min(chunk_rows(parameter), parameter->rows - first);
        task.first = first * parameter->cols;
        task.n = n * parameter->cols;
        qr_threads_run(p->model->context->threads, qr_ceil_div(task.n, TASK_ELEMENTS), fill_normal, &task);
        QR_RETURN_IF_ERROR(put_rows(p, whole, first, n, staging, err));
    }
    return QRUN_OK;
}

/* Norms and scales begin at 1, also where the family adds it; biases at 0. A state's rate, exp(a_log), is uniform in
 * [0.01, 16), and of a state space the number of its head, from 1 on. */
static float initial_element(const qr_parameters *p, const qr_whole_options *options, int64_t stream,
                             const qr_parameter *parameter, int64_t i) {
    const double range = p->model->config.initializer_range;
    if (parameter->kind == QR_PARAMETER_BIAS) { return 0.0F; }
    switch (parameter->role) {
        case QR_ROLE_RECURRENT_NORM:
        case QR_ROLE_SKIP:
        case QR_ROLE_EXPERT_SCALE:
        case QR_ROLE_RECURRENT_DT_BIAS: return 1.0F;
        case QR_ROLE_STREAM_SCALE:
        case QR_ROLE_CONV_BIAS:
        case QR_ROLE_EXPERT_GATE_BIAS:
        case QR_ROLE_EXPERT_UP_BIAS:
        case QR_ROLE_EXPERT_OUT_BIAS: return 0.0F;
        case QR_ROLE_XIELU_ALPHA_P:
        case QR_ROLE_XIELU_ALPHA_N: return qr_xielu_initial(parameter->role);
        case QR_ROLE_SINKS:
        case QR_ROLE_STREAM_ROUTER:
        case QR_ROLE_STREAM_PREDICT:
        case QR_ROLE_STREAM_CORRECT:
        case QR_ROLE_CONV: return (float)(range * qr_random_normal(options->seed, (uint64_t)stream, (uint64_t)i));
        case QR_ROLE_RECURRENT_A_LOG:
            if (p->model->shape.recurrent.kind == QR_RECURRENT_SPACE) { return (float)log((double)i + 1.0); }
            return (float)log(0.01 + 15.99 * qr_random_uniform(options->seed, (uint64_t)stream, (uint64_t)i));
        default: return 1.0F - qr_model_norm_offset(p->model, parameter->role);
    }
}

static qrun_status init_vector(const qr_parameters *p, const qr_whole_options *options, const qr_whole_tensor *whole,
                               float *staging, qr_error *err) {
    const qr_parameter *parameter = &p->list[whole->parameter];
    for (int64_t i = 0; i < parameter->cols; i++) {
        staging[i] = initial_element(p, options, whole->parameter, parameter, i);
    }
    return put_rows(p, whole, 0, 1, staging, err);
}

static qrun_status init_values(const qr_parameters *p, const qr_whole_options *options, float *staging, qr_error *err) {
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *whole = &p->whole.tensors[i];
        QR_RETURN_IF_ERROR(whole->matrix != NULL ? init_matrix(p, options, whole, staging, err)
                                                 : init_vector(p, options, whole, staging, err));
    }
    return QRUN_OK;
}

/* ---- Use by the model -------------------------------------------------------------------------------------------- */

static qrun_status replace_weights(qr_parameters *p, qr_error *err) {
    qr_whole_modules *whole = &p->whole;
    QR_RETURN_IF_ERROR(qr_weight_overrides_reserve(&whole->overrides, whole->n + 1, err));
    for (int64_t i = 0; i < whole->n; i++) {
        qr_whole_tensor *tensor = &whole->tensors[i];
        const bool apart = p->shards != NULL || p->processor != NULL; /* the model has it in its own memory */
        if (tensor->matrix == NULL && apart) { continue; }
        if (tensor->matrix == NULL) {
            tensor->original_vector = *tensor->vector;
            qr_override_vector(&whole->overrides, tensor->vector, p->values + p->list[tensor->parameter].offset);
        } else if (stands_beside(p, tensor)) {
            qr_override_matrix(&whole->overrides, tensor->matrix, &tensor->override);
            if (!whole->full || !p->model->shape.tied_head) { continue; }
            qr_override_matrix(&whole->overrides, &p->model->head, &tensor->override);
        }
    }
    return QRUN_OK;
}

static qrun_status make_overrides(qr_parameters *p, qr_error *err) {
    if (p->whole.override_bytes == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(p->backend->memory_create(p->backend, QR_MEMORY_DEVICE, p->whole.override_bytes,
                                                 &p->whole.override_memory, err));
    (void)place_overrides(p, p->whole.override_memory);
    return QRUN_OK;
}

qrun_status qr_whole_parameters_reserve(qr_parameters *p, qr_error *err) {
    QR_RETURN_IF_ERROR(make_overrides(p, err));
    return p->whole.n > 0 ? replace_weights(p, err) : QRUN_OK;
}

void qr_whole_parameters_release(qr_parameters *p) {
    if (p->whole.overrides.list == NULL) { return; }
    qr_weight_overrides_undo(&p->whole.overrides);
    for (int64_t i = 0; i < p->whole.n; i++) {
        p->whole.tensors[i].original_vector = NULL;
        p->whole.tensors[i].override.data = NULL;
    }
}

static int64_t staging_floats(const qr_parameters *p) {
    int64_t most = 1;
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_parameter *parameter = &p->list[p->whole.tensors[i].parameter];
        most = qr_max(most, chunk_rows(parameter) * parameter->cols);
    }
    return most;
}

qrun_status qr_whole_parameters_create(qr_parameters *p, const qr_whole_options *options, qr_error *err) {
    if (p->whole.n == 0) { return QRUN_OK; }
    const int64_t n_staging = staging_floats(p);
    float *staging = qr_alloc_array((size_t)n_staging, sizeof *staging);
    qrun_status status = QRUN_OK;
    if (staging == NULL) { QR_TRY(qr_fail_memory(err, "the trained modules", (size_t)n_staging * sizeof *staging)); }
    QR_TRY(make_overrides(p, err));
    QR_TRY(replace_weights(p, err));
    QR_TRY(options->random ? init_values(p, options, staging, err) : load_values(p, staging, err));
out:
    qr_free(staging);
    return status;
}

/* ---- Afterwards -------------------------------------------------------------------------------------------------- */

qrun_status qr_whole_parameters_refresh_layer(qr_parameters *p, int64_t l, qr_error *err) {
    p->whole.refreshed = true;
    return qr_whole_write_layer(p, l, err);
}

qrun_status qr_whole_parameters_refresh(qr_parameters *p, qr_workspace workspace, qr_error *err) {
    p->whole.refreshed = true;
    for (int64_t l = -1; p->processor != NULL && l < p->model->shape.n_layers; l++) {
        QR_RETURN_IF_ERROR(qr_whole_write_layer(p, l, err));
    }
    if (p->processor != NULL) { return QRUN_OK; }
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *tensor = &p->whole.tensors[i];
        if (tensor->matrix == NULL || p->shards != NULL) { continue; } /* shards: whole_shards.h */
        const qr_store_weight_args args = {.src = p->values + p->list[tensor->parameter].offset,
                                           .weight = tensor->matrix};
        QR_RETURN_IF_ERROR(qr_store_weight(p->backend, &args, workspace, err));
    }
    return QRUN_OK;
}

static const qr_whole_tensor *find_tensor(const qr_parameters *p, const qr_weight *matrix) {
    const qrun_model *model = p->model;
    /* A tied head and the embedding have one gradient. */
    if (matrix == &model->head && model->head.data == model->embedding.data) { matrix = &model->embedding; }
    for (int64_t i = 0; i < p->whole.n; i++) {
        if (p->whole.tensors[i].matrix == matrix) { return &p->whole.tensors[i]; }
    }
    return NULL;
}

bool qr_whole_is_trained(const qr_parameters *p, const qr_weight *matrix) { return find_tensor(p, matrix) != NULL; }

float *qr_whole_gradient(const qr_parameters *p, const qr_weight *matrix) {
    const qr_whole_tensor *tensor = find_tensor(p, matrix);
    return tensor != NULL ? p->gradients + p->list[tensor->parameter].gradient : NULL;
}

float *qr_whole_expert_gradients(const qr_parameters *p, const qr_weight *matrices, int64_t n, int64_t *stride) {
    float *first = qr_whole_gradient(p, &matrices[0]);
    *stride = matrices->desc.rows * matrices->desc.cols;
    if (first == NULL || n == 1) { return first; }
    *stride = qr_whole_gradient(p, &matrices[1]) - first; /* the tensors of an expert follow those of the last */
    return first;
}
