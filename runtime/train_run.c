/* A run from where it stands to the adapter. */
#include "runtime/trainer.h"

void qrun_trainer_cancel(qrun_trainer *trainer) { atomic_store(&trainer->cancelled, true); }

static qrun_status evaluate(qrun_trainer *trainer, qr_error *err) {
    double loss;
    const qrun_status status = qrun_trainer_evaluate(trainer, &loss, err);
    const bool best = status == QRUN_OK && trainer->state.best_step == trainer->state.step;
    return best ? qrun_trainer_save(trainer, err) : status;
}

static qrun_status finish(qrun_trainer *trainer, qr_error *err) {
    qrun_status status = QRUN_OK;
    if (!trainer->holds_best) { QR_TRY(qrun_trainer_save(trainer, err)); }
    if (trainer->settings.load_best && !trainer->holds_best) { QR_TRY(qrun_trainer_load_best(trainer, err)); }
    QR_TRY(qrun_trainer_export(trainer, err));
out:
    return status;
}

/* The checkpoint that a cancelled run leaves; the status stays QRUN_ERROR_CANCELLED unless that fails. */
static qrun_status leave(qrun_trainer *trainer, qr_error *err) {
    const int64_t step = trainer->state.step;
    if (step == 0) { return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled before the first step was done"); }
    const qrun_status status = qrun_trainer_save(trainer, err);
    if (status != QRUN_OK) { return status; }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled after step %lld of %lld, saved in %s/checkpoint-%lld",
                   (long long)step, (long long)trainer->total_steps, trainer->settings.out, (long long)step);
}

qrun_status qrun_trainer_run(qrun_trainer *trainer, qrun_error *error) {
    for (qrun_train_action next; (next = qrun_trainer_next(trainer)) != QRUN_TRAIN_DONE;) {
        qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
        qr_error step_error = {0};
        bool done;
        const qrun_status status = next == QRUN_TRAIN_EVALUATE
                                       ? evaluate(trainer, &step_error)
                                       : qrun_trainer_step(trainer, &metrics, &done, &step_error);
        if (status == QRUN_ERROR_CANCELLED) { return leave(trainer, error); }
        if (status != QRUN_OK) { return qr_fail(error, status, "%s", step_error.message); }
    }
    return finish(trainer, error);
}
