/* The MLP block of a layer with experts: router, routed experts, and the sum of what they give. Part of layer.h. */
#ifndef QR_RUNTIME_LAYERS_LAYER_EXPERTS_H
#define QR_RUNTIME_LAYERS_LAYER_EXPERTS_H

#include "runtime/engine/layout.h"
#include "runtime/layers/layer.h"

/* Columns of experts.mlp, of experts of which mlp are made: gate and up side by side, or one where there is no gate. */
static inline int64_t qr_expert_columns(const qrun_model *model, int64_t mlp) {
    return mlp * qr_family_experts_in(model->family);
}
static inline bool qr_layer_has_experts(const qr_layer *layer) { return layer->expert_gate != NULL; }

/* Whether they stand beside a dense MLP, with norms of their own. */
static inline bool qr_layer_experts_beside_mlp(const qr_layer *layer) { return layer->dense_out_norm.dim > 0; }

/* What the router and the experts of a pass read. */
static inline const void *qr_router_input(const qr_layer_buffers *b) {
    return b->experts.router_normed != NULL ? b->experts.router_normed : b->mlp_normed;
}
static inline const void *qr_expert_input(const qr_layer_buffers *b) {
    return b->experts.normed != NULL ? b->experts.normed : b->mlp_normed;
}

/* Where the processor computes experts (host_experts.h), the device makes the router's logits and waits; the same ops
 * run on the processor, beside what the device computes between qr_layer_experts_in and qr_layer_experts_out. */

/* Lays out what route writes for T tokens. */
void qr_expert_routing_lay(const qr_model_shape *shape, int64_t n_tokens, qr_layout *layout, qr_expert_buffers *b);

/* How the model's routers give shares. */
qr_router qr_layer_router(const qrun_model *model);
/* The routing of a pass's tokens. */
qr_routing qr_layer_routing(const qr_layer_pass *pass);

/* The activation of experts where it is that of gpt-oss, for the backward part too. */
qr_clamped_gate_args qr_layer_clamped_gate_args(const qr_layer_pass *pass);
/* The activation of experts without a gate, for the backward part too. */
qr_activation_args qr_layer_expert_activation_args(const qr_layer_pass *pass);

/* Where experts are in host memory: brings those that the routing needs, before anything reads their matrices. */
qrun_status qr_layer_fetch_experts(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* From what the router and the experts read to buffers.experts: the router's logits, the routing, and what enters the
 * experts' last matrices; or to the processor. */
qrun_status qr_layer_experts_in(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* The logits of experts, or their gradient, times the model's factor. */
qrun_status qr_layer_scale_logits(const qr_layer_pass *pass, float *logits, qr_error *err);
/* buffers.gated of the expert that every token goes to, where there is one, times its share: its output is linear in
 * that. */
qrun_status qr_layer_shared_expert_share(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* dst [T, D] = the experts' sum, or dst += it. */
qrun_status qr_layer_experts_out(const qr_layer_pass *pass, const qr_layer *layer, float *dst, bool accumulate,
                                 qr_error *err);

#endif
