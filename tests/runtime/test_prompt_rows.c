/* What a request may want of its prompt: the log probabilities of its tokens, which are those that the same tokens get
 * when they are generated, and embeddings, which are those of transformers. Both to the bit whatever surrounds them. */
#include "check.h"

#include "golden_index.h"
#include "session_run.h"

enum { N_PROMPT = 70, N_TOKENS = 100, N_TOP = 5, MAX_DIM = 256, MAX_TEXT = 4096 };

static qrun_context *context;

/* ---- Log probabilities ------------------------------------------------------------------------------------------- */

typedef struct scores {
    int n; /* PROMPT events */
    int32_t ids[N_TOKENS];
    float logprobs[N_TOKENS];
    qrun_top_logprob top[N_TOKENS][N_TOP];
    char text[MAX_TEXT];
    size_t text_bytes;
    int n_tokens, n_done;
    char finish_reason[16], message[256];
    int32_t prompt_tokens, cached_tokens;
    bool malformed;
} scores;

static void take_scores(void *user, const qrun_event *event) {
    scores *s = user;
    if (event->type == QRUN_EVENT_PROMPT && s->n < N_TOKENS && s->n_tokens == 0 && event->sample == 0) {
        s->malformed |= event->has_logprob != (s->n > 0) || event->n_top != (s->n > 0 ? N_TOP : 0) || event->is_last;
        s->ids[s->n] = event->token_id;
        s->logprobs[s->n] = event->logprob;
        for (int i = 0; i < event->n_top && i < N_TOP; i++) { s->top[s->n][i] = event->top[i]; }
        if (s->text_bytes + event->text_bytes < MAX_TEXT) {
            memcpy(s->text + s->text_bytes, event->text, event->text_bytes);
        }
        s->text_bytes += event->text_bytes;
        s->n++;
    } else if (event->type == QRUN_EVENT_DONE) {
        s->n_done++;
        s->prompt_tokens = event->prompt_tokens;
        s->cached_tokens = event->cached_tokens;
        snprintf(s->finish_reason, sizeof s->finish_reason, "%s", event->finish_reason);
    } else if (event->type == QRUN_EVENT_ERROR) {
        snprintf(s->message, sizeof s->message, "%s", event->message);
    } else {
        s->malformed |= event->type != QRUN_EVENT_TOKEN;
        s->n_tokens++;
    }
}

static void run_all(qrun_session *session) {
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message);
}

static qrun_request_params prompt_of(const int32_t *ids, int64_t n, qrun_event_fn on_event, void *user) {
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    params.token_ids = ids, params.n_token_ids = n, params.on_event = on_event, params.user = user;
    return params;
}

static void submit(qrun_session *session, const qrun_request_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_submit(session, params, NULL, &error) == QRUN_OK, "%s", error.message);
}

static void submit_scored(qrun_session *session, const int32_t *ids, int64_t n, scores *s) {
    qrun_request_params params = prompt_of(ids, n, take_scores, s);
    *s = (scores){0};
    params.prompt_logprobs = N_TOP, params.prompt_only = true;
    submit(session, &params);
}

static void check_idle(qrun_session *session) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
    CHECK_INT(stats.pages_used, 0);
    CHECK_INT(stats.n_waiting + stats.n_running, 0);
}

static void make_prompt(int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) { ids[i] = (int32_t)(3 + i * i * 31 % 900); }
}

/* A prompt and what the model generates from it greedily; the record of that. */
static void generate(qrun_model *model, int32_t *ids, run_record *record) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_session *session = run_session(model, &params);
    make_prompt(ids, N_PROMPT);
    memset(record, 0, sizeof *record);
    qrun_request_params request = prompt_of(ids, N_PROMPT, run_on_event, record);
    request.max_tokens = N_TOKENS - N_PROMPT, request.logprobs = N_TOP, request.ignore_eos = true;
    submit(session, &request);
    run_all(session);
    qrun_session_destroy(session);
    for (int i = 0; i < N_TOKENS - N_PROMPT; i++) { ids[N_PROMPT + i] = record->samples[0].tokens[i]; }
}

