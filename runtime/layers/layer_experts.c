#include "runtime/layers/layer_experts.h"

#include "runtime/layers/layer_adapters.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/model/host_experts.h"
#include "runtime/model/split.h"

/* Of M and of D, the columns of experts that this rank makes: all where the model is whole. */
static int64_t own_mlp(const qr_layer_pass *pass) {
    return qr_split_own(&pass->model->split, pass->model->shape.expert_mlp);
}
static int64_t own_hidden(const qr_layer_pass *pass) {
    return qr_split_own(&pass->model->split, pass->model->shape.hidden);
}

void qr_expert_routing_lay(const qr_model_shape *shape, int64_t n_tokens, qr_layout *layout, qr_expert_buffers *b) {
    const int64_t n_slots = n_tokens * shape->experts_per_token;
    QR_LAY(layout, b->logits, n_tokens * shape->n_experts, sizeof *b->logits);
    QR_LAY(layout, b->expert, n_slots, sizeof *b->expert);
    QR_LAY(layout, b->slot, n_slots, sizeof *b->slot);
    QR_LAY(layout, b->slot_row, n_slots, sizeof *b->slot_row);
    QR_LAY(layout, b->share, n_slots, sizeof *b->share);
    if (shape->shared_mlp > 0) { QR_LAY(layout, b->shared_share, n_tokens, sizeof *b->shared_share); }
    QR_LAY(layout, b->expert_start, shape->n_experts + 1, sizeof *b->expert_start);
}

qr_router qr_layer_router(const qrun_model *model) {
    const qr_expert_config *experts = &model->config.experts;
    return (qr_router){.is_sigmoid = experts->has_sigmoid_router,
                       .normalize = experts->normalizes,
                       .eps = (float)experts->sum_eps,
                       .factor = (float)experts->share_factor,
                       .n_groups = (int32_t)experts->n_groups,
                       .top_groups = (int32_t)experts->n_top_groups,
                       .chooses_by_logits = experts->chooses_by_logits};
}

qr_routing qr_layer_routing(const qr_layer_pass *pass) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_expert_buffers *b = &pass->buffers.experts;
    return (qr_routing){.expert = b->expert,
                        .slot = b->slot,
                        .slot_row = b->slot_row,
                        .share = b->share,
                        .expert_start = b->expert_start,
                        .n_rows = pass->n_tokens,
                        .n_experts = (int32_t)s->n_experts,
                        .top_k = (int32_t)s->experts_per_token};
}

qrun_status qr_layer_fetch_experts(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_expert_fetch_args args = {.routing = qr_layer_routing(pass),
                                       .host = qr_host_experts_of_layer(model, layer),
                                       .device = model->host_experts.stage,
                                       .n_bytes = (int64_t)qr_host_experts_bytes_each(model, layer)};
    const bool fetches = model->host_experts.used && !model->host_experts.computed;
    return fetches ? qr_layer_op_expert_fetch(pass, &args, err) : QRUN_OK;
}

/* y [slots, own M], rows of all such columns apart, of the normed rows of the slots' tokens. */
static qrun_status run_expert_in(const qr_layer_pass *pass, const qr_routing *routing, const qr_weight *weights,
                                 float *y, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_expert_linear_args args = {.weights = weights,
                                        .routing = *routing,
                                        .x = qr_expert_input(&pass->buffers),
                                        .x_dtype = pass->model->act_dtype,
                                        .y = y,
                                        .x_stride = s->hidden,
                                        .y_stride = qr_expert_columns(pass->model, own_mlp(pass)),
                                        .gathers = true};
    return qr_layer_op_expert_linear(pass, &args, err);
}

