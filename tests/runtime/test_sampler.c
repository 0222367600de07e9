/* The sampler: what each option keeps, how samples are distributed, and what they depend on. */
#include "check.h"

#include "base/random.h"
#include "runtime/sampling/penalties.h"

enum { VOCAB = 50 };

static const qr_sampling PLAIN = {.temperature = 1.0F, .top_p = 1.0F, .repetition_penalty = 1.0F};

static qr_sampler *make(int64_t vocab) {
    qr_sampler *sampler = NULL;
    qr_error err = {0};
    CHECK(qr_sampler_create(vocab, &sampler, &err) == QRUN_OK);
    return sampler;
}

static void random_logits(uint64_t seed, float *logits, int64_t n) {
    for (int64_t i = 0; i < n; i++) { logits[i] = 3.0F * (float)qr_random_normal(seed, 1, (uint64_t)i); }
}

static int32_t sample(qr_sampler *sampler, const qr_sampling *sampling, const float *logits, int64_t position,
                      int32_t sample, const uint32_t *mask) {
    static int32_t tokens[1 << 16];
    const qr_sampling_history history = {.tokens = tokens, .n_prompt = position, .n_tokens = position};
    return qr_sampler_sample(sampler, sampling, &history, sample, mask, logits);
}

/* ---- A naive sampler: Hugging Face's warpers in their order ------------------------------------------------------ */

static const float *sort_by;
static int by_logit(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return sort_by[i] != sort_by[j] ? (sort_by[i] > sort_by[j] ? -1 : 1) : i - j;
}

static double sum_of(const double *p, const int32_t *order, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) { sum += p[order[i]]; }
    return sum;
}

/* p [vocab]: temperature, then top_k, then top_p over what is left, renormalised, then min_p over what is left. */
static void naive_distribution(const qr_sampling *sampling, const float *logits, int vocab, double *p) {
    static int32_t order[4096];
    for (int i = 0; i < vocab; i++) { order[i] = i; }
    sort_by = logits;
    qsort(order, (size_t)vocab, sizeof *order, by_logit);
    const double highest = (double)logits[order[0]];
    for (int i = 0; i < vocab; i++) { p[i] = exp(((double)logits[i] - highest) / (double)sampling->temperature); }
    int n = sampling->top_k > 0 && sampling->top_k < vocab ? sampling->top_k : vocab;
    const double mass = sum_of(p, order, n);
    int kept = 1;
    while (kept < n && sum_of(p, order, kept) < (double)sampling->top_p * mass) { kept++; }
    n = sampling->top_p < 1.0F ? kept : n;
    for (kept = 1; kept < n && p[order[kept]] >= (double)sampling->min_p * p[order[0]]; kept++) {}
    n = kept;
    const double total = sum_of(p, order, n);
    for (int i = 0; i < vocab; i++) { p[order[i]] = i < n ? p[order[i]] / total : 0; }
}

/* 1 − 1e-9 quantile of chi-square by Wilson and Hilferty. */
static double chi_square_bound(int degrees) {
    const double k = degrees < 1 ? 1 : degrees, z = 6.0, t = 1 - 2 / (9 * k) + z * sqrt(2 / (9 * k));
    return k * t * t * t;
}

