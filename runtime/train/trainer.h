/* A fine-tuning run: data, parameters, optimiser and the steps over them. trainer.c makes it, train/settings.c,
 * train/epochs.c and train/plan.c settle its options, data and memory, train/step.c steps, train/evaluate.c evaluates
 * and knows the best, train/checkpoint.c writes it down and takes it up again, train_run.c is all of it in order. */
#ifndef QR_RUNTIME_TRAIN_TRAINER_H
#define QR_RUNTIME_TRAIN_TRAINER_H

#include <stdatomic.h>

#include "runtime/train/loader.h"
#include "runtime/train/lora_parameters.h"
#include "runtime/train/loss_scale.h"
#include "runtime/train/settings.h"
#include "runtime/train/update.h"

/* Where in the data a run stands: the next window of examples. */
typedef struct qr_train_cursor {
    int64_t epoch, window;
} qr_train_cursor;

/* Where a run stands: with the parameters and the optimiser's states, all that the rest of it depends on. */
typedef struct qr_train_state {
    int64_t step;    /* finished */
    int64_t updates; /* of the parameters: steps less those that were skipped */
    qr_train_cursor cursor;
    qr_loss_scale loss_scale;
    int64_t evaluated_step; /* after which the last evaluation took place; 0: none yet, like best_step */
    int64_t best_step;
    double best_loss;
    int64_t n_not_better; /* evaluations in a row that did not improve on the best by more than the threshold */
} qr_train_state;

struct qrun_trainer {
    qrun_model *model;
    qr_train_settings settings;
    qr_train_state state;
    qr_dataset *dataset, *eval_dataset; /* eval_dataset: of a file of its own */
    qr_dataset_view view, eval_view;    /* n 0: nothing to evaluate on */
    qr_batch_plan *epoch_plan;          /* of epoch `planned_epoch` */
    int64_t planned_epoch;
    qr_train_loader *loader;
    qr_parameters parameters;
    qr_optimizer *optimizer;
    qr_train_pass *pass;
    qr_checkpoint_policy policy;
    char policy_name[24];
    char nonfinite_name[256]; /* of the last skipped step's metrics */
    double flops_per_token;   /* as in qrun_train_info */
    qr_device_memory memory;  /* as it was before the run took any */
    bool weights_to_come;     /* the model is described and not loaded: only a plan is wanted */
    qr_plan plan;
    void *scratch; /* device, for qr_update_run */
    size_t scratch_bytes;
    int64_t total_steps, warmup_steps, first_step;
    char *fingerprint;    /* JSON of everything that must be equal to go on from a checkpoint */
    bool made_out;        /* settings.out was not there before */
    int out_lock;         /* descriptor that holds settings.out against other runs; −1: none */
    bool counted_session; /* model->n_sessions counts this trainer */
    atomic_bool cancelled;
    bool holds_best; /* the parameters are no longer those of state.step */
    qrun_progress_fn progress;
    void *progress_user;
    qrun_train_metrics_fn on_metrics;
    void *metrics_user;
    bool begins_anew; /* checkpoints of an earlier run are in its folder until it saves its first one */
};

/* ---- train/settings.c -------------------------------------------------------------------------------------------- */

/* QRUN_ERROR_ARGUMENT where the run has no folder to save in (random_tokens). */
qrun_status qr_trainer_require_out(const qrun_trainer *trainer, qr_error *err);
/* What a checkpoint must agree with to be gone on from. Needs settings, data and total_steps. */
qrun_status qr_trainer_make_fingerprint(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err);

/* ---- train/epochs.c ---------------------------------------------------------------------------------------------- */

/* Opens the data sets, counts the steps, and makes room for a micro-batch. Needs the settings. */
qrun_status qr_trainer_open_data(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err);
qr_batch_options qr_trainer_batch_options(const qrun_trainer *trainer, bool shuffle);
/* Makes the plan of an epoch the current one. */
qrun_status qr_trainer_plan_epoch(qrun_trainer *trainer, int64_t epoch, qr_error *err);

/* ---- train/plan.c ------------------------------------------------------------------------------------------------ */

/* Settles policy and plan: AUTO keeps as many layers as fit; the others must fit as they are. Needs data and the
 * description of the parameters. */
qrun_status qr_trainer_plan_memory(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err);
/* The plan under a policy; AUTO: with policy->n layers kept. */
qrun_status qr_trainer_plan_with(const qrun_trainer *trainer, const qr_checkpoint_policy *policy, qr_plan *plan,
                                 qr_error *err);
/* What a run may take. */
typedef struct qr_train_budget {
    int64_t bytes;      /* of the device's memory, with weights and context */
    bool given;         /* else it is what the device has */
    int64_t host_bytes; /* of host memory that is apart */
} qr_train_budget;
bool qr_train_plan_fits(const qr_plan *plan, const qr_train_budget *budget);
qr_train_limits qr_trainer_limits(const qrun_trainer *trainer, const qr_checkpoint_policy *policy);

/* ---- train/flops.c ----------------------------------------------------------------------------------------------- */

/* Settles flops_per_token. Needs the policy. */
qrun_status qr_trainer_count_flops(qrun_trainer *trainer, qr_error *err);

/* ---- train/step.c ------------------------------------------------------------------------------------------------ */

/* Epochs that are done, with the share of the current one; its plan must be the current one. */
double qr_trainer_epoch(const qrun_trainer *trainer);
/* QRUN_ERROR_ARGUMENT once qrun_trainer_load_best has ended the run. */
qrun_status qr_trainer_require_current(const qrun_trainer *trainer, qr_error *err);

/* ---- train/evaluate.c -------------------------------------------------------------------------------------------- */

bool qr_trainer_stopped_early(const qrun_trainer *trainer);

/* ---- train_export.c ---------------------------------------------------------------------------------------------- */

/* Writes what has been trained into an existing folder: an adapter, or a whole model. */
qrun_status qr_trainer_write_result(qrun_trainer *trainer, const char *folder, qr_error *err);

/* ---- train/alternatives.c ---------------------------------------------------------------------------------------- */

/* Fails with QRUN_ERROR_MEMORY: the run under trainer->policy is more than the budget. The message has the options
 * nearest to the run's that would fit, with what they need. */
qrun_status qr_trainer_refuse_memory(const qrun_trainer *trainer, const qr_train_budget *budget, qr_error *err);

/* ---- train/checkpoint.c ------------------------------------------------------------------------------------------ */

#define QR_TOKENS_FOLDER "tokens" /* in settings.out, of the data set's cache, where no other was given */

/* Makes settings.out, holds it against other runs while the trainer lives, and removes what killed ones left half
 * written. */
qrun_status qr_trainer_enter_folder(qrun_trainer *trainer, qr_error *err);
/* After a run that could not begin: removes the folder that it made, if nothing is in it. */
void qr_trainer_leave_folder(qrun_trainer *trainer);

/* The `now` of the last checkpoint in settings.out; *now stays as it is where there is none. */
qrun_status qr_trainer_stored_now(const qrun_trainer *trainer, int64_t *now, qr_error *err);

/* Takes up the last checkpoint in settings.out, if there is one. QRUN_ERROR_INPUT when it is of another run, or
 * damaged: the message says how to go on. Nothing is passed over silently, because damage may mean a failing disk. */
qrun_status qr_trainer_resume(qrun_trainer *trainer, qr_error *err);

/* Puts the parameters of a checkpoint in the place of the current ones; nothing else of it. */
qrun_status qr_trainer_read_parameters(qrun_trainer *trainer, int64_t step, qr_error *err);

#endif
