#include "runtime/layers/layer_latent.h"

#include "runtime/layers/layer_adapters.h"

int64_t qr_latent_kv_columns(const qr_model_shape *shape) { return shape->latent.kv_rank + shape->latent.rotated_dim; }

int64_t qr_latent_columns(const qr_model_shape *shape) {
    return shape->latent.query_rank + qr_latent_kv_columns(shape);
}

int64_t qr_latent_up_columns(const qr_model_shape *shape) {
    return shape->latent.kv_rank > 0 ? shape->n_heads * (shape->latent.plain_dim + shape->latent.value_dim) : 0;
}

static int64_t query_stride(const qr_layer_pass *pass, const qr_layer *layer) {
    const qr_model_shape *s = &pass->model->shape;
    return pass->keeps_latents ? qr_latent_query_columns(s) : qr_qkv_columns(layer);
}

/* dst [T, dim] act = norm(src), rows of buffers.latent. */
static qrun_status norm_latent(const qr_layer_pass *pass, const qr_norm *norm, const float *src, void *dst,
                               qr_error *err) {
    return qr_layer_rms_norm(pass, norm, src, qr_latent_columns(&pass->model->shape), dst, pass->model->act_dtype,
                             norm->dim, pass->n_tokens, 1, err);
}

static qrun_status make_queries(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_buffers *b = &pass->buffers;
    const qr_latent_layers *latent = &layer->latent;
    const int64_t stride = query_stride(pass, layer);
    if (s->latent.query_rank == 0) {
        return qr_layer_linear(pass, &layer->attn_in[0], b->attn_normed, b->qkv, stride, false, err);
    }
    QR_RETURN_IF_ERROR(
        qr_layer_linear(pass, &latent->q_down, b->attn_normed, b->latent, qr_latent_columns(s), false, err));
    QR_RETURN_IF_ERROR(norm_latent(pass, &latent->q_norm, b->latent, b->q_latent, err));
    return qr_layer_linear(pass, &latent->q_up, b->q_latent, b->qkv, stride, false, err);
}

/* H heads of `dim` elements into keys or values. */
static qrun_status copy_heads(const qr_layer_pass *pass, const qr_layer *layer, const float *src, int64_t src_stride,
                              int64_t src_head_stride, int64_t dim, float *dst, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_copy_heads_args args = {.src = src,
                                     .dst = dst,
                                     .dtype = QR_DTYPE_F32,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = s->n_heads,
                                     .dim = dim,
                                     .src_stride = src_stride,
                                     .src_head_stride = src_head_stride,
                                     .dst_stride = qr_qkv_columns(layer),
                                     .dst_head_stride = layer->head_dim};
    return dim > 0 ? qr_layer_op_copy_heads(pass, &args, err) : QRUN_OK;
}

/* Keys: what is made of the latent, and behind it what all heads share. Values, and zeros behind them. */
static qrun_status place_keys_and_values(const qr_layer_pass *pass, const qr_layer *layer, const float *shared_key,
                                         qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_latent_config *c = &s->latent;
    const float *up = pass->buffers.kv_up;
    const int64_t heads = s->n_heads * layer->head_dim, of_head = c->plain_dim + c->value_dim;
    const int64_t up_columns = qr_latent_up_columns(s), padding = layer->head_dim - c->value_dim;
    float *k = pass->buffers.qkv + heads, *v = k + heads;
    QR_RETURN_IF_ERROR(copy_heads(pass, layer, up, up_columns, of_head, c->plain_dim, k, err));
    QR_RETURN_IF_ERROR(
        copy_heads(pass, layer, shared_key, qr_latent_columns(s), 0, c->rotated_dim, k + c->plain_dim, err));
    QR_RETURN_IF_ERROR(copy_heads(pass, layer, up + c->plain_dim, up_columns, of_head, c->value_dim, v, err));
    return copy_heads(pass, layer, NULL, 0, 0, padding, v + c->value_dim, err);
}

/* ---- Latents as keys and values ---------------------------------------------------------------------------------- */

/* A product of each head with its rows of the matrix that makes keys and values, adapters included. */
static qrun_status run_head_linear(const qr_layer_pass *pass, const qr_layer *layer, qr_head_linear_args args,
                                   qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_linear_layer *up = &layer->latent.kv_up;
    const qr_layer_adapters *adapters = &pass->adapters;
    args.weight = &up->weight;
    args.row_stride = s->latent.plain_dim + s->latent.value_dim;
    args.n_heads = s->n_heads;
    args.n_rows = pass->n_tokens;
    if (adapters->table != NULL) {
        args.factors = adapters->table + (int64_t)up->slot * adapters->n_adapters;
        args.row_adapter = adapters->row_adapter;
        args.n_adapters = adapters->n_adapters;
        args.max_rank = adapters->max_rank;
    }
    return qr_layer_op_head_linear(pass, &args, err);
}

