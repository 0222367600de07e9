/* The backward part of a training pass: from the gradient of the last layer's output to those of the parameters. */
#include "runtime/pass/pass_state.h"

#include "runtime/layers/layer_adapters.h"
#include "runtime/layers/layer_experts.h"
#include "runtime/layers/layer_inputs.h"
#include "runtime/layers/layer_latent.h"
#include "runtime/layers/layer_streams.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/rope.h"
#include "runtime/pass/lora_parameters.h"
#include "runtime/pass/whole_parameters.h"

qrun_status qr_pass_rms_norm_backward(qr_train_pass *pass, const qr_norm *norm, int64_t n_groups, const float *x,
                                      int64_t x_stride, const float *dy, int64_t dy_stride, float *dx,
                                      int64_t dx_stride, int64_t n_rows, bool accumulate, qr_error *err) {
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
                                            .dx_stride = dx_stride,
                                            .eps = norm->eps,
                                            .weight_offset = norm->offset,
                                            .accumulate = accumulate};
    return qr_rms_norm_backward(pass->backend, &args, pass->workspace, err);
}

/* Of a norm that the family does not have. */
static qrun_status pass_on(qr_train_pass *pass, const float *dy, float *dx, int64_t n_rows, bool accumulate,
                           qr_error *err) {
    const int64_t n = n_rows * pass->model->shape.hidden;
    const qr_add_args add = {.x = dx, .y = dy, .n = n};
    if (accumulate) { return qr_add(pass->backend, &add, pass->workspace, err); }
    return pass->backend->copy_within(pass->backend, dx, dy, (size_t)n * sizeof(float), err);
}

