/* Runs over several files: together as if they were one, in shares, and resumed with the same files only. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "trainer_run.h"

/* Lines first … last − 1 of a set that is the same in every file. */
static void write_lines(const char *name, int first, int last) {
    FILE *file = fopen(trainer_path(name), "w");
    REQUIRE(file != NULL);
    for (int i = first; i < last; i++) {
        fprintf(file, "{\"prompt\": \"The number %d says:\", \"completion\": \" it counts to %d\"}\n", i, i * i);
    }
    CHECK(fclose(file) == 0);
}

static void write_files(void) {
    write_lines("a", 0, 12);
    write_lines("b", 12, 16);
    write_lines("ab", 0, 16);
}

/* On a and b. */
static qrun_train_params two_files(const char *out) {
    static const char *files[2];
    files[0] = trainer_path("a");
    files[1] = trainer_path("b");
    qrun_train_params params = trainer_params(out);
    params.data.train_data = files;
    params.data.n_train_data = 2;
    params.batches.batch_size = 1;
    params.batches.grad_accum = 1;
    return params;
}

static void run(const qrun_train_params *params, int64_t last, bool saves) {
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer = trainer_create(model, params);
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(trainer != NULL);
    trainer_run_steps(trainer, last, NULL);
    if (saves) { CHECK_MSG(qrun_trainer_save(trainer, &error) == QRUN_OK, "%s", error.message); }
    CHECK_MSG(qrun_trainer_export(trainer, &error) == QRUN_OK, "%s", error.message);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* Without weights, two files are the one file that has their lines: the same bits. */
static void test_two_files_are_one(void) {
    qrun_train_params params = two_files(trainer_path("two"));
    run(&params, 12, false);
    params = two_files(trainer_path("one"));
    params.data.train_data = trainer_paths("ab");
    params.data.n_train_data = 1;
    run(&params, 12, false);
    CHECK(trainer_adapters_are_equal(trainer_path("two"), trainer_path("one")));
}

static void test_files_are_described(void) {
    qrun_model *model = trainer_open_model();
    qrun_train_params params = two_files(trainer_path("described"));
    params.data.data_weights = (const double[]){1, 1};
    params.data.n_data_weights = 2;
    params.batches.max_steps = 0;
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    REQUIRE(trainer != NULL);
    CHECK(qrun_trainer_get_info(trainer, &info, NULL) == QRUN_OK);
    CHECK_INT(info.n_files, 2);
    CHECK_INT(info.n_examples, 16);
    CHECK_STR(info.files[0].path, trainer_path("a"));
    CHECK_STR(info.files[1].path, trainer_path("b"));
    CHECK_INT(info.files[0].n_examples, 12);
    CHECK_INT(info.files[1].n_examples, 4);
    CHECK_INT(info.files[0].n_epoch_examples, 12);
    CHECK_INT(info.files[1].n_epoch_examples, 12);
    CHECK_STR(info.files[1].data_format, "prompt/completion");
    CHECK_STR(info.files[1].unknown_members, "");
    CHECK(info.n_tokens > 24 * 10 && info.n_target_tokens > 0 && info.n_target_tokens < info.n_tokens);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

/* Several epochs, stopped within one: as if it had never stopped. Other files, another order and other weights are
 * another run. */
static void test_resumed_with_shares(void) {
    static const double weights[] = {2, 1}, others[] = {1, 1};
    qrun_train_params params = two_files(trainer_path("whole"));
    params.data.data_weights = weights;
    params.data.n_data_weights = 2;
    params.batches.max_steps = 20;
    run(&params, 20, false);
    qrun_train_params stopped = params;
    stopped.saving.out = trainer_path("stopped");
    run(&stopped, 11, true);
    qrun_train_params wrong = stopped;
    wrong.data.data_weights = others;
    trainer_expect_refusal(&wrong, QRUN_ERROR_INPUT, "data weights is 12:12 here and 12:6 there");
    wrong = stopped;
    wrong.data.n_data_weights = 0;
    trainer_expect_refusal(&wrong, QRUN_ERROR_INPUT, "`restart`");
    wrong = stopped;
    wrong.data.train_data = (const char *const[]){stopped.data.train_data[1], stopped.data.train_data[0]};
    trainer_expect_refusal(&wrong, QRUN_ERROR_INPUT, "`restart`");
    wrong = stopped;
    wrong.data.n_train_data = wrong.data.n_data_weights = 1;
    trainer_expect_refusal(&wrong, QRUN_ERROR_INPUT, "`restart`");
    run(&stopped, 20, false);
    CHECK(trainer_adapters_are_equal(trainer_path("whole"), trainer_path("stopped")));
}

/* Other examples to evaluate on are another run where the best evaluation decides about the result, and only there. */
static void test_resumed_with_other_evaluation_data(void) {
    for (int best = 0; best < 2; best++) {
        qrun_train_params params = two_files(trainer_path(best == 1 ? "best" : "last"));
        params.data.eval_data = trainer_paths("a");
        params.data.n_eval_data = 1;
        params.evaluation.load_best = best == 1;
        run(&params, 2, true);
        params.data.eval_data = trainer_paths("b");
        if (best == 1) {
            trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "the data to evaluate on differ");
        } else {
            run(&params, 3, false);
        }
    }
}

static double evaluate(const qrun_train_params *params) {
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer = trainer_create(model, params);
    double loss = -1;
    if (trainer != NULL) { CHECK(qrun_trainer_evaluate(trainer, &loss, NULL) == QRUN_OK); }
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    return loss;
}

static void test_evaluation_on_two_files(void) {
    qrun_train_params params = two_files(trainer_path("evaluated"));
    params.data.eval_data = params.data.train_data;
    params.data.n_eval_data = 2;
    const double two = evaluate(&params);
    params.data.eval_data = trainer_paths("ab");
    params.data.n_eval_data = 1;
    CHECK(two > 0 && evaluate(&params) == two);
}

static void test_refused(void) {
    static const double good[] = {1, 1, 1}, none[] = {1, 0}, not_finite[] = {1, INFINITY};
    qrun_train_params params = two_files(trainer_path("none"));
    params.data.data_weights = good;
    params.data.n_data_weights = 3;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`data_weights` needs one weight for each file");
    params.data.n_data_weights = 2;
    params.data.data_weights = none;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`data_weights`: 0 is not a weight");
    params.data.data_weights = not_finite;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`data_weights`: inf is not a weight");
    params = two_files(trainer_path("none"));
    params.data.train_data = (const char *const[]){trainer_path("a"), NULL};
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "has no path");
    params.data.n_train_data = -1;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`n_train_data`");
    params = two_files(trainer_path("none"));
    params.data.n_train_data = 0;
    trainer_expect_refusal(&params, QRUN_ERROR_ARGUMENT, "`train_data`");
    /* A bad line is named with its file. */
    write_lines("bad", 0, 2);
    FILE *file = fopen(trainer_path("bad"), "a");
    REQUIRE(file != NULL);
    fputs("{\"prompt\": \"a\", \"completion\": null}\n", file);
    CHECK(fclose(file) == 0);
    params = two_files(trainer_path("none"));
    params.data.train_data = (const char *const[]){trainer_path("a"), trainer_path("bad")};
    trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "bad:3: \"completion\" should be a text, not null");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (!trainer_run_begin(8)) { return 1; }
    write_files();
    CHECK_RUN(test_two_files_are_one);
    CHECK_RUN(test_files_are_described);
    CHECK_RUN(test_resumed_with_shares);
    CHECK_RUN(test_resumed_with_other_evaluation_data);
    CHECK_RUN(test_evaluation_on_two_files);
    CHECK_RUN(test_refused);
    trainer_run_end();
    return check_end();
}
