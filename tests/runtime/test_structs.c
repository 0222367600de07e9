/* Structs of another version: every call refuses one whose struct_size it does not know, and reads and writes nothing
 * of it but that. NULL in the place of one that has to be there, counts below 0, and values that are none of their
 * enum's. */
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <qrun.h>

static qrun_context *context;
static qrun_model *model;
static qrun_session *session;
static qrun_trainer *trainer;

static bool gives_null;

/* A struct_size alone, at the end of the memory there is; or NULL. */
static void *other_version(void) {
    static unsigned char *pages;
    if (gives_null) { return NULL; }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = sizeof(size_t);
    if (pages == NULL) {
        void *mapped = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED || mprotect((unsigned char *)mapped + page, page, PROT_NONE) != 0) { abort(); }
        pages = mapped;
        memcpy(pages + page - sizeof size, &size, sizeof size);
    }
    return pages + page - sizeof size;
}

/* `error` is that of the call. */
#define REFUSED_WITH(text, call)                                                        \
    do {                                                                                \
        qrun_error error = QRUN_ERROR_INIT;                                             \
        CHECK_INT(call, QRUN_ERROR_ARGUMENT);                                           \
        CHECK_MSG(strstr(error.message, text) != NULL, "%s: %s", #call, error.message); \
    } while (0)
/* Of a struct that may be NULL. */
#define REFUSED_IF_GIVEN(call) REFUSED_WITH("has an unknown size", call)
#define REFUSED(call)                                     \
    do {                                                  \
        REFUSED_IF_GIVEN(call);                           \
        gives_null = true;                                \
        REFUSED_WITH("NULL was given for a qrun_", call); \
        gives_null = false;                               \
    } while (0)

static void test_contexts(void) {
    qrun_context *made = NULL;
    REFUSED_IF_GIVEN(qrun_context_create(other_version(), &made, &error));
    CHECK(made == NULL);
    qrun_context_destroy(made);
    REFUSED(qrun_context_device_info(context, other_version(), &error));
    REFUSED(qrun_context_measure_peaks(context, 0, other_version(), &error));
    REFUSED(qrun_context_timeline_get(context, other_version(), &error));
}

static void test_models(void) {
    const qrun_model_params params = {.struct_size = sizeof params, .path = QRUN_SOURCE_DIR "/examples/model"};
    const qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    qrun_model *opened;
    qrun_plan_entry *entries;
    int32_t n;
    qrun_fit_result fit = QRUN_FIT_RESULT_INIT;
    REFUSED(qrun_model_open(context, other_version(), &opened, &error));
    REFUSED(qrun_model_get_info(model, other_version(), &error));
    REFUSED(qrun_plan_session(context, other_version(), &session_params, &entries, &n, NULL, &error));
    REFUSED(qrun_plan_session(context, &params, other_version(), &entries, &n, NULL, &error));
    REFUSED_IF_GIVEN(qrun_plan_session(context, &params, &session_params, &entries, &n, other_version(), &error));
    REFUSED(qrun_fit_session(context, other_version(), &session_params, QRUN_FIT_BATCH, &fit, &error));
    REFUSED(qrun_fit_session(context, &params, other_version(), QRUN_FIT_BATCH, &fit, &error));
    REFUSED(qrun_fit_session(context, &params, &session_params, QRUN_FIT_BATCH, other_version(), &error));
}

static void test_sessions(void) {
    static const char json[] = "{\"prompt\": \"a\"}";
    const qrun_request_params request = {.struct_size = sizeof request, .prompt = "a", .top_p = 1.0F};
    const qrun_eval_params eval = QRUN_EVAL_PARAMS_INIT;
    const int32_t ids[] = {1, 2};
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    qrun_request_size size = QRUN_REQUEST_SIZE_INIT;
    qrun_session *made;
    REFUSED(qrun_session_create(model, other_version(), &made, &error));
    REFUSED(qrun_request_params_from_model(model, other_version(), &error));
    REFUSED(qrun_session_submit(session, other_version(), NULL, &error));
    REFUSED_IF_GIVEN(
        qrun_session_submit_json(session, json, sizeof json - 1, "", other_version(), false, NULL, NULL, &error));
    REFUSED(qrun_request_measure(model, other_version(), &size, &error));
    REFUSED(qrun_request_measure(model, &request, other_version(), &error));
    REFUSED_IF_GIVEN(
        qrun_request_measure_json(model, json, sizeof json - 1, "", other_version(), false, NULL, &size, &error));
    REFUSED(qrun_session_get_stats(session, other_version(), &error));
    REFUSED(qrun_session_eval(session, "a b", 3, other_version(), &result, &error));
    REFUSED(qrun_session_eval(session, "a b", 3, &eval, other_version(), &error));
    REFUSED(qrun_session_eval_tokens(session, ids, 2, other_version(), &result, &error));
    REFUSED(qrun_session_eval_tokens(session, ids, 2, &eval, other_version(), &error));
}

static qrun_train_params train_params(void) {
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.data.random_tokens = true;
    params.batches.seq_len = 8;
    return params;
}

static void test_training(void) {
    const qrun_model_params model_params = {.struct_size = sizeof model_params,
                                            .path = QRUN_SOURCE_DIR "/examples/model"};
    qrun_train_params params = train_params();
    qrun_trainer *made;
    qrun_plan_entry *entries;
    qrun_fit_result fit = QRUN_FIT_RESULT_INIT;
    int32_t n;
    bool done;
    REFUSED(qrun_train_params_check(other_version(), &error));
    REFUSED(qrun_trainer_create(model, other_version(), &made, &error));
    REFUSED(qrun_trainer_get_info(trainer, other_version(), &error));
    REFUSED(qrun_trainer_settle(trainer, other_version(), &error));
    REFUSED(qrun_trainer_step(trainer, other_version(), &done, &error));
    REFUSED(qrun_plan_training(context, other_version(), &params, &entries, &n, NULL, NULL, &error));
    REFUSED(qrun_plan_training(context, &model_params, other_version(), &entries, &n, NULL, NULL, &error));
    REFUSED_IF_GIVEN(qrun_plan_training(context, &model_params, &params, &entries, &n, NULL, other_version(), &error));
    REFUSED(qrun_fit_training(context, other_version(), &params, QRUN_FIT_BATCH, &fit, &error));
    REFUSED(qrun_fit_training(context, &model_params, other_version(), QRUN_FIT_BATCH, &fit, &error));
    REFUSED(qrun_fit_training(context, &model_params, &params, QRUN_FIT_BATCH, other_version(), &error));
}

static void test_folders(void) {
    const qrun_model_params model_params = {.struct_size = sizeof model_params,
                                            .path = QRUN_SOURCE_DIR "/examples/model"};
    const qrun_compare_params compare = {.struct_size = sizeof compare, .model = &model_params, .other = &model_params};
    const qrun_merge_params merge = QRUN_MERGE_PARAMS_INIT;
    const qrun_export_params export = QRUN_EXPORT_PARAMS_INIT;
    qrun_difference difference = QRUN_DIFFERENCE_INIT;
    qrun_mixed *mixed;
    REFUSED(qrun_mixed_measure(context, other_version(), &mixed, &error));
    REFUSED(qrun_quantize_folder(context, other_version(), &error));
    REFUSED(qrun_compare_outputs(context, other_version(), &difference, &error));
    REFUSED(qrun_compare_outputs(context, &compare, other_version(), &error));
    REFUSED(qrun_merge_folder(context, other_version(), NULL, &error));
    REFUSED_IF_GIVEN(qrun_merge_folder(context, &merge, other_version(), &error));
    REFUSED(qrun_export(context, other_version(), NULL, &error));
    REFUSED_IF_GIVEN(qrun_export(context, &export, other_version(), &error));
}

static void test_values_of_no_enum(void) {
    qrun_model_params models[] = {QRUN_MODEL_PARAMS_INIT, QRUN_MODEL_PARAMS_INIT};
    static const char *const names[] = {"`offload_parameters` must be", "`offload_experts` must be"};
    models[0].offload_parameters = (qrun_offload)3, models[1].offload_experts = (qrun_offload)-1;
    for (int i = 0; i < 2; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        qrun_model *opened = NULL;
        models[i].path = QRUN_SOURCE_DIR "/examples/model";
        CHECK_INT(qrun_model_open(context, &models[i], &opened, &error), QRUN_ERROR_ARGUMENT);
        CHECK_MSG(strstr(error.message, names[i]) != NULL, "%s", error.message);
        qrun_model_destroy(opened);
    }
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_session *made = NULL;
    params.kv = (qrun_kv)5;
    CHECK_INT(qrun_session_create(model, &params, &made, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, "`kv` must be") != NULL, "%s", error.message);
    qrun_session_destroy(made);
}

/* NULL where a path or a text has to be, and counts below 0. */
static void test_missing_arguments(void) {
    static const int32_t ids[] = {5, 5, 5};
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_request_params request = QRUN_REQUEST_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    const qrun_eval_params eval = QRUN_EVAL_PARAMS_INIT;
    const char *const data[] = {QRUN_SOURCE_DIR "/examples/finetune/pirate.jsonl"};
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    qrun_model *opened = NULL;
    qrun_tokenizer *tokenizer = NULL;
    qrun_adapter *adapter = NULL;
    char *text = NULL;
    size_t n_bytes = 0;
    REFUSED_WITH("no model path", qrun_model_open(context, &model_params, &opened, &error));
    REFUSED_WITH("no model path", qrun_folder_inspect(context, NULL, false, &text, &error));
    REFUSED_WITH("no path of a tokenizer", qrun_tokenizer_open(context, NULL, &tokenizer, &error));
    REFUSED_WITH("no path of an adapter", qrun_adapter_open(model, NULL, NULL, &adapter, &error));
    REFUSED_WITH("`n_ids` cannot be negative",
                 qrun_detokenize(qrun_model_tokenizer(model), ids, -1, false, &text, &n_bytes, &error));
    REFUSED_WITH("line 7: no JSON was given",
                 qrun_session_submit_json(session, NULL, 0, "line 7", NULL, false, NULL, NULL, &error));
    request.token_ids = ids, request.n_token_ids = -1;
    REFUSED_WITH("`n_token_ids` cannot be negative", qrun_session_submit(session, &request, NULL, &error));
    REFUSED_WITH("nothing to score", qrun_session_eval_tokens(session, ids, 0, &eval, &result, &error));
    REFUSED_WITH("nothing to score", qrun_session_eval_tokens(session, NULL, 3, &eval, &result, &error));
    model_params.path = QRUN_SOURCE_DIR "/examples/model", model_params.memory_bytes = -1;
    REFUSED_WITH("`memory_bytes` cannot be negative", qrun_model_open(context, &model_params, &opened, &error));
    params.data.train_data = data, params.data.n_train_data = 1, params.saving.out = "";
    REFUSED_WITH("no folder for the result", qrun_train_params_check(&params, &error));
    params.saving.out = "x", params.memory.memory_bytes = -1;
    REFUSED_WITH("`memory_bytes` cannot be negative", qrun_train_params_check(&params, &error));
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    const qrun_context_params context_params = {.struct_size = sizeof context_params, .n_threads = 1, .device = "cpu"};
    const qrun_model_params model_params = {.struct_size = sizeof model_params,
                                            .path = QRUN_SOURCE_DIR "/examples/model"};
    const qrun_session_params session_params = {.struct_size = sizeof session_params, .kv_tokens = 256};
    const qrun_train_params params = train_params();
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *trained = NULL;
    if (qrun_context_create(&context_params, &context, &error) != QRUN_OK ||
        qrun_model_open(context, &model_params, &model, &error) != QRUN_OK ||
        qrun_model_open(context, &model_params, &trained, &error) != QRUN_OK ||
        qrun_session_create(model, &session_params, &session, &error) != QRUN_OK ||
        qrun_trainer_create(trained, &params, &trainer, &error) != QRUN_OK) {
        printf("%s\n", error.message);
        return 1;
    }
    CHECK_RUN(test_contexts);
    CHECK_RUN(test_models);
    CHECK_RUN(test_sessions);
    CHECK_RUN(test_training);
    CHECK_RUN(test_folders);
    CHECK_RUN(test_values_of_no_enum);
    CHECK_RUN(test_missing_arguments);
    qrun_trainer_destroy(trainer);
    qrun_session_destroy(session);
    qrun_model_destroy(trained);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return check_end();
}
