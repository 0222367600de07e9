#include "runtime/generate/split_session.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "base/buffer.h"
#include "base/sizes.h"
#include "loaders/files/json_put.h"
#include "runtime/model/adapter.h"
#include "runtime/model/split.h"
#include "runtime/ranks/ranks.h"

/* ---- What all ranks have in common ------------------------------------------------------------------------------- */

static void put_hash(qr_buffer *text, const char *key, uint64_t hash) {
    char hex[17];
    (void)snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    qr_json_put_text(text, key, hex);
}

static void put_adapters(const qrun_model *model, qr_buffer *text) {
    char key[32];
    for (int i = 0; i < QR_MAX_ADAPTERS; i++) {
        if (model->adapters[i] == NULL) { continue; }
        (void)snprintf(key, sizeof key, "adapter %d", i + 1);
        put_hash(text, key, model->adapters[i]->content_hash);
    }
}

/* What bits depend on. */
static qrun_status compare(const qrun_model *model, qr_error *err) {
    qr_buffer text = {0};
    qr_json_put_begin(&text, NULL, '{');
    qr_json_put_text(&text, "version", qrun_version());
    put_hash(&text, "config", model->config.content_hash);
    put_hash(&text, "model", model->content_hash);
    qr_json_put_text(&text, "weights", qr_model_quant_name(model));
    qr_json_put_text(&text, "head", qr_weight_format_name(model->head_share.whole_format));
    qr_json_put_text(&text, "embedding", qr_weight_format_name(model->embedding.desc.format));
    qr_json_put_text(&text, "dtype", qr_weight_format_name(qr_model_compute_format(model)));
    qr_json_put_text(&text, "isa", model->context->backend->isa);
    qr_json_put_int(&text, "numerics", model->context->numerics);
    put_adapters(model, &text);
    qr_json_put_end(&text, '}');
    qrun_status status = text.failed ? qr_fail_memory(err, "what ranks compare", 0) : QRUN_OK;
    status = qr_agree(model->context->ranks, status, err);
    if (status == QRUN_OK) { status = qr_ranks_compare(model->context->ranks, text.data, err); }
    qr_buffer_free(&text);
    return status;
}

/* Rank 0's params, and what is said where the struct has a pointer. */
typedef struct announcement {
    qrun_session_params params;
    int32_t speculate; /* of `speculations` */
    int32_t has_files; /* of kept pages */
} announcement;

static const char *const speculations[] = {NULL, "ngram", "off"};

/* Rank 0 alone has a second model. To the others its guesses are rows of a batch, like those of the text so far. */
static int32_t number_of_speculation(const char *speculate) {
    return speculate == NULL ? 0 : strcmp(speculate, "off") == 0 ? 2 : 1;
}

static qrun_status share_params(const qrun_model *model, qrun_session_params *params, qr_error *err) {
    announcement told;
    memset(&told, 0, sizeof told);
    told.params = *params;
    told.params.speculate = told.params.cache_dir = NULL; /* no addresses of another process */
    told.speculate = number_of_speculation(params->speculate);
    told.has_files = params->cache_dir != NULL;
    QR_RETURN_IF_ERROR(qr_broadcast(model->context->ranks, &told, sizeof told, 0, err));
    if (model->context->ranks->rank == 0) { return QRUN_OK; }
    const char *folder = params->cache_dir; /* each has its own path */
    *params = told.params;
    params->speculate = speculations[told.speculate];
    params->cache_dir = told.has_files != 0 ? folder : NULL;
    if (told.has_files != 0 && folder == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "rank 0 has a `cache_dir`, and this rank has none");
    }
    return QRUN_OK;
}

