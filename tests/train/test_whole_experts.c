/* Mixtures of experts trained whole: the folder that is written has the tensors of the one that was read, runs have
 * their bits whatever they leave where and wherever they were cut, hold what is planned at most, and what is quantised
 * is refused. Gradients and curves are compared in test_training. */
#include "check.h"

#include "../runtime/golden_index.h"
#include "base/sizes.h"
#include "base/status.h"
#include "loaders/files/safetensors.h"
#include "qrun.h"
#include "rank_processes.h"
#include "trainer_run.h"

enum { N_STEPS = 3, TILE_ROWS = 32 };

/* A small model with a tokenizer, in the test's folder. */
static const char *with_tokenizer(const char *name) {
    static const char *const files[] = {"models/%s/config.json", "models/%s/model.safetensors",
                                        "tokenizers/qwen2/tokenizer.json"};
    const char *folder = trainer_path(name);
    if (mkdir(folder, 0777) != 0) { return folder; } /* it is there */
    for (size_t i = 0; i < QR_COUNT_OF(files); i++) {
        char command[1024], file[256];
        snprintf(file, sizeof file, files[i], name);
        snprintf(command, sizeof command, "cp '" FIXTURES "%s' '%s'", file, folder);
        CHECK(system(command) == 0);
    }
    return folder;
}

typedef struct run_options {
    const char *model;
    qrun_dtype dtype;
    qrun_optimizer optimizer;
    const char *checkpointing;
    bool tiles, offload_optimizer, offload_gradients, offload_activations, offload_parameters;
    int32_t zero;    /* of ranks */
    int64_t n_steps; /* of this part of the run; 0: none */
} run_options;

typedef struct run_result {
    double losses[N_STEPS], norms[N_STEPS];
    int64_t planned, peak;
    bool done;
} run_result;

static qrun_model_params model_params_of(const run_options *o) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = with_tokenizer(o->model);
    params.trainable = true, params.dtype = o->dtype, params.shard_parameters = o->zero == 3;
    params.offload_parameters = o->offload_parameters ? QRUN_OFFLOAD_ALL : QRUN_OFFLOAD_NONE;
    return params;
}

static qrun_train_params train_params_of(const run_options *o, const char *out) {
    qrun_train_params params = trainer_params(out);
    params.weights.full = true, params.lora.rank = 0;
    params.batches.seq_len = 48, params.batches.batch_size = 1, params.batches.grad_accum = 2;
    params.batches.max_steps = N_STEPS;
    params.optimization.optimizer = o->optimizer, params.optimization.learning_rate = 2e-3;
    params.optimization.warmup = 0, params.optimization.weight_decay = 0.1, params.optimization.max_grad_norm = 1.0;
    params.memory.checkpointing = o->checkpointing != NULL ? o->checkpointing : "none";
    params.memory.tile_rows = o->tiles ? TILE_ROWS : 0;
    params.memory.offload_optimizer = o->offload_optimizer, params.memory.offload_gradients = o->offload_gradients;
    params.memory.offload_activations = o->offload_activations;
    params.ranks.zero = o->zero;
    return params;
}

static qrun_status run_steps(qrun_trainer *trainer, int64_t n_steps, run_result *r, qrun_error *error) {
    for (bool done = n_steps == 0; !done;) {
        qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
        QR_RETURN_IF_ERROR(qrun_trainer_step(trainer, &metrics, &done, error));
        CHECK(!metrics.skipped);
        r->losses[metrics.step - 1] = metrics.loss, r->norms[metrics.step - 1] = metrics.grad_norm;
        done |= metrics.step == n_steps;
    }
    return QRUN_OK;
}

/* In a context of its own, whose memory has held nothing yet. Rank 0 has a loop, others follow it. */
static qrun_status train(const run_options *o, int32_t rank, const char *out, bool restart, run_result *r,
                         qrun_error *error) {
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    const qrun_model_params model_params = model_params_of(o);
    qrun_train_params params = train_params_of(o, out);
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_status status;
    params.saving.restart = restart;
    context_params.ranks = rank >= 0, context_params.n_threads = rank >= 0 ? 1 : 2;
    context_params.collective_timeout = 60;
    QR_TRY(qrun_context_create(&context_params, &context, error));
    QR_TRY(qrun_model_open(context, &model_params, &model, error));
    QR_TRY(qrun_trainer_create(model, &params, &trainer, error));
    QR_TRY(rank > 0 ? qrun_trainer_run(trainer, error) : run_steps(trainer, o->n_steps, r, error));
    if (rank <= 0) {
        QR_TRY(o->n_steps > 0 && o->n_steps < N_STEPS ? qrun_trainer_save(trainer, error)
                                                      : qrun_trainer_export(trainer, error));
    }
    QR_TRY(qrun_trainer_get_info(trainer, &info, error));
    r->planned = info.planned_bytes, r->peak = info.peak_bytes;
    r->done = true;
out:
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return status;
}

