/* A model that ranks share, in processes of their own: what each of them holds at most is its plan to the byte, and
 * what the others send is the plan's count to the byte. Plans need no ranks. */
#include "check.h"

#include "base/sizes.h"
#include "qrun.h"
#include "rank_processes.h"
#include "runtime/generate/session.h"
#include "runtime/ranks/split_ranks.h"
#include "temporary.h"

enum { MAX_RANKS = 6, N_PROMPT = 21, N_ANSWER = 9 };

typedef struct split_case {
    int32_t n_ranks;
    const char *folder;
    qrun_quant quant;
    qrun_dtype dtype;
    const char *adapter; /* NULL: none */
    int32_t n_sharing;   /* ranks that have the same heads for keys and values; 0: 1 */
    bool offloads;       /* each rank streams its rows of the layers; one that is alone holds them all */
} split_case;

typedef struct measurement {
    bool done;
    int64_t planned, planned_before, peak; /* bytes held */
    int64_t weights, pages, sent, sent_planned;
    int32_t tokens[N_ANSWER];
    int32_t n_tokens, n_layers;
    bool streams;
} measurement;

static void take_token(void *user, const qrun_event *event) {
    measurement *m = user;
    if (event->type == QRUN_EVENT_TOKEN && m->n_tokens < N_ANSWER) { m->tokens[m->n_tokens++] = event->token_id; }
}

static qrun_status answer(qrun_session *session, const qrun_adapter *adapter, int32_t rank, measurement *m,
                          qrun_error *error) {
    int32_t prompt[N_PROMPT];
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    for (int32_t i = 0; i < N_PROMPT; i++) { prompt[i] = 7 * i + 3; }
    request.token_ids = prompt, request.n_token_ids = N_PROMPT, request.max_tokens = N_ANSWER;
    request.ignore_eos = true, request.on_event = take_token, request.user = m;
    request.adapter = adapter;
    if (rank == 0) { QR_RETURN_IF_ERROR(qrun_session_submit(session, &request, NULL, error)); }
    return qrun_session_run(session, error); /* the others follow */
}

static int64_t entry_of(const qrun_session *session, const char *category) {
    int32_t n;
    const qrun_plan_entry *plan = qrun_session_plan(session, &n);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(plan[i].category, category) == 0) { return plan[i].bytes; }
    }
    return -1;
}

static qrun_status plan_before(const qrun_model_params *params, const qrun_session_params *session, int32_t rank,
                               measurement *m, qrun_error *error) {
    qrun_context *context = NULL;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_model_params model = *params;
    qrun_plan_entry *entries = NULL;
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    int32_t n;
    qrun_status status;
    model.tensor_rank = rank;
    context_params.n_threads = 1;
    QR_TRY(qrun_context_create(&context_params, &context, error));
    status = qrun_plan_session(context, &model, session, &entries, &n, &info, error);
    m->planned_before = info.total_bytes;
    CHECK_INT(info.rank, rank);
    qrun_free(entries);
out:
    qrun_context_destroy(context);
    return status;
}

