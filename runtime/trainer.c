#include "runtime/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "base/units.h"
#include "runtime/machine.h"
#include "runtime/schedule.h"

enum { DEFAULT_RANK = 16, DEFAULT_SEQ_TOKENS = 1024, DEFAULT_KEEP = 2, SECONDS_A_DAY = 86400 };

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

static qrun_status check_params(const qrun_train_params *params, qr_error *err) {
    if (params->struct_size != sizeof *params) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "qrun_train_params has an unknown size; begin with QRUN_TRAIN_PARAMS_INIT");
    }
    if (params->data == NULL || params->out == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "fine-tuning needs data and a folder for the adapter (data, out)");
    }
    const struct {
        const char *name;
        double value, low, high;
    } ranges[] = {
        {"rank", params->rank, 0, QR_MAX_LORA_RANK},
        {"alpha", (double)params->alpha, 0, 1e6},
        {"the learning rate", params->learning_rate, 0, 100},
        {"warm-up", params->warmup, 0, 1e9},
        {"weight decay", params->weight_decay, 0, 1},
        {"the sequence length", params->seq_tokens, 0, 1 << 20},
        {"the batch size", params->batch_size, 0, 4096},
        {"gradient accumulation", params->grad_accum, 0, 1 << 20},
        {"epochs", params->epochs, 0, 1e6},
        {"max_steps", (double)params->max_steps, 0, 1e12},
        {"the share set aside for evaluation", params->eval_fraction, 0, 0.9},
        {"save_every", (double)params->save_every, 0, 1e12},
        {"keep", params->keep, 0, 1e6},
        {"optimizer", (double)params->optimizer, 0, QRUN_OPTIMIZER_SGD},
        {"schedule", (double)params->schedule, 0, QRUN_SCHEDULE_CONSTANT},
    };
    for (size_t i = 0; i < QR_COUNT_OF(ranges); i++) {
        if (ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high) { continue; }
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s must be from %g to %g, not %g", ranges[i].name, ranges[i].low,
                       ranges[i].high, ranges[i].value);
    }
    return QRUN_OK;
}

static double or_default(double value, double fallback) { return value != 0 ? value : fallback; }

static qrun_status settle(const qrun_model *model, const qrun_train_params *params, qr_train_settings *s,
                          qr_error *err) {
    const int32_t rank = (int32_t)or_default(params->rank, DEFAULT_RANK);
    *s = (qr_train_settings){
        .lora = {.rank = rank,
                 .alpha = (float)or_default((double)params->alpha, 2.0 * rank),
                 .rslora = params->rslora,
                 .seed = params->seed},
        .optimizer = {params->optimizer, (float)params->weight_decay},
        .schedule = params->schedule,
        .learning_rate = or_default(params->learning_rate, 2e-4),
        .warmup = params->warmup,
        .max_grad_norm = or_default(params->max_grad_norm, 1.0),
        .epochs = or_default(params->epochs, 1.0),
        .eval_fraction = params->eval_data == NULL ? params->eval_fraction : 0,
        .seq_tokens =
            (int64_t)or_default(params->seq_tokens, (double)qr_min(DEFAULT_SEQ_TOKENS, model->shape.context_tokens)),
        .batch_size = (int64_t)or_default(params->batch_size, 1),
        .grad_accum = (int64_t)or_default(params->grad_accum, 1),
        .max_steps = params->max_steps,
        .seed = params->seed,
        .save_every = params->save_every,
        .keep = (int64_t)or_default(params->keep, DEFAULT_KEEP),
        .now = (int64_t)time(NULL) / SECONDS_A_DAY * SECONDS_A_DAY,
    };
    if (s->seq_tokens > model->shape.context_tokens || s->seq_tokens < 2) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a sequence length of %lld is not possible: this model is made for 2 to %lld",
                       (long long)s->seq_tokens, (long long)model->shape.context_tokens);
    }
    s->out = qr_strdup(params->out);
    s->targets = qr_strdup(params->targets != NULL ? params->targets : "all");
    if (s->out == NULL || s->targets == NULL) { return qr_fail_memory(err, "the settings", strlen(params->out)); }
    s->lora.targets = s->targets;
    return QRUN_OK;
}

