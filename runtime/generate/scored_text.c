#include "runtime/generate/scored_text.h"

#include <math.h>
#include <string.h>

#include "base/sizes.h"
#include "runtime/model/adapter.h"
#include "runtime/model/rope.h"

qrun_status qr_scored_text_begin(qrun_session *session, qr_error *err) {
    if (atomic_exchange(&session->stepping, true)) {
        return qr_fail(err, QRUN_ERROR_BUSY, "this session is in a step; a callback cannot step it");
    }
    pthread_mutex_lock(&session->lock);
    const bool is_idle = session->queue.root == NULL;
    pthread_mutex_unlock(&session->lock);
    if (!is_idle) {
        atomic_store(&session->stepping, false);
        return qr_fail(err, QRUN_ERROR_BUSY, "the session still has requests; run them first");
    }
    qr_compute_lock(session->model->context);
    const qrun_status status = qr_states_copy(session, err); /* the text runs in a slot that snapshots are taken of */
    if (status != QRUN_OK) { qr_scored_text_end(session); }
    return status;
}

void qr_scored_text_end(qrun_session *session) {
    qr_compute_unlock(session->model->context);
    atomic_store(&session->stepping, false);
}

qrun_status qr_scored_text_encode(const qrun_model *model, const char *text, size_t text_bytes, qr_tokens *tokens,
                                  qr_error *err) {
    const qr_encode_options options = {.add_special = true};
    if (model->tokenizer == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s has no tokenizer.json, so it can read no text", model->folder);
    }
    return qr_tokenizer_encode(model->tokenizer->tokenizer, text, text_bytes > 0 ? text_bytes : strlen(text), &options,
                               tokens, err);
}

double qr_logits_kl(const float *p, double p_sum, const float *q, double q_sum, int64_t n) {
    double kl = 0;
    for (int64_t i = 0; i < n; i++) {
        const double log_p = (double)p[i] - p_sum;
        kl += exp(log_p) * (log_p - ((double)q[i] - q_sum));
    }
    return fmax(kl, 0); /* rounding can make it negative where the two are equal */
}

qrun_status qr_scored_text_progress(qrun_progress_fn progress, void *user, int64_t done, int64_t total, qr_error *err) {
    if (progress == NULL || progress(user, done, total)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled after %lld of %lld tokens", (long long)done, (long long)total);
}

/* One pass over the next n tokens. */
static qrun_status run_pass(qrun_session *session, qr_kv_sequence *kv, int32_t adapter, const int32_t *ids, int64_t n,
                            qr_error *err) {
    int32_t n_copies;
    if (!qr_kv_reserve(session->cache, kv, n, session->step.copies, &n_copies)) {
        return qr_fail(err, QRUN_ERROR_MEMORY,
                       "the K/V pool is too small for the text; use a smaller `window_tokens` or more `memory_bytes`");
    }
    const qr_batch_sizes sizes = {.n_tokens = n, .n_sequences = 1, .table_stride = kv->n_blocks};
    qr_batch *batch;
    QR_RETURN_IF_ERROR(qr_forward_begin(session->forward, &sizes, &batch, err));
    qr_batch_add(batch, kv, ids, kv->n_tokens, n, 0, adapter, 0);
    QR_RETURN_IF_ERROR(qr_forward_run(session->forward, err));
    qr_kv_commit(session->cache, kv, ids, n);
    return QRUN_OK;
}

qrun_status qr_scored_text_run(qrun_session *session, const struct qrun_adapter *adapter, const int32_t *ids,
                               int64_t n_run, int64_t n_text, qr_scored_text_visit visit, void *arg, qr_error *err) {
    qr_kv_sequence kv = {0};
    const qr_kv_key key = {.adapter = qr_adapter_identity(adapter),
                           .content = qr_adapter_content(adapter),
                           .rope_class = qr_rope_length_class(&session->model->config, n_text, n_text)};
    qrun_status status;
    QR_TRY(qr_kv_sequence_create(session->cache, n_text, key, &kv, err));
    QR_TRY(qr_forward_set_rope(session->forward, 0, n_text, n_text, err));
    for (int64_t first = 0; first < n_run;) {
        const int64_t n = qr_min(session->sizes.forward.max_tokens, n_run - first);
        QR_TRY(run_pass(session, &kv, qr_adapter_index(adapter), ids, n, err));
        QR_TRY(visit(arg, session, first, n, err));
        first += n;
    }
out:
    qr_kv_sequence_destroy(session->cache, &kv);
    return status;
}
