/* A selective state space in place of attention (Mamba-2): one projection to a gate z, then x, B and C, then steps side
 * by side in buffers.qkv; a causal convolution over x, B and C; the state space; and a norm of what it gives, after its
 * gate, or the gate alone. Part of layer_recurrent.h; pass/backward_space.c has the backward part. The state of a
 * layer: the convolution's last rows, then the heads' states. */
#ifndef QR_RUNTIME_LAYERS_LAYER_SPACE_H
#define QR_RUNTIME_LAYERS_LAYER_SPACE_H

#include "runtime/layers/layer.h"

/* The last two of the three steps of layer_recurrent.h. */
qrun_status qr_layer_space_recall(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_space_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* Where buffers.qkv has x, B and C, and steps; z is at 0. */
static inline int64_t qr_space_xbc_at(const qr_recurrent_shape *shape) { return shape->values; }
static inline int64_t qr_space_steps_at(const qr_recurrent_shape *shape) { return shape->values + shape->channels; }

/* In place, where the shape has factors: the gate, x, B, C and steps side by side, or their gradients. */
qrun_status qr_layer_space_scale(const qr_layer_pass *pass, float *columns, qr_error *err);

/* The ops of it, for the backward part. */
qr_conv1d_causal_args qr_layer_space_conv_args(const qr_layer_pass *pass, const qr_layer *layer);
qr_state_space_args qr_layer_space_recall_args(const qr_layer_pass *pass, const qr_layer *layer);
/* dst [T, values] = silu(z) · what the state space gave; F32, unless the caller says */
qr_gate_args qr_layer_space_gate_args(const qr_layer_pass *pass, void *dst);

/* The values of a group have a norm of their own; groups are those that share B and C. */
typedef struct qr_space_group {
    int64_t first, dim; /* values */
} qr_space_group;
static inline qr_space_group qr_space_group_of(const qr_recurrent_shape *shape, int64_t group) {
    const int64_t dim = shape->values / shape->n_key_heads;
    return (qr_space_group){group * dim, dim};
}

#endif
