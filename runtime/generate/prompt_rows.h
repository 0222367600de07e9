/* What a request may want of the rows of its prompt besides K/V: log probabilities of its tokens, and their final
 * hidden states pooled into one vector. Row i predicts token i + 1. */
#ifndef QR_RUNTIME_GENERATE_PROMPT_ROWS_H
#define QR_RUNTIME_GENERATE_PROMPT_ROWS_H

#include "runtime/generate/session.h"

/* Of a row: log p of the token after it. */
typedef struct qr_prompt_score {
    float logprob;
    bool is_broken; /* the logits are not finite */
    qrun_top_logprob top[QR_MAX_TOP_LOGPROBS];
} qr_prompt_score;

/* After the forward pass of a step, before its tokens are committed: takes what is wanted of the rows of prompts, in
 * order, and sends the PROMPT and EMBEDDING events. A request whose rows are not finite fails. */
qrun_status qr_take_prompt_rows(qrun_session *session, qr_error *err);

#endif
