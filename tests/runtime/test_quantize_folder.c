/* Folders written quantised: equal to those that transformers and bitsandbytes wrote, equal to quantising on load when
 * read back, and whole or not there at all. */
#include "check_open.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "folder_writing.h"
#include "loaders/config/quantized_config.h"
#include "loaders/files/bnb_tensors.h"
#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"
#include "progress_check.h"
#include "runtime/model/modules.h"

#define MODELS QRUN_SOURCE_DIR "/tests/fixtures/models/"
#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"

static qrun_context *context;

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static bool same_file(const char *folder_a, const char *folder_b, const char *name) {
    char *paths[2] = {qr_path_join(folder_a, name), qr_path_join(folder_b, name)};
    char *texts[2] = {NULL, NULL};
    size_t sizes[2] = {0, 1};
    for (int i = 0; i < 2; i++) { (void)qr_file_read(paths[i], 1 << 28, &texts[i], &sizes[i], NULL); }
    const bool same =
        texts[0] != NULL && texts[1] != NULL && sizes[0] == sizes[1] && memcmp(texts[0], texts[1], sizes[0]) == 0;
    for (int i = 0; i < 2; i++) { qr_free(paths[i]), qr_free(texts[i]); }
    return same;
}

static qrun_status quantize(const char *path, const char *out, qrun_quant quant, int64_t max_shard_bytes,
                            qrun_error *error) {
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    params.path = path;
    params.out = out;
    params.quant = quant;
    params.max_shard_bytes = max_shard_bytes;
    return qrun_quantize_folder(context, &params, error);
}

/* ---- Against bitsandbytes ---------------------------------------------------------------------------------------- */

typedef struct stored_fixture {
    const char *base, *folder;
    qrun_quant quant;
} stored_fixture;

static const stored_fixture fixtures[] = {
    {MODELS "llama", MODELS "llama-nf4", QRUN_QUANT_NF4},   {MODELS "llama", MODELS "llama-nf4-dq", QRUN_QUANT_AUTO},
    {MODELS "llama", MODELS "llama-int8", QRUN_QUANT_INT8}, {MODELS "gpt2", MODELS "gpt2-nf4", QRUN_QUANT_NF4},
    {MODELS "gpt2", MODELS "gpt2-int8", QRUN_QUANT_INT8},
};

/* The two codes that bitsandbytes' CPU path finds through a coarse table (tests/golden/README.md). */
static size_t known_differences(const stored_fixture *fixture, const char *tensor) {
    const bool known = strcmp(fixture->folder, MODELS "llama-nf4-dq") == 0 &&
                       strcmp(tensor, "model.layers.1.mlp.up_proj.weight.absmax") == 0;
    return known ? 2 : 0;
}

static void compare_tensor(const stored_fixture *fixture, const qr_safetensors_tensor *ours,
                           const qr_safetensors_tensor *theirs) {
    CHECK_INT(ours->dtype, theirs->dtype);
    CHECK_INT(ours->n_dims, theirs->n_dims);
    CHECK_MSG(memcmp(ours->dims, theirs->dims, sizeof ours->dims) == 0, "%s: another shape", ours->name);
    REQUIRE(ours->n_bytes == theirs->n_bytes);
    size_t n_different = 0;
    for (size_t i = 0; i < ours->n_bytes; i++) {
        n_different += ours->data[i] != theirs->data[i];
        CHECK_MSG(abs(ours->data[i] - theirs->data[i]) <= (known_differences(fixture, ours->name) > 0 ? 1 : 0),
                  "%s: byte %zu is %d, bitsandbytes has %d", ours->name, i, ours->data[i], theirs->data[i]);
    }
    CHECK_INT(n_different, known_differences(fixture, ours->name));
}

