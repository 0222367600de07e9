/* Every policy of activation checkpointing, tiles and every offload, alone and in all pairs, of an adapter on quantised
 * weights and of all weights: losses and result have the bits of the resident run, and what is held at most is the
 * plan, on the device and off it. What does not go together is refused, and the message names it. Over simt it is the
 * order of copies that is tested. */
#include "check.h"

#include <math.h>

#include "base/sizes.h"
#include "base/status.h"
#include "qrun.h"
#include "trainer_run.h"

enum { N_STEPS = 2, TILE_ROWS = 32 }; /* on AMX, what keeps the bits of no tiles */

/* What is switched on: bits of a mask. A run has one policy at most. */
enum {
    POLICY_NONE = 1 << 0,
    POLICY_FULL = 1 << 1,
    POLICY_EVERY = 1 << 2,
    POLICY_ATTN = 1 << 3,
    POLICY_MLP = 1 << 4,
    POLICY_AUTO = 1 << 5,
    TILES = 1 << 6,
    OPTIMIZER = 1 << 7,
    GRADIENTS = 1 << 8,
    ACTIVATIONS = 1 << 9,
    PARAMETERS = 1 << 10,
    POLICIES = TILES - 1
};
enum { N_WAYS = 11 };
static const char *const way_names[N_WAYS] = {"none",  "full",      "every:2",   "attn",        "mlp",       "auto",
                                              "tiles", "optimizer", "gradients", "activations", "parameters"};

static qrun_context *own_context;
static bool on_device; /* whose sums of squares are in another order than the processor's */

/* ---- A run ------------------------------------------------------------------------------------------------------- */

typedef struct run_options {
    bool full; /* else an adapter on 4 bits */
    int ways;  /* 0: resident */
    qrun_optimizer optimizer;
    qrun_dtype dtype;
    int32_t grad_accum;
    double max_grad_norm;
    int32_t grad_sums; /* 0: one */
    int32_t n_steps;   /* 0: N_STEPS */
} run_options;

typedef struct run_result {
    double losses[N_STEPS];
    double norms[N_STEPS];
    char out[512];
} run_result;

static void describe(const run_options *o, char *text, size_t n_bytes) {
    size_t n = (size_t)snprintf(text, n_bytes, "%s:", o->full ? "all weights" : "an adapter");
    for (int w = 0; w < N_WAYS; w++) {
        if ((o->ways >> w & 1) != 0) { n += (size_t)snprintf(text + n, n_bytes - n, " %s", way_names[w]); }
    }
}

static const char *policy_of(int ways) {
    for (int w = 0; 1 << w < TILES; w++) {
        if ((ways >> w & 1) != 0) { return way_names[w]; }
    }
    return NULL;
}

static qrun_model_params model_params_of(const run_options *o) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = o->full ? QRUN_SOURCE_DIR "/examples/model" : trainer_path("nf4");
    params.trainable = o->full, params.dtype = o->dtype;
    params.offload_parameters = (o->ways & PARAMETERS) != 0 ? QRUN_OFFLOAD_ALL : QRUN_OFFLOAD_NONE;
    return params;
}

static qrun_train_params train_params_of(const run_options *o, const char *out) {
    qrun_train_params params = trainer_params(out);
    params.weights.full = o->full, params.lora.rank = o->full ? 0 : 4;
    params.batches.seq_len = 48, params.batches.batch_size = 1,
    params.batches.max_steps = o->n_steps > 0 ? o->n_steps : N_STEPS;
    params.batches.grad_accum = o->grad_accum, params.batches.grad_sums = o->grad_sums;
    params.optimization.optimizer = o->optimizer;
    params.optimization.learning_rate = 1e-3, params.optimization.warmup = 0;
    params.optimization.weight_decay = 0.1, params.optimization.max_grad_norm = o->max_grad_norm;
    params.memory.checkpointing = policy_of(o->ways);
    params.memory.tile_rows = (o->ways & TILES) != 0 ? TILE_ROWS : 0;
    params.memory.offload_optimizer = (o->ways & OPTIMIZER) != 0;
    params.memory.offload_gradients = (o->ways & GRADIENTS) != 0;
    params.memory.offload_activations = (o->ways & ACTIVATIONS) != 0;
    return params;
}

