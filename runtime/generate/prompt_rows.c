#include "runtime/generate/prompt_rows.h"

#include <math.h>

#include "base/sizes.h"

/* Rows [first_row, first_row + n) of the step: those of prompt tokens [first, first + n) of a sequence. */
typedef struct row_piece {
    qrun_session *session;
    qr_sequence *sequence;
    int64_t first_row, first, n;
} row_piece;

static const char broken[] = "the model computed non-finite values; are its weights intact?";

/* ---- Log probabilities ------------------------------------------------------------------------------------------- */

static void score_row(void *arg, int64_t index, int worker) {
    const row_piece *piece = arg;
    const qrun_session *session = piece->session;
    const qr_request *request = piece->sequence->request;
    const int64_t vocab = session->model->shape.vocab;
    const float *logits = session->logits + index * vocab;
    qr_prompt_score *score = &session->step.scores[index];
    (void)worker;
    score->is_broken = !qr_logits_are_finite(logits, vocab);
    if (score->is_broken) { return; }
    const int32_t token = piece->sequence->tokens[piece->first + index + 1];
    score->logprob =
        qr_token_logprobs(logits, vocab, token, (int32_t)qr_min(request->prompt_logprobs, vocab), score->top);
}

/* score NULL: of the first token, which nothing predicts. False when the request failed. */
static bool send_token(qrun_session *session, qr_request *request, int64_t position, const qr_prompt_score *score) {
    qrun_event event = {.type = QRUN_EVENT_PROMPT, .token_id = request->sequences[0].tokens[position]};
    bool stopped;
    qr_error err = {0};
    if (score != NULL && score->is_broken) {
        qr_request_fail(session, request, QRUN_ERROR_INPUT, broken);
        return false;
    }
    if (qr_answer_push(&request->results->text, event.token_id, &event.text, &event.text_bytes, &stopped, &err) !=
        QRUN_OK) {
        qr_request_fail(session, request, err.status, err.message);
        return false;
    }
    if (score != NULL) {
        event.has_logprob = true;
        event.logprob = score->logprob;
        event.top = score->top;
        event.n_top = (int32_t)qr_min(request->prompt_logprobs, session->model->shape.vocab);
    }
    qr_request_send(request, 0, &event);
    return true;
}

static qrun_status score_piece(const row_piece *piece, bool *is_open, qr_error *err) {
    qrun_session *session = piece->session;
    qr_request *request = piece->sequence->request;
    qrun_context *context = session->model->context;
    row_piece scored = *piece;
    scored.n = qr_min(piece->n, request->n_prompt - 1 - piece->first); /* the last row predicts the answer */
    if (scored.n > 0) {
        qr_compute_lock(context);
        const qrun_status status =
            qr_forward_logits(session->forward, scored.first_row, scored.n, session->logits, err);
        qr_compute_unlock(context);
        if (status != QRUN_OK) { return status; }
        qr_threads_run(context->threads, scored.n, score_row, &scored);
    }
    if (piece->first == 0) { *is_open = send_token(session, request, 0, NULL); }
    for (int64_t i = 0; *is_open && i < scored.n; i++) {
        *is_open = send_token(session, request, piece->first + i + 1, &session->step.scores[i]);
    }
    return QRUN_OK;
}

/* ---- Embeddings -------------------------------------------------------------------------------------------------- */

/* Scaled to length 1, so the number of rows in the sum no longer matters. */
static bool send_embedding(qrun_session *session, qr_request *request) {
    const int64_t dim = session->model->shape.hidden;
    double square = 0;
    for (int64_t j = 0; j < dim; j++) { square += request->results->pooled[j] * request->results->pooled[j]; }
    if (!isfinite(square)) {
        qr_request_fail(session, request, QRUN_ERROR_INPUT, broken);
        return false;
    }
    const double scale = square > 0 ? 1 / sqrt(square) : 0;
    for (int64_t j = 0; j < dim; j++) { request->results->embedding[j] = (float)(request->results->pooled[j] * scale); }
    qrun_event event = {
        .type = QRUN_EVENT_EMBEDDING, .embedding = request->results->embedding, .n_embedding = (int32_t)dim};
    qr_request_send(request, 0, &event);
    return true;
}

/* Rows are added one after the other, so that chunks give the same sums. */
static qrun_status pool_piece(const row_piece *piece, bool *is_open, qr_error *err) {
    qrun_session *session = piece->session;
    qr_request *request = piece->sequence->request;
    qrun_context *context = session->model->context;
    const int64_t dim = session->model->shape.hidden, last = request->n_prompt - 1;
    qr_compute_lock(context);
    const qrun_status status = qr_forward_hidden(session->forward, piece->first_row, piece->n, session->logits, err);
    qr_compute_unlock(context);
    if (status != QRUN_OK) { return status; }
    for (int64_t i = 0; i < piece->n; i++) {
        if (request->pooling == QRUN_POOLING_LAST && piece->first + i < last) { continue; }
        for (int64_t j = 0; j < dim; j++) { request->results->pooled[j] += (double)session->logits[i * dim + j]; }
    }
    if (piece->first + piece->n == request->n_prompt) { *is_open = send_embedding(session, request); }
    return QRUN_OK;
}

/* ---- The rows of a step ------------------------------------------------------------------------------------------ */

/* Of a sequence whose rows begin at first_row. */
static qrun_status take_rows(qrun_session *session, qr_sequence *sequence, int64_t first_row, qr_error *err) {
    qr_request *request = sequence->request;
    const int64_t begin = sequence->kv.n_tokens, end = qr_min(begin + sequence->n_step, request->n_prompt);
    bool is_open = true;
    while (request->results != NULL && is_open && request->results->n_taken < end) {
        const int64_t first = request->results->n_taken;
        const row_piece piece = {.session = session,
                                 .sequence = sequence,
                                 .first_row = first_row + first - begin,
                                 .first = first,
                                 .n = qr_min(end - first, session->sizes.forward.max_logit_rows)};
        QR_RETURN_IF_ERROR(request->prompt_logprobs >= 0 ? score_piece(&piece, &is_open, err)
                                                         : pool_piece(&piece, &is_open, err));
        request->results->n_taken += piece.n;
    }
    return QRUN_OK;
}

qrun_status qr_take_prompt_rows(qrun_session *session, qr_error *err) {
    int64_t first_row = 0;
    for (int32_t i = 0; i < session->n_running;) {
        qr_sequence *sequence = session->running[i];
        const int64_t n_step = sequence->n_step;
        if (n_step > 0) { QR_RETURN_IF_ERROR(take_rows(session, sequence, first_row, err)); }
        first_row += n_step;
        if (i < session->n_running && session->running[i] == sequence) { i++; } /* else its request failed */
    }
    return QRUN_OK;
}
