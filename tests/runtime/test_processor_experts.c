/* Experts in host memory that the processor computes (runtime/model/host_experts.h), beside a device with memory of its
 * own, that of tests/simt: a token's bits depend on its own sequence alone, results are those of experts on the device
 * within rounding, memory is planned to the byte, and what cannot be done that way is refused by name. */
#include "check_open.h"

#include <math.h>

#include "../train/trainer_run.h"
#include "runtime/model/host_experts.h"
#include "session_run.h"
#include "tensors_file.h"

enum { N_REQUESTS = 3, MAX_PROMPT = 20, PAGE = 16 };

typedef struct model_case {
    const char *folder;
    qrun_quant quant;
    qrun_dtype dtype;
    bool has_values_alone; /* compared, and no bits: it takes long here */
} model_case;

typedef struct variant {
    qrun_expert_compute compute;
    int32_t n_threads, step_tokens;
    bool alone;    /* one request after the other */
    bool is_short; /* of pages, so that sequences are preempted */
    const char *adapter;
} variant;

static qrun_status open_model(qrun_context *context, const model_case *c, qrun_expert_compute compute,
                              qrun_model **model, qrun_error *error) {
    char path[512];
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/models/%s", c->folder);
    params.path = path, params.quant = c->quant, params.dtype = c->dtype;
    params.offload_experts = QRUN_OFFLOAD_ALL, params.expert_compute = compute;
    *model = NULL;
    return qrun_model_open(context, &params, model, error);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

static run_record records[2][N_REQUESTS];

/* Greedy and drawn; the last prompt begins as the first one does. */
static qrun_request_params request_of(int r, int32_t *ids) {
    static const int32_t lengths[N_REQUESTS] = {17, 15, MAX_PROMPT};
    qrun_request_params p = QRUN_REQUEST_PARAMS_INIT;
    const int32_t seed = r == N_REQUESTS - 1 ? 0 : r;
    for (int32_t i = 0; i < lengths[r]; i++) { ids[i] = 3 + (seed * 31 + i * 7) % 900; }
    p.token_ids = ids, p.n_token_ids = lengths[r];
    p.max_tokens = 2 + r % 2, p.ignore_eos = true, p.logprobs = 0;
    p.on_event = run_on_event;
    if (r % 2 == 1) { p.temperature = 1.2F, p.top_k = 20; }
    return p;
}

static void check_memory(const qrun_context *context, const qrun_session *session, const qrun_session_stats *stats) {
    qr_backend_memory memory = {0};
    int32_t n = 0;
    const qrun_plan_entry *entries = qrun_session_plan(session, &n);
    CHECK_INT(stats->peak_bytes, stats->planned_bytes);
    REQUIRE(context->backend->memory_info(context->backend, &memory, NULL) == QRUN_OK);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(entries[i].category, "host") == 0) { CHECK_INT(memory.host_peak_bytes, entries[i].bytes); }
    }
}

static void check_session(qrun_context *context, qrun_model *model, const variant *v, run_record *out) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_adapter *adapter = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.kv_tokens = v->is_short ? MAX_PROMPT + PAGE : 400;
    params.max_sequences = N_REQUESTS, params.max_step_tokens = v->step_tokens;
    params.context_tokens = MAX_PROMPT + PAGE, params.speculate = "off";
    if (v->adapter != NULL) {
        CHECK_MSG(qrun_adapter_open(model, v->adapter, NULL, &adapter, &error) == QRUN_OK, "%s", error.message);
    }
    qrun_session *session = run_session(model, &params);
    REQUIRE(session != NULL);
    memset(out, 0, N_REQUESTS * sizeof *out);
    for (int r = 0; r < N_REQUESTS; r++) {
        int32_t ids[MAX_PROMPT];
        qrun_request_params request = request_of(r, ids);
        request.user = &out[r], request.adapter = adapter;
        CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
        if (v->alone) { CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message); }
    }
    CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message);
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
    check_memory(context, session, &stats);
    CHECK(stats.n_preemptions > 0 || !v->is_short);
    if (v->compute == QRUN_EXPERT_COMPUTE_HOST) {
        CHECK_INT(stats.replayed_steps, 0);
        CHECK_STR(stats.replay_failure, "the processor computes experts");
    }
    qrun_session_destroy(session);
}

