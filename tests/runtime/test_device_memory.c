/* A device with memory of its own: plans and budgets are about that memory and count its context, to the byte; what is
 * kept in host memory is counted apart; a device that fails or will not do is named in one line, and files stay whole.
 * The device is that of tests/simt, whose size and faults come from the environment. */
#include "check.h"

#include "../train/trainer_run.h"
#include "runtime/model/model.h"
#include "session_run.h"

enum { MIB = 1 << 20, CONTEXT_BYTES = 300 * MIB + 7 };

/* The backend's own tables: what it holds of a device's memory before anything is asked of it. Every case counts on
 * them, so main measures them. */
static int64_t tables_bytes;

static void set_number(const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    CHECK(setenv(name, text, 1) == 0);
}

static void unset_all(void) {
    static const char *const names[] = {"QRUN_SIMT_MEMORY", "QRUN_SIMT_CONTEXT",    "QRUN_SIMT_LOST_AFTER",
                                        "QRUN_SIMT_DRIVER", "QRUN_SIMT_CAPABILITY", "QRUN_SIMT_GPUS"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) { CHECK(unsetenv(names[i]) == 0); }
}

/* On a device with that much memory beside its own tables. */
static qrun_context *open_device(int64_t memory_bytes) {
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *context = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.device = "cuda", params.n_threads = 1;
    set_number("QRUN_SIMT_MEMORY", memory_bytes + tables_bytes);
    CHECK_MSG(qrun_context_create(&params, &context, &error) == QRUN_OK, "%s", error.message);
    return context;
}

static const qrun_plan_entry *entry_of(const qrun_plan_entry *entries, int32_t n, const char *category) {
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(entries[i].category, category) == 0) { return &entries[i]; }
    }
    static const qrun_plan_entry none = {"none", -2, false};
    return &none;
}

static int64_t total_of(const qrun_plan_entry *entries, int32_t n) {
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++) { total += entries[i].is_apart || entries[i].bytes < 0 ? 0 : entries[i].bytes; }
    return total;
}

/* ---- What a device says of itself -------------------------------------------------------------------------------- */

static bool measure_tables(void) {
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    set_number("QRUN_SIMT_CONTEXT", CONTEXT_BYTES);
    qrun_context *context = open_device(1000 * (int64_t)MIB);
    const bool known = context != NULL && qrun_context_device_info(context, &info, NULL) == QRUN_OK;
    tables_bytes = 1000 * (int64_t)MIB - CONTEXT_BYTES - info.memory_available_bytes;
    qrun_context_destroy(context);
    unset_all();
    return known;
}

static void test_a_device_has_its_own_memory(void) {
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    CHECK_MSG(tables_bytes > 0 && tables_bytes < 16384, "%lld bytes of tables", (long long)tables_bytes);
    set_number("QRUN_SIMT_CONTEXT", CONTEXT_BYTES);
    qrun_context *context = open_device(1000 * (int64_t)MIB);
    REQUIRE(context != NULL && qrun_context_device_info(context, &info, NULL) == QRUN_OK);
    CHECK_INT(info.memory_bytes, 1000 * (int64_t)MIB + tables_bytes);
    CHECK_INT(info.context_bytes, CONTEXT_BYTES);
    CHECK_INT(info.memory_available_bytes, 1000 * (int64_t)MIB - CONTEXT_BYTES);
    qrun_context_destroy(context);
    CHECK(setenv("QRUN_SIMT_CONTEXT", "unknown", 1) == 0);
    context = open_device(1000 * (int64_t)MIB);
    REQUIRE(context != NULL && qrun_context_device_info(context, &info, NULL) == QRUN_OK);
    CHECK_INT(info.context_bytes, -1);
    CHECK_INT(info.memory_available_bytes, 1000 * (int64_t)MIB);
    qrun_context_destroy(context);
    unset_all();
}

static void expect_no_device(const char *name, const char *value, const char *why) {
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *context = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.device = "cuda", params.n_threads = 1;
    CHECK(setenv(name, value, 1) == 0);
    CHECK_INT(qrun_context_create(&params, &context, &error), QRUN_ERROR_DEVICE);
    CHECK_MSG(strstr(error.message, why) != NULL, "message is \"%s\"", error.message);
    CHECK(context == NULL);
    qrun_context_destroy(context);
    unset_all();
}

