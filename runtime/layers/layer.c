#include "runtime/layers/layer.h"

#include "base/sizes.h"
#include "runtime/layers/layer_adapters.h"
#include "runtime/layers/layer_experts.h"
#include "runtime/layers/layer_inputs.h"
#include "runtime/layers/layer_latent.h"
#include "runtime/layers/layer_recurrent.h"
#include "runtime/layers/layer_streams.h"
#include "runtime/model/rope.h"
#include "runtime/model/split.h"

int64_t qr_qkv_columns(const qr_layer *layer) { return (layer->n_heads + 2 * layer->n_kv_heads) * layer->head_dim; }

int64_t qr_raw_columns(const qr_layer *layer) {
    const int64_t n_values = layer->v_norm.dim > 0 ? layer->n_kv_heads : 0;
    return (layer->n_heads + layer->n_kv_heads + n_values) * layer->head_dim;
}

int64_t qr_widest_qkv(const qr_model_shape *shape) { return qr_max(shape->widest_qkv, shape->recurrent.columns); }

bool qr_model_is_gated(const qrun_model *model) {
    return model->family->modules[QR_ROLE_GATE] != NULL || model->family->modules[QR_ROLE_GATE_UP] != NULL;
}

int64_t qr_layer_own_mlp_size(const qrun_model *model, const qr_layer *layer) {
    return qr_split_own(&model->split, qr_layer_mlp_size(layer));
}

int64_t qr_layer_mlp_columns(const qrun_model *model, const qr_layer *layer) {
    return qr_layer_own_mlp_size(model, layer) * (qr_model_is_gated(model) ? 2 : 1);
}

int64_t qr_model_mlp_size(const qrun_model *model) {
    int64_t most = 0;
    for (int64_t l = 0; l < model->shape.n_layers; l++) { most = qr_max(most, qr_layer_mlp_size(&model->layers[l])); }
    return most;
}

int64_t qr_model_mlp_columns(const qrun_model *model) {
    int64_t most = 0;
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        most = qr_max(most, qr_layer_mlp_columns(model, &model->layers[l]));
    }
    return most;
}

bool qr_model_has_post_norm(const qrun_model *model, qr_tensor_role role) {
    return model->family->modules[role] != NULL && !model->config.without_post_norms;
}

bool qr_model_has_branches(const qrun_model *model) {
    const qr_model_config *config = &model->config;
    return qr_model_has_post_norm(model, QR_ROLE_POST_ATTN_NORM) ||
           qr_model_has_post_norm(model, QR_ROLE_POST_MLP_NORM) || config->residual_multiplier != 1 ||
           config->attention_out_multiplier != 1 || config->space_out_multiplier != 1 ||
           config->mlp_out_multiplier != 1;
}

bool qr_model_has_experts(const qrun_model *model) { return model->expert_weights != NULL; }

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

qrun_status qr_layer_rms_norm(const qr_layer_pass *pass, const qr_norm *norm, const float *src, int64_t src_stride,
                              void *dst, qr_dtype dst_dtype, int64_t dst_stride, int64_t n_rows, int64_t n_groups,
                              qr_error *err) {
    const qr_rms_norm_args args = {.src = src,
                                   .weight = norm->weight,
                                   .dst = dst,
                                   .dst_dtype = dst_dtype,
                                   .n_rows = n_rows,
                                   .n_groups = n_groups,
                                   .dim = norm->dim,
                                   .src_stride = src_stride,
                                   .dst_stride = dst_stride,
                                   .eps = norm->eps,
                                   .weight_offset = norm->offset};
    return qr_layer_op_rms_norm(pass, &args, err);
}

/* The same where rows are `stride` apart in both. */
static qrun_status rms_norm(const qr_layer_pass *pass, const qr_norm *norm, const float *src, void *dst,
                            qr_dtype dst_dtype, int64_t n_rows, int64_t n_groups, int64_t stride, qr_error *err) {
    return qr_layer_rms_norm(pass, norm, src, stride, dst, dst_dtype, stride, n_rows, n_groups, err);
}

/* Rows of D as they are, in the type of dst. */
static qrun_status take_rows(const qr_layer_pass *pass, const float *src, void *dst, qr_dtype dst_dtype, int64_t n_rows,
                             qr_error *err) {
    const int64_t hidden = pass->model->shape.hidden;
    const qr_round_act_args args = {.src = src,
                                    .dst = dst,
                                    .dst_dtype = dst_dtype,
                                    .n_rows = n_rows,
                                    .dim = hidden,
                                    .src_stride = hidden,
                                    .dst_stride = hidden};
    return qr_layer_op_round_act(pass, &args, err);
}

/* A norm over rows of D, where the family has it. */
static qrun_status norm_rows(const qr_layer_pass *pass, const qr_norm *norm, const float *src, void *dst,
                             qr_dtype dst_dtype, int64_t n_rows, qr_error *err) {
    if (norm->weight == NULL) { return take_rows(pass, src, dst, dst_dtype, n_rows, err); }
    if (!norm->is_layer_norm) { return rms_norm(pass, norm, src, dst, dst_dtype, n_rows, 1, norm->dim, err); }
    const qr_layer_norm_args args = {.src = src,
                                     .weight = norm->weight,
                                     .bias = norm->bias,
                                     .dst = dst,
                                     .dst_dtype = dst_dtype,
                                     .n_rows = n_rows,
                                     .dim = norm->dim,
                                     .eps = norm->eps,
                                     .weight_offset = norm->offset};
    return qr_layer_op_layer_norm(pass, &args, err);
}

