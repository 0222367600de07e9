/* A real task: the loss on examples that were set aside falls as it does with PEFT, on the same examples in the same
 * order from the same first factors. Curves of PEFT: tests/fixtures/training/real_task.json, by
 * tests/golden/real_task.py, which gets examples, order and factors from this program:
 *
 *     test_real_task --dump CASE FOLDER */
#include "check.h"

#include <unistd.h>

#include "../runtime/golden_index.h"
#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/sizes.h"
#include "runtime/train/trainer.h"

enum { N_STEPS = 100, EVAL_EVERY = 20, N_EVALUATIONS = N_STEPS / EVAL_EVERY + 1, PATH_BYTES = 600 };

typedef struct task {
    const char *name;
    const char *model, *data, *eval_data; /* in the repository; with `is_shared` in ../shared/data */
    int n_lines, n_eval_lines;            /* of the files; 0: all, and a share of data for evaluation */
    bool is_shared;
    int32_t seq_tokens;
    qrun_quant quant;
} task;

#define STORIES "models/stories260K-hf"
#define GSM8K "datasets/gsm8k/train.jsonl", "datasets/gsm8k/test.jsonl", 320, 40, true, 512
#define PIRATE "examples/model", "examples/finetune/pirate.jsonl", NULL, 0, 0, false, 128

static const task tasks[] = {
    {"pirate-f32", PIRATE, QRUN_QUANT_F32},
    {"pirate-nf4", PIRATE, QRUN_QUANT_NF4},
    {"gsm8k-f32", STORIES, GSM8K, QRUN_QUANT_F32},
    {"gsm8k-nf4", STORIES, GSM8K, QRUN_QUANT_NF4},
};

static qrun_context *context;
static char scratch[] = "/tmp/qrun-task-XXXXXX"; /* a folder of this run's own */

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* NULL when it is not there. */
static const char *find_file(const task *t, const char *name) {
    static char paths[4][PATH_BYTES];
    static int next;
    if (t->is_shared) {
        const char *found = check_shared_data(name);
        if (found == NULL) { return NULL; }
        return snprintf(paths[next % 4], PATH_BYTES, "%s", found) < PATH_BYTES ? paths[next++ % 4] : NULL;
    }
    snprintf(paths[next % 4], PATH_BYTES, QRUN_SOURCE_DIR "/%s", name);
    return paths[next++ % 4];
}

