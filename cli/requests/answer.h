/* An answer while it arrives, and as lines of JSON: one object per sample. */
#ifndef QRUN_CLI_REQUESTS_ANSWER_H
#define QRUN_CLI_REQUESTS_ANSWER_H

#include "cli/terminal/text.h"
#include "qrun.h"

typedef struct answer_sample {
    text_buffer content;
    text_buffer logprobs; /* the members of a JSON array */
    int32_t *token_ids;
    int64_t n_tokens, capacity;
    char finish_reason[16];
    qrun_event end; /* its numbers; what it lent is gone */
} answer_sample;

typedef struct answer {
    int64_t index;      /* of the request in its file */
    text_buffer id;     /* its "id" and "custom_id": members with a comma before each */
    text_buffer prompt; /* likewise, where the answer repeats its prompt */
    answer_sample *samples;
    int32_t n_samples;
    text_buffer prompt_logprobs; /* the members of a JSON array */
    char *error;                 /* of the whole request; NULL: none */
} answer;

/* Copies what the event lends. `tokenizer` gives the texts of tokens with log-probabilities; may be NULL. */
void answer_take(answer *a, const qrun_event *event, const qrun_tokenizer *tokenizer);
/* Appends the answer's lines: one for each sample, or one with "error". */
void answer_write(const answer *a, text_buffer *out);
void answer_free(answer *a);

#endif
