/* Drafts change no bit: tokens, log probabilities, texts and ends are those of a session without them, whatever is
 * drafted and whatever surrounds it. And they save steps where the text repeats itself. */
#include "check.h"

#include "base/random.h"
#include "runtime/generate/session.h"
#include "runtime/model/rope.h"
#include "session_run.h"
#include "temporary.h"

enum { N_REQUESTS = 24, MAX_PROMPT = 120, BLOCK = 11 };

static qrun_context *context;

/* ---- A crowd that gives drafts every chance ---------------------------------------------------------------------- */

typedef struct crowd {
    int32_t ids[N_REQUESTS][MAX_PROMPT];
    qrun_request_params params[N_REQUESTS];
} crowd;

static uint64_t n_random;
static int32_t random_below(int32_t below) { return (int32_t)(qr_random_uniform(5, 0, n_random++) * below); }

/* One block of tokens again and again: what comes next is plain to a lookup, and not what a random model says. A third
 * changes a token of each block, so that matches are short. */
static void fill_prompt(int32_t *ids, int32_t n, int r) {
    for (int32_t i = 0; i < n; i++) { ids[i] = 3 + ((i % BLOCK) * 37 + r % 4) % 900; }
    for (int32_t i = 0; r % 3 == 0 && i < n; i += BLOCK) { ids[i] = 3 + random_below(900); }
}

static void make_crowd(crowd *c, int32_t longest) {
    static const char rules[] = "{\"no_repeat_ngram_size\": 4, \"min_new_tokens\": 6, \"suppress_tokens\": [7, 9]}";
    n_random = 0;
    for (int r = 0; r < N_REQUESTS; r++) {
        const int32_t room = longest - 60 < MAX_PROMPT ? longest - 60 : MAX_PROMPT;
        const int32_t n = r == 5 ? 1 : 2 + random_below(room - 2);
        fill_prompt(c->ids[r], n, r);
        qrun_request_params *p = &c->params[r];
        *p = (qrun_request_params)QRUN_REQUEST_PARAMS_INIT;
        p->token_ids = c->ids[r], p->n_token_ids = n, p->max_tokens = 20 + random_below(40);
        p->logprobs = r % 4 == 1 ? 0 : r % 4 == 2 ? 20 : -1;
        p->ignore_eos = r % 5 != 0;
        p->on_event = run_on_event;
        if (r % 3 == 1) { p->temperature = 0.2F; }
        if (r % 6 == 2) { p->temperature = 0.9F, p->top_p = 0.8F, p->top_k = 50, p->min_p = 0.01F; }
        if (r % 7 == 3) { p->repetition_penalty = 1.2F, p->frequency_penalty = 0.1F; }
        if (r % 8 == 4) { p->generation_json = rules; }
        if (r % 9 == 6) { p->n = 4, p->temperature = 0.4F; }
    }
}

/* ---- Running it -------------------------------------------------------------------------------------------------- */

typedef struct way {
    const char *what;
    const char *speculate;
    int32_t max_sequences, max_step_tokens;
    int64_t kv_tokens;
    bool no_sharing, eager, all_at_once, preempts;
} way;

static const way ways[] = {
    {"alone, eager", "ngram", 1, 512, 512, true, true, false, false},
    {"alone, by default", NULL, 1, 512, 512, false, false, false, false},
    {"four at once, eager", "ngram", 4, 64, 4000, false, true, true, false},
    {"in chunks of 5, eager", "ngram", 3, 5, 4000, true, true, true, false},
    {"more than get drafts", "ngram", 24, 512, 8000, false, true, true, false},
    {"preempted, eager", "ngram", 8, 64, 176, false, true, true, true},
};

/* eager: as if drafts cost next to nothing, so that there are as many and as bad ones as can be. */
static void run_steps(qrun_session *session, bool eager) {
    qrun_error error = QRUN_ERROR_INIT;
    for (bool has_work = true; has_work && check_state.n_failures_in_case == 0;) {
        if (eager) { session->draft_costs = (qr_draft_costs){.row_cost = 0.01}; }
        CHECK_MSG(qrun_session_step(session, &has_work, &error) == QRUN_OK, "%s", error.message);
        for (int32_t i = 0; i < session->n_running; i++) {
            const qr_sequence *sequence = session->running[i];
            CHECK(sequence->kv.n_tokens <= sequence->n_tokens - (sequence->request->started ? 1 : 0));
        }
    }
}

