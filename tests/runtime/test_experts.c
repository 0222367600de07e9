/* Folders of mixtures of experts: what is wrong with one is said in a line that names the tensor; what a model says of
 * itself; stacks of matrices and matrices of their own are the same model. */
#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "loaders/files/json.h"
#include "runtime/model/modules.h"
#include "temporary.h"

#define MODELS QRUN_SOURCE_DIR "/tests/fixtures/models/"

static qrun_context *context;

/* ---- Folders that differ in a few bytes -------------------------------------------------------------------------- */

typedef struct edit {
    const char *file, *from, *to; /* as long as each other; NULL: none */
} edit;

static void copy_edited(const char *folder, const char *name, const edit *change, const temporary_folder *to) {
    char path[512], *text = NULL;
    size_t n = 0;
    qr_error err = {0};
    snprintf(path, sizeof path, MODELS "%s/%s", folder, name);
    CHECK_MSG(qr_file_read(path, 1 << 24, &text, &n, &err) == QRUN_OK, "%s", err.message);
    if (text == NULL) { return; }
    if (change->file != NULL && strcmp(change->file, name) == 0) {
        const size_t length = strlen(change->from);
        size_t at = 0;
        CHECK_INT(length, strlen(change->to));
        while (at + length <= n && memcmp(text + at, change->from, length) != 0) { at++; }
        CHECK_MSG(at + length <= n, "%s has no %s", path, change->from);
        if (at + length <= n) { memcpy(text + at, change->to, length); }
    }
    (void)temporary_write(to, name, text, n);
    qr_free(text);
}

static qrun_model *open_edited(const char *folder, const edit *change, qrun_error *error) {
    const temporary_folder copy = temporary_create();
    copy_edited(folder, "config.json", change, &copy);
    copy_edited(folder, "model.safetensors", change, &copy);
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    params.path = copy.path;
    (void)qrun_model_open(context, &params, &model, error);
    temporary_remove(&copy);
    return model;
}

