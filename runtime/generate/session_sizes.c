#include "runtime/generate/session_sizes.h"

#include <stdio.h>
#include <string.h>

#include "base/params.h"
#include "base/sizes.h"
#include "base/units.h"
#include "runtime/cache/page_store.h"
#include "runtime/layers/layer_recurrent.h"
#include "runtime/model/adapter.h"
#include "runtime/model/host_experts.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/model_open.h"
#include "runtime/ranks/split_ranks.h"

enum { DEFAULT_SEQUENCES = 64, DEFAULT_STEP_TOKENS = 512, DEFAULT_POOL_CONTEXT = 4096 };
enum { MAX_PAGES = INT32_MAX / 4 };
static const int64_t TOO_MANY_TOKENS = INT64_C(2) * MAX_PAGES * QR_KV_PAGE_TOKENS; /* for MAX_PAGES */
enum { SNAPSHOT_TOKENS = 2048 };                                                   /* a multiple of a page's */
static const int64_t LOGIT_BYTES = INT64_C(64) << 20, DEFAULT_WAITING_BYTES = INT64_C(1) << 30;

/* ---- Parameters -------------------------------------------------------------------------------------------------- */

static int64_t or_default(int64_t value, int64_t fallback) { return value > 0 ? value : fallback; }

static qrun_status check_speculate(const qrun_model *model, const char *speculate, qr_error *err) {
    if (speculate == NULL || strcmp(speculate, "off") == 0) { return QRUN_OK; }
    if (speculate[0] == '\0') {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`speculate` must be \"ngram\", \"off\" or the folder of a model");
    }
    if (qr_model_can_take_back(model)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "`speculate=%s` is not possible: this model's recurrent layers cannot take tokens back; use "
                   "`speculate=off`",
                   speculate);
}

static qrun_status check_kept(const qrun_model *model, const qrun_session_params *params, qr_error *err) {
    const bool keeps = params->prefix_cache_bytes != 0 || params->cache_dir != NULL;
    if (params->prefix_cache_bytes < QRUN_PREFIX_CACHE_RAM || params->cache_dir_bytes < 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`prefix_cache_bytes` and `cache_dir_bytes` cannot be negative");
    }
    if (params->cache_dir_bytes > 0 && params->cache_dir == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`cache_dir_bytes` needs `cache_dir`");
    }
    if (keeps && params->no_prefix_sharing) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`prefix_cache_bytes` and `cache_dir` keep prefixes to share; leave `no_prefix_sharing` out");
    }
    if (!keeps || qr_model_can_take_back(model)) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_UNSUPPORTED,
        "this model's recurrent layers keep a state, and not K/V pages alone, so its prefixes cannot be kept; "
        "leave `prefix_cache_bytes` and `cache_dir` out");
}

static qrun_status check_params(const qrun_model *model, const qrun_session_params *params, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_session_params, params, err));
    const qr_range kv = {"`kv`", params->kv, QRUN_KV_AUTO, QRUN_KV_F16};
    QR_RETURN_IF_ERROR(qr_check_ranges(&kv, 1, err));
    if (params->kv == QRUN_KV_INT8 && qr_kv_smallest_format(model) != QR_KV_INT8) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "`kv=int8` is not supported for models with latent attention, whose K/V pages hold latents: a "
                       "token takes %s in bf16; use `kv=bf16`",
                       qr_format_bytes((int64_t)qr_page_bytes(model, QR_KV_BF16) / QR_KV_PAGE_TOKENS).text);
    }
    if (params->max_sequences < 0 || params->max_sequences > QR_MAX_SESSION_SEQUENCES) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`max_sequences` must be from 0 to %d, not %d",
                       QR_MAX_SESSION_SEQUENCES, params->max_sequences);
    }
    if (params->context_tokens < 0 || params->context_tokens > model->shape.context_tokens) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`context_tokens=%d` is not possible: this model is made for %lld",
                       params->context_tokens, (long long)model->shape.context_tokens);
    }
    if (params->memory_bytes < 0 || params->kv_tokens < 0 || params->max_step_tokens < 0 ||
        params->sequence_tokens < 0 || params->max_waiting_bytes < 0) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "`memory_bytes`, `kv_tokens`, `max_step_tokens`, `sequence_tokens` and `max_waiting_bytes` cannot "
            "be negative");
    }
    if (qr_layer_stream_is_sharded(model)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a model opened with `shard_parameters` is for training: no rank has all of its weights");
    }
    if ((model->stream != NULL || model->host_experts.used) && params->cache_dir != NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`cache_dir` names pages by all weights on the device, which `%s` leaves out; leave one out",
                       model->stream != NULL ? "offload_parameters" : "offload_experts");
    }
    QR_RETURN_IF_ERROR(check_kept(model, params, err));
    return check_speculate(model, params->speculate, err);
}

