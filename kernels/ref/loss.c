/* cross_entropy and sum_squares. */
#include <assert.h>
#include <math.h>

#include "kernels/ref/ref.h"

static double capped(double x, double cap) { return cap > 0.0 ? qr_ref_softcap_value(x, cap) : x; }

/* One row: its loss, and its gradient, times dloss, in place of the logits. */
static double row_loss(const qr_cross_entropy_args *args, float *logits, int32_t target, float dloss) {
    const double cap = (double)args->softcap;
    double largest = -INFINITY, sum = 0.0;
    for (int64_t v = 0; v < args->vocab; v++) { largest = fmax(largest, capped((double)logits[v], cap)); }
    for (int64_t v = 0; v < args->vocab; v++) { sum += exp(capped((double)logits[v], cap) - largest); }
    const double loss = largest + log(sum) - capped((double)logits[target], cap);
    for (int64_t v = 0; v < args->vocab; v++) {
        const double x = capped((double)logits[v], cap);
        const double slope = cap > 0.0 ? 1.0 - (x / cap) * (x / cap) : 1.0;
        const double error = exp(x - largest) / sum - (v == target ? 1.0 : 0.0);
        logits[v] = (float)((double)dloss * error * slope);
    }
    return loss;
}

void qr_ref_cross_entropy(const qr_cross_entropy_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        float *logits = args->logits + i * args->vocab;
        assert(args->target[i] >= -1 && args->target[i] < args->vocab);
        if (args->target[i] >= 0) {
            const float dloss = args->weight != NULL ? args->dloss * args->weight[i] : args->dloss;
            args->loss[i] = (float)row_loss(args, logits, args->target[i], dloss);
            continue;
        }
        args->loss[i] = 0.0F;
        for (int64_t v = 0; v < args->vocab; v++) { logits[v] = 0.0F; }
    }
}

void qr_ref_sum_squares(const qr_sum_squares_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n; i++) {
        const int64_t chunk = i / QR_SQUARES_CHUNK;
        if (i % QR_SQUARES_CHUNK == 0) { args->dst[chunk] = 0.0, args->n_nonfinite[chunk] = 0; }
        args->dst[chunk] += (double)args->x[i] * (double)args->x[i];
        args->n_nonfinite[chunk] += !isfinite(args->x[i]);
    }
}
