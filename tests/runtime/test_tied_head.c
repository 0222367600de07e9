/* config.json says that the output head is the embedding, and the files have a head all the same: one that is equal is
 * a copy, and one that differs is the head, as transformers 5 has it. */
#include "check.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/folder.h"
#include "base/sizes.h"
#include "loaders/files/json.h"
#include "loaders/files/json_edit.h"
#include "loaders/files/safetensors.h"
#include "loaders/files/safetensors_writer.h"
#include "runtime/model/model.h"
#include "temporary.h"

#define MODELS QRUN_SOURCE_DIR "/tests/fixtures/models/"
enum { MAX_TENSORS = 256 };

static qrun_context *context;
static temporary_folder folder;

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

typedef enum head_kind { NO_HEAD, EQUAL_HEAD, OTHER_HEAD } head_kind;

typedef struct tied_fixture {
    const char *model, *embedding, *head;
} tied_fixture;

static const tied_fixture fixtures[] = {
    {"gemma2", "model.embed_tokens.weight", "lm_head.weight"},
    {"gemma3", "model.embed_tokens.weight", "lm_head.weight"},
    {"gpt2", "transformer.wte.weight", "lm_head.weight"},
    {"llama-llama3", "model.embed_tokens.weight", "lm_head.weight"},
    {"mistral", "model.embed_tokens.weight", "lm_head.weight"},
    {"phi3-partial", "model.embed_tokens.weight", "lm_head.weight"},
    {"qwen2-window", "model.embed_tokens.weight", "lm_head.weight"},
    {"qwen3", "model.embed_tokens.weight", "lm_head.weight"},
};

static void write_config(const char *from, const char *to, bool tied) {
    char *path = qr_path_join(from, "config.json"), *out = qr_path_join(to, "config.json"), *text = NULL;
    size_t n_bytes = 0;
    qr_buffer edited = {0};
    qr_error err = {0};
    CHECK(qr_file_read(path, 1 << 20, &text, &n_bytes, &err) == QRUN_OK);
    CHECK_MSG(qr_json_edit_set(text, n_bytes, path, "tie_word_embeddings", tied ? "true" : "false", &edited, &err) ==
                  QRUN_OK,
              "%s", err.message);
    CHECK(qr_file_write(out, edited.data, edited.size, &err) == QRUN_OK);
    qr_buffer_free(&edited);
    qr_free(text);
    qr_free(path);
    qr_free(out);
}

/* The embedding with its rows in reverse: another matrix of the same type. */
static unsigned char *reversed_rows(const qr_safetensors_tensor *tensor) {
    const size_t n_rows = (size_t)tensor->dims[0], row = tensor->n_bytes / n_rows;
    unsigned char *rows = malloc(tensor->n_bytes);
    for (size_t i = 0; i < n_rows; i++) { memcpy(rows + i * row, tensor->data + (n_rows - 1 - i) * row, row); }
    return rows;
}

/* Writes a copy of the fixture with such a head. The path lives until the next call but three. */
static const char *make_folder(const tied_fixture *fixture, head_kind kind, bool tied) {
    static char paths[4][160];
    static int next;
    char *path = paths[next++ % 4], from[256];
    snprintf(from, sizeof from, MODELS "%s", fixture->model);
    snprintf(path, sizeof paths[0], "%s/%s-%d-%d", folder.path, fixture->model, (int)kind, (int)tied);
    qr_safetensors *source = NULL;
    qr_error err = {0};
    CHECK(qr_folder_create(path, &err) == QRUN_OK);
    write_config(from, path, tied);
    CHECK_MSG(qr_safetensors_open(from, &source, &err) == QRUN_OK, "%s", err.message);
    const qr_safetensors_tensor *embedding = qr_safetensors_find(source, fixture->embedding);
    const size_t n = qr_safetensors_count(source), n_all = n + (kind != NO_HEAD);
    static qr_safetensors_spec specs[MAX_TENSORS];
    CHECK(embedding != NULL && n < MAX_TENSORS && qr_safetensors_find(source, fixture->head) == NULL);
    for (size_t i = 0; i < n_all; i++) {
        const qr_safetensors_tensor *tensor = i < n ? qr_safetensors_get(source, i) : embedding;
        specs[i] = (qr_safetensors_spec){
            .name = i < n ? tensor->name : fixture->head, .dtype = tensor->dtype, .n_dims = tensor->n_dims};
        memcpy(specs[i].dims, tensor->dims, (size_t)tensor->n_dims * sizeof *tensor->dims);
    }
    qr_safetensors_writer *writer = NULL;
    unsigned char *other = reversed_rows(embedding);
    CHECK(qr_safetensors_writer_create(path, "model", specs, n_all, 0, &writer, &err) == QRUN_OK);
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        const bool is_head = strcmp(spec->name, fixture->head) == 0;
        const qr_safetensors_tensor *tensor = is_head ? embedding : qr_safetensors_find(source, spec->name);
        const unsigned char *bytes = is_head && kind == OTHER_HEAD ? other : tensor->data;
        CHECK(qr_safetensors_writer_write(writer, bytes, tensor->n_bytes, &err) == QRUN_OK);
    }
    CHECK_MSG(qr_safetensors_writer_commit(writer, &err) == QRUN_OK, "%s", err.message);
    free(other);
    qr_safetensors_close(source);
    return path;
}