static void test_what_a_device_lacks_is_named(void) {
    expect_no_device("QRUN_SIMT_DRIVER", "0", "there is no NVIDIA driver on this machine");
    expect_no_device("QRUN_SIMT_DRIVER", "11080",
                     "driver is too old: it supports CUDA 11.8, and this build needs 12.0");
    expect_no_device("QRUN_SIMT_CAPABILITY", "7.5", "compute capability 7.5, without BF16");
}

/* Opens `device` where there are n_gpus, and expects the GPU of that number. */
static void expect_gpu(const char *device, int n_gpus, const char *gpu) {
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *context = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.device = device, params.n_threads = 1;
    set_number("QRUN_SIMT_GPUS", n_gpus);
    CHECK_MSG(qrun_context_create(&params, &context, &error) == QRUN_OK, "%s", error.message);
    if (context != NULL) {
        CHECK_INT(qrun_context_device_info(context, &info, NULL), QRUN_OK);
        CHECK_MSG(strstr(info.features, gpu) != NULL, "%s: no \"%s\" in \"%s\"", device, gpu, info.features);
    }
    qrun_context_destroy(context);
    unset_all();
}

static void expect_no_gpu(const char *device, qrun_status status, const char *why) {
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *context = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.device = device, params.n_threads = 1;
    set_number("QRUN_SIMT_GPUS", 2);
    CHECK_INT(qrun_context_create(&params, &context, &error), status);
    CHECK_MSG(strstr(error.message, why) != NULL, "message is \"%s\"", error.message);
    CHECK(context == NULL);
    qrun_context_destroy(context);
    unset_all();
}

static void test_one_of_several_gpus(void) {
    static const char *const words[] = {"cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:1000", "cuda1", "cpu:0"};
    expect_gpu("cuda", 2, "GPU 0 of 2:");
    expect_gpu("auto", 2, "GPU 0 of 2:");
    expect_gpu("cuda:0", 1, "GPU 0 of 1:");
    expect_gpu("cuda:1", 2, "GPU 1 of 2:");
    expect_gpu("cuda:11", 16, "GPU 11 of 16:");
    expect_no_gpu("cuda:2", QRUN_ERROR_DEVICE,
                  "there is no `device=cuda:2`: the driver knows of 2 GPUs, numbered from 0");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        expect_no_gpu(words[i], QRUN_ERROR_ARGUMENT, "it is one of: auto, cpu, cuda, cuda:0");
    }
}

/* ---- Sessions ---------------------------------------------------------------------------------------------------- */

static const char model_path[] = QRUN_SOURCE_DIR "/tests/fixtures/models/llama";

static qrun_session_params session_params(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 640, params.max_sequences = 4, params.max_step_tokens = 32;
    params.speculate = "ngram"; /* asked for: as the default, drafts are left out where a byte is missing */
    return params;
}

/* The plan of that session; entries are given back with qrun_free. */
static qrun_plan_entry *plan_session(qrun_context *context, const qrun_session_params *params, int32_t *n,
                                     qrun_error *error) {
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_plan_entry *entries = NULL;
    model_params.path = model_path;
    (void)qrun_plan_session(context, &model_params, params, &entries, n, NULL, error);
    return entries;
}

/* Opens the model and a session on a device of that size: QRUN_OK when it ran as planned, else the refusal. */
static qrun_status try_session(int64_t memory_bytes, const qrun_session_params *params, qrun_error *error) {
    qrun_context *context = open_device(memory_bytes);
    qrun_model *model = NULL;
    qrun_session *session = NULL;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    static const int32_t ids[] = {5, 6, 7};
    static run_record record;
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    request.token_ids = ids, request.n_token_ids = 3, request.max_tokens = 2, request.ignore_eos = true;
    request.on_event = run_on_event, request.user = &record;
    model_params.path = model_path, model_params.memory_bytes = params->memory_bytes;
    qrun_status status = context != NULL ? QRUN_OK : QRUN_ERROR_INTERNAL;
    if (status == QRUN_OK) { status = qrun_model_open(context, &model_params, &model, error); }
    if (status == QRUN_OK) { status = qrun_session_create(model, params, &session, error); }
    if (status == QRUN_OK) {
        memset(&record, 0, sizeof record);
        CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
        CHECK(qrun_session_run(session, NULL) == QRUN_OK);
        CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
        CHECK_INT(record.n_done, 1);
        CHECK_INT(stats.peak_bytes, stats.planned_bytes);
        qr_backend_memory held;
        int32_t n;
        const qrun_plan_entry *plan = qrun_session_plan(session, &n);
        CHECK_INT(context->backend->memory_info(context->backend, &held, NULL), QRUN_OK);
        CHECK_INT(held.host_peak_bytes, entry_of(plan, n, "host")->bytes);
    }
    qrun_session_destroy(session);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return status;
}

