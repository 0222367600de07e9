/* A whole run through the public interface: the loss falls, the plan is what was taken, a run that was stopped ends as
 * one that was not, to the byte, and what is refused says why. Uses the model in examples/model. */
#include "check.h"

#include <math.h>

#include "base/alloc.h"
#include "base/file.h"
#include "trainer_run.h"

static void test_a_run_learns_in_the_planned_memory(void) {
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer;
    qrun_error error = QRUN_ERROR_INIT;
    double losses[12];
    qrun_train_params params = trainer_params(trainer_path("whole"));
    REQUIRE(model != NULL);
    CHECK_MSG(qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK, "%s", error.message);
    trainer_run_steps(trainer, 12, losses);
    CHECK_MSG(losses[11] < 0.5 * losses[0], "loss from %.3f to %.3f", losses[0], losses[11]);
    CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    CHECK(qrun_trainer_get_info(trainer, &info, &error) == QRUN_OK);
    CHECK_INT(info.peak_bytes, info.planned_bytes);
    CHECK_STR(info.data_format, "prompt/completion");
    qrun_trainer_destroy(trainer);
    qrun_adapter *adapter;
    CHECK_MSG(qrun_adapter_open(model, params.saving.out, NULL, &adapter, &error) == QRUN_OK, "%s", error.message);
    qrun_model_destroy(model);
}

/* What bench measures with: the model's parts with LoRA on all of them, and nothing to save. */
static void test_random_tokens_measure(void) {
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    qrun_train_info none = QRUN_TRAIN_INFO_INIT, full = QRUN_TRAIN_INFO_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done;
    params.data.random_tokens = true;
    params.batches.seq_len = 32;
    params.batches.batch_size = 3;
    params.batches.max_steps = 2;
    params.memory.checkpointing = "none";
    REQUIRE(model != NULL && qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK);
    CHECK(qrun_trainer_get_info(trainer, &none, &error) == QRUN_OK);
    CHECK(qrun_trainer_step(trainer, &metrics, &done, &error) == QRUN_OK && !done);
    CHECK_INT(metrics.n_tokens, 96);
    CHECK_INT(metrics.n_target_tokens, 93);
    CHECK(qrun_trainer_step(trainer, &metrics, &done, &error) == QRUN_OK && done);
    CHECK_INT(qrun_trainer_save(trainer, &error), QRUN_ERROR_ARGUMENT);
    CHECK_INT(qrun_trainer_export(trainer, &error), QRUN_ERROR_ARGUMENT);
    char *text = NULL;
    CHECK_INT(qrun_trainer_show_example(trainer, 0, &text, &error), QRUN_ERROR_UNSUPPORTED);
    qrun_trainer_destroy(trainer);
    params.memory.checkpointing = "full";
    REQUIRE(qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK);
    CHECK(qrun_trainer_get_info(trainer, &full, &error) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    /* A layer's last matrix is not computed again. */
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    CHECK(qrun_model_get_info(model, &info, &error) == QRUN_OK);
    const double linear = (double)info.n_linear_parameters, head = (double)info.vocab_size * info.hidden_size;
    const double last = (double)info.n_layers * info.hidden_size * info.intermediate_size;
    const double lora_last = (double)info.n_layers * 16.0 * (info.hidden_size + info.intermediate_size);
    const double lora = (double)full.n_trainable, seen = 16.5;
    const double attention = 4.0 * seen * info.n_heads * info.head_dim * info.n_layers;
    const double kept = 4.0 * (linear + head) + 6.0 * lora + 3.5 * attention;
    const double again = 2.0 * (linear + lora - last - lora_last) + attention;
    CHECK_MSG(fabs(none.flops_per_token / kept - 1.0) < 1e-12, "%.17g, not %.17g", none.flops_per_token, kept);
    CHECK_MSG(fabs(full.flops_per_token / (kept + again) - 1.0) < 1e-12, "%.17g, not %.17g", full.flops_per_token,
              kept + again);
    qrun_model_destroy(model);
}

/* A checkpoint as earlier versions wrote it: "batch" of state.json was "window". */
static void name_batch_as_before(const char *out) {
    char path[128], *text, *found;
    size_t n_bytes;
    snprintf(path, sizeof path, "%s/checkpoint-5/state.json", out);
    REQUIRE(qr_file_read(path, 4096, &text, &n_bytes, NULL) == QRUN_OK);
    FILE *file = fopen(path, "w");
    CHECK((found = strstr(text, "\"batch\"")) != NULL && file != NULL);
    if (found != NULL && file != NULL) {
        fprintf(file, "%.*s\"window\"%s", (int)(found - text), text, found + strlen("\"batch\""));
    }
    if (file != NULL) { fclose(file); }
    qr_free(text);
}

static void test_a_stopped_run_ends_as_one_that_was_not(void) {
    double losses[12], again[12];
    qrun_error error = QRUN_ERROR_INIT;
    const qrun_optimizer kinds[] = {QRUN_OPTIMIZER_ADAMW, QRUN_OPTIMIZER_ADAMW8BIT, QRUN_OPTIMIZER_ADAFACTOR,
                                    QRUN_OPTIMIZER_SGD};
    for (int k = 0; k < check_repeats(4, 1); k++) {
        char whole[64], stopped[64];
        snprintf(whole, sizeof whole, "%s", trainer_path(k == 0 ? "w0" : k == 1 ? "w1" : k == 2 ? "w2" : "w3"));
        snprintf(stopped, sizeof stopped, "%s", trainer_path(k == 0 ? "s0" : k == 1 ? "s1" : k == 2 ? "s2" : "s3"));
        for (int part = 0; part < 3; part++) { /* whole; up to step 5; the rest */
            qrun_model *model = trainer_open_model();
            qrun_trainer *trainer;
            qrun_train_params params = trainer_params(part == 0 ? whole : stopped);
            params.optimization.optimizer = kinds[k];
            params.memory.checkpointing =
                part == 2 ? "full" : "none"; /* how activations are kept is no part of a run */
            REQUIRE(model != NULL && qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK);
            trainer_run_steps(trainer, part == 1 ? 5 : 12, part == 0 ? losses : again);
            if (part == 1) {
                CHECK_MSG(qrun_trainer_save(trainer, &error) == QRUN_OK, "%s", error.message);
                if (kinds[k] == QRUN_OPTIMIZER_SGD) { name_batch_as_before(stopped); }
            } else {
                CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
            }
            qrun_trainer_destroy(trainer);
            qrun_model_destroy(model);
        }
        CHECK(memcmp(losses, again, sizeof losses) == 0);
        CHECK(trainer_adapters_are_equal(whole, stopped));
    }
}

static void test_what_cannot_be_is_refused(void) {
    qrun_train_params params = trainer_params(trainer_path("none"));
    params.data.train_data = trainer_paths("missing.jsonl");
    trainer_expect_refusal(&params, QRUN_ERROR_NOT_FOUND, "missing.jsonl");
    params = trainer_params(trainer_path("none"));
    params.memory.memory_bytes = 1 << 20;
    trainer_expect_refusal(&params, QRUN_ERROR_MEMORY, "the budget is 1.00 MiB");
    params = trainer_params(trainer_path("none"));
    params.lora.target_modules = "q_prj";
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "q_prj");
    params = trainer_params(trainer_path("none"));
    params.memory.checkpointing = "every:0";
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "every:0");
    params = trainer_params(trainer_path("none"));
    params.batches.seq_len = 4096;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "4096");
    params = trainer_params(trainer_path("s0")); /* holds a checkpoint of other options */
    params.lora.rank = 8;
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "`restart`");
    CHECK(!qr_file_exists(trainer_path("none/adapter_config.json")));
}