/* A context of its own, whose memory has held nothing yet. */
static qrun_status begin_context(qrun_error *error) {
    qrun_context_destroy(own_context);
    own_context = NULL;
    return qrun_context_create(NULL, &own_context, error);
}

/* In such a context; anew, in the folder of that name. */
static qrun_status train(const run_options *o, const char *name, run_result *r, qrun_error *error) {
    snprintf(r->out, sizeof r->out, "%s", trainer_path(name));
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    const qrun_model_params model_params = model_params_of(o);
    qrun_train_params params = train_params_of(o, r->out);
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    qrun_status status = QRUN_OK;
    params.saving.restart = true;
    QR_TRY(begin_context(error));
    QR_TRY(qrun_model_open(own_context, &model_params, &model, error));
    QR_TRY(qrun_trainer_create(model, &params, &trainer, error));
    for (bool done = false; !done;) {
        QR_TRY(qrun_trainer_step(trainer, &metrics, &done, error));
        CHECK(!metrics.skipped);
        r->losses[metrics.step - 1] = metrics.loss, r->norms[metrics.step - 1] = metrics.grad_norm;
    }
    QR_TRY(qrun_trainer_export(trainer, error));
    QR_TRY(qrun_trainer_get_info(trainer, &info, error));
    CHECK_INT(info.peak_bytes, info.planned_bytes);
    CHECK_INT(info.peak_host_bytes, info.planned_host_bytes);
out:
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    return status;
}

static bool results_are_equal(const run_options *o, const run_result *a, const run_result *b) {
    char of_a[600], of_b[600];
    const char *file = o->full ? "model.safetensors" : "adapter_model.safetensors";
    snprintf(of_a, sizeof of_a, "%s/%s", a->out, file);
    snprintf(of_b, sizeof of_b, "%s/%s", b->out, file);
    return trainer_files_are_equal(of_a, of_b);
}

/* ---- All pairs --------------------------------------------------------------------------------------------------- */

/* What the refusal of such a run names; NULL: it is none. */
static const char *refusal_of(const run_options *o) {
    const int ways = o->ways;
    const bool recomputes_layers = (ways & (POLICY_NONE | POLICY_ATTN | POLICY_MLP)) == 0;
    if (!o->full && (ways & GRADIENTS) != 0) { return "`offload_gradients` is for `full`"; }
    if (o->full && (ways & PARAMETERS) != 0 && (ways & GRADIENTS) == 0) { return "needs `offload_gradients`"; }
    if ((ways & ACTIVATIONS) != 0 && !recomputes_layers) { return "`offload_activations` is for layers"; }
    if ((ways & TILES) != 0 && (!recomputes_layers || (ways & POLICY_EVERY) != 0)) { return "`tile_rows=32` is for"; }
    return NULL;
}

static void check_ways(bool full, int ways, const run_result *resident) {
    const run_options o = {.full = full, .ways = ways, .grad_accum = 2};
    const char *why = refusal_of(&o);
    run_result r = {.out = ""};
    qrun_error error = QRUN_ERROR_INIT;
    char name[128];
    describe(&o, name, sizeof name);
    const qrun_status status = train(&o, "other", &r, &error);
    if (why != NULL) {
        CHECK_MSG(status == QRUN_ERROR_ARGUMENT && strstr(error.message, why) != NULL, "%s: %s", name, error.message);
        return;
    }
    CHECK_MSG(status == QRUN_OK, "%s: %s", name, error.message);
    if (status != QRUN_OK) { return; }
    CHECK_MSG(memcmp(r.losses, resident->losses, sizeof r.losses) == 0, "%s: losses %.17g and %.17g", name,
              r.losses[N_STEPS - 1], resident->losses[N_STEPS - 1]);
    for (int i = 0; i < N_STEPS; i++) {
        const double apart = fabs(r.norms[i] - resident->norms[i]);
        CHECK_MSG(apart <= (on_device ? 1e-13 * resident->norms[i] : 0), "%s: norms %.17g and %.17g", name, r.norms[i],
                  resident->norms[i]);
    }
    CHECK_MSG(results_are_equal(&o, &r, resident), "%s: the results", name);
}

