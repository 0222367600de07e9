/* Multi-head latent attention (DeepSeek-V2, section 2.1): of a token's input come a latent for its queries, one for its
 * keys and values, and the part of all its keys that rotates; the latents are normed, and matrices make heads of them.
 *
 * In training attention sees queries, keys and values as of any layer: [q | k | v] of H heads of HD, the last
 * rotated_dim elements of q and k rotated, and behind the value_dim elements of v zeros.
 *
 * A pass that keeps latents has in its pages one head for all, of kv_rank + rotated_dim elements: the latent after its
 * norm, and the keys' shared part, rotated. A head's key is its matrix times the latent, so q · (W latent) is (Wᵀ q) ·
 * latent: queries take the keys' matrix in (section 2.1.2), attention weighs latents in place of values, and the
 * values' matrix multiplies the sum. Latents are then read as keys and as values both. */
#ifndef QR_RUNTIME_LAYERS_LAYER_LATENT_H
#define QR_RUNTIME_LAYERS_LAYER_LATENT_H

#include "runtime/layers/layer.h"

/* Columns of buffers.latent, and those of them that are of keys and values; of buffers.kv_up. */
int64_t qr_latent_columns(const qr_model_shape *shape);
int64_t qr_latent_kv_columns(const qr_model_shape *shape);
int64_t qr_latent_up_columns(const qr_model_shape *shape);

/* The first element of a head of queries that its rotary tables are for: where they scale queries, of all of them. */
static inline int64_t qr_latent_rotated_from(const qr_model_shape *shape) {
    return shape->temperature_tokens > 0 ? 0 : shape->latent.plain_dim;
}

/* Columns of buffers.qkv that are queries, and elements of a latent in a page, of which each head has a sum. */
static inline int64_t qr_latent_query_columns(const qr_model_shape *shape) { return shape->n_heads * shape->head_dim; }
static inline int64_t qr_latent_attended_columns(const qr_model_shape *shape) {
    return shape->n_heads * qr_latent_kv_columns(shape);
}

/* buffers.qkv as attention takes it, of buffers.attn_normed; of a pass that keeps latents buffers.latent and
 * buffers.absorbed. */
qrun_status qr_layer_latent_heads(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* Of a pass that keeps latents: attention, and buffers.attended. */
qrun_status qr_layer_latent_attend(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

#endif
