#include "runtime/train/update.h"

#include <math.h>
#include <stddef.h>

#include "kernels/plan/plan.h"
#include "runtime/pass/planned_parameters.h"
#include "runtime/pass/whole_parameters.h"

enum { RESULT_BYTES = 64 }; /* the sum and the count, before the ops' workspace */

typedef struct measured_squares {
    double sum;
    int64_t n_nonfinite;
} measured_squares;

/* After the result. */
static qr_workspace workspace_of(qr_workspace scratch) {
    return (qr_workspace){(unsigned char *)scratch.memory + RESULT_BYTES, scratch.n_bytes - RESULT_BYTES};
}

static qrun_status measure(qr_backend *backend, const float *x, int64_t n, qr_workspace scratch,
                           measured_squares *measured, qr_error *err) {
    unsigned char *result = scratch.memory;
    const qr_sum_squares_args args = {.x = x,
                                      .n = n,
                                      .dst = (double *)(void *)(result + offsetof(measured_squares, sum)),
                                      .n_nonfinite =
                                          (int64_t *)(void *)(result + offsetof(measured_squares, n_nonfinite))};
    QR_RETURN_IF_ERROR(qr_sum_squares(backend, &args, workspace_of(scratch), err));
    return backend->copy_out(backend, measured, result, sizeof *measured, err);
}

/* Of the gradients as they are: 1 / loss_scale, and the clipping of what that gives. */
static double grad_scale(const qr_update_args *args, double grad_norm) {
    const double clip = args->max_grad_norm > 0 ? args->max_grad_norm / (grad_norm + 1e-6) : 1.0;
    return (clip < 1.0 ? clip : 1.0) / (double)args->loss_scale;
}

qrun_status qr_update_run(qr_parameters *parameters, qr_optimizer *optimizer, const qr_update_args *args,
                          qr_workspace scratch, qr_update_result *result, qr_error *err) {
    qr_backend *backend = parameters->backend;
    measured_squares measured;
    const qr_workspace workspace = workspace_of(scratch);
    *result = (qr_update_result){0};
    QR_RETURN_IF_ERROR(measure(backend, parameters->gradients, parameters->n_floats, scratch, &measured, err));
    result->grad_norm = sqrt(measured.sum) / (double)args->loss_scale;
    result->skipped = measured.n_nonfinite > 0 || !isfinite(measured.sum);
    if (result->skipped) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_optimizer_step(optimizer, args->step, (float)args->learning_rate,
                                         (float)grad_scale(args, result->grad_norm), workspace, err));
    return qr_whole_parameters_refresh(parameters, workspace, err);
}

qrun_status qr_update_find_nonfinite(const qr_parameters *parameters, qr_workspace scratch, int64_t *index,
                                     qr_error *err) {
    qr_backend *backend = parameters->backend;
    *index = -1;
    for (int64_t i = 0; i < parameters->n && *index < 0; i++) {
        const qr_parameter *parameter = &parameters->list[i];
        measured_squares measured;
        QR_RETURN_IF_ERROR(measure(backend, parameters->gradients + parameter->offset,
                                   parameter->rows * parameter->cols, scratch, &measured, err));
        if (measured.n_nonfinite > 0) { *index = i; }
    }
    return QRUN_OK;
}

qrun_status qr_update_plan(const qr_parameters *parameters, const qr_optimizer_options *options, size_t *scratch_bytes,
                           int64_t *copied_bytes, qr_error *err) {
    const qr_update_args args = {.step = 1, .loss_scale = 1.0F};
    qr_parameters planned;
    qr_optimizer *optimizer = NULL;
    qr_workspace scratch = {.n_bytes = QR_PLAN_ANY_BYTES};
    qr_update_result result;
    int64_t index;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_planned_parameters_begin(parameters, &planned, err));
    QR_TRY(planned.backend->memory_create(planned.backend, QR_MEMORY_DEVICE, scratch.n_bytes, &scratch.memory, err));
    QR_TRY(qr_optimizer_create(&planned, options, &optimizer, err));
    QR_TRY(qr_update_run(&planned, optimizer, &args, scratch, &result, err));
    *copied_bytes = qr_backend_planned(planned.backend)->copied_bytes;
    QR_TRY(qr_update_find_nonfinite(&planned, scratch, &index, err));
    *scratch_bytes = RESULT_BYTES + qr_backend_planned(planned.backend)->workspace_bytes;
out:
    qr_optimizer_destroy(optimizer);
    qr_planned_parameters_end(&planned);
    return status;
}
