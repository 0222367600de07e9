/* Mixed formats: what is measured of a matrix is what a model shows whose file has this matrix alone as its codes
 * decode; the folder has the formats that were chosen, takes the bytes that were said, and predicts better than others
 * of its size. */
#include "check_open.h"

#include <math.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/half.h"
#include "base/sizes.h"
#include "folder_writing.h"
#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"
#include "quant/nf4.h"
#include "runtime/engine/context.h"
#include "runtime/model/mixed_formats.h"

#define MODELS QRUN_SOURCE_DIR "/tests/fixtures/models/"
#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"

enum { TOKENS = 96, FIXTURE_TOKENS = 24 };

static qrun_context *context;
static char *text; /* examples/eval.txt */

static qrun_mixed *measure_example(qrun_context *on, int64_t budget_bytes) {
    qrun_mixed_params params = QRUN_MIXED_PARAMS_INIT;
    params.path = EXAMPLE;
    params.text = text;
    params.max_tokens = TOKENS;
    params.budget_bytes = budget_bytes;
    qrun_mixed *mixed = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_mixed_measure(on, &params, &mixed, &error) == QRUN_OK, "%s", error.message);
    return mixed;
}

static qrun_status write_mixed(const char *path, const char *out, const qrun_mixed *mixed, qrun_error *error) {
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    params.path = path;
    params.out = out;
    params.quant = QRUN_QUANT_MIXED;
    params.mixed = mixed;
    return qrun_quantize_folder(context, &params, error);
}

/* Of the example model in BF16 and another. */
static qrun_difference difference_to(const char *folder, qrun_quant quant) {
    qrun_model_params model = QRUN_MODEL_PARAMS_INIT, other = QRUN_MODEL_PARAMS_INIT;
    model.path = EXAMPLE;
    model.quant = QRUN_QUANT_BF16;
    other.path = folder;
    other.quant = quant;
    qrun_compare_params params = QRUN_COMPARE_PARAMS_INIT;
    params.model = &model;
    params.other = &other;
    params.text = text;
    params.max_tokens = TOKENS;
    qrun_difference difference = QRUN_DIFFERENCE_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_compare_outputs(context, &params, &difference, &error) == QRUN_OK, "%s", error.message);
    return difference;
}

static qrun_model *open_model(const char *path, qrun_quant quant) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.quant = quant;
    return check_open_model(context, &params);
}

/* ---- What is measured -------------------------------------------------------------------------------------------- */

/* BF16 values become what their NF4_DQ codes decode to, by the scalar code of quant/. */
static void round_trip(unsigned char *bf16, int64_t n) {
    const int64_t n_blocks = qr_ceil_div(n, QR_NF4_BLOCK);
    float *values = qr_alloc_array((size_t)n, sizeof *values),
          *absmax = qr_alloc_array((size_t)n_blocks, sizeof *absmax);
    float *nested = qr_alloc_array((size_t)qr_ceil_div(n_blocks, QR_NESTED_BLOCK), sizeof *nested);
    uint8_t *codes = qr_alloc((size_t)n / 2 + 1), *absmax_codes = qr_alloc((size_t)n_blocks);
    qr_elements_to_f32(QR_DTYPE_BF16, bf16, 0, n, values);
    qr_nf4_quantize(values, n, QR_NF4_BLOCK, codes, absmax);
    const float offset = qr_nf4_nested_offset(absmax, n_blocks);
    qr_nf4_nest(absmax, n_blocks, offset, absmax_codes, nested);
    qr_nf4_unnest(absmax_codes, nested, offset, 0, n_blocks, absmax);
    qr_nf4_dequantize(codes, absmax, QR_NF4_BLOCK, 0, n, values);
    qr_elements_from_f32(QR_DTYPE_BF16, values, n, bf16);
    qr_free(values), qr_free(absmax), qr_free(nested), qr_free(codes), qr_free(absmax_codes);
}