static void run(const model_case *c, const variant *v, run_record *out) {
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model;
    qrun_context *context = check_open_context("cuda", v->n_threads);
    REQUIRE(context != NULL);
    CHECK_MSG(open_model(context, c, v->compute, &model, &error) == QRUN_OK, "%s: %s", c->folder, error.message);
    if (model != NULL) {
        CHECK(qrun_model_get_info(model, &info, NULL) == QRUN_OK);
        CHECK(info.offloads_experts);
        CHECK_INT(info.computes_experts, v->compute == QRUN_EXPERT_COMPUTE_HOST);
        check_session(context, model, v, out);
    }
    qrun_model_destroy(model);
    qrun_context_destroy(context);
}

static void compare_bits(const char *what) {
    for (int r = 0; r < N_REQUESTS; r++) {
        char name[128];
        snprintf(name, sizeof name, "%s, request %d", what, r);
        CHECK_MSG(records[0][r].n_done == 1 && records[0][r].n_errors == 0, "%s: its events", name);
        CHECK(run_samples_are_equal(&records[0][r].samples[0], &records[1][r].samples[0], name));
    }
}

/* In F32, where both round to 2^-24: the same tokens, and log-probabilities as near as the goldens' are to transformers
 * (1e-4 of the largest logit, which is above 1 here). */
static void compare_values(const char *what) {
    for (int r = 0; r < N_REQUESTS; r++) {
        const run_sample *a = &records[0][r].samples[0], *b = &records[1][r].samples[0];
        CHECK_INT(a->n_tokens, b->n_tokens);
        for (int32_t t = 0; t < a->n_tokens; t++) {
            const double difference = fabs((double)a->logprobs[t] - (double)b->logprobs[t]);
            CHECK_MSG(a->tokens[t] == b->tokens[t] && difference <= 1e-4,
                      "%s, request %d, token %d: %d (%g), and %d "
                      "(%g)",
                      what, r, t, a->tokens[t], (double)a->logprobs[t], b->tokens[t], (double)b->logprobs[t]);
        }
    }
}

static const variant in_a_crowd = {.compute = QRUN_EXPERT_COMPUTE_HOST, .n_threads = 1, .step_tokens = MAX_PROMPT};
static const variant alone_in_chunks = {
    .compute = QRUN_EXPERT_COMPUTE_HOST, .n_threads = 2, .step_tokens = 7, .alone = true};
static const variant preempted = {
    .compute = QRUN_EXPERT_COMPUTE_HOST, .n_threads = 2, .step_tokens = MAX_PROMPT, .is_short = true};
static const variant fetched = {.compute = QRUN_EXPERT_COMPUTE_DEVICE, .n_threads = 1, .step_tokens = MAX_PROMPT};

/* In a crowd or alone, with one thread or two, whole or in chunks, and from a shared prefix. Formats of every kind,
 * biases, scales of shares, a dense MLP beside experts, a shared expert, layers with a state. */
