/* From logits to a token. A draw is a pure function of the logits, the sequence so far, and (seed, sample, position):
 * it never depends on what else is in the batch or on when the request came. How a token is drawn is the sample op
 * (kernels/ops.h), which the backend runs; rows whose logits are changed first are drawn here, on the host. */
#ifndef QR_RUNTIME_GENERATE_SAMPLER_H
#define QR_RUNTIME_GENERATE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/sample.h"

typedef struct qr_sampling {
    float temperature;                         /* 0: greedy; of equal logits the lowest id */
    int32_t top_k;                             /* 0: all */
    float top_p;                               /* 1: all; applied to what top_k left */
    float min_p;                               /* 0: all; drops tokens less likely than min_p times the likeliest */
    float repetition_penalty;                  /* on every token of prompt and answer: divides positive logits */
    float presence_penalty, frequency_penalty; /* on tokens of the answer */
    uint64_t seed;
} qr_sampling;

/* Whether penalties change the logits of its draws, so that the host has to draw. */
bool qr_sampling_changes_logits(const qr_sampling *sampling);

/* What the sample op draws with for the token at `position`; row and wants_logprob are the caller's to set. */
qr_sample_draw qr_sampling_draw(const qr_sampling *sampling, int32_t sample, int64_t position);

/* What of the sequence the penalties see. */
typedef struct qr_sampling_history {
    const int32_t *tokens; /* [n_tokens], the prompt first */
    int64_t n_prompt, n_tokens;
} qr_sampling_history;

/* Scratch for one vocabulary, made once; used by one thread at a time. */
typedef struct qr_sampler qr_sampler;
qrun_status qr_sampler_create(int64_t vocab, qr_sampler **sampler, qr_error *err);
void qr_sampler_destroy(qr_sampler *sampler); /* NULL is fine */

/* The next token, whose position is history->n_tokens, from logits [vocab]. mask (may be NULL) has one bit per id,
 * least significant first: only ids with a set bit can be drawn; at least one must be set. Allocates nothing. */
int32_t qr_sampler_draw(qr_sampler *sampler, const qr_sampling *sampling, const qr_sampling_history *history,
                        int32_t sample, const uint32_t *mask, const float *logits);

/* The n_top likeliest ids with log p, best first (n_top ≤ vocab). */
void qr_top_logprobs(const float *logits, int64_t vocab, double log_sum, int32_t n_top, qrun_top_logprob *top);

#endif
