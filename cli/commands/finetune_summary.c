#include "cli/commands/finetune_summary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report/plan_table.h"
#include "cli/terminal/api_names.h"
#include "cli/terminal/terminal.h"

/* ---- Before the first step --------------------------------------------------------------------------------------- */

static void print_data(const training *t) {
    const qrun_train_info *info = &t->info;
    printf("data        %s: %s, %s\n", t->facts.options->train.data.train_data, info->data_format,
           count_text(info->n_examples, "example").text);
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

void finetune_print_start(const training *t) {
    const qrun_train_info *info = &t->info;
    print_data(t);
    printf("trainable   %s parameters", large_text(info->n_trainable).text);
    if (!t->facts.options->train.weights.full) {
        printf("; the model has %s in %s", large_text(t->facts.model->n_parameters).text, t->facts.model->quant);
    }
    printf("\n");
    printf("steps       %lld, activation checkpointing: %s\n", (long long)info->total_steps, info->checkpointing);
    printf("memory\n");
    plan_table_print(t->facts.plan, t->facts.n_plan);
    if (qrun_trainer_next(t->trainer) == QRUN_TRAIN_DONE) {
        printf("All steps are done; --restart trains again from the first.\n");
    } else if (info->first_step > 1) {
        printf("Resuming after step %lld, saved by an earlier run.\n", (long long)info->first_step - 1);
    }
    fflush(stdout);
}

void finetune_print_start_json(const training *t) {
    const qrun_train_info *info = &t->info;
    text_buffer out = {0};
    text_puts(&out, "{\"start\":{\"data\":{\"file\":");
    text_json_string(&out, t->facts.options->train.data.train_data, strlen(t->facts.options->train.data.train_data));
    text_format(&out,
                ",\"format\":\"%s\",\"examples\":%lld,\"eval_examples\":%lld,\"tokens\":%lld,"
                "\"target_tokens\":%lld,\"dropped\":%lld,\"truncated\":%lld,\"bad_lines\":%lld},",
                info->data_format, (long long)info->n_examples, (long long)info->n_eval_examples,
                (long long)info->n_tokens, (long long)info->n_target_tokens, (long long)info->n_dropped,
                (long long)info->n_truncated, (long long)info->n_bad_lines);
    text_format(&out,
                "\"trainable_parameters\":%lld,\"first_step\":%lld,\"total_steps\":%lld,"
                "\"checkpointing\":\"%s\",\"planned_bytes\":%lld,\"plan\":",
                (long long)info->n_trainable, (long long)info->first_step, (long long)info->total_steps,
                info->checkpointing, (long long)info->planned_bytes);
    plan_table_json(t->facts.plan, t->facts.n_plan, &out);
    printf("%s}}\n", out.data);
    fflush(stdout);
    text_free(&out);
}

/* ---- After the last ---------------------------------------------------------------------------------------------- */

/* A word, quoted where a shell needs that. */
static void put_shell_word(text_buffer *out, const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=@%+,-";
    if (*word != '\0' && strspn(word, plain) == strlen(word)) {
        text_puts(out, word);
        return;
    }
    text_puts(out, "'");
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            text_puts(out, "'\\''");
        } else {
            text_append(out, word, 1);
        }
    }
    text_puts(out, "'");
}

static void put_how_to_use(const training *t, text_buffer *out) {
    text_puts(out, "qrun generate --model ");
    if (!t->facts.options->train.weights.full) {
        put_shell_word(out, t->facts.options->engine.model.path);
        text_puts(out, " --adapter ");
    }
    put_shell_word(out, t->facts.options->train.saving.out);
    text_puts(out, t->chat ? " --chat --prompt \"…\"" : " --prompt \"…\"");
}

void finetune_print_result(const training *t) {
    const train_log *log = &t->log;
    const train_sums sums = train_log_sums(log, log->n_earlier_steps); /* of this run */
    const train_step_record *last = train_log_last(log);
    const train_eval_record *best = train_log_best_eval(log);
    if (last != NULL) {
        printf("loss        %.4f at step %lld, %.4f at step %lld\n", log->steps[0].m.loss,
               (long long)log->steps[0].m.step, last->m.loss, (long long)last->m.step);
    }
    if (best != NULL) {
        const train_eval_record *eval = &log->evals[log->n_evals - 1];
        printf("evaluation  loss %.4f after step %lld", eval->loss, (long long)eval->step);
        if (best->step != eval->step) { printf(" (lowest: %.4f after step %lld)", best->loss, (long long)best->step); }
        printf("\n");
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