static void check_pairs(bool full) {
    const run_options o = {.full = full, .ways = POLICY_NONE, .grad_accum = 2};
    run_result resident;
    qrun_error error = QRUN_ERROR_INIT;
    int n = 0;
    CHECK_MSG(train(&o, "resident", &resident, &error) == QRUN_OK, "%s", error.message);
    for (int a = 0; a < N_WAYS; a++) {
        for (int b = a; b < N_WAYS; b++) {
            const int ways = 1 << a | 1 << b, policies = ways & POLICIES;
            if ((policies & (policies - 1)) != 0) { continue; } /* two policies: of one setting */
            check_ways(full, ways, &resident);
            n++;
        }
    }
    CHECK_INT(n, 6 + 5 + 6 * 5 + 5 * 4 / 2);
    check_ways(full, POLICY_FULL | TILES | OPTIMIZER | ACTIVATIONS | PARAMETERS | (full ? GRADIENTS : 0), &resident);
}

static void test_pairs_of_an_adapter(void) { check_pairs(false); }

static void test_pairs_of_all_weights(void) { check_pairs(true); }

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* Whatever the processor does of a step is what the device would have done: every optimiser and type, one batch a step
 * and several, clipped and not. */
static void check_gradients(const run_options *options) {
    run_options o = *options;
    run_result resident, offloaded;
    qrun_error error = QRUN_ERROR_INIT;
    o.full = true, o.ways = POLICY_FULL;
    CHECK_MSG(train(&o, "resident", &resident, &error) == QRUN_OK, "%s", error.message);
    o.ways |= GRADIENTS;
    CHECK_MSG(train(&o, "offloaded", &offloaded, &error) == QRUN_OK, "%s", error.message);
    CHECK_MSG(memcmp(resident.losses, offloaded.losses, sizeof resident.losses) == 0, "optimiser %d, type %d: losses",
              (int)o.optimizer, (int)o.dtype);
    CHECK_MSG(results_are_equal(&o, &resident, &offloaded), "optimiser %d, type %d: the results", (int)o.optimizer,
              (int)o.dtype);
}

static void test_gradients_of_every_optimizer(void) {
    static const run_options runs[] = {
        {.optimizer = QRUN_OPTIMIZER_ADAMW, .dtype = QRUN_DTYPE_F32, .grad_accum = 1},
        {.optimizer = QRUN_OPTIMIZER_ADAMW, .dtype = QRUN_DTYPE_F16, .grad_accum = 3, .max_grad_norm = 0.1},
        {.optimizer = QRUN_OPTIMIZER_ADAMW8BIT, .dtype = QRUN_DTYPE_BF16, .grad_accum = 1, .max_grad_norm = -1},
        {.optimizer = QRUN_OPTIMIZER_ADAMW8BIT, .dtype = QRUN_DTYPE_F32, .grad_accum = 2},
        {.optimizer = QRUN_OPTIMIZER_ADAFACTOR, .dtype = QRUN_DTYPE_BF16, .grad_accum = 3},
        {.optimizer = QRUN_OPTIMIZER_ADAFACTOR, .dtype = QRUN_DTYPE_F32, .grad_accum = 1, .max_grad_norm = 0.1},
        {.optimizer = QRUN_OPTIMIZER_SGD, .dtype = QRUN_DTYPE_BF16, .grad_accum = 2, .max_grad_norm = -1},
        {.optimizer = QRUN_OPTIMIZER_ADAMW, .dtype = QRUN_DTYPE_F32, .grad_accum = 5, .grad_sums = 4},
        {.optimizer = QRUN_OPTIMIZER_SGD, .dtype = QRUN_DTYPE_F16, .grad_accum = 2, .grad_sums = 2},
    };
    for (size_t i = 0; i < QR_COUNT_OF(runs); i++) { check_gradients(&runs[i]); }
}

