/* Whole models against transformers and bitsandbytes: every golden of tests/fixtures/goldens/index.json. The files and
 * the bounds are described in tests/golden/README.md. */
#include "check.h"

#include <stdlib.h>

#include "base/half.h"
#include "base/sizes.h"
#include "golden_index.h"
#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"
#include "quant/int8.h"
#include "quant/nf4.h"
#include "runtime/model/adapter.h"
#include "runtime/model/rope.h"
#include "session_run.h"
#include "single_sequence.h"
#include "temporary.h"

static qr_json *golden_index;
static qrun_context *context;

static int64_t read_ids(const qr_json *array, int32_t *ids, int64_t capacity) {
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(array); item != NULL && n < capacity; item = item->next) {
        ids[n++] = (int32_t)item->valuedouble;
    }
    return n;
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
    const int64_t first = (int64_t)number_of(prompt, "first_position"),
                  n_rows = (int64_t)number_of(prompt, "n_positions");
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
static int greedy_mismatches(qrun_model *model, const qr_json *prompt, qr_kv_format kv, double min_gap,
                             int32_t adapter) {
    static int32_t ids[512];
    static double gaps[512];
    int64_t n = read_ids(qr_json_get(prompt, "ids"), ids, 400);
    const int64_t n_prompt = n;
    n += read_ids(qr_json_get(prompt, "greedy"), ids + n, 100);
    int64_t n_gaps = 0;
    for (const qr_json *g = qr_json_first(qr_json_get(prompt, "greedy_gaps")); g != NULL; g = g->next) {
        gaps[n_gaps++] = g->valuedouble;
    }
    single_sequence single = {.model = model};
    qr_error err = {0};
    float *logits = malloc((size_t)model->shape.vocab * sizeof *logits);
    int mismatches = 0;
    int64_t done = 0, length_class = -1;
    for (int64_t known = n_prompt; known < n; known++) {
        if (qr_rope_length_class(&model->config, known, n) != length_class) { /* all keys are rotated again */
            if (done > 0) { single_sequence_destroy(&single); }
            if (single_sequence_create(model, n, known, kv, &single, &err) != QRUN_OK) { return -1; }
            length_class = qr_rope_length_class(&model->config, known, n);
            single.adapter = adapter;
            done = 0;
        }
        CHECK(single_sequence_feed(&single, ids, known - done, &err) == QRUN_OK);
        CHECK(single_sequence_logits(&single, known - done - 1, logits, &err) == QRUN_OK);
        done = known;
        if (gaps[known - n_prompt] > min_gap) { mismatches += argmax(logits, model->shape.vocab) != ids[known]; }
    }
    free(logits);
    single_sequence_destroy(&single);
    return mismatches;
}

static void check_f32(qrun_model *model, const qr_json *entry, const qr_safetensors *golden, int32_t adapter) {
    for (const qr_json *p = qr_json_first(qr_json_get(entry, "prompts")); p != NULL; p = p->next) {
        const double error = prompt_error(model, p, golden, QR_KV_F32, adapter);
        const double bound = 1e-4 * number_of(p, "max_abs_logit");
        CHECK_MSG(error <= bound, "%s: %s is off by %.3g, allowed %.3g", text_of(entry, "name"), text_of(p, "logits"),
                  error, bound);
        CHECK_INT(greedy_mismatches(model, p, QR_KV_F32, 0, adapter), 0);
    }
}

/* A 16-bit type and what transformers itself loses in it. */
typedef struct rounding {
    qr_kv_format kv;
    const char *error, *error_all_positions;
} rounding;

static const rounding bf16_rounding = {QR_KV_BF16, "bf16_error", "bf16_error_all_positions"};
static const rounding f16_rounding = {QR_KV_F16, "f16_error", "f16_error_all_positions"};

