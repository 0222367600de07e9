#include "runtime/train/trainer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/params.h"
#include "base/sizes.h"
#include "runtime/folders/export.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/model_open.h"
#include "runtime/model/vocabulary.h"
#include "runtime/pass/whole_shards.h"
#include "runtime/train/schedule.h"

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static qrun_status claim_model(qrun_trainer *trainer, qr_error *err) {
    pthread_mutex_lock(&trainer->model->lock);
    const bool busy = trainer->model->n_sessions > 0;
    if (!busy) { trainer->model->n_sessions++; }
    pthread_mutex_unlock(&trainer->model->lock);
    trainer->counted_session = !busy;
    return busy ? qr_fail(err, QRUN_ERROR_BUSY, "the model has sessions or another trainer; end them first") : QRUN_OK;
}

/* The weights trained whole. Where the examples have a token without a row, the tables get rows for all of the
 * tokenizer's tokens. */
static qrun_status describe_whole(qrun_trainer *trainer, qr_error *err) {
    qrun_model *model = trainer->model;
    const qr_dataset *dataset = trainer->dataset;
    int64_t example = 0;
    int32_t id = -1;
    bool has_new = qr_new_token_find(model, dataset, &id, &example);
    if (!has_new) {
        dataset = trainer->eval_dataset;
        has_new = qr_new_token_find(model, dataset, &id, &example);
    }
    if (has_new) { trainer->settings.whole.n_token_rows = qr_model_tokenizer_ids(model); }
    QR_RETURN_IF_ERROR(qr_whole_parameters_describe(&trainer->parameters, &trainer->settings.whole, err));
    if (id < model->shape.vocab) { return QRUN_OK; }
    return qr_new_token_refuse(model, dataset, example, id, err);
}

/* Whether a layer's gradients become part of a sum before the backward pass comes to the next layer: of this rank's own
 * where it adds up several micro-batches itself, or of the shards of others. */
static bool adds_layers(const qr_train_settings *s) {
    const qr_deal deal = qr_deal_make(s->grad_accum, s->grad_sums, 0, s->n_ranks); /* alike for all ranks */
    return qr_deal_own_unfinished(&deal) > 0 || (s->zero > 1 && s->n_ranks > 1);
}

qrun_status qr_trainer_describe_parameters(qrun_trainer *trainer, qr_error *err) {
    trainer->parameters.model = trainer->model;
    trainer->parameters.backend = trainer->model->context->backend;
    const bool full = trainer->settings.whole.full;
    if (full) { QR_RETURN_IF_ERROR(qr_model_export_check(trainer->model, trainer->settings.out, err)); }
    QR_RETURN_IF_ERROR(describe_whole(trainer, err));
    if (!full) { QR_RETURN_IF_ERROR(qr_lora_parameters_describe(&trainer->parameters, &trainer->settings.lora, err)); }
    if (trainer->settings.offload_gradients) {
        qr_parameters_hold_on_host(&trainer->parameters, trainer->model->context->processor);
    } else if (adds_layers(&trainer->settings)) {
        qr_parameters_share_gradients(&trainer->parameters, 1);
    }
    return QRUN_OK;
}

static void shard_values(qrun_trainer *trainer) {
    qr_parameters *p = &trainer->parameters;
    qr_parameters_shard_values(p, &trainer->shards);
    p->read_values = qr_trainer_read_values;
    p->read_values_user = trainer;
    qr_whole_shards_attach(p);
}

qrun_status qr_trainer_make_parameters(qrun_trainer *trainer, qr_error *err) {
    qr_gradient_options gradients;
    qr_optimizer_options optimizer;
    qr_trainer_shard(trainer, &trainer->parameters, &trainer->shards, &gradients, &optimizer);
    if (gradients.values_stay) { shard_values(trainer); }
    QR_RETURN_IF_ERROR(qr_parameters_create(&trainer->parameters, err));
    QR_RETURN_IF_ERROR(qr_whole_parameters_create(&trainer->parameters, &trainer->settings.whole, err));
    if (!trainer->settings.whole.full) {
        QR_RETURN_IF_ERROR(qr_lora_parameters_create(&trainer->parameters, trainer->settings.seed, err));
        if (trainer->settings.adapter != NULL) {
            QR_RETURN_IF_ERROR(qr_initial_adapter_load(trainer->settings.adapter, &trainer->parameters, err));
        }
        QR_RETURN_IF_ERROR(qr_lora_parameters_keep_reference(&trainer->parameters, err));
    }
    return QRUN_OK;
}

