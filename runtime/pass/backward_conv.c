/* The backward part of a convolution between two gates (runtime/layers/layer_conv.h). */
#include "runtime/layers/layer_conv.h"

#include "runtime/pass/pass_state.h"

qrun_status qr_pass_conv_gate_backward(qr_train_pass *pass, qr_error *err) {
    const qr_recurrent_shape *c = &pass->model->shape.recurrent;
    const qr_layer_buffers *kept = &pass->current->buffers;
    const int64_t stride = 2 * c->values;
    float *out_gate = pass->b.gate_work, *recalled = out_gate + c->values;
    const qr_gate_backward_args gate = {.fn = QR_ACT_NONE,
                                        .g = out_gate,
                                        .u = recalled,
                                        .dy = pass->b.dattended,
                                        .dg = out_gate,
                                        .du = recalled,
                                        .n_rows = pass->n_tokens,
                                        .dim = c->values,
                                        .gu_stride = stride,
                                        .dgu_stride = stride};
    QR_RETURN_IF_ERROR(qr_pass_copy_values(pass, kept->qkv + c->channels, c->columns, out_gate, stride, err));
    QR_RETURN_IF_ERROR(qr_pass_copy_values(pass, kept->recalled, c->values, recalled, stride, err));
    QR_RETURN_IF_ERROR(qr_gate_backward(pass->backend, &gate, pass->workspace, err));
    QR_RETURN_IF_ERROR(qr_pass_copy_values(pass, out_gate, stride, pass->b.dqkv + c->channels, c->columns, err));
    return qr_pass_copy_values(pass, recalled, stride, pass->b.dattended, c->values, err);
}

qrun_status qr_pass_conv_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *c = &pass->model->shape.recurrent;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const float *qkv = blocks.buffers.qkv;
    const qr_conv1d_causal_backward_args conv = {
        .forward = qr_layer_conv_args(&blocks, layer),
        .dy = pass->b.dattended,
        .dx = pass->b.dconved,
        .dweight = qr_parameters_gradient(pass->parameters, layer->recurrent.conv.weight),
        .dx_stride = c->channels};
    const qr_gate_backward_args gate = {.fn = QR_ACT_NONE,
                                        .g = qkv,
                                        .u = qkv + 2 * c->channels,
                                        .dy = pass->b.dconved,
                                        .dg = pass->b.dqkv,
                                        .du = pass->b.dqkv + 2 * c->channels,
                                        .n_rows = pass->n_tokens,
                                        .dim = c->channels,
                                        .gu_stride = c->columns,
                                        .dgu_stride = c->columns};
    QR_RETURN_IF_ERROR(qr_conv1d_causal_backward(pass->backend, &conv, pass->workspace, err));
    return qr_gate_backward(pass->backend, &gate, pass->workspace, err);
}