/* The next two over simt as well. */
static void test_gradients_leave_a_device(void) {
    const run_options several = {.optimizer = QRUN_OPTIMIZER_ADAMW8BIT, .dtype = QRUN_DTYPE_BF16, .grad_accum = 3};
    check_gradients(&several);
}

static void test_all_weights_leave_a_device(void) {
    const run_options o = {.full = true, .ways = POLICY_FULL, .grad_accum = 2};
    run_result resident;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(train(&o, "resident", &resident, &error) == QRUN_OK, "%s", error.message);
    check_ways(true, POLICY_FULL | GRADIENTS | PARAMETERS | ACTIVATIONS, &resident);
}

/* A checkpoint does not know where gradients and weights were. */
static void test_a_run_goes_on_elsewhere(void) {
    run_options o = {.full = true, .ways = POLICY_FULL, .grad_accum = 2};
    run_result whole, parts;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(train(&o, "whole", &whole, &error) == QRUN_OK, "%s", error.message);
    snprintf(parts.out, sizeof parts.out, "%s", trainer_path("parts"));
    for (int step = 1; step <= N_STEPS; step++) {
        qrun_model *model = NULL;
        qrun_trainer *trainer = NULL;
        qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
        bool done = false;
        o.ways = step == 1 ? POLICY_FULL | GRADIENTS | PARAMETERS : POLICY_NONE;
        const qrun_model_params model_params = model_params_of(&o);
        const qrun_train_params params = train_params_of(&o, parts.out);
        CHECK(qrun_model_open(own_context, &model_params, &model, &error) == QRUN_OK);
        CHECK_MSG(qrun_trainer_create(model, &params, &trainer, &error) == QRUN_OK, "%s", error.message);
        CHECK_MSG(qrun_trainer_step(trainer, &metrics, &done, &error) == QRUN_OK, "%s", error.message);
        CHECK_INT(metrics.step, step);
        CHECK_INT(done, step == N_STEPS);
        CHECK((done ? qrun_trainer_export(trainer, &error) : qrun_trainer_save(trainer, &error)) == QRUN_OK);
        qrun_trainer_destroy(trainer);
        qrun_model_destroy(model);
    }
    CHECK(results_are_equal(&o, &whole, &parts));
}

/* ---- Layers that are updated late ------------------------------------------------------------------------------- */

typedef struct own_run {
    qrun_model *model;
    qrun_trainer *trainer;
} own_run;

/* A run of its own on the context, one step of which is done. */
static own_run after_one_step(const run_options *o, const char *name) {
    own_run run = {NULL, NULL};
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done;
    const qrun_model_params model_params = model_params_of(o);
    qrun_train_params params = train_params_of(o, trainer_path(name));
    params.saving.restart = true, params.data.eval_split = 0.2;
    CHECK_MSG(qrun_model_open(own_context, &model_params, &run.model, &error) == QRUN_OK, "%s", error.message);
    CHECK_MSG(qrun_trainer_create(run.model, &params, &run.trainer, &error) == QRUN_OK, "%s", error.message);
    CHECK_MSG(qrun_trainer_step(run.trainer, &metrics, &done, &error) == QRUN_OK, "%s", error.message);
    CHECK(!done);
    return run;
}

static void end_run(own_run *run) {
    qrun_trainer_destroy(run->trainer);
    qrun_model_destroy(run->model);
}

