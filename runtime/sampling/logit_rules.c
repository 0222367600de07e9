#include "runtime/sampling/logit_rules.h"

#include <math.h>
#include <string.h>

#include "base/sizes.h"

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

static bool ends_with(const qr_sampling_history *history, const int32_t *ids, int64_t n) {
    return n <= history->n_tokens && memcmp(history->tokens + history->n_tokens - n, ids, (size_t)n * sizeof *ids) == 0;
}

/* The id that would complete sequence i now; −1: none. */
static int32_t completing_id(const qr_sequence_list *list, int64_t i, const qr_sampling_history *history,
                             int64_t vocab) {
    const int64_t first = i > 0 ? list->ends[i - 1] : 0, n_before = list->ends[i] - first - 1;
    const int32_t last = list->ids[list->ends[i] - 1];
    return last < vocab && ends_with(history, list->ids + first, n_before) ? last : -1;
}

static bool is_single(const qr_sequence_list *list, int64_t i) {
    return list->ends[i] - (i > 0 ? list->ends[i - 1] : 0) == 1;
}

/* An id's biases are summed before they are added: that of the id alone, then those of sequences. */
static void add_biases(const qr_sequence_list *list, const qr_sampling_history *history, int64_t vocab, float *biases,
                       float *logits) {
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < list->n; i++) {
            const int32_t id = is_single(list, i) == (pass == 0) ? completing_id(list, i, history, vocab) : -1;
            if (id >= 0) { biases[id] = pass == 0 ? list->biases[i] : biases[id] + list->biases[i]; }
        }
    }
    for (int64_t i = 0; i < list->n; i++) {
        const int32_t id = completing_id(list, i, history, vocab);
        if (id < 0) { continue; }
        logits[id] += biases[id];
        biases[id] = 0;
    }
}

static void exclude_bad_words(const qr_sequence_list *list, const qr_sampling_history *history, int64_t vocab,
                              float *logits) {
    for (int64_t i = 0; i < list->n; i++) {
        const int32_t id = completing_id(list, i, history, vocab);
        bool is_end = false; /* an end token alone is no bad word */
        for (int e = 0; id >= 0 && is_single(list, i) && history->eos != NULL && e < history->eos->n; e++) {
            is_end = is_end || history->eos->ids[e] == id;
        }
        if (id >= 0 && !is_end) { logits[id] = -INFINITY; }
    }
}

/* No n-gram of the first n_tokens comes again. */
static void exclude_ngrams(const qr_sampling_history *history, int64_t n_tokens, int64_t size, float *logits) {
    if (size == 0 || history->n_tokens < size) { return; }
    const int32_t *before = history->tokens + history->n_tokens - (size - 1);
    for (int64_t i = 0; i + size <= n_tokens; i++) {
        const int32_t *ngram = history->tokens + i;
        if (memcmp(ngram, before, (size_t)(size - 1) * sizeof *ngram) == 0) { logits[ngram[size - 1]] = -INFINITY; }
    }
}

/* ---- Ids --------------------------------------------------------------------------------------------------------- */

/* A penalty above 1 makes what the prompt has more likely. */
static void favour_prompt(const qr_generation_rules *rules, const qr_sampling_history *history, int32_t *seen,
                          float *logits) {
    const float penalty = (float)(1.0 / rules->encoder_repetition_penalty);
    for (int64_t i = 0; i < history->n_prompt; i++) {
        const int32_t id = history->tokens[i];
        if (seen[id]++ > 0) { continue; }
        logits[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
    }
    for (int64_t i = 0; i < history->n_prompt; i++) { seen[history->tokens[i]] = 0; }
}

static void set_all(const int32_t *ids, int64_t n, float value, int64_t vocab, float *logits) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < vocab) { logits[ids[i]] = value; }
    }
}

static void force(const int32_t *ids, int64_t n, int64_t vocab, float *logits) {
    for (int64_t i = 0; i < vocab; i++) { logits[i] = -INFINITY; }
    set_all(ids, n, 0.0F, vocab, logits);
}

/* From decay_start tokens on the end becomes ever more likely. */
static void favour_end(const qr_generation_rules *rules, const qr_sampling_history *history, int64_t vocab,
                       float *logits) {
    const int64_t n_beyond = history->n_tokens - (history->n_prompt + rules->decay_start);
    if (rules->decay_factor == 0 || n_beyond <= 0) { return; }
    const float growth = (float)(pow(rules->decay_factor, (double)n_beyond) - 1.0);
    for (int i = 0; i < history->eos->n; i++) {
        const int32_t id = history->eos->ids[i];
        if (id < vocab && isfinite(logits[id])) { logits[id] += fabsf(logits[id]) * growth; }
    }
}

/* ---- In order ---------------------------------------------------------------------------------------------------- */

void qr_logit_rules_favour(const qr_generation_rules *rules, const qr_sampling_history *history, int64_t vocab,
                           float *biases, int32_t *seen, float *logits) {
    add_biases(&rules->sequence_bias, history, vocab, biases, logits);
    if (rules->encoder_repetition_penalty != 1) { favour_prompt(rules, history, seen, logits); }
}

void qr_logit_rules_restrict(const qr_generation_rules *rules, const qr_sampling_history *history, int64_t vocab,
                             float *logits) {
    static const qr_token_ids none = {.n = 0};
    const qr_token_ids *eos = history->eos != NULL ? history->eos : &none;
    const int64_t n_tokens = history->n_tokens, n_prompt = history->n_prompt;
    exclude_ngrams(history, n_tokens, rules->no_repeat_ngram_size, logits);
    exclude_ngrams(history, n_prompt, rules->encoder_no_repeat_ngram_size, logits);
    exclude_bad_words(&rules->bad_words, history, vocab, logits);
    const bool too_short = n_tokens < rules->min_length || n_tokens - n_prompt < rules->min_new_tokens;
    if (too_short) {
        set_all(eos->ids, eos->n, -INFINITY, vocab, logits);
        set_all(history->stops, history->n_stops, -INFINITY, vocab, logits);
    }
    const int32_t bos = (int32_t)rules->forced_bos;
    if (rules->forced_bos >= 0 && n_tokens == 1) { force(&bos, 1, vocab, logits); }
    if (rules->forced_eos.n > 0 && n_tokens == history->capacity - 1) {
        force(rules->forced_eos.ids, rules->forced_eos.n, vocab, logits);
    }
    if (eos->n > 0) { favour_end(rules, history, vocab, logits); }
    set_all(rules->suppress.ids, rules->suppress.n, -INFINITY, vocab, logits);
    const int64_t begin = n_prompt > 1 || rules->forced_bos < 0 ? n_prompt : n_prompt + 1;
    if (n_tokens == begin) { set_all(rules->begin_suppress.ids, rules->begin_suppress.n, -INFINITY, vocab, logits); }
}
