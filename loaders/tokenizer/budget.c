#include "loaders/tokenizer/budget.h"

#include "base/sizes.h"

/* Real tokenizers take about 50 steps a byte. An expression that counts a number's digits in threes from its end takes
 * one step for each pair of digits, so the first kilobytes are given more. The longest decomposition, spelled in the
 * byte-level alphabet, is 22 times its character; a long text of such characters alone is no language. Hangul, the most
 * that a real text grows, comes to 6 times. */
enum {
    LEAST_STEPS = 1 << 20,
    STEPS_PER_BYTE = 1 << 10,
    FIRST_STEPS_PER_BYTE = 1 << 13,
    FIRST_BYTES = 1 << 14,
    LEAST_GROWTH = 1 << 12,
    GROWTH_PER_BYTE = 8,
    FIRST_GROWTH_PER_BYTE = 24, /* and the other 8 */
    FIRST_GROWING_BYTES = 1 << 16,
    MOST_GROWTH = 1 << 30
};

qr_budget qr_budget_for(size_t n_bytes) {
    qr_budget budget = {.steps = LEAST_STEPS, .growth = LEAST_GROWTH, .section = "model"};
    budget.steps += FIRST_STEPS_PER_BYTE * qr_min((int64_t)n_bytes, FIRST_BYTES);
    budget.growth += FIRST_GROWTH_PER_BYTE * qr_min((int64_t)n_bytes, FIRST_GROWING_BYTES);
    qr_budget_extend(&budget, n_bytes);
    return budget;
}

void qr_budget_extend(qr_budget *budget, size_t n_bytes) {
    const int64_t n = (int64_t)n_bytes;
    budget->steps += STEPS_PER_BYTE * n;
    budget->growth = qr_min(budget->growth + GROWTH_PER_BYTE * n, MOST_GROWTH);
}

qrun_status qr_budget_check(const qr_budget *budget, qr_error *err) {
    if (budget->growth < 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "the %s of tokenizer.json makes this text more than %d times longer; use the model's own "
                       "tokenizer.json",
                       budget->section, (int)GROWTH_PER_BYTE);
    }
    if (budget->steps < 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "the %s of tokenizer.json takes too long on this text (more than %d steps a byte); shorten the "
                       "text, or use the model's own tokenizer.json",
                       budget->section, (int)STEPS_PER_BYTE);
    }
    return QRUN_OK;
}

qrun_status qr_budget_charge_stage(qr_budget *budget, size_t n_before, size_t n_after, qr_error *err) {
    if (n_after > n_before) { budget->growth -= (int64_t)(n_after - n_before); }
    qr_budget_spend(budget, n_before + n_after);
    return qr_budget_check(budget, err);
}