static qrun_session_stats run_crowd(qrun_model *model, qrun_kv kv, const way *w, const crowd *c, run_record *records) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    params.kv = kv, params.max_sequences = w->max_sequences, params.max_step_tokens = w->max_step_tokens;
    params.kv_tokens = w->kv_tokens, params.no_prefix_sharing = w->no_sharing, params.speculate = w->speculate;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return stats; }
    memset(records, 0, N_REQUESTS * sizeof *records);
    for (int r = 0; r < N_REQUESTS; r++) {
        qrun_request_params request = c->params[r];
        request.user = &records[r];
        CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
        if (!w->all_at_once) { run_steps(session, w->eager); }
    }
    run_steps(session, w->eager);
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
    CHECK_INT(stats.pages_used, 0);
    qrun_session_destroy(session);
    return stats;
}

static void compare(const run_record *records, const run_record *plain, const char *what) {
    for (int r = 0; r < N_REQUESTS; r++) {
        char name[256];
        snprintf(name, sizeof name, "%s, request %d", what, r);
        CHECK_MSG(records[r].n_last == 1 && !records[r].malformed && records[r].n_errors == 0, "%s: its events", name);
        for (int s = 0; s < plain[r].n_done; s++) {
            if (!run_samples_are_equal(&records[r].samples[s], &plain[r].samples[s], name)) { return; }
        }
    }
}

typedef struct model_case {
    const char *folder;
    qrun_quant quant;
    qrun_dtype dtype;
    qrun_kv kv;
    const char *adapter; /* of every other request; NULL: none */
} model_case;

static void run_model(const model_case *m) {
    static const way plain_way = {"plain", "off", 1, 512, 512, true, false, false, false};
    static crowd c;
    static run_record plain[N_REQUESTS], records[N_REQUESTS];
    qrun_model *model = run_open_fixture(context, m->folder, m->quant, m->dtype);
    REQUIRE(model != NULL);
    make_crowd(&c, (int32_t)model->shape.context_tokens);
    if (m->adapter != NULL) {
        char path[512];
        qrun_adapter *adapter = NULL;
        snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/%s", m->adapter);
        CHECK(qrun_adapter_open(model, path, NULL, &adapter, NULL) == QRUN_OK);
        for (int r = 0; r < N_REQUESTS; r += 2) { c.params[r].adapter = adapter; }
    }
    const qrun_session_stats without = run_crowd(model, m->kv, &plain_way, &c, plain);
    CHECK_INT(without.draft_tokens, 0);
    for (size_t w = 0; w < sizeof ways / sizeof *ways && check_state.n_failures_in_case == 0; w++) {
        char what[200];
        snprintf(what, sizeof what, "%s, kv %d, %s", m->folder, m->kv, ways[w].what);
        const qrun_session_stats stats = run_crowd(model, m->kv, &ways[w], &c, records);
        compare(records, plain, what);
        CHECK_INT(stats.completion_tokens, without.completion_tokens);
        if (ways[w].eager) {
            CHECK_MSG(stats.accepted_draft_tokens > 0 && stats.accepted_draft_tokens < stats.draft_tokens,
                      "%s: %lld of %lld drafts were right", what, (long long)stats.accepted_draft_tokens,
                      (long long)stats.draft_tokens);
        }
        if (w == 0) { CHECK_INT(stats.steps, without.steps - stats.accepted_draft_tokens); }
        CHECK_MSG(!ways[w].preempts || stats.n_preemptions > 0, "%s: nothing was preempted", what);
    }
    qrun_model_destroy(model);
}