/* What a checkpoint must agree with, written so that a person can compare. */
static qrun_status make_fingerprint(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    const qr_dataset_info *data = qr_dataset_get_info(trainer->dataset);
    const qr_model_shape *m = &trainer->model->shape;
    qr_buffer text = {0};
    qr_buffer_append_format(&text, "{\"family\":\"%s\",\"hidden\":%lld,\"layers\":%lld,\"vocab\":%lld,",
                            trainer->model->family->name, (long long)m->hidden, (long long)m->n_layers,
                            (long long)m->vocab);
    qr_buffer_append_format(
        &text, "\"weights\":\"%s\",\"compute\":\"%s\",\"examples\":%lld,\"tokens\":%lld,\"targets\":%lld,",
        qr_weight_format_name(trainer->model->linear_format), qr_dtype_name(trainer->model->act_dtype),
        (long long)data->n_examples, (long long)data->n_tokens, (long long)data->n_targets);
    qr_buffer_append_text(&text, "\"lora_targets\":");
    qr_buffer_append_json_string(&text, s->targets, strlen(s->targets));
    qr_buffer_append_format(&text, ",\"rank\":%d,\"alpha\":%.9g,\"rslora\":%s,", s->lora.rank, (double)s->lora.alpha,
                            s->lora.rslora ? "true" : "false");
    qr_buffer_append_format(&text, "\"optimizer\":%d,\"schedule\":%d,\"learning_rate\":%.17g,\"warmup\":%.17g,",
                            (int)s->optimizer.kind, (int)s->schedule, s->learning_rate, s->warmup);
    qr_buffer_append_format(
        &text, "\"weight_decay\":%.9g,\"max_grad_norm\":%.17g,\"seq_tokens\":%lld,\"batch_size\":%lld,",
        (double)s->optimizer.weight_decay, s->max_grad_norm, (long long)s->seq_tokens, (long long)s->batch_size);
    qr_buffer_append_format(
        &text, "\"grad_accum\":%lld,\"total_steps\":%lld,\"eval_fraction\":%.17g,\"seed\":\"%llu\",\"now\":%lld}",
        (long long)s->grad_accum, (long long)trainer->total_steps, params->eval_fraction, (unsigned long long)s->seed,
        (long long)s->now);
    trainer->fingerprint = qr_buffer_take(&text);
    return trainer->fingerprint != NULL ? QRUN_OK : qr_fail_memory(err, "the settings", 512);
}

/* ---- Data -------------------------------------------------------------------------------------------------------- */

static qrun_status open_dataset(qrun_trainer *trainer, const qrun_train_params *params, const char *path,
                                qr_dataset **dataset, qr_error *err) {
    const qrun_model *model = trainer->model;
    char *cache = params->cache_folder != NULL ? qr_strdup(params->cache_folder)
                                               : qr_path_join(trainer->settings.out, "tokens");
    if (cache == NULL) { return qr_fail_memory(err, "a path", strlen(path)); }
    const qr_dataset_options options = {.path = path, .cache_folder = cache, .model_folder = model->folder,
                                        .seq_len = trainer->settings.seq_tokens, .skip_bad = params->skip_bad,
                                        .now = trainer->settings.now,
                                        .threads = model->context->threads};
    const qrun_status status =
        qr_dataset_open(&options, model->tokenizer->tokenizer, model->tokenizer->chat_template, dataset, err);
    qr_free(cache);
    return status;
}

static qr_batch_options batch_options(const qrun_trainer *trainer, bool shuffle) {
    const qr_train_settings *s = &trainer->settings;
    return (qr_batch_options){.mode = QR_BATCH_PACK, .row_tokens = s->seq_tokens, .batch_rows = s->batch_size,
                              .n_accumulate = s->grad_accum, .shuffle = shuffle, .seed = s->seed};
}

/* Makes the plan of an epoch the current one. */
static qrun_status plan_epoch(qrun_trainer *trainer, int64_t epoch, qr_error *err) {
    if (trainer->epoch_plan != NULL && trainer->planned_epoch == epoch) { return QRUN_OK; }
    qr_batch_plan_destroy(trainer->epoch_plan);
    trainer->epoch_plan = NULL;
    const qr_batch_options options = batch_options(trainer, true);
    trainer->planned_epoch = epoch;
    return qr_batch_plan_create(&trainer->view, &options, epoch, &trainer->epoch_plan, err);
}

