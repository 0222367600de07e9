/* `numerics=portable`: tokens and log probabilities have the same bits on every instruction set of this machine, plain
 * C and emulated AMX among them; with the fastest order they do not. */
#include "check.h"

#include <stdlib.h>

#include "base/random.h"
#include "base/sizes.h"
#include "session_run.h"

enum { N_REQUESTS = 10, MAX_PROMPT = 110, ANSWER_TOKENS = 12 };

static const char *const isas[] = {"c",        "avx2", "avx512",   "avx512-bf16", "amx-bf16-emulated",
                                   "amx-bf16", "neon", "neon-bf16"};

typedef struct model_case {
    const char *folder;
    qrun_quant quant;
    qrun_dtype dtype;
    qrun_kv kv;
} model_case;

/* NULL where this machine lacks the instruction set. */
static qrun_context *context_of(const char *isa, qrun_numerics numerics) {
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    params.device = "cpu", params.n_threads = 2, params.numerics = numerics;
    qrun_context *context = NULL;
    CHECK(setenv("QRUN_FORCE_ISA", isa, 1) == 0);
    (void)qrun_context_create(&params, &context, NULL);
    unsetenv("QRUN_FORCE_ISA");
    return context;
}

/* Prompts of one token and of several pages, that begin alike and not; greedy and sampled. */
static void submit_all(qrun_session *session, run_record *records) {
    for (int r = 0; r < N_REQUESTS; r++) {
        int32_t ids[MAX_PROMPT];
        const int32_t n = r == 0 ? 1 : 1 + (r * 37) % MAX_PROMPT;
        for (int32_t i = 0; i < n; i++) {
            const double draw = qr_random_uniform(5, r % 2 == 0 ? 0 : (uint64_t)r, (uint64_t)i);
            ids[i] = 3 + (int32_t)(draw * 900.0);
        }
        qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        request.token_ids = ids, request.n_token_ids = n;
        request.max_tokens = ANSWER_TOKENS, request.ignore_eos = true, request.logprobs = 10;
        request.on_event = run_on_event, request.user = &records[r];
        if (r % 3 == 1) { request.temperature = 0.9F, request.top_p = 0.9F; }
        CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
    }
}

static bool generate(const char *isa, qrun_numerics numerics, const model_case *c, run_record *records) {
    qrun_context *context = context_of(isa, numerics);
    if (context == NULL) { return false; }
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    CHECK(qrun_context_device_info(context, &info, NULL) == QRUN_OK);
    CHECK_STR(info.isa, isa);
    CHECK_STR(info.numerics, numerics == QRUN_NUMERICS_PORTABLE ? "portable" : "fastest");
    memset(records, 0, N_REQUESTS * sizeof *records);
    qrun_model *model = run_open_fixture(context, c->folder, c->quant, c->dtype);
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv = c->kv, params.kv_tokens = 2000;
    qrun_session *session = model != NULL ? run_session(model, &params) : NULL;
    if (session != NULL) {
        qrun_error error = QRUN_ERROR_INIT;
        submit_all(session, records);
        CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message);
    }
    qrun_session_destroy(session);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return session != NULL;
}

static run_record first[N_REQUESTS], other[N_REQUESTS];

static void check_model(const model_case *c) {
    REQUIRE(generate(isas[0], QRUN_NUMERICS_PORTABLE, c, first));
    CHECK(first[0].samples[0].n_tokens == ANSWER_TOKENS);
    for (size_t i = 1; i < QR_COUNT_OF(isas); i++) {
        if (!generate(isas[i], QRUN_NUMERICS_PORTABLE, c, other)) { continue; }
        for (int r = 0; r < N_REQUESTS; r++) {
            char what[160];
            snprintf(what, sizeof what, "%s, %s and %s, request %d", c->folder, isas[0], isas[i], r);
            if (!run_samples_are_equal(&other[r].samples[0], &first[r].samples[0], what)) { break; }
        }
    }
}

#define MODEL(name, ...) \
    static void test_##name(void) { check_model(&(model_case){__VA_ARGS__}); }
MODEL(llama_nf4_dq, "models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO)
MODEL(llama_int8_kv_int8, "models/llama", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_INT8)
MODEL(gemma2_bf16, "models/gemma2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO)
MODEL(gemma3_nf4, "models/gemma3", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_AUTO)
MODEL(gpt2_bf16, "models/gpt2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO)
MODEL(qwen2_window_f32, "models/qwen2-window", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_BF16)
MODEL(gpt_oss_mxfp4, "models/gpt-oss-mxfp4", QRUN_QUANT_MXFP4, QRUN_DTYPE_BF16, QRUN_KV_AUTO)
MODEL(phi3_f16, "models/phi3", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_F16, QRUN_KV_AUTO)
#undef MODEL

/* What these tests compare is not the same by itself. */
static void test_the_fastest_order_differs(void) {
    static const model_case llama = {"models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_AUTO};
    if (!generate("avx2", QRUN_NUMERICS_FASTEST, &llama, other)) { return; }
    REQUIRE(generate("c", QRUN_NUMERICS_FASTEST, &llama, first));
    int n_different = 0;
    for (int r = 0; r < N_REQUESTS; r++) {
        const run_sample *a = &first[r].samples[0], *b = &other[r].samples[0];
        n_different += memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) != 0;
    }
    CHECK(n_different > 0);
}

static void test_only_the_cpu(void) {
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *context = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.numerics = QRUN_NUMERICS_PORTABLE, params.device = "cuda";
    CHECK(qrun_context_create(&params, &context, &error) == QRUN_ERROR_ARGUMENT && context == NULL);
    CHECK(strstr(error.message, "`numerics=portable`") != NULL);
    params.device = NULL;
    REQUIRE(qrun_context_create(&params, &context, NULL) == QRUN_OK);
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    CHECK(qrun_context_device_info(context, &info, NULL) == QRUN_OK);
    CHECK_STR(info.backend, "cpu");
    CHECK(info.note != NULL && strstr(info.note, "portable") != NULL);
    qrun_context_destroy(context);
    error = (qrun_error)QRUN_ERROR_INIT;
    params.numerics = (qrun_numerics)2;
    CHECK(qrun_context_create(&params, &context, &error) == QRUN_ERROR_ARGUMENT);
    CHECK(strstr(error.message, "`numerics`") != NULL);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_llama_nf4_dq);
    CHECK_RUN(test_llama_int8_kv_int8);
    CHECK_RUN(test_gemma2_bf16);
    CHECK_RUN(test_gemma3_nf4);
    CHECK_RUN(test_gpt2_bf16);
    CHECK_RUN(test_qwen2_window_f32);
    CHECK_RUN(test_gpt_oss_mxfp4);
    CHECK_RUN(test_phi3_f16);
    CHECK_RUN(test_the_fastest_order_differs);
    CHECK_RUN(test_only_the_cpu);
    return check_end();
}
