/* Adapters are opened while a session computes: files are read and checked without the engine's lock, steps run between
 * what single modules write, and neither changes a token. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "runtime/model/adapter.h"
#include "session_run.h"

#define FOLDER(name) QRUN_SOURCE_DIR "/tests/fixtures/adapters/" name

enum { PROMPT = 20, DEADLINE_SECONDS = 120 };

static qrun_context *context;
static qrun_model *model;

static void sleep_ms(long ms) {
    const struct timespec moment = {.tv_nsec = ms * 1000000};
    nanosleep(&moment, NULL);
}

static qrun_request_params request_of(const qrun_adapter *adapter, run_record *record) {
    static int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++) { ids[i] = 3 + i * 37 % 900; }
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    params.token_ids = ids, params.n_token_ids = PROMPT, params.max_tokens = 12, params.ignore_eos = true;
    params.logprobs = 3, params.adapter = adapter, params.on_event = run_on_event, params.user = record;
    return params;
}

static void submit(qrun_session *session, const qrun_adapter *adapter, run_record *record) {
    memset(record, 0, sizeof *record);
    const qrun_request_params params = request_of(adapter, record);
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_submit(session, &params, NULL, &error) == QRUN_OK, "%s", error.message);
}

static qrun_session *small_session(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.context_tokens = 64, params.max_sequences = 2, params.kv_tokens = 128;
    return run_session(model, &params);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* This thread holds the lock as a long step does. An adapter that needs it hangs here, until the alarm. */
static void test_files_are_refused_during_a_step(void) {
    static const struct {
        const char *folder;
        qrun_status status;
    } wrong[] = {{FOLDER("nothing"), QRUN_ERROR_NOT_FOUND}, {FOLDER("gpt2-lora"), QRUN_ERROR_INPUT}};
    qr_compute_lock(context);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        qrun_adapter *adapter = NULL;
        qrun_error error = QRUN_ERROR_INIT;
        CHECK_INT(qrun_adapter_open(model, wrong[i].folder, "wrong", &adapter, &error), wrong[i].status);
        CHECK(adapter == NULL);
    }
    qr_compute_unlock(context);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static struct {
    qrun_status (*copy_in)(qr_backend *backend, void *device, const void *host, size_t n_bytes, qr_error *err);
    atomic_bool writes, stepped;
    atomic_int n_pieces;
} watched;

static _Thread_local bool opens;

/* What the opening thread writes takes long, until a step was computed. */
static qrun_status slow_copy_in(qr_backend *backend, void *device, const void *host, size_t n_bytes, qr_error *err) {
    if (opens) {
        atomic_store(&watched.writes, true);
        for (int i = 0; i < 20 && !atomic_load(&watched.stepped); i++) { sleep_ms(10); }
        atomic_fetch_add(&watched.n_pieces, 1);
    }
    return watched.copy_in(backend, device, host, n_bytes, err);
}

static void *open_adapter(void *arg) {
    qrun_error error = QRUN_ERROR_INIT;
    opens = true;
    CHECK_MSG(qrun_adapter_open(model, FOLDER("llama-lora"), "late", arg, &error) == QRUN_OK, "%s", error.message);
    return NULL;
}

static void test_steps_run_between_modules(void) {
    static run_record reference[2], records[2];
    qrun_adapter *adapter = NULL;
    pthread_t thread;
    bool has_work;
    CHECK(qrun_adapter_open(model, FOLDER("llama-lora"), "early", &adapter, NULL) == QRUN_OK);
    qrun_session *session = small_session();
    REQUIRE(session != NULL && adapter != NULL);
    for (int i = 0; i < 2; i++) { submit(session, i == 0 ? NULL : adapter, &reference[i]); }
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK(qrun_adapter_close(adapter, NULL) == QRUN_OK);
    watched.copy_in = context->backend->copy_in;
    context->backend->copy_in = slow_copy_in;
    submit(session, NULL, &records[0]);
    CHECK(pthread_create(&thread, NULL, open_adapter, &adapter) == 0);
    while (!atomic_load(&watched.writes)) { sleep_ms(1); }
    CHECK(qrun_session_step(session, &has_work, NULL) == QRUN_OK);
    const int n_before = atomic_load(&watched.n_pieces);
    atomic_store(&watched.stepped, true);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    pthread_join(thread, NULL);
    context->backend->copy_in = watched.copy_in;
    const int n_pieces = atomic_load(&watched.n_pieces);
    CHECK_MSG(n_before < n_pieces, "the step came after %d of %d pieces", n_before, n_pieces);
    submit(session, adapter, &records[1]);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK(run_samples_are_equal(&records[0].samples[0], &reference[0].samples[0], "while an adapter is opened"));
    CHECK(run_samples_are_equal(&records[1].samples[0], &reference[1].samples[0], "with that adapter"));
    qrun_session_destroy(session);
    CHECK(qrun_adapter_close(adapter, NULL) == QRUN_OK);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* A request in JSON holds the adapter from the moment that it has found its name. */
static void test_a_named_adapter_stays(void) {
    qrun_adapter *adapter = NULL;
    CHECK(qrun_adapter_open(model, FOLDER("llama-lora"), "named", &adapter, NULL) == QRUN_OK);
    REQUIRE(adapter != NULL);
    CHECK(qr_adapter_take(model, "other") == NULL);
    const qrun_adapter *taken = qr_adapter_take(model, "named");
    CHECK(taken == adapter);
    CHECK_INT(qrun_adapter_close(adapter, NULL), QRUN_ERROR_BUSY);
    qr_adapter_count_requests(taken, -1);
    qrun_request_size size = QRUN_REQUEST_SIZE_INIT;
    static const char json[] = "{\"token_ids\": [3, 4], \"adapter\": \"named\", \"max_tokens\": 1}";
    CHECK(qrun_request_measure_json(model, json, sizeof json - 1, "line", NULL, false, NULL, &size, NULL) == QRUN_OK);
    CHECK_INT(qrun_adapter_close(adapter, NULL), QRUN_OK);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    const qrun_context_params params = {.struct_size = sizeof params, .n_threads = 2};
    if (qrun_context_create(&params, &context, NULL) != QRUN_OK) { return 1; }
    model = run_open_fixture(context, "models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
    if (model == NULL) { return 1; }
    (void)alarm(DEADLINE_SECONDS);
    CHECK_RUN(test_files_are_refused_during_a_step);
    CHECK_RUN(test_steps_run_between_modules);
    CHECK_RUN(test_a_named_adapter_stays);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return check_end();
}