/* Steps in n_epochs; a fraction counts by its share of the last epoch's windows. */
static qrun_status count_steps(qrun_trainer *trainer, double n_epochs, int64_t *n_steps, qr_error *err) {
    const int64_t whole = (int64_t)n_epochs;
    qrun_status status = QRUN_OK;
    *n_steps = 0;
    for (int64_t epoch = 0; epoch <= whole && status == QRUN_OK; epoch++) {
        status = plan_epoch(trainer, epoch, err);
        if (status != QRUN_OK) { break; }
        const int64_t windows = qr_batch_plan_windows(trainer->epoch_plan);
        *n_steps += epoch < whole ? windows : (int64_t)((n_epochs - (double)whole) * (double)windows + 0.5);
    }
    *n_steps = qr_max(*n_steps, 1);
    return status;
}

static qrun_status choose_views(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const double fraction = trainer->settings.eval_fraction;
    trainer->view = qr_dataset_view_all(trainer->dataset);
    if (params->eval_data == NULL) {
        return fraction > 0 ? qr_dataset_split(trainer->dataset, fraction, trainer->settings.seed, &trainer->view,
                                               &trainer->eval_view, err)
                            : QRUN_OK;
    }
    const qrun_status status = open_dataset(trainer, params, params->eval_data, &trainer->eval_dataset, err);
    if (status == QRUN_OK) { trainer->eval_view = qr_dataset_view_all(trainer->eval_dataset); }
    return status;
}

static qrun_status open_data(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    qrun_status status = QRUN_OK;
    if (trainer->model->tokenizer == NULL) {
        QR_TRY(qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s has no tokenizer.json, so it cannot be trained on text",
                       trainer->model->folder));
    }
    QR_TRY(qr_folder_create(s->out, err));
    QR_TRY(open_dataset(trainer, params, params->data, &trainer->dataset, err));
    QR_TRY(choose_views(trainer, params, err));
    trainer->total_steps = s->max_steps;
    if (s->max_steps == 0) { QR_TRY(count_steps(trainer, s->epochs, &trainer->total_steps, err)); }
    trainer->warmup_steps =
        s->warmup < 1.0 ? (int64_t)ceil(s->warmup * (double)trainer->total_steps) : (int64_t)s->warmup;
    /* Examples have at least two tokens (one of them a target), so a micro-batch has at most half as many as tokens. */
    const int64_t max_tokens = s->batch_size * s->seq_tokens;
    QR_TRY(qr_train_data_create(max_tokens, max_tokens / 2 + 1, &trainer->data, err));
out:
    return status;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static qr_train_limits limits_of(const qrun_trainer *trainer, const qr_checkpoint_policy *policy) {
    return (qr_train_limits){trainer->data.max_tokens, trainer->data.max_sequences, *policy};
}

static qrun_status plan_with(qrun_trainer *trainer, const qr_checkpoint_policy *policy, qr_plan *plan, qr_error *err) {
    const qr_train_limits limits = limits_of(trainer, policy);
    const qr_lora_parameters *p = &trainer->parameters;
    qr_plan_init(plan);
    plan->entries[QR_PLAN_WEIGHTS].bytes = (int64_t)trainer->model->weight_bytes;
    plan->entries[QR_PLAN_ADAPTERS].bytes = (int64_t)((size_t)p->n_floats * sizeof(float) + p->table_bytes);
    plan->entries[QR_PLAN_GRADIENTS].bytes = p->n_floats * (int64_t)sizeof(float);
    plan->entries[QR_PLAN_OPTIMIZER].bytes =
        (int64_t)(qr_optimizer_bytes(p, trainer->settings.optimizer.kind) +
                  qr_update_scratch_bytes(p, trainer->settings.optimizer.kind));
    return qr_train_pass_plan(trainer->model, p, &limits, plan, err);
}

static void name_policy(qrun_trainer *trainer, const char *given) {
    if (trainer->policy.kind == QR_CHECKPOINT_AUTO) {
        const long long kept = trainer->policy.n, all = trainer->model->shape.n_layers;
        (void)snprintf(trainer->policy_name, sizeof trainer->policy_name, "auto: %lld of %lld kept", kept, all);
    } else {
        (void)snprintf(trainer->policy_name, sizeof trainer->policy_name, "%.20s", given);
    }
}

