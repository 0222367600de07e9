/* The loss scale of training in F16: torch.amp.GradScaler's sequence, a run whose gradients overflow at first, and one
 * that is stopped while the scale is being found. */
#include "check.h"

#include "../runtime/golden_index.h"
#include "base/alloc.h"
#include "base/file.h"
#include "loaders/files/json.h"
#include "runtime/train/loss_scale.h"
#include "trainer_run.h"

/* ---- The sequence ------------------------------------------------------------------------------------------------ */

static bool has_number(const qr_json *array, int64_t number) {
    for (const qr_json *item = qr_json_first(array); item != NULL; item = item->next) {
        if (item->valuedouble == (double)number) { return true; }
    }
    return false;
}

static qr_loss_scale make_scale(const qrun_train_optimization *options, qr_dtype act_dtype) {
    qr_loss_scale scale = {0};
    qr_error err = {0};
    CHECK_MSG(qr_loss_scale_make(options, act_dtype, &scale, &err) == QRUN_OK, "%s", err.message);
    return scale;
}

static void check_sequence(const qr_json *entry) {
    const double initial = number_of(entry, "initial");
    const bool usual = strcmp(text_of(entry, "name"), "default") == 0;
    const qrun_train_optimization options = {.loss_scale = QRUN_AUTO,
                                             .loss_scale_initial = (int64_t)initial,
                                             .loss_scale_growth = number_of(entry, "growth"),
                                             .loss_scale_backoff = number_of(entry, "backoff"),
                                             .loss_scale_window = (int32_t)number_of(entry, "window")};
    const qrun_train_optimization none = {0};
    qr_loss_scale scale = make_scale(usual ? &none : &options, QR_DTYPE_F16);
    const qr_json *change = qr_json_first(qr_json_get(entry, "changes"));
    double expected = initial;
    int n_changes = 0;
    CHECK(scale.factor == initial && scale.dynamic);
    for (int64_t step = 1; step <= (int64_t)number_of(entry, "n_steps"); step++) {
        if (change != NULL && cJSON_GetArrayItem(change, 0)->valuedouble == (double)step) {
            expected = cJSON_GetArrayItem(change, 1)->valuedouble;
            change = change->next;
            n_changes++;
        }
        const bool overflowed = has_number(qr_json_get(entry, "overflows"), step);
        CHECK(qr_loss_scale_update(&scale, overflowed) == overflowed);
        CHECK_MSG((double)scale.factor == expected, "after step %d: %g, GradScaler %g", (int)step, (double)scale.factor,
                  expected);
        if (check_state.n_failures_in_case > 0) { break; }
    }
    CHECK(change == NULL && n_changes > 20);
}

/* With its defaults, and with other settings. */
static void test_sequences_are_those_of_grad_scaler(void) {
    qr_json *index = NULL;
    qr_error err = {0};
    int n = 0;
    REQUIRE(qr_json_read(FIXTURES "training/index.json", 1 << 24, &index, &err) == QRUN_OK);
    const qr_json *entry = qr_json_first(qr_json_get(index, "loss_scale"));
    for (; entry != NULL; entry = entry->next, n++) { check_sequence(entry); }
    CHECK_INT(n, 4);
    qr_json_free(index);
}

static void test_ends_of_the_range(void) {
    const qrun_train_optimization defaults = {0}, steep = {.loss_scale_initial = 3, .loss_scale_backoff = 0.25};
    qr_loss_scale least = make_scale(&defaults, QR_DTYPE_F16), most = least, small = make_scale(&steep, QR_DTYPE_F16);
    least.factor = 1, least.good_steps = 7;
    CHECK(!qr_loss_scale_update(&least, true)); /* an error: it cannot be the scale */
    CHECK(least.factor == 1 && least.good_steps == 0);
    most.factor = 0x1p127, most.good_steps = 1999;
    CHECK(!qr_loss_scale_update(&most, false));
    CHECK(most.factor == 0x1p127 && most.good_steps == 0);
    CHECK(qr_loss_scale_update(&small, true) && small.factor == 1); /* GradScaler: 0.75 */
}

static void test_other_types_are_not_scaled(void) {
    const qrun_train_optimization defaults = {0}, dynamic = {.loss_scale = QRUN_AUTO};
    qr_loss_scale scale = make_scale(&defaults, QR_DTYPE_BF16);
    CHECK(!qr_loss_scale_is_used(&scale));
    for (int i = 0; i < 3000; i++) { CHECK(!qr_loss_scale_update(&scale, i == 5)); }
    CHECK(scale.factor == 1 && !scale.dynamic);
    scale = make_scale(&dynamic, QR_DTYPE_BF16);
    CHECK(scale.dynamic && scale.factor == 65536);
}