static void compare_tensors(const stored_fixture *fixture, const char *out) {
    qr_error err = {0};
    qr_safetensors *ours = NULL, *theirs = NULL;
    CHECK_MSG(qr_safetensors_open(out, &ours, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_safetensors_open(fixture->folder, &theirs, &err) == QRUN_OK, "%s", err.message);
    if (ours != NULL && theirs != NULL) {
        CHECK_INT(qr_safetensors_count(ours), qr_safetensors_count(theirs));
        CHECK_STR(qr_safetensors_metadata(ours, "format"), "pt");
        for (size_t i = 0; i < qr_safetensors_count(theirs); i++) {
            const qr_safetensors_tensor *tensor = qr_safetensors_get(theirs, i);
            const qr_safetensors_tensor *found = qr_safetensors_find(ours, tensor->name);
            CHECK_MSG(found != NULL, "%s was not written", tensor->name);
            if (found != NULL) { compare_tensor(fixture, found, tensor); }
        }
    }
    qr_safetensors_close(ours);
    qr_safetensors_close(theirs);
}

static void compare_configs(const char *folder, const char *out) {
    char *paths[2] = {qr_path_join(folder, "config.json"), qr_path_join(out, "config.json")};
    qr_json *configs[2] = {NULL, NULL};
    qr_error err = {0};
    for (int i = 0; i < 2; i++) {
        CHECK_MSG(qr_json_read(paths[i], 1 << 20, &configs[i], &err) == QRUN_OK, "%s", err.message);
        qr_free(paths[i]);
    }
    CHECK(cJSON_Compare(configs[0], configs[1], true));
    for (int i = 0; i < 2; i++) { qr_json_free(configs[i]); }
}

static void test_as_bitsandbytes_writes_them(void) {
    for (size_t i = 0; i < QR_COUNT_OF(fixtures); i++) {
        const char *out = in_scratch("out");
        qrun_error error = QRUN_ERROR_INIT;
        CHECK_MSG(quantize(fixtures[i].base, out, fixtures[i].quant, 0, &error) == QRUN_OK, "%s", error.message);
        compare_tensors(&fixtures[i], out);
        compare_configs(fixtures[i].folder, out);
        CHECK(same_file(fixtures[i].base, out, "generation_config.json"));
        CHECK_INT(count_entries(out), 3);
        CHECK(scratch_remove(out));
    }
}

static void test_quantisation_states(void) {
    const qr_weight_desc nested = {QR_WEIGHT_NF4_DQ, 64, 3, 5}, plain = {QR_WEIGHT_NF4, 128, 7, 1};
    static const struct {
        float offset;
        const char *text;
    } cases[] = {{0.5F, "0.5"},
                 {1.0F, "1.0"},
                 {1e-5F, "9.999999747378752e-06"},
                 {0.0F, "0.0"},
                 {0.00048828125F, "0.00048828125"},
                 {0.43866580724716187F, "0.43866580724716187"}};
    char text[QR_BNB_QUANT_STATE_BYTES], expected[QR_BNB_QUANT_STATE_BYTES];
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        snprintf(expected, sizeof expected,
                 "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [3, 5], "
                 "\"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": %s}",
                 cases[i].text);
        CHECK_INT(qr_bnb_quant_state(&nested, QR_DTYPE_BF16, cases[i].offset, text), strlen(expected));
        CHECK_STR(text, expected);
    }
    (void)qr_bnb_quant_state(&plain, QR_DTYPE_F16, 0.0F, text);
    CHECK_STR(text, "{\"quant_type\": \"nf4\", \"blocksize\": 128, \"dtype\": \"float16\", \"shape\": [7, 1]}");
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* The text up to `kept_before` bytes and its last `kept_after` bytes stay; what stands between is the new value. */
static void check_config(const char *text, size_t kept_before, size_t kept_after) {
    static const char *const skips[] = {"lm_head", "vision_tower"};
    qr_buffer out = {0};
    qr_error err = {0};
    const size_t n = strlen(text);
    CHECK_MSG(qr_quantized_config_append(text, n, "a config", QR_WEIGHT_NF4_DQ, skips, 2, &out, &err) == QRUN_OK, "%s",
              err.message);
    REQUIRE(out.size > kept_before + kept_after);
    CHECK_MSG(memcmp(out.data, text, kept_before) == 0, "the beginning changed: %s", out.data);
    CHECK_MSG(memcmp(out.data + out.size - kept_after, text + n - kept_after, kept_after) == 0, "the end changed: %s",
              out.data);
    qr_json *root = NULL;
    CHECK_MSG(qr_json_parse(out.data, out.size, "the new config", &root, &err) == QRUN_OK, "%s in %s", err.message,
              out.data);
    const qr_json *value = qr_json_get(root, "quantization_config");
    const char *type = "";
    CHECK(qr_json_get_string(value, "bnb_4bit_quant_type", &type, "", &err) == QRUN_OK);
    CHECK_STR(type, "nf4");
    CHECK_INT(cJSON_GetArraySize(qr_json_get(value, "llm_int8_skip_modules")), 2);
    qr_json_free(root);
    qr_buffer_free(&out);
}