/* AUTO keeps as many layers as fit; the others must fit as they are. */
static qrun_status choose_policy(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const char *given = params->checkpointing != NULL ? params->checkpointing : "auto";
    const int64_t n_layers = trainer->model->shape.n_layers;
    int64_t total, available;
    qr_machine_memory(&total, &available);
    const int64_t budget =
        params->memory_bytes > 0 ? params->memory_bytes : available / 10 * 9 + (int64_t)trainer->model->weight_bytes;
    qrun_status status = qr_checkpoint_policy_parse(given, n_layers, &trainer->policy, err);
    if (status != QRUN_OK) { return status; }
    trainer->policy.n = trainer->policy.kind == QR_CHECKPOINT_AUTO ? n_layers : trainer->policy.n;
    for (;;) {
        status = plan_with(trainer, &trainer->policy, &trainer->plan, err);
        if (status != QRUN_OK) { return status; }
        if (qr_plan_total(&trainer->plan) <= budget) { break; }
        if (trainer->policy.kind != QR_CHECKPOINT_AUTO || trainer->policy.n == 0) {
            return qr_fail(err, QRUN_ERROR_MEMORY,
                           "this run needs %s with checkpointing %s and the budget is %s; give more --memory, or use "
                           "--checkpointing auto, a smaller --seq-len or --batch-size, or --quant nf4-dq",
                           qr_format_bytes(qr_plan_total(&trainer->plan)).text,
                           trainer->policy.kind == QR_CHECKPOINT_AUTO ? "full" : given, qr_format_bytes(budget).text);
        }
        trainer->policy.n--;
    }
    name_policy(trainer, given);
    return QRUN_OK;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static qrun_status claim_model(qrun_trainer *trainer, qr_error *err) {
    pthread_mutex_lock(&trainer->model->lock);
    const bool busy = trainer->model->n_sessions > 0;
    if (!busy) { trainer->model->n_sessions++; }
    pthread_mutex_unlock(&trainer->model->lock);
    trainer->counted_session = !busy;
    return busy ? qr_fail(err, QRUN_ERROR_BUSY, "the model has sessions or another trainer; end them first") : QRUN_OK;
}

static qrun_status make_memory(qrun_trainer *trainer, qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    const qr_train_limits limits = limits_of(trainer, &trainer->policy);
    qrun_status status = QRUN_OK;
    QR_TRY(qr_lora_parameters_create(&trainer->parameters, trainer->settings.seed, err));
    QR_TRY(qr_optimizer_create(&trainer->parameters, &trainer->settings.optimizer, &trainer->optimizer, err));
    const size_t scratch_bytes = qr_update_scratch_bytes(&trainer->parameters, trainer->settings.optimizer.kind);
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, scratch_bytes, &trainer->scratch, err));
    trainer->scratch_bytes = scratch_bytes;
    QR_TRY(qr_train_pass_create(trainer->model, &trainer->parameters, &limits, &trainer->pass, err));
out:
    return status;
}

qrun_status qrun_trainer_create(qrun_model *model, const qrun_train_params *params, qrun_trainer **trainer,
                                qrun_error *error) {
    *trainer = NULL;
    qrun_trainer *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the trainer", sizeof *made); }
    made->model = model;
    qrun_status status = QRUN_OK;
    QR_TRY(check_params(params, error));
    QR_TRY(claim_model(made, error));
    QR_TRY(settle(model, params, &made->settings, error));
    if (!params->restart) { QR_TRY(qr_trainer_stored_now(made, &made->settings.now, error)); }
    QR_TRY(open_data(made, params, error));
    QR_TRY(qr_lora_parameters_describe(model, &made->settings.lora, &made->parameters, error));
    QR_TRY(choose_policy(made, params, error));
    QR_TRY(make_fingerprint(made, params, error));
    QR_TRY(make_memory(made, error));
    made->begins_anew = params->restart;
    if (!params->restart) { QR_TRY(qr_trainer_resume(made, error)); }
    made->first_step = made->state.step + 1;
out:
    if (status == QRUN_OK) {
        *trainer = made;
    } else {
        qrun_trainer_destroy(made);
    }
    return status;
}

