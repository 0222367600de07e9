/* LoRA's options through whole runs: dropout is planned for, decides the run, is drawn again alike after a stop, and is
 * written into the adapter's config; DoRA. Uses the model in examples/model. */
#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "runtime/pass/lora_parameters.h"
#include "runtime/train/trainer.h"
#include "trainer_run.h"

static qrun_train_params dropout_params(const char *out) {
    qrun_train_params params = trainer_params(out);
    params.lora.lora_dropout = 0.25;
    return params;
}

/* A context's peak is that of all its runs: a new one before a run whose plan is checked. */
static void renew_context(void) {
    qrun_context_destroy(trainer_context);
    CHECK(qrun_context_create(NULL, &trainer_context, NULL) == QRUN_OK);
}

static void check_plan_is_kept(const qrun_trainer *trainer) {
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK(qrun_trainer_get_info(trainer, &info, &error) == QRUN_OK);
    CHECK_INT(info.peak_bytes, info.planned_bytes);
}

static void check_config_says(const char *out, const char *what) {
    char path[600], *text = NULL;
    size_t n_bytes;
    qr_error err = {0};
    snprintf(path, sizeof path, "%s/adapter_config.json", out);
    CHECK_MSG(qr_file_read(path, 1 << 20, &text, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(text != NULL && strstr(text, what) != NULL, "no %s in %s", what, path);
    qr_free(text);
}

static void test_dropout_goes_on_to_the_bit(void) {
    double losses[3][12];
    qrun_error error = QRUN_ERROR_INIT;
    for (int part = 0; part < 3; part++) { /* whole; up to step 5; the rest */
        qrun_model *model = trainer_open_model();
        qrun_train_params params = dropout_params(trainer_path(part == 0 ? "dropout" : "dropout-stopped"));
        params.memory.checkpointing = part == 2 ? "full" : "none";
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        if (part == 0) { check_plan_is_kept(trainer); }
        trainer_run_steps(trainer, part == 1 ? 5 : 12, losses[part]);
        CHECK((part == 1 ? qrun_trainer_save(trainer, &error) : qrun_trainer_export(trainer, &error)) == QRUN_OK);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
    }
    CHECK(losses[0][11] < 0.7 * losses[0][0]);
    CHECK(trainer_adapters_are_equal(trainer_path("dropout"), trainer_path("dropout-stopped")));
    check_config_says(trainer_path("dropout"), "\"lora_dropout\": 0.25");
}

static void test_dropout_decides_the_run(void) {
    qrun_train_params params = dropout_params(trainer_path("dropout-stopped"));
    params.lora.lora_dropout = 0.3;
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "`restart`");
    params.lora.lora_dropout = 1.5;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "dropout");
}

/* Magnitudes begin at the lengths of the rows, so that the first loss is the base model's; the adapter that comes of
 * it says so and holds them. */
static void test_dora_learns_in_the_planned_memory(void) {
    double losses[12], plain[12];
    qrun_error error = QRUN_ERROR_INIT;
    for (int dora = 0; dora < 2; dora++) {
        renew_context();
        qrun_model *model = trainer_open_model();
        qrun_train_params params = trainer_params(trainer_path(dora ? "dora" : "plain"));
        params.lora.dora = dora != 0;
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        trainer_run_steps(trainer, 12, dora ? losses : plain);
        check_plan_is_kept(trainer);
        CHECK_MSG(qrun_trainer_export(trainer, &error) == QRUN_OK, "%s", error.message);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
    }
    CHECK_MSG(fabs(losses[0] - plain[0]) <= 1e-3 * plain[0], "first loss %.6f, plain LoRA's %.6f", losses[0], plain[0]);
    CHECK(losses[11] < 0.5 * losses[0] && losses[11] != plain[11]);
    check_config_says(trainer_path("dora"), "\"use_dora\": true");
    size_t n_bytes = 0;
    char *bytes = NULL;
    char file[512];
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", trainer_path("dora"));
    CHECK(qr_file_read(file, 1 << 26, &bytes, &n_bytes, NULL) == QRUN_OK && n_bytes > 100000);
    qr_free(bytes);
}

