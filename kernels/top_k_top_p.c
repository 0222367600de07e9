#include "kernels/top_k_top_p.h"

#include <math.h>

#include "base/half.h"

enum { ALIGNMENT = 64 };

static size_t align(size_t n_bytes) { return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

size_t qr_sample_scratch_bytes(int64_t vocab) {
    return align((size_t)vocab * sizeof(double)) + align((size_t)vocab * sizeof(int32_t));
}

qr_sample_scratch qr_sample_scratch_at(void *memory, int64_t vocab) {
    unsigned char *heap = (unsigned char *)memory + align((size_t)vocab * sizeof(double));
    return (qr_sample_scratch){memory, (int32_t *)(void *)heap};
}

/* The largest of n values: eight running maxima, which the compiler can keep in one register. */
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

static int32_t most_likely(const float *logits, int64_t vocab) {
    const float highest = block_maximum(logits, vocab);
    int64_t i = 0;
    while (i + 1 < vocab && logits[i] != highest) { i++; }
    return (int32_t)i;
}

static double weight_of(float logit, float highest, double inverse_temperature) {
    return exp(((double)logit - (double)highest) * inverse_temperature);
}

static double sum_weights(const float *logits, int64_t vocab, float highest, double inverse_temperature) {
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) { sum += weight_of(logits[i], highest, inverse_temperature); }
    return sum;
}

/* ---- The ids in falling order, as many as are needed ----------------------------------------------------------- */

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

/* Moves the top of a heap of n to its end; the rest is a heap of n − 1. */
static int32_t pop(int32_t *heap, int64_t n, const float *logits) {
    const int32_t top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    if (n > 1) { sift_down(heap, n - 1, 0, logits); }
    return top;
}

/* ---- Sampling ---------------------------------------------------------------------------------------------------- */

/* How many of the first n_taken weights (in falling order, relative to the most likely) survive top_p and min_p. */
static int64_t survivors(const qr_sample_params *params, const double *weights, int64_t n_taken, double total) {
    double mass = 0;
    int64_t n = 0;
    while (n < n_taken && (n == 0 || (mass < (double)params->top_p * total && weights[n] >= (double)params->min_p))) {
        mass += weights[n++];
    }
    return n;
}

/* Pops ids off the heap until top_k, top_p or min_p ends it. */
int64_t qr_sample_filter(const qr_sample_params *params, const float *logits, int64_t vocab,
                         const qr_sample_scratch *scratch) {
    int32_t *heap = scratch->heap;
    double *weights = scratch->weights;
    const double inverse_temperature = 1.0 / (double)params->temperature;
    for (int64_t i = 0; i < vocab; i++) { heap[i] = (int32_t)i; }
    for (int64_t i = vocab / 2; i-- > 0;) { sift_down(heap, vocab, i, logits); }
    const float highest = logits[heap[0]];
    const bool limited = params->top_k > 0 && params->top_k < vocab;
    const int64_t most = limited ? params->top_k : vocab;
    double total = limited ? 0 : sum_weights(logits, vocab, highest, inverse_temperature);
    double taken = 0;
    int64_t n = 0;
    while (n < most && (limited || n == 0 || taken < (double)params->top_p * total)) {
        const double weight = weight_of(logits[pop(heap, vocab - n, logits)], highest, inverse_temperature);
        /* top_p is a share of all that top_k leaves, so under top_k min_p must wait until that is summed. */
        if (weight == 0 || (n > 0 && !limited && weight < (double)params->min_p)) { break; }
        weights[n++] = weight;
        taken += weight;
    }
    if (limited) { total = taken; }
    return survivors(params, weights, n, total);
}

int64_t qr_sample_weights(const double *weights, int64_t n, double uniform) {
    double mass = 0;
    for (int64_t i = 0; i < n; i++) { mass += weights[i]; }
    double rest = uniform * mass;
    int64_t chosen = 0;
    while (chosen + 1 < n && (rest -= weights[chosen]) >= 0) { chosen++; }
    return chosen;
}

/* Samples among the most likely. */
static int32_t sample_filtered(const qr_sample_params *params, const float *logits, int64_t vocab,
                               const qr_sample_scratch *scratch) {
    const int64_t n = qr_sample_filter(params, logits, vocab, scratch);
    return scratch->heap[vocab - 1 - qr_sample_weights(scratch->weights, n, params->uniform)];
}

static int32_t sample_unfiltered(const qr_sample_params *params, const float *logits, int64_t vocab) {
    const int32_t best = most_likely(logits, vocab);
    const double inverse_temperature = 1.0 / (double)params->temperature;
    double rest = params->uniform * sum_weights(logits, vocab, logits[best], inverse_temperature);
    for (int64_t i = 0; i < vocab; i++) {
        rest -= weight_of(logits[i], logits[best], inverse_temperature);
        if (rest < 0) { return (int32_t)i; }
    }
    return best; /* rounding left a remainder */
}

int32_t qr_sample_token(const qr_sample_params *params, const float *logits, int64_t vocab,
                        const qr_sample_scratch *scratch) {
    if (params->temperature <= 0.0F) { return most_likely(logits, vocab); }
    if (params->top_k <= 0 && params->top_p >= 1.0F && params->min_p <= 0.0F) {
        return sample_unfiltered(params, logits, vocab);
    }
    return sample_filtered(params, logits, vocab, scratch);
}

bool qr_logits_are_finite(const float *logits, int64_t vocab) {
    uint32_t n_bad = 0;
    for (int64_t i = 0; i < vocab; i++) { n_bad += (qr_f32_bits(logits[i]) & 0x7F800000U) == 0x7F800000U; }
    return n_bad == 0;
}

double qr_log_sum_exp(const float *logits, int64_t vocab) {
    const float highest = block_maximum(logits, vocab);
    return (double)highest + log(sum_weights(logits, vocab, highest, 1.0));
}

qr_sampled qr_sample_row(const qr_sample_params *params, const float *logits, int64_t vocab,
                         const qr_sample_scratch *scratch) {
    if (!qr_logits_are_finite(logits, vocab)) { return (qr_sampled){0}; }
    qr_sampled result = {.token = qr_sample_token(params, logits, vocab, scratch), .is_finite = 1};
    if (params->wants_logprob != 0) {
        result.logprob = (float)((double)logits[result.token] - qr_log_sum_exp(logits, vocab));
    }
    return result;
}