static void check_rounded(qrun_model *model, const qr_json *entry, const qr_safetensors *golden, int32_t adapter,
                          const rounding *r) {
    for (const qr_json *p = qr_json_first(qr_json_get(entry, "prompts")); p != NULL; p = p->next) {
        const double error = prompt_error(model, p, golden, r->kv, adapter), bound = 2 * number_of(p, r->error);
        CHECK_MSG(error <= bound, "%s: %s is off by %.3g, allowed %.3g", text_of(entry, "name"), text_of(p, "logits"),
                  error, bound);
        const int n = greedy_mismatches(model, p, r->kv, 2 * number_of(p, r->error_all_positions), adapter);
        CHECK_MSG(n == 0, "%s: %d other tokens after %s", text_of(entry, "name"), n, text_of(p, "logits"));
    }
}

static void check_bf16(qrun_model *model, const qr_json *entry, const qr_safetensors *golden, int32_t adapter) {
    check_rounded(model, entry, golden, adapter, &bf16_rounding);
}

static void check_f16(qrun_model *model, const qr_json *entry, const qr_safetensors *golden, int32_t adapter) {
    check_rounded(model, entry, golden, adapter, &f16_rounding);
}

typedef void check_model(qrun_model *model, const qr_json *entry, const qr_safetensors *golden, int32_t adapter);

/* Of the folders that a section of the index lists; where rounds are fewer (check_repeats), of one in `few`. */
static void check_models(const char *section, qrun_quant quant, qrun_dtype dtype, int few, check_model *check) {
    const qr_json *entry = qr_json_first(qr_json_get(golden_index, section));
    const int every = check_repeats(1, few);
    CHECK(entry != NULL);
    for (int i = 0; entry != NULL; entry = entry->next, i++) {
        if (i % every != 0) { continue; }
        qrun_model *model = run_open_fixture(context, text_of(entry, "folder"), quant, dtype);
        qr_safetensors *golden = open_golden(entry);
        if (model == NULL || golden == NULL) { continue; }
        check(model, entry, golden, -1);
        qr_safetensors_close(golden);
        qrun_model_destroy(model);
    }
}

static void test_f32_equals_transformers(void) { check_models("models", QRUN_QUANT_F32, QRUN_DTYPE_F32, 1, check_f32); }

static void test_bf16_is_within_twice_the_error_of_transformers(void) {
    check_models("models", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, 1, check_bf16);
}

/* Held in F32, the weights are rounded to F16 where they are multiplied: as in F16 folders and in transformers. */
static void test_f16_is_within_twice_the_error_of_transformers(void) {
    check_models("models", QRUN_QUANT_F16, QRUN_DTYPE_F16, 5, check_f16);
    check_models("models", QRUN_QUANT_F32, QRUN_DTYPE_F16, 5, check_f16);
}

/* How many weights there are, and bytes that they take. */
static void check_mxfp4_experts(const qrun_model *model) {
    const qr_backend *backend = context->backend;
    const qr_layer *layer = &model->layers[0];
    const qr_weight *const matrices[] = {layer->expert_gate, layer->expert_up, layer->expert_out};
    for (size_t i = 0; i < QR_COUNT_OF(matrices); i++) {
        const qr_weight_desc *desc = &matrices[i]->desc;
        CHECK_INT(desc->format, QR_WEIGHT_MXFP4);
        CHECK_INT(qr_weight_code_bytes(desc) + (size_t)qr_weight_blocks(desc), qr_weight_elements(desc) * 17 / 32);
        CHECK(backend->weight_bytes(backend, desc) < (size_t)qr_weight_elements(desc)); /* rows are filled up */
    }
    CHECK_INT(layer->attn_out.weight.desc.format, QR_WEIGHT_BF16);
    CHECK_INT(layer->router.weight.desc.format, QR_WEIGHT_BF16);
}

/* The logits after a golden prompt, of the model held in one way. */
static float *logits_of(qrun_quant quant, qrun_dtype dtype, const char *folder, const qr_json *prompt, int64_t *n) {
    int32_t ids[512];
    qr_error err = {0};
    single_sequence single;
    qrun_model *model = run_open_fixture(context, folder, quant, dtype);
    if (model == NULL) { return NULL; }
    const int64_t n_ids = read_ids(qr_json_get(prompt, "ids"), ids, 512);
    *n = model->shape.vocab;
    float *logits = malloc((size_t)*n * sizeof *logits);
    CHECK(single_sequence_create(model, n_ids, n_ids, QR_KV_BF16, &single, &err) == QRUN_OK);
    CHECK(single_sequence_feed(&single, ids, n_ids, &err) == QRUN_OK);
    CHECK(single_sequence_logits(&single, n_ids - 1, logits, &err) == QRUN_OK);
    single_sequence_destroy(&single);
    qrun_model_destroy(model);
    return logits;
}

