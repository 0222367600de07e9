#include "runtime/model/model_load.h"

#include "base/alloc.h"
#include "base/random.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/modules.h"
#include "runtime/model/weight_writer.h"

typedef struct load_state {
    qrun_model *model;
    const qr_safetensors *source;
    qrun_progress_fn progress;
    void *progress_user;
    int64_t done_bytes, total_bytes;
    float *random_rows; /* [QR_WEIGHT_ROW_GROUP, random_cols] */
    int64_t random_cols;
} load_state;

static qrun_status advance(load_state *state, int64_t n_bytes, qr_error *err) {
    state->done_bytes += n_bytes;
    if (state->progress == NULL || state->progress(state->progress_user, state->done_bytes, state->total_bytes)) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "loading %s was cancelled", state->model->folder);
}

/* ---- From a folder ----------------------------------------------------------------------------------------------- */

static qrun_status advance_past(load_state *state, const qr_safetensors_tensor *tensor, qr_error *err) {
    qr_safetensors_drop(state->source, tensor);
    return advance(state, (int64_t)tensor->n_bytes, err);
}

static qrun_status load_vector(load_state *state, const qr_module *module, const char *suffix, const float *device,
                               qr_error *err) {
    const qrun_model *model = state->model;
    const qr_safetensors_tensor *tensor;
    QR_RETURN_IF_ERROR(
        qr_module_find_vector(model, state->source, module->role, module->layer, suffix, module->n, &tensor, err));
    QR_RETURN_IF_ERROR(qr_weight_write_floats(model->context->backend, (float *)(uintptr_t)device, tensor, err));
    return advance_past(state, tensor, err);
}

static qrun_status load_matrix(load_state *state, const qr_module *module, qr_error *err) {
    const qrun_model *model = state->model;
    qr_backend *backend = model->context->backend;
    qr_stored_weight stored;
    QR_RETURN_IF_ERROR(
        qr_model_find_stored(model, state->source, module->role, module->layer, &module->matrix->desc, &stored, err));
    const qr_row_source source = {.src = stored.codes->data,
                                  .dtype = stored.codes->dtype,
                                  .transposed = qr_model_is_transposed(model, module->role)};
    QR_RETURN_IF_ERROR(qr_weight_is_plain(stored.desc.format)
                           ? qr_weight_write(backend, module->matrix, &source, stored.codes->name, err)
                           : qr_weight_write_stored(backend, module->matrix, &stored, err));
    return advance_past(state, stored.codes, err);
}

/* ---- Random ------------------------------------------------------------------------------------------------------ */

/* One group of random rows is made per matrix width and repeated: 8 billion normal values would take longer to generate
 * than everything that is then measured, and no kernel's time depends on the values. */
static qrun_status make_random_rows(load_state *state, int64_t cols, qr_error *err) {
    if (state->random_cols == cols) { return QRUN_OK; }
    const int64_t n = QR_WEIGHT_ROW_GROUP * cols;
    qr_free(state->random_rows);
    state->random_cols = 0;
    state->random_rows = qr_alloc_array((size_t)n, sizeof(float));
    if (state->random_rows == NULL) { return qr_fail_memory(err, "random weights", (size_t)n * sizeof(float)); }
    for (int64_t i = 0; i < n; i++) {
        state->random_rows[i] = 0.02F * (float)qr_random_normal(0, (uint64_t)cols, (uint64_t)i);
    }
    state->random_cols = cols;
    return QRUN_OK;
}

static qrun_status randomise_matrix(load_state *state, qr_weight *matrix, qr_error *err) {
    qr_backend *backend = state->model->context->backend;
    QR_RETURN_IF_ERROR(make_random_rows(state, matrix->desc.cols, err));
    const qr_row_source source = {
        .src = (const unsigned char *)state->random_rows, .dtype = QR_DTYPE_F32, .period_rows = QR_WEIGHT_ROW_GROUP};
    QR_RETURN_IF_ERROR(qr_weight_write(backend, matrix, &source, "random weights", err));
    return advance(state, (int64_t)backend->weight_bytes(backend, &matrix->desc), err);
}

/* Norms at their neutral value: 1, or 0 where the family adds 1. */
static qrun_status neutralise_norm(const load_state *state, const qr_module *module, qr_error *err) {
    const qrun_model *model = state->model;
    qr_backend *backend = model->context->backend;
    const size_t n_bytes = (size_t)module->n * sizeof(float);
    float *values = qr_alloc(n_bytes);
    if (values == NULL) { return qr_fail_memory(err, "random weights", n_bytes); }
    for (int64_t i = 0; i < module->n; i++) { values[i] = 1.0F - model->shape.norm_offset; }
    const qrun_status status = backend->copy_in(backend, (void *)(uintptr_t)*module->weight, values, n_bytes, err);
    qr_free(values);
    return status;
}

/* ---- All modules ------------------------------------------------------------------------------------------------- */

static qrun_status fill_module(void *arg, const qr_module *module, qr_error *err) {
    load_state *state = arg;
    if (qr_module_is_tied_head(state->model, module)) {
        *module->matrix = state->model->embedding;
        return QRUN_OK;
    }
    if (state->source == NULL) { /* biases stay zero, as the memory was made */
        return module->matrix != NULL ? randomise_matrix(state, module->matrix, err)
                                      : neutralise_norm(state, module, err);
    }
    if (module->matrix != NULL) { QR_RETURN_IF_ERROR(load_matrix(state, module, err)); }
    if (module->weight != NULL) { QR_RETURN_IF_ERROR(load_vector(state, module, "weight", *module->weight, err)); }
    return module->bias != NULL ? load_vector(state, module, "bias", *module->bias, err) : QRUN_OK;
}

qrun_status qr_model_load_weights(qrun_model *model, const qr_safetensors *source, qrun_progress_fn progress,
                                  void *progress_user, qr_error *err) {
    load_state state = {.model = model, .source = source, .progress = progress, .progress_user = progress_user};
    for (size_t i = 0; source != NULL && i < qr_safetensors_count(source); i++) {
        state.total_bytes += (int64_t)qr_safetensors_get(source, i)->n_bytes;
    }
    if (source == NULL) { state.total_bytes = (int64_t)model->weight_bytes; }
    qrun_status status = qr_model_each_module(model, fill_module, &state, err);
    qr_free(state.random_rows);
    return status == QRUN_OK ? advance(&state, state.total_bytes - state.done_bytes, err) : status;
}
