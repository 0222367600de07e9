/* A call of the device that fails on one of two ranks, in a step of several batches of each: all ranks end or, where
 * rank 0 has failed and tries again, come to the loss of a step that nothing happened to. None hangs. */
#include "check.h"

#include "base/sizes.h"
#include "failing_device.h"
#include "qrun.h"
#include "rank_processes.h"
#include "runtime/model/model.h"
#include "temporary.h"

enum { N_RANKS = 2, GRAD_ACCUM = 5, N_PLACES = CHECK_SANITIZED ? 3 : 13 };

static temporary_folder folder;
static int64_t n_repeated; /* steps that rank 0 has tried again with success */

typedef struct failing_case {
    int32_t zero, grad_sums, failing_rank; /* −1: none */
    int64_t call;                          /* of the device in a step, that fails */
} failing_case;

typedef struct outcome {
    bool ended; /* the rank's process */
    qrun_status status, first_status;
    int64_t n_calls; /* of the step */
    double loss, grad_norm;
    char message[400];
} outcome;

static qrun_status step(qrun_trainer *trainer, outcome *o, qrun_error *error) {
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    bool done;
    const qrun_status status = qrun_trainer_step(trainer, &metrics, &done, error);
    o->loss = metrics.loss, o->grad_norm = metrics.grad_norm;
    return status;
}

/* Rank 0 tries once more. */
static qrun_status train(qrun_trainer *trainer, const failing_case *c, int32_t rank, outcome *o, qrun_error *error) {
    failing_device_fail(c->call, c->failing_rank == rank ? 1 : 0);
    if (rank > 0) { return qrun_trainer_run(trainer, error); }
    o->first_status = step(trainer, o, error);
    o->n_calls = failing_device_calls();
    failing_device_fail(0, 0);
    return o->first_status == QRUN_OK || c->failing_rank > 0 ? o->first_status : step(trainer, o, error);
}

static qrun_status run_rank(const void *arg, int32_t rank, void *result, qrun_error *error) {
    const failing_case *c = arg;
    outcome *o = result;
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_trainer *trainer = NULL;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    qrun_status status;
    char data[128], out[128];
    snprintf(data, sizeof data, "%s/data.jsonl", folder.path);
    snprintf(out, sizeof out, "%s/out", folder.path);
    context_params.ranks = true, context_params.n_threads = 1, context_params.collective_timeout = 10;
    model_params.path = QRUN_SOURCE_DIR "/examples/model", model_params.shard_parameters = c->zero == 3;
    params.data.train_data = (const char *[]){data}, params.data.n_train_data = 1, params.saving.out = out;
    params.saving.restart = true, params.ranks.zero = c->zero, params.lora.rank = 2;
    params.batches.seq_len = 32, params.batches.max_steps = 2;
    params.batches.grad_accum = GRAD_ACCUM, params.batches.grad_sums = c->grad_sums;
    QR_TRY(qrun_context_create(&context_params, &context, error));
    QR_TRY(qrun_model_open(context, &model_params, &model, error));
    QR_TRY(qrun_trainer_create(model, &params, &trainer, error));
    failing_device_install(model->context->backend);
    status = train(trainer, c, rank, o, error);
    failing_device_fail(0, 0);
    failing_device_remove();
out:
    o->ended = true, o->status = status;
    snprintf(o->message, sizeof o->message, "%.390s", error->message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return QRUN_OK;
}

/* What fails beside an exchange is agreed on, and the step may be tried again; what fails within one ends the run. */
static void check_failure(const failing_case *c, const outcome *undisturbed) {
    outcome of[N_RANKS] = {{.ended = false}};
    rank_processes_run(run_rank, c, N_RANKS, of, sizeof *of);
    const bool failed = of[0].first_status != QRUN_OK || of[1].status != QRUN_OK;
    const bool is_whole = of[0].loss == undisturbed->loss && of[0].grad_norm == undisturbed->grad_norm;
    CHECK_MSG(of[0].ended && of[1].ended, "zero %d, %d sums, call %lld of rank %d: a rank has crashed", (int)c->zero,
              (int)c->grad_sums, (long long)c->call, (int)c->failing_rank);
    CHECK_MSG(of[0].status != QRUN_OK || is_whole, "zero %d, %d sums, call %lld of rank %d: another step", (int)c->zero,
              (int)c->grad_sums, (long long)c->call, (int)c->failing_rank);
    CHECK(failed || c->failing_rank > 0); /* which makes fewer calls than rank 0 */
    CHECK_MSG(of[0].status == QRUN_OK || c->failing_rank == 0 || strstr(of[0].message, "rank 1") != NULL,
              "zero %d, %d sums, call %lld of rank %d: rank 0 says %s, rank 1 %s", (int)c->zero, (int)c->grad_sums,
              (long long)c->call, (int)c->failing_rank, of[0].message, of[1].message);
    n_repeated += c->failing_rank == 0 && of[0].status == QRUN_OK;
}

static void check_failures(int32_t zero, int32_t grad_sums) {
    outcome undisturbed[N_RANKS] = {{.ended = false}};
    const failing_case none = {zero, grad_sums, -1, 0};
    rank_processes_run(run_rank, &none, N_RANKS, undisturbed, sizeof *undisturbed);
    CHECK(undisturbed[0].ended && undisturbed[0].status == QRUN_OK && undisturbed[0].n_calls > 0);
    for (int32_t rank = 0; rank < N_RANKS; rank++) {
        for (int64_t i = 0; i < N_PLACES; i++) {
            const failing_case c = {zero, grad_sums, rank, 1 + undisturbed[0].n_calls * i / N_PLACES};
            check_failure(&c, undisturbed);
        }
    }
}

static void test_a_rank_fails_in_a_step(void) {
    for (int32_t zero = 1; zero <= 3; zero++) {
        check_failures(zero, 0);
        check_failures(zero, 4);
    }
    CHECK_MSG(n_repeated >= 4 * N_PLACES, "%d steps were repeated", (int)n_repeated);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    folder = temporary_create();
    char text[64 * 60] = "";
    size_t n = 0;
    for (int i = 0; i < 60; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "{\"text\": \"line %d: the quick brown fox jumps\"}\n", i);
    }
    temporary_text(&folder, "data.jsonl", text);
    CHECK_RUN(test_a_rank_fails_in_a_step);
    temporary_remove(&folder);
    return check_end();
}