/* Two ways to hold the same weights. On AVX2 sums have another order where they are kept (int16_sum.h): then the logits
 * are within half a unit in the last place of BF16 of the largest. */
static void check_alike(const float *kept, const float *decoded, int64_t n) {
    float largest = 0.0F;
    for (int64_t i = 0; i < n; i++) { largest = fmaxf(largest, fabsf(decoded[i])); }
    const float tolerance = strcmp(context->backend->isa, "avx2") == 0 ? largest * 0x1p-8F : 0.0F;
    for (int64_t i = 0; i < n; i++) {
        CHECK_MSG(fabsf(kept[i] - decoded[i]) <= tolerance, "logit %lld: %.9g, and %.9g of BF16", (long long)i,
                  (double)kept[i], (double)decoded[i]);
    }
}

/* Kept as it is, and exact: transformers decodes it to BF16, and so do we on request; the bits are the same. */
static void test_mxfp4_is_kept(void) {
    const qr_json *entry = entry_named(golden_index, "packed_folders", "gpt-oss-mxfp4");
    static const qrun_quant quants[] = {QRUN_QUANT_AUTO, QRUN_QUANT_MXFP4};
    REQUIRE(entry != NULL);
    for (size_t i = 0; i < QR_COUNT_OF(quants); i++) {
        qr_safetensors *golden = open_golden(entry);
        qrun_model *model = run_open_fixture(context, text_of(entry, "folder"), quants[i], QRUN_DTYPE_F32);
        qrun_model *rounded = run_open_fixture(context, text_of(entry, "folder"), quants[i], QRUN_DTYPE_BF16);
        qrun_model_info info = QRUN_MODEL_INFO_INIT;
        REQUIRE(golden != NULL && model != NULL && rounded != NULL);
        check_f32(model, entry, golden, -1);
        check_bf16(rounded, entry, golden, -1);
        check_mxfp4_experts(model);
        CHECK(qrun_model_get_info(model, &info, NULL) == QRUN_OK);
        CHECK_STR(info.quant, "mxfp4");
        CHECK(info.packed_as == NULL);
        qr_safetensors_close(golden);
        qrun_model_destroy(model);
        qrun_model_destroy(rounded);
    }
    const qr_json *prompt = qr_json_first(qr_json_get(entry, "prompts"));
    int64_t n = 0;
    float *kept = logits_of(QRUN_QUANT_AUTO, QRUN_DTYPE_BF16, text_of(entry, "folder"), prompt, &n);
    float *decoded = logits_of(QRUN_QUANT_BF16, QRUN_DTYPE_BF16, text_of(entry, "folder"), prompt, &n);
    REQUIRE(kept != NULL && decoded != NULL);
    check_alike(kept, decoded, n);
    free(kept);
    free(decoded);
}

static void test_mxfp4_of_another_folder(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.quant = QRUN_QUANT_MXFP4;
    params.path = FIXTURES "models/gpt-oss";
    CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "is not stored as mxfp4") != NULL, "%s", error.message);
    error = (qrun_error)QRUN_ERROR_INIT;
    params.path = FIXTURES "models/llama-nf4";
    CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "is stored as nf4 and cannot become mxfp4") != NULL, "%s", error.message);
}

/* Decoded while they are read, and held as what is asked for. */
static void test_packed_folders(void) {
    check_models("packed_folders", QRUN_QUANT_F32, QRUN_DTYPE_F32, 1, check_f32);
    check_models("packed_folders", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, 1, check_bf16);
}

/* ---- Folders quantised by bitsandbytes --------------------------------------------------------------------------- */

