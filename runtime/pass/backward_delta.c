/* The backward part of a layer of the gated delta rule (runtime/layers/layer_delta.h). */
#include "runtime/layers/layer_delta.h"

#include "runtime/pass/pass_state.h"

/* Through the gate and the norm before it, which is computed again: z's gradient goes to dqkv, that of the recurrence's
 * output takes the place of dattended. */
qrun_status qr_pass_delta_gate_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    float *normed = pass->b.gate_work;
    const qr_gate_backward_args gate = {.fn = qr_delta_gate_fn(d),
                                        .g = blocks.buffers.qkv + d->channels,
                                        .u = normed,
                                        .dy = pass->b.dattended,
                                        .dg = pass->b.dqkv + d->channels,
                                        .du = normed,
                                        .n_rows = pass->n_tokens,
                                        .dim = d->values,
                                        .g_stride = d->columns,
                                        .u_stride = d->values,
                                        .dg_stride = d->columns,
                                        .du_stride = d->values};
    const qr_rms_norm_backward_args norm = {.x = blocks.buffers.recalled,
                                            .weight = layer->recurrent.norm.weight,
                                            .dy = normed,
                                            .dx = pass->b.dattended,
                                            .dweight =
                                                qr_parameters_gradient(pass->parameters, layer->recurrent.norm.weight),
                                            .n_rows = pass->n_tokens,
                                            .n_groups = d->n_value_heads,
                                            .dim = d->value_dim,
                                            .x_stride = d->values,
                                            .dy_stride = d->values,
                                            .dx_stride = d->values,
                                            .eps = d->norm_eps};
    QR_RETURN_IF_ERROR(qr_layer_delta_norm(&blocks, layer, normed, err));
    QR_RETURN_IF_ERROR(qr_gate_backward(pass->backend, &gate, pass->workspace, err));
    return qr_rms_norm_backward(pass->backend, &norm, pass->workspace, err);
}

/* Matrix i of attn_in, which reads a latent: to that, and on to dnormed, which grows. */
qrun_status qr_pass_delta_latent_backward(qr_train_pass *pass, const qr_layer *layer, int i, const float *dout,
                                          qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const qr_layer_buffers *kept = &pass->current->buffers;
    const int of = qr_delta_latent_of(d, i);
    float *dlatent = pass->b.delta_latent;
    QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &layer->attn_in[i], of == 0 ? kept->z_latent : kept->a_latent,
                                               dout + layer->attn_in[i].out_offset, d->columns, dlatent, false, err));
    return qr_pass_linear_backward(pass, &layer->delta_down[of], kept->attn_normed, dlatent, d->gate_rank,
                                   pass->b.dnormed, true, err);
}

/* From dattended through the recurrence and the convolution to the other columns of dqkv. */
qrun_status qr_pass_delta_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    float *db = pass->b.dqkv + d->channels + d->values;
    const qr_gated_delta_backward_args recall = {
        .forward = qr_layer_delta_recall_args(&blocks, layer),
        .dy = pass->b.dattended,
        .dqkv = pass->b.dconved,
        .da = db + d->n_value_heads,
        .db = db,
        .da_log = qr_parameters_gradient(pass->parameters, layer->recurrent.a_log.weight),
        .ddt_bias = qr_parameters_gradient(pass->parameters, layer->recurrent.dt_bias.weight),
        .dqkv_stride = d->channels,
        .dab_stride = d->columns};
    const qr_conv1d_causal_backward_args conv = {
        .forward = qr_layer_delta_conv_args(&blocks, layer),
        .dy = pass->b.dconved,
        .dx = pass->b.dqkv,
        .dweight = qr_parameters_gradient(pass->parameters, layer->recurrent.conv.weight),
        .dx_stride = d->columns};
    QR_RETURN_IF_ERROR(qr_gated_delta_backward(pass->backend, &recall, pass->workspace, err));
    return qr_conv1d_causal_backward(pass->backend, &conv, pass->workspace, err);
}