/* A copy of the example model in which one matrix, or (NULL) every one that was measured, is rounded so. */
static void write_rounded(const char *out, const qrun_mixed *mixed, const char *only) {
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer_config.json"};
    char path[SCRATCH_PATH_BYTES], name[256], *bytes = NULL;
    size_t n_bytes = 0;
    qr_safetensors *source = NULL;
    CHECK(qr_folder_create(out, NULL) == QRUN_OK);
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        snprintf(path, sizeof path, "%s/%s", out, names[i]);
        char *from = qr_path_join(EXAMPLE, names[i]);
        CHECK(qr_file_copy(from, path, NULL) == QRUN_OK);
        qr_free(from);
    }
    REQUIRE(qr_file_read(EXAMPLE "/model.safetensors", 1 << 24, &bytes, &n_bytes, NULL) == QRUN_OK);
    REQUIRE(qr_safetensors_open(EXAMPLE, &source, NULL) == QRUN_OK);
    const unsigned char *end = NULL;
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(source, i);
        if (end == NULL || tensor->data + tensor->n_bytes > end) { end = tensor->data + tensor->n_bytes; }
    }
    const qrun_mixed_matrix *matrix;
    for (int32_t i = 0; (matrix = qrun_mixed_get_matrix(mixed, i)) != NULL; i++) {
        if (only != NULL && strcmp(matrix->name, only) != 0) { continue; }
        snprintf(name, sizeof name, "%s.weight", matrix->name);
        const qr_safetensors_tensor *tensor = qr_safetensors_find(source, name);
        REQUIRE(tensor != NULL && tensor->dtype == QR_DTYPE_BF16);
        round_trip((unsigned char *)bytes + n_bytes - (size_t)(end - tensor->data), (int64_t)tensor->n_bytes / 2);
    }
    qr_safetensors_close(source);
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    CHECK(qr_file_write(path, bytes, n_bytes, NULL) == QRUN_OK);
    qr_free(bytes);
}

static double loss_of(const char *folder) {
    qrun_model *model = open_model(folder, QRUN_QUANT_BF16);
    qrun_session *session = NULL;
    qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    session_params.max_step_tokens = 128;
    session_params.context_tokens = TOKENS;
    qrun_eval_params params = QRUN_EVAL_PARAMS_INIT;
    params.window_tokens = TOKENS;
    params.max_tokens = TOKENS - 1;
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_create(model, &session_params, &session, &error) == QRUN_OK, "%s", error.message);
    CHECK_MSG(qrun_session_eval(session, text, strlen(text), &params, &result, &error) == QRUN_OK, "%s", error.message);
    CHECK_INT(result.n_tokens, TOKENS - 1);
    qrun_session_destroy(session);
    qrun_model_destroy(model);
    return result.mean_nll;
}

static void check_against_rounded(const qrun_mixed *mixed, const char *name, double kl, double loss_difference) {
    const char *folder = in_scratch("rounded");
    write_rounded(folder, mixed, name);
    const qrun_difference difference = difference_to(folder, QRUN_QUANT_BF16);
    CHECK_INT(difference.n_tokens, TOKENS);
    CHECK_MSG(fabs(difference.mean_kl - kl) <= 1e-12, "%s: a KL of %g, measured %g", name, difference.mean_kl, kl);
    const double loss = loss_of(folder) - loss_of(EXAMPLE); /* by an op in F32: nll */
    CHECK_MSG(fabs(loss - loss_difference) <= 2e-6, "%s: the loss differs by %g, measured %g", name, loss,
              loss_difference);
    CHECK(scratch_remove(folder));
}

