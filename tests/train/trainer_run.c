#include "trainer_run.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "check_open.h"
#include "runtime/train/trainer.h"

qrun_context *trainer_context;
static char folder[64];

char *trainer_path(const char *name) {
    static char paths[64][512];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

const char *const *trainer_paths(const char *name) {
    static const char *lists[64];
    static int next;
    const char **list = &lists[next++ % 64];
    *list = trainer_path(name);
    return list;
}

static bool write_data(const char *path, int n) {
    static const char *const animals[] = {"fox", "owl", "hare", "mole", "newt"};
    static const char *const sounds[] = {"yips", "hoots", "thumps", "digs", "hums"};
    FILE *file = fopen(path, "w");
    if (file == NULL) { return false; }
    for (int i = 0; i < n; i++) {
        fprintf(file, "{\"prompt\": \"The %s number %d says: \", \"completion\": \"it %s all day\"}\n", animals[i % 5],
                i, sounds[i % 5]);
    }
    return fclose(file) == 0;
}

bool trainer_run_begin(int n_examples) {
    /* In memory where there is room: checkpoints are synced, and a disk is slow at that. */
    struct statvfs room;
    const bool in_memory = access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &room) == 0 &&
                           (uint64_t)room.f_bavail * room.f_frsize >= UINT64_C(1) << 30;
    snprintf(folder, sizeof folder, "%s/qrun-test-XXXXXX", in_memory ? "/dev/shm" : "/tmp");
    return mkdtemp(folder) != NULL && qrun_context_create(NULL, &trainer_context, NULL) == QRUN_OK &&
           write_data(trainer_path("data.jsonl"), n_examples);
}

void trainer_run_end(void) {
    char command[600];
    qrun_context_destroy(trainer_context);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) { printf("%s was not removed\n", folder); }
}

qrun_model *trainer_open_model(void) { return trainer_open_model_in(QRUN_DTYPE_BF16); }

qrun_model *trainer_open_model_in(qrun_dtype dtype) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = QRUN_SOURCE_DIR "/examples/model";
    params.dtype = dtype;
    return check_open_model(trainer_context, &params);
}

qrun_train_params trainer_params(const char *out) {
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    params.data.train_data = trainer_paths("data.jsonl");
    params.data.n_train_data = 1;
    params.data.cache_folder = trainer_path("tokens");
    params.saving.out = out;
    params.lora.rank = 4;
    params.optimization.learning_rate = 5e-3;
    params.batches.seq_len = 64;
    params.batches.batch_size = 2;
    params.batches.grad_accum = 2;
    params.batches.max_steps = 12;
    params.optimization.warmup = 2;
    params.batches.seed = 7;
    return params;
}

qrun_trainer *trainer_create(qrun_model *model, const qrun_train_params *params) {
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(model != NULL && qrun_trainer_create(model, params, &trainer, &error) == QRUN_OK, "%s", error.message);
    return trainer;
}

void trainer_run_steps(qrun_trainer *trainer, int64_t last, double *losses) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    for (bool done = false; !done && metrics.step < last;) {
        const qrun_status status = qrun_trainer_step(trainer, &metrics, &done, &error);
        CHECK_MSG(status == QRUN_OK, "%s", error.message);
        if (status != QRUN_OK) { return; }
        CHECK(!metrics.skipped && metrics.n_target_tokens > 0);
        if (losses != NULL) { losses[metrics.step - 1] = metrics.loss; }
    }
}

void trainer_expect_refusal(const qrun_train_params *params, qrun_status status, const char *why) {
    qrun_model *model = trainer_open_model();
    qrun_trainer *trainer = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    REQUIRE(model != NULL);
    const qrun_status got = qrun_trainer_create(model, params, &trainer, &error);
    CHECK_MSG(got == status && strstr(error.message, why) != NULL, "%s: %s", qrun_status_name(got), error.message);
    CHECK(trainer == NULL);
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
}

float *trainer_gradients(const qrun_trainer *trainer) {
    const qr_gradient_sum *sum = trainer->gradient_sum;
    return qr_gradient_sum_stays(sum) ? (float *)qr_gradient_sum_own(sum) : trainer->parameters.gradients;
}

static char *read_file(const char *path, size_t *n_bytes) {
    char *bytes = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_file_read(path, 1 << 26, &bytes, n_bytes, &err) == QRUN_OK, "%s", err.message);
    return bytes;
}

bool trainer_files_are_equal(const char *a, const char *b) {
    size_t n_a = 0, n_b = 0;
    char *of_a = read_file(a, &n_a), *of_b = read_file(b, &n_b);
    const bool equal = of_a != NULL && of_b != NULL && n_a == n_b && memcmp(of_a, of_b, n_a) == 0;
    qr_free(of_a);
    qr_free(of_b);
    return equal;
}

bool trainer_adapters_are_equal(const char *a, const char *b) {
    char of_a[600], of_b[600];
    snprintf(of_a, sizeof of_a, "%s/adapter_model.safetensors", a);
    snprintf(of_b, sizeof of_b, "%s/adapter_model.safetensors", b);
    return trainer_files_are_equal(of_a, of_b);
}
