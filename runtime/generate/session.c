#include "runtime/generate/session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/params.h"
#include "base/sizes.h"
#include "base/units.h"
#include "runtime/generate/prompt_rows.h"
#include "runtime/generate/split_session.h"
#include "runtime/layers/layer_delta.h"
#include "runtime/model/adapter.h"
#include "runtime/model/host_experts.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/model_open.h"
#include "runtime/model/weight_names.h"
#include "runtime/ranks/split_ranks.h"

enum { DEFAULT_SEQUENCES = 64, DEFAULT_STEP_TOKENS = 512, MAX_SEQUENCES = 4096, DEFAULT_POOL_CONTEXT = 4096 };
enum { MAX_PAGES = INT32_MAX / 4 };
enum { SNAPSHOT_TOKENS = 2048 }; /* a multiple of a page's */
static const int64_t LOGIT_BYTES = INT64_C(64) << 20, DEFAULT_WAITING_BYTES = INT64_C(1) << 30;
static const int64_t DEFAULT_CACHE_DIR_BYTES = INT64_C(8) << 30;

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

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
    if (params->max_sequences < 0 || params->max_sequences > MAX_SEQUENCES) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`max_sequences` must be from 0 to %d, not %d", MAX_SEQUENCES,
                       params->max_sequences);
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
        default: break;
    }
    switch (model->act_dtype) {
        case QR_DTYPE_F32: return QR_KV_F32;
        case QR_DTYPE_F16: return QR_KV_F16;
        default: return QR_KV_BF16;
    }
}

static int64_t pages_needed(const qrun_model *model, int64_t n_tokens, int64_t step_tokens) {
    int64_t total = 0;
    for (int32_t g = 0; g < model->n_kv_groups; g++) {
        total += qr_kv_group_pages(model->kv_groups[g].window, n_tokens, step_tokens);
    }
    return total;
}

/* The longest sequence that n_pages can hold. */
static int64_t longest_sequence(const qrun_model *model, int64_t n_pages, int64_t context, int64_t step_tokens) {
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
    const bool int8_fits = sizes->n_pages * (int64_t)qr_page_bytes(model, QR_KV_INT8) <= pool_bytes;
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
        sizes->n_pages = pages_needed(model, params->kv_tokens, step);
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
    if (sizes->n_pages < least || others > budget.bytes - sizes->n_pages * page_bytes) {
        sizes->n_pages = qr_max(least, params->kv_tokens > 0 ? sizes->n_pages : 0);
        return refuse_budget(model, sizes, plan, &budget, memory, sizes->n_pages * page_bytes, err);
    }
    sizes->pool_tokens = longest_sequence(model, sizes->n_pages, context, step);
    /* What a session for shorter sequences holds is no promise of the whole context. */
    const bool promised = params->context_tokens > 0 && longest == context && params->kv_tokens == 0;
    if (promised && context > sizes->pool_tokens) {
        return refuse_context(model, &budget, params->memory_bytes > 0, sizes, err);
    }
    return QRUN_OK;
}

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
    const int64_t state_floats = qr_delta_state_floats(&model->shape);
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

/* ---- A draft model ----------------------------------------------------------------------------------------------- */

static bool names_draft(const char *speculate) {
    return speculate != NULL && speculate[0] != '\0' && strcmp(speculate, "ngram") != 0 &&
           strcmp(speculate, "off") != 0;
}

/* It may be quantised as far as that goes: drafts change no answer. */
static qrun_model_params draft_params(const qrun_model *model, const char *path) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.dtype = model->act_dtype == QR_DTYPE_F32   ? QRUN_DTYPE_F32
                   : model->act_dtype == QR_DTYPE_F16 ? QRUN_DTYPE_F16
                                                      : QRUN_DTYPE_BF16;
    return params;
}