static double mean_nll(qrun_model *model) {
    static const char text[] = "Once upon a time there was a fox.";
    const qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    const qrun_eval_params eval = QRUN_EVAL_PARAMS_INIT;
    qrun_eval_result result = QRUN_EVAL_RESULT_INIT;
    qrun_session *session = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_create(model, &params, &session, &error) == QRUN_OK, "%s", error.message);
    CHECK_MSG(qrun_session_eval(session, text, strlen(text), &eval, &result, &error) == QRUN_OK, "%s", error.message);
    qrun_session_destroy(session);
    return result.mean_nll;
}

/* What is asked of a run after its first step. */
typedef struct between_result {
    double eval_loss, nll_in_run, nll_after_it;
} between_result;

/* Each question to a run of its own, so that none finds layers written by the one before. */
static between_result ask_between(const run_options *o, const char *exported, const char *saved, const char *left) {
    between_result r = {0};
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done;
    own_run run = after_one_step(o, exported);
    CHECK(qrun_trainer_export(run.trainer, &error) == QRUN_OK);
    end_run(&run);
    run = after_one_step(o, saved);
    CHECK(qrun_trainer_save(run.trainer, &error) == QRUN_OK);
    end_run(&run);
    run = after_one_step(o, left);
    qrun_trainer_cancel(run.trainer); /* in the forward pass, which has come to the first layer */
    CHECK(qrun_trainer_step(run.trainer, &metrics, &done, &error) == QRUN_ERROR_CANCELLED);
    CHECK(qrun_trainer_save(run.trainer, &error) == QRUN_OK);
    end_run(&run);
    run = after_one_step(o, "asked");
    CHECK(qrun_trainer_evaluate(run.trainer, &r.eval_loss, &error) == QRUN_OK);
    end_run(&run);
    run = after_one_step(o, "asked");
    r.nll_in_run = mean_nll(run.model);
    end_run(&run);
    run = after_one_step(o, "asked");
    qrun_trainer_destroy(run.trainer);
    run.trainer = NULL;
    r.nll_after_it = mean_nll(run.model);
    end_run(&run);
    return r;
}

/* Whoever reads values, states or weights between two steps finds those of the step. */
static void test_nobody_reads_a_layer_before_its_update(void) {
    static const char *const files[] = {"exported%s/model.safetensors", "saved%s/checkpoint-1/model.safetensors",
                                        "saved%s/checkpoint-1/state.safetensors",
                                        "left%s/checkpoint-1/model.safetensors",
                                        "left%s/checkpoint-1/state.safetensors"};
    static const int ways[] = {POLICY_FULL | GRADIENTS, POLICY_FULL | GRADIENTS | PARAMETERS};
    const run_options resident = {.full = true, .ways = POLICY_FULL, .grad_accum = 2};
    REQUIRE(begin_context(NULL) == QRUN_OK);
    const between_result wanted = ask_between(&resident, "exported0", "saved0", "left0");
    CHECK(wanted.nll_in_run == wanted.nll_after_it);
    for (size_t w = 0; w < QR_COUNT_OF(ways); w++) {
        run_options o = resident;
        o.ways = ways[w];
        const between_result r = ask_between(&o, "exported1", "saved1", "left1");
        CHECK_MSG(r.eval_loss == wanted.eval_loss, "%.17g and %.17g", r.eval_loss, wanted.eval_loss);
        CHECK_MSG(r.nll_in_run == wanted.nll_in_run, "%.17g and %.17g", r.nll_in_run, wanted.nll_in_run);
        CHECK_MSG(r.nll_after_it == wanted.nll_after_it, "%.17g and %.17g", r.nll_after_it, wanted.nll_after_it);
        for (size_t i = 0; i < QR_COUNT_OF(files); i++) {
            char names[2][128], paths[2][512];
            for (int k = 0; k < 2; k++) {
                snprintf(names[k], sizeof names[k], files[i], k == 0 ? "0" : "1");
                snprintf(paths[k], sizeof paths[k], "%s", trainer_path(names[k]));
            }
            CHECK_MSG(trainer_files_are_equal(paths[0], paths[1]), "%s", names[1]);
        }
    }
}

