/* Prefixes of models whose layers carry a state along: a turn continues from the snapshot at the end of the one before.
 * It computes its new tokens only, and gives the bits of the whole conversation computed at once. */
#include "check.h"

#include "base/sizes.h"
#include "runtime/generate/session.h"
#include "session_run.h"

enum { MAX_IDS = 250 };

static qrun_context *context;

static void count_ids(int32_t *ids, int32_t n, int32_t step) {
    for (int32_t i = 0; i < n; i++) { ids[i] = 3 + i * step % 900; }
}

/* Runs one request to its end; returns the prompt tokens that the session computed for it. */
static int64_t run(qrun_session *session, const int32_t *ids, int32_t n_ids, int32_t max_tokens, run_record *record) {
    qrun_session_stats before = QRUN_SESSION_STATS_INIT, after = QRUN_SESSION_STATS_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    memset(record, 0, sizeof *record);
    request.token_ids = ids, request.n_token_ids = n_ids, request.max_tokens = max_tokens, request.logprobs = 20;
    request.ignore_eos = true, request.on_event = run_on_event, request.user = record;
    CHECK(qrun_session_get_stats(session, &before, NULL) == QRUN_OK);
    CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
    CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message);
    CHECK(qrun_session_get_stats(session, &after, NULL) == QRUN_OK);
    CHECK_INT(record->samples[0].n_tokens, max_tokens);
    return after.prompt_tokens - before.prompt_tokens;
}

static qrun_session *make_session(qrun_model *model, bool share, int32_t max_sequences, int32_t step_tokens) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = max_sequences, params.max_step_tokens = step_tokens, params.no_prefix_sharing = !share;
    params.kv_tokens = 1000;
    return run_session(model, &params);
}

/* Turns of several lengths, so that they end inside a page and at its border. Another conversation comes between them.
 */
static void check_conversation(qrun_model *model, int32_t first_prompt, int32_t step_tokens) {
    static const int32_t answers[] = {12, 21, 8}, news[] = {9, 1, 30};
    static int32_t ids[MAX_IDS], others[MAX_IDS];
    static run_record turn, at_once, other;
    qrun_session *session = make_session(model, true, 4, step_tokens);
    qrun_session *alone = make_session(model, false, 1, 512);
    if (session == NULL || alone == NULL) { return; }
    count_ids(ids, first_prompt, 7);
    count_ids(others, 40, 11);
    int32_t n = first_prompt, computed = 0;
    for (size_t t = 0; t < QR_COUNT_OF(answers); t++) {
        const int64_t n_prompt = run(session, ids, n, answers[t], &turn);
        CHECK_MSG(turn.samples[0].cached_tokens == computed,
                  "turn %zu of a prompt of %d: %d tokens cached, %d computed", t, first_prompt,
                  turn.samples[0].cached_tokens, computed);
        CHECK_INT(n_prompt, n - computed);
        CHECK_INT(run(alone, ids, n, answers[t], &at_once), n);
        run_samples_are_equal(&turn.samples[0], &at_once.samples[0], "a turn of a conversation");
        (void)run(session, others, 40, 5, &other);
        memcpy(ids + n, turn.samples[0].tokens, (size_t)answers[t] * sizeof *ids);
        n += answers[t];
        computed = n - 1; /* the last token of an answer is computed by what follows it */
        for (int32_t i = 0; i < news[t]; i++) { ids[n++] = 500 + 13 * i; }
    }
    qrun_session_destroy(session);
    qrun_session_destroy(alone);
}

static void test_a_turn_computes_its_new_tokens_only(void) {
    static const char *const folders[] = {"models/qwen3_5", "models/qwen3_5-images", "models/qwen3-next"};
    for (size_t f = 0; f < QR_COUNT_OF(folders); f++) {
        qrun_model *model = run_open_fixture(context, folders[f], QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16);
        if (model == NULL) { return; }
        for (int32_t first = 19; first <= 22; first++) { check_conversation(model, first, first % 2 == 0 ? 512 : 7); }
        qrun_model_destroy(model);
    }
}

