/* The rules of generation_config.json: logits as transformers' processors leave them, to the bit, and whole answers
 * under them; where the rules of a request come from; and that a request's tokens depend on nothing else. */
#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "loaders/files/json.h"
#include "runtime/sampling/cutoffs.h"
#include "runtime/sampling/penalties.h"
#include "session_run.h"
#include "temporary.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"
enum { VOCAB = 32, MAX_TOKENS = 64, MAX_TEXTS = 16 };

static qrun_context *context;
static qrun_model *model;
static qr_json *goldens;

static int64_t read_ids(const qr_json *array, int32_t *ids) {
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(array); item != NULL && n < MAX_TOKENS; item = item->next) {
        ids[n++] = (int32_t)item->valuedouble;
    }
    return n;
}

static int64_t read_int(const qr_json *object, const char *key) {
    int64_t value = -1;
    CHECK(qr_json_get_int(object, key, 0, 1 << 20, &value, "goldens", NULL) == QRUN_OK);
    return value;
}

static const char *read_text(const qr_json *object, const char *key) {
    const char *text = "";
    CHECK(qr_json_get_string(object, key, &text, "goldens", NULL) == QRUN_OK);
    return text;
}

/* ---- One row of logits ------------------------------------------------------------------------------------------- */

static void read_row(const qr_json *array, float *row) {
    int n = 0;
    for (const qr_json *item = qr_json_first(array); item != NULL && n < VOCAB; item = item->next) {
        row[n++] = cJSON_IsNull(item) ? -INFINITY : (float)item->valuedouble;
    }
    CHECK_INT(n, VOCAB);
}

/* RepetitionPenaltyLogitsProcessor comes between the two, as in the sampler. */
static void penalise(float penalty, const qr_sampling_history *history, float *logits) {
    bool seen[VOCAB] = {false};
    for (int64_t i = 0; i < history->n_tokens; i++) {
        const int32_t id = history->tokens[i];
        if (!seen[id]) { logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty; }
        seen[id] = true;
    }
}

static void check_row(const qr_json *row, const qr_token_ids *eos) {
    const char *name = read_text(row, "name");
    const qr_json *members = qr_json_get(row, "rules");
    int32_t tokens[MAX_TOKENS];
    float logits[VOCAB], expected[VOCAB], biases[VOCAB] = {0};
    int32_t seen[VOCAB] = {0};
    const qr_sampling_history history = {.tokens = tokens,
                                         .n_tokens = read_ids(qr_json_get(row, "tokens"), tokens),
                                         .n_prompt = read_int(row, "n_prompt"),
                                         .capacity = read_int(row, "capacity"),
                                         .eos = eos};
    read_row(qr_json_get(row, "logits"), logits);
    read_row(qr_json_get(row, "expected"), expected);
    qr_generation_rules rules = QR_GENERATION_RULES_INIT;
    double penalty = 1;
    CHECK(qr_generation_rules_read(members, name, VOCAB, false, &rules, NULL) == QRUN_OK);
    CHECK(qr_json_get_double(members, "repetition_penalty", 0, 100, &penalty, name, NULL) == QRUN_OK);
    qr_logit_rules_favour(&rules, &history, VOCAB, biases, seen, logits);
    penalise((float)penalty, &history, logits);
    qr_logit_rules_restrict(&rules, &history, VOCAB, logits);
    for (int i = 0; i < VOCAB; i++) {
        CHECK_MSG(logits[i] == expected[i], "%s: logit %d is %a, expected %a", name, i, (double)logits[i],
                  (double)expected[i]);
        CHECK(biases[i] == 0 && seen[i] == 0);
    }
    qr_generation_rules_free(&rules);
}

static void test_rows(void) {
    qr_token_ids eos = {.n = 0};
    CHECK(qr_token_ids_read(goldens, "eos", &eos, "goldens", NULL) == QRUN_OK && eos.n == 2);
    int n = 0;
    for (const qr_json *row = qr_json_first(qr_json_get(goldens, "rows")); row != NULL; row = row->next, n++) {
        check_row(row, &eos);
    }
    CHECK(n >= 25);
}

/* ---- What is left to sample from --------------------------------------------------------------------------------- */

static double read_number(const qr_json *object, const char *key) {
    double value = -1;
    CHECK(qr_json_get_double(object, key, 0, 100, &value, "goldens", NULL) == QRUN_OK);
    return value;
}

