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
#include "runtime/model/adapter.h"
#include "runtime/model/model_open.h"

enum { DEFAULT_SEQUENCES = 64, DEFAULT_STEP_TOKENS = 512, MAX_SEQUENCES = 4096, DEFAULT_POOL_CONTEXT = 4096 };
enum { MAX_PAGES = INT32_MAX / 4 };
static const int64_t LOGIT_BYTES = INT64_C(64) << 20;

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static int64_t or_default(int64_t value, int64_t fallback) { return value > 0 ? value : fallback; }

static qrun_status check_params(const qrun_model *model, const qrun_session_params *params, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_session_params, params, err));
    if (params->max_sequences < 0 || params->max_sequences > MAX_SEQUENCES) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`max_sequences` must be from 0 to %d, not %d", MAX_SEQUENCES,
                       params->max_sequences);
    }
    if (params->context_tokens < 0 || params->context_tokens > model->shape.context_tokens) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`context_tokens=%d` is not possible: this model is made for %lld",
                       params->context_tokens, (long long)model->shape.context_tokens);
    }
    if (params->memory_bytes < 0 || params->kv_tokens < 0 || params->max_step_tokens < 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`memory_bytes`, `kv_tokens` and `max_step_tokens` cannot be negative");
    }
    return QRUN_OK;
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
    char text[256];
} advice;

/* What would make this session fit, without what is set already. */
static advice advise(const qrun_model *model, const qr_forward_limits *limits, bool can_have_more) {
    char smaller[80] = "";
    const char *parts[3];
    int n_parts = 0;
    const qr_options_text options = qr_model_smaller_options(model);
    if (can_have_more) { parts[n_parts++] = "give more `memory_bytes`"; }
    if (options.text[0] != '\0') {
        (void)snprintf(smaller, sizeof smaller, "hold the weights smaller (%s)", options.text);
        parts[n_parts++] = smaller;
    }
    if (limits->max_tokens > limits->max_sequences) {
        parts[n_parts++] = limits->max_sequences > 1 ? "take smaller `max_step_tokens` and `max_sequences`"
                                                     : "take smaller `max_step_tokens`";
    } else if (limits->max_sequences > 1) {
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

static qrun_status refuse_budget(const qrun_model *model, const qr_forward_limits *limits, const qr_plan *plan,
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
                   advise(model, limits, !budget->by_device).text);
}

/* The number of pages, by what the caller gave: tokens, a budget, or neither. `plan` has everything but the pages. */
static qrun_status choose_pages(const qrun_model *model, const qrun_session_params *params,
                                const qr_device_memory *memory, const qr_plan *plan, qr_session_sizes *sizes,
                                qr_error *err) {
    const session_budget budget = budget_of(params, memory, plan);
    const int64_t step = sizes->forward.max_tokens, context = sizes->context_tokens;
    const int64_t page_bytes = (int64_t)sizes->page_bytes;
    const int64_t least = pages_needed(model, qr_min(context, 2 * QR_KV_PAGE_TOKENS), step);
    const int64_t useful = qr_min(pages_needed(model, context, step) * sizes->forward.max_sequences, MAX_PAGES);
    const int64_t others = qr_plan_total(plan);
    if (params->kv_tokens > 0) {
        sizes->n_pages = pages_needed(model, params->kv_tokens, step);
    } else if (params->memory_bytes > 0) {
        sizes->n_pages = qr_min((budget.bytes - others) / page_bytes, useful);
    } else {
        const int64_t wanted =
            qr_max(pages_needed(model, qr_min(context, DEFAULT_POOL_CONTEXT), step) * sizes->forward.max_sequences,
                   pages_needed(model, context, step));
        sizes->n_pages = qr_min((budget.wanted - others) / page_bytes, qr_min(wanted, useful));
    }
    if (sizes->n_pages > MAX_PAGES) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a pool of %lld tokens needs more than %d pages; give a smaller `kv_tokens`",
                       (long long)params->kv_tokens, MAX_PAGES);
    }
    if (sizes->n_pages < least || others > budget.bytes - sizes->n_pages * page_bytes) {
        const int64_t smallest = qr_max(least, params->kv_tokens > 0 ? sizes->n_pages : 0) * page_bytes;
        return refuse_budget(model, &sizes->forward, plan, &budget, memory, smallest, err);
    }
    sizes->pool_tokens = longest_sequence(model, sizes->n_pages, context, step);
    return QRUN_OK;
}

