/* What can happen to requests: random submissions, cancellations and refusals from the stepping thread and others;
 * every accepted request ends exactly once, and the pool is whole afterwards. */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/random.h"
#include "session_run.h"

static qrun_context *context;
static qrun_model *llama, *gemma;

static qrun_session_stats stats_of(qrun_session *session) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
    return stats;
}

static void check_whole(qrun_session *session, int64_t n_finished) {
    const qrun_session_stats stats = stats_of(session);
    CHECK_INT(stats.pages_used, 0);
    CHECK_INT(stats.n_waiting, 0);
    CHECK_INT(stats.n_running, 0);
    CHECK_INT(stats.n_finished, n_finished);
}

static qrun_request_params request_for(const int32_t *ids, int64_t n, int32_t max_tokens, run_record *record) {
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    params.token_ids = ids, params.n_token_ids = n, params.max_tokens = max_tokens, params.ignore_eos = true;
    params.temperature = 1, params.on_event = run_on_event, params.user = record;
    return params;
}

static int32_t id_table[1024]; /* filled by main */
static const int32_t *some_ids(void) { return id_table; }

/* ---- Random schedules from the stepping thread ------------------------------------------------------------------- */

enum { MAX_RECORDS = 220 };

typedef struct schedule {
    uint64_t seed, n_draws;
    qrun_session *session;
    run_record records[MAX_RECORDS];
    uint64_t ids[MAX_RECORDS];
    int n;
} schedule;

static int32_t draw(schedule *s, int32_t below) {
    return (int32_t)(qr_random_uniform(s->seed, 1, s->n_draws++) * below);
}

static void submit_one(schedule *s) {
    if (s->n == MAX_RECORDS) { return; }
    qrun_request_params params =
        request_for(some_ids() + draw(s, 3) * 100, 1 + draw(s, 90), 1 + draw(s, 40), &s->records[s->n]);
    params.n = 1 + (draw(s, 4) == 0 ? draw(s, 4) : 0);
    if (draw(s, 10) == 0) { params.max_tokens = 0; }
    if (draw(s, 20) == 0) { params.on_event = NULL; }
    if (draw(s, 20) == 0) { params.top_p = 2; } /* refused */
    if (qrun_session_submit(s->session, &params, &s->ids[s->n], NULL) != QRUN_OK) { return; }
    if (params.on_event == NULL) { s->records[s->n].n_last = 1; }
    s->n++;
}

static void cancel_one(schedule *s) {
    if (s->n == 0) { return; }
    const int r = draw(s, s->n);
    const bool is_over = s->records[r].n_last > 0;
    qrun_error error = QRUN_ERROR_INIT;
    const qrun_status status = qrun_session_cancel(s->session, s->ids[r], &error);
    CHECK(status == QRUN_OK || status == QRUN_ERROR_NOT_FOUND);
    if (!is_over) { CHECK(status == QRUN_OK); }
}

static void run_schedule(qrun_model *model, uint64_t seed) {
    static schedule s;
    s = (schedule){.seed = seed};
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = 1 + draw(&s, 12), params.max_step_tokens = 1 + draw(&s, 60),
    params.kv_tokens = 160 + draw(&s, 200);
    params.no_prefix_sharing = draw(&s, 4) == 0;
    s.session = run_session(model, &params);
    if (s.session == NULL) { return; }
    bool has_work = true;
    for (int i = 0; i < 20000 && (has_work || i < 600); i++) {
        if (i < 600) {
            if (draw(&s, 3) == 0) { submit_one(&s); }
            if (draw(&s, 6) == 0) { cancel_one(&s); }
        }
        qrun_error error = QRUN_ERROR_INIT;
        CHECK_MSG(qrun_session_step(s.session, &has_work, &error) == QRUN_OK, "seed %llu: %s", (unsigned long long)seed,
                  error.message);
        if (check_state.n_failures_in_case > 0) { break; }
    }
    CHECK_MSG(!has_work, "seed %llu: did not end", (unsigned long long)seed);
    for (int r = 0; r < s.n; r++) {
        CHECK_MSG(s.records[r].n_last == 1 && !s.records[r].malformed && s.records[r].n_errors == 0,
                  "seed %llu: request %d", (unsigned long long)seed, r);
    }
    check_whole(s.session, s.n);
    qrun_session_destroy(s.session);
}

