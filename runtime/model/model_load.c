#include "runtime/model/model_load.h"

#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"
#include "runtime/model/modules.h"
#include "runtime/model/weight_writer.h"

/* ---- From a folder ----------------------------------------------------------------------------------------------- */

typedef struct load_state {
    qrun_model *model;
    const qr_safetensors *source;
    qrun_progress_fn progress;
    void *progress_user;
    int64_t done_bytes, total_bytes;
} load_state;

static qrun_status advance(load_state *state, const qr_safetensors_tensor *tensor, qr_error *err) {
    if (tensor != NULL) {
        qr_safetensors_drop(state->source, tensor);
        state->done_bytes += (int64_t)tensor->n_bytes;
    }
    if (state->progress == NULL || state->progress(state->progress_user, state->done_bytes, state->total_bytes)) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "loading %s was cancelled", state->model->folder);
}

/* A norm's weight or a bias: a vector, held in F32. */
static qrun_status load_vector(load_state *state, qr_tensor_role role, int64_t layer, const char *suffix, int64_t n,
                               const float *device, qr_error *err) {
    const qrun_model *model = state->model;
    const qr_safetensors_tensor *tensor;
    qrun_status status = qr_module_find_vector(model, state->source, role, layer, suffix, n, &tensor, err);
    if (status != QRUN_OK) { return status; }
    float *values = qr_alloc_array((size_t)n, sizeof *values);
    if (values == NULL) { return qr_fail_memory(err, tensor->name, (unsigned long long)n * sizeof *values); }
    qr_elements_to_f32(tensor->dtype, tensor->data, 0, n, values);
    qr_backend *backend = model->context->backend;
    status = backend->copy_in(backend, (void *)(uintptr_t)device, values, (size_t)n * sizeof *values, err);
    qr_free(values);
    return status == QRUN_OK ? advance(state, tensor, err) : status;
}

static qrun_status load_norm(load_state *state, qr_tensor_role role, int64_t layer, const qr_norm *norm,
                             qr_error *err) {
    if (norm->weight == NULL) { return QRUN_OK; }
    const qrun_status status = load_vector(state, role, layer, "weight", norm->dim, norm->weight, err);
    if (status != QRUN_OK || norm->bias == NULL) { return status; }
    return load_vector(state, role, layer, "bias", norm->dim, norm->bias, err);
}

static qrun_status load_matrix(load_state *state, qr_tensor_role role, int64_t layer, qr_weight *weight,
                               qr_error *err) {
    const qrun_model *model = state->model;
    qr_backend *backend = model->context->backend;
    qr_stored_weight stored;
    qrun_status status = qr_model_find_stored(model, state->source, role, layer, &weight->desc, &stored, err);
    if (status != QRUN_OK) { return status; }
    if (stored.desc.format >= QR_WEIGHT_INT8) {
        status = qr_weight_write_stored(backend, weight, &stored, err);
    } else {
        const qr_row_source source = {.src = stored.codes->data,
                                      .dtype = stored.codes->dtype,
                                      .transposed = model->family->transposed && role >= QR_ROLE_Q};
        status = qr_weight_write(backend, weight, &source, stored.codes->name, err);
    }
    return status == QRUN_OK ? advance(state, stored.codes, err) : status;
}

static qrun_status load_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    load_state *state = arg;
    const qrun_status status = load_matrix(state, role, layer, &linear->weight, err);
    if (status != QRUN_OK || !linear->has_bias) { return status; }
    return load_vector(state, role, layer, "bias", linear->weight.desc.rows, linear->bias, err);
}

static qrun_status load_layer_norms(load_state *state, int64_t l, qr_error *err) {
    const qr_layer *layer = &state->model->layers[l];
    QR_RETURN_IF_ERROR(load_norm(state, QR_ROLE_ATTN_NORM, l, &layer->attn_norm, err));
    QR_RETURN_IF_ERROR(load_norm(state, QR_ROLE_POST_ATTN_NORM, l, &layer->post_attn_norm, err));
    QR_RETURN_IF_ERROR(load_norm(state, QR_ROLE_MLP_NORM, l, &layer->mlp_norm, err));
    QR_RETURN_IF_ERROR(load_norm(state, QR_ROLE_POST_MLP_NORM, l, &layer->post_mlp_norm, err));
    QR_RETURN_IF_ERROR(load_norm(state, QR_ROLE_Q_NORM, l, &layer->q_norm, err));
    QR_RETURN_IF_ERROR(load_norm(state, QR_ROLE_K_NORM, l, &layer->k_norm, err));
    return QRUN_OK;
}

