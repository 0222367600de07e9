/* LoRA's variants in the training pass. Dropout: its draws follow (run, step, module, example, token) and nothing else,
 * so the bits and gradients promised without it hold with it; the gradient is that of what was computed; evaluation has
 * none. */
#include "check.h"

#include "../runtime/golden_index.h"
#include "training_case.h"

#include "base/sizes.h"
#include "runtime/model/modules.h"

static qr_json *golden_index;
static qrun_context *context;

/* Runs a batch forward and back from zeroed gradients, which go to `gradients` [n_floats] where it is not NULL. Returns
 * the loss. */
static double run_batch(training_fixture *f, const qr_train_batch *batch, float *gradients) {
    const qr_parameters *p = &f->parameters;
    qr_backend *backend = context->backend;
    qr_error err = {0};
    double sum = 0;
    CHECK(backend->fill_zero(backend, p->gradients, (size_t)p->n_floats * sizeof(float), &err) == QRUN_OK);
    CHECK_MSG(qr_train_pass_run(f->pass, batch, 0.01F, true, &sum, &err) == QRUN_OK, "%s", err.message);
    if (gradients != NULL) { CHECK(training_read(p, p->gradients, p->n_floats, gradients, &err) == QRUN_OK); }
    return sum;
}

static bool open_named(const char *name, const training_options *options, training_fixture *f) {
    return training_fixture_open(context, entry_named(golden_index, "gradients", name), options, f);
}

static float *floats(const training_fixture *f) { return calloc((size_t)f->parameters.n_floats, sizeof(float)); }

/* ---- Dropout ----------------------------------------------------------------------------------------------------- */

static void test_dropout_has_the_same_bits_under_every_policy(void) {
    static training_batch batch;
    static const char *const policies[] = {"none", "full", "every:2", "attn", "mlp"};
    static const char *const models[] = {"llama", "gpt2", "qwen3", "llama-dora", "qwen3_5"};
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    for (int m = 0; m < 10; m++) {
        float *first = NULL;
        for (size_t i = 0; i < 5; i++) {
            const training_options options = {.dtype = (qrun_dtype)(m % 2),
                                              .policy = policies[i],
                                              .max_tokens = batch.batch.n_tokens,
                                              .dropout = 0.3F};
            training_fixture f;
            REQUIRE(open_named(models[m / 2], &options, &f));
            float *gradients = floats(&f);
            (void)run_batch(&f, &batch.batch, gradients);
            if (first == NULL) {
                first = gradients;
            } else {
                CHECK_MSG(memcmp(first, gradients, (size_t)f.parameters.n_floats * sizeof *first) == 0,
                          "%s, %s: other bits", models[m / 2], policies[i]);
                free(gradients);
            }
            training_fixture_close(&f);
        }
        free(first);
    }
}

static void check_alone_and_together(const char *name) {
    static training_batch together, alone;
    const qr_json *entry = entry_named(golden_index, "batches", "micro-batch");
    training_batch_read(entry, 0, -1, &together);
    const training_options options = {
        .dtype = QRUN_DTYPE_F32, .policy = "none", .max_tokens = together.batch.n_tokens, .dropout = 0.3F};
    training_fixture f;
    qr_error err = {0};
    double total = 0, sum;
    REQUIRE(open_named(name, &options, &f));
    const qr_parameters *p = &f.parameters;
    float *expected = floats(&f), *gradients = floats(&f);
    const double whole = run_batch(&f, &together.batch, expected);
    CHECK(context->backend->fill_zero(context->backend, p->gradients, (size_t)p->n_floats * sizeof(float), &err) ==
          QRUN_OK);
    for (int64_t i = together.batch.n_sequences; i-- > 0;) { /* backwards: order is nothing either */
        training_batch_read(entry, i, 1, &alone);
        CHECK(qr_train_pass_run(f.pass, &alone.batch, 0.01F, true, &sum, &err) == QRUN_OK);
        total += sum;
    }
    CHECK(training_read(p, p->gradients, p->n_floats, gradients, &err) == QRUN_OK);
    const double error = training_relative_error(gradients, expected, p->n_floats);
    CHECK_MSG(error <= 1e-6, "%s: off by %.3g", name, error);
    CHECK_MSG(fabs(total - whole) <= 1e-6 * whole, "%s: loss %.9g alone, %.9g together", name, total, whole);
    free(expected), free(gradients);
    training_fixture_close(&f);
}

