/* Evaluation during a run: when it is due, which was the best, and when early stopping ends the run. */
#include <math.h>

#include "base/clock.h"
#include "base/sizes.h"
#include "runtime/train/trainer.h"

bool qr_trainer_stopped_early(const qrun_trainer *trainer) {
    return trainer->settings.patience > 0 && trainer->state.n_not_better >= trainer->settings.patience;
}

qrun_train_action qrun_trainer_next(const qrun_trainer *trainer) {
    const qr_train_state *state = &trainer->state;
    const int64_t every = trainer->settings.eval_every;
    const bool last = state->step >= trainer->total_steps;
    const bool due = last || (every > 0 && state->step % every == 0);
    if (trainer->holds_best || qr_trainer_stopped_early(trainer)) { return QRUN_TRAIN_DONE; }
    if (trainer->eval_view.n > 0 && state->step > 0 && due && state->evaluated_step != state->step) {
        return QRUN_TRAIN_EVALUATE;
    }
    return last ? QRUN_TRAIN_DONE : QRUN_TRAIN_STEP;
}

/* As the Hugging Face Trainer: the best is the lowest, and early stopping asks for more than the threshold. */
static void take_loss(qr_train_state *state, double threshold, double loss) {
    const bool first = state->best_step == 0;
    const bool better = isfinite(loss) && (first || loss < state->best_loss);
    const bool enough = better && (first || state->best_loss - loss > threshold);
    state->n_not_better = enough ? 0 : state->n_not_better + 1;
    state->evaluated_step = state->step;
    if (better) {
        state->best_step = state->step;
        state->best_loss = loss;
    }
}

/* The sums of micro-batch i's loss. *began: the pass has. */
static qrun_status run_micro_batch(qrun_trainer *trainer, const qr_epoch_batches *batches, int64_t i, double *sums,
                                   bool *began, qr_error *err) {
    qr_micro_source source = {.dataset = trainer->eval_view.dataset, .batches = batches, .index = i};
    const qr_train_batch *batch = qr_train_loader_take(trainer->loader, &source);
    QR_RETURN_IF_ERROR(qr_dataset_check(trainer->eval_view.dataset, err));
    source.index += qr_ranks_count(trainer->ranks);
    if (source.index < qr_epoch_batches_count_micro(batches)) { qr_train_loader_prepare(trainer->loader, &source); }
    *began = true;
    return qr_train_pass_run(trainer->pass, batch, 0, false, sums, err);
}

static qrun_status show_progress(const qrun_trainer *trainer, int64_t n_examples, qr_error *err) {
    if (trainer->progress == NULL || trainer->progress(trainer->progress_user, n_examples, trainer->eval_view.n)) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled");
}

/* Totals over the micro-batches, which are dealt to the ranks, in their order; n_targets and n_tokens count them.
 */
static qrun_status sum_losses(qrun_trainer *trainer, const qr_epoch_batches *batches, double *totals,
                              qrun_train_metrics *metrics, qr_error *err) {
    const int n_sums = qr_preference_count_sums(&trainer->settings.preference);
    const int64_t n_micro_batches = qr_epoch_batches_count_micro(batches);
    const int32_t n_ranks = qr_ranks_count(trainer->ranks);
    int64_t n_examples = 0;
    for (int64_t first = 0; first < n_micro_batches; first += n_ranks) {
        const int64_t own = first + qr_ranks_own(trainer->ranks);
        double sums[QR_MOST_LOSS_SUMS] = {0}, all[QR_MAX_RANKS * QR_MOST_LOSS_SUMS];
        qrun_status status = first > 0 ? show_progress(trainer, n_examples, err) : QRUN_OK;
        bool began = false;
        if (status == QRUN_OK && own < n_micro_batches) {
            status = run_micro_batch(trainer, batches, own, sums, &began, err);
        }
        if (!began) { status = qr_trainer_follow_pass(trainer, false, status, err); }
        QR_RETURN_IF_ERROR(qr_ranks_share(trainer->ranks, status, sums, n_sums, all, err));
        for (int32_t r = 0; r < n_ranks && first + r < n_micro_batches; r++) {
            const qr_micro_batch micro = qr_epoch_batches_micro(batches, first + r);
            for (int k = 0; k < n_sums; k++) { totals[k] += all[(ptrdiff_t)r * n_sums + k]; }
            metrics->n_tokens += micro.n_tokens;
            metrics->n_target_tokens += micro.n_targets;
            n_examples += micro.n_examples;
        }
    }
    return show_progress(trainer, n_examples, err);
}

