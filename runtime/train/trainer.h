/* A fine-tuning run: data, parameters, optimiser and the steps over them. trainer.c creates it and runs it from the
 * first step to the export. settings.c checks the options, epochs.c opens the data, and plan.c plans the memory. step.c
 * runs a step, evaluate.c evaluates and knows the best one, and replan.c continues with less memory. run_folder.c holds
 * the folder, and checkpoint.c saves and resumes. */
#ifndef QR_RUNTIME_TRAIN_TRAINER_H
#define QR_RUNTIME_TRAIN_TRAINER_H

#include <stdatomic.h>

#include "runtime/model/layer_stream.h"
#include "runtime/pass/lora_parameters.h"
#include "runtime/ranks/gradient_sum.h"
#include "runtime/train/loader.h"
#include "runtime/train/loss_scale.h"
#include "runtime/train/settings.h"
#include "runtime/train/update.h"

/* The next batch of examples: the micro-batches of one step. */
typedef struct qr_train_cursor {
    int64_t epoch, batch; /* batch: of the epoch */
} qr_train_cursor;

/* The position of a run. The rest of the run depends on it, the parameters and the optimiser's states alone. */
typedef struct qr_train_state {
    int64_t step;    /* finished */
    int64_t updates; /* of the parameters: steps minus those that were skipped */
    qr_train_cursor cursor;
    qr_loss_scale loss_scale;
    int64_t evaluated_step; /* after which the last evaluation ran; 0: none yet, like best_step */
    int64_t best_step;
    double best_loss;
    int64_t n_not_better; /* evaluations in a row that did not improve on the best by more than the threshold */
} qr_train_state;

/* What a run may take. */
typedef struct qr_train_budget {
    int64_t bytes;      /* of the device's memory, with weights and context */
    bool given;         /* else it is what the device has */
    int64_t host_bytes; /* of host memory that is apart */
} qr_train_budget;

/* The memory as the options asked for it: what is settled may be changed while the run is planned anew. */
typedef struct qr_wanted_memory {
    int64_t bytes; /* 0: what is free */
    qr_recompute_policy policy;
    char policy_name[32];
    int64_t tile_rows;    /* 0: chosen */
    int64_t settled_rows; /* of tiles, as the run began with; 0: none */
    bool fixes_tiles;     /* they stay so: a device with a memory of its own adds up in another order in tiles */
    bool offload_optimizer;
} qr_wanted_memory;

/* What a trainer holds while it is planned anew: free for its new plan. */
typedef struct qr_held_memory {
    size_t device_bytes, host_bytes;
} qr_held_memory;

typedef struct qr_run_cost {
    qr_train_cost pass;          /* of a micro-batch */
    int64_t update_copied_bytes; /* of a step's update */
    int64_t sent_bytes;          /* to other ranks, in a step */
    int64_t ring_bytes;          /* what a ring's reduce-scatter and all-gather would send */
    int32_t rank;                /* that is planned */
} qr_run_cost;