/* Each rule about fields that do not go together, or need others, is the library's. */
static void test_combinations_of_fields_are_refused(void) {
    qrun_train_params params[12];
    const char *const messages[] = {"`eval_data` and `eval_split` exclude each other",
                                    "`early_stopping_patience` needs `eval_every`",
                                    "`early_stopping_threshold` needs `early_stopping_patience`",
                                    "`eval_every` needs `eval_data` or `eval_split`",
                                    "`load_best` needs `eval_data` or `eval_split`",
                                    "`batch_tokens` needs `batching=group`",
                                    "`batch_size` and `batch_tokens` exclude each other",
                                    "`full` does not begin from an adapter",
                                    "options of adapters",
                                    "`init_random` needs `full`",
                                    "`init_embedding_std` needs `init_random`",
                                    "`lora_dropout` must be from 0 to 0.99, not 1"};
    for (int i = 0; i < 12; i++) { params[i] = trainer_params(trainer_path("none")); }
    params[0].data.eval_data = params[0].data.train_data, params[0].data.n_eval_data = 1;
    params[0].data.eval_split = 0.1;
    params[1].evaluation.early_stopping_patience = 3;
    params[2].evaluation.early_stopping_threshold = 0.1;
    params[3].evaluation.eval_every = 5;
    params[4].evaluation.load_best = true;
    params[5].batches.batch_tokens = 96;
    params[6].batches.batching = QRUN_BATCHING_GROUP, params[6].batches.batch_tokens = 96;
    params[7].weights.full = true, params[7].lora.adapter = "some/adapter";
    params[8].weights.full = true; /* with a rank */
    params[9].weights.init_random = true;
    params[10].weights.full = true, params[10].lora.rank = 0, params[10].weights.init_embedding_std = 0.1;
    params[11].lora.lora_dropout = 1;
    for (int i = 0; i < 12; i++) { trainer_expect_refusal(&params[i], QRUN_ERROR_ARGUMENT, messages[i]); }
}

/* What the run before has saved stays until this one saves; then nothing of it is left. */
static void test_restart_begins_again(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = trainer_open_model();
    qrun_train_params params = trainer_params(trainer_path("again"));
    double losses[12], again[12];
    for (int part = 0; part < 3; part++) { /* steps 1 to 6; 1 to 3 again; then the rest */
        params.saving.restart = part == 1;
        qrun_trainer *trainer = trainer_create(model, &params);
        qrun_train_info info = QRUN_TRAIN_INFO_INIT;
        REQUIRE(trainer != NULL && qrun_trainer_get_info(trainer, &info, &error) == QRUN_OK);
        CHECK_INT(info.first_step, part == 2 ? 4 : 1);
        if (part == 1) { CHECK(qr_file_exists(trainer_path("again/checkpoint-6"))); }
        trainer_run_steps(trainer, part == 1 ? 3 : 6, part == 0 ? losses : again);
        CHECK_MSG(qrun_trainer_save(trainer, &error) == QRUN_OK, "%s", error.message);
        if (part == 1) { CHECK(!qr_file_exists(trainer_path("again/checkpoint-6"))); }
        qrun_trainer_destroy(trainer);
    }
    CHECK(memcmp(losses, again, 6 * sizeof *losses) == 0);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(60)) { return 1; }
    CHECK_RUN(test_a_run_learns_in_the_planned_memory);
    CHECK_RUN(test_random_tokens_measure);
    CHECK_RUN(test_a_stopped_run_ends_as_one_that_was_not);
    CHECK_RUN(test_restart_begins_again);
    CHECK_RUN(test_what_cannot_be_is_refused);
    CHECK_RUN(test_combinations_of_fields_are_refused);
    trainer_run_end();
    return check_end();
}
