#include "runtime/generate/speculation.h"

#include <string.h>

#include "base/sizes.h"
#include "runtime/generate/session.h"
#include "runtime/model/rope.h"

/* ---- What is measured -------------------------------------------------------------------------------------------- */

static const float MEMORY = 1.0F / 8; /* weight of the newest of the values whose mean is kept */
#define USUAL_MODEL_RATE 0.7F
static const double USUAL_ROW_COST = 0.25, LEAST_ROW_COST = 1.0 / 64;

void qr_drafts_init(qr_drafts *drafts) {
    /* Long matches are worth a try before anything is known; short ones must show first that they are right. */
    static const float expected[QR_NGRAM_LONGEST + 1] = {0, USUAL_MODEL_RATE, 0.1F, 0.2F, 0.3F, 0.5F, 0.6F, 0.7F, 0.8F};
    *drafts = (qr_drafts){.length = 0};
    memcpy(drafts->hit_rate, expected, sizeof expected);
}

void qr_drafts_drop(qr_drafts *drafts) { drafts->n = drafts->n_accepted = drafts->length = 0; }

void qr_drafts_learn(qr_drafts *drafts, int32_t token) {
    if (drafts->length == 0) { return; }
    float *rate = &drafts->hit_rate[drafts->length];
    if (drafts->n == 0) {
        *rate += MEMORY * ((token == drafts->guess ? 1.0F : 0.0F) - *rate);
        return;
    }
    for (int64_t i = 0; i < drafts->n_accepted; i++) { *rate += MEMORY * (1.0F - *rate); }
    if (drafts->n_accepted < drafts->n) { *rate -= MEMORY * *rate; }
}

void qr_draft_costs_init(qr_draft_costs *costs) { *costs = (qr_draft_costs){.row_cost = USUAL_ROW_COST}; }

void qr_draft_costs_learn(qr_draft_costs *costs, int64_t n_rows, int64_t n_drafts, double seconds) {
    if (n_drafts == 0) {
        const bool same = costs->plain_rows == n_rows;
        costs->plain_seconds =
            same ? costs->plain_seconds + (double)MEMORY * (seconds - costs->plain_seconds) : seconds;
        costs->plain_rows = n_rows;
        /* One slow step must not end all drafts: what was measured is forgotten, slowly. */
        costs->row_cost += (USUAL_ROW_COST - costs->row_cost) / 512;
    } else if (costs->plain_rows == n_rows - n_drafts && costs->plain_seconds > 0) {
        const double extra = (seconds / costs->plain_seconds - 1) / (double)n_drafts;
        const double cost = extra < LEAST_ROW_COST ? LEAST_ROW_COST : extra > 1 ? 1 : extra;
        costs->row_cost += (double)MEMORY * (cost - costs->row_cost);
    }
}

/* ---- How many drafts --------------------------------------------------------------------------------------------- */

/* The i-th draft is right with rate^i: those that are right more often than they cost. */
static int64_t drafts_that_pay(double rate, double row_cost) {
    int64_t n = 0;
    for (double right = rate; right > row_cost && n < QR_DRAFT_ROWS; right *= rate) { n++; }
    return n;
}

/* The most that a sequence may have: within its capacity, and with the rotary frequencies that it has now. */
static int64_t most_drafts(const qrun_session *session, const qr_sequence *sequence) {
    const int64_t short_tokens = qr_rope_short_tokens(&session->model->config);
    int64_t most = sequence->request->capacity - 1 - sequence->n_tokens;
    if (sequence->n_tokens <= short_tokens) { most = qr_min(most, short_tokens - sequence->n_tokens); }
    return qr_max(most, 0);
}

static bool is_decoding(const qr_sequence *sequence) {
    return sequence->request->started && sequence->kv.n_tokens + 1 == sequence->n_tokens;
}