/* x = factor · x. */
static qrun_status scale(const qr_layer_pass *pass, float *x, int64_t n, float factor, qr_error *err) {
    const qr_scale_args args = {.x = x, .n = n, .factor = factor};
    return factor == 1.0F ? QRUN_OK : qr_layer_op_scale(pass, &args, err);
}

/* x += factor · branch; what is in branch changes. */
static qrun_status add_branch(const qr_layer_pass *pass, float *branch, float factor, qr_error *err) {
    const int64_t n = pass->n_tokens * pass->model->shape.hidden;
    const qr_add_args args = {.x = pass->x, .y = branch, .n = n};
    QR_RETURN_IF_ERROR(scale(pass, branch, n, factor, err));
    return qr_layer_op_add(pass, &args, err);
}

/* x += factor · norm(branch). */
static qrun_status add_normed(const qr_layer_pass *pass, const qr_norm *norm, const float *branch, float factor,
                              qr_error *err) {
    float *normed = pass->buffers.branch_normed;
    QR_RETURN_IF_ERROR(norm_rows(pass, norm, branch, normed, QR_DTYPE_F32, pass->n_tokens, err));
    return add_branch(pass, normed, factor, err);
}

/* dst [T, D], of which each rank has made its columns. */
static qrun_status gather_stream(const qr_layer_pass *pass, float *dst, qr_error *err) {
    const int64_t hidden = pass->model->shape.hidden;
    const qr_gather columns = {.memory = dst,
                               .n_rows = pass->n_tokens,
                               .n_columns = hidden,
                               .unit = qr_split_unit(&pass->model->split, hidden),
                               .dtype = QR_DTYPE_F32,
                               .in_place = true};
    return qr_layer_gather(pass, &columns, err);
}

/* What a block's last product of `src` goes into: x, or on its way there a norm, a factor, or both. */
typedef qrun_status (*block_output_fn)(const qr_layer_pass *pass, const void *of, const void *src, float *dst,
                                       bool accumulate, qr_error *err);

static qrun_status linear_output(const qr_layer_pass *pass, const void *of, const void *src, float *dst,
                                 bool accumulate, qr_error *err) {
    const qr_linear_layer *linear = of;
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, linear, src, dst, pass->model->shape.hidden, accumulate, err));
    return qr_row_share_is_part(&linear->share) ? gather_stream(pass, dst, err) : QRUN_OK;
}

static qrun_status experts_output(const qr_layer_pass *pass, const void *of, const void *src, float *dst,
                                  bool accumulate, qr_error *err) {
    (void)src; /* in the pass's buffers */
    QR_RETURN_IF_ERROR(qr_layer_experts_out(pass, of, dst, accumulate, err));
    return gather_stream(pass, dst, err);
}

/* x += factor · output, through the norm that some families put after a block. Its backward op reads `branch`, so only
 * these families compute the last product of a block again. */
static qrun_status run_block_output(const qr_layer_pass *pass, block_output_fn output, const void *of, const void *src,
                                    const qr_norm *post_norm, float *branch, float factor, qr_error *err) {
    float *unscaled = pass->buffers.branch_normed;
    if (post_norm->weight != NULL) {
        QR_RETURN_IF_ERROR(output(pass, of, src, branch, false, err));
        return pass->buffers_only ? QRUN_OK : add_normed(pass, post_norm, branch, factor, err);
    }
    if (pass->buffers_only) { return QRUN_OK; }
    if (factor == 1.0F) { return output(pass, of, src, pass->x, true, err); }
    QR_RETURN_IF_ERROR(output(pass, of, src, unscaled, false, err));
    return add_branch(pass, unscaled, factor, err);
}

qrun_status qr_layer_add_linear(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *src,
                                const qr_norm *post_norm, float *branch, float factor, qr_error *err) {
    return run_block_output(pass, linear_output, linear, src, post_norm, branch, factor, err);
}

qrun_status qr_layer_embed(const qr_layer_pass *pass, const int32_t *ids, const int32_t *position, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_embedding_args tokens = {.table = &model->embedding,
                                      .ids = ids,
                                      .sampled = pass->sampled,
                                      .n_sampled = pass->n_sampled,
                                      .dst = pass->x,
                                      .n_tokens = pass->n_tokens,
                                      .scale = model->shape.embedding_scale};
    QR_RETURN_IF_ERROR(qr_layer_op_embedding(pass, &tokens, err));
    if (model->embedding_norm.weight != NULL) {
        const qr_norm *norm = &model->embedding_norm;
        QR_RETURN_IF_ERROR(norm_rows(pass, norm, pass->x, pass->x, QR_DTYPE_F32, pass->n_tokens, err));
    }
    if (model->position_embedding.desc.rows == 0) { return qr_layer_inputs_make(pass, ids, err); }
    const qr_embedding_args positions = {.table = &model->position_embedding,
                                         .ids = position,
                                         .dst = pass->x,
                                         .n_tokens = pass->n_tokens,
                                         .scale = 1.0F,
                                         .accumulate = true};
    return qr_layer_op_embedding(pass, &positions, err);
}