static qr_kv_format choose_kv_format(const qrun_model *model, qrun_kv kv) {
    switch (kv) {
        case QRUN_KV_BF16: return QR_KV_BF16;
        case QRUN_KV_INT8: return QR_KV_INT8;
        case QRUN_KV_F32: return QR_KV_F32;
        case QRUN_KV_F16: return QR_KV_F16;
        default: return qr_kv_format_of_model(model);
    }
}

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

static int64_t pages_needed(const qrun_model *model, int64_t n_tokens, int64_t step_tokens) {
    int64_t total = 0;
    for (int32_t g = 0; g < model->n_kv_groups; g++) {
        total += qr_kv_group_pages(model->kv_groups[g].window, n_tokens, step_tokens);
    }
    return total;
}

int64_t qr_session_longest(const qrun_model *model, int64_t n_pages, int64_t context, int64_t step_tokens) {
    int64_t fits = 0, too_long = context + 1;
    while (too_long - fits > 1) {
        const int64_t middle = fits + (too_long - fits) / 2;
        if (pages_needed(model, middle, step_tokens) <= n_pages) {
            fits = middle;
        } else {
            too_long = middle;
        }
    }
    return fits;
}

/* What a session may take, with what is already allocated (weights, adapters, context). */
typedef struct session_budget {
    int64_t bytes;  /* never more; INT64_MAX: no limit is known */
    int64_t wanted; /* what the pool takes when nothing is given */
    bool by_device; /* the device's free memory is the limit, not memory_bytes */
} session_budget;

static session_budget budget_of(const qrun_session_params *params, const qr_device_memory *memory,
                                const qr_plan *plan) {
    const int64_t standing =
        plan->entries[QR_PLAN_WEIGHTS].bytes + plan->entries[QR_PLAN_ADAPTERS].bytes + qr_device_memory_context(memory);
    const bool given = params->memory_bytes > 0;
    session_budget budget = {given ? params->memory_bytes : INT64_MAX,
                             given ? params->memory_bytes : standing + qr_device_memory_for_session(memory), false};
    if (memory->is_separate && standing + memory->free_bytes < budget.bytes) {
        budget.bytes = standing + memory->free_bytes;
        budget.wanted = qr_min(budget.wanted, budget.bytes);
        budget.by_device = true;
    }
    return budget;
}

typedef struct advice {
    char text[384]; /* all parts fit */
} advice;

