/* The memory of a run by category, the recompute policy that fits into its budget, and the operations of a token. */
#include <stdio.h>

#include "base/sizes.h"
#include "base/units.h"
#include "runtime/model/layer_stream.h"
#include "runtime/pass/whole_shards.h"
#include "runtime/ranks/wire.h"
#include "runtime/train/trainer.h"

qr_train_limits qr_trainer_limits(const qrun_trainer *trainer) {
    const int64_t max_tokens = trainer->settings.batch_tokens;
    /* Sequences have at least two tokens, one of them a target: there are at most half as many. */
    return (qr_train_limits){.max_tokens = max_tokens,
                             .max_sequences = max_tokens / 2 + 1,
                             .policy = trainer->policy,
                             .preference = trainer->settings.preference};
}

/* The first of those that need the most. */
static int32_t find_fullest(const qr_parameters *p, qr_shards *shards, const qr_gradient_options *gradients,
                            const qr_optimizer_options *optimizer) {
    qrun_model *model = p->model;
    size_t most = 0;
    int32_t fullest = 0;
    for (int32_t r = 0; r < shards->n_ranks; r++) {
        shards->rank = r;
        qr_layer_stream_plan_rank(model, r);
        const size_t n_bytes = qr_optimizer_bytes(p, optimizer) + qr_optimizer_host_bytes(p, optimizer) +
                               qr_gradient_sum_bytes(gradients) + qr_layer_stream_host_bytes(model) +
                               qr_layer_stream_device_bytes(model);
        if (n_bytes > most) { most = n_bytes, fullest = r; }
    }
    return fullest;
}

bool qr_trainer_shards_values(const qrun_trainer *trainer) {
    const qr_train_settings *s = &trainer->settings;
    return s->zero == 3 && s->n_ranks > 1 && s->whole.full;
}

/* A plan for ranks that are not there takes it that they are like this one. */
static bool links_devices(const qrun_trainer *trainer) {
    const qrun_context *context = trainer->model->context;
    return trainer->settings.n_ranks > 1 && qr_collectives_are_linked(context->ranks, context->backend);
}

void qr_trainer_shard(const qrun_trainer *trainer, const qr_parameters *p, qr_shards *shards,
                      qr_gradient_options *gradients, qr_optimizer_options *optimizer) {
    const qr_train_settings *s = &trainer->settings;
    const bool stays = s->zero > 0 && s->n_ranks > 1;
    *gradients = (qr_gradient_options){.n_accumulate = s->grad_accum,
                                       .n_loss_sums = qr_preference_count_sums(&s->preference),
                                       .n_parts = s->grad_sums,
                                       .shards = shards,
                                       .stays = stays,
                                       .values_stay = qr_trainer_shards_values(trainer),
                                       .between_devices = links_devices(trainer),
                                       .host_floats = p->processor != NULL ? p->n_floats : 0,
                                       .place_floats = p->place_floats};
    *optimizer = s->optimizer;
    if (stays) { optimizer->shards = shards; }
    *shards = (qr_shards){.parameters = p,
                          .whole_tensors = stays && optimizer->kind == QRUN_OPTIMIZER_ADAFACTOR,
                          .rank = s->rank,
                          .n_ranks = s->n_ranks};
    if (s->rank == QRUN_AUTO) { shards->rank = find_fullest(p, shards, gradients, optimizer); }
}