qrun_status qr_split_session_begin(qrun_model *model, qrun_session_params *params, qr_error *err) {
    if (model->split.n_ranks == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_split_meet(model, err));
    QR_RETURN_IF_ERROR(qr_agree(model->context->ranks, share_params(model, params, err), err));
    return compare(model, err);
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* The fewest that any rank has of something, and whether all have as many. */
static qrun_status find_fewest(qr_collectives *ranks, int64_t own, int64_t *fewest, bool *same, qr_error *err) {
    int64_t n[QR_MAX_RANKS];
    n[ranks->rank] = own;
    QR_RETURN_IF_ERROR(qr_all_gather(ranks, n, sizeof n[0], err));
    *fewest = n[0];
    *same = true;
    for (int32_t r = 1; r < ranks->n_ranks; r++) {
        *same = *same && n[r] == n[0];
        *fewest = qr_min(*fewest, n[r]);
    }
    return QRUN_OK;
}

qrun_status qr_split_session_sequences(const qrun_session *session, qrun_session_params *params, bool *again,
                                       qrun_status own, qr_error *err) {
    qr_collectives *ranks = session->model->context->ranks;
    int64_t fewest;
    bool same;
    *again = false;
    if (!qr_session_is_split(session)) { return own; }
    QR_RETURN_IF_ERROR(qr_agree(ranks, own, err));
    QR_RETURN_IF_ERROR(find_fewest(ranks, session->sizes.max_sequences, &fewest, &same, err));
    if (same) { return QRUN_OK; }
    params->max_sequences = (int32_t)fewest;
    *again = true;
    return QRUN_OK;
}

qrun_status qr_split_session_sizes(qrun_session *session, qrun_status own, qr_error *err) {
    int64_t n_pages, n_kept_pages, n_snapshots, n_draft_rows;
    bool same;
    qr_collectives *ranks = session->model->context->ranks;
    if (!qr_session_is_split(session)) { return own; }
    QR_RETURN_IF_ERROR(qr_agree(ranks, own, err));
    QR_RETURN_IF_ERROR(find_fewest(ranks, session->sizes.n_draft_rows, &n_draft_rows, &same, err));
    if (!same) {
        return qr_fail(err, ranks->rank == 0 ? QRUN_ERROR_MEMORY : QRUN_ERROR_RANK,
                       "some ranks have room for a session with drafts, and others without; use `speculate=off`");
    }
    QR_RETURN_IF_ERROR(find_fewest(ranks, session->sizes.n_pages, &n_pages, &same, err));
    QR_RETURN_IF_ERROR(find_fewest(ranks, session->sizes.n_snapshots, &n_snapshots, &same, err));
    QR_RETURN_IF_ERROR(find_fewest(ranks, session->sizes.n_kept_pages, &n_kept_pages, &same, err));
    qr_session_set_pages(session, n_pages);
    qr_session_set_kept_pages(session, n_kept_pages);
    qr_session_set_snapshots(session, n_snapshots);
    return QRUN_OK;
}

qrun_status qr_split_session_made(const qrun_session *session, qrun_status own, qr_error *err) {
    return qr_session_is_split(session) ? qr_agree(session->model->context->ranks, own, err) : own;
}

/* ---- Waiting for requests ---------------------------------------------------------------------------------------- */

static qrun_status fail_descriptor(qr_error *err) {
    return qr_fail(err, QRUN_ERROR_IO, "cannot make an event descriptor: %s", strerror(errno));
}

qrun_status qr_split_session_timer(qrun_session *session, qr_error *err) {
    enum { BEATS = 4 }; /* in the time for which a rank may be silent */
    if (!qr_session_is_split(session) || qr_session_follows(session)) { return QRUN_OK; }
    const double period = session->model->context->ranks->timeout_seconds / BEATS, whole = floor(period);
    const struct timespec beat = {.tv_sec = (time_t)whole, .tv_nsec = (long)((period - whole) * 1e9) + 1};
    const struct itimerspec beats = {.it_interval = beat, .it_value = beat};
    struct epoll_event event = {.events = EPOLLIN};
    session->idle_timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    session->both_descriptors = epoll_create1(EPOLL_CLOEXEC);
    if (session->idle_timer < 0 || session->both_descriptors < 0 ||
        timerfd_settime(session->idle_timer, 0, &beats, NULL) != 0 ||
        epoll_ctl(session->both_descriptors, EPOLL_CTL_ADD, session->idle_timer, &event) != 0 ||
        epoll_ctl(session->both_descriptors, EPOLL_CTL_ADD, session->event_descriptor, &event) != 0) {
        return fail_descriptor(err);
    }
    return QRUN_OK;
}

/* ---- Following --------------------------------------------------------------------------------------------------- */

qrun_status qr_split_session_follow(qrun_session *session, qr_error *err) {
    qr_collectives *ranks = session->model->context->ranks;
    for (bool ends = false; !ends;) {
        qr_error own = {0};
        qr_compute_lock(session->model->context);
        const qrun_status status = qr_forward_follow(session->forward, &ends, &own);
        qr_compute_unlock(session->model->context);
        if (status == QRUN_OK) { continue; }
        const bool reported = qr_collectives_tell(ranks, own.message);
        return qr_fail(err, reported ? QRUN_ERROR_RANK : status, "%s", own.message);
    }
    qr_collectives_settle(ranks);
    return QRUN_OK;
}

qrun_status qr_split_session_require_leader(const qrun_session *session, qr_error *err) {
    if (!qr_session_follows(session)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "rank %d follows rank 0: it calls qrun_session_run and nothing else",
                   (int)session->model->split.rank);
}
