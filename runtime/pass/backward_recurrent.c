/* The backward part of a layer with a state (runtime/layers/layer_recurrent.h): what its kinds share. */
#include "runtime/layers/layer_recurrent.h"

#include "runtime/layers/layer_delta.h"
#include "runtime/pass/pass_state.h"

qrun_status qr_pass_copy_values(qr_train_pass *pass, const float *src, int64_t src_stride, float *dst,
                                int64_t dst_stride, qr_error *err) {
    const int64_t values = pass->model->shape.recurrent.values;
    const qr_copy_heads_args args = {.src = src,
                                     .dst = dst,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = 1,
                                     .dim = values,
                                     .src_stride = src_stride,
                                     .src_head_stride = values,
                                     .dst_stride = dst_stride,
                                     .dst_head_stride = values};
    return qr_copy_heads(pass->backend, &args, pass->workspace, err);
}

static bool is_conv(const qr_train_pass *pass) { return pass->model->shape.recurrent.kind == QR_RECURRENT_CONV; }

qrun_status qr_pass_recurrent_gate_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    return is_conv(pass) ? qr_pass_conv_gate_backward(pass, err) : qr_pass_delta_gate_backward(pass, layer, err);
}

qrun_status qr_pass_recurrent_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    return is_conv(pass) ? qr_pass_conv_recall_backward(pass, layer, err)
                         : qr_pass_delta_recall_backward(pass, layer, err);
}

qrun_status qr_pass_recurrent_project_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const float *dout = pass->b.dqkv;
    if (d->by_key_head) {
        const qr_layer_pass blocks = qr_pass_layer(pass);
        dout = pass->b.by_head;
        QR_RETURN_IF_ERROR(qr_layer_delta_reorder(&blocks, pass->b.dqkv, pass->b.by_head, true, err));
    }
    for (int i = 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        const qr_linear_layer *linear = &layer->attn_in[i];
        QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, linear, pass->current->buffers.attn_normed,
                                                   dout + linear->out_offset, d->columns, pass->b.dnormed, i > 0, err));
    }
    return QRUN_OK;
}