/* What a run exported is what the next one begins with, to the bit; its shape comes from the adapter. */
static void test_going_on_from_an_adapter(void) {
    qrun_error error = QRUN_ERROR_INIT;
    for (int dora = 0; dora < 2; dora++) {
        char first[64], second[64];
        snprintf(first, sizeof first, "%s", trainer_path(dora ? "base-dora" : "base-lora"));
        snprintf(second, sizeof second, "%s", trainer_path(dora ? "on-dora" : "on-lora"));
        qrun_model *model = trainer_open_model();
        qrun_train_params params = trainer_params(first);
        params.lora.dora = dora != 0;
        params.lora.alpha = 6;
        params.lora.target_modules = "q_proj,down_proj";
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        trainer_run_steps(trainer, 4, NULL);
        CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
        qrun_trainer_destroy(trainer);
        params = trainer_params(second);
        params.lora.rank = 0;
        params.lora.adapter = first;
        trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
        CHECK(trainer_adapters_are_equal(first, second));
        trainer_run_steps(trainer, 2, NULL);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
        params.saving.out = trainer_path("on-refused");
        params.lora.rank = 8;
        trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "rank 4, not 8");
        params.lora.rank = 0;
        params.lora.target_modules = "attn";
        trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "`target_modules`");
        params.lora.target_modules = NULL;
        params.lora.adapter = QRUN_SOURCE_DIR "/tests/fixtures/adapters/llama-lora";
        trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "made for");
    }
}

/* As PEFT compares them: with the ends of names, of which a number alone would be too many. */
static void test_names_of_targets(void) {
    CHECK_STR(qr_lora_target_name("model.layers.0.self_attn.q_proj"), "q_proj");
    CHECK_STR(qr_lora_target_name("model.altup_projections.0"), "altup_projections.0");
    CHECK_STR(qr_lora_target_name("altup_projections.12"), "altup_projections.12");
    CHECK_STR(qr_lora_target_name("w2"), "w2");
}

/* LoRA on one layer: the adapter says so, and a run that begins from it has that layer too. */
static void test_some_layers(void) {
    qrun_error error = QRUN_ERROR_INIT;
    char first[64], second[64];
    snprintf(first, sizeof first, "%s", trainer_path("layer"));
    snprintf(second, sizeof second, "%s", trainer_path("on-layer"));
    renew_context();
    qrun_model *model = trainer_open_model();
    qrun_train_params params = trainer_params(first);
    params.lora.target_modules = "q_proj";
    params.lora.layers_to_transform = "1";
    qrun_trainer *trainer = trainer_create(model, &params);
    REQUIRE(trainer != NULL);
    CHECK_INT(trainer->parameters.lora.n_pairs, 1);
    trainer_run_steps(trainer, 3, NULL);
    check_plan_is_kept(trainer);
    CHECK_MSG(qrun_trainer_export(trainer, &error) == QRUN_OK, "%s", error.message);
    qrun_trainer_destroy(trainer);
    check_config_says(first, "\"layers_to_transform\": [1]");
    params = trainer_params(second);
    params.lora.rank = 0;
    params.lora.adapter = first;
    trainer = trainer_create(model, &params);
    REQUIRE(trainer != NULL);
    CHECK_INT(trainer->parameters.lora.n_pairs, 1);
    CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
    CHECK(trainer_adapters_are_equal(first, second));
    check_config_says(second, "\"layers_to_transform\": [1]");
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    params = trainer_params(trainer_path("no-layers"));
    static const char *const wrong[] = {"", ",", "a", "1-", "-1", "1-0", "0-99", "99", "1 2", "0;1", "99999999999"};
    for (size_t i = 0; i < QR_COUNT_OF(wrong); i++) {
        params.lora.layers_to_transform = wrong[i];
        trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "this model has the layers 0 to");
    }
    params.lora.layers_to_transform = "1";
    params.lora.adapter = QRUN_SOURCE_DIR "/tests/fixtures/adapters/llama-lora";
    params.lora.rank = 0;
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "made for");
}