/* FNV-1a, as tests/golden/README.md defines it. */
static uint64_t fnv1a64(uint64_t hash, const void *bytes, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* What the backend holds, taken out in canonical form and dequantised by the scalar definitions: [rows, cols]. */
static void dequantise(qr_backend *backend, const qr_weight *weight, float *values) {
    const int64_t rows = weight->desc.rows, cols = weight->desc.cols, n = rows * cols;
    const int block = weight->desc.block;
    const bool int8 = weight->desc.format == QR_WEIGHT_INT8;
    const int64_t n_blocks = int8 ? 1 : qr_ceil_div(n, block);
    uint8_t *codes = calloc((size_t)n, 1), *absmax_codes = calloc((size_t)n_blocks, 1);
    float *row_absmax = calloc((size_t)rows, sizeof(float)), *absmax = calloc((size_t)n_blocks, sizeof(float));
    float *nested = calloc((size_t)qr_ceil_div(n_blocks, 256), sizeof(float));
    CHECK(backend->weight_get_rows(backend, weight, 0, rows, codes, NULL) == QRUN_OK);
    if (int8) {
        CHECK(backend->weight_get_scales(backend, weight, row_absmax, NULL, NULL, NULL, NULL) == QRUN_OK);
        for (int64_t r = 0; r < rows; r++) {
            qr_int8_dequantize_row((const int8_t *)codes + r * cols, row_absmax[r], cols, values + r * cols);
        }
    } else if (weight->desc.format == QR_WEIGHT_NF4_DQ) {
        CHECK(backend->weight_get_scales(backend, weight, NULL, NULL, absmax_codes, nested, NULL) == QRUN_OK);
        qr_nf4_unnest(absmax_codes, nested, weight->nested_offset, 0, n_blocks, absmax);
        qr_nf4_dequantize(codes, absmax, block, 0, n, values);
    } else {
        CHECK_INT(weight->desc.format, QR_WEIGHT_NF4);
        CHECK(backend->weight_get_scales(backend, weight, NULL, absmax, NULL, NULL, NULL) == QRUN_OK);
        qr_nf4_dequantize(codes, absmax, block, 0, n, values);
    }
    free(codes), free(absmax_codes), free(row_absmax), free(absmax), free(nested);
}

typedef struct module_search {
    const qrun_model *model;
    const char *name;
    const qr_weight *found;
} module_search;

static qrun_status find_module(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    (void)err;
    module_search *search = arg;
    char name[256];
    qr_family_module_name(search->model->family, search->model->prefix, role, layer, name, sizeof name);
    if (strcmp(name, search->name) == 0) { search->found = &linear->weight; }
    return QRUN_OK;
}

static void check_module(qrun_model *model, const qr_json *module) {
    const char *name = text_of(module, "name");
    module_search search = {.model = model, .name = name};
    CHECK(qr_model_each_linear(model, find_module, &search, NULL) == QRUN_OK);
    CHECK_MSG(search.found != NULL, "%s is not in the model", name);
    if (search.found == NULL) { return; }
    const int64_t n = search.found->desc.rows * search.found->desc.cols;
    float *values = malloc((size_t)n * sizeof *values);
    dequantise(context->backend, search.found, values);
    const uint64_t f32 = fnv1a64(UINT64_C(0xcbf29ce484222325), values, (size_t)n * sizeof *values);
    uint64_t bf16 = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < n; i++) {
        const uint16_t rounded = qr_f32_to_bf16(values[i]);
        bf16 = fnv1a64(bf16, &rounded, sizeof rounded);
    }
    free(values);
    char text[2][17];
    snprintf(text[0], sizeof text[0], "%016llx", (unsigned long long)f32);
    snprintf(text[1], sizeof text[1], "%016llx", (unsigned long long)bf16);
    CHECK_MSG(strcmp(text[0], text_of(module, "fnv1a64_f32")) == 0, "%s: its F32 values are others", name);
    CHECK_MSG(strcmp(text[1], text_of(module, "fnv1a64_bf16")) == 0, "%s: its BF16 values are others", name);
}