static qrun_status open_draft(qrun_session *session, const qrun_session_params *params, qr_error *err) {
    if (!names_draft(params->speculate)) { return QRUN_OK; }
    const qrun_model_params model_params = draft_params(session->model, params->speculate);
    const qrun_status status = qrun_model_open(session->model->context, &model_params, &session->draft, err);
    if (status != QRUN_OK && err != NULL) { qr_error_prefix(err, "`speculate`"); }
    return status == QRUN_OK ? qr_draft_model_check(session->model, session->draft, err) : status;
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
    if (names_draft(params->speculate)) {
        const qrun_model_params model_params = draft_params(&model->model, params->speculate);
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

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static qrun_status make_lists(qrun_session *session, qr_error *err) {
    const int64_t s = session->sizes.max_sequences, rows = session->sizes.forward.max_logit_rows;
    const int64_t n_next = session->sizes.forward.max_sequences;
    const int64_t columns = qr_max(session->model->shape.vocab, session->model->shape.hidden);
    qr_step *step = &session->step;
    session->running = qr_alloc_array_zeroed((size_t)s, sizeof *session->running);
    session->free_slots = qr_alloc_array((size_t)s, sizeof *session->free_slots);
    session->logits = qr_alloc_array((size_t)(rows * columns), sizeof(float));
    step->copies = qr_alloc_array((size_t)(s * session->model->n_kv_groups), sizeof *step->copies);
    step->state_copies = qr_alloc_array((size_t)(QR_STATE_COPIES * s), sizeof *step->state_copies);
    step->next = qr_alloc_array((size_t)n_next, sizeof *step->next);
    session->ahead.next = qr_alloc_array((size_t)n_next, sizeof *step->next);
    step->scores = qr_alloc_array((size_t)rows, sizeof *step->scores);
    if (session->running == NULL || session->free_slots == NULL || session->logits == NULL || step->copies == NULL ||
        step->state_copies == NULL || step->next == NULL || session->ahead.next == NULL || step->scores == NULL) {
        return qr_fail_memory(err, "the session's lists", (unsigned long long)(rows * columns) * sizeof(float));
    }
    for (int64_t i = 0; i < s; i++) { session->free_slots[i] = (int32_t)(s - 1 - i); }
    session->n_free_slots = (int32_t)s;
    return QRUN_OK;
}

static int n_threads(const qrun_session *session) { return qr_threads_count(session->model->context->threads); }

static qrun_status make_samplers(qrun_session *session, qr_error *err) {
    session->samplers = qr_alloc_array_zeroed((size_t)n_threads(session), sizeof(qr_sampler *));
    if (session->samplers == NULL) { return qr_fail_memory(err, "the samplers", 0); }
    for (int i = 0; i < n_threads(session); i++) {
        QR_RETURN_IF_ERROR(qr_sampler_create(session->model->shape.vocab, &session->samplers[i], err));
    }
    return QRUN_OK;
}

static qrun_status make_cache(qrun_session *session, qr_error *err) {
    const qrun_model *model = session->model;
    int32_t *windows = qr_alloc_array((size_t)model->n_kv_groups, sizeof *windows);
    if (windows == NULL) { return qr_fail_memory(err, "the K/V groups", 0); }
    for (int32_t g = 0; g < model->n_kv_groups; g++) { windows[g] = model->kv_groups[g].window; }
    const qr_kv_cache_options options = {.n_pages = (int32_t)session->sizes.n_pages,
                                         .n_groups = model->n_kv_groups,
                                         .windows = windows,
                                         .share_prefixes = session->sizes.share_prefixes,
                                         .keeper = qr_page_store_keeper(session->store),
                                         .needs_snapshots = session->sizes.state_floats > 0,
                                         .n_snapshots = (int32_t)session->sizes.n_snapshots};
    const qrun_status status = qr_kv_cache_create(&options, &session->cache, err);
    qr_free(windows);
    return status;
}

static qrun_status make_memory(qrun_session *session, qr_error *err) {
    qr_backend *backend = session->model->context->backend;
    const size_t n_bytes = (size_t)session->sizes.n_pages * session->sizes.page_bytes;
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &session->pages, err));
    session->pages_bytes = n_bytes;
    const size_t states_bytes = (size_t)session->plan.entries[QR_PLAN_STATES].bytes;
    if (states_bytes > 0) {
        void *states;
        QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, states_bytes, &states, err));
        session->states = states;
        session->states_bytes = states_bytes;
    }
    return qr_forward_create(session->model, &session->sizes.forward, session->pages, session->states,
                             &session->forward, err);
}

