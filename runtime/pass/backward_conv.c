/* The backward part of a convolution between two gates (runtime/layers/layer_conv.h). */
#include "runtime/layers/layer_conv.h"

#include "runtime/pass/pass_state.h"

/* In the place of dattended's gradient comes that of what the convolution gave. */
qrun_status qr_pass_conv_gate_backward(qr_train_pass *pass, qr_error *err) {
    const qr_recurrent_shape *c = &pass->model->shape.recurrent;
    const qr_layer_buffers *kept = &pass->current->buffers;
    const qr_gate_backward_args gate = {.fn = QR_ACT_NONE,
                                        .g = kept->qkv + c->channels,
                                        .u = kept->recalled,
                                        .dy = pass->b.dattended,
                                        .dg = pass->b.dqkv + c->channels,
                                        .du = pass->b.dattended,
                                        .n_rows = pass->n_tokens,
                                        .dim = c->values,
                                        .g_stride = c->columns,
                                        .u_stride = c->values,
                                        .dg_stride = c->columns,
                                        .du_stride = c->values};
    return qr_gate_backward(pass->backend, &gate, pass->workspace, err);
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
                                        .g_stride = c->columns,
                                        .u_stride = c->columns,
                                        .dg_stride = c->columns,
                                        .du_stride = c->columns};
    QR_RETURN_IF_ERROR(qr_conv1d_causal_backward(pass->backend, &conv, pass->workspace, err));
    return qr_gate_backward(pass->backend, &gate, pass->workspace, err);
}