static void test_random_schedules(void) {
    const int n_seeds = check_repeats(10, 2);
    for (int seed = 1; seed <= n_seeds && check_state.n_failures_in_case == 0; seed++) {
        run_schedule(seed % 2 == 0 ? llama : gemma, (uint64_t)seed);
    }
    printf("  seeds 1 to %d\n", n_seeds);
}

/* ---- From other threads ------------------------------------------------------------------------------------------ */

enum { N_CLIENTS = 3, PER_CLIENT = 40 };

typedef struct client {
    qrun_session *session;
    uint64_t seed;
    run_record records[PER_CLIENT];
    atomic_int n_busy;
} client;

static void *run_client(void *arg) {
    client *c = arg;
    for (uint64_t i = 0; i < PER_CLIENT; i++) {
        const double u = qr_random_uniform(c->seed, 2, i);
        const qrun_request_params params =
            request_for(some_ids() + (int)(u * 50), 1 + (int)(u * 60), 1 + (int)(u * 1000) % 12, &c->records[i]);
        uint64_t id = 0;
        CHECK(qrun_session_submit(c->session, &params, &id, NULL) == QRUN_OK);
        if (i % 3 == 0) { (void)qrun_session_cancel(c->session, id, NULL); }
        (void)stats_of(c->session);
        if (i % 5 == 0) { /* a second stepper may be sent away, and else does a step */
            bool has_work;
            const qrun_status status = qrun_session_step(c->session, &has_work, NULL);
            CHECK(status == QRUN_OK || status == QRUN_ERROR_BUSY);
            if (status == QRUN_ERROR_BUSY) { atomic_fetch_add(&c->n_busy, 1); }
        }
    }
    return NULL;
}

static void test_many_threads(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = 8, params.max_step_tokens = 32, params.kv_tokens = 220;
    qrun_session *session = run_session(gemma, &params);
    if (session == NULL) { return; }
    static client clients[N_CLIENTS];
    pthread_t threads[N_CLIENTS];
    for (int i = 0; i < N_CLIENTS; i++) {
        memset(&clients[i], 0, sizeof clients[i]);
        clients[i].session = session, clients[i].seed = (uint64_t)i;
        CHECK(pthread_create(&threads[i], NULL, run_client, &clients[i]) == 0);
    }
    for (int idle = 0; idle < 40;) {
        struct pollfd ready = {.fd = qrun_session_event_descriptor(session), .events = POLLIN};
        idle = poll(&ready, 1, 5) == 0 && stats_of(session).n_finished == N_CLIENTS * PER_CLIENT ? 40 : 0;
        const qrun_status status = qrun_session_run(session, NULL);
        CHECK(status == QRUN_OK || status == QRUN_ERROR_BUSY);
    }
    for (int i = 0; i < N_CLIENTS; i++) { pthread_join(threads[i], NULL); }
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    for (int i = 0; i < N_CLIENTS; i++) {
        for (int r = 0; r < PER_CLIENT; r++) {
            CHECK_MSG(clients[i].records[r].n_last == 1 && !clients[i].records[r].malformed, "client %d, request %d", i,
                      r);
        }
    }
    check_whole(session, N_CLIENTS * PER_CLIENT);
    qrun_session_destroy(session);
}

/* Two sessions of one model, stepped by two threads at once. */
static void *run_session_alone(void *arg) {
    qrun_session *session = arg;
    static const int32_t lengths[] = {40, 3, 77, 20};
    for (int i = 0; i < 4; i++) {
        run_record record = {.n_done = 0};
        const qrun_request_params params = request_for(some_ids(), lengths[i], 10, &record);
        CHECK(qrun_session_submit(session, &params, NULL, NULL) == QRUN_OK);
        CHECK(qrun_session_run(session, NULL) == QRUN_OK);
        CHECK_INT(record.samples[0].n_tokens, 10);
    }
    return NULL;
}

static void test_two_sessions_at_once(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 200;
    qrun_session *sessions[2] = {run_session(llama, &params), run_session(llama, &params)};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) { CHECK(pthread_create(&threads[i], NULL, run_session_alone, sessions[i]) == 0); }
    for (int i = 0; i < 2; i++) { pthread_join(threads[i], NULL); }
    for (int i = 0; i < 2; i++) {
        check_whole(sessions[i], 4);
        qrun_session_destroy(sessions[i]);
    }
}