static qrun_status make_store(qrun_session *session, const qrun_session_params *params, qr_error *err) {
    const qr_session_sizes *sizes = &session->sizes;
    const qr_page_store_options options = {.pages = session->pages,
                                           .page_bytes = sizes->page_bytes,
                                           .n_pages = sizes->n_pages,
                                           .n_slots = sizes->n_kept_pages,
                                           .kv_format = sizes->forward.kv_format,
                                           .folder = params->cache_dir,
                                           .max_file_bytes =
                                               or_default(params->cache_dir_bytes, DEFAULT_CACHE_DIR_BYTES),
                                           .shared = qr_forward_page_ranks(session->forward)};
    if (!sizes->keeps_pages) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_page_store_create(session->model, &options, &session->store, err));
    qr_forward_set_store(session->forward, session->store);
    return QRUN_OK;
}

/* All that the sizes say. */
static qrun_status make_parts(qrun_session *session, const qrun_session_params *params, qr_error *err) {
    const int64_t vocab = session->model->shape.vocab;
    QR_RETURN_IF_ERROR(qr_split_session_made(session, make_memory(session, err), err));
    QR_RETURN_IF_ERROR(make_store(session, params, err)); /* ranks meet here */
    QR_RETURN_IF_ERROR(make_cache(session, err));
    if (session->draft != NULL) {
        QR_RETURN_IF_ERROR(qr_draft_model_create(session->draft, &session->sizes.draft, vocab, &session->drafter, err));
    }
    QR_RETURN_IF_ERROR(make_lists(session, err));
    QR_RETURN_IF_ERROR(make_samplers(session, err));
    session->event_descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (session->event_descriptor < 0) {
        return qr_fail(err, QRUN_ERROR_IO, "cannot make an event descriptor: %s", strerror(errno));
    }
    return qr_split_session_timer(session, err);
}

static void fill_fixed_stats(qrun_session *session) {
    session->counts = (qrun_session_stats){
        .struct_size = sizeof session->stats,
        .page_tokens = QR_KV_PAGE_TOKENS,
        .pages_total = session->sizes.n_pages,
        .context_tokens = qr_min(session->sizes.context_tokens, session->sizes.pool_tokens),
        .planned_bytes = qr_plan_total(&session->plan),
    };
    session->stats = session->counts;
}

/* The sizes and the plan, of what this rank has free. */
static qrun_status choose_sizes(qrun_session *session, const qrun_session_params *params, qr_error *err) {
    qr_device_memory memory;
    QR_RETURN_IF_ERROR(qr_device_memory_now(session->model->context, &memory, err));
    qr_split_session_memory(session->model, &memory);
    return qr_session_size(session->model, session->draft, params, &memory, &session->sizes, &session->plan, err);
}

void qr_session_set_snapshots(qrun_session *session, int64_t n_snapshots) {
    qr_session_sizes *sizes = &session->sizes;
    const int64_t state_bytes = sizes->state_floats * (int64_t)sizeof(float);
    session->plan.entries[QR_PLAN_STATES].bytes += (n_snapshots - sizes->n_snapshots) * state_bytes;
    sizes->n_snapshots = n_snapshots;
}

void qr_session_set_kept_pages(qrun_session *session, int64_t n_pages) {
    qr_session_sizes *sizes = &session->sizes;
    session->plan.entries[QR_PLAN_HOST].bytes += (n_pages - sizes->n_kept_pages) * (int64_t)sizes->page_bytes;
    sizes->n_kept_pages = n_pages;
}