qrun_status qr_trainer_make_memory(qrun_trainer *trainer, qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    const qr_train_limits limits = qr_trainer_limits(trainer);
    qr_gradient_options gradients;
    qr_optimizer_options optimizer;
    qr_workspace *scratch = &trainer->scratch;
    size_t scratch_bytes;
    int64_t copied_bytes;
    qr_trainer_shard(trainer, &trainer->parameters, &trainer->shards, &gradients, &optimizer);
    if (trainer->optimizer == NULL) {
        QR_RETURN_IF_ERROR(qr_optimizer_create(&trainer->parameters, &optimizer, &trainer->optimizer, err));
    }
    QR_RETURN_IF_ERROR(
        qr_gradient_sum_create(&trainer->parameters, trainer->ranks, &gradients, &trainer->gradient_sum, err));
    QR_RETURN_IF_ERROR(qr_update_plan(&trainer->parameters, &optimizer, &scratch_bytes, &copied_bytes, err));
    QR_RETURN_IF_ERROR(backend->memory_create(backend, qr_parameters_memory(&trainer->parameters), scratch_bytes,
                                              &scratch->memory, err));
    scratch->n_bytes = scratch_bytes;
    QR_RETURN_IF_ERROR(qr_train_loader_create(backend, limits.max_tokens, limits.max_sequences, &trainer->loader, err));
    QR_RETURN_IF_ERROR(qr_train_pass_create(&trainer->parameters, &limits, &trainer->pass, err));
    qr_trainer_name_memory(trainer);
    qr_train_pass_watch(trainer->pass, &trainer->cancelled);
    qr_train_pass_on_layer(trainer->pass, qr_gradient_sum_layer, trainer->gradient_sum);
    trainer->late = (qr_late_layers){qr_trainer_update_layer, trainer, trainer->model->shape.n_layers};
    trainer->model->late = &trainer->late;
    return QRUN_OK;
}

void qr_trainer_release_memory(qrun_trainer *trainer) {
    qr_backend *backend = trainer->model->context->backend;
    if (trainer->counted_session) { /* else they may be another trainer's */
        trainer->model->late = NULL;
        qr_timeline_drop_tensors(backend, NULL, 0);
    }
    qr_train_pass_destroy(trainer->pass);
    qr_gradient_sum_destroy(trainer->gradient_sum);
    backend->memory_destroy(backend, qr_parameters_memory(&trainer->parameters), trainer->scratch.memory,
                            trainer->scratch.n_bytes);
    qr_train_loader_destroy(trainer->loader);
    qr_epoch_batches_destroy(trainer->epoch_batches);
    trainer->pass = NULL;
    trainer->gradient_sum = NULL;
    trainer->scratch = QR_NO_WORKSPACE;
    trainer->loader = NULL;
    trainer->epoch_batches = NULL;
}

/* Everything but what has to be agreed on; a rank that is not 0 finds what rank 0 has put into the folder. */
static qrun_status prepare(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const bool has_folder = !params->data.random_tokens, leads = qr_ranks_leads(trainer->ranks);
    const bool resumes = has_folder && !params->saving.restart;
    if (has_folder && leads) { QR_RETURN_IF_ERROR(qr_trainer_enter_folder(trainer, err)); }
    if (resumes) { QR_RETURN_IF_ERROR(qr_trainer_take_stored(trainer, err)); }
    qr_train_settings_date(trainer->settings.now, trainer->date);
    QR_RETURN_IF_ERROR(qr_trainer_open_data(trainer, params, err));
    QR_RETURN_IF_ERROR(qr_trainer_describe_parameters(trainer, err));
    QR_RETURN_IF_ERROR(qr_trainer_plan_memory(trainer, params, err));
    QR_RETURN_IF_ERROR(qr_trainer_count_flops(trainer, err));
    QR_RETURN_IF_ERROR(qr_trainer_make_fingerprint(trainer, err));
    QR_RETURN_IF_ERROR(qr_trainer_make_parameters(trainer, err));
    QR_RETURN_IF_ERROR(qr_trainer_make_memory(trainer, err));
    trainer->restarts = params->saving.restart;
    if (resumes) { QR_RETURN_IF_ERROR(qr_trainer_resume(trainer, err)); }
    if (has_folder && leads) { QR_RETURN_IF_ERROR(qr_trainer_refuse_foreign(trainer, err)); }
    QR_RETURN_IF_ERROR(qr_whole_parameters_refresh(&trainer->parameters, trainer->scratch, err));
    trainer->first_step = trainer->state.step + 1;
    return QRUN_OK;
}

