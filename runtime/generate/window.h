/* One sequence alone in an idle session, run through the model pass by pass: what perplexity and comparisons take their
 * logits from. */
#ifndef QR_RUNTIME_GENERATE_WINDOW_H
#define QR_RUNTIME_GENERATE_WINDOW_H

#include "runtime/generate/session.h"

/* Takes the session and the backend for the calling thread. QRUN_ERROR_BUSY while another thread steps it or requests
 * are left. qr_window_end gives both back. */
qrun_status qr_window_begin(qrun_session *session, qr_error *err);
void qr_window_end(qrun_session *session);

/* Called after each pass: rows 0 … n − 1 of session->forward are tokens first … first + n − 1 of the window. */
typedef qrun_status (*qr_window_visit)(void *arg, qrun_session *session, int64_t first, int64_t n, qr_error *err);

/* Runs ids[0, n_run) of a window of n_window tokens (which fixes the rotary parameters that depend on length), between
 * begin and end. */
qrun_status qr_window_run(qrun_session *session, const struct qrun_adapter *adapter, const int32_t *ids, int64_t n_run,
                          int64_t n_window, qr_window_visit visit, void *arg, qr_error *err);

#endif
