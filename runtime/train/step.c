/* A step: the gradients of its micro-batches added up over all ranks, one update, and the position moved on by one
 * batch. */
#include <math.h>

#include "base/clock.h"
#include "base/params.h"
#include "base/random.h"
#include "base/sizes.h"
#include "runtime/train/schedule.h"
#include "runtime/train/trainer.h"

static qr_deal deal_of(const qrun_trainer *trainer, const qr_step_batch *batch) {
    return qr_gradient_sum_deal(trainer->gradient_sum, batch->n_micro_batches);
}

/* The micro-batch of the epoch that this rank computes next after a round; −1: none of this step or the next one. */
static int64_t find_next(const qrun_trainer *trainer, const qr_step_batch *batch, int64_t round) {
    const qr_epoch_batches *batches = trainer->epoch_batches;
    qr_deal deal = deal_of(trainer, batch);
    qr_step_batch of = *batch;
    int64_t next = qr_deal_next(&deal, round);
    if (next < 0 && trainer->state.cursor.batch + 1 < qr_epoch_batches_count_steps(batches)) {
        of = qr_epoch_batches_step(batches, trainer->state.cursor.batch + 1);
        deal = deal_of(trainer, &of);
        next = qr_deal_next(&deal, -1);
    }
    return next < 0 ? -1 : of.first + next;
}

/* Loads this rank's next micro-batch while that of the round is computed. */
static void prepare_next(qrun_trainer *trainer, const qr_step_batch *batch, int64_t round) {
    const bool more_steps = trainer->state.step + 1 < trainer->total_steps;
    const int64_t end = batch->first + batch->n_micro_batches;
    const qr_micro_source next = {trainer->dataset, trainer->epoch_batches, find_next(trainer, batch, round)};
    if (next.index >= 0 && (next.index < end || more_steps)) {
        qr_train_loader_prepare(trainer->loader, &next);
    } else if (more_steps) {
        const qr_batch_options options = qr_trainer_batch_options(trainer, true);
        qr_train_loader_prepare_epoch(trainer->loader, &trainer->view, &options, trainer->batches_epoch + 1);
    }
}

/* What the loss of so many pairs or targets is divided by. */
static int64_t count_terms(const qrun_trainer *trainer, const qr_step_batch *batch) {
    return qr_preference_has_pairs(&trainer->settings.preference) ? batch->n_examples : batch->n_targets;
}

/* The gradient of micro-batch i of the step, which is this rank's in the round, from zero, and the sums of its loss.
 * *began: the pass has, and with it this rank's part in those of the others. */
static qrun_status run_micro_batch(qrun_trainer *trainer, const qr_step_batch *batch, int64_t round, int64_t i,
                                   double *sums, bool *began, qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    const qr_parameters *p = &trainer->parameters;
    const qr_loss_scale *scale = &trainer->state.loss_scale;
    const float loss_factor = (float)scale->factor / (float)count_terms(trainer, batch); /* of all micro-batches */
    const qr_micro_source source = {trainer->dataset, trainer->epoch_batches, batch->first + i};
    const double asked = qr_timeline_now(backend);
    qr_timeline_phase(backend, QR_PHASE_data);
    qr_train_batch micro_batch = *qr_train_loader_take(trainer->loader, &source);
    qr_timeline_put_host(backend, "micro-batch", QR_PHASE_data, asked);
    QR_RETURN_IF_ERROR(qr_dataset_check(trainer->dataset, err));
    prepare_next(trainer, batch, round);
    micro_batch.dropout_key = qr_hash_mix(qr_hash_mix(trainer->settings.seed) + (uint64_t)trainer->state.step);
    QR_RETURN_IF_ERROR(backend->fill_zero(backend, p->gradients, qr_parameters_gradient_bytes(p), err));
    *began = true;
    return qr_train_pass_run(trainer->pass, &micro_batch, loss_factor, true, sums, err);
}

