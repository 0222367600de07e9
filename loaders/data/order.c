#include "loaders/data/order.h"

#include <math.h>

#include "base/random.h"
#include "base/sizes.h"

/* The stream of a seed that splits; epochs have theirs from 0 on. */
static const uint32_t SPLIT_STREAM = UINT32_MAX;

qr_permutation qr_permutation_make(uint64_t seed, uint32_t stream, int64_t n) {
    int half_bits = 1;
    while (half_bits < 31 && INT64_C(1) << 2 * half_bits < n) { half_bits++; }
    return (qr_permutation){seed, stream, n, half_bits};
}

static uint64_t encrypt(const qr_permutation *p, uint64_t value) {
    enum { ROUNDS = 8 };
    const uint32_t mask = (UINT32_C(1) << p->half_bits) - 1;
    uint32_t left = (uint32_t)(value >> p->half_bits), right = (uint32_t)value & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        /* The last word keeps these samples apart from every other use of the seed. */
        const uint32_t counter[4] = {right, round, p->stream, 0x6F726472U};
        uint32_t sample[4];
        qr_philox(p->seed, counter, sample);
        const uint32_t next = left ^ (sample[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << p->half_bits | right;
}

int64_t qr_permutation_at(const qr_permutation *permutation, int64_t i) {
    uint64_t value = (uint64_t)i;
    do { value = encrypt(permutation, value); } while (value >= (uint64_t)permutation->n);
    return (int64_t)value;
}

qr_dataset_view qr_dataset_view_all(const qr_dataset *dataset) {
    return (qr_dataset_view){.dataset = dataset, .n = qr_dataset_count(dataset)};
}

qrun_status qr_dataset_split(const qr_dataset *dataset, double fraction, uint64_t seed, qr_dataset_view *train,
                             qr_dataset_view *eval, qr_error *err) {
    const int64_t n = qr_dataset_count(dataset);
    if (!(fraction > 0 && fraction < 1)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a share of %g of the examples cannot be kept for evaluation; it "
                       "should lie between 0 and 1",
                       fraction);
    }
    if (n < 2) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "there is only one example: none can be kept for evaluation; give a file "
                       "of its own for that");
    }
    const int64_t n_eval = qr_max(1, qr_min(n - 1, (int64_t)llround(fraction * (double)n)));
    const qr_permutation split = qr_permutation_make(seed, SPLIT_STREAM, n);
    *eval = (qr_dataset_view){dataset, split, 0, n_eval};
    *train = (qr_dataset_view){dataset, split, n_eval, n - n_eval};
    return QRUN_OK;
}

int64_t qr_dataset_view_index(const qr_dataset_view *view, int64_t k) {
    return view->split.n > 0 ? qr_permutation_at(&view->split, view->first + k) : view->first + k;
}