/* LoRA on one of the experts' pairs: y [slots, out] += it, for rows whose adapters have it. */
static qrun_status run_expert_lora(const qr_layer_pass *pass, const qr_layer *layer, qr_tensor_role role, const void *x,
                                   bool gathers, float *y, qr_error *err) {
    const qr_layer_adapters *adapters = &pass->adapters;
    const qr_expert_pair_shape shape = qr_expert_pair_shape_of(pass->model, layer, role);
    if (adapters->table == NULL || (adapters->pair_of_slot != NULL && adapters->pair_of_slot[shape.slot] < 0)) {
        return QRUN_OK;
    }
    const qr_expert_lora_args args = {.factors = adapters->table + (int64_t)shape.slot * adapters->n_adapters,
                                      .row_adapter = adapters->row_adapter,
                                      .routing = qr_layer_routing(pass),
                                      .x = x,
                                      .x_dtype = pass->model->act_dtype,
                                      .y = y,
                                      .in = shape.in,
                                      .out = shape.out,
                                      .x_stride = shape.in,
                                      .y_stride = shape.out,
                                      .n_adapters = adapters->n_adapters,
                                      .gathers = gathers};
    return qr_layer_op_expert_lora(pass, &args, err);
}

/* The biases of the experts' matrices, where they have any. */
static qrun_status add_bias(const qr_layer_pass *pass, const qr_routing *routing, const qr_norm *bias, float *y,
                            int64_t y_stride, qr_error *err) {
    if (bias->weight == NULL) { return QRUN_OK; }
    const qr_expert_bias_args args = {
        .routing = *routing, .bias = bias->weight, .y = y, .dim = bias->dim / routing->n_experts, .y_stride = y_stride};
    return qr_layer_op_expert_bias(pass, &args, err);
}

qr_clamped_gate_args qr_layer_clamped_gate_args(const qr_layer_pass *pass) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_expert_buffers *b = &pass->buffers.experts;
    return (qr_clamped_gate_args){.g = b->mlp,
                                  .u = b->mlp + own_mlp(pass),
                                  .dst = b->gated,
                                  .dst_dtype = pass->model->act_dtype,
                                  .n_rows = pass->n_tokens * s->experts_per_token,
                                  .dim = own_mlp(pass),
                                  .stride = 2 * own_mlp(pass),
                                  .alpha = s->gate_alpha,
                                  .limit = s->gate_limit};
}

qr_activation_args qr_layer_expert_activation_args(const qr_layer_pass *pass) {
    const qr_expert_buffers *b = &pass->buffers.experts;
    return (qr_activation_args){.fn = pass->model->shape.activation,
                                .x = b->mlp,
                                .dst = b->gated,
                                .dst_dtype = pass->model->act_dtype,
                                .n_rows = pass->n_tokens * pass->model->shape.experts_per_token,
                                .dim = own_mlp(pass),
                                .x_stride = own_mlp(pass)};
}

static qrun_status run_gate(const qr_layer_pass *pass, qr_error *err) {
    const qr_activation_args alone = qr_layer_expert_activation_args(pass);
    const qr_clamped_gate_args clamped = qr_layer_clamped_gate_args(pass);
    const qr_gate_args gate = {.fn = pass->model->shape.activation,
                               .g = clamped.g,
                               .u = clamped.u,
                               .dst = clamped.dst,
                               .dst_dtype = clamped.dst_dtype,
                               .n_rows = clamped.n_rows,
                               .dim = clamped.dim,
                               .g_stride = clamped.stride,
                               .u_stride = clamped.stride};
    if (qr_family_experts_in(pass->model->family) == 1) { return qr_layer_op_activation(pass, &alone, err); }
    return clamped.limit > 0.0F ? qr_layer_op_clamped_gate(pass, &clamped, err) : qr_layer_op_gate(pass, &gate, err);
}

qrun_status qr_layer_scale_logits(const qr_layer_pass *pass, float *logits, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_scale_args args = {.x = logits, .n = pass->n_tokens * s->n_experts, .factor = s->router_scale};
    return s->router_scale == 1.0F ? QRUN_OK : qr_layer_op_scale(pass, &args, err);
}