static void test_config_text_is_kept(void) {
    check_config("{\"a\": 1e-05}\n", 11, 2);
    check_config("{ }", 1, 1);
    check_config("{\n  \"b\": {\"c\": [1, {}]},\n  \"d\": \"}\"\n}", 34, 2);
    check_config("{\"quantization_config\": null}", 23, 1);
    check_config(
        "{\"x\": \"\\\",:{\", \"y\": [\"]\", {\"z\": 1}], \"quantization_config\" :null , \"w\": {\"q\": -1.50}}", 60,
        17);
    check_config("{\"quantization\\u005fconfig\": {\"a\": [1, 2]}, \"b\": 7}", 28, 10);
    qr_buffer out = {0};
    qr_error err = {0};
    CHECK(qr_quantized_config_append("[1]", 3, "a list", QR_WEIGHT_NF4, NULL, 0, &out, &err) == QRUN_ERROR_INPUT);
    qr_buffer_free(&out);
}

/* ---- Read back --------------------------------------------------------------------------------------------------- */

static qrun_model *open_model(const char *path, qrun_quant quant) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.quant = quant;
    return check_open_model(context, &params);
}

/* Codes and scales of a matrix in canonical form, one after the other; what a format lacks stays zero. */
static unsigned char *canonical(const qr_weight *weight, size_t *n_bytes) {
    const qr_weight_desc *desc = &weight->desc;
    const size_t n_codes = qr_weight_code_bytes(desc), n_blocks = (size_t)qr_weight_blocks(desc);
    const size_t scales = (size_t)qr_round_up((int64_t)n_codes, 4), n_rows = (size_t)desc->rows;
    *n_bytes = scales + 4 * (n_rows + 2 * n_blocks) + n_blocks;
    unsigned char *bytes = qr_alloc_zeroed(*n_bytes);
    float *row_absmax = (float *)(void *)(bytes + scales), *absmax = row_absmax + n_rows, *nested = absmax + n_blocks;
    uint8_t *codes = (uint8_t *)(nested + n_blocks);
    qr_backend *backend = context->backend;
    const bool is_int8 = desc->format == QR_WEIGHT_INT8, is_nf4 = desc->format == QR_WEIGHT_NF4;
    const bool is_nested = desc->format == QR_WEIGHT_NF4_DQ;
    CHECK(backend->weight_get_rows(backend, weight, 0, desc->rows, bytes, NULL) == QRUN_OK);
    CHECK(backend->weight_get_scales(backend, weight, is_int8 ? row_absmax : NULL, is_nf4 ? absmax : NULL,
                                     is_nested ? codes : NULL, is_nested ? nested : NULL, NULL) == QRUN_OK);
    return bytes;
}

/* The matrices inside the layers of a model: of linear layers, routers and experts. */
enum { MOST_MATRICES = 200 };

typedef struct matrices {
    qr_module list[MOST_MATRICES];
    int n;
} matrices;

static qrun_status note_matrix(void *arg, const qr_module *module, qr_error *err) {
    (void)err;
    matrices *all = arg;
    if (module->matrix == NULL || module->role < QR_ROLE_Q) { return QRUN_OK; }
    if (all->n == MOST_MATRICES) { return QRUN_ERROR_INTERNAL; }
    all->list[all->n++] = *module;
    return QRUN_OK;
}