qrun_status qr_layer_rope_tables(const qr_layer_pass *pass, const qr_rope_positions *rope, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    for (int k = 0; k < s->n_rope_kinds; k++) {
        const qr_rope_table_args args = {.inv_freq = rope->inv_freq[k],
                                         .factor = rope->factor[k],
                                         .token_slot = rope->slot,
                                         .position = rope->position,
                                         .cos_table = pass->cos_table[k],
                                         .sin_table = pass->sin_table[k],
                                         .n_tokens = pass->n_tokens,
                                         .half = s->rope_half[k],
                                         .temperature_beta = s->temperature_beta,
                                         .temperature_tokens = k == 1 ? s->temperature_tokens : 0};
        QR_RETURN_IF_ERROR(qr_layer_op_rope_table(pass, &args, err));
    }
    return QRUN_OK;
}

qrun_status qr_layer_final_norm(const qr_layer_pass *pass, const float *x, int64_t n_rows, void *dst,
                                qr_dtype dst_dtype, qr_error *err) {
    return norm_rows(pass, &pass->model->final_norm, x, dst, dst_dtype, n_rows, err);
}

qrun_status qr_layer_head(const qr_layer_pass *pass, const float *x, int64_t n_rows, void *normed, float *logits,
                          qr_error *err) {
    const qrun_model *model = pass->model;
    const bool is_part = model->head_share.all > 0, leads = model->split.rank == 0;
    const int64_t columns = leads ? model->shape.vocab : model->head.desc.rows;
    const qr_gather parts = {.memory = logits,
                             .n_rows = n_rows,
                             .n_columns = model->shape.vocab,
                             .unit = qr_split_unit(&model->split, model->shape.vocab),
                             .dtype = QR_DTYPE_F32,
                             .in_place = leads,
                             .to_leader = true};
    const qr_linear_args args = {.weight = &model->head,
                                 .x = normed,
                                 .x_dtype = model->act_dtype,
                                 .y = logits,
                                 .n_rows = n_rows,
                                 .x_stride = model->shape.hidden,
                                 .y_stride = columns,
                                 .any_order = pass->any_order};
    QR_RETURN_IF_ERROR(qr_layer_final_norm(pass, x, n_rows, normed, model->act_dtype, err));
    QR_RETURN_IF_ERROR(qr_layer_op_linear(pass, &args, err));
    if (is_part) { QR_RETURN_IF_ERROR(qr_layer_gather(pass, &parts, err)); }
    if (is_part && !leads) { return QRUN_OK; }
    return scale(pass, logits, n_rows * model->shape.vocab, model->shape.logit_scale, err);
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

static qrun_status norm_heads(const qr_layer_pass *pass, const qr_layer *layer, const qr_norm *norm, float *heads,
                              int64_t n_heads, qr_error *err) {
    if (norm->weight == NULL) { return QRUN_OK; }
    const int64_t stride = qr_qkv_columns(layer);
    const int64_t n_groups = n_heads * layer->head_dim / norm->dim;
    return rms_norm(pass, norm, heads, heads, QR_DTYPE_F32, pass->n_tokens, n_groups, stride, err);
}

static qrun_status keep_raw_heads(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    if (layer->q_norm.weight == NULL || pass->buffers.qk_raw == NULL) { return QRUN_OK; }
    const qr_round_act_args args = {.src = pass->buffers.qkv,
                                    .dst = pass->buffers.qk_raw,
                                    .dst_dtype = QR_DTYPE_F32,
                                    .n_rows = pass->n_tokens,
                                    .dim = qr_raw_columns(layer),
                                    .src_stride = qr_qkv_columns(layer),
                                    .dst_stride = qr_raw_columns(layer)};
    return qr_layer_op_round_act(pass, &args, err);
}

qrun_status qr_layer_rotate(const qr_layer_pass *pass, int32_t rope_kind, float *heads, int64_t n_heads,
                            int64_t head_dim, int64_t stride, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    if (rope_kind == QR_ROPE_NONE) { return QRUN_OK; }
    const qr_rope_args args = {.x = heads,
                               .cos_table = pass->cos_table[rope_kind],
                               .sin_table = pass->sin_table[rope_kind],
                               .n_tokens = pass->n_tokens,
                               .n_heads = n_heads,
                               .head_dim = head_dim,
                               .half = s->rope_half[rope_kind],
                               .x_stride = stride,
                               .interleaved = s->rope_interleaved};
    return qr_layer_op_rope(pass, &args, err);
}

static qrun_status rotate(const qr_layer_pass *pass, const qr_layer *layer, int32_t rope_kind, float *heads,
                          int64_t n_heads, qr_error *err) {
    return qr_layer_rotate(pass, rope_kind, heads, n_heads, layer->head_dim, qr_qkv_columns(layer), err);
}

/* Queries come with their gates, head by head: [H, 2, HD]. */
static qrun_status take_queries(const qr_layer_pass *pass, const qr_layer *layer, float *q, qr_error *err) {
    const int64_t columns = 2 * layer->n_heads * layer->head_dim;
    const qr_copy_heads_args args = {.src = pass->buffers.q_gate,
                                     .dst = q,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = layer->n_heads,
                                     .dim = layer->head_dim,
                                     .src_stride = columns,
                                     .src_head_stride = 2 * layer->head_dim,
                                     .dst_stride = qr_qkv_columns(layer),
                                     .dst_head_stride = layer->head_dim};
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->attn_in[0], pass->buffers.attn_normed, pass->buffers.q_gate,
                                       columns, false, err));
    return qr_layer_op_copy_heads(pass, &args, err);
}

