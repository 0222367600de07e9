/* Sampling: from logits to a token. The token is a pure function of the logits, the sequence so far, and (seed, sample,
 * position): it never depends on what else is in the batch or on when the request came. Temperature, top-k, top-p and
 * min-p are applied by the sample op (kernels/top_k_top_p.h), which the backend runs. Penalties, rules and masks change
 * the logits first: these rows are sampled here, on the host. */
#ifndef QR_RUNTIME_SAMPLING_PENALTIES_H
#define QR_RUNTIME_SAMPLING_PENALTIES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/top_k_top_p.h"
#include "runtime/sampling/logit_rules.h"

typedef struct qr_sampling {
    float temperature;        /* 0: greedy; of equal logits the lowest id */
    int32_t top_k;            /* 0: all */
    float top_p;              /* 1: all; applied to what top_k left */
    float min_p;              /* 0: all; drops tokens less likely than min_p times the most likely one */
    float repetition_penalty; /* on every token of prompt and answer: divides positive logits */
    float presence_penalty, frequency_penalty; /* on tokens of the answer */
    const qr_generation_rules *rules;          /* NULL: none */
    uint64_t seed;
} qr_sampling;

/* Whether penalties or rules change the logits, so that the host has to sample. */
bool qr_sampling_changes_logits(const qr_sampling *sampling);

/* The arguments of the sample op for the token at `position`; the caller sets row and wants_logprob. */
qr_sample_params qr_sampling_op_args(const qr_sampling *sampling, int32_t sample, int64_t position);

/* Scratch for one vocabulary; used by one thread at a time. */
typedef struct qr_sampler qr_sampler;
qrun_status qr_sampler_create(int64_t vocab, qr_sampler **sampler, qr_error *err);
void qr_sampler_destroy(qr_sampler *sampler); /* NULL is fine */

/* The next token, whose position is history->n_tokens, from logits [vocab]. mask (may be NULL) has one bit per id,
 * least significant first: only ids with a set bit can be sampled. −1: every id is excluded. Allocates nothing. */
int32_t qr_sampler_sample(qr_sampler *sampler, const qr_sampling *sampling, const qr_sampling_history *history,
                          int32_t sample, const uint32_t *mask, const float *logits);

/* The n_top most likely ids with log p, best first (n_top ≤ vocab). */
void qr_top_logprobs(const float *logits, int64_t vocab, double log_sum, int32_t n_top, qrun_top_logprob *top);

/* log p of a token, and the n_top most likely ids as above. */
float qr_token_logprobs(const float *logits, int64_t vocab, int32_t token, int32_t n_top, qrun_top_logprob *top);

#endif
