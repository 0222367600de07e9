/* Whole models against transformers and bitsandbytes: every golden of tests/fixtures/goldens/index.json. The files and the
 * bounds are described in tests/golden/README.md. */
#include "check.h"

#include "base/alloc.h"
#include "loaders/json.h"
#include "loaders/safetensors.h"
#include "single_sequence.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"

static qr_json *golden_index;
static qrun_context *context;

static const char *text_of(const qr_json *object, const char *key) {
    const qr_json *value = qr_json_get(object, key);
    return cJSON_IsString(value) ? value->valuestring : "";
}

static double number_of(const qr_json *object, const char *key) { return cJSON_GetNumberValue(qr_json_get(object, key)); }

static int64_t read_ids(const qr_json *array, int32_t *ids, int64_t capacity) {
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(array); item != NULL && n < capacity; item = item->next) {
        ids[n++] = (int32_t)item->valuedouble;
    }
    return n;
}

static qrun_model *open_model(const char *folder, qrun_quant quant, qrun_dtype dtype) {
    char path[512];
    snprintf(path, sizeof path, FIXTURES "%s", folder);
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.quant = quant;
    params.dtype = dtype;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_model_open(context, &params, &model, &error) == QRUN_OK, "%s: %s", folder, error.message);
    return model;
}

static qr_safetensors *open_golden(const qr_json *entry) {
    char path[512];
    snprintf(path, sizeof path, FIXTURES "%s", text_of(entry, "goldens"));
    qr_safetensors *file = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_safetensors_open(path, &file, &err) == QRUN_OK, "%s", err.message);
    return file;
}

static const float *golden_logits(const qr_safetensors *file, const char *name) {
    const qr_safetensors_tensor *tensor = qr_safetensors_find(file, name);
    CHECK_MSG(tensor != NULL, "no golden tensor %s", name);
    return tensor != NULL ? (const float *)(const void *)tensor->data : NULL;
}

static int64_t argmax(const float *values, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) { best = values[i] > values[best] ? i : best; }
    return best;
}

static double max_difference(const float *a, const float *b, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        const double difference = fabs((double)a[i] - (double)b[i]);
        if (!(difference <= most)) { most = difference; }
    }
    return most;
}

/* The largest difference to the golden rows of one prompt, fed whole. */
static double prompt_error(qrun_model *model, const qr_json *prompt, const qr_safetensors *golden, qr_kv_format kv,
                           int32_t adapter) {
    static int32_t ids[512];
    const int64_t n = read_ids(qr_json_get(prompt, "ids"), ids, 512), vocab = model->shape.vocab;
    const int64_t first = (int64_t)number_of(prompt, "first_position"), n_rows = (int64_t)number_of(prompt, "n_positions");
    const float *expected = golden_logits(golden, text_of(prompt, "logits"));
    single_sequence single;
    qr_error err = {0};
    if (expected == NULL || single_sequence_create(model, n, n, kv, &single, &err) != QRUN_OK) { return INFINITY; }
    single.adapter = adapter;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    double worst = single_sequence_feed(&single, ids, n, &err) == QRUN_OK ? 0 : INFINITY;
    for (int64_t r = 0; r < n_rows && worst < INFINITY; r++) {
        CHECK(single_sequence_logits(&single, first + r, logits, &err) == QRUN_OK);
        worst = fmax(worst, max_difference(logits, expected + r * vocab, vocab));
    }
    CHECK_MSG(err.status == QRUN_OK, "%s", err.message);
    free(logits);
    single_sequence_destroy(&single);
    return worst;
}

/* Feeds the prompt and then the recorded continuation token by token; counts steps whose best logit is another, among
 * those whose recorded gap exceeds min_gap. */
static int greedy_mismatches(qrun_model *model, const qr_json *prompt, qr_kv_format kv, double min_gap) {
    static int32_t ids[512];
    static double gaps[512];
    int64_t n = read_ids(qr_json_get(prompt, "ids"), ids, 400);
    const int64_t n_prompt = n;
    n += read_ids(qr_json_get(prompt, "greedy"), ids + n, 100);
    int64_t n_gaps = 0;
    for (const qr_json *g = qr_json_first(qr_json_get(prompt, "greedy_gaps")); g != NULL; g = g->next) {
        gaps[n_gaps++] = g->valuedouble;
    }
    single_sequence single;
    qr_error err = {0};
    if (single_sequence_create(model, n, (int64_t)number_of(prompt, "greedy_rotary_length"), kv, &single, &err) != QRUN_OK) {
        return -1;
    }
    float *logits = malloc((size_t)model->shape.vocab * sizeof *logits);
    int mismatches = 0;
    for (int64_t done = 0; done < n - 1;) {
        const int64_t step = done == 0 ? n_prompt : 1;
        CHECK(single_sequence_feed(&single, ids, step, &err) == QRUN_OK);
        CHECK(single_sequence_logits(&single, step - 1, logits, &err) == QRUN_OK);
        done += step;
        if (gaps[done - n_prompt] > min_gap) { mismatches += argmax(logits, model->shape.vocab) != ids[done]; }
    }
    free(logits);
    single_sequence_destroy(&single);
    return mismatches;
}

static void test_f32_equals_transformers(void) {
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "models")); entry != NULL; entry = entry->next) {
        const char *name = text_of(entry, "name");
        qrun_model *model = open_model(text_of(entry, "folder"), QRUN_QUANT_F32, QRUN_DTYPE_F32);
        qr_safetensors *golden = open_golden(entry);
        if (model == NULL || golden == NULL) { continue; }
        for (const qr_json *p = qr_json_first(qr_json_get(entry, "prompts")); p != NULL; p = p->next) {
            const double error = prompt_error(model, p, golden, QR_KV_F32, -1);
            const double bound = 1e-4 * number_of(p, "max_abs_logit");
            CHECK_MSG(error <= bound, "%s: %s is off by %.3g, allowed %.3g", name, text_of(p, "logits"), error, bound);
            CHECK_INT(greedy_mismatches(model, p, QR_KV_F32, 0), 0);
        }
        qr_safetensors_close(golden);
        qrun_model_destroy(model);
    }
}

static void test_bf16_is_within_twice_the_error_of_transformers(void) {
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "models")); entry != NULL; entry = entry->next) {
        const char *name = text_of(entry, "name");
        qrun_model *model = open_model(text_of(entry, "folder"), QRUN_QUANT_BF16, QRUN_DTYPE_BF16);
        qr_safetensors *golden = open_golden(entry);
        if (model == NULL || golden == NULL) { continue; }
        for (const qr_json *p = qr_json_first(qr_json_get(entry, "prompts")); p != NULL; p = p->next) {
            const double error = prompt_error(model, p, golden, QR_KV_BF16, -1);
            const double bound = 2 * number_of(p, "bf16_error");
            CHECK_MSG(error <= bound, "%s: %s is off by %.3g, allowed %.3g", name, text_of(p, "logits"), error, bound);
            CHECK_INT(greedy_mismatches(model, p, QR_KV_BF16, 2 * number_of(p, "bf16_error_all_positions")), 0);
        }
        qr_safetensors_close(golden);
        qrun_model_destroy(model);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qr_error err = {0};
    if (qr_json_read(FIXTURES "goldens/index.json", 1 << 24, &golden_index, &err) != QRUN_OK ||
        qrun_context_create(NULL, &context, &err) != QRUN_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    CHECK_RUN(test_f32_equals_transformers);
    CHECK_RUN(test_bf16_is_within_twice_the_error_of_transformers);
    qrun_context_destroy(context);
    qr_json_free(golden_index);
    return check_end();
}