qrun_status qr_layer_qkv_reorder(const qr_layer_pass *pass, const qr_layer *layer, const float *src, float *dst,
                                 bool to_heads, qr_error *err) {
    enum { N_PARTS = 3 };
    const int64_t dim = layer->head_dim, columns = qr_qkv_columns(layer);
    for (int i = 0; i < N_PARTS; i++) {
        const int64_t first[2] = {i * dim, i * layer->n_heads * dim}, head_stride[2] = {N_PARTS * dim, dim};
        const qr_copy_heads_args args = {.src = src + first[to_heads],
                                         .dst = dst + first[!to_heads],
                                         .n_rows = pass->n_tokens,
                                         .n_heads = layer->n_heads,
                                         .dim = dim,
                                         .src_stride = columns,
                                         .src_head_stride = head_stride[to_heads],
                                         .dst_stride = columns,
                                         .dst_head_stride = head_stride[!to_heads]};
        QR_RETURN_IF_ERROR(qr_layer_op_copy_heads(pass, &args, err));
    }
    return QRUN_OK;
}

int64_t qr_gate_columns(const qr_model_shape *shape, int64_t n_heads) {
    return (shape->attn_gate_apart ? 1 : 2) * n_heads * (shape->attn_gate_by_head ? 1 : shape->head_dim);
}

int64_t qr_gate_offset(const qr_model_shape *shape) { return shape->attn_gate_apart ? 0 : shape->head_dim; }

qr_head_gate_args qr_layer_head_gate_args(const qr_layer_pass *pass, const qr_layer *layer) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t columns = qr_gate_columns(s, layer->n_heads);
    return (qr_head_gate_args){.x = pass->buffers.ungated,
                               .gate = pass->buffers.q_gate + qr_gate_offset(s),
                               .dst = pass->buffers.attended,
                               .dtype = pass->model->act_dtype,
                               .n_rows = pass->n_tokens,
                               .n_heads = layer->n_heads,
                               .dim = s->head_dim,
                               .gate_dim = s->attn_gate_by_head ? 1 : s->head_dim,
                               .gate_stride = columns,
                               .gate_head_stride = columns / layer->n_heads,
                               .by_softplus = s->attn_gate_by_softplus};
}

/* v = k, where the layer has no v_proj. */
static qrun_status take_values(const qr_layer_pass *pass, const qr_layer *layer, const float *k, float *v,
                               qr_error *err) {
    const int64_t columns = qr_qkv_columns(layer);
    const qr_copy_heads_args args = {.src = k,
                                     .dst = v,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = layer->n_kv_heads,
                                     .dim = layer->head_dim,
                                     .src_stride = columns,
                                     .src_head_stride = layer->head_dim,
                                     .dst_stride = columns,
                                     .dst_head_stride = layer->head_dim};
    if (!layer->values_are_keys || layer->reads_shared_kv) { return QRUN_OK; }
    return qr_layer_op_copy_heads(pass, &args, err);
}

/* Values of v_proj, whose heads are shorter than those of keys, and zeros behind each. */
static qrun_status pad_values(const qr_layer_pass *pass, const qr_layer *layer, float *v, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t stride = qr_qkv_columns(layer), padding = layer->head_dim - s->value_dim;
    const qr_copy_heads_args values = {.src = pass->buffers.values,
                                       .dst = v,
                                       .n_rows = pass->n_tokens,
                                       .n_heads = layer->n_kv_heads,
                                       .dim = s->value_dim,
                                       .src_stride = layer->n_kv_heads * s->value_dim,
                                       .src_head_stride = s->value_dim,
                                       .dst_stride = stride,
                                       .dst_head_stride = layer->head_dim};
    const qr_copy_heads_args zeros = {.dst = v + s->value_dim,
                                      .n_rows = pass->n_tokens,
                                      .n_heads = layer->n_kv_heads,
                                      .dim = padding,
                                      .dst_stride = stride,
                                      .dst_head_stride = layer->head_dim};
    QR_RETURN_IF_ERROR(qr_layer_op_copy_heads(pass, &values, err));
    return qr_layer_op_copy_heads(pass, &zeros, err);
}

/* buffers.attended of buffers.ungated, without the columns behind values. */
static qrun_status leave_padding_out(const qr_layer_pass *pass, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_copy_heads_args args = {.src = pass->buffers.ungated,
                                     .dst = pass->buffers.attended,
                                     .dtype = pass->model->act_dtype,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = s->n_heads,
                                     .dim = s->value_dim,
                                     .src_stride = s->n_heads * s->head_dim,
                                     .src_head_stride = s->head_dim,
                                     .dst_stride = s->n_heads * s->value_dim,
                                     .dst_head_stride = s->value_dim};
    return qr_layer_op_copy_heads(pass, &args, err);
}

/* Of src [T, n_ranks, …], rows src_stride apart, what each rank has side by side; or this rank's into its own. */
static qrun_status copy_columns(const qr_layer_pass *pass, const float *src, int64_t src_stride, int64_t src_part,
                                int64_t n_parts, int64_t dim, float *dst, int64_t dst_stride, qr_error *err) {
    const qr_copy_heads_args args = {.src = src,
                                     .dst = dst,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = n_parts,
                                     .dim = dim,
                                     .src_stride = src_stride,
                                     .src_head_stride = src_part,
                                     .dst_stride = dst_stride,
                                     .dst_head_stride = dim};
    return qr_layer_op_copy_heads(pass, &args, err);
}