static void test_a_constant_scale_stays(void) {
    const qrun_train_optimization constant = {.loss_scale = 1000}, none = {.loss_scale = 1};
    qr_loss_scale scale = make_scale(&constant, QR_DTYPE_F16), one = make_scale(&none, QR_DTYPE_F16);
    for (int i = 0; i < 3000; i++) {
        CHECK(qr_loss_scale_update(&scale, i % 3 == 0) == (i % 3 == 0));
        CHECK(!qr_loss_scale_update(&one, i % 3 == 0));
    }
    CHECK(scale.factor == 1000 && qr_loss_scale_is_used(&scale));
    CHECK(one.factor == 1 && !qr_loss_scale_is_used(&one));
}

static void check_refused(const qrun_train_optimization *options, qr_dtype act_dtype, const char *why) {
    qr_loss_scale scale;
    qr_error err = {0};
    CHECK(qr_loss_scale_make(options, act_dtype, &scale, &err) == QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(err.message, why) != NULL, "%s", err.message);
}

static void check_params_refused(const qrun_train_optimization *options, const char *why) {
    qrun_train_params params = trainer_params("unused");
    qrun_error error = QRUN_ERROR_INIT;
    params.optimization = *options;
    CHECK(qrun_train_params_check(&params, &error) == QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, why) != NULL, "%s", error.message);
}

/* Settings of a dynamic scale are never ignored. */
static void test_settings_that_make_no_sense(void) {
    check_refused(&(qrun_train_optimization){.loss_scale = 8, .loss_scale_window = 9}, QR_DTYPE_F16, "a constant one");
    check_refused(&(qrun_train_optimization){.loss_scale_initial = 8}, QR_DTYPE_BF16, "this run has none");
    check_params_refused(&(qrun_train_optimization){.loss_scale = -2}, "`loss_scale`");
    check_params_refused(&(qrun_train_optimization){.loss_scale_initial = INT64_C(1) << 33}, "`loss_scale_initial`");
    check_params_refused(&(qrun_train_optimization){.loss_scale_growth = 0.5}, "`loss_scale_growth`");
    check_params_refused(&(qrun_train_optimization){.loss_scale_backoff = 1}, "`loss_scale_backoff`");
    check_params_refused(&(qrun_train_optimization){.loss_scale_window = -1}, "`loss_scale_window`");
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* Single examples of three improbable targets: at a scale of 65536 the gradients of their logits reach 20000, and those
 * after them overflow. */
static bool write_improbable(const char *path) {
    FILE *file = fopen(path, "w");
    for (int i = 0; file != NULL && i < 6; i++) {
        fprintf(file, "{\"prompt\": \"Once upon a time there was a fox. He said %d \", \"completion\": \"Zq\"}\n", i);
    }
    return file != NULL && fclose(file) == 0;
}

static qrun_train_params improbable_params(const char *out) {
    qrun_train_params params = trainer_params(out);
    params.data.train_data = trainer_paths("improbable.jsonl");
    params.batches.batching = QRUN_BATCHING_GROUP;
    params.batches.grad_accum = 1;
    params.batches.batch_size = 0, params.batches.batch_tokens = 20;
    params.optimization.learning_rate = 1e-3;
    return params;
}

/* Steps until `last`, with what each gave. */
static void run_steps(qrun_trainer *trainer, int64_t last, qrun_train_metrics *metrics) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_metrics m = QRUN_TRAIN_METRICS_INIT;
    for (bool done = false; !done && m.step < last;) {
        const qrun_status status = qrun_trainer_step(trainer, &m, &done, &error);
        CHECK_MSG(status == QRUN_OK, "%s", error.message);
        if (status != QRUN_OK) { return; }
        metrics[m.step - 1] = m;
    }
}

