/* typical_p, epsilon_cutoff and eta_cutoff of generation_config.json: which of the ids that top_k, top_p and min_p
 * leave are sampled from. As transformers 5 does them, in this order, each over what the one before left. */
#ifndef QR_RUNTIME_SAMPLING_CUTOFFS_H
#define QR_RUNTIME_SAMPLING_CUTOFFS_H

#include "loaders/config/generation_rules.h"

/* Ids in falling order of their weights, from first to before end. */
typedef struct qr_id_range {
    int64_t first, end;
} qr_id_range;

bool qr_cutoffs_are_on(const qr_generation_rules *rules);

/* weights [n]: positive and falling. At least one id remains, and what remains is a range: typical sampling drops at
 * both ends, because the distance of −log p from the entropy falls and then rises (Meister et al., 2023). */
qr_id_range qr_cutoffs_apply(const qr_generation_rules *rules, const double *weights, int64_t n);

#endif
