#include "runtime/folders/adapter_export.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "loaders/adapter/adapter_writer.h"

enum { MAX_TARGETS = QR_ROLE_COUNT, NAME_BYTES = 256 };

static qrun_status read_factor(void *user, size_t i, bool is_b, float *values, qr_error *err) {
    const qr_parameters *p = user;
    const qr_lora_pair *pair = &p->lora.pairs[i];
    qr_backend *backend = p->model->context->backend;
    const int64_t n = p->lora.rank * (is_b ? pair->out : pair->in);
    return backend->copy_out(backend, values, p->values + (is_b ? pair->b_offset : pair->a_offset),
                             (size_t)n * sizeof *values, err);
}

static qrun_status read_magnitude(void *user, size_t i, float *values, qr_error *err) {
    const qr_parameters *p = user;
    const qr_lora_pair *pair = &p->lora.pairs[i];
    qr_backend *backend = p->model->context->backend;
    return backend->copy_out(backend, values, p->values + pair->magnitude_offset, (size_t)pair->out * sizeof *values,
                             err);
}

static const char *last_component(const char *module) {
    const char *dot = strrchr(module, '.');
    return dot != NULL ? dot + 1 : module;
}

/* What PEFT finds these layers by: the end of their path, one component long ("q_proj") unless another kind of layer
 * ends in it too ("attn.c_proj" and "mlp.c_proj" of GPT-2). */
static const char *target_of(const qr_family *family, qr_tensor_role role) {
    const char *module = family->modules[role], *name = last_component(module);
    for (int other = QR_ROLE_Q; other < QR_ROLE_COUNT; other++) {
        const bool clashes = other != (int)role && family->modules[other] != NULL &&
                             strcmp(last_component(family->modules[other]), name) == 0;
        if (!clashes) { continue; }
        const char *start = name - 1;
        while (start > module && start[-1] != '.') { start--; }
        return start;
    }
    return name;
}

static size_t list_targets(const qr_parameters *p, const char *targets[MAX_TARGETS]) {
    bool seen[QR_ROLE_COUNT] = {false};
    size_t n = 0;
    for (int64_t i = 0; i < p->lora.n_pairs; i++) {
        const qr_tensor_role role = p->lora.pairs[i].role;
        if (!seen[role]) { targets[n++] = target_of(p->model->family, role); }
        seen[role] = true;
    }
    return n;
}

/* ---- Modules trained whole --------------------------------------------------------------------------------------- */

typedef struct whole_list {
    qr_adapter_parameter_spec *specs; /* [n] */
    char *names;                      /* [n][NAME_BYTES] */
    const char *modules[QR_ROLE_COUNT];
    size_t n, n_modules;
} whole_list;

static void whole_list_free(whole_list *list) {
    qr_free(list->specs);
    qr_free(list->names);
}

static void describe_whole(const qr_parameters *p, const qr_parameter *parameter, char *name,
                           qr_adapter_parameter_spec *spec) {
    const bool transposed = qr_parameter_is_transposed(p->model, parameter);
    qr_parameter_name(p, parameter, name, NAME_BYTES);
    *spec = (qr_adapter_parameter_spec){.name = name, .n_dims = 1, .dims = {parameter->cols}};
    if (parameter->kind != QR_PARAMETER_MATRIX) { return; }
    spec->n_dims = 2;
    spec->dims[0] = transposed ? parameter->cols : parameter->rows;
    spec->dims[1] = transposed ? parameter->rows : parameter->cols;
}

