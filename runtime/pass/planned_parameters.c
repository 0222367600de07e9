#include "runtime/pass/planned_parameters.h"

#include "kernels/plan/plan.h"
#include "runtime/model/layer_stream.h"
#include "runtime/pass/lora_parameters.h"
#include "runtime/pass/whole_parameters.h"
#include "runtime/pass/whole_shards.h"

qrun_status qr_planned_parameters_begin(const qr_parameters *parameters, qr_parameters *planned, qr_error *err) {
    qr_backend *backend;
    *planned = *parameters;
    planned->whole.overrides = (qr_weight_overrides){0};
    planned->backend = planned->processor = NULL;
    QR_RETURN_IF_ERROR(qr_backend_plan_create(parameters->backend, &backend, err));
    planned->backend = backend;
    if (parameters->processor != NULL) {
        QR_RETURN_IF_ERROR(qr_backend_plan_create(parameters->processor, &planned->processor, err));
    }
    planned->read_values = NULL;
    if (planned->shards != NULL) { qr_whole_shards_attach(planned); }
    QR_RETURN_IF_ERROR(qr_model_plan_begin(planned->model, backend, err));
    if (planned->values != NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_parameters_create(planned, err));
    QR_RETURN_IF_ERROR(qr_whole_parameters_reserve(planned, err));
    return qr_lora_parameters_reserve(planned, err);
}

void qr_planned_parameters_end(qr_parameters *planned) {
    qr_whole_parameters_release(planned);
    qr_layer_stream_set_source(planned->model, planned->backend, NULL);
    qr_model_plan_end(planned->model);
    qr_backend_destroy(planned->backend);
    qr_backend_destroy(planned->processor);
    planned->backend = planned->processor = NULL;
}