void qrun_trainer_destroy(qrun_trainer *trainer) {
    if (trainer == NULL) { return; }
    qr_backend *backend = trainer->model->context->backend;
    qr_train_pass_destroy(trainer->pass);
    qr_optimizer_destroy(trainer->optimizer);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, trainer->scratch, trainer->scratch_bytes);
    qr_lora_parameters_destroy(&trainer->parameters);
    qr_train_data_destroy(&trainer->data);
    qr_batch_plan_destroy(trainer->epoch_plan);
    qr_dataset_close(trainer->dataset);
    qr_dataset_close(trainer->eval_dataset);
    if (trainer->counted_session) {
        pthread_mutex_lock(&trainer->model->lock);
        trainer->model->n_sessions--;
        pthread_mutex_unlock(&trainer->model->lock);
    }
    qr_free(trainer->settings.out);
    qr_free(trainer->settings.targets);
    qr_free(trainer->fingerprint);
    qr_free(trainer);
}

/* ---- What it is -------------------------------------------------------------------------------------------------- */

qrun_status qrun_trainer_get_info(const qrun_trainer *trainer, qrun_train_info *info, qrun_error *error) {
    if (info->struct_size != sizeof *info) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT,
                       "qrun_train_info has an unknown size; begin with QRUN_TRAIN_INFO_INIT");
    }
    const qr_dataset_info *data = qr_dataset_get_info(trainer->dataset);
    const qr_lora_parameters *p = &trainer->parameters;
    const qr_backend *backend = trainer->model->context->backend;
    size_t now, peak;
    backend->memory_held(backend, &now, &peak);
    int64_t n_trainable = 0;
    for (int64_t i = 0; i < p->n_pairs; i++) { n_trainable += p->rank * (p->pairs[i].in + p->pairs[i].out); }
    *info = (qrun_train_info){
        .struct_size = sizeof *info,
        .data_format = qr_dataset_format_name((qr_dataset_format)data->format),
        .n_examples = trainer->view.n,
        .n_eval_examples = trainer->eval_view.n,
        .n_dropped = data->n_without_target,
        .n_truncated = data->n_truncated,
        .n_bad_lines = data->n_bad,
        .n_tokens = data->n_tokens,
        .n_target_tokens = data->n_targets,
        .n_trainable = n_trainable,
        .total_steps = trainer->total_steps,
        .first_step = trainer->first_step,
        .checkpointing = trainer->policy_name,
        .planned_bytes = qr_plan_total(&trainer->plan),
        .peak_bytes = (int64_t)peak,
    };
    return QRUN_OK;
}

const qrun_plan_entry *qrun_trainer_plan(const qrun_trainer *trainer, int32_t *n_entries) {
    *n_entries = QR_PLAN_COUNT;
    return trainer->plan.entries;
}

qrun_status qrun_trainer_show_example(const qrun_trainer *trainer, int64_t example, char **text, qrun_error *error) {
    *text = NULL;
    if (example < 0 || example >= qr_dataset_count(trainer->dataset)) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "there are %lld examples, so none is number %lld",
                       (long long)qr_dataset_count(trainer->dataset), (long long)example);
    }
    qr_buffer out = {0};
    const qrun_status status = qr_dataset_show(trainer->dataset, example, "\xC2\xAB", "\xC2\xBB", &out, error);
    if (status == QRUN_OK) { *text = qr_buffer_take(&out); }
    qr_buffer_free(&out);
    return status != QRUN_OK || *text != NULL ? status : qr_fail_memory(error, "an example", 0);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static qrun_status run_micro_batch(qrun_trainer *trainer, const qr_dataset *dataset, const qr_micro_batch *micro,
                                   float loss_scale, bool backward, double *loss, qr_error *err) {
    double sum = 0;
    qr_train_data_fill(&trainer->data, dataset, micro);
    const qrun_status status = qr_train_pass_run(trainer->pass, &trainer->data.batch, loss_scale, backward, &sum, err);
    *loss += sum;
    return status;
}

static qrun_status accumulate(qrun_trainer *trainer, const qr_batch_window *window, double *loss, qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    const qr_lora_parameters *p = &trainer->parameters;
    const float loss_scale = 1.0F / (float)window->n_targets; /* once, over all micro-batches of the step */
    qrun_status status = backend->fill_zero(backend, p->gradients, (size_t)p->n_floats * sizeof(float), err);
    for (int64_t i = 0; i < window->n_micro_batches && status == QRUN_OK; i++) {
        const qr_micro_batch micro = qr_batch_plan_micro_batch(trainer->epoch_plan, window->first + i);
        status = run_micro_batch(trainer, trainer->dataset, &micro, loss_scale, true, loss, err);
    }
    return status;
}

