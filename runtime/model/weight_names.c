#include "runtime/model/weight_names.h"

#include <stdio.h>
#include <string.h>

#include "kernels/timeline/timeline.h"
#include "runtime/engine/context.h"
#include "runtime/engine/plan.h"
#include "runtime/model/host_experts.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/modules.h"

static void put(const qrun_model *model, const qr_module *module, const char *part, const void *address,
                size_t n_bytes) {
    const bool in_layer = !qr_role_is_of_model(module->role);
    qr_timeline_tensor tensor = {.address = address,
                                 .n_bytes = n_bytes,
                                 .category = QR_PLAN_WEIGHTS,
                                 .layer = in_layer ? (int32_t)module->layer : -1};
    qr_family_module_name(model->family, model->prefix, module->role, module->layer, tensor.name, sizeof tensor.name);
    const size_t length = strlen(tensor.name);
    if (qr_role_is_expert(module->role)) {
        (void)snprintf(tensor.name + length, sizeof tensor.name - length, "[%lld].%s", (long long)module->expert, part);
    } else {
        (void)snprintf(tensor.name + length, sizeof tensor.name - length, ".%s", part);
    }
    qr_timeline_put_tensor(model->context->backend, &tensor);
}

static qrun_status visit(void *arg, const qr_module *module, qr_error *err) {
    (void)err;
    const qrun_model *model = arg;
    const qr_backend *backend = model->context->backend;
    const size_t vector_bytes = (size_t)module->n * sizeof(float);
    if (qr_module_is_tied_head(model, module) || qr_host_experts_computes(model, module)) { return QRUN_OK; }
    if (module->matrix != NULL && !qr_layer_stream_has(model, module)) {
        put(model, module, "weight", module->matrix->data, backend->weight_bytes(backend, &module->matrix->desc));
    }
    if (module->weight != NULL) { put(model, module, "weight", *module->weight, vector_bytes); }
    if (module->bias != NULL) { put(model, module, "bias", *module->bias, vector_bytes); }
    return QRUN_OK;
}

void qr_model_name_weights(qrun_model *model) {
    if (model->context->backend->timeline != NULL) { (void)qr_model_each_module(model, visit, model, NULL); }
}
