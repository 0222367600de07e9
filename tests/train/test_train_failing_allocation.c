/* Every allocation on the way from examples to an adapter fails once: a clean error or no harm, and nothing is lost;
 * and so does every block of the backend's memory. */
#define _XOPEN_SOURCE 700
#include "check.h"

#include <ftw.h>

#include "runtime/model/model.h"
#include "temporary.h"
#include "trainer_run.h"

static qrun_model *model;
static qrun_train_params params;
static char saved[512]; /* a folder with a checkpoint */

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *walk) {
    (void)info, (void)flag, (void)walk;
    return remove(path);
}

/* Without the allocator that is told to fail. */
static void remove_tree(const char *path) { (void)nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS); }

/* ---- What is done ------------------------------------------------------------------------------------------------ */

static qrun_status create(void *context, qr_error *err) {
    qrun_trainer *trainer = NULL;
    (void)context;
    const qrun_status status = qrun_trainer_create(model, &params, &trainer, err);
    CHECK((status == QRUN_OK) == (trainer != NULL));
    qrun_trainer_destroy(trainer);
    return status;
}

static qrun_status create_from_data(void *context, qr_error *err) {
    remove_tree(params.data.cache_folder);
    remove_tree(params.saving.out);
    return create(context, err);
}

static qrun_status resume(void *context, qr_error *err) {
    qrun_train_params kept = params;
    params.saving.out = saved;
    const qrun_status status = create(context, err);
    params = kept;
    return status;
}

static qrun_status train(void *context, qr_error *err) {
    qrun_trainer *trainer = NULL;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done = false;
    double loss;
    qrun_status status;
    (void)context;
    remove_tree(params.saving.out);
    QR_TRY(qrun_trainer_create(model, &params, &trainer, err));
    QR_TRY(qrun_trainer_step(trainer, &metrics, &done, err));
    QR_TRY(qrun_trainer_evaluate(trainer, &loss, err));
    QR_TRY(qrun_trainer_save(trainer, err));
    QR_TRY(qrun_trainer_step(trainer, &metrics, &done, err));
    QR_TRY(qrun_trainer_save(trainer, err));
    QR_TRY(qrun_trainer_export(trainer, err));
out:
    qrun_trainer_destroy(trainer);
    return status;
}

static void test_creating_from_data(void) { check_failing_allocations(create_from_data, NULL, true); }
static void test_creating_from_the_cache(void) { check_failing_allocations(create, NULL, true); }
static void test_going_on(void) { check_failing_allocations(resume, NULL, true); }
static void test_training(void) { check_failing_allocations(train, NULL, true); }

/* ---- The backend's memory ---------------------------------------------------------------------------------------- */

static qrun_status (*real_memory_create)(qr_backend *, qr_memory_kind, size_t, void **, qr_error *);
static int64_t n_until_failure, n_created;

static qrun_status failing_memory_create(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                         qr_error *err) {
    *memory = NULL;
    n_created++;
    if (--n_until_failure == 0) { return qr_fail_memory(err, "device memory", n_bytes); }
    return real_memory_create(backend, kind, n_bytes, memory, err);
}

static void test_device_memory(void) {
    qr_backend *backend = trainer_context->backend;
    real_memory_create = backend->memory_create;
    backend->memory_create = failing_memory_create;
    for (int64_t n = 1; n < 1000; n++) {
        size_t before, after, peak;
        qr_alloc_stats held_before, held_after;
        qr_error err = {0};
        backend->memory_held(backend, &before, &peak);
        qr_alloc_get_stats(&held_before);
        n_until_failure = n, n_created = 0;
        const qrun_status status = resume(NULL, &err);
        backend->memory_held(backend, &after, &peak);
        qr_alloc_get_stats(&held_after);
        CHECK_MSG(before == after && held_before.bytes_held == held_after.bytes_held, "block %lld: memory was lost",
                  (long long)n);
        CHECK_INT(status, n_created >= n ? QRUN_ERROR_MEMORY : QRUN_OK);
        if (n_created < n) {
            CHECK(n > 3);
            break;
        }
    }
    backend->memory_create = real_memory_create;
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    if (!trainer_run_begin(10) || (model = trainer_open_model()) == NULL) { return 1; }
    params = trainer_params(trainer_path("out"));
    params.optimization.optimizer = QRUN_OPTIMIZER_ADAMW8BIT;
    params.lora.target_modules = "q_proj,v_proj";
    params.batches.seq_len = 32, params.batches.batch_size = 1, params.batches.grad_accum = 1,
    params.data.eval_split = 0.2, params.saving.keep = 1;
    snprintf(saved, sizeof saved, "%s", trainer_path("saved"));
    const char *out = params.saving.out;
    params.saving.out = saved;
    qr_error err = {0};
    if (train(NULL, &err) != QRUN_OK) { printf("%s\n", err.message); }
    params.saving.out = out;
    CHECK_RUN(test_creating_from_data);
    CHECK_RUN(test_creating_from_the_cache);
    CHECK_RUN(test_going_on);
    CHECK_RUN(test_training);
    CHECK_RUN(test_device_memory);
    qrun_model_destroy(model);
    trainer_run_end();
    return check_end();
}