qrun_status qr_pass_norm_backward(qr_train_pass *pass, const qr_norm *norm, const float *x, const float *dy, float *dx,
                                  int64_t n_rows, bool accumulate, qr_error *err) {
    if (norm->weight == NULL) { return pass_on(pass, dy, dx, n_rows, accumulate, err); }
    if (!norm->is_layer_norm) {
        return qr_pass_rms_norm_backward(pass, norm, 1, x, norm->dim, dy, norm->dim, dx, norm->dim, n_rows, accumulate,
                                         err);
    }
    const qr_layer_norm_backward_args args = {.x = x,
                                              .weight = norm->weight,
                                              .dy = dy,
                                              .dx = dx,
                                              .dweight = qr_parameters_gradient(pass->parameters, norm->weight),
                                              .dbias = qr_parameters_gradient(pass->parameters, norm->bias),
                                              .n_rows = n_rows,
                                              .dim = norm->dim,
                                              .eps = norm->eps,
                                              .weight_offset = norm->offset,
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

/* Rows in b.dy are `stride` apart. */
static qrun_status round_dy(qr_train_pass *pass, const void **dy, int64_t *dy_stride, int64_t n_rows, int64_t out,
                            int64_t stride, qr_error *err) {
    if (!rounds_dy(pass)) { return QRUN_OK; }
    const qr_round_act_args args = {.src = *dy,
                                    .dst = pass->b.dy,
                                    .dst_dtype = pass->model->act_dtype,
                                    .n_rows = n_rows,
                                    .dim = out,
                                    .src_stride = *dy_stride,
                                    .dst_stride = stride};
    *dy = pass->b.dy;
    *dy_stride = stride;
    return qr_round_act(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_pass_round_dy(qr_train_pass *pass, const void **dy, int64_t *dy_stride, int64_t n_rows, int64_t out,
                             qr_error *err) {
    return round_dy(pass, dy, dy_stride, n_rows, out, out, err);
}

/* dx [T, in] = dy W, or dx += it; rows of dy, as products take it, end with `room` elements that may be overwritten.
 * With the adapter's part where `lora` is not NULL. */
static qrun_status product_dx(qr_train_pass *pass, const qr_linear_layer *linear, const void *dy, int64_t dy_stride,
                              int64_t room, float *dx, bool accumulate, const qr_lora_backward_args *lora,
                              qr_error *err) {
    const qr_linear_backward_args args = {.weight = &linear->weight,
                                          .dy = dy,
                                          .dy_dtype = pass->model->act_dtype,
                                          .dx = dx,
                                          .n_rows = pass->n_tokens,
                                          .dy_stride = dy_stride,
                                          .dx_stride = linear->weight.desc.cols,
                                          .dy_room = room,
                                          .accumulate = accumulate,
                                          .any_order = true,
                                          .lora = lora};
    return qr_linear_backward(pass->backend, &args, pass->workspace, err);
}

/* dx [T, in] = dy W, or dx += it; dy's rows [out], F32, dy_stride apart. */
static qrun_status matrix_dx(qr_train_pass *pass, const qr_linear_layer *linear, const float *dy, int64_t dy_stride,
                             float *dx, bool accumulate, qr_error *err) {
    const void *rounded = dy;
    QR_RETURN_IF_ERROR(qr_pass_round_dy(pass, &rounded, &dy_stride, pass->n_tokens, linear->weight.desc.rows, err));
    return product_dx(pass, linear, rounded, dy_stride, 0, dx, accumulate, NULL, err);
}

/* `rounded`: dy as products take it. */
static qr_lora_backward_args lora_args(qr_train_pass *pass, const qr_lora_pair *pair, const void *x, const float *dy,
                                       int64_t dy_stride, const void *rounded, int64_t rounded_stride, float *dx) {
    const qr_parameters *p = pass->parameters;
    return (qr_lora_backward_args){.a = p->values + pair->a_offset,
                                   .b = p->values + pair->b_offset,
                                   .da = qr_parameters_gradient(p, p->values + pair->a_offset),
                                   .db = qr_parameters_gradient(p, p->values + pair->b_offset),
                                   .x = x,
                                   .x_dtype = pass->model->act_dtype,
                                   .dy = dy,
                                   .dy_rounded = rounds_dy(pass) ? rounded : NULL,
                                   .dx = dx,
                                   .n_rows = pass->n_tokens,
                                   .in = pair->in,
                                   .out = pair->out,
                                   .x_stride = pair->in,
                                   .dy_stride = dy_stride,
                                   .dy_rounded_stride = rounded_stride,
                                   .dx_stride = pair->in,
                                   .rank = p->lora.rank,
                                   .scale = p->lora.scale,
                                   .in_pairs = true};
}

/* Through both at once. */
static qrun_status adapted_dx(qr_train_pass *pass, const qr_linear_layer *linear, const qr_lora_pair *pair,
                              const void *x, const float *dy, int64_t dy_stride, float *dx, bool accumulate,
                              qr_error *err) {
    const int64_t room = rounds_dy(pass) ? qr_pass_dy_room(pass, pair->out) : 0;
    const void *rounded = dy;
    int64_t stride = dy_stride;
    QR_RETURN_IF_ERROR(round_dy(pass, &rounded, &stride, pass->n_tokens, pair->out, pair->out + room, err));
    const qr_lora_backward_args lora = lora_args(pass, pair, x, dy, dy_stride, rounded, stride, dx);
    return product_dx(pass, linear, rounded, stride, room, dx, accumulate, &lora, err);
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
                                        .dmagnitude = qr_parameters_gradient(p, p->values + pair->magnitude_offset),
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
    if (pass->parameters->lora.dora) {
        const void *rounded = scaled; /* b.dy, as matrix_dx left it, is of dy */
        int64_t rounded_stride = scaled_stride;
        QR_RETURN_IF_ERROR(qr_pass_round_dy(pass, &rounded, &rounded_stride, pass->n_tokens, pair->out, err));
    }
    const qr_lora_backward_args lora =
        lora_args(pass, pair, x, scaled, scaled_stride, pass->b.dy, pair->out, pass->b.ddropped);
    QR_RETURN_IF_ERROR(qr_lora_backward(backend, &lora, pass->workspace, err));
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
    return adapted_dx(pass, linear, pair, x, scaled, scaled_stride, dx, accumulate, err);
}

qrun_status qr_pass_linear_backward(qr_train_pass *pass, const qr_linear_layer *linear, const void *x, const float *dy,
                                    int64_t dy_stride, float *dx, bool accumulate, qr_error *err) {
    const qr_lora_pair *pair = qr_lora_pair_of(pass->parameters, linear);
    QR_RETURN_IF_ERROR(
        qr_pass_whole_backward(pass, &linear->weight, linear->bias, x, dy, dy_stride, pass->n_tokens, err));
    return pair != NULL ? adapter_dx(pass, linear, pair, x, dy, dy_stride, dx, accumulate, err)
                        : matrix_dx(pass, linear, dy, dy_stride, dx, accumulate, err);
}

/* ---- Blocks and layers ------------------------------------------------------------------------------------------- */

/* x = factor · x over rows of D. */
static qrun_status scale_rows(qr_train_pass *pass, float *x, float factor, qr_error *err) {
    const qr_scale_args args = {.x = x, .n = pass->n_tokens * pass->model->shape.hidden, .factor = factor};
    return qr_scale(pass->backend, &args, pass->workspace, err);
}

/* The gradient into a block's last matrix: dx itself, or that through the block's factor and the norm after it. */
static qrun_status branch_gradient(qr_train_pass *pass, const qr_norm *post_norm, const float *branch, float factor,
                                   const float **dbranch, qr_error *err) {
    *dbranch = pass->b.dx;
    if (factor != 1.0F) {
        QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->b.dbranch, pass->b.dx, err));
        QR_RETURN_IF_ERROR(scale_rows(pass, pass->b.dbranch, factor, err));
        *dbranch = pass->b.dbranch;
    }
    if (post_norm->weight == NULL) { return QRUN_OK; }
    const float *dy = *dbranch;
    *dbranch = pass->b.dbranch;
    return qr_pass_norm_backward(pass, post_norm, branch, dy, pass->b.dbranch, pass->n_tokens, false, err);
}

/* The same where the activation has numbers of its own. */
static qrun_status xielu_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const qr_xielu_args forward = qr_layer_xielu_args(&blocks, layer);
    const qr_xielu_backward_args args = {.forward = forward,
                                         .dy = pass->b.dgated,
                                         .dx = pass->current->buffers.mlp,
                                         .dalpha_p = qr_parameters_gradient(pass->parameters, forward.alpha_p),
                                         .dalpha_n = qr_parameters_gradient(pass->parameters, forward.alpha_n),
                                         .dy_stride = forward.dim,
                                         .dx_stride = forward.x_stride};
    return qr_xielu_backward(pass->backend, &args, pass->workspace, err);
}

/* The same where little is left of the gate, which is found again. */
static qrun_status sparse_gate_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const int64_t m = qr_layer_mlp_size(layer), columns = qr_layer_mlp_columns(model, layer);
    const qr_gaussian_topk_args sparse = qr_layer_gaussian_topk_args(&blocks, layer);
    float *g = pass->current->buffers.mlp, *u = g + m;
    const qr_gate_backward_args gate = {.fn = model->shape.activation,
                                        .g = sparse.dst,
                                        .u = u,
                                        .dy = pass->b.dgated,
                                        .dg = sparse.dst,
                                        .du = u,
                                        .n_rows = pass->n_tokens,
                                        .dim = m,
                                        .g_stride = sparse.dst_stride,
                                        .u_stride = columns,
                                        .dg_stride = sparse.dst_stride,
                                        .du_stride = columns};
    const qr_gaussian_topk_backward_args topk = {
        .forward = sparse, .dy = sparse.dst, .dx = g, .dy_stride = sparse.dst_stride, .dx_stride = columns};
    QR_RETURN_IF_ERROR(qr_gaussian_topk(pass->backend, &sparse, pass->workspace, err));
    QR_RETURN_IF_ERROR(qr_gate_backward(pass->backend, &gate, pass->workspace, err));
    return qr_gaussian_topk_backward(pass->backend, &topk, pass->workspace, err);
}

