/* nll, cross_entropy. Exponentials in F32, exact to 1 ulp, summed in F64 lanes in an order that depends on `vocab`
 * only. */
#include "kernels/cpu/simd/vec_slopes.h"
#include "kernels/cpu/vector_ops.h"

enum { EXP_COST = 4 };

QR_INLINE qr_vec capped(qr_vec x, float cap) { return cap > 0.0F ? qr_vec_softcap(x, cap) : x; }

static float row_highest(const float *x, int64_t n) {
    qr_vec highest = qr_vec_set1(-INFINITY);
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec v = qr_vec_load_n(x + j, n - j);
        if (n - j < QR_VEC) { v = qr_vec_select_range(v, highest, 0, (int)(n - j)); }
        highest = qr_vec_max(v, highest); /* NaN is skipped here; the exponentials propagate it */
    }
    return qr_vec_highest(highest);
}

/* Of e^(c(x) − highest), c the soft-cap, if any. */
QR_INLINE double sum_of_exponentials(const float *x, int64_t n, float highest, float cap) {
    qr_vec_f64 sums = {.lanes = {0.0}};
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec e = qr_vec_exp(qr_vec_sub(capped(qr_vec_load_n(x + j, n - j), cap), qr_vec_set1(highest)));
        if (n - j < QR_VEC) { e = qr_vec_select_range(e, qr_vec_zero(), 0, (int)(n - j)); }
        qr_vec_f64_add(&sums, e);
    }
    return qr_vec_f64_total(&sums);
}

static void nll_rows(const void *args, int64_t begin, int64_t end) {
    const qr_nll_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = a->logits + i * a->vocab;
        const float highest = row_highest(logits, a->vocab);
        const double sum = sum_of_exponentials(logits, a->vocab, highest, 0.0F);
        a->dst[i] = (float)(log(sum) + ((double)highest - (double)logits[a->target[i]]));
    }
}

QR_CPU_RANGE_OP(nll, args->n_rows, EXP_COST * args->vocab, nll_rows)

/* --- cross_entropy --- */

/* The soft-capped logits of a row: the highest, and the sum of e^(c − highest). */
typedef struct normalizer {
    float highest;
    double sum;
} normalizer;

/* Reads the row from memory once: a chunk is read twice, for its maximum and its sum, while it is in L1. The cap is
 * monotonic, so the highest capped logit is the cap of the highest logit. */
QR_INLINE normalizer normalize(const float *x, int64_t n, float cap) {
    enum { CHUNK = 4096 };
    normalizer total = {-INFINITY, 0.0};
    for (int64_t j = 0; j < n; j += CHUNK) {
        const int64_t n_chunk = qr_min(CHUNK, n - j);
        const float highest = qr_vec_get(capped(qr_vec_set1(row_highest(x + j, n_chunk)), cap));
        if (highest > total.highest) {
            total.sum *= exp((double)total.highest - (double)highest);
            total.highest = highest;
        }
        /* A chunk of −∞ only adds 0; NaN propagates. */
        const float shift = total.highest > -INFINITY ? total.highest : 0.0F;
        total.sum += sum_of_exponentials(x + j, n_chunk, shift, cap);
    }
    return total;
}

/* x becomes dloss · softmax(c(x)) · c'(x). */
QR_INLINE void softmax_gradient(float *x, int64_t n, normalizer total, float cap, float dloss) {
    const qr_vec highest = qr_vec_set1(total.highest), scale = qr_vec_set1((float)((double)dloss / total.sum));
    for (int64_t j = 0; j < n; j += QR_VEC) {
        const qr_vec logit = qr_vec_load_n(x + j, n - j);
        qr_vec gradient = qr_vec_mul(qr_vec_exp(qr_vec_sub(capped(logit, cap), highest)), scale);
        if (cap > 0.0F) { gradient = qr_vec_mul(gradient, qr_vec_softcap_slope(logit, cap)); }
        qr_vec_store_n(x + j, gradient, n - j);
    }
}

/* Returns the loss. The target's own gradient, p − 1, is taken in F64 from the exponentials that are in the sum. */
QR_INLINE float cross_entropy_row(const qr_cross_entropy_args *a, float *logits, int32_t target, float dloss,
                                  float cap) {
    const normalizer total = normalize(logits, a->vocab, cap);
    const qr_vec logit = qr_vec_set1(logits[target]);
    const qr_vec below = qr_vec_sub(capped(logit, cap), qr_vec_set1(total.highest));
    const double p = (double)qr_vec_get(qr_vec_exp(below)) / total.sum;
    const double slope = cap > 0.0F ? (double)qr_vec_get(qr_vec_softcap_slope(logit, cap)) : 1.0;
    softmax_gradient(logits, a->vocab, total, cap, dloss);
    logits[target] = (float)((double)dloss * (p - 1.0) * slope);
    return (float)(log(total.sum) - (double)qr_vec_get(below));
}

static void cross_entropy_rows(const void *args, int64_t begin, int64_t end) {
    const qr_cross_entropy_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        float *logits = a->logits + i * a->vocab;
        const int32_t target = a->target[i];
        const float dloss = a->weight != NULL ? a->dloss * a->weight[i] : a->dloss;
        if (target < 0) {
            a->loss[i] = 0.0F;
            memset(logits, 0, (size_t)a->vocab * sizeof *logits);
        } else if (a->softcap > 0.0F) {
            a->loss[i] = cross_entropy_row(a, logits, target, dloss, a->softcap);
        } else {
            a->loss[i] = cross_entropy_row(a, logits, target, dloss, 0.0F);
        }
    }
}

/* Two passes, or six with a softcap. */
QR_CPU_RANGE_OP(cross_entropy, args->n_rows, EXP_COST * args->vocab * (args->softcap > 0.0F ? 6 : 2),
                cross_entropy_rows)