/* A norm of what is `offset` in each rank's part of all_heads: of whole rows, of which this rank takes its `own`. The
 * same keys may be in the parts of several ranks, one after the other. */
static qrun_status norm_gathered(const qr_layer_pass *pass, const qr_norm *norm, int64_t offset, int64_t part,
                                 int64_t own, float *heads, int64_t stride, qr_error *err) {
    const qr_split *split = &pass->model->split;
    const int64_t all = part * split->n_ranks, n_parts = norm->dim / own, n_same = split->n_ranks / n_parts;
    float *row = pass->buffers.whole_row;
    QR_RETURN_IF_ERROR(
        copy_columns(pass, pass->buffers.all_heads + offset, all, n_same * part, n_parts, own, row, norm->dim, err));
    QR_RETURN_IF_ERROR(rms_norm(pass, norm, row, row, QR_DTYPE_F32, pass->n_tokens, 1, norm->dim, err));
    return copy_columns(pass, row + split->rank / n_same * own, norm->dim, own, 1, own, heads, stride, err);
}

/* Norms over all heads of a model that is split. A sum over them is in one device's order only where all are there, so
 * every rank gets all queries and keys. */
static qrun_status norm_heads_of_all(const qr_layer_pass *pass, const qr_layer *layer, float *q, float *k,
                                     qr_error *err) {
    const int64_t stride = qr_qkv_columns(layer), n_ranks = pass->model->split.n_ranks;
    const int64_t queries = layer->n_heads * layer->head_dim;
    const int64_t keys = layer->n_kv_heads * layer->head_dim, part = queries + keys;
    const qr_gather heads = {.memory = pass->buffers.all_heads,
                             .n_rows = pass->n_tokens,
                             .n_columns = part * n_ranks,
                             .unit = part,
                             .dtype = QR_DTYPE_F32};
    QR_RETURN_IF_ERROR(copy_columns(pass, q, stride, part, 1, part, pass->buffers.all_heads, part, err));
    QR_RETURN_IF_ERROR(qr_layer_gather(pass, &heads, err));
    QR_RETURN_IF_ERROR(norm_gathered(pass, &layer->q_norm, 0, part, queries, q, stride, err));
    return norm_gathered(pass, &layer->k_norm, queries, part, keys, k, stride, err);
}

/* Norms of queries and keys, where the layer makes them. */
static qrun_status norm_queries_and_keys(const qr_layer_pass *pass, const qr_layer *layer, float *q, float *k,
                                         qr_error *err) {
    if (qr_model_gathers_heads(pass->model)) { return norm_heads_of_all(pass, layer, q, k, err); }
    QR_RETURN_IF_ERROR(norm_heads(pass, layer, &layer->q_norm, q, layer->n_heads, err));
    return layer->reads_shared_kv ? QRUN_OK : norm_heads(pass, layer, &layer->k_norm, k, layer->n_kv_heads, err);
}

static qrun_status rotate_queries_and_keys(const qr_layer_pass *pass, const qr_layer *layer, float *q, float *k,
                                           qr_error *err) {
    QR_RETURN_IF_ERROR(rotate(pass, layer, layer->query_rope_kind, q, layer->n_heads, err));
    return layer->reads_shared_kv ? QRUN_OK : rotate(pass, layer, layer->key_rope_kind, k, layer->n_kv_heads, err);
}

/* Heads as attention takes them: normed and rotated, or rotated and normed. */
static qrun_status finish_heads(const qr_layer_pass *pass, const qr_layer *layer, float *q, float *k, float *v,
                                qr_error *err) {
    const bool rotates_first = pass->model->family->norms_rotated;
    QR_RETURN_IF_ERROR(take_values(pass, layer, k, v, err));
    if (rotates_first) { QR_RETURN_IF_ERROR(rotate_queries_and_keys(pass, layer, q, k, err)); }
    QR_RETURN_IF_ERROR(keep_raw_heads(pass, layer, err));
    QR_RETURN_IF_ERROR(norm_queries_and_keys(pass, layer, q, k, err));
    if (!rotates_first) { QR_RETURN_IF_ERROR(rotate_queries_and_keys(pass, layer, q, k, err)); }
    return layer->reads_shared_kv ? QRUN_OK : norm_heads(pass, layer, &layer->v_norm, v, layer->n_kv_heads, err);
}

static float *keys_of(const qr_layer_pass *pass, const qr_layer *layer) {
    return pass->buffers.qkv + layer->n_heads * layer->head_dim;
}

static float *values_of(const qr_layer_pass *pass, const qr_layer *layer) {
    return keys_of(pass, layer) + layer->n_kv_heads * layer->head_dim;
}

qrun_status qr_layer_attention_norm(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    qr_timeline_part(pass->backend, qr_layer_part(pass->model, layer));
    return norm_rows(pass, &layer->attn_norm, pass->x, pass->buffers.attn_normed, pass->model->act_dtype,
                     pass->n_tokens, err);
}