/* The gradient of the MLP's activations overwrites them: nothing reads them any more. */
static qrun_status activation_backward(qr_train_pass *pass, const qr_layer *layer, const qr_kept_layer *kept,
                                       qr_error *err) {
    const qrun_model *model = pass->model;
    const int64_t m = qr_layer_mlp_size(layer), columns = qr_layer_mlp_columns(model, layer);
    float *g = kept->buffers.mlp, *u = kept->buffers.mlp + m;
    if (layer->gate_is_sparse) { return sparse_gate_backward(pass, layer, err); }
    if (qr_model_is_gated(model)) {
        const qr_gate_backward_args args = {.fn = model->shape.activation,
                                            .g = g,
                                            .u = u,
                                            .dy = pass->b.dgated,
                                            .dg = g,
                                            .du = u,
                                            .n_rows = pass->n_tokens,
                                            .dim = m,
                                            .g_stride = columns,
                                            .u_stride = columns,
                                            .dg_stride = columns,
                                            .du_stride = columns};
        return qr_gate_backward(pass->backend, &args, pass->workspace, err);
    }
    if (layer->xielu[0].dim > 0) { return xielu_backward(pass, layer, err); }
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

/* b.dnormed, from the gradient of the block's output. Of an expert that every token goes to, which has a share. */
static qrun_status dense_mlp_backward(qr_train_pass *pass, const qr_layer *layer, const float *dbranch, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_kept_layer *kept = pass->current;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &layer->mlp_out, kept->buffers.gated, dbranch, model->shape.hidden,
                                               pass->b.dgated, false, err));
    QR_RETURN_IF_ERROR(qr_pass_shared_share_backward(pass, layer, err));
    QR_RETURN_IF_ERROR(activation_backward(pass, layer, kept, err));
    QR_RETURN_IF_ERROR(qr_layer_scale_gate(&blocks, layer, err));
    for (int i = 0; i < QR_MAX_MLP_IN && layer->mlp_in[i].weight.desc.rows > 0; i++) {
        const qr_linear_layer *linear = &layer->mlp_in[i];
        QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, linear, kept->buffers.mlp_normed,
                                                   kept->buffers.mlp + linear->out_offset,
                                                   qr_layer_mlp_columns(model, layer), pass->b.dnormed, i > 0, err));
    }
    return QRUN_OK;
}

/* The gradient of the layer's own inputs, which stands where they do in buffers.input. */
static qrun_status keep_gradient(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t p = s->layer_input, columns = s->n_layers * p;
    const qr_copy_heads_args args = {.src = pass->current->buffers.input + p,
                                     .dst = pass->b.dinputs + (layer - pass->model->layers) * p,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = 1,
                                     .dim = p,
                                     .src_stride = 2 * p,
                                     .src_head_stride = p,
                                     .dst_stride = columns,
                                     .dst_head_stride = p};
    return qr_copy_heads(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_pass_input_gated_backward(qr_train_pass *pass, const qr_layer *layer, const float *dbranch, float *dst,
                                         bool accumulate, qr_error *err) {
    const qr_layer_buffers *b = &pass->current->buffers;
    const int64_t p = pass->model->shape.layer_input;
    const qr_gate_backward_args gate = {.fn = pass->model->shape.activation,
                                        .g = b->input,
                                        .u = b->input + p,
                                        .dy = pass->b.dgated,
                                        .dg = b->input,
                                        .du = b->input + p,
                                        .n_rows = pass->n_tokens,
                                        .dim = p,
                                        .g_stride = 2 * p,
                                        .u_stride = 2 * p,
                                        .dg_stride = 2 * p,
                                        .du_stride = 2 * p};
    QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &layer->input_out, b->input_gated, dbranch,
                                               pass->model->shape.hidden, pass->b.dgated, false, err));
    QR_RETURN_IF_ERROR(qr_gate_backward(pass->backend, &gate, pass->workspace, err));
    QR_RETURN_IF_ERROR(keep_gradient(pass, layer, err));
    return qr_pass_linear_backward(pass, &layer->input_gate, b->input_x, b->input, 2 * p, dst, accumulate, err);
}