static void test_llama_f32(void) {
    run_model(&(model_case){"models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL});
}
static void test_llama_nf4_dq_with_an_adapter(void) {
    run_model(&(model_case){"models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, "adapters/llama-lora"});
}
static void test_llama_f16_kv_int8(void) {
    run_model(&(model_case){"models/llama", QRUN_QUANT_F16, QRUN_DTYPE_F16, QRUN_KV_INT8, NULL});
}
static void test_gemma2_windows(void) {
    run_model(&(model_case){"models/gemma2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL});
}
static void test_gemma3_windows_kv_int8(void) {
    run_model(&(model_case){"models/gemma3", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL});
}
static void test_mistral_window_int8(void) {
    run_model(&(model_case){"models/mistral", QRUN_QUANT_INT8, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL});
}
static void test_gpt2(void) {
    run_model(&(model_case){"models/gpt2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL});
}
/* Rotary frequencies change where a sequence outgrows a length: drafts must not reach across. */
static void test_dynamic_rope(void) {
    run_model(&(model_case){"models/llama-dynamic", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL});
}
static void test_longrope(void) {
    run_model(&(model_case){"models/phi3-longrope", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL});
}

/* ---- Drafts of a model ------------------------------------------------------------------------------------------- */

/* A model that drafts for itself is right but for penalties and rules, which it does not know: so what it remembers of
 * accepted and rejected drafts is right too. Other models hardly ever are. Windows, other rotary rules and other shapes
 * of the draft model do not matter. */
static void run_with_draft(const model_case *m, const char *draft, double least_right) {
    static const way plain_way = {"plain", "off", 1, 512, 512, true, false, false, false};
    static crowd c;
    static run_record plain[N_REQUESTS], records[N_REQUESTS];
    char path[512];
    snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/%s", draft);
    const way draft_ways[] = {
        {"alone", path, 1, 512, 512, true, true, false, false},
        {"alone, by default", path, 1, 512, 512, false, false, false, false},
        {"five at once", path, 5, 64, 4000, false, true, true, false},
        {"in chunks of 5, ten at once", path, 10, 5, 4000, true, true, true, false},
        {"preempted", path, 8, 64, 176, false, true, true, true},
    };
    qrun_model *model = run_open_fixture(context, m->folder, m->quant, m->dtype);
    REQUIRE(model != NULL);
    make_crowd(&c, (int32_t)model->shape.context_tokens);
    const qrun_session_stats without = run_crowd(model, m->kv, &plain_way, &c, plain);
    for (size_t w = 0; w < sizeof draft_ways / sizeof *draft_ways && check_state.n_failures_in_case == 0; w++) {
        char what[200];
        snprintf(what, sizeof what, "%s drafts for %s, %s", draft, m->folder, draft_ways[w].what);
        const qrun_session_stats stats = run_crowd(model, m->kv, &draft_ways[w], &c, records);
        compare(records, plain, what);
        CHECK_MSG(stats.draft_tokens > 0, "%s: no drafts", what);
        CHECK_MSG((double)stats.accepted_draft_tokens >= least_right * (double)stats.draft_tokens,
                  "%s: %lld of %lld drafts were right", what, (long long)stats.accepted_draft_tokens,
                  (long long)stats.draft_tokens);
        if (w == 0) { CHECK_INT(stats.steps, without.steps - stats.accepted_draft_tokens); }
    }
    qrun_model_destroy(model);
}

static void test_a_model_that_drafts(void) {
    static const model_case llama = {"models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL};
    static const model_case gemma2 = {"models/gemma2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL};
    static const model_case longrope = {"models/phi3-longrope", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL};
    static const model_case itself = {"models/llama-nf4-dq", QRUN_QUANT_AUTO, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL};
    run_with_draft(&itself, "models/llama-nf4-dq", 0.75);
    run_with_draft(&llama, "models/llama", 0.05);
    run_with_draft(&gemma2, "models/gemma2", 0.05);
    run_with_draft(&llama, "models/gemma3", 0);
    run_with_draft(&longrope, "models/mistral", 0);
}

/* ---- Steps that a backend records -------------------------------------------------------------------------------- */

/* A backend that records: what is issued in between runs at once, and nothing is kept, so every step is issued. */
static int64_t n_recorded;

static qrun_status begin_recording(qr_backend *backend, qr_error *err) {
    (void)backend, (void)err;
    n_recorded++;
    return QRUN_OK;
}

static qrun_status end_recording(qr_backend *backend, qr_recording **recording, qr_error *err) {
    (void)backend, (void)err;
    if (recording != NULL) { *recording = NULL; }
    return QRUN_OK;
}

/* There every draft is a sequence of the batch, and the batch is padded. */
static void test_drafts_in_recorded_steps(void) {
    qr_backend *backend = context->backend;
    const int64_t n_before = n_recorded;
    REQUIRE(backend->record_begin == NULL);
    backend->record_begin = begin_recording;
    backend->record_end = end_recording;
    run_model(&(model_case){"models/llama", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, "adapters/llama-dora"});
    run_model(&(model_case){"models/gemma3", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL});
    run_with_draft(&(model_case){"models/llama-nf4-dq", QRUN_QUANT_AUTO, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL},
                   "models/llama-nf4-dq", 0.75);
    backend->record_begin = NULL;
    backend->record_end = NULL;
    CHECK(n_recorded > n_before + 100);
}

/* ---- Failing allocations ----------------------------------------------------------------------------------------- */

/* An allocation of the draft model that fails is an error of the session, and loses nothing. */
static void test_a_draft_model_without_memory(void) {
    qrun_model *model = run_open_fixture(context, "models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
    REQUIRE(model != NULL);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.speculate = QRUN_SOURCE_DIR "/tests/fixtures/models/llama-nf4";
    params.kv_tokens = 400, params.max_sequences = 4, params.prefix_cache_bytes = 1 << 20;
    int n_failed = 0;
    for (int64_t n = 1; check_state.n_failures_in_case == 0; n++) {
        qr_alloc_stats before, after;
        size_t device_before, device_after, peak;
        qrun_session *session = NULL;
        qrun_error error = QRUN_ERROR_INIT;
        qr_alloc_get_stats(&before);
        context->backend->memory_held(context->backend, &device_before, &peak);
        qr_alloc_fail_at(n);
        const qrun_status status = qrun_session_create(model, &params, &session, &error);
        qr_alloc_fail_at(0);
        qr_alloc_get_stats(&after);
        const bool fired = after.n_allocations - before.n_allocations >= n;
        qrun_session_destroy(session);
        qr_alloc_get_stats(&after);
        context->backend->memory_held(context->backend, &device_after, &peak);
        CHECK_MSG(after.bytes_held == before.bytes_held && device_after == device_before,
                  "allocation %lld failed, and memory was lost", (long long)n);
        CHECK(status == QRUN_OK || status == QRUN_ERROR_MEMORY);
        n_failed += status != QRUN_OK;
        if (!fired) { break; }
    }
    CHECK(n_failed > 20);
    qrun_model_destroy(model);
}

/* ---- Stop texts, and cancelling ---------------------------------------------------------------------------------- */

static temporary_folder folder;

static void copy_file(const char *from, const char *name) {
    char *bytes = NULL;
    size_t n_bytes = 0;
    qr_error err = {0};
    CHECK_MSG(qr_file_read(from, SIZE_MAX, &bytes, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    temporary_write(&folder, name, bytes, n_bytes);
    qr_free(bytes);
}

/* A model with a tokenizer. */
static qrun_model *open_with_text(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    copy_file(QRUN_SOURCE_DIR "/tests/fixtures/models/gemma2/config.json", "config.json");
    copy_file(QRUN_SOURCE_DIR "/tests/fixtures/models/gemma2/model.safetensors", "model.safetensors");
    copy_file(QRUN_SOURCE_DIR "/tests/fixtures/tokenizers/llama2/tokenizer.json", "tokenizer.json");
    params.path = folder.path, params.quant = QRUN_QUANT_BF16;
    CHECK_MSG(qrun_model_open(context, &params, &model, &error) == QRUN_OK, "%s", error.message);
    return model;
}

/* What an answer says, for the choice of a stop text that appears in it. */
typedef struct spoken {
    char text[4096];
    size_t n;
    run_record record;
} spoken;

static void on_spoken(void *user, const qrun_event *event) {
    spoken *s = user;
    if (s->n + event->text_bytes < sizeof s->text) {
        memcpy(s->text + s->n, event->text, event->text_bytes);
        s->n += event->text_bytes;
    }
    run_on_event(&s->record, event);
}

static int64_t speak(qrun_model *model, const char *speculate, const char *const *stops, int32_t n_stops, spoken *s) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    params.max_sequences = 1, params.kv_tokens = 400, params.speculate = speculate;
    qrun_session *session = run_session(model, &params);
    memset(s, 0, sizeof *s);
    if (session == NULL) { return 0; }
    request.prompt = "One two three four five, one two three four five, one two three", request.max_tokens = 120;
    request.ignore_eos = true, request.stop = stops, request.n_stop = n_stops, request.on_event = on_spoken;
    request.user = s;
    CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
    run_steps(session, true);
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK && stats.pages_used == 0);
    qrun_session_destroy(session);
    return stats.accepted_draft_tokens;
}

static void test_stop_texts(void) {
    static spoken plain, drafted;
    qrun_model *model = open_with_text();
    REQUIRE(model != NULL);
    (void)speak(model, "off", NULL, 0, &plain);
    CHECK(speak(model, "ngram", NULL, 0, &drafted) > 0);
    run_samples_are_equal(&drafted.record.samples[0], &plain.record.samples[0], "without a stop text");
    REQUIRE(plain.n > 40);
    int n_stopped = 0;
    for (size_t at = plain.n / 2; at + 3 < plain.n && n_stopped < 20; at++) {
        char stop[4] = {plain.text[at], plain.text[at + 1], plain.text[at + 2], '\0'};
        const char *const stops[] = {stop};
        if (((unsigned char)stop[0] | (unsigned char)stop[1] | (unsigned char)stop[2]) >= 0x80) { continue; }
        static spoken stopped, stopped_drafted;
        (void)speak(model, "off", stops, 1, &stopped);
        (void)speak(model, "ngram", stops, 1, &stopped_drafted);
        CHECK_STR(stopped.record.samples[0].finish_reason, "stop");
        run_samples_are_equal(&stopped_drafted.record.samples[0], &stopped.record.samples[0], "at a stop text");
        n_stopped++;
    }
    CHECK(n_stopped > 0);
    qrun_model_destroy(model);
}

/* A callback that cancels at its n-th token sees no token more. */
typedef struct cancelling {
    qrun_session *session;
    int32_t after, n;
    run_record record;
} cancelling;

static void on_cancelling(void *user, const qrun_event *event) {
    cancelling *c = user;
    run_on_event(&c->record, event);
    if (event->type != QRUN_EVENT_TOKEN || ++c->n != c->after) { return; }
    CHECK(qrun_session_cancel(c->session, event->request, NULL) == QRUN_OK);
}

static void test_cancelling_in_a_callback(void) {
    static int32_t ids[MAX_PROMPT];
    qrun_model *model = run_open_fixture(context, "models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    REQUIRE(model != NULL);
    fill_prompt(ids, 40, 1);
    for (int32_t after = 1; after < 40; after += 3) {
        static cancelling ends[2];
        for (int s = 0; s < 2; s++) {
            qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
            qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
            params.max_sequences = 2, params.kv_tokens = 400, params.speculate = s == 0 ? "off" : "ngram";
            ends[s] = (cancelling){.session = run_session(model, &params), .after = after};
            REQUIRE(ends[s].session != NULL);
            request.token_ids = ids, request.n_token_ids = 40, request.max_tokens = 60, request.ignore_eos = true;
            request.on_event = on_cancelling, request.user = &ends[s];
            CHECK(qrun_session_submit(ends[s].session, &request, NULL, NULL) == QRUN_OK);
            run_steps(ends[s].session, true);
            CHECK_INT(ends[s].record.samples[0].n_tokens, after);
            CHECK_STR(ends[s].record.samples[0].finish_reason, "cancelled");
            qrun_session_destroy(ends[s].session);
        }
        run_samples_are_equal(&ends[1].record.samples[0], &ends[0].record.samples[0], "cancelled");
    }
    qrun_model_destroy(model);
}

/* ---- What drafts do for speed ------------------------------------------------------------------------------------ */

/* Costs are learnt: drafts that cost as much as they save end, and those that are always right grow. */
static void test_drafts_follow_what_they_cost(void) {
    qr_drafts drafts;
    qr_draft_costs costs;
    qr_drafts_init(&drafts);
    qr_draft_costs_init(&costs);
    const double usual = costs.row_cost;
    drafts.length = 4;
    const float before = drafts.hit_rate[4];
    drafts.n = 3, drafts.n_accepted = 3;
    qr_drafts_learn(&drafts, 1);
    CHECK(drafts.hit_rate[4] > before);
    for (int i = 0; i < 40; i++) {
        drafts.n = 0, drafts.guess = 5;
        qr_drafts_learn(&drafts, 6);
    }
    CHECK(drafts.hit_rate[4] < 0.01F && drafts.hit_rate[5] == 0.5F);
    for (int i = 0; i < 40; i++) { qr_drafts_learn(&drafts, 5); }
    CHECK(drafts.hit_rate[4] > 0.95F);
    drafts.length = 0;
    qr_drafts_learn(&drafts, 5);
    for (int i = 0; i < 200; i++) {
        qr_draft_costs_learn(&costs, 1, 0, 0.010);
        qr_draft_costs_learn(&costs, 5, 4, 0.050);
    }
    CHECK_MSG(costs.row_cost > 0.9, "a row costs %g steps", costs.row_cost);
    for (int i = 0; i < 3000; i++) { qr_draft_costs_learn(&costs, 1, 0, 0.010); }
    CHECK_MSG(costs.row_cost < usual + 0.01, "a row costs %g steps", costs.row_cost);
    for (int i = 0; i < 200; i++) { qr_draft_costs_learn(&costs, 5, 4, 0.0104); }
    CHECK_MSG(costs.row_cost < 0.03, "a row costs %g steps", costs.row_cost);
    qr_draft_costs_learn(&costs, 9, 4, 1e9); /* of another number of sequences: says nothing */
    CHECK(costs.row_cost < 0.03);
}

static void test_the_lookup(void) {
    static const int32_t text[] = {1, 2, 3, 4, 9, 2, 3, 5, 8, 2, 3};
    qr_ngram_match match = qr_ngram_find(text, 11);
    CHECK(match.length == 2 && match.next == 7); /* of equally long ones the last */
    match = qr_ngram_find(text, 4);
    CHECK_INT(match.length, 0);
    CHECK_INT(qr_ngram_find(text, 1).length, 0);
    CHECK_INT(qr_ngram_find(text, 0).length, 0);
    static const int32_t same[] = {7, 7, 7, 7};
    match = qr_ngram_find(same, 4);
    CHECK(match.length == 3 && match.next == 3);
    static const int32_t longer[] = {1, 2, 3, 4, 5, 9, 4, 5, 8, 3, 4, 5};
    match = qr_ngram_find(longer, 12);
    CHECK(match.length == 3 && match.next == 5); /* the longest, not the last */
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void test_refusals(void) {
    qrun_model *model = run_open_fixture(context, "models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    REQUIRE(model != NULL);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_session *session = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.speculate = "";
    CHECK(qrun_session_create(model, &params, &session, &error) == QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "`speculate`") != NULL, "%s", error.message);
    error = (qrun_error)QRUN_ERROR_INIT;
    params.speculate = "/no/such/model";
    CHECK(qrun_session_create(model, &params, &session, &error) == QRUN_ERROR_NOT_FOUND);
    CHECK_MSG(strncmp(error.message, "`speculate`: ", 13) == 0, "%s", error.message);
    /* One has a tokenizer, the other has none; then both have one, and not the same. */
    qrun_model *with_text = open_with_text();
    REQUIRE(with_text != NULL);
    static const char *const wrong[] = {"/tests/fixtures/models/llama", "/examples/model"};
    for (int i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof path, QRUN_SOURCE_DIR "%s", wrong[i]);
        error = (qrun_error)QRUN_ERROR_INIT;
        params.speculate = path;
        CHECK(qrun_session_create(with_text, &params, &session, &error) == QRUN_ERROR_ARGUMENT && session == NULL);
        CHECK_MSG(strstr(error.message, "another tokenizer") != NULL, "%s", error.message);
    }
    qrun_plan_entry *entries;
    int32_t n_entries;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    model_params.path = folder.path;
    params.speculate = "/no/such/model";
    CHECK(qrun_plan_session(context, &model_params, &params, &entries, &n_entries, NULL, NULL) == QRUN_ERROR_NOT_FOUND);
    params.speculate = folder.path, params.kv_tokens = 400;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_create(with_text, &params, &session, &error) == QRUN_OK, "%s", error.message);
    qrun_session_destroy(session);
    qrun_model_destroy(with_text);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    folder = temporary_create();
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_the_lookup);
    CHECK_RUN(test_drafts_follow_what_they_cost);
    CHECK_RUN(test_llama_f32);
    CHECK_RUN(test_llama_nf4_dq_with_an_adapter);
    CHECK_RUN(test_llama_f16_kv_int8);
    CHECK_RUN(test_gemma2_windows);
    CHECK_RUN(test_gemma3_windows_kv_int8);
    CHECK_RUN(test_mistral_window_int8);
    CHECK_RUN(test_gpt2);
    CHECK_RUN(test_dynamic_rope);
    CHECK_RUN(test_longrope);
    CHECK_RUN(test_a_model_that_drafts);
    CHECK_RUN(test_drafts_in_recorded_steps);
    CHECK_RUN(test_a_draft_model_without_memory);
    CHECK_RUN(test_stop_texts);
    CHECK_RUN(test_cancelling_in_a_callback);
    CHECK_RUN(test_refusals);
    qrun_context_destroy(context);
    temporary_remove(&folder);
    return check_end();
}
