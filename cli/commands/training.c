#include "cli/commands/training.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options/command.h"
#include "cli/terminal/api_names.h"
#include "cli/terminal/files.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

enum { SKIPPED_IN_A_ROW_MAX = 5, PUBLISH_SECONDS = 30, VERBOSE_LINES = 20 };

static const char *out_of(const training *t) { return t->facts.options->train.saving.out; }

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int publish_text(const training *t, const char *name, text_buffer *content) {
    text_buffer path = {0};
    text_format(&path, "%s/%s", out_of(t), name);
    const int code = replace_own_file(path.data, content);
    text_free(&path);
    text_free(content);
    return code;
}

/* Brings report.html and trainer_state.json up to date. */
static int publish(training *t, const char *state) {
    text_buffer content = {0};
    t->facts.state = state;
    t->published_seconds = clock_seconds();
    train_state_json(&t->log, &t->facts, &content);
    RETURN_IF_FAILED(publish_text(t, "trainer_state.json", &content));
    train_report_html(&t->log, &t->facts, &content);
    return publish_text(t, "report.html", &content);
}

/* The options of the run, once; a file of that name that is not qrun's is not replaced. */
static int publish_options(const training *t) {
    text_buffer path = {0}, before = {0}, content = {0};
    struct stat info;
    int code = EXIT_OK;
    text_format(&path, "%s/run.yaml", out_of(t));
    if (lstat(path.data, &info) == 0) {
        code = file_read_own(&before, path.data);
        if (code == EXIT_OK && before.size > 0 && strncmp(before.data, RUN_FILE_MARK, strlen(RUN_FILE_MARK)) != 0) {
            code = complain(EXIT_FILE, "'%s' is not qrun's, which writes the options of the run there; move it away",
                            path.data);
        }
    }
    text_puts(&content, t->facts.config);
    if (code == EXIT_OK) { code = replace_own_file(path.data, &content); }
    text_free(&path);
    text_free(&before);
    text_free(&content);
    return code;
}

/* ---- Memory that runs short -------------------------------------------------------------------------------------- */

/* Instead of an exit code: the run was planned anew, and goes on from t->step, maybe an earlier one than before. */
enum { CONTINUES = -1 };

/* The log again up to the step that comes before the next. */
static int reopen_log(training *t) {
    const int64_t n_earlier = t->log.n_earlier_steps;
    const int64_t n_evaluated = qrun_trainer_next(t->trainer) == QRUN_TRAIN_EVALUATE ? t->step - 1 : t->step;
    train_log_free(&t->log);
    RETURN_IF_FAILED(train_log_open(&t->log, out_of(t), t->step, n_evaluated));
    if (n_earlier < t->log.n_earlier_steps) { t->log.n_earlier_steps = n_earlier; }
    return EXIT_OK;
}

static int replan(training *t) {
    qrun_error error = QRUN_ERROR_INIT;
    char text[API_NAMES_TEXT_BYTES];
    const int64_t step = t->step;
    RETURN_IF_FAILED(train_log_sync(&t->log)); /* before a checkpoint, as in save */
    if (qrun_trainer_replan(t->trainer, &error) != QRUN_OK ||
        qrun_trainer_get_info(t->trainer, &t->info, &error) != QRUN_OK) {
        (void)publish(t, "out of memory");
        return complain_error(&error);
    }
    notify("%s", api_names_to_options(t->info.replanned, text));
    t->step = t->info.first_step - 1;
    t->saved_step = 0; /* the trainer knows */
    t->begin_seconds = clock_seconds();
    if (t->step < step) { RETURN_IF_FAILED(reopen_log(t)); }
    return CONTINUES;
}

/* What becomes of the run after an error of its trainer. */
static int take_error(training *t, const qrun_error *error) {
    return error->status == QRUN_ERROR_MEMORY && t->n_ranks <= 1 ? replan(t) : complain_error(error);
}

static int save(training *t) {
    qrun_error error = QRUN_ERROR_INIT;
    if (t->saved_step == t->step) { return EXIT_OK; }
    RETURN_IF_FAILED(train_log_sync(&t->log)); /* resuming needs the lines of every step before it */
    if (qrun_trainer_save(t->trainer, &error) != QRUN_OK) { return take_error(t, &error); }
    t->saved_step = t->step;
    return publish(t, "running");
}

