/* Multi-head latent attention (DeepSeek-V2, section 2.1): of a token's input come a latent for its queries, one for its
 * keys and values, and the part of all its keys that rotates; the latents are normed, and matrices make heads of them.
 * Attention then sees queries, keys and values as of any layer: [q | k | v] of H heads of HD, the last rotated_dim
 * elements of q and k rotated, and behind the value_dim elements of v zeros. */
#ifndef QR_RUNTIME_LAYERS_LAYER_LATENT_H
#define QR_RUNTIME_LAYERS_LAYER_LATENT_H

#include "runtime/layers/layer.h"

/* Columns of buffers.latent, and those of them that are of keys and values; of buffers.kv_up. */
int64_t qr_latent_columns(const qr_model_shape *shape);
int64_t qr_latent_kv_columns(const qr_model_shape *shape);
int64_t qr_latent_up_columns(const qr_model_shape *shape);

/* Whether attention puts out more of a head than the last matrix reads: zeros behind its values. */
static inline bool qr_latent_pads_values(const qr_model_shape *shape) {
    return shape->latent.kv_rank > 0 && shape->latent.value_dim < shape->head_dim;
}

/* buffers.qkv as attention takes it, of buffers.attn_normed. */
qrun_status qr_layer_latent_heads(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* buffers.attended of buffers.ungated, without the columns behind values. */
qrun_status qr_layer_latent_take_values(const qr_layer_pass *pass, qr_error *err);

#endif
