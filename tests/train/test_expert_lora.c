/* LoRA on experts: files that PEFT wrote come back as they were, runs keep to their plan, and what PEFT refuses is
 * refused. Gradients, curves, logits and merges are compared in test_training, test_goldens and test_merge. */
#include "check_open.h"

#include "../runtime/golden_index.h"
#include "base/alloc.h"
#include "base/file.h"
#include "loaders/adapter/adapter.h"
#include "runtime/folders/export.h"
#include "temporary.h"
#include "training_case.h"

static qrun_context *context;
static temporary_folder folder;

static qrun_model *open_model(const char *name) {
    char path[512];
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    snprintf(path, sizeof path, FIXTURES "models/%s", name);
    params.path = path;
    return check_open_model(context, &params);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static void check_same_tensors(const char *ours, const char *theirs) {
    qr_safetensors *a = NULL, *b = NULL;
    qr_error err = {0};
    char path[2][600];
    snprintf(path[0], sizeof path[0], "%s/adapter_model.safetensors", ours);
    snprintf(path[1], sizeof path[1], "%s/adapter_model.safetensors", theirs);
    CHECK_MSG(qr_safetensors_open(path[0], &a, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_safetensors_open(path[1], &b, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(a != NULL && b != NULL);
    CHECK_INT(qr_safetensors_count(a), qr_safetensors_count(b));
    for (size_t i = 0; i < qr_safetensors_count(b); i++) {
        const qr_safetensors_tensor *expected = qr_safetensors_get(b, i),
                                    *found = qr_safetensors_find(a, expected->name);
        const bool same = found != NULL && found->dtype == expected->dtype && found->n_bytes == expected->n_bytes &&
                          memcmp(found->dims, expected->dims, (size_t)expected->n_dims * sizeof(int64_t)) == 0 &&
                          memcmp(found->data, expected->data, expected->n_bytes) == 0;
        CHECK_MSG(same, "%s is not as PEFT wrote it", expected->name);
    }
    qr_safetensors_close(a);
    qr_safetensors_close(b);
}

/* Read into the parameters of a run and written again. */
static void check_comes_back(const char *name, const char *parameters) {
    qr_json *index = NULL;
    qr_error err = {0};
    char theirs[512], config_path[600], *config = NULL;
    size_t n_bytes;
    REQUIRE(qr_json_read(FIXTURES "training/index.json", 1 << 24, &index, &err) == QRUN_OK);
    const qr_json *entry = entry_named(index, "gradients", name);
    const training_options options = {.dtype = QRUN_DTYPE_F32, .policy = "none", .max_tokens = 16};
    training_fixture f;
    REQUIRE(entry != NULL && training_fixture_open(context, entry, &options, &f));
    const qr_adapter_export_options how = {.alpha = 8};
    const char *ours = temporary_path(&folder, name);
    CHECK(mkdir(ours, 0777) == 0);
    CHECK_MSG(qr_adapter_export(&f.parameters, &how, ours, &err) == QRUN_OK, "%s", err.message);
    snprintf(theirs, sizeof theirs, FIXTURES "%s", text_of(entry, "adapter_folder"));
    check_same_tensors(ours, theirs);
    snprintf(config_path, sizeof config_path, "%s/adapter_config.json", ours);
    CHECK(qr_file_read(config_path, 1 << 20, &config, &n_bytes, &err) == QRUN_OK);
    CHECK_MSG(config != NULL && strstr(config, parameters) != NULL, "no %s", parameters);
    qr_free(config);
    training_fixture_close(&f);
    qr_json_free(index);
}

static void test_files_are_as_peft_writes_them(void) {
    check_comes_back("qwen3-moe-experts",
                     "\"target_parameters\": [\n    \"mlp.experts.down_proj\",\n    \"mlp.experts.gate_up_proj\"\n  ]");
    check_comes_back("qwen3-moe-stacked-experts", "\"target_parameters\": [\n    \"mlp.experts.down_proj\"\n  ]");
    check_comes_back("nemotron-h-moe-experts",
                     "\"target_parameters\": [\n    \"mixer.experts.down_proj\",\n    \"mixer.experts.up_proj\"\n  ]");
    check_comes_back("gpt-oss-full-experts",
                     "\"target_parameters\": [\n    \"mlp.experts.down_proj\",\n    \"mlp.experts.gate_up_proj\"\n  ]");
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static qrun_train_params params_of(const char *parameters) {
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.data.random_tokens = true;
    params.lora.target_parameters = parameters;
    params.lora.rank = 5;
    params.batches.seq_len = 48;
    params.batches.max_steps = 2;
    return params;
}

static void check_run(const char *name, const char *modules, const char *parameters, const char *checkpointing) {
    qrun_context_destroy(context); /* whose peak is that of all its runs */
    REQUIRE(qrun_context_create(NULL, &context, NULL) == QRUN_OK);
    qrun_model *model = open_model(name);
    qrun_train_params params = params_of(parameters);
    params.lora.target_modules = modules;
    params.memory.checkpointing = checkpointing;
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    CHECK_MSG(qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK, "%s", error.message);
    REQUIRE(trainer != NULL);
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    for (bool done = false; !done;) {
        const qrun_status status = qrun_trainer_step(trainer, &metrics, &done, &error);
        CHECK_MSG(status == QRUN_OK, "%s", error.message);
        CHECK(metrics.loss > 0 && metrics.grad_norm > 0);
        done |= status != QRUN_OK;
    }
    CHECK(qrun_trainer_get_info(trainer, &info, &error) == QRUN_OK);
    CHECK_MSG(info.peak_bytes == info.planned_bytes, "%s: planned %lld bytes, and used %lld", name,
              (long long)info.planned_bytes, (long long)info.peak_bytes);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

static void test_the_peak_is_the_plan(void) {
    check_run("qwen3-moe", NULL, "experts", "none");
    check_run("qwen3_5-moe", "none", "mlp.experts.down_proj", "full");
    check_run("mixtral", "attn", "experts.gate_up_proj", "full");
    check_run("gpt-oss-mxfp4", NULL, "experts", "none");
    check_run("nemotron-h-moe", NULL, "experts", "full");
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void check_refused(const char *name, const qrun_train_params *params, const char *why) {
    qrun_model *model = open_model(name);
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_INT(qrun_trainer_create(model, params, &trainer, &error), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(error.message, why) != NULL, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

static void test_refusals(void) {
    qrun_train_params params = params_of("experts");
    check_refused("llama", &params, "`target_parameters`: this llama model has no experts that can have LoRA");
    params.lora.lora_dropout = 0.1;
    check_refused("qwen3-moe", &params, "`target_parameters` does not go with `lora_dropout`");
    params.lora.lora_dropout = 0, params.lora.dora = true;
    check_refused("qwen3-moe", &params, "`target_parameters` does not go with `dora`");
    params = params_of("experts,mlp.experts.up_proj");
    check_refused("qwen3-moe", &params,
                  "\"mlp.experts.up_proj\" is none of experts (both), mlp.experts.gate_up_proj and "
                  "mlp.experts.down_proj");
    params = params_of(NULL);
    params.lora.target_modules = "none";
    check_refused("qwen3-moe", &params, "`target_modules`");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    folder = temporary_create();
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_files_are_as_peft_writes_them);
    CHECK_RUN(test_the_peak_is_the_plan);
    CHECK_RUN(test_refusals);
    qrun_context_destroy(context);
    temporary_remove(&folder);
    return check_end();
}