static void test_numbers_are_those_of_the_model(void) {
    qrun_mixed *mixed = measure_example(context, 0);
    qrun_mixed_info info = QRUN_MIXED_INFO_INIT;
    CHECK(qrun_mixed_get_info(mixed, &info, NULL) == QRUN_OK);
    CHECK_INT(info.n_matrices, 28); /* 4 layers of 7 */
    CHECK_INT(info.n_tokens, TOKENS);
    CHECK(fabs(info.loss - loss_of(EXAMPLE)) <= 2e-6);
    for (int32_t i = 0; i < info.n_matrices; i += 9) {
        const qrun_mixed_matrix *matrix = qrun_mixed_get_matrix(mixed, i);
        CHECK(matrix->kl > 0 && (i == 0 || matrix->kl <= qrun_mixed_get_matrix(mixed, i - 1)->kl));
        CHECK_INT(matrix->n_alike, 1);
        check_against_rounded(mixed, matrix->name, matrix->kl, matrix->loss_difference);
    }
    check_against_rounded(mixed, NULL, info.nf4_kl, info.nf4_loss - info.loss);
    CHECK(qrun_mixed_get_matrix(mixed, -1) == NULL && qrun_mixed_get_matrix(mixed, info.n_matrices) == NULL);
    /* The model that is held in NF4_DQ predicts the same: its op rounds what it decodes to BF16. On AVX2 it takes
     * integers that are nearer to what was decoded (int16_sum.h). */
    const double tolerance = strcmp(context->backend->isa, "avx2") == 0 ? 0.02 * info.nf4_kl : 1e-6;
    CHECK(fabs(difference_to(EXAMPLE, QRUN_QUANT_NF4_DQ).mean_kl - info.nf4_kl) <= tolerance);
    qrun_mixed_destroy(mixed);
}

static void test_threads_make_no_difference(void) {
    qrun_mixed *mixed = measure_example(context, 0);
    for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
        qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
        qrun_context *other = NULL;
        params.n_threads = n_threads;
        REQUIRE(qrun_context_create(&params, &other, NULL) == QRUN_OK);
        qrun_mixed *again = measure_example(other, 0);
        CHECK_STR(qrun_mixed_json(again), qrun_mixed_json(mixed));
        qrun_mixed_destroy(again);
        qrun_context_destroy(other);
    }
    qrun_mixed_destroy(mixed);
}

/* ---- What is chosen ---------------------------------------------------------------------------------------------- */

static double kl_of_written(const qrun_mixed *mixed) {
    const char *folder = in_scratch("mixed");
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(write_mixed(EXAMPLE, folder, mixed, &error) == QRUN_OK, "%s", error.message);
    const double kl = difference_to(folder, QRUN_QUANT_MIXED).mean_kl;
    CHECK(scratch_remove(folder));
    return kl;
}

/* The estimate, a sum over matrices, against the model that was written; and against one of as many bytes in which the
 * matrices that lose least are in INT8. */
static void test_choice_is_the_better_one(void) {
    qrun_mixed *mixed = measure_example(context, 0);
    qrun_mixed_info info = QRUN_MIXED_INFO_INIT;
    double sum = 0;
    CHECK(qrun_mixed_get_info(mixed, &info, NULL) == QRUN_OK);
    for (int32_t i = 0; i < info.n_matrices; i++) { sum += mixed->units[i].matrix.kl; }
    CHECK_MSG(sum > info.nf4_kl / 2 && sum < info.nf4_kl * 2, "all of them %g, their sum %g", info.nf4_kl, sum);
    const double kl = kl_of_written(mixed);
    CHECK_MSG(kl > info.left_kl / 2 && kl < info.left_kl * 2, "written %g, expected %g", kl, info.left_kl);
    CHECK_MSG(kl < 0.9 * info.nf4_kl, "written %g, all in NF4_DQ %g", kl, info.nf4_kl);
    for (int32_t i = 0; i < info.n_matrices; i++) { mixed->units[i].matrix.kl = 1 / mixed->units[i].matrix.kl; }
    CHECK(qr_mixed_choose(mixed, NULL) == QRUN_OK);
    const double other = kl_of_written(mixed);
    CHECK_MSG(kl < other, "chosen %g, those that lose least %g", kl, other);
    qrun_mixed_destroy(mixed);
}