qrun_status qr_layer_attention_heads(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_buffers *b = &pass->buffers;
    const bool has_gated_q = s->attn_gated && !s->attn_gate_apart, by_head = pass->model->family->qkv_by_head;
    if (s->latent.kv_rank > 0) { return qr_layer_latent_heads(pass, layer, err); }
    if (has_gated_q) { QR_RETURN_IF_ERROR(take_queries(pass, layer, b->qkv, err)); }
    if (s->attn_gate_apart) {
        const int64_t columns = qr_gate_columns(s, layer->n_heads);
        QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->attn_gate, b->attn_normed, b->q_gate, columns, false, err));
    }
    for (int i = has_gated_q ? 1 : 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        const bool is_short = qr_layer_makes_short_values(s, layer, &layer->attn_in[i]);
        float *dst = is_short ? b->values : by_head ? b->by_head : b->qkv;
        const int64_t stride = is_short ? layer->attn_in[i].weight.desc.rows : qr_qkv_columns(layer);
        QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->attn_in[i], b->attn_normed, dst, stride, false, err));
    }
    if (by_head) { QR_RETURN_IF_ERROR(qr_layer_qkv_reorder(pass, layer, b->by_head, b->qkv, false, err)); }
    if (qr_model_pads_values(s)) { QR_RETURN_IF_ERROR(pad_values(pass, layer, values_of(pass, layer), err)); }
    return finish_heads(pass, layer, b->qkv, keys_of(pass, layer), values_of(pass, layer), err);
}

/* Of heads side by side in buffers.qkv. */
static qrun_status attend_heads(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->buffers;
    const bool gated = pass->model->shape.attn_gated, padded = qr_model_pads_values(&pass->model->shape);
    const int64_t stride = qr_qkv_columns(layer);
    const qr_heads heads = {.q = b->qkv,
                            .k = keys_of(pass, layer),
                            .v = values_of(pass, layer),
                            .q_stride = stride,
                            .kv_stride = stride,
                            .dst = gated || padded ? b->ungated : b->attended};
    QR_RETURN_IF_ERROR(pass->attend(pass->attend_arg, layer, &heads, err));
    if (padded) { return leave_padding_out(pass, err); }
    if (!gated) { return QRUN_OK; }
    const qr_head_gate_args gate = qr_layer_head_gate_args(pass, layer);
    return qr_layer_op_head_gate(pass, &gate, err);
}

qrun_status qr_layer_attend(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    return pass->keeps_latents ? qr_layer_latent_attend(pass, layer, err) : attend_heads(pass, layer, err);
}

qrun_status qr_layer_mlp_norm(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    return norm_rows(pass, qr_layer_mlp_input_norm(layer), pass->x, pass->buffers.mlp_normed, pass->model->act_dtype,
                     pass->n_tokens, err);
}

/* What an MLP beside attention reads: a norm of its own, or attention's where that is in another buffer. Attention has
 * read its norm by now, whose buffer may be the same. */
static qrun_status keep_parallel_norm(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const bool is_same = qr_layer_mlp_input_norm(layer) == &layer->attn_norm;
    const bool is_there = is_same && pass->buffers.mlp_normed == pass->buffers.attn_normed;
    return layer->is_parallel && !is_there ? qr_layer_mlp_norm(pass, layer, err) : QRUN_OK;
}

qrun_status qr_layer_attention_out(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    qr_timeline_part(pass->backend, qr_layer_part(pass->model, layer));
    QR_RETURN_IF_ERROR(keep_parallel_norm(pass, layer, err)); /* of x before this is added to it */
    const qr_layer_buffers *b = &pass->buffers;
    const qr_model_shape *s = &pass->model->shape;
    const qr_gather heads = {.memory = b->attended,
                             .n_rows = pass->n_tokens,
                             .n_columns = layer->attn_out.weight.desc.cols,
                             .unit = layer->is_recurrent ? s->recurrent.values : qr_value_dim(s, layer),
                             .dtype = pass->model->act_dtype};
    const bool is_whole = layer->is_recurrent && qr_split_shares_groups(pass->model); /* since the norm */
    if (!is_whole) { QR_RETURN_IF_ERROR(qr_layer_gather(pass, &heads, err)); }
    if (qr_layer_has_residual(layer)) {
        QR_RETURN_IF_ERROR(qr_layer_residual_make(pass, layer, err));
        QR_RETURN_IF_ERROR(qr_layer_residual_add(pass, layer, err));
    }
    QR_RETURN_IF_ERROR(qr_layer_add_linear(pass, &layer->attn_out, b->attended, &layer->post_attn_norm, b->attn_branch,
                                           layer->out_scale, err));
    if (!qr_layer_has_residual(layer)) { return QRUN_OK; }
    return scale(pass, pass->x, pass->n_tokens * s->hidden, qr_layer_residual_factor(), err);
}

qrun_status qr_layer_attention(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    if (!layer->mixes) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_layer_attention_norm(pass, layer, err));
    if (layer->beside != NULL) {
        const qr_layer_pass beside = qr_layer_pass_beside(pass);
        QR_RETURN_IF_ERROR(qr_layer_recurrent(&beside, layer->beside, err));
        QR_RETURN_IF_ERROR(qr_layer_attention_out(&beside, layer->beside, err));
    }
    if (layer->is_recurrent) {
        QR_RETURN_IF_ERROR(qr_layer_recurrent(pass, layer, err));
    } else {
        QR_RETURN_IF_ERROR(qr_layer_attention_heads(pass, layer, err));
        QR_RETURN_IF_ERROR(qr_layer_attend(pass, layer, err));
    }
    return qr_layer_attention_out(pass, layer, err);
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