/* Steps with a number in the parameters that is none: named, and nothing changes by them. */
static void test_a_poisoned_tensor_is_named(void) {
    qrun_model *model = trainer_open_model();
    qrun_train_params params = trainer_params(trainer_path("poisoned"));
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done;
    REQUIRE(trainer != NULL);
    qr_parameters *p = &trainer->parameters;
    qr_backend *backend = model->context->backend;
    const size_t n_bytes = qr_parameters_bytes(p);
    float *before = malloc(n_bytes), *after = malloc(n_bytes), poison = 3e38F;
    CHECK(qrun_trainer_step(trainer, &metrics, &done, &error) == QRUN_OK && !metrics.skipped &&
          metrics.nonfinite == NULL);
    /* So large that what comes of it is infinite. */
    const qr_lora_pair *last = &p->lora.pairs[p->lora.n_pairs - 1];
    CHECK(backend->copy_in(backend, p->values + last->a_offset, &poison, sizeof poison, &error) == QRUN_OK);
    CHECK(backend->copy_out(backend, before, p->values, n_bytes, &error) == QRUN_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(qrun_trainer_step(trainer, &metrics, &done, &error) == QRUN_OK);
        CHECK(metrics.skipped && metrics.nonfinite != NULL);
        CHECK_MSG(metrics.nonfinite != NULL && strstr(metrics.nonfinite, ".lora_") != NULL, "%s", metrics.nonfinite);
    }
    CHECK(backend->copy_out(backend, after, p->values, n_bytes, &error) == QRUN_OK);
    CHECK(memcmp(before, after, n_bytes) == 0);
    poison = 0.01F; /* and it continues from there */
    CHECK(backend->copy_in(backend, p->values + last->a_offset, &poison, sizeof poison, &error) == QRUN_OK);
    CHECK(qrun_trainer_step(trainer, &metrics, &done, &error) == QRUN_OK && !metrics.skipped &&
          metrics.nonfinite == NULL);
    free(before), free(after);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* The first in the table's order, whatever comes after it. */
static void test_the_first_tensor_is_found(void) {
    qrun_model *model = trainer_open_model();
    qrun_train_params params = trainer_params(trainer_path("first"));
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(trainer != NULL);
    qr_parameters *p = &trainer->parameters;
    const float bad[] = {INFINITY, NAN};
    int64_t index = 0;
    const qr_gradient_sum *sum = trainer->gradient_sum;
    REQUIRE(qr_gradient_sum_stays(sum)); /* two batches a step: they are added up there */
    CHECK(qr_update_find_nonfinite(p, trainer->optimizer, sum, trainer->scratch, &index, &error) == QRUN_OK &&
          index == -1);
    for (int i = 0; i < 2; i++) {
        const int64_t at = i == 0 ? p->n - 1 : 3;
        const qr_parameter *parameter = &p->list[at];
        float *last = trainer_gradients(trainer) + parameter->offset + parameter->rows * parameter->cols - 1;
        CHECK(model->context->backend->copy_in(model->context->backend, last, &bad[i], sizeof(float), &error) ==
              QRUN_OK);
        CHECK(qr_update_find_nonfinite(p, trainer->optimizer, sum, trainer->scratch, &index, &error) == QRUN_OK);
        CHECK_INT(index, at);
    }
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(60)) { return 1; }
    CHECK_RUN(test_dropout_goes_on_to_the_bit);
    CHECK_RUN(test_dropout_decides_the_run);
    CHECK_RUN(test_dora_learns_in_the_planned_memory);
    CHECK_RUN(test_going_on_from_an_adapter);
    CHECK_RUN(test_names_of_targets);
    CHECK_RUN(test_some_layers);
    CHECK_RUN(test_a_poisoned_tensor_is_named);
    CHECK_RUN(test_the_first_tensor_is_found);
    trainer_run_end();
    return check_end();
}