static qrun_status run(const split_case *c, int32_t rank, measurement *m, qrun_error *error) {
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_session *session = NULL;
    qrun_adapter *adapter = NULL;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    qrun_status status;
    context_params.ranks = true, context_params.n_threads = 1, context_params.collective_timeout = 60;
    params.path = c->folder, params.quant = c->quant, params.dtype = c->dtype, params.tensor_parallel = c->n_ranks;
    if (c->offloads && c->n_ranks > 1) { params.offload_parameters = QRUN_OFFLOAD_ALL; }
    session_params.kv_tokens = 512, session_params.max_sequences = 3, session_params.max_step_tokens = 8;
    session_params.speculate = "off";
    QR_TRY(plan_before(&params, &session_params, rank, m, error));
    QR_TRY(qrun_context_create(&context_params, &context, error));
    QR_TRY(qrun_model_open(context, &params, &model, error));
    if (c->adapter != NULL) { QR_TRY(qrun_adapter_open(model, c->adapter, NULL, &adapter, error)); }
    QR_TRY(qrun_session_create(model, &session_params, &session, error));
    const int64_t sent_before = c->n_ranks > 1 ? context->ranks->sent_bytes : 0;
    QR_TRY(answer(session, adapter, rank, m, error));
    QR_TRY(qrun_session_get_stats(session, &stats, error));
    QR_TRY(qrun_model_get_info(model, &info, error));
    m->n_layers = info.n_layers, m->streams = info.offloads_parameters;
    m->done = true;
    m->planned = stats.planned_bytes, m->peak = stats.peak_bytes;
    m->weights = entry_of(session, "weights"), m->pages = entry_of(session, "kv pages");
    m->planned_before += qr_max(0, entry_of(session, "adapters")); /* a plan knows of none */
    m->sent = c->n_ranks > 1 ? context->ranks->sent_bytes - sent_before : 0;
    m->sent_planned = qr_split_sent_bytes(model, N_PROMPT + N_ANSWER - 1, N_ANSWER);
out:
    qrun_session_destroy(session);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return status;
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

static qrun_status run_rank(const void *arg, int32_t rank, void *result, qrun_error *error) {
    return run(arg, rank, result, error);
}

static void measure(const split_case *c, measurement of[MAX_RANKS]) {
    rank_processes_run(run_rank, c, c->n_ranks, of, sizeof *of);
}

/* ---- What must hold ---------------------------------------------------------------------------------------------- */

static void check(split_case c) {
    measurement alone[MAX_RANKS] = {{.done = false}}, of[MAX_RANKS] = {{.done = false}}, held[MAX_RANKS];
    const measurement *resident = NULL; /* ranks that hold their rows of all layers */
    const int32_t n = c.n_ranks;
    measure(&c, of);
    if (c.offloads) {
        c.offloads = false;
        measure(&c, held);
        resident = held;
        REQUIRE(held[0].done);
    }
    c.n_ranks = 1;
    measure(&c, alone);
    REQUIRE(alone[0].done && of[0].done);
    CHECK_INT(of[0].n_tokens, N_ANSWER);
    CHECK(memcmp(of[0].tokens, alone[0].tokens, sizeof of[0].tokens) == 0);
    for (int32_t r = 0; r < n; r++) {
        const measurement *m = &of[r];
        CHECK_MSG(m->done, "rank %d of %d: no measurement", (int)r, (int)n);
        CHECK_MSG(m->peak == m->planned, "rank %d of %d: %lld bytes held at most, %lld planned", (int)r, (int)n,
                  (long long)m->peak, (long long)m->planned);
        CHECK_INT(m->planned_before, m->planned);
        CHECK_INT(m->pages * n, alone[0].pages * qr_max(1, c.n_sharing));
        CHECK(m->weights < alone[0].weights && m->streams == (resident != NULL));
        CHECK(resident == NULL || m->n_layers == 2 || m->weights < resident[r].weights); /* there are two stages */
        if (r > 0) { CHECK_INT(m->sent, m->sent_planned); } /* rank 0 announces batches besides */
    }
    CHECK(of[0].sent > of[0].sent_planned);
    printf("  %d ranks: %lld bytes of weights each, %lld alone\n", (int)n, (long long)of[0].weights,
           (long long)alone[0].weights);
}

static void test_a_rank_holds_and_sends_what_is_planned(void) {
    const char *const example = QRUN_SOURCE_DIR "/examples/model";
    check((split_case){2, example, QRUN_QUANT_F32, QRUN_DTYPE_F32, NULL, 0, false});
    check((split_case){2, example, QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, NULL, 0, false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/gemma2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, NULL, 0,
                       false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/qwen3-moe", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, NULL, 0,
                       false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/qwen2-moe", QRUN_QUANT_F32, QRUN_DTYPE_F32, NULL, 0,
                       false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/qwen3-next", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, NULL,
                       0, false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/gpt-oss", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, NULL, 0,
                       false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/phi3", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, NULL, 0,
                       false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/olmoe", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, NULL, 0,
                       false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/glm4-moe-lite", QRUN_QUANT_BF16, QRUN_DTYPE_BF16,
                       NULL, 3, false});
    check((split_case){3, QRUN_SOURCE_DIR "/tests/fixtures/models/nemotron-h", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, NULL,
                       3, false});
    check((split_case){5, QRUN_SOURCE_DIR "/tests/fixtures/models/granite4-spaces", QRUN_QUANT_BF16, QRUN_DTYPE_BF16,
                       NULL, 5, false});
    if (!CHECK_SANITIZED) { check((split_case){2, example, QRUN_QUANT_INT8, QRUN_DTYPE_F16, NULL, 0, false}); }
    const char *const llama = QRUN_SOURCE_DIR "/tests/fixtures/models/llama";
    const char *const dora = QRUN_SOURCE_DIR "/tests/fixtures/adapters/llama-dora";
    const char *const saved = QRUN_SOURCE_DIR "/tests/fixtures/adapters/llama-saved";
    check((split_case){3, llama, QRUN_QUANT_F32, QRUN_DTYPE_F32, dora, 3, false});
    check((split_case){3, llama, QRUN_QUANT_BF16, QRUN_DTYPE_BF16, saved, 3, false});
    check((split_case){6, example, QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, NULL, 3, false});
    check((split_case){6, QRUN_SOURCE_DIR "/tests/fixtures/models/olmoe", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, NULL, 2,
                       false});
}

/* ---- Layers that are streamed ------------------------------------------------------------------------------------ */

static void check_offloaded(int32_t n_ranks, const char *folder, qrun_quant quant, qrun_dtype dtype) {
    check((split_case){.n_ranks = n_ranks, .folder = folder, .quant = quant, .dtype = dtype, .offloads = true});
}

/* A folder of the model in that format, in `parent`. */
static const char *quantised(const temporary_folder *parent, const char *path, qrun_quant quant, const char *name) {
    qrun_context *context = NULL;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    const char *out = temporary_path(parent, name);
    context_params.n_threads = 1;
    params.path = path, params.out = out, params.quant = quant;
    CHECK(qrun_context_create(&context_params, &context, &error) == QRUN_OK);
    CHECK_MSG(qrun_quantize_folder(context, &params, &error) == QRUN_OK, "%s", error.message);
    qrun_context_destroy(context);
    return out;
}

/* From the folder, whatever it stores: plain rows, scales of rows and of blocks, nested ones that begin inside of a
 * group of 256 and so are held in F32; matrices of several ranges, which meet inside of a group of rows. */
static void test_a_rank_streams_its_rows(void) {
    static const char *const fused[] = {QRUN_SOURCE_DIR "/tests/fixtures/models/phi3",
                                        QRUN_SOURCE_DIR "/tests/fixtures/models/qwen3-next"};
    static const qrun_quant quants[] = {QRUN_QUANT_NF4, QRUN_QUANT_NF4_DQ, QRUN_QUANT_INT8};
    const char *const example = QRUN_SOURCE_DIR "/examples/model";
    const temporary_folder parent = temporary_create();
    char name[64];
    check_offloaded(2, example, QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
    check_offloaded(3, QRUN_SOURCE_DIR "/tests/fixtures/models/olmoe", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    for (size_t i = 0; i < QR_COUNT_OF(quants); i++) {
        for (size_t k = 0; k < QR_COUNT_OF(fused); k++) {
            snprintf(name, sizeof name, "fused-%zu-%zu", i, k);
            check_offloaded(3, quantised(&parent, fused[k], quants[i], name), QRUN_QUANT_AUTO, QRUN_DTYPE_F32);
        }
        snprintf(name, sizeof name, "example-%zu", i);
        check_offloaded(2, quantised(&parent, example, quants[i], name), QRUN_QUANT_AUTO, QRUN_DTYPE_BF16);
    }
    for (size_t k = 0; k < QR_COUNT_OF(fused); k++) { check_offloaded(3, fused[k], QRUN_QUANT_BF16, QRUN_DTYPE_BF16); }
    temporary_remove(&parent);
}

/* ---- Plans alone ------------------------------------------------------------------------------------------------- */

static int64_t weights_of(qrun_context *context, const char *shape, int32_t n_ranks, int32_t rank, int64_t *pages) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params session = QRUN_SESSION_PARAMS_INIT;
    qrun_plan_entry *entries = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    int64_t weights = -1;
    int32_t n = 0;
    params.path = shape, params.random_weights = true;
    params.tensor_parallel = n_ranks, params.tensor_rank = rank;
    session.kv_tokens = 4096, session.max_sequences = 4, session.memory_bytes = INT64_C(1) << 45;
    CHECK_MSG(qrun_plan_session(context, &params, &session, &entries, &n, NULL, &error) == QRUN_OK, "%s",
              error.message);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(entries[i].category, "weights") == 0) { weights = entries[i].bytes; }
        if (strcmp(entries[i].category, "kv pages") == 0) { *pages = entries[i].bytes; }
    }
    qrun_free(entries);
    return weights;
}

