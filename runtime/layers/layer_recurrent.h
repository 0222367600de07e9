/* A layer that carries a state along a sequence in place of attention: of the gated delta rule (layer_delta.h), a
 * convolution between two gates (layer_conv.h), or a selective state space (layer_space.h). Part of layer.h;
 * pass/backward_recurrent.c has the backward part.
 *
 * The state of a sequence is one block of floats, layer after layer. It is a function of the tokens before it alone. It
 * cannot be cut back: to drop the last tokens, a copy from before them is needed, or the sequence is computed again
 * from its beginning. */
#ifndef QR_RUNTIME_LAYERS_LAYER_RECURRENT_H
#define QR_RUNTIME_LAYERS_LAYER_RECURRENT_H

#include "runtime/layers/layer.h"

/* Floats of a sequence's state, a multiple of 16; 0 where no layer has one. */
int64_t qr_recurrent_state_floats(const qr_model_shape *shape);

/* buffers.attended of the tokens in buffers.attn_normed: the three steps below. */
qrun_status qr_layer_recurrent(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* buffers.qkv of buffers.attn_normed, row by row. */
qrun_status qr_layer_recurrent_project(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* From there buffers.recalled, along whole sequences. */
qrun_status qr_layer_recurrent_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* And buffers.attended, row by row again. */
qrun_status qr_layer_recurrent_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* Of a layer's state, the floats that a convolution's last rows take: they come first. */
int64_t qr_conv_state_floats(const qr_recurrent_shape *shape);
/* The pass's sequences with the part of their states that begins `offset` floats into the layer's. */
qr_recurrence qr_layer_recurrence(const qr_layer_pass *pass, const qr_layer *layer, int64_t offset);

#endif
