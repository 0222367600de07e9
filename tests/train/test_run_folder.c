/* The folder of a run: of two runs that begin in it together one has it, and the other is refused and changes nothing.
 */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "trainer_run.h"

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

enum { STOP = -1 };

typedef struct outcome {
    qrun_status created, finished;
    bool names_folder;
} outcome;

typedef struct runner {
    pid_t pid;
    int orders, reports; /* the parent's ends */
} runner;

static bool receive(int descriptor, void *bytes, size_t n_bytes) {
    return read(descriptor, bytes, n_bytes) == (ssize_t)n_bytes;
}

static void send(int descriptor, const void *bytes, size_t n_bytes) {
    if (write(descriptor, bytes, n_bytes) != (ssize_t)n_bytes) { _exit(2); }
}

/* One order begins a run, the next ends it: by then both have tried, so the winner holds the folder all the while. */
static void run_pairs(int orders, int reports) {
    qrun_context *context = NULL;
    qrun_context_params context_params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_model *model = NULL;
    char name[32];
    context_params.n_threads = 1;
    model_params.path = QRUN_SOURCE_DIR "/examples/model";
    if (qrun_context_create(&context_params, &context, NULL) != QRUN_OK ||
        qrun_model_open(context, &model_params, &model, NULL) != QRUN_OK) {
        _exit(1);
    }
    for (int32_t i; receive(orders, &i, sizeof i) && i != STOP;) {
        qrun_error error = QRUN_ERROR_INIT;
        qrun_trainer *trainer = NULL;
        outcome made = {.finished = QRUN_OK};
        snprintf(name, sizeof name, "pair-%d", (int)i);
        const qrun_train_params params = trainer_params(trainer_path(name));
        made.created = qrun_trainer_create(model, &params, &trainer, &error);
        made.names_folder = strstr(error.message, params.saving.out) != NULL;
        send(reports, &made, sizeof made);
        if (!receive(orders, &i, sizeof i)) { break; }
        if (trainer != NULL) {
            qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
            bool done;
            made.finished = qrun_trainer_step(trainer, &metrics, &done, &error);
            if (made.finished == QRUN_OK) { made.finished = qrun_trainer_save(trainer, &error); }
        }
        qrun_trainer_destroy(trainer);
        send(reports, &made, sizeof made);
    }
    _exit(0);
}

static runner start_runner(void) {
    int orders[2], reports[2];
    runner r = {.pid = -1};
    if (pipe(orders) != 0 || pipe(reports) != 0) { return r; }
    fflush(stdout);
    r = (runner){fork(), orders[1], reports[0]};
    if (r.pid == 0) {
        close(orders[1]);
        close(reports[0]);
        run_pairs(orders[0], reports[1]);
    }
    close(orders[0]);
    close(reports[1]);
    return r;
}

static bool ask_both(const runner runners[2], int32_t i, outcome outcomes[2]) {
    for (int k = 0; k < 2; k++) { send(runners[k].orders, &i, sizeof i); }
    return receive(runners[0].reports, &outcomes[0], sizeof outcomes[0]) &&
           receive(runners[1].reports, &outcomes[1], sizeof outcomes[1]);
}

static void check_pair(int32_t i, const outcome created[2], const outcome finished[2]) {
    const int winner = created[0].created == QRUN_OK ? 0 : 1;
    char name[64];
    CHECK_MSG(created[winner].created == QRUN_OK && created[!winner].created == QRUN_ERROR_BUSY,
              "pair %d: statuses %d and %d", (int)i, (int)created[0].created, (int)created[1].created);
    CHECK_MSG(created[!winner].names_folder, "pair %d: the refusal does not name the folder", (int)i);
    CHECK_MSG(finished[winner].finished == QRUN_OK, "pair %d: the winner ends with status %d", (int)i,
              (int)finished[winner].finished);
    snprintf(name, sizeof name, "pair-%d/checkpoint-1/state.json", (int)i);
    CHECK_MSG(qr_file_exists(trainer_path(name)), "pair %d: there is no checkpoint", (int)i);
}

/* Each child has a context of its own. They begin where this process has no threads: one that holds the allocator's
 * lock at a fork would hold it in the child for ever. */
static runner runners[2];

static bool start_runners(void) {
    qrun_context_destroy(trainer_context);
    for (int k = 0; k < 2; k++) { runners[k] = start_runner(); }
    return qrun_context_create(NULL, &trainer_context, NULL) == QRUN_OK;
}

static void test_of_two_runs_one_has_the_folder(void) {
    REQUIRE(runners[0].pid > 0 && runners[1].pid > 0);
    bool alive = true;
    for (int32_t i = 0; i < check_repeats(60, 6) && alive; i++) {
        outcome created[2], finished[2];
        alive = ask_both(runners, i, created) && ask_both(runners, i, finished);
        if (alive) { check_pair(i, created, finished); }
    }
    CHECK(alive);
    for (int k = 0; k < 2; k++) {
        const int32_t stop = STOP;
        send(runners[k].orders, &stop, sizeof stop);
        close(runners[k].orders);
        (void)waitpid(runners[k].pid, NULL, 0);
        close(runners[k].reports);
    }
}

/* ---- One at a time ----------------------------------------------------------------------------------------------- */

