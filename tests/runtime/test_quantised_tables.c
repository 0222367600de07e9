/* Folders whose embeddings of tokens are stored in INT8: the bits of holding them so when the original is opened, the
 * layout that bitsandbytes has for a matrix in INT8, and what reads, merges and exports such a folder. */
#include "check.h"

#include <math.h>

#include "base/half.h"
#include "base/sizes.h"
#include "folder_writing.h"
#include "loaders/source/model_source.h"
#include "quant/int8.h"
#include "runtime/model/modules.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"
#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"

static qrun_context *context;

static qrun_status quantize(const char *path, const char *out, qrun_quant quant, qrun_error *error) {
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    params.path = path, params.out = out, params.quant = quant, params.quant_embedding_int8 = true;
    return qrun_quantize_folder(context, &params, error);
}

static void must_quantize(const char *path, const char *out, qrun_quant quant) {
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(quantize(path, out, quant, &error) == QRUN_OK, "%s: %s", path, error.message);
}

static qrun_status open_model(const char *path, qrun_quant quant, bool in_int8, qrun_model **model, qrun_error *error) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path, params.quant = quant, params.quant_embedding_int8 = in_int8;
    return qrun_model_open(context, &params, model, error);
}

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

/* Codes, then scales. */
static unsigned char *bytes_of(const qr_weight *table, size_t *n_bytes) {
    const size_t n_codes = (size_t)qr_round_up((int64_t)qr_weight_code_bytes(&table->desc), 4);
    *n_bytes = n_codes + (size_t)table->desc.rows * sizeof(float);
    unsigned char *bytes = qr_alloc_zeroed(*n_bytes);
    float *scales = (float *)(void *)(bytes + n_codes);
    qr_backend *backend = context->backend;
    CHECK(backend->weight_get_rows(backend, table, 0, table->desc.rows, bytes, NULL) == QRUN_OK);
    CHECK(backend->weight_get_scales(backend, table, scales, NULL, NULL, NULL, NULL) == QRUN_OK);
    return bytes;
}

static void compare_tables(const char *path, const qr_weight *ours, const qr_weight *theirs) {
    size_t n_ours, n_theirs;
    CHECK_MSG(ours->desc.format == QR_WEIGHT_INT8 && theirs->desc.format == QR_WEIGHT_INT8, "%s is not in INT8", path);
    CHECK(ours->desc.rows == theirs->desc.rows && ours->desc.cols == theirs->desc.cols);
    unsigned char *a = bytes_of(ours, &n_ours), *b = bytes_of(theirs, &n_theirs);
    CHECK_MSG(n_ours == n_theirs && memcmp(a, b, n_ours) == 0, "%s: a table differs from the one held at load", path);
    qr_free(a);
    qr_free(b);
}

static void check_bits(const char *path, qrun_quant quant) {
    const char *out = in_scratch("bits");
    qrun_model *stored = NULL, *held = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    must_quantize(path, out, quant);
    CHECK_MSG(open_model(out, QRUN_QUANT_AUTO, false, &stored, &error) == QRUN_OK, "%s: %s", path, error.message);
    CHECK_MSG(open_model(path, quant, true, &held, &error) == QRUN_OK, "%s: %s", path, error.message);
    if (stored != NULL && held != NULL) {
        CHECK_INT(stored->weight_bytes, held->weight_bytes);
        compare_tables(path, &stored->embedding, &held->embedding);
        CHECK_INT(stored->head.desc.format, held->head.desc.format);
        if (held->shape.layer_input > 0) { compare_tables(path, &stored->inputs.embedding, &held->inputs.embedding); }
    }
    qrun_model_destroy(stored);
    qrun_model_destroy(held);
    CHECK(scratch_remove(out));
}

static void test_bits_are_those_of_holding_it_at_load(void) {
    static const char *const models[] = {EXAMPLE, FIXTURES "models/llama",
                                         FIXTURES "models/gpt2", /* its embedding of positions stays */
                                         FIXTURES "models/gemma3", FIXTURES "models/gemma4"};
    static const qrun_quant quants[] = {QRUN_QUANT_NF4_DQ, QRUN_QUANT_NF4, QRUN_QUANT_INT8};
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        for (size_t j = 0; j < QR_COUNT_OF(quants); j++) { check_bits(models[i], quants[j]); }
    }
}