static run_result run(const run_options *o, const char *name, bool restart) {
    run_result r = {.done = false};
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(train(o, -1, trainer_path(name), restart, &r, &error) == QRUN_OK, "%s: %s", o->model, error.message);
    CHECK_MSG(r.peak == r.planned, "%s: planned %lld bytes, and used %lld", o->model, (long long)r.planned,
              (long long)r.peak);
    return r;
}

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

/* Names, shapes and bytes. */
static void check_same_tensors(const char *model, const char *ours, const char *theirs) {
    qr_safetensors *a = NULL, *b = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_safetensors_open(ours, &a, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(qr_safetensors_open(theirs, &b, &err) == QRUN_OK, "%s", err.message);
    REQUIRE(a != NULL && b != NULL);
    CHECK_INT(qr_safetensors_count(a), qr_safetensors_count(b));
    for (size_t i = 0; i < qr_safetensors_count(b); i++) {
        const qr_safetensors_tensor *expected = qr_safetensors_get(b, i);
        const qr_safetensors_tensor *found = qr_safetensors_find(a, expected->name);
        const bool same = found != NULL && found->dtype == expected->dtype && found->n_dims == expected->n_dims &&
                          memcmp(found->dims, expected->dims, (size_t)expected->n_dims * sizeof(int64_t)) == 0 &&
                          memcmp(found->data, expected->data, expected->n_bytes) == 0;
        CHECK_MSG(same, "%s: %s is not as in the folder that it came from", model, expected->name);
    }
    qr_safetensors_close(a);
    qr_safetensors_close(b);
}

/* Before the first step nothing has changed. Stacks and single matrices, parts one after the other and in turn. */
static void test_folders_keep_their_form(void) {
    static const char *const models[] = {"qwen2-moe",          "qwen3-moe",    "qwen3-moe-stacked", "mixtral",
                                         "mixtral-stacked",    "qwen3_5-moe",  "qwen3-next",        "gemma4-moe",
                                         "qwen3_5-moe-images", "gpt-oss-full", "nemotron-h-moe",    "olmoe"};
    for (size_t i = 0; i < QR_COUNT_OF(models); i++) {
        const run_options o = {.model = models[i],
                               .dtype = strcmp(models[i], "olmoe") == 0 ? QRUN_DTYPE_F32 : QRUN_DTYPE_BF16};
        (void)run(&o, "kept", true);
        char theirs[512];
        snprintf(theirs, sizeof theirs, FIXTURES "models/%s", models[i]);
        check_same_tensors(models[i], trainer_path("kept"), theirs);
    }
}

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

static void check_same(const run_options *o, const char *what, const run_result *a, const run_result *b,
                       const char *name_a, const char *name_b) {
    char paths[2][128];
    snprintf(paths[0], sizeof paths[0], "%s/model.safetensors", name_a);
    snprintf(paths[1], sizeof paths[1], "%s/model.safetensors", name_b);
    for (int64_t i = 0; i < N_STEPS; i++) {
        CHECK_MSG(a->losses[i] == b->losses[i] && a->norms[i] == b->norms[i],
                  "%s, %s: step %d has loss %.9g and norm %.9g, expected %.9g and %.9g", o->model, what, (int)i + 1,
                  b->losses[i], b->norms[i], a->losses[i], a->norms[i]);
    }
    CHECK_MSG(trainer_files_are_equal(trainer_path(paths[0]), trainer_path(paths[1])), "%s, %s: other weights",
              o->model, what);
}

static const char *const models[] = {"qwen3-moe", "gemma4-moe", "qwen3_5-moe-images", "gpt-oss-full", "nemotron-h-moe"};

/* What is computed again, in tiles, or left in host memory. */
static void test_runs_have_the_bits_of_the_resident_one(void) {
    static const run_options ways[] = {
        {.checkpointing = "full", .tiles = true},
        {.checkpointing = "every:2", .offload_optimizer = true},
        {.checkpointing = "full", .offload_gradients = true},
        {.checkpointing = "full", .offload_gradients = true, .offload_parameters = true, .offload_activations = true},
    };
    static const char *const names[] = {"tiles", "offloaded optimizer", "offloaded gradients", "all offloaded"};
    for (size_t m = 0; m < QR_COUNT_OF(models); m++) {
        run_options o = {.model = models[m],
                         .dtype = m % 2 == 0 ? QRUN_DTYPE_BF16 : QRUN_DTYPE_F32,
                         .optimizer = m == 2 ? QRUN_OPTIMIZER_ADAMW8BIT : QRUN_OPTIMIZER_ADAMW,
                         .n_steps = N_STEPS};
        const run_result resident = run(&o, "resident", true);
        CHECK(resident.losses[N_STEPS - 1] < resident.losses[0]);
        for (size_t w = 0; w < QR_COUNT_OF(ways); w++) {
            run_options way = ways[w];
            way.model = o.model, way.dtype = o.dtype, way.optimizer = o.optimizer, way.n_steps = N_STEPS;
            const run_result r = run(&way, "way", true);
            check_same(&o, names[w], &resident, &r, "resident", "way");
        }
    }
}

static void test_a_run_goes_on_where_it_was_left(void) {
    for (size_t m = 0; m < QR_COUNT_OF(models); m++) {
        run_options o = {.model = models[m],
                         .dtype = m % 2 == 0 ? QRUN_DTYPE_F32 : QRUN_DTYPE_BF16,
                         .optimizer = m == 1 ? QRUN_OPTIMIZER_ADAFACTOR : QRUN_OPTIMIZER_ADAMW,
                         .n_steps = N_STEPS};
        const run_result whole = run(&o, "whole", true);
        o.n_steps = 1;
        run_result first = run(&o, "cut", true);
        o.n_steps = N_STEPS;
        const run_result rest = run(&o, "cut", false);
        for (int64_t i = 1; i < N_STEPS; i++) { first.losses[i] = rest.losses[i], first.norms[i] = rest.norms[i]; }
        check_same(&o, "continued", &whole, &first, "whole", "cut");
    }
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static qrun_status run_rank(const void *arg, int32_t rank, void *result, qrun_error *error) {
    return train(arg, rank, trainer_path("ranks"), true, result, error);
}

static void test_ranks_share_out(void) {
    enum { N_RANKS = 2 };
    for (size_t m = 0; m < 2; m++) {
        run_options o = {.model = models[m], .dtype = QRUN_DTYPE_BF16, .n_steps = N_STEPS};
        const run_result alone = run(&o, "alone", true);
        for (o.zero = 0; o.zero <= 3; o.zero++) {
            run_result of[N_RANKS] = {{.done = false}};
            char what[32];
            snprintf(what, sizeof what, "zero %d", (int)o.zero);
            rank_processes_run(run_rank, &o, N_RANKS, of, sizeof *of);
            for (int32_t r = 0; r < N_RANKS; r++) {
                CHECK_MSG(of[r].done && of[r].peak == of[r].planned,
                          "%s, %s: rank %d planned %lld bytes, and used %lld", o.model, what, (int)r,
                          (long long)of[r].planned, (long long)of[r].peak);
            }
            check_same(&o, what, &alone, &of[0], "alone", "ranks");
        }
    }
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void check_open_refused(const qrun_model_params *params, const char *why) {
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK(qrun_model_open(trainer_context, params, &model, &error) != QRUN_OK);
    CHECK_MSG(strstr(error.message, why) != NULL, "\"%s\" does not say \"%s\"", error.message, why);
    qrun_model_destroy(model);
}

static void test_refusals(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = FIXTURES "models/gpt-oss-mxfp4", params.trainable = true;
    check_open_refused(&params, "is stored as mxfp4, and full fine-tuning changes every weight");
    params.path = FIXTURES "models/qwen3-moe", params.offload_experts = QRUN_OFFLOAD_ALL;
    check_open_refused(&params, "`offload_experts` is for experts that do not change");
    /* Single modules, with an adapter. */
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params = (qrun_model_params)QRUN_MODEL_PARAMS_INIT;
    params.path = with_tokenizer("qwen3-moe");
    REQUIRE(qrun_model_open(trainer_context, &params, &model, &error) == QRUN_OK);
    qrun_train_params train_params = trainer_params(trainer_path("none"));
    train_params.lora.modules_to_save = "down_proj";
    CHECK_INT(qrun_trainer_create(model, &train_params, &trainer, &error), QRUN_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(error.message, "the modules to train whole are in experts") != NULL, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(24)) { return 1; }
    CHECK_RUN(test_folders_keep_their_form);
    CHECK_RUN(test_runs_have_the_bits_of_the_resident_one);
    CHECK_RUN(test_a_run_goes_on_where_it_was_left);
    CHECK_RUN(test_ranks_share_out);
    CHECK_RUN(test_refusals);
    trainer_run_end();
    return check_end();
}
