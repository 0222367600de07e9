/* A run whose memory has run short goes on with what is there: saved, planned anew and continued, to the same bits.
 * What a step needs is made before the first, so little can fail later: copies of tokens and lists of an epoch,
 * checkpoints, a driver that loads its code when it is first used. But where that little fails, something else has
 * taken the memory.
 *
 * The parameters stay where they are, and so do the optimiser's states unless their place changes. Where an update was
 * interrupted, both come from the last checkpoint; without one they are made anew, as when the run began. */
#include <stdio.h>

#include "base/sizes.h"
#include "base/units.h"
#include "runtime/train/trainer.h"

/* How the run stood before. */
typedef struct earlier_run {
    int64_t step, total_bytes;
    bool saved; /* a checkpoint of that step is on file */
} earlier_run;

/* Values and states that are those of state.step. */
static bool is_whole(const qrun_trainer *trainer) {
    return !trainer->torn && !trainer->holds_best && trainer->optimizer != NULL && trainer->parameters.values != NULL;
}

/* Memory being short again is no reason not to continue: the values are still there. */
static qrun_status save(qrun_trainer *trainer, earlier_run *before, qr_error *err) {
    qr_error why = {0};
    if (!is_whole(trainer) || before->step == 0 || trainer->settings.out[0] == '\0') { return QRUN_OK; }
    const qrun_status status = qr_trainer_write_checkpoint(trainer, &why);
    before->saved = status == QRUN_OK;
    return status == QRUN_OK || status == QRUN_ERROR_MEMORY ? QRUN_OK : qr_fail(err, status, "%s", why.message);
}

static void drop_optimizer(qrun_trainer *trainer) {
    qr_optimizer_destroy(trainer->optimizer);
    trainer->optimizer = NULL;
}

/* As before the first step, but that the parameters have no memory yet. */
static qrun_status begin_again(qrun_trainer *trainer, qr_error *err) {
    drop_optimizer(trainer);
    trainer->parameters.whole.refreshed = false; /* what was trained is not to stay in the model */
    qr_parameters_destroy(&trainer->parameters);
    trainer->state = (qr_train_state){.loss_scale = trainer->settings.loss_scale};
    return qr_trainer_describe_parameters(trainer, err);
}

static qr_held_memory held_memory(const qrun_trainer *trainer) {
    const qr_parameters *p = &trainer->parameters;
    const qr_optimizer_options *options = &trainer->settings.optimizer;
    qr_held_memory held = {0};
    if (p->values != NULL) {
        size_t *of_values = p->processor != NULL ? &held.host_bytes : &held.device_bytes;
        held.device_bytes += qr_parameters_gradient_bytes(p) + p->lora.table_bytes + qr_lora_norms_bytes(p) +
                             qr_lora_reference_bytes(p) + p->whole.override_bytes;
        *of_values += qr_parameters_held_bytes(p) + qr_parameters_codes_bytes(p);
    }
    if (trainer->optimizer != NULL) {
        held.device_bytes += qr_optimizer_bytes(p, options);
        held.host_bytes += qr_optimizer_host_bytes(p, options);
    }
    return held;
}

/* Makes what the plan says. has_checkpoint: what is not there any more comes from it. */
static qrun_status rebuild(qrun_trainer *trainer, bool has_checkpoint, qr_error *err) {
    const bool loads = has_checkpoint && !is_whole(trainer);
    const int64_t earlier_total_steps = trainer->earlier_total_steps;
    if (trainer->parameters.values == NULL) { QR_RETURN_IF_ERROR(qr_trainer_make_parameters(trainer, err)); }
    QR_RETURN_IF_ERROR(qr_trainer_make_memory(trainer, err));
    if (loads) { QR_RETURN_IF_ERROR(qr_trainer_resume(trainer, err)); }
    trainer->earlier_total_steps = earlier_total_steps;
    QR_RETURN_IF_ERROR(qr_whole_parameters_refresh(&trainer->parameters, trainer->scratch, err));
    return qr_trainer_count_flops(trainer, err);
}

/* The plan, in less and less memory until it can be made. */
static qrun_status settle(qrun_trainer *trainer, int64_t most_bytes, bool has_checkpoint, qr_error *err) {
    for (;;) {
        qr_error why = {0};
        const bool offloaded = trainer->settings.optimizer.offload;
        const bool can_move = has_checkpoint || trainer->state.step == 0;
        const qr_held_memory held = held_memory(trainer);
        QR_RETURN_IF_ERROR(qr_trainer_plan_again(trainer, &held, most_bytes, can_move || offloaded, err));
        if (trainer->settings.optimizer.offload != offloaded) { drop_optimizer(trainer); }
        const qrun_status status = rebuild(trainer, has_checkpoint, &why);
        if (status == QRUN_OK) { return QRUN_OK; }
        qr_trainer_release_memory(trainer);
        if (status != QRUN_ERROR_MEMORY) { return qr_fail(err, status, "%s", why.message); }
        most_bytes = qr_plan_total(&trainer->plan) - 1;
    }
}

