#include "runtime/generate/answer.h"

#include <string.h>

#include "base/sizes.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

enum { RESERVED_BYTES = 256 };
enum { PRIMING_TOKENS = 8 }; /* more than any decoder looks back, unless it is in the middle of a run of byte tokens */

/* A model may have more ids than its tokenizer has tokens; these have no text. */
static qrun_status push_token(qr_token_stream *stream, int32_t id, qr_buffer *out, qr_error *err) {
    size_t n_bytes;
    if (qr_tokenizer_token(stream->tokenizer, id, &n_bytes) == NULL) { return QRUN_OK; }
    return qr_token_stream_push(stream, id, out, err);
}

static qrun_status push_all(qr_token_stream *stream, const int32_t *ids, int64_t n, qr_buffer *out, qr_error *err) {
    for (int64_t i = 0; i < n; i++) { QR_RETURN_IF_ERROR(push_token(stream, ids[i], out, err)); }
    return QRUN_OK;
}

/* Primes the decoder with an end of the prompt, at least PRIMING_TOKENS long and as short as gives any text. So the
 * decoder does not start in the middle of what it would hold back. *first: where that end begins. */
static qrun_status prime(qr_answer *answer, const qr_tokenizer *tokenizer, const int32_t *prompt, int64_t n_prompt,
                         int64_t *first, qr_error *err) {
    for (int64_t n = PRIMING_TOKENS;; n *= 2) {
        *first = qr_max(0, n_prompt - n);
        qr_token_stream_init(&answer->stream, tokenizer, true);
        const qrun_status status = push_all(&answer->stream, prompt + *first, n_prompt - *first, &answer->pending, err);
        if (status != QRUN_OK || answer->pending.size > 0 || *first == 0) { return status; }
        qr_token_stream_free(&answer->stream);
    }
}

/* The whole characters that the decoder holds back after these tokens: the text it adds at their end, with the tokens
 * of an incomplete last character left out. */
static qrun_status find_held_characters(const qr_tokenizer *tokenizer, const int32_t *ids, int64_t n, qr_buffer *held,
                                        qr_error *err) {
    enum { MAX_INCOMPLETE = 3 };
    qrun_status status = QRUN_OK;
    for (int64_t cut = 0; cut <= qr_min(MAX_INCOMPLETE, n) && status == QRUN_OK; cut++) {
        qr_token_stream stream;
        qr_token_stream_init(&stream, tokenizer, true);
        status = push_all(&stream, ids, n - cut, held, err);
        qr_buffer_clear(held);
        if (status == QRUN_OK) { status = qr_token_stream_finish(&stream, held, err); }
        qr_token_stream_free(&stream);
        if (held->size == 0 || strstr(held->data, REPLACEMENT) == NULL) { return status; }
        qr_buffer_clear(held);
    }
    return status;
}

static void reserve(qr_buffer *buffer) {
    static const char blank[RESERVED_BYTES];
    const size_t size = buffer->size;
    qr_buffer_append(buffer, blank, sizeof blank);
    if (!qr_buffer_ok(buffer)) { return; }
    buffer->size = size;
    buffer->data[size] = '\0';
}

/* Room for what decoders usually hold, so that nothing grows while tokens are generated. */
static qrun_status reserve_buffers(qr_answer *answer, qr_error *err) {
    reserve(&answer->pending);
    bool reserved = qr_buffer_ok(&answer->pending) && qr_buffer_ok(&answer->prompt_tail);
    for (int i = 0; i < QR_DECODE_MAX_STAGES; i++) {
        qr_decode_stage_state *stage = &answer->stream.stages[i];
        reserve(&stage->token);
        reserve(&stage->held);
        reserved = reserved && qr_buffer_ok(&stage->token) && qr_buffer_ok(&stage->held);
    }
    return reserved ? QRUN_OK : qr_fail_memory(err, "an answer's text", RESERVED_BYTES);
}

qrun_status qr_answer_start(qr_answer *answer, const qr_tokenizer *tokenizer, const int32_t *prompt, int64_t n_prompt,
                            const qr_stop_list *stops, qr_error *err) {
    *answer = (qr_answer){.has_text = tokenizer != NULL, .stops = *stops, .stop = -1};
    if (tokenizer == NULL) { return QRUN_OK; }
    int64_t first;
    QR_RETURN_IF_ERROR(prime(answer, tokenizer, prompt, n_prompt, &first, err));
    qr_buffer_clear(&answer->pending);
    QR_RETURN_IF_ERROR(find_held_characters(tokenizer, prompt + first, n_prompt - first, &answer->prompt_tail, err));
    return reserve_buffers(answer, err);
}