/* buffers.absorbed: queries that took in the matrix of keys, and behind them their rotated part. */
static qrun_status absorb(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_latent_config *c = &s->latent;
    const qr_layer_buffers *b = &pass->buffers;
    const qr_head_linear_args plain = {.dim = c->plain_dim,
                                       .by_column = true,
                                       .x = b->qkv,
                                       .y = b->absorbed,
                                       .x_dtype = QR_DTYPE_F32,
                                       .y_dtype = QR_DTYPE_F32,
                                       .x_stride = qr_latent_query_columns(s),
                                       .x_head_stride = layer->head_dim,
                                       .y_stride = qr_latent_attended_columns(s),
                                       .y_head_stride = qr_latent_kv_columns(s)};
    const qr_copy_heads_args rotated = {.src = b->qkv + c->plain_dim,
                                        .dst = b->absorbed + c->kv_rank,
                                        .dtype = QR_DTYPE_F32,
                                        .n_rows = pass->n_tokens,
                                        .n_heads = s->n_heads,
                                        .dim = c->rotated_dim,
                                        .src_stride = plain.x_stride,
                                        .src_head_stride = plain.x_head_stride,
                                        .dst_stride = plain.y_stride,
                                        .dst_head_stride = plain.y_head_stride};
    QR_RETURN_IF_ERROR(run_head_linear(pass, layer, plain, err));
    return qr_layer_op_copy_heads(pass, &rotated, err);
}

qrun_status qr_layer_latent_attend(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_latent_config *c = &s->latent;
    const qr_layer_buffers *b = &pass->buffers;
    const float *latent = b->latent + c->query_rank;
    const qr_heads heads = {.q = b->absorbed,
                            .k = latent,
                            .v = latent,
                            .q_stride = qr_latent_attended_columns(s),
                            .kv_stride = qr_latent_columns(s),
                            .dst = b->ungated};
    const qr_dtype act = pass->model->act_dtype;
    const qr_head_linear_args values = {.first_row = c->plain_dim,
                                        .dim = c->value_dim,
                                        .x = b->ungated,
                                        .y = b->attended,
                                        .x_dtype = act,
                                        .y_dtype = act,
                                        .x_stride = qr_latent_attended_columns(s),
                                        .x_head_stride = qr_latent_kv_columns(s),
                                        .y_stride = s->n_heads * c->value_dim,
                                        .y_head_stride = c->value_dim};
    QR_RETURN_IF_ERROR(pass->attend(pass->attend_arg, layer, &heads, err));
    return run_head_linear(pass, layer, values, err);
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

qrun_status qr_layer_latent_heads(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_buffers *b = &pass->buffers;
    const qr_latent_layers *latent = &layer->latent;
    const int64_t columns = qr_latent_columns(s);
    float *kv_latent = b->latent + s->latent.query_rank, *shared_key = kv_latent + s->latent.kv_rank;
    QR_RETURN_IF_ERROR(make_queries(pass, layer, err));
    QR_RETURN_IF_ERROR(qr_layer_rotate(pass, layer->query_rope_kind, b->qkv + qr_latent_rotated_from(s), s->n_heads,
                                       layer->head_dim, query_stride(pass, layer), err));
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, &latent->kv_down, b->attn_normed, kv_latent, columns, false, err));
    QR_RETURN_IF_ERROR(qr_layer_rotate(pass, layer->key_rope_kind, shared_key, 1, s->latent.rotated_dim, columns, err));
    if (pass->keeps_latents) {
        QR_RETURN_IF_ERROR(qr_layer_rms_norm(pass, &latent->kv_norm, kv_latent, columns, kv_latent, QR_DTYPE_F32,
                                             columns, pass->n_tokens, 1, err));
        return absorb(pass, layer, err);
    }
    QR_RETURN_IF_ERROR(norm_latent(pass, &latent->kv_norm, kv_latent, b->kv_latent, err));
    QR_RETURN_IF_ERROR(
        qr_layer_linear(pass, &latent->kv_up, b->kv_latent, b->kv_up, qr_latent_up_columns(s), false, err));
    return place_keys_and_values(pass, layer, shared_key, err);
}