qrun_status qr_trainer_plan_run(const qrun_trainer *trainer, qr_plan *plan, qr_run_cost *cost, qr_error *err) {
    const qr_train_limits limits = qr_trainer_limits(trainer);
    qr_parameters parameters = trainer->parameters;
    const qr_parameters *p = &parameters;
    qr_shards shards;
    qr_gradient_options gradients;
    qr_optimizer_options optimizer;
    size_t scratch_bytes;
    int64_t copied_bytes;
    parameters.model = trainer->model; /* of a variant: another than the one that they were described for */
    qr_trainer_shard(trainer, p, &shards, &gradients, &optimizer);
    qr_layer_stream_plan_rank(trainer->model, shards.rank);
    if (gradients.values_stay) { qr_parameters_shard_values(&parameters, &shards); }
    QR_RETURN_IF_ERROR(qr_update_plan(p, &optimizer, &scratch_bytes, &copied_bytes, err));
    qr_plan_init(plan);
    qr_plan_set_device(plan, &trainer->memory);
    plan->entries[QR_PLAN_WEIGHTS].bytes =
        (int64_t)(trainer->model->weight_bytes + qr_layer_stream_device_bytes(trainer->model));
    const bool on_host = p->processor != NULL;
    const size_t held_bytes = qr_parameters_held_bytes(p) + qr_parameters_codes_bytes(p);
    plan->entries[QR_PLAN_ADAPTERS].bytes =
        (int64_t)((on_host ? 0 : held_bytes) + p->lora.table_bytes + qr_lora_norms_bytes(p) +
                  qr_lora_reference_bytes(p) + p->whole.override_bytes);
    if (p->whole.full) { plan->entries[QR_PLAN_ADAPTERS].category = "master weights"; }
    plan->entries[QR_PLAN_GRADIENTS].bytes =
        (int64_t)(qr_parameters_gradient_bytes(p) + qr_gradient_sum_bytes(&gradients));
    plan->entries[QR_PLAN_OPTIMIZER].bytes =
        (int64_t)(qr_optimizer_bytes(p, &optimizer) + (on_host ? 0 : scratch_bytes));
    plan->entries[QR_PLAN_HOST].bytes =
        (int64_t)(qr_train_loader_bytes(limits.max_tokens, limits.max_sequences) +
                  qr_optimizer_host_bytes(p, &optimizer) + qr_gradient_sum_host_bytes(&gradients) +
                  qr_model_host_bytes(trainer->model) + (on_host ? held_bytes + scratch_bytes : 0));
    cost->update_copied_bytes = copied_bytes;
    cost->rank = shards.rank;
    QR_RETURN_IF_ERROR(qr_train_pass_plan(p, &limits, plan, &cost->pass, err));
    const int64_t n_rounds = qr_ceil_div(gradients.n_accumulate, shards.n_ranks); /* of a pass on each rank */
    cost->sent_bytes = qr_wire_step_bytes(&gradients) + n_rounds * cost->pass.gathered.sent_bytes;
    cost->ring_bytes = qr_wire_ring_bytes(&gradients, n_rounds * cost->pass.gathered.bytes);
    if (gradients.values_stay) {
        cost->sent_bytes += qr_whole_shards_share_bytes(p, shards.rank);
        int64_t all_bytes = 0;
        for (int32_t r = 0; r < shards.n_ranks; r++) { all_bytes += qr_whole_shards_share_bytes(p, r); }
        cost->ring_bytes += all_bytes / shards.n_ranks;
    }
    return QRUN_OK;
}

int64_t qr_trainer_tile_rows(const qrun_trainer *trainer) {
    const bool has_tiles = trainer->policy.tile_rows > 0;
    return has_tiles ? qr_recompute_policy_rows(&trainer->policy, trainer->settings.batch_tokens) : 0;
}

static void name_policy(qrun_trainer *trainer, const char *given) {
    char name[sizeof trainer->policy_name / 2], tiles[sizeof trainer->policy_name / 2] = "";
    if (trainer->policy.kind == QR_RECOMPUTE_AUTO) {
        const long long kept = trainer->policy.n, all = trainer->model->shape.n_layers;
        (void)snprintf(name, sizeof name, "auto: %lld of %lld kept", kept, all);
    } else {
        (void)snprintf(name, sizeof name, "%.20s", given);
    }
    if (trainer->policy.tile_rows > 0) {
        (void)snprintf(tiles, sizeof tiles, ", tiles of %lld rows", (long long)qr_trainer_tile_rows(trainer));
    }
    (void)snprintf(trainer->policy_name, sizeof trainer->policy_name, "%s%s", name, tiles);
}

/* With what is already allocated: the weights and the context. */
static qr_train_budget budget_of(const qrun_trainer *trainer, int64_t given_bytes) {
    const qr_device_memory *memory = &trainer->memory;
    const size_t host_bytes = memory->is_separate ? 0 : qr_model_host_bytes(trainer->model);
    const size_t device_bytes = trainer->model->weight_bytes + qr_layer_stream_device_bytes(trainer->model);
    const int64_t standing = (int64_t)(device_bytes + host_bytes) + qr_device_memory_context(memory);
    const int64_t unasked = standing + qr_device_memory_for_training(memory);
    qr_train_budget budget = {
        .bytes = given_bytes > 0 ? given_bytes : unasked, .given = given_bytes > 0, .host_bytes = INT64_MAX};
    if (!memory->is_separate) { return budget; }
    const bool loaded = trainer->model->weight_memory != NULL; /* and with it what is offloaded */
    budget.host_bytes = memory->host_free_bytes / 10 * 9 + (loaded ? (int64_t)qr_model_host_bytes(trainer->model) : 0);
    if (standing + memory->free_bytes < budget.bytes) {
        budget.bytes = standing + memory->free_bytes;
        budget.given = false;
    }
    return budget;
}

bool qr_train_plan_fits(const qr_plan *plan, const qr_train_budget *budget) {
    return qr_plan_total(plan) <= budget->bytes && qr_plan_host_total(plan) <= budget->host_bytes;
}

