/* The memory of a run by category, and the checkpointing policy that fits into its budget. */
#include <stdio.h>

#include "base/sizes.h"
#include "base/units.h"
#include "runtime/machine.h"
#include "runtime/trainer.h"

qr_train_limits qr_trainer_limits(const qrun_trainer *trainer, const qr_checkpoint_policy *policy) {
    const int64_t max_tokens = trainer->settings.batch_tokens;
    /* Examples have at least two tokens (one of them a target), so a micro-batch has at most half as many as tokens. */
    return (qr_train_limits){max_tokens, max_tokens / 2 + 1, *policy};
}

qrun_status qr_trainer_plan_with(const qrun_trainer *trainer, const qr_checkpoint_policy *policy, qr_plan *plan,
                                 qr_error *err) {
    const qr_train_limits limits = qr_trainer_limits(trainer, policy);
    const qr_parameters *p = &trainer->parameters;
    const qr_optimizer_options *optimizer = &trainer->settings.optimizer;
    qr_plan_init(plan);
    plan->entries[QR_PLAN_WEIGHTS].bytes = (int64_t)trainer->model->weight_bytes;
    plan->entries[QR_PLAN_ADAPTERS].bytes = (int64_t)(qr_parameters_bytes(p) + p->lora.table_bytes +
                                                      qr_lora_norms_bytes(p) + p->whole.held_bytes);
    if (p->whole.full) { plan->entries[QR_PLAN_ADAPTERS].category = "master weights"; }
    plan->entries[QR_PLAN_GRADIENTS].bytes = (int64_t)qr_parameters_bytes(p);
    plan->entries[QR_PLAN_OPTIMIZER].bytes =
        (int64_t)(qr_optimizer_bytes(p, optimizer) + qr_update_scratch_bytes(p, optimizer));
    plan->entries[QR_PLAN_HOST].bytes =
        (int64_t)(qr_train_loader_bytes(limits.max_tokens, limits.max_sequences) + qr_optimizer_host_bytes(p, optimizer));
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

qrun_status qr_trainer_plan_memory(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
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
        status = qr_trainer_plan_with(trainer, &trainer->policy, &trainer->plan, err);
        if (status != QRUN_OK) { return status; }
        if (qr_plan_total(&trainer->plan) <= budget) { break; }
        if (trainer->policy.kind != QR_CHECKPOINT_AUTO || trainer->policy.n == 0) {
            return qr_trainer_refuse_memory(trainer, budget, params->memory_bytes > 0, err);
        }
        trainer->policy.n--;
    }
    name_policy(trainer, given);
    return QRUN_OK;
}
