/* A whole run through the public interface: the loss falls, the plan is what was taken, a run that was stopped ends as
 * one that was not, to the byte, and what is refused says why. Uses the model in examples/model. */
#include "check.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "qrun.h"

static qrun_context *context;
static char folder[] = "/tmp/qrun-test-XXXXXX";

static char *path_of(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void write_data(const char *path, int n) {
    static const char *const animals[] = {"fox", "owl", "hare", "mole", "newt"};
    static const char *const sounds[] = {"yips", "hoots", "thumps", "digs", "hums"};
    FILE *file = fopen(path, "w");
    for (int i = 0; i < n; i++) {
        fprintf(file, "{\"prompt\": \"The %s number %d says: \", \"completion\": \"it %s all day\"}\n", animals[i % 5],
                i, sounds[i % 5]);
    }
    fclose(file);
}

static qrun_model *open_model(void) {
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = QRUN_SOURCE_DIR "/examples/model";
    CHECK_MSG(qrun_model_open(context, &params, &model, &error) == QRUN_OK, "%s", error.message);
    return model;
}

static qrun_train_params params_for(const char *out) {
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.data = path_of("data.jsonl");
    params.cache_folder = path_of("tokens");
    params.out = out;
    params.rank = 4;
    params.learning_rate = 5e-3;
    params.seq_tokens = 64;
    params.batch_size = 2;
    params.grad_accum = 2;
    params.max_steps = 12;
    params.warmup = 2;
    params.seed = 7;
    return params;
}

/* Steps until `last` or the end; the losses go to `losses`. */
static void run_steps(qrun_trainer *trainer, int64_t last, double *losses) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    for (bool done = false; !done && metrics.step < last;) {
        const qrun_status status = qrun_trainer_step(trainer, &metrics, &done, &error);
        CHECK_MSG(status == QRUN_OK, "%s", error.message);
        if (status != QRUN_OK) { return; }
        CHECK(!metrics.skipped && metrics.n_target_tokens > 0);
        losses[metrics.step - 1] = metrics.loss;
    }
}

static char *read_adapter(const char *out, size_t *n_bytes) {
    char path[600];
    char *bytes = NULL;
    qr_error err = {0};
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", out);
    CHECK_MSG(qr_file_read(path, 1 << 26, &bytes, n_bytes, &err) == QRUN_OK, "%s", err.message);
    return bytes;
}

static void test_a_run_learns_in_the_planned_memory(void) {
    qrun_model *model = open_model();
    qrun_trainer *trainer;
    qrun_error error = QRUN_ERROR_INIT;
    double losses[12];
    qrun_train_params params = params_for(path_of("whole"));
    REQUIRE(model != NULL);
    CHECK_MSG(qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK, "%s", error.message);
    run_steps(trainer, 12, losses);
    CHECK_MSG(losses[11] < 0.5 * losses[0], "loss from %.3f to %.3f", losses[0], losses[11]);
    CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    CHECK(qrun_trainer_get_info(trainer, &info, &error) == QRUN_OK);
    CHECK_INT(info.peak_bytes, info.planned_bytes);
    CHECK_STR(info.data_format, "prompt/completion");
    qrun_trainer_destroy(trainer);
    qrun_adapter *adapter;
    CHECK_MSG(qrun_adapter_open(model, params.out, NULL, &adapter, &error) == QRUN_OK, "%s", error.message);
    qrun_model_destroy(model);
}

static void test_a_stopped_run_ends_as_one_that_was_not(void) {
    double losses[12], again[12];
    size_t n_whole, n_resumed;
    qrun_error error = QRUN_ERROR_INIT;
    const qrun_optimizer kinds[] = {QRUN_OPTIMIZER_ADAMW, QRUN_OPTIMIZER_ADAMW8BIT, QRUN_OPTIMIZER_ADAFACTOR,
                                    QRUN_OPTIMIZER_SGD};
    for (size_t k = 0; k < 4; k++) {
        char whole[64], stopped[64];
        snprintf(whole, sizeof whole, "%s", path_of(k == 0 ? "w0" : k == 1 ? "w1" : k == 2 ? "w2" : "w3"));
        snprintf(stopped, sizeof stopped, "%s", path_of(k == 0 ? "s0" : k == 1 ? "s1" : k == 2 ? "s2" : "s3"));
        for (int part = 0; part < 3; part++) { /* whole; up to step 5; the rest */
            qrun_model *model = open_model();
            qrun_trainer *trainer;
            qrun_train_params params = params_for(part == 0 ? whole : stopped);
            params.optimizer = kinds[k];
            params.checkpointing = part == 2 ? "full" : "none"; /* how activations are kept is no part of a run */
            REQUIRE(model != NULL && qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK);
            run_steps(trainer, part == 1 ? 5 : 12, part == 0 ? losses : again);
            if (part == 1) {
                CHECK_MSG(qrun_trainer_save(trainer, &error) == QRUN_OK, "%s", error.message);
            } else {
                CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
            }
            qrun_trainer_destroy(trainer);
            qrun_model_destroy(model);
        }
        CHECK(memcmp(losses, again, sizeof losses) == 0);
        char *a = read_adapter(whole, &n_whole), *b = read_adapter(stopped, &n_resumed);
        CHECK(a != NULL && b != NULL && n_whole == n_resumed && memcmp(a, b, n_whole) == 0);
        qr_free(a);
        qr_free(b);
    }
}

static void expect_refusal(qrun_train_params params, qrun_status status, const char *why) {
    qrun_model *model = open_model();
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(model != NULL);
    const qrun_status got = qrun_trainer_create(model, &params, &trainer, &error);
    CHECK_MSG(got == status && strstr(error.message, why) != NULL, "%s: %s", qrun_status_name(got), error.message);
    CHECK(trainer == NULL);
    qrun_model_destroy(model);
}

static void test_what_cannot_be_is_refused(void) {
    qrun_train_params params = params_for(path_of("none"));
    params.data = path_of("missing.jsonl");
    expect_refusal(params, QRUN_ERROR_NOT_FOUND, "missing.jsonl");
    params = params_for(path_of("none"));
    params.memory_bytes = 1 << 20;
    expect_refusal(params, QRUN_ERROR_MEMORY, "--memory");
    params = params_for(path_of("none"));
    params.targets = "q_prj";
    expect_refusal(params, QRUN_ERROR_ARGUMENT, "q_prj");
    params = params_for(path_of("none"));
    params.checkpointing = "every:0";
    expect_refusal(params, QRUN_ERROR_ARGUMENT, "every:0");
    params = params_for(path_of("none"));
    params.seq_tokens = 4096;
    expect_refusal(params, QRUN_ERROR_ARGUMENT, "4096");
    params = params_for(path_of("s0")); /* holds a checkpoint of other options */
    params.rank = 8;
    expect_refusal(params, QRUN_ERROR_INPUT, "--restart");
    CHECK(!qr_file_exists(path_of("none/adapter_config.json")));
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qr_error err = {0};
    if (mkdtemp(folder) == NULL || qrun_context_create(NULL, &context, &err) != QRUN_OK) { return 1; }
    write_data(path_of("data.jsonl"), 60);
    CHECK_RUN(test_a_run_learns_in_the_planned_memory);
    CHECK_RUN(test_a_stopped_run_ends_as_one_that_was_not);
    CHECK_RUN(test_what_cannot_be_is_refused);
    qrun_context_destroy(context);
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) { return 1; }
    return check_end();
}
