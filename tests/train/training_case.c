#include "training_case.h"

#include "check.h"

#include "../runtime/golden_index.h"
#include "base/half.h"
#include "loaders/adapter/adapter.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/model/model_tensors.h"

bool training_begin(qrun_context **context, qr_json **index) {
    qr_error err = {0};
    const bool found = qr_json_read(FIXTURES "training/index.json", 1 << 24, index, &err) == QRUN_OK &&
                       qrun_context_create(NULL, context, &err) == QRUN_OK;
    if (!found) { printf("%s\n", err.message); }
    return found;
}

static void add_example(const qr_json *example, int64_t number, training_batch *b) {
    const int64_t first = b->batch.n_tokens;
    int64_t n = 0;
    for (const qr_json *id = qr_json_first(qr_json_get(example, "ids")); id != NULL; id = id->next, n++) {
        b->ids[first + n] = (int32_t)id->valuedouble;
        b->position[first + n] = (int32_t)n;
        b->row_key[first + n] = (number << 20) + n;
        b->target[first + n] = -1;
    }
    int64_t i = 0;
    for (const qr_json *label = qr_json_first(qr_json_get(example, "labels")); label != NULL;
         label = label->next, i++) {
        if (i == 0 || label->valuedouble < 0) { continue; }
        b->target[first + i - 1] = (int32_t)label->valuedouble;
        b->n_targets++;
    }
    b->batch.n_tokens += n;
    b->seq_start[++b->batch.n_sequences] = (int32_t)b->batch.n_tokens;
}

void training_batch_read(const qr_json *entry, int64_t first, int64_t n, training_batch *b) {
    *b = (training_batch){0};
    b->batch = (qr_train_batch){.ids = b->ids,
                                .position = b->position,
                                .target = b->target,
                                .seq_start = b->seq_start,
                                .row_key = b->row_key,
                                .dropout_key = 1};
    int64_t i = 0;
    for (const qr_json *example = qr_json_first(qr_json_get(entry, "examples")); example != NULL;
         example = example->next) {
        if (i >= first && (n < 0 || i < first + n)) { add_example(example, i, b); }
        i++;
    }
}

static qrun_status put(const qr_parameters *p, int64_t offset, const qr_safetensors_tensor *tensor, int64_t n,
                       qr_error *err) {
    float *values = malloc((size_t)n * sizeof *values);
    if (values == NULL) { return qr_fail_memory(err, "a factor", 0); }
    qr_elements_to_f32(tensor->dtype, tensor->data, 0, n, values);
    qr_backend *backend = p->model->context->backend;
    const qrun_status status = backend->copy_in(backend, p->values + offset, values, (size_t)n * sizeof *values, err);
    free(values);
    return status;
}

/* The names of the modules of an adapter, "q_proj,v_proj,". */
static void list_targets(const qr_adapter *adapter, char targets[512]) {
    targets[0] = '\0';
    for (size_t i = 0; i < adapter->n_modules; i++) {
        if (adapter->modules[i].n_stacked > 1) { continue; }
        char name[64];
        snprintf(name, sizeof name, "%s,", qr_lora_target_name(adapter->modules[i].name));
        const size_t n = strlen(targets);
        if (strstr(targets, name) == NULL) { snprintf(targets + n, 512 - n, "%s", name); }
    }
}

void training_name_in_memory(char *name, size_t name_bytes) {
    static const char of_files[] = "language_model.";
    const size_t n = sizeof of_files - 1;
    if (strncmp(name, of_files, n) != 0) { return; }
    char rest[256];
    snprintf(rest, sizeof rest, "%s", name + n);
    const bool is_inside = strncmp(rest, "model.", 6) == 0;
    snprintf(name, name_bytes, is_inside ? "model.language_model.%s" : "%s", is_inside ? rest + 6 : rest);
}

/* The reference of preferences: half of each value. */
static qrun_status put_reference(const qr_parameters *p, qr_error *err) {
    float *values = malloc((size_t)p->n_floats * sizeof *values);
    if (values == NULL) { return qr_fail_memory(err, "a reference", 0); }
    qrun_status status = p->backend->copy_out(p->backend, values, p->values, qr_parameters_bytes(p), err);
    for (int64_t i = 0; i < p->n_floats; i++) { values[i] *= 0.5F; }
    if (status == QRUN_OK) {
        status = p->backend->copy_in(p->backend, p->lora.reference_values, values, qr_parameters_bytes(p), err);
    }
    free(values);
    return status;
}