static void test_a_session_is_planned_to_the_byte(void) {
    qrun_session_params params = session_params();
    qrun_error error = QRUN_ERROR_INIT;
    int32_t n = 0;
    set_number("QRUN_SIMT_CONTEXT", CONTEXT_BYTES);
    qrun_context *context = open_device(INT64_C(2) << 30);
    REQUIRE(context != NULL);
    qrun_plan_entry *entries = plan_session(context, &params, &n, &error);
    REQUIRE(entries != NULL);
    CHECK_INT(entry_of(entries, n, "context")->bytes, CONTEXT_BYTES);
    const int64_t total = total_of(entries, n);
    qrun_free(entries);
    params.memory_bytes = total; /* a budget is of the context too */
    entries = plan_session(context, &params, &n, &error);
    CHECK_MSG(entries != NULL, "%s", error.message);
    qrun_free(entries);
    params.memory_bytes = total - 1;
    entries = plan_session(context, &params, &n, &error); /* the least that is needed, although it does not fit */
    CHECK_INT(error.status, QRUN_ERROR_MEMORY);
    CHECK(entries != NULL && total_of(entries, n) == total);
    qrun_free(entries);
    CHECK_MSG(strstr(error.message, "a budget of") != NULL &&
                  strstr(error.message, "the GPU's context 300 MiB") != NULL,
              "message is \"%s\"", error.message);
    qrun_context_destroy(context);

    params.memory_bytes = 0; /* the device decides */
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_MSG(try_session(total, &params, &error) == QRUN_OK, "%s", error.message);
    CHECK_INT(try_session(total - 1, &params, &error), QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "the GPU's memory of") != NULL, "message is \"%s\"", error.message);
    params.memory_bytes = 2 * total; /* more than there is is no help */
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(try_session(total - 1, &params, &error), QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "the GPU's memory of") != NULL, "message is \"%s\"", error.message);
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_MSG(try_session(total, &params, &error) == QRUN_OK, "%s", error.message);
    unset_all();
}

/* Without a budget the pool takes nine tenths of what is free, and no more. */
static void test_a_session_fits_what_is_free(void) {
    qrun_session_params params = session_params();
    qrun_error error = QRUN_ERROR_INIT;
    int32_t n = 0;
    params.kv_tokens = 0, params.context_tokens = 64;
    const int64_t free_bytes = 3 * MIB;
    set_number("QRUN_SIMT_CONTEXT", CONTEXT_BYTES);
    qrun_context *context = open_device(CONTEXT_BYTES + free_bytes);
    REQUIRE(context != NULL);
    qrun_plan_entry *entries = plan_session(context, &params, &n, &error);
    CHECK_MSG(entries != NULL, "%s", error.message);
    if (entries != NULL) {
        const int64_t weights = entry_of(entries, n, "weights")->bytes;
        const int64_t session = total_of(entries, n) - weights - CONTEXT_BYTES;
        CHECK_MSG(session <= (free_bytes - weights) / 10 * 9, "%lld bytes of %lld", (long long)session,
                  (long long)(free_bytes - weights));
    }
    qrun_free(entries);
    qrun_context_destroy(context);
    unset_all();
}

static void test_weights_that_do_not_fit_are_refused(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.path = model_path;
    set_number("QRUN_SIMT_CONTEXT", CONTEXT_BYTES);
    qrun_context *context = open_device(CONTEXT_BYTES + 4096);
    REQUIRE(context != NULL);
    CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "the GPU has free 4.00 KiB") != NULL, "message is \"%s\"", error.message);
    qrun_context_destroy(context);
    context = open_device(INT64_C(1) << 30);
    params.memory_bytes = CONTEXT_BYTES + 4096;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "the budget leaves them 4.00 KiB") != NULL, "message is \"%s\"", error.message);
    qrun_context_destroy(context);
    unset_all();
}

/* ---- Experts in host memory -------------------------------------------------------------------------------------- */

