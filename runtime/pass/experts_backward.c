/* The MLP block of a layer with experts, backward: through the experts, where they change with their gradients or those
 * of LoRA on them, and the router. */
#include "runtime/pass/pass_state.h"

#include "runtime/layers/layer_experts.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/pass/lora_parameters.h"
#include "runtime/pass/whole_parameters.h"

/* dx [S, in] = dy W of each slot's expert, or dx += it. dy has rows of D for tokens (gathers), or of M for slots. */
static qrun_status matrices_dx(qr_train_pass *pass, const qr_routing *routing, const qr_weight *weights,
                               const float *dy, int64_t dy_stride, bool gathers, float *dx, bool accumulate,
                               qr_error *err) {
    const int64_t n_rows = gathers ? pass->n_tokens : qr_routing_slots(routing);
    const void *rounded = dy;
    QR_RETURN_IF_ERROR(qr_pass_round_dy(pass, &rounded, &dy_stride, n_rows, weights->desc.rows, err));
    const qr_expert_linear_backward_args args = {.weights = weights,
                                                 .routing = *routing,
                                                 .dy = rounded,
                                                 .dy_dtype = pass->model->act_dtype,
                                                 .dx = dx,
                                                 .dy_stride = dy_stride,
                                                 .dx_stride = weights->desc.cols,
                                                 .gathers = gathers,
                                                 .accumulate = accumulate};
    return qr_expert_linear_backward(pass->backend, &args, pass->workspace, err);
}

/* The gradients of one matrix of every expert and its bias, where they are trained, from what it was fed: x of tokens
 * (gathers) or slots. dy has rows for tokens (shares), or for slots. */
static qrun_status matrices_dw(qr_train_pass *pass, const qr_routing *routing, const qr_weight *weights,
                               const qr_norm *bias, const void *x, bool gathers, const float *dy, int64_t dy_stride,
                               bool shares, qr_error *err) {
    const qr_parameters *p = pass->parameters;
    int64_t stride;
    float *dw = qr_whole_expert_gradients(p, weights, routing->n_experts, &stride);
    if (dw == NULL) { return QRUN_OK; }
    const qr_expert_weight_backward_args args = {.dw = dw,
                                                 .dbias = qr_parameters_gradient(p, bias->weight),
                                                 .routing = *routing,
                                                 .x = x,
                                                 .x_dtype = pass->model->act_dtype,
                                                 .dy = dy,
                                                 .in = weights->desc.cols,
                                                 .out = weights->desc.rows,
                                                 .dw_stride = stride,
                                                 .x_stride = weights->desc.cols,
                                                 .dy_stride = dy_stride,
                                                 .gathers = gathers,
                                                 .shares = shares};
    return qr_expert_weight_backward(pass->backend, &args, pass->workspace, err);
}

/* What LoRA on one of the experts' pairs adds to dx [S, in], and its own gradients. dy has rows of D for tokens
 * (shares), or for slots. x is what the pair was fed: rows of tokens (gathers) or of slots. */
static qrun_status lora_dx(qr_train_pass *pass, const qr_layer *layer, qr_tensor_role role, const qr_routing *routing,
                           const void *x, bool gathers, const float *dy, bool shares, float *dx, qr_error *err) {
    const qr_parameters *p = pass->parameters;
    const qr_lora_pair *pair = qr_lora_pair_of_slot(p, qr_expert_pair_shape_of(pass->model, layer, role).slot);
    if (pair == NULL) { return QRUN_OK; }
    const qr_expert_lora_backward_args args = {.a = p->values + pair->a_offset,
                                               .b = p->values + pair->b_offset,
                                               .da = qr_parameters_gradient(p, p->values + pair->a_offset),
                                               .db = qr_parameters_gradient(p, p->values + pair->b_offset),
                                               .routing = *routing,
                                               .x = x,
                                               .x_dtype = pass->model->act_dtype,
                                               .dy = dy,
                                               .dx = dx,
                                               .in = pair->in,
                                               .out = pair->out,
                                               .x_stride = pair->in,
                                               .dy_stride = pair->out,
                                               .dx_stride = pair->in,
                                               .rank = p->lora.rank,
                                               .scale = p->lora.scale,
                                               .gathers = gathers,
                                               .shares = shares};
    return qr_expert_lora_backward(pass->backend, &args, pass->workspace, err);
}

