#include "cli/commands/finetune_summary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report/next_steps.h"
#include "cli/report/plan_table.h"
#include "cli/terminal/api_names.h"
#include "cli/terminal/terminal.h"

/* ---- Before the first step --------------------------------------------------------------------------------------- */

void finetune_print_unknown_members(const training *t) {
    for (int32_t i = 0; i < t->info.n_files; i++) {
        const qrun_train_file *file = &t->info.files[i];
        if (file->unknown_members[0] == '\0') { continue; }
        printf("unread      members, unless the chat template reads them: %s (first in %s:%lld)\n",
               file->unknown_members, file->path, (long long)file->unknown_line);
    }
}

static void print_files(const qrun_train_info *info) {
    for (int32_t i = 0; i < info->n_files; i++) {
        const qrun_train_file *file = &info->files[i];
        printf("%-11s %s: %s, %s", i == 0 ? "data" : "", file->path, file->data_format,
               count_text(file->n_examples, "example").text);
        if (file->n_epoch_examples != file->n_examples) {
            printf("; %lld an epoch, some repeated", (long long)file->n_epoch_examples);
        }
        printf("\n");
    }
}

static void print_data(const training *t) {
    const qrun_train_info *info = &t->info;
    print_files(info);
    finetune_print_unknown_members(t);
    printf("tokens      %lld an epoch, %lld of them targets\n", (long long)info->n_tokens,
           (long long)info->n_target_tokens);
    if (info->n_dropped > 0) {
        printf("dropped     %s without a token that counts in the loss\n", count_text(info->n_dropped, "example").text);
    }
    if (info->n_truncated > 0) {
        printf("truncated   %s longer than --seq-len\n", count_text(info->n_truncated, "example").text);
    }
    if (info->n_bad_lines > 0) {
        char first[API_NAMES_TEXT_BYTES];
        printf("bad lines   %lld skipped; the first: %s\n", (long long)info->n_bad_lines,
               api_names_to_options(info->first_bad, first));
    }
    if (info->n_eval_examples > 0) { printf("evaluation  %s\n", count_text(info->n_eval_examples, "example").text); }
}

/* A run that had fewer steps. The schedule of the longer run may lift the learning rate again, which people should know
 * before they wonder about the loss. */
static void print_extension(const training *t) {
    const qrun_train_info *info = &t->info;
    const qrun_schedule schedule = t->facts.options->train.optimization.schedule;
    const long long done = (long long)info->first_step - 1;
    printf("Extending the run of %lld steps to %lld, after step %lld. ", (long long)info->earlier_total_steps,
           (long long)info->total_steps, done);
    if (schedule == QRUN_SCHEDULE_CONSTANT && info->earlier_learning_rate == info->next_learning_rate) {
        printf("The learning rate stays %.3g, as in one run of %lld steps.\n", info->next_learning_rate,
               (long long)info->total_steps);
    } else {
        printf("The schedule is now that of %lld steps: the learning rate was %.3g in step %lld and is %.3g in step "
               "%lld.\n",
               (long long)info->total_steps, info->earlier_learning_rate, done, info->next_learning_rate, done + 1);
    }
}

/* A share is never more than the run. */
static void print_long_warmup(const training *t) {
    const double warmup = t->facts.options->train.optimization.warmup;
    if (warmup < 1 || warmup < (double)t->info.total_steps) { return; }
    printf("warm-up     %.0f steps, and the run has %lld: --learning-rate is never reached\n", warmup,
           (long long)t->info.total_steps);
}

/* Sums are for numbers of ranks that are powers of two. */
static void print_ranks(const training *t) {
    const qrun_train_batches *batches = &t->facts.options->train.batches;
    const int32_t n_batches = batches->grad_accum > 0 ? batches->grad_accum : 1;
    printf("ranks       %d", (int)t->n_ranks);
    if (n_batches < t->n_ranks) {
        printf("; --grad-accum %d occupies %d of them", (int)n_batches, (int)n_batches);
    } else if (n_batches > t->n_ranks && batches->grad_sums <= 1 && (t->n_ranks & (t->n_ranks - 1)) == 0) {
        printf("; each sends gradients %d times a step, with --grad-sums %d once",
               (int)((n_batches + t->n_ranks - 1) / t->n_ranks), (int)t->n_ranks);
    }
    printf("\n");
    if (t->features[0] != '\0') { printf("of each     %s\n", t->features); }
}