void qr_answer_free(qr_answer *answer) {
    if (answer->has_text) { qr_token_stream_free(&answer->stream); }
    qr_buffer_free(&answer->pending);
    qr_buffer_free(&answer->prompt_tail);
    *answer = (qr_answer){0};
}

static void drop_front(qr_buffer *text, size_t n_bytes) {
    text->size -= n_bytes;
    memmove(text->data, text->data + n_bytes, text->size);
    text->data[text->size] = '\0';
}

/* Drops what the last call returned. */
static void begin_call(qr_answer *answer, const char **text, size_t *n_bytes, bool *stopped) {
    *text = "";
    *n_bytes = 0;
    *stopped = false;
    if (answer->pending.size == 0) { return; }
    answer->pending.data[answer->n_given] = answer->after_given;
    drop_front(&answer->pending, answer->n_given);
    answer->n_given = 0;
}

/* The first text of the decoder may begin with the end of the prompt. */
static void drop_prompt_tail(qr_answer *answer) {
    const qr_buffer *tail = &answer->prompt_tail;
    if (tail->size == 0 || answer->pending.size == 0) { return; }
    if (answer->pending.size >= tail->size && memcmp(answer->pending.data, tail->data, tail->size) == 0) {
        drop_front(&answer->pending, tail->size);
    }
    qr_buffer_clear(&answer->prompt_tail);
}

/* Where the first of the stop strings begins in the pending text; pending.size when none does. Of several that begin
 * there, the first of the list counts. */
static size_t find_stop(qr_answer *answer) {
    size_t first = answer->pending.size;
    for (int32_t i = 0; i < answer->stops.n && answer->pending.size > 0; i++) {
        const size_t length = strlen(answer->stops.texts[i]);
        for (size_t at = 0; at + length <= answer->pending.size && at < first; at++) {
            if (memcmp(answer->pending.data + at, answer->stops.texts[i], length) == 0) {
                first = at, answer->stop = i;
            }
        }
    }
    return first;
}

/* Bytes at the end of the pending text that may be the beginning of a stop string. */
static size_t held_bytes(const qr_answer *answer) {
    size_t most = 0;
    for (int32_t i = 0; i < answer->stops.n; i++) {
        const size_t length = strlen(answer->stops.texts[i]);
        for (size_t n = length - 1 < answer->pending.size ? length - 1 : answer->pending.size; n > most; n--) {
            if (memcmp(answer->pending.data + answer->pending.size - n, answer->stops.texts[i], n) == 0) { most = n; }
        }
    }
    return most;
}

static qrun_status give(qr_answer *answer, bool all, const char **text, size_t *n_bytes, bool *stopped, qr_error *err) {
    if (!qr_buffer_ok(&answer->pending)) { return qr_fail_memory(err, "an answer's text", answer->pending.capacity); }
    drop_prompt_tail(answer);
    const size_t stop = find_stop(answer);
    *stopped = stop < answer->pending.size;
    *n_bytes = *stopped || all ? stop : answer->pending.size - held_bytes(answer);
    answer->n_given = *n_bytes;
    if (answer->pending.size == 0) { return QRUN_OK; }
    answer->after_given = answer->pending.data[*n_bytes];
    answer->pending.data[*n_bytes] = '\0';
    *text = answer->pending.data;
    return QRUN_OK;
}

qrun_status qr_answer_push(qr_answer *answer, int32_t token, const char **text, size_t *n_bytes, bool *stopped,
                           qr_error *err) {
    begin_call(answer, text, n_bytes, stopped);
    if (!answer->has_text) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(push_token(&answer->stream, token, &answer->pending, err));
    return give(answer, false, text, n_bytes, stopped, err);
}

qrun_status qr_answer_finish(qr_answer *answer, const char **text, size_t *n_bytes, bool *stopped, qr_error *err) {
    begin_call(answer, text, n_bytes, stopped);
    if (!answer->has_text) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_token_stream_finish(&answer->stream, &answer->pending, err));
    return give(answer, true, text, n_bytes, stopped, err);
}
