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

/* Sums over the plan's micro-batches; n_targets and n_tokens count them. */
static qrun_status sum_losses(qrun_trainer *trainer, const qr_batch_plan *plan, double *loss,
                              qrun_train_metrics *metrics, qr_error *err) {
    const int64_t n_micro_batches = qr_batch_plan_micro_batches(plan);
    int64_t n_examples = 0;
    for (int64_t i = 0; i < n_micro_batches; i++) {
        const qr_micro_batch micro = qr_batch_plan_micro_batch(plan, i);
        qr_micro_source source = {.dataset = trainer->eval_view.dataset, .plan = plan, .index = i};
        const qr_train_batch *batch = qr_train_loader_take(trainer->loader, &source);
        double sum = 0;
        if (++source.index < n_micro_batches) { qr_train_loader_prepare(trainer->loader, &source); }
        QR_RETURN_IF_ERROR(qr_train_pass_run(trainer->pass, batch, 0, false, &sum, err));
        *loss += sum;
        metrics->n_tokens += micro.n_tokens;
        metrics->n_target_tokens += micro.n_targets;
        n_examples += micro.n_examples;
        if (trainer->progress != NULL && !trainer->progress(trainer->progress_user, n_examples, trainer->eval_view.n)) {
            return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled");
        }
    }
    return QRUN_OK;
}

static qrun_status run_evaluation(qrun_trainer *trainer, qrun_train_metrics *metrics, qr_error *err) {
    const qr_batch_options options = qr_trainer_batch_options(trainer, false);
    const double start = qr_now_seconds();
    qr_batch_plan *plan = NULL;
    qrun_status status = QRUN_OK;
    double loss = 0;
    QR_TRY(qr_trainer_plan_epoch(trainer, trainer->state.cursor.epoch, err)); /* for the share of the epoch */
    QR_TRY(qr_batch_plan_create(&trainer->eval_view, &options, 0, &plan, err));
    *metrics = (qrun_train_metrics){.struct_size = sizeof *metrics,
                                    .is_evaluation = true,
                                    .step = trainer->state.step,
                                    .epoch = qr_trainer_epoch(trainer)};
    QR_TRY(sum_losses(trainer, plan, &loss, metrics, err));
    metrics->loss = loss / (double)qr_max(metrics->n_target_tokens, 1);
    metrics->seconds = qr_now_seconds() - start;
out:
    qr_train_loader_forget(trainer->loader); /* of this plan */
    qr_batch_plan_destroy(plan);
    return status;
}

qrun_status qrun_trainer_evaluate(qrun_trainer *trainer, double *loss, qrun_error *error) {
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    *loss = 0;
    if (trainer->eval_view.n == 0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT,
                       "there are no examples to evaluate on; give `eval_data` or `eval_split`");
    }
    QR_RETURN_IF_ERROR(qr_trainer_require_current(trainer, error));
    pthread_mutex_lock(&trainer->model->context->compute_lock);
    const qrun_status status = run_evaluation(trainer, &metrics, error);
    pthread_mutex_unlock(&trainer->model->context->compute_lock);
    if (status == QRUN_ERROR_CANCELLED) { atomic_store(&trainer->cancelled, false); }
    if (status != QRUN_OK) { return status; }
    *loss = metrics.loss;
    if (trainer->state.evaluated_step != trainer->state.step) {
        take_loss(&trainer->state, trainer->settings.threshold, metrics.loss);
    }
    if (trainer->on_metrics != NULL) { trainer->on_metrics(trainer->metrics_user, &metrics); }
    return QRUN_OK;
}

qrun_status qrun_trainer_load_best(qrun_trainer *trainer, qrun_error *error) {
    const qr_train_state *state = &trainer->state;
    if (state->best_step == 0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "there is no best evaluation: none gave a finite loss");
    }
    trainer->holds_best = true;
    return state->best_step != state->step ? qr_trainer_read_parameters(trainer, state->best_step, error) : QRUN_OK;
}