void finetune_print_start(const training *t) {
    const qrun_train_info *info = &t->info;
    print_data(t);
    printf("trainable   %s parameters", large_text(info->n_trainable).text);
    if (!t->facts.options->train.weights.full) {
        printf("; the model has %s in %s", large_text(t->facts.model->n_parameters).text, t->facts.model->quant);
    }
    printf("\n");
    printf("steps       %lld, activation checkpointing: %s\n", (long long)info->total_steps, info->checkpointing);
    print_long_warmup(t);
    if (t->n_ranks > 1) { print_ranks(t); }
    printf("memory\n");
    plan_table_print(t->facts.plan, t->facts.n_plan);
    plan_table_print_budget(t->facts.options->engine.model.memory_bytes);
    if (info->earlier_total_steps > 0 && !info->stopped_early) {
        print_extension(t);
    } else if (info->stopped_early) {
        printf("This run was stopped early, after step %lld; --restart trains again from the first.\n",
               (long long)info->first_step - 1);
    } else if (qrun_trainer_next(t->trainer) == QRUN_TRAIN_DONE) {
        printf("All steps are done; more of them continue, and --restart trains again from the first.\n");
    } else if (info->first_step > 1) {
        printf("Resuming after step %lld, saved by an earlier run.\n", (long long)info->first_step - 1);
    }
    fflush(stdout);
}

static void put_file(const qrun_train_file *file, int32_t number, text_buffer *out) {
    text_puts(out, number > 0 ? ",{\"file\":" : "{\"file\":");
    text_json_string(out, file->path, strlen(file->path));
    text_format(out,
                ",\"format\":\"%s\",\"examples\":%lld,\"epoch_examples\":%lld,\"unknown_members\":", file->data_format,
                (long long)file->n_examples, (long long)file->n_epoch_examples);
    text_json_string(out, file->unknown_members, strlen(file->unknown_members));
    text_puts(out, "}");
}

void finetune_print_start_json(const training *t) {
    const qrun_train_info *info = &t->info;
    text_buffer out = {0};
    text_puts(&out, "{\"start\":{\"data\":{\"files\":[");
    for (int32_t i = 0; i < info->n_files; i++) { put_file(&info->files[i], i, &out); }
    text_format(&out,
                "],\"examples\":%lld,\"eval_examples\":%lld,\"tokens\":%lld,"
                "\"target_tokens\":%lld,\"dropped\":%lld,\"truncated\":%lld,\"bad_lines\":%lld},",
                (long long)info->n_examples, (long long)info->n_eval_examples, (long long)info->n_tokens,
                (long long)info->n_target_tokens, (long long)info->n_dropped, (long long)info->n_truncated,
                (long long)info->n_bad_lines);
    text_format(&out,
                "\"trainable_parameters\":%lld,\"first_step\":%lld,\"total_steps\":%lld,\"earlier_total_steps\":%lld,"
                "\"checkpointing\":\"%s\",\"planned_bytes\":%lld,\"plan\":",
                (long long)info->n_trainable, (long long)info->first_step, (long long)info->total_steps,
                (long long)info->earlier_total_steps, info->checkpointing, (long long)info->planned_bytes);
    plan_table_json(t->facts.plan, t->facts.n_plan, &out);
    printf("%s}}\n", out.data);
    fflush(stdout);
    text_free(&out);
}

/* ---- After the last ---------------------------------------------------------------------------------------------- */

static void put_how_to_use(const training *t, text_buffer *out) {
    text_puts(out, "qrun generate --model ");
    if (!t->facts.options->train.weights.full) {
        put_shell_word(out, t->facts.options->engine.model.path);
        text_puts(out, " --adapter ");
    }
    put_shell_word(out, t->facts.options->train.saving.out);
    text_puts(out, t->chat ? " --chat --prompt \"…\"" : " --prompt \"…\"");
}

static bool has_names(const char *list) { return list != NULL && list[0] != '\0'; }

/* DoRA, modules that are trained whole, and experts are more than LoRA of linear layers. */
static next_steps steps_after(const training *t, const finetune_options *settled) {
    const qrun_train_lora *lora = &settled->train.lora;
    if (settled->train.weights.full) { return (next_steps){.model = settled->train.saving.out}; }
    return (next_steps){.model = t->facts.options->engine.model.path, /* as it was given */
                        .adapter = settled->train.saving.out,
                        .rank = lora->rank,
                        .must_merge = lora->dora || settled->train_head || has_names(lora->modules_to_save) ||
                                      has_names(lora->target_parameters)};
}

/* Of pairs of answers. */
static void print_rewards(const qrun_rewards *r, const char *where) {
    if (r->n_pairs == 0) { return; }
    printf("rewards     chosen %.4g, rejected %.4g; the chosen one is ahead in %.0f %% of the pairs %s\n", r->chosen,
           r->rejected, 100 * r->accuracy, where);
}