/* Weights that are trained and come through stages are written there from host memory, and only one rank has them. */
static qrun_status check_offload(const qrun_trainer *trainer, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    const bool offloads_layers = trainer->model->stream != NULL && !qr_layer_stream_is_sharded(trainer->model);
    if (trainer->model->host_experts.computed) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "the processor computes this model's experts (%s), and the backward pass is the device's; open "
                       "the model with `expert_compute=device`",
                       trainer->model->host_experts.note);
    }
    if (s->offload_gradients && s->n_ranks > 1) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "`offload_gradients` is for one rank; with several, `zero=2` and `zero=3` share gradients out");
    }
    if (s->whole.full && offloads_layers && !s->offload_gradients) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`offload_parameters` with `full` needs `offload_gradients`: weights that are trained in host "
                       "memory are updated there");
    }
    return QRUN_OK;
}

/* Those that were launched; a plan alone may be of others. */
static qrun_status take_ranks(qrun_trainer *trainer, qr_error *err) {
    qr_train_settings *s = &trainer->settings;
    const int32_t n_ranks = qr_ranks_count(trainer->ranks);
    if (s->n_ranks > 0 && s->n_ranks != n_ranks) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`n_ranks` is %d, and %d rank%s launched; leave it at 0, as it is for plans", (int)s->n_ranks,
                       (int)n_ranks, n_ranks > 1 ? "s were" : " was");
    }
    s->n_ranks = n_ranks;
    s->rank = qr_ranks_own(trainer->ranks);
    return QRUN_OK;
}

/* Weights in shards are for stage 3, and it needs them. */
static qrun_status check_shards(const qrun_trainer *trainer, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    const bool sharded = qr_layer_stream_is_sharded(trainer->model), wanted = s->zero == 3 && s->n_ranks > 1;
    if (sharded != wanted) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       sharded ? "a model opened with `shard_parameters` is trained with `zero=3`"
                               : "`zero=3` needs a model opened with `shard_parameters`");
    }
    return QRUN_OK;
}

/* Rank 0 prepares first: it tokenises the data, which the others then find. */
static qrun_status prepare_together(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    qr_collectives *ranks = trainer->ranks;
    qrun_status status = qr_train_settings_make(trainer->model, params, &trainer->settings, err);
    trainer->state.loss_scale = trainer->settings.loss_scale;
    if (status == QRUN_OK) { status = take_ranks(trainer, err); }
    if (status == QRUN_OK) { status = check_shards(trainer, err); }
    if (status == QRUN_OK) { status = check_offload(trainer, err); }
    if (status == QRUN_OK) { status = claim_model(trainer, err); }
    if (status == QRUN_OK && qr_ranks_leads(ranks)) { status = prepare(trainer, params, err); }
    QR_RETURN_IF_ERROR(qr_ranks_agree(ranks, status, err));
    if (ranks == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_broadcast(ranks, &trainer->settings.now, sizeof trainer->settings.now, 0, err));
    trainer->led_policy = trainer->policy;
    QR_RETURN_IF_ERROR(qr_broadcast(ranks, &trainer->led_policy, sizeof trainer->led_policy, 0, err));
    trainer->has_led_policy = !qr_ranks_leads(ranks) && qr_layer_stream_is_sharded(trainer->model);
    if (!qr_ranks_leads(ranks)) { status = prepare(trainer, params, err); }
    QR_RETURN_IF_ERROR(qr_agree(ranks, status, err));
    QR_RETURN_IF_ERROR(qr_trainer_compare_ranks(trainer, err));
    if (trainer->state.step == 0 && trainer->settings.adapter == NULL) {
        status = qr_train_pass_put_magnitudes(trainer->pass, err);
        QR_RETURN_IF_ERROR(qr_agree(ranks, status, err));
    }
    trainer->joined = true;
    return QRUN_OK;
}

