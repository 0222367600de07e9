#include "runtime/sampling/cutoffs.h"

#include <math.h>

bool qr_cutoffs_are_on(const qr_generation_rules *rules) {
    return rules->typical_p < 1 || rules->epsilon_cutoff > 0 || rules->eta_cutoff > 0;
}

static double mass_of(const double *weights, qr_id_range range) {
    double mass = 0;
    for (int64_t i = range.first; i < range.end; i++) { mass += weights[i]; }
    return mass;
}

/* A share may be too small for a number, and is nothing then. */
static double entropy_of(const double *weights, qr_id_range range, double mass) {
    double entropy = 0;
    for (int64_t i = range.first; i < range.end; i++) {
        const double share = weights[i] / mass;
        if (share > 0) { entropy -= share * log(share); }
    }
    return entropy;
}

/* The ids whose −log p is nearest to the entropy and that together have the share typical_p, with all that are as near
 * as the last of them. */
static qr_id_range keep_typical(double share, const double *weights, qr_id_range range) {
    const double mass = mass_of(weights, range), entropy = entropy_of(weights, range, mass);
    int64_t after = range.first; /* the first less likely than the entropy says */
    while (after < range.end && -log(weights[after] / mass) < entropy) { after++; }
    qr_id_range kept = {after, after};
    double taken = 0, farthest = 0;
    while (kept.first > range.first || kept.end < range.end) {
        const double before_by = kept.first > range.first ? entropy + log(weights[kept.first - 1] / mass) : INFINITY;
        const double after_by = kept.end < range.end ? -log(weights[kept.end] / mass) - entropy : INFINITY;
        const double nearest = fmin(before_by, after_by);
        if (taken >= share && nearest > farthest) { break; }
        farthest = nearest;
        taken += weights[before_by <= after_by ? --kept.first : kept.end++] / mass;
    }
    return kept;
}

static qr_id_range drop_below(double probability, const double *weights, qr_id_range range) {
    const double mass = mass_of(weights, range);
    while (range.end > range.first + 1 && weights[range.end - 1] / mass < probability) { range.end--; }
    return range;
}

qr_id_range qr_cutoffs_apply(const qr_generation_rules *rules, const double *weights, int64_t n) {
    qr_id_range range = {0, n};
    if (rules->typical_p < 1) { range = keep_typical(rules->typical_p, weights, range); }
    if (rules->epsilon_cutoff > 0) { range = drop_below(rules->epsilon_cutoff, weights, range); }
    if (rules->eta_cutoff > 0) {
        const double entropy = entropy_of(weights, range, mass_of(weights, range));
        range = drop_below(fmin(rules->eta_cutoff, sqrt(rules->eta_cutoff) * exp(-entropy)), weights, range);
    }
    return range;
}