static void compare_matrix(const qr_module *module, const qr_weight *other) {
    const qr_weight *a = module->matrix;
    size_t n_a, n_b;
    unsigned char *bytes_a = canonical(a, &n_a), *bytes_b = canonical(other, &n_b);
    CHECK_INT(a->desc.format, other->desc.format);
    CHECK(qr_weight_is_plain(a->desc.format) == !qr_role_is_quantised(module->role));
    CHECK_MSG(n_a == n_b && memcmp(bytes_a, bytes_b, n_a) == 0, "role %d of layer %d, expert %d, differs",
              (int)module->role, (int)module->layer, (int)module->expert);
    CHECK(memcmp(&a->nested_offset, &other->nested_offset, sizeof(float)) == 0);
    qr_free(bytes_a);
    qr_free(bytes_b);
}

static void check_read_back(const char *base, qrun_quant quant, int64_t max_shard_bytes) {
    const char *out = in_scratch("back");
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(quantize(base, out, quant, max_shard_bytes, &error) == QRUN_OK, "%s: %s", base, error.message);
    qrun_model *on_load = open_model(base, quant), *stored = open_model(out, QRUN_QUANT_AUTO);
    if (on_load != NULL && stored != NULL) {
        CHECK(stored->prequantized && !on_load->prequantized);
        static matrices ours, theirs;
        ours.n = theirs.n = 0;
        CHECK(qr_model_each_module(on_load, note_matrix, &ours, NULL) == QRUN_OK);
        CHECK(qr_model_each_module(stored, note_matrix, &theirs, NULL) == QRUN_OK);
        CHECK_INT(ours.n, theirs.n);
        for (int i = 0; i < ours.n && i < theirs.n; i++) { compare_matrix(&ours.list[i], theirs.list[i].matrix); }
    }
    qrun_model_destroy(on_load);
    qrun_model_destroy(stored);
    CHECK(scratch_remove(out));
}

static void test_reads_back_as_quantised_on_load(void) {
    static const char *const bases[] = {MODELS "llama",
                                        MODELS "gpt2",
                                        MODELS "gemma3",
                                        MODELS "phi3",
                                        MODELS "qwen2",
                                        MODELS "qwen3-moe",
                                        MODELS "qwen3-moe-stacked",
                                        MODELS "gpt-oss",
                                        MODELS "gpt-oss-mxfp4",
                                        MODELS "llama-fp8",
                                        MODELS "qwen3-moe-fp8",
                                        MODELS "qwen3-moe-stacked-fp8",
                                        MODELS "llama-gptq",
                                        MODELS "llama-gptq-order",
                                        MODELS "qwen3-moe-gptq8",
                                        MODELS "llama-awq",
                                        MODELS "qwen3-w4a16-zeros",
                                        MODELS "qwen3-moe-w8",
                                        MODELS "llama-fp8-blocks",
                                        MODELS "llama-nvfp4",
                                        MODELS "qwen3-mixed",
                                        MODELS "mixtral",
                                        MODELS "kimi-linear", /* whose names in memory are others */
                                        EXAMPLE};
    static const qrun_quant quants[] = {QRUN_QUANT_NF4, QRUN_QUANT_NF4_DQ, QRUN_QUANT_INT8};
    for (size_t i = 0; i < QR_COUNT_OF(bases); i++) {
        for (size_t j = 0; j < QR_COUNT_OF(quants); j++) { check_read_back(bases[i], quants[j], 0); }
    }
}

static void test_shards(void) {
    check_read_back(MODELS "llama", QRUN_QUANT_NF4_DQ, 50000);
    check_read_back(MODELS "llama", QRUN_QUANT_INT8, 1);
    const char *out = in_scratch("shards");
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(quantize(MODELS "llama", out, QRUN_QUANT_NF4_DQ, 50000, &error) == QRUN_OK);
    compare_tensors(&fixtures[1], out);
    CHECK(qr_file_exists(in_scratch("shards/model.safetensors.index.json")));
    CHECK(!qr_file_exists(in_scratch("shards/model.safetensors")));
    CHECK(scratch_remove(out));
}