qrun_status qrun_trainer_create(qrun_model *model, const qrun_train_params *params, qrun_trainer **trainer,
                                qrun_error *error) {
    *trainer = NULL;
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_train_params, params, error));
    qrun_trainer *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the trainer", sizeof *made); }
    made->model = model;
    made->ranks = model->context->ranks;
    made->out_lock = -1;
    made->progress = params->callbacks.progress;
    made->progress_user = params->callbacks.progress_user;
    made->on_metrics = params->callbacks.on_metrics;
    made->metrics_user = params->callbacks.metrics_user;
    const qrun_status status = prepare_together(made, params, error);
    if (status != QRUN_OK) {
        qr_trainer_leave_folder(made);
        qrun_trainer_destroy(made);
        return status;
    }
    *trainer = made;
    return QRUN_OK;
}

void qrun_trainer_destroy(qrun_trainer *trainer) {
    if (trainer == NULL) { return; }
    qr_backend *backend = trainer->model->context->backend;
    if (trainer->joined && qr_ranks_leads(trainer->ranks)) {
        (void)qr_ranks_lead(trainer->ranks, QR_RANK_END, 0, 0, NULL);
        if (trainer->ranks != NULL) { qr_collectives_settle(trainer->ranks); }
    }
    if (trainer->parameters.shards != NULL) { qr_layer_stream_set_source(trainer->model, backend, NULL); }
    if (trainer->counted_session) { (void)qr_trainer_end_update(trainer, NULL); } /* the model keeps its weights */
    qr_trainer_release_memory(trainer);
    qr_optimizer_destroy(trainer->optimizer);
    qr_parameters_destroy(&trainer->parameters);
    qr_shares_destroy(trainer->shares);
    qr_free(trainer->files);
    qr_dataset_close(trainer->dataset);
    qr_dataset_close(trainer->eval_dataset);
    if (trainer->counted_session) { (void)qr_model_count_sessions(trainer->model, -1); }
    qr_folder_unlock(&trainer->out_lock);
    qr_train_settings_free(&trainer->settings);
    qr_free(trainer->fingerprint);
    qr_free(trainer);
}

/* ---- A plan alone ------------------------------------------------------------------------------------------------ */

static qrun_status copy_plan(const qrun_trainer *trainer, qrun_plan_entry **entries, int32_t *n_entries,
                             char **checkpointing, qr_error *err) {
    char *name = NULL;
    if (checkpointing != NULL && (name = qr_strdup(trainer->policy_name)) == NULL) {
        return qr_fail_memory(err, "the plan", sizeof trainer->policy_name);
    }
    const qrun_status status = qr_plan_copy(&trainer->plan, QR_PLAN_COUNT, entries, err);
    if (status != QRUN_OK) {
        qr_free(name);
        return status;
    }
    *n_entries = QR_PLAN_COUNT;
    if (checkpointing != NULL) { *checkpointing = name; }
    return QRUN_OK;
}

static qrun_plan_info describe_plan(const qrun_trainer *trainer, bool fits) {
    return (qrun_plan_info){
        .struct_size = sizeof(qrun_plan_info),
        .fits = fits,
        .n_parameters = trainer->model->n_parameters,
        .total_bytes = qr_plan_total(&trainer->plan),
        .budget_bytes = trainer->budget.bytes,
        .available_bytes = trainer->memory.free_bytes + (int64_t)trainer->model->weight_bytes,
        .flops = trainer->cost.pass.flops,
        .copied_bytes = trainer->cost.pass.copied_bytes,
        .update_copied_bytes = trainer->cost.update_copied_bytes,
        .tile_rows = (int32_t)qr_trainer_tile_rows(trainer),
        .rank = trainer->cost.rank,
        .sent_bytes = trainer->cost.sent_bytes,
        .ring_bytes = trainer->cost.ring_bytes,
    };
}

