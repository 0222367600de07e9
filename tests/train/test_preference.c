/* Pairs of answers: what their loss is and changes by, and a pass over them against PEFT; and that neither chunks,
 * checkpointing, tiles nor other pairs change what comes out. */
#include "runtime/pass/preference.h"

#include <math.h>

#include "check.h"

#include "../runtime/golden_index.h"
#include "base/sizes.h"
#include "training_case.h"

static qr_json *golden_index;
static qrun_context *context;

static const qr_preference kinds[] = {
    {QRUN_OBJECTIVE_DPO, 0.3, 0}, {QRUN_OBJECTIVE_ORPO, 0.4, 0}, {QRUN_OBJECTIVE_SIMPO, 2.0, 0.7}};

/* ---- The loss of a pair ------------------------------------------------------------------------------------------ */

static double loss_with(const qr_preference *kind, const qr_answer answers[2], int which, double change) {
    qr_answer changed[2] = {answers[0], answers[1]};
    changed[which].log_p += change;
    return qr_preference_loss(kind, changed).loss;
}

static void test_slopes_are_those_of_the_loss(void) {
    static const qr_answer pairs[][2] = {{{-7.5, -8.0, 5}, {-9.25, -7.0, 9}},
                                         {{-60.0, -20.0, 12}, {-3.0, -30.0, 2}},
                                         {{-0.01, -0.5, 1}, {-0.02, -0.02, 3}}};
    const double step = 1e-5;
    for (size_t k = 0; k < QR_COUNT_OF(kinds); k++) {
        for (size_t i = 0; i < QR_COUNT_OF(pairs); i++) {
            const qr_pair_loss pair = qr_preference_loss(&kinds[k], pairs[i]);
            for (int which = 0; which < 2; which++) {
                const double slope =
                    (loss_with(&kinds[k], pairs[i], which, step) - loss_with(&kinds[k], pairs[i], which, -step)) /
                    (2 * step);
                CHECK_MSG(fabs(slope - pair.slope[which]) <= 1e-5 * (1 + fabs(slope)),
                          "objective %zu, pair %zu, answer %d: the slope is %.9g, by differences %.9g", k, i, which,
                          pair.slope[which], slope);
            }
        }
    }
}

/* What no probability can be is far away from here; what F32 makes of a sure answer is not. */
static void test_losses_are_finite(void) {
    static const qr_answer pairs[][2] = {{{0, 0, 1}, {0, 0, 1}},
                                         {{0, -1e5, 4}, {-1e5, 0, 4}},
                                         {{-1e5, 0, 4}, {0, -1e5, 4}},
                                         {{-1e-9, 0, 2}, {-1e-9, 0, 2}}};
    for (size_t k = 0; k < QR_COUNT_OF(kinds); k++) {
        for (size_t i = 0; i < QR_COUNT_OF(pairs); i++) {
            const qr_pair_loss pair = qr_preference_loss(&kinds[k], pairs[i]);
            CHECK_MSG(isfinite(pair.loss) && isfinite(pair.slope[0]) && isfinite(pair.slope[1]) && pair.slope[0] <= 0 &&
                          pair.slope[1] >= 0,
                      "objective %zu, pair %zu: loss %g, slopes %g and %g", k, i, pair.loss, pair.slope[0],
                      pair.slope[1]);
        }
    }
}

static void test_equals_are_a_coin_toss(void) {
    const qr_answer same[2] = {{-5, -5, 3}, {-5, -5, 3}};
    CHECK(fabs(qr_preference_loss(&kinds[0], same).loss - log(2)) < 1e-12);
    CHECK(fabs(qr_preference_loss(&kinds[2], same).loss - log1p(exp(0.7))) < 1e-12);
}

/* ---- A pass ------------------------------------------------------------------------------------------------------ */

static qrun_objective objective_of(const qr_json *entry) {
    const char *name = text_of(entry, "objective");
    return strcmp(name, "dpo") == 0    ? QRUN_OBJECTIVE_DPO
           : strcmp(name, "orpo") == 0 ? QRUN_OBJECTIVE_ORPO
                                       : QRUN_OBJECTIVE_SIMPO;
}