qrun_status qr_trainer_follow_pass(qrun_trainer *trainer, bool backward, qrun_status status, qr_error *err) {
    if (trainer->ranks == NULL || trainer->ranks->lost) { return status; }
    const qrun_status followed = qr_train_pass_follow(trainer->pass, backward, status == QRUN_OK ? err : NULL);
    return status != QRUN_OK ? status : followed;
}

/* A rank whose pass has failed still sends what the others wait for: then all agree that it has failed. One that is
 * alone is done. */
static qrun_status sum_rest(qrun_trainer *trainer, qrun_status status, qr_error *err) {
    if (trainer->ranks == NULL ? status != QRUN_OK : trainer->ranks->lost) { return status; }
    const qrun_status rest = qr_gradient_sum_rest(trainer->gradient_sum, status == QRUN_OK ? err : NULL);
    return rest == QRUN_OK ? QRUN_OK : status != QRUN_OK ? status : rest;
}

/* A pass that has failed has not come to all layers, and the sum that they are updated from is about to change. What
 * fails leaves the trainer torn. */
static void write_late(const qrun_trainer *trainer) {
    const qrun_model *model = trainer->model;
    (void)qr_layer_stream_write_late(model, model->context->backend, model->shape.n_layers - 1, NULL);
}

/* What this rank does of a step. */
typedef struct own_part {
    double sums[QR_MOST_LOSS_SUMS][QR_MOST_UNFINISHED]; /* of the loss; the first of each is of what it sends */
    qrun_status status;                                 /* how it fares, for all to agree on */
} own_part;

/* The gradient of this rank's micro-batch, and its loss. A rank that has none, or that has failed, takes part in the
 * passes of the others. */
static qrun_status compute_round(qrun_trainer *trainer, const qr_step_batch *batch, const qr_deal *deal, int64_t round,
                                 own_part *own, qr_error *err) {
    const int64_t i = own->status == QRUN_OK ? qr_deal_batch(deal, round) : -1;
    const int n_sums = qr_preference_count_sums(&trainer->settings.preference);
    double sums[QR_MOST_LOSS_SUMS] = {0};
    bool began = false;
    qr_gradient_sum_begin_round(trainer->gradient_sum, round, i);
    if (i >= 0) { own->status = run_micro_batch(trainer, batch, round, i, sums, &began, err); }
    if (!began) { own->status = qr_trainer_follow_pass(trainer, true, own->status, err); }
    write_late(trainer);
    QR_RETURN_IF_ERROR(sum_rest(trainer, own->status, err));
    if (i < 0 || own->status != QRUN_OK) { return QRUN_OK; }
    for (int k = 0; k < n_sums; k++) { qr_sum_order_add(own->sums[k], qr_deal_own_place(deal, i), sums[k]); }
    own->status = qr_gradient_sum_end_batch(trainer->gradient_sum, err);
    return QRUN_OK;
}

/* What ranks send is added up, and what they have of the loss in the same order. */
static qrun_status end_round(qrun_trainer *trainer, const qr_deal *deal, int64_t round, const own_part *own,
                             double (*sums)[QR_MOST_UNFINISHED], qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    const int n_sums = qr_preference_count_sums(&trainer->settings.preference);
    double sent[QR_MOST_LOSS_SUMS], all[QR_MAX_RANKS * QR_MOST_LOSS_SUMS];
    const double computed = qr_timeline_now(backend);
    for (int k = 0; k < n_sums; k++) { sent[k] = own->sums[k][0]; }
    QR_RETURN_IF_ERROR(qr_ranks_share(trainer->ranks, own->status, sent, n_sums, all, err));
    if (deal->n_ranks > 1) { qr_timeline_put_host(backend, "ranks", QR_PHASE_waiting, computed); }
    for (int32_t r = 0; r < qr_deal_count_senders(deal, round); r++) {
        for (int k = 0; k < n_sums; k++) {
            qr_sum_order_add(sums[k], qr_deal_sent_place(deal, round, r), all[(ptrdiff_t)r * n_sums + k]);
        }
    }
    return qr_gradient_sum_end_round(trainer->gradient_sum, err);
}

