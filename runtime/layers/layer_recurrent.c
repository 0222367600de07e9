#include "runtime/layers/layer_recurrent.h"

#include "base/sizes.h"
#include "runtime/layers/layer_adapters.h"
#include "runtime/layers/layer_conv.h"
#include "runtime/layers/layer_delta.h"
#include "runtime/layers/layer_space.h"

/* ---- States ------------------------------------------------------------------------------------------------------ */

int64_t qr_conv_state_floats(const qr_recurrent_shape *shape) {
    return qr_round_up((shape->kernel - 1) * shape->channels, 16);
}

static int64_t layer_floats(const qr_recurrent_shape *shape) {
    return qr_conv_state_floats(shape) + qr_round_up(shape->values * shape->key_dim, 16);
}

int64_t qr_recurrent_state_floats(const qr_model_shape *shape) {
    return shape->recurrent.n_layers > 0 ? shape->recurrent.n_layers * layer_floats(&shape->recurrent) : 0;
}

qr_recurrence qr_layer_recurrence(const qr_layer_pass *pass, const qr_layer *layer, int64_t offset) {
    qr_recurrence sequences = pass->sequences;
    if (sequences.states != NULL) {
        sequences.states += layer->state_index * layer_floats(&pass->model->shape.recurrent) + offset;
    }
    return sequences;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

qrun_status qr_layer_recurrent_project(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *shape = &pass->model->shape.recurrent;
    const qr_layer_buffers *b = &pass->buffers;
    float *dst = shape->by_key_head ? b->by_head : b->qkv;
    for (int i = 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        if (qr_delta_latent_of(shape, i) >= 0) { continue; }
        QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->attn_in[i], b->attn_normed, dst, shape->columns, false, err));
    }
    if (shape->gate_rank > 0) { return qr_layer_delta_latents(pass, layer, err); }
    if (shape->is_scaled) { return qr_layer_space_scale(pass, b->qkv, err); }
    return shape->by_key_head ? qr_layer_delta_reorder(pass, b->by_head, b->qkv, false, err) : QRUN_OK;
}

qrun_status qr_layer_recurrent_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    switch (pass->model->shape.recurrent.kind) {
        case QR_RECURRENT_CONV: return qr_layer_conv_recall(pass, layer, err);
        case QR_RECURRENT_SPACE: return qr_layer_space_recall(pass, layer, err);
        default: return qr_layer_delta_recall(pass, layer, err);
    }
}

qrun_status qr_layer_recurrent_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    switch (pass->model->shape.recurrent.kind) {
        case QR_RECURRENT_CONV: return qr_layer_conv_gate(pass, err);
        case QR_RECURRENT_SPACE: return qr_layer_space_gate(pass, layer, err);
        default: return qr_layer_delta_gate(pass, layer, err);
    }
}

qrun_status qr_layer_recurrent(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_layer_recurrent_project(pass, layer, err));
    QR_RETURN_IF_ERROR(qr_layer_recurrent_recall(pass, layer, err));
    return qr_layer_recurrent_gate(pass, layer, err);
}