/* The block of a layer's input: dx, and dinputs' part of the layer. */
static qrun_status add_input_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->current->buffers;
    const float *dbranch;
    if (!qr_layer_has_input(layer) || pass->model->shape.n_streams > 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(
        branch_gradient(pass, &layer->post_input_norm, b->input_branch, layer->mlp_scale, &dbranch, err));
    return qr_pass_input_gated_backward(pass, layer, dbranch, pass->b.dx, true, err);
}

/* dx += the gradient of the block's input, from that of a norm of it. */
static qrun_status input_backward(qr_train_pass *pass, const qr_norm *norm, qr_error *err) {
    return qr_pass_norm_backward(pass, norm, pass->current->x_mid, pass->b.dnormed, pass->b.dx, pass->n_tokens, true,
                                 err);
}

/* The same of an MLP, which may read the x that attention reads. */
static qrun_status mlp_input_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_norm *norm = qr_layer_mlp_input_norm(layer);
    if (!layer->is_parallel) { return input_backward(pass, norm, err); }
    return qr_pass_norm_backward(pass, norm, pass->current->x_in, pass->b.dnormed, pass->b.dx, pass->n_tokens, true,
                                 err);
}

/* The sum of what both give is read no more: its place takes the gradient of either. */
static qrun_status experts_beside_mlp_backward(qr_train_pass *pass, const qr_layer *layer, const float *dsum,
                                               qr_error *err) {
    const qr_layer_buffers *b = &pass->current->buffers;
    float *dbranch = b->mlp_branch;
    QR_RETURN_IF_ERROR(qr_pass_norm_backward(pass, &layer->dense_out_norm, b->experts.dense_branch, dsum, dbranch,
                                             pass->n_tokens, false, err));
    QR_RETURN_IF_ERROR(dense_mlp_backward(pass, layer, dbranch, err));
    QR_RETURN_IF_ERROR(input_backward(pass, &layer->mlp_norm, err));
    QR_RETURN_IF_ERROR(qr_pass_norm_backward(pass, &layer->expert_out_norm, b->experts.branch, dsum, dbranch,
                                             pass->n_tokens, false, err));
    QR_RETURN_IF_ERROR(qr_pass_experts_backward(pass, layer, dbranch, false, err));
    QR_RETURN_IF_ERROR(input_backward(pass, &layer->expert_norm, err));
    QR_RETURN_IF_ERROR(qr_pass_router_backward(pass, layer, false, err));
    return input_backward(pass, &layer->router_norm, err);
}

qrun_status qr_pass_mlp_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_kept_layer *kept = pass->current;
    const float *dbranch;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    if (!layer->has_mlp) { return QRUN_OK; }
    qr_timeline_part(pass->backend, QR_PART_MLP);
    QR_RETURN_IF_ERROR(qr_layer_scale(&blocks, layer, pass->b.dx, err));
    QR_RETURN_IF_ERROR(add_input_backward(pass, layer, err));
    QR_RETURN_IF_ERROR(
        branch_gradient(pass, &layer->post_mlp_norm, kept->buffers.mlp_branch, layer->mlp_scale, &dbranch, err));
    if (qr_layer_experts_beside_mlp(layer)) { return experts_beside_mlp_backward(pass, layer, dbranch, err); }
    const bool is_dense = layer->mlp_out.weight.desc.rows > 0;
    if (is_dense) { QR_RETURN_IF_ERROR(dense_mlp_backward(pass, layer, dbranch, err)); }
    if (qr_layer_has_experts(layer)) {
        QR_RETURN_IF_ERROR(qr_pass_experts_backward(pass, layer, dbranch, is_dense, err));
        QR_RETURN_IF_ERROR(qr_pass_router_backward(pass, layer, true, err));
    }
    return mlp_input_backward(pass, layer, err);
}

qrun_status qr_pass_rotate_back(qr_train_pass *pass, int32_t rope_kind, float *dheads, int64_t n_heads,
                                int64_t head_dim, int64_t stride, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    if (rope_kind == QR_ROPE_NONE) { return QRUN_OK; }
    const qr_rope_backward_args args = {.dx = dheads,
                                        .cos_table = pass->b.cos_table[rope_kind],
                                        .sin_table = pass->b.sin_table[rope_kind],
                                        .n_tokens = pass->n_tokens,
                                        .n_heads = n_heads,
                                        .head_dim = head_dim,
                                        .half = s->rope_half[rope_kind],
                                        .dx_stride = stride,
                                        .interleaved = s->rope_interleaved};
    return qr_rope_backward(pass->backend, &args, pass->workspace, err);
}

/* Heads of dqkv from first_column on, back through rotation and norm as the family has them, into the same place; or
 * added to `into`, where nothing rotates. */
