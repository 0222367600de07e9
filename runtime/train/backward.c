/* The backward part of a training pass: from the gradient of the last layer's output to those of the parameters. */
#include "runtime/train/pass_state.h"

#include "runtime/model/layer_adapters.h"
#include "runtime/train/lora_parameters.h"
#include "runtime/train/whole_parameters.h"

/* RMS norm of n_groups rows of norm->dim in each row, which are x_stride apart in x, and dy_stride in dy and dx. */
static qrun_status rms_norm_backward(qr_train_pass *pass, const qr_norm *norm, int64_t n_groups, const float *x,
                                     int64_t x_stride, const float *dy, int64_t dy_stride, float *dx, int64_t n_rows,
                                     bool accumulate, qr_error *err) {
    const qr_rms_norm_backward_args args = {.x = x,
                                            .weight = norm->weight,
                                            .dy = dy,
                                            .dx = dx,
                                            .dweight = qr_parameters_gradient(pass->parameters, norm->weight),
                                            .n_rows = n_rows,
                                            .n_groups = n_groups,
                                            .dim = norm->dim,
                                            .x_stride = x_stride,
                                            .dy_stride = dy_stride,
                                            .dx_stride = dy_stride,
                                            .eps = pass->model->shape.norm_eps,
                                            .weight_offset = pass->model->shape.norm_offset,
                                            .accumulate = accumulate};
    return qr_rms_norm_backward(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_pass_norm_backward(qr_train_pass *pass, const qr_norm *norm, const float *x, const float *dy, float *dx,
                                  int64_t n_rows, bool accumulate, qr_error *err) {
    if (norm->bias == NULL) {
        return rms_norm_backward(pass, norm, 1, x, norm->dim, dy, norm->dim, dx, n_rows, accumulate, err);
    }
    const qr_layer_norm_backward_args args = {.x = x,
                                              .weight = norm->weight,
                                              .dy = dy,
                                              .dx = dx,
                                              .dweight = qr_parameters_gradient(pass->parameters, norm->weight),
                                              .dbias = qr_parameters_gradient(pass->parameters, norm->bias),
                                              .n_rows = n_rows,
                                              .dim = norm->dim,
                                              .eps = pass->model->shape.norm_eps,
                                              .accumulate = accumulate};
    return qr_layer_norm_backward(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_pass_whole_backward(qr_train_pass *pass, const qr_weight *weight, const float *bias, const void *x,
                                   const float *dy, int64_t dy_stride, int64_t n_rows, qr_error *err) {
    float *dw = qr_whole_gradient(pass->parameters, weight);
    if (dw == NULL) { return QRUN_OK; }
    const qr_weight_backward_args args = {.x = x,
                                          .x_dtype = pass->model->act_dtype,
                                          .dy = dy,
                                          .dw = dw,
                                          .dbias = qr_parameters_gradient(pass->parameters, bias),
                                          .n_rows = n_rows,
                                          .in = weight->desc.cols,
                                          .out = weight->desc.rows,
                                          .x_stride = weight->desc.cols,
                                          .dy_stride = dy_stride};
    return qr_weight_backward(pass->backend, &args, pass->workspace, err);
}

/* ---- Linear layers: through the matrix, and through the adapter on it (LoRA, dropout, DoRA) ---------------------- */

static bool rounds_dy(const qr_train_pass *pass) { return pass->model->act_dtype != QR_DTYPE_F32; }

/* b.dy [T, out] = dy, contiguous, in the type of activations, unless that is F32. */
static qrun_status round_dy(qr_train_pass *pass, const float *dy, int64_t dy_stride, int64_t out, qr_error *err) {
    if (!rounds_dy(pass)) { return QRUN_OK; }
    const qr_round_act_args args = {.src = dy,
                                    .dst = pass->b.dy,
                                    .dst_dtype = pass->model->act_dtype,
                                    .n_rows = pass->n_tokens,
                                    .dim = out,
                                    .src_stride = dy_stride};
    return qr_round_act(pass->backend, &args, pass->workspace, err);
}

/* dx [T, in] = dy W, or dx += it; dy's rows [out], F32, dy_stride apart. */
static qrun_status matrix_dx(qr_train_pass *pass, const qr_linear_layer *linear, const float *dy, int64_t dy_stride,
                             float *dx, bool accumulate, qr_error *err) {
    const qr_weight_desc *desc = &linear->weight.desc;
    const qr_linear_backward_args args = {.weight = &linear->weight,
                                          .dy = rounds_dy(pass) ? pass->b.dy : dy,
                                          .dy_dtype = pass->model->act_dtype,
                                          .dx = dx,
                                          .n_rows = pass->n_tokens,
                                          .dy_stride = rounds_dy(pass) ? desc->rows : dy_stride,
                                          .dx_stride = desc->cols,
                                          .accumulate = accumulate,
                                          .any_order = true};
    QR_RETURN_IF_ERROR(round_dy(pass, dy, dy_stride, desc->rows, err));
    return qr_linear_backward(pass->backend, &args, pass->workspace, err);
}

/* b.dy is dy rounded, as matrix_dx left it. */
static qrun_status lora_dx(qr_train_pass *pass, const qr_lora_pair *pair, const void *x, const float *dy,
                           int64_t dy_stride, float *dx, qr_error *err) {
    const qr_parameters *p = pass->parameters;
    const qr_lora_backward_args args = {.a = p->values + pair->a_offset,
                                        .b = p->values + pair->b_offset,
                                        .da = p->gradients + pair->a_offset,
                                        .db = p->gradients + pair->b_offset,
                                        .x = x,
                                        .x_dtype = pass->model->act_dtype,
                                        .dy = dy,
                                        .dy_rounded = rounds_dy(pass) ? pass->b.dy : NULL,
                                        .dx = dx,
                                        .n_rows = pass->n_tokens,
                                        .in = pair->in,
                                        .out = pair->out,
                                        .x_stride = pair->in,
                                        .dy_stride = dy_stride,
                                        .dx_stride = pair->in,
                                        .rank = p->lora.rank,
                                        .scale = p->lora.scale,
                                        .in_pairs = true};
    return qr_lora_backward(pass->backend, &args, pass->workspace, err);
}

/* b.dora [T, out] = (ratio − less) · dy. */
static qrun_status scale_dy(qr_train_pass *pass, const qr_linear_layer *linear, const float *dy, int64_t dy_stride,
                            float minus, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(pass);
    qr_dora_args args = qr_layer_dora_args(&blocks, linear, dy, dy_stride, pass->b.dora, linear->weight.desc.rows);
    args.minus = minus;
    return qr_dora(pass->backend, &args, pass->workspace, err);
}

/* Gradient of the magnitudes, for which what they scale is computed again from the adapter's input x; then
 * b.dora = ratio · dy, the gradient of that. */
static qrun_status dora_dy(qr_train_pass *pass, const qr_linear_layer *linear, const qr_lora_pair *pair, const void *x,
                           const float *dy, int64_t dy_stride, qr_error *err) {
    const qr_parameters *p = pass->parameters;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    QR_RETURN_IF_ERROR(qr_layer_dora_sum(&blocks, linear, x, true, err));
    const qr_dora_backward_args args = {.dy = dy,
                                        .z = pass->b.dora,
                                        .norm = p->lora.norms + pair->output_offset,
                                        .dmagnitude = p->gradients + pair->magnitude_offset,
                                        .n_rows = pass->n_tokens,
                                        .dim = pair->out,
                                        .dy_stride = dy_stride,
                                        .z_stride = pair->out};
    QR_RETURN_IF_ERROR(qr_dora_backward(pass->backend, &args, pass->workspace, err));
    return scale_dy(pass, linear, dy, dy_stride, 0.0F, err);
}

/* dx += the gradient of the adapter's input, through dropout. With DoRA that input goes through the matrix too.
 * `scaled` is dy, or ratio · dy. */
static qrun_status dropped_dx(qr_train_pass *pass, const qr_linear_layer *linear, const qr_lora_pair *pair,
                              const void *x, const float *dy, int64_t dy_stride, const float *scaled,
                              int64_t scaled_stride, float *dx, qr_error *err) {
    qr_backend *backend = pass->backend;
    const int64_t n_elements = pass->n_tokens * pair->in;
    QR_RETURN_IF_ERROR(backend->fill_zero(backend, pass->b.ddropped, (size_t)n_elements * sizeof(float), err));
    if (pass->parameters->lora.dora) { QR_RETURN_IF_ERROR(round_dy(pass, scaled, scaled_stride, pair->out, err)); }
    QR_RETURN_IF_ERROR(lora_dx(pass, pair, x, scaled, scaled_stride, pass->b.ddropped, err));
    if (pass->parameters->lora.dora) {
        QR_RETURN_IF_ERROR(scale_dy(pass, linear, dy, dy_stride, 1.0F, err));
        QR_RETURN_IF_ERROR(matrix_dx(pass, linear, pass->b.dora, pair->out, pass->b.ddropped, true, err));
    }
    const qr_dropout_args back =
        qr_layer_dropout_args(&pass->dropout, QR_DTYPE_F32, linear, pass->b.ddropped, pass->b.ddropped, pass->n_tokens);
    QR_RETURN_IF_ERROR(qr_dropout(backend, &back, pass->workspace, err));
    const qr_add_args add = {.x = dx, .y = pass->b.ddropped, .n = n_elements};
    return qr_add(backend, &add, pass->workspace, err);
}

/* The same of a layer with an adapter, whose gradients grow. x is what the layer was fed. */
static qrun_status adapter_dx(qr_train_pass *pass, const qr_linear_layer *linear, const qr_lora_pair *pair,
                              const void *x, const float *dy, int64_t dy_stride, float *dx, bool accumulate,
                              qr_error *err) {
    const bool dora = pass->parameters->lora.dora, dropped = pass->dropout.p > 0;
    const float *scaled = dora ? pass->b.dora : dy;
    const int64_t scaled_stride = dora ? pair->out : dy_stride;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    QR_RETURN_IF_ERROR(qr_layer_adapter_input(&blocks, linear, &x, err));
    if (dora) { QR_RETURN_IF_ERROR(dora_dy(pass, linear, pair, x, dy, dy_stride, err)); }
    if (dropped) {
        QR_RETURN_IF_ERROR(matrix_dx(pass, linear, dy, dy_stride, dx, accumulate, err));
        return dropped_dx(pass, linear, pair, x, dy, dy_stride, scaled, scaled_stride, dx, err);
    }
    QR_RETURN_IF_ERROR(matrix_dx(pass, linear, scaled, scaled_stride, dx, accumulate, err));
    return lora_dx(pass, pair, x, scaled, scaled_stride, dx, err);
}

/* dx (+)= dy through a matrix and its adapter; their gradients grow. x is what the forward pass fed it. */
static qrun_status linear_backward(qr_train_pass *pass, const qr_linear_layer *linear, const void *x, const float *dy,
                                   int64_t dy_stride, float *dx, bool accumulate, qr_error *err) {
    const qr_lora_pair *pair = qr_lora_pair_of(pass->parameters, linear);
    QR_RETURN_IF_ERROR(
        qr_pass_whole_backward(pass, &linear->weight, linear->bias, x, dy, dy_stride, pass->n_tokens, err));
    return pair != NULL ? adapter_dx(pass, linear, pair, x, dy, dy_stride, dx, accumulate, err)
                        : matrix_dx(pass, linear, dy, dy_stride, dx, accumulate, err);
}

/* ---- Blocks and layers ------------------------------------------------------------------------------------------- */

/* The gradient into a block's last matrix: dx itself, or that through the block's post-norm. */
static qrun_status branch_gradient(qr_train_pass *pass, const qr_norm *post_norm, const float *branch,
                                   const float **dbranch, qr_error *err) {
    *dbranch = pass->b.dx;
    if (post_norm->weight == NULL) { return QRUN_OK; }
    *dbranch = pass->b.dbranch;
    return qr_pass_norm_backward(pass, post_norm, branch, pass->b.dx, pass->b.dbranch, pass->n_tokens, false, err);
}

/* The gradient of the MLP's activations overwrites them: nothing reads them any more. */
static qrun_status activation_backward(qr_train_pass *pass, const qr_kept_layer *kept, qr_error *err) {
    const qrun_model *model = pass->model;
    const int64_t m = model->shape.mlp, columns = qr_mlp_columns(model);
    float *g = kept->buffers.mlp, *u = kept->buffers.mlp + m;
    if (qr_model_is_gated(model)) {
        const qr_gate_backward_args args = {.fn = model->shape.activation,
                                            .g = g,
                                            .u = u,
                                            .dy = pass->b.dgated,
                                            .dg = g,
                                            .du = u,
                                            .n_rows = pass->n_tokens,
                                            .dim = m,
                                            .gu_stride = columns,
                                            .dgu_stride = columns};
        return qr_gate_backward(pass->backend, &args, pass->workspace, err);
    }
    const qr_activation_backward_args args = {.fn = model->shape.activation,
                                              .x = g,
                                              .dy = pass->b.dgated,
                                              .dx = g,
                                              .n_rows = pass->n_tokens,
                                              .dim = m,
                                              .x_stride = columns,
                                              .dy_stride = m,
                                              .dx_stride = columns};
    return qr_activation_backward(pass->backend, &args, pass->workspace, err);
}

static qrun_status mlp_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_kept_layer *kept = pass->current;
    const float *dbranch;
    QR_RETURN_IF_ERROR(branch_gradient(pass, &layer->post_mlp_norm, kept->buffers.mlp_branch, &dbranch, err));
    QR_RETURN_IF_ERROR(linear_backward(pass, &layer->mlp_out, kept->buffers.gated, dbranch, model->shape.hidden,
                                       pass->b.dgated, false, err));
    QR_RETURN_IF_ERROR(activation_backward(pass, kept, err));
    for (int i = 0; i < QR_MAX_MLP_IN && layer->mlp_in[i].weight.desc.rows > 0; i++) {
        const qr_linear_layer *linear = &layer->mlp_in[i];
        QR_RETURN_IF_ERROR(linear_backward(pass, linear, kept->buffers.mlp_normed,
                                           kept->buffers.mlp + linear->out_offset, qr_mlp_columns(model),
                                           pass->b.dnormed, i > 0, err));
    }
    return qr_pass_norm_backward(pass, &layer->mlp_norm, kept->x_mid, pass->b.dnormed, pass->b.dx, pass->n_tokens, true,
                                 err);
}

static qrun_status heads_backward(qr_train_pass *pass, const qr_layer *layer, const qr_norm *norm, int64_t first_column,
                                  int64_t n_heads, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t stride = qr_qkv_columns(s), raw_stride = (s->n_heads + s->n_kv_heads) * s->head_dim;
    float *dheads = pass->b.dqkv + first_column;
    if (s->rope_half > 0) {
        const qr_rope_backward_args rope = {.dx = dheads,
                                            .cos_table = pass->b.cos_table[layer->rope_kind],
                                            .sin_table = pass->b.sin_table[layer->rope_kind],
                                            .n_tokens = pass->n_tokens,
                                            .n_heads = n_heads,
                                            .head_dim = s->head_dim,
                                            .half = s->rope_half,
                                            .dx_stride = stride};
        QR_RETURN_IF_ERROR(qr_rope_backward(pass->backend, &rope, pass->workspace, err));
    }
    if (norm->weight == NULL) { return QRUN_OK; }
    const float *raw = pass->current->buffers.qk_raw + first_column;
    return rms_norm_backward(pass, norm, n_heads, raw, raw_stride, dheads, stride, dheads, pass->n_tokens, false, err);
}

static qrun_status attention_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_kept_layer *kept = pass->current;
    const int64_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const float *dbranch;
    QR_RETURN_IF_ERROR(branch_gradient(pass, &layer->post_attn_norm, kept->buffers.attn_branch, &dbranch, err));
    QR_RETURN_IF_ERROR(linear_backward(pass, &layer->attn_out, kept->buffers.attended, dbranch, s->hidden,
                                       pass->b.dattended, false, err));
    const qr_attention_packed_backward_args args = {.forward = qr_pass_attention_args(pass, layer),
                                                    .dout = pass->b.dattended,
                                                    .dq = pass->b.dqkv,
                                                    .dk = pass->b.dqkv + q,
                                                    .dv = pass->b.dqkv + q + kv,
                                                    .dqkv_stride = qr_qkv_columns(s)};
    QR_RETURN_IF_ERROR(qr_attention_packed_backward(pass->backend, &args, pass->workspace, err));
    QR_RETURN_IF_ERROR(heads_backward(pass, layer, &layer->q_norm, 0, s->n_heads, err));
    QR_RETURN_IF_ERROR(heads_backward(pass, layer, &layer->k_norm, q, s->n_kv_heads, err));
    for (int i = 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        const qr_linear_layer *linear = &layer->attn_in[i];
        QR_RETURN_IF_ERROR(linear_backward(pass, linear, kept->buffers.attn_normed, pass->b.dqkv + linear->out_offset,
                                           qr_qkv_columns(s), pass->b.dnormed, i > 0, err));
    }
    return qr_pass_norm_backward(pass, &layer->attn_norm, kept->x_in, pass->b.dnormed, pass->b.dx, pass->n_tokens, true,
                                 err);
}

/* Both blocks of a layer, computing again what was not kept. */
static qrun_status layer_backward(qr_train_pass *pass, int64_t l, bool kept_segment, qr_error *err) {
    const qr_layer *layer = &pass->model->layers[l];
    pass->current = &pass->activations.layers[l];
    qr_layer_pass blocks = qr_pass_layer(pass);
    blocks.buffers_only = true;
    QR_RETURN_IF_ERROR(qr_pass_check_cancelled(pass, err));
    if (kept_segment && !pass->current->mlp_kept) {
        QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->b.x, pass->current->x_mid, err));
        QR_RETURN_IF_ERROR(qr_layer_mlp(&blocks, layer, err));
    }
    QR_RETURN_IF_ERROR(mlp_backward(pass, layer, err));
    if (kept_segment && !pass->current->attn_kept) {
        QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->b.x, pass->current->x_in, err));
        QR_RETURN_IF_ERROR(qr_layer_attention(&blocks, layer, err));
    }
    return attention_backward(pass, layer, err);
}

