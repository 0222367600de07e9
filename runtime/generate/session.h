/* A session: the page pool, the forward pass and the requests. session_sizes.c says how large it is; session.c creates
 * it and accepts requests; scheduler.c decides what the next step computes; step.c computes it, samples and delivers
 * tokens. */
#ifndef QR_RUNTIME_GENERATE_SESSION_H
#define QR_RUNTIME_GENERATE_SESSION_H

#include "runtime/cache/page_store.h"
#include "runtime/generate/request_queue.h"
#include "runtime/generate/session_sizes.h"

/* The next token of a sequence: how it is sampled, and the result. */
typedef struct qr_next_token {
    qr_sequence *sequence; /* NULL: it has left while the step was under way, and the token is dropped */
    int64_t n_ahead;       /* of the step's drafts come before it in the sequence */
    int64_t row;           /* among the step's rows that want logits */
    bool on_host;          /* the host samples it: its logits are changed first, or the best ids are wanted too */
    int64_t index;         /* among the batch's samples, where the device takes it */
    const float *logits;   /* on the host: [V] */
    int32_t token;         /* −1: the request's rules exclude every id */
    bool is_broken;        /* the logits are not finite */
    bool is_too_much;      /* the request's schema has too many ways to read the answer */
    float logprob;
    int32_t n_top;
    qrun_top_logprob top[QR_MAX_TOP_LOGPROBS];
} qr_next_token;

/* The step being built, or under way on the device. Its lists are allocated once, at their largest. */
typedef struct qr_step {
    qr_kv_copy *copies; /* [S · n_kv_groups] */
    int32_t n_copies;
    qr_state_copy *state_copies; /* [QR_STATE_COPIES · S]: done before the layers of the next step run, in order */
    int32_t n_state_copies;
    qr_next_token *next;            /* [S] in order of their rows; of a sequence in order of its tokens */
    struct qr_prompt_score *scores; /* [R] of rows of prompts */
    int64_t n_tokens, n_rows, n_next, n_on_device; /* n_on_device: next tokens that the device samples */
    int64_t n_drafts;
    bool is_decode;  /* every token has a row and a next token, and is a sequence of the batch: replayed */
    bool is_ahead;   /* issued before the tokens of the step before were read: each sequence has one token more there */
    bool is_issued;  /* and its tokens are not read yet */
    bool is_sampled; /* issued with all its sampling, and with the copy of its tokens: */
    qr_sampled_copy sampled;
} qr_step;

struct qrun_session {
    qrun_model *model;
    qr_session_sizes sizes;
    qr_plan plan;
    void *pages; /* device */
    size_t pages_bytes;
    qr_page_store *store; /* NULL: none */
    float *states;        /* device, [S + n_snapshots, state_floats]; NULL: the model has none */
    size_t states_bytes;
    qr_kv_cache *cache;
    qr_forward *forward;
    qr_sampler **samplers;     /* one a thread */
    qr_grammar_shelf shelf;    /* of requests' grammars */
    qr_grammar_room *grammars; /* NULL until the first request with a schema is submitted; made under `lock` */
    float *logits;             /* host, [R, V], also of R hidden states */
    qr_step step;
    qr_step ahead; /* the one after it, where it is issued already; of the lists it has `next` alone */

    /* Of the stepping thread. */
    qr_sequence **running; /* [S] in order of arrival */
    int32_t n_running;
    int32_t *free_slots; /* stack */
    int32_t n_free_slots;
    qr_request_list started; /* and not over, in order of arrival; at most S and one that waits for pages */
    qr_request *over;        /* destroyed when the step ends; linked by `next` */
    int64_t n_ended;         /* samples */
    double collected_time;   /* when the tokens of the last step were read */
    qr_draft_costs draft_costs;
    qrun_model *draft;         /* NULL: none */
    qr_draft_model *drafter;   /* of that */
    qrun_session_stats counts; /* what `stats` is published from after each step */

    /* Of any thread, under lock. */
    pthread_mutex_t lock;
    qr_request_queue queue;
    qrun_session_stats stats; /* as of the last step, newer submissions counted as waiting */
    int event_descriptor;
    /* Of rank 0, with a split model: */
    int idle_timer, both_descriptors; /* its caller wakes up from time to time, so that the others hear of it */
    bool leads;                       /* the others follow, until the session ends */

    atomic_bool stepping;
};

/* The number of pages is another than the sizes said: fewer. */
void qr_session_set_pages(qrun_session *session, int64_t n_pages);
void qr_session_set_kept_pages(qrun_session *session, int64_t n_pages);
void qr_session_set_snapshots(qrun_session *session, int64_t n_snapshots);

/* qrun_session_submit, where `overrides` may have members of generation_json (request.h). */
qrun_status qr_session_submit(qrun_session *session, const qrun_request_params *params, const qr_json *overrides,
                              const char *what, uint64_t *request, qr_error *err);

/* scheduler.c. Moves sequences between waiting and running, reserves pages, and sets n_step of those that take part.
 * False when nothing can be computed. */
bool qr_schedule(qrun_session *session);
/* Whether the step after the one that is issued can be issued too, before its tokens are read; sets goes_ahead of the
 * sequences that take part, and reserves their pages. */
bool qr_schedule_ahead(qrun_session *session);
void qr_sequence_set_state(qr_sequence *sequence, qr_sequence_state state);
/* Makes a sequence a running one; false when all slots are taken. */
bool qr_sequence_take_slot(qrun_session *session, qr_sequence *sequence);
/* After a step that failed: all running sequences wait, and are computed again from their first token. */
void qr_requeue_all(qrun_session *session);
/* Releases slot and pages, and drops the sequence's tokens of steps under way; the caller sets the new state. */
void qr_sequence_leave(qrun_session *session, qr_sequence *sequence);

/* states.c. The states that layers carry along sequences; nothing is done for a model without. A state goes forward
 * only: where tokens are taken back (a draft that is dropped), a snapshot from before them has to be restored. */
/* The sequence's slot gets the state that its matched prefix ends with. */
void qr_state_restore(qrun_session *session, const qr_sequence *sequence);
/* A sequence begins with all the tokens of another, and with its state. */
void qr_state_fork(qrun_session *session, const qr_sequence *from, const qr_sequence *to);
/* Keeps the sequence's state with the pages of its tokens, so that others may continue from there. */
void qr_state_keep(qrun_session *session, const qr_sequence *sequence);
/* Tokens of a prompt that the sequence may compute in one step, at most n: no further than the next snapshot. */
int64_t qr_state_step_tokens(const qrun_session *session, const qr_sequence *sequence, int64_t n);
/* Whether a snapshot is due after the tokens that the sequence has computed of its prompt. */
bool qr_state_is_due(const qrun_session *session, const qr_sequence *sequence);
/* Does the copies noted since the last step. */
qrun_status qr_states_copy(qrun_session *session, qr_error *err);
/* After a step that failed. */
void qr_states_forget(qrun_session *session);

/* step.c. Sends an event of a request, and ends one with an error event; `status` is of the event. */
void qr_request_send(const qr_request *request, int32_t sample, qrun_event *event);
void qr_request_fail(qrun_session *session, qr_request *request, qrun_status status, const char *message);

#endif
