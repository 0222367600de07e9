/* Exact speculation. A sequence that decodes gets drafts: guesses of its next tokens, which the step computes together
 * with the last known one. A draft counts only if it is the token sampled at its position, and a sampled token is a
 * function of the sequence so far. So tokens, their log-probabilities and the K/V that stay are those of a session
 * without drafts, to the bit. Only the number of steps differs.
 *
 * Drafts come from the sequence's own text (ngram.h) or from a smaller model (draft_model.h). A draft pays when it is
 * right often enough for what its row costs. Both are measured: how often the guesses after matches of each length were
 * right in this sequence, and how much longer a step takes with a row more. Guesses are also counted where they are not
 * used, so text that begins to repeat itself is noticed without being paid for. */
#ifndef QR_RUNTIME_GENERATE_SPECULATION_H
#define QR_RUNTIME_GENERATE_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/generate/ngram.h"

enum { QR_DRAFTS_BY_MODEL = 1 }; /* where the length of a match would be: shorter than any */
enum { QR_DRAFT_ROWS = 16 };     /* of a step, last known tokens included, with drafts: a step with more has none */

/* Of a sequence. */
typedef struct qr_drafts {
    /* By length of the match, or QR_DRAFTS_BY_MODEL: the share of recent guesses that were right. */
    float hit_rate[QR_NGRAM_LONGEST + 1];
    int32_t length;     /* of the match that this step's guess came from; 0: there is no guess */
    int32_t guess;      /* of the next token */
    int64_t n;          /* drafts of the step, in the sequence's tokens after the known ones */
    int64_t n_accepted; /* of these, once the step has sampled */
} qr_drafts;

/* Of a session: what a row more costs, in steps of one row a sequence. */
typedef struct qr_draft_costs {
    double plain_seconds; /* of a step without drafts */
    int64_t plain_rows;   /* that plain_seconds are of; 0: not measured */
    double row_cost;      /* of the seconds of such a step, per draft */
} qr_draft_costs;

void qr_drafts_init(qr_drafts *drafts);
void qr_drafts_drop(qr_drafts *drafts); /* those of the step; what was learnt stays */
void qr_draft_costs_init(qr_draft_costs *costs);

struct qrun_session;

/* Before a step is scheduled: gives drafts to the running sequences where the step has room for them. */
void qr_speculate(struct qrun_session *session);

/* Before a step is issued ahead of the tokens of the one under way: whether that would leave out drafts that pay. To
 * a draft model it always would. A match in the text is looked for before the tokens of the step under way are known:
 * what is found stands for what would be found with them, and the first step of a repetition is computed without
 * drafts. Notes the guesses of the step under way, to be learnt from; so it is asked once, when nothing else is in the
 * way. */
bool qr_speculation_waits(struct qrun_session *session);

/* After it has sampled, for every sequence with a guess: `token` is what followed, n_accepted is set. */
void qr_drafts_learn(qr_drafts *drafts, int32_t token);

/* After a step of n_rows rows that decode, n_drafts of them drafts, and no others. */
void qr_draft_costs_learn(qr_draft_costs *costs, int64_t n_rows, int64_t n_drafts, double seconds);

#endif
