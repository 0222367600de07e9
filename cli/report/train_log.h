/* What a training run has done so far, step by step: kept here for the report, and appended to metrics.jsonl in the
 * output folder (one JSON object per line, each written whole).
 *
 * Lines of metrics.jsonl, of a step and of an evaluation after a step:
 *     {"step", "epoch", "loss", "learning_rate", "grad_norm", "tokens", "target_tokens", "tokens_per_second",
 * "seconds", "peak_bytes"} and "skipped": true where parameters were left as they were; a value that is not finite is
 * null. With a loss scale also "loss_scale", "skipped_steps" so far, and "overflowed": true where the scale was too
 * large and that is why the step was skipped. With --profile also "phases": seconds by name, which add up
 * to "seconds". With pairs of answers also "rewards/chosen", "rewards/rejected", "rewards/margins" and
 * "rewards/accuracies", as TRL names them, and "pairs"
 *     {"step", "epoch", "eval_loss", "seconds"}; with pairs also "eval_rewards/chosen" and so on, and "eval_pairs" */
#ifndef QRUN_CLI_REPORT_TRAIN_LOG_H
#define QRUN_CLI_REPORT_TRAIN_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/terminal/text.h"
#include "qrun.h"

typedef struct train_step_record {
    qrun_train_metrics m; /* a loss or norm that was not finite is NaN; `nonfinite` does not last */
    int64_t peak_bytes;
} train_step_record;

typedef struct train_eval_record {
    int64_t step; /* after it */
    double epoch, loss, seconds;
    qrun_rewards rewards; /* of pairs of answers; else all 0 */
} train_eval_record;

/* Zero-initialise. */
typedef struct train_log {
    text_buffer path;
    bool opened;
    int descriptor; /* while opened */
    train_step_record *steps;
    int64_t n_steps, steps_capacity;
    train_eval_record *evals;
    int64_t n_evals, evals_capacity;
    int64_t n_earlier_steps; /* of these, done by an earlier run */
} train_log;

/* Opens `folder`/metrics.jsonl to continue after last_step, and last_eval, the step of the last evaluation: lines up
 * to these are read, later ones and what was torn at the end are cut away. A file of others is refused. Returns 0 or an
 * exit code, after telling the user; so do the others. */
int train_log_open(train_log *log, const char *folder, int64_t last_step, int64_t last_eval);
/* Each keeps the record and appends its line; `echo` writes the line to stdout too. */
int train_log_step(train_log *log, const train_step_record *record, bool echo);
int train_log_eval(train_log *log, const train_eval_record *record, bool echo);
/* Appends the members of rewards, each with a comma before it: their names begin with `prefix`, and `space` follows
 * commas and colons. Nothing where there are no pairs. */
void train_log_put_rewards(const qrun_rewards *rewards, const char *prefix, const char *space, text_buffer *out);
int train_log_sync(train_log *log);  /* onto disk, before a checkpoint that counts on its lines */
int train_log_close(train_log *log); /* the records stay until train_log_free */
void train_log_free(train_log *log);

/* Of the log's steps from steps[first]. */
typedef struct train_sums {
    int64_t n_steps, n_tokens, n_skipped, n_overflowed; /* overflowed ones are not among the skipped */
    double seconds;
} train_sums;

train_sums train_log_sums(const train_log *log, int64_t first);
double train_step_tokens_per_second(const train_step_record *record);
/* The last step's; NULL before the first. */
const train_step_record *train_log_last(const train_log *log);
/* The lowest; NULL where nothing was evaluated. */
const train_eval_record *train_log_best_eval(const train_log *log);

#endif