/* Parameters of the shape of a PEFT folder, with its values in them, and modules trained whole. */
static qrun_status open_adapter(qrun_model *model, const char *folder, const char *modules, const char *layers,
                                bool has_reference, qr_parameters *p, qr_error *err) {
    const qr_whole_options whole = {.modules = modules};
    qr_adapter *adapter = NULL;
    qrun_status status = QRUN_OK;
    *p = (qr_parameters){.model = model, .backend = model->context->backend};
    QR_TRY(qr_adapter_open(folder, &adapter, err));
    QR_TRY(qr_whole_parameters_describe(p, &whole, err));
    char targets[512];
    list_targets(adapter, targets);
    char experts[128] = "";
    for (size_t i = 0; i < adapter->config.target_parameters.n_names; i++) {
        const size_t n = strlen(experts);
        snprintf(experts + n, sizeof experts - n, "%s,", adapter->config.target_parameters.names[i]);
    }
    const qr_lora_options options = {.targets = targets,
                                     .expert_targets = experts[0] != '\0' ? experts : NULL,
                                     .layers = layers,
                                     .rank = (int32_t)adapter->modules[0].rank,
                                     .alpha = (float)(adapter->modules[0].scale * (double)adapter->modules[0].rank),
                                     .dora = adapter->config.use_dora,
                                     .has_reference = has_reference};
    QR_TRY(qr_lora_parameters_describe(p, &options, err));
    QR_TRY(qr_parameters_create(p, err));
    QR_TRY(qr_whole_parameters_create(p, &whole, err));
    QR_TRY(qr_whole_parameters_refresh(p, QR_NO_WORKSPACE, err));
    QR_TRY(qr_lora_parameters_create(p, 1, err));
    for (int64_t i = 0; i < p->lora.n_pairs; i++) {
        const qr_lora_pair *pair = &p->lora.pairs[i];
        char name[256];
        qr_parameters_module_name(p, pair->role, pair->layer, name, sizeof name);
        training_name_in_memory(name, sizeof name);
        const qr_adapter_module *module = qr_adapter_find(adapter, name);
        if (module == NULL) { QR_TRY(qr_fail(err, QRUN_ERROR_INTERNAL, "%s: no module %s", folder, name)); }
        if (pair->linear == NULL) {
            const int64_t turns = qr_expert_pair_turns(model, pair->role);
            const qr_row_share all = qr_expert_pair_share(model, &model->layers[pair->layer], pair->role);
            QR_TRY(qr_expert_pair_put(p->backend, module, &all, turns, p->values + pair->a_offset,
                                      p->values + pair->b_offset, err));
            continue;
        }
        QR_TRY(put(p, pair->a_offset, module->a, p->lora.rank * pair->in, err));
        QR_TRY(put(p, pair->b_offset, module->b, p->lora.rank * pair->out, err));
        if (p->lora.dora) { QR_TRY(put(p, pair->magnitude_offset, module->magnitude, pair->out, err)); }
    }
    if (has_reference) { QR_TRY(put_reference(p, err)); }
out:
    qr_adapter_close(adapter);
    return status;
}

static qrun_status open_full(qrun_model *model, qr_parameters *p, qr_error *err) {
    const qr_whole_options options = {.full = true};
    qrun_status status = QRUN_OK;
    *p = (qr_parameters){.model = model, .backend = model->context->backend};
    QR_TRY(qr_whole_parameters_describe(p, &options, err));
    QR_TRY(qr_parameters_create(p, err));
    QR_TRY(qr_whole_parameters_create(p, &options, err));
    QR_TRY(qr_whole_parameters_refresh(p, QR_NO_WORKSPACE, err));
out:
    return status;
}

qrun_status training_read(const qr_parameters *p, const float *device, int64_t n, float *host, qr_error *err) {
    qr_backend *backend = p->model->context->backend;
    return backend->copy_out(backend, host, device, (size_t)n * sizeof *host, err);
}

void training_fixture_close(training_fixture *f) {
    qr_train_pass_destroy(f->pass);
    qr_parameters_destroy(&f->parameters);
    qrun_model_destroy(f->model);
    *f = (training_fixture){0};
}

bool training_is_full(const qr_json *entry) { return text_of(entry, "adapter_folder")[0] == '\0'; }

bool training_fixture_open(qrun_context *context, const qr_json *entry, const training_options *options,
                           training_fixture *f) {
    char path[512];
    qr_error err = {0};
    *f = (training_fixture){0};
    snprintf(path, sizeof path, FIXTURES "%s", text_of(entry, "base_folder"));
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.dtype = options->dtype;
    params.offload_experts = options->experts;
    const char *base = text_of(entry, "base_folder");
    const bool quantised = strstr(base, "nf4") != NULL || strstr(base, "mxfp4") != NULL;
    params.quant = quantised ? QRUN_QUANT_AUTO : QRUN_QUANT_F32;
    if (training_is_full(entry)) { params.trainable = true, params.quant = QRUN_QUANT_AUTO; }
    qrun_status status = qrun_model_open(context, &params, &f->model, &err);
    snprintf(path, sizeof path, FIXTURES "%s", text_of(entry, "adapter_folder"));
    if (status == QRUN_OK) {
        const char *modules = strstr(text_of(entry, "name"), "-head") != NULL ? "lm_head" : NULL;
        const bool has_reference = strstr(text_of(entry, "name"), "-from-adapter") != NULL;
        status = training_is_full(entry)
                     ? open_full(f->model, &f->parameters, &err)
                     : open_adapter(f->model, path, modules, options->layers, has_reference, &f->parameters, &err);
    }
    f->parameters.lora.dropout = options->dropout;
    qr_train_limits limits = {
        .max_tokens = options->max_tokens, .max_sequences = TRAINING_MAX_SEQUENCES, .preference = options->preference};
    if (status == QRUN_OK) {
        status = qr_recompute_policy_parse(options->policy, f->model->shape.n_layers, &limits.policy, &err);
    }
    limits.policy.tile_rows = options->tile_rows;
    limits.policy.offload = options->offload;
    limits.logit_rows = options->logit_rows;
    if (status == QRUN_OK) { status = qr_train_pass_create(&f->parameters, &limits, &f->pass, &err); }
    CHECK_MSG(status == QRUN_OK, "%s: %s", text_of(entry, "name"), err.message);
    if (status != QRUN_OK) { training_fixture_close(f); }
    return status == QRUN_OK;
}