/* Where not even the least plan fits. */
static qrun_status refuse(const qrun_trainer *trainer, qr_error *err) {
    const qr_train_budget *budget = &trainer->budget;
    const bool of_host = qr_plan_total(&trainer->plan) <= budget->bytes;
    const int64_t needed = of_host ? qr_plan_host_total(&trainer->plan) : qr_plan_total(&trainer->plan);
    return qr_fail(err, QRUN_ERROR_MEMORY,
                   "what is left needs %s%s, and no more than %s can be had; begin it again once other programs have "
                   "released theirs%s, and it continues",
                   qr_format_bytes(needed).text, of_host ? " of host memory" : "",
                   qr_format_bytes(of_host ? budget->host_bytes : budget->bytes).text,
                   trainer->memory.is_separate ? ", or with `offload_parameters`" : "");
}

/* Tells with an error what becomes of the run. */
static void tell_end(const earlier_run *before, qr_error *why) {
    char end[96];
    (void)snprintf(end, sizeof end,
                   before->saved ? "out of memory after step %lld, saved as checkpoint-%lld"
                                 : "out of memory after step %lld",
                   (long long)before->step, (long long)before->step);
    qr_error_prefix(why, end);
}

static void describe(qrun_trainer *trainer, const earlier_run *before) {
    const qr_train_settings *s = &trainer->settings;
    const bool offloads = trainer->policy.offload || s->optimizer.offload;
    (void)snprintf(trainer->replanned, sizeof trainer->replanned,
                   "out of memory after step %lld: planned anew with %s, before %s (`checkpointing` %s%s%s%s); "
                   "continues after step %lld",
                   (long long)before->step, qr_format_bytes(qr_plan_total(&trainer->plan)).text,
                   qr_format_bytes(before->total_bytes).text, trainer->policy_name,
                   offloads ? "; in host memory: " : "", trainer->policy.offload ? "activations" : "",
                   !s->optimizer.offload     ? ""
                   : trainer->policy.offload ? ", optimizer states"
                                             : "optimizer states",
                   (long long)trainer->state.step);
}

static qrun_status replan(qrun_trainer *trainer, earlier_run *before, qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    const bool progressed = trainer->n_replans == 0 || before->step > trainer->furthest_step;
    bool has_checkpoint;
    /* Of an update that began to be short of memory with a layer, values and states are torn. */
    (void)qr_layer_stream_write_late(trainer->model, backend, trainer->model->shape.n_layers - 1, NULL);
    QR_RETURN_IF_ERROR(backend->sync(backend, err)); /* nothing is on its way to what is released */
    qr_trainer_release_memory(trainer);
    QR_RETURN_IF_ERROR(save(trainer, before, err));
    QR_RETURN_IF_ERROR(qr_trainer_has_checkpoint(trainer, &has_checkpoint, err));
    if (!is_whole(trainer) && !has_checkpoint) { QR_RETURN_IF_ERROR(begin_again(trainer, err)); }
    trainer->n_replans++;
    trainer->furthest_step = qr_max(trainer->furthest_step, before->step);
    const int64_t most_bytes = progressed ? INT64_MAX : before->total_bytes - 1;
    QR_RETURN_IF_ERROR(settle(trainer, most_bytes, has_checkpoint && (before->saved || !is_whole(trainer)), err));
    trainer->torn = trainer->holds_best = false;
    trainer->first_step = trainer->state.step + 1;
    describe(trainer, before);
    return QRUN_OK;
}

qrun_status qrun_trainer_replan(qrun_trainer *trainer, qrun_error *error) {
    qr_error why = {0};
    earlier_run before = {.step = trainer->state.step, .total_bytes = qr_plan_total(&trainer->plan)};
    if (qr_ranks_count(trainer->ranks) > 1) {
        return qr_fail(error, QRUN_ERROR_MEMORY,
                       "out of memory after step %lld: a run of several ranks is not planned anew; begin it again with "
                       "less `memory_bytes`, and it continues from its last checkpoint",
                       (long long)before.step);
    }
    qr_compute_lock(trainer->model->context);
    qrun_status status = replan(trainer, &before, &why);
    qr_compute_unlock(trainer->model->context);
    if (status == QRUN_ERROR_MEMORY && why.status == QRUN_OK) { status = refuse(trainer, &why); }
    if (status != QRUN_OK) { tell_end(&before, &why); }
    trainer->broken = why;
    return status == QRUN_OK ? QRUN_OK : qr_fail(error, status, "%s", why.message);
}
