/* The gated delta rule in place of attention (Qwen3.5): projections side by side in buffers.qkv, a causal convolution
 * over q, k and v, the recurrence, a norm of every head, and a gate. Part of layer_recurrent.h; pass/backward_delta.c
 * has the backward part. Kimi delta attention makes the gate z and the decays a of latents: two matrices each. The
 * state of a layer: the convolution's last rows, then the heads' states. */
#ifndef QR_RUNTIME_LAYERS_LAYER_DELTA_H
#define QR_RUNTIME_LAYERS_LAYER_DELTA_H

#include "runtime/layers/layer.h"

/* Which latent a matrix of attn_in reads, 0 of z or 1 of a; −1: it reads the layer's input. */
static inline int qr_delta_latent_of(const qr_recurrent_shape *shape, int i) {
    enum { OF_Z = 3, OF_A = 5 }; /* after q, k and v; after b */
    return shape->gate_rank == 0 ? -1 : i == OF_Z ? 0 : i == OF_A ? 1 : -1;
}
static inline int64_t qr_delta_latent_columns(const qr_recurrent_shape *shape) {
    return QR_DELTA_LATENTS * shape->gate_rank;
}

/* buffers.z_latent and a_latent, and what buffers.qkv has of them, from buffers.attn_normed. */
qrun_status qr_layer_delta_latents(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* The last two of the three steps of layer_recurrent.h. */
qrun_status qr_layer_delta_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_delta_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* From the layout of buffers.by_head, [q k v z] of each key head with its value heads and then [b a] of each, to the
 * columns of buffers.qkv; or back, to_heads. */
qrun_status qr_layer_delta_reorder(const qr_layer_pass *pass, const float *src, float *dst, bool to_heads,
                                   qr_error *err);

/* What opens by z. */
static inline qr_act_fn qr_delta_gate_fn(const qr_recurrent_shape *shape) {
    return shape->gate_rank > 0 ? QR_ACT_SIGMOID : QR_ACT_SILU;
}

/* The ops of it, for the backward part. */
qr_conv1d_causal_args qr_layer_delta_conv_args(const qr_layer_pass *pass, const qr_layer *layer);
qr_gated_delta_args qr_layer_delta_recall_args(const qr_layer_pass *pass, const qr_layer *layer);
/* dst [T, values] */
qrun_status qr_layer_delta_norm(const qr_layer_pass *pass, const qr_layer *layer, float *dst, qr_error *err);

#endif