static void test_damaged_folders_are_refused(void) {
    static const struct {
        const char *folder;
        edit change;
        qrun_status status;
        const char *says[2];
    } cases[] = {
        {"qwen3-moe",
         {"model.safetensors", "model.layers.0.mlp.experts.3.up_proj.w", "other.layers.0.mlp.experts.3.up_proj.w"},
         QRUN_ERROR_INPUT,
         {"model.layers.0.mlp.experts.3.up_proj.weight", "is missing"}},
        {"qwen3-moe",
         {"model.safetensors", "model.layers.2.mlp.gate.weight", "other.layers.2.mlp.gate.weight"},
         QRUN_ERROR_INPUT,
         {"model.layers.2.mlp.gate.weight", "is missing"}},
        {"qwen3-moe",
         {"model.safetensors", "model.layers.0.mlp.experts.6.up_proj.w", "model.layers.0.mlp.experts.7.up_proj.w"},
         QRUN_ERROR_INPUT,
         {"experts.7.up_proj.weight", "do they belong together?"}},
        {"qwen3-moe",
         {"config.json", "\"num_local_experts\": 7", "\"num_local_experts\": 6"},
         QRUN_ERROR_INPUT,
         {"experts.6.", "do they belong together?"}},
        {"qwen3-moe",
         {"config.json", "\"num_local_experts\": 7", "\"num_local_experts\": 8"},
         QRUN_ERROR_INPUT,
         {"model.layers.0.mlp.gate.weight", "[7, 48]"}},
        {"qwen3-moe",
         {"config.json", "\"moe_intermediate_size\": 36", "\"moe_intermediate_size\": 35"},
         QRUN_ERROR_INPUT,
         {"model.layers.0.mlp.experts.0.gate_proj.weight", "[36, 48]"}},
        {"qwen3-moe",
         {"config.json", "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 8"},
         QRUN_ERROR_INPUT,
         {"\"num_experts_per_tok\" is 8", "7 experts"}},
        {"qwen3-moe-stacked",
         {"config.json", "\"num_local_experts\": 7", "\"num_local_experts\": 9"},
         QRUN_ERROR_INPUT,
         {"model.layers.0.mlp.gate.weight", "[7, 60]"}},
        {"qwen3-moe-stacked",
         {"config.json", "\"moe_intermediate_size\": 20", "\"moe_intermediate_size\": 21"},
         QRUN_ERROR_INPUT,
         {"model.layers.0.mlp.experts.gate_up_proj", "[7, 40, 60]"}},
        {"qwen3-moe-stacked",
         {"model.safetensors", "model.layers.1.mlp.experts.down_proj", "other.layers.1.mlp.experts.down_proj"},
         QRUN_ERROR_INPUT,
         {"model.layers.1.mlp.experts.0.down_proj.weight", "is missing"}},
        {"mixtral",
         {"model.safetensors", "layers.1.block_sparse_moe.experts.0.w2.", "layers.1.block_sparse_moe.experts.0.w9."},
         QRUN_ERROR_INPUT,
         {"experts.0.w9.weight", "do they belong together?"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        qrun_model *model = open_edited(cases[i].folder, &cases[i].change, &error);
        CHECK_MSG(model == NULL, "%s with %s was opened", cases[i].folder, cases[i].change.to);
        CHECK_INT(error.status, cases[i].status);
        for (int s = 0; s < 2; s++) {
            CHECK_MSG(strstr(error.message, cases[i].says[s]) != NULL, "\"%s\" does not say \"%s\"", error.message,
                      cases[i].says[s]);
        }
        CHECK_MSG(strchr(error.message, '\n') == NULL, "%s", error.message);
        qrun_model_destroy(model);
    }
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = open_edited("qwen3-moe", &(edit){.file = NULL}, &error);
    CHECK_MSG(model != NULL, "%s", error.message);
    qrun_model_destroy(model);
}

/* ---- What a model says of itself --------------------------------------------------------------------------------- */

static void test_counts(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = NULL;
    params.path = MODELS "qwen3-moe";
    params.quant = QRUN_QUANT_BF16;
    REQUIRE(qrun_model_open(context, &params, &model, &error) == QRUN_OK);
    CHECK(qrun_model_get_info(model, &info, &error) == QRUN_OK);
    const int64_t expert = 3 * 36 * 48; /* gate, up and down; two of three layers have experts */
    const int64_t attention = 48 * (144 + 2 * 72) + 144 * 48, dense = 3 * 76 * 48, router = 7 * 48;
    const int64_t linear = 3 * attention + dense + 2 * router, norms = 3 * (2 * 48 + 2 * 24) + 48;
    CHECK_INT(info.n_experts, 7);
    CHECK_INT(info.n_experts_per_token, 3);
    CHECK_INT(info.expert_intermediate_size, 36);
    CHECK_INT(info.n_parameters, 1003 * 48 + norms + linear + 2 * 7 * expert);
    CHECK_INT(info.n_active_parameters, 1003 * 48 + norms + linear + 2 * 3 * expert);
    CHECK_INT(info.n_linear_parameters, linear + 2 * 3 * expert);
    CHECK_INT(info.weight_bytes - info.step_weight_bytes, 2 * 4 * (2 * 36 * 128 + 48 * 128)); /* rows of 128 bytes */
    qrun_model_destroy(model);
}

/* ---- In host memory: on a processor (on a device with memory of its own: test_device_memory) ---- */

static void check_refused(const char *folder, qrun_offload experts, const char *says) {
    char path[512];
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model *model = NULL;
    snprintf(path, sizeof path, MODELS "%s", folder);
    params.path = path, params.offload_experts = experts;
    const qrun_status status = qrun_model_open(context, &params, &model, &error);
    CHECK_INT(status, says != NULL ? QRUN_ERROR_ARGUMENT : QRUN_OK);
    CHECK_MSG(says == NULL || strstr(error.message, says) != NULL, "\"%s\" does not say \"%s\"", error.message, says);
    qrun_model_destroy(model);
}

static void test_a_processor_has_no_other_memory(void) {
    check_refused("qwen3-moe", QRUN_OFFLOAD_ALL, "`offload_experts` is for a GPU");
    check_refused("llama", QRUN_OFFLOAD_ALL, "this llama model has none");
    check_refused("qwen3-moe", QRUN_OFFLOAD_AUTO, NULL);
    check_refused("llama", QRUN_OFFLOAD_AUTO, NULL);
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

static qrun_train_params random_run(const char *policy) {
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.data.random_tokens = true;
    params.batches.seq_len = 40;
    params.batches.batch_size = 3;
    params.batches.max_steps = 2;
    params.memory.checkpointing = policy;
    return params;
}

/* Layers with and without experts, under every policy. */
static void test_training_takes_what_is_planned(void) {
    static const char *const policies[] = {"none", "full", "every:2", "attn", "mlp"};
    static const char *const folders[] = {MODELS "qwen3-moe", MODELS "qwen3-moe-stacked", MODELS "qwen2-moe"};
    for (size_t i = 0; i < 15; i++) {
        qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
        const qrun_train_params params = random_run(policies[i % 5]);
        qrun_train_info info = QRUN_TRAIN_INFO_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        qrun_context *own = NULL; /* whose peak is that of this run */
        qrun_model *model = NULL;
        qrun_trainer *trainer = NULL;
        bool done = false;
        REQUIRE(qrun_context_create(NULL, &own, NULL) == QRUN_OK);
        model_params.path = folders[i / 5];
        CHECK_MSG(qrun_model_open(own, &model_params, &model, &error) == QRUN_OK, "%s", error.message);
        CHECK_MSG(qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK, "%s", error.message);
        for (int step = 0; trainer != NULL && step < 2; step++) {
            qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
            CHECK_MSG(qrun_trainer_step(trainer, &metrics, &done, &error) == QRUN_OK, "%s", error.message);
        }
        CHECK(done);
        CHECK(trainer == NULL || qrun_trainer_get_info(trainer, &info, &error) == QRUN_OK);
        CHECK_MSG(info.peak_bytes == info.planned_bytes && info.planned_bytes > 0, "%s, %s: %lld bytes of %lld",
                  folders[i / 5], policies[i % 5], (long long)info.peak_bytes, (long long)info.planned_bytes);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
        qrun_context_destroy(own);
    }
}

static void check_training_refused(qrun_model *model, const qrun_train_params *params, const char *says) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_trainer *trainer = NULL;
    CHECK(model != NULL);
    if (model == NULL) { return; }
    const qrun_status status = qrun_trainer_create(model, params, &trainer, &error);
    CHECK(status == QRUN_ERROR_UNSUPPORTED || status == QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, says) != NULL, "\"%s\" does not say \"%s\"", error.message, says);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

static void test_what_is_not_trained(void) {
    static const edit balance = {"config.json", "\"output_router_logits\": false", "\"output_router_logits\": true "};
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params params = random_run("none");
    check_training_refused(open_edited("qwen3-moe", &balance, &error), &params, "a loss that balances the load");
    /* No layer of this one has a matrix of that name but the experts. */
    params.lora.target_modules = "q_proj,up_proj";
    check_training_refused(open_edited("mixtral", &(edit){.file = NULL}, &error), &params,
                           "no linear layer of this mixtral model is called \"up_proj\"; did you mean q_proj? it has "
                           "q_proj,k_proj,v_proj,o_proj,gate");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    params.n_threads = 1;
    if (qrun_context_create(&params, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_damaged_folders_are_refused);
    CHECK_RUN(test_counts);
    CHECK_RUN(test_a_processor_has_no_other_memory);
    CHECK_RUN(test_training_takes_what_is_planned);
    CHECK_RUN(test_what_is_not_trained);
    qrun_context_destroy(context);
    return check_end();
}