static qrun_status open_experts(qrun_context *context, qrun_offload place, int64_t budget, qrun_model **model,
                                qrun_model_info *info, qrun_error *error) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    *info = (qrun_model_info)QRUN_MODEL_INFO_INIT;
    params.path = QRUN_SOURCE_DIR "/tests/fixtures/models/qwen3-moe";
    params.offload_experts = place, params.memory_bytes = budget;
    const qrun_status status = qrun_model_open(context, &params, model, error);
    if (status == QRUN_OK) { CHECK(qrun_model_get_info(*model, info, NULL) == QRUN_OK); }
    return status;
}

/* What the device and the host hold of a model whose experts are in host memory, and the training of an adapter. */
static void check_experts_training(qrun_model *model) {
    qrun_train_params params = trainer_params(trainer_path("experts"));
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.data.random_tokens = true;
    params.batches.seq_len = 32, params.batches.batch_size = 1, params.batches.grad_accum = 1,
    params.batches.max_steps = 2;
    params.memory.checkpointing = "full", params.lora.rank = 1, params.lora.target_modules = "q_proj";
    CHECK_MSG(qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK, "%s", error.message);
    if (trainer != NULL) {
        trainer_run_steps(trainer, params.batches.max_steps, NULL);
        CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
        CHECK_INT(info.peak_bytes, info.planned_bytes);
        CHECK_INT(info.peak_host_bytes, info.planned_host_bytes);
    }
    qrun_trainer_destroy(trainer);
}

static void test_experts_leave_a_device(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model_info resident, fetched, chosen;
    qrun_model *model = NULL;
    qrun_context *context = open_device(INT64_C(1) << 30);
    REQUIRE(context != NULL);
    REQUIRE(open_experts(context, QRUN_OFFLOAD_AUTO, 0, &model, &resident, &error) == QRUN_OK);
    CHECK(!resident.offloads_experts); /* they fit */
    qrun_model_destroy(model);
    REQUIRE(open_experts(context, QRUN_OFFLOAD_ALL, 0, &model, &fetched, &error) == QRUN_OK);
    CHECK(fetched.offloads_experts);
    /* Two layers have experts, of which one is on the device at a time. */
    const int64_t host_bytes = (int64_t)model->host_experts.host_bytes;
    CHECK_INT(fetched.weight_bytes, resident.weight_bytes - host_bytes / 2);
    CHECK_INT(fetched.step_weight_bytes, resident.step_weight_bytes);
    check_experts_training(model);
    qrun_model_destroy(model);

    /* Room for one layer's experts and not for all. */
    CHECK_INT(open_experts(context, QRUN_OFFLOAD_NONE, fetched.weight_bytes, &model, &chosen, &error),
              QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "(`offload_experts`)") != NULL, "message is \"%s\"", error.message);
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_MSG(open_experts(context, QRUN_OFFLOAD_AUTO, fetched.weight_bytes, &model, &chosen, &error) == QRUN_OK, "%s",
              error.message);
    CHECK(chosen.offloads_experts);
    CHECK_INT(chosen.weight_bytes, fetched.weight_bytes);
    qrun_model_destroy(model);
    /* Nor for that: what is needed with all on the device is said. */
    CHECK_INT(open_experts(context, QRUN_OFFLOAD_AUTO, fetched.weight_bytes - 1, &model, &chosen, &error),
              QRUN_ERROR_MEMORY);
    qrun_context_destroy(context);
    unset_all();
}

static void test_experts_and_what_else_leaves_a_device(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = NULL;
    qrun_context *context = open_device(INT64_C(1) << 30);
    REQUIRE(context != NULL);
    params.path = QRUN_SOURCE_DIR "/tests/fixtures/models/qwen3-moe";
    params.offload_experts = params.offload_parameters = QRUN_OFFLOAD_ALL;
    CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "`offload_parameters` holds experts") != NULL, "message is \"%s\"", error.message);
    params.offload_parameters = QRUN_OFFLOAD_NONE, params.trainable = true;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "do not change") != NULL, "message is \"%s\"", error.message);
    qrun_context_destroy(context);
    unset_all();
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

static qrun_train_params train_params(const char *out) {
    qrun_train_params params = trainer_params(out);
    params.batches.seq_len = 32, params.batches.batch_size = 1, params.batches.grad_accum = 1,
    params.batches.max_steps = 2;
    params.memory.checkpointing = "full", params.lora.rank = 1, params.lora.target_modules = "q_proj";
    return params;
}