static void check_scores(const scores *s, const scores *expected, const char *what) {
    CHECK_MSG(s->n == expected->n && s->n_done == 1 && s->n_tokens == 0 && !s->malformed, "%s: %d events, %d tokens %s",
              what, s->n, s->n_tokens, s->message);
    CHECK_MSG(strcmp(s->finish_reason, "length") == 0, "%s: %s", what, s->finish_reason);
    CHECK_MSG(memcmp(s->ids, expected->ids, sizeof s->ids) == 0, "%s: ids", what);
    CHECK_MSG(memcmp(s->logprobs, expected->logprobs, sizeof s->logprobs) == 0, "%s: log probabilities", what);
    CHECK_MSG(memcmp(s->top, expected->top, sizeof s->top) == 0, "%s: the best", what);
}

static const struct surrounding {
    const char *what;
    int32_t max_sequences, max_step_tokens;
    int64_t kv_tokens;
    bool no_sharing;
} surroundings[] = {
    {"whole, prefixes shared", 64, 512, 64 * 128, false},
    {"in chunks of 7", 4, 7, 64 * 128, true},
    {"in chunks of 1", 1, 1, 64 * 128, true},
    {"in chunks of 33, shared", 8, 33, 64 * 128, false},
    {"preempted", 64, 512, 192, true},
    {"preempted, chunked, shared", 16, 33, 176, false},
};

static void score_in(qrun_model *model, const struct surrounding *around, const int32_t *ids, const scores *expected) {
    enum { N_OTHERS = 12 };
    static scores s[3];
    static run_record others[N_OTHERS];
    static const int64_t lengths[] = {N_TOKENS, N_TOKENS, 1};
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = around->max_sequences, params.max_step_tokens = around->max_step_tokens;
    params.kv_tokens = around->kv_tokens, params.no_prefix_sharing = around->no_sharing;
    qrun_session *session = run_session(model, &params);
    memset(others, 0, sizeof others);
    for (int round = 0; round < 2; round++) { /* the second one finds pages of the first */
        for (int i = 0; i < N_OTHERS; i++) {
            qrun_request_params other = prompt_of(ids, 5 + 7 * i, run_on_event, &others[i]);
            other.max_tokens = 9, other.logprobs = 3, other.ignore_eos = true;
            memset(&others[i], 0, sizeof others[i]);
            if (i % 4 == 1) { submit_scored(session, ids, lengths[i / 4], &s[i / 4]); }
            submit(session, &other);
        }
        run_all(session);
        check_scores(&s[0], expected, around->what);
        check_scores(&s[1], expected, around->what);
        CHECK_MSG(s[2].n == 1 && s[2].n_done == 1 && s[2].prompt_tokens == 1, "%s: one token", around->what);
        CHECK_INT(s[0].cached_tokens, 0);
    }
    check_idle(session);
    qrun_session_destroy(session);
}

/* Scoring a text of generated tokens gives what they had when they were generated, and the perplexity of the text. */
static void check_model(const char *folder, qrun_quant quant, qrun_dtype dtype) {
    static int32_t ids[N_TOKENS];
    static run_record record;
    static scores expected;
    qrun_model *model = run_open_fixture(context, folder, quant, dtype);
    REQUIRE(model != NULL);
    generate(model, ids, &record);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_session *session = run_session(model, &params);
    submit_scored(session, ids, N_TOKENS, &expected);
    run_all(session);
    CHECK_INT(expected.n, N_TOKENS);
    CHECK(memcmp(expected.ids, ids, sizeof ids) == 0);
    const run_sample *generated = &record.samples[0];
    double sum = 0;
    for (int i = 0; i < N_TOKENS - N_PROMPT; i++) {
        const float logprob = expected.logprobs[N_PROMPT + i];
        CHECK_MSG(memcmp(&logprob, &generated->logprobs[i], sizeof logprob) == 0, "%s: token %d has %a, generated %a",
                  folder, i, (double)logprob, (double)generated->logprobs[i]);
        CHECK_MSG(memcmp(expected.top[N_PROMPT + i], generated->top[i], sizeof expected.top[0]) == 0,
                  "%s: the best of %d", folder, i);
    }
    for (int i = 1; i < N_TOKENS; i++) { sum -= (double)expected.logprobs[i]; }
    qrun_eval_params eval = QRUN_EVAL_PARAMS_INIT;
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_eval_tokens(session, ids, N_TOKENS, &eval, &result, &error) == QRUN_OK, "%s", error.message);
    CHECK_MSG(fabs(result.mean_nll - sum / (N_TOKENS - 1)) < 1e-6 * result.mean_nll, "%s: eval %.9g, scored %.9g",
              folder, result.mean_nll, sum / (N_TOKENS - 1));
    qrun_session_destroy(session);
    for (size_t i = 0; i < sizeof surroundings / sizeof surroundings[0]; i++) {
        score_in(model, &surroundings[i], ids, &expected);
    }
    qrun_model_destroy(model);
}

