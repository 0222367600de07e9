#include "runtime/train/update.h"

#include <math.h>

#include "base/sizes.h"
#include "kernels/plan/plan.h"
#include "runtime/pass/planned_parameters.h"
#include "runtime/pass/whole_parameters.h"
#include "runtime/pass/whole_shards.h"

/* Of the chunks that an op has counted, before the ops' workspace: their sums, then their counts. */
enum { RESULT_CHUNKS = 1024 };
static const size_t RESULT_BYTES = RESULT_CHUNKS * (sizeof(double) + sizeof(int64_t));

/* After the result. */
static qr_workspace workspace_of(qr_workspace scratch) {
    return (qr_workspace){(unsigned char *)scratch.memory + RESULT_BYTES, scratch.n_bytes - RESULT_BYTES};
}

static void add_squares(qr_chunk_squares *total, const qr_chunk_squares *squares) {
    total->sum += squares->sum;
    total->n_nonfinite += squares->n_nonfinite;
}

/* The squares of x [n], chunk by chunk: into `chunks` or, where that is NULL, onto *total. */
static qrun_status measure(qr_backend *backend, const float *x, int64_t n, qr_workspace scratch,
                           qr_chunk_squares *chunks, qr_chunk_squares *total, qr_error *err) {
    double *device_sums = scratch.memory, sums[RESULT_CHUNKS];
    int64_t *device_counts = (int64_t *)(void *)(device_sums + RESULT_CHUNKS), counts[RESULT_CHUNKS];
    for (int64_t done = 0; done < n; done += RESULT_CHUNKS * QR_SQUARES_CHUNK) {
        const int64_t n_here = qr_min(n - done, RESULT_CHUNKS * QR_SQUARES_CHUNK);
        const int64_t n_chunks = qr_ceil_div(n_here, QR_SQUARES_CHUNK);
        const qr_sum_squares_args args = {.x = x + done, .n = n_here, .dst = device_sums, .n_nonfinite = device_counts};
        QR_RETURN_IF_ERROR(qr_sum_squares(backend, &args, workspace_of(scratch), err));
        QR_RETURN_IF_ERROR(backend->copy_out(backend, sums, device_sums, (size_t)n_chunks * sizeof *sums, err));
        QR_RETURN_IF_ERROR(backend->copy_out(backend, counts, device_counts, (size_t)n_chunks * sizeof *counts, err));
        for (int64_t c = 0; c < n_chunks; c++) {
            const qr_chunk_squares squares = {sums[c], counts[c]};
            if (chunks != NULL) { *chunks++ = squares; }
            if (chunks == NULL) { add_squares(total, &squares); }
        }
    }
    return QRUN_OK;
}

/* The gradients that are updated from: all, or this rank's shard of their sum. */
static const float *own_gradients(const qr_parameters *p, const qr_gradient_sum *sum) {
    return sum != NULL ? qr_gradient_sum_own(sum) : p->gradients;
}

/* The squares of all gradients, in the order of the chunks. Where ranks have shards, each has counted those of its own
 * chunks. */
static qrun_status measure_gradients(const qr_parameters *p, const qr_shards *shards, qr_gradient_sum *sum,
                                     qr_workspace scratch, qr_chunk_squares *total, qr_error *err) {
    qr_backend *updater = qr_parameters_updater(p);
    *total = (qr_chunk_squares){0};
    if (shards == NULL) { return measure(updater, own_gradients(p, sum), p->n_floats, scratch, NULL, total, err); }
    const int64_t chunk = qr_shards_chunk(shards, shards->rank);
    const int64_t first = chunk * QR_SQUARES_CHUNK;
    const int64_t end = qr_min(qr_shards_chunk(shards, shards->rank + 1) * QR_SQUARES_CHUNK, p->n_floats);
    int64_t n_chunks = 0;
    qr_chunk_squares *chunks = sum != NULL ? qr_gradient_sum_squares(sum, &n_chunks) : NULL;
    const float *own = own_gradients(p, sum) + (first - shards->begin[shards->rank]);
    QR_RETURN_IF_ERROR(measure(updater, own, end - first, scratch, chunks != NULL ? chunks + chunk : NULL, total, err));
    if (sum != NULL) { QR_RETURN_IF_ERROR(qr_gradient_sum_share_squares(sum, err)); }
    for (int64_t c = 0; c < n_chunks; c++) { add_squares(total, &chunks[c]); }
    return QRUN_OK;
}

