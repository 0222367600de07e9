/* Decode steps on a backend that records: replayed they give the tokens and the bits that they give issued, whatever
 * the batch, and a recording or a replay that fails changes nothing but a line in the statistics. */
#include "check_open.h"

#include "runtime/model/model.h"
#include "session_run.h"

enum { N_REQUESTS = 9, MAX_PROMPT = 40, N_ADAPTERS = 2, TOKENS = 14 };

/* What a recording or a replay does from now on: so many work, then they fail. */
static int64_t recordings_left, replays_left;
static qrun_status (*real_record_end)(qr_backend *backend, qr_recording **recording, qr_error *err);
static qrun_status (*real_replay)(qr_backend *backend, qr_recording *recording, qr_error *err);

static qrun_status failing_record_end(qr_backend *backend, qr_recording **recording, qr_error *err) {
    if (recordings_left-- > 0) { return real_record_end(backend, recording, err); }
    (void)real_record_end(backend, NULL, err);
    return qr_fail(err, QRUN_ERROR_DEVICE, "a recording that fails");
}

static qrun_status failing_replay(qr_backend *backend, qr_recording *recording, qr_error *err) {
    if (replays_left-- > 0) { return real_replay(backend, recording, err); }
    return qr_fail(err, QRUN_ERROR_DEVICE, "a replay that fails");
}

static qrun_context *open_device(void) { return check_open_context("cuda", 1); }

/* ---- A crowd ----------------------------------------------------------------------------------------------------- */

typedef struct crowd {
    const char *folder;
    qrun_quant quant;
    qrun_dtype dtype;
    qrun_kv kv;
    const char *adapters[N_ADAPTERS]; /* NULL: none */
    bool host_experts;                /* where steps are replayed, fetched; on the device where they are issued */
} crowd;

static run_record records[3][N_REQUESTS];

/* Greedy and drawn, filtered and not, on the device and on the host (penalties, best ids), several samples of one. */
static qrun_request_params request_of(int r, int32_t *ids) {
    qrun_request_params p = QRUN_REQUEST_PARAMS_INIT;
    const int32_t n = r == 4 ? 1 : 3 + 7 * r % MAX_PROMPT;
    for (int32_t i = 0; i < n; i++) { ids[i] = 3 + (r * 31 + i * 7) % 900; }
    p.token_ids = ids, p.n_token_ids = n;
    p.max_tokens = 2 + r * 5 % TOKENS;
    p.ignore_eos = true;
    p.logprobs = r % 3 == 0 ? 0 : r % 3 == 1 ? -1 : 3;
    p.on_event = run_on_event;
    if (r % 4 != 0) { p.temperature = 1.2F; }
    if (r % 4 == 2) { p.top_k = 20, p.top_p = 0.8F; }
    if (r == 5) { p.repetition_penalty = 1.4F; }
    if (r == 4 || r == 6) { p.n = 3; }
    return p;
}

static qrun_model *open_crowds_model(qrun_context *context, const crowd *c) {
    char path[512];
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/%s", c->folder);
    params.path = path, params.quant = c->quant, params.dtype = c->dtype;
    params.offload_experts = c->host_experts ? QRUN_OFFLOAD_ALL : QRUN_OFFLOAD_NONE;
    qrun_model *model = check_open_model(context, &params);
    if (model == NULL) { return NULL; }
    CHECK(qrun_model_get_info(model, &info, NULL) == QRUN_OK);
    CHECK(info.offloads_experts == c->host_experts);
    return model;
}

/* All of it in one session; returns its statistics. `alone`: one request after the other. */
static qrun_session_stats run_crowd(qrun_context *context, const crowd *c, bool alone, run_record *out) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_adapter *adapters[N_ADAPTERS] = {NULL, NULL};
    qrun_error error = QRUN_ERROR_INIT;
    params.kv = c->kv, params.kv_tokens = 1600, params.max_sequences = 11, params.max_step_tokens = 24;
    params.speculate = "off"; /* which depends on time: steps are counted */
    qrun_model *model = open_crowds_model(context, c);
    if (model == NULL) { return stats; }
    for (int a = 0; a < N_ADAPTERS && c->adapters[a] != NULL; a++) {
        char path[512];
        snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/%s", c->adapters[a]);
        CHECK_MSG(qrun_adapter_open(model, path, NULL, &adapters[a], &error) == QRUN_OK, "%s", error.message);
    }
    qrun_session *session = run_session(model, &params);
    memset(out, 0, N_REQUESTS * sizeof *out);
    for (int r = 0; session != NULL && r < N_REQUESTS; r++) {
        int32_t ids[MAX_PROMPT + 8];
        qrun_request_params request = request_of(r, ids);
        request.user = &out[r];
        request.adapter = r % 3 < N_ADAPTERS ? adapters[r % 3] : NULL;
        CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
        if (alone) { CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message); }
    }
    CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message);
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
    CHECK_INT(stats.peak_bytes, stats.planned_bytes);
    qrun_session_destroy(session);
    qrun_model_destroy(model);
    return stats;
}