void qr_session_set_pages(qrun_session *session, int64_t n_pages) {
    qr_session_sizes *sizes = &session->sizes;
    session->plan.entries[QR_PLAN_KV_PAGES].bytes += (n_pages - sizes->n_pages) * (int64_t)sizes->page_bytes;
    sizes->n_pages = n_pages;
    sizes->pool_tokens = longest_sequence(session->model, n_pages, sizes->context_tokens, sizes->forward.max_tokens);
}

qrun_status qrun_session_create(qrun_model *model, const qrun_session_params *asked, qrun_session **session,
                                qrun_error *error) {
    *session = NULL;
    qrun_session *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the session", sizeof *made); }
    made->model = model;
    made->event_descriptor = made->idle_timer = made->both_descriptors = -1;
    pthread_mutex_init(&made->lock, NULL);
    (void)qr_model_count_sessions(model, 1);
    qrun_status status = QRUN_OK;
    QR_TRY(QR_CHECK_STRUCT(qrun_session_params, asked, error));
    qrun_session_params params = *asked;
    QR_TRY(qr_split_session_begin(model, &params, error));
    status = open_draft(made, &params, error);
    if (status == QRUN_OK) { status = choose_sizes(made, &params, error); }
    bool again;
    QR_TRY(qr_split_session_sequences(made, &params, &again, status, error));
    if (again) { status = choose_sizes(made, &params, error); }
    QR_TRY(qr_split_session_sizes(made, status, error));
    QR_TRY(qr_split_session_made(made, make_parts(made, &params, error), error));
    qr_plan_describe(&made->plan, QR_PLAN_SESSION_COUNT, model->context->backend);
    qr_model_name_weights(model);
    qr_draft_costs_init(&made->draft_costs);
    fill_fixed_stats(made);
    made->leads = qr_session_is_split(made) && !qr_session_follows(made);
    *session = made;
    return QRUN_OK;
out:
    qrun_session_destroy(made);
    return status;
}

void qrun_session_destroy(qrun_session *session) {
    if (session == NULL) { return; }
    qr_request *const lists[] = {session->started.first, session->queue.waiting.first, session->queue.cancelled.first};
    for (size_t i = 0; i < QR_COUNT_OF(lists); i++) {
        for (qr_request *request = lists[i], *next; request != NULL; request = next) {
            next = request->next;
            qr_request_destroy(request, session->cache);
        }
    }
    qr_backend *backend = session->model->context->backend;
    qr_timeline_drop_tensors(backend, NULL, 0);
    qr_draft_model_destroy(session->drafter);
    qrun_model_destroy(session->draft);
    if (session->leads) { qr_forward_end(session->forward); }
    qr_forward_destroy(session->forward);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, session->pages, session->pages_bytes);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, session->states, session->states_bytes);
    qr_kv_cache_destroy(session->cache);
    qr_page_store_destroy(session->store);
    for (int i = 0; session->samplers != NULL && i < n_threads(session); i++) {
        qr_sampler_destroy(session->samplers[i]);
    }
    qr_free(session->samplers);
    qr_free(session->logits);
    qr_free(session->step.copies);
    qr_free(session->step.state_copies);
    qr_free(session->step.next);
    qr_free(session->ahead.next);
    qr_free(session->step.scores);
    qr_free(session->running);
    qr_free(session->free_slots);
    const int descriptors[] = {session->event_descriptor, session->idle_timer, session->both_descriptors};
    for (size_t i = 0; i < QR_COUNT_OF(descriptors); i++) {
        if (descriptors[i] >= 0) { close(descriptors[i]); }
    }
    (void)qr_model_count_sessions(session->model, -1);
    pthread_mutex_destroy(&session->lock);
    qr_free(session);
}

/* ---- Calls from any thread --------------------------------------------------------------------------------------- */

static void notify(const qrun_session *session) {
    const uint64_t one = 1;
    while (write(session->event_descriptor, &one, sizeof one) < 0 && errno == EINTR) {}
}

