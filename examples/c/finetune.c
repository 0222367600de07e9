/* Fine-tuning through libqrun: an adapter from examples, the loss of every step as it comes. Ctrl-C ends the step,
 * saves a checkpoint and stops; the same command then continues from there, to the bit.
 *
 *     cc finetune.c $(pkg-config --cflags --libs qrun) -o finetune
 *     ./finetune path/to/model train.jsonl my-adapter 200 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "qrun.h"

static qrun_trainer *trainer; /* for the signal handler */

static void on_signal(int number) {
    (void)number;
    qrun_trainer_cancel(trainer);
}

static void on_metrics(void *user, const qrun_train_metrics *m) {
    (void)user;
    if (m->is_evaluation) {
        printf("step %4lld  evaluation loss %.4f\n", (long long)m->step, m->loss);
    } else {
        printf("step %4lld  loss %.4f  learning rate %.2e  %.0f tokens/s\n", (long long)m->step, m->loss,
               m->learning_rate, (double)m->n_tokens / m->seconds);
    }
    fflush(stdout);
}

static qrun_status finetune(const char *out, qrun_error *error) {
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_status status = qrun_trainer_get_info(trainer, &info, error);
    if (status != QRUN_OK) { return status; }
    printf("%lld examples, %lld steps from step %lld, %.1f MiB\n", (long long)info.n_examples,
           (long long)info.total_steps, (long long)info.first_step, (double)info.planned_bytes / (1 << 20));
    signal(SIGINT, on_signal);
    status = qrun_trainer_run(trainer, error);
    signal(SIGINT, SIG_DFL);
    if (status == QRUN_OK) { printf("the adapter is in %s\n", out); }
    if (status == QRUN_ERROR_CANCELLED) {
        printf("stopped; the same command continues from the checkpoint in %s\n", out);
    }
    return status;
}

int main(int argc, char **argv) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context *context = NULL;
    qrun_model *model = NULL;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    qrun_train_params params = QRUN_TRAIN_PARAMS_INIT;
    if (argc < 4) {
        fprintf(stderr, "usage: finetune MODEL DATA.jsonl OUT [STEPS]\n");
        return 2;
    }
    model_params.path = argv[1]; /* held in 4 bits, as it is by default */
    params.data.train_data = (const char *const *)&argv[2];
    params.data.n_train_data = 1;
    params.saving.out = argv[3];
    params.batches.max_steps = argc > 4 ? atoll(argv[4]) : 0; /* 0: one epoch */
    params.data.eval_split = 0.1;
    params.batches.seq_len = 256;
    params.optimization.learning_rate = 2e-3;
    params.callbacks.on_metrics = on_metrics;
    qrun_status status = qrun_context_create(NULL, &context, &error);
    if (status == QRUN_OK) { status = qrun_model_open(context, &model_params, &model, &error); }
    if (status == QRUN_OK) { status = qrun_trainer_create(model, &params, &trainer, &error); }
    if (status == QRUN_OK) { status = finetune(argv[3], &error); }
    if (status != QRUN_OK && status != QRUN_ERROR_CANCELLED) { fprintf(stderr, "finetune: %s\n", error.message); }
    qrun_trainer_destroy(trainer);
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    return status == QRUN_OK ? 0 : status == QRUN_ERROR_CANCELLED ? 130 : 1;
}