static void test_folders_of_bitsandbytes(void) {
    int n_modules = 0;
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "quantised_folders")); entry != NULL;
         entry = entry->next) {
        qr_safetensors *golden = open_golden(entry);
        for (int d = 0; d < 2; d++) {
            qrun_model *model = run_open_fixture(context, text_of(entry, "folder"), QRUN_QUANT_AUTO,
                                                 d == 0 ? QRUN_DTYPE_F32 : QRUN_DTYPE_BF16);
            if (model == NULL || golden == NULL) { continue; }
            for (const qr_json *m = qr_json_first(qr_json_get(entry, "modules")); m != NULL; m = m->next, n_modules++) {
                check_module(model, m);
            }
            (d == 0 ? check_f32 : check_bf16)(model, entry, golden, -1);
            qrun_model_destroy(model);
        }
        qr_safetensors_close(golden);
    }
    CHECK(n_modules > 50);
}

/* ---- Adapters ---------------------------------------------------------------------------------------------------- */

static void test_adapters(void) {
    int n_served = 0;
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "adapters")); entry != NULL;
         entry = entry->next) {
        const bool is_quantised = strstr(text_of(entry, "base_folder"), "-nf4") != NULL ||
                                  strstr(text_of(entry, "base_folder"), "-int8") != NULL;
        qr_safetensors *golden = open_golden(entry);
        for (int d = 0; d < 2; d++) {
            const qrun_dtype dtype = d == 0 ? QRUN_DTYPE_F32 : QRUN_DTYPE_BF16;
            const qrun_quant quant = is_quantised ? QRUN_QUANT_AUTO : d == 0 ? QRUN_QUANT_F32 : QRUN_QUANT_BF16;
            qrun_model *model = run_open_fixture(context, text_of(entry, "base_folder"), quant, dtype);
            if (model == NULL || golden == NULL) { continue; }
            char path[512];
            snprintf(path, sizeof path, FIXTURES "%s", text_of(entry, "folder"));
            qrun_adapter *adapter = NULL;
            qrun_error error = QRUN_ERROR_INIT;
            const qrun_status status = qrun_adapter_open(model, path, NULL, &adapter, &error);
            CHECK_MSG(status == QRUN_OK, "%s: %s", text_of(entry, "name"), error.message);
            if (status == QRUN_OK) {
                (d == 0 ? check_f32 : check_bf16)(model, entry, golden, qr_adapter_index(adapter));
            }
            n_served += status == QRUN_OK;
            qrun_model_destroy(model);
        }
        qr_safetensors_close(golden);
    }
    CHECK(n_served >= 24);
}

/* ---- Through sessions -------------------------------------------------------------------------------------------- */

/* All prompts of a model at once; greedy tokens as recorded, beyond the length that some were trained for too. */
static void test_sessions_generate_the_recorded_tokens(void) {
    enum { MAX_PROMPTS = 8, N_GREEDY = 24 };
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "models")); entry != NULL;
         entry = entry->next) {
        qrun_model *model = run_open_fixture(context, text_of(entry, "folder"), QRUN_QUANT_F32, QRUN_DTYPE_F32);
        if (model == NULL) { continue; }
        qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
        params.kv_tokens = 1000, params.max_step_tokens = 40;
        qrun_session *session = run_session(model, &params);
        static run_record records[MAX_PROMPTS];
        memset(records, 0, sizeof records);
        int n = 0;
        for (const qr_json *p = qr_json_first(qr_json_get(entry, "prompts")); p != NULL && n < MAX_PROMPTS;
             p = p->next) {
            int32_t ids[512];
            qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
            request.token_ids = ids, request.n_token_ids = read_ids(qr_json_get(p, "ids"), ids, 512);
            request.max_tokens = N_GREEDY, request.on_event = run_on_event, request.user = &records[n++];
            qrun_error error = QRUN_ERROR_INIT;
            CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
        }
        CHECK(qrun_session_run(session, NULL) == QRUN_OK);
        n = 0;
        for (const qr_json *p = qr_json_first(qr_json_get(entry, "prompts")); p != NULL && n < MAX_PROMPTS;
             p = p->next, n++) {
            int32_t expected[N_GREEDY];
            CHECK_INT(read_ids(qr_json_get(p, "greedy"), expected, N_GREEDY), N_GREEDY);
            CHECK_MSG(records[n].samples[0].n_tokens == N_GREEDY &&
                          memcmp(records[n].samples[0].tokens, expected, sizeof expected) == 0,
                      "%s: prompt %d is continued otherwise", text_of(entry, "name"), n);
        }
        qrun_session_destroy(session);
        qrun_model_destroy(model);
    }
}

