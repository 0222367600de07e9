/* cross_entropy and sum_squares. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_ROWS = 33 };

typedef struct loss_case {
    int64_t vocab;
    const float *logits;
    const int32_t *target; /* −1: ignored */
    const float *weight;   /* or NULL */
    float softcap, dloss;
} loss_case;

/* Row: the gradient, then the loss. */
static void exec_cross_entropy(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                               void *out) {
    (void)dtype;
    const loss_case *c = data;
    const size_t row_bytes = (size_t)c->vocab * sizeof(float);
    const qr_cross_entropy_args args = {
        .logits = op_output(run, c->logits + first * c->vocab, n_rows, row_bytes, row_bytes),
        .target = op_input(run, c->target + first, (size_t)n_rows * sizeof(int32_t)),
        .loss = op_output(run, NULL, n_rows, sizeof(float), sizeof(float)),
        .weight = c->weight != NULL ? op_input(run, c->weight + first, (size_t)n_rows * sizeof(float)) : NULL,
        .n_rows = n_rows,
        .vocab = c->vocab,
        .softcap = c->softcap,
        .dloss = c->dloss,
    };
    op_call(run, QR_OP_cross_entropy, &args);
    float *gradient = qr_alloc((size_t)n_rows * row_bytes), loss[N_ROWS];
    op_read(run, args.logits, gradient);
    op_read(run, args.loss, loss);
    for (int64_t i = 0; i < n_rows; i++) {
        float *row = (float *)out + i * (c->vocab + 1);
        memcpy(row, gradient + i * c->vocab, row_bytes);
        row[c->vocab] = loss[i];
    }
    qr_free(gradient);
}

static double capped(const loss_case *c, double x) {
    return c->softcap > 0.0F ? (double)c->softcap * tanh(x / (double)c->softcap) : x;
}

/* A soft-capped logit errs by 4 u · cap and 4 u of itself (op_elementwise.c), the same for all: the largest bound is
 * taken for both ends of a difference d. F32 exponentials then err by (d + 4) u besides (nll), the F64 sum by their
 * mean, and the quotient, the difference from 1, the slope of the cap and dloss by a few u; 1 − tanh² errs by 16 u of
 * 1. */
static void loss_bound(const loss_case *c, const float *logits, int32_t target, float weight, double *bound) {
    double largest = -INFINITY, sum = 0.0, error = 0.0;
    for (int64_t v = 0; v < c->vocab; v++) { largest = fmax(largest, capped(c, (double)logits[v])); }
    const double cap_error = c->softcap > 0.0F ? 16.0 * OP_U * (double)c->softcap : 0.0;
    for (int64_t v = 0; v < c->vocab; v++) {
        const double difference = largest - capped(c, (double)logits[v]), term = exp(-difference);
        sum += term;
        error += term * ((difference + 4.0) * OP_U + cap_error);
    }
    error = error / sum + (double)(c->vocab + 8) * 0x1p-52;
    for (int64_t v = 0; v < c->vocab; v++) {
        const double x = capped(c, (double)logits[v]), p = exp(x - largest) / sum;
        const double one = v == target ? 1.0 : 0.0;
        const double slope = c->softcap > 0.0F ? 1.0 - x / (double)c->softcap * (x / (double)c->softcap) : 1.0;
        const double slope_error = c->softcap > 0.0F ? 16.0 * OP_U : 0.0;
        const double p_error = p * (error + (largest - x + 8.0) * OP_U + cap_error) + 2.0 * OP_U * fabs(p - one);
        const double error_of_slope = (slope_error + 4.0 * OP_U * slope) * fabs(p - one);
        bound[v] = fabs((double)(c->dloss * weight)) * (slope * p_error + error_of_slope) + 1e-38;
    }
    const double loss = log(sum) + largest - capped(c, (double)logits[target]);
    bound[c->vocab] = error + cap_error + OP_U * loss + (double)(c->vocab + 8) * 0x1p-52 * (fabs(largest) + 1.0);
}

static void check_cross_entropy(int64_t vocab, double magnitude, float softcap, bool weighted) {
    float *weight = op_normals(N_ROWS, 3, 1.0), *logits = op_normals(N_ROWS * vocab, 1, magnitude);
    int32_t target[N_ROWS];
    double *bound = op_doubles(N_ROWS * (vocab + 1));
    weight[4] = 0.0F;
    const loss_case data = {.vocab = vocab,
                            .logits = logits,
                            .target = target,
                            .weight = weighted ? weight : NULL,
                            .softcap = softcap,
                            .dloss = 0.125F};
    for (int64_t i = 0; i < N_ROWS; i++) {
        target[i] = (int32_t)op_below(2, i, vocab);
        if (i % 5 == 2) { target[i] = -1; } /* loss and gradient zero exactly */
        if (i % 5 == 2) { continue; }
        loss_bound(&data, logits + i * vocab, target[i], weighted ? weight[i] : 1.0F, bound + i * (vocab + 1));
    }
    op_case c = {.n_rows = N_ROWS, .row = vocab + 1, .exec = exec_cross_entropy, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "cross_entropy vocabulary %lld, logits about %g, softcap %g%s", (long long)vocab,
             magnitude, (double)softcap, weighted ? ", weighted" : "");
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(weight);
    qr_free(logits);
    qr_free(bound);
}