typedef struct train_result {
    int64_t planned, planned_host;
} train_result;

/* Trains on a device of that size; the memory held at most must be the plan's. */
static qrun_status try_training(int64_t memory_bytes, const qrun_train_params *params, train_result *result,
                                qrun_error *error) {
    qrun_context *ours = trainer_context;
    trainer_context = open_device(memory_bytes);
    qrun_model *model = trainer_context != NULL ? trainer_open_model() : NULL;
    qrun_trainer *trainer = NULL;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    int32_t n = 0;
    qrun_status status = model != NULL ? qrun_trainer_create(model, params, &trainer, error) : QRUN_ERROR_INTERNAL;
    if (status == QRUN_OK) {
        trainer_run_steps(trainer, params->batches.max_steps, NULL);
        CHECK(qrun_trainer_export(trainer, NULL) == QRUN_OK);
        CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
        const qrun_plan_entry *plan = qrun_trainer_plan(trainer, &n);
        CHECK_INT(info.planned_bytes, total_of(plan, n));
        CHECK_INT(info.peak_bytes, info.planned_bytes);
        CHECK_INT(info.peak_host_bytes, info.planned_host_bytes);
        CHECK(entry_of(plan, n, "host")->is_apart);
        CHECK_INT(entry_of(plan, n, "host")->bytes, info.planned_host_bytes);
        *result = (train_result){info.planned_bytes, info.planned_host_bytes};
    }
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    qrun_context_destroy(trainer_context);
    trainer_context = ours;
    return status;
}

static void test_training_is_planned_to_the_byte(void) {
    qrun_train_params params = train_params(trainer_path("sized"));
    qrun_error error = QRUN_ERROR_INIT;
    train_result resident = {0}, offloaded = {0};
    params.saving.restart = true;
    set_number("QRUN_SIMT_CONTEXT", CONTEXT_BYTES);
    REQUIRE(try_training(INT64_C(2) << 30, &params, &resident, &error) == QRUN_OK);
    CHECK_MSG(try_training(INT64_C(2) << 30, &params, &resident, &error) == QRUN_OK, "%s", error.message);
    params.memory.memory_bytes = resident.planned; /* exactly: host memory is not of it */
    CHECK_MSG(try_training(resident.planned, &params, &resident, &error) == QRUN_OK, "%s", error.message);
    CHECK_INT(try_training(resident.planned - 1, &params, &resident, &error), QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "the GPU has") != NULL, "message is \"%s\"", error.message);
    params.memory.memory_bytes--;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(try_training(INT64_C(2) << 30, &params, &resident, &error), QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "the budget is") != NULL, "message is \"%s\"", error.message);
    params.memory.memory_bytes = 0, params.memory.offload_optimizer = true;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_MSG(try_training(INT64_C(2) << 30, &params, &offloaded, &error) == QRUN_OK, "%s", error.message);
    CHECK(offloaded.planned_host > resident.planned_host);
    unset_all();
}

/* The goal for one GPU: an 8B model of the Llama-3.1 shape, LoRA of rank 16 on all linear layers, two rows of 4,096
 * tokens a step, within 9 GB with all that the driver takes. Nothing of it is read but the shape. */
static void test_training_of_8b_is_planned_within_9_gb(void) {
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    qrun_plan_entry *plan = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    int32_t n = 0;
    model_params.path = QRUN_SOURCE_DIR "/bench/shapes/llama-3.1-8b.json", model_params.random_weights = true;
    model_params.quant = QRUN_QUANT_NF4_DQ, model_params.quant_head_int8 = true;
    params.data.random_tokens = true, params.lora.rank = 16, params.batches.seq_len = 4096,
    params.batches.grad_accum = 2;
    params.memory.checkpointing = "full", params.memory.offload_activations = true;
    set_number("QRUN_SIMT_CONTEXT", 600 * (int64_t)MIB);
    qrun_context *context = open_device(80000 * (int64_t)MIB);
    REQUIRE(context != NULL);
    CHECK_MSG(qrun_plan_training(context, &model_params, &params, &plan, &n, NULL, NULL, &error) == QRUN_OK, "%s",
              error.message);
    const int64_t total = total_of(plan, n);
    CHECK_MSG(total <= INT64_C(9000000000), "%lld bytes", (long long)total);
    CHECK_INT(entry_of(plan, n, "context")->bytes, 600 * (int64_t)MIB);
    CHECK_MSG(entry_of(plan, n, "logits")->bytes >= INT64_C(512) * 128256 * 6,
              "the head is dequantised for fewer than 512 rows");
    CHECK_MSG(entry_of(plan, n, "weights")->bytes > INT64_C(4500000000), "weights of less than the model's");
    CHECK_MSG(entry_of(plan, n, "host")->bytes >= 30 * (int64_t)(64 * MIB),
              "the inputs of layers are not in host memory");
    qrun_free(plan);
    qrun_context_destroy(context);
    unset_all();
}

