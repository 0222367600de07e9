/* What the next step computes. Running sequences come first, each with the one token it generated last. Then come
 * prompts, in order of arrival, with what is left of the step's token budget. Then waiting sequences are admitted. When
 * pages run out the youngest running sequence is preempted and computed again later. The oldest sequence always gets
 * its pages (submission refuses one that could not), so every step makes progress and nothing waits forever.
 *
 * A step may also be issued ahead: after one that only decodes, and before its tokens are known, when the batch stays
 * the same whatever they are, unless a sequence ends. Of one that does, the surplus token is dropped. */
#include <assert.h>

#include "base/sizes.h"
#include "runtime/generate/session.h"
#include "runtime/model/rope.h"

/* ---- Slots and lists --------------------------------------------------------------------------------------------- */

static bool is_older(const qr_sequence *a, const qr_sequence *b) {
    return a->request->id < b->request->id || (a->request->id == b->request->id && a->sample < b->sample);
}

void qr_sequence_set_state(qr_sequence *sequence, qr_sequence_state state) {
    sequence->request->n_waiting += (state == QR_SEQUENCE_WAITING) - (sequence->state == QR_SEQUENCE_WAITING);
    sequence->state = state;
}

bool qr_sequence_take_slot(qrun_session *session, qr_sequence *sequence) {
    if (session->n_free_slots == 0) { return false; }
    sequence->slot = session->free_slots[--session->n_free_slots];
    qr_sequence_set_state(sequence, QR_SEQUENCE_RUNNING);
    int32_t at = session->n_running++;
    for (; at > 0 && is_older(sequence, session->running[at - 1]); at--) {
        session->running[at] = session->running[at - 1];
    }
    session->running[at] = sequence;
    return true;
}

static void drop_tokens(qr_step *step, const qr_sequence *sequence) {
    for (int64_t i = 0; step->is_issued && i < step->n_next; i++) {
        if (step->next[i].sequence == sequence) { step->next[i].sequence = NULL; }
    }
}

/* A step under way may still write K/V of a surplus token. The page that it writes to belongs to this sequence alone
 * (qr_kv_reserve), and is no full one that others may find. All pages are released at once all the same: whatever uses
 * them next is issued after that step, and so the device does it after that step. Forward passes, copies of pages and
 * the page store's copies are in the backend's one order. Its transfers are not, but they never move pages. Slots,
 * their rotary frequencies and their states are written in that order too. */
void qr_sequence_leave(qrun_session *session, qr_sequence *sequence) {
    qr_kv_sequence_release(session->cache, &sequence->kv);
    drop_tokens(&session->step, sequence);
    drop_tokens(&session->ahead, sequence);
    sequence->n_step = 0;
    sequence->goes_ahead = false;
    qr_drafts_drop(&sequence->drafts);
    sequence->has_rope = false;
    if (sequence->slot < 0) { return; }
    session->free_slots[session->n_free_slots++] = sequence->slot;
    sequence->slot = -1;
    int32_t kept = 0;
    for (int32_t i = 0; i < session->n_running; i++) {
        if (session->running[i] != sequence) { session->running[kept++] = session->running[i]; }
    }
    session->n_running = kept;
}

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

static int64_t tokens_to_compute(const qr_sequence *sequence) { return sequence->n_tokens - sequence->kv.n_tokens; }

static bool reserve(qrun_session *session, qr_sequence *sequence, int64_t n_tokens) {
    int32_t n_copies;
    qr_step *step = &session->step;
    if (!qr_kv_reserve(session->cache, &sequence->kv, n_tokens, step->copies + step->n_copies, &n_copies)) {
        return false;
    }
    step->n_copies += n_copies;
    sequence->n_step = n_tokens;
    return true;
}

static void preempt(qrun_session *session, qr_sequence *sequence) {
    qr_sequence_leave(session, sequence);
    qr_sequence_set_state(sequence, QR_SEQUENCE_WAITING);
    session->counts.n_preemptions++;
}

void qr_requeue_all(qrun_session *session) {
    while (session->n_running > 0) {
        qr_sequence *youngest = session->running[session->n_running - 1];
        qr_sequence_leave(session, youngest);
        qr_sequence_set_state(youngest, QR_SEQUENCE_WAITING);
    }
}

/* Reserves pages for a running sequence. While there are too few, preempts the youngest one; false: it was this one. */
static bool reserve_or_preempt(qrun_session *session, qr_sequence *sequence, int64_t n_tokens) {
    while (!reserve(session, sequence, n_tokens)) {
        qr_sequence *youngest = session->running[session->n_running - 1];
        preempt(session, youngest);
        if (youngest == sequence) { return false; }
    }
    return true;
}