static void test_dropout_of_examples_alone_and_together(void) {
    check_alone_and_together("qwen3");
    check_alone_and_together("llama-dora");
    check_alone_and_together("qwen3_5");
}

static void test_dropout_changes_each_step_and_not_in_evaluation(void) {
    static training_batch batch;
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    training_options options = {
        .dtype = QRUN_DTYPE_F32, .policy = "none", .max_tokens = batch.batch.n_tokens, .dropout = 0.3F};
    training_fixture with, without;
    qr_error err = {0};
    double plain, evaluated;
    REQUIRE(open_named("llama", &options, &with));
    options.dropout = 0;
    REQUIRE(open_named("llama", &options, &without));
    const double first = run_batch(&with, &batch.batch, NULL), again = run_batch(&with, &batch.batch, NULL);
    batch.batch.dropout_key = 2;
    const double second = run_batch(&with, &batch.batch, NULL);
    CHECK(first == again && first != second);
    CHECK(qr_train_pass_run(with.pass, &batch.batch, 0, false, &evaluated, &err) == QRUN_OK);
    CHECK(qr_train_pass_run(without.pass, &batch.batch, 0, false, &plain, &err) == QRUN_OK);
    CHECK(evaluated == plain && plain != first);
    training_fixture_close(&with);
    training_fixture_close(&without);
}

/* Of DoRA, whose norms depend on the factors but are constants to the gradient, only magnitudes may move. */
static void keep_magnitudes(const qr_parameters *p, float *gradients) {
    for (int64_t i = 0; p->lora.dora && i < p->n; i++) {
        const qr_parameter *parameter = &p->list[i];
        if (parameter->kind == QR_PARAMETER_LORA_MAGNITUDE) { continue; }
        memset(gradients + parameter->offset, 0, (size_t)(parameter->rows * parameter->cols) * sizeof *gradients);
    }
}

/* The slope along the gradient itself, by central differences at one key. */
static void check_slope(const char *name, float dropout) {
    static training_batch batch;
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    const training_options options = {
        .dtype = QRUN_DTYPE_F32, .policy = "none", .max_tokens = batch.batch.n_tokens, .dropout = dropout};
    training_fixture f;
    qr_error err = {0};
    REQUIRE(open_named(name, &options, &f));
    const qr_parameters *p = &f.parameters;
    const int64_t n = p->n_floats;
    float *gradients = floats(&f), *values = floats(&f), *moved = floats(&f);
    double norm = 0, sums[2];
    CHECK(training_read(p, p->values, n, values, &err) == QRUN_OK);
    (void)run_batch(&f, &batch.batch, gradients);
    keep_magnitudes(p, gradients);
    for (int64_t i = 0; i < n; i++) { norm += (double)gradients[i] * (double)gradients[i]; }
    norm = sqrt(norm);
    const double step = 0.02;
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++) {
            moved[i] = (float)((double)values[i] + (side == 0 ? -step : step) * (double)gradients[i] / norm);
        }
        CHECK(context->backend->copy_in(context->backend, p->values, moved, (size_t)n * sizeof *moved, &err) ==
              QRUN_OK);
        sums[side] = run_batch(&f, &batch.batch, NULL);
    }
    const double slope = (sums[1] - sums[0]) / (2 * step) * 0.01;
    CHECK_MSG(fabs(slope - norm) <= 2e-3 * norm, "%s: slope %.7g by differences, gradient %.7g", name, slope, norm);
    free(gradients), free(values), free(moved);
    training_fixture_close(&f);
}

static void test_dropout_against_differences(void) {
    check_slope("llama", 0.5F);
    check_slope("gpt2", 0.5F);
    check_slope("gemma3", 0.5F);
}

/* ---- DoRA -------------------------------------------------------------------------------------------------------- */

static void test_dora_against_differences(void) {
    check_slope("llama-dora", 0.0F);
    check_slope("llama-dora", 0.5F);
}

