/* Where each weight is: in the model's memory on the device, in a stage of it, or in host memory. */
#include "base/sizes.h"
#include "runtime/engine/layout.h"
#include "runtime/model/host_experts.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/modules.h"

typedef struct placement {
    qrun_model *model;
    unsigned char *memory; /* NULL: only count */
    qr_layout layout;
    qr_layout host; /* of host memory, for vectors of experts that are computed there */
} placement;

static void *place_in_stage(const placement *p, const qr_module *module, size_t n_bytes) {
    qr_layer *layer = &p->model->layers[module->layer];
    qr_layout stage = {.base = p->memory != NULL ? qr_model_stage(p->model, module->layer) : NULL,
                       .offset = layer->staged_bytes};
    void *address = qr_layout_take(&stage, 1, n_bytes);
    layer->staged_bytes = stage.offset;
    return address;
}

static void *place_expert(const placement *p, const qr_module *module) {
    const qr_host_experts *experts = &p->model->host_experts;
    const size_t offset = qr_host_experts_offset(p->model, module);
    if (p->memory == NULL) { return NULL; }
    return experts->computed ? experts->host + p->model->layers[module->layer].experts_offset + offset
                             : experts->stage + offset;
}

static qr_layout *layout_of_vector(placement *p, const qr_module *module) {
    return qr_host_experts_computes(p->model, module) ? &p->host : &p->layout;
}

static qrun_status place_module(void *arg, const qr_module *module, qr_error *err) {
    (void)err;
    placement *p = arg;
    const qr_backend *backend = qr_module_backend(p->model, module);
    if (qr_module_is_tied_head(p->model, module)) { return QRUN_OK; }
    if (module->matrix != NULL) {
        const size_t n_bytes = backend->weight_bytes(backend, &module->matrix->desc);
        module->matrix->data = qr_layer_stream_has(p->model, module)   ? place_in_stage(p, module, n_bytes)
                               : qr_host_experts_has(p->model, module) ? place_expert(p, module)
                                                                       : qr_layout_take(&p->layout, 1, n_bytes);
    }
    if (module->weight != NULL) {
        *module->weight = qr_layout_take(layout_of_vector(p, module), module->n, sizeof(float));
    }
    if (module->bias != NULL) { *module->bias = qr_layout_take(&p->layout, module->n, sizeof(float)); }
    return QRUN_OK;
}

static size_t place_at(qrun_model *model, void *memory) {
    qr_host_experts *experts = &model->host_experts;
    placement p = {.model = model,
                   .memory = memory,
                   .layout = {.base = memory},
                   .host = {.base = memory != NULL ? experts->host : NULL, .offset = experts->matrix_bytes}};
    for (int64_t l = 0; l < model->shape.n_layers; l++) { model->layers[l].staged_bytes = 0; }
    experts->stage = qr_layout_take(&p.layout, 1, experts->stage_bytes);
    (void)qr_model_each_module(model, place_module, &p, NULL);
    experts->host_bytes = p.host.offset;
    if (model->shape.tied_head) { model->head = model->embedding; }
    model->ones = qr_layout_take(&p.layout, model->n_ones, sizeof(float));
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        qr_layer *layer = &model->layers[l];
        if (layer->v_norm.dim > 0) { layer->v_norm.weight = model->ones; }
        if (model->config.norms_layers) { layer->attn_norm.weight = layer->mlp_norm.weight = model->ones; }
        if (model->config.norms_heads) { layer->q_norm.weight = layer->k_norm.weight = model->ones; }
    }
    if (model->config.norms_layers) { model->final_norm.weight = model->ones; }
    if (model->embedding_norm.dim > 0) { model->embedding_norm.weight = model->ones; }
    return p.layout.offset;
}

size_t qr_model_place_weights(qrun_model *model, void *memory) {
    size_t host_offset = 0;
    if (model->stream == NULL) { return place_at(model, memory); }
    model->held_bytes = place_at(model, NULL);
    model->stage_bytes = 0;
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        qr_layer *layer = &model->layers[l];
        layer->host_offset = host_offset;
        host_offset += qr_layer_stream_kept_bytes(model, l);
        model->stage_bytes = layer->staged_bytes > model->stage_bytes ? layer->staged_bytes : model->stage_bytes;
    }
    model->stages = memory != NULL ? (unsigned char *)memory + model->held_bytes : NULL;
    if (memory != NULL) { (void)place_at(model, memory); }
    return model->held_bytes + (size_t)qr_min(model->shape.n_layers, model->n_stages) * model->stage_bytes;
}

static bool is_only_described(const qrun_model *model) { return model->layers != NULL && model->weight_memory == NULL; }

qrun_status qr_model_plan_begin(qrun_model *model, qr_backend *planner, qr_error *err) {
    void *memory;
    qr_layer_stream_plan_begin(model);
    if (!is_only_described(model)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_host_experts_plan_begin(model, planner, err));
    QR_RETURN_IF_ERROR(
        planner->memory_create(planner, QR_MEMORY_DEVICE, qr_model_place_weights(model, NULL), &memory, err));
    (void)qr_model_place_weights(model, memory);
    return QRUN_OK;
}

void qr_model_plan_end(qrun_model *model) {
    if (!is_only_described(model)) { return; }
    model->host_experts.host = NULL;
    (void)qr_model_place_weights(model, NULL);
}

size_t qr_model_host_bytes(const qrun_model *model) {
    return qr_layer_stream_host_bytes(model) + model->host_experts.host_bytes;
}
