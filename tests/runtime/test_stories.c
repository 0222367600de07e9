/* A real trained model and two small ones with recorded logits, through the public interface. */
#include "check_open.h"

#include "base/alloc.h"
#include "base/file.h"
#include "loaders/files/json.h"
#include "single_sequence.h"

static qrun_context *context;

static qrun_model *open_model(const char *name, qrun_quant quant, qrun_dtype dtype) {
    const char *path = check_shared_data(name);
    if (path == NULL) {
        check_skip("the real models are not next to this checkout (../shared/data)");
        return NULL;
    }
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path, params.quant = quant, params.dtype = dtype;
    return check_open_model(context, &params);
}

static qrun_session *open_session(qrun_model *model) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv_tokens = 1024;
    qrun_session *session = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_create(model, &params, &session, &error) == QRUN_OK, "%s", error.message);
    return session;
}

static qr_json *read_json(const char *name) {
    const char *path = check_shared_data(name);
    qr_json *json = NULL;
    qr_error err = {0};
    CHECK_MSG(path != NULL && qr_json_read(path, 1 << 24, &json, &err) == QRUN_OK, "%s: %s", name, err.message);
    return json;
}

static int64_t read_ids(const qr_json *array, int32_t *ids, int64_t capacity) {
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(array); item != NULL && n < capacity; item = item->next) {
        ids[n++] = (int32_t)item->valuedouble;
    }
    return n;
}

/* ---- The documented texts ---------------------------------------------------------------------------------------- */

typedef struct story {
    char text[4096];
    size_t n_bytes;
    int32_t ids[600];
    int n;
    char finish_reason[16];
} story;

static void add(void *user, const qrun_event *event) {
    story *s = user;
    CHECK(event->type != QRUN_EVENT_ERROR);
    if (event->type == QRUN_EVENT_TOKEN) { s->ids[s->n++] = event->token_id; }
    if (event->type == QRUN_EVENT_DONE) {
        snprintf(s->finish_reason, sizeof s->finish_reason, "%s", event->finish_reason);
    }
    if (s->n_bytes + event->text_bytes < sizeof s->text) {
        memcpy(s->text + s->n_bytes, event->text, event->text_bytes);
        s->n_bytes += event->text_bytes;
    }
}

static void generate(qrun_model *model, const char *prompt, int32_t max_tokens, bool ignore_eos, story *s) {
    *s = (story){.n = 0};
    qrun_session *session = open_session(model);
    qrun_request_params params = QRUN_REQUEST_PARAMS_INIT;
    params.prompt = prompt, params.max_tokens = max_tokens, params.ignore_eos = ignore_eos, params.on_event = add,
    params.user = s;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_submit(session, &params, NULL, &error) == QRUN_OK, "%s", error.message);
    CHECK(qrun_session_run(session, NULL) == QRUN_OK);
    qrun_session_destroy(session);
}

static void check_text(const char *file, const char *prompt, const story *s) {
    char *expected = NULL;
    size_t n_bytes = 0;
    const char *path = check_shared_data(file);
    REQUIRE(path != NULL && qr_file_read(path, 1 << 20, &expected, &n_bytes, NULL) == QRUN_OK);
    while (n_bytes > 0 && expected[n_bytes - 1] == '\n') { n_bytes--; }
    char whole[8192];
    snprintf(whole, sizeof whole, "%s%s", prompt, s->text);
    CHECK_MSG(strlen(whole) == n_bytes && memcmp(whole, expected, n_bytes) == 0, "%s: got \"%s\"", file, whole);
    qr_free(expected);
}

static void check_ids(const qr_json *array, const int32_t *prompt, int64_t n_prompt, const story *s) {
    static int32_t expected[700];
    const int64_t n = read_ids(array, expected, 700);
    CHECK(n >= n_prompt + s->n && memcmp(expected, prompt, (size_t)n_prompt * sizeof *prompt) == 0);
    for (int64_t i = n_prompt; i < n && i < n_prompt + s->n; i++) {
        if (expected[i] != s->ids[i - n_prompt]) {
            CHECK_MSG(false, "token %lld is %d, expected %d", (long long)i, s->ids[i - n_prompt], expected[i]);
            return;
        }
    }
}

