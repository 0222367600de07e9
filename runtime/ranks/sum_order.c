#include "runtime/ranks/sum_order.h"

#include "base/sizes.h"

static int32_t count_ones(int64_t n) {
    int32_t ones = 0;
    for (; n > 0; n &= n - 1) { ones++; }
    return ones;
}

/* Of a power of two. */
static int32_t log2_of(int64_t n) { return count_ones(n - 1); }

/* ---- The order --------------------------------------------------------------------------------------------------- */

qr_sum_order qr_sum_order_of_step(int64_t n_batches, int64_t n_parts) {
    while (n_parts > n_batches && n_parts > 1) { n_parts /= 2; }
    return (qr_sum_order){.n_batches = n_batches, .n_parts = n_parts};
}

static int64_t begin_of(const qr_sum_order *order, int64_t part) { return part * order->n_batches / order->n_parts; }

static int64_t part_of(const qr_sum_order *order, int64_t i) {
    return ((i + 1) * order->n_parts - 1) / order->n_batches;
}

/* Before part p, the sums are those of the ones in p as a binary number. A part that ends completes as many of them as
 * there are ones at its end. */
qr_sum_place qr_sum_order_place(const qr_sum_order *order, int64_t i) {
    const int64_t part = part_of(order, i), p = part - order->first_part;
    const bool begins = i == begin_of(order, part), ends = i + 1 == begin_of(order, part + 1);
    const int32_t n_before = count_ones(p), n_completed = ends ? n_before + 1 - count_ones(p + 1) : 0;
    return (qr_sum_place){n_before - n_completed, n_completed + (begins ? 0 : 1)};
}

void qr_sum_order_add(double *sums, qr_sum_place place, double value) {
    for (int32_t s = place.first + place.n; s-- > place.first;) { value += sums[s]; }
    sums[place.first] = value;
}

/* With a branch of so many parts. A part of several gradients has a sum while others are unfinished; the last gradient
 * of all has none. */
static int32_t count_unfinished(int64_t n_parts, bool single) { return log2_of(n_parts) + (single ? 0 : 1); }

/* ---- Dealing ----------------------------------------------------------------------------------------------------- */

qr_deal qr_deal_make(int64_t n_batches, int64_t n_parts, int32_t rank, int32_t n_ranks) {
    const qr_sum_order order = qr_sum_order_of_step(n_batches, n_parts);
    return (qr_deal){order, rank, n_ranks, order.n_parts % n_ranks == 0};
}

/* Parts of a rank, where it has neighbours. */
static int64_t parts_of_rank(const qr_deal *deal) { return deal->order.n_parts / deal->n_ranks; }

static int64_t own_begin(const qr_deal *deal, int32_t rank) {
    return begin_of(&deal->order, rank * parts_of_rank(deal));
}

/* Branches differ by one micro-batch at most. */
int64_t qr_deal_count_rounds(const qr_deal *deal) { return qr_ceil_div(deal->order.n_batches, deal->n_ranks); }

int64_t qr_deal_batch(const qr_deal *deal, int64_t round) {
    if (deal->neighbours) {
        const int64_t i = own_begin(deal, deal->rank + 1) - qr_deal_count_rounds(deal) + round;
        return i >= own_begin(deal, deal->rank) ? i : -1;
    }
    const int64_t i = round * deal->n_ranks + deal->rank;
    return i < deal->order.n_batches ? i : -1;
}

int64_t qr_deal_next(const qr_deal *deal, int64_t round) {
    int64_t next = -1;
    while (next < 0 && ++round < qr_deal_count_rounds(deal)) { next = qr_deal_batch(deal, round); }
    return next;
}

qr_sum_place qr_deal_own_place(const qr_deal *deal, int64_t i) {
    qr_sum_order branch = deal->order;
    branch.first_part = deal->rank * parts_of_rank(deal);
    return deal->neighbours ? qr_sum_order_place(&branch, i) : (qr_sum_place){0, 0};
}

bool qr_deal_sends(const qr_deal *deal, int64_t round) {
    return !deal->neighbours || round + 1 == qr_deal_count_rounds(deal);
}

int64_t qr_deal_count_sending_rounds(const qr_deal *deal) { return deal->neighbours ? 1 : qr_deal_count_rounds(deal); }

int32_t qr_deal_count_senders(const qr_deal *deal, int64_t round) {
    if (deal->neighbours) { return deal->n_ranks; }
    return (int32_t)qr_min(deal->n_ranks, deal->order.n_batches - round * deal->n_ranks);
}

/* What neighbours send are the leaves of a tree again. */
static qr_sum_order sent_order(const qr_deal *deal) {
    return deal->neighbours ? qr_sum_order_of_step(deal->n_ranks, deal->n_ranks) : deal->order;
}

qr_sum_place qr_deal_sent_place(const qr_deal *deal, int64_t round, int32_t r) {
    const qr_sum_order order = sent_order(deal);
    return qr_sum_order_place(&order, deal->neighbours ? r : round * deal->n_ranks + r);
}

int64_t qr_deal_count_sent(const qr_deal *deal) {
    const int64_t before = deal->n_ranks - 1 - deal->rank;
    return deal->neighbours ? 1 : (deal->order.n_batches + before) / deal->n_ranks;
}

int32_t qr_deal_own_unfinished(const qr_deal *deal) {
    const qr_sum_order *order = &deal->order;
    return deal->neighbours ? count_unfinished(parts_of_rank(deal), order->n_batches == order->n_parts) : 0;
}

int32_t qr_deal_sent_unfinished(const qr_deal *deal) {
    const qr_sum_order order = sent_order(deal);
    return (int32_t)qr_max(1, count_unfinished(order.n_parts, order.n_batches == order.n_parts));
}