static void advance(qrun_trainer *trainer) {
    qr_train_cursor *cursor = &trainer->state.cursor;
    trainer->state.step++;
    cursor->window++;
    if (cursor->window == qr_batch_plan_windows(trainer->epoch_plan)) {
        *cursor = (qr_train_cursor){cursor->epoch + 1, 0};
    }
}

static double epoch_of(const qrun_trainer *trainer) {
    const qr_train_cursor *cursor = &trainer->state.cursor;
    return (double)cursor->epoch + (double)cursor->window / (double)qr_batch_plan_windows(trainer->epoch_plan);
}

static qrun_status run_step(qrun_trainer *trainer, qrun_train_metrics *metrics, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    const double start = qr_now_seconds();
    qrun_status status = QRUN_OK;
    qr_update_result update = {0};
    double loss = 0;
    QR_TRY(plan_epoch(trainer, trainer->state.cursor.epoch, err));
    const qr_batch_window window = qr_batch_plan_window(trainer->epoch_plan, trainer->state.cursor.window);
    QR_TRY(accumulate(trainer, &window, &loss, err));
    const int64_t step = trainer->state.step + 1;
    const double rate =
        s->learning_rate * qr_schedule_factor(s->schedule, step, trainer->warmup_steps, trainer->total_steps);
    update.skipped = !isfinite(loss);
    if (!update.skipped) {
        QR_TRY(qr_update_run(&trainer->parameters, trainer->optimizer, step, rate, s->max_grad_norm, trainer->scratch,
                             &update, err));
    }
    advance(trainer);
    *metrics = (qrun_train_metrics){.struct_size = sizeof *metrics,
                                    .step = step,
                                    .epoch = epoch_of(trainer),
                                    .loss = loss / (double)window.n_targets,
                                    .learning_rate = rate,
                                    .grad_norm = update.grad_norm,
                                    .skipped = update.skipped,
                                    .n_tokens = window.n_tokens,
                                    .n_target_tokens = window.n_targets,
                                    .seconds = qr_now_seconds() - start};
out:
    return status;
}

qrun_status qrun_trainer_step(qrun_trainer *trainer, qrun_train_metrics *metrics, bool *done, qrun_error *error) {
    if (metrics->struct_size != sizeof *metrics) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT,
                       "qrun_train_metrics has an unknown size; begin with QRUN_TRAIN_METRICS_INIT");
    }
    *done = trainer->state.step >= trainer->total_steps;
    if (*done) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "all %lld steps are done", (long long)trainer->total_steps);
    }
    pthread_mutex_lock(&trainer->model->context->compute_lock);
    qrun_status status = run_step(trainer, metrics, error);
    pthread_mutex_unlock(&trainer->model->context->compute_lock);
    if (status != QRUN_OK) { return status; }
    *done = trainer->state.step >= trainer->total_steps;
    const int64_t every = trainer->settings.save_every;
    if (every > 0 && trainer->state.step % every == 0 && !*done) { status = qrun_trainer_save(trainer, error); }
    return status;
}

qrun_status qrun_trainer_evaluate(qrun_trainer *trainer, double *loss, qrun_error *error) {
    *loss = 0;
    if (trainer->eval_view.n == 0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT,
                       "there are no examples to evaluate on; give --eval-data or --eval-split");
    }
    const qr_dataset *dataset = trainer->eval_view.dataset;
    const qr_batch_options options = batch_options(trainer, false);
    qr_batch_plan *plan;
    qrun_status status = qr_batch_plan_create(&trainer->eval_view, &options, 0, &plan, error);
    if (status != QRUN_OK) { return status; }
    int64_t n_targets = 0;
    pthread_mutex_lock(&trainer->model->context->compute_lock);
    for (int64_t i = 0; i < qr_batch_plan_micro_batches(plan) && status == QRUN_OK; i++) {
        const qr_micro_batch micro = qr_batch_plan_micro_batch(plan, i);
        status = run_micro_batch(trainer, dataset, &micro, 0, false, loss, error);
        n_targets += micro.n_targets;
    }
    pthread_mutex_unlock(&trainer->model->context->compute_lock);
    qr_batch_plan_destroy(plan);
    *loss /= (double)qr_max(n_targets, 1);
    return status;
}
