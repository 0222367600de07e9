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

/* RMS norm of n_groups rows of norm->dim in each of n_rows rows, which are `stride` apart. */
static qrun_status rms_norm(const qr_layer_pass *pass, const qr_norm *norm, const float *src, void *dst,
                            qr_dtype dst_dtype, int64_t n_rows, int64_t n_groups, int64_t stride, qr_error *err) {
    const qr_rms_norm_args args = {.src = src,
                                   .weight = norm->weight,
                                   .dst = dst,
                                   .dst_dtype = dst_dtype,
                                   .n_rows = n_rows,
                                   .n_groups = n_groups,
                                   .dim = norm->dim,
                                   .src_stride = stride,
                                   .dst_stride = stride,
                                   .eps = pass->model->shape.norm_eps,
                                   .weight_offset = pass->model->shape.norm_offset};
    return qr_rms_norm(pass->backend, &args, pass->workspace, err);
}

/* A norm over rows of D. */
static qrun_status norm_rows(const qr_layer_pass *pass, const qr_norm *norm, const float *src, void *dst,
                             qr_dtype dst_dtype, int64_t n_rows, qr_error *err) {
    if (norm->bias == NULL) { return rms_norm(pass, norm, src, dst, dst_dtype, n_rows, 1, norm->dim, err); }
    const qr_layer_norm_args args = {.src = src,
                                     .weight = norm->weight,
                                     .bias = norm->bias,
                                     .dst = dst,
                                     .dst_dtype = dst_dtype,
                                     .n_rows = n_rows,
                                     .dim = norm->dim,
                                     .eps = pass->model->shape.norm_eps};
    return qr_layer_norm(pass->backend, &args, pass->workspace, err);
}

/* x += linear(src), through the norm that some families put after a block. Its backward op reads `branch`, so only
 * these families compute the last product of a block again. */
