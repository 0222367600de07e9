/* Very many waiting requests: whatever their number, a step's bookkeeping stays small, requests can be cancelled by
 * number, their memory stays within its limit, and every one ends exactly once.
 *
 *     test_queue                          as in the suite
 *     test_queue a_long_queue 1000000     with that many requests */
#include "check.h"

#include <time.h>

#include "base/alloc.h"
#include "base/random.h"
#include "session_run.h"

static qrun_context *context;
static qrun_model *model;
static int64_t n_requests = 50000;

enum { SLOWNESS = CHECK_SANITIZED ? 20 : 1 };

/* Of this thread, which the context's one thread computes in: other programs on the machine do not count. */
static double busy_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static qrun_session_stats stats_of(qrun_session *session) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
    return stats;
}

/* ---- A long queue ------------------------------------------------------------------------------------------------ */

enum { PROMPT_TOKENS = 20 };

/* What became of the requests: user of them all. */
typedef struct tally {
    uint8_t *n_last; /* [n_requests + 1], by number */
    int64_t n_over, n_cancelled, n_tokens, n_errors;
} tally;

static void count(void *user, const qrun_event *event) {
    tally *t = user;
    t->n_tokens += event->type == QRUN_EVENT_TOKEN;
    t->n_errors += event->type == QRUN_EVENT_ERROR;
    if (event->type != QRUN_EVENT_TOKEN && event->is_last) {
        t->n_last[event->request]++;
        t->n_over++;
        t->n_cancelled += event->type == QRUN_EVENT_DONE && strcmp(event->finish_reason, "cancelled") == 0;
    }
}

typedef struct slowest {
    double submit, cancel, stats, step;
} slowest;

static void note(double *slowest_so_far, double start) {
    const double seconds = busy_seconds() - start;
    if (seconds > *slowest_so_far) { *slowest_so_far = seconds; }
}

static void submit_all(qrun_session *session, tally *t, slowest *times) {
    int32_t ids[PROMPT_TOKENS];
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    params.token_ids = ids, params.n_token_ids = PROMPT_TOKENS, params.max_tokens = 1, params.ignore_eos = true;
    params.on_event = count, params.user = t;
    for (int64_t i = 0; i < n_requests; i++) {
        for (int32_t k = 0; k < PROMPT_TOKENS; k++) { ids[k] = 3 + (int32_t)((i * 7 + k * 13) % 997); }
        qrun_error error = QRUN_ERROR_INIT;
        uint64_t number = 0;
        const double start = busy_seconds();
        const qrun_status status = qrun_session_submit(session, &params, &number, &error);
        note(&times->submit, start);
        CHECK_MSG(status == QRUN_OK && number == (uint64_t)i + 1, "request %lld: %s", (long long)i, error.message);
        if (status != QRUN_OK) { return; }
    }
}

/* Cancels random numbers, most of them waiting, until all but few are over. */
static void step_and_cancel(qrun_session *session, tally *t, slowest *times) {
    uint64_t n_draws = 0;
    bool has_work = true;
    for (int64_t step = 0; has_work; step++) {
        const int64_t n_cancels = step < 200 ? n_requests / 210 : 0;
        for (int64_t i = 0; i < n_cancels; i++) {
            const uint64_t number = 1 + (uint64_t)(qr_random_uniform(5, 1, n_draws++) * (double)n_requests);
            const bool is_over = t->n_last[number] > 0;
            const double start = busy_seconds();
            const qrun_status status = qrun_session_cancel(session, number, NULL);
            note(&times->cancel, start);
            CHECK_INT(status, is_over ? QRUN_ERROR_NOT_FOUND : QRUN_OK);
        }
        double start = busy_seconds();
        (void)stats_of(session);
        note(&times->stats, start);
        start = busy_seconds();
        REQUIRE(qrun_session_step(session, &has_work, NULL) == QRUN_OK);
        note(&times->step, start);
        if (step == 300) { /* the rest at once */
            for (int64_t number = 1; number <= n_requests; number++) {
                if (number % 100 != 0) { (void)qrun_session_cancel(session, (uint64_t)number, NULL); }
            }
        }
    }
}

static void test_a_long_queue(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = 8, params.max_step_tokens = 64, params.kv_tokens = 400;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    tally t = {.n_last = qr_alloc_zeroed((size_t)n_requests + 1)};
    REQUIRE(t.n_last != NULL);
    slowest times = {0};
    qr_alloc_stats before, after;
    qr_alloc_get_stats(&before);
    submit_all(session, &t, &times);
    qr_alloc_get_stats(&after);
    const qrun_session_stats waiting = stats_of(session);
    const double held = (double)(after.bytes_held - before.bytes_held) / (double)n_requests;
    CHECK_INT(waiting.n_waiting, n_requests);
    CHECK_INT(waiting.waiting_bytes, after.bytes_held - before.bytes_held);
    CHECK_MSG(held <= 512 + 4 * PROMPT_TOKENS, "a waiting request holds %.0f bytes", held);
    step_and_cancel(session, &t, &times);
    printf("  %lld requests, %.0f bytes each: at most %.3f ms for a step, %.3f to submit, %.3f to cancel, %.3f for "
           "statistics; %lld cancelled\n",
           (long long)n_requests, held, times.step * 1e3, times.submit * 1e3, times.cancel * 1e3, times.stats * 1e3,
           (long long)t.n_cancelled);
    CHECK(times.step < 0.05 * SLOWNESS);
    CHECK(times.submit < 0.01 * SLOWNESS && times.cancel < 0.01 * SLOWNESS && times.stats < 0.01 * SLOWNESS);
    CHECK(t.n_over == n_requests && t.n_errors == 0);
    CHECK(t.n_cancelled > n_requests / 2 && t.n_tokens >= n_requests - t.n_cancelled && t.n_tokens > 0);
    for (int64_t number = 1; number <= n_requests; number++) {
        if (t.n_last[number] != 1) {
            CHECK_MSG(false, "request %lld ended %d times", (long long)number, t.n_last[number]);
        }
    }
    const qrun_session_stats end = stats_of(session);
    CHECK(end.pages_used == 0 && end.n_waiting == 0 && end.n_running == 0 && end.waiting_bytes == 0);
    CHECK_INT(end.n_finished, n_requests);
    qr_alloc_get_stats(&after);
    CHECK_INT(after.bytes_held, before.bytes_held);
    qr_free(t.n_last);
    qrun_session_destroy(session);
}