static void check_draws(const qr_sampling *sampling, const float *logits, int vocab, const char *what) {
    enum { N = 20000 };
    static double p[4096];
    static int counts[4096];
    naive_distribution(sampling, logits, vocab, p);
    memset(counts, 0, sizeof counts);
    qr_sampler *sampler = make(vocab);
    for (int i = 0; i < N; i++) { counts[sample(sampler, sampling, logits, i, 0, NULL)]++; }
    double chi = 0, rare_expected = 0, rare_seen = 0;
    int degrees = -1;
    for (int i = 0; i < vocab; i++) {
        CHECK_MSG(p[i] > 0 || counts[i] == 0, "%s: %d was drawn %d times and must not be", what, i, counts[i]);
        if (p[i] * N < 8) {
            rare_expected += p[i] * N;
            rare_seen += counts[i];
            continue;
        }
        chi += (counts[i] - p[i] * N) * (counts[i] - p[i] * N) / (p[i] * N);
        degrees++;
    }
    if (rare_expected >= 8) {
        chi += (rare_seen - rare_expected) * (rare_seen - rare_expected) / rare_expected, degrees++;
    }
    CHECK_MSG(chi <= chi_square_bound(degrees), "%s: chi-square %.1f with %d degrees of freedom", what, chi, degrees);
    qr_sampler_destroy(sampler);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static void test_greedy_takes_the_lowest_of_equals(void) {
    float logits[VOCAB] = {0};
    qr_sampler *sampler = make(VOCAB);
    qr_sampling greedy = PLAIN;
    greedy.temperature = 0;
    greedy.top_k = 1;
    CHECK_INT(sample(sampler, &greedy, logits, 0, 0, NULL), 0);
    logits[7] = logits[31] = 5;
    CHECK_INT(sample(sampler, &greedy, logits, 0, 0, NULL), 7);
    for (int i = 0; i < VOCAB; i++) { logits[i] = -1000.0F - (float)(i % 3); }
    CHECK_INT(sample(sampler, &greedy, logits, 0, 0, NULL), 0);
    qr_sampler_destroy(sampler);
}

static void test_top_k_1_is_greedy(void) {
    float logits[VOCAB];
    qr_sampler *sampler = make(VOCAB);
    qr_sampling greedy = PLAIN, top = PLAIN, tiny = PLAIN, nothing = PLAIN, sure = PLAIN;
    greedy.temperature = 0;
    top.top_k = 1, top.temperature = 5;
    tiny.temperature = 1e-30F;
    nothing.top_p = 0;
    sure.min_p = 1;
    for (uint64_t seed = 1; seed < 50; seed++) {
        random_logits(seed, logits, VOCAB);
        const int32_t best = sample(sampler, &greedy, logits, 3, 0, NULL);
        CHECK_INT(sample(sampler, &top, logits, (int64_t)seed, 0, NULL), best);
        CHECK_INT(sample(sampler, &tiny, logits, (int64_t)seed, 0, NULL), best);
        CHECK_INT(sample(sampler, &nothing, logits, (int64_t)seed, 0, NULL), best);
        CHECK_INT(sample(sampler, &sure, logits, (int64_t)seed, 0, NULL), best);
    }
    qr_sampler_destroy(sampler);
}

static void test_draws_follow_the_distribution(void) {
    static const struct {
        const char *what;
        float temperature, top_p, min_p;
        int32_t top_k;
    } cases[] = {
        {"plain", 1, 1, 0, 0},
        {"cold", 0.5F, 1, 0, 0},
        {"hot", 3, 1, 0, 0},
        {"top_k", 1, 1, 0, 5},
        {"top_k of more than all", 1, 1, 0, 999},
        {"top_p", 1, 0.7F, 0, 0},
        {"hot top_p", 2, 0.9F, 0, 0},
        {"min_p", 2, 1, 0.2F, 0},
        {"top_k and top_p", 2, 0.6F, 0, 8},
        {"top_p and min_p", 2, 0.9F, 0.3F, 0},
        {"top_k and min_p", 3, 1, 0.5F, 10},
        {"all", 3, 0.7F, 0.4F, 20},
        {"all, wide", 4, 0.8F, 0.55F, 40},
    };
    float logits[VOCAB];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        random_logits(100 + i, logits, VOCAB);
        const qr_sampling sampling = {.temperature = cases[i].temperature,
                                      .top_k = cases[i].top_k,
                                      .top_p = cases[i].top_p,
                                      .min_p = cases[i].min_p,
                                      .repetition_penalty = 1,
                                      .seed = 5 + i};
        check_draws(&sampling, logits, VOCAB, cases[i].what);
    }
}