qrun_status qr_trainer_count_flops(qrun_trainer *trainer, qr_error *err) {
    const int64_t n_tokens = trainer->settings.seq_tokens;
    const qr_train_limits limits = {.max_tokens = n_tokens,
                                    .max_sequences = 1,
                                    .policy = trainer->policy,
                                    .preference = trainer->settings.preference};
    qr_plan plan;
    qr_train_cost cost;
    qr_plan_init(&plan);
    QR_RETURN_IF_ERROR(qr_train_pass_plan(&trainer->parameters, &limits, &plan, &cost, err));
    trainer->flops_per_token = cost.flops / (double)n_tokens;
    return QRUN_OK;
}

typedef struct kept_search {
    qrun_trainer *trainer;
    const char *given; /* policy */
} kept_search;

/* Makes the trainer's plan that of its policy, with n layers kept where it is AUTO */
static qrun_status plan_kept(void *arg, int64_t n, bool *fits, qr_error *err) {
    const kept_search *search = arg;
    qrun_trainer *trainer = search->trainer;
    qr_plan plan;
    trainer->policy.n = n;
    QR_RETURN_IF_ERROR(qr_trainer_plan_run(trainer, &plan, &trainer->cost, err));
    trainer->plan = plan;
    name_policy(trainer, search->given);
    *fits = qr_train_plan_fits(&plan, &trainer->budget);
    return QRUN_OK;
}

/* Tiles that are chosen have from 128 rows on, each time twice as many: fewer would save little more. */
enum { LEAST_TILE_ROWS = 128, MOST_TILE_DOUBLINGS = 6 };

int64_t qr_trainer_least_tile_rows(const qrun_trainer *trainer, const qr_recompute_policy *policy) {
    const int64_t given = trainer->settings.tile_rows;
    if (!qr_recompute_policy_takes_tiles(policy)) { return 0; }
    if (given > 0) { return given; }
    return trainer->settings.batch_tokens > LEAST_TILE_ROWS ? LEAST_TILE_ROWS : 0; /* one tile would save nothing */
}

static qrun_status plan_tiles(void *arg, int64_t n_doublings, bool *fits, qr_error *err) {
    const kept_search *search = arg;
    search->trainer->policy.tile_rows = (int64_t)LEAST_TILE_ROWS << n_doublings;
    return plan_kept(arg, 0, fits, err);
}

/* The largest tiles that fit; where none do, the least. */
static qrun_status choose_tiles(kept_search *search, bool *fits, qr_error *err) {
    int64_t n_doublings;
    QR_RETURN_IF_ERROR(qr_plan_largest(0, MOST_TILE_DOUBLINGS, plan_tiles, search, &n_doublings, err));
    return plan_tiles(search, qr_max(n_doublings, 0), fits, err);
}

/* Whole layers where they fit, AUTO as many of them kept as do; else tiles, where the policy takes them. */
static qrun_status choose_policy(kept_search *search, bool *fits, qr_error *err) {
    qrun_trainer *trainer = search->trainer;
    qr_recompute_policy *policy = &trainer->policy;
    const bool takes_tiles = qr_trainer_least_tile_rows(trainer, policy) > 0;
    if (trainer->settings.tile_rows > 0) {
        policy->tile_rows = trainer->settings.tile_rows;
        return plan_kept(search, 0, fits, err);
    }
    if (policy->kind == QR_RECOMPUTE_AUTO) {
        int64_t n_kept;
        QR_RETURN_IF_ERROR(qr_plan_largest(0, trainer->model->shape.n_layers, plan_kept, search, &n_kept, err));
        policy->n = qr_max(n_kept, 0);
    }
    QR_RETURN_IF_ERROR(plan_kept(search, policy->n, fits, err));
    return *fits || !takes_tiles || trainer->wanted.fixes_tiles ? QRUN_OK : choose_tiles(search, fits, err);
}

/* What goes with the policy. */
static qrun_status check_policy(const qrun_trainer *trainer, const char *given, qr_error *err) {
    const qr_recompute_policy *policy = &trainer->policy;
    const long long rows = trainer->settings.tile_rows;
    if (policy->offload && !qr_recompute_policy_has_inputs(policy)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`offload_activations` is for layers that are computed again; `checkpointing=%s` has none: take "
                       "full, every:N or auto",
                       given);
    }
    if (rows == 0 || qr_recompute_policy_takes_tiles(policy)) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_ARGUMENT,
        "`tile_rows=%lld` is for layers that are computed again one by one; with `checkpointing=%s` they are "
        "not: take full or auto",
        rows, given);
}