static void test_bits_are_of_a_sequence_alone(void) {
    static const model_case cases[] = {
        {"qwen3-moe", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, false},
        {"gpt-oss-mxfp4", QRUN_QUANT_AUTO, QRUN_DTYPE_F32, false},
        {"qwen3_5-moe", QRUN_QUANT_INT8, QRUN_DTYPE_F32, false},
        {"gemma4-moe", QRUN_QUANT_F32, QRUN_DTYPE_F32, true},
        {"nemotron-h-moe", QRUN_QUANT_INT8, QRUN_DTYPE_F32, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run(&cases[i], &in_a_crowd, records[0]);
        if (!cases[i].has_values_alone) {
            run(&cases[i], &alone_in_chunks, records[1]);
            compare_bits(cases[i].folder);
        }
        if (cases[i].dtype == QRUN_DTYPE_F32) {
            run(&cases[i], &fetched, records[1]);
            compare_values(cases[i].folder);
            continue;
        }
        CHECK(records[1][N_REQUESTS - 1].samples[0].cached_tokens >= PAGE);
        run(&cases[i], &preempted, records[1]);
        compare_bits("preempted");
    }
}

/* An op of the processor that fails ends the step with its message, and the next session computes as before. */
static qrun_status fail(qr_backend *backend, const void *args, void *workspace, qr_error *err) {
    (void)backend, (void)args, (void)workspace;
    return qr_fail(err, QRUN_ERROR_INTERNAL, "an op that fails");
}

static void test_a_failure(void) {
    static const model_case moe = {"qwen3-moe", QRUN_QUANT_INT8, QRUN_DTYPE_F16, false};
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model;
    int32_t ids[MAX_PROMPT];
    qrun_context *context = check_open_context("cuda", 1);
    REQUIRE(context != NULL);
    REQUIRE(open_model(context, &moe, QRUN_EXPERT_COMPUTE_HOST, &model, &error) == QRUN_OK);
    check_session(context, model, &in_a_crowd, records[0]);
    params.max_sequences = 1, params.context_tokens = MAX_PROMPT + PAGE, params.max_step_tokens = MAX_PROMPT;
    params.kv_tokens = MAX_PROMPT + PAGE, params.speculate = "off";
    qrun_session *session = run_session(model, &params);
    qr_op_impl *sum = &context->processor->ops[QR_OP_expert_sum];
    qrun_status (*const works)(qr_backend *, const void *, void *, qr_error *) = sum->run;
    qrun_request_params request = request_of(0, ids);
    request.user = &records[1][0];
    sum->run = fail;
    CHECK(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK);
    CHECK_INT(qrun_session_run(session, &error), QRUN_ERROR_INTERNAL);
    CHECK_STR(error.message, "an op that fails");
    sum->run = works;
    qrun_session_destroy(session);
    check_session(context, model, &in_a_crowd, records[1]);
    compare_bits("after a failure");
    qrun_model_destroy(model);
    qrun_context_destroy(context);
}

/* ---- Adapters and training --------------------------------------------------------------------------------------- */

#define EXPERTS_ADAPTER QRUN_SOURCE_DIR "/tests/fixtures/adapters/qwen3-moe-experts"

static const model_case moe_f32 = {"qwen3-moe", QRUN_QUANT_F32, QRUN_DTYPE_F32, false};

/* The fixture's adapter without the part of the experts. */
static qrun_status write_adapter(const char *folder, qr_error *err) {
    enum { MOST = 64 };
    qr_safetensors_spec specs[MOST] = {{.name = NULL}};
    const void *contents[MOST];
    char command[1024];
    size_t n = 0;
    qr_safetensors *source = NULL;
    snprintf(command, sizeof command,
             "mkdir '%s' && sed '/target_parameters/,/]/d' '%s/adapter_config.json' > "
             "'%s/adapter_config.json'",
             folder, EXPERTS_ADAPTER, folder);
    if (system(command) != 0) { return QRUN_ERROR_IO; }
    QR_RETURN_IF_ERROR(qr_safetensors_open(EXPERTS_ADAPTER "/adapter_model.safetensors", &source, err));
    for (size_t i = 0; i < qr_safetensors_count(source) && n < MOST; i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        if (strstr(tensor->name, "self_attn") == NULL) { continue; }
        specs[n] = (qr_safetensors_spec){.name = tensor->name, .dtype = tensor->dtype, .n_dims = tensor->n_dims};
        memcpy(specs[n].dims, tensor->dims, sizeof specs[n].dims);
        contents[n++] = tensor->data;
    }
    const qrun_status status = tensors_write(folder, specs, contents, n, err);
    qr_safetensors_close(source);
    snprintf(command, sizeof command, "cd '%s' && mv model.safetensors adapter_model.safetensors", folder);
    return status == QRUN_OK && system(command) != 0 ? QRUN_ERROR_IO : status;
}

static void expect_device(qrun_status status, qrun_status expected, qrun_error *error) {
    CHECK_INT(status, expected);
    CHECK_MSG(strstr(error->message, "open the model with `expert_compute=device`") != NULL, "%s", error->message);
    *error = (qrun_error)QRUN_ERROR_INIT;
}

/* An adapter beside the experts is the device's; one of experts, and training, need experts that are fetched. */
static void test_adapters(void) {
    qrun_train_params params = trainer_params(trainer_path("trained"));
    qrun_trainer *trainer = NULL;
    qrun_adapter *adapter = NULL;
    qrun_model *model;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context *context = check_open_context("cuda", 1);
    REQUIRE(context != NULL);
    REQUIRE(open_model(context, &moe_f32, QRUN_EXPERT_COMPUTE_HOST, &model, &error) == QRUN_OK);
    params.data.random_tokens = true;
    expect_device(qrun_trainer_create(model, &params, &trainer, &error), QRUN_ERROR_ARGUMENT, &error);
    expect_device(qrun_adapter_open(model, EXPERTS_ADAPTER, NULL, &adapter, &error), QRUN_ERROR_UNSUPPORTED, &error);
    qrun_model_destroy(model);
    qrun_context_destroy(context);

    variant with = in_a_crowd, with_fetched = fetched;
    with.adapter = with_fetched.adapter = trainer_path("beside-experts");
    CHECK_MSG(write_adapter(with.adapter, &error) == QRUN_OK, "%s", error.message);
    run(&moe_f32, &with, records[0]);
    run(&moe_f32, &with_fetched, records[1]);
    compare_values("with an adapter");
    run(&moe_f32, &in_a_crowd, records[1]);
    CHECK_MSG(records[0][0].samples[0].logprobs[0] != records[1][0].samples[0].logprobs[0], "the adapter does nothing");
}

/* ---- The choice -------------------------------------------------------------------------------------------------- */

static void check_refused(qrun_context *context, const qrun_model_params *params, const char *why) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = NULL;
    CHECK_INT(qrun_model_open(context, params, &model, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, why) != NULL, "message is \"%s\"", error.message);
    qrun_model_destroy(model);
}

