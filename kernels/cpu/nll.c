/* nll. All in F64: the sum runs in N_LANES lanes, in an order that depends on `vocab` only. The loops over lanes are plain
 * C that compilers turn into whatever vectors of F64 the instruction set has. */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vector_ops.h"

enum { N_LANES = 16 };

/* e^x for x ≤ 0, within 2 ulp down to −700, from there e^−700; NaN stays. 2^n · e^r, |r| ≤ ln 2 / 2, with the first
 * thirteen terms of the series; n is read from the low bits of x / ln 2 + 1.5 · 2^52. */
QR_INLINE double exp_f64(double x) {
    x = x < -700.0 ? -700.0 : x;
    const double shifted = x * 0x1.71547652b82fep+0 + 0x1.8p+52, n = shifted - 0x1.8p+52;
    const double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33; /* ln 2 in two parts, n · the first exact */
    double p = 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52; /* 2^n */
    double power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static float row_highest(const float *x, int64_t n) {
    float lanes[N_LANES], highest = -INFINITY;
    for (int i = 0; i < N_LANES; i++) { lanes[i] = -INFINITY; }
    int64_t j = 0;
    for (; j + N_LANES <= n; j += N_LANES) {
        for (int i = 0; i < N_LANES; i++) { lanes[i] = x[j + i] > lanes[i] ? x[j + i] : lanes[i]; }
    }
    for (; j < n; j++) { highest = x[j] > highest ? x[j] : highest; }
    for (int i = 0; i < N_LANES; i++) { highest = lanes[i] > highest ? lanes[i] : highest; }
    return highest;
}

QR_INLINE void add_exponentials(double lanes[N_LANES], const float x[N_LANES], double highest) {
    for (int i = 0; i < N_LANES; i++) { lanes[i] += exp_f64((double)x[i] - highest); }
}

static double sum_of_exponentials(const float *x, int64_t n, double highest) {
    double lanes[N_LANES] = {0.0}, sum = 0.0;
    int64_t j = 0;
    for (; j + N_LANES <= n; j += N_LANES) { add_exponentials(lanes, x + j, highest); }
    if (j < n) {
        float last[N_LANES];
        for (int i = 0; i < N_LANES; i++) { last[i] = j + i < n ? x[j + i] : -INFINITY; }
        add_exponentials(lanes, last, highest);
    }
    for (int i = 0; i < N_LANES; i++) { sum += lanes[i]; }
    return sum;
}

static void nll_rows(const void *args, int64_t begin, int64_t end) {
    const qr_nll_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = a->logits + i * a->vocab;
        const double highest = (double)row_highest(logits, a->vocab);
        const double sum = sum_of_exponentials(logits, a->vocab, highest);
        a->dst[i] = (float)(log(sum) + (highest - (double)logits[a->target[i]]));
    }
}

void QR_ISA(qr_cpu_nll)(const qr_backend *backend, const qr_nll_args *args, void *workspace) {
    (void)workspace;
    enum { EXP_COST = 8 };
    qr_cpu_run_ranges(backend, args->n_rows, args->vocab * EXP_COST, nll_rows, args);
}