/* ---- Layout ------------------------------------------------------------------------------------------------------ */

static void test_the_layout_is_that_of_a_linear_layer(void) {
    const char *out = in_scratch("layout");
    qr_safetensors *file = NULL, *base = NULL;
    must_quantize(FIXTURES "models/llama", out, QRUN_QUANT_NF4_DQ);
    REQUIRE(qr_safetensors_open(out, &file, NULL) == QRUN_OK);
    REQUIRE(qr_safetensors_open(FIXTURES "models/llama", &base, NULL) == QRUN_OK);
    const qr_safetensors_tensor *plain = qr_safetensors_find(base, "model.embed_tokens.weight");
    const qr_safetensors_tensor *codes = qr_safetensors_find(file, "model.embed_tokens.weight");
    const qr_safetensors_tensor *scales = qr_safetensors_find(file, "model.embed_tokens.SCB");
    const qr_safetensors_tensor *format = qr_safetensors_find(file, "model.embed_tokens.weight_format");
    REQUIRE(plain != NULL && codes != NULL && scales != NULL && format != NULL);
    CHECK(codes->dtype == QR_DTYPE_I8 && codes->n_dims == 2 && codes->dims[0] == plain->dims[0] &&
          codes->dims[1] == plain->dims[1]);
    CHECK(scales->dtype == QR_DTYPE_F32 && scales->n_dims == 1 && scales->dims[0] == plain->dims[0]);
    CHECK(format->dtype == QR_DTYPE_U8 && format->n_dims == 0 && format->data[0] == 0);
    CHECK_INT(qr_safetensors_find(file, "lm_head.weight")->dtype, QR_DTYPE_BF16); /* a matrix of its own */
    qr_safetensors_close(base);
    qr_safetensors_close(file);
    CHECK(scratch_remove(out));
}

/* ---- What is made of it ------------------------------------------------------------------------------------------ */

