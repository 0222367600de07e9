/* The names of what a run holds all the time, for timelines. What is used in turn names itself as it is laid out
 * (runtime/engine/layout.h). */
#include <stdio.h>
#include <string.h>

#include "runtime/model/weight_names.h"
#include "runtime/train/trainer.h"

/* A parameter's values or gradient, for which the name that files have gets a suffix. */
static void put_parameter(const qr_parameters *p, const qr_parameter *parameter, qr_plan_category category,
                          const float *address, const char *suffix) {
    qr_timeline_tensor tensor = {.address = address,
                                 .n_bytes = (size_t)(parameter->rows * parameter->cols) * sizeof(float),
                                 .category = (int32_t)category,
                                 .layer = (int32_t)qr_parameter_layer(parameter)};
    qr_parameter_name(p, parameter, tensor.name, sizeof tensor.name);
    const size_t length = strlen(tensor.name);
    (void)snprintf(tensor.name + length, sizeof tensor.name - length, "%s", suffix);
    qr_timeline_put_tensor(p->backend, &tensor);
}

/* Where the whole gradient of a step comes to be; NULL: in shards, in host memory, or in a place that layers share. */
static const float *gradient_of(const qrun_trainer *trainer, const qr_parameter *parameter) {
    const qr_parameters *p = &trainer->parameters;
    const bool is_whole = qr_optimizer_shards(trainer->optimizer) == NULL && p->processor == NULL;
    if (is_whole && qr_gradient_sum_stays(trainer->gradient_sum)) {
        return qr_gradient_sum_own(trainer->gradient_sum) + parameter->offset;
    }
    if (p->shares_gradients && parameter->gradient >= p->shared_begin) { return NULL; }
    return p->gradients + parameter->gradient;
}

void qr_trainer_name_memory(qrun_trainer *trainer) {
    const qr_parameters *p = &trainer->parameters;
    if (p->backend->timeline == NULL) { return; }
    qr_plan_describe(&trainer->plan, QR_PLAN_COUNT, p->backend);
    qr_model_name_weights(trainer->model);
    for (int64_t i = 0; i < p->n; i++) {
        const qr_parameter *parameter = &p->list[i];
        if (p->processor == NULL) { put_parameter(p, parameter, QR_PLAN_ADAPTERS, p->values + parameter->offset, ""); }
        const float *gradient = gradient_of(trainer, parameter);
        if (gradient != NULL) { put_parameter(p, parameter, QR_PLAN_GRADIENTS, gradient, " (gradient)"); }
    }
}