/* ---- What is shown ----------------------------------------------------------------------------------------------- */

bool training_show_progress(void *user, int64_t done, int64_t total) {
    const training *t = user;
    if (t->trainer == NULL) { return engine_show_bytes("reading the data:", done, total); }
    if (progress_due()) {
        progress_draw((double)done, (double)total, "evaluating: %lld of %lld examples", (long long)done,
                      (long long)total);
    }
    return !interrupted();
}

void training_note_metrics(void *user, const qrun_train_metrics *metrics) {
    training *t = user;
    if (metrics->is_evaluation) { t->eval_rewards = metrics->rewards; }
}

/* "accuracy 63 %" of pairs of answers; else nothing. */
static short_text accuracy_text(const qrun_rewards *rewards, const char *before) {
    short_text out = {""};
    if (rewards->n_pairs > 0) {
        (void)snprintf(out.text, sizeof out.text, "%saccuracy %.0f %%", before, 100 * rewards->accuracy);
    }
    return out;
}

static void show_step(const training *t, const train_step_record *r) {
    const int64_t n_done = r->m.step - t->info.first_step + 1, total = t->info.total_steps;
    const double step_seconds = (clock_seconds() - t->begin_seconds) / (double)n_done;
    const short_text eta = duration_text(step_seconds * (double)(total - r->m.step));
    if (progress_due()) {
        progress_draw((double)r->m.step, (double)total, "step %lld of %lld  loss %.4f%s  %.0f tokens/s  ETA %s  %s",
                      (long long)r->m.step, (long long)total, r->m.loss, accuracy_text(&r->m.rewards, "  ").text,
                      train_step_tokens_per_second(r), eta.text, size_text(r->peak_bytes).text);
    }
    const int64_t interval = (total + VERBOSE_LINES - 1) / VERBOSE_LINES;
    if (t->verbose && (r->m.step % interval == 0 || r->m.step == total || n_done == 1)) {
        notify("step %lld of %lld: loss %.4f%s, lr %.3g, gradient norm %.3g, %.0f tokens/s, ETA %s",
               (long long)r->m.step, (long long)total, r->m.loss, accuracy_text(&r->m.rewards, ", ").text,
               r->m.learning_rate, r->m.grad_norm, train_step_tokens_per_second(r), eta.text);
    }
}

/* ---- Skipped steps ----------------------------------------------------------------------------------------------- */

static int take_skipped(training *t, const qrun_train_metrics *m) {
    if (!m->skipped) {
        t->n_skipped_in_a_row = 0;
        return EXIT_OK;
    }
    const bool constant = t->facts.options->train.optimization.loss_scale > 0;
    if (m->overflowed) {
        notify("step %lld skipped: its gradient overflowed at a loss scale of %.0f%s", (long long)m->step,
               m->loss_scale, constant ? "" : ", which is lowered");
    }
    if (m->overflowed && !constant) { return EXIT_OK; }
    t->n_skipped_in_a_row++;
    if (m->overflowed) {
        if (t->n_skipped_in_a_row < SKIPPED_IN_A_ROW_MAX) { return EXIT_OK; }
        return complain(EXIT_SOME_FAILED,
                        "stopped after %d skipped steps in a row: a smaller --loss-scale, or dynamic, may help; "
                        "checkpoints in '%s' hold what was learned before",
                        SKIPPED_IN_A_ROW_MAX, out_of(t));
    }
    notify("step %lld skipped: its %s is not finite%s%s; the parameters are unchanged", (long long)m->step,
           isfinite(m->loss) ? "gradient" : "loss", m->nonfinite != NULL ? "; first in the gradient of " : "",
           m->nonfinite != NULL ? m->nonfinite : "");
    if (t->n_skipped_in_a_row < SKIPPED_IN_A_ROW_MAX) { return EXIT_OK; }
    return complain(
        EXIT_SOME_FAILED,
        "stopped after %d skipped steps in a row: training has diverged. A lower --learning-rate, a longer --warmup "
        "or --dtype f32 may help; checkpoints in '%s' hold what was learned before",
        SKIPPED_IN_A_ROW_MAX, out_of(t));
}

