/* Rotary frequencies of every scaling rule, as transformers' modeling_rope_utils computes them: default, linear,
 * dynamic NTK, llama3, YaRN, LongRoPE. Where the rule depends on the sequence's length, that length is the one a
 * request can reach, fixed when it is submitted: a token's bits then never depend on how far generation has come. */
#ifndef QR_RUNTIME_MODEL_ROPE_H
#define QR_RUNTIME_MODEL_ROPE_H

#include <stdint.h>

#include "loaders/config/model_config.h"

/* Rotated pairs per head (half the rotary dimension); 0 for a model without rotary positions. */
int64_t qr_rope_half(const qr_model_config *config);

/* Distinct sets of frequencies: 0, 1, or 2 where windowed layers have a base of their own (Gemma 3). */
int32_t qr_rope_kinds(const qr_model_config *config);
int32_t qr_rope_kind(const qr_model_config *config, int64_t layer);

/* inv_freq [half] and the factor on cos and sin for sequences of at most total_tokens. */
void qr_rope_frequencies(const qr_model_config *config, int32_t kind, int64_t total_tokens, float *inv_freq,
                         float *attention_factor);

/* What of total_tokens the frequencies depend on: equal results mean equal frequencies. 0 for rules that do not. Part
 * of the key under which K/V pages are shared. */
int64_t qr_rope_length_class(const qr_model_config *config, int64_t total_tokens);

/* The longest sequence the model is made for. */
int64_t qr_rope_context_tokens(const qr_model_config *config);

#endif