static qrun_status heads_backward(qr_train_pass *pass, const qr_layer *layer, int32_t rope_kind, const qr_norm *norm,
                                  int64_t first_column, int64_t n_heads, float *into, qr_error *err) {
    const int64_t stride = qr_qkv_columns(layer), raw_stride = qr_raw_columns(layer);
    float *dheads = pass->b.dqkv + first_column;
    const bool rotates_first = pass->model->family->norms_rotated;
    if (!rotates_first) {
        QR_RETURN_IF_ERROR(qr_pass_rotate_back(pass, rope_kind, dheads, n_heads, layer->head_dim, stride, err));
    }
    if (norm->weight != NULL) {
        const float *raw = pass->current->buffers.qk_raw + first_column;
        const int64_t n_groups = n_heads * layer->head_dim / norm->dim;
        QR_RETURN_IF_ERROR(qr_pass_rms_norm_backward(pass, norm, n_groups, raw, raw_stride, dheads, stride,
                                                     into != NULL ? into : dheads, stride, pass->n_tokens, into != NULL,
                                                     err));
    }
    return rotates_first ? qr_pass_rotate_back(pass, rope_kind, dheads, n_heads, layer->head_dim, stride, err)
                         : QRUN_OK;
}

/* Between dqkv's gradient of K/V and that of all layers which share them: the readers add theirs, and the layer that
 * made them takes the sum. */
static qrun_status shared_kv_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    return qr_pass_copy_shared_kv(pass, layer, pass->b.dqkv, pass->b.dshared_kv[layer->window > 0],
                                  layer->reads_shared_kv, true, err);
}

/* Values that are keys add their gradient to that of the keys. */
static qrun_status kv_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    QR_RETURN_IF_ERROR(shared_kv_backward(pass, layer, err));
    if (layer->reads_shared_kv) { return QRUN_OK; }
    const int64_t k = layer->n_heads * layer->head_dim, v = k + layer->n_kv_heads * layer->head_dim;
    float *into = layer->values_are_keys ? pass->b.dqkv + k : NULL;
    QR_RETURN_IF_ERROR(
        heads_backward(pass, layer, layer->key_rope_kind, &layer->k_norm, k, layer->n_kv_heads, NULL, err));
    return heads_backward(pass, layer, QR_ROPE_NONE, &layer->v_norm, v, layer->n_kv_heads, into, err);
}

/* Through the gates of attention's output, in place, to dq_gate or its half of gates. */
static qrun_status gates_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const qr_head_gate_backward_args args = {.forward = qr_layer_head_gate_args(&blocks, layer),
                                             .dy = pass->b.dattended,
                                             .dx = pass->b.dattended,
                                             .dgate = pass->b.dq_gate + qr_gate_offset(&pass->model->shape)};
    return qr_head_gate_backward(pass->backend, &args, pass->workspace, err);
}

/* The other half: queries, from dqkv. Then through their matrix. */
static qrun_status gated_queries_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t columns = 2 * layer->n_heads * s->head_dim;
    const qr_copy_heads_args args = {.src = pass->b.dqkv,
                                     .dst = pass->b.dq_gate,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = layer->n_heads,
                                     .dim = s->head_dim,
                                     .src_stride = qr_qkv_columns(layer),
                                     .src_head_stride = s->head_dim,
                                     .dst_stride = columns,
                                     .dst_head_stride = 2 * s->head_dim};
    QR_RETURN_IF_ERROR(qr_copy_heads(pass->backend, &args, pass->workspace, err));
    return qr_pass_linear_backward(pass, &layer->attn_in[0], pass->current->buffers.attn_normed, pass->b.dq_gate,
                                   columns, pass->b.dnormed, false, err);
}

qrun_status qr_pass_attend_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t q = layer->n_heads * layer->head_dim, kv = layer->n_kv_heads * layer->head_dim;
    qr_timeline_part(pass->backend, qr_layer_part(pass->model, layer));
    if (s->attn_gated) { QR_RETURN_IF_ERROR(gates_backward(pass, layer, err)); }
    const qr_attention_packed_backward_args args = {.forward = qr_pass_attention_args(pass, layer),
                                                    .dout = pass->b.dattended,
                                                    .dq = pass->b.dqkv,
                                                    .dk = pass->b.dqkv + q,
                                                    .dv = pass->b.dqkv + q + kv,
                                                    .dsinks =
                                                        qr_parameters_gradient(pass->parameters, layer->sinks.weight),
                                                    .dqkv_stride = qr_qkv_columns(layer)};
    return qr_attention_packed_backward(pass->backend, &args, pass->workspace, err);
}

/* b.kv_up = the gradient of values without what is behind them, from dqkv. */
static qrun_status take_short_values(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_copy_heads_args args = {.src = pass->b.dqkv + (layer->n_heads + layer->n_kv_heads) * layer->head_dim,
                                     .dst = pass->b.kv_up,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = layer->n_kv_heads,
                                     .dim = s->value_dim,
                                     .src_stride = qr_qkv_columns(layer),
                                     .src_head_stride = layer->head_dim,
                                     .dst_stride = layer->n_kv_heads * s->value_dim,
                                     .dst_head_stride = s->value_dim};
    return qr_copy_heads(pass->backend, &args, pass->workspace, err);
}