/* experts.gated, of which each rank has made its columns. */
static qrun_status gather_slots(const qr_layer_pass *pass, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_gather gated = {.memory = pass->buffers.experts.gated,
                             .n_rows = pass->n_tokens * s->experts_per_token,
                             .n_columns = s->expert_mlp,
                             .unit = qr_split_unit(&pass->model->split, s->expert_mlp),
                             .dtype = pass->model->act_dtype};
    return qr_layer_gather(pass, &gated, err);
}

/* From logits to experts.gated: the routing, and what enters the experts' last matrices. */
static qrun_status run_experts_in(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_expert_buffers *b = &pass->buffers.experts;
    const qr_route_args route = {.logits = b->logits,
                                 .scale = layer->expert_scale.weight,
                                 .routing = qr_layer_routing(pass),
                                 .choice_bias = layer->choice_bias.weight,
                                 .router = qr_layer_router(model)};
    const int64_t mlp = own_mlp(pass), stride = qr_expert_columns(model, mlp);
    QR_RETURN_IF_ERROR(qr_layer_op_route(pass, &route, err));
    QR_RETURN_IF_ERROR(qr_layer_fetch_experts(pass, layer, err));
    QR_RETURN_IF_ERROR(run_expert_in(pass, &route.routing, layer->expert_gate, b->mlp, err));
    if (layer->expert_up != NULL) {
        QR_RETURN_IF_ERROR(run_expert_in(pass, &route.routing, layer->expert_up, b->mlp + mlp, err));
    }
    QR_RETURN_IF_ERROR(
        run_expert_lora(pass, layer, QR_ROLE_EXPERT_GATE, qr_expert_input(&pass->buffers), true, b->mlp, err));
    QR_RETURN_IF_ERROR(add_bias(pass, &route.routing, &layer->expert_gate_bias, b->mlp, stride, err));
    QR_RETURN_IF_ERROR(add_bias(pass, &route.routing, &layer->expert_up_bias, b->mlp + mlp, stride, err));
    QR_RETURN_IF_ERROR(run_gate(pass, err));
    return gather_slots(pass, err);
}

/* ---- On the processor -------------------------------------------------------------------------------------------- */

static qr_layer_pass processor_pass(const qr_layer_pass *pass) {
    qr_layer_pass on_processor = *pass->processor;
    on_processor.n_tokens = pass->n_tokens;
    return on_processor;
}

/* What the processor needs of the device: logits, and what the experts read. It waits for them; what the device is
 * given next runs beside the processor's part. */
static qrun_status send_to_processor(const qr_layer_pass *pass, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_buffers *from = &pass->buffers, *to = &pass->processor->buffers;
    const size_t logits_bytes = (size_t)(pass->n_tokens * s->n_experts) * sizeof(float);
    const size_t x_bytes = (size_t)(pass->n_tokens * s->hidden) * qr_dtype_bytes(pass->model->act_dtype);
    qr_backend *backend = pass->backend;
    uint64_t ticket;
    if (pass->ops != NULL) { QR_RETURN_IF_ERROR(qr_op_list_end(pass->ops, backend, pass->workspace, err)); }
    QR_RETURN_IF_ERROR(
        backend->transfer_out(backend, to->experts.logits, from->experts.logits, logits_bytes, &ticket, err));
    QR_RETURN_IF_ERROR(backend->transfer_out(backend, to->mlp_normed, qr_expert_input(from), x_bytes, &ticket, err));
    return backend->sync(backend, err);
}

/* dst [T, D] = what the processor has made, or dst += it. The host's memory stays until the next layer waits. */
static qrun_status take_from_processor(const qr_layer_pass *pass, float *dst, bool accumulate, qr_error *err) {
    const int64_t n = pass->n_tokens * pass->model->shape.hidden;
    float *taken = accumulate ? pass->buffers.experts.slots : dst;
    const qr_add_args add = {.x = dst, .y = taken, .n = n};
    qr_backend *backend = pass->backend;
    if (pass->ops != NULL) { QR_RETURN_IF_ERROR(qr_op_list_end(pass->ops, backend, pass->workspace, err)); }
    QR_RETURN_IF_ERROR(backend->copy_in_async(backend, taken, pass->processor->x, (size_t)n * sizeof(float), err));
    return accumulate ? qr_layer_op_add(pass, &add, err) : QRUN_OK;
}