/* A second trainer, which the model has no room for, takes nothing of the first one with it. */
static void test_a_refused_trainer_leaves_another_alone(void) {
    const run_options o = {.full = true, .ways = POLICY_FULL | GRADIENTS, .grad_accum = 2, .n_steps = 3};
    static const char *const names[] = {"alone", "disturbed"};
    char paths[2][512];
    REQUIRE(begin_context(NULL) == QRUN_OK);
    for (int disturbed = 0; disturbed < 2; disturbed++) {
        qrun_error error = QRUN_ERROR_INIT;
        qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
        bool done;
        own_run run = after_one_step(&o, names[disturbed]);
        if (disturbed) {
            qrun_trainer *refused = NULL;
            const qrun_train_params params = train_params_of(&o, trainer_path("refused"));
            CHECK_INT(qrun_trainer_create(run.model, &params, &refused, &error), QRUN_ERROR_BUSY);
            CHECK(refused == NULL);
        }
        CHECK_MSG(qrun_trainer_step(run.trainer, &metrics, &done, &error) == QRUN_OK, "%s", error.message);
        CHECK_MSG(qrun_trainer_export(run.trainer, &error) == QRUN_OK, "%s", error.message);
        end_run(&run);
        snprintf(paths[disturbed], sizeof paths[disturbed], "%s/model.safetensors", trainer_path(names[disturbed]));
    }
    CHECK(trainer_files_are_equal(paths[0], paths[1]));
}

/* The first event of a layer that is spent on a phase; −1: there is none. */
static int64_t first_event(const qrun_timeline *t, int32_t layer, const char *spent_on) {
    for (int64_t i = 0; i < t->n_events; i++) {
        if (t->events[i].layer == layer && strcmp(t->events[i].spent_on, spent_on) == 0) { return i; }
    }
    return -1;
}

/* The device has the ops of a layer before the processor begins with the next one: beside them, where it can be. */
static void test_a_layer_is_updated_beside_the_one_before(void) {
    const run_options o = {.full = true, .ways = POLICY_FULL | GRADIENTS | PARAMETERS, .grad_accum = 2};
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    qrun_timeline t = QRUN_TIMELINE_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done;
    REQUIRE(begin_context(NULL) == QRUN_OK);
    REQUIRE(qrun_context_timeline_begin(own_context, 0, &error) == QRUN_OK);
    own_run run = after_one_step(&o, "timed");
    CHECK(qrun_model_get_info(run.model, &info, &error) == QRUN_OK);
    CHECK(qrun_trainer_step(run.trainer, &metrics, &done, &error) == QRUN_OK);
    CHECK(qrun_context_timeline_get(own_context, &t, &error) == QRUN_OK);
    CHECK(info.n_layers > 1);
    for (int32_t l = 0; l < info.n_layers; l++) {
        const int64_t update = first_event(&t, l, "optimizer"), own = first_event(&t, l, "forward");
        CHECK_MSG(update >= 0 && update < own, "layer %d: updated by event %lld, used by %lld", (int)l,
                  (long long)update, (long long)own);
        CHECK_MSG(l == 0 || update > first_event(&t, l - 1, "forward"), "layer %d: updated before the one before",
                  (int)l);
    }
    end_run(&run);
    qrun_context_timeline_end(own_context);
}

/* ---- What is left on the device ---------------------------------------------------------------------------------- */

static int64_t planned_bytes(const qrun_plan_entry *entries, int32_t n, const char *category) {
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(entries[i].category, category) == 0) { return entries[i].bytes; }
    }
    return -1;
}