/* ---- The limit --------------------------------------------------------------------------------------------------- */

static void test_the_limit_of_waiting_requests(void) {
    static int32_t ids[200];
    for (int32_t i = 0; i < 200; i++) { ids[i] = 3 + i; }
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = 2, params.kv_tokens = 600, params.max_waiting_bytes = 5000;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    run_record record = {.n_done = 0};
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    request.token_ids = ids, request.n_token_ids = 200, request.max_tokens = 2;
    qrun_error error = QRUN_ERROR_INIT;
    int n = 0;
    while (qrun_session_submit(session, &request, NULL, &error) == QRUN_OK) { n++; }
    CHECK_MSG(n >= 3 && n <= 5, "%d requests of 800 bytes of tokens were accepted", n);
    CHECK_INT(error.status, QRUN_ERROR_FULL);
    CHECK_MSG(strstr(error.message, "`max_waiting_bytes` (4.88 KiB)") != NULL, "%s", error.message);
    CHECK_STR(qrun_status_name(error.status), "QRUN_ERROR_FULL");
    CHECK_INT(stats_of(session).n_waiting, n);
    CHECK(stats_of(session).waiting_bytes <= 5000);

    bool has_work;
    CHECK(qrun_session_step(session, &has_work, NULL) == QRUN_OK && has_work); /* two start */
    request.on_event = run_on_event, request.user = &record;
    CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK(record.n_last == 1 && !record.malformed && record.n_errors == 0);

    /* One that alone is larger than the limit may wait where no other does. */
    qrun_session_destroy(session);
    params.max_waiting_bytes = 1;
    session = run_session(model, &params);
    if (session == NULL) { return; }
    CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
    CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_ERROR_FULL);
    uint64_t second = 0;
    CHECK(qrun_session_cancel(session, 1, NULL) == QRUN_OK);
    record = (run_record){.n_done = 0};
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK(record.n_last == 1 && strcmp(record.samples[0].finish_reason, "cancelled") == 0);
    CHECK(qrun_session_submit(session, &request, &second, NULL) == QRUN_OK);
    CHECK_INT(second, 2);
    qrun_session_destroy(session);
}

/* ---- Order ------------------------------------------------------------------------------------------------------- */

typedef struct arrival {
    int n_started;
    uint64_t started[64];
} arrival;

static void note_start(void *user, const qrun_event *event) {
    arrival *a = user;
    if (event->type == QRUN_EVENT_TOKEN && a->n_started < 64) { a->started[a->n_started++] = event->request; }
}

static void test_requests_start_in_order_of_arrival(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = 3, params.kv_tokens = 200, params.max_step_tokens = 16;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    arrival a = {.n_started = 0};
    int32_t ids[10];
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    request.token_ids = ids, request.n_token_ids = 10, request.max_tokens = 1, request.ignore_eos = true;
    request.on_event = note_start, request.user = &a;
    for (int r = 0; r < 40; r++) {
        for (int i = 0; i < 10; i++) { ids[i] = 3 + (r * 31 + i) % 900; }
        CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
    }
    for (uint64_t number = 2; number <= 40; number += 3) {
        CHECK(qrun_session_cancel(session, number, NULL) == QRUN_OK);
        CHECK(qrun_session_cancel(session, number, NULL) == QRUN_OK); /* again */
    }
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK_INT(a.n_started, 27);
    for (int i = 1; i < a.n_started; i++) { CHECK(a.started[i] > a.started[i - 1]); }
    for (int i = 0; i < a.n_started; i++) { CHECK(a.started[i] % 3 != 2); }
    qrun_session_destroy(session);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (argc > 2) { n_requests = strtoll(argv[2], NULL, 10); }
    const qrun_context_params params = {.struct_size = sizeof params, .n_threads = 1, .device = "cpu"};
    check_state.case_name = "main";
    if (n_requests < 1000 || qrun_context_create(&params, &context, NULL) != QRUN_OK) { return 1; }
    model = run_open_fixture(context, "models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
    if (model == NULL) { return 1; }
    CHECK_RUN(test_a_long_queue);
    CHECK_RUN(test_the_limit_of_waiting_requests);
    CHECK_RUN(test_requests_start_in_order_of_arrival);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return check_end();
}
