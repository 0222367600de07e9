/* The gated delta rule in place of attention (Qwen3.5): projections side by side in buffers.qkv, a causal convolution
 * over q, k and v, the recurrence, a norm of every head, and a gate. Part of layer.h; pass/backward_delta.c has the
 * backward part.
 *
 * The state of a sequence is one block of floats: for each delta layer the convolution's last rows, then the heads'
 * states. It is a function of the tokens before it alone. It cannot be cut back: to drop the last tokens, a copy from
 * before them is needed, or the sequence is computed again from its beginning. */
#ifndef QR_RUNTIME_LAYERS_LAYER_DELTA_H
#define QR_RUNTIME_LAYERS_LAYER_DELTA_H

#include "runtime/layers/layer.h"

/* Floats of a sequence's state, a multiple of 16; 0 where the model has no delta layers. */
int64_t qr_delta_state_floats(const qr_model_shape *shape);

/* buffers.attended of the tokens in buffers.attn_normed: the three steps below. */
qrun_status qr_layer_delta(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* buffers.qkv of buffers.attn_normed, row by row. */
qrun_status qr_layer_delta_project(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* From there buffers.recalled, along whole sequences. */
qrun_status qr_layer_delta_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* And buffers.attended, row by row again. */
qrun_status qr_layer_delta_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* From the layout of buffers.by_head, [q k v z] of each key head with its value heads and then [b a] of each, to the
 * columns of buffers.qkv; or back, to_heads. */
qrun_status qr_layer_delta_reorder(const qr_layer_pass *pass, const float *src, float *dst, bool to_heads,
                                   qr_error *err);

/* The ops of it, for the backward part. */
qr_conv1d_causal_args qr_layer_conv_args(const qr_layer_pass *pass, const qr_layer *layer);
qr_gated_delta_args qr_layer_recall_args(const qr_layer_pass *pass, const qr_layer *layer);
/* dst's rows, values long, are dst_stride apart. */
qrun_status qr_layer_delta_norm(const qr_layer_pass *pass, const qr_layer *layer, float *dst, int64_t dst_stride,
                                qr_error *err);

#endif
