#include "runtime/model/layer.h"

#include "runtime/model/layer_adapters.h"

int64_t qr_qkv_columns(const qr_model_shape *shape) {
    return (shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim;
}

bool qr_model_is_gated(const qrun_model *model) {
    return model->family->modules[QR_ROLE_GATE] != NULL || model->family->modules[QR_ROLE_GATE_UP] != NULL;
}

int64_t qr_mlp_columns(const qrun_model *model) { return model->shape.mlp * (qr_model_is_gated(model) ? 2 : 1); }

bool qr_model_has_post_norms(const qrun_model *model) { return model->family->modules[QR_ROLE_POST_ATTN_NORM] != NULL; }

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

qrun_status qr_layer_norm_rows(const qrun_model *model, void *workspace, const qr_norm *norm, const float *src,
                               void *dst, qr_dtype dst_dtype, int64_t n_rows, qr_error *err) {
    qr_backend *backend = model->context->backend;
    if (norm->bias != NULL) {
        const qr_layer_norm_args args = {src,       norm->weight, norm->bias, dst,
                                         dst_dtype, n_rows,       norm->dim,  model->shape.norm_eps};
        return qr_layer_norm(backend, &args, workspace, err);
    }
    const qr_rms_norm_args args = {.src = src,
                                   .weight = norm->weight,
                                   .dst = dst,
                                   .dst_dtype = dst_dtype,
                                   .n_rows = n_rows,
                                   .n_groups = 1,
                                   .dim = norm->dim,
                                   .src_stride = norm->dim,
                                   .dst_stride = norm->dim,
                                   .eps = model->shape.norm_eps,
                                   .weight_offset = model->shape.norm_offset};
    return qr_rms_norm(backend, &args, workspace, err);
}

qr_linear_args qr_layer_linear_args(const qrun_model *model, const qr_linear_layer *linear, const void *x, float *y,
                                    int64_t y_stride, int64_t n_rows, bool accumulate) {
    return (qr_linear_args){.weight = &linear->weight,
                            .bias = linear->bias,
                            .x = x,
                            .x_dtype = model->act_dtype,
                            .y = y != NULL ? y + linear->out_offset : NULL,
                            .n_rows = n_rows,
                            .x_stride = linear->weight.desc.cols,
                            .y_stride = y_stride,
                            .accumulate = accumulate};
}

/* x += linear(src), through the norm that some families put behind a block: which reads `branch` again on the way
 * back, and is all that the last product of a block is computed again for. */
static qrun_status run_block_output(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *src,
                                    const qr_norm *post_norm, float *branch, qr_error *err) {
    const int64_t hidden = pass->model->shape.hidden, n = pass->n_tokens;
    if (post_norm->weight == NULL) {
        return pass->buffers_only ? QRUN_OK : qr_layer_linear(pass, linear, src, pass->x, hidden, true, err);
    }
    float *normed = pass->buffers.branch_normed;
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, linear, src, branch, hidden, false, err));
    if (pass->buffers_only) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(
        qr_layer_norm_rows(pass->model, pass->workspace, post_norm, branch, normed, QR_DTYPE_F32, n, err));
    const qr_add_args args = {pass->x, normed, n * hidden};
    QR_RETURN_IF_ERROR(qr_add(pass->model->context->backend, &args, pass->workspace, err));
    return QRUN_OK;
}

