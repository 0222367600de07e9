/* sample: the same tokens as the reference for samples of every kind, alone and among others. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/random.h"

enum { MAX_DRAWS = 64 };

typedef struct sample_case {
    int64_t vocab, n_rows;
    const float *logits;
    const qr_sample_params *samples;
} sample_case;

/* Row: token, whether all logits were numbers, log probability. */
static void exec_sample(op_run *run, const void *data, int64_t first, int64_t n_samples, qr_dtype dtype, void *out) {
    (void)dtype;
    const sample_case *c = data;
    const qr_sample_args args = {
        .logits = op_input(run, c->logits, (size_t)(c->n_rows * c->vocab) * sizeof(float)),
        .samples = op_input(run, c->samples + first, (size_t)n_samples * sizeof *c->samples),
        .dst = op_output(run, NULL, n_samples, sizeof(qr_sampled), sizeof(qr_sampled)),
        .n_samples = n_samples,
        .vocab = c->vocab,
    };
    op_call(run, QR_OP_sample, &args);
    qr_sampled sampled[MAX_DRAWS];
    op_read(run, args.dst, sampled);
    for (int64_t i = 0; i < n_samples; i++) {
        float *row = (float *)out + 3 * i;
        row[0] = (float)sampled[i].token;
        row[1] = (float)sampled[i].is_finite;
        row[2] = sampled[i].logprob;
    }
}

/* Tokens and flags are equal. A log probability is an F64 result, rounded: a unit in the last place apart at most. */
static void check_draws(const sample_case *c, int64_t n_samples, const char *what) {
    double *bound = op_doubles(3 * n_samples);
    for (int64_t i = 0; i < n_samples; i++) { bound[3 * i + 2] = 2.0 * OP_U * 100.0; }
    op_case harness_case = {.n_rows = n_samples, .row = 3, .exec = exec_sample, .data = c, .bound = bound};
    snprintf(harness_case.label, sizeof harness_case.label, "sample vocabulary %lld, %s", (long long)c->vocab, what);
    op_check_case(&harness_case, QR_DTYPE_F32);
    qr_free(bound);
}

/* ---- Draws of every kind ----------------------------------------------------------------------------------------- */

/* Kind i of a sample: greedy, plain, and every combination of filters, hot and cold. */
static qr_sample_params draw_of(int64_t i, int64_t row, uint64_t stream, int64_t vocab) {
    static const float temperatures[] = {1.0F, 0.5F, 3.0F, 0.0F, 1e-30F, 1.0F, 40.0F};
    static const float top_ps[] = {1.0F, 0.9F, 0.0F, 0.5F, 0.999F}, min_ps[] = {0.0F, 0.0F, 0.05F, 1.0F};
    static const int32_t top_ks[] = {0, 1, 5, 40, 0, 300};
    qr_sample_params params = {.uniform = qr_random_uniform(OP_SEED, stream, (uint64_t)i),
                               .row = (int32_t)row,
                               .temperature = temperatures[i % 7],
                               .top_p = 1.0F,
                               .wants_logprob = i % 3 == 0};
    if (i % 2 == 0) { return params; }
    params.top_p = top_ps[i / 2 % 5];
    params.min_p = min_ps[i / 3 % 4];
    params.top_k = top_ks[i / 5 % 6];
    if (i % 11 == 3) { params.top_k = (int32_t)vocab - 1; }
    if (i % 11 == 7) { params.top_k = (int32_t)vocab + 5; }
    if (i % 13 == 1) { params.uniform = 0.0; }
    if (i % 13 == 5) { params.uniform = 1.0 - 0x1p-53; }
    return params;
}

enum { N_ROWS = 5 };

static void check_vocabulary(int64_t vocab, double magnitude, bool ties, int64_t n_samples, uint64_t stream) {
    float *logits = op_normals(N_ROWS * vocab, stream, magnitude);
    for (int64_t i = 0; ties && i < N_ROWS * vocab; i++) { logits[i] = rintf(logits[i]) * (i % 2 == 0 ? 1.0F : -1.0F); }
    qr_sample_params samples[MAX_DRAWS];
    for (int64_t i = 0; i < n_samples; i++) {
        samples[i] = draw_of(i + (int64_t)stream, i * 3 % N_ROWS, stream, vocab);
    }
    char what[80];
    snprintf(what, sizeof what, "logits about %g%s", magnitude, ties ? ", many equal" : "");
    check_draws(&(sample_case){vocab, N_ROWS, logits, samples}, n_samples, what);
    qr_free(logits);
}

/* ---- Rows that are no numbers ------------------------------------------------------------------------------------ */

