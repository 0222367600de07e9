/* /v1/chat/completions, /v1/completions and /v1/embeddings: from the request to the end of its answer, or of its
 * client.
 */
#ifndef QRUN_SERVE_COMPLETIONS_H
#define QRUN_SERVE_COMPLETIONS_H

#include "serve/answer_format.h"
#include "serve/http.h"
#include "serve/models.h"
#include "serve/openai_request.h"
#include "serve/server.h"
#include "serve/worker.h"

struct answer;

/* What answers are made with; lent. */
typedef struct completions {
    const serve_params *params;
    const models *models;
    worker *worker;
    answer_format format;
    uint64_t n_answers;          /* for their ids */
    int64_t n_open;              /* answers on their way; requests whose client left count until the engine lets go */
    bool is_closing;             /* no new ones */
    struct answer *answers;      /* that are open */
    void (*on_idle)(void *user); /* called when n_open becomes 0 */
    void *user;
} completions;

void completions_begin(completions *c, http_exchange *exchange, openai_kind kind);
/* The worker_event_fn of their requests. */
void completions_take(void *user, const qrun_event *event);

/* An error in OpenAI's form as the whole answer. */
void completions_refuse(http_exchange *exchange, const openai_error *error);
/* JSON as the whole answer; frees it. NULL: memory was short. */
void completions_reply_json(http_exchange *exchange, int status, cJSON *json);

/* Cancels what runs. */
void completions_cancel_all(completions *c);
/* Frees what is open when nothing is delivered any more. */
void completions_drop(completions *c);

#endif