/* What an op asks for is planned, of ops that no other asks more than too: the sums of DoRA's magnitudes, for the
 * widest output of a Llama 3.2 1B in F32, are the most that a step of 16,384 tokens needs. */
static void test_the_workspace_of_dora_is_planned(void) {
    enum { N_TOKENS = 16384, WIDEST = 8192 };
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    qrun_plan_entry *plan = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    int32_t n = 0;
    model_params.path = QRUN_SOURCE_DIR "/bench/shapes/llama-3.2-1b.json", model_params.random_weights = true;
    model_params.quant = QRUN_QUANT_NF4_DQ, model_params.dtype = QRUN_DTYPE_F32;
    params.data.random_tokens = true, params.lora.rank = 16, params.lora.dora = true;
    params.batches.seq_len = N_TOKENS;
    params.memory.checkpointing = "full";
    qrun_context *context = open_device(80000 * (int64_t)MIB);
    REQUIRE(context != NULL);
    const qr_dora_backward_args args = {.n_rows = N_TOKENS, .dim = WIDEST, .dy_stride = WIDEST, .z_stride = WIDEST};
    const int64_t needed = (int64_t)qr_dora_backward_workspace(context->backend, &args);
    CHECK_MSG(qrun_plan_training(context, &model_params, &params, &plan, &n, NULL, NULL, &error) == QRUN_OK, "%s",
              error.message);
    const int64_t planned = entry_of(plan, n, "workspace")->bytes;
    CHECK_MSG(needed > 0 && planned >= needed, "%lld bytes of workspace are planned, and dora_backward needs %lld",
              (long long)planned, (long long)needed);
    qrun_free(plan);
    qrun_context_destroy(context);
    unset_all();
}

/* What lies in host memory comes and goes beside the kernels, as late as it may: the adapter does not depend on it. */
static void test_offloading_changes_no_bits(void) {
    char out[4][512];
    train_result results[4];
    for (int way = 0; way < 4; way++) {
        char name[32];
        qrun_error error = QRUN_ERROR_INIT;
        snprintf(name, sizeof name, "offload%d", way);
        snprintf(out[way], sizeof out[way], "%s", trainer_path(name));
        qrun_train_params params = train_params(out[way]);
        params.lora.target_modules = "q_proj,down_proj", params.batches.max_steps = 3;
        params.memory.offload_optimizer = (way & 1) != 0, params.memory.offload_activations = (way & 2) != 0;
        CHECK_MSG(try_training(INT64_C(1) << 30, &params, &results[way], &error) == QRUN_OK, "%s", error.message);
    }
    for (int way = 1; way < 4; way++) { CHECK(trainer_adapters_are_equal(out[0], out[way])); }
    CHECK(results[2].planned < results[0].planned && results[2].planned_host > results[0].planned_host);
    CHECK_INT(results[0].planned + results[0].planned_host, results[2].planned + results[2].planned_host);
}

/* Refusals know what host memory would make fit. */
static void test_offloading_is_offered(void) {
    qrun_train_params params = train_params(trainer_path("offered"));
    qrun_error error = QRUN_ERROR_INIT;
    train_result resident = {0}, offloaded = {0}, unused;
    params.saving.restart = true, params.lora.target_modules = "all", params.lora.rank = 16;
    REQUIRE(try_training(INT64_C(1) << 30, &params, &resident, &error) == QRUN_OK);
    params.memory.offload_optimizer = true;
    REQUIRE(try_training(INT64_C(1) << 30, &params, &offloaded, &error) == QRUN_OK);
    CHECK(offloaded.planned < resident.planned);
    params.memory.offload_optimizer = false, params.memory.memory_bytes = offloaded.planned;
    CHECK_INT(try_training(INT64_C(1) << 30, &params, &unused, &error), QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "`offload_optimizer` (") != NULL, "message is \"%s\"", error.message);
    params.memory.memory_bytes = offloaded.planned - 1;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(try_training(INT64_C(1) << 30, &params, &unused, &error), QRUN_ERROR_MEMORY);
    CHECK_MSG(strstr(error.message, "`offload_optimizer,offload_activations` (") != NULL, "message is \"%s\"",
              error.message);
}