qrun_status qr_session_size(qrun_model *model, const qrun_session_params *params, const qr_device_memory *memory,
                            qr_session_sizes *sizes, qr_plan *plan, qr_error *err) {
    QR_RETURN_IF_ERROR(check_params(model, params, err));
    *sizes = (qr_session_sizes){.context_tokens = or_default(params->context_tokens, model->shape.context_tokens),
                                .share_prefixes = !params->no_prefix_sharing};
    qr_forward_limits *limits = &sizes->forward;
    limits->max_sequences = or_default(params->max_sequences, DEFAULT_SEQUENCES);
    limits->max_tokens = qr_max(or_default(params->max_step_tokens, DEFAULT_STEP_TOKENS), limits->max_sequences);
    limits->max_blocks = qr_ceil_div(sizes->context_tokens, QR_KV_PAGE_TOKENS);
    const int64_t logit_rows = LOGIT_BYTES / (model->shape.vocab * (int64_t)sizeof(float));
    limits->max_logit_rows = qr_max(1, qr_min(logit_rows, limits->max_sequences));
    limits->n_rope_slots = limits->max_sequences;
    limits->kv_format = choose_kv_format(model, params->kv);
    sizes->page_bytes = qr_page_bytes(model, limits->kv_format);
    qr_plan_init(plan);
    qr_plan_set_device(plan, memory);
    plan->entries[QR_PLAN_WEIGHTS].bytes = (int64_t)model->weight_bytes;
    plan->entries[QR_PLAN_ADAPTERS].bytes = qr_adapters_bytes(model);
    QR_RETURN_IF_ERROR(qr_forward_plan(model, limits, plan, err));
    QR_RETURN_IF_ERROR(choose_pages(model, params, memory, plan, sizes, err));
    plan->entries[QR_PLAN_KV_PAGES].bytes = sizes->n_pages * (int64_t)sizes->page_bytes;
    return QRUN_OK;
}

qrun_status qrun_plan_session(qrun_context *context, const qrun_model_params *model_params,
                              const qrun_session_params *session_params, qrun_plan_entry **entries, int32_t *n_entries,
                              qrun_error *error) {
    *entries = NULL;
    *n_entries = 0;
    qrun_model model;
    qr_safetensors *source;
    qr_session_sizes sizes;
    qr_plan plan;
    qr_device_memory memory;
    qrun_status status;
    QR_TRY(qr_model_prepare(context, model_params, &model, &source, error));
    QR_TRY(qr_device_memory_now(context->backend, &memory, error));
    memory.free_bytes = qr_max(memory.free_bytes - (int64_t)model.weight_bytes, 0);
    QR_TRY(qr_session_size(&model, session_params, &memory, &sizes, &plan, error));
    QR_TRY(qr_plan_copy(&plan, QR_PLAN_SESSION_COUNT, entries, error));
    *n_entries = QR_PLAN_SESSION_COUNT;
out:
    qr_safetensors_close(source);
    model.weight_bytes = 0; /* nothing was made */
    qr_model_release(&model);
    return status;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static qrun_status make_lists(qrun_session *session, qr_error *err) {
    const int64_t s = session->sizes.forward.max_sequences, vocab = session->model->shape.vocab;
    qr_step *step = &session->step;
    session->running = qr_alloc_array_zeroed((size_t)s, sizeof *session->running);
    session->free_slots = qr_alloc_array((size_t)s, sizeof *session->free_slots);
    session->logits = qr_alloc_array((size_t)(session->sizes.forward.max_logit_rows * vocab), sizeof(float));
    step->copies = qr_alloc_array((size_t)(s * session->model->n_kv_groups), sizeof *step->copies);
    step->next = qr_alloc_array((size_t)s, sizeof *step->next);
    if (session->running == NULL || session->free_slots == NULL || session->logits == NULL || step->copies == NULL ||
        step->next == NULL) {
        return qr_fail_memory(err, "the session's lists", (unsigned long long)(s * vocab) * sizeof(float));
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
                                         .share_prefixes = session->sizes.share_prefixes};
    const qrun_status status = qr_kv_cache_create(&options, &session->cache, err);
    qr_free(windows);
    return status;
}

static qrun_status make_memory(qrun_session *session, qr_error *err) {
    qr_backend *backend = session->model->context->backend;
    const size_t n_bytes = (size_t)session->sizes.n_pages * session->sizes.page_bytes;
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &session->pages, err));
    session->pages_bytes = n_bytes;
    return qr_forward_create(session->model, &session->sizes.forward, session->pages, &session->forward, err);
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