static void test_files_beside_the_weights(void) {
    const char *out = in_scratch("files");
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(quantize(EXAMPLE, out, QRUN_QUANT_NF4, 0, &error) == QRUN_OK);
    CHECK(same_file(EXAMPLE, out, "tokenizer.json"));
    CHECK(same_file(EXAMPLE, out, "tokenizer_config.json"));
    CHECK(same_file(EXAMPLE, out, "generation_config.json"));
    CHECK(!qr_file_exists(in_scratch("files/README.md")));
    CHECK(scratch_remove(out));
}

/* Every tensor and the config as they were. */
static void test_mxfp4_is_copied(void) {
    const char *from = MODELS "gpt-oss-mxfp4", *out = in_scratch("mxfp4");
    qrun_error error = QRUN_ERROR_INIT;
    qr_safetensors *ours = NULL, *theirs = NULL;
    REQUIRE(quantize(from, out, QRUN_QUANT_MXFP4, 100000, &error) == QRUN_OK);
    CHECK(same_file(from, out, "config.json"));
    CHECK(qr_file_exists(in_scratch("mxfp4/model.safetensors.index.json")));
    REQUIRE(qr_safetensors_open(out, &ours, NULL) == QRUN_OK && qr_safetensors_open(from, &theirs, NULL) == QRUN_OK);
    CHECK_INT(qr_safetensors_count(ours), qr_safetensors_count(theirs));
    for (size_t i = 0; i < qr_safetensors_count(theirs); i++) {
        const qr_safetensors_tensor *expected = qr_safetensors_get(theirs, i);
        const qr_safetensors_tensor *tensor = qr_safetensors_find(ours, expected->name);
        CHECK_MSG(tensor != NULL && tensor->dtype == expected->dtype && tensor->n_bytes == expected->n_bytes &&
                      memcmp(tensor->data, expected->data, tensor->n_bytes) == 0,
                  "%s differs", expected->name);
    }
    qr_safetensors_close(ours);
    qr_safetensors_close(theirs);
    CHECK(scratch_remove(out));
}

/* ---- Refusals and failures --------------------------------------------------------------------------------------- */

static void check_refused(const char *path, const char *out, qrun_quant quant, qrun_status expected, const char *says) {
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(quantize(path, out, quant, 0, &error), expected);
    CHECK_MSG(strstr(error.message, says) != NULL, "\"%s\" does not say \"%s\"", error.message, says);
    CHECK_INT(count_entries(scratch), 0);
}

static void test_refusals(void) {
    const char *out = in_scratch("out");
    for (size_t i = 0; i < QR_COUNT_OF(fixtures); i++) {
        check_refused(fixtures[i].folder, out, QRUN_QUANT_AUTO, QRUN_ERROR_ARGUMENT, "already quantised");
    }
    check_refused(MODELS "llama-nf4", out, QRUN_QUANT_INT8, QRUN_ERROR_ARGUMENT, "original model");
    check_refused(MODELS "llama-nf4", out, QRUN_QUANT_MXFP4, QRUN_ERROR_ARGUMENT, "already quantised");
    check_refused(MODELS "gpt-oss", out, QRUN_QUANT_MXFP4, QRUN_ERROR_ARGUMENT, "is not stored as mxfp4");
    check_refused(MODELS "llama", scratch, QRUN_QUANT_NF4, QRUN_ERROR_ARGUMENT, "already exists");
    check_refused(MODELS "llama", in_scratch("none/out"), QRUN_QUANT_NF4, QRUN_ERROR_NOT_FOUND, "create the folder");
    check_refused(MODELS "llama", out, QRUN_QUANT_BF16, QRUN_ERROR_ARGUMENT, "nf4-dq, nf4, int8, mxfp4 and mixed");
    check_refused(MODELS "llama", "", QRUN_QUANT_NF4, QRUN_ERROR_ARGUMENT, "no folder to write");
    check_refused(MODELS "llama", NULL, QRUN_QUANT_NF4, QRUN_ERROR_ARGUMENT, "no folder to write");
    check_refused(NULL, out, QRUN_QUANT_NF4, QRUN_ERROR_ARGUMENT, "no model path");
    check_refused("no/such/model", out, QRUN_QUANT_NF4, QRUN_ERROR_NOT_FOUND, "no/such/model");
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(quantize(MODELS "llama", out, QRUN_QUANT_NF4, -1, &error), QRUN_ERROR_ARGUMENT);
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    params.struct_size = 3;
    CHECK_INT(qrun_quantize_folder(context, &params, NULL), QRUN_ERROR_ARGUMENT);
    params = (qrun_quantize_params)QRUN_QUANTIZE_PARAMS_INIT;
    params.path = MODELS "gpt-oss-mxfp4", params.out = out;
    params.quant = QRUN_QUANT_MXFP4, params.quant_embedding_int8 = true;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(qrun_quantize_folder(context, &params, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "does not go with it") != NULL, "%s", error.message);
}

