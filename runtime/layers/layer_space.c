#include "runtime/layers/layer_space.h"

#include "runtime/layers/layer_recurrent.h"
#include "runtime/model/split.h"

qr_conv1d_causal_args qr_layer_space_conv_args(const qr_layer_pass *pass, const qr_layer *layer) {
    const qr_recurrent_shape *s = &pass->model->shape.recurrent;
    return (qr_conv1d_causal_args){.fn = s->activation,
                                   .x = pass->buffers.qkv + qr_space_xbc_at(s),
                                   .weight = layer->recurrent.conv.weight,
                                   .bias = layer->recurrent.conv_bias.weight,
                                   .dst = pass->buffers.conved,
                                   .n_tokens = pass->n_tokens,
                                   .dim = s->channels,
                                   .x_stride = s->columns,
                                   .kernel = (int32_t)s->kernel,
                                   .sequences = qr_layer_recurrence(pass, layer, 0)};
}

qr_state_space_args qr_layer_space_recall_args(const qr_layer_pass *pass, const qr_layer *layer) {
    const qr_recurrent_shape *s = &pass->model->shape.recurrent;
    return (qr_state_space_args){.xbc = pass->buffers.conved,
                                 .dt = pass->buffers.qkv + qr_space_steps_at(s),
                                 .a_log = layer->recurrent.a_log.weight,
                                 .dt_bias = layer->recurrent.dt_bias.weight,
                                 .skip = layer->recurrent.skip.weight,
                                 .dst = pass->buffers.recalled,
                                 .n_tokens = pass->n_tokens,
                                 .xbc_stride = s->channels,
                                 .dt_stride = s->columns,
                                 .n_heads = (int32_t)s->n_value_heads,
                                 .n_groups = (int32_t)s->n_key_heads,
                                 .head_dim = (int32_t)s->value_dim,
                                 .state_dim = (int32_t)s->key_dim,
                                 .sequences = qr_layer_recurrence(pass, layer, qr_conv_state_floats(s))};
}

qr_gate_args qr_layer_space_gate_args(const qr_layer_pass *pass, void *dst) {
    const qr_recurrent_shape *s = &pass->model->shape.recurrent;
    return (qr_gate_args){.fn = QR_ACT_SILU,
                          .g = pass->buffers.qkv,
                          .u = pass->buffers.recalled,
                          .dst = dst,
                          .dst_dtype = QR_DTYPE_F32,
                          .n_rows = pass->n_tokens,
                          .dim = s->values,
                          .g_stride = s->columns,
                          .u_stride = s->values};
}

qrun_status qr_layer_space_scale(const qr_layer_pass *pass, float *columns, qr_error *err) {
    const qr_recurrent_shape *s = &pass->model->shape.recurrent;
    const int64_t shared = s->n_key_heads * s->key_dim;
    const int64_t widths[QR_SPACE_PARTS] = {s->values, s->values, shared, shared, s->n_value_heads};
    qr_scale_columns_args args = {.x = columns, .n_rows = pass->n_tokens, .x_stride = s->columns};
    for (int i = 0; i < QR_SPACE_PARTS; i++) { args.parts[i] = (qr_scaled_part){widths[i], s->scales[i]}; }
    return qr_layer_op_scale_columns(pass, &args, err);
}

qrun_status qr_layer_space_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_conv1d_causal_args conv = qr_layer_space_conv_args(pass, layer);
    const qr_state_space_args recall = qr_layer_space_recall_args(pass, layer);
    QR_RETURN_IF_ERROR(qr_layer_op_conv1d_causal(pass, &conv, err));
    return qr_layer_op_state_space(pass, &recall, err);
}

/* What the norm goes over: the shape of all ranks where they share groups, and else the pass's own. */
static qr_recurrent_shape normed_shape(const qr_layer_pass *pass) {
    return qr_split_shares_groups(pass->model) ? qr_recurrent_shape_of(&pass->model->config)
                                               : pass->model->shape.recurrent;
}

/* The values of all ranks, after their gates, where they share groups. */
static qrun_status gather_gated(const qr_layer_pass *pass, float *gated, qr_error *err) {
    const qr_recurrent_shape *own = &pass->model->shape.recurrent;
    const qr_gather values = {.memory = gated,
                              .n_rows = pass->n_tokens,
                              .n_columns = own->values * pass->model->split.n_ranks,
                              .unit = own->values,
                              .dtype = QR_DTYPE_F32};
    return qr_split_shares_groups(pass->model) ? qr_layer_gather(pass, &values, err) : QRUN_OK;
}

qrun_status qr_layer_space_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape s = normed_shape(pass);
    const qr_layer_buffers *b = &pass->buffers;
    const qr_dtype act = pass->model->act_dtype;
    float *gated = qr_split_shares_groups(pass->model) ? b->whole_row : b->recalled_normed;
    qr_gate_args gate = qr_layer_space_gate_args(pass, s.has_norm ? gated : b->attended);
    gate.dst_dtype = s.has_norm ? QR_DTYPE_F32 : act;
    QR_RETURN_IF_ERROR(qr_layer_op_gate(pass, &gate, err));
    if (!s.has_norm) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(gather_gated(pass, gated, err));
    for (int64_t g = 0; g < s.n_key_heads; g++) {
        const qr_space_group group = qr_space_group_of(&s, g);
        const qr_rms_norm_args norm = {.src = gated + group.first,
                                       .weight = layer->recurrent.norm.weight + group.first,
                                       .dst = (unsigned char *)b->attended + (size_t)group.first * qr_dtype_bytes(act),
                                       .dst_dtype = act,
                                       .n_rows = pass->n_tokens,
                                       .n_groups = 1,
                                       .dim = group.dim,
                                       .src_stride = s.values,
                                       .dst_stride = s.values,
                                       .eps = pass->model->shape.norm_eps};
        QR_RETURN_IF_ERROR(qr_layer_op_rms_norm(pass, &norm, err));
    }
    return QRUN_OK;
}