/* ---- The block --------------------------------------------------------------------------------------------------- */

qrun_status qr_layer_experts_in(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    float *logits = pass->buffers.experts.logits;
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->router, qr_router_input(&pass->buffers), logits,
                                       pass->model->shape.n_experts, false, err));
    QR_RETURN_IF_ERROR(qr_layer_scale_logits(pass, logits, err));
    return pass->processor != NULL ? send_to_processor(pass, err) : run_experts_in(pass, layer, err);
}

qrun_status qr_layer_shared_expert_share(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    float *share = pass->buffers.experts.shared_share;
    const qr_share_rows_args args = {.g = share,
                                     .x = pass->buffers.gated,
                                     .x_dtype = pass->model->act_dtype,
                                     .n_rows = pass->n_tokens,
                                     .dim = qr_layer_own_mlp_size(pass->model, layer)};
    if (layer->shared_share.weight.desc.rows == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->shared_share, pass->buffers.mlp_normed, share, 1, false, err));
    return qr_layer_op_share_rows(pass, &args, err);
}

/* dst [T, D] (+)= the sum of what the experts make of experts.gated. */
static qrun_status run_experts_out(const qr_layer_pass *pass, const qr_layer *layer, float *dst, bool accumulate,
                                   qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_expert_buffers *b = &pass->buffers.experts;
    const qr_expert_linear_args out = {.weights = layer->expert_out,
                                       .routing = qr_layer_routing(pass),
                                       .x = b->gated,
                                       .x_dtype = pass->model->act_dtype,
                                       .y = b->slots,
                                       .x_stride = s->expert_mlp,
                                       .y_stride = own_hidden(pass)};
    const qr_expert_sum_args sum = {.routing = out.routing,
                                    .src = b->slots,
                                    .dst = dst + layer->expert_share[2].ranges[0].first,
                                    .dim = own_hidden(pass),
                                    .dst_stride = s->hidden,
                                    .by_share = true,
                                    .accumulate = accumulate};
    QR_RETURN_IF_ERROR(qr_layer_op_expert_linear(pass, &out, err));
    QR_RETURN_IF_ERROR(run_expert_lora(pass, layer, QR_ROLE_EXPERT_OUT, b->gated, false, b->slots, err));
    QR_RETURN_IF_ERROR(add_bias(pass, &out.routing, &layer->expert_out_bias, b->slots, own_hidden(pass), err));
    return qr_layer_op_expert_sum(pass, &sum, err);
}

static qrun_status compute_on_processor(const qr_layer_pass *pass, const qr_layer *layer, float *dst, bool accumulate,
                                        qr_error *err) {
    const qr_layer_pass on_processor = processor_pass(pass);
    QR_RETURN_IF_ERROR(run_experts_in(&on_processor, layer, err));
    QR_RETURN_IF_ERROR(run_experts_out(&on_processor, layer, on_processor.x, false, err));
    return take_from_processor(pass, dst, accumulate, err);
}

qrun_status qr_layer_experts_out(const qr_layer_pass *pass, const qr_layer *layer, float *dst, bool accumulate,
                                 qr_error *err) {
    QR_RETURN_IF_ERROR(
        (pass->processor != NULL ? compute_on_processor : run_experts_out)(pass, layer, dst, accumulate, err));
    if (layer->mlp_out.weight.desc.rows == 0 || qr_layer_experts_beside_mlp(layer)) { return QRUN_OK; }
    return qr_layer_linear(pass, &layer->mlp_out, pass->buffers.gated, dst, pass->model->shape.hidden, true, err);
}
