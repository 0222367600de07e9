/* nll. Exponentials in F32, exact to 1 ulp, summed in F64 lanes in an order that depends on `vocab` only. */
#include "kernels/cpu/vec_math.h"
#include "kernels/cpu/vector_ops.h"

static float row_highest(const float *x, int64_t n) {
    qr_vec highest = qr_vec_set1(-INFINITY);
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec v = qr_vec_load_n(x + j, n - j);
        if (n - j < QR_VEC) { v = qr_vec_select_range(v, highest, 0, (int)(n - j)); }
        highest = qr_vec_max(v, highest); /* NaN stays out, and comes back with the exponentials */
    }
    return qr_vec_highest(highest);
}

static double sum_of_exponentials(const float *x, int64_t n, float highest) {
    qr_vec_f64 sums = {.lanes = {0.0}};
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec e = qr_vec_exp(qr_vec_sub(qr_vec_load_n(x + j, n - j), qr_vec_set1(highest)));
        if (n - j < QR_VEC) { e = qr_vec_select_range(e, qr_vec_zero(), 0, (int)(n - j)); }
        qr_vec_f64_add(&sums, e);
    }
    double sum = 0.0;
    for (int i = 0; i < QR_VEC; i++) { sum += sums.lanes[i]; }
    return sum;
}

static void nll_rows(const void *args, int64_t begin, int64_t end) {
    const qr_nll_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = a->logits + i * a->vocab;
        const float highest = row_highest(logits, a->vocab);
        const double sum = sum_of_exponentials(logits, a->vocab, highest);
        a->dst[i] = (float)(log(sum) + ((double)highest - (double)logits[a->target[i]]));
    }
}

void QR_ISA(qr_cpu_nll)(const qr_backend *backend, const qr_nll_args *args, void *workspace) {
    (void)workspace;
    enum { EXP_COST = 4 };
    qr_cpu_run_ranges(backend, args->n_rows, args->vocab * EXP_COST, nll_rows, args);
}