/* ---- What a folder computes -------------------------------------------------------------------------------------- */

typedef struct outcome {
    double nll;
    bool tied;
    int64_t weight_bytes;
} outcome;

static outcome compute(const char *path) {
    static const int32_t ids[] = {5, 9, 17, 33, 12, 7, 40, 21, 8, 3, 19, 26};
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_eval_params eval = QRUN_EVAL_PARAMS_INIT;
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    qrun_model *model = NULL;
    qrun_session *session = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    outcome made = {.nll = NAN};
    model_params.path = path, model_params.dtype = QRUN_DTYPE_F32;
    params.kv_tokens = 64, params.max_sequences = 2;
    CHECK_MSG(qrun_model_open(context, &model_params, &model, &error) == QRUN_OK, "%s: %s", path, error.message);
    if (model != NULL && qrun_session_create(model, &params, &session, &error) == QRUN_OK) {
        CHECK(qrun_session_eval_tokens(session, ids, QR_COUNT_OF(ids), &eval, &result, &error) == QRUN_OK);
        made = (outcome){result.mean_nll, model->shape.tied_head, (int64_t)model->weight_bytes};
    }
    CHECK_MSG(error.status == QRUN_OK, "%s: %s", path, error.message);
    qrun_session_destroy(session);
    qrun_model_destroy(model);
    return made;
}

static void test_a_copy_of_the_embedding_is_tied(void) {
    for (size_t i = 0; i < QR_COUNT_OF(fixtures); i++) {
        const outcome plain = compute(make_folder(&fixtures[i], NO_HEAD, true));
        const outcome copied = compute(make_folder(&fixtures[i], EQUAL_HEAD, true));
        CHECK_MSG(plain.tied && copied.tied && plain.nll == copied.nll, "%s: %.17g, not %.17g", fixtures[i].model,
                  copied.nll, plain.nll);
        CHECK_INT(copied.weight_bytes, plain.weight_bytes);
    }
}

static void test_a_head_that_differs_is_the_head(void) {
    for (size_t i = 0; i < QR_COUNT_OF(fixtures); i++) {
        const outcome plain = compute(make_folder(&fixtures[i], NO_HEAD, true));
        const outcome differs = compute(make_folder(&fixtures[i], OTHER_HEAD, true));
        const outcome untied = compute(make_folder(&fixtures[i], OTHER_HEAD, false));
        CHECK_MSG(!differs.tied && !untied.tied && differs.nll == untied.nll, "%s: %.17g, not %.17g", fixtures[i].model,
                  differs.nll, untied.nll);
        CHECK_MSG(differs.nll != plain.nll, "%s: the head is dropped", fixtures[i].model);
    }
}

/* What is made of such a folder computes the same, and says that nothing is tied. */
static void test_it_stays_when_the_folder_is_rewritten(void) {
    const tied_fixture *llama = &fixtures[3];
    const char *path = make_folder(llama, OTHER_HEAD, true);
    char quantized[160], merged[160];
    qrun_error error = QRUN_ERROR_INIT;
    snprintf(quantized, sizeof quantized, "%s/quantized", folder.path);
    snprintf(merged, sizeof merged, "%s/merged", folder.path);
    qrun_quantize_params quantize = QRUN_QUANTIZE_PARAMS_INIT;
    quantize.path = path, quantize.out = quantized;
    CHECK_MSG(qrun_quantize_folder(context, &quantize, &error) == QRUN_OK, "%s", error.message);
    const outcome before = compute(path), after = compute(quantized);
    CHECK_MSG(!after.tied && after.nll == before.nll, "%.17g, not %.17g", after.nll, before.nll);

    qrun_merge_params merge = QRUN_MERGE_PARAMS_INIT;
    qrun_merge_result result = QRUN_MERGE_RESULT_INIT;
    merge.path = path, merge.out = merged;
    merge.adapter = QRUN_SOURCE_DIR "/tests/fixtures/merge/adapters/llama3-saved-head";
    CHECK_MSG(qrun_merge_folder(context, &merge, &result, &error) == QRUN_OK, "%s", error.message);
    CHECK(!result.head_untied); /* it was not tied */
    qr_json *config = NULL;
    bool tied = true;
    char *config_path = qr_path_join(merged, "config.json");
    REQUIRE(qr_json_read(config_path, 1 << 20, &config, NULL) == QRUN_OK);
    CHECK(qr_json_get_bool(config, "tie_word_embeddings", &tied, "", NULL) == QRUN_OK && !tied);
    qr_json_free(config);
    qr_free(config_path);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    folder = temporary_create();
    CHECK(qrun_context_create(NULL, &context, NULL) == QRUN_OK);
    CHECK_RUN(test_a_copy_of_the_embedding_is_tied);
    CHECK_RUN(test_a_head_that_differs_is_the_head);
    CHECK_RUN(test_it_stays_when_the_folder_is_rewritten);
    qrun_context_destroy(context);
    temporary_remove(&folder);
    return check_end();
}