static void test_progress_and_cancelling(void) {
    progress whole = {0};
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    params.path = MODELS "gpt2";
    params.out = in_scratch("cancelled");
    params.progress = progress_follow;
    params.progress_user = &whole;
    CHECK(qrun_quantize_folder(context, &params, NULL) == QRUN_OK);
    CHECK(whole.n_calls > 10);
    CHECK_INT(whole.last, whole.total);
    CHECK(scratch_remove(params.out));
    for (int at = 1; at <= whole.n_calls; at++) {
        progress stopped = {.stop_after = at};
        qrun_error error = QRUN_ERROR_INIT;
        params.progress_user = &stopped;
        CHECK_INT(qrun_quantize_folder(context, &params, &error), QRUN_ERROR_CANCELLED);
        CHECK_INT(count_entries(scratch), 0);
    }
}

static qrun_status quantize_llama(const char *out, qrun_error *error) {
    return quantize(MODELS "llama", out, QRUN_QUANT_NF4_DQ, 0, error);
}

static qrun_status quantize_gpt2(const char *out, qrun_error *error) {
    return quantize(MODELS "gpt2", out, QRUN_QUANT_NF4_DQ, 60000, error);
}

static void test_writing_fails(void) { check_full_disk(quantize_llama); }
static void test_every_allocation_may_fail(void) { check_failing_allocations(quantize_gpt2); }

/* In the scratch folder `folder`, "damaged": a copy of the model `base` whose tensor `name` has other bytes from
 * `offset` on. */
static void write_damaged(const char *base, const char *name, size_t offset, const unsigned char *bytes, size_t n_bytes,
                          const char *folder) {
    char *text = NULL, *weights = NULL, config[512], file[512];
    size_t n_text = 0, n_weights = 0;
    qr_safetensors *source = NULL;
    snprintf(config, sizeof config, "%s/config.json", base);
    snprintf(file, sizeof file, "%s/model.safetensors", base);
    REQUIRE(qr_file_read(config, 1 << 20, &text, &n_text, NULL) == QRUN_OK);
    REQUIRE(qr_file_read(file, 1 << 24, &weights, &n_weights, NULL) == QRUN_OK);
    REQUIRE(qr_safetensors_open(base, &source, NULL) == QRUN_OK);
    const qr_safetensors_tensor *tensor = qr_safetensors_find(source, name), *last = qr_safetensors_get(source, 0);
    for (size_t i = 0; i < qr_safetensors_count(source); i++) {
        if (qr_safetensors_get(source, i)->data > last->data) { last = qr_safetensors_get(source, i); }
    }
    const size_t end = (size_t)(last->data + last->n_bytes - tensor->data);
    memcpy(weights + n_weights - end + offset, bytes, n_bytes);
    qr_safetensors_close(source);
    CHECK(qr_folder_create(folder, NULL) == QRUN_OK);
    CHECK(qr_file_write(in_scratch("damaged/config.json"), text, n_text, NULL) == QRUN_OK);
    CHECK(qr_file_write(in_scratch("damaged/model.safetensors"), weights, n_weights, NULL) == QRUN_OK);
    qr_free(text);
    qr_free(weights);
}