struct qrun_trainer {
    qrun_model *model;
    qr_collectives *ranks; /* lent by the context; NULL: alone */
    bool joined;           /* all ranks have a trainer, and the others follow rank 0 */
    qr_train_settings settings;
    qr_train_state state;
    qr_dataset *dataset, *eval_dataset;      /* eval_dataset: of a file of its own */
    qr_dataset_view view, eval_view;         /* n 0: nothing to evaluate on */
    qr_shares *shares;                       /* of the files, where they have weights; else NULL */
    qrun_train_file *files;                  /* [qr_dataset_count_files(dataset)] */
    int64_t n_epoch_tokens, n_epoch_targets; /* of the first epoch */
    qr_epoch_batches *epoch_batches;         /* of epoch `batches_epoch` */
    int64_t batches_epoch;
    qr_train_loader *loader;
    qr_parameters parameters;
    qr_shards shards; /* of the parameters */
    qr_optimizer *optimizer;
    qr_gradient_sum *gradient_sum;
    qr_train_pass *pass;
    qr_recompute_policy policy, led_policy; /* led: rank 0's, where all have to go through layers in one order */
    bool has_led_policy;
    char policy_name[64];     /* "": there is no plan yet */
    char date[QR_DATE_BYTES]; /* of settings.now */
    char nonfinite_name[256]; /* of the last skipped step's metrics */
    double flops_per_token;   /* as in qrun_train_info */
    qr_device_memory memory;  /* before the run allocated any */
    qr_train_budget budget;
    qr_wanted_memory wanted;
    qr_plan plan;         /* where none fits, the least that was tried */
    qr_run_cost cost;     /* of the plan */
    qr_workspace scratch; /* for updates */
    qr_late_layers late;  /* of the last update, where the processor runs it: lent to the model with the memory */
    qr_optimizer_numbers late_numbers;
    int64_t total_steps, warmup_steps, first_step;
    int64_t earlier_total_steps; /* of the run that this one extends; 0: it extends none */
    char *fingerprint;           /* JSON of everything that must be equal to resume from a checkpoint */
    bool made_out;               /* this trainer created settings.out */
    int out_lock;                /* descriptor of the lock on settings.out; −1: none */
    bool counted_session;        /* model->n_sessions counts this trainer */
    atomic_bool cancelled;
    bool holds_best;                  /* the parameters are no longer those of state.step */
    bool torn;                        /* an update has ended in the middle: parameters and states are of no step */
    qr_error broken;                  /* why it cannot be used before qrun_trainer_replan; QRUN_OK: it can */
    int64_t n_replans, furthest_step; /* furthest_step: finished at the last of them, or later before it */
    char replanned[512];              /* as in qrun_train_info */
    qrun_progress_fn progress;
    void *progress_user;
    qrun_train_metrics_fn on_metrics;
    void *metrics_user;
    bool restarts; /* the folder may have checkpoints of an earlier run until this one saves its first */
};

/* ---- train/settings.c -------------------------------------------------------------------------------------------- */

/* QRUN_ERROR_ARGUMENT where the run has no folder to save in (random_tokens). */
qrun_status qr_trainer_require_out(const qrun_trainer *trainer, qr_error *err);
/* What a checkpoint must agree with to be resumed. Needs settings, data and total_steps. */
qrun_status qr_trainer_make_fingerprint(qrun_trainer *trainer, qr_error *err);

/* ---- train/epochs.c ---------------------------------------------------------------------------------------------- */

/* Opens the data sets, describes their files and counts the steps. Needs the settings. */
qrun_status qr_trainer_open_data(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err);
/* Of training, or of an evaluation: in the files' order, each example once. */
qr_batch_options qr_trainer_batch_options(const qrun_trainer *trainer, bool trains);
/* Of a run of so many steps. */
int64_t qr_trainer_warmup_steps(const qrun_trainer *trainer, int64_t n_steps);
/* Makes epoch_batches the batches of an epoch. */
qrun_status qr_trainer_make_batches(qrun_trainer *trainer, int64_t epoch, qr_error *err);

/* ---- train/plan.c ------------------------------------------------------------------------------------------------ */

/* Settles policy and plan: AUTO keeps as many layers as fit; the others must fit as they are, but for tiles, which are
 * chosen where nothing fits without. Needs data and the description of the parameters. */
qrun_status qr_trainer_plan_memory(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err);
/* The same in the middle of a run, for the memory that is there now and at most `most_bytes`: as was wanted or, where
 * that does not fit, with more layers recomputed, in tiles where that keeps the bits, and with more in host memory.
 * offloads_states: the optimiser's states too, which are then made anew. QRUN_ERROR_MEMORY without a message: not
 * even the least fits, which is the trainer's plan then. */
qrun_status qr_trainer_plan_again(qrun_trainer *trainer, const qr_held_memory *held, int64_t most_bytes,
                                  bool offloads_states, qr_error *err);
