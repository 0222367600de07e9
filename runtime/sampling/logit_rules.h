/* The rules of generation_config.json (loaders/config/generation_rules.h) applied to logits, in the order of
 * transformers 5. A rule is a function of the sequence so far, so a token depends on its own sequence alone. */
#ifndef QR_RUNTIME_SAMPLING_LOGIT_RULES_H
#define QR_RUNTIME_SAMPLING_LOGIT_RULES_H

#include "loaders/config/generation_rules.h"

/* The sequence that a next token continues. */
typedef struct qr_sampling_history {
    const int32_t *tokens; /* [n_tokens], the prompt first */
    int64_t n_prompt, n_tokens;
    int64_t capacity;        /* tokens of prompt and answer at most */
    const qr_token_ids *eos; /* NULL: none */
    const int32_t *stops;    /* [n_stops] further tokens that end this sequence alone */
    int64_t n_stops;
} qr_sampling_history;

/* Before the penalties: sequence_bias and encoder_repetition_penalty. biases and seen: [vocab], all zero before and
 * after. */
void qr_logit_rules_favour(const qr_generation_rules *rules, const qr_sampling_history *history, int64_t vocab,
                           float *biases, int32_t *seen, float *logits);

/* After them: all others. What is excluded becomes −∞; that may be every id. */
void qr_logit_rules_restrict(const qr_generation_rules *rules, const qr_sampling_history *history, int64_t vocab,
                             float *logits);

#endif