qrun_status qr_session_submit(qrun_session *session, const qrun_request_params *params, const qr_json *overrides,
                              const char *what, uint64_t *request, qr_error *error) {
    const qr_request_limits limits = {.context_tokens = session->sizes.context_tokens,
                                      .pool_tokens = session->sizes.pool_tokens,
                                      .kv_is_smallest = session->sizes.forward.kv_format == QR_KV_INT8};
    qr_request *made;
    QR_RETURN_IF_ERROR(qr_split_session_require_leader(session, error));
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_request_params, params, error));
    QR_RETURN_IF_ERROR(qr_adapter_check_owner(session->model, params->adapter, error));
    QR_RETURN_IF_ERROR(qr_request_create(session->model, &limits, params, overrides, what, &made, error));
    const int64_t max_bytes = session->sizes.max_waiting_bytes, n_samples = made->n_samples;
    pthread_mutex_lock(&session->lock);
    const bool added = qr_request_queue_add(&session->queue, made, max_bytes);
    if (added && request != NULL) { *request = made->id; }
    if (added) { session->stats.n_waiting = (int32_t)qr_min((int64_t)session->stats.n_waiting + n_samples, INT32_MAX); }
    pthread_mutex_unlock(&session->lock);
    if (!added) {
        qr_request_destroy(made, session->cache);
        return qr_fail(error, QRUN_ERROR_FULL,
                       "the requests that wait already hold `max_waiting_bytes` (%s); submit again when some have "
                       "started, or give more",
                       qr_format_bytes(max_bytes).text);
    }
    notify(session);
    return QRUN_OK;
}

qrun_status qrun_session_submit(qrun_session *session, const qrun_request_params *params, uint64_t *request,
                                qrun_error *error) {
    return qr_session_submit(session, params, NULL, "", request, error);
}

qrun_status qrun_session_cancel(qrun_session *session, uint64_t request, qrun_error *error) {
    pthread_mutex_lock(&session->lock);
    const bool found = qr_request_queue_cancel(&session->queue, request);
    pthread_mutex_unlock(&session->lock);
    if (!found) {
        return qr_fail(error, QRUN_ERROR_NOT_FOUND, "request %llu is over or never existed",
                       (unsigned long long)request);
    }
    notify(session);
    return QRUN_OK;
}

int qrun_session_event_descriptor(const qrun_session *session) {
    return session->both_descriptors >= 0 ? session->both_descriptors : session->event_descriptor;
}

qrun_status qrun_session_get_stats(qrun_session *session, qrun_session_stats *stats, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_session_stats, stats, error));
    pthread_mutex_lock(&session->lock);
    *stats = session->stats;
    stats->waiting_bytes = session->queue.waiting_bytes;
    pthread_mutex_unlock(&session->lock);
    stats->peak_bytes = qr_device_memory_peak(session->model->context->backend);
    return QRUN_OK;
}

const qrun_plan_entry *qrun_session_plan(const qrun_session *session, int32_t *n_entries) {
    *n_entries = QR_PLAN_SESSION_COUNT;
    return session->plan.entries;
}

qrun_status qrun_session_keep_prefixes(qrun_session *session, qrun_error *error) {
    QR_RETURN_IF_ERROR(qr_split_session_require_leader(session, error));
    if (session->store == NULL || !qr_page_store_has_files(session->store)) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "the session has no `cache_dir`");
    }
    if (atomic_exchange(&session->stepping, true)) {
        return qr_fail(error, QRUN_ERROR_BUSY, "another thread is stepping this session");
    }
    qr_page_store_write_all(session->store);
    qr_kv_keep_all(session->cache);
    pthread_mutex_lock(&session->lock);
    qr_page_store_note(session->store, session->stats.cache_note, sizeof session->stats.cache_note);
    pthread_mutex_unlock(&session->lock);
    atomic_store(&session->stepping, false);
    return QRUN_OK;
}

qrun_status qrun_session_run(qrun_session *session, qrun_error *error) {
    if (qr_session_follows(session)) { return qr_split_session_follow(session, error); }
    for (bool has_work = true; has_work;) { QR_RETURN_IF_ERROR(qrun_session_step(session, &has_work, error)); }
    return QRUN_OK;
}