/* Copies what followed on the match; where that reaches the end of the text, it repeats. */
static void draft_from_text(qr_sequence *sequence, int64_t most, double row_cost) {
    qr_drafts *drafts = &sequence->drafts;
    int32_t *tokens = sequence->tokens;
    const qr_ngram_match match = qr_ngram_find(tokens, sequence->n_tokens);
    drafts->length = match.length;
    if (match.length == 0) { return; }
    drafts->guess = tokens[match.next];
    drafts->n = qr_min(most, drafts_that_pay((double)drafts->hit_rate[match.length], row_cost));
    for (int64_t i = 0; i < drafts->n; i++) { tokens[sequence->n_tokens + i] = tokens[match.next + i]; }
}

/* Whether pages are plentiful: drafts must not take those that the known token of another sequence needs. */
static bool has_spare_pages(const qrun_session *session) {
    qr_kv_stats pages;
    if (session->n_running == 1) { return true; }
    qr_kv_get_stats(session->cache, &pages);
    return pages.n_free + pages.n_cached >= 2 * session->model->n_kv_groups * session->n_running;
}

/* As many as may pay, for draft_by_model. While they do not, what made them look bad is forgotten, slowly. */
static bool wants_model(qr_drafts *drafts, int64_t most, double row_cost) {
    float *rate = &drafts->hit_rate[QR_DRAFTS_BY_MODEL];
    drafts->n = qr_min(most, drafts_that_pay((double)*rate, row_cost));
    if (drafts->n == 0) { *rate += (USUAL_MODEL_RATE - *rate) / 256; }
    return drafts->n > 0;
}

static void draft_by_model(qr_draft_model *drafter, qr_sequence *const *sequences, int64_t n) {
    if (n == 0) { return; }
    qr_draft_model_run(drafter, sequences, n);
    for (int64_t i = 0; i < n; i++) {
        qr_drafts *drafts = &sequences[i]->drafts;
        drafts->length = drafts->n > 0 ? QR_DRAFTS_BY_MODEL : 0;
    }
}

void qr_speculate(qrun_session *session) {
    qr_sequence *by_model[QR_DRAFT_SEQUENCES];
    int64_t n_decoding = 0, n_by_model = 0;
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_sequence *sequence = session->running[i];
        qr_drafts_drop(&sequence->drafts);
        n_decoding += is_decoding(sequence);
    }
    const int64_t rows = qr_min(session->sizes.n_draft_rows, session->sizes.forward.max_tokens);
    const double row_cost = session->draft_costs.row_cost;
    int64_t room = rows - n_decoding;
    if (n_decoding == 0 || room <= 0 || !has_spare_pages(session)) { return; }
    const int64_t share = qr_max(room / n_decoding, 1);
    for (int32_t i = 0; i < session->n_running && room > 0; i++) {
        qr_sequence *sequence = session->running[i];
        if (!is_decoding(sequence)) { continue; }
        const int64_t most = qr_min(qr_min(share, room), most_drafts(session, sequence));
        if (session->drafter == NULL) {
            draft_from_text(sequence, most, row_cost);
        } else if (n_by_model < QR_DRAFT_SEQUENCES && wants_model(&sequence->drafts, most, row_cost)) {
            by_model[n_by_model++] = sequence;
        }
        room -= sequence->drafts.n;
    }
    draft_by_model(session->drafter, by_model, n_by_model);
}

bool qr_speculation_waits(qrun_session *session) {
    bool waits = false;
    if (session->n_running >= qr_min(session->sizes.n_draft_rows, session->sizes.forward.max_tokens)) { return false; }
    if (session->drafter != NULL) { return true; }
    if (!session->step.is_ahead) { return false; } /* it has been looked for, when the step was scheduled */
    qr_speculate(session);
    for (int32_t i = 0; i < session->n_running; i++) {
        qr_drafts *drafts = &session->running[i]->drafts;
        waits = waits || drafts->n > 0;
        drafts->n = 0; /* the step is under way */
    }
    return waits;
}