qrun_status qr_layer_embed(const qr_layer_pass *pass, const int32_t *ids, const int32_t *position, qr_error *err) {
    const qrun_model *model = pass->model;
    qr_backend *backend = model->context->backend;
    const qr_embedding_args tokens = {
        &model->embedding, ids, pass->x, pass->n_tokens, model->shape.embedding_scale, false};
    const qrun_status status = qr_embedding(backend, &tokens, pass->workspace, err);
    if (status != QRUN_OK || model->position_embedding.desc.rows == 0) { return status; }
    const qr_embedding_args positions = {&model->position_embedding, position, pass->x, pass->n_tokens, 1.0F, true};
    return qr_embedding(backend, &positions, pass->workspace, err);
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

static qrun_status norm_heads(const qr_layer_pass *pass, const qr_norm *norm, float *heads, int64_t n_heads,
                              qr_error *err) {
    if (norm->weight == NULL) { return QRUN_OK; }
    const int64_t stride = qr_qkv_columns(&pass->model->shape);
    const qr_rms_norm_args args = {.src = heads,
                                   .weight = norm->weight,
                                   .dst = heads,
                                   .dst_dtype = QR_DTYPE_F32,
                                   .n_rows = pass->n_tokens,
                                   .n_groups = n_heads,
                                   .dim = norm->dim,
                                   .src_stride = stride,
                                   .dst_stride = stride,
                                   .eps = pass->model->shape.norm_eps,
                                   .weight_offset = pass->model->shape.norm_offset};
    return qr_rms_norm(pass->model->context->backend, &args, pass->workspace, err);
}

static qrun_status keep_raw_heads(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    if (layer->q_norm.weight == NULL || pass->buffers.qk_raw == NULL) { return QRUN_OK; }
    const qr_model_shape *s = &pass->model->shape;
    const qr_round_act_args args = {.src = pass->buffers.qkv,
                                    .dst = pass->buffers.qk_raw,
                                    .dst_dtype = QR_DTYPE_F32,
                                    .n_rows = pass->n_tokens,
                                    .dim = (s->n_heads + s->n_kv_heads) * s->head_dim,
                                    .src_stride = qr_qkv_columns(s)};
    return qr_round_act(pass->model->context->backend, &args, pass->workspace, err);
}

static qrun_status rotate(const qr_layer_pass *pass, const qr_layer *layer, float *heads, int64_t n_heads,
                          qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    if (s->rope_half == 0) { return QRUN_OK; }
    const qr_rope_args args = {heads,
                               pass->cos_table[layer->rope_kind],
                               pass->sin_table[layer->rope_kind],
                               pass->n_tokens,
                               n_heads,
                               s->head_dim,
                               s->rope_half,
                               qr_qkv_columns(s)};
    return qr_rope(pass->model->context->backend, &args, pass->workspace, err);
}

qrun_status qr_layer_attention(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_model_shape *s = &model->shape;
    const qr_layer_buffers *b = &pass->buffers;
    float *q = b->qkv, *k = q + s->n_heads * s->head_dim, *v = k + s->n_kv_heads * s->head_dim;
    QR_RETURN_IF_ERROR(qr_layer_norm_rows(model, pass->workspace, &layer->attn_norm, pass->x, b->attn_normed,
                                          model->act_dtype, pass->n_tokens, err));
    for (int i = 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        QR_RETURN_IF_ERROR(
            qr_layer_linear(pass, &layer->attn_in[i], b->attn_normed, b->qkv, qr_qkv_columns(s), false, err));
    }
    QR_RETURN_IF_ERROR(keep_raw_heads(pass, layer, err));
    QR_RETURN_IF_ERROR(norm_heads(pass, &layer->q_norm, q, s->n_heads, err));
    QR_RETURN_IF_ERROR(norm_heads(pass, &layer->k_norm, k, s->n_kv_heads, err));
    QR_RETURN_IF_ERROR(rotate(pass, layer, q, s->n_heads, err));
    QR_RETURN_IF_ERROR(rotate(pass, layer, k, s->n_kv_heads, err));
    QR_RETURN_IF_ERROR(pass->attend(pass->attend_arg, layer, q, k, v, b->attended, err));
    QR_RETURN_IF_ERROR(
        run_block_output(pass, &layer->attn_out, b->attended, &layer->post_attn_norm, b->attn_branch, err));
    return QRUN_OK;
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

static qrun_status run_activation(const qr_layer_pass *pass, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_layer_buffers *b = &pass->buffers;
    const int64_t columns = qr_mlp_columns(model);
    if (qr_model_is_gated(model)) {
        const qr_gate_args args = {model->shape.activation,
                                   b->mlp,
                                   b->mlp + model->shape.mlp,
                                   b->gated,
                                   model->act_dtype,
                                   pass->n_tokens,
                                   model->shape.mlp,
                                   columns,
                                   columns};
        return qr_gate(model->context->backend, &args, pass->workspace, err);
    }
    const qr_activation_args args = {model->shape.activation, b->mlp,           b->gated, model->act_dtype,
                                     pass->n_tokens,          model->shape.mlp, columns};
    return qr_activation(model->context->backend, &args, pass->workspace, err);
}

qrun_status qr_layer_mlp(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_layer_buffers *b = &pass->buffers;
    QR_RETURN_IF_ERROR(qr_layer_norm_rows(model, pass->workspace, &layer->mlp_norm, pass->x, b->mlp_normed,
                                          model->act_dtype, pass->n_tokens, err));
    for (int i = 0; i < QR_MAX_MLP_IN && layer->mlp_in[i].weight.desc.rows > 0; i++) {
        QR_RETURN_IF_ERROR(
            qr_layer_linear(pass, &layer->mlp_in[i], b->mlp_normed, b->mlp, qr_mlp_columns(model), false, err));
    }
    QR_RETURN_IF_ERROR(run_activation(pass, err));
    QR_RETURN_IF_ERROR(run_block_output(pass, &layer->mlp_out, b->gated, &layer->post_mlp_norm, b->mlp_branch, err));
    return QRUN_OK;
}
