/* Drafts from a smaller model with the same tokenizer (Leviathan et al., "Fast inference from transformers via
 * speculative decoding", 2023; here a draft counts only if it equals the token that is sampled). It samples with the
 * numbers that the session will sample with, so that it guesses samples as well as greedy tokens.
 *
 * It has a forward pass and K/V pages of its own for a few sequences. A sequence that finds no place there gets no
 * drafts, and an error here is no error of the session: what is guessed never changes an answer. */
#ifndef QR_RUNTIME_GENERATE_DRAFT_MODEL_H
#define QR_RUNTIME_GENERATE_DRAFT_MODEL_H

#include "runtime/generate/forward.h"
#include "runtime/generate/request.h"

enum { QR_DRAFT_SEQUENCES = QR_DRAFT_ROWS / 2 }; /* that get drafts in one step, at most */

typedef struct qr_draft_sizes {
    qr_forward_limits forward;
    int64_t n_pages;
} qr_draft_sizes;

/* Whether `speculate` of qrun_session_params names a model. */
bool qr_draft_model_is_named(const char *speculate);
/* What the one at `path` is opened with: quantised as far as that goes, for drafts change no answer. */
qrun_model_params qr_draft_model_params(const qrun_model *model, const char *path);

/* For max_sequences at once, of up to sequence_tokens. */
qr_draft_sizes qr_draft_model_size(const qrun_model *draft, int64_t max_sequences, int64_t sequence_tokens);

/* Adds all that it takes to the plan, its weights included. The model may be described and not loaded. */
qrun_status qr_draft_model_plan(qrun_model *draft, const qr_draft_sizes *sizes, qr_plan *plan, qr_error *err);

/* QRUN_ERROR_ARGUMENT where the tokens of one model mean something else to the other. */
qrun_status qr_draft_model_check(const qrun_model *model, const qrun_model *draft, qr_error *err);

typedef struct qr_draft_model qr_draft_model;

/* `draft` is lent. vocab: ids of the model that drafts are for. */
qrun_status qr_draft_model_create(qrun_model *draft, const qr_draft_sizes *sizes, int64_t vocab,
                                  qr_draft_model **drafter, qr_error *err);
void qr_draft_model_destroy(qr_draft_model *drafter); /* NULL is fine */

/* Drafts drafts.n tokens of each of n (≤ QR_DRAFT_SEQUENCES) sequences, after their known ones; drafts.n are then as
 * many as there are. */
void qr_draft_model_run(qr_draft_model *drafter, qr_sequence *const *sequences, int64_t n);

#endif
