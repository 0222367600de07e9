#include "runtime/pass/preference.h"

#include <math.h>

/* −log σ(z), and what it changes by with z. */
typedef struct log_loss {
    double loss, slope;
} log_loss;

static log_loss log_loss_of(double z) {
    const double small = exp(-fabs(z)); /* never overflows */
    const double loss = (z < 0 ? -z : 0.0) + log1p(small);
    const double below = z < 0 ? 1.0 / (1.0 + small) : small / (1.0 + small); /* σ(−z) */
    return (log_loss){loss, -below};
}

static double mean_log_p(const qr_answer *answer) { return answer->log_p / (double)answer->n_targets; }

static qr_pair_loss dpo_loss(const qr_preference *p, const qr_answer answers[2]) {
    const double chosen = p->beta * (answers[0].log_p - answers[0].reference);
    const double rejected = p->beta * (answers[1].log_p - answers[1].reference);
    const log_loss l = log_loss_of(chosen - rejected);
    return (qr_pair_loss){l.loss, chosen, rejected, {p->beta * l.slope, -p->beta * l.slope}};
}

static qr_pair_loss simpo_loss(const qr_preference *p, const qr_answer answers[2]) {
    const double chosen = p->beta * mean_log_p(&answers[0]), rejected = p->beta * mean_log_p(&answers[1]);
    const log_loss l = log_loss_of(chosen - rejected - p->margin);
    const double slope = p->beta * l.slope;
    return (qr_pair_loss){
        l.loss, chosen, rejected, {slope / (double)answers[0].n_targets, -slope / (double)answers[1].n_targets}};
}

/* 1 − e^m, which is the probability that the logit divides by. An answer that the model is sure of in F32 counts as one
 * that it is sure of to the last bit: the logit is finite then. */
static double rest_of(double m) {
    const double least = 0x1p-24;
    const double rest = -expm1(m);
    return rest < least ? least : rest;
}

static qr_pair_loss orpo_loss(const qr_preference *p, const qr_answer answers[2]) {
    const double m[2] = {mean_log_p(&answers[0]), mean_log_p(&answers[1])};
    const double rest[2] = {rest_of(m[0]), rest_of(m[1])};
    const log_loss l = log_loss_of((m[0] - log(rest[0])) - (m[1] - log(rest[1])));
    return (qr_pair_loss){.loss = -m[0] + p->beta * l.loss,
                          .chosen = p->beta * m[0],
                          .rejected = p->beta * m[1],
                          .slope = {(-1.0 + p->beta * l.slope / rest[0]) / (double)answers[0].n_targets,
                                    -p->beta * l.slope / rest[1] / (double)answers[1].n_targets}};
}

qr_pair_loss qr_preference_loss(const qr_preference *preference, const qr_answer answers[2]) {
    switch (preference->objective) {
        case QRUN_OBJECTIVE_DPO: return dpo_loss(preference, answers);
        case QRUN_OBJECTIVE_ORPO: return orpo_loss(preference, answers);
        case QRUN_OBJECTIVE_SIMPO: return simpo_loss(preference, answers);
        case QRUN_OBJECTIVE_SFT: break;
    }
    return (qr_pair_loss){0};
}
