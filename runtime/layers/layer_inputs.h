/* Inputs of every token to each layer (Gemma 4's E models). They come from the token's embedding and from a table of
 * their own, P elements for each layer. Here is also what a layer does with its own, after its MLP. Part of layer.h;
 * pass/backward.c has the backward part. */
#ifndef QR_RUNTIME_LAYERS_LAYER_INPUTS_H
#define QR_RUNTIME_LAYERS_LAYER_INPUTS_H

#include "runtime/layers/layer.h"

/* pass->inputs [T, L, P] of the tokens whose embeddings x [T, D] is. Nothing where the model has no inputs. */
qrun_status qr_layer_inputs_make(const qr_layer_pass *pass, const int32_t *ids, qr_error *err);

/* Of them, what comes from the embeddings, before its norm. x: act [T, D], rounded from pass->x. */
qrun_status qr_layer_inputs_project(const qr_layer_pass *pass, const void *x, qr_error *err);

/* The norm's epsilon: products are divided by √D before it, which multiplies them here as well. */
float qr_layer_inputs_eps(const qr_model_shape *shape);

/* What the sum of both parts is multiplied by. */
float qr_layer_inputs_factor(void);

static inline bool qr_layer_has_input(const qr_layer *layer) { return layer->input_gate.weight.desc.rows > 0; }

/* buffers.input_gated of buffers.input_x. */
qrun_status qr_layer_input_gated(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* x += the block of the layer's input. Not where there are several residual streams. */
qrun_status qr_layer_add_input(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

#endif