void finetune_print_result(const training *t, const finetune_options *settled, qrun_context *context) {
    const train_log *log = &t->log;
    const train_sums sums = train_log_sums(log, log->n_earlier_steps); /* of this run */
    const train_step_record *last = train_log_last(log);
    const train_eval_record *best = train_log_best_eval(log);
    if (last != NULL) {
        printf("loss        %.4f at step %lld, %.4f at step %lld\n", log->steps[0].m.loss,
               (long long)log->steps[0].m.step, last->m.loss, (long long)last->m.step);
        print_rewards(&last->m.rewards, "of the last step");
    }
    if (best != NULL) {
        const train_eval_record *eval = &log->evals[log->n_evals - 1];
        printf("evaluation  loss %.4f after step %lld", eval->loss, (long long)eval->step);
        if (best->step != eval->step) { printf(" (lowest: %.4f after step %lld)", best->loss, (long long)best->step); }
        printf("\n");
        print_rewards(&eval->rewards, "of the last evaluation");
        if (t->info.best_step < eval->step && !train_exports_best(&t->facts)) {
            printf("best        the evaluation rose after step %lld; use --load-best, or %s/checkpoint-%lld\n",
                   (long long)t->info.best_step, t->facts.options->train.saving.out, (long long)t->info.best_step);
        }
    }
    if (t->info.stopped_early) {
        printf("stopped     early, after step %lld of %lld: %s in a row %s not better\n", (long long)t->step,
               (long long)t->info.total_steps, count_text(t->info.n_not_better, "evaluation").text,
               t->info.n_not_better == 1 ? "was" : "were");
    }
    if (train_exports_best(&t->facts)) {
        printf("adapter     that of step %lld, the best evaluation\n", (long long)t->info.best_step);
    }
    if (sums.n_steps > 0) {
        printf("speed       %s with %lld tokens in %.1f s: %.0f tokens/s\n", count_text(sums.n_steps, "step").text,
               (long long)sums.n_tokens, sums.seconds, sums.seconds > 0 ? (double)sums.n_tokens / sums.seconds : 0);
    }
    printf("memory      %s planned, %s used at most\n", size_text(t->info.planned_bytes).text,
           size_text(t->info.peak_bytes).text);
    if (t->info.planned_host_bytes > 0) {
        printf("of the host %s planned, %s used at most\n", size_text(t->info.planned_host_bytes).text,
               size_text(t->info.peak_host_bytes).text);
    }
    printf("report      %s/report.html\n", t->facts.options->train.saving.out);
    text_buffer use = {0};
    put_how_to_use(t, &use);
    printf("The %s is in '%s'. To use it: %s\n", t->facts.options->train.weights.full ? "model" : "adapter",
           t->facts.options->train.saving.out, use.data);
    text_free(&use);
    const next_steps steps = steps_after(t, settled);
    next_steps_print(context, &steps);
}

void finetune_print_result_json(const training *t) {
    const train_log *log = &t->log;
    const train_sums sums = train_log_sums(log, log->n_earlier_steps); /* of this run */
    const train_step_record *last = train_log_last(log);
    text_buffer out = {0};
    text_puts(&out, t->facts.options->train.weights.full ? "{\"result\":{\"model\":" : "{\"result\":{\"adapter\":");
    text_json_string(&out, t->facts.options->train.saving.out, strlen(t->facts.options->train.saving.out));
    text_format(&out, ",\"steps\":%lld,\"first_loss\":%s,\"last_loss\":%s,\"eval_loss\":%s,\"best_eval_loss\":%s",
                last != NULL ? (long long)last->m.step : 0, json_double(last != NULL ? log->steps[0].m.loss : NAN).text,
                json_double(last != NULL ? last->m.loss : NAN).text,
                json_double(log->n_evals > 0 ? log->evals[log->n_evals - 1].loss : NAN).text,
                json_double(t->info.best_step > 0 ? t->info.best_loss : NAN).text);
    text_format(&out,
                ",\"best_step\":%lld,\"stopped_early\":%s,\"tokens\":%lld,\"seconds\":%.6f,\"planned_bytes\":%lld,"
                "\"peak_bytes\":%lld}}",
                (long long)t->info.best_step, t->info.stopped_early ? "true" : "false", (long long)sums.n_tokens,
                sums.seconds, (long long)t->info.planned_bytes, (long long)t->info.peak_bytes);
    printf("%s\n", out.data);
    text_free(&out);
}