/* The plan under the trainer's policy; AUTO: with policy.n layers kept. */
qrun_status qr_trainer_plan_run(const qrun_trainer *trainer, qr_plan *plan, qr_run_cost *cost, qr_error *err);
/* Rows of a tile, as settled; 0: layers are whole. */
int64_t qr_trainer_tile_rows(const qrun_trainer *trainer);
/* Of the tiles with which the policy takes least: as given, or the smallest that are chosen; 0: it takes none. */
int64_t qr_trainer_least_tile_rows(const qrun_trainer *trainer, const qr_recompute_policy *policy);
/* Whether each rank has the values of its shard alone: all weights are trained, in shards. */
bool qr_trainer_shards_values(const qrun_trainer *trainer);
/* How the parameters are dealt to the ranks, what of it the plan's rank has, and what gradients and optimiser are made
 * from. The options lend the shards. */
void qr_trainer_shard(const qrun_trainer *trainer, const qr_parameters *parameters, qr_shards *shards,
                      qr_gradient_options *gradients, qr_optimizer_options *optimizer);
bool qr_train_plan_fits(const qr_plan *plan, const qr_train_budget *budget);
qr_train_limits qr_trainer_limits(const qrun_trainer *trainer);

/* Settles flops_per_token. Needs the policy. */
qrun_status qr_trainer_count_flops(qrun_trainer *trainer, qr_error *err);

/* ---- train/memory_names.c ---------------------------------------------------------------------------------------- */

/* The timeline of the backend, if it has one, learns the categories of the plan, and the tensors that are held all the
 * time. */
void qr_trainer_name_memory(qrun_trainer *trainer);

/* ---- train/step.c ------------------------------------------------------------------------------------------------ */

/* Of n_pairs pairs (at least 1), from what qr_train_pass_run has added up; zeros where there are no pairs. */
qrun_rewards qr_trainer_rewards(const qrun_trainer *trainer, const double *sums, int64_t n_pairs);

/* On all ranks: the next step. */
qrun_status qr_trainer_run_step(qrun_trainer *trainer, qrun_train_metrics *metrics, qr_error *err);

/* Layer l of the last update (a qr_late_layers.write). */
qrun_status qr_trainer_update_layer(void *trainer, int64_t l, qr_error *err);
/* What is left of the last update, so that values, states and the model's weights are those of state.step. */
qrun_status qr_trainer_end_update(qrun_trainer *trainer, qr_error *err);

/* The part of this rank in a pass of others, where it has not begun one; status: why, and returned where that is an
 * error. */
qrun_status qr_trainer_follow_pass(qrun_trainer *trainer, bool backward, qrun_status status, qr_error *err);

/* Finished epochs, and the share of the current one, whose batches must be planned. */
double qr_trainer_epoch(const qrun_trainer *trainer);
/* The error that ended a step in the middle of its update, or the run. */
qrun_status qr_trainer_require_whole(const qrun_trainer *trainer, qr_error *err);
/* The same; and QRUN_ERROR_ARGUMENT once qrun_trainer_load_best has ended the run. */
qrun_status qr_trainer_require_current(const qrun_trainer *trainer, qr_error *err);

/* ---- train/evaluate.c -------------------------------------------------------------------------------------------- */

bool qr_trainer_stopped_early(const qrun_trainer *trainer);
/* On all ranks: an evaluation, which the trainer's state then knows. */
qrun_status qr_trainer_run_evaluation(qrun_trainer *trainer, qrun_train_metrics *metrics, qr_error *err);

/* ---- train/rank_states.c ----------------------------------------------------------------------------------------- */

enum { QR_STATES_PIECE_BYTES = 1 << 22 };
/* On rank 0: bytes [offset, offset + n) of the optimiser's states, n at most QR_STATES_PIECE_BYTES, with those that
 * other ranks hold. */
qrun_status qr_trainer_read_states(const qrun_trainer *trainer, size_t offset, size_t n, void *host, qr_error *err);
/* Floats [first, first + n) of the arena of values, with those that other ranks have (a qr_parameters.read_values). */
qrun_status qr_trainer_read_values(void *trainer, int64_t first, int64_t n, float *values, qr_error *err);
/* On another rank: what rank 0 has asked for. */
qrun_status qr_trainer_send_values(const qrun_trainer *trainer, const qr_rank_command *command, qr_error *err);
qrun_status qr_trainer_send_states(const qrun_trainer *trainer, const qr_rank_command *command, qr_error *err);