qrun_status qr_trainer_plan_memory(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const char *given = params->memory.checkpointing != NULL ? params->memory.checkpointing : "auto";
    qr_wanted_memory *wanted = &trainer->wanted;
    QR_RETURN_IF_ERROR(qr_device_memory_now(trainer->model->context, &trainer->memory, err));
    if (trainer->model->weight_memory == NULL) { /* a plan alone */
        const bool separate = trainer->memory.is_separate;
        const size_t host_bytes = separate ? 0 : qr_model_host_bytes(trainer->model);
        qr_device_memory_reserve(&trainer->memory, trainer->model->weight_bytes +
                                                       qr_layer_stream_device_bytes(trainer->model) + host_bytes);
    }
    QR_RETURN_IF_ERROR(qr_recompute_policy_parse(given, trainer->model->shape.n_layers, &trainer->policy, err));
    trainer->policy.offload = params->memory.offload_activations;
    QR_RETURN_IF_ERROR(check_policy(trainer, given, err));
    *wanted = (qr_wanted_memory){.bytes = params->memory.memory_bytes,
                                 .policy = trainer->policy,
                                 .tile_rows = trainer->settings.tile_rows,
                                 .offload_optimizer = trainer->settings.optimizer.offload};
    (void)snprintf(wanted->policy_name, sizeof wanted->policy_name, "%s", given);
    trainer->budget = budget_of(trainer, wanted->bytes);
    kept_search search = {trainer, given};
    bool fits = false;
    if (trainer->has_led_policy) {
        trainer->policy = trainer->led_policy;
        QR_RETURN_IF_ERROR(plan_kept(&search, trainer->policy.n, &fits, err));
    } else {
        QR_RETURN_IF_ERROR(choose_policy(&search, &fits, err));
    }
    wanted->settled_rows = trainer->policy.tile_rows;
    return fits ? QRUN_OK : qr_trainer_refuse_memory(trainer, err);
}

/* ---- Planned anew ------------------------------------------------------------------------------------------------ */

/* What may be given up, one after the other: each time some speed, and never a bit of the result. */
static const struct {
    bool recomputes; /* as many layers as have to be, in tiles where that helps */
    bool offloads_inputs, offloads_states;
} concessions[] = {{false, false, false}, {true, false, false}, {true, true, false}, {true, true, true}};

static qrun_status plan_concession(qrun_trainer *trainer, size_t i, bool *fits, qr_error *err) {
    const qr_wanted_memory *wanted = &trainer->wanted;
    const bool recomputes = concessions[i].recomputes && wanted->policy.kind != QR_RECOMPUTE_AUTO;
    kept_search search = {trainer, wanted->policy_name};
    trainer->policy = recomputes ? (qr_recompute_policy){.kind = QR_RECOMPUTE_AUTO} : wanted->policy;
    trainer->policy.offload = wanted->policy.offload || concessions[i].offloads_inputs;
    trainer->settings.tile_rows = wanted->fixes_tiles         ? wanted->settled_rows
                                  : concessions[i].recomputes ? 0
                                                              : wanted->tile_rows;
    trainer->settings.optimizer.offload = wanted->offload_optimizer || concessions[i].offloads_states;
    return choose_policy(&search, fits, err);
}

qrun_status qr_trainer_plan_again(qrun_trainer *trainer, const qr_held_memory *held, int64_t most_bytes,
                                  bool offloads_states, qr_error *err) {
    qr_device_memory *memory = &trainer->memory;
    QR_RETURN_IF_ERROR(qr_device_memory_now(trainer->model->context, memory, err));
    memory->free_bytes += (int64_t)held->device_bytes;
    if (memory->is_separate) {
        memory->host_free_bytes += (int64_t)held->host_bytes;
    } else {
        memory->free_bytes += (int64_t)held->host_bytes;
    }
    trainer->budget = budget_of(trainer, trainer->wanted.bytes);
    trainer->budget.bytes = qr_min(trainer->budget.bytes, most_bytes);
    trainer->wanted.fixes_tiles = memory->is_separate;
    const bool offloaded = trainer->settings.optimizer.offload;
    for (size_t i = 0; i < QR_COUNT_OF(concessions); i++) {
        const bool offloads = concessions[i].offloads_inputs || concessions[i].offloads_states;
        bool fits = false;
        if (offloads && !memory->is_separate) { break; } /* host memory is the device's */
        if (concessions[i].offloads_states && !offloads_states) { break; }
        QR_RETURN_IF_ERROR(plan_concession(trainer, i, &fits, err));
        if (fits) { return QRUN_OK; }
    }
    trainer->settings.optimizer.offload = offloaded; /* its states are still there */
    return QRUN_ERROR_MEMORY;
}
