/* The course of a training run through the public interface: which examples a step takes, and what happens around the
 * steps. */
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "runtime/train/trainer.h"
#include "trainer_run.h"

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* Examples of 12 to 40 tokens; a group of like length has few of each. */
static void write_ragged_data(const char *path) {
    static const char *const words[] = {"red", "green", "blue", "small", "large", "old", "round", "warm"};
    FILE *file = fopen(path, "w");
    REQUIRE(file != NULL);
    for (int i = 0; i < 40; i++) {
        fprintf(file, "{\"prompt\": \"Once there was a\", \"completion\": \"");
        for (int k = 0; k < 1 + i * 7 % 11; k++) { fprintf(file, " %s", words[(i + k) % 8]); }
        fprintf(file, " house.\"}\n");
    }
    fclose(file);
}

static qrun_train_params ragged_params(const char *out, qrun_batching batching) {
    qrun_train_params params = trainer_params(out);
    params.data.train_data = trainer_paths("ragged.jsonl");
    params.batches.batching = batching;
    if (batching == QRUN_BATCHING_GROUP) { params.batches.batch_size = 0, params.batches.batch_tokens = 96; }
    return params;
}

/* The gradient of the first step, over every example: on the host, qr_free. */
static float *gradient_of_all(qrun_model *model, qrun_batching batching, int64_t *n, double *loss) {
    qrun_train_params params =
        ragged_params(trainer_path(batching == QRUN_BATCHING_GROUP ? "group" : "pack"), batching);
    qrun_error error = QRUN_ERROR_INIT;
    params.batches.grad_accum = 1000; /* one step has them all */
    qrun_trainer *trainer = trainer_create(model, &params);
    if (trainer == NULL) { return NULL; }
    trainer_run_steps(trainer, 1, loss);
    qr_backend *backend = model->context->backend;
    *n = trainer->parameters.n_floats;
    float *gradient = qr_alloc_array((size_t)*n, sizeof *gradient);
    CHECK(backend->copy_out(backend, gradient, trainer_gradients(trainer), (size_t)*n * sizeof *gradient, &error) ==
          QRUN_OK);
    qrun_trainer_destroy(trainer);
    return gradient;
}

static void test_grouped_and_packed_gradients_are_equal(void) {
    qrun_model *model = trainer_open_model();
    REQUIRE(model != NULL);
    int64_t n_packed = 0, n_grouped = 0;
    double packed_loss, grouped_loss;
    float *packed = gradient_of_all(model, QRUN_BATCHING_PACK, &n_packed, &packed_loss);
    float *grouped = gradient_of_all(model, QRUN_BATCHING_GROUP, &n_grouped, &grouped_loss);
    REQUIRE(packed != NULL && grouped != NULL && n_packed == n_grouped);
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n_packed; i++) {
        const double d = (double)packed[i] - (double)grouped[i];
        difference += d * d;
        norm += (double)packed[i] * (double)packed[i];
    }
    CHECK(norm > 0);
    CHECK_MSG(sqrt(difference / norm) < 1e-6, "the gradients differ by %g", sqrt(difference / norm));
    CHECK_MSG(fabs(packed_loss - grouped_loss) < 1e-7 * packed_loss, "%.9g and %.9g", packed_loss, grouped_loss);
    qr_free(packed);
    qr_free(grouped);
    qrun_model_destroy(model);
}