/* The ids that come up are those that transformers leaves, as often as their weights say. */
static void check_cutoffs(const qr_json *entry) {
    enum { N = 20000 };
    static const int32_t tokens[N] = {0};
    const char *name = read_text(entry, "name");
    float logits[VOCAB];
    double weights[VOCAB] = {0}, mass = 0;
    int seen[VOCAB] = {0};
    int32_t kept[MAX_TOKENS];
    const int64_t n_kept = read_ids(qr_json_get(entry, "kept"), kept);
    read_row(qr_json_get(entry, "logits"), logits);
    qr_generation_rules rules = QR_GENERATION_RULES_INIT;
    CHECK(qr_generation_rules_read(qr_json_get(entry, "rules"), name, VOCAB, false, &rules, NULL) == QRUN_OK);
    const qr_sampling sampling = {.temperature = (float)read_number(entry, "temperature"),
                                  .top_k = (int32_t)read_int(entry, "top_k"),
                                  .top_p = (float)read_number(entry, "top_p"),
                                  .min_p = (float)read_number(entry, "min_p"),
                                  .repetition_penalty = 1,
                                  .rules = &rules,
                                  .seed = 3};
    for (int64_t i = 0; i < n_kept; i++) {
        weights[kept[i]] = exp((double)logits[kept[i]] / (double)sampling.temperature);
        mass += weights[kept[i]];
    }
    qr_sampler *sampler = NULL;
    REQUIRE(qr_sampler_create(VOCAB, &sampler, NULL) == QRUN_OK);
    for (int64_t i = 2; i < N; i++) {
        const qr_sampling_history history = {.tokens = tokens, .n_prompt = 2, .n_tokens = i, .capacity = N + 1};
        const int32_t id = qr_sampler_sample(sampler, &sampling, &history, 0, NULL, logits);
        REQUIRE(id >= 0 && id < VOCAB);
        seen[id]++;
    }
    for (int i = 0; i < VOCAB; i++) {
        const double p = weights[i] / mass, expected = p * (N - 2);
        CHECK_MSG(fabs(seen[i] - expected) <= 5 * sqrt(expected * (1 - p)) && (seen[i] > 0) == (p > 0),
                  "%s: %d came up %d times, expected %.1f", name, i, seen[i], expected);
    }
    qr_generation_rules_free(&rules);
    qr_sampler_destroy(sampler);
}

static void test_cutoffs(void) {
    int n = 0;
    for (const qr_json *e = qr_json_first(qr_json_get(goldens, "cutoffs")); e != NULL; e = e->next, n++) {
        check_cutoffs(e);
    }
    CHECK_INT(n, 12);
}

/* The smallest number there is, as a share of two, is none. Its logarithm must not spoil the entropy. */
static void test_shares_too_small_for_a_number(void) {
    static const double weights[] = {1, 1, 0x1p-1074};
    qr_generation_rules typical = QR_GENERATION_RULES_INIT, eta = QR_GENERATION_RULES_INIT;
    typical.typical_p = 0.5;
    qr_id_range range = qr_cutoffs_apply(&typical, weights, 3);
    CHECK(range.first == 0 && range.end == 2);
    eta.eta_cutoff = 0.9; /* sqrt(0.9) · exp(−log 2) is less: 0.47 */
    range = qr_cutoffs_apply(&eta, weights, 3);
    CHECK(range.first == 0 && range.end == 2);
}

/* ---- Whole answers ----------------------------------------------------------------------------------------------- */

typedef struct text_case {
    const char *name;
    char *rules;
    int32_t prompt[MAX_TOKENS], ids[MAX_TOKENS];
    int64_t n_prompt, n_ids, max_new_tokens;
    double repetition_penalty;
} text_case;

static text_case texts[MAX_TEXTS];
static int n_texts;

/* The rules without the penalty, which is a field of its own. */
static char *print_rules(const qr_json *members) {
    qr_json *copy = cJSON_Duplicate(members, true);
    cJSON_DeleteItemFromObject(copy, "repetition_penalty");
    char *text = cJSON_PrintUnformatted(copy);
    cJSON_Delete(copy);
    return text;
}

static void read_texts(void) {
    for (const qr_json *t = qr_json_first(qr_json_get(goldens, "texts")); t != NULL && n_texts < MAX_TEXTS;
         t = t->next) {
        text_case *c = &texts[n_texts++];
        *c = (text_case){.name = read_text(t, "name"), .repetition_penalty = 1};
        c->n_prompt = read_ids(qr_json_get(t, "prompt"), c->prompt);
        c->n_ids = read_ids(qr_json_get(t, "ids"), c->ids);
        c->max_new_tokens = read_int(t, "max_new_tokens");
        c->rules = print_rules(qr_json_get(t, "rules"));
        CHECK(qr_json_get_double(qr_json_get(t, "rules"), "repetition_penalty", 0, 100, &c->repetition_penalty, "",
                                 NULL) == QRUN_OK);
    }
}

