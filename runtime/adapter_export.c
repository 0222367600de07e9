#include "runtime/adapter_export.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "loaders/adapter_writer.h"

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

qrun_status qr_adapter_export(qrun_trainer *trainer, const char *folder, qr_error *err) {
    qr_parameters *p = &trainer->parameters;
    const qr_lora_layers *lora = &p->lora;
    const char *targets[MAX_TARGETS];
    qr_adapter_factor_spec *factors = qr_alloc_array((size_t)lora->n_pairs, sizeof *factors);
    char *names = qr_alloc_array((size_t)lora->n_pairs, NAME_BYTES);
    qrun_status status = QRUN_OK;
    if (factors == NULL || names == NULL) {
        QR_TRY(qr_fail_memory(err, "an adapter", (size_t)lora->n_pairs * NAME_BYTES));
    }
    for (int64_t i = 0; i < lora->n_pairs; i++) {
        char *name = names + i * NAME_BYTES;
        qr_parameters_module_name(p, lora->pairs[i].role, lora->pairs[i].layer, name, NAME_BYTES);
        factors[i] = (qr_adapter_factor_spec){name, lora->pairs[i].in, lora->pairs[i].out};
    }
    const qr_adapter_spec spec = {
        .base_model = trainer->model->folder,
        .targets = targets,
        .n_targets = list_targets(p, targets),
        .rank = lora->rank,
        .alpha = (double)trainer->settings.lora.alpha,
        .dropout = trainer->settings.lora.dropout,
        .rslora = trainer->settings.lora.rslora,
        .fan_in_fan_out = trainer->model->family->transposed,
        .factors = factors,
        .n_factors = (size_t)lora->n_pairs,
        .read = read_factor,
        .read_magnitude = lora->dora ? read_magnitude : NULL,
        .user = p,
    };
    status = qr_adapter_write(folder, &spec, err);
out:
    qr_free(factors);
    qr_free(names);
    return status;
}

qrun_status qrun_trainer_export(qrun_trainer *trainer, qrun_error *error) {
    qrun_status status = qr_trainer_require_out(trainer, error);
    if (status == QRUN_OK) { status = qr_folder_create(trainer->settings.out, error); }
    return status == QRUN_OK ? qr_adapter_export(trainer, trainer->settings.out, error) : status;
}
