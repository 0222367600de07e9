/* What generates: /v1/chat/completions, /v1/messages and the rest of completions_protocol, from the request to the end
 * of its answer, or of its client. */
#ifndef QRUN_SERVE_COMPLETIONS_H
#define QRUN_SERVE_COMPLETIONS_H

#include "serve/http.h"
#include "serve/jobs.h"
#include "serve/models.h"
#include "serve/openai/answer_format.h"
#include "serve/openai/protocol.h"
#include "serve/openai/tool_choice.h"
#include "serve/replicas.h"
#include "serve/server.h"

struct answer;

/* What answers are made with; lent. */
typedef struct completions {
    const serve_params *params;
    models *models;
    replicas *replicas;
    jobs *quick, *slow; /* read requests: small ones, and others, so that none waits for a large one but large ones */
    answer_format format;
    call_form call_form;
    uint32_t id_start;             /* of this server's ids: another start has others */
    uint64_t n_answers;            /* the rest of them */
    int64_t n_open;                /* answers on their way; requests whose client left count until the engine lets go */
    _Atomic int64_t n_unsubmitted; /* of these, not with the engine yet */
    bool is_closing;               /* no new ones */
    struct answer *answers;        /* that are open */
    void (*on_idle)(void *user);   /* called when n_open becomes 0 */
    void *user;
} completions;

/* What is spoken at a path; NULL: nothing is generated there. */
const answer_protocol *completions_protocol(const char *path);
void completions_begin(completions *c, http_exchange *exchange, const answer_protocol *protocol);
/* Where a body of a request is read. */
jobs *completions_jobs(const completions *c, const http_body *body);
/* Another answer is on its way; it has ended. */
void completions_open(completions *c);
void completions_close(completions *c);
/* The worker_event_fn of their requests. */
void completions_take(void *user, const qrun_event *event);

/* Called every few seconds: clients that nothing was said to since the last time hear that they have to wait. */
enum { COMPLETIONS_TICK_SECONDS = 5 };
void completions_tick(completions *c);

/* An error as the whole answer, in the form of the path. */
void completions_refuse(http_exchange *exchange, const openai_error *error);
/* JSON as the whole answer; frees it. NULL: memory was short. */
void completions_reply_json(http_exchange *exchange, int status, cJSON *json);

/* Tells every client that waits that there will be no answer: nothing is computed any more. */
void completions_fail_all(completions *c);
/* Cancels what runs. */
void completions_cancel_all(completions *c);
/* Frees what is open when jobs and worker have ended. */
void completions_drop(completions *c);

#endif
