/* Perplexity: the text is cut into pieces of `window_tokens`, and the model scores every token of a piece but its
 * first. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/params.h"
#include "base/sizes.h"
#include "runtime/generate/scored_text.h"
#include "runtime/model/adapter.h"
#include "runtime/model/vocabulary.h"

enum { DEFAULT_WINDOW_TOKENS = 2048 };

typedef struct eval_state {
    qrun_session *session;
    const qrun_eval_params *params;
    const int32_t *ids; /* of the piece being scored */
    float *nll;         /* [max_logit_rows] */
    int64_t n_scored, total;
    double sum;
} eval_state;

/* Adds −log p of ids[first + 1 …] given the rows of the last pass, all of which have a successor in the piece. */
static qrun_status score_pass(void *arg, qrun_session *session, int64_t first, int64_t n, qr_error *err) {
    eval_state *state = arg;
    const int64_t most = session->sizes.forward.max_logit_rows;
    for (int64_t at = 0; at < n; at += most) {
        const int64_t n_rows = qr_min(most, n - at);
        QR_RETURN_IF_ERROR(qr_forward_nll(session->forward, at, state->ids + first + at + 1, n_rows, state->nll, err));
        for (int64_t i = 0; i < n_rows; i++) { state->sum += (double)state->nll[i]; }
    }
    state->n_scored += n;
    const qrun_eval_params *params = state->params;
    return qr_scored_text_progress(params->progress, params->progress_user, state->n_scored, state->total, err);
}

static qrun_status check(qrun_session *session, const qrun_eval_params *params, const qrun_eval_result *result,
                         qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_eval_params, params, err));
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_eval_result, result, err));
    if (params->window_tokens < 0 || params->max_tokens < 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`window_tokens` and `max_tokens` cannot be negative");
    }
    return qr_adapter_check_owner(session->model, params->adapter, err);
}

typedef struct id_list {
    const int32_t *ids;
    int64_t n;
    int64_t piece_tokens; /* BOS included */
    int32_t bos;          /* before every piece; −1: none */
    int32_t *scratch;     /* [piece_tokens] */
} id_list;

static qrun_status refuse_nothing(qr_error *err) {
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "there is nothing to score: a text needs at least two tokens");
}

static qrun_status eval_pieces(eval_state *state, const id_list *list, qr_error *err) {
    const int64_t n_own = list->piece_tokens - (list->bos >= 0);
    for (int64_t first = 0; first < list->n; first += n_own) {
        int64_t n = 0;
        if (list->bos >= 0) { list->scratch[n++] = list->bos; }
        const int64_t take = qr_min(n_own, list->n - first);
        memcpy(list->scratch + n, list->ids + first, (size_t)take * sizeof *list->ids);
        n += take;
        const int64_t left = state->params->max_tokens > 0 ? state->params->max_tokens - state->n_scored : INT64_MAX;
        if (left <= 0) { break; }
        n = qr_min(n, left < INT64_MAX ? left + 1 : INT64_MAX);
        if (n < 2) { continue; }
        QR_RETURN_IF_ERROR(qr_scored_text_run(state->session, state->params->adapter, list->scratch, n - 1, n,
                                              score_pass, state, err));
    }
    if (state->n_scored > 0) { return QRUN_OK; }
    return refuse_nothing(err);
}

static qrun_status eval_ids(qrun_session *session, id_list *list, const qrun_eval_params *params,
                            qrun_eval_result *result, qr_error *err) {
    const int64_t longest = qr_min(session->sizes.context_tokens, session->sizes.pool_tokens);
    const double start = qr_now_seconds();
    eval_state state = {.session = session, .params = params, .total = list->n};
    if (longest < 2) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`context_tokens=%lld` is too small: a token is scored by those before it, so it takes 2",
                       (long long)longest);
    }
    if (list->piece_tokens > longest || list->piece_tokens < 2) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`window_tokens=%lld` is not possible: this session holds 2 to %lld",
                       (long long)list->piece_tokens, (long long)longest);
    }
    for (int64_t i = 0; i < list->n; i++) {
        QR_RETURN_IF_ERROR(qr_token_id_check(session->model, list->ids[i], (int64_t)i, "text", err));
    }
    if (list->bos >= 0) { QR_RETURN_IF_ERROR(qr_token_id_check(session->model, list->bos, 0, "text", err)); }
    QR_RETURN_IF_ERROR(qr_scored_text_begin(session, err));
    qrun_status status;
    list->scratch = qr_alloc_array((size_t)list->piece_tokens, sizeof *list->scratch);
    state.nll = qr_alloc_array((size_t)session->sizes.forward.max_logit_rows, sizeof *state.nll);
    if (list->scratch == NULL || state.nll == NULL) { QR_TRY(qr_fail_memory(err, "the scores", 0)); }
    state.ids = list->scratch;
    QR_TRY(eval_pieces(&state, list, err));
    result->n_tokens = state.n_scored;
    result->mean_nll = state.sum / (double)state.n_scored;
    result->perplexity = exp(result->mean_nll);
    result->seconds = qr_now_seconds() - start;
out:
    qr_free(state.nll);
    qr_free(list->scratch);
    qr_scored_text_end(session);
    return status;
}

qrun_status qrun_session_eval_tokens(qrun_session *session, const int32_t *ids, int64_t n_ids,
                                     const qrun_eval_params *params, qrun_eval_result *result, qrun_error *error) {
    QR_RETURN_IF_ERROR(check(session, params, result, error));
    if (ids == NULL || n_ids < 2) { return refuse_nothing(error); }
    id_list list = {.ids = ids, .n = n_ids, .piece_tokens = n_ids, .bos = -1};
    return eval_ids(session, &list, params, result, error);
}

qrun_status qrun_session_eval(qrun_session *session, const char *text, size_t n_bytes, const qrun_eval_params *params,
                              qrun_eval_result *result, qrun_error *error) {
    const qrun_model *model = session->model;
    qr_tokens tokens = {0}, special = {0};
    qrun_status status = QRUN_OK;
    QR_TRY(check(session, params, result, error));
    if (model->tokenizer == NULL) {
        QR_TRY(qr_fail(error, QRUN_ERROR_UNSUPPORTED, "%s has no tokenizer.json, so a text cannot be scored",
                       model->folder));
    }
    /* What the tokenizer puts before a text (BOS) comes before every piece. */
    QR_TRY(qr_tokenizer_encode(model->tokenizer->tokenizer, "", 0, &(qr_encode_options){.add_special = true}, &special,
                               error));
    QR_TRY(qr_tokenizer_encode(model->tokenizer->tokenizer, text, n_bytes, &(qr_encode_options){0}, &tokens, error));
    const int64_t longest = qr_min(session->sizes.context_tokens, session->sizes.pool_tokens);
    id_list list = {.ids = tokens.ids, .n = (int64_t)tokens.n, .bos = special.n > 0 ? special.ids[0] : -1};
    list.piece_tokens = params->window_tokens > 0 ? params->window_tokens : qr_min(DEFAULT_WINDOW_TOKENS, longest);
    status = eval_ids(session, &list, params, result, error);
out:
    qr_tokens_free(&tokens);
    qr_tokens_free(&special);
    return status;
}
