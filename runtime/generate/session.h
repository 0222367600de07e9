/* A session: the page pool, the forward pass and the requests. session.c creates it and accepts requests; scheduler.c
 * decides what the next step computes; step.c computes it, samples and delivers tokens. */
#ifndef QR_RUNTIME_GENERATE_SESSION_H
#define QR_RUNTIME_GENERATE_SESSION_H

#include "runtime/generate/forward.h"
#include "runtime/generate/request.h"

/* Sizes that follow from model and parameters, before anything is allocated. */
typedef struct qr_session_sizes {
    qr_forward_limits forward;
    int64_t context_tokens;
    int64_t pool_tokens;
    int64_t n_pages;
    size_t page_bytes;
    bool share_prefixes;
} qr_session_sizes;

/* The next token of a sequence: how it is sampled, and the result. */
typedef struct qr_next_token {
    qr_sequence *sequence;
    int64_t row;         /* among the step's rows that want logits */
    bool on_host;        /* the host samples it: its logits are changed first, or the best ids are wanted too */
    int64_t index;       /* among the batch's samples, where the device takes it */
    const float *logits; /* on the host: [V] */
    int32_t token;
    bool is_broken; /* the logits are not finite */
    float logprob;
    int32_t n_top;
    qrun_top_logprob top[QR_MAX_TOP_LOGPROBS];
} qr_next_token;

/* The step being built. Its lists are allocated once, at their largest. */
typedef struct qr_step {
    qr_kv_copy *copies; /* [S · n_kv_groups] */
    int32_t n_copies;
    qr_next_token *next;                 /* [S] in order of their rows */
    int64_t n_rows, n_next, n_on_device; /* n_on_device: tokens that the device samples */
    bool is_decode; /* one token, one row and one next token a sequence, as the forward pass replays them */
} qr_step;

struct qrun_session {
    qrun_model *model;
    qr_session_sizes sizes;
    qr_plan plan;
    void *pages; /* device */
    size_t pages_bytes;
    qr_kv_cache *cache;
    qr_forward *forward;
    qr_sampler **samplers; /* one a thread */
    float *logits;         /* host, [R, V] */
    qr_step step;

    /* Of the stepping thread. */
    qr_sequence **running; /* [S] in order of arrival */
    int32_t n_running;
    int32_t *free_slots; /* stack */
    int32_t n_free_slots;
    qr_sequence *waiting;      /* in order of arrival */
    qr_request *live;          /* accepted and not over, newest first */
    qrun_session_stats counts; /* what `stats` is published from after each step */

    /* Of any thread, under lock. */
    pthread_mutex_t lock;
    qr_request *inbox, **inbox_end;
    uint64_t last_request;
    qrun_session_stats stats; /* as of the last step, newer submissions counted as waiting */
    int event_descriptor;

    atomic_bool stepping;
};

/* Sizes and plan of a session for a described model. memory->free_bytes: after its weights and adapters. */
qrun_status qr_session_size(qrun_model *model, const qrun_session_params *params, const qr_device_memory *memory,
                            qr_session_sizes *sizes, qr_plan *plan, qr_error *err);

/* scheduler.c. Moves sequences between waiting and running, reserves pages, and sets n_step of those that take part.
 * False when nothing can be computed. */
bool qr_schedule(qrun_session *session);
void qr_sequence_enqueue(qrun_session *session, qr_sequence *sequence); /* into the waiting list, by age */
/* Makes a sequence a running one; false when all slots are taken. */
bool qr_sequence_take_slot(qrun_session *session, qr_sequence *sequence);
/* After a step that failed: all running sequences wait, and are computed again from their first token. */
void qr_requeue_all(qrun_session *session);
/* Releases slot and pages; the caller sets the new state. */
void qr_sequence_leave(qrun_session *session, qr_sequence *sequence);

#endif
