/* What is added to what in a step, against a tree that is written down recursively, and that ranks, however many there
 * are and however the micro-batches are dealt to them, add the same. Additions are done with names, which tell every
 * order from every other. */
#include "check.h"

#include "base/random.h"
#include "base/sizes.h"
#include "runtime/ranks/sum_order.h"

enum { MOST_BATCHES = 37, MOST_PARTS = 32, MOST_RANKS = 9 };

typedef uint64_t name; /* of a sum */

static name name_of_batch(int64_t i) { return qr_hash_mix((uint64_t)i + 1); }

/* x + y and y + x are one. */
static name add(name x, name y) { return qr_hash_mix((x < y ? x : y) + 3 * qr_hash_mix(x < y ? y : x)); }

/* ---- As it should be --------------------------------------------------------------------------------------------- */

static name chain(int64_t begin, int64_t end) {
    name sum = name_of_batch(begin);
    for (int64_t i = begin + 1; i < end; i++) { sum = add(sum, name_of_batch(i)); }
    return sum;
}

/* Of parts [first, end) of n_parts. */
static name tree(int64_t n_batches, int64_t n_parts, int64_t first, int64_t end) {
    const int64_t middle = (first + end) / 2;
    if (end - first == 1) { return chain(first * n_batches / n_parts, end * n_batches / n_parts); }
    return add(tree(n_batches, n_parts, first, middle), tree(n_batches, n_parts, middle, end));
}

static name wanted(int64_t n_batches, int64_t n_parts) {
    int64_t n = 1;
    while (2 * n <= n_batches && 2 * n <= n_parts) { n *= 2; }
    for (int64_t part = 0; part < n; part++) { /* as equal as may be */
        const int64_t n_here = (part + 1) * n_batches / n - part * n_batches / n;
        CHECK(n_here >= 1 && n_here >= n_batches / n && n_here <= qr_ceil_div(n_batches, n));
    }
    return tree(n_batches, n, 0, n);
}

/* ---- As ranks do it ---------------------------------------------------------------------------------------------- */

/* Unfinished sums. */
typedef struct unfinished {
    name of[QR_MOST_UNFINISHED];
    int32_t n, most;
} unfinished;

static void put(unfinished *s, qr_sum_place place, name gradient) {
    CHECK(place.first >= 0 && place.n >= 0 && place.first + place.n == s->n);
    for (int32_t k = s->n; k-- > place.first;) { gradient = add(gradient, s->of[k]); }
    CHECK(place.first < QR_MOST_UNFINISHED);
    s->of[place.first] = gradient;
    s->n = place.first + 1;
    s->most = s->n > s->most ? s->n : s->most;
}

/* A rank's gradient of a round, if it has one. The last before it sends takes the sums in, and needs none. */
static void add_own(const qr_deal *deal, int64_t round, unfinished *own, int32_t most) {
    const int64_t i = qr_deal_batch(deal, round);
    if (i < 0) { return; }
    CHECK(own->most <= most);
    put(own, qr_deal_own_place(deal, i), name_of_batch(i));
}

/* Each micro-batch is in one round of one rank, and a rank's are in their order. Returns how many a rank has. */
static int64_t check_rounds(const qr_deal *deal, int64_t n_rounds) {
    int64_t n = 0, last = -1;
    for (int64_t round = 0; round < n_rounds; round++) {
        const int64_t i = qr_deal_batch(deal, round);
        if (i < 0) { continue; }
        CHECK(i > last && i < deal->order.n_batches);
        CHECK_INT(qr_deal_next(deal, round - 1), i);
        last = i;
        n++;
    }
    CHECK_INT(qr_deal_next(deal, n_rounds - 1), -1);
    return n;
}

