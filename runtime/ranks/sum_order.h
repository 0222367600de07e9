/* In which order the gradients of a step's micro-batches are added up, and which rank computes which of them.
 *
 * The micro-batches are cut into parts of neighbours, as equal as may be, by their number and that of the parts alone.
 * In a part gradients are added one after the other, ((g0 + g1) + g2) + …, and the parts' sums in a balanced binary
 * tree. So what is added to what does not depend on ranks. With one part it is a chain of all.
 *
 * Micro-batches come in their order, and what is unfinished meanwhile are the sums of a binary counter: sum 0 of the
 * most parts, and each further one of fewer. */
#ifndef QR_RUNTIME_RANKS_SUM_ORDER_H
#define QR_RUNTIME_RANKS_SUM_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum {
    QR_MAX_PARTS = 1024,
    QR_MOST_UNFINISHED = 11 /* sums: of each power of two up to that */
};

typedef struct qr_sum_order {
    int64_t n_batches, n_parts; /* of the step; n_parts: a power of two */
    int64_t first_part;         /* that this sum has: 0, or the first of a branch of the tree */
} qr_sum_order;

/* Of a step in n_parts; with fewer micro-batches, in the largest power of two that gives each part one. */
qr_sum_order qr_sum_order_of_step(int64_t n_batches, int64_t n_parts);

/* What becomes of a gradient: the sums [first, first + n) are added to it, the last one first, and it is sum `first`
 * then. Where n is 0, that sum begins with it. */
typedef struct qr_sum_place {
    int32_t first, n;
} qr_sum_place;

/* Of micro-batch i of the step. */
qr_sum_place qr_sum_order_place(const qr_sum_order *order, int64_t i);

/* The same with losses, in sums [QR_MOST_UNFINISHED]. */
void qr_sum_order_add(double *sums, qr_sum_place place, double value);

/* ---- Dealing ----------------------------------------------------------------------------------------------------- */

/* A step has rounds, in each of which a rank has one micro-batch or none. Where the number of ranks divides that of the
 * parts, a rank has neighbours: the parts of a branch of the tree. It adds them up, and sends one sum in the last
 * round. Ranks that have one micro-batch less begin a round later. Otherwise ranks have a micro-batch each in turn, and
 * send every gradient. */
typedef struct qr_deal {
    qr_sum_order order; /* of the step */
    int32_t rank, n_ranks;
    bool neighbours;
} qr_deal;

qr_deal qr_deal_make(int64_t n_batches, int64_t n_parts, int32_t rank, int32_t n_ranks);

int64_t qr_deal_count_rounds(const qr_deal *deal);
/* The micro-batch of this rank in a round, and its next one after the round (after −1: its first); −1: it has none. */
int64_t qr_deal_batch(const qr_deal *deal, int64_t round);
int64_t qr_deal_next(const qr_deal *deal, int64_t round);
/* What becomes of the gradient of micro-batch i before it is sent; where every gradient is, nothing: sum 0 is it. */
qr_sum_place qr_deal_own_place(const qr_deal *deal, int64_t i);

/* Whether ranks send in a round, and how many rounds those are. */
bool qr_deal_sends(const qr_deal *deal, int64_t round);
int64_t qr_deal_count_sending_rounds(const qr_deal *deal);
/* Ranks that send something in such a round: the first ones; and what becomes of what rank r sends. */
int32_t qr_deal_count_senders(const qr_deal *deal, int64_t round);
qr_sum_place qr_deal_sent_place(const qr_deal *deal, int64_t round, int32_t r);
/* How often this rank sends. */
int64_t qr_deal_count_sent(const qr_deal *deal);

/* Unfinished sums at once, of this rank's own gradients until it sends, and of what ranks send: in this step, or in a
 * shorter one. */
int32_t qr_deal_own_unfinished(const qr_deal *deal);
int32_t qr_deal_sent_unfinished(const qr_deal *deal);

#endif