/* ---- For TensorBoard --------------------------------------------------------------------------------------------- */

static int put_step_scalars(const training *t, const train_step_record *r) {
    const qrun_phases *p = &r->m.phases;
    const event_scalar scalars[] = {
        {"train/loss", r->m.loss},
        {"train/learning_rate", r->m.learning_rate},
        {"train/grad_norm", r->m.grad_norm},
        {"train/epoch", r->m.epoch},
        {"speed/tokens_per_second", train_step_tokens_per_second(r)},
        {"speed/step_seconds", r->m.seconds},
        {"memory/peak_bytes", (double)r->peak_bytes},
        {"phases/data", p->data},
        {"phases/forward", p->forward},
        {"phases/loss", p->loss},
        {"phases/backward", p->backward},
        {"phases/recompute", p->recompute},
        {"phases/optimizer", p->optimizer},
        {"phases/copies", p->copies},
        {"phases/waiting", p->waiting},
        {"phases/other", p->other},
    };
    RETURN_IF_FAILED(profile_scalars(&t->profile, r->m.step, scalars, sizeof scalars / sizeof scalars[0]));
    const qrun_rewards *w = &r->m.rewards;
    const event_scalar rewards[] = {{"train/rewards/chosen", w->chosen},
                                    {"train/rewards/rejected", w->rejected},
                                    {"train/rewards/margins", w->margin},
                                    {"train/rewards/accuracies", w->accuracy}};
    if (w->n_pairs == 0) { return EXIT_OK; }
    return profile_scalars(&t->profile, r->m.step, rewards, sizeof rewards / sizeof rewards[0]);
}