static qrun_request_params request_of(const text_case *c, run_record *record) {
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    params.token_ids = c->prompt, params.n_token_ids = c->n_prompt, params.max_tokens = (int32_t)c->max_new_tokens;
    params.generation_json = c->rules, params.repetition_penalty = (float)c->repetition_penalty;
    params.logprobs = 0, params.on_event = run_on_event, params.user = record;
    return params;
}

static void check_answer(const text_case *c, const run_record *record) {
    const run_sample *sample = &record->samples[0];
    const bool ends = c->ids[c->n_ids - 1] == 2; /* no event has the end token */
    CHECK_INT(sample->n_tokens, c->n_ids - ends);
    CHECK_STR(sample->finish_reason, ends ? "stop" : "length");
    for (int32_t i = 0; i < sample->n_tokens && i < c->n_ids; i++) {
        CHECK_MSG(sample->tokens[i] == c->ids[i], "%s: token %d is %d, transformers has %d", c->name, i,
                  sample->tokens[i], c->ids[i]);
    }
}

static void test_answers(void) {
    static run_record alone[MAX_TEXTS], together[MAX_TEXTS];
    memset(alone, 0, sizeof alone);
    memset(together, 0, sizeof together);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 300, params.max_sequences = 5;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    CHECK_INT(n_texts, 10);
    for (int i = 0; i < n_texts; i++) {
        const qrun_request_params request = request_of(&texts[i], &alone[i]);
        CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
        CHECK(qrun_session_run(session, NULL) == QRUN_OK);
        check_answer(&texts[i], &alone[i]);
    }
    qrun_session_destroy(session);

    /* Together, preempted and in chunks: the same tokens and the same bits. */
    params.kv_tokens = 110, params.max_step_tokens = 6, params.no_prefix_sharing = true;
    session = run_session(model, &params);
    if (session == NULL) { return; }
    for (int i = 0; i < n_texts; i++) {
        const qrun_request_params request = request_of(&texts[i], &together[i]);
        CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
    }
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    for (int i = 0; i < n_texts; i++) {
        CHECK(run_samples_are_equal(&together[i].samples[0], &alone[i].samples[0], texts[i].name));
    }
    qrun_session_destroy(session);
}

/* ---- Where an answer may end ------------------------------------------------------------------------------------- */

static const int32_t end_prompt[] = {17, 400, 33};

static run_record answer_to(qrun_session *session, const qrun_request_params *params, const char *line) {
    run_record record = {.n_done = 0};
    qrun_request_params request = *params;
    qrun_error error = QRUN_ERROR_INIT;
    request.on_event = run_on_event, request.user = &record;
    if (line != NULL) { request.token_ids = NULL, request.n_token_ids = 0; }
    const qrun_status status = line != NULL ? qrun_session_submit_json(session, line, strlen(line), "line 1", &request,
                                                                       false, NULL, NULL, &error)
                                            : qrun_session_submit(session, &request, NULL, &error);
    CHECK_MSG(status == QRUN_OK, "%s", error.message);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    CHECK(record.n_last == 1 && record.n_errors == 0);
    return record;
}

static bool has_token(const run_sample *sample, int32_t first, int32_t end, int32_t token) {
    for (int32_t i = first; i < end; i++) {
        if (sample->tokens[i] == token) { return true; }
    }
    return false;
}

/* min_tokens is min_new_tokens of transformers, and the larger of the two counts. */
static void test_min_tokens_as_in_transformers(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 300;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    int n = 0;
    for (int i = 0; i < n_texts; i++) {
        cJSON *rules = cJSON_Parse(texts[i].rules);
        REQUIRE(rules != NULL);
        int64_t least = 0;
        CHECK(qr_json_get_int(rules, "min_new_tokens", 0, 100, &least, "rules", NULL) == QRUN_OK);
        for (int lower = 0; lower < 2 && least > 0; lower++, n++) {
            cJSON_DeleteItemFromObject(rules, "min_new_tokens");
            if (lower) { cJSON_AddNumberToObject(rules, "min_new_tokens", 1); }
            text_case c = texts[i];
            c.rules = cJSON_PrintUnformatted(rules);
            qrun_request_params request = request_of(&c, NULL);
            request.min_tokens = (int32_t)least;
            const run_record record = answer_to(session, &request, NULL);
            check_answer(&c, &record);
            cJSON_free(c.rules);
        }
        cJSON_Delete(rules);
    }
    CHECK(n >= 2);
    qrun_session_destroy(session);
}

