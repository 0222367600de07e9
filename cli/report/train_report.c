#include "cli/report/train_report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "cli/report/chart.h"
#include "cli/report/html.h"
#include "cli/report/profile_html.h"
#include "cli/report/train_samples.h"

/* The day, in UTC. */
static short_text today(void) {
    const time_t now = time(NULL);
    struct tm day;
    short_text text = {""};
    if (gmtime_r(&now, &day) != NULL) { (void)strftime(text.text, sizeof text.text, "%Y-%m-%d", &day); }
    return text;
}

/* ---- Charts ------------------------------------------------------------------------------------------------------ */

/* The log's steps as columns. */
typedef struct columns {
    double *step, *loss, *smooth, *learning_rate, *grad_norm, *speed, *peak; /* [n_steps]; peak in MiB */
    double *chosen, *rejected, *right;                                       /* [n_steps]: of pairs; right in percent */
    double *eval_step, *eval_loss;                                           /* [n_evals] */
    double *memory;                                                          /* all of them */
} columns;

static columns make_columns(const train_log *log) {
    enum { SMOOTH_SHARE = 50, COLUMNS = 10 };
    const size_t n = (size_t)log->n_steps, n_evals = (size_t)log->n_evals;
    columns c;
    c.memory = allocate((COLUMNS * n + 2 * n_evals) * sizeof(double));
    double **const targets[COLUMNS] = {&c.step,  &c.loss, &c.smooth, &c.learning_rate, &c.grad_norm,
                                       &c.speed, &c.peak, &c.chosen, &c.rejected,      &c.right};
    for (size_t t = 0; t < COLUMNS; t++) { *targets[t] = c.memory + t * n; }
    c.eval_step = c.memory + COLUMNS * n;
    c.eval_loss = c.eval_step + n_evals;
    /* An exponential mean over about 1/SMOOTH_SHARE of the run. */
    const double keep = 1 - 1 / fmax(2, (double)n / SMOOTH_SHARE);
    double smooth = NAN;
    for (size_t i = 0; i < n; i++) {
        const train_step_record *s = &log->steps[i];
        if (isfinite(s->m.loss)) { smooth = isfinite(smooth) ? keep * smooth + (1 - keep) * s->m.loss : s->m.loss; }
        c.step[i] = (double)s->m.step;
        c.loss[i] = s->m.loss;
        c.smooth[i] = smooth;
        c.learning_rate[i] = s->m.learning_rate;
        c.grad_norm[i] = s->m.grad_norm;
        c.speed[i] = train_step_tokens_per_second(s);
        c.peak[i] = (double)s->peak_bytes / 0x1p20;
        c.chosen[i] = s->m.rewards.chosen;
        c.rejected[i] = s->m.rewards.rejected;
        c.right[i] = 100 * s->m.rewards.accuracy;
    }
    for (size_t i = 0; i < n_evals; i++) {
        c.eval_step[i] = (double)log->evals[i].step;
        c.eval_loss[i] = log->evals[i].loss;
    }
    return c;
}

