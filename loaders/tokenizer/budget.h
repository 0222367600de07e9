/* What a text may cost. Every loop that a hostile tokenizer.json can make long spends steps (about a nanosecond each),
 * and what a stage adds to the text spends growth. Both are in proportion to the text, so that no file turns a letter
 * into gigabytes or hours. Real tokenizers stay far below. */
#ifndef QR_LOADERS_TOKENIZER_BUDGET_H
#define QR_LOADERS_TOKENIZER_BUDGET_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qr_budget {
    int64_t steps, growth; /* what is left; below 0: overspent */
    const char *section;   /* of tokenizer.json, for the message */
} qr_budget;

/* What one edge of a trie and one symbol of BPE cost. */
enum { QR_STEPS_OF_TRIE = 4, QR_STEPS_OF_SYMBOL = 16 };

qr_budget qr_budget_for(size_t n_bytes);
/* The same for n_bytes more of a text that comes in parts. */
void qr_budget_extend(qr_budget *budget, size_t n_bytes);
/* Fails, and names the section, once steps or growth are overspent. */
qrun_status qr_budget_check(const qr_budget *budget, qr_error *err);
static inline void qr_budget_spend(qr_budget *budget, size_t n_steps) { budget->steps -= (int64_t)n_steps; }
/* The most bytes that a stage may write from n_bytes. */
static inline size_t qr_budget_limit(const qr_budget *budget, size_t n_bytes) {
    return n_bytes + (budget->growth > 0 ? (size_t)budget->growth : 0);
}
/* Spends what a stage that made n_after bytes of n_before cost, and checks. */
qrun_status qr_budget_charge_stage(qr_budget *budget, size_t n_before, size_t n_after, qr_error *err);

#endif
