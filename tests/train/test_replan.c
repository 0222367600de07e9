/* A run whose memory runs short in the middle: at any call of the device and any allocation it either ends with the
 * adapter of the run that nothing happened to, or it stops in one line and its folder, run again, gives that adapter.
 */
#include "check_open.h"

#include "failing_device.h"
#include "runtime/model/model.h"
#include "temporary.h"
#include "trainer_run.h"

enum { N_STEPS = 3 };

static qrun_model *model;
static bool is_full; /* the model is trained whole, so every run opens it anew */
static bool offloads_gradients;
static char undisturbed[512];

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static qrun_train_params small_params(const char *out) {
    qrun_train_params params = trainer_params(out);
    params.batches.seq_len = 32, params.batches.batch_size = 1, params.batches.grad_accum = 2;
    params.batches.max_steps = N_STEPS, params.optimization.warmup = 1;
    params.data.eval_split = 0.2, params.evaluation.eval_every = 2, params.saving.save_every = 2;
    params.weights.full = is_full;
    params.memory.offload_gradients = offloads_gradients;
    if (is_full) {
        params.lora = (qrun_train_lora){0};
        return params;
    }
    params.lora.rank = 2, params.lora.target_modules = "q_proj,down_proj";
    return params;
}

static void open_model(void) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = QRUN_SOURCE_DIR "/examples/model", params.dtype = QRUN_DTYPE_BF16, params.trainable = is_full;
    model = check_open_model(trainer_context, &params);
}

static void close_model(void) {
    qrun_model_destroy(model);
    model = NULL;
}

/* A run that the test disturbs once its trainer is there. */
typedef struct disturbed_run {
    qrun_status status;
    qrun_error error;
    qrun_train_info info;
    char replanned[512], checkpointing[64];
    int64_t n_calls;
} disturbed_run;

typedef void (*disturb_fn)(const qrun_trainer *trainer, int64_t n);

static disturbed_run run(const qrun_train_params *params, disturb_fn disturb, int64_t n) {
    disturbed_run r = {.error = QRUN_ERROR_INIT, .info = QRUN_TRAIN_INFO_INIT};
    qrun_trainer *trainer = NULL;
    if (is_full) { open_model(); }
    r.status = qrun_trainer_create(model, params, &trainer, &r.error);
    if (r.status == QRUN_OK) {
        if (disturb != NULL) { disturb(trainer, n); }
        r.status = qrun_trainer_run(trainer, &r.error);
        r.n_calls = failing_device_calls();
        failing_device_fail(0, 0);
        qr_alloc_fail_at(0);
        CHECK(qrun_trainer_get_info(trainer, &r.info, NULL) == QRUN_OK);
        snprintf(r.replanned, sizeof r.replanned, "%s", r.info.replanned);
        snprintf(r.checkpointing, sizeof r.checkpointing, "%s", r.info.checkpointing);
    }
    qrun_trainer_destroy(trainer);
    if (is_full) { close_model(); }
    return r;
}

static bool is_undisturbed(const char *out) {
    char a[600], b[600];
    if (!is_full) { return trainer_adapters_are_equal(undisturbed, out); }
    snprintf(a, sizeof a, "%s/model.safetensors", undisturbed);
    snprintf(b, sizeof b, "%s/model.safetensors", out);
    return trainer_files_are_equal(a, b);
}

static void begin(bool full) {
    is_full = full;
    snprintf(undisturbed, sizeof undisturbed, "%s", trainer_path(full ? "whole" : "adapter"));
    if (!full) { open_model(); }
    const qrun_train_params params = small_params(undisturbed);
    const disturbed_run r = run(&params, NULL, 0);
    CHECK_MSG(r.status == QRUN_OK && r.info.n_replans == 0, "%s", r.error.message);
    failing_device_install(trainer_context->backend);
}

static void end(void) {
    failing_device_remove();
    close_model();
}