static qrun_status evaluate(qrun_trainer *trainer, qrun_train_metrics *metrics, qr_error *err) {
    const qr_batch_options options = qr_trainer_batch_options(trainer, false);
    const double start = qr_now_seconds();
    qr_epoch_batches *batches = NULL;
    qrun_status status = QRUN_OK;
    const bool has_pairs = qr_preference_has_pairs(&trainer->settings.preference);
    double totals[QR_MOST_LOSS_SUMS] = {0};
    QR_TRY(qr_trainer_make_batches(trainer, trainer->state.cursor.epoch, err)); /* for the share of the epoch */
    QR_TRY(qr_epoch_batches_create(&trainer->eval_view, &options, 0, &batches, err));
    *metrics = (qrun_train_metrics){.struct_size = sizeof *metrics,
                                    .is_evaluation = true,
                                    .step = trainer->state.step,
                                    .epoch = qr_trainer_epoch(trainer)};
    QR_TRY(sum_losses(trainer, batches, totals, metrics, err));
    metrics->loss =
        totals[QR_SUM_LOSS] / (double)qr_max(has_pairs ? trainer->eval_view.n : metrics->n_target_tokens, 1);
    metrics->rewards = qr_trainer_rewards(trainer, totals, trainer->eval_view.n);
    metrics->seconds = qr_now_seconds() - start;
out:
    qr_train_loader_forget(trainer->loader); /* of these batches */
    qr_epoch_batches_destroy(batches);
    return status;
}

qrun_status qr_trainer_run_evaluation(qrun_trainer *trainer, qrun_train_metrics *metrics, qr_error *err) {
    QR_RETURN_IF_ERROR(evaluate(trainer, metrics, err));
    if (trainer->state.evaluated_step != trainer->state.step) {
        take_loss(&trainer->state, trainer->settings.threshold, metrics->loss);
    }
    return QRUN_OK;
}

qrun_status qrun_trainer_evaluate(qrun_trainer *trainer, double *loss, qrun_error *error) {
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    *loss = 0;
    if (trainer->eval_view.n == 0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT,
                       "there are no examples to evaluate on; give `eval_data` or `eval_split`");
    }
    QR_RETURN_IF_ERROR(qr_trainer_require_current(trainer, error));
    QR_RETURN_IF_ERROR(qr_ranks_lead(trainer->ranks, QR_RANK_EVALUATE, 0, 0, error));
    qr_compute_lock(trainer->model->context);
    const qrun_status status = qr_trainer_run_evaluation(trainer, &metrics, error);
    qr_compute_unlock(trainer->model->context);
    if (status == QRUN_ERROR_CANCELLED) { atomic_store(&trainer->cancelled, false); }
    if (status != QRUN_OK) { return status; }
    *loss = metrics.loss;
    if (trainer->on_metrics != NULL) { trainer->on_metrics(trainer->metrics_user, &metrics); }
    return QRUN_OK;
}

qrun_status qrun_trainer_load_best(qrun_trainer *trainer, qrun_error *error) {
    const qr_train_state *state = &trainer->state;
    QR_RETURN_IF_ERROR(qr_trainer_require_whole(trainer, error));
    QR_RETURN_IF_ERROR(qr_trainer_end_update(trainer, error));
    if (state->best_step == 0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "there is no best evaluation: none gave a finite loss");
    }
    trainer->holds_best = true;
    if (state->best_step == state->step) { return QRUN_OK; }
    if (qr_trainer_shards_values(trainer)) {
        QR_RETURN_IF_ERROR(qr_ranks_lead(trainer->ranks, QR_RANK_LOAD, state->best_step, 0, error));
    }
    return qr_trainer_read_parameters(trainer, state->best_step, error);
}