/* The step's batch is dealt to the ranks (runtime/ranks/sum_order.h). totals [QR_MOST_LOSS_SUMS]: of its loss. */
static qrun_status accumulate(qrun_trainer *trainer, const qr_step_batch *batch, double *totals, qr_error *err) {
    const qr_deal deal = deal_of(trainer, batch);
    double sums[QR_MOST_LOSS_SUMS][QR_MOST_UNFINISHED] = {{0}};
    own_part own = {.status = QRUN_OK};
    qr_gradient_sum_begin(trainer->gradient_sum, &deal);
    for (int64_t round = 0; round < qr_deal_count_rounds(&deal); round++) {
        QR_RETURN_IF_ERROR(compute_round(trainer, batch, &deal, round, &own, err));
        if (qr_deal_sends(&deal, round)) { QR_RETURN_IF_ERROR(end_round(trainer, &deal, round, &own, sums, err)); }
    }
    for (int k = 0; k < QR_MOST_LOSS_SUMS; k++) { totals[k] = sums[k][0]; }
    return QRUN_OK;
}

static void advance(qrun_trainer *trainer) {
    qr_train_cursor *cursor = &trainer->state.cursor;
    trainer->state.step++;
    cursor->batch++;
    if (cursor->batch == qr_epoch_batches_count_steps(trainer->epoch_batches)) {
        *cursor = (qr_train_cursor){cursor->epoch + 1, 0};
    }
}

double qr_trainer_epoch(const qrun_trainer *trainer) {
    const qr_train_cursor *cursor = &trainer->state.cursor;
    if (cursor->batch == 0) { return (double)cursor->epoch; }
    return (double)cursor->epoch + (double)cursor->batch / (double)qr_epoch_batches_count_steps(trainer->epoch_batches);
}

qrun_status qr_trainer_require_whole(const qrun_trainer *trainer, qr_error *err) {
    const qr_error *why = &trainer->broken;
    return why->status == QRUN_OK ? QRUN_OK : qr_fail(err, why->status, "%s", why->message);
}

qrun_status qr_trainer_require_current(const qrun_trainer *trainer, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_trainer_require_whole(trainer, err));
    if (!trainer->holds_best) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "the run is over: its parameters are those of the best evaluation");
}

/* What the update takes gradients from; NULL: from the parameters. */
static qr_gradient_sum *sum_of_update(const qrun_trainer *trainer) {
    return qr_gradient_sum_stays(trainer->gradient_sum) ? trainer->gradient_sum : NULL;
}

/* Layers are updated when the next pass comes to them: on a GPU beside the layer before. After the last step none does.
 */
static bool defers_layers(const qrun_trainer *trainer) {
    return trainer->parameters.processor != NULL && trainer->state.step + 1 < trainer->total_steps;
}

/* What the processor has updated since `asked`, where its ops are not the device's. */
static void put_update(const qrun_trainer *trainer, double asked) {
    qr_backend *backend = trainer->model->context->backend;
    if (qr_parameters_updater(&trainer->parameters) == backend) { return; }
    qr_timeline_put_host(backend, "update", QR_PHASE_optimizer, asked);
}

qrun_status qr_trainer_update_layer(void *user, int64_t l, qr_error *err) {
    qrun_trainer *trainer = user;
    qr_backend *backend = trainer->model->context->backend;
    qr_error why = {0};
    QR_RETURN_IF_ERROR(qr_trainer_require_whole(trainer, err));
    const double asked = qr_timeline_now(backend);
    const qr_phase phase = qr_timeline_phase(backend, QR_PHASE_optimizer);
    const qrun_status status =
        qr_update_layer(&trainer->parameters, trainer->optimizer, &trainer->late_numbers, l, trainer->scratch, &why);
    put_update(trainer, asked);
    qr_timeline_phase(backend, phase);
    if (status == QRUN_OK) { return QRUN_OK; }
    trainer->torn = true;
    trainer->broken = why;
    return qr_fail(err, status, "%s", why.message);
}

