/* The gated delta rule in place of attention (Qwen3.5): projections side by side in buffers.qkv, a causal convolution
 * over q, k and v, the recurrence, a norm of every head, and a gate. Part of layer_recurrent.h; pass/backward_delta.c
 * has the backward part. The state of a layer: the convolution's last rows, then the heads' states. */
#ifndef QR_RUNTIME_LAYERS_LAYER_DELTA_H
#define QR_RUNTIME_LAYERS_LAYER_DELTA_H

#include "runtime/layers/layer.h"

/* The last two of the three steps of layer_recurrent.h. */
qrun_status qr_layer_delta_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_delta_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* From the layout of buffers.by_head, [q k v z] of each key head with its value heads and then [b a] of each, to the
 * columns of buffers.qkv; or back, to_heads. */
qrun_status qr_layer_delta_reorder(const qr_layer_pass *pass, const float *src, float *dst, bool to_heads,
                                   qr_error *err);

/* The ops of it, for the backward part. */
qr_conv1d_causal_args qr_layer_delta_conv_args(const qr_layer_pass *pass, const qr_layer *layer);
qr_gated_delta_args qr_layer_delta_recall_args(const qr_layer_pass *pass, const qr_layer *layer);
/* dst [T, values] */
qrun_status qr_layer_delta_norm(const qr_layer_pass *pass, const qr_layer *layer, float *dst, qr_error *err);

#endif