/* A tensor of floats in `path` has the values that the table in INT8 stands for. */
static void check_values(const char *quantised, const char *path, const char *module, const char *name) {
    qr_safetensors *from = NULL, *made = NULL;
    qr_error err = {0};
    char codes_name[128], scales_name[128];
    snprintf(codes_name, sizeof codes_name, "%s.weight", module);
    snprintf(scales_name, sizeof scales_name, "%s.SCB", module);
    CHECK_MSG(qr_safetensors_open(quantised, &from, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_source_open_tensors(path, &made, &err) == QRUN_OK, "%s", err.message);
    const qr_safetensors_tensor *codes = qr_safetensors_find(from, codes_name),
                                *values = qr_safetensors_find(made, name);
    const qr_safetensors_tensor *scales = qr_safetensors_find(from, scales_name);
    REQUIRE(codes != NULL && scales != NULL && values != NULL);
    CHECK_MSG(values->dtype == QR_DTYPE_F32 && values->n_bytes == codes->n_bytes * sizeof(float), "%s: %s", path, name);
    CHECK(qr_safetensors_find(made, scales_name) == NULL);
    const int64_t cols = codes->dims[1];
    float *row = qr_alloc_array((size_t)cols, sizeof *row);
    for (int64_t r = 0; r < codes->dims[0]; r++) {
        float scale;
        memcpy(&scale, scales->data + r * (int64_t)sizeof scale, sizeof scale);
        qr_int8_dequantize_row((const int8_t *)codes->data + r * cols, scale, cols, row);
        CHECK_MSG(memcmp(row, values->data + r * cols * (int64_t)sizeof *row, (size_t)cols * sizeof *row) == 0,
                  "%s: row %lld of %s", path, (long long)r, name);
    }
    qr_free(row);
    qr_safetensors_close(from);
    qr_safetensors_close(made);
}

static void merge(const char *path, const char *adapter, const char *out) {
    qrun_merge_params params = QRUN_MERGE_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    params.path = path, params.adapter = adapter, params.out = out, params.dtype = QRUN_QUANT_F32;
    CHECK_MSG(qrun_merge_folder(context, &params, NULL, &error) == QRUN_OK, "%s", error.message);
}

static void test_merging_writes_its_values(void) {
    const char *out = in_scratch("quantised"), *merged = in_scratch("merged");
    must_quantize(FIXTURES "models/llama", out, QRUN_QUANT_INT8);
    merge(out, FIXTURES "adapters/llama-lora", merged);
    check_values(out, merged, "model.embed_tokens", "model.embed_tokens.weight");
    CHECK(scratch_remove(out) && scratch_remove(merged));
    /* A tied head stays what it was where the adapter has an embedding of its own. */
    must_quantize(FIXTURES "models/gemma3", out, QRUN_QUANT_NF4_DQ);
    merge(out, FIXTURES "adapters/gemma3-saved", merged);
    qr_safetensors *file = NULL;
    REQUIRE(qr_safetensors_open(merged, &file, NULL) == QRUN_OK);
    const bool has_head = qr_safetensors_find(file, "lm_head.weight") != NULL;
    for (size_t i = 0; i < qr_safetensors_count(file); i++) {
        CHECK_MSG(qr_safetensors_get(file, i)->dtype == QR_DTYPE_F32, "%s is left quantised",
                  qr_safetensors_get(file, i)->name);
    }
    qr_safetensors_close(file);
    if (has_head) { check_values(out, merged, "model.embed_tokens", "lm_head.weight"); }
    CHECK(has_head);
    CHECK(scratch_remove(out) && scratch_remove(merged));
}

static void test_a_gguf_file_has_its_values(void) {
    const char *out = in_scratch("quantised"), *gguf = in_scratch("model.gguf");
    qrun_export_params params = QRUN_EXPORT_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    must_quantize(EXAMPLE, out, QRUN_QUANT_INT8);
    params.path = out, params.out = gguf, params.format = QRUN_EXPORT_GGUF, params.type = QRUN_GGUF_F32;
    CHECK_MSG(qrun_export(context, &params, NULL, &error) == QRUN_OK, "%s", error.message);
    check_values(out, gguf, "model.embed_tokens", "model.embed_tokens.weight");
    CHECK(remove(gguf) == 0);
    CHECK(scratch_remove(out));
}

/* ---- Refused ----------------------------------------------------------------------------------------------------- */

/* The only file of the folder, changed in place: `bytes` at the first `what`, plus an offset. */
static void change_file(const char *folder, const char *what, int64_t offset, const void *bytes, size_t n_bytes) {
    char path[600];
    char *text = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    REQUIRE(qr_file_read(path, 1 << 26, &text, &size, NULL) == QRUN_OK);
    char *at = NULL;
    const size_t n = strlen(what);
    for (size_t i = 0; i + n <= size && at == NULL; i++) {
        if (memcmp(text + i, what, n) == 0) { at = text + i; }
    }
    REQUIRE(at != NULL);
    memcpy(at + offset, bytes, n_bytes);
    CHECK(qr_file_write(path, text, size, NULL) == QRUN_OK);
    qr_free(text);
}

/* The bytes of a tensor, in the file. */
static void change_tensor(const char *folder, const char *name, int64_t offset, const void *bytes, size_t n_bytes) {
    char path[600];
    char *text = NULL;
    size_t size = 0;
    qr_safetensors *file = NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    REQUIRE(qr_safetensors_open(folder, &file, NULL) == QRUN_OK);
    const qr_safetensors_tensor *tensor = qr_safetensors_find(file, name), *last = tensor;
    REQUIRE(tensor != NULL);
    for (size_t i = 0; i < qr_safetensors_count(file); i++) {
        if (qr_safetensors_get(file, i)->data > last->data) { last = qr_safetensors_get(file, i); }
    }
    const size_t from_end = (size_t)(last->data + last->n_bytes - tensor->data);
    qr_safetensors_close(file);
    REQUIRE(qr_file_read(path, 1 << 26, &text, &size, NULL) == QRUN_OK);
    memcpy(text + size - from_end + offset, bytes, n_bytes);
    CHECK(qr_file_write(path, text, size, NULL) == QRUN_OK);
    qr_free(text);
}

static void expect_refusal(const char *path, bool trainable, qrun_status status, const char *says) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.path = path, params.trainable = trainable;
    CHECK_INT(qrun_model_open(context, &params, &model, &error), status);
    CHECK_MSG(strstr(error.message, says) != NULL, "\"%s\" does not say \"%s\"", error.message, says);
    CHECK(model == NULL);
    qrun_model_destroy(model);
}

