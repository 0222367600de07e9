/* A session of a model that is split among ranks: all make it alike, by what rank 0's caller asks for. Then rank 0
 * leads, and the others follow (split_ranks.h). Everything here does nothing for a whole model. */
#ifndef QR_RUNTIME_GENERATE_SPLIT_SESSION_H
#define QR_RUNTIME_GENERATE_SPLIT_SESSION_H

#include "runtime/generate/session.h"

static inline bool qr_session_is_split(const qrun_session *session) { return session->model->split.n_ranks > 0; }
static inline bool qr_session_follows(const qrun_session *session) { return session->model->split.rank > 0; }

/* Where a session begins: compares what ranks have, and gives all of them rank 0's params, but for where files are.
 * QRUN_ERROR_RANK on the others where rank 0 makes no session. */
qrun_status qr_split_session_begin(qrun_model *model, qrun_session_params *params, qr_error *err);
/* After the sizes (own: how that went): where ranks have room for different numbers of sequences, *again, and params
 * ask for the fewest. */
qrun_status qr_split_session_sequences(const qrun_session *session, qrun_session_params *params, bool *again,
                                       qrun_status own, qr_error *err);
/* After the sizes for them: all have as many pages and snapshots as the one with the fewest. */
qrun_status qr_split_session_sizes(qrun_session *session, qrun_status own, qr_error *err);

/* Once all is made (own: how that went). */
qrun_status qr_split_session_made(const qrun_session *session, qrun_status own, qr_error *err);

/* A descriptor that wakes rank 0's caller from time to time, besides the one of events. */
qrun_status qr_split_session_timer(qrun_session *session, qr_error *err);

/* Follows rank 0 until it ends its session. */
qrun_status qr_split_session_follow(qrun_session *session, qr_error *err);
/* QRUN_ERROR_ARGUMENT on a rank that follows, whose program calls qrun_session_run and nothing else. */
qrun_status qr_split_session_require_leader(const qrun_session *session, qr_error *err);

#endif