static void test_stop_token_ids(void) {
    enum { N = 24, LEAST = 15 };
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 300;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    request.token_ids = end_prompt, request.n_token_ids = 3, request.max_tokens = N, request.logprobs = 0;
    request.ignore_eos = true;
    const run_record all = answer_to(session, &request, NULL);
    REQUIRE(all.samples[0].n_tokens == N);
    int32_t at = 5;
    while (has_token(&all.samples[0], 0, at, all.samples[0].tokens[at])) { at++; }
    REQUIRE(at < LEAST);

    /* The answer ends before its first token of these, with ignore_eos too. */
    const int32_t stops[] = {1000, all.samples[0].tokens[at]};
    request.stop_token_ids = stops, request.n_stop_token_ids = 2;
    const run_record stopped = answer_to(session, &request, NULL);
    CHECK_INT(stopped.samples[0].n_tokens, at);
    CHECK_STR(stopped.samples[0].finish_reason, "stop");
    CHECK(memcmp(stopped.samples[0].tokens, all.samples[0].tokens, (size_t)at * sizeof *stops) == 0);
    CHECK(memcmp(stopped.samples[0].logprobs, all.samples[0].logprobs, (size_t)at * sizeof(float)) == 0);

    /* Before min_tokens it does not come. */
    request.min_tokens = LEAST;
    const run_record longer = answer_to(session, &request, NULL);
    CHECK(longer.samples[0].n_tokens >= LEAST);
    CHECK(!has_token(&longer.samples[0], 0, longer.samples[0].n_tokens, stops[1]));
    CHECK(memcmp(longer.samples[0].tokens, all.samples[0].tokens, (size_t)at * sizeof *stops) == 0);

    /* Without tokens that could end it, min_tokens changes nothing. */
    request.n_stop_token_ids = 0, request.min_tokens = N;
    const run_record least = answer_to(session, &request, NULL);
    CHECK(has_token(&all.samples[0], 0, N, 2) ||
          run_samples_are_equal(&least.samples[0], &all.samples[0], "min_tokens alone"));

    /* A line says the same, and counts instead of the defaults. */
    char line[256];
    snprintf(line, sizeof line, "{\"token_ids\": [17, 400, 33], \"stop_token_ids\": [1000, %d], \"min_tokens\": 0}",
             stops[1]);
    const run_record of_line = answer_to(session, &request, line);
    CHECK(run_samples_are_equal(&of_line.samples[0], &stopped.samples[0], "a line's stop_token_ids"));
    snprintf(line, sizeof line, "{\"token_ids\": [17, 400, 33], \"min_tokens\": %d}", LEAST);
    request.min_tokens = 0, request.n_stop_token_ids = 2;
    const run_record least_of_line = answer_to(session, &request, line);
    CHECK(run_samples_are_equal(&least_of_line.samples[0], &longer.samples[0], "a line's min_tokens"));
    const run_record none = answer_to(session, &request, "{\"token_ids\": [17, 400, 33], \"stop_token_ids\": []}");
    CHECK(run_samples_are_equal(&none.samples[0], &all.samples[0], "a line without stop_token_ids"));
    qrun_session_destroy(session);
}

static void test_ends_that_are_refused(void) {
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"{\"token_ids\": [1], \"min_tokens\": -1}", "min_tokens must be from 0 to 2147483647, not -1"},
        {"{\"token_ids\": [1], \"min_tokens\": 5, \"max_tokens\": 4}", "`min_tokens=5` is more than `max_tokens=4`"},
        {"{\"token_ids\": [1], \"min_tokens\": \"3\"}", "\"min_tokens\""},
        {"{\"token_ids\": [1], \"stop_token_ids\": 3}", "\"stop_token_ids\" must be an array of token ids"},
        {"{\"token_ids\": [1], \"stop_token_ids\": [1.5]}", "\"stop_token_ids\" must be an array of token ids"},
        {"{\"token_ids\": [1], \"stop_token_ids\": [4, 99999]}",
         "`stop_token_ids`: token 99999 is outside the vocabulary of "},
        {"{\"token_ids\": [1], \"stop_token_ids\": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
         "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}",
         "the number of `stop_token_ids` must be from 0 to 64, not 65"},
    };
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 300;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        const char *line = cases[i].line;
        CHECK(qrun_session_submit_json(session, line, strlen(line), "line 4", &request, false, NULL, NULL, &error) !=
              QRUN_OK);
        CHECK_MSG(strstr(error.message, cases[i].message) != NULL && strstr(error.message, "line 4: ") == error.message,
                  "%s: %s", line, error.message);
    }
    qrun_error error = QRUN_ERROR_INIT;
    request.token_ids = end_prompt, request.n_token_ids = 3, request.n_stop_token_ids = 1;
    CHECK_INT(qrun_session_submit(session, &request, NULL, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "`stop_token_ids` is NULL") != NULL, "%s", error.message);
    qrun_session_destroy(session);
}