/* Steps through two epochs; micro-batches are of one step each, so that the metrics show them. */
static void test_grouped_batches_keep_to_their_budget(void) {
    qrun_model *model = trainer_open_model();
    qrun_train_params params = ragged_params(trainer_path("budget"), QRUN_BATCHING_GROUP);
    qrun_error error = QRUN_ERROR_INIT;
    params.batches.grad_accum = 1;
    params.batches.max_steps = 0;
    params.batches.epochs = 2;
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    REQUIRE(trainer != NULL && qrun_trainer_get_info(trainer, &info, &error) == QRUN_OK);
    CHECK_INT(info.n_examples, 40);
    int64_t n_tokens = 0, n_targets = 0, most = 0;
    int seen[2][40] = {{0}};
    for (bool done = false; !done;) {
        const qr_train_cursor at = trainer->state.cursor;
        qrun_train_metrics m = QRUN_TRAIN_METRICS_INIT;
        REQUIRE(qrun_trainer_step(trainer, &m, &done, &error) == QRUN_OK);
        n_tokens += m.n_tokens;
        n_targets += m.n_target_tokens;
        most = m.n_tokens > most ? m.n_tokens : most;
        const qr_micro_batch micro = qr_epoch_batches_micro(trainer->epoch_batches, at.batch);
        int64_t shortest = INT64_MAX, longest = 0;
        for (int64_t i = 0; i < micro.n_examples; i++) {
            const int64_t length = qr_dataset_get(trainer->dataset, micro.examples[i]).n_tokens;
            seen[at.epoch][micro.examples[i]]++;
            shortest = length < shortest ? length : shortest;
            longest = length > longest ? length : longest;
        }
        CHECK_MSG(longest <= 2 * shortest, "lengths from %lld to %lld", (long long)shortest, (long long)longest);
    }
    for (int i = 0; i < 80; i++) { CHECK_INT(seen[i / 40][i % 40], 1); }
    CHECK_INT(n_tokens, 2 * info.n_tokens);
    CHECK_INT(n_targets, 2 * info.n_target_tokens);
    CHECK_MSG(most <= 96 && most > 96 - 64, "a batch of %lld tokens", (long long)most);
    CHECK(qrun_trainer_get_info(trainer, &info, &error) == QRUN_OK);
    size_t held, peak;
    model->context->backend->memory_held(model->context->backend, &held, &peak);
    CHECK_INT(held, info.planned_bytes);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

static void test_budgets_that_cannot_be_are_refused(void) {
    qrun_train_params params = ragged_params(trainer_path("none"), QRUN_BATCHING_GROUP);
    params.batches.batch_tokens = 8;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`batch_tokens`");
    params = ragged_params(trainer_path("none"), QRUN_BATCHING_PACK);
    params.batches.batch_tokens = 96;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`batching=group`");
    params = ragged_params(trainer_path("group"), QRUN_BATCHING_GROUP);
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(trainer != NULL);
    trainer_run_steps(trainer, 1, NULL);
    CHECK(qrun_trainer_save(trainer, &error) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    params.batches.batch_tokens = 97; /* another run */
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "`restart`");
}

/* ---- Evaluation -------------------------------------------------------------------------------------------------- */

/* The other way round from what is trained on: what is learned helps at first (the form), then it hurts. */
static void write_contrary_data(const char *path) {
    FILE *file = fopen(path, "w");
    REQUIRE(file != NULL);
    for (int i = 0; i < 8; i++) {
        fprintf(file, "{\"prompt\": \"The fox number %d says: \", \"completion\": \"it hums all night\"}\n", i);
    }
    fclose(file);
}

static qrun_train_params evaluated_params(const char *out) {
    qrun_train_params params = trainer_params(out);
    params.data.eval_data = trainer_paths("contrary.jsonl");
    params.data.n_eval_data = 1;
    params.evaluation.eval_every = 2;
    params.batches.max_steps = 40;
    params.batches.grad_accum = 1;
    params.optimization.learning_rate = 2e-2;
    params.saving.keep = 1;
    return params;
}

enum { MOST_METRICS = 100 };

/* What on_metrics was told, and after how many calls it cancels (0: never). */
typedef struct heard {
    qrun_trainer *trainer;
    int n, cancel_after;
    qrun_train_metrics metrics[MOST_METRICS];
} heard;

static void hear(void *user, const qrun_train_metrics *metrics) {
    heard *h = user;
    if (h->n < MOST_METRICS) { h->metrics[h->n] = *metrics; }
    h->n++;
    if (h->n == h->cancel_after) { qrun_trainer_cancel(h->trainer); }
}

/* Runs to the end; cancelled after so many steps and evaluations, the run is resumed as a new process would. */
static void run_in_parts(qrun_train_params params, int cancel_after, heard *all, qrun_train_info *info) {
    params.callbacks.on_metrics = hear;
    params.callbacks.metrics_user = all;
    qrun_status status = QRUN_ERROR_CANCELLED;
    for (int part = 0; part < MOST_METRICS && status == QRUN_ERROR_CANCELLED; part++) {
        qrun_model *model = trainer_open_model();
        qrun_error error = QRUN_ERROR_INIT;
        all->trainer = trainer_create(model, &params);
        REQUIRE(all->trainer != NULL);
        all->cancel_after = cancel_after > 0 ? all->n + cancel_after : 0;
        status = qrun_trainer_run(all->trainer, &error);
        CHECK_MSG(status == QRUN_OK || status == QRUN_ERROR_CANCELLED, "%s", error.message);
        *info = (qrun_train_info)QRUN_TRAIN_INFO_INIT;
        CHECK(qrun_trainer_get_info(all->trainer, info, &error) == QRUN_OK);
        info->checkpointing = info->data_format = NULL; /* the trainer's */
        qrun_trainer_destroy(all->trainer);
        qrun_model_destroy(model);
    }
    CHECK_INT(status, QRUN_OK);
}

static void test_early_stopping_ends_with_the_best(void) {
    qrun_train_params params = evaluated_params(trainer_path("early"));
    params.evaluation.early_stopping_patience = 3;
    heard all = {0};
    qrun_train_info info;
    run_in_parts(params, 0, &all, &info);
    CHECK(info.stopped_early && info.n_not_better == 3);
    double best = INFINITY;
    int64_t best_step = 0, last_step = 0;
    for (int i = 0; i < all.n; i++) {
        const qrun_train_metrics *m = &all.metrics[i];
        if (m->is_evaluation) { CHECK_INT(m->step % 2, 0); }
        if (m->is_evaluation && m->loss < best) { best_step = m->step, best = m->loss; }
        last_step = m->step;
    }
    CHECK_INT(info.best_step, best_step);
    CHECK(info.best_loss == best);
    CHECK_MSG(best_step >= 2 && last_step == best_step + 6 && last_step < 40, "best %lld, last %lld",
              (long long)best_step, (long long)last_step);
    /* The adapter is that of the best checkpoint, which is still there; of the others the last is. */
    char checkpoint[600];
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-%lld", params.saving.out, (long long)best_step);
    CHECK(trainer_adapters_are_equal(params.saving.out, checkpoint));
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-%lld", params.saving.out, (long long)last_step);
    CHECK(!trainer_adapters_are_equal(params.saving.out, checkpoint));
    /* Once more: nothing is left to do, and the adapter stays. */
    heard none = {0};
    CHECK(rename(trainer_path("early/adapter_model.safetensors"), trainer_path("kept")) == 0);
    run_in_parts(params, 0, &none, &info);
    CHECK_INT(none.n, 0);
    CHECK(trainer_files_are_equal(trainer_path("early/adapter_model.safetensors"), trainer_path("kept")));
    params.evaluation.early_stopping_patience = 4; /* another run */
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "`restart`");
}