static void check_broken_rows(void) {
    enum { VOCAB = 2100 };
    float *logits = op_normals(N_ROWS * VOCAB, 22, 2.0);
    logits[0 * VOCAB + 2099] = NAN;
    logits[1 * VOCAB + 7] = INFINITY;
    logits[2 * VOCAB + 2047] = -INFINITY;
    qr_sample_params samples[4 * N_ROWS];
    for (int64_t i = 0; i < 4 * N_ROWS; i++) { samples[i] = draw_of(i, i % N_ROWS, 23, VOCAB); }
    check_draws(&(sample_case){VOCAB, N_ROWS, logits, samples}, 4 * N_ROWS, "rows that are no numbers");
    qr_free(logits);
}

/* ---- Draws that take more than one batch of a kernel ------------------------------------------------------------- */

/* Nearly flat: most of the vocabulary is kept, and the sample may fall anywhere in it. */
static void check_wide_draws(void) {
    enum { VOCAB = 9001, N = 6 };
    float *logits = op_normals(2 * VOCAB, 24, 0.01);
    for (int64_t i = VOCAB; i < 2 * VOCAB; i++) { logits[i] = -3.0F; }
    qr_sample_params samples[N];
    for (int i = 0; i < N; i++) {
        samples[i] = (qr_sample_params){.uniform = qr_random_uniform(OP_SEED, 25, (uint64_t)i),
                                        .row = i % 2,
                                        .temperature = 1.0F,
                                        .top_k = i < 4 ? 0 : 7000,
                                        .top_p = i == 5 ? 1.0F : 0.97F};
    }
    samples[1].uniform = 0.999;
    check_draws(&(sample_case){VOCAB, 2, logits, samples}, N, "nearly flat");
    qr_free(logits);
}

/* ---- Shares ------------------------------------------------------------------------------------------------------ */

/* What `uniform` sweeps over: every kept token is sampled for its share of [0, 1), in falling order. */
static void check_sweep(void) {
    enum { VOCAB = 6, N = 60 };
    static const float logits[VOCAB] = {0.0F, 2.0F, -1.0F, 2.0F, 1.0F, -9.0F};
    qr_sample_params samples[N];
    for (int i = 0; i < N; i++) {
        samples[i] = (qr_sample_params){.uniform = i / (double)N, .temperature = 1.0F, .top_k = 4, .top_p = 1.0F};
    }
    check_draws(&(sample_case){VOCAB, 1, logits, samples}, N, "a sweep");
    float out[3 * N];
    op_run run = {.backend = op_everything.ref, .label = "sample sweep"};
    exec_sample(&run, &(sample_case){VOCAB, 1, logits, samples}, 0, N, QR_DTYPE_F32, out);
    op_run_end(&run);
    static const int order[] = {1, 3, 4, 0};
    double begin = 0.0, total = 2.0 * exp(2.0) + exp(1.0) + 1.0;
    for (int k = 0; k < 4; k++) {
        const double end = begin + exp((double)logits[order[k]]) / total;
        for (int i = 0; i < N; i++) {
            const double u = i / (double)N;
            if (u > begin + 1e-9 && u < end - 1e-9) { CHECK_INT((int)out[3 * i], order[k]); }
        }
        begin = end;
    }
}

/* Weights of 1 each: sums are exact, and a uniform at the edge of a share belongs to the next. */
static void check_equal_shares(void) {
    enum { VOCAB = 16, N = 32 };
    static const float logits[VOCAB] = {0.0F};
    qr_sample_params samples[N];
    for (int i = 0; i < N; i++) {
        samples[i] =
            (qr_sample_params){.uniform = i % 16 / 16.0, .temperature = 1.0F, .top_k = i < 16 ? 0 : 8, .top_p = 1.0F};
    }
    check_draws(&(sample_case){VOCAB, 1, logits, samples}, N, "equal shares");
    float out[3 * N];
    op_run run = {.backend = op_everything.ref, .label = "sample equal shares"};
    exec_sample(&run, &(sample_case){VOCAB, 1, logits, samples}, 0, N, QR_DTYPE_F32, out);
    op_run_end(&run);
    for (int i = 0; i < N; i++) { CHECK_INT((int)out[3 * i], i < 16 ? i : (i - 16) / 2); }
}

void test_op_sample(void) {
    check_vocabulary(1, 1.0, false, 20, 1);
    check_vocabulary(2, 1.0, true, 40, 2);
    check_vocabulary(2049, 3.0, false, MAX_DRAWS, 3);
    check_vocabulary(2048, 2.0, true, MAX_DRAWS, 4);
    check_vocabulary(5003, 4.0, false, 40, 5);
    check_vocabulary(4400, 1.5, true, 24, 6);
    for (uint64_t stream = 30; stream < 42; stream++) { /* many, small */
        check_vocabulary(40 + (int64_t)stream * 7, 0.5 + (double)(stream % 4), stream % 3 == 0, MAX_DRAWS, stream);
    }
    check_broken_rows();
    check_wide_draws();
    check_sweep();
    check_equal_shares();
}