qrun_status qr_model_load_weights(qrun_model *model, const qr_safetensors *source, qrun_progress_fn progress,
                                  void *progress_user, qr_error *err) {
    load_state state = {.model = model, .source = source, .progress = progress, .progress_user = progress_user};
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        state.total_bytes += (int64_t)qr_safetensors_get(source, i)->n_bytes;
    }
    QR_RETURN_IF_ERROR(load_matrix(&state, QR_ROLE_EMBEDDING, 0, &model->embedding, err));
    if (model->position_embedding.desc.rows > 0) {
        QR_RETURN_IF_ERROR(load_matrix(&state, QR_ROLE_POSITION_EMBEDDING, 0, &model->position_embedding, err));
    }
    QR_RETURN_IF_ERROR(load_norm(&state, QR_ROLE_FINAL_NORM, 0, &model->final_norm, err));
    for (int64_t l = 0; l < model->shape.n_layers; l++) { QR_RETURN_IF_ERROR(load_layer_norms(&state, l, err)); }
    QR_RETURN_IF_ERROR(qr_model_each_linear(model, load_linear, &state, err));
    if (model->shape.tied_head) {
        model->head = model->embedding;
    } else {
        QR_RETURN_IF_ERROR(load_matrix(&state, QR_ROLE_HEAD, 0, &model->head, err));
    }
    state.done_bytes = state.total_bytes;
    QR_RETURN_IF_ERROR(advance(&state, NULL, err));
    return QRUN_OK;
}

/* ---- Random ------------------------------------------------------------------------------------------------------ */

/* One group of random rows is made per matrix width and repeated: generating 8 billion normal numbers would take longer
 * than everything that is then measured, and no kernel's time depends on the values. */
typedef struct random_state {
    qrun_model *model;
    qrun_progress_fn progress;
    void *progress_user;
    float *rows; /* [QR_WEIGHT_ROW_GROUP, cols] */
    int64_t cols;
    int64_t done_bytes;
} random_state;

static qrun_status make_random_rows(random_state *state, int64_t cols, qr_error *err) {
    if (state->cols == cols) { return QRUN_OK; }
    qr_free(state->rows);
    state->cols = 0;
    state->rows = qr_alloc_array((size_t)(QR_WEIGHT_ROW_GROUP * cols), sizeof(float));
    if (state->rows == NULL) { return qr_fail_memory(err, "random weights", (unsigned long long)cols * 256); }
    for (int64_t i = 0; i < QR_WEIGHT_ROW_GROUP * cols; i++) {
        state->rows[i] = 0.02F * (float)qr_random_normal(0, (uint64_t)cols, (uint64_t)i);
    }
    state->cols = cols;
    return QRUN_OK;
}

static qrun_status fill_random(random_state *state, qr_weight *weight, qr_error *err) {
    if (weight->desc.rows == 0) { return QRUN_OK; }
    qr_backend *backend = state->model->context->backend;
    qrun_status status = make_random_rows(state, weight->desc.cols, err);
    if (status != QRUN_OK) { return status; }
    const qr_row_source source = {
        .src = (const unsigned char *)state->rows, .dtype = QR_DTYPE_F32, .period_rows = QR_WEIGHT_ROW_GROUP};
    status = qr_weight_write(backend, weight, &source, "random weights", err);
    state->done_bytes += (int64_t)backend->weight_bytes(backend, &weight->desc);
    if (status == QRUN_OK && state->progress != NULL &&
        !state->progress(state->progress_user, state->done_bytes, (int64_t)state->model->weight_bytes)) {
        status = qr_fail(err, QRUN_ERROR_CANCELLED, "making random weights was cancelled");
    }
    return status;
}

static qrun_status fill_random_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                      qr_error *err) {
    (void)layer, (void)role;
    return fill_random(arg, &linear->weight, err); /* biases stay zero, as the memory was made */
}

/* Norms at their neutral value: 1, or 0 where the family adds 1. */
static qrun_status fill_norm(const qrun_model *model, const qr_norm *norm, qr_error *err) {
    if (norm->weight == NULL) { return QRUN_OK; }
    float *values = qr_alloc_array((size_t)norm->dim, sizeof *values);
    if (values == NULL) {
        return qr_fail_memory(err, "random weights", (unsigned long long)norm->dim * sizeof *values);
    }
    for (int64_t i = 0; i < norm->dim; i++) { values[i] = 1.0F - model->shape.norm_offset; }
    qr_backend *backend = model->context->backend;
    const qrun_status status =
        backend->copy_in(backend, (void *)(uintptr_t)norm->weight, values, (size_t)norm->dim * sizeof *values, err);
    qr_free(values);
    return status;
}

qrun_status qr_model_load_random(qrun_model *model, qrun_progress_fn progress, void *progress_user, qr_error *err) {
    random_state state = {.model = model, .progress = progress, .progress_user = progress_user};
    qrun_status status = QRUN_OK;
    QR_TRY(fill_random(&state, &model->embedding, err));
    QR_TRY(fill_random(&state, &model->position_embedding, err));
    QR_TRY(fill_norm(model, &model->final_norm, err));
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_layer *layer = &model->layers[l];
        const qr_norm *norms[] = {&layer->attn_norm,     &layer->post_attn_norm, &layer->mlp_norm,
                                  &layer->post_mlp_norm, &layer->q_norm,         &layer->k_norm};
        for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) { QR_TRY(fill_norm(model, norms[i], err)); }
    }
    QR_TRY(qr_model_each_linear(model, fill_random_linear, &state, err));
    if (model->shape.tied_head) {
        model->head = model->embedding;
    } else {
        QR_TRY(fill_random(&state, &model->head, err));
    }
out:
    qr_free(state.rows);
    return status;
}
