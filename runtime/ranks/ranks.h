/* The ranks of a run. Rank 0 leads: it reads the options' files first, writes, and calls the trainer. The others
 * follow: they do what it announces (qr_ranks_lead) until it ends the run. What each of them computes is added up in an
 * order that does not depend on how many there are (gradient_sum.h), so all have the same parameters at any time. */
#ifndef QR_RUNTIME_RANKS_RANKS_H
#define QR_RUNTIME_RANKS_RANKS_H

#include "kernels/collectives.h"

/* NULL is a run of one rank throughout. */
static inline int32_t qr_ranks_count(const qr_collectives *ranks) { return ranks != NULL ? ranks->n_ranks : 1; }
static inline int32_t qr_ranks_own(const qr_collectives *ranks) { return ranks != NULL ? ranks->rank : 0; }
static inline bool qr_ranks_leads(const qr_collectives *ranks) { return qr_ranks_own(ranks) == 0; }

typedef enum qr_rank_action {
    QR_RANK_STEP,
    QR_RANK_EVALUATE,
    QR_RANK_READ_STATES, /* bytes [first, first + n) of the optimiser's states, for a checkpoint */
    QR_RANK_READ_VALUES, /* floats [first, first + n) of the parameters, where they are in shards */
    QR_RANK_LOAD,        /* the parameters of the checkpoint of step `first`, where they are in shards */
    QR_RANK_END
} qr_rank_action;

typedef struct qr_rank_command {
    int64_t action; /* a qr_rank_action */
    int64_t first, n;
} qr_rank_command;

/* Rank 0 announces what it does next; QRUN_ERROR_ARGUMENT on another rank, whose program has to call qrun_trainer_run.
 */
qrun_status qr_ranks_lead(qr_collectives *ranks, qr_rank_action action, int64_t first, int64_t n, qr_error *err);

/* qr_agree; and where all are fine, the n numbers of each rank: all [n_ranks, n], of which this rank's are `values`. */
qrun_status qr_ranks_share(qr_collectives *ranks, qrun_status own, const double *values, int n, double *all,
                           qr_error *err);
/* qr_agree; alone, the status as it is. */
qrun_status qr_ranks_agree(qr_collectives *ranks, qrun_status own, qr_error *err);

/* The least *index of all ranks that is not negative; −1: all are. */
qrun_status qr_ranks_first(qr_collectives *ranks, int64_t *index, qr_error *err);

/* All ranks have the same text, a JSON object of what the run depends on; else all fail, with what differs. */
qrun_status qr_ranks_compare(qr_collectives *ranks, const char *run, qr_error *err);

#endif