/* Where they are quantised, into a folder or while the model is opened: NF4 and INT8 have codes for NaN too. */
static void test_weights_that_are_not_finite_are_refused(void) {
    static const unsigned char values[][2] = {{0x80, 0x7F}, {0xC0, 0x7F}}; /* infinity and NaN in BF16 */
    static const qrun_quant quants[] = {QRUN_QUANT_NF4, QRUN_QUANT_NF4_DQ, QRUN_QUANT_INT8};
    const char *name = "model.layers.1.mlp.up_proj.weight";
    for (size_t i = 0; i < QR_COUNT_OF(quants) * QR_COUNT_OF(values); i++) {
        const char *folder = in_scratch("damaged");
        qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        qrun_model *model = NULL;
        params.quant = quants[i / QR_COUNT_OF(values)];
        write_damaged(MODELS "llama", name, 20, values[i % QR_COUNT_OF(values)], sizeof values[0], folder);
        CHECK_INT(quantize(folder, in_scratch("out"), params.quant, 0, &error), QRUN_ERROR_INPUT);
        CHECK_MSG(strstr(error.message, name) != NULL, "%s", error.message);
        error = (qrun_error)QRUN_ERROR_INIT;
        folder = in_scratch("damaged");
        params.path = folder;
        CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_INPUT);
        CHECK_MSG(strstr(error.message, name) != NULL, "%s", error.message);
        qrun_model_destroy(model);
        CHECK(scratch_remove(folder));
    }
    CHECK_INT(count_entries(scratch), 0);
}

/* Kept as it is, decoded, and quantised once more. */
static void test_scales_that_are_no_numbers_are_refused(void) {
    static const unsigned char not_a_number[1] = {255};
    static const qrun_quant quants[] = {QRUN_QUANT_AUTO, QRUN_QUANT_BF16, QRUN_QUANT_NF4_DQ};
    const char *name = "model.layers.1.mlp.experts.gate_up_proj_scales", *folder = in_scratch("damaged");
    write_damaged(MODELS "gpt-oss-mxfp4", name, 301, not_a_number, sizeof not_a_number, folder);
    for (size_t i = 0; i < QR_COUNT_OF(quants); i++) {
        qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        qrun_model *model = NULL;
        params.path = folder;
        params.quant = quants[i];
        CHECK_INT(qrun_model_open(context, &params, &model, &error), QRUN_ERROR_INPUT);
        CHECK_MSG(strstr(error.message, name) != NULL && strstr(error.message, "255") != NULL, "%s", error.message);
    }
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(quantize(folder, in_scratch("out"), QRUN_QUANT_NF4, 0, &error), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(error.message, name) != NULL, "%s", error.message);
    CHECK(scratch_remove(folder));
    CHECK_INT(count_entries(scratch), 0);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qrun_error error = QRUN_ERROR_INIT;
    if (!scratch_begin() || qrun_context_create(NULL, &context, &error) != QRUN_OK) {
        printf("cannot begin: %s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_as_bitsandbytes_writes_them);
    CHECK_RUN(test_quantisation_states);
    CHECK_RUN(test_config_text_is_kept);
    CHECK_RUN(test_reads_back_as_quantised_on_load);
    CHECK_RUN(test_shards);
    CHECK_RUN(test_files_beside_the_weights);
    CHECK_RUN(test_mxfp4_is_copied);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_progress_and_cancelling);
    CHECK_RUN(test_writing_fails);
    CHECK_RUN(test_weights_that_are_not_finite_are_refused);
    CHECK_RUN(test_scales_that_are_no_numbers_are_refused);
    CHECK_RUN(test_every_allocation_may_fail);
    qrun_context_destroy(context);
    scratch_end();
    return check_end();
}