static void test_refusals(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_context *context = check_open_context("cuda", 1);
    REQUIRE(context != NULL);
    params.path = QRUN_SOURCE_DIR "/tests/fixtures/models/qwen3-moe";
    params.expert_compute = QRUN_EXPERT_COMPUTE_HOST;
    check_refused(context, &params, "give `offload_experts` too");
    params.expert_compute = (qrun_expert_compute)(QRUN_EXPERT_COMPUTE_HOST + 1);
    check_refused(context, &params, "is not one of qrun_expert_compute");
    params.offload_experts = QRUN_OFFLOAD_AUTO, params.expert_compute = QRUN_EXPERT_COMPUTE_HOST;
    params.tensor_parallel = 3;
    check_refused(context, &params, "with `tensor_parallel` each rank has a part");
    qrun_context_destroy(context);
}

/* A slow link, a slow processor, a slow memory: the rule goes by each of them. */
static void test_the_rule(void) {
    static const qr_expert_work work = {.all_bytes = 16000000000, .token_share = 1.0 / 32, .token_flops = 2e9};
    const struct {
        qr_expert_speeds speeds;
        bool computed;
    } rows[] = {
        {{25e9, 80e9, 2e12}, true},    /* 3.2 s fetched; 0.5 and 0.8 s on the processor */
        {{25e9, 80e9, 0.2e12}, false}, /* its products take the prompt 5.1 s */
        {{25e9, 30e9, 2e12}, false},   /* its memory is hardly faster than the link */
        {{400e9, 80e9, 2e12}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qr_expert_way way;
        qr_expert_way_by_rule(&work, &rows[i].speeds, &way);
        CHECK_MSG(way.computed == rows[i].computed, "row %zu: %s", i, way.note);
        CHECK(strstr(way.note, way.computed ? "on the processor: " : "fetched: ") == way.note);
    }
}

/* Left to the rule, one way or the other is taken and said, of the whole context alike. A device that is only planned
 * for is not measured. */
static void test_left_to_the_rule(void) {
    qrun_model_info info[2] = {QRUN_MODEL_INFO_INIT, QRUN_MODEL_INFO_INIT};
    qrun_plan_info plan = QRUN_PLAN_INFO_INIT;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    qrun_plan_entry *entries = NULL;
    int32_t n = 0;
    qrun_model *models[2];
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context *context = check_open_context("cuda", 1);
    REQUIRE(context != NULL);
    for (int i = 0; i < 2; i++) {
        REQUIRE(open_model(context, &moe_f32, QRUN_EXPERT_COMPUTE_AUTO, &models[i], &error) == QRUN_OK);
        CHECK(qrun_model_get_info(models[i], &info[i], NULL) == QRUN_OK);
    }
    CHECK(strstr(info[0].expert_note, "GB/s") != NULL);
    CHECK_STR(info[0].expert_note, info[1].expert_note);
    CHECK_INT(info[0].computes_experts, info[1].computes_experts);
    for (int i = 0; i < 2; i++) { qrun_model_destroy(models[i]); }
    qrun_context_destroy(context);

    context_params.device_memory = "rtx-3060", context_params.n_threads = 1;
    model_params.path = QRUN_SOURCE_DIR "/tests/fixtures/models/qwen3-moe";
    model_params.offload_experts = QRUN_OFFLOAD_ALL, session_params.context_tokens = 64;
    model_params.expert_compute = QRUN_EXPERT_COMPUTE_AUTO;
    REQUIRE(qrun_context_create(&context_params, &context, &error) == QRUN_OK);
    CHECK_MSG(qrun_plan_session(context, &model_params, &session_params, &entries, &n, &plan, &error) == QRUN_OK, "%s",
              error.message);
    CHECK_STR(plan.expert_note, "fetched: which way is faster is measured on the device itself");
    qrun_free(entries);
    qrun_context_destroy(context);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(1)) { return 1; }
    CHECK_RUN(test_the_rule);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_bits_are_of_a_sequence_alone);
    CHECK_RUN(test_a_failure);
    CHECK_RUN(test_adapters);
    CHECK_RUN(test_left_to_the_rule);
    trainer_run_end();
    return check_end();
}