/* The outcome of a run that was disturbed: the adapter, or a clean end whose folder leads to it. */
static void check_outcome(const disturbed_run *r, const qrun_train_params *params, const char *what, int64_t n) {
    if (r->status != QRUN_OK) {
        CHECK_MSG(r->status == QRUN_ERROR_MEMORY && strncmp(r->error.message, "out of memory", 13) == 0,
                  "%s %lld: %s: %s", what, (long long)n, qrun_status_name(r->status), r->error.message);
        failing_device_set_memory(0);
        const disturbed_run again = run(params, NULL, 0);
        CHECK_MSG(again.status == QRUN_OK, "%s %lld, again: %s", what, (long long)n, again.error.message);
    }
    CHECK_MSG(is_undisturbed(params->saving.out), "%s %lld: %s", what, (long long)n, r->replanned);
}

static void disturb_calls(const qrun_trainer *trainer, int64_t n) {
    (void)trainer;
    failing_device_fail(n, 1);
}

static void disturb_from(const qrun_trainer *trainer, int64_t n) {
    (void)trainer;
    failing_device_fail(n, INT64_MAX);
}

static int64_t n_allocations_before;

static void disturb_heap(const qrun_trainer *trainer, int64_t n) {
    qr_alloc_stats stats;
    (void)trainer;
    qr_alloc_get_stats(&stats);
    n_allocations_before = stats.n_allocations;
    qr_alloc_fail_at(n);
}

/* ---- At any point ------------------------------------------------------------------------------------------------ */

/* Once, which a new plan answers. */
static void fail_every_call(int64_t stride) {
    const qrun_train_params params = small_params(trainer_path("calls"));
    int64_t n_replanned = 0;
    for (int64_t n = 1;; n += stride) {
        temporary_remove_tree(params.saving.out);
        const disturbed_run r = run(&params, disturb_calls, n);
        CHECK_MSG(r.status == QRUN_OK, "call %lld: %s", (long long)n, r.error.message);
        check_outcome(&r, &params, "call", n);
        if (r.status != QRUN_OK) { return; }
        if (r.info.n_replans == 0) {
            CHECK(n > r.n_calls && n_replanned >= (CHECK_SANITIZED ? 1 : 5));
            return;
        }
        CHECK_INT(r.info.n_replans, 1);
        CHECK(strstr(r.replanned, "continues after step") != NULL);
        n_replanned++;
    }
}

/* Of the calls and allocations that may fail: each so many-th does. */
static int64_t every_allocation(void) { return CHECK_SANITIZED ? 11 : check_thins() ? 5 : 2; }
static int64_t every_call(void) { return CHECK_SANITIZED ? 71 : check_thins() ? 19 : 11; }

static void test_any_call_fails_once(void) {
    begin(false);
    fail_every_call(every_call());
    end();
}

static void test_any_call_fails_once_of_full_training(void) {
    begin(true);
    fail_every_call(13 * every_call());
    end();
}

/* Gradients, F32 values and the optimiser's states are in host memory, and the update is the processor's. */
static void test_any_call_fails_once_with_offloaded_gradients(void) {
    offloads_gradients = true;
    begin(true);
    fail_every_call(13 * every_call());
    end();
    offloads_gradients = false;
}

static void test_any_allocation_fails_once(void) {
    begin(false);
    const qrun_train_params params = small_params(trainer_path("heap"));
    for (int64_t n = 1;; n += every_allocation()) {
        qr_alloc_stats before, after;
        temporary_remove_tree(params.saving.out);
        qr_alloc_get_stats(&before);
        const disturbed_run r = run(&params, disturb_heap, n);
        qr_alloc_get_stats(&after);
        CHECK_MSG(r.status == QRUN_OK, "allocation %lld: %s", (long long)n, r.error.message);
        CHECK_MSG(before.bytes_held == after.bytes_held, "allocation %lld: memory was lost", (long long)n);
        check_outcome(&r, &params, "allocation", n);
        if (r.status != QRUN_OK) { break; }
        if (after.n_allocations - n_allocations_before < n) { break; }
    }
    end();
}

