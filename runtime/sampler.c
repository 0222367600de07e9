#include "runtime/sampler.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"

struct qr_sampler {
    int64_t vocab;
    int32_t *heap;   /* [vocab] ids; the likeliest on top, then the chosen ones in order at the end */
    int32_t *counts; /* [vocab], all zero between draws */
    double *weights; /* [vocab] of the ids taken off the heap */
    float *adjusted; /* [vocab] logits after penalties and mask */
};

qrun_status qr_sampler_create(int64_t vocab, qr_sampler **sampler, qr_error *err) {
    *sampler = NULL;
    qr_sampler *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the sampler", sizeof *made); }
    made->vocab = vocab;
    made->heap = qr_alloc_array((size_t)vocab, sizeof *made->heap);
    made->counts = qr_alloc_array_zeroed((size_t)vocab, sizeof *made->counts);
    made->weights = qr_alloc_array((size_t)vocab, sizeof *made->weights);
    made->adjusted = qr_alloc_array((size_t)vocab, sizeof *made->adjusted);
    if (made->heap == NULL || made->counts == NULL || made->weights == NULL || made->adjusted == NULL) {
        qr_sampler_destroy(made);
        return qr_fail_memory(err, "the sampler", (unsigned long long)vocab * 20);
    }
    *sampler = made;
    return QRUN_OK;
}

void qr_sampler_destroy(qr_sampler *sampler) {
    if (sampler == NULL) { return; }
    qr_free(sampler->heap);
    qr_free(sampler->counts);
    qr_free(sampler->weights);
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

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* Of a block of values, the largest: eight running maxima, so that the compiler can keep them in one register. */
static float block_maximum(const float *values, int64_t n) {
    enum { LANES = 8 };
    float lanes[LANES];
    for (int l = 0; l < LANES; l++) { lanes[l] = values[0]; }
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) { lanes[l] = values[i + l] > lanes[l] ? values[i + l] : lanes[l]; }
    }
    for (; i < n; i++) { lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0]; }
    for (int l = 1; l < LANES; l++) { lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0]; }
    return lanes[0];
}

static int32_t likeliest(const float *logits, int64_t vocab) {
    const float highest = block_maximum(logits, vocab);
    int64_t i = 0;
    while (i + 1 < vocab && logits[i] != highest) { i++; }
    return (int32_t)i;
}

static bool before(const float *logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(int32_t *heap, int64_t n, int64_t i, const float *logits) {
    const int32_t id = heap[i];
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= n) { break; }
        if (child + 1 < n && before(logits, heap[child + 1], heap[child])) { child++; }
        if (!before(logits, heap[child], id)) { break; }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = id;
}

/* Takes the top off a heap of n and puts it behind the rest. */
static int32_t pop(int32_t *heap, int64_t n, const float *logits) {
    const int32_t top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    if (n > 1) { sift_down(heap, n - 1, 0, logits); }
    return top;
}

static double sum_weights(const float *logits, int64_t vocab, float highest, double inverse_temperature) {
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) { sum += exp(((double)logits[i] - (double)highest) * inverse_temperature); }
    return sum;
}

/* How many of the first n_taken weights (in falling order, relative to the likeliest) survive top_p and min_p. */
static int64_t survivors(const qr_sampling *sampling, const double *weights, int64_t n_taken, double total) {
    double mass = 0;
    int64_t n = 0;
    while (n < n_taken &&
           (n == 0 || (mass < (double)sampling->top_p * total && weights[n] >= (double)sampling->min_p))) {
        mass += weights[n++];
    }
    return n;
}

