#include "runtime/layers/layer_conv.h"

#include "runtime/layers/layer_recurrent.h"

qr_conv1d_causal_args qr_layer_conv_args(const qr_layer_pass *pass, const qr_layer *layer) {
    const qr_recurrent_shape *c = &pass->model->shape.recurrent;
    return (qr_conv1d_causal_args){.fn = QR_ACT_NONE,
                                   .x = pass->buffers.conved,
                                   .weight = layer->recurrent.conv.weight,
                                   .dst = pass->buffers.recalled,
                                   .n_tokens = pass->n_tokens,
                                   .dim = c->channels,
                                   .x_stride = c->channels,
                                   .kernel = (int32_t)c->kernel,
                                   .sequences = qr_layer_recurrence(pass, layer, 0)};
}

qrun_status qr_layer_conv_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *c = &pass->model->shape.recurrent;
    const qr_conv1d_causal_args conv = qr_layer_conv_args(pass, layer);
    const qr_gate_args gate = {.fn = QR_ACT_NONE,
                               .g = pass->buffers.qkv,
                               .u = pass->buffers.qkv + 2 * c->channels,
                               .dst = pass->buffers.conved,
                               .dst_dtype = QR_DTYPE_F32,
                               .n_rows = pass->n_tokens,
                               .dim = c->channels,
                               .g_stride = c->columns,
                               .u_stride = c->columns};
    QR_RETURN_IF_ERROR(qr_layer_op_gate(pass, &gate, err));
    return qr_layer_op_conv1d_causal(pass, &conv, err);
}

qrun_status qr_layer_conv_gate(const qr_layer_pass *pass, qr_error *err) {
    const qr_recurrent_shape *c = &pass->model->shape.recurrent;
    const qr_gate_args gate = {.fn = QR_ACT_NONE,
                               .g = pass->buffers.qkv + c->channels,
                               .u = pass->buffers.recalled,
                               .dst = pass->buffers.attended,
                               .dst_dtype = pass->model->act_dtype,
                               .n_rows = pass->n_tokens,
                               .dim = c->channels,
                               .g_stride = c->columns,
                               .u_stride = c->channels};
    return qr_layer_op_gate(pass, &gate, err);
}