/* ---- The older form of config.json ------------------------------------------------------------------------------- */

static void link_file(const temporary_folder *folder, const char *from, const char *name) {
    struct stat info;
    if (stat(from, &info) != 0) { return; }
    char *whole = realpath(from, NULL); /* a link's own folder is where a relative one begins */
    CHECK(whole != NULL && symlink(whole, temporary_path(folder, name)) == 0);
    free(whole);
}

static void all_logits(qrun_model *model, const qr_json *prompt, float *logits) {
    static int32_t ids[512];
    const int64_t n = read_ids(qr_json_get(prompt, "ids"), ids, 512);
    single_sequence single;
    qr_error err = {0};
    if (model == NULL || single_sequence_create(model, n, n, QR_KV_F32, &single, &err) != QRUN_OK) { return; }
    CHECK(single_sequence_feed(&single, ids, n, &err) == QRUN_OK);
    CHECK(single_sequence_logits(&single, n - 1, logits, &err) == QRUN_OK);
    single_sequence_destroy(&single);
}

static void test_older_configs_are_the_same_model(void) {
    for (const qr_json *entry = qr_json_first(qr_json_get(golden_index, "models")); entry != NULL;
         entry = entry->next) {
        const temporary_folder folder = temporary_create();
        char from[512];
        snprintf(from, sizeof from, FIXTURES "%s", text_of(entry, "older_config"));
        link_file(&folder, from, "config.json");
        static const char *const files[] = {"model.safetensors",
                                            "model.safetensors.index.json",
                                            "model-00001-of-00002.safetensors",
                                            "model-00002-of-00002.safetensors",
                                            "model-00001-of-00003.safetensors",
                                            "model-00002-of-00003.safetensors",
                                            "model-00003-of-00003.safetensors"};
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            snprintf(from, sizeof from, FIXTURES "%s/%s", text_of(entry, "folder"), files[i]);
            link_file(&folder, from, files[i]);
        }
        qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
        params.path = folder.path, params.quant = QRUN_QUANT_F32, params.dtype = QRUN_DTYPE_F32;
        qrun_model *older = NULL,
                   *newer = run_open_fixture(context, text_of(entry, "folder"), QRUN_QUANT_F32, QRUN_DTYPE_F32);
        qrun_error error = QRUN_ERROR_INIT;
        CHECK_MSG(qrun_model_open(context, &params, &older, &error) == QRUN_OK, "%s: %s", text_of(entry, "name"),
                  error.message);
        for (const qr_json *p = qr_json_first(qr_json_get(entry, "prompts")); p != NULL && older != NULL; p = p->next) {
            static float logits[2][4096];
            all_logits(older, p, logits[0]);
            all_logits(newer, p, logits[1]);
            CHECK_MSG(memcmp(logits[0], logits[1], (size_t)newer->shape.vocab * sizeof(float)) == 0,
                      "%s: the older config differs", text_of(entry, "name"));
        }
        qrun_model_destroy(older);
        qrun_model_destroy(newer);
        temporary_remove(&folder);
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
    printf("instruction set %s\n", context->backend->isa);
    if (check_isas() != NULL && strcmp(check_isas(), context->backend->isa) != 0) {
        printf("%s was to be tested\n", check_isas());
        return 1;
    }
    CHECK_RUN(test_f32_equals_transformers);
    CHECK_RUN(test_bf16_is_within_twice_the_error_of_transformers);
    CHECK_RUN(test_f16_is_within_twice_the_error_of_transformers);
    CHECK_RUN(test_packed_folders);
    CHECK_RUN(test_mxfp4_is_kept);
    CHECK_RUN(test_mxfp4_of_another_folder);
    CHECK_RUN(test_folders_of_bitsandbytes);
    CHECK_RUN(test_adapters);
    CHECK_RUN(test_sessions_generate_the_recorded_tokens);
    CHECK_RUN(test_older_configs_are_the_same_model);
    qrun_context_destroy(context);
    qr_json_free(golden_index);
    return check_end();
}