static void test_budgets(void) {
    qrun_mixed *mixed = measure_example(context, 0);
    const qrun_mixed_info first = mixed->info;
    CHECK_INT(first.budget_bytes, first.least_bytes + first.least_bytes / 10);
    int32_t n_before = 0;
    for (int64_t part = 0; part <= 4; part++) {
        mixed->info.budget_bytes = first.least_bytes + (first.all_bytes - first.least_bytes) * part / 4;
        CHECK(qr_mixed_choose(mixed, NULL) == QRUN_OK);
        int64_t n_bytes = first.least_bytes;
        int32_t n_int8 = 0;
        for (int32_t i = 0; i < first.n_matrices; i++) {
            const qr_mixed_unit *unit = &mixed->units[i];
            n_bytes += unit->matrix.weight_bytes - unit->nf4_bytes;
            n_int8 += unit->matrix.quant == QRUN_QUANT_INT8;
        }
        CHECK_INT(mixed->info.weight_bytes, n_bytes);
        CHECK_INT(mixed->info.n_raised, n_int8);
        CHECK(n_bytes <= mixed->info.budget_bytes);
        CHECK(part == 0 || n_int8 > n_before);
        n_before = n_int8;
    }
    CHECK_INT(mixed->info.n_raised, first.n_matrices);
    CHECK_INT(mixed->info.weight_bytes, first.all_bytes);
    CHECK(mixed->info.left_kl == 0);
    qrun_mixed_destroy(mixed);
}

/* ---- What is written --------------------------------------------------------------------------------------------- */

typedef struct format_check {
    const qrun_mixed *mixed;
    int n_raised, n_nf4;
} format_check;

static qrun_status check_format(void *arg, const qr_module *module, qr_error *err) {
    (void)err;
    format_check *check = arg;
    if (module->matrix == NULL || !qr_role_is_quantised(module->role)) { return QRUN_OK; }
    CHECK_INT(module->matrix->desc.format, qr_mixed_format(check->mixed, module->role, module->layer));
    check->n_raised += module->matrix->desc.format == check->mixed->raised;
    check->n_nf4 += module->matrix->desc.format == QR_WEIGHT_NF4_DQ;
    return QRUN_OK;
}

static void check_folder(const char *path, qrun_quant raise_to) {
    qrun_mixed_params params = QRUN_MIXED_PARAMS_INIT;
    int32_t ids[FIXTURE_TOKENS];
    for (int32_t i = 0; i < FIXTURE_TOKENS; i++) { ids[i] = (i * 37 + 5) % 90; }
    params.path = path;
    params.token_ids = ids;
    params.n_token_ids = FIXTURE_TOKENS;
    params.raise_to = raise_to;
    qrun_mixed *mixed = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_mixed_measure(context, &params, &mixed, &error) == QRUN_OK, "%s", error.message);
    if (mixed == NULL) { return; }
    mixed->info.budget_bytes = (mixed->info.least_bytes + mixed->info.all_bytes) / 2;
    CHECK(qr_mixed_choose(mixed, NULL) == QRUN_OK);
    CHECK_MSG(write_mixed(path, in_scratch("mixed"), mixed, &error) == QRUN_OK, "%s: %s", path, error.message);
    qrun_model *model = open_model(in_scratch("mixed"), QRUN_QUANT_AUTO);
    if (model != NULL) {
        format_check check = {.mixed = mixed};
        qrun_model_info info = QRUN_MODEL_INFO_INIT;
        CHECK(qr_model_each_module(model, check_format, &check, NULL) == QRUN_OK);
        CHECK_MSG(check.n_raised > 0 && check.n_nf4 > 0, "%s: %d raised, %d in NF4_DQ", path, check.n_raised,
                  check.n_nf4);
        CHECK(qrun_model_get_info(model, &info, NULL) == QRUN_OK);
        CHECK_STR(info.quant, "mixed");
        CHECK_MSG(info.weight_bytes == mixed->info.weight_bytes, "%s takes %lld, expected %lld", path,
                  (long long)info.weight_bytes, (long long)mixed->info.weight_bytes);
    }
    qrun_model_destroy(model);
    CHECK(scratch_remove(in_scratch("mixed")));
    qrun_mixed_destroy(mixed);
}