/* What would make this session fit, without what is set already. */
static advice advise(const qrun_model *model, const qr_session_sizes *sizes, bool can_have_more) {
    char smaller[96] = "";
    const char *parts[5];
    int n_parts = 0;
    const qr_options_text options = qr_model_smaller_options(model);
    if (sizes->n_kept_pages > 0) { parts[n_parts++] = "take a smaller `prefix_cache_bytes`"; }
    if (can_have_more) { parts[n_parts++] = "give more `memory_bytes`"; }
    if (qr_host_experts_would_help(model)) { parts[n_parts++] = "hold experts in host memory (`offload_experts`)"; }
    if (options.text[0] != '\0') {
        (void)snprintf(smaller, sizeof smaller, "hold the weights smaller (%s)", options.text);
        parts[n_parts++] = smaller;
    }
    if (sizes->forward.max_tokens > sizes->forward.max_sequences) {
        parts[n_parts++] = sizes->max_sequences > 1 ? "take smaller `max_step_tokens` and `max_sequences`"
                                                    : "take smaller `max_step_tokens`";
    } else if (sizes->max_sequences > 1) {
        parts[n_parts++] = "take a smaller `max_sequences`";
    }
    advice made = {"a smaller model is needed"};
    size_t used = 0;
    for (int i = 0; i < n_parts; i++) {
        const char *joint = i == 0 ? "" : i + 1 == n_parts ? ", or " : ", ";
        const int n = snprintf(made.text + used, sizeof made.text - used, "%s%s", joint, parts[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    return made;
}

static qrun_status refuse_budget(const qrun_model *model, const qr_session_sizes *sizes, const qr_plan *plan,
                                 const session_budget *budget, const qr_device_memory *memory, int64_t least,
                                 qr_error *err) {
    const int64_t weights = plan->entries[QR_PLAN_WEIGHTS].bytes, all = qr_plan_total(plan);
    const int64_t context = qr_device_memory_context(memory);
    const int64_t bytes = qr_min(budget->bytes, budget->wanted);
    char limit[128], driver[64] = "";
    if (budget->by_device) {
        (void)snprintf(limit, sizeof limit, "the GPU's memory of %s leaves %s, which is too small",
                       qr_format_bytes(memory->total_bytes).text, qr_format_bytes(budget->bytes).text);
    } else {
        (void)snprintf(limit, sizeof limit, "a budget of %s is too small", qr_format_bytes(bytes).text);
    }
    if (context > 0) { (void)snprintf(driver, sizeof driver, "the GPU's context %s, ", qr_format_bytes(context).text); }
    return qr_fail(err, QRUN_ERROR_MEMORY, "%s: weights %s, %sbuffers %s and the smallest K/V pool %s make %s; %s",
                   limit, qr_format_bytes(weights).text, driver, qr_format_bytes(all - weights - context).text,
                   qr_format_bytes(least).text, qr_format_bytes(all + least).text,
                   advise(model, sizes, !budget->by_device).text);
}

/* Of a context that was asked for; sizes->n_pages have no room for it. */
static qrun_status refuse_context(const qrun_model *model, const session_budget *budget, bool given,
                                  qr_session_sizes *sizes, qr_error *err) {
    const int64_t page_bytes = (int64_t)sizes->page_bytes, pool_bytes = sizes->n_pages * page_bytes;
    sizes->n_pages = pages_needed(model, sizes->context_tokens, sizes->forward.max_tokens);
    const qr_kv_format smallest = qr_kv_smallest_format(model);
    const bool int8_fits =
        smallest == QR_KV_INT8 && sizes->n_pages * (int64_t)qr_page_bytes(model, smallest) <= pool_bytes;
    return qr_fail(err, QRUN_ERROR_MEMORY,
                   "`context_tokens=%lld` needs %s of K/V pages, and %s of %s leaves %s for them; "
                   "`context_tokens=%lld` would fit, %s%s`memory_bytes`",
                   (long long)sizes->context_tokens, qr_format_bytes(sizes->n_pages * page_bytes).text,
                   budget->by_device ? "the GPU's memory"
                   : given           ? "the budget"
                                     : "a session's part of what is free,",
                   qr_format_bytes(sizes->budget_bytes).text, qr_format_bytes(pool_bytes).text,
                   (long long)sizes->pool_tokens, int8_fits ? "or `kv=int8`, or give " : "or give ",
                   given ? "more " : "");
}

/* The number of pages, by what the caller gave: tokens, a budget, or neither. `plan` has everything but the pages. */
static qrun_status choose_pages(const qrun_model *model, const qrun_session_params *params,
                                const qr_device_memory *memory, const qr_plan *plan, qr_session_sizes *sizes,
                                qr_error *err) {
    const session_budget budget = budget_of(params, memory, plan);
    const int64_t step = sizes->forward.max_tokens, context = sizes->context_tokens;
    const int64_t page_bytes = (int64_t)sizes->page_bytes;
    const int64_t least = pages_needed(model, qr_min(context, 2 * QR_KV_PAGE_TOKENS), step);
    const int64_t longest = params->sequence_tokens > 0 ? qr_min(params->sequence_tokens, context) : context;
    const int64_t n_useful = qr_max(pages_needed(model, longest, step) * sizes->max_sequences, least);
    const int64_t useful = qr_min(n_useful, MAX_PAGES);
    const int64_t others = qr_plan_total(plan);
    sizes->budget_bytes = qr_min(budget.bytes, budget.wanted);
    if (params->kv_tokens > 0) {
        sizes->n_pages = pages_needed(model, qr_min(params->kv_tokens, TOO_MANY_TOKENS), step);
    } else if (params->memory_bytes > 0) {
        sizes->n_pages = qr_min((budget.bytes - others) / page_bytes, useful);
    } else {
        const int64_t n_usual = pages_needed(model, qr_min(longest, DEFAULT_POOL_CONTEXT), step);
        const int64_t wanted = qr_max(n_usual * sizes->max_sequences, pages_needed(model, longest, step));
        sizes->n_pages = qr_min((budget.wanted - others) / page_bytes, qr_min(qr_max(wanted, least), useful));
    }
    if (sizes->n_pages > MAX_PAGES) {
        sizes->n_pages = 0;
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a pool of %lld tokens needs more than %d pages; give a smaller `kv_tokens`",
                       (long long)params->kv_tokens, MAX_PAGES);
    }
    if (params->kv_tokens > 0 && sizes->n_pages < least) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`kv_tokens=%lld` is too small: the smallest pool is of %lld tokens",
                       (long long)params->kv_tokens, (long long)qr_min(context, 2 * QR_KV_PAGE_TOKENS));
    }
    if (sizes->n_pages < least || others > budget.bytes - sizes->n_pages * page_bytes) {
        sizes->n_pages = qr_max(least, params->kv_tokens > 0 ? sizes->n_pages : 0);
        return refuse_budget(model, sizes, plan, &budget, memory, sizes->n_pages * page_bytes, err);
    }
    sizes->pool_tokens = qr_session_longest(model, sizes->n_pages, context, step);
    /* What a session for shorter sequences holds is no promise of the whole context. */
    const bool promised = params->context_tokens > 0 && longest == context && params->kv_tokens == 0;
    if (promised && context > sizes->pool_tokens) {
        return refuse_context(model, &budget, params->memory_bytes > 0, sizes, err);
    }
    return QRUN_OK;
}