void test_op_cross_entropy(void) {
    static const int64_t vocabularies[] = {2, 31, 512, 1003, 4099};
    for (size_t i = 0; i < QR_COUNT_OF(vocabularies); i++) {
        check_cross_entropy(vocabularies[i], 1.0, 0.0F, false);
        check_cross_entropy(vocabularies[i], 1.0, 0.0F, true);
        check_cross_entropy(vocabularies[i], 200.0, 0.0F, false); /* exp overflows F64 without the shift */
        check_cross_entropy(vocabularies[i], 20.0, 30.0F, false);
        check_cross_entropy(vocabularies[i], 20.0, 30.0F, true);
    }
}

/* --- sum_squares: F64 out, so outside the harness of rows --- */

typedef struct squares {
    double sum;
    int64_t n_nonfinite;
} squares;

enum { MAX_CHUNKS = 128 };

/* The chunks added up in their order; `apart`: each computed alone, as one rank of several does. */
static squares run_sum_squares(qr_backend *backend, const float *x, int64_t n, bool apart) {
    const int64_t step = apart ? QR_SQUARES_CHUNK : n;
    squares result = {0};
    for (int64_t first = 0; first < n; first += step) {
        const int64_t n_here = qr_min(step, n - first), n_chunks = qr_ceil_div(n_here, QR_SQUARES_CHUNK);
        op_run run = {.backend = backend, .label = "sum_squares"};
        const qr_sum_squares_args args = {
            .x = op_input(&run, x + first, (size_t)n_here * sizeof(float)),
            .n = n_here,
            .dst = op_output(&run, NULL, n_chunks, sizeof(double), sizeof(double)),
            .n_nonfinite = op_output(&run, NULL, n_chunks, sizeof(int64_t), sizeof(int64_t)),
        };
        double sums[MAX_CHUNKS];
        int64_t counts[MAX_CHUNKS];
        op_call(&run, QR_OP_sum_squares, &args);
        op_read(&run, args.dst, sums);
        op_read(&run, args.n_nonfinite, counts);
        op_run_end(&run);
        for (int64_t c = 0; c < n_chunks; c++) { result.sum += sums[c], result.n_nonfinite += counts[c]; }
    }
    return result;
}

/* Squares of F32 numbers are exact in F64; a sum of n positive terms errs by at most n times half a unit. */
static void check_sum_squares(const float *x, int64_t n, int64_t n_nonfinite) {
    REQUIRE(qr_ceil_div(n, QR_SQUARES_CHUNK) <= MAX_CHUNKS);
    const squares ref = run_sum_squares(op_everything.ref, x, n, false);
    CHECK_INT(ref.n_nonfinite, n_nonfinite);
    CHECK(n_nonfinite > 0 ? !isfinite(ref.sum) : ref.sum > 0.0);
    for (int d = 0; d < op_everything.n_devices; d++) {
        const op_device *device = &op_everything.devices[d];
        const squares one = run_sum_squares(device->backends[0], x, n, false);
        const squares two = run_sum_squares(device->backends[1], x, n, true);
        CHECK_MSG(memcmp(&one, &two, sizeof one) == 0 || (isnan(one.sum) && isnan(two.sum)),
                  "%s: sum_squares of %lld: one thread and two, by chunks, give different bits", device->label,
                  (long long)n);
        CHECK_INT(one.n_nonfinite, n_nonfinite);
        const bool near = isfinite(ref.sum) ? fabs(one.sum - ref.sum) <= (double)n * 0x1p-53 * 2.0 * ref.sum
                                            : memcmp(&one.sum, &ref.sum, sizeof one.sum) == 0 || isnan(ref.sum);
        CHECK_MSG(near && isnan(one.sum) == isnan(ref.sum), "%s: sum_squares of %lld is %.17g, ref %.17g",
                  device->label, (long long)n, one.sum, ref.sum);
    }
}

void test_op_sum_squares(void) {
    static const int64_t sizes[] = {1, 3, 16, 17, 1000, 4099, 300007};
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        float *x = op_normals(sizes[i], 3, i % 2 == 0 ? 1.0 : 1e25); /* squares beyond F32 */
        check_sum_squares(x, sizes[i], 0);
        x[sizes[i] / 2] = -INFINITY;
        check_sum_squares(x, sizes[i], 1);
        x[sizes[i] - 1] = NAN;
        check_sum_squares(x, sizes[i], sizes[i] == 1 ? 1 : 2);
        qr_free(x);
    }
}