qrun_status qrun_plan_training(qrun_context *context, const qrun_model_params *model_params,
                               const qrun_train_params *params, qrun_plan_entry **entries, int32_t *n_entries,
                               char **checkpointing, qrun_plan_info *info, qrun_error *error) {
    *entries = NULL;
    *n_entries = 0;
    if (checkpointing != NULL) { *checkpointing = NULL; }
    if (info != NULL) { QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_plan_info, info, error)); }
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_train_params, params, error));
    qrun_model model;
    qr_safetensors *source = NULL;
    qrun_train_params wanted = *params;
    wanted.data.random_tokens = true; /* no data, nothing to save */
    qrun_trainer *trainer = qr_alloc_zeroed(sizeof *trainer);
    if (trainer == NULL) { return qr_fail_memory(error, "the plan", sizeof *trainer); }
    trainer->model = &model;
    trainer->out_lock = -1;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_model_prepare(context, model_params, &model, &source, error));
    QR_TRY(qr_train_settings_make(&model, &wanted, &trainer->settings, error));
    if (trainer->settings.n_ranks == 0) { trainer->settings.n_ranks = 1; }
    if (trainer->settings.zero == 3 && trainer->settings.n_ranks > 1) {
        QR_TRY(qr_layer_stream_shard(&model, NULL, trainer->settings.n_ranks, error));
    }
    QR_TRY(check_shards(trainer, error));
    QR_TRY(check_offload(trainer, error));
    QR_TRY(qr_trainer_choose_seq_tokens(trainer, &wanted, error));
    QR_TRY(qr_trainer_choose_batch(trainer, &wanted, error));
    QR_TRY(qr_trainer_describe_parameters(trainer, error));
    status = qr_trainer_plan_memory(trainer, &wanted, error);
    if (status == QRUN_OK || (status == QRUN_ERROR_MEMORY && trainer->policy_name[0] != '\0')) {
        const qrun_status copied = copy_plan(trainer, entries, n_entries, checkpointing, error);
        if (info != NULL) { *info = describe_plan(trainer, status == QRUN_OK); }
        status = status == QRUN_OK ? copied : status;
    }
out:
    qrun_trainer_destroy(trainer);
    qr_safetensors_close(source);
    qr_model_release(&model);
    return status;
}

/* ---- Information ------------------------------------------------------------------------------------------------- */

qrun_status qrun_trainer_get_info(const qrun_trainer *trainer, qrun_train_info *info, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_train_info, info, error));
    const qr_dataset_info *data = qr_dataset_get_info(trainer->dataset);
    const qr_backend *backend = trainer->model->context->backend;
    const qr_train_settings *s = &trainer->settings;
    const int64_t n_before = trainer->earlier_total_steps, next = trainer->first_step;
    const double before =
        qr_schedule_factor(s->schedule, next - 1, qr_trainer_warmup_steps(trainer, n_before), n_before);
    const double after = qr_schedule_factor(s->schedule, next, trainer->warmup_steps, trainer->total_steps);
    *info = (qrun_train_info){
        .struct_size = sizeof *info,
        .files = trainer->files,
        .n_files = (int32_t)qr_dataset_count_files(trainer->dataset),
        .data_format = trainer->files[0].data_format,
        .n_examples = trainer->view.n,
        .n_eval_examples = trainer->eval_view.n,
        .n_dropped = data->n_without_target,
        .n_truncated = data->n_truncated,
        .n_bad_lines = data->n_bad,
        .first_bad = data->first_bad,
        .n_tokens = trainer->n_epoch_tokens,
        .n_target_tokens = trainer->n_epoch_targets,
        .n_trainable = qr_parameters_count(&trainer->parameters),
        .best_step = trainer->state.best_step,
        .best_loss = trainer->state.best_loss,
        .n_not_better = (int32_t)trainer->state.n_not_better,
        .stopped_early = qr_trainer_stopped_early(trainer),
        .total_steps = trainer->total_steps,
        .first_step = trainer->first_step,
        .earlier_total_steps = n_before,
        .earlier_learning_rate = n_before > 0 ? s->learning_rate * before : 0,
        .next_learning_rate = n_before > 0 ? s->learning_rate * after : 0,
        .checkpointing = trainer->policy_name,
        .tile_rows = (int32_t)qr_trainer_tile_rows(trainer),
        .planned_bytes = qr_plan_total(&trainer->plan),
        .peak_bytes = qr_device_memory_peak(backend),
        .planned_host_bytes = qr_plan_host_total(&trainer->plan),
        .peak_host_bytes = qr_device_memory_host_peak(backend),
        .flops_per_token = trainer->flops_per_token,
        .n_replans = trainer->n_replans,
        .replanned = trainer->replanned,
        .step_sent_bytes = trainer->cost.sent_bytes,
        .sent_bytes = trainer->ranks != NULL ? trainer->ranks->sent_bytes : 0,
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
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "example %lld does not exist: the examples are 0 to %lld",
                       (long long)example, (long long)qr_dataset_count(trainer->dataset) - 1);
    }
    qr_buffer out = {0};
    const qrun_status status = qr_dataset_show(trainer->dataset, example, "\xC2\xAB", "\xC2\xBB", &out, error);
    if (status == QRUN_OK) { *text = qr_buffer_take(&out); }
    qr_buffer_free(&out);
    return status != QRUN_OK || *text != NULL ? status : qr_fail_memory(error, "an example", 0);
}