/* The best, what early stopping counts, and an evaluation that was due are all in the checkpoint. */
static void test_evaluations_go_on_after_a_cancel(void) {
    static heard whole, parts;
    whole = parts = (heard){0};
    qrun_train_info info, again;
    qrun_train_params params = evaluated_params(trainer_path("whole-course"));
    params.evaluation.early_stopping_patience = 3;
    params.evaluation.early_stopping_threshold = 1e-3;
    run_in_parts(params, 0, &whole, &info);
    qrun_train_params in_parts = params;
    in_parts.saving.out = trainer_path("course-in-parts");
    run_in_parts(in_parts, 2, &parts, &again); /* after step and evaluation in turn */
    CHECK_INT(parts.n, whole.n);
    for (int i = 0; i < whole.n && i < parts.n; i++) {
        const qrun_train_metrics *a = &whole.metrics[i], *b = &parts.metrics[i];
        CHECK(a->is_evaluation == b->is_evaluation && a->step == b->step && a->loss == b->loss &&
              a->grad_norm == b->grad_norm && a->epoch == b->epoch && a->n_tokens == b->n_tokens);
    }
    CHECK(info.best_step == again.best_step && info.best_loss == again.best_loss &&
          info.n_not_better == again.n_not_better && info.stopped_early && again.stopped_early);
    CHECK(trainer_adapters_are_equal(params.saving.out, in_parts.saving.out));
}

static void test_the_best_checkpoint_is_kept(void) {
    qrun_train_params params = evaluated_params(trainer_path("best"));
    params.saving.save_every = 3;
    params.batches.max_steps = 16;
    heard all = {0};
    qrun_train_info info;
    run_in_parts(params, 0, &all, &info);
    char name[64], best[600];
    snprintf(name, sizeof name, "best/checkpoint-%lld", (long long)info.best_step);
    snprintf(best, sizeof best, "%s", trainer_path(name));
    CHECK(info.best_step < 16 && qr_file_exists(best));
    CHECK(qr_file_exists(trainer_path("best/checkpoint-16")));
    CHECK(!qr_file_exists(trainer_path("best/checkpoint-15")) && !qr_file_exists(trainer_path("best/checkpoint-12")));
    CHECK(!trainer_adapters_are_equal(params.saving.out, best)); /* the last one's, unless load_best asks for it */
    CHECK(rename(best, trainer_path("best/away")) == 0);
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "the checkpoint of the best evaluation");
    params = evaluated_params(trainer_path("none"));
    params.data.n_eval_data = 0;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`eval_data`");
    params = evaluated_params(trainer_path("none"));
    params.evaluation.eval_every = 0;
    params.evaluation.early_stopping_patience = 1;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`eval_every`");
}