static void compare(const run_record *one, const run_record *other, const char *what) {
    for (int r = 0; r < N_REQUESTS; r++) {
        char name[128];
        snprintf(name, sizeof name, "%s, request %d", what, r);
        CHECK_MSG(one[r].n_last == 1 && !one[r].malformed && one[r].n_errors == 0, "%s: its events", name);
        for (int s = 0; s < one[r].n_done; s++) {
            if (!run_samples_are_equal(&one[r].samples[s], &other[r].samples[s], name)) { return; }
        }
    }
}

static void check_crowd(const crowd *c) {
    qrun_context *replaying = open_device(), *issuing = open_device();
    REQUIRE(replaying != NULL && issuing != NULL);
    issuing->backend->record_begin = NULL; /* a backend that cannot */
    crowd on_device = *c;
    on_device.host_experts = false;
    const qrun_session_stats issued = run_crowd(issuing, &on_device, false, records[0]);
    const qrun_session_stats replayed = run_crowd(replaying, c, false, records[1]);
    const qrun_session_stats alone = run_crowd(replaying, c, true, records[2]);
    CHECK_INT(issued.replayed_steps, 0);
    CHECK_STR(issued.replay_failure, "");
    CHECK_STR(replayed.replay_failure, "");
    CHECK_INT(replayed.steps, issued.steps);
    CHECK_MSG(replayed.replayed_steps > 0 && replayed.replayed_steps < replayed.steps, "%lld of %lld steps replayed",
              (long long)replayed.replayed_steps, (long long)replayed.steps);
    CHECK_MSG(alone.replayed_steps > replayed.replayed_steps, "%lld of %lld steps replayed",
              (long long)alone.replayed_steps, (long long)alone.steps);
    compare(records[1], records[0], "replayed and issued");
    compare(records[2], records[0], "alone, replayed, and issued in a crowd");
    qrun_context_destroy(replaying);
    qrun_context_destroy(issuing);
}

static void test_llama_nf4_dq_with_adapters(void) {
    check_crowd(&(crowd){"models/llama",
                         QRUN_QUANT_NF4_DQ,
                         QRUN_DTYPE_BF16,
                         QRUN_KV_AUTO,
                         {"adapters/llama-lora", "adapters/llama-dora"},
                         false});
}
static void test_gemma3_int8_pages(void) {
    check_crowd(&(crowd){"models/gemma3", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_INT8, {NULL, NULL}, false});
}
static void test_gpt2_f32(void) {
    check_crowd(&(crowd){"models/gpt2", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, {NULL, NULL}, false});
}

/* A recorded step serves every routing. */
static void test_qwen3_moe_nf4_dq(void) {
    check_crowd(&(crowd){"models/qwen3-moe", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, false});
}
/* Residual streams, and sparse gates. */
static void test_gemma3n_nf4(void) {
    check_crowd(&(crowd){"models/gemma3n", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, false});
}
static void test_gpt_oss_nf4(void) {
    check_crowd(&(crowd){"models/gpt-oss", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, {NULL, NULL}, false});
}

/* Experts that are fetched give the bits of those that are there, in formats of every kind, in stacks and alone, beside
 * a dense MLP and with a shared expert; recorded steps fetch those that each replay's tokens go to. */