/* ---- What callbacks may do --------------------------------------------------------------------------------------- */

typedef struct busybody {
    qrun_session *session;
    int depth, n_last, n_tokens;
    uint64_t victim;
} busybody;

static void meddle(void *user, const qrun_event *event) {
    busybody *b = user;
    b->n_last += event->is_last;
    b->n_tokens += event->type == QRUN_EVENT_TOKEN;
    bool has_work;
    CHECK(qrun_session_step(b->session, &has_work, NULL) == QRUN_ERROR_BUSY);
    if (b->n_tokens == 2) { CHECK(qrun_session_cancel(b->session, b->victim, NULL) == QRUN_OK); }
    if (event->type == QRUN_EVENT_TOKEN && b->n_tokens == 5) {
        CHECK(qrun_session_cancel(b->session, event->request, NULL) == QRUN_OK);
    }
    if (event->is_last && b->depth-- > 0) {
        qrun_request_params params = request_for(some_ids(), 5, 3, NULL);
        params.on_event = meddle, params.user = b;
        CHECK(qrun_session_submit(b->session, &params, NULL, NULL) == QRUN_OK);
    }
}

static void test_callbacks_submit_and_cancel(void) {
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    session_params.kv_tokens = 300;
    qrun_session *session = run_session(llama, &session_params);
    if (session == NULL) { return; }
    run_record victim = {.n_done = 0};
    busybody b = {.session = session, .depth = 3};
    qrun_request_params params = request_for(some_ids(), 20, 50, &victim);
    CHECK(qrun_session_submit(session, &params, &b.victim, NULL) == QRUN_OK);
    params.on_event = meddle, params.user = &b;
    CHECK(qrun_session_submit(session, &params, NULL, NULL) == QRUN_OK);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK_INT(b.n_last, 4);
    CHECK_STR(victim.samples[0].finish_reason, "cancelled");
    CHECK(victim.n_last == 1 && victim.samples[0].n_tokens < 10);
    check_whole(session, 5);
    qrun_session_destroy(session);
}

static void cancel_when_over(void *user, const qrun_event *event) {
    if (event->is_last) { CHECK(qrun_session_cancel(user, event->request, NULL) == QRUN_ERROR_NOT_FOUND); }
}