/* Of the gradients as they are: 1 / loss_scale, and the clipping of what that gives. */
static double grad_scale(const qr_update_args *args, double grad_norm) {
    const double clip = args->max_grad_norm > 0 ? args->max_grad_norm / (grad_norm + 1e-6) : 1.0;
    return (clip < 1.0 ? clip : 1.0) / (double)args->loss_scale;
}

qrun_status qr_update_layer(qr_parameters *parameters, qr_optimizer *optimizer, const qr_optimizer_numbers *numbers,
                            int64_t l, qr_workspace scratch, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_optimizer_step_layer(optimizer, numbers, l, workspace_of(scratch), err));
    return qr_whole_parameters_refresh_layer(parameters, l, err);
}

/* Values are updated where they are, and the model's weights written from them. */
static qrun_status update_values(qr_parameters *parameters, qr_optimizer *optimizer, const qr_update_args *args,
                                 const qr_optimizer_numbers *numbers, qr_workspace scratch, qr_error *err) {
    const qr_shards *shards = qr_optimizer_shards(optimizer);
    const qr_workspace workspace = workspace_of(scratch);
    if (parameters->processor != NULL) {
        const int64_t n_layers = args->defers_layers ? 0 : parameters->model->shape.n_layers;
        for (int64_t l = -1; l < n_layers; l++) {
            QR_RETURN_IF_ERROR(qr_update_layer(parameters, optimizer, numbers, l, scratch, err));
        }
        return QRUN_OK;
    }
    QR_RETURN_IF_ERROR(qr_optimizer_step(optimizer, numbers, workspace, err));
    if (shards != NULL && args->sum != NULL) {
        QR_RETURN_IF_ERROR(parameters->shard_begin != NULL
                               ? qr_whole_shards_share(parameters, err)
                               : qr_gradient_sum_gather(args->sum, parameters->values, err));
    }
    return qr_whole_parameters_refresh(parameters, workspace, err);
}

qrun_status qr_update_run(qr_parameters *parameters, qr_optimizer *optimizer, const qr_update_args *args,
                          qr_workspace scratch, qr_update_result *result, qr_error *err) {
    const qr_shards *shards = qr_optimizer_shards(optimizer);
    qr_chunk_squares measured;
    *result = (qr_update_result){0};
    QR_RETURN_IF_ERROR(measure_gradients(parameters, shards, args->sum, scratch, &measured, err));
    result->grad_norm = sqrt(measured.sum) / (double)args->loss_scale;
    result->skipped = measured.n_nonfinite > 0 || !isfinite(measured.sum);
    if (result->skipped) { return QRUN_OK; }
    result->began = true;
    result->numbers = (qr_optimizer_numbers){.gradients = own_gradients(parameters, args->sum),
                                             .step = args->step,
                                             .learning_rate = (float)args->learning_rate,
                                             .grad_scale = (float)grad_scale(args, result->grad_norm)};
    return update_values(parameters, optimizer, args, &result->numbers, scratch, err);
}

qrun_status qr_update_find_nonfinite(const qr_parameters *parameters, const qr_optimizer *optimizer,
                                     const qr_gradient_sum *sum, qr_workspace scratch, int64_t *index, qr_error *err) {
    const qr_shards *shards = qr_optimizer_shards(optimizer);
    const int64_t begin = shards != NULL ? shards->begin[shards->rank] : 0;
    const int64_t end = shards != NULL ? shards->begin[shards->rank + 1] : parameters->n_floats;
    *index = -1;
    for (int64_t i = 0; i < parameters->n && *index < 0; i++) {
        const qr_parameter *parameter = &parameters->list[i];
        qr_chunk_squares measured = {0};
        int64_t first;
        const int64_t n = qr_shards_common(parameter->offset, parameter->offset + parameter->rows * parameter->cols,
                                           begin, end, &first);
        QR_RETURN_IF_ERROR(measure(qr_parameters_updater(parameters), own_gradients(parameters, sum) + (first - begin),
                                   n, scratch, NULL, &measured, err));
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
    QR_TRY(qr_update_find_nonfinite(&planned, optimizer, NULL, scratch, &index, err));
    *scratch_bytes = RESULT_BYTES + qr_backend_planned(qr_parameters_updater(&planned))->workspace_bytes;
out:
    qr_optimizer_destroy(optimizer);
    qr_planned_parameters_end(&planned);
    return status;
}
