#include "runtime/layers/layer_delta.h"

#include "base/sizes.h"
#include "runtime/layers/layer_adapters.h"
#include "runtime/layers/layer_recurrent.h"

/* ---- Ops --------------------------------------------------------------------------------------------------------- */

qr_conv1d_causal_args qr_layer_delta_conv_args(const qr_layer_pass *pass, const qr_layer *layer) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    return (qr_conv1d_causal_args){.fn = pass->model->shape.activation,
                                   .x = pass->buffers.qkv,
                                   .weight = layer->recurrent.conv.weight,
                                   .dst = pass->buffers.conved,
                                   .n_tokens = pass->n_tokens,
                                   .dim = d->channels,
                                   .x_stride = d->columns,
                                   .kernel = (int32_t)d->kernel,
                                   .sequences = qr_layer_recurrence(pass, layer, 0)};
}

qr_gated_delta_args qr_layer_delta_recall_args(const qr_layer_pass *pass, const qr_layer *layer) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const float *b = pass->buffers.qkv + d->channels + d->values;
    return (qr_gated_delta_args){.qkv = pass->buffers.conved,
                                 .a = b + d->n_value_heads,
                                 .b = b,
                                 .a_log = layer->recurrent.a_log.weight,
                                 .dt_bias = layer->recurrent.dt_bias.weight,
                                 .dst = pass->buffers.recalled,
                                 .n_tokens = pass->n_tokens,
                                 .qkv_stride = d->channels,
                                 .ab_stride = d->columns,
                                 .n_key_heads = (int32_t)d->n_key_heads,
                                 .n_value_heads = (int32_t)d->n_value_heads,
                                 .key_dim = (int32_t)d->key_dim,
                                 .value_dim = (int32_t)d->value_dim,
                                 .doubles_beta = d->doubles_beta,
                                 .decays_channels = d->decays_channels,
                                 .sequences = qr_layer_recurrence(pass, layer, qr_conv_state_floats(d))};
}

/* Of every value head. Unlike the model's other norms, this one multiplies by its weight alone. */
qrun_status qr_layer_delta_norm(const qr_layer_pass *pass, const qr_layer *layer, float *dst, qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const qr_rms_norm_args args = {.src = pass->buffers.recalled,
                                   .weight = layer->recurrent.norm.weight,
                                   .dst = dst,
                                   .dst_dtype = QR_DTYPE_F32,
                                   .n_rows = pass->n_tokens,
                                   .n_groups = d->n_value_heads,
                                   .dim = d->value_dim,
                                   .src_stride = d->values,
                                   .dst_stride = d->values,
                                   .eps = d->norm_eps};
    return qr_layer_op_rms_norm(pass, &args, err);
}

/* ---- Latents ----------------------------------------------------------------------------------------------------- */

qrun_status qr_layer_delta_latents(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const qr_layer_buffers *b = &pass->buffers;
    const int64_t columns = qr_delta_latent_columns(d);
    void *const latents[QR_DELTA_LATENTS] = {b->z_latent, b->a_latent};
    for (int i = 0; i < QR_DELTA_LATENTS; i++) {
        QR_RETURN_IF_ERROR(
            qr_layer_linear(pass, &layer->delta_down[i], b->attn_normed, b->delta_latent, columns, false, err));
    }
    for (int i = 0; i < QR_DELTA_LATENTS; i++) {
        const qr_activation_args round = {.fn = QR_ACT_NONE,
                                          .x = b->delta_latent + i * d->gate_rank,
                                          .dst = latents[i],
                                          .dst_dtype = pass->model->act_dtype,
                                          .n_rows = pass->n_tokens,
                                          .dim = d->gate_rank,
                                          .x_stride = columns};
        QR_RETURN_IF_ERROR(qr_layer_op_activation(pass, &round, err));
    }
    for (int i = 0; i < QR_MAX_ATTN_IN; i++) {
        const int of = qr_delta_latent_of(d, i);
        if (of < 0) { continue; }
        QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->attn_in[i], latents[of], b->qkv, d->columns, false, err));
    }
    return QRUN_OK;
}

/* ---- Columns by key head ----------------------------------------------------------------------------------------- */

/* Of what a key head has: where it begins and how far the next head's is, in either layout, and its elements. */
typedef struct head_part {
    int64_t by_head, by_head_stride, column, dim;
} head_part;

enum { N_HEAD_PARTS = 6 };

static void parts_of_head(const qr_recurrent_shape *d, head_part parts[N_HEAD_PARTS]) {
    const int64_t n_shared = d->n_value_heads / d->n_key_heads, values = n_shared * d->value_dim;
    const int64_t ba = d->channels + d->values;
    const int64_t dims[N_HEAD_PARTS] = {d->key_dim, d->key_dim, values, values, n_shared, n_shared};
    const int64_t qkvz_stride = 2 * (d->key_dim + values), ba_stride = 2 * n_shared;
    int64_t within = 0, column = 0;
    for (int i = 0; i < N_HEAD_PARTS; i++) {
        const bool is_ba = i >= 4;
        if (i == 4) { within = ba; }
        parts[i] = (head_part){within, is_ba ? ba_stride : qkvz_stride, column, dims[i]};
        within += dims[i];
        column += d->n_key_heads * dims[i];
    }
}

qrun_status qr_layer_delta_reorder(const qr_layer_pass *pass, const float *src, float *dst, bool to_heads,
                                   qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    head_part parts[N_HEAD_PARTS];
    parts_of_head(d, parts);
    for (int i = 0; i < N_HEAD_PARTS; i++) {
        const int64_t first[2] = {parts[i].by_head, parts[i].column};
        const int64_t head_stride[2] = {parts[i].by_head_stride, parts[i].dim};
        const qr_copy_heads_args args = {.src = src + first[to_heads],
                                         .dst = dst + first[!to_heads],
                                         .n_rows = pass->n_tokens,
                                         .n_heads = d->n_key_heads,
                                         .dim = parts[i].dim,
                                         .src_stride = d->columns,
                                         .src_head_stride = head_stride[to_heads],
                                         .dst_stride = d->columns,
                                         .dst_head_stride = head_stride[!to_heads]};
        QR_RETURN_IF_ERROR(qr_layer_op_copy_heads(pass, &args, err));
    }
    return QRUN_OK;
}

/* ---- The block --------------------------------------------------------------------------------------------------- */

qrun_status qr_layer_delta_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_conv1d_causal_args conv = qr_layer_delta_conv_args(pass, layer);
    const qr_gated_delta_args recall = qr_layer_delta_recall_args(pass, layer);
    QR_RETURN_IF_ERROR(qr_layer_op_conv1d_causal(pass, &conv, err));
    return qr_layer_op_gated_delta(pass, &recall, err);
}

qrun_status qr_layer_delta_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_recurrent_shape *d = &pass->model->shape.recurrent;
    const qr_layer_buffers *b = &pass->buffers;
    const qr_gate_args gate = {.fn = qr_delta_gate_fn(d),
                               .g = b->qkv + d->channels,
                               .u = b->recalled_normed,
                               .dst = b->attended,
                               .dst_dtype = pass->model->act_dtype,
                               .n_rows = pass->n_tokens,
                               .dim = d->values,
                               .g_stride = d->columns,
                               .u_stride = d->values};
    QR_RETURN_IF_ERROR(qr_layer_delta_norm(pass, layer, b->recalled_normed, err));
    return qr_layer_op_gate(pass, &gate, err);
}