qr_xielu_args qr_layer_xielu_args(const qr_layer_pass *pass, const qr_layer *layer) {
    return (qr_xielu_args){.x = pass->buffers.mlp,
                           .alpha_p = layer->xielu[0].weight,
                           .alpha_n = layer->xielu[1].weight,
                           .beta = layer->xielu[2].weight,
                           .eps = layer->xielu[3].weight,
                           .dst = pass->buffers.gated,
                           .dst_dtype = pass->model->act_dtype,
                           .n_rows = pass->n_tokens,
                           .dim = qr_layer_own_mlp_size(pass->model, layer),
                           .x_stride = qr_layer_mlp_columns(pass->model, layer)};
}

qr_gaussian_topk_args qr_layer_gaussian_topk_args(const qr_layer_pass *pass, const qr_layer *layer) {
    const qr_layer_buffers *b = &pass->buffers;
    const int64_t size = qr_layer_mlp_size(layer), columns = qr_layer_mlp_columns(pass->model, layer);
    if (pass->model->split.n_ranks > 0) {
        return (qr_gaussian_topk_args){.x = b->sparse_gate,
                                       .dst = b->sparse_gate,
                                       .n_rows = pass->n_tokens,
                                       .dim = size,
                                       .x_stride = size,
                                       .dst_stride = size,
                                       .quantile = layer->gate_quantile};
    }
    return (qr_gaussian_topk_args){.x = b->mlp,
                                   .dst = b->sparse_gate != NULL ? b->sparse_gate : b->mlp,
                                   .n_rows = pass->n_tokens,
                                   .dim = size,
                                   .x_stride = columns,
                                   .dst_stride = b->sparse_gate != NULL ? size : columns,
                                   .quantile = layer->gate_quantile};
}

/* What is left of a sparse gate depends on all of its row, which ranks make parts of. */
static qrun_status gather_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_split *split = &pass->model->split;
    const int64_t size = qr_layer_mlp_size(layer), own = qr_layer_own_mlp_size(pass->model, layer);
    const qr_copy_heads_args copy = {.src = pass->buffers.mlp,
                                     .dst = pass->buffers.sparse_gate,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = 1,
                                     .dim = own,
                                     .src_stride = qr_layer_mlp_columns(pass->model, layer),
                                     .src_head_stride = own,
                                     .dst_stride = own,
                                     .dst_head_stride = own};
    const qr_gather columns = {.memory = pass->buffers.sparse_gate,
                               .n_rows = pass->n_tokens,
                               .n_columns = size,
                               .unit = qr_split_unit(split, size),
                               .dtype = QR_DTYPE_F32};
    if (split->n_ranks == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_layer_op_copy_heads(pass, &copy, err));
    return qr_layer_gather(pass, &columns, err);
}

/* The gate of the MLP, sparse where the layer's is. */
static qrun_status find_gate(const qr_layer_pass *pass, const qr_layer *layer, const float **gate, int64_t *stride,
                             qr_error *err) {
    const qr_gaussian_topk_args sparse = qr_layer_gaussian_topk_args(pass, layer);
    const qr_split *split = &pass->model->split;
    *gate = pass->buffers.mlp;
    *stride = qr_layer_mlp_columns(pass->model, layer);
    if (!layer->gate_is_sparse) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(gather_gate(pass, layer, err));
    *gate = sparse.dst;
    *stride = sparse.dst_stride;
    if (split->n_ranks > 0) {
        *gate += qr_split_begin(split, sparse.dim, qr_split_unit(split, sparse.dim), split->rank);
    }
    return qr_layer_op_gaussian_topk(pass, &sparse, err);
}

static qrun_status run_activation(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_layer_buffers *b = &pass->buffers;
    const int64_t size = qr_layer_own_mlp_size(model, layer), columns = qr_layer_mlp_columns(model, layer);
    if (qr_model_is_gated(model)) {
        const float *gate;
        int64_t stride;
        QR_RETURN_IF_ERROR(find_gate(pass, layer, &gate, &stride, err));
        const qr_gate_args args = {.fn = model->shape.activation,
                                   .g = gate,
                                   .u = b->mlp + size,
                                   .dst = b->gated,
                                   .dst_dtype = model->act_dtype,
                                   .n_rows = pass->n_tokens,
                                   .dim = size,
                                   .g_stride = stride,
                                   .u_stride = columns};
        return qr_layer_op_gate(pass, &args, err);
    }
    if (layer->xielu[0].dim > 0) {
        const qr_xielu_args xielu = qr_layer_xielu_args(pass, layer);
        return qr_layer_op_xielu(pass, &xielu, err);
    }
    const qr_activation_args args = {.fn = model->shape.activation,
                                     .x = b->mlp,
                                     .dst = b->gated,
                                     .dst_dtype = model->act_dtype,
                                     .n_rows = pass->n_tokens,
                                     .dim = size,
                                     .x_stride = columns};
    return qr_layer_op_activation(pass, &args, err);
}

qrun_status qr_layer_scale_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_scale_columns_args args = {
        .x = pass->buffers.mlp,
        .n_rows = pass->n_tokens,
        .x_stride = qr_layer_mlp_columns(pass->model, layer),
        .parts = {{qr_layer_own_mlp_size(pass->model, layer), pass->model->shape.gate_scale}}};
    return pass->model->shape.gate_scale == 1.0F ? QRUN_OK : qr_layer_op_scale_columns(pass, &args, err);
}