static void test_host_experts(void) {
    static const crowd crowds[] = {
        {"models/qwen3-moe", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, true},
        {"models/nemotron-h-moe", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, true},
        {"models/gpt-oss-mxfp4", QRUN_QUANT_AUTO, QRUN_DTYPE_BF16, QRUN_KV_INT8, {NULL, NULL}, true},
        {"models/mimo-v2-flash", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, true},
        {"models/laguna", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, true},
        {"models/gemma4-moe", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, {NULL, NULL}, true},
        {"models/deepseek-v2", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, true},
        {"models/mixtral-stacked", QRUN_QUANT_INT8, QRUN_DTYPE_F16, QRUN_KV_AUTO, {NULL, NULL}, true},
        {"models/deepseek-v3-groups", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, true},
    };
    for (size_t i = 0; i < sizeof crowds / sizeof crowds[0]; i += check_thins() ? 2 : 1) { check_crowd(&crowds[i]); }
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static void check_failure(int64_t n_recordings, int64_t n_replays, const char *reason) {
    static const crowd llama = {"models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, false};
    qrun_context *failing = open_device();
    REQUIRE(failing != NULL);
    recordings_left = n_recordings, replays_left = n_replays;
    real_record_end = failing->backend->record_end, real_replay = failing->backend->replay;
    failing->backend->record_end = failing_record_end, failing->backend->replay = failing_replay;
    const qrun_session_stats stats = run_crowd(failing, &llama, false, records[1]);
    CHECK_MSG(strcmp(stats.replay_failure, reason) == 0, "reason is \"%s\"", stats.replay_failure);
    CHECK(stats.replayed_steps <= n_replays);
    compare(records[1], records[0], reason);
    qrun_context_destroy(failing);
}

static void test_failures_leave_the_tokens_alone(void) {
    static const crowd llama = {"models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, {NULL, NULL}, false};
    qrun_context *context = open_device();
    REQUIRE(context != NULL);
    CHECK(run_crowd(context, &llama, false, records[0]).replayed_steps > 3);
    qrun_context_destroy(context);
    check_failure(1, INT64_MAX, "a recording that fails");
    check_failure(INT64_MAX, 3, "a replay that fails");
}

/* ---- The backend's own promises ---------------------------------------------------------------------------------- */

static void test_a_recording_keeps_and_does_not_run(void) {
    enum { N = 64 };
    qrun_context *context = open_device();
    REQUIRE(context != NULL);
    qr_backend *backend = context->backend;
    void *memory[4] = {NULL}, *refused = NULL;
    float out[N];
    for (int i = 0; i < 4; i++) {
        const qr_memory_kind kind = i == 0 ? QR_MEMORY_HOST : QR_MEMORY_DEVICE;
        REQUIRE(backend->memory_create(backend, kind, N * sizeof(float), &memory[i], NULL) == QRUN_OK);
    }
    float *host = memory[0], *x = memory[1], *y = memory[2], *z = memory[3];
    qr_recording *recording = NULL;
    qr_error err = {0};
    uint64_t ticket = 0;
    REQUIRE(backend->record_begin(backend, &err) == QRUN_OK);
    {
        const qr_add_args add = {x, x, N}; /* gone when the recording is replayed */
        CHECK_INT(backend->copy_in_async(backend, x, host, sizeof out, NULL), QRUN_OK);
        CHECK_INT(qr_add(backend, &add, QR_NO_WORKSPACE, NULL), QRUN_OK);
    }
    CHECK_INT(backend->copy_within(backend, y, x, sizeof out, NULL), QRUN_OK);
    CHECK_INT(backend->fill_zero(backend, z, sizeof out, NULL), QRUN_OK);
    CHECK_INT(backend->sync(backend, NULL), QRUN_ERROR_INTERNAL);
    CHECK_INT(backend->copy_out(backend, out, x, sizeof out, NULL), QRUN_ERROR_INTERNAL);
    CHECK_INT(backend->copy_in(backend, x, out, sizeof out, NULL), QRUN_ERROR_INTERNAL);
    CHECK_INT(backend->memory_create(backend, QR_MEMORY_DEVICE, 64, &refused, NULL), QRUN_ERROR_INTERNAL);
    CHECK_INT(backend->transfer_in(backend, x, host, sizeof out, &ticket, NULL), QRUN_ERROR_INTERNAL);
    CHECK_INT(backend->transfer_wait(backend, 1, NULL), QRUN_ERROR_INTERNAL);
    CHECK_INT(backend->record_begin(backend, &err), QRUN_ERROR_INTERNAL);
    CHECK_MSG(strstr(err.message, "cannot be recorded") != NULL, "message is \"%s\"", err.message);
    REQUIRE(backend->record_end(backend, &recording, NULL) == QRUN_OK);
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < N; i++) { host[i] = out[i] = (float)(i + round); }
        CHECK_INT(backend->copy_in(backend, z, out, sizeof out, NULL), QRUN_OK);
        if (round == 1) { /* nothing has run yet */
            CHECK_INT(backend->copy_out(backend, out, y, sizeof out, NULL), QRUN_OK);
            CHECK(out[5] == 0.0F);
        }
        CHECK_INT(backend->replay(backend, recording, NULL), QRUN_OK);
        CHECK_INT(backend->copy_out(backend, out, y, sizeof out, NULL), QRUN_OK);
        for (int i = 0; i < N; i++) { CHECK(out[i] == 2.0F * (float)(i + round)); }
        CHECK_INT(backend->copy_out(backend, out, z, sizeof out, NULL), QRUN_OK);
        CHECK(out[0] == 0.0F && out[N - 1] == 0.0F);
    }
    backend->recording_destroy(backend, recording);
    REQUIRE(backend->record_begin(backend, NULL) == QRUN_OK);
    CHECK_INT(backend->record_end(backend, NULL, NULL), QRUN_OK); /* forgotten */
    for (int i = 0; i < 4; i++) {
        backend->memory_destroy(backend, i == 0 ? QR_MEMORY_HOST : QR_MEMORY_DEVICE, memory[i], N * sizeof(float));
    }
    qrun_context_destroy(context);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_a_recording_keeps_and_does_not_run);
    CHECK_RUN(test_llama_nf4_dq_with_adapters);
    CHECK_RUN(test_gemma3_int8_pages);
    CHECK_RUN(test_gpt2_f32);
    CHECK_RUN(test_qwen3_moe_nf4_dq);
    CHECK_RUN(test_gpt_oss_nf4);
    CHECK_RUN(test_gemma3n_nf4);
    CHECK_RUN(test_host_experts);
    CHECK_RUN(test_failures_leave_the_tokens_alone);
    return check_end();
}