static void test_documented_texts(void) {
    qrun_model *model = open_model("models/stories260K-hf", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    if (model == NULL) { return; }
    qr_json *golden = read_json("models/stories260K.golden.json");
    static story s;
    generate(model, "", 200, true, &s);
    CHECK_INT(s.n, 200);
    check_text("models/stories260K.expected_stdout_200.txt", "", &s);
    check_ids(qr_json_get(qr_json_get(golden, "greedy_from_bos_200"), "ids"), (const int32_t[]){1}, 1, &s);

    generate(model, "Once upon a time", 507, false, &s);
    check_text("models/stories260K.expected_once_upon_a_time_512.txt", "Once upon a time", &s);
    check_ids(qr_json_get(qr_json_get(golden, "greedy_from_prompt_until_bos"), "ids"),
              (const int32_t[]){1, 403, 407, 261, 378}, 5, &s);
    CHECK_STR(s.finish_reason, "stop");
    qr_json_free(golden);
    qrun_model_destroy(model);
}

/* ---- Logits ------------------------------------------------------------------------------------------------------ */

static void check_logits(qrun_model *model, const qr_json *id_list, const qr_json *expected, double tolerance,
                         const char *what) {
    static int32_t ids[600];
    const int64_t n = read_ids(id_list, ids, 600), vocab = model->shape.vocab;
    single_sequence single;
    qr_error err = {0};
    CHECK_INT(cJSON_GetArraySize(expected), vocab);
    REQUIRE(single_sequence_create(model, n, n, QR_KV_F32, &single, &err) == QRUN_OK);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    CHECK(single_sequence_feed(&single, ids, n, &err) == QRUN_OK &&
          single_sequence_logits(&single, n - 1, logits, &err) == QRUN_OK);
    double worst = 0, most = 0;
    int64_t i = 0;
    for (const qr_json *value = qr_json_first(expected); value != NULL && i < vocab; value = value->next, i++) {
        const double difference = fabs(value->valuedouble - (double)logits[i]);
        if (!(difference <= worst)) { worst = difference; }
        most = fmax(most, fabs(value->valuedouble));
    }
    CHECK_MSG(worst <= tolerance * most, "%s: logits are off by %.3g of %.3g", what, worst, most);
    free(logits);
    single_sequence_destroy(&single);
}

static void test_stories_logits(void) {
    qrun_model *model = open_model("models/stories260K-hf", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    if (model == NULL) { return; }
    qr_json *golden = read_json("models/stories260K.golden.json");
    check_logits(model, qr_json_get(golden, "prompt_ids"), qr_json_get(golden, "logits_last_position_of_prompt"), 1e-5,
                 "stories260K");
    qr_json_free(golden);
    qrun_model_destroy(model);
}

static void test_tiny_models(void) {
    static const char *const names[] = {"tiny_llama3", "tiny_mistral"};
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "models/%s", names[i]);
        qrun_model *model = open_model(path, QRUN_QUANT_F32, QRUN_DTYPE_F32);
        if (model == NULL) { return; }
        snprintf(path, sizeof path, "models/%s.logits.json", names[i]);
        qr_json *golden = read_json(path);
        check_logits(model, qr_json_get(golden, "ids"), qr_json_get(golden, "last_logits"), 1e-5, names[i]);
        qr_json_free(golden);
        qrun_model_destroy(model);
    }
}

/* ---- Perplexity -------------------------------------------------------------------------------------------------- */