static void test_llama_f32(void) { check_model("models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32); }
static void test_llama_nf4_dq(void) { check_model("models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16); }
static void test_gemma2_windows(void) { check_model("models/gemma2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16); }
static void test_gpt2_int8(void) { check_model("models/gpt2", QRUN_QUANT_INT8, QRUN_DTYPE_BF16); }

/* The samples of a request share its prompt, and its events come once. The texts of the events are the prompt's. */
static void test_prompt_and_samples(void) {
    static scores s;
    static const char prompt[] = "Once upon a time, na\xC3\xAFve";
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    model_params.path = QRUN_SOURCE_DIR "/examples/model";
    CHECK_MSG(qrun_model_open(context, &model_params, &model, &error) == QRUN_OK, "%s", error.message);
    REQUIRE(model != NULL);
    qrun_session *session = run_session(model, &params);
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    request.prompt = prompt, request.on_event = take_scores, request.user = &s;
    request.n = 3, request.max_tokens = 4, request.ignore_eos = true, request.prompt_logprobs = N_TOP;
    submit(session, &request);
    run_all(session);
    CHECK_INT(s.n_tokens, 12);
    CHECK_INT(s.n_done, 3);
    CHECK_INT(s.n, s.prompt_tokens);
    CHECK(!s.malformed);
    CHECK_MSG(s.text_bytes == sizeof prompt - 1 && memcmp(s.text, prompt, s.text_bytes) == 0, "\"%s\"", s.text);
    check_idle(session);
    qrun_session_destroy(session);
    qrun_model_destroy(model);
}

static void sample_beside(qrun_model *model, int32_t max_sequences, int n_prompts, run_record *record) {
    static scores s;
    int32_t ids[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++) { ids[i] = 3 + i; }
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = max_sequences;
    qrun_session *session = run_session(model, &params);
    for (int i = 0; i < n_prompts; i++) { submit_scored(session, ids, 5, &s); }
    qrun_request_params request = prompt_of(ids, N_PROMPT, run_on_event, record);
    *record = (run_record){0};
    request.n = 4, request.max_tokens = 8, request.ignore_eos = true, request.temperature = 1, request.seed = 7;
    request.logprobs = N_TOP;
    submit(session, &request);
    run_all(session);
    check_idle(session);
    qrun_session_destroy(session);
}

/* Prompts that end with a step leave slots that the samples of another request find, after the step. */
static void test_slots_of_prompts_alone(void) {
    static run_record alone, beside;
    qrun_model *model = run_open_fixture(context, "models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    REQUIRE(model != NULL);
    sample_beside(model, 8, 0, &alone);
    for (int n_prompts = 1; n_prompts <= 5; n_prompts++) {
        sample_beside(model, n_prompts + 1, n_prompts, &beside);
        CHECK_INT(beside.n_done, 4);
        CHECK_INT(beside.n_errors, 0);
        for (int i = 0; i < 4; i++) {
            CHECK(run_samples_are_equal(&beside.samples[i], &alone.samples[i], "beside prompts"));
        }
    }
    qrun_model_destroy(model);
}

/* ---- Embeddings -------------------------------------------------------------------------------------------------- */

typedef struct embedding {
    int n_events, n_done, n_dims;
    float values[MAX_DIM];
    int32_t cached_tokens;
    bool malformed;
} embedding;

static void take_embedding(void *user, const qrun_event *event) {
    embedding *e = user;
    if (event->type == QRUN_EVENT_EMBEDDING && event->n_embedding <= MAX_DIM) {
        e->n_events++;
        e->n_dims = event->n_embedding;
        memcpy(e->values, event->embedding, (size_t)event->n_embedding * sizeof(float));
    } else {
        e->n_done += event->type == QRUN_EVENT_DONE;
        e->malformed |= event->type != QRUN_EVENT_DONE;
        e->cached_tokens = event->cached_tokens;
    }
}

static void submit_pooled(qrun_session *session, const int32_t *ids, int64_t n, qrun_pooling pooling, embedding *e) {
    qrun_request_params params = prompt_of(ids, n, take_embedding, e);
    *e = (embedding){0};
    params.prompt_only = true, params.pooling = pooling;
    submit(session, &params);
}

/* In F32, the tables of tokens in INT8 or not. */
static qrun_model *open_for_golden(const char *folder, bool in_int8) {
    char path[512];
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = NULL;
    snprintf(path, sizeof path, FIXTURES "%s", folder);
    params.path = path, params.quant = QRUN_QUANT_F32, params.dtype = QRUN_DTYPE_F32;
    params.quant_embedding_int8 = in_int8;
    CHECK_MSG(qrun_model_open(context, &params, &model, &error) == QRUN_OK, "%s", error.message);
    CHECK(model != NULL && qrun_model_get_info(model, &info, NULL) == QRUN_OK);
    CHECK_MSG((strcmp(info.embedding_format, "int8") == 0) == in_int8, "%s in %s", folder, info.embedding_format);
    return model;
}

static void check_golden(const qr_json *golden) {
    static embedding e;
    const bool in_int8 = strcmp(text_of(golden, "tables"), "int8") == 0;
    qrun_model *model = open_for_golden(text_of(golden, "folder"), in_int8);
    REQUIRE(model != NULL);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_session *session = run_session(model, &params);
    int32_t ids[64];
    int64_t n = 0;
    const qr_json *list = qr_json_get(golden, "ids");
    for (const qr_json *id = qr_json_first(list); id != NULL; id = id->next) { ids[n++] = id->valueint; }
    static const char *const names[] = {"last", "mean"};
    for (int k = 0; k < 2; k++) {
        const qr_json *expected = qr_json_first(qr_json_get(golden, names[k]));
        submit_pooled(session, ids, n, k == 0 ? QRUN_POOLING_LAST : QRUN_POOLING_MEAN, &e);
        run_all(session);
        CHECK(e.n_events == 1 && e.n_done == 1 && !e.malformed);
        double worst = 0;
        int j = 0;
        for (; expected != NULL; expected = expected->next, j++) {
            worst = fmax(worst, fabs((double)e.values[j] - expected->valuedouble));
        }
        CHECK_INT(j, e.n_dims);
        CHECK_MSG(worst < 2e-5, "%s, %d tokens, %s: differs by %g", text_of(golden, "folder"), (int)n, names[k], worst);
    }
    qrun_session_destroy(session);
    qrun_model_destroy(model);
}

static void test_embeddings_of_transformers(void) {
    qr_json *root = NULL;
    qr_error err = QRUN_ERROR_INIT;
    CHECK_MSG(qr_json_read(FIXTURES "goldens/embeddings.json", 1 << 20, &root, &err) == QRUN_OK, "%s", err.message);
    int n = 0;
    for (const qr_json *golden = qr_json_first(root); golden != NULL; golden = golden->next, n++) {
        check_golden(golden);
    }
    CHECK(n >= 10);
    qr_json_free(root);
}

static void test_embeddings_have_the_same_bits(void) {
    static embedding expected[2], got[2];
    int32_t ids[N_TOKENS];
    qrun_model *model = run_open_fixture(context, "models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16);
    REQUIRE(model != NULL);
    make_prompt(ids, N_TOKENS);
    for (size_t i = 0; i < sizeof surroundings / sizeof surroundings[0]; i++) {
        const struct surrounding *around = &surroundings[i];
        qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
        params.max_sequences = around->max_sequences, params.max_step_tokens = around->max_step_tokens;
        params.kv_tokens = around->kv_tokens, params.no_prefix_sharing = around->no_sharing;
        qrun_session *session = run_session(model, &params);
        for (int round = 0; round < 2; round++) {
            submit_pooled(session, ids, N_TOKENS, QRUN_POOLING_LAST, &got[0]);
            submit_pooled(session, ids, N_TOKENS, QRUN_POOLING_MEAN, &got[1]);
            run_all(session);
            if (i == 0 && round == 0) { memcpy(expected, got, sizeof got); }
            CHECK_MSG(memcmp(got[0].values, expected[0].values, sizeof got[0].values) == 0, "%s: last", around->what);
            CHECK_MSG(memcmp(got[1].values, expected[1].values, sizeof got[1].values) == 0, "%s: mean", around->what);
            CHECK_INT(got[1].cached_tokens, 0);
        }
        /* The last token alone is computed again; a mean needs them all. */
        CHECK_MSG(i != 0 || got[0].cached_tokens > 0, "%s: nothing was found", around->what);
        check_idle(session);
        qrun_session_destroy(session);
    }
    qrun_model_destroy(model);
}

/* ---- Adapters that come and go ----------------------------------------------------------------------------------- */

static qrun_adapter *open_adapter(qrun_model *model, const char *folder) {
    char path[512];
    qrun_adapter *adapter = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/adapters/%s", folder);
    CHECK_MSG(qrun_adapter_open(model, path, "a", &adapter, &error) == QRUN_OK, "%s", error.message);
    return adapter;
}

/* K/V of an adapter are never those of another one, not even of one that has its place in memory. */
static void test_adapters_come_and_go(void) {
    static const char *const folders[] = {"llama-lora", "llama-rslora", "llama-dora"};
    static embedding e, expected[3];
    int32_t ids[N_TOKENS];
    make_prompt(ids, N_TOKENS);
    qrun_model *model = run_open_fixture(context, "models/llama", QRUN_QUANT_NF4, QRUN_DTYPE_F32);
    REQUIRE(model != NULL);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    for (int round = 0; round < 2; round++) { /* alone in a session, then all in one */
        qrun_session *session = NULL;
        for (int i = 0; i < 6; i++) {
            if (round == 0 || i == 0) { session = run_session(model, &params); }
            qrun_adapter *adapter = open_adapter(model, folders[i % 3]);
            qrun_request_params request = prompt_of(ids, N_TOKENS, take_embedding, &e);
            e = (embedding){0};
            request.prompt_only = true, request.pooling = QRUN_POOLING_LAST, request.adapter = adapter;
            submit(session, &request);
            CHECK_INT(qrun_adapter_close(adapter, NULL), QRUN_ERROR_BUSY);
            run_all(session);
            if (round == 0 && i < 3) { expected[i] = e; }
            CHECK_INT(e.cached_tokens, 0);
            CHECK_MSG(memcmp(e.values, expected[i % 3].values, sizeof e.values) == 0, "%s again", folders[i % 3]);
            CHECK(i % 3 == 0 || memcmp(e.values, expected[0].values, sizeof e.values) != 0);
            CHECK_INT(qrun_adapter_close(adapter, NULL), QRUN_OK);
            if (round == 0 || i == 5) { qrun_session_destroy(session); }
        }
    }
    qrun_model_destroy(model);
}

/* ---- What does not go together ----------------------------------------------------------------------------------- */

static void test_refusals(void) {
    const struct {
        int32_t n, prompt_logprobs;
        bool prompt_only;
        qrun_pooling pooling;
        const char *message;
    } cases[] = {
        {2, -1, true, QRUN_POOLING_NONE, "`prompt_only` generates nothing"},
        {1, -1, false, QRUN_POOLING_MEAN, "`pooling` needs `prompt_only`"},
        {1, 0, true, QRUN_POOLING_LAST, "`pooling` and `prompt_logprobs`"},
        {1, 21, false, QRUN_POOLING_NONE, "prompt_logprobs"},
        {1, -1, true, (qrun_pooling)3, "pooling"},
    };
    const int32_t ids[] = {5, 6};
    qrun_model *model = run_open_fixture(context, "models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    REQUIRE(model != NULL);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_session *session = run_session(model, &params);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qrun_request_params request = prompt_of(ids, 2, NULL, NULL);
        qrun_error error = QRUN_ERROR_INIT;
        request.n = cases[i].n, request.prompt_logprobs = cases[i].prompt_logprobs;
        request.prompt_only = cases[i].prompt_only, request.pooling = cases[i].pooling;
        CHECK_INT(qrun_session_submit(session, &request, NULL, &error), QRUN_ERROR_ARGUMENT);
        CHECK_MSG(strstr(error.message, cases[i].message) != NULL, "%s", error.message);
    }
    qrun_session_destroy(session);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    params.n_threads = 2, params.device = "cpu";
    if (qrun_context_create(&params, &context, &error) != QRUN_OK) {
        printf("%s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_llama_f32);
    CHECK_RUN(test_llama_nf4_dq);
    CHECK_RUN(test_gemma2_windows);
    CHECK_RUN(test_gpt2_int8);
    CHECK_RUN(test_prompt_and_samples);
    CHECK_RUN(test_slots_of_prompts_alone);
    CHECK_RUN(test_embeddings_of_transformers);
    CHECK_RUN(test_embeddings_have_the_same_bits);
    CHECK_RUN(test_adapters_come_and_go);
    CHECK_RUN(test_refusals);
    qrun_context_destroy(context);
    return check_end();
}