/* Rows of the prompt that are still to give something are computed, not found. */
static int64_t match_prefix(const qrun_session *session, qr_sequence *sequence) {
    const qr_prompt_results *results = sequence->request->results;
    const bool wants_rows = results != NULL && results->n_taken < sequence->request->n_prompt;
    const int64_t n = wants_rows ? results->n_taken + 1 : sequence->n_tokens;
    return qr_kv_match_prefix(session->cache, &sequence->kv, sequence->tokens, n);
}

/* ---- Rotary lengths ---------------------------------------------------------------------------------------------- */

static int64_t length_class_of(const qrun_session *session, const qr_sequence *sequence) {
    return qr_rope_length_class(&session->model->config, sequence->n_tokens, sequence->request->rope_tokens);
}

/* Where the rotary frequencies depend on the length, a sequence that outgrows its class has the wrong keys in its
 * pages: it starts again with the pages of its new class, if there are any. */
static void follow_length(qrun_session *session, qr_sequence *sequence) {
    const int64_t length_class = length_class_of(session, sequence);
    if (length_class == sequence->kv.key.rope_class) { return; }
    qr_kv_sequence_release(session->cache, &sequence->kv);
    sequence->kv.key.rope_class = length_class;
    sequence->has_rope = false;
    (void)match_prefix(session, sequence);
    qr_state_restore(session, sequence);
}

/* ---- Running sequences ------------------------------------------------------------------------------------------- */

/* Tokens of the sequences that decode, with their drafts. */
static int64_t count_decoding(const qrun_session *session) {
    int64_t n = 0;
    for (int32_t i = 0; i < session->n_running; i++) {
        const qr_sequence *sequence = session->running[i];
        n += tokens_to_compute(sequence) == 1 ? 1 + sequence->drafts.n : 0;
    }
    return n;
}

/* Pages for the last known token and the drafts after it; without the drafts where these find none. */
static bool reserve_decoding(qrun_session *session, qr_sequence *sequence) {
    if (sequence->drafts.n > 0 && reserve(session, sequence, 1 + sequence->drafts.n)) { return true; }
    sequence->drafts.n = 0;
    return reserve_or_preempt(session, sequence, 1);
}

/* Returns the tokens scheduled; *preempted: a sequence was. Sequences after the current one may leave the list, those
 * before it stay. */
static int64_t schedule_running(qrun_session *session, bool *preempted) {
    for (int32_t i = 0; i < session->n_running; i++) { follow_length(session, session->running[i]); }
    qr_speculate(session);
    const int64_t n_decoding = count_decoding(session);
    int64_t n_scheduled = 0, prompt_budget = session->sizes.forward.max_tokens - n_decoding;
    const int64_t n_preemptions = session->counts.n_preemptions;
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        const int64_t rest = tokens_to_compute(sequence);
        const int64_t n = rest == 1 ? 1 : qr_state_step_tokens(session, sequence, qr_min(rest, prompt_budget));
        sequence->n_step = 0;
        if (n <= 0) { continue; }
        if (!(rest == 1 ? reserve_decoding(session, sequence) : reserve_or_preempt(session, sequence, n))) { break; }
        n_scheduled += sequence->n_step;
        if (rest > 1) { prompt_budget -= n; }
    }
    *preempted = session->counts.n_preemptions != n_preemptions;
    return n_scheduled;
}

/* ---- Admission --------------------------------------------------------------------------------------------------- */

static int64_t pages_held(const qrun_session *session, const qr_sequence *sequence) {
    int64_t n = 0;
    for (int64_t i = 0; i < (int64_t)session->model->n_kv_groups * sequence->kv.n_blocks; i++) {
        n += sequence->kv.tables[i] >= 0;
    }
    return n;
}

/* A sequence begins only when all its tokens fit: one that stopped half way through its prompt would cost pages and
 * time for nothing. */
static bool fits_now(const qrun_session *session, const qr_sequence *sequence) {
    qr_kv_stats stats;
    qr_kv_get_stats(session->cache, &stats);
    const int64_t needed = qr_kv_pages_needed(session->cache, sequence->n_tokens, session->sizes.forward.max_tokens);
    return needed - pages_held(session, sequence) <= stats.n_free + stats.n_cached;
}

static bool admit(qrun_session *session, qr_sequence *sequence, int64_t budget) {
    sequence->kv.key.rope_class = length_class_of(session, sequence);
    const int64_t n_shared = match_prefix(session, sequence);
    const int64_t n = qr_state_step_tokens(session, sequence, qr_min(tokens_to_compute(sequence), budget));
    if (!fits_now(session, sequence) || !reserve(session, sequence, n)) {
        qr_kv_sequence_release(session->cache, &sequence->kv);
        return false;
    }
    if (!sequence->has_run) {
        sequence->has_run = true;
        sequence->n_cached = n_shared;
        session->counts.cached_prompt_tokens += n_shared;
    }
    if (!qr_sequence_take_slot(session, sequence)) { return false; }
    qr_state_restore(session, sequence);
    return true;
}

