/* Layers that come through two stages: losses, adapter and tokens are those of resident weights to the bit, with every
 * policy of activation checkpointing and every other offload, and what is held at most is the plan. A damaged or
 * unsuitable folder is refused. On a CPU the layers stay in the mapped folder; over simt, in host memory. */
#include "check_open.h"

#include <unistd.h>

#include "base/sizes.h"
#include "base/status.h"
#include "qrun.h"
#include "trainer_run.h"

enum { N_STEPS = 3 };

static bool on_device; /* with memory of its own */
static qrun_context *own_context;

static void quantize(const char *name, qrun_quant quant) {
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    params.path = QRUN_SOURCE_DIR "/examples/model";
    params.out = trainer_path(name);
    params.quant = quant;
    CHECK_MSG(qrun_quantize_folder(trainer_context, &params, &error) == QRUN_OK, "%s", error.message);
}

/* In a context of its own, whose memory has held nothing else. */
static qrun_model *open_model(const char *name, qrun_offload offload) {
    qrun_context_destroy(own_context);
    if (qrun_context_create(NULL, &own_context, NULL) != QRUN_OK) { return NULL; }
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = trainer_path(name);
    params.offload_parameters = offload;
    return check_open_model(own_context, &params);
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

typedef struct run_options {
    const char *model, *policy;
    bool dora, offload_activations, offload_optimizer;
} run_options;

static qrun_status train(const run_options *o, qrun_offload offload, const char *out, double losses[N_STEPS]) {
    qrun_model *model = open_model(o->model, offload);
    qrun_model_info model_info = QRUN_MODEL_INFO_INIT;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_train_params params = trainer_params(out);
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_status status = QRUN_OK;
    params.batches.max_steps = N_STEPS;
    params.memory.checkpointing = o->policy;
    params.memory.offload_activations = o->offload_activations;
    params.memory.offload_optimizer = o->offload_optimizer;
    params.lora.dora = o->dora;
    if (model == NULL) { return QRUN_ERROR_INTERNAL; }
    CHECK(qrun_model_get_info(model, &model_info, NULL) == QRUN_OK);
    CHECK_INT(model_info.offloads_parameters, offload != QRUN_OFFLOAD_NONE);
    QR_TRY(qrun_trainer_create(model, &params, &trainer, &error));
    trainer_run_steps(trainer, N_STEPS, losses);
    QR_TRY(qrun_trainer_export(trainer, &error));
    QR_TRY(qrun_trainer_get_info(trainer, &info, &error));
    CHECK_INT(info.peak_bytes, info.planned_bytes);
    CHECK_INT(info.peak_host_bytes, info.planned_host_bytes);
out:
    CHECK_MSG(status == QRUN_OK, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    return status;
}

static void check_run(const run_options *o) {
    static int number;
    char resident[512], offloaded[512], name[32];
    double expected[N_STEPS], losses[N_STEPS];
    snprintf(name, sizeof name, "resident-%d", ++number);
    snprintf(resident, sizeof resident, "%s", trainer_path(name));
    snprintf(name, sizeof name, "offloaded-%d", number);
    snprintf(offloaded, sizeof offloaded, "%s", trainer_path(name));
    REQUIRE(train(o, QRUN_OFFLOAD_NONE, resident, expected) == QRUN_OK);
    REQUIRE(train(o, QRUN_OFFLOAD_ALL, offloaded, losses) == QRUN_OK);
    CHECK_MSG(memcmp(losses, expected, sizeof losses) == 0, "%s, %s: losses %.17g and %.17g", o->model, o->policy,
              losses[N_STEPS - 1], expected[N_STEPS - 1]);
    CHECK_MSG(trainer_adapters_are_equal(resident, offloaded), "%s, %s: the adapters", o->model, o->policy);
}

static void test_training_is_the_same_to_the_bit(void) {
    static const char *const policies[] = {"none", "full", "every:2", "every:3", "attn", "mlp", "auto"};
    const int n = on_device ? 2 : (int)QR_COUNT_OF(policies);
    for (int p = 0; p < n; p++) {
        const bool has_inputs = strcmp(policies[p], "full") == 0 || strncmp(policies[p], "every", 5) == 0;
        const run_options o = {p % 2 == 0 ? "nf4" : "int8", policies[p], p == 2, has_inputs, p % 2 == 1};
        check_run(&o);
    }
    const run_options plain = {"plain", "full", false, true, true};
    if (on_device) { check_run(&plain); }
}

/* ---- Generating -------------------------------------------------------------------------------------------------- */

typedef struct answer {
    int32_t ids[64];
    float logprobs[64];
    int n;
} answer;

static void take_token(void *user, const qrun_event *event) {
    answer *a = user;
    if (event->type != QRUN_EVENT_TOKEN || a->n == (int)QR_COUNT_OF(a->ids)) { return; }
    a->ids[a->n] = event->token_id;
    a->logprobs[a->n++] = event->logprob;
}

static void generate(const char *name, qrun_offload offload, const char *adapter_path, answer *a) {
    qrun_model *model = open_model(name, offload);
    qrun_session *session = NULL;
    qrun_adapter *adapter = NULL;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_status status = QRUN_OK;
    *a = (answer){.n = 0};
    params.max_sequences = 4, params.context_tokens = 128;
    request.prompt = "Once upon a time", request.max_tokens = 24, request.ignore_eos = true, request.logprobs = 0;
    request.on_event = take_token, request.user = a;
    REQUIRE(model != NULL);
    if (adapter_path != NULL) {
        QR_TRY(qrun_adapter_open(model, trainer_path(adapter_path), NULL, &adapter, &error));
        request.adapter = adapter;
    }
    QR_TRY(qrun_session_create(model, &params, &session, &error));
    QR_TRY(qrun_session_submit(session, &request, NULL, &error));
    QR_TRY(qrun_session_run(session, &error));
    QR_TRY(qrun_session_get_stats(session, &stats, &error));
    CHECK_INT(stats.peak_bytes, stats.planned_bytes);
out:
    CHECK_MSG(status == QRUN_OK, "%s", error.message);
    qrun_session_destroy(session);
    (void)qrun_adapter_close(adapter, NULL);
    qrun_model_destroy(model);
}

static void test_answers_are_the_same_to_the_bit(void) {
    const char *const models[] = {"nf4", "int8", "plain"};
    const char *const adapters[] = {NULL, "resident-3", NULL}; /* the second: DoRA, of every:2 */
    for (int i = 0; i < (on_device ? 3 : 2); i++) {
        answer resident, offloaded;
        generate(models[i], QRUN_OFFLOAD_NONE, on_device ? NULL : adapters[i], &resident);
        generate(models[i], QRUN_OFFLOAD_ALL, on_device ? NULL : adapters[i], &offloaded);
        CHECK_INT(resident.n, 24);
        CHECK_MSG(memcmp(&resident, &offloaded, sizeof resident) == 0, "%s", models[i]);
    }
}

/* ---- What is refused, and chosen --------------------------------------------------------------------------------- */

static void test_folders_that_cannot_be_streamed(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = NULL;
    if (on_device) { return; }
    params.path = trainer_path("plain");
    params.offload_parameters = QRUN_OFFLOAD_ALL;
    CHECK(qrun_model_open(trainer_context, &params, &model, &error) == QRUN_ERROR_UNSUPPORTED);
    CHECK(strstr(error.message, "quantise the folder first") != NULL);
    /* In the type that the folder stores, it can. */
    params.quant = QRUN_QUANT_BF16;
    CHECK(qrun_model_open(trainer_context, &params, &model, NULL) == QRUN_OK);
    qrun_model_destroy(model);
    model = NULL;
    params.quant = QRUN_QUANT_AUTO;
    /* Weights that change are in memory once more, wherever they come from. */
    params.trainable = true;
    CHECK(qrun_model_open(trainer_context, &params, &model, NULL) == QRUN_OK);
    qrun_model_destroy(model);
}

/* Offloaded only where the weights do not fit otherwise. */
static void test_auto_decides_by_memory(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    qrun_model *model = NULL;
    int64_t all = 0;
    params.path = trainer_path("int8");
    params.offload_parameters = QRUN_OFFLOAD_AUTO;
    for (int i = 0; i < 2; i++) {
        params.memory_bytes = i == 0 ? INT64_C(1) << 32 : all - 1;
        REQUIRE(qrun_model_open(trainer_context, &params, &model, NULL) == QRUN_OK);
        CHECK(qrun_model_get_info(model, &info, NULL) == QRUN_OK);
        CHECK_INT(info.offloads_parameters, i == 1);
        if (i == 0) { all = info.weight_bytes; }
        CHECK(i == 0 || info.weight_bytes < all);
        qrun_model_destroy(model);
    }
}

static void test_a_file_that_is_cut_short(void) {
    answer a = {.n = 0};
    qrun_session *session = NULL;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    if (on_device) { return; }
    quantize("cut", QRUN_QUANT_INT8);
    qrun_model *model = open_model("cut", QRUN_OFFLOAD_ALL);
    REQUIRE(model != NULL);
    request.prompt = "Once", request.max_tokens = 4, request.on_event = take_token, request.user = &a;
    CHECK(qrun_session_create(model, &params, &session, &error) == QRUN_OK);
    CHECK(truncate(trainer_path("cut/model.safetensors"), 200000) == 0);
    CHECK(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK);
    CHECK(qrun_session_run(session, &error) == QRUN_ERROR_IO);
    CHECK_MSG(strstr(error.message, "cut short") != NULL, "%s", error.message);
    qrun_session_destroy(session);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(40)) { return 1; }
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    on_device = qrun_context_device_info(trainer_context, &info, NULL) == QRUN_OK && strcmp(info.backend, "cuda") == 0;
    quantize("nf4", QRUN_QUANT_NF4_DQ);
    quantize("int8", QRUN_QUANT_INT8);
    if (symlink(QRUN_SOURCE_DIR "/examples/model", trainer_path("plain")) != 0) { return 1; }
    CHECK_RUN(test_training_is_the_same_to_the_bit);
    CHECK_RUN(test_answers_are_the_same_to_the_bit);
    CHECK_RUN(test_folders_that_cannot_be_streamed);
    CHECK_RUN(test_auto_decides_by_memory);
    CHECK_RUN(test_a_file_that_is_cut_short);
    qrun_context_destroy(own_context);
    trainer_run_end();
    return check_end();
}