qrun_status qr_trainer_end_update(qrun_trainer *trainer, qr_error *err) {
    const qrun_model *model = trainer->model;
    qr_compute_lock(model->context);
    const qrun_status status =
        qr_layer_stream_write_late(model, model->context->backend, model->shape.n_layers - 1, err);
    qr_compute_unlock(model->context);
    return status;
}

/* One update from the gradients; *overflowed where the loss scale was too large for them. A non-finite loss has
 * another cause. */
static qrun_status update(qrun_trainer *trainer, double loss, double rate, qr_update_result *result, bool *overflowed,
                          qr_error *err) {
    qr_train_state *state = &trainer->state;
    const qr_update_args args = {.step = state->updates + 1,
                                 .learning_rate = rate,
                                 .max_grad_norm = trainer->settings.max_grad_norm,
                                 .loss_scale = (float)state->loss_scale.factor,
                                 .sum = sum_of_update(trainer),
                                 .defers_layers = defers_layers(trainer)};
    *overflowed = false;
    *result = (qr_update_result){.skipped = !isfinite(loss)};
    if (result->skipped) { return QRUN_OK; }
    qr_backend *backend = trainer->model->context->backend;
    const double asked = qr_timeline_now(backend);
    qr_timeline_phase(backend, QR_PHASE_optimizer);
    const qrun_status status =
        qr_update_run(&trainer->parameters, trainer->optimizer, &args, trainer->scratch, result, err);
    trainer->torn = status != QRUN_OK && result->began;
    QR_RETURN_IF_ERROR(status);
    if (args.defers_layers && result->began) {
        trainer->late_numbers = result->numbers;
        trainer->late.first = 0;
    }
    put_update(trainer, asked);
    *overflowed = qr_loss_scale_update(&state->loss_scale, result->skipped);
    state->updates += !result->skipped;
    return QRUN_OK;
}

/* The first tensor whose gradient is not finite; *name is unchanged where there is none. */
static qrun_status name_nonfinite(qrun_trainer *trainer, const char **name, qr_error *err) {
    int64_t index;
    const bool stays = qr_optimizer_shards(trainer->optimizer) != NULL;
    QR_RETURN_IF_ERROR(qr_update_find_nonfinite(&trainer->parameters, trainer->optimizer, sum_of_update(trainer),
                                                trainer->scratch, &index, err));
    if (stays) { QR_RETURN_IF_ERROR(qr_ranks_first(trainer->ranks, &index, err)); }
    if (index < 0) { return QRUN_OK; }
    qr_parameter_name(&trainer->parameters, &trainer->parameters.list[index], trainer->nonfinite_name,
                      sizeof trainer->nonfinite_name);
    *name = trainer->nonfinite_name;
    return QRUN_OK;
}

/* What is left of a step once its update is done. An error leaves the update without its step. */
static qrun_status complete(qrun_trainer *trainer, bool names, const char **nonfinite, qr_error *err) {
    qrun_status status = names ? name_nonfinite(trainer, nonfinite, err) : QRUN_OK;
    if (status == QRUN_OK) { status = qr_timeline_stop(trainer->model->context->backend, err); }
    trainer->torn = status != QRUN_OK;
    return status;
}

qrun_rewards qr_trainer_rewards(const qrun_trainer *trainer, const double *sums, int64_t n_pairs) {
    if (!qr_preference_has_pairs(&trainer->settings.preference)) { return (qrun_rewards){0}; }
    const double n = (double)n_pairs;
    return (qrun_rewards){.n_pairs = n_pairs,
                          .chosen = sums[QR_SUM_CHOSEN] / n,
                          .rejected = sums[QR_SUM_REJECTED] / n,
                          .margin = (sums[QR_SUM_CHOSEN] - sums[QR_SUM_REJECTED]) / n,
                          .accuracy = sums[QR_SUM_RIGHT] / n};
}