static void test_damaged_tables_are_refused(void) {
    static const float scales[] = {NAN, INFINITY, -1.0F};
    const char *out = in_scratch("damaged");
    const unsigned char one = 1;
    for (size_t i = 0; i < QR_COUNT_OF(scales); i++) {
        must_quantize(FIXTURES "models/llama", out, QRUN_QUANT_INT8);
        change_tensor(out, "model.embed_tokens.SCB", 3 * (int64_t)sizeof(float), &scales[i], sizeof scales[i]);
        expect_refusal(out, false, QRUN_ERROR_INPUT, "model.embed_tokens.SCB: the scale of row 3 is");
        CHECK(scratch_remove(out));
    }
    must_quantize(FIXTURES "models/llama", out, QRUN_QUANT_INT8);
    change_tensor(out, "model.embed_tokens.weight_format", 0, &one, 1);
    expect_refusal(out, false, QRUN_ERROR_UNSUPPORTED, "row-major");
    CHECK(scratch_remove(out));
    must_quantize(FIXTURES "models/llama", out, QRUN_QUANT_INT8);
    change_file(out, "model.embed_tokens.SCB", 19, "XXX", 3);
    expect_refusal(out, false, QRUN_ERROR_INPUT, "model.embed_tokens.SCB");
    CHECK(scratch_remove(out));
}

static void test_what_cannot_be_is_refused(void) {
    const char *out = in_scratch("quantised"), *again = in_scratch("again");
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    must_quantize(FIXTURES "models/llama", out, QRUN_QUANT_INT8);
    expect_refusal(out, true, QRUN_ERROR_ARGUMENT, "full fine-tuning changes every weight");
    CHECK_INT(quantize(out, again, QRUN_QUANT_INT8, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "already quantised") != NULL, "%s", error.message);
    /* Embeddings in INT8 that config.json knows nothing of are read; trained whole they are not. */
    CHECK(qr_file_write(in_scratch("quantised/config.json"), "", 0, NULL) == QRUN_OK);
    char *text = NULL;
    size_t n = 0;
    REQUIRE(qr_file_read(FIXTURES "models/llama/config.json", 1 << 20, &text, &n, NULL) == QRUN_OK);
    CHECK(qr_file_write(in_scratch("quantised/config.json"), text, n, NULL) == QRUN_OK);
    qr_free(text);
    expect_refusal(out, true, QRUN_ERROR_UNSUPPORTED, "model.embed_tokens.weight: is stored as int8");
    CHECK(scratch_remove(out));
    params.path = FIXTURES "models/llama", params.out = out, params.quant = QRUN_QUANT_MIXED;
    params.quant_embedding_int8 = true;
    error = (qrun_error)QRUN_ERROR_INIT;
    CHECK_INT(qrun_quantize_folder(context, &params, &error), QRUN_ERROR_ARGUMENT);
    CHECK_INT(count_entries(scratch), 0);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!scratch_begin() || qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_bits_are_those_of_holding_it_at_load);
    CHECK_RUN(test_the_layout_is_that_of_a_linear_layer);
    CHECK_RUN(test_merging_writes_its_values);
    CHECK_RUN(test_a_gguf_file_has_its_values);
    CHECK_RUN(test_damaged_tables_are_refused);
    CHECK_RUN(test_what_cannot_be_is_refused);
    qrun_context_destroy(context);
    scratch_end();
    return check_end();
}
