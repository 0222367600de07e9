#include "runtime/model/modules.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

/* ---- Visiting ---------------------------------------------------------------------------------------------------- */

typedef struct visit_state {
    qr_module_visitor visit;
    void *arg;
} visit_state;

static qrun_status visit_table(const visit_state *v, qr_tensor_role role, qr_weight *matrix, qr_error *err) {
    const qr_module module = {.role = role, .matrix = matrix, .n = matrix->desc.rows};
    return matrix->desc.rows > 0 ? v->visit(v->arg, &module, err) : QRUN_OK;
}

static qrun_status visit_norm(const visit_state *v, qr_tensor_role role, int64_t layer, qr_norm *norm, qr_error *err) {
    const qr_module module = {.role = role,
                              .layer = layer,
                              .weight = &norm->weight,
                              .bias = norm->bias != NULL ? &norm->bias : NULL,
                              .n = norm->dim};
    return norm->weight != NULL ? v->visit(v->arg, &module, err) : QRUN_OK;
}

static qrun_status visit_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    const visit_state *v = arg;
    const qr_module module = {.role = role,
                              .layer = layer,
                              .matrix = &linear->weight,
                              .bias = linear->has_bias ? &linear->bias : NULL,
                              .n = linear->weight.desc.rows};
    return v->visit(v->arg, &module, err);
}

static qrun_status visit_layer_norms(const visit_state *v, qr_layer *layer, int64_t l, qr_error *err) {
    QR_RETURN_IF_ERROR(visit_norm(v, QR_ROLE_ATTN_NORM, l, &layer->attn_norm, err));
    QR_RETURN_IF_ERROR(visit_norm(v, QR_ROLE_POST_ATTN_NORM, l, &layer->post_attn_norm, err));
    QR_RETURN_IF_ERROR(visit_norm(v, QR_ROLE_MLP_NORM, l, &layer->mlp_norm, err));
    QR_RETURN_IF_ERROR(visit_norm(v, QR_ROLE_POST_MLP_NORM, l, &layer->post_mlp_norm, err));
    QR_RETURN_IF_ERROR(visit_norm(v, QR_ROLE_Q_NORM, l, &layer->q_norm, err));
    QR_RETURN_IF_ERROR(visit_norm(v, QR_ROLE_K_NORM, l, &layer->k_norm, err));
    return QRUN_OK;
}

qrun_status qr_model_each_module(qrun_model *model, qr_module_visitor visit, void *arg, qr_error *err) {
    visit_state v = {visit, arg};
    QR_RETURN_IF_ERROR(visit_table(&v, QR_ROLE_EMBEDDING, &model->embedding, err));
    QR_RETURN_IF_ERROR(visit_table(&v, QR_ROLE_POSITION_EMBEDDING, &model->position_embedding, err));
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        QR_RETURN_IF_ERROR(visit_layer_norms(&v, &model->layers[l], l, err));
    }
    QR_RETURN_IF_ERROR(qr_model_each_linear(model, visit_linear, &v, err));
    QR_RETURN_IF_ERROR(visit_norm(&v, QR_ROLE_FINAL_NORM, 0, &model->final_norm, err));
    QR_RETURN_IF_ERROR(visit_table(&v, QR_ROLE_HEAD, &model->head, err));
    return QRUN_OK;
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
            /* PEFT compares the ends of strings: "norm" is also the end of "input_layernorm". */
            clashes = other != (int)role && length >= n_bytes && strcmp(module + length - n_bytes, name) == 0;
        }
    }
    return name;
}

qrun_status qr_module_find_vector(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                  int64_t layer, const char *suffix, int64_t n, const qr_safetensors_tensor **tensor,
                                  qr_error *err) {
    char module[QR_STORED_NAME_BYTES], name[QR_STORED_NAME_BYTES];
    qr_family_module_name(model->family, model->prefix, role, layer, module, sizeof module);
    if (snprintf(name, sizeof name, "%s.%s", module, suffix) >= (int)sizeof name) { name[0] = '\0'; }
    return qr_safetensors_require(source, name, QR_DTYPES_FLOAT, 1, &n, tensor, err);
}

/* ---- Weights in the place of others ------------------------------------------------------------------------------ */

qrun_status qr_stand_ins_reserve(qr_stand_ins *stand_ins, int64_t most, qr_error *err) {
    stand_ins->list = qr_alloc_array((size_t)qr_max(most, 1), sizeof *stand_ins->list);
    stand_ins->capacity = most;
    return stand_ins->list != NULL ? QRUN_OK
                                   : qr_fail_memory(err, "the replaced weights", (size_t)most * sizeof(qr_stand_in));
}

void qr_stand_in_matrix(qr_stand_ins *stand_ins, qr_weight *place, const qr_weight *matrix) {
    assert(stand_ins->n < stand_ins->capacity);
    stand_ins->list[stand_ins->n++] = (qr_stand_in){.matrix = place, .own_matrix = *place};
    *place = *matrix;
}

void qr_stand_in_vector(qr_stand_ins *stand_ins, const float **place, const float *vector) {
    assert(stand_ins->n < stand_ins->capacity);
    stand_ins->list[stand_ins->n++] = (qr_stand_in){.vector = place, .own_vector = *place};
    *place = vector;
}

void qr_stand_ins_end(qr_stand_ins *stand_ins) {
    while (stand_ins->n > 0) {
        const qr_stand_in *last = &stand_ins->list[--stand_ins->n];
        if (last->matrix != NULL) {
            *last->matrix = last->own_matrix;
        } else {
            *last->vector = last->own_vector;
        }
    }
    qr_free(stand_ins->list);
    *stand_ins = (qr_stand_ins){0};
}