static qrun_status run_step(qrun_trainer *trainer, qrun_train_metrics *metrics, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    const qr_loss_scale loss_scale = trainer->state.loss_scale;
    const double start = qr_now_seconds();
    qr_backend *backend = trainer->model->context->backend;
    qr_update_result result;
    bool overflowed;
    const char *nonfinite = NULL;
    double sums[QR_MOST_LOSS_SUMS];
    QR_RETURN_IF_ERROR(qr_timeline_restart(backend, err));
    QR_RETURN_IF_ERROR(qr_trainer_make_batches(trainer, trainer->state.cursor.epoch, err));
    qr_timeline_put_host(backend, "batches", QR_PHASE_data, 0);
    const qr_step_batch batch = qr_epoch_batches_step(trainer->epoch_batches, trainer->state.cursor.batch);
    QR_RETURN_IF_ERROR(accumulate(trainer, &batch, sums, err));
    const int64_t step = trainer->state.step + 1;
    const double rate =
        s->learning_rate * qr_schedule_factor(s->schedule, step, trainer->warmup_steps, trainer->total_steps);
    QR_RETURN_IF_ERROR(update(trainer, sums[QR_SUM_LOSS], rate, &result, &overflowed, err));
    QR_RETURN_IF_ERROR(complete(trainer, result.skipped && !overflowed, &nonfinite, err));
    advance(trainer);
    *metrics = (qrun_train_metrics){.struct_size = sizeof *metrics,
                                    .step = step,
                                    .epoch = qr_trainer_epoch(trainer),
                                    .loss = sums[QR_SUM_LOSS] / (double)count_terms(trainer, &batch),
                                    .learning_rate = rate,
                                    .grad_norm = result.grad_norm,
                                    .loss_scale = qr_loss_scale_is_used(&loss_scale) ? loss_scale.factor : 0,
                                    .skipped = result.skipped,
                                    .nonfinite = nonfinite,
                                    .overflowed = overflowed,
                                    .n_tokens = batch.n_tokens,
                                    .n_target_tokens = batch.n_targets,
                                    .phases = qr_context_phases(trainer->model->context),
                                    .seconds = qr_now_seconds() - start,
                                    .n_skipped = step - trainer->state.updates,
                                    .rewards = qr_trainer_rewards(trainer, sums, batch.n_examples)};
    return QRUN_OK;
}

qrun_status qr_trainer_run_step(qrun_trainer *trainer, qrun_train_metrics *metrics, qr_error *err) {
    qr_error why = {0};
    const qrun_status status = run_step(trainer, metrics, &why);
    if (trainer->torn) { trainer->broken = why; }
    return status == QRUN_OK ? QRUN_OK : qr_fail(err, status, "%s", why.message);
}

static qrun_status check_not_done(const qrun_trainer *trainer, bool *done, qr_error *err) {
    *done = trainer->state.step >= trainer->total_steps || qr_trainer_stopped_early(trainer);
    if (!*done) { return qr_trainer_require_current(trainer, err); }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "all steps are done: the last was %lld", (long long)trainer->state.step);
}

qrun_status qrun_trainer_step(qrun_trainer *trainer, qrun_train_metrics *metrics, bool *done, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_train_metrics, metrics, error));
    QR_RETURN_IF_ERROR(check_not_done(trainer, done, error));
    QR_RETURN_IF_ERROR(qr_ranks_lead(trainer->ranks, QR_RANK_STEP, 0, 0, error));
    qr_compute_lock(trainer->model->context);
    qrun_status status = qr_trainer_run_step(trainer, metrics, error);
    qr_compute_unlock(trainer->model->context);
    if (status == QRUN_ERROR_CANCELLED) { atomic_store(&trainer->cancelled, false); } /* now it is reported */
    if (status != QRUN_OK) { return status; }
    if (trainer->on_metrics != NULL) { trainer->on_metrics(trainer->metrics_user, metrics); }
    *done = trainer->state.step >= trainer->total_steps;
    const int64_t every = trainer->settings.save_every;
    if (every > 0 && trainer->state.step % every == 0 && !*done) { status = qrun_trainer_save(trainer, error); }
    return status;
}
