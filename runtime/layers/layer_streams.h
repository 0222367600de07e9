/* Several residual streams in place of one (Gemma 3n's AltUp): N rows of D for every token, pass->streams [T, N, D]. A
 * layer computes with stream 0, which is pass->x meanwhile. Before it, every stream is predicted from all of them;
 * after it, every stream is corrected by what the layer has changed. The layer's own input (layer_inputs.h) goes to the
 * other streams. Here is also the low-rank product beside attention, which comes with them (LAuReL). Part of layer.h;
 * pass/backward_streams.c has the backward part. Nothing happens where a model has one stream. */
#ifndef QR_RUNTIME_LAYERS_LAYER_STREAMS_H
#define QR_RUNTIME_LAYERS_LAYER_STREAMS_H

#include "runtime/layers/layer.h"

/* Elements of a token in the residual stream, or in all of them. */
static inline int64_t qr_stream_columns(const qr_model_shape *shape) {
    return shape->hidden * (shape->n_streams > 0 ? shape->n_streams : 1);
}
/* Coefficients of a token, at most. */
static inline int64_t qr_stream_coef_columns(const qr_model_shape *shape) {
    return shape->n_streams * shape->n_streams;
}

/* pass->streams of the embeddings pass->x and pass->inputs_x. */
qrun_status qr_layer_streams_enter(const qr_layer_pass *pass, qr_error *err);
/* The products in it alone, in all streams but stream 0 of `streams`. */
qrun_status qr_layer_streams_begin(const qr_layer_pass *pass, float *streams, qr_error *err);

/* pass->x of pass->streams after the last layer. pass->stream_work takes what the output projections make; it may be
 * pass->streams. */
qrun_status qr_layer_streams_leave(const qr_layer_pass *pass, qr_error *err);
/* The products in it alone: pass->stream_work, stream 0 as it is. */
qrun_status qr_layer_streams_end(const qr_layer_pass *pass, qr_error *err);
/* The input of the output projection of a stream, from 1 on: pass->stream_x. */
qrun_status qr_layer_stream_round(const qr_layer_pass *pass, int64_t stream, qr_error *err);

/* Before a layer: pass->streams as predicted, and pass->x, its stream 0. */
qrun_status qr_layer_streams_predict(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* After it: pass->streams as corrected by pass->x, and with the layer's input. */
qrun_status qr_layer_streams_correct(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* What either begins with: buffers.branch_normed of x, rows `stride` apart, and pass->stream_coefs of that. `mixes` is
 * the layer's predict or correct. */
qrun_status qr_layer_stream_coefs(const qr_layer_pass *pass, const qr_layer *layer, const qr_norm *mixes,
                                  const float *x, int64_t stride, qr_error *err);
qr_stream_coefs_args qr_layer_stream_coefs_args(const qr_layer_pass *pass, const qr_layer *layer, const qr_norm *mixes);

static inline bool qr_layer_has_residual(const qr_layer *layer) { return layer->residual_norm.dim > 0; }
/* buffers.residual, residual_x and residual_branch of buffers.attn_normed. */
qrun_status qr_layer_residual_make(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* x += the norm of x that attention reads, and the norm of residual_branch. Attention has not been added yet. */
qrun_status qr_layer_residual_add(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* What x is multiplied by after attention has been added too. */
float qr_layer_residual_factor(void);

#endif