static void test_after_load_best_the_run_is_over(void) {
    qrun_model *model = trainer_open_model();
    qrun_train_params params = evaluated_params(trainer_path("over"));
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    double loss;
    bool done;
    REQUIRE(trainer != NULL);
    CHECK_INT(qrun_trainer_next(trainer), QRUN_TRAIN_STEP);
    CHECK(qrun_trainer_load_best(trainer, &error) == QRUN_ERROR_ARGUMENT);
    trainer_run_steps(trainer, 2, NULL);
    CHECK_INT(qrun_trainer_next(trainer), QRUN_TRAIN_EVALUATE);
    CHECK(qrun_trainer_evaluate(trainer, &loss, NULL) == QRUN_OK && qrun_trainer_save(trainer, NULL) == QRUN_OK);
    CHECK_INT(qrun_trainer_next(trainer), QRUN_TRAIN_STEP);
    trainer_run_steps(trainer, 3, NULL);
    CHECK(qrun_trainer_load_best(trainer, NULL) == QRUN_OK);
    CHECK_INT(qrun_trainer_next(trainer), QRUN_TRAIN_DONE);
    CHECK(qrun_trainer_step(trainer, &metrics, &done, NULL) == QRUN_ERROR_ARGUMENT);
    CHECK(qrun_trainer_evaluate(trainer, &loss, NULL) == QRUN_ERROR_ARGUMENT);
    CHECK(qrun_trainer_save(trainer, NULL) == QRUN_ERROR_ARGUMENT);
    CHECK(qrun_trainer_export(trainer, NULL) == QRUN_OK);
    CHECK(trainer_adapters_are_equal(params.saving.out, trainer_path("over/checkpoint-2")));
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* ---- The optimiser's states in host memory ----------------------------------------------------------------------- */

static int64_t planned(const qrun_trainer *trainer, const char *category) {
    int32_t n;
    const qrun_plan_entry *entries = qrun_trainer_plan(trainer, &n);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(entries[i].category, category) == 0) { return entries[i].bytes; }
    }
    return -1;
}

/* The same run with states on the device, in host memory, and changing from one to the other on the way. */
static void test_offload_changes_no_bits(void) {
    static const char *const names[] = {"resident", "offloaded", "changed"};
    qrun_model *model = trainer_open_model();
    for (int kind = QRUN_OPTIMIZER_ADAMW; kind <= QRUN_OPTIMIZER_SGD; kind++) {
        int64_t host[3], optimizer[3];
        char out[3][64];
        for (int way = 0; way < 3; way++) {
            char name[32];
            snprintf(name, sizeof name, "%s%d", names[way], kind);
            snprintf(out[way], sizeof out[way], "%s", trainer_path(name));
            qrun_train_params params = trainer_params(out[way]);
            params.optimization.optimizer = (qrun_optimizer)kind;
            params.batches.max_steps = 6;
            for (int part = way == 2 ? 0 : 1; part < 2; part++) {
                params.memory.offload_optimizer = part == 0 ? false : way > 0;
                qrun_trainer *trainer = trainer_create(model, &params);
                size_t held, peak;
                REQUIRE(trainer != NULL);
                host[way] = planned(trainer, "host");
                optimizer[way] = planned(trainer, "optimizer");
                model->context->backend->memory_held(model->context->backend, &held, &peak);
                qrun_train_info info = QRUN_TRAIN_INFO_INIT;
                CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
                CHECK_INT(held, info.planned_bytes);
                trainer_run_steps(trainer, part == 0 ? 3 : 6, NULL);
                CHECK((part == 0 ? qrun_trainer_save(trainer, NULL) : qrun_trainer_export(trainer, NULL)) == QRUN_OK);
                qrun_trainer_destroy(trainer);
            }
        }
        CHECK(host[1] > host[0]);
        if (kind == QRUN_OPTIMIZER_ADAMW) { CHECK(optimizer[1] < optimizer[0]); }
        CHECK(trainer_adapters_are_equal(out[0], out[1]));
        CHECK(trainer_adapters_are_equal(out[0], out[2]));
    }
    qrun_model_destroy(model);
}

