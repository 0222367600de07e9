#include "runtime/generate/session.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/params.h"
#include "base/sizes.h"
#include "base/units.h"
#include "kernels/timeline/timeline.h"
#include "runtime/generate/prompt_rows.h"
#include "runtime/generate/split_session.h"
#include "runtime/model/adapter.h"
#include "runtime/model/model_open.h"
#include "runtime/model/split.h"
#include "runtime/model/weight_names.h"

static const int64_t DEFAULT_CACHE_DIR_BYTES = INT64_C(8) << 30;

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static qrun_status open_draft(qrun_session *session, const qrun_session_params *params, qr_error *err) {
    if (!qr_draft_model_is_named(params->speculate)) { return QRUN_OK; }
    const qrun_model_params model_params = qr_draft_model_params(session->model, params->speculate);
    const qrun_status status = qr_model_open_alone(session->model->context, &model_params, &session->draft, err);
    if (status != QRUN_OK && err != NULL) { qr_error_prefix(err, "`speculate`"); }
    return status == QRUN_OK ? qr_draft_model_check(session->model, session->draft, err) : status;
}
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
                                           .max_file_bytes = params->cache_dir_bytes > 0 ? params->cache_dir_bytes
                                                                                         : DEFAULT_CACHE_DIR_BYTES,
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
        .max_sequences = (int32_t)session->sizes.max_sequences,
        .planned_bytes = qr_plan_total(&session->plan),
    };
    session->stats = session->counts;
}

/* The sizes and the plan, of what this rank has free. */
static qrun_status choose_sizes(qrun_session *session, const qrun_session_params *params, qr_error *err) {
    qr_device_memory memory;
    QR_RETURN_IF_ERROR(qr_device_memory_now(session->model->context, &memory, err));
    qr_split_memory(session->model, &memory);
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
    sizes->pool_tokens = qr_session_longest(session->model, n_pages, sizes->context_tokens, sizes->forward.max_tokens);
}

qrun_status qrun_session_create(qrun_model *model, const qrun_session_params *asked, qrun_session **session,
                                qrun_error *error) {
    *session = NULL;
    qrun_session *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the session", sizeof *made); }
    made->model = model;
    made->event_descriptor = made->idle_timer = made->both_descriptors = -1;
    pthread_mutex_init(&made->lock, NULL);
    qr_grammar_shelf_init(&made->shelf);
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
    qr_grammar_room_destroy(session->grammars);
    qr_grammar_shelf_free(&session->shelf);
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

/* What requests with a schema need of the session: the first one makes it. */
static qrun_status make_grammars(qrun_session *session, qr_error *err) {
    pthread_mutex_lock(&session->lock);
    const bool is_made = session->grammars != NULL;
    pthread_mutex_unlock(&session->lock);
    if (is_made) { return QRUN_OK; }
    qr_grammar_room *made;
    QR_RETURN_IF_ERROR(qr_grammar_room_create(session->model->tokenizer->tokenizer, session->model->shape.vocab,
                                              n_threads(session), &made, err));
    pthread_mutex_lock(&session->lock);
    if (session->grammars == NULL) { session->grammars = made, made = NULL; }
    pthread_mutex_unlock(&session->lock);
    qr_grammar_room_destroy(made); /* another thread was faster */
    return QRUN_OK;
}

qrun_status qr_session_submit(qrun_session *session, const qrun_request_params *params, const qr_json *overrides,
                              const char *what, uint64_t *request, qr_error *error) {
    const qr_request_limits limits = {.context_tokens = session->sizes.context_tokens,
                                      .pool_tokens = session->sizes.pool_tokens,
                                      .kv_is_smallest =
                                          session->sizes.forward.kv_format == qr_kv_smallest_format(session->model),
                                      .grammars = &session->shelf};
    qr_request *made;
    QR_RETURN_IF_ERROR(qr_split_session_require_leader(session, error));
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_request_params, params, error));
    QR_RETURN_IF_ERROR(qr_adapter_check_owner(session->model, params->adapter, error));
    QR_RETURN_IF_ERROR(qr_request_create(session->model, &limits, params, overrides, what, &made, error));
    const qrun_status status = made->grammar != NULL ? make_grammars(session, error) : QRUN_OK;
    if (status != QRUN_OK) {
        qr_request_destroy(made, session->cache);
        return status;
    }
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
        return qr_fail(error, QRUN_ERROR_BUSY, "this session is in a step; a callback cannot step it");
    }
    qr_page_store_write_all(session->store);
    qr_kv_keep_all(session->cache);
    qr_page_store_ask_notes(session->store);
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