/* ---- Where rules come from --------------------------------------------------------------------------------------- */

static int32_t first_token(qrun_session *session, const qrun_request_params *request, const char *line) {
    run_record record = {.n_done = 0};
    qrun_request_params params = *request;
    qrun_error error = QRUN_ERROR_INIT;
    params.on_event = run_on_event, params.user = &record;
    const qrun_status status = line != NULL ? qrun_session_submit_json(session, line, strlen(line), "line 1", &params,
                                                                       false, NULL, NULL, &error)
                                            : qrun_session_submit(session, &params, NULL, &error);
    CHECK_MSG(status == QRUN_OK, "%s", error.message);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    return record.samples[0].tokens[0];
}

static void copy_file(const temporary_folder *folder, const char *name) {
    char path[512], *bytes = NULL;
    size_t n_bytes = 0;
    snprintf(path, sizeof path, FIXTURES "models/llama/%s", name);
    CHECK(qr_file_read(path, SIZE_MAX, &bytes, &n_bytes, NULL) == QRUN_OK);
    temporary_write(folder, name, bytes, n_bytes);
    qr_free(bytes);
}

static void test_rules_of_the_model_and_of_a_line(void) {
    const temporary_folder folder = temporary_create();
    copy_file(&folder, "config.json");
    copy_file(&folder, "model.safetensors");
    /* Of 17 400 33 transformers continues with 965. */
    temporary_text(&folder, "generation_config.json",
                   "{\"eos_token_id\": 2, \"suppress_tokens\": [965, 99999], \"max_new_tokens\": 3, \"num_beams\": 4, "
                   "\"transformers_version\": \"5\"}");
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    model_params.path = folder.path, model_params.quant = QRUN_QUANT_F32, model_params.dtype = QRUN_DTYPE_F32;
    qrun_model *own = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_model_open(context, &model_params, &own, &error) == QRUN_OK, "%s", error.message);
    REQUIRE(own != NULL);
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    CHECK(qrun_model_get_info(own, &info, NULL) == QRUN_OK);
    CHECK_STR(info.not_obeyed, "num_beams");
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 300;
    qrun_session *session = run_session(own, &params);
    REQUIRE(session != NULL);

    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    static const int32_t prompt[] = {17, 400, 33};
    request.token_ids = prompt, request.n_token_ids = 3, request.max_tokens = 2;
    CHECK_INT(first_token(session, &request, NULL), 965); /* the caller decides whether the model's file counts */
    CHECK(qrun_request_params_from_model(own, &request, NULL) == QRUN_OK);
    CHECK_INT(request.max_tokens, 3);
    const int32_t second_best = first_token(session, &request, NULL);
    CHECK(second_best != 965);

    /* A line's members count instead of those, one by one. */
    request.token_ids = NULL, request.n_token_ids = 0;
    char line[256];
    CHECK_INT(first_token(session, &request, "{\"token_ids\": [17, 400, 33]}"), second_best);
    CHECK_INT(first_token(session, &request, "{\"token_ids\": [17, 400, 33], \"suppress_tokens\": []}"), 965);
    CHECK_INT(first_token(session, &request, "{\"token_ids\": [17, 400, 33], \"no_repeat_ngram_size\": 9}"),
              second_best);
    snprintf(line, sizeof line, "{\"token_ids\": [17, 400, 33], \"bad_words_ids\": [[400, 33, %d]]}", second_best);
    const int32_t third_best = first_token(session, &request, line);
    CHECK(third_best != 965 && third_best != second_best);
    static const char outside[] = "{\"token_ids\": [17], \"suppress_tokens\": [99999]}";
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(
        qrun_session_submit_json(session, outside, strlen(outside), "line 7", &request, false, NULL, NULL, &error),
        QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(error.message, "line 7: \"suppress_tokens\" has token 99999, which is outside") != NULL, "%s",
              error.message);
    qrun_session_destroy(session);
    qrun_model_destroy(own);
    temporary_remove(&folder);
}