static void put_charts(const train_log *log, text_buffer *out) {
    columns c = make_columns(log);
    const int64_t n = log->n_steps;
    const chart losses = {.title = "Loss",
                          .n_series = 3,
                          .series = {{c.step, c.loss, n, "faint", "each step", false},
                                     {c.step, c.smooth, n, "main", "smoothed", false},
                                     {c.eval_step, c.eval_loss, log->n_evals, "eval", "evaluation", true}}};
    const struct {
        const char *title;
        const double *y;
    } others[] = {{"Learning rate", c.learning_rate},
                  {"Gradient norm, before clipping", c.grad_norm},
                  {"Tokens per second", c.speed},
                  {"Peak memory, MiB", c.peak}};
    text_puts(out, "<div class=\"charts\">\n");
    chart_svg(&losses, out);
    if (n > 0 && log->steps[n - 1].m.rewards.n_pairs > 0) {
        const chart rewards = {.title = "Rewards of the answers",
                               .n_series = 2,
                               .series = {{c.step, c.chosen, n, "main", "chosen", false},
                                          {c.step, c.rejected, n, "faint", "rejected", false}}};
        chart_svg(&rewards, out);
        chart_svg(
            &(chart){
                "Pairs whose chosen answer is ahead, percent", {{c.step, c.right, n, "main", NULL, false}}, 1, true},
            out);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        chart_svg(&(chart){others[i].title, {{c.step, others[i].y, n, "main", NULL, false}}, 1, true}, out);
    }
    text_puts(out, "</div>\n");
    free(c.memory);
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

static void put_run(const train_log *log, const train_facts *facts, text_buffer *out) {
    const train_sums sums = train_log_sums(log, 0);
    const train_step_record *last = train_log_last(log);
    const train_eval_record *best = train_log_best_eval(log);
    text_puts(out, "<div><h2>Run</h2><table>\n");
    if (last != NULL) {
        html_row(out, "loss", "%.4g at step %lld, %.4g at step %lld", log->steps[0].m.loss,
                 (long long)log->steps[0].m.step, last->m.loss, (long long)last->m.step);
    }
    if (best != NULL) {
        html_row(out, "evaluation loss", "%.4g after step %lld; lowest %.4g after step %lld",
                 log->evals[log->n_evals - 1].loss, (long long)log->evals[log->n_evals - 1].step, best->loss,
                 (long long)best->step);
    }
    if (facts->info->best_step > 0) {
        html_row(out, "best checkpoint", "checkpoint-%lld", (long long)facts->info->best_step);
    }
    if (facts->info->stopped_early) {
        html_row(out, "stopped early", "after %s in a row without improvement",
                 count_text(facts->info->n_not_better, "evaluation").text);
    }
    html_row(out, "tokens", "%lld in %.1f s: %.0f tokens/s", (long long)sums.n_tokens, sums.seconds,
             sums.seconds > 0 ? (double)sums.n_tokens / sums.seconds : 0);
    if (sums.n_skipped > 0) { html_row(out, "skipped steps", "%lld", (long long)sums.n_skipped); }
    if (last != NULL && last->m.loss_scale > 0) {
        html_row(out, "loss scale", "%.0f in the last step; too large in %s, skipped", last->m.loss_scale,
                 count_text(sums.n_overflowed, "step").text);
    }
    text_puts(out, "</table></div>\n");
}

static int64_t epoch_examples(const qrun_train_info *info) {
    int64_t n = 0;
    for (int32_t i = 0; i < info->n_files; i++) { n += info->files[i].n_epoch_examples; }
    return n;
}

/* A row only where there is something to count. */
static void put_count(text_buffer *out, const char *name, int64_t n) {
    if (n > 0) { html_row(out, name, "%lld", (long long)n); }
}

static void put_data(const train_facts *facts, text_buffer *out) {
    const qrun_train_info *info = facts->info;
    text_puts(out, "<div><h2>Data</h2><table>\n");
    for (int32_t i = 0; i < info->n_files; i++) {
        const qrun_train_file *file = &info->files[i];
        html_row(out, "file", "%s: %s, %lld of %lld examples per epoch", file->path, file->data_format,
                 (long long)file->n_epoch_examples, (long long)epoch_examples(info));
    }
    html_row(out, "examples", "%lld", (long long)info->n_examples);
    put_count(out, "for evaluation", info->n_eval_examples);
    html_row(out, "tokens per epoch", "%lld, %lld of them targets", (long long)info->n_tokens,
             (long long)info->n_target_tokens);
    put_count(out, "dropped", info->n_dropped);
    put_count(out, "truncated", info->n_truncated);
    put_count(out, "bad lines", info->n_bad_lines);
    text_puts(out, "</table></div>\n");
}

static void put_model(const train_facts *facts, text_buffer *out) {
    const qrun_model_info *model = facts->model;
    text_puts(out, "<div><h2>Model</h2><table>\n");
    html_row(out, "folder", "%s", facts->options->engine.model.path);
    html_row(out, "family", "%s, %s", model->family, engine_parameters(model).text);
    html_row(out, "weights", "%s, head %s, embedding %s, computed in %s", model->quant, model->head_format,
             model->embedding_format, model->dtype);
    html_row(out, "trainable", "%lld parameters", (long long)facts->info->n_trainable);
    html_row(out, "activation checkpointing", "%s", facts->info->checkpointing);
    text_puts(out, "</table></div>\n");
}

static void put_memory(const train_facts *facts, text_buffer *out) {
    text_puts(out, "<div><h2>Memory</h2><table>\n");
    for (int32_t i = 0; i < facts->n_plan; i++) {
        if (facts->plan[i].bytes == 0) { continue; }
        html_row(out, facts->plan[i].category, "%s", size_text(facts->plan[i].bytes).text);
    }
    html_row(out, "planned", "%s", size_text(facts->info->planned_bytes).text);
    html_row(out, "peak", "%s", size_text(facts->info->peak_bytes).text);
    text_puts(out, "</table></div>\n");
}

static void put_options(const train_facts *facts, text_buffer *out) {
    cJSON *options = cJSON_Parse(facts->options_json);
    text_puts(out, "<div><h2>Options</h2><table>\n");
    for (const cJSON *o = options != NULL ? options->child : NULL; o != NULL; o = o->next) {
        if (cJSON_IsString(o) && o->valuestring[0] != '\0') { html_row(out, o->string, "%s", o->valuestring); }
    }
    text_puts(out, "</table></div>\n");
    cJSON_Delete(options);
}

/* ---- In words ---------------------------------------------------------------------------------------------------- */

/* What happened, for somebody who reads nothing else. */
static void put_summary(const train_log *log, const train_facts *facts, text_buffer *out) {
    const train_step_record *last = train_log_last(log);
    const train_eval_record *best = train_log_best_eval(log);
    text_buffer words = {0};
    if (last == NULL) { return; }
    const double first = log->steps[0].m.loss;
    if (log->n_steps > 1 && isfinite(first) && isfinite(last->m.loss)) {
        text_format(&words, "The loss %s from %.4g to %.4g in %s.",
                    last->m.loss < first   ? "fell"
                    : last->m.loss > first ? "rose"
                                           : "stayed",
                    first, last->m.loss, count_text(log->n_steps, "step").text);
    }
    if (best != NULL && log->n_evals > 1) {
        const train_eval_record *end = &log->evals[log->n_evals - 1];
        text_format(&words, " The evaluation was lowest after step %lld, at %.4g%s", (long long)best->step, best->loss,
                    end->step == best->step ? "." : "; it rose after that");
        if (end->step != best->step) {
            text_format(&words, ", to %.4g%s.", end->loss,
                        train_exports_best(facts) ? ". The result is that of the lowest" : "");
        }
    } else if (best != NULL) {
        text_format(&words, " The evaluation was %.4g after step %lld.", best->loss, (long long)best->step);
    }
    if (words.size > 0) {
        text_puts(out, "<p>");
        html_text(out, words.data);
        text_puts(out, "</p>\n");
    }
    text_free(&words);
}

bool train_exports_best(const train_facts *facts) {
    const qrun_train_evaluation *evaluation = &facts->options->train.evaluation;
    return evaluation->load_best || evaluation->early_stopping_patience > 0;
}

void train_report_html(const train_log *log, const train_facts *facts, text_buffer *out) {
    html_page_begin(out, facts->options->train.saving.out, facts->profile != NULL ? profile_style : "");
    const train_step_record *last = train_log_last(log);
    text_format(out, "<p>qrun %s finetune: %s, step %lld of %lld", qrun_version(), facts->state,
                last != NULL ? (long long)last->m.step : 0, (long long)facts->info->total_steps);
    if (last != NULL) { text_format(out, ", epoch %.2f", last->m.epoch); }
    text_format(out, ", written on %s</p>\n", today().text);
    put_summary(log, facts, out);
    put_charts(log, out);
    if (facts->profile != NULL) { profile_html(facts->profile, out); }
    text_puts(out, TRAIN_SAMPLES_MARK "\n<div class=\"tables\">\n");
    put_run(log, facts, out);
    put_data(facts, out);
    put_model(facts, out);
    put_memory(facts, out);
    put_options(facts, out);
    text_puts(out, "</div>\n</body>\n</html>\n");
}