/* ---- train/follow.c ---------------------------------------------------------------------------------------------- */

/* Every rank runs the same: model, data, options, the position in the run, and code. */
qrun_status qr_trainer_compare_ranks(qrun_trainer *trainer, qr_error *err);
/* Does what rank 0 announces, until that ends the run. */
qrun_status qr_trainer_follow(qrun_trainer *trainer, qr_error *err);

/* ---- train/trainer.c --------------------------------------------------------------------------------------------- */

/* The parameters' memory, and what they begin with. Needs the plan. */
qrun_status qr_trainer_make_parameters(qrun_trainer *trainer, qr_error *err);
/* What else the run needs, of which the optimiser may be there already. */
qrun_status qr_trainer_make_memory(qrun_trainer *trainer, qr_error *err);
/* Releases all that qr_trainer_make_memory makes but the optimiser, with its states. */
void qr_trainer_release_memory(qrun_trainer *trainer);
/* Settles what is trained, and describes it. Needs the settings; data sets, where there are any, may ask for new rows
 * of the tables. */
qrun_status qr_trainer_describe_parameters(qrun_trainer *trainer, qr_error *err);
/* Writes what has been trained into an existing folder: an adapter, or a whole model. */
qrun_status qr_trainer_write_result(qrun_trainer *trainer, const char *folder, qr_error *err);

/* ---- train/fit.c ------------------------------------------------------------------------------------------------- */

/* Settles the sizes that are left to the memory, by plans: seq_tokens before the data are opened, then batch_size.
 * Nothing where both are given. */
qrun_status qr_trainer_choose_seq_tokens(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err);
qrun_status qr_trainer_choose_batch(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err);

/* ---- train/fit_suggestions.c ------------------------------------------------------------------------------------- */

/* Fails with QRUN_ERROR_MEMORY: the run under trainer->policy is more than its budget. The message has the options
 * nearest to the run's that would fit, with what they need. */
qrun_status qr_trainer_refuse_memory(const qrun_trainer *trainer, qr_error *err);

/* ---- train/run_folder.c ------------------------------------------------------------------------------------------ */

#define QR_TOKENS_FOLDER "tokens" /* in settings.out, of the data set's cache, where no other was given */

/* Creates settings.out, locks it against other runs while the trainer lives, and removes what a killed run left half
 * written. QRUN_ERROR_BUSY, with nothing changed, where another run has it. */
qrun_status qr_trainer_enter_folder(qrun_trainer *trainer, qr_error *err);
/* After a run that could not begin: removes the folder that it created, if that is empty. */
void qr_trainer_leave_folder(qrun_trainer *trainer);

/* ---- train/checkpoint.c ------------------------------------------------------------------------------------------ */

/* Takes from the last checkpoint in settings.out what a run settles when it begins: the day and the sizes that were not
 * given. Nothing where there is none. */
qrun_status qr_trainer_take_stored(qrun_trainer *trainer, qr_error *err);

/* Resumes from the last checkpoint in settings.out, if there is one. QRUN_ERROR_INPUT when it is of another run or
 * damaged: the message says how to continue. A damaged one is never skipped silently: it may mean a failing disk. On
 * rank 0 it removes what a killed run would have removed. */
qrun_status qr_trainer_resume(qrun_trainer *trainer, qr_error *err);

/* The checkpoint of state.step, unless there is one; what is no longer kept goes. */
qrun_status qr_trainer_write_checkpoint(qrun_trainer *trainer, qr_error *err);

/* Whether there is a checkpoint to resume from. */
qrun_status qr_trainer_has_checkpoint(const qrun_trainer *trainer, bool *has, qr_error *err);

/* QRUN_ERROR_INPUT where somebody else's folder has the name of a checkpoint that this run may write. */
qrun_status qr_trainer_refuse_foreign(const qrun_trainer *trainer, qr_error *err);

/* Replaces the parameters by those of a checkpoint; the position and the optimiser stay. */
qrun_status qr_trainer_read_parameters(qrun_trainer *trainer, int64_t step, qr_error *err);

#endif