static void test_what_is_refused(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 300;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"[1]", "`generation_json` is not a JSON object"},
        {"{\"supress_tokens\": [1]}", "`generation_json`: \"supress_tokens\" is not a member of it"},
        {"{\"bad_words_ids\": 3}", "`generation_json`: \"bad_words_ids\" must be a list of lists of token ids"},
        {"{", "`generation_json`"},
        {"{\"suppress_tokens\": [1, 99999]}",
         "`generation_json`: \"suppress_tokens\" has token 99999, which is outside the vocabulary of "},
        {"{\"begin_suppress_tokens\": [99999]}", "`generation_json`: \"begin_suppress_tokens\" has token 99999"},
        {"{\"bad_words_ids\": [[1], [99999, 2]]}", "`generation_json`: \"bad_words_ids\" has token 99999"},
        {"{\"sequence_bias\": [[[99999], 1]]}", "`generation_json`: \"sequence_bias\" has token 99999"},
    };
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    static const int32_t prompt[] = {17, 400, 33};
    request.token_ids = prompt, request.n_token_ids = 3, request.max_tokens = 4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        request.generation_json = cases[i].json;
        CHECK_INT(qrun_session_submit(session, &request, NULL, &error), QRUN_ERROR_INPUT);
        CHECK_MSG(strstr(error.message, cases[i].message) != NULL, "%s: %s", cases[i].json, error.message);
    }
    qrun_session_destroy(session);
}

static void keep_error(void *user, const qrun_event *event) {
    if (event->type == QRUN_EVENT_ERROR) { snprintf(user, 256, "%s", event->message); }
}

/* Every id is suppressed: the request fails alone. */
static void test_rules_that_leave_no_token(void) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 300;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    CHECK(qrun_model_get_info(model, &info, NULL) == QRUN_OK);
    char *json = qr_alloc((size_t)info.vocab_size * 6 + 64), *end = json;
    REQUIRE(json != NULL);
    end += sprintf(end, "{\"suppress_tokens\":[0");
    for (int32_t i = 1; i < info.vocab_size; i++) { end += sprintf(end, ",%d", i); }
    sprintf(end, "]}");
    char message[256] = "";
    run_record other = {.n_done = 0};
    static const int32_t prompt[] = {17, 400, 33};
    for (int i = 0; i < 2; i++) {
        qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
        request.token_ids = prompt, request.n_token_ids = 3, request.max_tokens = 4, request.temperature = (float)i;
        request.generation_json = json, request.on_event = keep_error, request.user = message, message[0] = '\0';
        CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
        request.generation_json = NULL, request.on_event = run_on_event, request.user = &other, other.n_last = 0;
        other = (run_record){.n_done = 0};
        CHECK(qrun_session_submit(session, &request, NULL, NULL) == QRUN_OK);
        CHECK(qrun_session_run(session, NULL) == QRUN_OK);
        CHECK_STR(message, "the rules of the request and of generation_config.json leave no token to continue with");
        CHECK(other.n_last == 1 && other.n_errors == 0);
    }
    qr_free(json);
    qrun_session_destroy(session);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    qr_error err = {0};
    if (qr_json_read(FIXTURES "goldens/logit_rules.json", 1 << 20, &goldens, &err) != QRUN_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    model = run_open_fixture(context, read_text(goldens, "model"), QRUN_QUANT_F32, QRUN_DTYPE_F32);
    if (model == NULL) { return 1; }
    read_texts();
    CHECK_RUN(test_rows);
    CHECK_RUN(test_cutoffs);
    CHECK_RUN(test_shares_too_small_for_a_number);
    CHECK_RUN(test_answers);
    CHECK_RUN(test_min_tokens_as_in_transformers);
    CHECK_RUN(test_stop_token_ids);
    CHECK_RUN(test_ends_that_are_refused);
    CHECK_RUN(test_rules_of_the_model_and_of_a_line);
    CHECK_RUN(test_what_is_refused);
    CHECK_RUN(test_rules_that_leave_no_token);
    for (int i = 0; i < n_texts; i++) { cJSON_free(texts[i].rules); }
    qr_json_free(goldens);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return check_end();
}