static qrun_status run_block_output(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *src,
                                    const qr_norm *post_norm, float *branch, qr_error *err) {
    const int64_t hidden = pass->model->shape.hidden, n = pass->n_tokens;
    if (post_norm->weight == NULL) {
        return pass->buffers_only ? QRUN_OK : qr_layer_linear(pass, linear, src, pass->x, hidden, true, err);
    }
    float *normed = pass->buffers.branch_normed;
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, linear, src, branch, hidden, false, err));
    if (pass->buffers_only) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(norm_rows(pass, post_norm, branch, normed, QR_DTYPE_F32, n, err));
    const qr_add_args args = {.x = pass->x, .y = normed, .n = n * hidden};
    return qr_add(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_layer_embed(const qr_layer_pass *pass, const int32_t *ids, const int32_t *position, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_embedding_args tokens = {.table = &model->embedding,
                                      .ids = ids,
                                      .dst = pass->x,
                                      .n_tokens = pass->n_tokens,
                                      .scale = model->shape.embedding_scale};
    QR_RETURN_IF_ERROR(qr_embedding(pass->backend, &tokens, pass->workspace, err));
    if (model->position_embedding.desc.rows == 0) { return QRUN_OK; }
    const qr_embedding_args positions = {.table = &model->position_embedding,
                                         .ids = position,
                                         .dst = pass->x,
                                         .n_tokens = pass->n_tokens,
                                         .scale = 1.0F,
                                         .accumulate = true};
    return qr_embedding(pass->backend, &positions, pass->workspace, err);
}

qrun_status qr_layer_rope_tables(const qr_layer_pass *pass, const qr_rope_positions *rope, qr_error *err) {
    for (int k = 0; k < pass->model->shape.n_rope_kinds; k++) {
        const qr_rope_table_args args = {.inv_freq = rope->inv_freq[k],
                                         .factor = rope->factor[k],
                                         .token_slot = rope->slot,
                                         .position = rope->position,
                                         .cos_table = pass->cos_table[k],
                                         .sin_table = pass->sin_table[k],
                                         .n_tokens = pass->n_tokens,
                                         .half = pass->model->shape.rope_half};
        QR_RETURN_IF_ERROR(qr_rope_table(pass->backend, &args, pass->workspace, err));
    }
    return QRUN_OK;
}

qrun_status qr_layer_head(const qr_layer_pass *pass, const float *x, int64_t n_rows, void *normed, float *logits,
                          qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_linear_args args = {.weight = &model->head,
                                 .x = normed,
                                 .x_dtype = model->act_dtype,
                                 .y = logits,
                                 .n_rows = n_rows,
                                 .x_stride = model->shape.hidden,
                                 .y_stride = model->shape.vocab,
                                 .any_order = pass->any_order};
    QR_RETURN_IF_ERROR(norm_rows(pass, &model->final_norm, x, normed, model->act_dtype, n_rows, err));
    return qr_linear(pass->backend, &args, pass->workspace, err);
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

static qrun_status norm_heads(const qr_layer_pass *pass, const qr_norm *norm, float *heads, int64_t n_heads,
                              qr_error *err) {
    if (norm->weight == NULL) { return QRUN_OK; }
    const int64_t stride = qr_qkv_columns(&pass->model->shape);
    return rms_norm(pass, norm, heads, heads, QR_DTYPE_F32, pass->n_tokens, n_heads, stride, err);
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
    return qr_round_act(pass->backend, &args, pass->workspace, err);
}

static qrun_status rotate(const qr_layer_pass *pass, const qr_layer *layer, float *heads, int64_t n_heads,
                          qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    if (s->rope_half == 0) { return QRUN_OK; }
    const qr_rope_args args = {.x = heads,
                               .cos_table = pass->cos_table[layer->rope_kind],
                               .sin_table = pass->sin_table[layer->rope_kind],
                               .n_tokens = pass->n_tokens,
                               .n_heads = n_heads,
                               .head_dim = s->head_dim,
                               .half = s->rope_half,
                               .x_stride = qr_qkv_columns(s)};
    return qr_rope(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_layer_attention(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_model_shape *s = &model->shape;
    const qr_layer_buffers *b = &pass->buffers;
    float *q = b->qkv, *k = q + s->n_heads * s->head_dim, *v = k + s->n_kv_heads * s->head_dim;
    QR_RETURN_IF_ERROR(
        norm_rows(pass, &layer->attn_norm, pass->x, b->attn_normed, model->act_dtype, pass->n_tokens, err));
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
    return run_block_output(pass, &layer->attn_out, b->attended, &layer->post_attn_norm, b->attn_branch, err);
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

static qrun_status run_activation(const qr_layer_pass *pass, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_layer_buffers *b = &pass->buffers;
    const int64_t columns = qr_mlp_columns(model);
    if (qr_model_is_gated(model)) {
        const qr_gate_args args = {.fn = model->shape.activation,
                                   .g = b->mlp,
                                   .u = b->mlp + model->shape.mlp,
                                   .dst = b->gated,
                                   .dst_dtype = model->act_dtype,
                                   .n_rows = pass->n_tokens,
                                   .dim = model->shape.mlp,
                                   .g_stride = columns,
                                   .u_stride = columns};
        return qr_gate(pass->backend, &args, pass->workspace, err);
    }
    const qr_activation_args args = {.fn = model->shape.activation,
                                     .x = b->mlp,
                                     .dst = b->gated,
                                     .dst_dtype = model->act_dtype,
                                     .n_rows = pass->n_tokens,
                                     .dim = model->shape.mlp,
                                     .x_stride = columns};
    return qr_activation(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_layer_mlp(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_layer_buffers *b = &pass->buffers;
    QR_RETURN_IF_ERROR(
        norm_rows(pass, &layer->mlp_norm, pass->x, b->mlp_normed, model->act_dtype, pass->n_tokens, err));
    for (int i = 0; i < QR_MAX_MLP_IN && layer->mlp_in[i].weight.desc.rows > 0; i++) {
        QR_RETURN_IF_ERROR(
            qr_layer_linear(pass, &layer->mlp_in[i], b->mlp_normed, b->mlp, qr_mlp_columns(model), false, err));
    }
    QR_RETURN_IF_ERROR(run_activation(pass, err));
    return run_block_output(pass, &layer->mlp_out, b->gated, &layer->post_mlp_norm, b->mlp_branch, err);
}
