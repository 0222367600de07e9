#include "runtime/answer.h"

#include <string.h>

#include "base/sizes.h"

/* Enough for a character spelled in byte tokens and for whatever a decoder strips at the start of a text. */
enum { PRIMING_TOKENS = 8 };

qrun_status qr_answer_start(qr_answer *answer, const qr_tokenizer *tokenizer, const int32_t *prompt, int64_t n_prompt,
                            const qr_stop_list *stops, qr_error *err) {
    *answer = (qr_answer){.has_text = tokenizer != NULL, .stops = *stops};
    if (tokenizer == NULL) { return QRUN_OK; }
    qr_token_stream_init(&answer->stream, tokenizer, true);
    qrun_status status = QRUN_OK;
    for (int64_t i = qr_max(0, n_prompt - PRIMING_TOKENS); i < n_prompt && status == QRUN_OK; i++) {
        status = qr_token_stream_push(&answer->stream, prompt[i], &answer->pending, err);
    }
    qr_buffer_clear(&answer->pending);
    return status;
}

void qr_answer_free(qr_answer *answer) {
    if (answer->has_text) { qr_token_stream_free(&answer->stream); }
    qr_buffer_free(&answer->pending);
    *answer = (qr_answer){0};
}

static void drop_given(qr_answer *answer) {
    if (answer->n_given == 0) { return; }
    const size_t rest = answer->pending.size - answer->n_given;
    memmove(answer->pending.data, answer->pending.data + answer->n_given, rest);
    answer->pending.size = rest;
    answer->pending.data[rest] = '\0';
    answer->n_given = 0;
}

/* Where the first of the stop strings begins in the pending text; pending.size when none does. */
static size_t find_stop(const qr_answer *answer) {
    size_t first = answer->pending.size;
    for (int32_t i = 0; i < answer->stops.n && answer->pending.size > 0; i++) {
        const size_t length = strlen(answer->stops.texts[i]);
        for (size_t at = 0; at + length <= answer->pending.size && at < first; at++) {
            if (memcmp(answer->pending.data + at, answer->stops.texts[i], length) == 0) { first = at; }
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
    const size_t stop = find_stop(answer);
    *stopped = stop < answer->pending.size;
    *n_bytes = *stopped || all ? stop : answer->pending.size - held_bytes(answer);
    *text = answer->pending.size > 0 ? answer->pending.data : "";
    answer->n_given = *n_bytes;
    return QRUN_OK;
}

qrun_status qr_answer_push(qr_answer *answer, int32_t token, const char **text, size_t *n_bytes, bool *stopped,
                           qr_error *err) {
    *text = "";
    *n_bytes = 0;
    *stopped = false;
    if (!answer->has_text) { return QRUN_OK; }
    drop_given(answer);
    const qrun_status status = qr_token_stream_push(&answer->stream, token, &answer->pending, err);
    return status == QRUN_OK ? give(answer, false, text, n_bytes, stopped, err) : status;
}

qrun_status qr_answer_finish(qr_answer *answer, const char **text, size_t *n_bytes, bool *stopped, qr_error *err) {
    *text = "";
    *n_bytes = 0;
    *stopped = false;
    if (!answer->has_text) { return QRUN_OK; }
    drop_given(answer);
    const qrun_status status = qr_token_stream_finish(&answer->stream, &answer->pending, err);
    return status == QRUN_OK ? give(answer, true, text, n_bytes, stopped, err) : status;
}