qrun_status qrun_session_create(qrun_model *model, const qrun_session_params *params, qrun_session **session,
                                qrun_error *error) {
    *session = NULL;
    qrun_session *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the session", sizeof *made); }
    made->model = model;
    made->inbox_end = &made->inbox;
    made->event_descriptor = -1;
    pthread_mutex_init(&made->lock, NULL);
    (void)qr_model_count_sessions(model, 1);
    qr_device_memory memory;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_memory_now(model->context->backend, &memory, error));
    QR_TRY(qr_session_size(model, params, &memory, &made->sizes, &made->plan, error));
    QR_TRY(make_cache(made, error));
    QR_TRY(make_memory(made, error));
    QR_TRY(make_lists(made, error));
    QR_TRY(make_samplers(made, error));
    made->event_descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (made->event_descriptor < 0) {
        QR_TRY(qr_fail(error, QRUN_ERROR_IO, "cannot make an event descriptor: %s", strerror(errno)));
    }
    fill_fixed_stats(made);
    *session = made;
    return QRUN_OK;
out:
    qrun_session_destroy(made);
    return status;
}

void qrun_session_destroy(qrun_session *session) {
    if (session == NULL) { return; }
    qr_request *const lists[] = {session->live, session->inbox};
    for (size_t i = 0; i < QR_COUNT_OF(lists); i++) {
        for (qr_request *request = lists[i], *next; request != NULL; request = next) {
            next = request->next;
            qr_request_destroy(request, session->cache);
        }
    }
    qr_backend *backend = session->model->context->backend;
    qr_forward_destroy(session->forward);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, session->pages, session->pages_bytes);
    qr_kv_cache_destroy(session->cache);
    for (int i = 0; session->samplers != NULL && i < n_threads(session); i++) {
        qr_sampler_destroy(session->samplers[i]);
    }
    qr_free(session->samplers);
    qr_free(session->logits);
    qr_free(session->step.copies);
    qr_free(session->step.next);
    qr_free(session->running);
    qr_free(session->free_slots);
    if (session->event_descriptor >= 0) { close(session->event_descriptor); }
    (void)qr_model_count_sessions(session->model, -1);
    pthread_mutex_destroy(&session->lock);
    qr_free(session);
}

/* ---- Calls from any thread --------------------------------------------------------------------------------------- */

static void notify(const qrun_session *session) {
    const uint64_t one = 1;
    while (write(session->event_descriptor, &one, sizeof one) < 0 && errno == EINTR) {}
}

qrun_status qrun_session_submit(qrun_session *session, const qrun_request_params *params, uint64_t *request,
                                qrun_error *error) {
    const qr_request_limits limits = {.context_tokens = session->sizes.context_tokens,
                                      .pool_tokens = session->sizes.pool_tokens,
                                      .kv_is_smallest = session->sizes.forward.kv_format == QR_KV_INT8};
    qr_request *made;
    QR_RETURN_IF_ERROR(qr_adapter_check_owner(session->model, params->adapter, error));
    QR_RETURN_IF_ERROR(qr_request_create(session->model, session->cache, &limits, params, &made, error));
    pthread_mutex_lock(&session->lock);
    made->id = ++session->last_request;
    if (request != NULL) { *request = made->id; }
    *session->inbox_end = made;
    session->inbox_end = &made->next;
    session->stats.n_waiting += made->n_samples;
    pthread_mutex_unlock(&session->lock);
    notify(session);
    return QRUN_OK;
}

static qr_request *find_request(qr_request *list, uint64_t id) {
    while (list != NULL && list->id != id) { list = list->next; }
    return list;
}

qrun_status qrun_session_cancel(qrun_session *session, uint64_t request, qrun_error *error) {
    pthread_mutex_lock(&session->lock);
    qr_request *found = find_request(session->inbox, request);
    if (found == NULL) { found = find_request(session->live, request); }
    if (found != NULL && atomic_load(&found->over)) { found = NULL; }
    if (found != NULL) { atomic_store(&found->cancelled, true); }
    pthread_mutex_unlock(&session->lock);
    if (found == NULL) {
        return qr_fail(error, QRUN_ERROR_NOT_FOUND, "request %llu is over or never existed",
                       (unsigned long long)request);
    }
    notify(session);
    return QRUN_OK;
}

int qrun_session_event_descriptor(const qrun_session *session) { return session->event_descriptor; }

qrun_status qrun_session_get_stats(qrun_session *session, qrun_session_stats *stats, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_session_stats, stats, error));
    pthread_mutex_lock(&session->lock);
    *stats = session->stats;
    pthread_mutex_unlock(&session->lock);
    stats->peak_bytes = qr_device_memory_peak(session->model->context->backend);
    return QRUN_OK;
}

const qrun_plan_entry *qrun_session_plan(const qrun_session *session, int32_t *n_entries) {
    *n_entries = QR_PLAN_SESSION_COUNT;
    return session->plan.entries;
}

qrun_status qrun_session_run(qrun_session *session, qrun_error *error) {
    for (bool has_work = true; has_work;) { QR_RETURN_IF_ERROR(qrun_session_step(session, &has_work, error)); }
    return QRUN_OK;
}
