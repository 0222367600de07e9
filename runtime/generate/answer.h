/* The text of one sample as it grows. Tokens become whole characters, and text that may be the beginning of a stop
 * string is held back until it is certain. */
#ifndef QR_RUNTIME_GENERATE_ANSWER_H
#define QR_RUNTIME_GENERATE_ANSWER_H

#include "base/buffer.h"
#include "loaders/tokenizer/tokenizer.h"

typedef struct qr_stop_list {
    char *const *texts; /* [n] NUL-terminated, not empty; lent */
    int32_t n;
} qr_stop_list;

typedef struct qr_answer {
    bool has_text; /* false: no tokenizer; every piece is empty */
    qr_token_stream stream;
    qr_stop_list stops;
    int32_t stop;      /* the one of stops that has appeared; −1: none */
    qr_buffer pending; /* text not returned yet; the last call returned its first n_given bytes */
    size_t n_given;
    char after_given;      /* the byte that the NUL after the returned text replaces */
    qr_buffer prompt_tail; /* characters of the prompt that the decoder still holds, not part of the answer */
} qr_answer;

/* The end of the prompt primes the decoder, so that the answer continues the prompt's text: a leading space stays, and
 * a character that the prompt left incomplete is the answer's. */
qrun_status qr_answer_start(qr_answer *answer, const qr_tokenizer *tokenizer, const int32_t *prompt, int64_t n_prompt,
                            const qr_stop_list *stops, qr_error *err);
void qr_answer_free(qr_answer *answer); /* fine for a zeroed one */

/* Adds a token. *text [*n_bytes, NUL-terminated] is what can be shown now, lent until the next call. *stopped: a stop
 * string has appeared; the text ends before it, and the answer takes no further token. */
qrun_status qr_answer_push(qr_answer *answer, int32_t token, const char **text, size_t *n_bytes, bool *stopped,
                           qr_error *err);

/* The text that was held back, when the answer ends without a stop string. */
qrun_status qr_answer_finish(qr_answer *answer, const char **text, size_t *n_bytes, bool *stopped, qr_error *err);

#endif