static void test_a_request_that_is_over_is_not_found(void) {
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    session_params.kv_tokens = 300;
    qrun_session *session = run_session(llama, &session_params);
    if (session == NULL) { return; }
    qrun_request_params params = request_for(some_ids(), 20, 5, NULL);
    params.on_event = cancel_when_over, params.user = session;
    uint64_t id = 0;
    CHECK(qrun_session_submit(session, &params, &id, NULL) == QRUN_OK);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK(qrun_session_cancel(session, id, NULL) == QRUN_ERROR_NOT_FOUND);
    CHECK(qrun_session_cancel(session, 999, NULL) == QRUN_ERROR_NOT_FOUND);
    qrun_session_destroy(session);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(qrun_session *session, const qrun_request_params *params, qrun_status expected, const char *reason) {
    qrun_error error = QRUN_ERROR_INIT;
    const qrun_status status = qrun_session_submit(session, params, NULL, &error);
    CHECK_MSG(status == expected && strstr(error.message, reason) != NULL, "\"%s\" expected, got %d \"%s\"", reason,
              (int)status, error.message);
}

static void test_refusals(void) {
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    session_params.kv_tokens = 96, session_params.max_step_tokens = 16, session_params.max_sequences = 4;
    qrun_session *session = run_session(llama, &session_params);
    if (session == NULL) { return; }
    qrun_request_params params = request_for(some_ids(), 300, 1, NULL);
    refuse(session, &params, QRUN_ERROR_ARGUMENT,
           "the prompt has 300 tokens and this model's context is 256; shorten it");
    params.n_token_ids = 257;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "context is 256");
    params.n_token_ids = 48, params.max_tokens = 50;
    refuse(session, &params, QRUN_ERROR_MEMORY, "need 97 tokens of K/V cache and the pool holds 96");
    params.max_tokens = 0, params.max_length = 48;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "prompt and answer together may have 48 (max_length); shorten it");
    params.max_length = 0;
    params.n_token_ids = 90, params.max_tokens = 100;
    refuse(session, &params, QRUN_ERROR_MEMORY, "the pool holds 96");
    params.n_token_ids = 200, params.max_tokens = 0;
    refuse(session, &params, QRUN_ERROR_MEMORY, "the pool holds 96");
    params = request_for(some_ids(), 0, 1, NULL);
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "empty");
    const int32_t outside[] = {5, 1003}, negative[] = {-1};
    params = request_for(outside, 2, 1, NULL);
    refuse(session, &params, QRUN_ERROR_INPUT, "token 1003 at position 1");
    params = request_for(negative, 1, 1, NULL);
    refuse(session, &params, QRUN_ERROR_INPUT, "token -1");
    params = request_for(some_ids(), 5, 1, NULL);
    params.prompt = "and a text";
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "it has 2");
    params.token_ids = NULL;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "`n_token_ids=5`, but `token_ids` is NULL");
    params.n_token_ids = 0;
    refuse(session, &params, QRUN_ERROR_UNSUPPORTED, "no tokenizer.json");
    params.prompt = NULL;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "it has 0");
    params = request_for(some_ids(), 5, 1, NULL);
    params.temperature = NAN;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "temperature");
    params.temperature = 1, params.n = 100000;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "n must be");
    params.n = 1, params.n_stop = 1;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "stop");
    const char *const bad[] = {"\xC3"};
    params.stop = bad;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "UTF-8");
    params = request_for(some_ids(), 5, 1, NULL);
    params.n_answer_forms = 1;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "`answer_forms` is NULL");
    const qrun_answer_form forms[] = {{.schema = "{}"}, {.value = (qrun_form_value)2}};
    params.answer_forms = forms, params.n_answer_forms = 2;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "`value=2` of `answer_forms[1]`");
    params = request_for(some_ids(), 5, 1, NULL);
    params.struct_size = 8;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "size");

    /* What just fits runs to its end. The last token needs no K/V. */
    run_record record = {.n_done = 0};
    params = request_for(some_ids(), 48, 49, &record);
    CHECK(qrun_session_submit(session, &params, NULL, NULL) == QRUN_OK);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK_INT(record.samples[0].n_tokens, 49);
    CHECK_STR(record.samples[0].finish_reason, "length");
    run_record open_ended = {.n_done = 0};
    params = request_for(some_ids(), 10, 0, &open_ended);
    CHECK(qrun_session_submit(session, &params, NULL, NULL) == QRUN_OK);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK_INT(open_ended.samples[0].n_tokens, 87);
    run_record bounded = {.n_done = 0};
    params = request_for(some_ids(), 10, 0, &bounded);
    params.max_length = 15;
    CHECK(qrun_session_submit(session, &params, NULL, NULL) == QRUN_OK);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK_INT(bounded.samples[0].n_tokens, 5);
    check_whole(session, 3);
    qrun_session_destroy(session);
}

/* The token after the last position of the context is produced, as transformers does: it is never read. */
static void test_the_last_position_gives_a_token(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 400, params.max_step_tokens = 7;
    qrun_session *long_session = run_session(llama, &params);
    params.context_tokens = 11;
    qrun_session *session = run_session(llama, &params);
    if (session == NULL || long_session == NULL) { return; }
    for (int32_t n_prompt = 1; n_prompt <= 11; n_prompt++) {
        static const int32_t most[] = {0, 30};
        run_record expected = {.n_done = 0};
        qrun_request_params request = request_for(some_ids() + n_prompt, n_prompt, 12 - n_prompt, &expected);
        request.n = 2;
        CHECK(qrun_session_submit(long_session, &request, NULL, NULL) == QRUN_OK);
        CHECK(qrun_session_run(long_session, NULL) == QRUN_OK);
        for (int i = 0; i < 2; i++) {
            run_record record = {.n_done = 0};
            request.max_tokens = most[i], request.user = &record;
            CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
            CHECK(qrun_session_run(session, NULL) == QRUN_OK);
            CHECK_INT(record.samples[0].n_tokens, 12 - n_prompt);
            for (int k = 0; k < 2; k++) {
                CHECK(run_samples_are_equal(&record.samples[k], &expected.samples[k], "at the context's end"));
            }
        }
    }
    qrun_request_params request = request_for(some_ids(), 12, 1, NULL);
    refuse(session, &request, QRUN_ERROR_ARGUMENT, "the prompt has 12 tokens and the context is 11");
    check_whole(session, 22);
    qrun_session_destroy(session);
    qrun_session_destroy(long_session);
}