double training_relative_error(const float *a, const float *b, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

/* ---- Gradients in files ---------------------------------------------------------------------------------------- */

/* Conv1D weights are stored [in, out]. */
static void transpose_as_stored(const training_fixture *f, const qr_parameter *parameter, float *values) {
    if (!qr_parameter_is_transposed(f->model, parameter)) { return; }
    const int64_t rows = parameter->rows, cols = parameter->cols, n = rows * cols;
    float *copy = malloc((size_t)n * sizeof *copy);
    memcpy(copy, values, (size_t)n * sizeof *copy);
    for (int64_t i = 0; i < n; i++) { values[i % cols * rows + i / cols] = copy[i]; }
    free(copy);
}

/* B of experts: PEFT has them innermost. */
static void order_as_stored(const training_fixture *f, const qr_parameter *parameter, float *values) {
    if (parameter->kind != QR_PARAMETER_LORA_B || !qr_role_is_expert(parameter->role)) { return; }
    const int64_t n_experts = f->model->shape.n_experts, rows = parameter->rows, rank = parameter->cols;
    float *copy = malloc((size_t)(rows * rank) * sizeof *copy);
    memcpy(copy, values, (size_t)(rows * rank) * sizeof *copy);
    qr_expert_b_to_file(copy, n_experts, rows / n_experts, rank, qr_expert_pair_turns(f->model, parameter->role),
                        values);
    free(copy);
}

/* What a file has of a parameter: all of a tensor, or every other element. */
static void take_elements(const training_fixture *f, const qr_parameter *parameter, const float *file, float *values) {
    const int64_t step = parameter->kind == QR_PARAMETER_NORM ? qr_vector_step(f->model, parameter->role) : 1;
    const int64_t first = step > 1 && parameter->role == QR_ROLE_EXPERT_UP_BIAS ? 1 : 0;
    for (int64_t i = 0; i < parameter->rows * parameter->cols; i++) { values[i] = file[first + i * step]; }
}

double training_gradient_error(const training_fixture *f, const qr_safetensors *golden, double bound) {
    const bool full = f->parameters.whole.full;
    double difference = 0, size = 0;
    size_t n_found = 0;
    qr_error err = {0};
    for (int64_t i = 0; i < f->parameters.n; i++) {
        const qr_parameter *parameter = &f->parameters.list[i];
        char tensor[256], name[400];
        qr_parameter_name(&f->parameters, parameter, tensor, sizeof tensor);
        training_name_in_memory(tensor, sizeof tensor);
        snprintf(name, sizeof name, "%s%s.grad", full ? "" : "base_model.model.", tensor);
        const int64_t n = parameter->rows * parameter->cols;
        const qr_safetensors_tensor *expected = qr_safetensors_find(golden, name);
        n_found += expected != NULL && parameter->role != QR_ROLE_EXPERT_UP_BIAS; /* which is in gate's */
        if (expected == NULL && f->parameters.whole.n > 0) { continue; }
        float *gradient = calloc((size_t)n, sizeof *gradient), *reference = calloc((size_t)n, sizeof *reference);
        CHECK(training_read(&f->parameters, f->parameters.gradients + parameter->offset, n, gradient, &err) == QRUN_OK);
        transpose_as_stored(f, parameter, gradient);
        order_as_stored(f, parameter, gradient);
        if (expected != NULL) { take_elements(f, parameter, (const float *)(const void *)expected->data, reference); }
        const double error = training_relative_error(gradient, reference, n);
        CHECK_MSG(error <= bound, "%s: off by %.3g relative, allowed %.3g", name, error, bound);
        for (int64_t j = 0; j < n; j++) {
            difference += ((double)gradient[j] - (double)reference[j]) * ((double)gradient[j] - (double)reference[j]);
            size += (double)reference[j] * (double)reference[j];
        }
        free(gradient), free(reference);
    }
    CHECK_INT(n_found, qr_safetensors_count(golden));
    return sqrt(difference / size);
}
