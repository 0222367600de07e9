/* A fine-tuning run: data, parameters, optimiser and the steps over them. trainer.c makes it and steps;
 * train_checkpoint.c writes it down and takes it up again. */
#ifndef QR_RUNTIME_TRAINER_H
#define QR_RUNTIME_TRAINER_H

#include "runtime/train_data.h"
#include "runtime/update.h"

/* What of qrun_train_params decides the run, with defaults filled in. */
typedef struct qr_train_settings {
    char *out, *targets;
    qr_lora_options lora;
    qr_optimizer_options optimizer;
    qrun_schedule schedule;
    double learning_rate, warmup, max_grad_norm, epochs, eval_fraction;
    int64_t seq_tokens, batch_size, grad_accum, max_steps;
    uint64_t seed;
    int64_t save_every, keep;
    int64_t now; /* unix time that templates see: that of the run's beginning, also after a resume */
} qr_train_settings;

/* Where in the data a run stands: the next window of examples. */
typedef struct qr_train_cursor {
    int64_t epoch, window;
} qr_train_cursor;

/* Where a run stands: with the parameters and the optimiser's states, all that the rest of it depends on. */
typedef struct qr_train_state {
    int64_t step; /* finished */
    qr_train_cursor cursor;
} qr_train_state;

struct qrun_trainer {
    qrun_model *model;
    qr_train_settings settings;
    qr_train_state state;
    qr_dataset *dataset, *eval_dataset; /* eval_dataset: of a file of its own */
    qr_dataset_view view, eval_view; /* n 0: nothing to evaluate on */
    qr_batch_plan *epoch_plan; /* of epoch `planned_epoch` */
    int64_t planned_epoch;
    qr_train_data data;
    qr_lora_parameters parameters;
    qr_optimizer *optimizer;
    qr_train_pass *pass;
    qr_checkpoint_policy policy;
    char policy_name[24];
    qr_plan plan;
    void *scratch; /* device, for qr_update_run */
    size_t scratch_bytes;
    int64_t total_steps, warmup_steps, first_step;
    char *fingerprint; /* JSON of everything that must be equal to go on from a checkpoint */
    bool counted_session; /* model->n_sessions counts this trainer */
    bool begins_anew;     /* checkpoints of an earlier run are in its folder until it saves its first one */
};

/* The `now` of the last checkpoint in settings.out; *now stays as it is where there is none. */
qrun_status qr_trainer_stored_now(const qrun_trainer *trainer, int64_t *now, qr_error *err);

/* Takes up the last whole checkpoint in settings.out, if there is one. QRUN_ERROR_INPUT when it is of another run. */
qrun_status qr_trainer_resume(qrun_trainer *trainer, qr_error *err);

#endif
