/* A request's tokens and log probabilities are the same to the bit whatever surrounds it: alone, in a crowd, in chunks,
 * from a shared prefix, preempted, on one thread or two, with other adapters in the batch. */
#include "check.h"

#include "base/random.h"
#include "session_run.h"

enum { N_REQUESTS = 64, MAX_PROMPT = 130, N_ADAPTERS = 2 };

static qrun_context *contexts[2]; /* one thread, two threads */

/* ---- A mixed crowd ----------------------------------------------------------------------------------------------- */

typedef struct crowd {
    int32_t ids[N_REQUESTS][MAX_PROMPT];
    qrun_request_params params[N_REQUESTS];
} crowd;

static uint64_t n_draws;
static int32_t draw(int32_t below) { return (int32_t)(qr_random_uniform(77, 0, n_draws++) * below); }

/* Some prompts begin alike, so that there is something to share; lengths and options of all kinds. */
static void make_crowd(crowd *c, int32_t longest) {
    n_draws = 0;
    for (int r = 0; r < N_REQUESTS; r++) {
        int32_t n = r % 8 == 0 ? 1 + draw(3) : 1 + draw(MAX_PROMPT - 1);
        n = n < longest ? n : longest - 1;
        for (int32_t i = 0; i < n; i++) { c->ids[r][i] = r % 3 == 0 && i < 70 ? 3 + i * 7 % 900 : 3 + draw(1000); }
        qrun_request_params *p = &c->params[r];
        *p = (qrun_request_params)QRUN_REQUEST_PARAMS_INIT;
        p->token_ids = c->ids[r], p->n_token_ids = n;
        p->max_tokens = 1 + draw(30);
        p->logprobs = r % 3 == 1 ? 0 : r % 9 == 0 ? -1 : 20;
        p->ignore_eos = r % 5 != 0;
        p->on_event = run_on_event;
        if (r % 2 == 0) { p->temperature = 0.8F, p->top_p = 0.95F; }
        if (r % 4 == 1) { p->temperature = 1.5F, p->top_k = 40; }
        if (r % 7 == 0) { p->repetition_penalty = 1.3F; }
        if (r % 6 == 0) { p->has_seed = true, p->seed = (uint64_t)r; }
    }
}

static void submit(qrun_session *session, const qrun_request_params *params, run_record *record) {
    qrun_request_params copy = *params;
    copy.user = record;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_submit(session, &copy, NULL, &error) == QRUN_OK, "%s", error.message);
}

static void check_idle(qrun_session *session, qrun_session_stats *stats) {
    *stats = (qrun_session_stats)QRUN_SESSION_STATS_INIT;
    CHECK(qrun_session_get_stats(session, stats, NULL) == QRUN_OK);
    CHECK_INT(stats->pages_used, 0);
    CHECK_INT(stats->n_waiting + stats->n_running, 0);
}

static void run_all(qrun_session *session) {
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message);
}

/* Everything at once in a session of these parameters; returns its statistics. */
static qrun_session_stats run_crowd(qrun_model *model, const qrun_session_params *params, const crowd *c,
                                    run_record *records) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_session *session = run_session(model, params);
    if (session == NULL) { return stats; }
    memset(records, 0, N_REQUESTS * sizeof *records);
    for (int r = 0; r < N_REQUESTS; r++) { submit(session, &c->params[r], &records[r]); }
    run_all(session);
    check_idle(session, &stats);
    int64_t n_cached = 0;
    for (int r = 0; r < N_REQUESTS; r++) { n_cached += records[r].samples[0].cached_tokens; }
    CHECK_INT(stats.cached_prompt_tokens, n_cached);
    qrun_session_destroy(session);
    return stats;
}