static training_options options_for(const qr_json *entry, const training_batch *batch, qrun_dtype dtype) {
    return (training_options){
        .dtype = dtype,
        .policy = "none",
        .max_tokens = batch->batch.n_tokens,
        .preference = {objective_of(entry), number_of(entry, "beta"), number_of(entry, "target_margin")}};
}

static double sum_of(const qr_json *entry, const char *key) {
    double sum = 0;
    for (const qr_json *item = qr_json_first(qr_json_get(entry, key)); item != NULL; item = item->next) {
        sum += item->valuedouble;
    }
    return sum;
}

/* Relative to 1 where the number is small. */
static void check_near(const qr_json *entry, const char *what, double value, double expected, double bound) {
    CHECK_MSG(fabs(value - expected) <= bound * (1 + fabs(expected)), "%s: %s is %.7f, PEFT's %.7f",
              text_of(entry, "name"), what, value, expected);
}

static void check_against_peft(qrun_dtype dtype) {
    static training_batch batch;
    int n_checked = 0;
    const bool exact = dtype == QRUN_DTYPE_F32;
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "preferences")); entry != NULL;
         entry = entry->next) {
        training_fixture f;
        training_batch_read(entry_named(golden_index, "batches", text_of(entry, "batch")), 0, -1, &batch);
        const training_options options = options_for(entry, &batch, dtype);
        const qr_json *peers = qr_json_get(entry, training_is_full(entry) ? "bf16-autocast" : "bf16");
        if (!training_fixture_open(context, entry, &options, &f)) { continue; }
        char path[512];
        qr_error err = {0};
        qr_safetensors *golden;
        double sums[QR_MOST_LOSS_SUMS], again[QR_MOST_LOSS_SUMS];
        const int64_t n_pairs = batch.batch.n_sequences / 2;
        snprintf(path, sizeof path, FIXTURES "%s", text_of(entry, "gradients"));
        REQUIRE(qr_safetensors_open(path, &golden, &err) == QRUN_OK);
        CHECK_MSG(qr_train_pass_run(f.pass, &batch.batch, 1.0F / (float)n_pairs, true, sums, &err) == QRUN_OK, "%s",
                  err.message);
        const double error =
            training_gradient_error(&f, golden, exact ? 1e-4 : 2 * number_of(peers, "max_tensor_error"));
        const double bound = exact ? 1e-4 : 2 * number_of(peers, "gradient_error");
        CHECK_MSG(error <= bound, "%s: the gradient is off by %.4g relative, allowed %.4g", text_of(entry, "name"),
                  error, bound);
        /* What BF16 errs by depends on how far answers are from a reference that errs the same way. */
        const double loss = sum_of(entry, "losses");
        const double allowed = exact ? 1e-5 : 0.02 + 2 * fabs(number_of(peers, "loss") * (double)n_pairs - loss);
        check_near(entry, "the loss", sums[QR_SUM_LOSS], loss, allowed);
        check_near(entry, "the chosen reward", sums[QR_SUM_CHOSEN], sum_of(entry, "chosen"), exact ? 1e-5 : 0.1);
        check_near(entry, "the rejected reward", sums[QR_SUM_REJECTED], sum_of(entry, "rejected"), exact ? 1e-5 : 0.1);
        CHECK(qr_train_pass_run(f.pass, &batch.batch, 0, false, again, &err) == QRUN_OK);
        CHECK_MSG(memcmp(sums, again, sizeof sums) == 0, "%s: an evaluation gives another loss",
                  text_of(entry, "name"));
        qr_safetensors_close(golden);
        training_fixture_close(&f);
        n_checked++;
    }
    CHECK_INT(n_checked, 9);
}

static void test_gradients_equal_peft(void) { check_against_peft(QRUN_DTYPE_F32); }
static void test_gradients_in_bf16_stay_as_near_as_pefts(void) { check_against_peft(QRUN_DTYPE_BF16); }