/* The inputs of layers that are computed again, in host memory and on the device: the same adapter, and the plan says
 * what moved. A run may change from one to the other on the way. */
static void test_offloaded_activations_change_no_bits(void) {
    static const struct {
        const char *policy;
        int n_sent; /* of the four layers' inputs */
    } cases[] = {{"full", 2}, {"every:2", 0}, {"every:1", 2}, {"auto", 0}};
    qrun_model *model = trainer_open_model();
    REQUIRE(model != NULL);
    char first[64] = "";
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int64_t host[2], activations[2];
        char out[2][64];
        for (int way = 0; way < 2; way++) {
            char name[32];
            snprintf(name, sizeof name, "activations%zu-%d", c, way);
            snprintf(out[way], sizeof out[way], "%s", trainer_path(name));
            qrun_train_params params = trainer_params(out[way]);
            params.memory.checkpointing = cases[c].policy;
            params.batches.max_steps = 6;
            for (int part = 0; part < 2; part++) {
                params.memory.offload_activations = way == 1 && part == 1;
                qrun_trainer *trainer = trainer_create(model, &params);
                qrun_train_info info = QRUN_TRAIN_INFO_INIT;
                size_t held, peak;
                REQUIRE(trainer != NULL);
                host[way] = planned(trainer, "host");
                activations[way] = planned(trainer, "activations");
                model->context->backend->memory_held(model->context->backend, &held, &peak);
                CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
                CHECK_INT(held, info.planned_bytes);
                trainer_run_steps(trainer, part == 0 ? 3 : 6, NULL);
                CHECK((part == 0 ? qrun_trainer_save(trainer, NULL) : qrun_trainer_export(trainer, NULL)) == QRUN_OK);
                qrun_trainer_destroy(trainer);
            }
        }
        const int64_t input_bytes = 2 * 64 * model->shape.hidden * (int64_t)sizeof(float);
        CHECK_INT(host[1] - host[0], cases[c].n_sent * input_bytes);
        CHECK_INT(activations[0] - activations[1], cases[c].n_sent * input_bytes);
        CHECK(trainer_adapters_are_equal(out[0], out[1]));
        if (c > 0) { CHECK(trainer_adapters_are_equal(out[0], first)); }
        if (c == 0) { snprintf(first, sizeof first, "%s", out[0]); }
    }
    qrun_model_destroy(model);
    qrun_train_params params = trainer_params(trainer_path("none"));
    params.memory.offload_activations = true, params.memory.checkpointing = "attn";
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "is for layers that are computed again");
}

/* ---- Cancelling -------------------------------------------------------------------------------------------------- */

static void *cancel_soon(void *trainer) {
    const struct timespec pause = {0, 3000000};
    nanosleep(&pause, NULL);
    qrun_trainer_cancel(trainer);
    return NULL;
}

/* A step that is cancelled from another thread has not taken place. */
static void test_a_cancelled_step_changes_nothing(void) {
    qrun_model *model = trainer_open_model();
    qrun_error error = QRUN_ERROR_INIT;
    double losses[12], again[12];
    qrun_train_params params = trainer_params(trainer_path("never"));
    params.batches.grad_accum = 15; /* long enough to be cancelled inside */
    for (int part = 0; part < 2; part++) {
        qrun_trainer *trainer = trainer_create(model, &params);
        REQUIRE(trainer != NULL);
        trainer_run_steps(trainer, 3, part == 0 ? losses : again);
        if (part == 1) {
            qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
            bool done;
            qrun_trainer_cancel(trainer); /* ends the next one */
            CHECK(qrun_trainer_step(trainer, &metrics, &done, &error) == QRUN_ERROR_CANCELLED && !done);
            pthread_t thread;
            REQUIRE(pthread_create(&thread, NULL, cancel_soon, trainer) == 0);
            const qrun_status status = qrun_trainer_step(trainer, &metrics, &done, NULL);
            CHECK(pthread_join(thread, NULL) == 0);
            CHECK(status == QRUN_ERROR_CANCELLED || status == QRUN_OK); /* a fast machine may be done before */
            if (status == QRUN_OK) {                                    /* then it is the next one that ends */
                again[3] = metrics.loss;
                CHECK(qrun_trainer_step(trainer, &metrics, &done, NULL) == QRUN_ERROR_CANCELLED);
            }
        }
        trainer_run_steps(trainer, 6, part == 0 ? losses : again);
        qrun_trainer_destroy(trainer);
    }
    CHECK(memcmp(losses, again, 6 * sizeof *losses) == 0);
    qrun_model_destroy(model);
}