/* Each in turn, in a session without sharing, the whole prompt in one step. */
static void run_alone(qrun_model *model, qrun_kv kv, const crowd *c, run_record *records) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv = kv, params.max_sequences = 1, params.no_prefix_sharing = true, params.max_step_tokens = 512;
    params.kv_tokens = 256;
    qrun_session *session = run_session(model, &params);
    if (session == NULL) { return; }
    memset(records, 0, N_REQUESTS * sizeof *records);
    for (int r = 0; r < N_REQUESTS; r++) {
        submit(session, &c->params[r], &records[r]);
        run_all(session);
    }
    qrun_session_destroy(session);
}

static void compare(const run_record *records, const run_record *alone, const char *what) {
    for (int r = 0; r < N_REQUESTS; r++) {
        char name[256];
        snprintf(name, sizeof name, "%s, request %d", what, r);
        CHECK_MSG(records[r].n_last == 1 && !records[r].malformed && records[r].n_errors == 0, "%s: its events", name);
        if (!run_samples_are_equal(&records[r].samples[0], &alone[r].samples[0], name)) { return; }
    }
}

/* ---- All the ways to run it -------------------------------------------------------------------------------------- */

static const struct surrounding {
    const char *what;
    int32_t max_sequences, max_step_tokens;
    int64_t kv_tokens;
    bool no_sharing, shares, preempts;
} surroundings[] = {
    {"among 63 others", 64, 512, 0, true, false, false},
    {"with shared prefixes", 64, 512, 0, false, true, false},
    {"in chunks of 7", 5, 7, 0, false, false, false},
    {"in chunks of 16", 16, 16, 0, true, false, false},
    {"in chunks of 33", 16, 33, 0, false, false, false},
    {"preempted", 64, 512, 192, true, false, true},
    {"preempted, chunked, shared", 32, 33, 176, false, false, true},
};

static void run_model(const char *folder, qrun_quant quant, qrun_dtype dtype, qrun_kv kv, const char *const *adapters) {
    static crowd c;
    static run_record alone[N_REQUESTS], records[N_REQUESTS];
    static size_t turn; /* the next model has the other number */
    turn++;
    for (int t = 0; t < 2; t++) {
        qrun_model *model = run_open_fixture(contexts[t], folder, quant, dtype);
        if (model == NULL) { return; }
        qrun_model_info info = QRUN_MODEL_INFO_INIT;
        CHECK(qrun_model_get_info(model, &info, NULL) == QRUN_OK);
        make_crowd(&c, info.context_tokens < MAX_PROMPT ? info.context_tokens : MAX_PROMPT);
        for (int a = 0; adapters != NULL && a < N_ADAPTERS; a++) {
            char path[512];
            snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/%s", adapters[a]);
            qrun_adapter *adapter = NULL;
            qrun_error error = QRUN_ERROR_INIT;
            CHECK_MSG(qrun_adapter_open(model, path, NULL, &adapter, &error) == QRUN_OK, "%s", error.message);
            for (int r = a; r < N_REQUESTS; r += N_ADAPTERS + 1) { c.params[r].adapter = adapter; }
        }
        if (t == 0) { run_alone(model, kv, &c, alone); }
        for (size_t s = 0; s < sizeof surroundings / sizeof *surroundings; s++) {
            const struct surrounding *around = &surroundings[s];
            if (check_thins() && (s + turn) % 2 != (size_t)t) { continue; } /* each with one number of threads */
            qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
            params.kv = kv, params.max_sequences = around->max_sequences,
            params.max_step_tokens = around->max_step_tokens;
            params.kv_tokens = around->kv_tokens > 0 ? around->kv_tokens : 64 * 256;
            params.no_prefix_sharing = around->no_sharing;
            const qrun_session_stats stats = run_crowd(model, &params, &c, records);
            char what[200];
            snprintf(what, sizeof what, "%s, quant %d, dtype %d, kv %d, %d threads, %s", folder, quant, dtype, kv,
                     t + 1, around->what);
            compare(records, alone, what);
            CHECK_MSG(!around->preempts || stats.n_preemptions > 0, "%s: nothing was preempted", what);
            CHECK_MSG(stats.cached_prompt_tokens == 0 || !around->no_sharing, "%s: shared", what);
            CHECK_MSG(stats.cached_prompt_tokens > 0 || !around->shares, "%s: nothing was shared", what);
            if (check_state.n_failures_in_case > 0) {
                t = 2;
                break;
            }
        }
        qrun_model_destroy(model);
    }
}