/* buffers.gated, of x. */
static qrun_status run_dense_in(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->buffers;
    for (int i = 0; i < QR_MAX_MLP_IN && layer->mlp_in[i].weight.desc.rows > 0; i++) {
        QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->mlp_in[i], b->mlp_normed, b->mlp,
                                           qr_layer_mlp_columns(pass->model, layer), false, err));
    }
    QR_RETURN_IF_ERROR(qr_layer_scale_gate(pass, layer, err));
    return layer->mlp_out.weight.desc.rows > 0 ? run_activation(pass, layer, err) : QRUN_OK;
}

/* buffers.gated, of which each rank has made its columns. */
static qrun_status gather_gated(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const int64_t size = qr_layer_mlp_size(layer);
    const qr_gather gated = {.memory = pass->buffers.gated,
                             .n_rows = pass->n_tokens,
                             .n_columns = size,
                             .unit = qr_split_unit(&pass->model->split, size),
                             .dtype = pass->model->act_dtype};
    return size > 0 ? qr_layer_gather(pass, &gated, err) : QRUN_OK;
}

/* x += norm(norm(MLP) + norm(experts)), which read norms of x of their own. */
static qrun_status run_experts_beside_mlp(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->buffers;
    const qr_expert_buffers *e = &b->experts;
    const int64_t t = pass->n_tokens, hidden = pass->model->shape.hidden;
    const qr_dtype act = pass->model->act_dtype;
    const qr_add_args sum = {.x = b->mlp_branch, .y = e->branch_normed, .n = t * hidden};
    QR_RETURN_IF_ERROR(run_dense_in(pass, layer, err));
    QR_RETURN_IF_ERROR(gather_gated(pass, layer, err));
    QR_RETURN_IF_ERROR(linear_output(pass, &layer->mlp_out, b->gated, e->dense_branch, false, err));
    QR_RETURN_IF_ERROR(norm_rows(pass, &layer->router_norm, pass->x, e->router_normed, act, t, err));
    QR_RETURN_IF_ERROR(norm_rows(pass, &layer->expert_norm, pass->x, e->normed, act, t, err));
    QR_RETURN_IF_ERROR(qr_layer_experts_in(pass, layer, err));
    QR_RETURN_IF_ERROR(experts_output(pass, layer, NULL, e->branch, false, err));
    QR_RETURN_IF_ERROR(norm_rows(pass, &layer->dense_out_norm, e->dense_branch, b->mlp_branch, QR_DTYPE_F32, t, err));
    QR_RETURN_IF_ERROR(norm_rows(pass, &layer->expert_out_norm, e->branch, e->branch_normed, QR_DTYPE_F32, t, err));
    QR_RETURN_IF_ERROR(qr_layer_op_add(pass, &sum, err));
    return pass->buffers_only ? QRUN_OK : add_normed(pass, &layer->post_mlp_norm, b->mlp_branch, layer->mlp_scale, err);
}

/* x += MLP block(x). */
static qrun_status run_mlp(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->buffers;
    if (!layer->is_parallel) { QR_RETURN_IF_ERROR(qr_layer_mlp_norm(pass, layer, err)); }
    if (qr_layer_experts_beside_mlp(layer)) { return run_experts_beside_mlp(pass, layer, err); }
    if (qr_layer_has_experts(layer)) { QR_RETURN_IF_ERROR(qr_layer_experts_in(pass, layer, err)); }
    QR_RETURN_IF_ERROR(run_dense_in(pass, layer, err));
    if (qr_layer_has_experts(layer)) {
        QR_RETURN_IF_ERROR(qr_layer_shared_expert_share(pass, layer, err));
        QR_RETURN_IF_ERROR(gather_gated(pass, layer, err));
        return run_block_output(pass, experts_output, layer, NULL, &layer->post_mlp_norm, b->mlp_branch,
                                layer->mlp_scale, err);
    }
    QR_RETURN_IF_ERROR(gather_gated(pass, layer, err));
    return qr_layer_add_linear(pass, &layer->mlp_out, b->gated, &layer->post_mlp_norm, b->mlp_branch, layer->mlp_scale,
                               err);
}

qrun_status qr_layer_scale(const qr_layer_pass *pass, const qr_layer *layer, float *x, qr_error *err) {
    const qr_scale_args args = {
        .x = x, .n = pass->n_tokens * pass->model->shape.hidden, .factor = 1.0F, .by = layer->scalar.weight};
    return args.by == NULL ? QRUN_OK : qr_layer_op_scale(pass, &args, err);
}

qrun_status qr_layer_mlp(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    qr_layer_pass mlp = *pass;
    const bool has_streams = pass->model->shape.n_streams > 0; /* the layer's input goes to those */
    if (!layer->has_mlp) { return QRUN_OK; }
    mlp.buffers_only = pass->buffers_only && !qr_layer_has_input(layer);
    qr_timeline_part(pass->backend, QR_PART_MLP);
    QR_RETURN_IF_ERROR(run_mlp(&mlp, layer, err));
    if (qr_layer_has_input(layer) && !has_streams) { QR_RETURN_IF_ERROR(qr_layer_add_input(pass, layer, err)); }
    return pass->buffers_only ? QRUN_OK : qr_layer_scale(pass, layer, pass->x, err);
}