/* Families with fused matrices, matrices of [in, out], experts one by one and in stacks, packed ones, a recurrence. */
static void test_folders_have_what_was_chosen(void) {
    static const char *const paths[] = {MODELS "llama",     MODELS "gpt2",       MODELS "phi3",
                                        MODELS "qwen3-moe", MODELS "gpt-oss",    MODELS "gpt-oss-mxfp4",
                                        MODELS "qwen3_5",   MODELS "llama-fp8",  MODELS "qwen3-moe-stacked",
                                        MODELS "gemma4",    MODELS "qwen3_5-moe"};
    for (size_t i = 0; i < QR_COUNT_OF(paths); i++) { check_folder(paths[i], QRUN_QUANT_INT8); }
}

/* Tensors that stay, and those that are decoded, converted, or taken out of stacks. */
static void test_folders_with_16_bits(void) {
    static const char *const paths[] = {EXAMPLE, MODELS "llama", MODELS "qwen3-moe-stacked", MODELS "gpt-oss-mxfp4",
                                        MODELS "llama-fp8"};
    for (size_t i = 0; i < QR_COUNT_OF(paths); i++) { check_folder(paths[i], QRUN_QUANT_BF16); }
}

/* The names of what is left in 16 bits: by them transformers knows. And qrun takes such a folder by any of its names.
 */
static void test_config_names_what_is_not_quantised(void) {
    qrun_mixed_params params = QRUN_MIXED_PARAMS_INIT;
    params.path = EXAMPLE;
    params.text = text;
    params.max_tokens = 16;
    params.raise_to = QRUN_QUANT_BF16;
    qrun_mixed *mixed = NULL;
    qr_json *root = NULL;
    CHECK(qrun_mixed_measure(context, &params, &mixed, NULL) == QRUN_OK);
    CHECK(write_mixed(EXAMPLE, in_scratch("mixed"), mixed, NULL) == QRUN_OK);
    REQUIRE(qr_json_read(in_scratch("mixed/config.json"), 1 << 20, &root, NULL) == QRUN_OK);
    const qr_json *names = qr_json_get(qr_json_get(root, "quantization_config"), "llm_int8_skip_modules");
    CHECK_INT(cJSON_GetArraySize(names), 1 + mixed->info.n_raised);
    CHECK_STR(qr_json_first(names)->valuestring, "lm_head");
    for (const qr_json *item = qr_json_first(names)->next; item != NULL; item = item->next) {
        bool found = false;
        const qrun_mixed_matrix *matrix;
        for (int32_t i = 0; (matrix = qrun_mixed_get_matrix(mixed, i)) != NULL; i++) {
            found |= matrix->quant == QRUN_QUANT_BF16 && strcmp(matrix->name, item->valuestring) == 0;
        }
        CHECK_MSG(found, "%s is not quantised, it says", item->valuestring);
    }
    static const qrun_quant quants[] = {QRUN_QUANT_AUTO, QRUN_QUANT_MIXED, QRUN_QUANT_NF4_DQ};
    for (size_t i = 0; i < QR_COUNT_OF(quants); i++) { qrun_model_destroy(open_model(in_scratch("mixed"), quants[i])); }
    qr_json_free(root);
    CHECK(scratch_remove(in_scratch("mixed")));
    qrun_mixed_destroy(mixed);
}

static void test_measurement_is_in_the_folder(void) {
    qrun_mixed *mixed = measure_example(context, 0);
    char *json = NULL;
    size_t n_bytes = 0;
    qr_json *root = NULL;
    CHECK(write_mixed(EXAMPLE, in_scratch("mixed"), mixed, NULL) == QRUN_OK);
    REQUIRE(qr_file_read(in_scratch("mixed/" QR_MIXED_FILE), 1 << 20, &json, &n_bytes, NULL) == QRUN_OK);
    CHECK_STR(json, qrun_mixed_json(mixed));
    REQUIRE(qr_json_parse(json, n_bytes, "the measurement", &root, NULL) == QRUN_OK);
    CHECK_INT(cJSON_GetArraySize(qr_json_get(root, "matrices")), mixed->info.n_matrices);
    qr_json_free(root);
    qr_free(json);
    CHECK(scratch_remove(in_scratch("mixed")));
    qrun_mixed_destroy(mixed);
}