/* The mean over all five stories of −log p of every token but the first. */
static double mean_nll(qrun_model *model, const qr_json *golden, double tolerance) {
    qrun_session *session = open_session(model);
    double sum = 0;
    int64_t n_tokens = 0;
    for (const qr_json *doc = qr_json_first(qr_json_get(golden, "docs")); doc != NULL; doc = doc->next) {
        static int32_t ids[600];
        const int64_t n = read_ids(qr_json_get(doc, "ids"), ids, 600);
        const qrun_eval_params params = QRUN_EVAL_PARAMS_INIT;
        qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        CHECK_MSG(qrun_session_eval_tokens(session, ids, n, &params, &result, &error) == QRUN_OK, "%s", error.message);
        CHECK_INT(result.n_tokens, n - 1);
        const double expected = cJSON_GetNumberValue(qr_json_get(doc, "mean_nll"));
        CHECK_MSG(tolerance <= 0 || fabs(result.mean_nll - expected) <= tolerance, "a story: %.8f, expected %.8f",
                  result.mean_nll, expected);
        CHECK(fabs(result.perplexity - exp(result.mean_nll)) < 1e-9);
        sum += result.mean_nll * (double)result.n_tokens;
        n_tokens += result.n_tokens;
    }
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK && stats.pages_used == 0);
    qrun_session_destroy(session);
    CHECK_INT(n_tokens, 1804);
    return sum / (double)n_tokens;
}

static void test_perplexity_f32(void) {
    qrun_model *model = open_model("models/stories260K-hf", QRUN_QUANT_F32, QRUN_DTYPE_F32);
    if (model == NULL) { return; }
    qr_json *golden = read_json("models/stories260K.nll.json");
    CHECK(fabs(mean_nll(model, golden, 1e-5) - cJSON_GetNumberValue(qr_json_get(golden, "mean_nll"))) <= 1e-6);
    qr_json_free(golden);
    qrun_model_destroy(model);
}

static void test_perplexity_quantised(void) {
    static const struct {
        const char *name;
        qrun_quant quant;
    } formats[] = {{"nf4", QRUN_QUANT_NF4}, {"nf4-dq", QRUN_QUANT_NF4_DQ}, {"int8", QRUN_QUANT_INT8}};
    qr_json *figures = NULL, *golden = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_json_read(QRUN_SOURCE_DIR "/tests/fixtures/goldens/stories260K_quantised.json", 1 << 20, &figures,
                           &err) == QRUN_OK,
              "%s", err.message);
    for (int i = 0; i < 6; i++) {
        const qrun_dtype dtype = i < 3 ? QRUN_DTYPE_F32 : QRUN_DTYPE_BF16;
        qrun_model *model = open_model("models/stories260K-hf", formats[i % 3].quant, dtype);
        if (model == NULL) { break; }
        if (golden == NULL) { golden = read_json("models/stories260K.nll.json"); }
        const double expected =
            cJSON_GetNumberValue(qr_json_get(qr_json_get(figures, formats[i % 3].name), "perplexity"));
        const double actual = exp(mean_nll(model, golden, 0));
        printf("  %s, %s: perplexity %.4f, %.4f with the weights that bitsandbytes restores\n", formats[i % 3].name,
               i < 3 ? "f32" : "bf16", actual, expected);
        CHECK_MSG(actual <= 1.005 * expected, "%s: perplexity %.4f, bitsandbytes' weights give %.4f",
                  formats[i % 3].name, actual, expected);
        CHECK_MSG(i >= 3 || fabs(actual / expected - 1) < 1e-4, "%s: perplexity %.5f, expected %.5f",
                  formats[i % 3].name, actual, expected);
        qrun_model_destroy(model);
    }
    qr_json_free(golden);
    qr_json_free(figures);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_documented_texts);
    CHECK_RUN(test_stories_logits);
    CHECK_RUN(test_tiny_models);
    CHECK_RUN(test_perplexity_f32);
    CHECK_RUN(test_perplexity_quantised);
    qrun_context_destroy(context);
    return check_end();
}
