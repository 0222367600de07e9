/* What a run learns from: the tokens that follow each other, or pairs of answers of which one is preferred. From how
 * likely the answers of a pair are, its loss and what that changes by. */
#ifndef QR_RUNTIME_PASS_PREFERENCE_H
#define QR_RUNTIME_PASS_PREFERENCE_H

#include <stdint.h>

#include "qrun.h"

typedef struct qr_preference {
    qrun_objective objective; /* SFT: there are no pairs, and the rest is unused */
    double beta;
    double margin; /* SIMPO's gamma */
} qr_preference;

/* Numbers that are added up over a batch: the loss and, with pairs, what metrics tell of them. */
enum { QR_SUM_LOSS, QR_SUM_CHOSEN, QR_SUM_REJECTED, QR_SUM_RIGHT, QR_MOST_LOSS_SUMS };

static inline bool qr_preference_has_pairs(const qr_preference *preference) {
    return preference->objective != QRUN_OBJECTIVE_SFT;
}
/* Whether answers are compared with those of a reference: the model without an adapter, or with the one that the run
 * began from. */
static inline bool qr_preference_has_reference(const qr_preference *preference) {
    return preference->objective == QRUN_OBJECTIVE_DPO;
}
static inline int qr_preference_count_sums(const qr_preference *preference) {
    return qr_preference_has_pairs(preference) ? QR_MOST_LOSS_SUMS : 1;
}

/* An answer: Σ log p over its targets (n_targets, at least 1), by the model and by the reference. */
typedef struct qr_answer {
    double log_p, reference;
    int64_t n_targets;
} qr_answer;

typedef struct qr_pair_loss {
    double loss;
    double chosen, rejected; /* rewards, as TRL logs them */
    double slope[2];         /* of the loss by log_p of the chosen and of the rejected answer */
} qr_pair_loss;

/* With m = log_p / n_targets and σ the logistic function:
 *
 *   DPO    −log σ(β ((c.log_p − c.reference) − (r.log_p − r.reference)))       Rafailov et al. 2023, as TRL's "sigmoid"
 *   ORPO   −c.m − β log σ(logit(e^c.m) − logit(e^r.m))                         Hong et al. 2024
 *   SIMPO  −log σ(β (c.m − r.m) − margin)                                      Meng et al. 2024
 *
 * for the chosen answer c, answers[0], and the rejected one r. A reward is β times what answers are compared by: for
 * DPO log_p − reference, else m. */
qr_pair_loss qr_preference_loss(const qr_preference *preference, const qr_answer answers[2]);

#endif