qrun_status qr_pass_segment_backward(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    if (!segment->kept) {
        QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->b.x, pass->activations.layers[segment->first].x_in, err));
        for (int64_t i = 0; i < segment->n; i++) {
            QR_RETURN_IF_ERROR(qr_pass_run_layer(pass, segment->first + i, i + 1 == segment->n, err));
        }
    }
    for (int64_t i = segment->n; i-- > 0;) {
        QR_RETURN_IF_ERROR(layer_backward(pass, segment->first + i, segment->kept, err));
    }
    return QRUN_OK;
}

/* The gradient of a table, where it is trained, from that of the rows that were looked up. */
static qrun_status table_backward(qr_train_pass *pass, const qr_weight *table, const int32_t *ids, float scale,
                                  qr_error *err) {
    const qr_embedding_backward_args args = {.ids = ids,
                                             .dy = pass->b.dx,
                                             .dtable = qr_whole_gradient(pass->parameters, table),
                                             .n_tokens = pass->n_tokens,
                                             .dim = table->desc.cols,
                                             .vocab = table->desc.rows,
                                             .scale = scale};
    return args.dtable == NULL ? QRUN_OK : qr_embedding_backward(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_pass_embed_backward(qr_train_pass *pass, qr_error *err) {
    const qrun_model *model = pass->model;
    QR_RETURN_IF_ERROR(table_backward(pass, &model->embedding, pass->b.ids, model->shape.embedding_scale, err));
    return table_backward(pass, &model->position_embedding, pass->b.position, 1.0F, err);
}
