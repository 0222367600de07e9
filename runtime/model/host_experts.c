#include "runtime/model/host_experts.h"

#include <string.h>

#include "runtime/engine/device_memory.h"

/* ---- Whether ----------------------------------------------------------------------------------------------------- */

/* Where a layer's experts begin in host memory, and how much all of them take there, and one layer's on the device. */
static void measure(qrun_model *model) {
    qr_host_experts *experts = &model->host_experts;
    experts->matrix_bytes = experts->stage_bytes = 0;
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        qr_layer *layer = &model->layers[l];
        if (layer->expert_gate == NULL) { continue; }
        const size_t n_bytes = (size_t)model->shape.n_experts * qr_host_experts_bytes_each(model, layer);
        layer->experts_offset = experts->matrix_bytes;
        experts->matrix_bytes += n_bytes;
        if (n_bytes > experts->stage_bytes && !experts->computed) { experts->stage_bytes = n_bytes; }
    }
}

static void use(qrun_model *model, bool used, const qr_expert_way *way) {
    model->host_experts = (qr_host_experts){.used = used};
    if (used) {
        model->host_experts.computed = way->computed;
        memcpy(model->host_experts.note, way->note, sizeof model->host_experts.note);
        measure(model);
    }
    model->weight_bytes = qr_model_place_weights(model, NULL);
}

static qrun_status check_other_params(const qrun_model *model, const qrun_model_params *params, qr_error *err) {
    if (model->shape.n_experts == 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`offload_experts` is for mixtures of experts, and this %s model has none; leave it out",
                       model->family->name);
    }
    if (params->trainable || params->shard_parameters) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`offload_experts` is for experts that do not change and are not shared out; leave it out, or "
                       "train an adapter without `zero` 3");
    }
    if (params->offload_parameters == QRUN_OFFLOAD_ALL) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "`offload_parameters` holds experts in host memory too, with all else of the layers; leave it or "
            "`offload_experts` out");
    }
    return QRUN_OK;
}

static qrun_status check_compute(const qrun_model_params *params, qr_error *err) {
    if ((unsigned)params->expert_compute > QRUN_EXPERT_COMPUTE_HOST) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "expert_compute %d is not one of qrun_expert_compute",
                       (int)params->expert_compute);
    }
    if (params->offload_experts == QRUN_OFFLOAD_NONE && params->expert_compute == QRUN_EXPERT_COMPUTE_HOST) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`expert_compute=host` is for experts in host memory; give `offload_experts` too");
    }
    if (params->expert_compute == QRUN_EXPERT_COMPUTE_HOST && params->tensor_parallel > 1) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`expert_compute=host` is for a whole model, and with `tensor_parallel` each rank has a part; "
                       "leave one out");
    }
    return QRUN_OK;
}

static void choose_way(const qrun_model *model, const qrun_model_params *params, qr_expert_way *way) {
    static const qr_expert_way of_ranks = {.note = "fetched: ranks share each layer"};
    const qr_model_shape *s = &model->shape;
    qr_expert_work work = {.token_share = (double)s->experts_per_token / (double)s->n_experts,
                           .token_flops = 2.0 * (double)qr_model_count_experts(model).n_active_parameters};
    for (int64_t l = 0; l < s->n_layers; l++) {
        if (model->layers[l].expert_gate == NULL) { continue; }
        work.all_bytes += s->n_experts * (int64_t)qr_host_experts_bytes_each(model, &model->layers[l]);
    }
    work.other_bytes = (int64_t)model->weight_bytes - work.all_bytes;
    if (model->split.n_ranks > 0) {
        *way = of_ranks;
    } else {
        qr_expert_way_choose(model->context, params->expert_compute, &work, way);
    }
}

/* Where even that is not enough, all is left on the device, for others to make room or to refuse. */
static void use_if_needed(qrun_model *model, const qrun_model_params *params, const qr_device_memory *memory) {
    const int64_t limit = qr_device_memory_for_weights(memory, params->memory_bytes);
    qr_expert_way way;
    if ((int64_t)model->weight_bytes <= limit) { return; }
    choose_way(model, params, &way);
    use(model, true, &way);
    if ((int64_t)model->weight_bytes > limit || (int64_t)model->host_experts.host_bytes > memory->host_free_bytes) {
        use(model, false, NULL);
    }
}