/* dattended [T, H · HD] of `dvalues` [T, H · value_dim], zeros behind them. */
static qrun_status pad_values(qr_train_pass *pass, const float *dvalues, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t row = s->n_heads * s->head_dim;
    const qr_copy_heads_args values = {.src = dvalues,
                                       .dst = pass->b.dattended,
                                       .n_rows = pass->n_tokens,
                                       .n_heads = s->n_heads,
                                       .dim = s->value_dim,
                                       .src_stride = s->n_heads * s->value_dim,
                                       .src_head_stride = s->value_dim,
                                       .dst_stride = row,
                                       .dst_head_stride = s->head_dim};
    const qr_copy_heads_args zeros = {.dst = pass->b.dattended + s->value_dim,
                                      .n_rows = pass->n_tokens,
                                      .n_heads = s->n_heads,
                                      .dim = s->head_dim - s->value_dim,
                                      .dst_stride = row,
                                      .dst_head_stride = s->head_dim};
    QR_RETURN_IF_ERROR(qr_copy_heads(pass->backend, &values, pass->workspace, err));
    return qr_copy_heads(pass->backend, &zeros, pass->workspace, err);
}

qrun_status qr_pass_attention_heads_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    if (s->latent.kv_rank > 0) { return qr_pass_latent_heads_backward(pass, layer, err); }
    QR_RETURN_IF_ERROR(
        heads_backward(pass, layer, layer->query_rope_kind, &layer->q_norm, 0, layer->n_heads, NULL, err));
    QR_RETURN_IF_ERROR(kv_backward(pass, layer, err));
    const void *normed = pass->current->buffers.attn_normed;
    const bool has_gated_q = s->attn_gated && !s->attn_gate_apart, by_head = pass->model->family->qkv_by_head;
    if (by_head) {
        const qr_layer_pass blocks = qr_pass_layer(pass);
        QR_RETURN_IF_ERROR(qr_layer_qkv_reorder(&blocks, layer, pass->b.dqkv, pass->b.by_head, true, err));
    }
    if (has_gated_q) { QR_RETURN_IF_ERROR(gated_queries_backward(pass, layer, err)); }
    for (int i = has_gated_q ? 1 : 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        const qr_linear_layer *linear = &layer->attn_in[i];
        const bool is_short = qr_layer_makes_short_values(s, layer, linear);
        const float *dheads = by_head ? pass->b.by_head : pass->b.dqkv;
        const float *dy = is_short ? pass->b.kv_up : dheads + linear->out_offset;
        const int64_t stride = is_short ? linear->weight.desc.rows : qr_qkv_columns(layer);
        if (is_short) { QR_RETURN_IF_ERROR(take_short_values(pass, layer, err)); }
        QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, linear, normed, dy, stride, pass->b.dnormed, i > 0, err));
    }
    if (!s->attn_gate_apart) { return QRUN_OK; }
    return qr_pass_linear_backward(pass, &layer->attn_gate, normed, pass->b.dq_gate, qr_gate_columns(s, layer->n_heads),
                                   pass->b.dnormed, true, err);
}

qrun_status qr_pass_attention_out_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->current->buffers;
    const float *dbranch;
    qr_timeline_part(pass->backend, qr_layer_part(pass->model, layer));
    if (qr_layer_has_residual(layer)) {
        QR_RETURN_IF_ERROR(scale_rows(pass, pass->b.dx, qr_layer_residual_factor(), err));
    }
    QR_RETURN_IF_ERROR(branch_gradient(pass, &layer->post_attn_norm, b->attn_branch, layer->out_scale, &dbranch, err));
    const bool padded = qr_model_pads_values(&pass->model->shape) && !layer->is_recurrent;
    float *dvalues = padded ? pass->b.kv_up : pass->b.dattended;
    QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &layer->attn_out, b->attended, dbranch, pass->model->shape.hidden,
                                               dvalues, false, err));
    return padded ? pad_values(pass, dvalues, err) : QRUN_OK;
}

qrun_status qr_pass_attention_norm_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_pass_residual_backward(pass, layer, err));
    return qr_pass_norm_backward(pass, &layer->attn_norm, pass->current->x_in, pass->b.dnormed, pass->b.dx,
                                 pass->n_tokens, true, err);
}

qrun_status qr_pass_outputs_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_pass_streams_correct_backward(pass, layer, err));
    if (!layer->is_parallel) { QR_RETURN_IF_ERROR(qr_pass_mlp_backward(pass, layer, err)); }
    if (layer->mixes) { QR_RETURN_IF_ERROR(qr_pass_attention_out_backward(pass, layer, err)); }
    return layer->is_parallel ? qr_pass_mlp_backward(pass, layer, err) : QRUN_OK;
}

qr_train_pass qr_pass_beside(const qr_train_pass *pass, qr_kept_layer *kept) {
    qr_train_pass beside = *pass;
    *kept = *pass->current;
    kept->buffers.qkv = kept->buffers.beside_qkv;
    kept->buffers.attended = kept->buffers.beside_attended;
    beside.b.dqkv = pass->b.dqkv_beside;
    beside.current = kept;
    return beside;
}

/* What is beside attention, which dnormed has come through already: dnormed grows. Both read dx as it is. */
static qrun_status beside_backward(const qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    qr_kept_layer kept;
    qr_train_pass beside = qr_pass_beside(pass, &kept);
    QR_RETURN_IF_ERROR(qr_pass_attention_out_backward(&beside, layer, err));
    QR_RETURN_IF_ERROR(qr_pass_recurrent_gate_backward(&beside, layer, err));
    QR_RETURN_IF_ERROR(qr_pass_recurrent_recall_backward(&beside, layer, err));
    return qr_pass_recurrent_project_backward(&beside, layer, true, err);
}