/* The memory is that of a step of most_batches, of which this one may have fewer. */
static void check_step(int64_t most_batches, int64_t n_batches, int64_t n_parts, int32_t n_ranks) {
    int64_t n_dealt = 0, n_sent[MOST_RANKS] = {0}, n_sending = 0;
    qr_deal deals[MOST_RANKS];
    unfinished all = {.n = 0}, own[MOST_RANKS] = {{.n = 0}};
    const qr_deal planned = qr_deal_make(most_batches, n_parts, 0, n_ranks);
    const int64_t n_rounds = qr_ceil_div(n_batches, n_ranks);
    for (int32_t r = 0; r < n_ranks; r++) {
        deals[r] = qr_deal_make(n_batches, n_parts, r, n_ranks);
        CHECK_INT(qr_deal_count_rounds(&deals[r]), n_rounds);
        n_dealt += check_rounds(&deals[r], n_rounds);
    }
    CHECK_INT(n_dealt, n_batches);
    for (int64_t round = 0; round < n_rounds; round++) {
        const bool sends = qr_deal_sends(&deals[0], round);
        for (int32_t r = 0; r < n_ranks; r++) {
            add_own(&deals[r], round, &own[r], qr_deal_own_unfinished(&planned));
            if (!sends || r >= qr_deal_count_senders(&deals[0], round)) { continue; }
            CHECK(own[r].n == 1 && qr_deal_batch(&deals[r], round) >= 0);
            put(&all, qr_deal_sent_place(&deals[0], round, r), own[r].of[0]);
            own[r] = (unfinished){.n = 0};
            n_sent[r]++;
        }
        n_sending += sends;
    }
    CHECK_INT(all.n, 1);
    CHECK(all.most <= qr_deal_sent_unfinished(&planned));
    CHECK_MSG(all.of[0] == wanted(n_batches, n_parts), "%d batches in %d parts on %d ranks: another order",
              (int)n_batches, (int)n_parts, (int)n_ranks);
    for (int32_t r = 0; r < n_ranks; r++) {
        CHECK_INT(own[r].n, 0); /* all is sent */
        CHECK_INT(n_sent[r], qr_deal_count_sent(&deals[r]));
    }
    CHECK_INT(n_sending, qr_deal_count_sending_rounds(&deals[0]));
    CHECK_INT(deals[0].neighbours, deals[0].order.n_parts % n_ranks == 0);
}

static void test_any_number_of_ranks_adds_the_same(void) {
    for (int64_t n_parts = 1; n_parts <= MOST_PARTS; n_parts *= 2) {
        for (int64_t n_batches = 1; n_batches <= MOST_BATCHES; n_batches++) {
            for (int32_t n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++) {
                check_step(n_batches, n_batches, n_parts, n_ranks);
                check_step(MOST_BATCHES, n_batches, n_parts, n_ranks);
            }
        }
    }
}

/* One part is a chain, whatever the ranks, and two orders have two names. */
static void test_orders_differ(void) {
    CHECK(wanted(7, 1) == chain(0, 7));
    CHECK(wanted(7, 2) != wanted(7, 1) && wanted(7, 4) != wanted(7, 2) && wanted(7, 8) == wanted(7, 4));
}

static void test_the_most_sums(void) {
    const qr_deal most = qr_deal_make(1 << 20, QR_MAX_PARTS, 0, 1);
    CHECK_INT(qr_deal_own_unfinished(&most), QR_MOST_UNFINISHED);
    CHECK_INT(qr_sum_order_place(&most.order, (1 << 20) - 1).n, QR_MOST_UNFINISHED);
}

/* Memory is what is said: log2 of the parts of a rank, and one more where parts have several micro-batches. */
static void test_unfinished_sums(void) {
    static const struct {
        int64_t n_batches, n_parts;
        int32_t n_ranks, own, sent;
    } cases[] = {{1, 1, 1, 0, 1}, {2, 1, 1, 1, 1},  {8, 8, 1, 3, 1},  {8, 2, 1, 2, 1}, {8, 8, 8, 0, 3},
                 {8, 2, 2, 1, 1}, {16, 8, 8, 1, 3}, {16, 8, 4, 2, 2}, {8, 1, 2, 0, 1}, {8, 8, 3, 0, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const qr_deal deal = qr_deal_make(cases[i].n_batches, cases[i].n_parts, 0, cases[i].n_ranks);
        CHECK_INT(qr_deal_own_unfinished(&deal), cases[i].own);
        CHECK_INT(qr_deal_sent_unfinished(&deal), cases[i].sent);
    }
}

static void test_losses(void) {
    double sums[QR_MOST_UNFINISHED] = {0}, of[7];
    const qr_sum_order order = qr_sum_order_of_step(7, 2);
    for (int64_t i = 0; i < 7; i++) {
        of[i] = qr_random_normal(3, 1, (uint64_t)i);
        qr_sum_order_add(sums, qr_sum_order_place(&order, i), of[i]);
    }
    const double first = of[0] + of[1] + of[2], second = of[3] + of[4] + of[5] + of[6];
    CHECK(sums[0] == first + second);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_any_number_of_ranks_adds_the_same);
    CHECK_RUN(test_orders_differ);
    CHECK_RUN(test_the_most_sums);
    CHECK_RUN(test_unfinished_sums);
    CHECK_RUN(test_losses);
    return check_end();
}
