/* Planning backwards: for random models and options, what is said to be the largest fits, and the next larger one is
 * refused. Runs whose sizes are left to the memory take what fits, and resume with it. */
#include "check.h"

#include "base/random.h"
#include "base/sizes.h"
#include "qrun.h"
#include "temporary.h"

static temporary_folder folder;
static qrun_context *context;

/* ---- Random models and options ----------------------------------------------------------------------------------- */

typedef struct source {
    uint64_t seed, n;
} source;

static int64_t pick(source *s, int64_t low, int64_t high) {
    return low + (int64_t)(qr_hash_mix(s->seed * 1000003 + ++s->n) % (uint64_t)(high - low + 1));
}

static void make_shape(source *s, const char *path) {
    const int64_t kv_heads = pick(s, 1, 4), heads = kv_heads * pick(s, 1, 4), head_dim = 8 * pick(s, 2, 8);
    char text[768];
    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"hidden_size\": %lld, \"num_hidden_layers\": %lld, \"head_dim\": %lld, "
             "\"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, \"intermediate_size\": %lld, "
             "\"vocab_size\": %lld, \"max_position_embeddings\": %lld, \"rms_norm_eps\": 1e-5, "
             "\"tie_word_embeddings\": %s}",
             pick(s, 0, 1) == 0 ? "llama" : "qwen3", (long long)(64 * pick(s, 1, 8)), (long long)pick(s, 1, 6),
             (long long)head_dim, (long long)heads, (long long)kv_heads, (long long)(64 * pick(s, 1, 16)),
             (long long)pick(s, 100, 5000), (long long)pick(s, 64, 20000), pick(s, 0, 1) == 0 ? "true" : "false");
    FILE *file = fopen(path, "w");
    REQUIRE(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static qrun_model_params random_model(source *s, const char *path, bool full) {
    static const qrun_quant quants[] = {QRUN_QUANT_AUTO, QRUN_QUANT_INT8, QRUN_QUANT_NF4, QRUN_QUANT_BF16};
    qrun_model_params model = QRUN_MODEL_PARAMS_INIT;
    make_shape(s, path);
    model.path = path;
    model.random_weights = true;
    model.trainable = full;
    model.quant = full ? QRUN_QUANT_AUTO : quants[pick(s, 0, 3)];
    model.dtype = (qrun_dtype)pick(s, QRUN_DTYPE_BF16, QRUN_DTYPE_F32);
    return model;
}

static qrun_train_params random_run(source *s, bool full) {
    static const char *const policies[] = {"auto", "none", "full", "mlp", "attn"};
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.weights.full = full;
    if (!full) {
        params.lora.rank = (int32_t)pick(s, 1, 64);
        params.lora.dora = pick(s, 0, 3) == 0;
        params.lora.lora_dropout = pick(s, 0, 3) == 0 ? 0.1 : 0;
        params.lora.target_modules = pick(s, 0, 1) == 0 ? "attn" : NULL;
    }
    params.optimization.optimizer = (qrun_optimizer)pick(s, QRUN_OPTIMIZER_ADAMW, QRUN_OPTIMIZER_SGD);
    params.batches.seq_len = (int32_t)pick(s, 2, 60);
    params.batches.batch_size = (int32_t)pick(s, 1, 6);
    params.memory.checkpointing = policies[pick(s, 0, 4)];
    params.memory.offload_optimizer = pick(s, 0, 1) == 0;
    return params;
}

static qrun_status plan_run(const qrun_model_params *model, const qrun_train_params *params, qrun_plan_info *info) {
    qrun_plan_entry *entries = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    int32_t n;
    const qrun_status status = qrun_plan_training(context, model, params, &entries, &n, NULL, info, &error);
    CHECK_MSG(status == QRUN_OK || status == QRUN_ERROR_MEMORY, "%s", error.message);
    qrun_free(entries);
    return status;
}

static void set_fitted(qrun_train_params *params, qrun_fit what, int64_t n) {
    *(what == QRUN_FIT_CONTEXT ? &params->batches.seq_len
      : what == QRUN_FIT_BATCH ? &params->batches.batch_size
                               : &params->lora.rank) = (int32_t)n;
}

static void test_runs_are_fitted_exactly(void) {
    enum { N = 220 };
    int n_inside = 0;
    for (uint64_t i = 0; i < N; i++) {
        source s = {.seed = i + 1};
        const bool full = pick(&s, 0, 4) == 0;
        char path[160];
        snprintf(path, sizeof path, "%s/shape.json", folder.path);
        const qrun_model_params model = random_model(&s, path, full);
        qrun_train_params params = random_run(&s, full);
        const qrun_fit what = (qrun_fit)pick(&s, QRUN_FIT_CONTEXT, full ? QRUN_FIT_BATCH : QRUN_FIT_RANK);
        qrun_plan_info info = QRUN_PLAN_INFO_INIT;
        qrun_fit_result result = QRUN_FIT_RESULT_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        params.memory.memory_bytes = INT64_C(1) << 50;
        CHECK(plan_run(&model, &params, &info) == QRUN_OK);
        params.memory.memory_bytes = info.total_bytes * pick(&s, 5, 40) / 10;
        CHECK_MSG(qrun_fit_training(context, &model, &params, what, &result, &error) == QRUN_OK, "%s", error.message);
        CHECK(result.largest >= 0 && result.largest <= result.limit);
        const int64_t least = what == QRUN_FIT_CONTEXT ? 2 : 1;
        set_fitted(&params, what, result.largest > 0 ? result.largest : least);
        CHECK_MSG((plan_run(&model, &params, NULL) == QRUN_OK) == (result.largest > 0), "run %d: the answer fits",
                  (int)i);
        if (result.largest == 0 || result.largest == result.limit) { continue; }
        set_fitted(&params, what, result.largest + 1);
        CHECK_MSG(plan_run(&model, &params, NULL) == QRUN_ERROR_MEMORY, "run %d: the next larger is refused", (int)i);
        n_inside++;
    }
    printf("  %d runs, %d of them between nothing and the limit\n", N, n_inside);
    CHECK(n_inside > N / 3);
}

static void test_sessions_are_fitted_exactly(void) {
    enum { N = 60 };
    int n_inside = 0;
    for (uint64_t i = 0; i < N; i++) {
        source s = {.seed = i + 1001};
        char path[160];
        snprintf(path, sizeof path, "%s/shape.json", folder.path);
        const qrun_model_params model = random_model(&s, path, false);
        const qrun_fit what = (qrun_fit)pick(&s, QRUN_FIT_CONTEXT, QRUN_FIT_BATCH);
        qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
        qrun_fit_result result = QRUN_FIT_RESULT_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        params.max_sequences = (int32_t)pick(&s, 1, 16);
        params.memory_bytes = pick(&s, 4, 200) << 20;
        params.context_tokens = what == QRUN_FIT_BATCH ? 60 : 0;
        CHECK_MSG(qrun_fit_session(context, &model, &params, what, &result, &error) == QRUN_OK, "%s", error.message);
        for (int64_t more = 0; more < 2; more++) {
            const int64_t n = result.largest + more;
            qrun_plan_info info = QRUN_PLAN_INFO_INIT;
            qrun_plan_entry *entries;
            int32_t n_entries;
            if (n == 0 || n > result.limit) { continue; }
            *(what == QRUN_FIT_BATCH ? &params.max_sequences : &params.context_tokens) = (int32_t)n;
            const qrun_status status = qrun_plan_session(context, &model, &params, &entries, &n_entries, &info, NULL);
            const bool fits = status == QRUN_OK && (what == QRUN_FIT_CONTEXT || info.full_sequences >= n);
            CHECK_MSG(fits == (more == 0), "session %d: %lld", (int)i, (long long)n);
            qrun_free(entries);
            n_inside += (int)more;
        }
    }
    printf("  %d sessions, %d of them below the limit\n", N, n_inside);
    CHECK(n_inside > N / 4);
}

/* ---- Known models ------------------------------------------------------------------------------------------------ */

/* The published numbers of parameters, a tied head counted once. */
static const struct {
    const char *name;
    int64_t n_parameters;
} published[] = {
    {"gpt2", 124439808},          {"gpt2-medium", 354823168},     {"gpt2-large", 774030080},
    {"gpt2-xl", 1557611200},      {"llama-2-7b", 6738415616},     {"llama-2-13b", 13015864320},
    {"llama-2-70b", 68976648192}, {"llama-3.2-1b", 1235814400},   {"llama-3.2-3b", 3212749824},
    {"llama-3.1-8b", 8030261248}, {"llama-3.1-70b", 70553706496}, {"llama-3.1-405b", 405853388800},
    {"mistral-7b", 7248023552},   {"qwen2.5-0.5b", 494032768},    {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-3b", 3085938688},   {"qwen2.5-7b", 7615616512},     {"qwen2.5-14b", 14770033664},
    {"qwen2.5-32b", 32763876352}, {"qwen2.5-72b", 72706203648},   {"qwen3-0.6b", 596049920},
    {"qwen3-1.7b", 1720574976},   {"qwen3-4b", 4022468096},       {"qwen3-8b", 8190735360},
    {"qwen3-14b", 14768307200},   {"qwen3-32b", 32762123264},
};

static void test_known_models_have_their_parameters(void) {
    qrun_model_params model = QRUN_MODEL_PARAMS_INIT;
    const qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    const char *name;
    int32_t n = 0;
    model.random_weights = true;
    for (; (name = qrun_known_model(n)) != NULL; n++) {
        qrun_plan_info info = QRUN_PLAN_INFO_INIT;
        qrun_plan_entry *entries = NULL;
        int32_t n_entries;
        model.path = name;
        (void)qrun_plan_session(context, &model, &params, &entries, &n_entries, &info, NULL);
        qrun_free(entries);
        REQUIRE(n < (int32_t)QR_COUNT_OF(published));
        CHECK_STR(name, published[n].name);
        CHECK_MSG(info.n_parameters == published[n].n_parameters, "%s: %lld parameters, published %lld", name,
                  (long long)info.n_parameters, (long long)published[n].n_parameters);
    }
    CHECK_INT(n, (int64_t)QR_COUNT_OF(published));
    CHECK(qrun_known_model(-1) == NULL);
}

/* The two that have a file too are the same. */
static void test_known_models_are_their_files(void) {
    static const char *const names[] = {"llama-3.1-8b", "llama-3.2-1b"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        qrun_plan_info infos[2] = {QRUN_PLAN_INFO_INIT, QRUN_PLAN_INFO_INIT};
        for (int file = 0; file < 2; file++) {
            char path[256];
            qrun_model_params model = QRUN_MODEL_PARAMS_INIT;
            qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
            snprintf(path, sizeof path, QRUN_SOURCE_DIR "/bench/shapes/%s.json", names[i]);
            model.path = file == 1 ? path : names[i], model.random_weights = true;
            params.memory.memory_bytes = INT64_C(1) << 50;
            CHECK(plan_run(&model, &params, &infos[file]) == QRUN_OK);
        }
        CHECK(infos[0].total_bytes == infos[1].total_bytes && infos[0].flops == infos[1].flops);
        CHECK(infos[0].n_parameters == infos[1].n_parameters);
    }
}

/* ---- Devices that are not there ---------------------------------------------------------------------------------- */

static void test_named_devices(void) {
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *named = NULL;
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    params.device_memory = "rtx-4090";
    REQUIRE(qrun_context_create(&params, &named, &error) == QRUN_OK);
    CHECK(qrun_context_device_info(named, &info, &error) == QRUN_OK);
    CHECK_INT(info.memory_bytes, INT64_C(24564) << 20);
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    model_params.path = QRUN_SOURCE_DIR "/examples/model";
    CHECK(qrun_model_open(named, &model_params, &model, &error) == QRUN_ERROR_ARGUMENT);
    CHECK(strstr(error.message, "only plans") != NULL);
    qrun_context_destroy(named);
    error = (qrun_error)QRUN_ERROR_INIT;
    params.device_memory = "voodoo-2";
    CHECK(qrun_context_create(&params, &named, &error) == QRUN_ERROR_ARGUMENT);
    CHECK(strstr(error.message, "h100") != NULL);
}

/* ---- Sizes left to the memory ------------------------------------------------------------------------------------ */

/* Trains to n_steps and gives the sizes that were settled. */
static qrun_status run_auto(int64_t memory_bytes, int64_t n_steps, int32_t seq_len, qrun_train_params *settled,
                            qrun_train_info *info, qrun_error *error) {
    char out[160];
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done = false;
    qrun_status status;
    snprintf(out, sizeof out, "%s/auto", folder.path);
    model_params.path = QRUN_SOURCE_DIR "/examples/model";
    *settled = (qrun_train_params)QRUN_TRAIN_PARAMS_INIT;
    settled->data.train_data = (const char *[]){QRUN_SOURCE_DIR "/examples/finetune/pirate.jsonl"};
    settled->data.n_train_data = 1, settled->data.date = "2026-11-22", settled->saving.out = out;
    settled->batches.seq_len = seq_len, settled->batches.batch_size = QRUN_AUTO, settled->batches.max_steps = n_steps;
    settled->memory.memory_bytes = memory_bytes;
    QR_TRY(qrun_model_open(context, &model_params, &model, error));
    QR_TRY(qrun_trainer_create(model, settled, &trainer, error));
    QR_TRY(qrun_trainer_get_info(trainer, info, error));
    CHECK(info->planned_bytes <= memory_bytes);
    QR_TRY(qrun_trainer_settle(trainer, settled, error));
    QR_TRY(qrun_trainer_step(trainer, &metrics, &done, error));
    QR_TRY(qrun_trainer_get_info(trainer, info, error));
    CHECK_INT(info->peak_bytes, info->planned_bytes);
    QR_TRY(qrun_trainer_save(trainer, error));
out:
    CHECK_MSG(status == QRUN_OK, "%s", error->message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    return status;
}

static void test_sizes_left_to_the_memory(void) {
    qrun_train_params first, longer, ample;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    const int64_t memory = INT64_C(24) << 20;
    REQUIRE(run_auto(memory, 2, 64, &first, &info, &error) == QRUN_OK);
    CHECK_MSG(first.batches.batch_size > 1 && first.batches.batch_size < 105, "%d rows", first.batches.batch_size);
    /* A resumed run keeps the size, though it now has room for more. */
    REQUIRE(run_auto(2 * memory, 2, 64, &longer, &info, &error) == QRUN_OK);
    CHECK_INT(info.first_step, 2);
    CHECK_INT(longer.batches.batch_size, first.batches.batch_size);
    temporary_remove(&folder);
    folder = temporary_create();
    REQUIRE(run_auto(INT64_C(1) << 33, 2, QRUN_AUTO, &ample, &info, &error) == QRUN_OK);
    CHECK_INT(info.n_truncated, 0);
    CHECK_MSG(ample.batches.seq_len < 512, "no longer than an example: %d", ample.batches.seq_len);
    CHECK_INT(info.total_steps, 2);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    folder = temporary_create();
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_runs_are_fitted_exactly);
    CHECK_RUN(test_sessions_are_fitted_exactly);
    CHECK_RUN(test_known_models_have_their_parameters);
    CHECK_RUN(test_known_models_are_their_files);
    CHECK_RUN(test_named_devices);
    CHECK_RUN(test_sizes_left_to_the_memory);
    qrun_context_destroy(context);
    temporary_remove(&folder);
    return check_end();
}
