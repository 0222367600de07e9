/* Kept prefixes of a model that ranks share, in processes of their own: pages that left the pool come back from every
 * rank's host memory or files, with the bits of computed ones. Where one rank lacks its file, none uses the page. */
#include "check.h"

#include "qrun.h"
#include "rank_processes.h"
#include "temporary.h"

enum { MAX_RANKS = 3, N_REQUESTS = 4, N_PROMPT = 70, N_ANSWER = 6 };

typedef struct phase {
    int64_t kv_tokens, host_bytes;
    int32_t n_rounds;
    bool files, keeps, tears; /* tears: rank 1 has lost its files before */
} phase;

/* From host memory; with little of it, so that files take over; after a restart; with files of some ranks alone. */
static const phase phases[] = {{130, 1 << 20, 2, .files = false},
                               {130, 1 << 14, 2, .files = true, .keeps = true},
                               {4000, 0, 1, .files = true},
                               {4000, 0, 1, .files = true, .tears = true}};
enum { N_PHASES = sizeof phases / sizeof phases[0] };

typedef struct prefix_case {
    int32_t n_ranks;
    const char *folder;
    qrun_quant quant;
    qrun_kv kv;
    const char *files;
} prefix_case;

typedef struct answer {
    int32_t tokens[N_ANSWER];
    float logprobs[N_ANSWER];
    int32_t n;
} answer;

typedef struct measurement {
    bool done;
    int64_t planned, peak; /* of the first session */
    int64_t restored[N_PHASES];
    answer answers[N_PHASES][N_REQUESTS]; /* of the last round */
    char note[192];
} measurement;

static void take_token(void *user, const qrun_event *event) {
    answer *a = user;
    if (event->type != QRUN_EVENT_TOKEN || a->n == N_ANSWER) { return; }
    a->tokens[a->n] = event->token_id;
    a->logprobs[a->n++] = event->logprob;
}

/* Requests 2 i and 2 i + 1 begin alike. */
static qrun_status submit(qrun_session *session, int r, answer *a, qrun_error *error) {
    int32_t prompt[N_PROMPT];
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    for (int i = 0; i < N_PROMPT; i++) { prompt[i] = 3 + (i * 31 + (i < 40 ? r / 2 : r) * 97) % 900; }
    request.token_ids = prompt, request.n_token_ids = N_PROMPT, request.max_tokens = N_ANSWER;
    request.ignore_eos = true, request.logprobs = 1, request.on_event = take_token, request.user = a;
    *a = (answer){.n = 0};
    QR_RETURN_IF_ERROR(qrun_session_submit(session, &request, NULL, error));
    return qrun_session_run(session, error);
}

static qrun_status lead(qrun_session *session, int p, measurement *m, qrun_error *error) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    for (int i = 0; i < phases[p].n_rounds * N_REQUESTS; i++) {
        QR_RETURN_IF_ERROR(submit(session, i % N_REQUESTS, &m->answers[p][i % N_REQUESTS], error));
    }
    if (phases[p].keeps) { QR_RETURN_IF_ERROR(qrun_session_keep_prefixes(session, error)); }
    QR_RETURN_IF_ERROR(qrun_session_get_stats(session, &stats, error));
    m->restored[p] = stats.restored_prompt_tokens;
    memcpy(m->note, stats.cache_note, sizeof m->note);
    return QRUN_OK;
}

static qrun_status run_phase(const prefix_case *c, qrun_model *model, int32_t rank, int p, measurement *m,
                             qrun_error *error) {
    qrun_session *session = NULL;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_status status;
    char own[512];
    snprintf(own, sizeof own, "%s/rank-1-of-%d", c->files, (int)c->n_ranks);
    if (phases[p].tears && rank == 1) { temporary_remove_tree(own); }
    params.kv = c->kv, params.kv_tokens = phases[p].kv_tokens, params.max_sequences = 1, params.max_step_tokens = 32;
    params.prefix_cache_bytes = phases[p].host_bytes, params.cache_dir = phases[p].files ? c->files : NULL;
    QR_TRY(qrun_session_create(model, &params, &session, error));
    QR_TRY(rank == 0 ? lead(session, p, m, error) : qrun_session_run(session, error));
    if (rank > 0) { CHECK_INT(qrun_session_keep_prefixes(session, NULL), QRUN_ERROR_ARGUMENT); }
    QR_TRY(qrun_session_get_stats(session, &stats, error));
    if (p == 0) { m->planned = stats.planned_bytes, m->peak = stats.peak_bytes; }
out:
    qrun_session_destroy(session);
    return status;
}

static qrun_status run_rank(const void *arg, int32_t rank, void *result, qrun_error *error) {
    const prefix_case *c = arg;
    measurement *m = result;
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_status status;
    context_params.ranks = true, context_params.n_threads = 1, context_params.collective_timeout = 60;
    params.path = c->folder, params.quant = c->quant, params.tensor_parallel = c->n_ranks;
    QR_TRY(qrun_context_create(&context_params, &context, error));
    QR_TRY(qrun_model_open(context, &params, &model, error));
    for (int p = 0; p < N_PHASES; p++) { QR_TRY(run_phase(c, model, rank, p, m, error)); }
    m->done = true;
out:
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return status;
}

static void check(prefix_case c) {
    static measurement alone[MAX_RANKS], of[MAX_RANKS];
    const temporary_folder files = temporary_create(), files_alone = temporary_create();
    c.files = files.path;
    rank_processes_run(run_rank, &c, c.n_ranks, of, sizeof *of);
    prefix_case one = c;
    one.n_ranks = 1, one.files = files_alone.path;
    rank_processes_run(run_rank, &one, 1, alone, sizeof *alone);
    REQUIRE(alone[0].done && of[0].done);
    CHECK_INT(alone[0].answers[0][0].n, N_ANSWER);
    for (int p = 0; p < N_PHASES; p++) {
        const bool same = memcmp(of[0].answers[p], alone[0].answers[0], sizeof of[0].answers[p]) == 0;
        CHECK_MSG(same, "%s on %d ranks, phase %d: other bits", c.folder, (int)c.n_ranks, p);
        CHECK_MSG((of[0].restored[p] > 0) == !phases[p].tears, "phase %d: %lld tokens came back", p,
                  (long long)of[0].restored[p]);
        if (!phases[p].tears) { CHECK_INT(of[0].restored[p], alone[0].restored[p]); }
    }
    CHECK_MSG(strstr(of[0].note, "another rank has no such file") != NULL, "the note is \"%s\"", of[0].note);
    for (int32_t r = 0; r < c.n_ranks; r++) {
        CHECK_MSG(of[r].peak == of[r].planned, "rank %d of %d: %lld bytes held at most, %lld planned", (int)r,
                  (int)c.n_ranks, (long long)of[r].peak, (long long)of[r].planned);
    }
    temporary_remove(&files);
    temporary_remove(&files_alone);
}

static void test_kept_prefixes_come_back_on_all_ranks(void) {
    check((prefix_case){2, QRUN_SOURCE_DIR "/examples/model", QRUN_QUANT_BF16, QRUN_KV_AUTO, NULL});
    check((prefix_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/gemma3", QRUN_QUANT_NF4, QRUN_KV_INT8, NULL});
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_kept_prefixes_come_back_on_all_ranks);
    return check_end();
}
