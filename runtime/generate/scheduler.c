/* What the next step computes. Running sequences come first, each with the one token it generated last; then prompts,
 * in order of arrival, with what is left of the step's token budget; then new sequences are admitted. When pages run
 * out the youngest running sequence is preempted and computed again later. The oldest sequence always gets its pages
 * (submission refuses one that could not), so every step makes progress and nothing waits forever. */
#include "base/sizes.h"
#include "runtime/generate/session.h"

/* ---- Slots and lists --------------------------------------------------------------------------------------------- */

static bool is_older(const qr_sequence *a, const qr_sequence *b) {
    return a->request->id < b->request->id || (a->request->id == b->request->id && a->sample < b->sample);
}

void qr_sequence_enqueue(qrun_session *session, qr_sequence *sequence) {
    qr_sequence **link = &session->waiting;
    while (*link != NULL && is_older(*link, sequence)) { link = &(*link)->next; }
    sequence->state = QR_SEQUENCE_WAITING;
    sequence->next = *link;
    *link = sequence;
}

bool qr_sequence_take_slot(qrun_session *session, qr_sequence *sequence) {
    if (session->n_free_slots == 0) { return false; }
    sequence->slot = session->free_slots[--session->n_free_slots];
    sequence->state = QR_SEQUENCE_RUNNING;
    int32_t at = session->n_running++;
    for (; at > 0 && is_older(sequence, session->running[at - 1]); at--) {
        session->running[at] = session->running[at - 1];
    }
    session->running[at] = sequence;
    return true;
}

void qr_sequence_leave(qrun_session *session, qr_sequence *sequence) {
    qr_kv_sequence_release(session->cache, &sequence->kv);
    sequence->n_step = 0;
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
    qr_sequence_enqueue(session, sequence);
    session->counts.n_preemptions++;
}

void qr_requeue_all(qrun_session *session) {
    while (session->n_running > 0) {
        qr_sequence *youngest = session->running[session->n_running - 1];
        qr_sequence_leave(session, youngest);
        qr_sequence_enqueue(session, youngest);
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

/* ---- Running sequences ------------------------------------------------------------------------------------------- */

static int64_t count_decoding(const qrun_session *session) {
    int64_t n = 0;
    for (int32_t i = 0; i < session->n_running; i++) { n += tokens_to_compute(session->running[i]) == 1; }
    return n;
}

/* Returns the tokens scheduled; *preempted: a sequence was. Sequences after the current one may leave the list, those
 * before it stay. */
static int64_t schedule_running(qrun_session *session, bool *preempted) {
    const int64_t n_decoding = count_decoding(session);
    int64_t n_scheduled = 0, prompt_budget = session->sizes.forward.max_tokens - n_decoding;
    const int64_t n_preemptions = session->counts.n_preemptions;
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        const int64_t rest = tokens_to_compute(sequence);
        const int64_t n = rest == 1 ? 1 : qr_min(rest, prompt_budget);
        sequence->n_step = 0;
        if (n <= 0) { continue; }
        if (!reserve_or_preempt(session, sequence, n)) { break; }
        n_scheduled += n;
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
    const int64_t n_shared = qr_kv_match_prefix(session->cache, &sequence->kv, sequence->tokens, sequence->n_tokens);
    const int64_t n = qr_min(tokens_to_compute(sequence), budget);
    if (!fits_now(session, sequence) || !reserve(session, sequence, n)) {
        qr_kv_sequence_release(session->cache, &sequence->kv);
        return false;
    }
    if (!sequence->has_run) {
        sequence->has_run = true;
        sequence->n_cached = n_shared;
        session->counts.cached_prompt_tokens += n_shared;
    }
    return qr_sequence_take_slot(session, sequence);
}

static int64_t admit_waiting(qrun_session *session, int64_t budget) {
    int64_t n_scheduled = 0;
    while (session->waiting != NULL && session->n_free_slots > 0 && n_scheduled < budget) {
        qr_sequence *sequence = session->waiting;
        if (!admit(session, sequence, budget - n_scheduled)) { break; }
        session->waiting = sequence->next;
        sequence->next = NULL;
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