/* ---- The result -------------------------------------------------------------------------------------------------- */

qrun_status qr_trainer_write_result(qrun_trainer *trainer, const char *folder, qr_error *err) {
    if (trainer->settings.whole.full) { return qr_model_export(&trainer->parameters, folder, err); }
    const qr_lora_options *lora = &trainer->settings.lora;
    const qr_adapter_export_options options = {
        .alpha = (double)lora->alpha, .dropout = lora->dropout, .rslora = lora->rslora};
    return qr_adapter_export(&trainer->parameters, &options, folder, err);
}

qrun_status qrun_trainer_export(qrun_trainer *trainer, qrun_error *error) {
    QR_RETURN_IF_ERROR(qr_trainer_require_out(trainer, error));
    QR_RETURN_IF_ERROR(qr_trainer_require_whole(trainer, error));
    QR_RETURN_IF_ERROR(qr_trainer_end_update(trainer, error));
    QR_RETURN_IF_ERROR(qr_folder_create(trainer->settings.out, error));
    return qr_trainer_write_result(trainer, trainer->settings.out, error);
}

/* ---- A whole run ------------------------------------------------------------------------------------------------- */

void qrun_trainer_cancel(qrun_trainer *trainer) { atomic_store(&trainer->cancelled, true); }

static qrun_status evaluate(qrun_trainer *trainer, qr_error *err) {
    double loss;
    const qrun_status status = qrun_trainer_evaluate(trainer, &loss, err);
    const bool best = status == QRUN_OK && trainer->state.best_step == trainer->state.step;
    return best ? qrun_trainer_save(trainer, err) : status;
}

static qrun_status finish(qrun_trainer *trainer, qr_error *err) {
    if (!trainer->holds_best) {
        QR_RETURN_IF_ERROR(qrun_trainer_save(trainer, err));
        if (trainer->settings.load_best) { QR_RETURN_IF_ERROR(qrun_trainer_load_best(trainer, err)); }
    }
    return qrun_trainer_export(trainer, err);
}

/* Saves the checkpoint of a cancelled run; returns QRUN_ERROR_CANCELLED unless saving fails. */
static qrun_status leave(qrun_trainer *trainer, qr_error *err) {
    const int64_t step = trainer->state.step;
    if (step == 0) { return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled before the first step was done"); }
    qr_error why = {0};
    qrun_status status = qrun_trainer_save(trainer, &why);
    if (status == QRUN_ERROR_MEMORY) {
        QR_RETURN_IF_ERROR(qrun_trainer_replan(trainer, err));
        QR_RETURN_IF_ERROR(qrun_trainer_save(trainer, err));
    } else if (status != QRUN_OK) {
        return qr_fail(err, status, "%s", why.message);
    }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled after step %lld of %lld, saved in %s/checkpoint-%lld",
                   (long long)step, (long long)trainer->total_steps, trainer->settings.out, (long long)step);
}

/* Until something fails. */
static qrun_status run_rest(qrun_trainer *trainer, qr_error *err) {
    for (qrun_train_action next; (next = qrun_trainer_next(trainer)) != QRUN_TRAIN_DONE;) {
        qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
        qr_error step_error = {0};
        bool done;
        const qrun_status status = next == QRUN_TRAIN_EVALUATE
                                       ? evaluate(trainer, &step_error)
                                       : qrun_trainer_step(trainer, &metrics, &done, &step_error);
        if (status == QRUN_ERROR_CANCELLED) { return leave(trainer, err); }
        if (status != QRUN_OK) { return qr_fail(err, status, "%s", step_error.message); }
    }
    return finish(trainer, err);
}

qrun_status qrun_trainer_run(qrun_trainer *trainer, qrun_error *error) {
    if (!qr_ranks_leads(trainer->ranks)) { return qr_trainer_follow(trainer, error); }
    for (;;) {
        qr_error why = {0};
        const qrun_status status = run_rest(trainer, &why);
        if (status != QRUN_ERROR_MEMORY) {
            return status != QRUN_OK ? qr_fail(error, status, "%s", why.message) : status;
        }
        QR_RETURN_IF_ERROR(qrun_trainer_replan(trainer, error));
    }
}