/* Those of gate and up take their place. */
static qrun_status clamped_gate_backward(qr_train_pass *pass, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(pass);
    float *mlp = pass->current->buffers.experts.mlp;
    const qr_clamped_gate_backward_args args = {.forward = qr_layer_clamped_gate_args(&blocks),
                                                .dy = pass->b.dgated,
                                                .dg = mlp,
                                                .du = mlp + pass->model->shape.expert_mlp,
                                                .dgu_stride = 2 * pass->model->shape.expert_mlp};
    return qr_clamped_gate_backward(pass->backend, &args, pass->workspace, err);
}

/* Without a gate. */
static qrun_status plain_backward(qr_train_pass *pass, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const qr_activation_args forward = qr_layer_expert_activation_args(&blocks);
    const qr_activation_backward_args args = {.fn = forward.fn,
                                              .x = forward.x,
                                              .dy = pass->b.dgated,
                                              .dx = pass->current->buffers.experts.mlp,
                                              .n_rows = forward.n_rows,
                                              .dim = forward.dim,
                                              .x_stride = forward.x_stride,
                                              .dy_stride = forward.dim,
                                              .dx_stride = forward.x_stride};
    return qr_activation_backward(pass->backend, &args, pass->workspace, err);
}

/* The gradients of the shares, and those of gate and up, which overwrite them: nothing reads them any more. */
static qrun_status activation_backward(qr_train_pass *pass, const qr_layer *layer, const qr_routing *routing,
                                       const float *dbranch, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_expert_buffers *b = &pass->current->buffers.experts;
    const qr_expert_share_backward_args share = {.routing = *routing,
                                                 .h = b->gated,
                                                 .h_dtype = pass->model->act_dtype,
                                                 .dh = pass->b.dgated,
                                                 .dshare = pass->b.dshare,
                                                 .dim = s->expert_mlp};
    const qr_gate_backward_args gate = {.fn = s->activation,
                                        .g = b->mlp,
                                        .u = b->mlp + s->expert_mlp,
                                        .dy = pass->b.dgated,
                                        .dg = b->mlp,
                                        .du = b->mlp + s->expert_mlp,
                                        .n_rows = qr_routing_slots(routing),
                                        .dim = s->expert_mlp,
                                        .g_stride = 2 * s->expert_mlp,
                                        .u_stride = 2 * s->expert_mlp,
                                        .dg_stride = 2 * s->expert_mlp,
                                        .du_stride = 2 * s->expert_mlp};
    QR_RETURN_IF_ERROR(qr_expert_share_backward(pass->backend, &share, pass->workspace, err));
    if (layer->expert_out_bias.weight != NULL) {
        const qr_expert_bias_backward_args bias = {.routing = *routing,
                                                   .bias = layer->expert_out_bias.weight,
                                                   .dy = dbranch,
                                                   .dshare = pass->b.dshare,
                                                   .dim = s->hidden};
        QR_RETURN_IF_ERROR(qr_expert_bias_backward(pass->backend, &bias, pass->workspace, err));
    }
    if (layer->expert_up == NULL) { return plain_backward(pass, err); }
    if (s->gate_limit > 0.0F) { return clamped_gate_backward(pass, err); }
    return qr_gate_backward(pass->backend, &gate, pass->workspace, err);
}

/* The gradient of the router's logits takes their place. */
qrun_status qr_pass_router_backward(qr_train_pass *pass, const qr_layer *layer, bool accumulate, qr_error *err) {
    const qr_layer_buffers *b = &pass->current->buffers;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const qr_route_backward_args args = {.logits = b->experts.logits,
                                         .scale = layer->expert_scale.weight,
                                         .routing = qr_layer_routing(&blocks),
                                         .dshare = pass->b.dshare,
                                         .dlogits = b->experts.logits,
                                         .dscale = qr_parameters_gradient(pass->parameters, layer->expert_scale.weight),
                                         .router = qr_layer_router(pass->model)};
    QR_RETURN_IF_ERROR(qr_route_backward(pass->backend, &args, pass->workspace, err));
    QR_RETURN_IF_ERROR(qr_layer_scale_logits(&blocks, b->experts.logits, err));
    return qr_pass_linear_backward(pass, &layer->router, qr_router_input(b), b->experts.logits,
                                   pass->model->shape.n_experts, pass->b.dnormed, accumulate, err);
}

