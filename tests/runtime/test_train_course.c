/* The course of a training run through the public interface: which examples a step takes, and what happens around the
 * steps. */
#include "check.h"

#include "base/alloc.h"
#include "runtime/trainer.h"
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
    params.data = trainer_path("ragged.jsonl");
    params.batching = batching;
    if (batching == QRUN_BATCHING_GROUP) { params.batch_tokens = 96; }
    return params;
}

/* The gradient of the first step, over every example: on the host, qr_free. */
static float *gradient_of_all(qrun_model *model, qrun_batching batching, int64_t *n, double *loss) {
    qrun_train_params params = ragged_params(trainer_path(batching == QRUN_BATCHING_GROUP ? "group" : "pack"), batching);
    qrun_error error = QRUN_ERROR_INIT;
    params.grad_accum = 1000; /* one step has them all */
    qrun_trainer *trainer = trainer_create(model, &params);
    if (trainer == NULL) { return NULL; }
    trainer_run_steps(trainer, 1, loss);
    qr_backend *backend = model->context->backend;
    *n = trainer->parameters.n_floats;
    float *gradient = qr_alloc_array((size_t)*n, sizeof *gradient);
    CHECK(backend->copy_out(backend, gradient, trainer->parameters.gradients, (size_t)*n * sizeof *gradient,
                            &error) == QRUN_OK);
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
    params.grad_accum = 1;
    params.max_steps = 0;
    params.epochs = 2;
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
        const qr_micro_batch micro = qr_batch_plan_micro_batch(trainer->epoch_plan, at.window);
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
    params.batch_tokens = 8;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "--batch-tokens");
    params = ragged_params(trainer_path("none"), QRUN_BATCHING_PACK);
    params.batch_tokens = 96;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "--batching group");
    params = ragged_params(trainer_path("group"), QRUN_BATCHING_GROUP);
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(trainer != NULL);
    trainer_run_steps(trainer, 1, NULL);
    CHECK(qrun_trainer_save(trainer, &error) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    params.batch_tokens = 97; /* another run */
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "--restart");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(60)) { return 1; }
    write_ragged_data(trainer_path("ragged.jsonl"));
    CHECK_RUN(test_grouped_and_packed_gradients_are_equal);
    CHECK_RUN(test_grouped_batches_keep_to_their_budget);
    CHECK_RUN(test_budgets_that_cannot_be_are_refused);
    trainer_run_end();
    return check_end();
}