/* A run that is refused takes nothing away from the one that has the folder, not even one that has written nothing. */
static void test_a_refused_run_removes_nothing(void) {
    qrun_model *model = trainer_open_model(), *other = trainer_open_model();
    const qrun_train_params params = trainer_params(trainer_path("held"));
    qrun_trainer *trainer = trainer_create(model, &params), *refused = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(trainer != NULL && other != NULL);
    CHECK_INT(qrun_trainer_create(other, &params, &refused, &error), QRUN_ERROR_BUSY);
    CHECK_MSG(strstr(error.message, params.saving.out) != NULL, "%s", error.message);
    CHECK(qr_file_is_folder(params.saving.out));
    trainer_run_steps(trainer, 1, NULL);
    CHECK(qrun_trainer_save(trainer, NULL) == QRUN_OK);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(other);
    qrun_model_destroy(model);
}

/* One that cannot begin leaves no folder that it made, and each that was there. */
static void test_a_run_that_cannot_begin_leaves_nothing(void) {
    qrun_train_params params = trainer_params(trainer_path("never"));
    params.data.cache_folder = NULL;
    params.data.train_data = trainer_paths("no-such-file.jsonl");
    trainer_expect_refusal(&params, QRUN_ERROR_NOT_FOUND, "no-such-file");
    CHECK(!qr_file_exists(params.saving.out));
    CHECK(qr_folder_create(params.saving.out, NULL) == QRUN_OK);
    trainer_expect_refusal(&params, QRUN_ERROR_NOT_FOUND, "no-such-file");
    CHECK(qr_file_is_folder(params.saving.out));
}

/* ---- Folders of others ------------------------------------------------------------------------------------------- */

static void write_text(const char *path, const char *text) {
    qr_error err = {0};
    CHECK_MSG(qr_file_write(path, text, strlen(text), &err) == QRUN_OK, "%s", err.message);
}

/* What other trainers and people leave beside a run. */
static const char *const foreign_files[] = {
    "checkpoint-500/optimizer.pt", "checkpoint-500/run.json", "checkpoint-500/trainer_state.json",
    "notes.partial-2024/text",     "model.partial-17",        "runs/events.out",
};

static void make_foreign(const char *out) {
    char path[600];
    for (size_t i = 0; i < sizeof foreign_files / sizeof foreign_files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", out, foreign_files[i]);
        *strrchr(path, '/') = '\0';
        CHECK(qr_folder_create(path, NULL) == QRUN_OK);
        snprintf(path, sizeof path, "%s/%s", out, foreign_files[i]);
        write_text(path, "{\"name\": \"somebody's\", \"step\": 500}");
    }
}

static void check_foreign(const char *out, const char *when) {
    char path[600];
    for (size_t i = 0; i < sizeof foreign_files / sizeof foreign_files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", out, foreign_files[i]);
        CHECK_MSG(qr_file_exists(path), "%s is gone %s", foreign_files[i], when);
    }
}

static bool has_step(const char *out, int step) {
    char path[600];
    snprintf(path, sizeof path, "%s/checkpoint-%d/state.safetensors", out, step);
    return qr_file_exists(path);
}

/* A run of so many steps that begins again, or resumes. */
static void run_steps(const char *out, int64_t n_steps, bool restart) {
    qrun_model *model = trainer_open_model();
    qrun_train_params params = trainer_params(out);
    params.saving.restart = restart;
    params.saving.keep = 1;
    qrun_trainer *trainer = trainer_create(model, &params);
    qrun_error error = QRUN_ERROR_INIT;
    if (trainer != NULL) {
        trainer_run_steps(trainer, n_steps, NULL);
        CHECK_MSG(qrun_trainer_save(trainer, &error) == QRUN_OK, "%s", error.message);
    }
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

static void test_folders_of_others_stay(void) {
    const char *out = trainer_path("shared");
    make_foreign(out);
    run_steps(out, 2, false);
    check_foreign(out, "after a run");
    run_steps(out, 3, false); /* resumes after step 2, not 500 */
    CHECK(!has_step(out, 2) && has_step(out, 3));
    check_foreign(out, "after a run that resumed");
    run_steps(out, 1, true);
    CHECK(!has_step(out, 3) && has_step(out, 1)); /* its own one is replaced */
    check_foreign(out, "after one that began again");
}

/* Found before the first step, not when it is to be written. */
static void test_a_foreign_checkpoint_in_the_way_is_refused(void) {
    qrun_train_params params = trainer_params(trainer_path("taken"));
    char path[600];
    snprintf(path, sizeof path, "%s/checkpoint-7", params.saving.out);
    CHECK(qr_folder_create(path, NULL) == QRUN_OK);
    snprintf(path, sizeof path, "%s/checkpoint-7/pytorch_model.bin", params.saving.out);
    write_text(path, "weights");
    for (int i = 0; i < 2; i++) {
        params.saving.restart = i == 1;
        trainer_expect_refusal(&params, QRUN_ERROR_INPUT, "checkpoint-7: is in the way");
        CHECK(qr_file_exists(path));
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    if (!trainer_run_begin(60) || !start_runners()) { return 1; }
    CHECK_RUN(test_of_two_runs_one_has_the_folder);
    CHECK_RUN(test_a_refused_run_removes_nothing);
    CHECK_RUN(test_a_run_that_cannot_begin_leaves_nothing);
    CHECK_RUN(test_folders_of_others_stay);
    CHECK_RUN(test_a_foreign_checkpoint_in_the_way_is_refused);
    trainer_run_end();
    return check_end();
}