/* From dattended. */
static qrun_status attention_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    if (!layer->mixes) { return QRUN_OK; }
    if (layer->is_recurrent) {
        QR_RETURN_IF_ERROR(qr_pass_recurrent_gate_backward(pass, layer, err));
        QR_RETURN_IF_ERROR(qr_pass_recurrent_recall_backward(pass, layer, err));
        QR_RETURN_IF_ERROR(qr_pass_recurrent_project_backward(pass, layer, false, err));
    } else {
        QR_RETURN_IF_ERROR(qr_pass_attend_backward(pass, layer, err));
        QR_RETURN_IF_ERROR(qr_pass_attention_heads_backward(pass, layer, err));
    }
    if (layer->beside != NULL) { QR_RETURN_IF_ERROR(beside_backward(pass, layer->beside, err)); }
    return qr_pass_attention_norm_backward(pass, layer, err);
}

/* What was not kept of a layer whose segment was: one block at most. */
static qrun_status compute_again(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_kept_layer *kept = pass->current;
    qr_layer_pass blocks = qr_pass_layer(pass);
    if (kept->mlp_kept && kept->attn_kept) { return QRUN_OK; }
    blocks.buffers_only = true;
    qr_timeline_phase(pass->backend, QR_PHASE_recompute);
    if (!kept->mlp_kept && layer->has_mlp) {
        if (kept->streams_in != NULL) {
            QR_RETURN_IF_ERROR(qr_pass_take_input(pass, kept, err));
            QR_RETURN_IF_ERROR(qr_layer_streams_predict(&blocks, layer, err));
        }
        QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->b.x, layer->is_parallel ? kept->x_in : kept->x_mid, err));
        if (layer->is_parallel) { QR_RETURN_IF_ERROR(qr_layer_mlp_norm(&blocks, layer, err)); }
        QR_RETURN_IF_ERROR(qr_layer_mlp(&blocks, layer, err));
        QR_RETURN_IF_ERROR(qr_pass_streams_correct(pass, &blocks, layer, err));
    }
    if (kept->attn_kept || !layer->mixes) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->b.x, kept->x_in, err));
    return qr_layer_attention(&blocks, layer, err);
}

/* Both blocks of a layer. */
static qrun_status layer_backward(qr_train_pass *pass, int64_t l, bool kept_segment, qr_error *err) {
    const qr_layer *layer = &pass->model->layers[l];
    pass->current = &pass->activations.layers[l];
    QR_RETURN_IF_ERROR(qr_pass_check_cancelled(pass, err));
    if (kept_segment) { QR_RETURN_IF_ERROR(compute_again(pass, layer, err)); }
    qr_timeline_phase(pass->backend, QR_PHASE_backward);
    QR_RETURN_IF_ERROR(qr_pass_outputs_backward(pass, layer, err));
    QR_RETURN_IF_ERROR(qr_pass_check_cancelled(pass, err));
    QR_RETURN_IF_ERROR(attention_backward(pass, layer, err));
    return qr_pass_streams_predict_backward(pass, layer, err);
}

qrun_status qr_pass_segment_backward(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    const bool in_tiles = qr_pass_has_tiles(pass);
    if (!segment->kept && !in_tiles) {
        qr_timeline_phase(pass->backend, QR_PHASE_recompute);
        QR_PASS_COMPUTE(pass, qr_pass_take_input(pass, &pass->activations.layers[segment->first], err));
        for (int64_t i = 0; i < segment->n; i++) {
            QR_RETURN_IF_ERROR(qr_pass_run_layer(pass, segment->first + i, i + 1 == segment->n, err));
        }
    }
    /* After the segment's first layer comes the one before it, or the first of a segment that is computed again. */
    const qr_segment *before = segment > pass->activations.segments ? segment - 1 : NULL;
    const int64_t after = before == NULL || before->kept ? segment->first - 1 : before->first;
    for (int64_t i = segment->n; i-- > 0;) {
        const int64_t l = segment->first + i;
        qr_timeline_layer(pass->backend, l);
        QR_RETURN_IF_ERROR(qr_layer_stream_use(pass->model, pass->backend, l, i > 0 ? l - 1 : after, err));
        QR_PASS_COMPUTE(pass, in_tiles ? qr_pass_backward_in_tiles(pass, l, err)
                                       : layer_backward(pass, l, segment->kept, err));
        if (pass->on_layer != NULL) { QR_RETURN_IF_ERROR(pass->on_layer(pass->on_layer_user, l, err)); }
    }
    return QRUN_OK;
}

/* The gradient of a table, where it is trained, from dy [T, cols] of the rows that were looked up. */
static qrun_status table_backward(qr_train_pass *pass, const qr_weight *table, const int32_t *ids, const float *dy,
                                  float scale, qr_error *err) {
    const qr_embedding_backward_args args = {.ids = ids,
                                             .dy = dy,
                                             .dtable = qr_whole_gradient(pass->parameters, table),
                                             .n_tokens = pass->n_tokens,
                                             .dim = table->desc.cols,
                                             .vocab = table->desc.rows,
                                             .scale = scale,
                                             .first_beyond = table == &pass->model->inputs.embedding};
    return args.dtable == NULL ? QRUN_OK : qr_embedding_backward(pass->backend, &args, pass->workspace, err);
}