/* The first lines of a file, in a file of the test's own. */
static bool take_lines(const char *path, int n_lines, const char *out) {
    char *text = NULL;
    size_t n_bytes, end = 0;
    if (qr_file_read(path, 1 << 28, &text, &n_bytes, NULL) != QRUN_OK) { return false; }
    for (int n = 0; end < n_bytes && n < n_lines; end++) { n += text[end] == '\n'; }
    const bool written = qr_file_write(out, text, end, NULL) == QRUN_OK;
    qr_free(text);
    return written;
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

typedef struct task_run {
    qrun_model *model;
    qrun_trainer *trainer;
    char data[PATH_BYTES], eval_data[PATH_BYTES], cache[PATH_BYTES];
    const char *files[2]; /* data, eval_data */
} task_run;

static void run_end(task_run *run) {
    qrun_trainer_destroy(run->trainer);
    qrun_model_destroy(run->model);
}

static qrun_train_params run_params(const task *t, const task_run *run, const char *out) {
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.data.train_data = run->files;
    params.data.n_train_data = 1;
    params.data.eval_data = run->files + 1;
    params.data.n_eval_data = t->eval_data != NULL ? 1 : 0;
    params.data.eval_split = t->eval_data != NULL ? 0 : 0.15;
    params.data.cache_folder = run->cache;
    params.saving.out = out;
    params.lora.rank = 8;
    params.lora.alpha = 16;
    params.optimization.schedule = QRUN_SCHEDULE_COSINE;
    params.optimization.learning_rate = 1e-3;
    params.optimization.warmup = 10;
    params.optimization.weight_decay = 0.01;
    params.batches.seq_len = t->seq_tokens;
    params.batches.batch_size = 2;
    params.batches.max_steps = N_STEPS;
    params.batches.seed = 5;
    params.saving.restart = true;
    return params;
}

static bool run_begin(const task *t, const char *out, task_run *run) {
    qrun_error error = QRUN_ERROR_INIT;
    *run = (task_run){.files = {run->data, run->eval_data}};
    snprintf(run->cache, PATH_BYTES, "%s/tokens", scratch);
    snprintf(run->data, PATH_BYTES, t->n_lines > 0 ? "%s/data.jsonl" : "%s",
             t->n_lines > 0 ? scratch : find_file(t, t->data));
    snprintf(run->eval_data, PATH_BYTES, "%s/eval.jsonl", scratch);
    if (t->n_lines > 0) {
        CHECK(take_lines(find_file(t, t->data), t->n_lines, run->data));
        CHECK(take_lines(find_file(t, t->eval_data), t->n_eval_lines, run->eval_data));
    }
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    model_params.path = find_file(t, t->model);
    model_params.quant = t->quant;
    model_params.dtype = QRUN_DTYPE_F32;
    const qrun_train_params params = run_params(t, run, out);
    const bool made = qrun_model_open(context, &model_params, &run->model, &error) == QRUN_OK &&
                      qrun_trainer_create(run->model, &params, &run->trainer, &error) == QRUN_OK;
    CHECK_MSG(made, "%s: %s", t->name, error.message);
    if (!made) { run_end(run); }
    return made;
}

/* ---- Against PEFT ------------------------------------------------------------------------------------------------ */

static const qr_json *find_curve(const qr_json *index, const char *name) {
    for (const qr_json *item = qr_json_first(qr_json_get(index, "tasks")); item != NULL; item = item->next) {
        if (strcmp(text_of(item, "name"), name) == 0) { return item; }
    }
    return NULL;
}

static double number_at(const qr_json *object, const char *key, int place) {
    return cJSON_GetNumberValue(cJSON_GetArrayItem(qr_json_get(object, key), place));
}

static void compare_evaluation(const task *t, const task_run *run, const qr_json *curve, int place, double *last) {
    qrun_error error = QRUN_ERROR_INIT;
    double loss = NAN;
    CHECK_MSG(qrun_trainer_evaluate(run->trainer, &loss, &error) == QRUN_OK, "%s", error.message);
    const double theirs = number_at(curve, "eval_loss", place);
    printf("  %s: step %3d: evaluation loss %.6f, PEFT %.6f, %+.1e\n", t->name, place * EVAL_EVERY, loss, theirs,
           loss / theirs - 1);
    CHECK_MSG(fabs(loss / theirs - 1) <= (place == 0 ? 1e-6 : 1e-4), "%s: step %d: loss %.6f where PEFT has %.6f",
              t->name, place * EVAL_EVERY, loss, theirs);
    CHECK_MSG(place == 0 || loss < *last, "%s: the loss does not fall: %.6f after %.6f", t->name, loss, *last);
    *last = loss;
}

static void check_task(const task *t) {
    qr_json *index = NULL;
    task_run run;
    char out[PATH_BYTES];
    double last = INFINITY;
    snprintf(out, sizeof out, "%s/%s", scratch, t->name);
    if (find_file(t, t->model) == NULL || find_file(t, t->data) == NULL) {
        check_skip("the real model and data are not there");
        return;
    }
    REQUIRE(qr_json_read(FIXTURES "training/real_task.json", 1 << 20, &index, NULL) == QRUN_OK);
    const qr_json *curve = find_curve(index, t->name);
    CHECK_MSG(curve != NULL, "there is no curve of %s", t->name);
    if (curve != NULL && run_begin(t, out, &run)) {
        qrun_error error = QRUN_ERROR_INIT;
        compare_evaluation(t, &run, curve, 0, &last);
        for (int step = 1; step <= N_STEPS && check_state.n_failures_in_case == 0; step++) {
            qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
            bool done;
            CHECK_MSG(qrun_trainer_step(run.trainer, &metrics, &done, &error) == QRUN_OK, "%s", error.message);
            const double theirs = number_at(curve, "loss", step - 1);
            CHECK_MSG(fabs(metrics.loss / theirs - 1) <= (step == 1 ? 1e-6 : 5e-4),
                      "%s: step %d: loss %.6f where PEFT has %.6f", t->name, step, metrics.loss, theirs);
            if (step % EVAL_EVERY == 0) { compare_evaluation(t, &run, curve, step / EVAL_EVERY, &last); }
        }
        run_end(&run);
    }
    qr_json_free(index);
}

static void test_pirate_in_f32(void) { check_task(&tasks[0]); }
static void test_pirate_on_nf4(void) { check_task(&tasks[1]); }
static void test_gsm8k_in_f32(void) { check_task(&tasks[2]); }
static void test_gsm8k_on_nf4(void) { check_task(&tasks[3]); }

/* ---- For the script that makes the curves ------------------------------------------------------------------------ */

static void put_example(qr_buffer *text, const qr_dataset *dataset, int64_t i) {
    const qr_example example = qr_dataset_get(dataset, i);
    qr_buffer_append_text(text, "{\"ids\":[");
    for (int64_t t = 0; t < example.n_tokens; t++) {
        qr_buffer_append_format(text, t > 0 ? ",%d" : "%d", example.ids[t]);
    }
    qr_buffer_append_text(text, "],\"labels\":[");
    for (int64_t t = 0; t < example.n_tokens; t++) {
        qr_buffer_append_format(text, t > 0 ? ",%d" : "%d", example.is_target[t] ? example.ids[t] : -100);
    }
    qr_buffer_append_text(text, "]}");
}

static void put_step_batch(qr_buffer *text, const qr_dataset *dataset, const qr_epoch_batches *batches, int64_t w) {
    const qr_step_batch batch = qr_epoch_batches_step(batches, w);
    const char *separator = "";
    qr_buffer_append_char(text, '[');
    for (int64_t m = 0; m < batch.n_micro_batches; m++) {
        const qr_micro_batch micro = qr_epoch_batches_micro(batches, batch.first + m);
        for (int64_t i = 0; i < micro.n_examples; i++, separator = ",") {
            qr_buffer_append_text(text, separator);
            put_example(text, dataset, micro.examples[i]);
        }
    }
    qr_buffer_append_char(text, ']');
}

/* The examples of every step, in the order of the run. */
static void put_steps(qr_buffer *text, qrun_trainer *trainer) {
    const qr_batch_options options = qr_trainer_batch_options(trainer, true);
    int64_t step = 0;
    for (int64_t epoch = 0; step < N_STEPS; epoch++) {
        qr_epoch_batches *batches = NULL;
        if (qr_epoch_batches_create(&trainer->view, &options, epoch, &batches, NULL) != QRUN_OK) { return; }
        for (int64_t w = 0; w < qr_epoch_batches_count_steps(batches) && step < N_STEPS; w++, step++) {
            qr_buffer_append_text(text, step > 0 ? ",\n" : "\n");
            put_step_batch(text, trainer->dataset, batches, w);
        }
        qr_epoch_batches_destroy(batches);
    }
}

static void put_evaluation(qr_buffer *text, qrun_trainer *trainer) {
    const qr_batch_options options = qr_trainer_batch_options(trainer, false);
    qr_epoch_batches *batches = NULL;
    if (qr_epoch_batches_create(&trainer->eval_view, &options, 0, &batches, NULL) != QRUN_OK) { return; }
    for (int64_t w = 0; w < qr_epoch_batches_count_steps(batches); w++) {
        qr_buffer_append_text(text, w > 0 ? ",\n" : "\n");
        put_step_batch(text, trainer->eval_view.dataset, batches, w);
    }
    qr_epoch_batches_destroy(batches);
}

static int dump(const char *name, const char *folder) {
    const task *t = NULL;
    for (size_t i = 0; i < QR_COUNT_OF(tasks); i++) {
        if (strcmp(tasks[i].name, name) == 0) { t = &tasks[i]; }
    }
    task_run run;
    if (t == NULL || find_file(t, t->model) == NULL || !run_begin(t, folder, &run)) {
        printf("%s cannot be dumped\n", name);
        return 1;
    }
    const qrun_train_params params = run_params(t, &run, folder);
    qr_buffer text = {0};
    qr_buffer_append_text(&text, "{\"model\":");
    qr_buffer_append_json_string(&text, run.model->folder, strlen(run.model->folder));
    qr_buffer_append_format(&text, ",\"quant\":\"%s\",\"learning_rate\":%g,\"warmup\":%g,\"weight_decay\":%g,",
                            t->quant == QRUN_QUANT_NF4 ? "nf4" : "f32", params.optimization.learning_rate,
                            params.optimization.warmup, params.optimization.weight_decay);
    qr_buffer_append_format(&text, "\"max_grad_norm\":1,\"n_steps\":%d,\"eval_every\":%d,\n\"steps\":[", N_STEPS,
                            EVAL_EVERY);
    put_steps(&text, run.trainer);
    qr_buffer_append_text(&text, "],\n\"eval\":[");
    put_evaluation(&text, run.trainer);
    qr_buffer_append_text(&text, "]}\n");
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/task.json", folder);
    qrun_error error = QRUN_ERROR_INIT;
    const bool written = qr_buffer_ok(&text) && qr_file_write(path, text.data, text.size, &error) == QRUN_OK &&
                         qrun_trainer_export(run.trainer, &error) == QRUN_OK; /* the first factors */
    if (!written) { printf("%s\n", error.message); }
    qr_buffer_free(&text);
    run_end(&run);
    return written ? 0 : 1;
}

int main(int argc, char **argv) {
    int code;
    qrun_error error = QRUN_ERROR_INIT;
    if (mkdtemp(scratch) == NULL || qrun_context_create(NULL, &context, &error) != QRUN_OK) {
        printf("cannot begin: %s\n", error.message);
        return 1;
    }
    if (argc == 4 && strcmp(argv[1], "--dump") == 0) {
        code = dump(argv[2], argv[3]);
    } else {
        check_begin(argc, argv);
        CHECK_RUN(test_pirate_in_f32);
        CHECK_RUN(test_pirate_on_nf4);
        CHECK_RUN(test_gsm8k_in_f32);
        CHECK_RUN(test_gsm8k_on_nf4);
        code = check_end();
    }
    qrun_context_destroy(context);
    char command[PATH_BYTES];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch);
    return system(command) == 0 ? code : 1;
}