/* With so small a probability nothing is dropped: what is left is that dropout takes DoRA's two products apart. */
static void test_dora_after_dropout_that_drops_nothing(void) {
    static training_batch batch;
    training_batch_read(entry_named(golden_index, "batches", "micro-batch"), 0, -1, &batch);
    double sums[2];
    float *gradients[2];
    int64_t n = 0;
    for (int i = 0; i < 2; i++) {
        const training_options options = {.dtype = QRUN_DTYPE_F32,
                                          .policy = "none",
                                          .max_tokens = batch.batch.n_tokens,
                                          .dropout = i == 0 ? 0.0F : 1e-9F};
        training_fixture f;
        REQUIRE(open_named("llama-dora", &options, &f));
        n = f.parameters.n_floats;
        gradients[i] = floats(&f);
        sums[i] = run_batch(&f, &batch.batch, gradients[i]);
        training_fixture_close(&f);
    }
    const double error = training_relative_error(gradients[1], gradients[0], n);
    CHECK_MSG(error <= 2e-6, "gradients are off by %.3g", error);
    CHECK_MSG(fabs(sums[1] - sums[0]) <= 1e-6 * sums[0], "loss %.9g, without dropout %.9g", sums[1], sums[0]);
    free(gradients[0]), free(gradients[1]);
}

/* What an adapter's config calls its targets is the end of a path, whichever layer's. */
static void test_targets_are_named_without_a_layer(void) {
    for (int f = 0; f < QR_FAMILY_COUNT; f++) {
        for (const qr_family *family = qr_family_find((qr_model_family)f); family != NULL;
             family = qr_family_renamed(family)) {
            for (int role = QR_ROLE_Q; role <= QR_ROLE_ROUTER; role++) {
                if (family->modules[role] == NULL) { continue; }
                const char *name = qr_module_short_name(family, (qr_tensor_role)role);
                CHECK_MSG(strchr(name, '%') == NULL, "%s: %s", family->name, name);
            }
        }
    }
}

/* PEFT would refuse an adapter on out_proj of Nemotron-H: no target of a group is one, and by its name it is refused.
 */
static void test_no_adapter_that_peft_refuses(void) {
    static const char *const groups[] = {"all", "attn"};
    const qr_json *entry = entry_named(golden_index, "gradients", "nemotron-h");
    const training_options options = {.policy = "full", .max_tokens = 16};
    training_fixture f = {0};
    REQUIRE(training_fixture_open(context, entry, &options, &f));
    for (size_t g = 0; g < QR_COUNT_OF(groups); g++) {
        qr_parameters p = {.model = f.model, .backend = f.parameters.backend};
        const qr_lora_options lora = {.rank = 4, .alpha = 8, .targets = groups[g]};
        qr_error err = {0};
        CHECK_MSG(qr_lora_parameters_describe(&p, &lora, &err) == QRUN_OK, "%s", err.message);
        CHECK(p.lora.n_pairs > 0);
        for (int64_t i = 0; i < p.lora.n_pairs; i++) { CHECK(p.lora.pairs[i].role != QR_ROLE_RECURRENT_OUT); }
        qr_parameters_destroy(&p);
    }
    qr_parameters p = {.model = f.model, .backend = f.parameters.backend};
    const qr_lora_options named = {.rank = 4, .alpha = 8, .targets = "in_proj,out_proj"};
    qr_error err = {0};
    CHECK_INT(qr_lora_parameters_describe(&p, &named, &err), QRUN_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(err.message, "PEFT opens no adapter on out_proj of a nemotron-h model") != NULL, "%s",
              err.message);
    qr_parameters_destroy(&p);
    training_fixture_close(&f);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!training_begin(&context, &golden_index)) { return 1; }
    CHECK_RUN(test_targets_are_named_without_a_layer);
    CHECK_RUN(test_no_adapter_that_peft_refuses);
    CHECK_RUN(test_dropout_has_the_same_bits_under_every_policy);
    CHECK_RUN(test_dropout_of_examples_alone_and_together);
    CHECK_RUN(test_dropout_changes_each_step_and_not_in_evaluation);
    CHECK_RUN(test_dropout_against_differences);
    CHECK_RUN(test_dora_against_differences);
    CHECK_RUN(test_dora_after_dropout_that_drops_nothing);
    qrun_context_destroy(context);
    qr_json_free(golden_index);
    return check_end();
}