static int put_eval_scalars(const training *t, const train_eval_record *r) {
    const event_scalar scalars[] = {{"eval/loss", r->loss},
                                    {"eval/rewards/chosen", r->rewards.chosen},
                                    {"eval/rewards/rejected", r->rewards.rejected},
                                    {"eval/rewards/margins", r->rewards.margin},
                                    {"eval/rewards/accuracies", r->rewards.accuracy}};
    return profile_scalars(&t->profile, r->step, scalars,
                           r->rewards.n_pairs > 0 ? sizeof scalars / sizeof scalars[0] : 1);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static int run_step(training *t) {
    qrun_error error = QRUN_ERROR_INIT;
    train_step_record record = {.m = QRUN_TRAIN_METRICS_INIT};
    bool done;
    const qrun_status status = qrun_trainer_step(t->trainer, &record.m, &done, &error);
    if (status == QRUN_ERROR_CANCELLED && interrupted()) { return EXIT_OK; } /* as if it had not begun */
    if (status != QRUN_OK || qrun_trainer_get_info(t->trainer, &t->info, &error) != QRUN_OK) {
        return take_error(t, &error);
    }
    record.peak_bytes = t->info.peak_bytes;
    t->step = record.m.step;
    RETURN_IF_FAILED(train_log_step(&t->log, &record, t->facts.options->json));
    RETURN_IF_FAILED(put_step_scalars(t, &record));
    if (profile_is_due(&t->profile, t->step, t->info.first_step, t->info.total_steps)) {
        RETURN_IF_FAILED(profile_take(&t->profile, t->step));
    }
    show_step(t, &record);
    return take_skipped(t, &record.m);
}

static int evaluate(training *t) {
    qrun_error error = QRUN_ERROR_INIT;
    const train_step_record *last = train_log_last(&t->log);
    train_eval_record record = {.step = t->step, .epoch = last != NULL ? last->m.epoch : 0};
    const double begin = clock_seconds();
    const qrun_status status = qrun_trainer_evaluate(t->trainer, &record.loss, &error);
    if (status == QRUN_ERROR_CANCELLED && interrupted()) { return EXIT_OK; } /* it is still due when the run resumes */
    if (status != QRUN_OK || qrun_trainer_get_info(t->trainer, &t->info, &error) != QRUN_OK) {
        return take_error(t, &error);
    }
    record.seconds = clock_seconds() - begin;
    record.rewards = t->eval_rewards;
    RETURN_IF_FAILED(put_eval_scalars(t, &record));
    if (t->verbose || progress_enabled()) {
        notify("evaluation after step %lld: loss %.4f%s%s", (long long)record.step, record.loss,
               accuracy_text(&record.rewards, ", ").text, t->info.best_step == record.step ? ", the best so far" : "");
    }
    return train_log_eval(&t->log, &record, t->facts.options->json);
}

static bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* What comes after a step and its evaluation. Its metrics are on file by now: resuming from the checkpoint finds those
 * of every step before it. */
static int after_step(training *t) {
    int code = EXIT_OK;
    const bool best = t->info.best_step == t->step && t->step > 0;
    if (qrun_trainer_next(t->trainer) == QRUN_TRAIN_EVALUATE) { return EXIT_OK; }
    if (best || (is_due(t->step, t->facts.options->train.saving.save_every) && t->step < t->info.total_steps)) {
        code = save(t);
    }
    if (code == EXIT_OK && clock_seconds() - t->published_seconds >= PUBLISH_SECONDS) { code = publish(t, "running"); }
    return code;
}

static int stop_early(training *t) {
    if (t->step == 0) {
        return complain(EXIT_INTERRUPTED, "interrupted before the first step; there is nothing to save");
    }
    int code;
    while ((code = save(t)) == CONTINUES) {} /* each time in less memory */
    if (code != EXIT_OK) { return code; }
    (void)publish(t, "interrupted");
    return complain(EXIT_INTERRUPTED,
                    "interrupted after step %lld of %lld, saved in '%s/checkpoint-%lld'. To resume, repeat the command "
                    "(without --restart)",
                    (long long)t->step, (long long)t->info.total_steps, out_of(t), (long long)t->step);
}

static void cancel_step(void *user) { qrun_trainer_cancel(user); }

static int run_steps(training *t) {
    t->begin_seconds = clock_seconds();
    for (qrun_train_action next; (next = qrun_trainer_next(t->trainer)) != QRUN_TRAIN_DONE;) {
        if (interrupted()) { return stop_early(t); }
        int code = next == QRUN_TRAIN_EVALUATE ? evaluate(t) : run_step(t);
        if (code == EXIT_OK && !interrupted()) { code = after_step(t); }
        if (code != EXIT_OK && code != CONTINUES) { return code; }
    }
    return EXIT_OK;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static int finish(training *t) {
    qrun_error error = QRUN_ERROR_INIT;
    RETURN_IF_FAILED(save(t));
    if ((train_exports_best(&t->facts) && qrun_trainer_load_best(t->trainer, &error) != QRUN_OK) ||
        qrun_trainer_export(t->trainer, &error) != QRUN_OK) {
        return take_error(t, &error);
    }
    return publish(t, t->info.stopped_early ? "stopped early" : "finished");
}

int training_run(training *t) {
    t->step = t->saved_step = t->info.first_step - 1;
    /* An evaluation that is due again is not to be in the log twice. */
    const int64_t n_evaluated = qrun_trainer_next(t->trainer) == QRUN_TRAIN_EVALUATE ? t->step - 1 : t->step;
    int code = train_log_open(&t->log, out_of(t), t->step, n_evaluated);
    if (code == EXIT_OK) { code = publish_options(t); }
    if (code == EXIT_OK) { code = publish(t, "running"); } /* a folder that takes no files is told now */
    interrupt_hold();                                      /* so there is time to save */
    do {
        interrupt_on_signal(cancel_step, t->trainer); /* ends within a part of a layer */
        if (code == EXIT_OK || code == CONTINUES) { code = run_steps(t); }
        interrupt_on_signal(NULL, NULL);
        if (code == EXIT_OK) { code = finish(t); }
    } while (code == CONTINUES);
    progress_clear();
    return code == EXIT_OK ? train_log_close(&t->log) : code; /* after a failure, freeing closes it: one message */
}

void training_free(training *t) { train_log_free(&t->log); }
