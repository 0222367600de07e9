/* A convolution between two gates in place of attention (LFM2): a projection to B, C and x side by side in buffers.qkv,
 * B · x in buffers.conved, a causal convolution over its tokens to buffers.recalled, and C · that. Part of
 * layer_recurrent.h; pass/backward_conv.c has the backward part. The state of a layer: the last rows of B · x. */
#ifndef QR_RUNTIME_LAYERS_LAYER_CONV_H
#define QR_RUNTIME_LAYERS_LAYER_CONV_H

#include "runtime/layers/layer.h"

/* The last two of the three steps of layer_recurrent.h. */
qrun_status qr_layer_conv_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_conv_gate(const qr_layer_pass *pass, qr_error *err);

/* The convolution, for the backward part. */
qr_conv1d_causal_args qr_layer_conv_args(const qr_layer_pass *pass, const qr_layer *layer);

#endif
