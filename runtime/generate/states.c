/* The states that layers carry along sequences: which copies of them are due, and when one is kept for others.
 *
 * A running sequence has the state of its slot. Snapshots are kept at the end of a prompt, at the end of an answer, and
 * every snapshot_tokens tokens of a long prompt; which pages they belong to, and which goes first, is the K/V cache's
 * business. A copy is only noted here and done before the layers of the next step run. Until then a slot keeps its
 * state, also when its sequence has left. */
#include <assert.h>

#include "base/sizes.h"
#include "runtime/generate/session.h"

static void note_copy(qrun_session *session, int64_t src, int64_t dst) {
    qr_step *step = &session->step;
    assert(step->n_state_copies < QR_STATE_COPIES * session->sizes.forward.max_sequences);
    step->state_copies[step->n_state_copies++] = (qr_state_copy){(int32_t)src, (int32_t)dst};
}

static int64_t place_of_snapshot(const qrun_session *session, int32_t snapshot) {
    return session->sizes.forward.max_sequences + snapshot;
}

void qr_state_restore(qrun_session *session, const qr_sequence *sequence) {
    const int32_t snapshot = sequence->kv.snapshot;
    if (session->states == NULL || sequence->kv.n_tokens == 0) { return; }
    assert(snapshot != QR_KV_NO_SNAPSHOT);
    note_copy(session, place_of_snapshot(session, snapshot), sequence->slot);
}

void qr_state_fork(qrun_session *session, const qr_sequence *from, const qr_sequence *to) {
    if (session->states != NULL) { note_copy(session, from->slot, to->slot); }
}

void qr_state_keep(qrun_session *session, const qr_sequence *sequence) {
    if (session->states == NULL || sequence->slot < 0) { return; }
    const int32_t snapshot = qr_kv_snapshot_take(session->cache, &sequence->kv, sequence->tokens);
    if (snapshot != QR_KV_NO_SNAPSHOT) { note_copy(session, sequence->slot, place_of_snapshot(session, snapshot)); }
}

int64_t qr_state_step_tokens(const qrun_session *session, const qr_sequence *sequence, int64_t n) {
    const int64_t interval = session->sizes.snapshot_tokens;
    if (session->states == NULL || session->sizes.n_snapshots == 0) { return n; }
    return qr_min(n, interval - sequence->kv.n_tokens % interval);
}

bool qr_state_is_due(const qrun_session *session, const qr_sequence *sequence) {
    const int64_t n = sequence->kv.n_tokens, n_prompt = sequence->request->n_prompt;
    return n == n_prompt || (n < n_prompt && n % session->sizes.snapshot_tokens == 0);
}

qrun_status qr_states_copy(qrun_session *session, qr_error *err) {
    qr_step *step = &session->step;
    QR_RETURN_IF_ERROR(qr_forward_copy_states(session->forward, step->state_copies, step->n_state_copies, err));
    step->n_state_copies = 0;
    return QRUN_OK;
}

void qr_states_forget(qrun_session *session) {
    session->step.n_state_copies = 0;
    qr_kv_snapshots_forget(session->cache);
}