/* From some call on all of them fail: each new plan is smaller, until there is none. */
static void test_calls_that_go_on_failing_end_the_run(void) {
    begin(false);
    const qrun_train_params params = small_params(trainer_path("failing"));
    const int64_t n_calls = run(&params, disturb_calls, INT64_MAX).n_calls;
    for (int64_t n = 1; n <= n_calls; n += n_calls / 12) {
        temporary_remove_tree(params.saving.out);
        const disturbed_run r = run(&params, disturb_from, n);
        CHECK_INT(r.status, QRUN_ERROR_MEMORY);
        CHECK_MSG(strstr(r.error.message, "can be had") != NULL, "message is \"%s\"", r.error.message);
        check_outcome(&r, &params, "from call", n);
    }
    end();
}

static void disturb_twice_and_more(const qrun_trainer *trainer, int64_t n) {
    (void)trainer;
    failing_device_fail(100, n);
}

static qrun_train_params larger_params(const char *out) {
    qrun_train_params params = small_params(out);
    params.batches.batch_size = 8;
    params.lora.rank = 16, params.lora.target_modules = "all";
    return params;
}

/* A few calls in a row: the plan gets smaller until they end, down to tiles, and the bits stay. */
static void test_each_plan_is_smaller(void) {
    enum { MOST_FAILURES = 12 };
    begin(false);
    snprintf(undisturbed, sizeof undisturbed, "%s", trainer_path("larger"));
    const qrun_train_params whole = larger_params(undisturbed), params = larger_params(trainer_path("smaller"));
    int64_t planned_bytes = run(&whole, NULL, 0).info.planned_bytes;
    bool has_tiles = false;
    for (int64_t n = 2; n < MOST_FAILURES; n++) {
        temporary_remove_tree(params.saving.out);
        const disturbed_run r = run(&params, disturb_twice_and_more, n);
        check_outcome(&r, &params, "failures", n);
        if (r.status != QRUN_OK) { break; }
        CHECK_MSG(r.info.planned_bytes < planned_bytes, "%lld failures: %s", (long long)n, r.replanned);
        planned_bytes = r.info.planned_bytes;
        has_tiles = has_tiles || strstr(r.checkpointing, "tiles of") != NULL;
    }
    CHECK(has_tiles);
    end();
}

/* ---- An interrupted update --------------------------------------------------------------------------------------- */

/* What a failed update leaves is of no step: it is neither saved nor exported. */
static void test_half_an_update_is_not_used(void) {
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT, again = QRUN_ERROR_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    bool done;
    begin(false);
    qrun_train_params params = small_params(trainer_path("half"));
    params.saving.save_every = 0;
    REQUIRE((trainer = trainer_create(model, &params)) != NULL);
    trainer_run_steps(trainer, 1, NULL);
    CHECK(qrun_trainer_save(trainer, NULL) == QRUN_OK);
    trainer_run_steps(trainer, 1, NULL); /* the second: metrics are of this call */
    failing_device_fail_op(QR_OP_adamw, 2, 1);
    CHECK_INT(qrun_trainer_step(trainer, &metrics, &done, &error), QRUN_ERROR_MEMORY);
    CHECK_INT(qrun_trainer_step(trainer, &metrics, &done, &again), QRUN_ERROR_MEMORY);
    CHECK_STR(again.message, error.message);
    CHECK_INT(qrun_trainer_save(trainer, NULL), QRUN_ERROR_MEMORY);
    CHECK_INT(qrun_trainer_export(trainer, NULL), QRUN_ERROR_MEMORY);
    CHECK_MSG(qrun_trainer_replan(trainer, &error) == QRUN_OK, "%s", error.message);
    CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
    CHECK_INT(info.first_step, 2); /* after the checkpoint */
    CHECK(qrun_trainer_run(trainer, NULL) == QRUN_OK);
    CHECK(is_undisturbed(params.saving.out));
    qrun_trainer_destroy(trainer);
    end();
}