/* ---- All sizes --------------------------------------------------------------------------------------------------- */

/* What a plan leaves of the budget. */
static int64_t left_of(const session_budget *budget, const qr_plan *plan) {
    return qr_max(0, qr_min(budget->bytes, budget->wanted) - qr_plan_total(plan));
}

/* Fewer than usual where their states would take more than a quarter of what the weights leave. */
static int64_t default_sequences(const qrun_session_params *params, const qr_device_memory *memory, const qr_plan *plan,
                                 int64_t state_floats) {
    const session_budget budget = budget_of(params, memory, plan);
    const int64_t most_bytes = left_of(&budget, plan) / 4, state_bytes = state_floats * (int64_t)sizeof(float);
    int64_t n = DEFAULT_SEQUENCES;
    while (n > 1 && n * state_bytes > most_bytes) { n /= 2; }
    return n;
}

/* A state of every sequence that may run. Where prefixes are shared, as many snapshots, but no more than a quarter of
 * what is left then. */
static void choose_states(const qrun_session_params *params, const qr_device_memory *memory, qr_plan *plan,
                          qr_session_sizes *sizes) {
    const int64_t state_bytes = sizes->state_floats * (int64_t)sizeof(float), n = sizes->max_sequences;
    qrun_plan_entry *entry = &plan->entries[QR_PLAN_STATES];
    entry->bytes = n * state_bytes;
    if (state_bytes == 0 || !sizes->share_prefixes) { return; }
    const session_budget budget = budget_of(params, memory, plan);
    sizes->n_snapshots = qr_min(n, left_of(&budget, plan) / 4 / state_bytes);
    entry->bytes += sizes->n_snapshots * state_bytes;
}

/* Of host memory, for prefixes. */
static int64_t kept_bytes(const qrun_session_params *params, const qr_device_memory *memory) {
    if (params->prefix_cache_bytes != QRUN_PREFIX_CACHE_RAM) { return params->prefix_cache_bytes; }
    if (memory->is_separate) { return memory->host_free_bytes / 4; }
    return (params->memory_bytes > 0 ? qr_min(params->memory_bytes, memory->free_bytes) : memory->free_bytes) / 4;
}