static void test_overflow_backs_off_and_goes_on(void) {
    qrun_train_metrics metrics[12];
    qrun_error error = QRUN_ERROR_INIT;
    char untouched[64], skipped[64];
    snprintf(untouched, sizeof untouched, "%s", trainer_path("untouched"));
    snprintf(skipped, sizeof skipped, "%s", trainer_path("skipped"));
    qrun_model *model = trainer_open_model_in(QRUN_DTYPE_F16);
    const qrun_train_params params = improbable_params(untouched), again = improbable_params(skipped);
    qrun_trainer *trainer = trainer_create(model, &params);
    REQUIRE(trainer != NULL);
    CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    trainer = trainer_create(model, &again);
    REQUIRE(trainer != NULL);
    run_steps(trainer, 1, metrics);
    CHECK(metrics[0].skipped && metrics[0].overflowed && metrics[0].loss_scale == 65536 && isfinite(metrics[0].loss));
    CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
    CHECK(trainer_adapters_are_equal(untouched, skipped));
    run_steps(trainer, 12, metrics);
    double scale = 65536;
    int n_skipped = 0;
    for (int i = 0; i < 12; i++) {
        CHECK_MSG(metrics[i].loss_scale == scale, "step %d: %g, not %g", i + 1, metrics[i].loss_scale, scale);
        CHECK(metrics[i].skipped == metrics[i].overflowed && isfinite(metrics[i].grad_norm) != metrics[i].skipped);
        n_skipped += metrics[i].skipped;
        scale /= metrics[i].skipped ? 2 : 1;
    }
    CHECK_MSG(n_skipped < 6, "%d steps of 12 were skipped", n_skipped);
    CHECK_MSG(metrics[11].loss < 0.8 * metrics[0].loss, "loss from %.3f to %.3f", metrics[0].loss, metrics[11].loss);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* Stopped after each of the first steps in turn, skipped ones among them: the rest is the same to the bit. */
static void test_a_stopped_run_goes_on_with_its_scale(void) {
    enum { STOPS = 4 };
    qrun_train_metrics whole[12], again[12];
    qrun_error error = QRUN_ERROR_INIT;
    char names[STOPS + 1][64];
    for (int stop = 0; stop <= STOPS; stop++) { /* 0: not at all */
        qrun_train_metrics *metrics = stop == 0 ? whole : again;
        char name[16];
        snprintf(name, sizeof name, "stop%d", stop);
        snprintf(names[stop], sizeof names[stop], "%s", trainer_path(name));
        const qrun_train_params params = improbable_params(names[stop]);
        for (int part = stop == 0; part < 2; part++) {
            qrun_model *model = trainer_open_model_in(QRUN_DTYPE_F16);
            qrun_trainer *trainer = trainer_create(model, &params);
            REQUIRE(trainer != NULL);
            run_steps(trainer, part == 0 ? stop : 12, metrics);
            CHECK((part == 0 ? qrun_trainer_save : qrun_trainer_export)(trainer, &error) == QRUN_OK);
            qrun_trainer_destroy(trainer);
            qrun_model_destroy(model);
        }
        for (int i = 0; stop > 0 && i < 12; i++) {
            CHECK(whole[i].loss == again[i].loss && whole[i].loss_scale == again[i].loss_scale &&
                  whole[i].skipped == again[i].skipped);
        }
        CHECK(trainer_adapters_are_equal(names[0], names[stop]));
    }
    CHECK(whole[0].overflowed && !whole[STOPS].overflowed);
}

/* A state.json without the scale, and with one that cannot be. */
static void test_a_checkpoint_without_scale_is_refused(void) {
    static const char *const states[] = {
        "{\"version\":1,\"step\":1,\"updates\":0,\"epoch\":0,\"batch\":1,\"checksum\":\"%s\"}",
        "{\"version\":1,\"step\":1,\"epoch\":0,\"batch\":1,\"updates\":0,"
        "\"loss_scale\":0.5,\"good_steps\":0,\"checksum\":\"%s\"}"};
    char out[64], path[128], checksum[32] = "", *text;
    size_t n_bytes;
    qrun_train_metrics metrics[12];
    qrun_error error = QRUN_ERROR_INIT;
    snprintf(out, sizeof out, "%s", trainer_path("broken"));
    snprintf(path, sizeof path, "%s/checkpoint-1/state.json", out);
    const qrun_train_params params = improbable_params(out);
    qrun_model *model = trainer_open_model_in(QRUN_DTYPE_F16);
    qrun_trainer *trainer = trainer_create(model, &params);
    REQUIRE(trainer != NULL);
    run_steps(trainer, 1, metrics);
    CHECK(qrun_trainer_save(trainer, &error) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    REQUIRE(qr_file_read(path, 4096, &text, &n_bytes, &error) == QRUN_OK);
    const char *found = strstr(text, "\"checksum\":\"");
    REQUIRE(found != NULL && sscanf(found, "\"checksum\":\"%16[0-9a-f]", checksum) == 1);
    qr_free(text);
    for (size_t i = 0; i < 2; i++) {
        FILE *file = fopen(path, "w");
        REQUIRE(file != NULL);
        fprintf(file, states[i], checksum);
        fclose(file);
        qrun_trainer *none = NULL;
        CHECK(qrun_trainer_create(model, &params, &none, &error) == QRUN_ERROR_INPUT);
        CHECK_MSG(strstr(error.message, "loss_scale") != NULL, "%s", error.message);
        error = (qrun_error)QRUN_ERROR_INIT;
    }
    qrun_model_destroy(model);
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

/* Runs and exports; metrics of its steps. */
static void run_to_end(qrun_dtype dtype, const qrun_train_params *params, int64_t n_steps,
                       qrun_train_metrics *metrics) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = trainer_open_model_in(dtype);
    qrun_trainer *trainer = trainer_create(model, params);
    REQUIRE(trainer != NULL);
    run_steps(trainer, n_steps, metrics);
    CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* In BF16, whose range is that of F32, a factor that is a power of two shifts all gradients exactly. */
static void test_powers_of_two_change_no_bits(void) {
    qrun_train_metrics plain[6], scaled[6], moving[6];
    char out[3][64];
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "scaled%d", i);
        snprintf(out[i], sizeof out[i], "%s", trainer_path(name));
    }
    qrun_train_params params = improbable_params(out[0]);
    run_to_end(QRUN_DTYPE_BF16, &params, 6, plain);
    params.saving.out = out[1], params.optimization.loss_scale = 4096;
    run_to_end(QRUN_DTYPE_BF16, &params, 6, scaled);
    params.saving.out = out[2], params.optimization.loss_scale = QRUN_AUTO;
    params.optimization.loss_scale_initial = 16, params.optimization.loss_scale_growth = 4;
    params.optimization.loss_scale_window = 2;
    run_to_end(QRUN_DTYPE_BF16, &params, 6, moving);
    for (int i = 0; i < 6; i++) {
        CHECK(plain[i].loss_scale == 0 && scaled[i].loss_scale == 4096);
        CHECK(moving[i].loss_scale == 16 * pow(4, i / 2));
        CHECK(plain[i].loss == scaled[i].loss && plain[i].loss == moving[i].loss && plain[i].n_skipped == 0);
        CHECK(plain[i].grad_norm == scaled[i].grad_norm && plain[i].grad_norm == moving[i].grad_norm);
    }
    CHECK(trainer_adapters_are_equal(out[0], out[1]) && trainer_adapters_are_equal(out[0], out[2]));
}

/* Where gradients overflow at the factor, in every step: all are skipped, counted, and counted on after a resume. */
static void test_a_constant_scale_skips_steps(void) {
    qrun_train_metrics metrics[12];
    qrun_error error = QRUN_ERROR_INIT;
    char out[64];
    snprintf(out, sizeof out, "%s", trainer_path("constant"));
    qrun_train_params params = improbable_params(out);
    params.optimization.loss_scale = 65536;
    for (int part = 0; part < 2; part++) {
        qrun_model *model = trainer_open_model_in(QRUN_DTYPE_F16);
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        run_steps(trainer, part == 0 ? 3 : 5, metrics);
        CHECK(qrun_trainer_save(trainer, &error) == QRUN_OK);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
    }
    int64_t n_skipped = 0;
    for (int i = 0; i < 5; i++) {
        n_skipped += metrics[i].skipped;
        CHECK(metrics[i].loss_scale == 65536 && metrics[i].overflowed == metrics[i].skipped);
        CHECK(metrics[i].nonfinite == NULL);
        CHECK_INT(metrics[i].n_skipped, n_skipped);
    }
    CHECK_MSG(n_skipped >= 2, "%d steps were skipped", (int)n_skipped);
}

static void test_another_scale_is_another_run(void) {
    qrun_train_metrics metrics[12];
    qrun_error error = QRUN_ERROR_INIT;
    char out[64];
    snprintf(out, sizeof out, "%s", trainer_path("another"));
    qrun_train_params params = improbable_params(out);
    qrun_model *model = trainer_open_model_in(QRUN_DTYPE_F16);
    qrun_trainer *trainer = trainer_create(model, &params), *none = NULL;
    REQUIRE(trainer != NULL);
    run_steps(trainer, 1, metrics);
    CHECK(qrun_trainer_save(trainer, &error) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    params.optimization.loss_scale_window = 50;
    CHECK(qrun_trainer_create(model, &params, &none, &error) == QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(error.message, "dynamic loss scale") != NULL, "%s", error.message);
    params.optimization.loss_scale_window = 2000; /* what it was, written out */
    trainer = trainer_create(model, &params);
    CHECK(trainer != NULL);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(1) || !write_improbable(trainer_path("improbable.jsonl"))) { return 1; }
    CHECK_RUN(test_sequences_are_those_of_grad_scaler);
    CHECK_RUN(test_ends_of_the_range);
    CHECK_RUN(test_other_types_are_not_scaled);
    CHECK_RUN(test_a_constant_scale_stays);
    CHECK_RUN(test_settings_that_make_no_sense);
    CHECK_RUN(test_overflow_backs_off_and_goes_on);
    CHECK_RUN(test_a_stopped_run_goes_on_with_its_scale);
    CHECK_RUN(test_a_checkpoint_without_scale_is_refused);
    CHECK_RUN(test_powers_of_two_change_no_bits);
    CHECK_RUN(test_a_constant_scale_skips_steps);
    CHECK_RUN(test_another_scale_is_another_run);
    trainer_run_end();
    return check_end();
}