/* ---- A device that is lost --------------------------------------------------------------------------------------- */

typedef struct lost_run {
    qrun_status status;
    bool went_through;
    char message[1024];
} lost_run;

/* Two steps with a checkpoint after each, over a device that is lost on the way. */
static lost_run run_and_lose(int64_t n_calls, const char *out) {
    lost_run run = {.status = QRUN_OK};
    qrun_train_params params = train_params(out);
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT, again = QRUN_ERROR_INIT;
    bool done = false;
    qrun_status status = QRUN_OK;
    context_params.device = "cuda", context_params.n_threads = 1;
    model_params.path = QRUN_SOURCE_DIR "/examples/model";
    set_number("QRUN_SIMT_LOST_AFTER", n_calls);
    QR_TRY(qrun_context_create(&context_params, &context, &error));
    QR_TRY(qrun_model_open(context, &model_params, &model, &error));
    QR_TRY(qrun_trainer_create(model, &params, &trainer, &error));
    while (!done && qrun_trainer_next(trainer) == QRUN_TRAIN_STEP) {
        QR_TRY(qrun_trainer_step(trainer, &metrics, &done, &error));
        QR_TRY(qrun_trainer_save(trainer, &error));
    }
    QR_TRY(qrun_trainer_export(trainer, &error));
    run.went_through = true;
out:
    if (status != QRUN_OK && trainer != NULL) { /* whoever asks next hears the same */
        CHECK_INT(done ? qrun_trainer_export(trainer, &again) : qrun_trainer_step(trainer, &metrics, &done, &again),
                  QRUN_ERROR_DEVICE);
        CHECK_STR(again.message, error.message);
    }
    run.status = status;
    memcpy(run.message, error.message, sizeof run.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    unset_all();
    return run;
}

static void test_a_lost_device_leaves_files_whole(void) {
    char whole[512], broken[512];
    snprintf(whole, sizeof whole, "%s", trainer_path("whole"));
    snprintf(broken, sizeof broken, "%s", trainer_path("broken"));
    REQUIRE(run_and_lose(INT64_MAX, whole).went_through);
    bool went_through = false;
    int n_lost = 0;
    for (int64_t n = 3; !went_through && n < 1 << 22; n = n * 3 / 2 + 1) {
        const lost_run run = run_and_lose(n, broken);
        went_through = run.went_through;
        n_lost += !went_through;
        CHECK_MSG(went_through || (run.status == QRUN_ERROR_DEVICE && strstr(run.message, "the GPU is lost") != NULL),
                  "%s: %s", qrun_status_name(run.status), run.message);
    }
    CHECK(went_through && n_lost > 8);
    CHECK(trainer_adapters_are_equal(whole, broken));
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    if (getenv("QRUN_CUDA_LIBRARY") == NULL) {
        printf("skipped: QRUN_CUDA_LIBRARY does not name the library of tests/simt\n");
        return 77;
    }
    if (!trainer_run_begin(40) || !measure_tables()) { return 1; }
    CHECK_RUN(test_a_device_has_its_own_memory);
    CHECK_RUN(test_what_a_device_lacks_is_named);
    CHECK_RUN(test_one_of_several_gpus);
    CHECK_RUN(test_a_session_is_planned_to_the_byte);
    CHECK_RUN(test_a_session_fits_what_is_free);
    CHECK_RUN(test_weights_that_do_not_fit_are_refused);
    CHECK_RUN(test_experts_leave_a_device);
    CHECK_RUN(test_experts_and_what_else_leaves_a_device);
    CHECK_RUN(test_training_is_planned_to_the_byte);
    CHECK_RUN(test_training_of_8b_is_planned_within_9_gb);
    CHECK_RUN(test_the_workspace_of_dora_is_planned);
    CHECK_RUN(test_offloading_changes_no_bits);
    CHECK_RUN(test_offloading_is_offered);
    CHECK_RUN(test_a_lost_device_leaves_files_whole);
    trainer_run_end();
    return check_end();
}
