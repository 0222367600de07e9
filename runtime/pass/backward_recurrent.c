/* The backward part of a layer with a state (runtime/layers/layer_recurrent.h): what its kinds share. */
#include "runtime/layers/layer_recurrent.h"

#include "runtime/layers/layer_delta.h"
#include "runtime/layers/layer_space.h"
#include "runtime/pass/pass_state.h"

qrun_status qr_pass_recurrent_gate_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    switch (pass->model->shape.recurrent.kind) {
        case QR_RECURRENT_CONV: return qr_pass_conv_gate_backward(pass, err);
        case QR_RECURRENT_SPACE: return qr_pass_space_gate_backward(pass, layer, err);
        default: return qr_pass_delta_gate_backward(pass, layer, err);
    }
}

qrun_status qr_pass_recurrent_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    switch (pass->model->shape.recurrent.kind) {
        case QR_RECURRENT_CONV: return qr_pass_conv_recall_backward(pass, layer, err);
        case QR_RECURRENT_SPACE: return qr_pass_space_recall_backward(pass, layer, err);
        default: return qr_pass_delta_recall_backward(pass, layer, err);
    }
}

qrun_status qr_pass_recurrent_project_backward(qr_train_pass *pass, const qr_layer *layer, bool accumulate,
                                               qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const float *dout = pass->b.dqkv;
    if (d->is_scaled) { QR_RETURN_IF_ERROR(qr_layer_space_scale(&blocks, pass->b.dqkv, err)); }
    if (d->by_key_head) {
        dout = pass->b.by_head;
        QR_RETURN_IF_ERROR(qr_layer_delta_reorder(&blocks, pass->b.dqkv, pass->b.by_head, true, err));
    }
    for (int i = 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        const qr_linear_layer *linear = &layer->attn_in[i];
        if (qr_delta_latent_of(d, i) >= 0) {
            QR_RETURN_IF_ERROR(qr_pass_delta_latent_backward(pass, layer, i, dout, err));
            continue;
        }
        QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, linear, pass->current->buffers.attn_normed,
                                                   dout + linear->out_offset, d->columns, pass->b.dnormed,
                                                   accumulate || i > 0, err));
    }
    return QRUN_OK;
}