static void test_sessions_that_cannot_be(void) {
    static const struct {
        const char *what;
        qrun_session_params params;
    } cases[] = {
        {"a budget below the weights", {.memory_bytes = 1000}},
        {"a pool without bounds", {.kv_tokens = INT64_C(1) << 60}},
        {"a pool of 2^36 tokens", {.kv_tokens = INT64_C(1) << 36}},
        {"a context beyond the model's", {.context_tokens = 257}},
        {"negative sequences", {.max_sequences = -1}},
        {"negative tokens", {.kv_tokens = -1}},
        {"a negative length", {.sequence_tokens = -1}},
        {"negative waiting bytes", {.max_waiting_bytes = -1}},
        {"a step without bounds", {.max_step_tokens = INT32_MAX, .memory_bytes = 1 << 30}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qrun_session_params params = cases[i].params;
        params.struct_size = sizeof params;
        qrun_session *session = NULL;
        qrun_error error = QRUN_ERROR_INIT;
        CHECK_MSG(qrun_session_create(llama, &params, &session, &error) != QRUN_OK && error.message[0] != '\0',
                  "%s was accepted", cases[i].what);
        qrun_session_destroy(session);
    }
    const int64_t pools[] = {INT64_C(1) << 60, INT64_MAX};
    for (int i = 0; i < 2; i++) {
        qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
        qrun_session *session = NULL;
        qrun_error error = QRUN_ERROR_INIT;
        params.kv_tokens = pools[i];
        CHECK_INT(qrun_session_create(llama, &params, &session, &error), QRUN_ERROR_ARGUMENT);
        CHECK_MSG(strstr(error.message, "give a smaller `kv_tokens`") != NULL, "%s", error.message);
    }
}

static void test_evaluation_needs_an_idle_session(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 200;
    qrun_session *session = run_session(llama, &params);
    if (session == NULL) { return; }
    const qrun_eval_params eval = QRUN_EVAL_PARAMS_INIT;
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    run_record record = {.n_done = 0};
    const qrun_request_params request = request_for(some_ids(), 30, 20, &record);
    CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
    CHECK(qrun_session_eval_tokens(session, some_ids(), 50, &eval, &result, NULL) == QRUN_ERROR_BUSY);
    bool has_work;
    CHECK(qrun_session_step(session, &has_work, NULL) == QRUN_OK && has_work);
    CHECK(qrun_session_eval_tokens(session, some_ids(), 50, &eval, &result, NULL) == QRUN_ERROR_BUSY);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK(qrun_session_eval_tokens(session, some_ids(), 50, &eval, &result, NULL) == QRUN_OK && result.n_tokens == 49);
    CHECK(qrun_session_eval_tokens(session, some_ids(), 250, &eval, &result, NULL) == QRUN_ERROR_ARGUMENT);
    check_whole(session, 1);
    qrun_session_destroy(session);
}

static void test_destroy_with_work_left(void) {
    for (int steps = 0; steps < 6; steps++) {
        qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
        params.max_sequences = 3, params.kv_tokens = 200, params.max_step_tokens = 20;
        qrun_session *session = run_session(gemma, &params);
        if (session == NULL) { return; }
        static run_record records[10];
        memset(records, 0, sizeof records);
        for (int r = 0; r < 10; r++) {
            if (r == 8) {
                bool has_work;
                for (int i = 0; i < steps; i++) { CHECK(qrun_session_step(session, &has_work, NULL) == QRUN_OK); }
            }
            qrun_request_params request = request_for(some_ids() + r, 30, 20, &records[r]);
            request.n = 1 + r % 3;
            CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
        }
        qrun_session_destroy(session);
        for (int r = 0; r < 10; r++) { CHECK_INT(records[r].n_last, 0); } /* without events */
    }
}

static void test_an_idle_session_has_no_work(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 100;
    qrun_session *session = run_session(llama, &params);
    if (session == NULL) { return; }
    bool has_work = true;
    CHECK(qrun_session_step(session, &has_work, NULL) == QRUN_OK && !has_work);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    struct pollfd ready = {.fd = qrun_session_event_descriptor(session), .events = POLLIN};
    CHECK_INT(poll(&ready, 1, 0), 0);
    const qrun_request_params request = request_for(some_ids(), 3, 1, NULL);
    qrun_request_params silent = request;
    silent.on_event = NULL;
    CHECK(qrun_session_submit(session, &silent, NULL, NULL) == QRUN_OK);
    CHECK_INT(poll(&ready, 1, 0), 1);
    CHECK_INT(stats_of(session).n_waiting, 1);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK_INT(poll(&ready, 1, 0), 0);
    qrun_session_destroy(session);
}

/* ---- Long texts -------------------------------------------------------------------------------------------------- */

/* Texts beyond the context cost memory in proportion to the context: a word of a megabyte is not read to its end, and
 * 40 MB are not read at all. */
static void test_a_text_beyond_the_context(void) {
    enum { LONG_BYTES = 1 << 20, FAR_TOO_LONG_BYTES = 40 << 20, MOST_BYTES = 6 << 20 };
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = NULL;
    qr_alloc_stats before, after;
    model_params.path = QRUN_SOURCE_DIR "/examples/model";
    CHECK_MSG(qrun_model_open(context, &model_params, &model, &error) == QRUN_OK, "%s", error.message);
    REQUIRE(model != NULL);
    session_params.kv_tokens = 64;
    qrun_session *session = run_session(model, &session_params);
    char *text = qr_alloc(FAR_TOO_LONG_BYTES);
    REQUIRE(session != NULL && text != NULL);
    memset(text, 'a', FAR_TOO_LONG_BYTES);
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    qr_alloc_get_stats(&before);
    qr_alloc_reset_peak();
    params.prompt = text, params.prompt_bytes = LONG_BYTES;
    refuse(session, &params, QRUN_ERROR_ARGUMENT,
           "the prompt has more than the 512 tokens of this model's context; shorten it");
    params.prompt_bytes = FAR_TOO_LONG_BYTES;
    refuse(session, &params, QRUN_ERROR_ARGUMENT,
           "the prompt has 41943040 bytes, far more than this model's context of 512 tokens holds; shorten it");
    text[FAR_TOO_LONG_BYTES - 1] = '\0';
    params.prompt = NULL, params.messages_json = text;
    refuse(session, &params, QRUN_ERROR_ARGUMENT, "the prompt has 41943039 bytes, far more");
    qr_alloc_get_stats(&after);
    CHECK_MSG(after.bytes_peak - before.bytes_held < MOST_BYTES, "%lld bytes",
              (long long)(after.bytes_peak - before.bytes_held));
    qr_free(text);
    qrun_session_destroy(session);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    const qrun_context_params params = {.struct_size = sizeof params, .n_threads = 2};
    check_state.case_name = "main";
    if (qrun_context_create(&params, &context, NULL) != QRUN_OK) { return 1; }
    llama = run_open_fixture(context, "models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
    gemma = run_open_fixture(context, "models/gemma2", QRUN_QUANT_INT8, QRUN_DTYPE_BF16);
    if (llama == NULL || gemma == NULL) { return 1; }
    for (int i = 0; i < 1024; i++) { id_table[i] = 3 + i * 7 % 997; }
    CHECK_RUN(test_an_idle_session_has_no_work);
    CHECK_RUN(test_random_schedules);
    CHECK_RUN(test_many_threads);
    CHECK_RUN(test_two_sessions_at_once);
    CHECK_RUN(test_callbacks_submit_and_cancel);
    CHECK_RUN(test_a_request_that_is_over_is_not_found);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_a_text_beyond_the_context);
    CHECK_RUN(test_the_last_position_gives_a_token);
    CHECK_RUN(test_sessions_that_cannot_be);
    CHECK_RUN(test_evaluation_needs_an_idle_session);
    CHECK_RUN(test_destroy_with_work_left);
    qrun_model_destroy(llama);
    qrun_model_destroy(gemma);
    qrun_context_destroy(context);
    return check_end();
}