static void test_which_tokens_survive(void) {
    /* Probabilities 0.4, 0.3, 0.2, 0.1, and next to nothing. */
    const float logits[5] = {logf(0.4F), logf(0.3F), logf(0.2F), logf(0.1F), -40};
    static const struct {
        float top_p, min_p;
        int32_t top_k, expected;
    } cases[] = {
        {0.39F, 0, 0, 1},    {0.41F, 0, 0, 2},    {0.69F, 0, 0, 2}, {0.71F, 0, 0, 3}, {0.95F, 0, 0, 4},
        {1, 0.8F, 0, 1},     {1, 0.74F, 0, 2},    {1, 0.49F, 0, 3}, {1, 0.24F, 0, 4}, {1, 0, 3, 3},
        {1, 0, 4, 4},        {0.56F, 0, 2, 1},    /* of the two kept the first has 0.571 */
        {0.58F, 0, 2, 2},    {0.8F, 0.6F, 3, 2},  /* top_p over 0.9 of mass keeps 3 (0.778 after two), min_p then drops
                                                     0.2 */
        {0.76F, 0.6F, 3, 2}, {0.5F, 0.6F, 4, 2},  /* top_p sees all four before min_p: 0.4 < 0.5 */
        {0.45F, 0.9F, 4, 1}, {0.44F, 0.7F, 3, 1}, /* 0.4 of 0.9 is 0.444 */
        {0.42F, 0.7F, 4, 2}, /* all four of top_k are the mass that top_p sees, though min_p drops two of them */
        {0.46F, 0.7F, 3, 2}, /* a min_p applied first would see 0.4 of 0.7 and keep one */
    };
    qr_sampler *sampler = make(5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qr_sampling sampling = {.temperature = 1,
                                      .top_k = cases[i].top_k,
                                      .top_p = cases[i].top_p,
                                      .min_p = cases[i].min_p,
                                      .repetition_penalty = 1};
        int32_t most = 0;
        for (int64_t n = 0; n < 400; n++) {
            const int32_t id = sample(sampler, &sampling, logits, n, 0, NULL);
            most = id > most ? id : most;
        }
        CHECK_MSG(most + 1 == cases[i].expected, "case %zu keeps %d tokens, expected %d", i, most + 1,
                  cases[i].expected);
    }
    qr_sampler_destroy(sampler);
}

static void test_large_vocabulary(void) {
    static float logits[4096];
    random_logits(9, logits, 4096);
    const qr_sampling nucleus = {.temperature = 1.5F, .top_p = 0.9F, .repetition_penalty = 1, .seed = 1};
    check_draws(&nucleus, logits, 4096, "nucleus of 4096");
    const qr_sampling plain = {.temperature = 1.0F, .top_p = 1, .repetition_penalty = 1, .seed = 1};
    check_draws(&plain, logits, 4096, "plain over 4096");
}

/* Samples with penalties equal samples without them from logits that were changed by hand. */
static void check_penalties(qr_sampling sampling, const float *logits, const float *changed) {
    const int32_t tokens[] = {0, 1, 1, 2, 2, 2}; /* the prompt is 0 1 1 */
    const qr_sampling_history history = {.tokens = tokens, .n_prompt = 3, .n_tokens = 6};
    qr_sampler *sampler = make(6);
    float given[6];
    memcpy(given, logits, sizeof given);
    int n_changed = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        qr_sampling without = {.temperature = 4, .top_p = 1, .repetition_penalty = 1, .seed = seed};
        if (seed % 2 == 1) { without.top_k = 5; }
        sampling.temperature = without.temperature, sampling.top_p = 1, sampling.seed = seed,
        sampling.top_k = without.top_k;
        const int32_t expected = qr_sampler_sample(sampler, &without, &history, 0, NULL, changed);
        CHECK_INT(qr_sampler_sample(sampler, &sampling, &history, 0, NULL, given), expected);
        n_changed += qr_sampler_sample(sampler, &without, &history, 0, NULL, logits) != expected;
    }
    CHECK(n_changed > 100);
    CHECK(memcmp(given, logits, sizeof given) == 0); /* the caller's logits stay */
    sampling.temperature = 0;
    qr_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    CHECK_INT(qr_sampler_sample(sampler, &sampling, &history, 0, NULL, given),
              qr_sampler_sample(sampler, &greedy, &history, 0, NULL, changed));
    qr_sampler_destroy(sampler);
}

static void test_penalties(void) {
    const float logits[6] = {4, -2, 6, 1, 0, -8};
    const float repeated[6] = {2, -4, 3, 1, 0, -8};
    check_penalties((qr_sampling){.repetition_penalty = 2}, logits, repeated);
    const float answered[6] = {4, -2, 6 - 0.5F - 1.5F, 1, 0, -8};
    check_penalties((qr_sampling){.repetition_penalty = 1, .presence_penalty = 0.5F, .frequency_penalty = 0.5F}, logits,
                    answered);
    const float all[6] = {2, -4, 3 - 2.0F, 1, 0, -8};
    check_penalties((qr_sampling){.repetition_penalty = 2, .presence_penalty = 0.5F, .frequency_penalty = 0.5F}, logits,
                    all);
    const float liked[6] = {4, -2, 6 + 3.0F, 1, 0, -8};
    check_penalties((qr_sampling){.repetition_penalty = 1, .frequency_penalty = -1}, logits, liked);
}

