/* The backward part of a selective state space (runtime/layers/layer_space.h). */
#include "runtime/layers/layer_space.h"

#include "runtime/pass/pass_state.h"

/* Through the norm, where there is one, and the gate before it, which is computed again for it. */
qrun_status qr_pass_space_gate_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *s = &pass->model->shape.recurrent;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    float *gated = pass->b.gate_work, *dgated = gated + pass->n_tokens * s->values;
    float *dweight = qr_parameters_gradient(pass->parameters, layer->recurrent.norm.weight);
    const qr_gate_args forward = qr_layer_space_gate_args(&blocks, gated);
    const qr_gate_backward_args gate = {.fn = forward.fn,
                                        .g = forward.g,
                                        .u = forward.u,
                                        .dy = s->has_norm ? dgated : pass->b.dattended,
                                        .dg = pass->b.dqkv,
                                        .du = pass->b.dattended,
                                        .n_rows = pass->n_tokens,
                                        .dim = s->values,
                                        .g_stride = s->columns,
                                        .u_stride = s->values,
                                        .dg_stride = s->columns,
                                        .du_stride = s->values};
    if (!s->has_norm) { return qr_gate_backward(pass->backend, &gate, pass->workspace, err); }
    QR_RETURN_IF_ERROR(qr_gate(pass->backend, &forward, pass->workspace, err));
    for (int64_t g = 0; g < s->n_key_heads; g++) {
        const qr_space_group group = qr_space_group_of(s, g);
        const qr_rms_norm_backward_args norm = {.x = gated + group.first,
                                                .weight = layer->recurrent.norm.weight + group.first,
                                                .dy = pass->b.dattended + group.first,
                                                .dx = dgated + group.first,
                                                .dweight = dweight != NULL ? dweight + group.first : NULL,
                                                .n_rows = pass->n_tokens,
                                                .n_groups = 1,
                                                .dim = group.dim,
                                                .x_stride = s->values,
                                                .dy_stride = s->values,
                                                .dx_stride = s->values,
                                                .eps = pass->model->shape.norm_eps};
        QR_RETURN_IF_ERROR(qr_rms_norm_backward(pass->backend, &norm, pass->workspace, err));
    }
    return qr_gate_backward(pass->backend, &gate, pass->workspace, err);
}

/* From dattended through the state space and the convolution to the other columns of dqkv. */
qrun_status qr_pass_space_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *s = &pass->model->shape.recurrent;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const qr_recurrent_vectors *vectors = &layer->recurrent;
    const qr_state_space_backward_args recall = {
        .forward = qr_layer_space_recall_args(&blocks, layer),
        .dy = pass->b.dattended,
        .dxbc = pass->b.dconved,
        .ddt = pass->b.dqkv + qr_space_steps_at(s),
        .da_log = qr_parameters_gradient(pass->parameters, vectors->a_log.weight),
        .ddt_bias = qr_parameters_gradient(pass->parameters, vectors->dt_bias.weight),
        .dskip = qr_parameters_gradient(pass->parameters, vectors->skip.weight),
        .dxbc_stride = s->channels,
        .ddt_stride = s->columns};
    const qr_conv1d_causal_backward_args conv = {
        .forward = qr_layer_space_conv_args(&blocks, layer),
        .dy = pass->b.dconved,
        .dx = pass->b.dqkv + qr_space_xbc_at(s),
        .dweight = qr_parameters_gradient(pass->parameters, vectors->conv.weight),
        .dbias = qr_parameters_gradient(pass->parameters, vectors->conv_bias.weight),
        .dx_stride = s->columns};
    QR_RETURN_IF_ERROR(qr_state_space_backward(pass->backend, &recall, pass->workspace, err));
    return qr_conv1d_causal_backward(pass->backend, &conv, pass->workspace, err);
}