/* The oldest request that has not started is started; NULL: there is none. One that finds no memory fails alone. */
static qr_request *start_next(qrun_session *session) {
    for (;;) {
        pthread_mutex_lock(&session->lock);
        qr_request *request = qr_request_queue_take_next(&session->queue);
        pthread_mutex_unlock(&session->lock);
        if (request == NULL) { return NULL; }
        qr_error err = {0};
        const qr_grammar_room *grammars = request->grammar != NULL ? session->grammars : NULL;
        if (qr_request_start(session->model, session->cache, grammars, request, &err) == QRUN_OK) {
            qr_request_list_append(&session->started, request);
            return request;
        }
        qr_request_fail(session, request, err.status, err.message);
    }
}

static qr_sequence *first_waiting(const qr_request *request) {
    qr_sequence *sequence = request->sequences;
    while (sequence->state != QR_SEQUENCE_WAITING) { sequence++; }
    return sequence;
}

/* Requests that have started come first: they are older than all others. */
static int64_t admit_waiting(qrun_session *session, int64_t budget) {
    int64_t n_scheduled = 0;
    qr_request *request = session->started.first;
    while (session->n_free_slots > 0 && n_scheduled < budget) {
        while (request != NULL && request->n_waiting == 0) { request = request->next; }
        if (request == NULL) { request = start_next(session); }
        if (request == NULL) { break; }
        qr_sequence *sequence = first_waiting(request);
        if (!admit(session, sequence, budget - n_scheduled)) { break; }
        n_scheduled += sequence->n_step;
    }
    return n_scheduled;
}

bool qr_schedule(qrun_session *session) {
    session->step.n_copies = 0;
    bool preempted;
    int64_t n_scheduled = schedule_running(session, &preempted);
    if (!preempted) { n_scheduled += admit_waiting(session, session->sizes.forward.max_tokens - n_scheduled); }
    return n_scheduled > 0;
}

/* ---- Going ahead ------------------------------------------------------------------------------------------------- */

/* Whether somebody waits who may find a slot: a step that is under way then would keep him waiting. */
static bool may_admit(qrun_session *session) {
    if (session->n_free_slots == 0) { return false; }
    for (const qr_request *request = session->started.first; request != NULL; request = request->next) {
        if (request->n_waiting > 0) { return true; }
    }
    pthread_mutex_lock(&session->lock);
    const bool waits = session->queue.waiting.first != NULL;
    pthread_mutex_unlock(&session->lock);
    return waits;
}

/* Whether the sequence decodes, alone and without drafts, and its next token leaves everything else as it is. */
static bool can_continue(const qrun_session *session, const qr_sequence *sequence) {
    const qr_request *request = sequence->request;
    return request->started && sequence->n_step == 1 && sequence->drafts.n == 0 && tokens_to_compute(sequence) == 1 &&
           qr_rope_length_class(&session->model->config, sequence->n_tokens + 1, request->rope_tokens) ==
               sequence->kv.key.rope_class;
}

/* The token that the step under way gives it is not the last that it may have. */
static bool has_room(const qr_sequence *sequence) { return sequence->n_tokens + 1 < sequence->request->capacity; }

/* Pages that the sequences of the next step need beyond those that they have. Nobody is preempted for it. */
static bool have_pages(const qrun_session *session) {
    qr_kv_stats stats;
    int64_t n_needed = 0;
    qr_kv_get_stats(session->cache, &stats);
    for (int32_t i = 0; i < session->n_running; i++) {
        const qr_sequence *sequence = session->running[i];
        const bool begins_page = (sequence->kv.n_tokens + 1) % QR_KV_PAGE_TOKENS == 0;
        if (has_room(sequence) && begins_page) { n_needed += session->model->n_kv_groups; }
    }
    return n_needed <= stats.n_free + stats.n_cached;
}

bool qr_schedule_ahead(qrun_session *session) {
    bool any = false;
    if (!session->step.is_sampled) { return false; }
    /* A snapshot would be taken of a state that is a token too far. */
    if (session->states != NULL && session->sizes.n_snapshots > 0) { return false; }
    for (int32_t i = 0; i < session->n_running; i++) {
        if (!can_continue(session, session->running[i])) { return false; }
        any = any || has_room(session->running[i]);
    }
    if (!any || may_admit(session) || !have_pages(session) || qr_speculation_waits(session)) { return false; }
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        int32_t n_copies = 0;
        sequence->goes_ahead = has_room(sequence) && qr_kv_reserve(session->cache, &sequence->kv, 1 + sequence->n_step,
                                                                   session->step.copies, &n_copies);
        /* The page of the token under way is the sequence's own, and one that is new is too. */
        assert(sequence->goes_ahead == has_room(sequence) && n_copies == 0);
    }
    return true;
}
