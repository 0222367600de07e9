#include "runtime/sampling/penalties.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "runtime/sampling/cutoffs.h"

struct qr_sampler {
    int64_t vocab;
    void *scratch;   /* of kernels/top_k_top_p.h */
    int32_t *counts; /* [vocab], all zero between calls */
    float *biases;   /* the same */
    float *adjusted; /* [vocab] logits after penalties, rules and mask */
};

qrun_status qr_sampler_create(int64_t vocab, qr_sampler **sampler, qr_error *err) {
    *sampler = NULL;
    qr_sampler *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the sampler", sizeof *made); }
    made->vocab = vocab;
    made->scratch = qr_alloc(qr_sample_scratch_bytes(vocab));
    made->counts = qr_alloc_array_zeroed((size_t)vocab, sizeof *made->counts);
    made->biases = qr_alloc_array_zeroed((size_t)vocab, sizeof *made->biases);
    made->adjusted = qr_alloc_array((size_t)vocab, sizeof *made->adjusted);
    if (made->scratch == NULL || made->counts == NULL || made->biases == NULL || made->adjusted == NULL) {
        qr_sampler_destroy(made);
        return qr_fail_memory(err, "the sampler", (unsigned long long)vocab * 24);
    }
    *sampler = made;
    return QRUN_OK;
}

void qr_sampler_destroy(qr_sampler *sampler) {
    if (sampler == NULL) { return; }
    qr_free(sampler->scratch);
    qr_free(sampler->counts);
    qr_free(sampler->biases);
    qr_free(sampler->adjusted);
    qr_free(sampler);
}

/* ---- Penalties and masks ----------------------------------------------------------------------------------------- */

static void penalise_repetition(qr_sampler *sampler, float penalty, const qr_sampling_history *history, float *logits) {
    for (int64_t i = 0; i < history->n_tokens; i++) {
        const int32_t id = history->tokens[i];
        if (sampler->counts[id]++ > 0) { continue; }
        logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
    for (int64_t i = 0; i < history->n_tokens; i++) { sampler->counts[history->tokens[i]] = 0; }
}

static void penalise_answer(qr_sampler *sampler, const qr_sampling *sampling, const qr_sampling_history *history,
                            float *logits) {
    for (int64_t i = history->n_prompt; i < history->n_tokens; i++) { sampler->counts[history->tokens[i]]++; }
    for (int64_t i = history->n_prompt; i < history->n_tokens; i++) {
        const int32_t id = history->tokens[i];
        if (sampler->counts[id] == 0) { continue; }
        logits[id] -= sampling->presence_penalty + sampling->frequency_penalty * (float)sampler->counts[id];
        sampler->counts[id] = 0;
    }
}

static void apply_mask(const uint32_t *mask, int64_t vocab, float *logits) {
    for (int64_t i = 0; mask != NULL && i < vocab; i++) {
        if ((mask[i / 32] >> (i % 32) & 1U) == 0) { logits[i] = -INFINITY; }
    }
}

/* ---- Sampling ---------------------------------------------------------------------------------------------------- */

bool qr_sampling_changes_logits(const qr_sampling *sampling) {
    return sampling->repetition_penalty != 1.0F || sampling->presence_penalty != 0.0F ||
           sampling->frequency_penalty != 0.0F || sampling->rules != NULL;
}

qr_sample_params qr_sampling_op_args(const qr_sampling *sampling, int32_t sample, int64_t position) {
    return (qr_sample_params){.uniform = qr_random_uniform(sampling->seed, (uint64_t)sample, (uint64_t)position),
                              .temperature = sampling->temperature,
                              .top_k = sampling->top_k,
                              .top_p = sampling->top_p,
                              .min_p = sampling->min_p};
}

/* The logits to sample from: unchanged, or a copy with penalties, rules and mask applied. */
static const float *adjust(qr_sampler *sampler, const qr_sampling *sampling, const qr_sampling_history *history,
                           const uint32_t *mask, const float *logits) {
    if (!qr_sampling_changes_logits(sampling) && mask == NULL) { return logits; }
    const qr_generation_rules *rules = sampling->rules;
    float *adjusted = sampler->adjusted;
    memcpy(adjusted, logits, (size_t)sampler->vocab * sizeof *logits);
    if (rules != NULL) {
        qr_logit_rules_favour(rules, history, sampler->vocab, sampler->biases, sampler->counts, adjusted);
    }
    if (sampling->repetition_penalty != 1.0F) {
        penalise_repetition(sampler, sampling->repetition_penalty, history, adjusted);
    }
    if (sampling->presence_penalty != 0.0F || sampling->frequency_penalty != 0.0F) {
        penalise_answer(sampler, sampling, history, adjusted);
    }
    if (rules != NULL) { qr_logit_rules_restrict(rules, history, sampler->vocab, adjusted); }
    apply_mask(mask, sampler->vocab, adjusted);
    return adjusted;
}

static bool all_excluded(const float *logits, int64_t vocab) {
    int64_t i = 0;
    while (i < vocab && logits[i] == -INFINITY) { i++; }
    return i == vocab;
}

int32_t qr_sampler_sample(qr_sampler *sampler, const qr_sampling *sampling, const qr_sampling_history *history,
                          int32_t sample, const uint32_t *mask, const float *logits) {
    const qr_sample_params args = qr_sampling_op_args(sampling, sample, history->n_tokens);
    const qr_sample_scratch scratch = qr_sample_scratch_at(sampler->scratch, sampler->vocab);
    const float *adjusted = adjust(sampler, sampling, history, mask, logits);
    if (all_excluded(adjusted, sampler->vocab)) { return -1; }
    if (sampling->temperature > 0 && sampling->rules != NULL && qr_cutoffs_are_on(sampling->rules)) {
        const int64_t n = qr_sample_filter(&args, adjusted, sampler->vocab, &scratch);
        const qr_id_range kept = qr_cutoffs_apply(sampling->rules, scratch.weights, n);
        const int64_t i = qr_sample_weights(scratch.weights + kept.first, kept.end - kept.first, args.uniform);
        return scratch.heap[sampler->vocab - 1 - (kept.first + i)];
    }
    return qr_sample_token(&args, adjusted, sampler->vocab, &scratch);
}

/* ---- Log probabilities ------------------------------------------------------------------------------------------- */

void qr_top_logprobs(const float *logits, int64_t vocab, double log_sum, int32_t n_top, qrun_top_logprob *top) {
    int32_t n = 0;
    for (int64_t i = 0; i < vocab; i++) {
        const float logprob = (float)((double)logits[i] - log_sum);
        if (n == n_top && (n == 0 || !(logprob > top[n - 1].logprob))) { continue; }
        int32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && logprob > top[at - 1].logprob; at--) { top[at] = top[at - 1]; }
        top[at] = (qrun_top_logprob){(int32_t)i, logprob};
    }
}

float qr_token_logprobs(const float *logits, int64_t vocab, int32_t token, int32_t n_top, qrun_top_logprob *top) {
    const double log_sum = qr_log_sum_exp(logits, vocab);
    qr_top_logprobs(logits, vocab, log_sum, n_top, top);
    return (float)((double)logits[token] - log_sum);
}
