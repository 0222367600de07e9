/* Answers in a form: what a request's grammar (runtime/grammar) has to do with its samples and with a step. */
#ifndef QR_RUNTIME_GENERATE_ANSWER_FORM_H
#define QR_RUNTIME_GENERATE_ANSWER_FORM_H

#include "runtime/generate/session.h"

/* Of a request that is created: the grammar of its schema, if it has one, from the shelf where it is there. `line`,
 * where it was read from, names it in messages; NULL: the parameters do. */
qrun_status qr_form_make(const qrun_model *model, qr_grammar_shelf *shelf, const qrun_request_params *params,
                         const qr_json *line, qr_request *request, qr_error *err);

/* Of one that starts, and has its samples: their places in the grammar. */
qrun_status qr_form_start(const qrun_model *model, const qr_grammar_room *grammars, qr_request *request, qr_error *err);

/* What may follow a sample's known tokens and the drafts before `next`; NULL: anything. False: nothing is sampled, and
 * `next` says why. */
bool qr_form_mask(const qrun_session *session, qr_next_token *next, int worker, const uint32_t **mask);

/* Moves a sample on by a token that its mask had; *is_over: nothing can follow. False: the schema has too many ways to
 * read the answer. */
bool qr_form_follow(const qrun_session *session, qr_sequence *sequence, int32_t token, bool *is_over);

/* Why there is no token. */
const char *qr_form_failure(const qr_next_token *next);
extern const char QR_FORM_TOO_MUCH[];

#endif