qrun_status qr_host_experts_describe(qrun_model *model, const qrun_model_params *params, qr_error *err) {
    qr_device_memory memory;
    qr_expert_way way;
    QR_RETURN_IF_ERROR(check_compute(params, err));
    if (params->offload_experts == QRUN_OFFLOAD_NONE) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_device_memory_now(model->context, &memory, err));
    if (params->offload_experts == QRUN_OFFLOAD_AUTO) {
        if (memory.is_separate && check_other_params(model, params, NULL) == QRUN_OK) {
            use_if_needed(model, params, &memory);
        }
        return QRUN_OK;
    }
    QR_RETURN_IF_ERROR(check_other_params(model, params, err));
    if (!memory.is_separate) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "`offload_experts` is for a GPU: a processor computes in the machine's own memory, so experts are "
            "there already; leave it out");
    }
    choose_way(model, params, &way);
    use(model, true, &way);
    return QRUN_OK;
}

bool qr_host_experts_would_help(const qrun_model *model) {
    const bool is_separate = model->context->backend->memory_info != NULL || model->context->plans_for != NULL;
    return is_separate && model->shape.n_experts > 0 && !model->host_experts.used && !model->trainable &&
           model->stream == NULL && model->split.n_ranks == 0;
}

/* ---- Where ------------------------------------------------------------------------------------------------------- */

bool qr_host_experts_has(const qrun_model *model, const qr_module *module) {
    return model->host_experts.used && qr_role_is_expert(module->role);
}

bool qr_host_experts_computes(const qrun_model *model, const qr_module *module) {
    return model->host_experts.computed && (qr_role_is_expert(module->role) || qr_role_is_expert_vector(module->role));
}

qr_backend *qr_module_backend(const qrun_model *model, const qr_module *module) {
    return qr_host_experts_computes(model, module) ? model->context->processor : model->context->backend;
}

qr_backend *qr_host_experts_backend(const qrun_model *model) {
    return model->host_experts.computed ? model->context->processor : model->context->backend;
}

static size_t bytes_of(const qrun_model *model, const qr_weight *matrix) {
    const qr_backend *backend = qr_host_experts_backend(model);
    return backend->weight_bytes(backend, &matrix->desc);
}

size_t qr_host_experts_bytes_each(const qrun_model *model, const qr_layer *layer) {
    const size_t up = layer->expert_up != NULL ? bytes_of(model, layer->expert_up) : 0;
    return bytes_of(model, layer->expert_gate) + up + bytes_of(model, layer->expert_out);
}

size_t qr_host_experts_offset(const qrun_model *model, const qr_module *module) {
    const qr_layer *layer = &model->layers[module->layer];
    size_t offset = (size_t)module->expert * qr_host_experts_bytes_each(model, layer);
    if (module->role != QR_ROLE_EXPERT_GATE) { offset += bytes_of(model, layer->expert_gate); }
    if (module->role == QR_ROLE_EXPERT_OUT && layer->expert_up != NULL) { offset += bytes_of(model, layer->expert_up); }
    return offset;
}

const void *qr_host_experts_of_layer(const qrun_model *model, const qr_layer *layer) {
    const qr_host_experts *experts = &model->host_experts;
    return experts->host != NULL ? experts->host + layer->experts_offset : NULL;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

qrun_status qr_host_experts_create(qrun_model *model, qr_error *err) {
    qr_backend *backend = model->context->backend;
    void *host = NULL;
    if (!model->host_experts.used) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_HOST, model->host_experts.host_bytes, &host, err));
    model->host_experts.host = host;
    return QRUN_OK;
}

void qr_host_experts_destroy(qrun_model *model) {
    qr_host_experts *experts = &model->host_experts;
    qr_backend *backend = model->context->backend;
    if (experts->host != NULL) { backend->memory_destroy(backend, QR_MEMORY_HOST, experts->host, experts->host_bytes); }
    *experts = (qr_host_experts){0};
}

qrun_status qr_host_experts_plan_begin(qrun_model *model, qr_backend *planner, qr_error *err) {
    qr_host_experts *experts = &model->host_experts;
    void *host = NULL;
    if (!experts->computed) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(planner->memory_create(planner, QR_MEMORY_HOST, experts->host_bytes, &host, err));
    experts->host = host;
    return QRUN_OK;
}

qrun_status qr_host_experts_keep(qrun_model *model, const qr_module *module, qr_error *err) {
    qr_backend *backend = model->context->backend;
    if (model->host_experts.computed) { return QRUN_OK; } /* it is there already */
    unsigned char *host = model->host_experts.host + model->layers[module->layer].experts_offset;
    return backend->copy_out(backend, host + qr_host_experts_offset(model, module), module->matrix->data,
                             bytes_of(model, module->matrix), err);
}