/* With drafts, or without. */
static qrun_status size_session(qrun_model *model, qrun_model *draft, const qrun_session_params *params,
                                const qr_device_memory *memory, bool drafts, qr_session_sizes *sizes, qr_plan *plan,
                                qr_error *err) {
    qr_plan_init(plan);
    qr_plan_set_device(plan, memory);
    plan->entries[QR_PLAN_WEIGHTS].bytes = (int64_t)model->weight_bytes;
    plan->entries[QR_PLAN_ADAPTERS].bytes = qr_adapters_bytes(model);
    const int64_t state_floats = qr_recurrent_state_floats(&model->shape);
    *sizes = (qr_session_sizes){
        .max_sequences = or_default(params->max_sequences, default_sequences(params, memory, plan, state_floats)),
        .state_floats = state_floats,
        .snapshot_tokens = SNAPSHOT_TOKENS,
        .n_draft_rows = drafts ? QR_DRAFT_ROWS : 0,
        .context_tokens = or_default(params->context_tokens, model->shape.context_tokens),
        .share_prefixes = !params->no_prefix_sharing,
        .max_waiting_bytes = or_default(params->max_waiting_bytes, DEFAULT_WAITING_BYTES)};
    qr_forward_limits *limits = &sizes->forward;
    limits->max_sequences = sizes->max_sequences + sizes->n_draft_rows;
    limits->max_tokens = qr_max(or_default(params->max_step_tokens, DEFAULT_STEP_TOKENS), limits->max_sequences);
    limits->max_blocks = qr_ceil_div(sizes->context_tokens, QR_KV_PAGE_TOKENS);
    const int64_t logit_rows = LOGIT_BYTES / (model->shape.vocab * (int64_t)sizeof(float));
    limits->max_logit_rows = qr_max(1, qr_min(logit_rows, limits->max_sequences));
    limits->n_rope_slots = sizes->max_sequences;
    limits->kv_format = choose_kv_format(model, params->kv);
    sizes->page_bytes = qr_page_bytes(model, limits->kv_format);
    sizes->n_kept_pages = qr_min(kept_bytes(params, memory) / (int64_t)sizes->page_bytes, MAX_PAGES);
    sizes->keeps_pages = params->prefix_cache_bytes != 0 || params->cache_dir != NULL;
    QR_RETURN_IF_ERROR(qr_forward_plan(model, limits, plan, err));
    if (draft != NULL) {
        const int64_t longest = or_default(params->sequence_tokens, sizes->context_tokens);
        sizes->draft = qr_draft_model_size(draft, sizes->max_sequences, qr_min(longest, sizes->context_tokens));
        QR_RETURN_IF_ERROR(qr_draft_model_plan(draft, &sizes->draft, plan, err));
    }
    plan->entries[QR_PLAN_HOST].bytes += (int64_t)qr_model_host_bytes(model);
    if (sizes->keeps_pages) {
        plan->entries[QR_PLAN_HOST].bytes += (int64_t)qr_page_store_bytes(sizes->n_kept_pages, sizes->page_bytes);
    }
    choose_states(params, memory, plan, sizes);
    const qrun_status status = choose_pages(model, params, memory, plan, sizes, err);
    plan->entries[QR_PLAN_KV_PAGES].bytes += sizes->n_pages * (int64_t)sizes->page_bytes;
    return status;
}

/* Drafts that nobody asked for are left out where there is no memory for them. */
qrun_status qr_session_size(qrun_model *model, qrun_model *draft, const qrun_session_params *params,
                            const qr_device_memory *memory, qr_session_sizes *sizes, qr_plan *plan, qr_error *err) {
    QR_RETURN_IF_ERROR(check_params(model, params, err));
    const bool is_default = params->speculate == NULL;
    if (!is_default) {
        const bool drafts = strcmp(params->speculate, "off") != 0;
        return size_session(model, draft, params, memory, drafts, sizes, plan, err);
    }
    qr_error with_drafts = {0};
    if (qr_model_can_take_back(model) &&
        size_session(model, NULL, params, memory, true, sizes, plan, &with_drafts) == QRUN_OK) {
        return QRUN_OK;
    }
    return size_session(model, NULL, params, memory, false, sizes, plan, err);
}

