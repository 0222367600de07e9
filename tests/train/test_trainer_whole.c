/* Whole weights through the public interface: full fine-tuning from the model's weights and from random ones, and
 * modules trained together with LoRA. Memory as planned, runs that resume to the byte, results that open. Uses the
 * model in examples/model. */
#include "check_open.h"

#include <math.h>

#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/safetensors.h"
#include "trainer_run.h"

#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"

static qrun_model *open_trainable(const char *path, bool random, qrun_dtype dtype) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.dtype = dtype;
    params.trainable = true;
    params.random_weights = random;
    return check_open_model(trainer_context, &params);
}

static qrun_train_params full_params(const char *out) {
    qrun_train_params params = trainer_params(out);
    params.lora.rank = 0;
    params.weights.full = true;
    params.optimization.learning_rate = 1e-3;
    return params;
}

/* A context's high-water mark is that of all its models. */
static void renew_context(void) {
    qrun_context_destroy(trainer_context);
    REQUIRE(qrun_context_create(NULL, &trainer_context, NULL) == QRUN_OK);
}

static void check_plan_is_kept(const qrun_trainer *trainer) {
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
    CHECK_INT(info.peak_bytes, info.planned_bytes);
}

/* "<folder>/<name>" in one of four buffers. */
static const char *inside(const char *folder, const char *name) {
    static char paths[4][600];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static double mean_nll(const char *path, qrun_dtype dtype, const char *adapter_path) {
    static const char text[] = "Once upon a time, there was a little fox who lived in a hole by the stream.";
    qrun_model *model = NULL;
    qrun_session *session = NULL;
    qrun_adapter *adapter = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    qrun_eval_params eval = QRUN_EVAL_PARAMS_INIT;
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    params.path = path;
    params.dtype = dtype;
    params.quant = dtype == QRUN_DTYPE_F32 ? QRUN_QUANT_F32 : QRUN_QUANT_BF16;
    qrun_status status = qrun_model_open(trainer_context, &params, &model, &error);
    if (status == QRUN_OK && adapter_path != NULL) {
        status = qrun_adapter_open(model, adapter_path, NULL, &adapter, &error);
    }
    if (status == QRUN_OK) { status = qrun_session_create(model, &session_params, &session, &error); }
    eval.adapter = adapter;
    if (status == QRUN_OK) { status = qrun_session_eval(session, text, strlen(text), &eval, &result, &error); }
    CHECK_MSG(status == QRUN_OK, "%s", error.message);
    qrun_session_destroy(session);
    qrun_model_destroy(model);
    return result.mean_nll;
}

/* ---- Full fine-tuning -------------------------------------------------------------------------------------------- */

static void test_a_whole_model_learns_in_the_planned_memory(void) {
    const qrun_optimizer kinds[] = {QRUN_OPTIMIZER_ADAMW, QRUN_OPTIMIZER_ADAMW8BIT, QRUN_OPTIMIZER_ADAFACTOR,
                                    QRUN_OPTIMIZER_SGD};
    for (size_t k = 0; k < QR_COUNT_OF(kinds); k++) {
        qrun_error error = QRUN_ERROR_INIT;
        double losses[12];
        char name[16];
        snprintf(name, sizeof name, "full%zu", k);
        qrun_train_params params = full_params(trainer_path(name));
        params.optimization.optimizer = kinds[k];
        if (kinds[k] == QRUN_OPTIMIZER_SGD) { params.optimization.learning_rate = 0.05; }
        renew_context();
        qrun_model *model = open_trainable(EXAMPLE, false, QRUN_DTYPE_BF16);
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        trainer_run_steps(trainer, 12, losses);
        CHECK_MSG(losses[11] < 0.7 * losses[0], "%s: loss from %.3f to %.3f", name, losses[0], losses[11]);
        check_plan_is_kept(trainer);
        CHECK_MSG(qrun_trainer_export(trainer, &error) == QRUN_OK, "%s", error.message);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
    }
}

/* Every tensor of the original under its name, in its shape and type, and its values another. */
/* Before a model is opened, the plan of training all of it has every weight, the norms included. */
static void test_the_plan_without_weights_is_that_of_the_run(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params params = full_params(trainer_path("planned"));
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_plan_entry *entries = NULL;
    int32_t n = 0;
    int64_t planned = 0;
    model_params.path = EXAMPLE;
    model_params.trainable = true;
    CHECK_MSG(qrun_plan_training(trainer_context, &model_params, &params, &entries, &n, NULL, NULL, &error) == QRUN_OK,
              "%s", error.message);
    for (int32_t i = 0; i < n; i++) { planned += entries[i].bytes; }
    qrun_free(entries);
    qrun_model *model = open_trainable(EXAMPLE, false, QRUN_DTYPE_BF16);
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
    CHECK_INT(planned, info.planned_bytes);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

static void test_what_is_written_is_a_model(void) {
    qr_safetensors *before, *after;
    qr_error err = {0};
    REQUIRE(qr_safetensors_open(EXAMPLE, &before, &err) == QRUN_OK);
    REQUIRE(qr_safetensors_open(trainer_path("full0"), &after, &err) == QRUN_OK);
    CHECK_INT(qr_safetensors_count(after), qr_safetensors_count(before));
    for (size_t i = 0; i < qr_safetensors_count(before); i++) {
        const qr_safetensors_tensor *old = qr_safetensors_get(before, i), *new;
        REQUIRE(qr_safetensors_require(after, old->name, QR_DTYPE_BIT(QR_DTYPE_BF16), old->n_dims, old->dims, &new,
                                       &err) == QRUN_OK);
        CHECK_MSG(memcmp(old->data, new->data, old->n_bytes) != 0, "%s has not moved", old->name);
    }
    qr_safetensors_close(before);
    qr_safetensors_close(after);
    const char *const copied[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < QR_COUNT_OF(copied); i++) {
        CHECK_MSG(trainer_files_are_equal(inside(EXAMPLE, copied[i]), inside(trainer_path("full0"), copied[i])), "%s",
                  copied[i]);
    }
    const double trained = mean_nll(trainer_path("full0"), QRUN_DTYPE_BF16, NULL);
    CHECK_MSG(isfinite(trained) && trained < 8.0, "mean NLL %g", trained);
}

/* Going on from a checkpoint needs nothing but it: neither the activations kept nor the masters' past decide. */
static void test_a_stopped_full_run_ends_as_one_that_was_not(void) {
    double losses[12], again[12];
    qrun_error error = QRUN_ERROR_INIT;
    for (int part = 0; part < 3; part++) { /* whole; up to step 5; the rest */
        qrun_train_params params = full_params(trainer_path(part == 0 ? "f-whole" : "f-stopped"));
        params.weights.init_random = true;
        params.memory.checkpointing = part == 2 ? "full" : "none";
        qrun_model *model = open_trainable(EXAMPLE, true, QRUN_DTYPE_BF16);
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        trainer_run_steps(trainer, part == 1 ? 5 : 12, part == 0 ? losses : again);
        CHECK_MSG((part == 1 ? qrun_trainer_save(trainer, &error) : qrun_trainer_export(trainer, &error)) == QRUN_OK,
                  "%s", error.message);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
    }
    CHECK(memcmp(losses, again, sizeof losses) == 0);
    CHECK(trainer_files_are_equal(inside(trainer_path("f-whole"), "model.safetensors"),
                                  inside(trainer_path("f-stopped"), "model.safetensors")));
    qrun_train_params params = full_params(trainer_path("f-stopped"));
    qrun_model *model = open_trainable(EXAMPLE, false, QRUN_DTYPE_BF16);
    qrun_trainer *trainer = NULL;
    CHECK_INT(qrun_trainer_create(model, &params, &trainer, &error), QRUN_ERROR_INPUT); /* it began from the model */
    CHECK_MSG(strstr(error.message, "other") != NULL || strstr(error.message, "another") != NULL, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* The deviations of config.json (initializer_range 0.04) and of the embeddings as asked for; norms at 1. */
static void test_random_weights_are_as_the_family_begins(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qr_error err = {0};
    qrun_train_params params = full_params(trainer_path("random"));
    params.weights.init_random = true;
    params.weights.init_embedding_std = 0.09;
    params.batches.max_steps = 1;
    params.optimization.warmup = 1; /* the first step's rate is 0 */
    qrun_model *model = open_trainable(EXAMPLE, true, QRUN_DTYPE_F32);
    qrun_trainer *trainer = trainer_create(model, &params);
    REQUIRE(trainer != NULL);
    trainer_run_steps(trainer, 1, NULL);
    CHECK_MSG(qrun_trainer_export(trainer, &error) == QRUN_OK, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    qr_safetensors *file;
    REQUIRE(qr_safetensors_open(trainer_path("random"), &file, &err) == QRUN_OK);
    for (size_t i = 0; i < qr_safetensors_count(file); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(file, i);
        const size_t n = tensor->n_bytes / sizeof(float);
        double sum = 0, squares = 0;
        for (size_t j = 0; j < n; j++) {
            float value;
            memcpy(&value, tensor->data + j * sizeof value, sizeof value);
            sum += (double)value;
            squares += (double)value * (double)value;
        }
        const double mean = sum / (double)n, deviation = sqrt(squares / (double)n - mean * mean);
        const double expected = strstr(tensor->name, "embed") != NULL ? 0.09 : 0.04; /* initializer_range */
        CHECK_INT(tensor->dtype, QR_DTYPE_F32);
        if (tensor->n_dims == 1) {
            CHECK_MSG(mean == 1.0, "%s: mean %g", tensor->name, mean);
        } else {
            CHECK_MSG(fabs(deviation / expected - 1.0) < 0.04 && fabs(mean) < 5 * expected / sqrt((double)n),
                      "%s: mean %g, std %g", tensor->name, mean, deviation);
        }
    }
    qr_safetensors_close(file);
}

static void expect_create(qrun_model *model, const qrun_train_params *params, qrun_status expected, const char *why) {
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    const qrun_status status = qrun_trainer_create(model, params, &trainer, &error);
    CHECK_MSG(status == expected && strstr(error.message, why) != NULL, "%d: %s", (int)status, error.message);
    qrun_trainer_destroy(trainer);
}

static void test_what_full_training_refuses(void) {
    qrun_model *quantised = trainer_open_model(), *trainable = open_trainable(EXAMPLE, false, QRUN_DTYPE_BF16);
    qrun_model *random = open_trainable(EXAMPLE, true, QRUN_DTYPE_BF16);
    qrun_train_params params = full_params(trainer_path("none"));
    REQUIRE(quantised != NULL && trainable != NULL && random != NULL);
    expect_create(quantised, &params, QRUN_ERROR_ARGUMENT, "trainable");
    expect_create(random, &params, QRUN_ERROR_ARGUMENT, "random weights");
    params.lora.modules_to_save = "lm_head";
    expect_create(trainable, &params, QRUN_ERROR_ARGUMENT, "every module");
    params = full_params(EXAMPLE);
    params.data.cache_folder = trainer_path("tokens");
    expect_create(trainable, &params, QRUN_ERROR_INPUT, "own folder");
    params = trainer_params(trainer_path("none"));
    params.weights.init_random = true;
    expect_create(quantised, &params, QRUN_ERROR_ARGUMENT, "`full`");
    params = trainer_params(trainer_path("none"));
    params.lora.modules_to_save = "lm_head,lm_haed";
    expect_create(quantised, &params, QRUN_ERROR_ARGUMENT, "lm_haed");
    qrun_model_destroy(quantised);
    qrun_model_destroy(trainable);
    qrun_model_destroy(random);
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    model_params.path = EXAMPLE;
    model_params.trainable = true;
    model_params.quant = QRUN_QUANT_NF4;
    CHECK_INT(qrun_model_open(trainer_context, &model_params, &model, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "nf4") != NULL, "%s", error.message);
}

/* ---- Modules with LoRA ------------------------------------------------------------------------------------------- */

static void test_modules_with_lora(void) {
    double losses[12], again[12];
    qrun_error error = QRUN_ERROR_INIT;
    for (int part = 0; part < 3; part++) {
        qrun_train_params params = trainer_params(trainer_path(part == 0 ? "m-whole" : "m-stopped"));
        params.lora.modules_to_save = "lm_head,model.norm,embed_tokens,k_proj";
        params.optimization.learning_rate = 1e-3;
        renew_context();
        qrun_model *model = trainer_open_model();
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        trainer_run_steps(trainer, part == 1 ? 5 : 12, part == 0 ? losses : again);
        check_plan_is_kept(trainer);
        CHECK_MSG((part == 1 ? qrun_trainer_save(trainer, &error) : qrun_trainer_export(trainer, &error)) == QRUN_OK,
                  "%s", error.message);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
    }
    CHECK_MSG(losses[11] < 0.7 * losses[0], "loss from %.3f to %.3f", losses[0], losses[11]);
    CHECK(memcmp(losses, again, sizeof losses) == 0);
    CHECK(trainer_adapters_are_equal(trainer_path("m-whole"), trainer_path("m-stopped")));
}

/* The base model is what it was once trainer and adapter are gone, and while the adapter is open every request and
 * every other adapter has to do with it. */
static void test_an_adapter_of_modules_is_served_alone(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params params = trainer_params(trainer_path("plain"));
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer = trainer_create(model, &params);
    REQUIRE(trainer != NULL);
    trainer_run_steps(trainer, 2, NULL);
    CHECK(qrun_trainer_export(trainer, &error) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    qrun_adapter *plain = NULL, *modules = NULL;
    CHECK(qrun_adapter_open(model, trainer_path("plain"), NULL, &plain, &error) == QRUN_OK);
    CHECK_INT(qrun_adapter_open(model, trainer_path("m-whole"), NULL, &modules, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "no other adapter") != NULL, "%s", error.message);
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK(qrun_adapter_close(plain, &error) == QRUN_OK);
    CHECK_MSG(qrun_adapter_open(model, trainer_path("m-whole"), NULL, &modules, &error) == QRUN_OK, "%s",
              error.message);
    CHECK_INT(qrun_adapter_open(model, trainer_path("plain"), NULL, &plain, &error), QRUN_ERROR_ARGUMENT);
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    qrun_session *session = NULL;
    error = (qrun_error)QRUN_ERROR_INIT;
    REQUIRE(qrun_session_create(model, &session_params, &session, &error) == QRUN_OK);
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    request.prompt = "Hello";
    CHECK_INT(qrun_session_submit(session, &request, NULL, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "every request") != NULL, "%s", error.message);
    request.adapter = modules;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
    qrun_session_destroy(session);
    CHECK(qrun_adapter_close(modules, &error) == QRUN_OK);
    qrun_model_destroy(model);
    const double base = mean_nll(EXAMPLE, QRUN_DTYPE_F32, NULL);
    const double adapted = mean_nll(EXAMPLE, QRUN_DTYPE_F32, trainer_path("m-whole"));
    CHECK_MSG(fabs(adapted - base) > 1e-3, "mean NLL %g with the adapter, %g without", adapted, base);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(60)) { return 1; }
    CHECK_RUN(test_a_whole_model_learns_in_the_planned_memory);
    CHECK_RUN(test_the_plan_without_weights_is_that_of_the_run);
    CHECK_RUN(test_what_is_written_is_a_model);
    CHECK_RUN(test_a_stopped_full_run_ends_as_one_that_was_not);
    CHECK_RUN(test_random_weights_are_as_the_family_begins);
    CHECK_RUN(test_what_full_training_refuses);
    CHECK_RUN(test_modules_with_lora);
    CHECK_RUN(test_an_adapter_of_modules_is_served_alone);
    trainer_run_end();
    return check_end();
}
