/* trainer_state.json in the shape that the Hugging Face Trainer gives it (train_report.h declares it). */
#include <math.h>

#include "cli/report/train_report.h"

static void put_eval(const train_eval_record *eval, int64_t n_examples, text_buffer *out) {
    text_format(out,
                ",\n    {\"epoch\": %s, \"eval_loss\": %s, \"eval_runtime\": %.6f, \"eval_samples_per_second\": %.3f",
                json_double(eval->epoch).text, json_double(eval->loss).text, eval->seconds,
                eval->seconds > 0 ? (double)n_examples / eval->seconds : 0);
    train_log_put_rewards(&eval->rewards, "eval_", " ", out);
    text_format(out, ", \"step\": %lld}", (long long)eval->step);
}

static void put_history(const train_log *log, int64_t n_eval_examples, text_buffer *out) {
    int64_t e = 0;
    text_puts(out, "  \"log_history\": [");
    for (int64_t i = 0; i < log->n_steps; i++) {
        const train_step_record *step = &log->steps[i];
        text_format(out, "%s\n    {\"epoch\": %s, \"grad_norm\": %s, \"learning_rate\": %s, \"loss\": %s",
                    i > 0 ? "," : "", json_double(step->m.epoch).text, json_double(step->m.grad_norm).text,
                    json_double(step->m.learning_rate).text, json_double(step->m.loss).text);
        train_log_put_rewards(&step->m.rewards, "", " ", out);
        if (step->m.loss_scale > 0) { text_format(out, ", \"loss_scale\": %.0f", step->m.loss_scale); }
        text_format(out, ", \"step\": %lld}", (long long)step->m.step);
        for (; e < log->n_evals && log->evals[e].step <= step->m.step; e++) {
            put_eval(&log->evals[e], n_eval_examples, out);
        }
    }
    text_puts(out, log->n_steps > 0 ? "\n  ],\n" : "],\n");
}

static void put_best(const train_facts *facts, text_buffer *out) {
    if (facts->info->best_step == 0) {
        text_puts(out, "  \"best_global_step\": null,\n  \"best_metric\": null,\n"
                       "  \"best_model_checkpoint\": null,\n");
        return;
    }
    text_buffer path = {0};
    text_format(&path, "%s/checkpoint-%lld", facts->options->train.saving.out, (long long)facts->info->best_step);
    text_format(out, "  \"best_global_step\": %lld,\n  \"best_metric\": %s,\n  \"best_model_checkpoint\": ",
                (long long)facts->info->best_step, json_double(facts->info->best_loss).text);
    text_json_string(out, path.data, path.size);
    text_puts(out, ",\n");
    text_free(&path);
}

static void put_callbacks(const train_facts *facts, text_buffer *out) {
    const qrun_train_evaluation *evaluation = &facts->options->train.evaluation;
    text_puts(out, "  \"stateful_callbacks\": {");
    if (evaluation->early_stopping_patience > 0) {
        text_format(
            out,
            "\n    \"EarlyStoppingCallback\": {\"args\": {\"early_stopping_patience\": %lld, "
            "\"early_stopping_threshold\": %s}, \"attributes\": {\"early_stopping_patience_counter\": %lld}}\n  ",
            (long long)evaluation->early_stopping_patience, json_double(evaluation->early_stopping_threshold).text,
            (long long)facts->info->n_not_better);
    }
    text_puts(out, "},\n");
}

void train_state_json(const train_log *log, const train_facts *facts, text_buffer *out) {
    const train_step_record *last = train_log_last(log);
    const int64_t n_tokens = train_log_sums(log, 0).n_tokens;
    const qrun_train_params *params = &facts->options->train;
    const double epochs = params->batches.epochs > 0 ? params->batches.epochs : 1;
    text_puts(out, "{\n");
    put_best(facts, out);
    text_format(out,
                "  \"epoch\": %s,\n  \"eval_steps\": %lld,\n  \"global_step\": %lld,\n"
                "  \"is_hyper_param_search\": false,\n  \"is_local_process_zero\": true,\n"
                "  \"is_world_process_zero\": true,\n",
                json_double(last != NULL ? last->m.epoch : 0).text, (long long)params->evaluation.eval_every,
                last != NULL ? (long long)last->m.step : 0);
    put_history(log, facts->info->n_eval_examples, out);
    text_format(out,
                "  \"logging_steps\": 1,\n  \"max_steps\": %lld,\n  \"num_input_tokens_seen\": %lld,\n"
                "  \"num_train_epochs\": %.0f,\n  \"save_steps\": %lld,\n",
                (long long)facts->info->total_steps, (long long)n_tokens, ceil(epochs),
                (long long)params->saving.save_every);
    put_callbacks(facts, out);
    /* As the Trainer counts: six operations a parameter and token. */
    text_format(out,
                "  \"total_flos\": %s,\n  \"train_batch_size\": %d,\n  \"trial_name\": null,\n"
                "  \"trial_params\": null\n}\n",
                json_double(6.0 * (double)facts->model->n_parameters * (double)n_tokens).text,
                params->batches.batch_size > 0 ? (int)params->batches.batch_size : 1);
}