static void test_mask(void) {
    float logits[VOCAB];
    random_logits(3, logits, VOCAB);
    uint32_t mask[2] = {0};
    static const int allowed[] = {3, 31, 32, 49};
    for (int i = 0; i < 4; i++) { mask[allowed[i] / 32] |= 1U << (allowed[i] % 32); }
    qr_sampler *sampler = make(VOCAB);
    qr_sampling variants[4] = {PLAIN, PLAIN, PLAIN, PLAIN};
    variants[0].temperature = 0;
    variants[1].temperature = 20;
    variants[2].temperature = 20, variants[2].top_k = 10;
    variants[3].temperature = 20, variants[3].top_p = 0.99F, variants[3].min_p = 0.001F;
    for (int v = 0; v < 4; v++) {
        int seen[VOCAB] = {0};
        for (int64_t n = 0; n < 500; n++) { seen[sample(sampler, &variants[v], logits, n, 0, mask)]++; }
        int total = 0;
        for (int i = 0; i < 4; i++) {
            total += seen[allowed[i]];
            CHECK(v == 0 || seen[allowed[i]] > 20);
        }
        CHECK_INT(total, 500);
    }
    uint32_t one[2] = {0, 1U << 4};
    for (int v = 0; v < 4; v++) { CHECK_INT(sample(sampler, &variants[v], logits, 0, 0, one), 36); }
    qr_sampler_destroy(sampler);
}

static void test_a_sample_depends_on_seed_sample_and_position_alone(void) {
    float logits[VOCAB], other[VOCAB];
    random_logits(4, logits, VOCAB);
    random_logits(5, other, VOCAB);
    qr_sampling hot = PLAIN;
    hot.temperature = 10, hot.seed = 42;
    qr_sampler *a = make(VOCAB), *b = make(VOCAB);
    int differs[3] = {0};
    for (int64_t position = 0; position < 200; position++) {
        const int32_t id = sample(a, &hot, logits, position, 0, NULL);
        for (int i = 0; i < 3; i++) {
            sample(b, &hot, other, 7 * position + i, i, NULL);
        } /* what came before is no matter */
        CHECK_INT(sample(b, &hot, logits, position, 0, NULL), id);
        qr_sampling reseeded = hot;
        reseeded.seed = 43;
        differs[0] += sample(a, &reseeded, logits, position, 0, NULL) != id;
        differs[1] += sample(a, &hot, logits, position, 1, NULL) != id;
        differs[2] += sample(a, &hot, logits, position + 1, 0, NULL) != id;
    }
    for (int i = 0; i < 3; i++) {
        CHECK_MSG(differs[i] > 150, "variant %d differs in %d of 200 samples", i, differs[i]);
    }
    qr_sampler_destroy(a);
    qr_sampler_destroy(b);
}

static void test_log_probabilities(void) {
    float logits[VOCAB];
    random_logits(6, logits, VOCAB);
    logits[10] = logits[20] = 30; /* equal: the lower id first */
    const double log_sum = qr_log_sum_exp(logits, VOCAB);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) { sum += exp((double)logits[i] - log_sum); }
    CHECK(fabs(sum - 1) < 1e-12);
    qrun_top_logprob top[20];
    qr_top_logprobs(logits, VOCAB, log_sum, 20, top);
    CHECK_INT(top[0].token_id, 10);
    CHECK_INT(top[1].token_id, 20);
    int better = 0;
    for (int i = 0; i < VOCAB; i++) { better += logits[i] > logits[top[19].token_id]; }
    CHECK_INT(better, 19);
    for (int i = 1; i < 20; i++) { CHECK(top[i].logprob <= top[i - 1].logprob); }
    CHECK(fabs((double)top[19].logprob - ((double)logits[top[19].token_id] - log_sum)) < 1e-5);
    qr_top_logprobs(logits, VOCAB, log_sum, 0, NULL);
}

static void test_finite(void) {
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        random_logits(6, logits, VOCAB);
        CHECK(qr_logits_are_finite(logits, VOCAB));
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int b = 0; b < 3; b++) {
            logits[i] = bad[b];
            CHECK(!qr_logits_are_finite(logits, VOCAB));
        }
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_greedy_takes_the_lowest_of_equals);
    CHECK_RUN(test_top_k_1_is_greedy);
    CHECK_RUN(test_draws_follow_the_distribution);
    CHECK_RUN(test_which_tokens_survive);
    CHECK_RUN(test_large_vocabulary);
    CHECK_RUN(test_penalties);
    CHECK_RUN(test_mask);
    CHECK_RUN(test_a_sample_depends_on_seed_sample_and_position_alone);
    CHECK_RUN(test_log_probabilities);
    CHECK_RUN(test_finite);
    return check_end();
}
