#include "runtime/update.h"

#include <math.h>

#include "runtime/whole_parameters.h"

enum { RESULT_BYTES = 64 }; /* the sum and the count, before the ops' workspace */

static qr_sum_squares_args norm_args(const qr_parameters *parameters, void *scratch) {
    double *sum = scratch;
    return (qr_sum_squares_args){parameters->gradients, parameters->n_floats, sum,
                                 sum != NULL ? (int64_t *)(sum + 1) : NULL};
}

size_t qr_update_scratch_bytes(const qr_parameters *parameters, qrun_optimizer kind) {
    const qr_sum_squares_args args = norm_args(parameters, NULL);
    const size_t norm = qr_sum_squares_workspace(parameters->model->context->backend, &args);
    const size_t step = qr_optimizer_workspace(parameters, kind);
    const size_t refresh = qr_whole_parameters_workspace(parameters);
    const size_t most = norm > step ? norm : step;
    return RESULT_BYTES + (most > refresh ? most : refresh);
}

qrun_status qr_update_run(qr_parameters *parameters, qr_optimizer *optimizer, int64_t step, double learning_rate,
                          double max_grad_norm, void *scratch, qr_update_result *result, qr_error *err) {
    qr_backend *backend = parameters->model->context->backend;
    struct {
        double sum;
        int64_t n_nonfinite;
    } measured;
    void *workspace = (unsigned char *)scratch + RESULT_BYTES;
    const qr_sum_squares_args args = norm_args(parameters, scratch);
    qrun_status status = QRUN_OK;
    *result = (qr_update_result){0};
    QR_TRY(qr_sum_squares(backend, &args, workspace, err));
    QR_TRY(backend->copy_out(backend, &measured, scratch, sizeof measured, err));
    result->grad_norm = sqrt(measured.sum);
    result->skipped = measured.n_nonfinite > 0 || !isfinite(measured.sum);
    if (result->skipped) { return QRUN_OK; }
    const double coefficient = max_grad_norm > 0 ? max_grad_norm / (result->grad_norm + 1e-6) : 1.0;
    QR_TRY(qr_optimizer_step(optimizer, step, (float)learning_rate, coefficient < 1.0 ? (float)coefficient : 1.0F,
                             workspace, err));
    QR_TRY(qr_whole_parameters_refresh(parameters, workspace, err));
out:
    return status;
}