/* ---- Refusals and failures --------------------------------------------------------------------------------------- */

static void check_not_measured(qrun_mixed_params params, qrun_status expected, const char *says) {
    qrun_mixed *mixed = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(qrun_mixed_measure(context, &params, &mixed, &error), expected);
    CHECK(mixed == NULL);
    CHECK_MSG(strstr(error.message, says) != NULL, "\"%s\" does not say \"%s\"", error.message, says);
}

static void test_what_is_not_measured(void) {
    static const int32_t ids[] = {1, 2, 70000};
    qrun_mixed_params params = QRUN_MIXED_PARAMS_INIT, other;
    params.path = EXAMPLE;
    check_not_measured(params, QRUN_ERROR_ARGUMENT, "needs `text`");
    params.text = "Once";
    params.max_tokens = 1;
    check_not_measured(params, QRUN_ERROR_ARGUMENT, "at least two tokens");
    params.max_tokens = -1;
    check_not_measured(params, QRUN_ERROR_ARGUMENT, "cannot be negative");
    params.max_tokens = 0;
    params.budget_bytes = 1000;
    check_not_measured(params, QRUN_ERROR_ARGUMENT, "`budget_bytes` is 1000");
    params.budget_bytes = 0;
    params.raise_to = QRUN_QUANT_NF4;
    check_not_measured(params, QRUN_ERROR_ARGUMENT, "`raise_to`");
    params.raise_to = QRUN_QUANT_AUTO;
    other = params;
    other.path = MODELS "llama-nf4";
    check_not_measured(other, QRUN_ERROR_ARGUMENT, "already quantised");
    other.path = MODELS "llama";
    check_not_measured(other, QRUN_ERROR_UNSUPPORTED, "no tokenizer.json");
    other.path = NULL;
    check_not_measured(other, QRUN_ERROR_ARGUMENT, "no model path");
    params.token_ids = ids;
    params.n_token_ids = 3;
    check_not_measured(params, QRUN_ERROR_INPUT, "70000");
    params.struct_size = 3;
    check_not_measured(params, QRUN_ERROR_ARGUMENT, "qrun_mixed_params");
}

static void check_not_opened(const char *path, qrun_quant quant, const char *says) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.path = path;
    params.quant = quant;
    CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, says) != NULL, "\"%s\" does not say \"%s\"", error.message, says);
}

static void test_what_is_not_mixed(void) {
    qrun_mixed *mixed = measure_example(context, 0);
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    check_not_opened(EXAMPLE, QRUN_QUANT_MIXED, "measured once");
    check_not_opened(MODELS "llama-nf4-dq", QRUN_QUANT_MIXED, "measured once");
    check_not_opened(MODELS "llama-int8", QRUN_QUANT_MIXED, "measured once");
    params.path = EXAMPLE;
    params.out = in_scratch("mixed");
    params.quant = QRUN_QUANT_MIXED;
    CHECK_INT(qrun_quantize_folder(context, &params, NULL), QRUN_ERROR_ARGUMENT);
    params.quant = QRUN_QUANT_NF4_DQ;
    params.mixed = mixed;
    CHECK_INT(qrun_quantize_folder(context, &params, NULL), QRUN_ERROR_ARGUMENT);
    CHECK_INT(write_mixed(MODELS "llama", in_scratch("mixed"), mixed, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "another model") != NULL, "%s", error.message);
    CHECK_INT(count_entries(scratch), 0);
    CHECK(write_mixed(EXAMPLE, in_scratch("mixed"), mixed, NULL) == QRUN_OK);
    check_not_opened(in_scratch("mixed"), QRUN_QUANT_NF4_DQ, "mixed formats");
    check_not_opened(in_scratch("mixed"), QRUN_QUANT_INT8, "cannot become");
    CHECK(scratch_remove(in_scratch("mixed")));
    qrun_mixed_destroy(mixed);
}