/* Where nothing was saved, and the folder has the checkpoints of a run that is not to be resumed. */
static void test_a_run_without_a_checkpoint_begins_again(void) {
    for (int full = 0; full < 2; full++) {
        begin(full != 0);
        qrun_train_params params = small_params(trainer_path("again"));
        temporary_remove_tree(params.saving.out);
        CHECK(run(&params, NULL, 0).status == QRUN_OK);
        if (is_full) { open_model(); }
        params.saving.restart = true;
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        trainer_run_steps(trainer, 1, NULL);
        failing_device_fail_op(QR_OP_adamw, 3, 1);
        qrun_train_info info = QRUN_TRAIN_INFO_INIT;
        CHECK(qrun_trainer_run(trainer, NULL) == QRUN_OK);
        CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
        CHECK_INT(info.first_step, 1);
        CHECK(is_undisturbed(params.saving.out));
        qrun_trainer_destroy(trainer);
        if (is_full) { close_model(); }
        end();
    }
}

/* ---- A device that has less -------------------------------------------------------------------------------------- */

static int64_t shrunk_bytes;

static void disturb_size(const qrun_trainer *trainer, int64_t n) {
    (void)trainer;
    failing_device_shrink(n, shrunk_bytes);
}

/* Another process takes more and more of the device: layers are recomputed, what can be goes to host memory, and in the
 * end the run stops. All that is planned anew fits, and the bits are the same. */
static void test_a_device_that_shrinks(void) {
    enum { N_SIZES = 14, N_PARTS = 24 }; /* down to 11 of 24 parts of what the run takes beside the weights */
    const int64_t most = INT64_C(1) << 30;
    bool recomputed = false, offloaded = false, moved = false, stopped = false;
    begin(false);
    snprintf(undisturbed, sizeof undisturbed, "%s", trainer_path("roomy"));
    const qrun_train_params whole = larger_params(undisturbed), params = larger_params(trainer_path("shrinks"));
    failing_device_set_memory(most);
    const disturbed_run r0 = run(&whole, disturb_calls, INT64_MAX);
    CHECK_MSG(r0.status == QRUN_OK, "%s", r0.error.message);
    const int64_t held = (int64_t)model->weight_bytes;
    for (int i = 0; i < N_SIZES; i++) {
        temporary_remove_tree(params.saving.out);
        failing_device_set_memory(most);
        /* Nine tenths of what is free without the run is what a plan may take. */
        shrunk_bytes = held + (r0.info.planned_bytes - held) * (N_PARTS - i) / N_PARTS;
        const disturbed_run r = run(&params, disturb_size, r0.n_calls * (i + 1) / (N_SIZES + 1));
        if (r.status == QRUN_OK) {
            CHECK_INT(r.info.n_replans, 1);
            CHECK_MSG(r.info.planned_bytes <= shrunk_bytes, "%lld bytes of %lld", (long long)r.info.planned_bytes,
                      (long long)shrunk_bytes);
            recomputed = recomputed || strcmp(r.checkpointing, r0.checkpointing) != 0;
            offloaded = offloaded || strstr(r.replanned, "in host memory: activations") != NULL;
            moved = moved || strstr(r.replanned, "optimizer states") != NULL;
        } else {
            CHECK_MSG(strstr(r.error.message, "what is left needs") != NULL, "message is \"%s\"", r.error.message);
            stopped = true;
        }
        check_outcome(&r, &params, "size", shrunk_bytes);
    }
    CHECK(recomputed && offloaded && moved && stopped);
    failing_device_set_memory(0);
    end();
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    if (!trainer_run_begin(12)) { return 1; }
    CHECK_RUN(test_any_call_fails_once);
    CHECK_RUN(test_any_call_fails_once_of_full_training);
    CHECK_RUN(test_any_call_fails_once_with_offloaded_gradients);
    CHECK_RUN(test_any_allocation_fails_once);
    CHECK_RUN(test_calls_that_go_on_failing_end_the_run);
    CHECK_RUN(test_each_plan_is_smaller);
    CHECK_RUN(test_half_an_update_is_not_used);
    CHECK_RUN(test_a_run_without_a_checkpoint_begins_again);
    CHECK_RUN(test_a_device_that_shrinks);
    trainer_run_end();
    return check_end();
}