/* Of a model on a card that need not be there: twice the layers take no more, but for the segments' inputs. */
static void test_two_layers_stay_on_the_device(void) {
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *card = NULL;
    int64_t weights[2], gradients[2], host[2];
    context_params.device_memory = "h100";
    REQUIRE(qrun_context_create(&context_params, &card, NULL) == QRUN_OK);
    for (int i = 0; i < 2; i++) {
        qrun_model_params model = QRUN_MODEL_PARAMS_INIT;
        qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
        qrun_plan_entry *entries = NULL;
        qrun_plan_info info = QRUN_PLAN_INFO_INIT;
        qrun_error error = QRUN_ERROR_INIT;
        int32_t n = 0;
        model.path = i == 0 ? "llama-3.2-1b" : "llama-3.1-8b", model.random_weights = true, model.trainable = true;
        model.offload_parameters = QRUN_OFFLOAD_ALL;
        params.weights.full = true, params.batches.seq_len = 1024;
        params.memory.checkpointing = "full", params.memory.memory_bytes = INT64_C(1) << 50;
        params.memory.offload_gradients = params.memory.offload_activations = true;
        const qrun_status status = qrun_plan_training(card, &model, &params, &entries, &n, NULL, &info, &error);
        CHECK_MSG(status == QRUN_OK || status == QRUN_ERROR_MEMORY, "%s", error.message);
        CHECK_INT(planned_bytes(entries, n, "optimizer"), 0);
        CHECK_INT(planned_bytes(entries, n, "master weights"), 0);
        weights[i] = planned_bytes(entries, n, "weights"), gradients[i] = planned_bytes(entries, n, "gradients");
        host[i] = planned_bytes(entries, n, "host");
        qrun_free(entries);
    }
    /* Matrices of two layers and the tables, in BF16; their gradients in F32, with norms. */
    const int64_t layer[2] = {2048 * (2048 + 512 + 512 + 2048) + 3 * 2048 * 8192,
                              4096 * (4096 + 1024 + 1024 + 4096) + 3 * INT64_C(4096) * 14336};
    const int64_t tables[2] = {INT64_C(128256) * 2048, 2 * INT64_C(128256) * 4096};
    const int64_t dim[2] = {2048, 4096}, n_layers[2] = {16, 32};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(gradients[i], 4 * (tables[i] + dim[i] + 2 * (layer[i] + 2 * dim[i])));
        const int64_t of_weights = 2 * (tables[i] + 2 * layer[i]) + 4 * dim[i] * (2 * n_layers[i] + 1);
        CHECK_MSG(weights[i] >= of_weights && weights[i] < of_weights + 65536, "weights: %lld, not %lld",
                  (long long)weights[i], (long long)of_weights);
        /* Values, sums and two states in F32, and the layers in BF16. */
        CHECK(host[i] > 16 * (tables[i] + n_layers[i] * layer[i]) + 2 * n_layers[i] * layer[i]);
    }
    qrun_context_destroy(card);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(40)) { return 1; }
    qrun_quantize_params quantize = QRUN_QUANTIZE_PARAMS_INIT;
    quantize.path = QRUN_SOURCE_DIR "/examples/model", quantize.out = trainer_path("nf4");
    quantize.quant = QRUN_QUANT_NF4_DQ;
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    on_device = qrun_context_device_info(trainer_context, &info, NULL) == QRUN_OK && strcmp(info.backend, "cuda") == 0;
    if (qrun_quantize_folder(trainer_context, &quantize, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_pairs_of_an_adapter);
    CHECK_RUN(test_pairs_of_all_weights);
    CHECK_RUN(test_gradients_of_every_optimizer);
    CHECK_RUN(test_gradients_leave_a_device);
    CHECK_RUN(test_all_weights_leave_a_device);
    CHECK_RUN(test_a_run_goes_on_elsewhere);
    CHECK_RUN(test_nobody_reads_a_layer_before_its_update);
    CHECK_RUN(test_a_refused_trainer_leaves_another_alone);
    CHECK_RUN(test_a_layer_is_updated_beside_the_one_before);
    CHECK_RUN(test_two_layers_stay_on_the_device);
    qrun_context_destroy(own_context);
    trainer_run_end();
    return check_end();
}
