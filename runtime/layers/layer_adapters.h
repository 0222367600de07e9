/* A linear layer with the adapters of a pass on it: y = W x + bias and, of each row's adapter, LoRA, LoRA after
 * dropout, or DoRA. Part of layer.h; pass/backward.c has the backward part. */
#ifndef QR_RUNTIME_LAYERS_LAYER_ADAPTERS_H
#define QR_RUNTIME_LAYERS_LAYER_ADAPTERS_H

#include "runtime/layers/layer.h"

/* y = the layer's output for x [T, in] contiguous, or y += it; y's rows y_stride apart, out_offset columns in. */
qrun_status qr_layer_linear(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x, float *y,
                            int64_t y_stride, bool accumulate, qr_error *err);

/* What the adapter of a layer is fed: x, or with dropout what is left of it, in pass->dropout.dropped. */
qrun_status qr_layer_adapter_input(const qr_layer_pass *pass, const qr_linear_layer *linear, const void **x,
                                   qr_error *err);

/* buffers.dora [T, out] = W x + scale · B A x, without bias, for rows of DoRA adapters: what DoRA scales. `update`
 * false: W x alone. x is the adapter's input. */
qrun_status qr_layer_dora_sum(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x, bool update,
                              qr_error *err);

/* dora over rows [T, out]. */
qr_dora_args qr_layer_dora_args(const qr_layer_pass *pass, const qr_linear_layer *linear, const float *src,
                                int64_t src_stride, float *dst, int64_t dst_stride);

#endif
