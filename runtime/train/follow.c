/* The part of a run that ranks other than 0 have, and what all of them must have in common. */
#include <inttypes.h>
#include <string.h>

#include "base/buffer.h"
#include "base/number.h"
#include "base/params.h"
#include "runtime/train/trainer.h"

/* The fingerprint, and what else all ranks share though a resumed run may change it. */
qrun_status qr_trainer_compare_ranks(qrun_trainer *trainer, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    const qr_backend *backend = trainer->model->context->backend;
    qr_buffer text = {0};
    if (trainer->ranks == NULL) { return QRUN_OK; }
    qr_buffer_append(&text, trainer->fingerprint, strlen(trainer->fingerprint) - 1);
    qr_buffer_append_format(&text, ",\"qrun\":\"%s\",\"instructions\":\"%s %s\",\"step\":%lld,\"eval_examples\":%lld",
                            qrun_version(), backend->name, backend->isa, (long long)trainer->state.step,
                            (long long)trainer->eval_view.n);
    if (trainer->eval_dataset != NULL && !s->load_best) { /* else it is in the fingerprint */
        qr_buffer_append_format(&text, ",\"eval_data\":\"%016" PRIx64 "\"",
                                qr_dataset_data_hash(trainer->eval_dataset));
    }
    qr_buffer_append_format(&text, ",\"zero\":%d,\"load_best\":%s}", (int)s->zero, s->load_best ? "true" : "false");
    qrun_status status = qr_buffer_ok(&text) ? QRUN_OK : qr_fail_memory(err, "the settings", text.size);
    status = qr_ranks_agree(trainer->ranks, status, err);
    if (status == QRUN_OK) { status = qr_ranks_compare(trainer->ranks, text.data, err); }
    qr_buffer_free(&text);
    return status;
}

static qrun_status do_as_told(qrun_trainer *trainer, const qr_rank_command *command, qr_error *err) {
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    switch (command->action) {
        case QR_RANK_STEP: return qr_trainer_run_step(trainer, &metrics, err);
        case QR_RANK_EVALUATE: return qr_trainer_run_evaluation(trainer, &metrics, err);
        case QR_RANK_READ_STATES: return qr_trainer_send_states(trainer, command, err);
        case QR_RANK_READ_VALUES: return qr_trainer_send_values(trainer, command, err);
        case QR_RANK_LOAD: return qr_trainer_read_parameters(trainer, command->first, err);
        default: return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 announced what does not exist");
    }
}

/* An error that all ranks know of is rank 0's to report and to answer; any other ends this rank, and with it the run.
 */
qrun_status qr_trainer_follow(qrun_trainer *trainer, qr_error *err) {
    qr_collectives *ranks = trainer->ranks;
    for (;;) {
        qr_rank_command command = {0};
        QR_RETURN_IF_ERROR(qr_broadcast(ranks, &command, sizeof command, 0, err));
        if (command.action == QR_RANK_END) {
            qr_collectives_settle(ranks);
            return QRUN_OK;
        }
        qr_error own = {0};
        qr_compute_lock(trainer->model->context);
        const qrun_status status = do_as_told(trainer, &command, &own);
        qr_compute_unlock(trainer->model->context);
        if (status == QRUN_OK || (status == QRUN_ERROR_RANK && !ranks->lost)) { continue; }
        const bool reported = qr_collectives_tell(ranks, own.message);
        return qr_fail(err, reported ? QRUN_ERROR_RANK : status, "%s", own.message);
    }
}