/* Whether anything that makes the inputs is trained, the token's embedding included. */
static bool makes_trained_inputs(qr_train_pass *pass) {
    const qrun_model *model = pass->model;
    const qr_input_weights *inputs = &model->inputs;
    return qr_lora_pair_of(pass->parameters, &inputs->linear) != NULL ||
           qr_parameters_gradient(pass->parameters, inputs->norm.weight) != NULL ||
           qr_whole_gradient(pass->parameters, &inputs->linear.weight) != NULL ||
           qr_whole_gradient(pass->parameters, &inputs->embedding) != NULL ||
           qr_whole_gradient(pass->parameters, &model->embedding) != NULL;
}

static bool makes_trained_streams(qr_train_pass *pass) {
    for (int64_t i = 1; i < pass->model->shape.n_streams; i++) {
        const qr_linear_layer *linear = &pass->model->stream_ends.in[i - 1];
        if (qr_lora_pair_of(pass->parameters, linear) != NULL ||
            qr_whole_gradient(pass->parameters, &linear->weight) != NULL) {
            return true;
        }
    }
    return false;
}

/* Through the norm, in place. What it normed takes the place of the inputs: nothing reads them any more. */
static qrun_status inputs_norm_backward(qr_train_pass *pass, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_norm *norm = &pass->model->inputs.norm;
    const int64_t columns = s->n_layers * s->layer_input;
    const qr_rms_norm_backward_args args = {.x = pass->b.inputs,
                                            .weight = norm->weight,
                                            .dy = pass->b.dinputs,
                                            .dx = pass->b.dinputs,
                                            .dweight = qr_parameters_gradient(pass->parameters, norm->weight),
                                            .n_rows = pass->n_tokens,
                                            .n_groups = s->n_layers,
                                            .dim = norm->dim,
                                            .x_stride = columns,
                                            .dy_stride = columns,
                                            .dx_stride = columns,
                                            .eps = qr_layer_inputs_eps(s),
                                            .weight_offset = s->norm_offset};
    const qr_layer_pass blocks = qr_pass_layer(pass);
    QR_RETURN_IF_ERROR(qr_layer_inputs_project(&blocks, pass->b.inputs_x, err));
    return qr_rms_norm_backward(pass->backend, &args, pass->workspace, err);
}

/* From dinputs, of all layers, to what makes them; dx grows. */
static qrun_status inputs_backward(qr_train_pass *pass, const qr_layer *none, qr_error *err) {
    (void)none;
    const qr_model_shape *s = &pass->model->shape;
    const qr_input_weights *inputs = &pass->model->inputs;
    const int64_t columns = s->n_layers * s->layer_input;
    const qr_scale_args scale = {
        .x = pass->b.dinputs, .n = pass->n_tokens * columns, .factor = qr_layer_inputs_factor()};
    QR_RETURN_IF_ERROR(qr_scale(pass->backend, &scale, pass->workspace, err));
    QR_RETURN_IF_ERROR(table_backward(pass, &inputs->embedding, pass->b.ids, pass->b.dinputs, s->input_scale, err));
    QR_RETURN_IF_ERROR(inputs_norm_backward(pass, err));
    return qr_pass_linear_backward(pass, &inputs->linear, pass->b.inputs_x, pass->b.dinputs, columns, pass->b.dx, true,
                                   err);
}

/* Through the norm of embeddings, in place. What it normed is looked up again, to where a branch's gradient was. */
static qrun_status embedding_norm_backward(qr_train_pass *pass, const qr_layer *none, qr_error *err) {
    (void)none;
    const qrun_model *model = pass->model;
    const qr_embedding_args tokens = {.table = &model->embedding,
                                      .ids = pass->b.ids,
                                      .dst = pass->b.dbranch,
                                      .n_tokens = pass->n_tokens,
                                      .scale = model->shape.embedding_scale};
    QR_RETURN_IF_ERROR(qr_embedding(pass->backend, &tokens, pass->workspace, err));
    return qr_pass_norm_backward(pass, &model->embedding_norm, pass->b.dbranch, pass->b.dx, pass->b.dx, pass->n_tokens,
                                 false, err);
}

qrun_status qr_pass_embed_backward(qr_train_pass *pass, qr_error *err) {
    const qrun_model *model = pass->model;
    const float *dx = pass->b.dx;
    if (model->embedding_norm.weight != NULL && qr_whole_is_trained(pass->parameters, &model->embedding)) {
        QR_RETURN_IF_ERROR(qr_pass_for_tiles(pass, NULL, embedding_norm_backward, err));
    }
    if (model->shape.n_streams > 0 && (makes_trained_inputs(pass) || makes_trained_streams(pass))) {
        QR_RETURN_IF_ERROR(qr_pass_for_tiles(pass, NULL, qr_pass_streams_enter_backward, err));
    }
    if (model->shape.layer_input > 0 && makes_trained_inputs(pass)) {
        QR_RETURN_IF_ERROR(qr_pass_for_tiles(pass, NULL, inputs_backward, err));
    }
    QR_RETURN_IF_ERROR(table_backward(pass, &model->embedding, pass->b.ids, dx, model->shape.embedding_scale, err));
    return table_backward(pass, &model->position_embedding, pass->b.position, dx, 1.0F, err);
}