/* Of a long prompt another shares what ends at an interval, whatever comes after. */
static void test_long_prompts_are_kept_at_intervals(void) {
    static int32_t ids[MAX_IDS], longer[MAX_IDS];
    static run_record first, second, at_once;
    qrun_model *model = run_open_fixture(context, "models/qwen3_5", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    if (model == NULL) { return; }
    qrun_session *session = make_session(model, true, 8, 100), *alone = make_session(model, false, 1, 512);
    if (session == NULL || alone == NULL) { return; }
    session->sizes.snapshot_tokens = 2 * QR_KV_PAGE_TOKENS;
    count_ids(ids, 140, 7);
    count_ids(longer, 200, 7);
    for (int32_t i = 110; i < 200; i++) { longer[i] = 900 - i; }
    (void)run(session, ids, 140, 3, &first);
    CHECK_INT(run(session, longer, 200, 10, &second), 200 - 96);
    (void)run(alone, longer, 200, 10, &at_once);
    CHECK_INT(second.samples[0].cached_tokens, 96);
    run_samples_are_equal(&second.samples[0], &at_once.samples[0], "a long prompt that shares another's beginning");
    qrun_session_destroy(session);
    qrun_session_destroy(alone);
    qrun_model_destroy(model);
}

/* A text that is scored between two turns uses a slot, and no snapshot is of what it left there. */
static void test_scoring_between_turns(void) {
    static int32_t ids[MAX_IDS], text[60];
    static run_record turn, at_once;
    qrun_model *model = run_open_fixture(context, "models/qwen3_5", QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
    if (model == NULL) { return; }
    qrun_session *session = make_session(model, true, 1, 512), *alone = make_session(model, false, 1, 512);
    if (session == NULL || alone == NULL) { return; }
    const qrun_eval_params params = QRUN_EVAL_PARAMS_INIT;
    qrun_eval_result result[2] = {QRUN_EVAL_RESULT_INIT, QRUN_EVAL_RESULT_INIT};
    count_ids(ids, 30, 7);
    count_ids(text, 60, 11);
    (void)run(session, ids, 30, 4, &turn);
    memcpy(ids + 30, turn.samples[0].tokens, 4 * sizeof(int32_t));
    ids[34] = 77;
    CHECK(qrun_session_eval_tokens(session, text, 60, &params, &result[0], NULL) == QRUN_OK);
    CHECK(qrun_session_eval_tokens(alone, text, 60, &params, &result[1], NULL) == QRUN_OK);
    CHECK(result[0].mean_nll == result[1].mean_nll);
    CHECK_INT(run(session, ids, 35, 9, &turn), 35 - 33);
    (void)run(alone, ids, 35, 9, &at_once);
    run_samples_are_equal(&turn.samples[0], &at_once.samples[0], "a turn after a text was scored");
    qrun_session_destroy(session);
    qrun_session_destroy(alone);
    qrun_model_destroy(model);
}

/* One snapshot for two conversations: the one that lost it is computed again, with the same bits. */
static void test_too_few_snapshots(void) {
    static int32_t ids[2][MAX_IDS];
    static run_record turn, at_once;
    qrun_model *model = run_open_fixture(context, "models/qwen3_5", QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
    if (model == NULL) { return; }
    qrun_session *session = make_session(model, true, 1, 512), *alone = make_session(model, false, 1, 512);
    if (session == NULL || alone == NULL) { return; }
    CHECK_INT(session->sizes.n_snapshots, 1);
    for (int c = 0; c < 2; c++) {
        count_ids(ids[c], 30, 7 + 4 * c);
        (void)run(session, ids[c], 30, 4, &turn);
        memcpy(ids[c] + 30, turn.samples[0].tokens, 4 * sizeof(int32_t));
        ids[c][34] = 77;
    }
    CHECK_INT(run(session, ids[0], 35, 9, &turn), 35);
    (void)run(alone, ids[0], 35, 9, &at_once);
    run_samples_are_equal(&turn.samples[0], &at_once.samples[0], "a conversation that lost its snapshot");
    qrun_session_destroy(session);
    qrun_session_destroy(alone);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_a_turn_computes_its_new_tokens_only);
    CHECK_RUN(test_long_prompts_are_kept_at_intervals);
    CHECK_RUN(test_scoring_between_turns);
    CHECK_RUN(test_too_few_snapshots);
    qrun_context_destroy(context);
    return check_end();
}