static void test_llama_f32(void) { run_model("models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL); }
static void test_llama_nf4_dq(void) {
    run_model("models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_llama_int8_kv_int8(void) {
    run_model("models/llama", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
static void test_gemma2_bf16(void) { run_model("models/gemma2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL); }
static void test_gemma3_nf4_kv_int8(void) {
    run_model("models/gemma3", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
static void test_qwen2_window_f32_kv_bf16(void) {
    run_model("models/qwen2-window", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_BF16, NULL);
}
static void test_mistral_int8_f32(void) {
    run_model("models/mistral", QRUN_QUANT_INT8, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL);
}
static void test_gpt2_bf16(void) { run_model("models/gpt2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL); }
static void test_phi3_nf4_dq(void) { run_model("models/phi3", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL); }
static void test_llama_nf4_dq_f16(void) {
    run_model("models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_F16, QRUN_KV_AUTO, NULL);
}
static void test_gemma3_f16(void) { run_model("models/gemma3", QRUN_QUANT_F16, QRUN_DTYPE_F16, QRUN_KV_AUTO, NULL); }
static void test_llama_dynamic_rope(void) {
    run_model("models/llama-dynamic", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_phi3_longrope(void) {
    run_model("models/phi3-longrope", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_qwen3_moe_nf4_dq(void) {
    run_model("models/qwen3-moe", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_qwen3_moe_stacked_f32(void) {
    run_model("models/qwen3-moe-stacked", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL);
}
static void test_gpt_oss_nf4_dq(void) {
    run_model("models/gpt-oss", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_gpt_oss_mxfp4(void) {
    run_model("models/gpt-oss-mxfp4", QRUN_QUANT_AUTO, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_qwen2_moe_nf4(void) {
    run_model("models/qwen2-moe", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_mixtral_int8_f16(void) {
    run_model("models/mixtral", QRUN_QUANT_INT8, QRUN_DTYPE_F16, QRUN_KV_INT8, NULL);
}
/* Layers with heads of two sizes in one pool, and layers that read the K/V of others. */
static void test_gemma4_nf4_kv_int8(void) {
    run_model("models/gemma4", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
static void test_gemma3n_nf4_kv_int8(void) {
    run_model("models/gemma3n", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
static void test_gemma3n_three_f32(void) {
    run_model("models/gemma3n-three", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL);
}
static void test_gemma4_moe_bf16(void) {
    run_model("models/gemma4-moe", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_gemma4_shared_f32(void) {
    run_model("models/gemma4-shared", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL);
}
/* Layers that carry a state along every sequence. */
static void test_qwen3_5_f32(void) { run_model("models/qwen3_5", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL); }
static void test_qwen3_5_nf4_dq(void) {
    run_model("models/qwen3_5-images", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
/* And experts beside them. */
static void test_qwen3_5_moe_nf4_dq(void) {
    run_model("models/qwen3_5-moe", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_qwen3_next_int8(void) {
    run_model("models/qwen3-next", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
/* Layers that are one block each. */
static void test_nemotron_h_nf4_dq(void) {
    run_model("models/nemotron-h", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
static void test_falcon_h1_nf4(void) {
    run_model("models/falcon-h1", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_falcon_h1_norm_f32(void) {
    run_model("models/falcon-h1-norm", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL);
}
static void test_bamba_int8(void) { run_model("models/bamba", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL); }
static void test_apertus_nf4_dq(void) {
    run_model("models/apertus", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_nemotron_h_moe_int8(void) {
    run_model("models/nemotron-h-moe", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Norms of heads after rotation. */
static void test_hunyuan_nf4_dq(void) {
    run_model("models/hunyuan", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
/* Norms over all heads, beside experts chosen by sigmoids. */
static void test_minimax_m2_int8(void) {
    run_model("models/minimax-m2", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Keys and values made of latents. */
static void test_youtu_nf4_dq(void) {
    run_model("models/youtu", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_F16, NULL);
}
static void test_deepseek_v3_int8(void) {
    run_model("models/deepseek-v3", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
static void test_deepseek_v2_groups_nf4(void) {
    run_model("models/deepseek-v2-groups", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Attention and an MLP that read one norm. */
static void test_cohere2_nf4_dq(void) {
    run_model("models/cohere2", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
/* Sinks, windows and layers that do not rotate, beside experts. */
static void test_granite_moe_swa_int8(void) {
    run_model("models/granite-moe-swa", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Queries of latents that are scaled by their position. */
static void test_mistral4_nf4(void) {
    run_model("models/mistral4", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Gates of attention's output beside experts that sigmoids choose, norms before and after both. */
static void test_afmoe_nf4(void) { run_model("models/afmoe", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL); }
/* A gated delta rule whose beta is doubled, beside attention without positions. */
static void test_olmo_hybrid_int8(void) {
    run_model("models/olmo-hybrid", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Kimi delta attention beside latents: a decay of every channel, and gates that are made of latents too. */
static void test_kimi_linear_nf4(void) {
    run_model("models/kimi-linear", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Values shorter than keys, of which layers with a window have more, and sinks. */
static void test_mimo_nf4(void) {
    run_model("models/mimo-v2-flash", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
/* Heads of queries by the layer's kind, of which a part rotates in one, and gates by softplus. */
static void test_laguna_nf4(void) { run_model("models/laguna", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL); }
/* A head of fewer rows than the embedding. */
static void test_apertus1p5_nf4(void) {
    run_model("models/apertus1p5", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Norms without weights, and heads that rotate the other way around. */
static void test_nanochat_int8(void) {
    run_model("models/nanochat", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Blocks side by side with a norm each, and q, k and v of one head after the other. */
static void test_gpt_neox_int8(void) {
    run_model("models/gpt-neox", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL);
}
/* LayerNorm that adds 1. */
static void test_nemotron_nf4_dq(void) {
    run_model("models/nemotron", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL);
}
/* Rows of plain LoRA and of no adapter have the same bits with and without DoRA in the batch. */
static void test_dora_in_one_batch(void) {
    static const char *const adapters[N_ADAPTERS] = {"adapters/llama-lora", "adapters/llama-dora"};
    run_model("models/llama", QRUN_QUANT_NF4, QRUN_DTYPE_F32, QRUN_KV_AUTO, adapters);
    run_model("models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, adapters);
}

static void test_adapters_in_one_batch(void) {
    static const char *const adapters[N_ADAPTERS] = {"adapters/llama-lora", "adapters/llama-rslora"};
    run_model("models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO, adapters);
    run_model("models/llama", QRUN_QUANT_INT8, QRUN_DTYPE_F16, QRUN_KV_INT8, adapters);
}

/* ---- Samples of one request -------------------------------------------------------------------------------------- */

/* Sample i of n is what sample i of any other n is, in any pool, and differs from its siblings. */
static void test_samples_do_not_depend_on_each_other(void) {
    static const char *const folders[] = {"models/llama", "models/gemma2", "models/qwen3_5"};
    static int32_t ids[45];
    for (int i = 0; i < 45; i++) { ids[i] = 3 + i * 13 % 900; }
    for (int f = 0; f < 3; f++) {
        qrun_model *model = run_open_fixture(contexts[1], folders[f], QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
        if (model == NULL) { continue; }
        run_record reference = {.n_done = 0};
        static const struct {
            int32_t n, max_sequences;
            int64_t kv_tokens;
        } ways[] = {{4, 4, 1000}, {1, 4, 1000}, {2, 4, 1000}, {4, 1, 1000}, {4, 2, 130}, {4, 4, 130}};
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
            params.max_sequences = ways[w].max_sequences, params.kv_tokens = ways[w].kv_tokens,
            params.max_step_tokens = 16;
            qrun_session *session = run_session(model, &params);
            if (session == NULL) { break; }
            run_record record = {.n_done = 0};
            qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
            request.token_ids = ids, request.n_token_ids = 45, request.n = ways[w].n, request.max_tokens = 40;
            request.temperature = 1, request.logprobs = 20, request.on_event = run_on_event, request.ignore_eos = true;
            submit(session, &request, &record);
            run_all(session);
            qrun_session_stats stats;
            check_idle(session, &stats);
            qrun_session_destroy(session);
            CHECK(record.n_done == ways[w].n && record.n_last == 1 && !record.malformed);
            if (w == 0) { reference = record; }
            for (int i = 0; i < ways[w].n; i++) {
                run_samples_are_equal(&record.samples[i], &reference.samples[i], folders[f]);
                CHECK(i == 0 ||
                      memcmp(record.samples[i].tokens, record.samples[0].tokens, sizeof record.samples[0].tokens) != 0);
            }
            if (w == 5) { CHECK(stats.n_preemptions > 0); }
        }
        qrun_model_destroy(model);
    }
}

/* Pages in order in a new pool, and scattered in one that was used before. */
static void test_scattered_pages(void) {
    qrun_model *model = run_open_fixture(contexts[1], "models/gemma2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
    if (model == NULL) { return; }
    static crowd c;
    static run_record fresh, scattered, others[20];
    make_crowd(&c, MAX_PROMPT);
    for (int r = 0; r < 8; r++) {
        qrun_request_params request = c.params[r];
        request.max_tokens = 60;
        qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
        params.kv_tokens = 2000, params.no_prefix_sharing = true;
        qrun_session *session = run_session(model, &params);
        if (session == NULL) { break; }
        memset(&fresh, 0, sizeof fresh), memset(&scattered, 0, sizeof scattered), memset(others, 0, sizeof others);
        submit(session, &request, &fresh);
        run_all(session);
        for (int i = 0; i < 20; i++) { /* short and long ones, so that pages come back in disorder */
            qrun_request_params other = c.params[10 + i];
            other.max_tokens = 1 + 13 * i % 29;
            submit(session, &other, &others[i]);
        }
        bool has_work = true;
        for (int step = 0; step < 12 && has_work; step++) { qrun_session_step(session, &has_work, NULL); }
        submit(session, &request, &scattered);
        run_all(session);
        run_samples_are_equal(&scattered.samples[0], &fresh.samples[0], "scattered pages");
        qrun_session_destroy(session);
    }
    qrun_model_destroy(model);
}

/* ---- A prompt that is there whole -------------------------------------------------------------------------------- */

enum { WHOLE = 4 * 16, LONGER = WHOLE + 9 };

typedef struct whole_case {
    const char *folder;
    qrun_quant quant;
    qrun_dtype dtype;
    qrun_kv kv;
} whole_case;

typedef struct whole_run {
    qrun_model *model;
    const whole_case *c;
    int32_t ids[LONGER];
    run_record whole, longer; /* computed without sharing */
} whole_run;

static qrun_request_params whole_request(const whole_run *w, int32_t n) {
    qrun_request_params p = QRUN_REQUEST_PARAMS_INIT;
    p.token_ids = w->ids, p.n_token_ids = n, p.max_tokens = 40, p.ignore_eos = true, p.logprobs = 20;
    p.on_event = run_on_event;
    return p;
}

static qrun_session *whole_session(const whole_run *w, int64_t kv_tokens, bool shares) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv = w->c->kv, params.kv_tokens = kv_tokens, params.max_sequences = 3, params.no_prefix_sharing = !shares;
    return run_session(w->model, &params);
}

/* Submits n requests for the prompt and, if asked, one for a longer prompt, and runs them together. Returns how many of
 * their prompts' tokens were computed. */
static int64_t run_whole(whole_run *w, qrun_session *session, int n, bool with_longer, const char *what) {
    static run_record records[3];
    qrun_session_stats before, after;
    check_idle(session, &before);
    memset(records, 0, sizeof records);
    const qrun_request_params whole = whole_request(w, WHOLE), longer = whole_request(w, LONGER);
    for (int i = 0; i < n; i++) { submit(session, &whole, &records[i]); }
    if (with_longer) { submit(session, &longer, &records[n]); }
    run_all(session);
    check_idle(session, &after);
    char name[200];
    snprintf(name, sizeof name, "%s, %s", w->c->folder, what);
    for (int i = 0; i < n; i++) { run_samples_are_equal(&records[i].samples[0], &w->whole.samples[0], name); }
    if (with_longer) { run_samples_are_equal(&records[n].samples[0], &w->longer.samples[0], name); }
    return after.prompt_tokens - before.prompt_tokens;
}

/* One token of it is computed; by several at a time, beside one that reads the same pages, and after one was cancelled
 * that had just written its copy. */
static void run_in_one_session(whole_run *w) {
    static run_record cancelled;
    const qrun_request_params request = whole_request(w, WHOLE);
    qrun_session *session = whole_session(w, 1000, true);
    uint64_t id = 0;
    bool has_work;
    if (session == NULL) { return; }
    CHECK_INT(run_whole(w, session, 1, false, "first"), WHOLE);
    CHECK_INT(run_whole(w, session, 1, false, "again"), 1);
    CHECK_INT(run_whole(w, session, 2, true, "two and a longer one"), 1 + 1 + (LONGER - WHOLE));
    memset(&cancelled, 0, sizeof cancelled);
    qrun_request_params copy = request;
    copy.user = &cancelled;
    CHECK(qrun_session_submit(session, &copy, &id, NULL) == QRUN_OK);
    CHECK(qrun_session_step(session, &has_work, NULL) == QRUN_OK);
    CHECK(qrun_session_cancel(session, id, NULL) == QRUN_OK);
    run_all(session);
    CHECK_INT(run_whole(w, session, 1, false, "after one was cancelled"), 1);
    qrun_session_destroy(session);
}

/* Returns the preemptions in a pool that has room for one. */
static int64_t run_preempted(whole_run *w) {
    qrun_session *session = whole_session(w, 8 * 16, true);
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    if (session == NULL) { return 0; }
    (void)run_whole(w, session, 1, false, "in a small pool");
    for (int i = 0; i < 3; i++) { (void)run_whole(w, session, 2, false, "preempted"); }
    check_idle(session, &stats);
    qrun_session_destroy(session);
    return stats.n_preemptions;
}

static void test_a_whole_prompt_is_there(void) {
    static const whole_case cases[] = {
        {"models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO},
        {"models/llama", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_INT8},
        {"models/gemma3", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8},
        {"models/qwen2-window", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_BF16},
        {"models/gemma2", QRUN_QUANT_F16, QRUN_DTYPE_F16, QRUN_KV_AUTO},
        {"models/gpt2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO},
    };
    static whole_run w;
    int64_t n_preemptions = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && check_state.n_failures_in_case == 0; i++) {
        w = (whole_run){.c = &cases[i]};
        for (int32_t k = 0; k < LONGER; k++) { w.ids[k] = 3 + k * 29 % 900; }
        w.model = run_open_fixture(contexts[1], w.c->folder, w.c->quant, w.c->dtype);
        if (w.model == NULL) { return; }
        const qrun_request_params whole = whole_request(&w, WHOLE), longer = whole_request(&w, LONGER);
        qrun_session *alone = whole_session(&w, 1000, false);
        if (alone != NULL) {
            submit(alone, &whole, &w.whole);
            run_all(alone);
            submit(alone, &longer, &w.longer);
            run_all(alone);
        }
        qrun_session_destroy(alone);
        run_in_one_session(&w);
        n_preemptions += run_preempted(&w);
        qrun_model_destroy(w.model);
    }
    CHECK(n_preemptions > 0);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    for (int t = 0; t < 2; t++) {
        qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
        params.n_threads = t + 1;
        if (qrun_context_create(&params, &contexts[t], NULL) != QRUN_OK) { return 1; }
    }
    CHECK_RUN(test_llama_f32);
    CHECK_RUN(test_llama_nf4_dq);
    CHECK_RUN(test_llama_int8_kv_int8);
    CHECK_RUN(test_gemma2_bf16);
    CHECK_RUN(test_gemma3_nf4_kv_int8);
    CHECK_RUN(test_qwen2_window_f32_kv_bf16);
    CHECK_RUN(test_mistral_int8_f32);
    CHECK_RUN(test_gpt2_bf16);
    CHECK_RUN(test_phi3_nf4_dq);
    CHECK_RUN(test_llama_nf4_dq_f16);
    CHECK_RUN(test_gemma3_f16);
    CHECK_RUN(test_llama_dynamic_rope);
    CHECK_RUN(test_phi3_longrope);
    CHECK_RUN(test_qwen3_moe_nf4_dq);
    CHECK_RUN(test_qwen3_moe_stacked_f32);
    CHECK_RUN(test_gpt_oss_nf4_dq);
    CHECK_RUN(test_gpt_oss_mxfp4);
    CHECK_RUN(test_qwen2_moe_nf4);
    CHECK_RUN(test_mixtral_int8_f16);
    CHECK_RUN(test_gemma4_nf4_kv_int8);
    CHECK_RUN(test_gemma3n_nf4_kv_int8);
    CHECK_RUN(test_gemma3n_three_f32);
    CHECK_RUN(test_gemma4_moe_bf16);
    CHECK_RUN(test_gemma4_shared_f32);
    CHECK_RUN(test_qwen3_5_f32);
    CHECK_RUN(test_qwen3_5_nf4_dq);
    CHECK_RUN(test_qwen3_5_moe_nf4_dq);
    CHECK_RUN(test_qwen3_next_int8);
    CHECK_RUN(test_nemotron_h_nf4_dq);
    CHECK_RUN(test_falcon_h1_nf4);
    CHECK_RUN(test_falcon_h1_norm_f32);
    CHECK_RUN(test_bamba_int8);
    CHECK_RUN(test_apertus_nf4_dq);
    CHECK_RUN(test_nemotron_h_moe_int8);
    CHECK_RUN(test_hunyuan_nf4_dq);
    CHECK_RUN(test_cohere2_nf4_dq);
    CHECK_RUN(test_granite_moe_swa_int8);
    CHECK_RUN(test_mistral4_nf4);
    CHECK_RUN(test_afmoe_nf4);
    CHECK_RUN(test_olmo_hybrid_int8);
    CHECK_RUN(test_kimi_linear_nf4);
    CHECK_RUN(test_mimo_nf4);
    CHECK_RUN(test_laguna_nf4);
    CHECK_RUN(test_apertus1p5_nf4);
    CHECK_RUN(test_nanochat_int8);
    CHECK_RUN(test_gpt_neox_int8);
    CHECK_RUN(test_nemotron_nf4_dq);
    CHECK_RUN(test_minimax_m2_int8);
    CHECK_RUN(test_youtu_nf4_dq);
    CHECK_RUN(test_deepseek_v3_int8);
    CHECK_RUN(test_deepseek_v2_groups_nf4);
    CHECK_RUN(test_adapters_in_one_batch);
    CHECK_RUN(test_dora_in_one_batch);
    CHECK_RUN(test_samples_do_not_depend_on_each_other);
    CHECK_RUN(test_scattered_pages);
    CHECK_RUN(test_a_whole_prompt_is_there);
    for (int t = 0; t < 2; t++) { qrun_context_destroy(contexts[t]); }
    return check_end();
}