/* An 8B model: a rank holds its share, with the embedding and norms. */
static void test_a_share_is_a_share(void) {
    const char *const shape = QRUN_SOURCE_DIR "/bench/shapes/llama-3.1-8b.json";
    const int64_t embedding = INT64_C(128256) * 4096 * 2;
    qrun_context *context = NULL;
    int64_t all_pages = 0, pages = 0;
    REQUIRE(qrun_context_create(NULL, &context, NULL) == QRUN_OK);
    const int64_t all = weights_of(context, shape, 1, 0, &all_pages);
    for (int32_t n = 2; n <= 8; n *= 2) {
        for (int32_t r = 0; r < n; r++) {
            const int64_t share = weights_of(context, shape, n, r, &pages) - embedding;
            CHECK_MSG(llabs(share - (all - embedding) / n) < (all - embedding) / 500,
                      "rank %d of %d plans %lld bytes of %lld", (int)r, (int)n, (long long)share,
                      (long long)(all - embedding));
            CHECK_INT(pages * n, all_pages);
        }
    }
    /* 32 ranks share 8 heads for keys and values. */
    const int64_t kv = INT64_C(2) * 1024 * 4096 * 32 / 8 * 4 / 8; /* elements of the four that have the same head */
    const int64_t share = weights_of(context, shape, 32, 31, &pages) - embedding;
    CHECK(share > (all - embedding) / 32 && share < (all - embedding) / 32 + kv);
    CHECK_INT(pages * 8, all_pages);
    qrun_context_destroy(context);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_a_share_is_a_share);
    CHECK_RUN(test_a_rank_holds_and_sends_what_is_planned);
    CHECK_RUN(test_a_rank_streams_its_rows);
    return check_end();
}
