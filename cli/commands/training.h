/* The course of qrun finetune, from a trainer that is ready to its result: steps, evaluations and checkpoints, the log
 * and the report in the output folder. Also what is drawn meanwhile, and the end by Ctrl-C. */
#ifndef QRUN_CLI_COMMANDS_TRAINING_H
#define QRUN_CLI_COMMANDS_TRAINING_H

#include "cli/profile/profile.h"
#include "cli/report/train_log.h"
#include "cli/report/train_report.h"

/* How the run.yaml of the output folder begins. */
#define RUN_FILE_MARK "# finetune"

typedef struct training {
    /* Set by the caller. */
    qrun_trainer *trainer;
    qrun_train_info info; /* kept current */
    train_facts facts;
    int32_t n_ranks;
    const char *features; /* of the GPU, as in qrun_device_info */
    bool chat;            /* examples are conversations: the adapter is used with --chat */
    bool verbose;         /* a line on stderr now and then, where no progress is drawn */
    profile profile;      /* begun, or zero */

    /* Its own; zero at first. */
    train_log log;
    int64_t step;              /* finished */
    int64_t saved_step;        /* of the last checkpoint; 0: none */
    qrun_rewards eval_rewards; /* of the last evaluation */
    int64_t n_skipped_in_a_row;
    double begin_seconds, published_seconds;
} training;

/* A qrun_progress_fn: shows how far the data are read, or an evaluation is; Ctrl-C cancels. user: the training, whose
 * trainer is NULL while it is made. */
bool training_show_progress(void *user, int64_t done, int64_t total);

/* A qrun_train_metrics_fn: notes what an evaluation tells besides its loss. user: the training. */
void training_note_metrics(void *user, const qrun_train_metrics *metrics);

/* Trains to the end and exports the result. Returns 0 or an exit code, after telling the user: EXIT_INTERRUPTED after
 * Ctrl-C, with a checkpoint of the last step; EXIT_SOME_FAILED where training diverged. */
int training_run(training *t);
void training_free(training *t);

#endif