qrun_status qr_pass_shared_share_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->current->buffers;
    const qr_share_rows_backward_args args = {.g = b->experts.shared_share,
                                              .x = b->gated,
                                              .x_dtype = pass->model->act_dtype,
                                              .dx = pass->b.dgated,
                                              .dg = b->experts.shared_share,
                                              .n_rows = pass->n_tokens,
                                              .dim = qr_layer_mlp_size(layer)};
    if (layer->shared_share.weight.desc.rows == 0) { return QRUN_OK; }
    return qr_share_rows_backward(pass->backend, &args, pass->workspace, err);
}

/* Once b.mlp has the gradients of both. */
static qrun_status gate_and_up_dw(qr_train_pass *pass, const qr_layer *layer, const qr_routing *routing,
                                  qr_error *err) {
    const int64_t m = pass->model->shape.expert_mlp, stride = qr_expert_columns(pass->model, m);
    const void *x = qr_expert_input(&pass->current->buffers);
    const float *dy = pass->current->buffers.experts.mlp;
    QR_RETURN_IF_ERROR(
        matrices_dw(pass, routing, layer->expert_gate, &layer->expert_gate_bias, x, true, dy, stride, false, err));
    if (layer->expert_up == NULL) { return QRUN_OK; }
    return matrices_dw(pass, routing, layer->expert_up, &layer->expert_up_bias, x, true, dy + m, stride, false, err);
}

qrun_status qr_pass_experts_backward(qr_train_pass *pass, const qr_layer *layer, const float *dbranch, bool accumulate,
                                     qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const qr_routing routing = qr_layer_routing(&blocks);
    const qr_expert_buffers *b = &pass->current->buffers.experts;
    const int64_t stride = qr_expert_columns(pass->model, s->expert_mlp);
    QR_RETURN_IF_ERROR(qr_layer_fetch_experts(&blocks, layer, err));
    QR_RETURN_IF_ERROR(matrices_dw(pass, &routing, layer->expert_out, &layer->expert_out_bias, b->gated, false, dbranch,
                                   s->hidden, true, err));
    QR_RETURN_IF_ERROR(
        matrices_dx(pass, &routing, layer->expert_out, dbranch, s->hidden, true, pass->b.dgated, false, err));
    QR_RETURN_IF_ERROR(
        lora_dx(pass, layer, QR_ROLE_EXPERT_OUT, &routing, b->gated, false, dbranch, true, pass->b.dgated, err));
    QR_RETURN_IF_ERROR(activation_backward(pass, layer, &routing, dbranch, err));
    QR_RETURN_IF_ERROR(gate_and_up_dw(pass, layer, &routing, err));
    QR_RETURN_IF_ERROR(matrices_dx(pass, &routing, layer->expert_gate, b->mlp, stride, false, b->slots, false, err));
    if (layer->expert_up != NULL) {
        QR_RETURN_IF_ERROR(
            matrices_dx(pass, &routing, layer->expert_up, b->mlp + s->expert_mlp, stride, false, b->slots, true, err));
    }
    QR_RETURN_IF_ERROR(lora_dx(pass, layer, QR_ROLE_EXPERT_GATE, &routing, qr_expert_input(&pass->current->buffers),
                               true, b->mlp, false, b->slots, err));
    const qr_expert_sum_args sum = {.routing = routing,
                                    .src = b->slots,
                                    .dst = pass->b.dnormed,
                                    .dim = s->hidden,
                                    .dst_stride = s->hidden,
                                    .accumulate = accumulate};
    QR_RETURN_IF_ERROR(qr_expert_sum(pass->backend, &sum, pass->workspace, err));
    if (layer->shared_share.weight.desc.rows == 0) { return QRUN_OK; }
    return qr_pass_linear_backward(pass, &layer->shared_share, pass->current->buffers.mlp_normed, b->shared_share, 1,
                                   pass->b.dnormed, true, err);
}
