#include "runtime/train/update.h"

#include <math.h>

#include "runtime/train/whole_parameters.h"

enum { RESULT_BYTES = 64 }; /* the sum and the count, before the ops' workspace */

typedef struct measured_squares {
    double sum;
    int64_t n_nonfinite;
} measured_squares;

static qr_sum_squares_args squares_args(const float *x, int64_t n, void *scratch) {
    measured_squares *result = scratch;
    return (qr_sum_squares_args){x, n, result != NULL ? &result->sum : NULL,
                                 result != NULL ? &result->n_nonfinite : NULL};
}

static qr_sum_squares_args norm_args(const qr_parameters *parameters, void *scratch) {
    return squares_args(parameters->gradients, parameters->n_floats, scratch);
}

static qrun_status measure(qr_backend *backend, const qr_sum_squares_args *args, void *scratch,
                           measured_squares *measured, qr_error *err) {
    const qrun_status status = qr_sum_squares(backend, args, (unsigned char *)scratch + RESULT_BYTES, err);
    return status == QRUN_OK ? backend->copy_out(backend, measured, scratch, sizeof *measured, err) : status;
}

size_t qr_update_scratch_bytes(const qr_parameters *parameters, const qr_optimizer_options *options) {
    const qr_sum_squares_args args = norm_args(parameters, NULL);
    const size_t norm = qr_sum_squares_workspace(parameters->model->context->backend, &args);
    const size_t step = qr_optimizer_workspace(parameters, options);
    const size_t refresh = qr_whole_parameters_workspace(parameters);
    const size_t most = norm > step ? norm : step;
    return RESULT_BYTES + (most > refresh ? most : refresh);
}

/* Of the gradients as they are: 1 / loss_scale, and the clipping of what that gives. */
static double grad_scale(const qr_update_args *args, double grad_norm) {
    const double clip = args->max_grad_norm > 0 ? args->max_grad_norm / (grad_norm + 1e-6) : 1.0;
    return (clip < 1.0 ? clip : 1.0) / (double)args->loss_scale;
}

qrun_status qr_update_run(qr_parameters *parameters, qr_optimizer *optimizer, const qr_update_args *args, void *scratch,
                          qr_update_result *result, qr_error *err) {
    qr_backend *backend = parameters->model->context->backend;
    measured_squares measured;
    void *workspace = (unsigned char *)scratch + RESULT_BYTES;
    const qr_sum_squares_args norm = norm_args(parameters, scratch);
    *result = (qr_update_result){0};
    QR_RETURN_IF_ERROR(measure(backend, &norm, scratch, &measured, err));
    result->grad_norm = sqrt(measured.sum) / (double)args->loss_scale;
    result->skipped = measured.n_nonfinite > 0 || !isfinite(measured.sum);
    if (result->skipped) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_optimizer_step(optimizer, args->step, (float)args->learning_rate,
                                         (float)grad_scale(args, result->grad_norm), workspace, err));
    QR_RETURN_IF_ERROR(qr_whole_parameters_refresh(parameters, workspace, err));
    return QRUN_OK;
}

qrun_status qr_update_find_nonfinite(const qr_parameters *parameters, void *scratch, int64_t *index, qr_error *err) {
    qr_backend *backend = parameters->model->context->backend;
    *index = -1;
    for (int64_t i = 0; i < parameters->n; i++) {
        const qr_parameter *parameter = &parameters->list[i];
        const qr_sum_squares_args args =
            squares_args(parameters->gradients + parameter->offset, parameter->rows * parameter->cols, scratch);
        measured_squares measured;
        QR_RETURN_IF_ERROR(measure(backend, &args, scratch, &measured, err));
        if (measured.n_nonfinite > 0) {
            *index = i;
            break;
        }
    }
    return QRUN_OK;
}