static float *run_with(const char *name, const training_options *options, const training_batch *batch, int64_t *n,
                       double *sums) {
    training_fixture f;
    qr_error err = {0};
    if (!training_fixture_open(context, entry_named(golden_index, "preferences", name), options, &f)) { return NULL; }
    CHECK_MSG(qr_train_pass_run(f.pass, &batch->batch, 0.5F, true, sums, &err) == QRUN_OK, "%s", err.message);
    *n = f.parameters.n_floats;
    float *gradients = malloc((size_t)*n * sizeof *gradients);
    CHECK(training_read(&f.parameters, f.parameters.gradients, *n, gradients, &err) == QRUN_OK);
    training_fixture_close(&f);
    return gradients;
}

/* Same bits: with logits of a few rows at a time, layers computed again, and in tiles. */
static void test_how_it_is_computed_changes_nothing(void) {
    static training_batch batch;
    training_batch_read(entry_named(golden_index, "batches", "pairs"), 0, -1, &batch);
    static const char *const names[] = {"llama-dpo", "llama-dora-dpo", "llama-orpo", "llama-dora-dpo-from-adapter"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        const qr_json *entry = entry_named(golden_index, "preferences", names[i]);
        const training_options plain = options_for(entry, &batch, QRUN_DTYPE_F32);
        training_options others[3] = {plain, plain, plain};
        others[0].logit_rows = 7;
        others[1].policy = "full";
        others[2].policy = "full";
        others[2].tile_rows = 16;
        int64_t n, n_other;
        double sums[QR_MOST_LOSS_SUMS], other_sums[QR_MOST_LOSS_SUMS];
        float *gradients = run_with(names[i], &plain, &batch, &n, sums);
        for (size_t k = 0; k < QR_COUNT_OF(others) && gradients != NULL; k++) {
            float *other = run_with(names[i], &others[k], &batch, &n_other, other_sums);
            REQUIRE(other != NULL);
            CHECK_MSG(n == n_other && memcmp(gradients, other, (size_t)n * sizeof *other) == 0,
                      "%s: variant %zu differs", names[i], k);
            CHECK(memcmp(sums, other_sums, sizeof sums) == 0);
            free(other);
        }
        free(gradients);
    }
}

/* The sums of a pair are the same bits whatever pairs are beside it. */
static void test_pairs_alone_and_together(void) {
    static training_batch all, one;
    const qr_json *entry = entry_named(golden_index, "preferences", "llama-dpo");
    const qr_json *examples = entry_named(golden_index, "batches", "pairs");
    training_batch_read(examples, 0, -1, &all);
    const training_options options = options_for(entry, &all, QRUN_DTYPE_F32);
    int64_t n;
    double together[QR_MOST_LOSS_SUMS], added[QR_MOST_LOSS_SUMS] = {0};
    float *gradients = run_with("llama-dpo", &options, &all, &n, together), *sum = calloc((size_t)n, sizeof *sum);
    REQUIRE(gradients != NULL && sum != NULL);
    for (int64_t first = 0; first < all.batch.n_sequences; first += 2) {
        double alone[QR_MOST_LOSS_SUMS];
        training_batch_read(examples, first, 2, &one);
        float *own = run_with("llama-dpo", &options, &one, &n, alone);
        for (int k = 0; k < QR_MOST_LOSS_SUMS; k++) { added[k] += alone[k]; }
        for (int64_t i = 0; i < n && own != NULL; i++) { sum[i] += own[i]; }
        free(own);
    }
    CHECK(memcmp(together, added, sizeof together) == 0);
    CHECK(training_relative_error(sum, gradients, n) < 1e-6);
    free(sum);
    free(gradients);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!training_begin(&context, &golden_index)) { return 1; }
    CHECK_RUN(test_slopes_are_those_of_the_loss);
    CHECK_RUN(test_losses_are_finite);
    CHECK_RUN(test_equals_are_a_coin_toss);
    CHECK_RUN(test_gradients_equal_peft);
    CHECK_RUN(test_gradients_in_bf16_stay_as_near_as_pefts);
    CHECK_RUN(test_how_it_is_computed_changes_nothing);
    CHECK_RUN(test_pairs_alone_and_together);
    qr_json_free(golden_index);
    qrun_context_destroy(context);
    return check_end();
}
