#include "runtime/train/update.h"

#include <math.h>

#include "base/sizes.h"
#include "kernels/plan/plan.h"
#include "runtime/pass/planned_parameters.h"
#include "runtime/pass/whole_parameters.h"
#include "runtime/pass/whole_shards.h"

/* Of the chunks that an op has counted, before the ops' workspace. */
enum { RESULT_CHUNKS = 2048 };
typedef struct chunk_results {
    double sums[RESULT_CHUNKS];
    int64_t n_nonfinite[RESULT_CHUNKS];
} chunk_results;
static const size_t RESULT_BYTES = sizeof(chunk_results);

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
    chunk_results *made = scratch.memory, results;
    for (int64_t done = 0; done < n; done += RESULT_CHUNKS * QR_SQUARES_CHUNK) {
        const int64_t n_here = qr_min(n - done, RESULT_CHUNKS * QR_SQUARES_CHUNK);
        const int64_t n_chunks = qr_ceil_div(n_here, QR_SQUARES_CHUNK);
        const qr_sum_squares_args args = {
            .x = x + done, .n = n_here, .dst = made->sums, .n_nonfinite = made->n_nonfinite};
        QR_RETURN_IF_ERROR(qr_sum_squares(backend, &args, workspace_of(scratch), err));
        QR_RETURN_IF_ERROR(backend->copy_out(backend, &results, made, sizeof results, err)); /* at once: it waits */
        for (int64_t c = 0; c < n_chunks; c++) {
            const qr_chunk_squares squares = {results.sums[c], results.n_nonfinite[c]};
            if (chunks != NULL) { *chunks++ = squares; }
            if (chunks == NULL) { add_squares(total, &squares); }
        }
    }
    return QRUN_OK;
}

/* The gradients that are updated from: those of all parameters, or of this rank's shard. */
typedef struct update_gradients {
    const qr_parameters *parameters;
    const qr_shards *shards; /* NULL: one rank updates everything */
    const float *at;
    bool of_all;
} update_gradients;

static update_gradients gradients_of(const qr_parameters *p, const qr_shards *shards, const qr_gradient_sum *sum) {
    return (update_gradients){
        .parameters = p,
        .shards = shards,
        .at = sum != NULL ? qr_gradient_sum_own(sum) : p->gradients,
        .of_all = shards == NULL || (sum != NULL && qr_gradient_sum_has_all(sum)),
    };
}

/* Of a float of the arena, which this rank has. */
static const float *gradient_at(const update_gradients *g, int64_t position) {
    return g->at + (g->of_all ? position : qr_shards_place(g->shards, g->shards->rank, position));
}

/* Of the chunks of a section those that this rank has. The last one may end in parts of other ranks. */
static qrun_status measure_section(const update_gradients *g, int64_t section, qr_gradient_sum *sum,
                                   qr_workspace scratch, qr_chunk_squares *chunks, qr_chunk_squares *total,
                                   qr_error *err) {
    qr_backend *updater = qr_parameters_updater(g->parameters);
    const qr_shard_chunks c = qr_shards_chunks(g->shards, section, g->shards->rank);
    const int64_t n = c.end - c.begin, n_cut = c.tail < c.end ? n - (c.n - 1) * QR_SQUARES_CHUNK : 0;
    const float *own = c.n > 0 ? gradient_at(g, c.begin) : NULL, *cut = own;
    if (sum != NULL) { QR_RETURN_IF_ERROR(qr_gradient_sum_cut_chunk(sum, section, &cut, err)); }
    QR_RETURN_IF_ERROR(measure(updater, own, n - n_cut, scratch, chunks, total, err));
    if (n_cut == 0) { return QRUN_OK; }
    return measure(updater, cut, n_cut, scratch, chunks != NULL ? chunks + (c.n - 1) : NULL, total, err);
}

/* The squares of all gradients, in the order of the chunks. Where ranks have shards, each has counted those of its own
 * chunks. */
static qrun_status measure_gradients(const update_gradients *g, qr_gradient_sum *sum, qr_workspace scratch,
                                     qr_chunk_squares *total, qr_error *err) {
    const qr_parameters *p = g->parameters;
    qr_chunk_squares *chunks = g->shards != NULL && sum != NULL ? qr_gradient_sum_squares(sum) : NULL;
    *total = (qr_chunk_squares){0};
    for (int64_t s = 0; s < p->n_sections; s++) {
        const int64_t begin = p->sections[s].begin, n = qr_parameters_section_end(p, s) - begin;
        if (g->shards == NULL) {
            QR_RETURN_IF_ERROR(measure(qr_parameters_updater(p), g->at + begin, n, scratch, NULL, total, err));
        } else {
            QR_RETURN_IF_ERROR(measure_section(g, s, sum, scratch, chunks, total, err));
            if (chunks != NULL) { chunks += qr_shards_chunks(g->shards, s, g->shards->rank).n; }
        }
    }
    return chunks != NULL ? qr_gradient_sum_share_squares(sum, total, err) : QRUN_OK;
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
        QR_RETURN_IF_ERROR(parameters->shards != NULL ? qr_whole_shards_share(parameters, err)
                                                      : qr_gradient_sum_gather(args->sum, parameters->values, err));
    }
    return qr_whole_parameters_refresh(parameters, workspace, err);
}

qrun_status qr_update_run(qr_parameters *parameters, qr_optimizer *optimizer, const qr_update_args *args,
                          qr_workspace scratch, qr_update_result *result, qr_error *err) {
    const qr_shards *shards = qr_optimizer_shards(optimizer);
    const update_gradients gradients = gradients_of(parameters, shards, args->sum);
    qr_chunk_squares measured;
    *result = (qr_update_result){0};
    QR_RETURN_IF_ERROR(measure_gradients(&gradients, args->sum, scratch, &measured, err));
    result->grad_norm = sqrt(measured.sum) / (double)args->loss_scale;
    result->skipped = measured.n_nonfinite > 0 || !isfinite(measured.sum);
    if (result->skipped) { return QRUN_OK; }
    result->began = true;
    result->numbers = (qr_optimizer_numbers){.gradients = gradients.at,
                                             .of_all = gradients.of_all,
                                             .step = args->step,
                                             .learning_rate = (float)args->learning_rate,
                                             .grad_scale = (float)grad_scale(args, result->grad_norm)};
    return update_values(parameters, optimizer, args, &result->numbers, scratch, err);
}

qrun_status qr_update_find_nonfinite(const qr_parameters *parameters, const qr_optimizer *optimizer,
                                     const qr_gradient_sum *sum, qr_workspace scratch, int64_t *index, qr_error *err) {
    const qr_shards *shards = qr_optimizer_shards(optimizer);
    const update_gradients gradients = gradients_of(parameters, shards, sum);
    *index = -1;
    for (int64_t i = 0; i < parameters->n && *index < 0; i++) {
        const qr_parameter *parameter = &parameters->list[i];
        const int64_t end = parameter->offset + parameter->rows * parameter->cols;
        qr_chunk_squares measured = {0};
        int64_t first = parameter->offset, n = end - first;
        if (shards != NULL) { n = qr_shards_common(shards, shards->rank, parameter->offset, end, &first); }
        if (n == 0) { continue; }
        QR_RETURN_IF_ERROR(measure(qr_parameters_updater(parameters), gradient_at(&gradients, first), n, scratch, NULL,
                                   &measured, err));
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
