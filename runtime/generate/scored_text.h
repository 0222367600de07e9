/* The logits of a text: one sequence alone in an idle session, run through the model pass by pass. Perplexity (eval.c)
 * and comparisons of models (compare_models.c) score texts this way. */
#ifndef QR_RUNTIME_GENERATE_SCORED_TEXT_H
#define QR_RUNTIME_GENERATE_SCORED_TEXT_H

#include "runtime/generate/session.h"

/* Locks the session and the backend for the calling thread, until qr_scored_text_end. QRUN_ERROR_BUSY while another
 * thread steps the session or requests are left. */
qrun_status qr_scored_text_begin(qrun_session *session, qr_error *err);
void qr_scored_text_end(qrun_session *session);

/* The tokens of a text, with what the tokenizer puts around it. text_bytes 0: it is NUL-terminated.
 * QRUN_ERROR_UNSUPPORTED for a model without tokenizer. */
qrun_status qr_scored_text_encode(const qrun_model *model, const char *text, size_t text_bytes, qr_tokens *tokens,
                                  qr_error *err);

/* Kullback-Leibler divergence of q's distribution from p's, both logits [n]; with their qr_log_sum_exp. Not below 0. */
double qr_logits_kl(const float *p, double p_sum, const float *q, double q_sum, int64_t n);

/* Reports done of total tokens, where progress is not NULL. QRUN_ERROR_CANCELLED when it returns false. */
qrun_status qr_scored_text_progress(qrun_progress_fn progress, void *user, int64_t done, int64_t total, qr_error *err);

/* Called after each pass: rows 0 … n − 1 of session->forward are tokens first … first + n − 1 of the text. */
typedef qrun_status (*qr_scored_text_visit)(void *arg, qrun_session *session, int64_t first, int64_t n, qr_error *err);

/* Runs ids[0, n_run) of a text of n_text tokens, whose length fixes the rotary parameters that depend on it. Between
 * begin and end. */
qrun_status qr_scored_text_run(qrun_session *session, const struct qrun_adapter *adapter, const int32_t *ids,
                               int64_t n_run, int64_t n_text, qr_scored_text_visit visit, void *arg, qr_error *err);

#endif
