#include "runtime/model/modules.h"

#include <string.h>

/* ---- Visiting ---------------------------------------------------------------------------------------------------- */

typedef struct visit_state {
    const qrun_model *model;
    qr_module_visitor visit;
    void *arg;
} visit_state;

static qrun_status visit_table(const visit_state *v, qr_tensor_role role, qr_weight *matrix, qr_row_share *share,
                               qr_error *err) {
    const qr_module module = {.role = role, .matrix = matrix, .n = matrix->desc.rows, .share = share};
    return matrix->desc.rows > 0 ? v->visit(v->arg, &module, err) : QRUN_OK;
}

static qrun_status visit_norm(const visit_state *v, qr_tensor_role role, int64_t layer, qr_norm *norm, qr_error *err) {
    const qr_module module = {.role = role,
                              .layer = layer,
                              .weight = &norm->weight,
                              .bias = v->model->family->norm_biases ? &norm->bias : NULL,
                              .n = norm->dim,
                              .share = &norm->share};
    const bool is_stored =
        norm->dim > 0 && v->model->family->modules[role] != NULL; /* others are of the model's ones */
    return is_stored ? v->visit(v->arg, &module, err) : QRUN_OK;
}

static qrun_status visit_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    const visit_state *v = arg;
    const qr_module module = {.role = role,
                              .layer = layer,
                              .matrix = &linear->weight,
                              .bias = linear->has_bias ? &linear->bias : NULL,
                              .n = linear->weight.desc.rows,
                              .share = &linear->share};
    return v->visit(v->arg, &module, err);
}

static qrun_status visit_expert(void *arg, qr_weight *matrix, int64_t layer, qr_tensor_role role, int64_t expert,
                                qr_error *err) {
    const visit_state *v = arg;
    const qr_module module = {.role = role,
                              .layer = layer,
                              .expert = expert,
                              .matrix = matrix,
                              .n = matrix->desc.rows,
                              .share = qr_expert_share(&v->model->layers[layer], role)};
    return v->visit(v->arg, &module, err);
}

qr_norm *qr_norm_of_layer(qr_layer *layer, qr_tensor_role role) {
    qr_recurrent_vectors *recurrent = layer->beside != NULL ? &layer->beside->recurrent : &layer->recurrent;
    qr_norm *const norms[] = {&layer->attn_norm,        &layer->post_attn_norm,  &layer->mlp_norm,
                              &layer->post_mlp_norm,    &layer->post_input_norm, &layer->dense_out_norm,
                              &layer->expert_norm,      &layer->expert_out_norm, &layer->q_norm,
                              &layer->k_norm,           &layer->latent.q_norm,   &layer->latent.kv_norm,
                              &layer->residual_norm,    &layer->streams.norm,    &layer->streams.router,
                              &layer->streams.predict,  &layer->streams.correct, &layer->streams.scale,
                              &layer->scalar,           &recurrent->norm,        &recurrent->conv,
                              &recurrent->a_log,        &recurrent->dt_bias,     &recurrent->conv_bias,
                              &recurrent->skip,         &layer->sinks,           &layer->xielu[0],
                              &layer->xielu[1],         &layer->xielu[2],        &layer->xielu[3],
                              &layer->router_norm,      &layer->expert_scale,    &layer->choice_bias,
                              &layer->expert_gate_bias, &layer->expert_up_bias,  &layer->expert_out_bias};
    return norms[role - QR_ROLE_ATTN_NORM];
}

qrun_status qr_model_each_module(qrun_model *model, qr_module_visitor visit, void *arg, qr_error *err) {
    visit_state v = {.model = model, .visit = visit, .arg = arg};
    QR_RETURN_IF_ERROR(visit_table(&v, QR_ROLE_EMBEDDING, &model->embedding, NULL, err));
    QR_RETURN_IF_ERROR(visit_table(&v, QR_ROLE_POSITION_EMBEDDING, &model->position_embedding, NULL, err));
    QR_RETURN_IF_ERROR(visit_table(&v, QR_ROLE_INPUTS_EMBEDDING, &model->inputs.embedding, NULL, err));
    QR_RETURN_IF_ERROR(visit_norm(&v, QR_ROLE_INPUTS_NORM, 0, &model->inputs.norm, err));
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        for (qr_tensor_role role = QR_ROLE_ATTN_NORM; role < QR_ROLE_Q; role++) {
            QR_RETURN_IF_ERROR(visit_norm(&v, role, l, qr_norm_of_layer(&model->layers[l], role), err));
        }
    }
    QR_RETURN_IF_ERROR(qr_model_each_linear(model, visit_linear, &v, err));
    QR_RETURN_IF_ERROR(qr_model_each_expert(model, visit_expert, &v, err));
    QR_RETURN_IF_ERROR(visit_norm(&v, QR_ROLE_FINAL_NORM, 0, &model->final_norm, err));
    return visit_table(&v, QR_ROLE_HEAD, &model->head, &model->head_share, err);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Whether `name` is the end of a path, whole components of it. */
static bool ends_in(const char *path, const char *name, size_t n_bytes) {
    const size_t length = strlen(path);
    if (n_bytes == 0 || n_bytes > length || memcmp(path + length - n_bytes, name, n_bytes) != 0) { return false; }
    return n_bytes == length || path[length - n_bytes - 1] == '.';
}

bool qr_module_is_called(const qr_family *family, qr_tensor_role role, const char *name, size_t n_bytes) {
    return family->modules[role] != NULL && ends_in(family->modules[role], name, n_bytes);
}

const char *qr_module_short_name(const qr_family *family, qr_tensor_role role) {
    const char *path = family->modules[role], *name = path + strlen(path);
    for (bool clashes = true; clashes && name > path;) {
        name--;
        while (name > path && name[-1] != '.') { name--; }
        clashes = false;
        const size_t n_bytes = strlen(name);
        for (int other = 0; other < QR_ROLE_COUNT && !clashes; other++) {
            const char *module = family->modules[other];
            const size_t length = module != NULL ? strlen(module) : 0;
            /* PEFT compares the ends of strings: "norm" is also the end of "input_layernorm". A role of the same path
             * is another layer's, and the same to PEFT (shared_mlp of Granite 4). */
            clashes = length >= n_bytes && strcmp(module, path) != 0 && strcmp(module + length - n_bytes, name) == 0;
        }
    }
    return name;
}