static qrun_status list_whole(const qr_parameters *p, whole_list *list, qr_error *err) {
    bool seen[QR_ROLE_COUNT] = {false};
    const size_t n = (size_t)p->whole.n;
    if (n == 0) { return QRUN_OK; }
    list->specs = qr_alloc_array(n, sizeof *list->specs);
    list->names = qr_alloc_array(n, NAME_BYTES);
    if (list->specs == NULL || list->names == NULL) { return qr_fail_memory(err, "an adapter", n * NAME_BYTES); }
    for (; list->n < n; list->n++) {
        const qr_parameter *parameter = &p->list[p->whole.tensors[list->n].parameter];
        describe_whole(p, parameter, list->names + list->n * NAME_BYTES, &list->specs[list->n]);
        if (!seen[parameter->role]) {
            list->modules[list->n_modules++] = qr_module_short_name(p->model->family, parameter->role);
        }
        seen[parameter->role] = true;
    }
    return QRUN_OK;
}

/* Elements of a parameter as its file has them: Conv1D's columns are the file's rows. */
static qrun_status read_whole(void *user, size_t i, int64_t first, int64_t n, float *values, qr_error *err) {
    const qr_parameters *p = user;
    const qr_parameter *parameter = &p->list[p->whole.tensors[i].parameter];
    qr_backend *backend = p->model->context->backend;
    const float *master = p->values + parameter->offset;
    if (!qr_parameter_is_transposed(p->model, parameter)) {
        return backend->copy_out(backend, values, master + first, (size_t)n * sizeof *values, err);
    }
    const int64_t n_floats = parameter->rows * parameter->cols;
    float *whole = qr_alloc_array((size_t)n_floats, sizeof *whole);
    if (whole == NULL) { return qr_fail_memory(err, "an adapter", (size_t)n_floats * sizeof *whole); }
    const qrun_status status = backend->copy_out(backend, whole, master, (size_t)n_floats * sizeof *whole, err);
    for (int64_t e = 0; e < n && status == QRUN_OK; e++) {
        const int64_t at = first + e;
        values[e] = whole[at % parameter->rows * parameter->cols + at / parameter->rows];
    }
    qr_free(whole);
    return status;
}

/* ---- The adapter ------------------------------------------------------------------------------------------------- */

qrun_status qr_adapter_export(const qr_parameters *p, const qr_adapter_export_options *options, const char *folder,
                              qr_error *err) {
    const qr_lora_layers *lora = &p->lora;
    const char *targets[MAX_TARGETS];
    qr_adapter_factor_spec *factors = qr_alloc_array((size_t)lora->n_pairs, sizeof *factors);
    char *names = qr_alloc_array((size_t)lora->n_pairs, NAME_BYTES);
    whole_list whole = {0};
    qrun_status status = QRUN_OK;
    if (factors == NULL || names == NULL) {
        QR_TRY(qr_fail_memory(err, "an adapter", (size_t)lora->n_pairs * NAME_BYTES));
    }
    QR_TRY(list_whole(p, &whole, err));
    for (int64_t i = 0; i < lora->n_pairs; i++) {
        char *name = names + i * NAME_BYTES;
        qr_parameters_module_name(p, lora->pairs[i].role, lora->pairs[i].layer, name, NAME_BYTES);
        factors[i] = (qr_adapter_factor_spec){name, lora->pairs[i].in, lora->pairs[i].out};
    }
    const qr_adapter_spec spec = {
        .base_model = p->model->folder,
        .targets = targets,
        .n_targets = list_targets(p, targets),
        .rank = lora->rank,
        .alpha = options->alpha,
        .dropout = options->dropout,
        .rslora = options->rslora,
        .fan_in_fan_out = p->model->family->transposed,
        .factors = factors,
        .n_factors = (size_t)lora->n_pairs,
        .read = read_factor,
        .read_magnitude = lora->dora ? read_magnitude : NULL,
        .read_parameter = read_whole,
        .user = (void *)(uintptr_t)p,
        .parameters = whole.specs,
        .n_parameters = whole.n,
        .modules_to_save = whole.modules,
        .n_modules_to_save = whole.n_modules,
    };
    status = qr_adapter_write(folder, &spec, err);
out:
    whole_list_free(&whole);
    qr_free(factors);
    qr_free(names);
    return status;
}