/* ---- A plan alone ------------------------------------------------------------------------------------------------ */

static qrun_plan_info describe_plan(const qrun_model *model, const qr_session_sizes *sizes, const qr_plan *plan,
                                    bool fits) {
    const int64_t longest = qr_min(sizes->context_tokens, qr_max(sizes->pool_tokens, 1));
    qrun_plan_info info = {
        .struct_size = sizeof(qrun_plan_info),
        .fits = fits,
        .n_parameters = model->n_parameters,
        .rank = model->split.rank,
        .sent_bytes = qr_split_sent_bytes(model, 1, 1),
        .total_bytes = qr_plan_total(plan),
        .budget_bytes = sizes->budget_bytes,
        .context_tokens = (int32_t)(fits ? qr_min(sizes->context_tokens, sizes->pool_tokens) : sizes->context_tokens),
        .max_sequences = (int32_t)sizes->max_sequences,
        .pool_tokens = sizes->n_pages / model->n_kv_groups * QR_KV_PAGE_TOKENS,
        .full_sequences = (int32_t)qr_min(
            sizes->max_sequences, sizes->n_pages / qr_max(pages_needed(model, longest, sizes->forward.max_tokens), 1)),
    };
    memcpy(info.expert_note, model->host_experts.note, sizeof info.expert_note);
    return info;
}

/* Models that are described for a plan, and not loaded. */
typedef struct described {
    qrun_model model;
    qr_safetensors *source;
    bool exists;
} described;

static qrun_status describe(qrun_context *context, const qrun_model_params *params, described *d, qr_error *err) {
    d->exists = true;
    return qr_model_prepare(context, params, &d->model, &d->source, err);
}

static void release_described(described *d) {
    if (!d->exists) { return; }
    qr_safetensors_close(d->source);
    qr_model_release(&d->model);
}

static qrun_status plan_described(described *model, described *draft, const qrun_session_params *params,
                                  qr_device_memory *memory, qr_session_sizes *sizes, qr_plan *plan, qr_error *err) {
    qrun_context *context = model->model.context;
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_session_params, params, err));
    if (qr_draft_model_is_named(params->speculate)) {
        const qrun_model_params model_params = qr_draft_model_params(&model->model, params->speculate);
        QR_RETURN_IF_ERROR(describe(context, &model_params, draft, err));
        qr_device_memory_reserve(memory, draft->model.weight_bytes);
    }
    qr_device_memory_reserve(memory, model->model.weight_bytes);
    return qr_session_size(&model->model, draft->exists ? &draft->model : NULL, params, memory, sizes, plan, err);
}

qrun_status qrun_plan_session(qrun_context *context, const qrun_model_params *model_params,
                              const qrun_session_params *session_params, qrun_plan_entry **entries, int32_t *n_entries,
                              qrun_plan_info *info, qrun_error *error) {
    *entries = NULL;
    *n_entries = 0;
    if (info != NULL) { QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_plan_info, info, error)); }
    described model = {.exists = false}, draft = {.exists = false};
    qr_session_sizes sizes = {.budget_bytes = 0};
    qr_plan plan;
    qr_device_memory memory;
    qrun_status status;
    QR_TRY(describe(context, model_params, &model, error));
    QR_TRY(qr_device_memory_now(context, &memory, error));
    const int64_t available_bytes = memory.free_bytes;
    status = plan_described(&model, &draft, session_params, &memory, &sizes, &plan, error);
    if (status != QRUN_OK && (status != QRUN_ERROR_MEMORY || sizes.budget_bytes == 0)) { goto out; }
    const bool fits = status == QRUN_OK;
    if (qr_plan_copy(&plan, QR_PLAN_SESSION_COUNT, entries, error) != QRUN_OK) { QR_TRY(QRUN_ERROR_MEMORY); }
    *n_entries = QR_PLAN_SESSION_COUNT;
    if (info != NULL) {
        *info = describe_plan(&model.model, &sizes, &plan, fits);
        info->available_bytes = available_bytes;
    }
out:
    release_described(&draft);
    release_described(&model);
    return status;
}
