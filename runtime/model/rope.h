/* Rotary frequencies of every scaling rule, as transformers' modeling_rope_utils computes them: default, linear,
 * dynamic NTK, llama3, YaRN, LongRoPE, proportional.
 *
 * Dynamic NTK and LongRoPE depend on the length of the sequence. One of n_tokens that may grow to most_tokens has the
 * plain (or short) frequencies while it is no longer than the model was trained for. Beyond that it has those of
 * most_tokens, so they change once at most, and its keys are then rotated again. So the frequencies depend on the
 * sequence alone. A sequence that does not grow, in training or evaluation, has most_tokens = n_tokens. */
#ifndef QR_RUNTIME_MODEL_ROPE_H
#define QR_RUNTIME_MODEL_ROPE_H

#include <stdint.h>

#include "loaders/config/model_config.h"

/* Rotated pairs per head (half the rotary dimension) of a kind of tables; 0 for a model without rotary positions. */
int64_t qr_rope_half(const qr_model_config *config, int32_t kind);

/* Kinds of tables: 0, 1, or 2 where windowed layers have a base of their own (Gemma 3 and 4), or where queries are
 * scaled by their position (Ministral 3) and their tables with them. With latent attention those of queries are for
 * whole heads (Mistral 4): pairs of frequency 0 come first. */
int32_t qr_rope_kinds(const qr_model_config *config);

/* Which kind rotates the keys of a layer, and which its queries; QR_ROPE_NONE: they are not rotated. */
enum { QR_ROPE_NONE = -1 };
int32_t qr_rope_key_kind(const qr_model_config *config, int64_t layer);
int32_t qr_rope_query_kind(const qr_model_config *config, int64_t layer);

/* inv_freq [half] and the factor on cos and sin. */
void qr_rope_frequencies(const qr_model_config *config, int32_t kind, int64_t n_tokens, int64_t most_tokens,
                         float *inv_freq, float *attention_factor);

/* What of the lengths the frequencies depend on: equal results mean equal frequencies. 0 for rules that do not, and
 * for short sequences. Part of the key under which K/V pages are shared. */
int64_t qr_rope_length_class(const qr_model_config *config, int64_t n_tokens, int64_t most_tokens);

/* The longest sequence of length class 0; INT64_MAX where no rule depends on the length. */
int64_t qr_rope_short_tokens(const qr_model_config *config);

/* The longest sequence the model is made for. */
int64_t qr_rope_context_tokens(const qr_model_config *config);

/* What the scores of latent attention are multiplied by where YaRN has mscale_all_dim; else 1. */
double qr_rope_score_factor(const qr_model_config *config);

#endif
