/* Backward of a linear layer: through its frozen matrix, and through the adapter on it (LoRA, dropout, DoRA). */
#ifndef QR_RUNTIME_TRAIN_ADAPTER_BACKWARD_H
#define QR_RUNTIME_TRAIN_ADAPTER_BACKWARD_H

#include "runtime/model/layer_adapters.h"
#include "runtime/train/lora_parameters.h"

/* Where it computes; device memory, T tokens. */
typedef struct qr_adapter_backward {
    qr_layer_pass pass; /* as in the forward pass: adapters, dropout, buffers.dora */
    const qr_parameters *parameters;
    void *dy;        /* [T, widest output] act: a gradient before its product with weights */
    float *ddropped; /* [T, widest adapted input], with dropout */
} qr_adapter_backward;

/* dx [T, in] = dy W, or dx += it; dy's rows [out], F32, dy_stride apart. */
qrun_status qr_linear_dx(const qr_adapter_backward *backward, const qr_linear_layer *linear, const float *dy,
                         int64_t dy_stride, float *dx, bool accumulate, qr_error *err);

/* The same of a layer with an adapter, whose gradients grow. x is what the layer was fed. */
qrun_status qr_adapter_dx(const qr_adapter_backward *backward, const qr_linear_layer *linear, const qr_lora_pair *pair,
                          const void *x, const float *dy, int64_t dy_stride, float *dx, bool accumulate, qr_error *err);

#endif