typedef struct cancelling {
    int64_t last, total;
    int n_calls, stop_after;
} cancelling;

static bool follow(void *user, int64_t done, int64_t total) {
    cancelling *seen = user;
    CHECK(done >= seen->last && done <= total && (seen->total == 0 || total == seen->total));
    seen->last = done;
    seen->total = total;
    return ++seen->n_calls != seen->stop_after;
}

static void test_progress_and_cancelling(void) {
    cancelling whole = {0};
    qrun_mixed_params params = QRUN_MIXED_PARAMS_INIT;
    qrun_mixed *mixed = NULL;
    params.path = EXAMPLE;
    params.text = text;
    params.max_tokens = 4;
    params.progress = follow;
    params.progress_user = &whole;
    CHECK(qrun_mixed_measure(context, &params, &mixed, NULL) == QRUN_OK);
    qrun_mixed_destroy(mixed);
    CHECK_INT(whole.total, 4 * (28 + 2));
    CHECK_INT(whole.last, whole.total);
    for (int at = 1; at <= whole.n_calls; at += 7) {
        cancelling stopped = {.stop_after = at};
        params.progress_user = &stopped;
        CHECK_INT(qrun_mixed_measure(context, &params, &mixed, NULL), QRUN_ERROR_CANCELLED);
        CHECK_INT(stopped.n_calls, at);
    }
}

/* One in every few of its allocations fails: there are thousands. */
static void test_allocations_may_fail(void) {
    qr_alloc_stats before, after;
    bool fired = true;
    for (int64_t n = 1; fired; n += 1 + n / 6) {
        qrun_mixed_params params = QRUN_MIXED_PARAMS_INIT;
        qrun_mixed *mixed = NULL;
        qrun_error error = QRUN_ERROR_INIT;
        params.path = EXAMPLE;
        params.text = text;
        params.max_tokens = 2;
        qr_alloc_get_stats(&before);
        qr_alloc_fail_at(n);
        const qrun_status status = qrun_mixed_measure(context, &params, &mixed, &error);
        qr_alloc_fail_at(0);
        qrun_mixed_destroy(mixed);
        qr_alloc_get_stats(&after);
        CHECK_INT(after.n_held, before.n_held);
        fired = after.n_allocations - before.n_allocations >= n;
        CHECK_MSG(status == QRUN_OK || status == QRUN_ERROR_MEMORY, "allocation %lld: %s", (long long)n, error.message);
        CHECK_MSG(fired || status == QRUN_OK, "%s", error.message);
        REQUIRE(check_state.n_failures_in_case == 0);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qrun_error error = QRUN_ERROR_INIT;
    size_t n_bytes = 0;
    if (!scratch_begin() || qrun_context_create(NULL, &context, &error) != QRUN_OK ||
        qr_file_read(QRUN_SOURCE_DIR "/examples/eval.txt", 1 << 20, &text, &n_bytes, &error) != QRUN_OK) {
        printf("cannot begin: %s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_numbers_are_those_of_the_model);
    CHECK_RUN(test_threads_make_no_difference);
    CHECK_RUN(test_choice_is_the_better_one);
    CHECK_RUN(test_budgets);
    CHECK_RUN(test_folders_have_what_was_chosen);
    CHECK_RUN(test_folders_with_16_bits);
    CHECK_RUN(test_config_names_what_is_not_quantised);
    CHECK_RUN(test_measurement_is_in_the_folder);
    CHECK_RUN(test_what_is_not_measured);
    CHECK_RUN(test_what_is_not_mixed);
    CHECK_RUN(test_progress_and_cancelling);
    CHECK_RUN(test_allocations_may_fail);
    qr_free(text);
    qrun_context_destroy(context);
    scratch_end();
    return check_end();
}
