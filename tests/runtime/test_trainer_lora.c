/* LoRA's options through whole runs: dropout is planned for, decides the run, is drawn again alike after a stop, and is
 * written into the adapter's config. Uses the model in examples/model. */
#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "trainer_run.h"

static qrun_train_params dropout_params(const char *out) {
    qrun_train_params params = trainer_params(out);
    params.lora_dropout = 0.25;
    return params;
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
        params.checkpointing = part == 2 ? "full" : "none";
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
    params.lora_dropout = 0.3;
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "--restart");
    params.lora_dropout = 1.5;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "dropout");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(60)) { return 1; }
    CHECK_RUN(test_dropout_goes_on_to_the_bit);
    CHECK_RUN(test_dropout_decides_the_run);
    trainer_run_end();
    return check_end();
}