typedef struct progress_record {
    int n_calls, end_after;
    int64_t last_done, total;
} progress_record;

static bool note_progress(void *user, int64_t done, int64_t total) {
    progress_record *record = user;
    CHECK(done >= record->last_done && done <= total);
    record->last_done = done;
    record->total = total;
    return ++record->n_calls != record->end_after;
}

/* Data of which it takes some batches to tokenise. */
static void test_reading_the_data_is_cancelled(void) {
    FILE *file = fopen(trainer_path("long.jsonl"), "w");
    REQUIRE(file != NULL);
    for (int i = 0; i < 2000; i++) { fprintf(file, "{\"text\": \"The fox number %d says nothing.\"}\n", i); }
    const long n_bytes = ftell(file);
    fclose(file);
    qrun_train_params params = trainer_params(trainer_path("cancelled"));
    progress_record record = {.end_after = 4};
    params.data.train_data = trainer_paths("long.jsonl");
    params.data.cache_folder = NULL;
    params.callbacks.progress = note_progress;
    params.callbacks.progress_user = &record;
    trainer_expect_refusal(&params, QRUN_ERROR_CANCELLED, "long.jsonl");
    CHECK_INT(record.n_calls, 4);
    CHECK(record.last_done > 0 && record.last_done < n_bytes);
    DIR *folder = opendir(trainer_path("cancelled/tokens"));
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        CHECK_MSG(entry->d_name[0] == '.', "%s is left", entry->d_name);
    }
    if (folder != NULL) { closedir(folder); }
    record = (progress_record){0};
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer = trainer_create(model, &params);
    CHECK_INT(record.last_done, n_bytes);
    CHECK_INT(record.total, n_bytes);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* Progress of an evaluation is in examples, and cancels it. */
static void test_an_evaluation_is_cancelled(void) {
    qrun_model *model = trainer_open_model();
    progress_record record = {0};
    qrun_train_params params = evaluated_params(trainer_path("eval-cancelled"));
    params.batches.batch_size = 1;
    params.callbacks.progress = note_progress;
    params.callbacks.progress_user = &record;
    qrun_trainer *trainer = trainer_create(model, &params);
    double loss, again;
    REQUIRE(trainer != NULL);
    record = (progress_record){.end_after = 2};
    CHECK(qrun_trainer_evaluate(trainer, &loss, NULL) == QRUN_ERROR_CANCELLED);
    CHECK_INT(record.total, 8);
    record = (progress_record){0};
    CHECK(qrun_trainer_evaluate(trainer, &loss, NULL) == QRUN_OK && record.last_done == 8);
    qrun_trainer_cancel(trainer);
    record = (progress_record){0};
    CHECK(qrun_trainer_evaluate(trainer, &again, NULL) == QRUN_ERROR_CANCELLED);
    CHECK_INT(record.n_calls, 0);
    CHECK(qrun_trainer_evaluate(trainer, &again, NULL) == QRUN_OK && loss == again);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(60)) { return 1; }
    write_ragged_data(trainer_path("ragged.jsonl"));
    write_contrary_data(trainer_path("contrary.jsonl"));
    CHECK_RUN(test_grouped_and_packed_gradients_are_equal);
    CHECK_RUN(test_grouped_batches_keep_to_their_budget);
    CHECK_RUN(test_budgets_that_cannot_be_are_refused);
    CHECK_RUN(test_early_stopping_ends_with_the_best);
    CHECK_RUN(test_evaluations_go_on_after_a_cancel);
    CHECK_RUN(test_the_best_checkpoint_is_kept);
    CHECK_RUN(test_after_load_best_the_run_is_over);
    CHECK_RUN(test_offload_changes_no_bits);
    CHECK_RUN(test_offloaded_activations_change_no_bits);
    CHECK_RUN(test_a_cancelled_step_changes_nothing);
    CHECK_RUN(test_reading_the_data_is_cancelled);
    CHECK_RUN(test_an_evaluation_is_cancelled);
    trainer_run_end();
    return check_end();
}