/* Draws among the likeliest: takes ids off the heap until top_k, top_p or min_p says enough. */
static int32_t draw_filtered(qr_sampler *sampler, const qr_sampling *sampling, const float *logits, double uniform) {
    const int64_t vocab = sampler->vocab;
    const double inverse_temperature = 1.0 / (double)sampling->temperature;
    for (int64_t i = 0; i < vocab; i++) { sampler->heap[i] = (int32_t)i; }
    for (int64_t i = vocab / 2; i-- > 0;) { sift_down(sampler->heap, vocab, i, logits); }
    const float highest = logits[sampler->heap[0]];
    const bool limited = sampling->top_k > 0 && sampling->top_k < vocab;
    const int64_t most = limited ? sampling->top_k : vocab;
    double total = limited ? 0 : sum_weights(logits, vocab, highest, inverse_temperature);
    double taken = 0;
    int64_t n = 0;
    while (n < most && (limited || n == 0 || taken < (double)sampling->top_p * total)) {
        const int32_t id = pop(sampler->heap, vocab - n, logits);
        const double weight = exp(((double)logits[id] - (double)highest) * inverse_temperature);
        sampler->weights[n++] = weight;
        taken += weight;
        /* top_p is a share of all that top_k leaves, so under top_k min_p must wait until that is summed. */
        if (weight == 0 || (!limited && weight < (double)sampling->min_p)) { break; }
    }
    if (limited) { total = taken; }
    const int64_t kept = survivors(sampling, sampler->weights, n, total);
    double mass = 0;
    for (int64_t i = 0; i < kept; i++) { mass += sampler->weights[i]; }
    double rest = uniform * mass;
    int64_t chosen = 0;
    while (chosen + 1 < kept && (rest -= sampler->weights[chosen]) >= 0) { chosen++; }
    return sampler->heap[vocab - 1 - chosen];
}

static int32_t draw_unfiltered(const qr_sampling *sampling, const float *logits, int64_t vocab, double uniform) {
    const int32_t best = likeliest(logits, vocab);
    const double inverse_temperature = 1.0 / (double)sampling->temperature;
    double rest = uniform * sum_weights(logits, vocab, logits[best], inverse_temperature);
    for (int64_t i = 0; i < vocab; i++) {
        rest -= exp(((double)logits[i] - (double)logits[best]) * inverse_temperature);
        if (rest < 0) { return (int32_t)i; }
    }
    return best; /* rounding left a crumb */
}

/* The logits a draw goes by: as they are, or a copy with penalties and mask applied. */
static const float *adjust(qr_sampler *sampler, const qr_sampling *sampling, const qr_sampling_history *history,
                           const uint32_t *mask, const float *logits) {
    const bool repetition = sampling->repetition_penalty != 1.0F;
    const bool answer = sampling->presence_penalty != 0.0F || sampling->frequency_penalty != 0.0F;
    if (!repetition && !answer && mask == NULL) { return logits; }
    memcpy(sampler->adjusted, logits, (size_t)sampler->vocab * sizeof *logits);
    if (repetition) { penalise_repetition(sampler, sampling->repetition_penalty, history, sampler->adjusted); }
    if (answer) { penalise_answer(sampler, sampling, history, sampler->adjusted); }
    apply_mask(mask, sampler->vocab, sampler->adjusted);
    return sampler->adjusted;
}

int32_t qr_sampler_draw(qr_sampler *sampler, const qr_sampling *sampling, const qr_sampling_history *history,
                        int32_t sample, const uint32_t *mask, const float *logits) {
    logits = adjust(sampler, sampling, history, mask, logits);
    if (sampling->temperature <= 0.0F) { return likeliest(logits, sampler->vocab); }
    const double uniform = qr_random_uniform(sampling->seed, (uint64_t)sample, (uint64_t)history->n_tokens);
    if (sampling->top_k <= 0 && sampling->top_p >= 1.0F && sampling->min_p <= 0.0F) {
        return draw_unfiltered(sampling, logits, sampler->vocab, uniform);
    }
    return draw_filtered(sampler, sampling, logits, uniform);
}

/* ---- Log probabilities ------------------------------------------------------------------------------------------- */

bool qr_logits_are_finite(const float *logits, int64_t vocab) {
    uint32_t n_bad = 0;
    for (int64_t i = 0; i < vocab; i++) { n_bad += (qr_f32_bits(logits[i]) & 0x7F800000U) == 0x7F800000U; }
    return n_bad == 0;
}

double qr_log_sum_exp(const float *logits, int64_t vocab) {
    const float highest = logits[likeliest(logits, vocab)];
    return (double)highest + log(sum_weights(logits, vocab, highest, 1.0));
}

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
