/* A session: the page pool, the forward pass and the requests between them. session.c makes it and takes requests in;
 * scheduler.c decides what the next step computes; step.c computes it and gives tokens out. */
#ifndef QR_RUNTIME_GENERATE_SESSION_H
#define QR_RUNTIME_GENERATE_SESSION_H

#include "runtime/generate/forward.h"
#include "runtime/generate/request.h"

/* Sizes that follow from model and parameters, before anything is made. */
typedef struct qr_session_sizes {
    qr_forward_limits forward;
    int64_t context_tokens;
    int64_t pool_tokens;
    int64_t n_pages;
    size_t page_bytes;
    bool share_prefixes;
} qr_session_sizes;

/* One token to be drawn, and what came out. */
typedef struct qr_draw {
    qr_sequence *sequence;
    int64_t row;         /* of the step's rows that want logits */
    bool on_host;        /* the device cannot: logits that are changed first, the best ids beside the drawn one */
    int64_t index;       /* of the batch's draws, where it is one */
    const float *logits; /* on the host: [V] */
    int32_t token;
    bool is_broken; /* the logits are no numbers */
    float logprob;
    int32_t n_top;
    qrun_top_logprob top[QR_MAX_TOP_LOGPROBS];
} qr_draw;

/* The step being built: lists made once at their largest. Its tables are the forward pass'. */
typedef struct qr_step {
    qr_kv_copy *copies; /* [S · n_kv_groups] */
    int32_t n_copies;
    qr_draw *draws;                       /* [S] in order of their rows */
    int64_t n_rows, n_draws, n_on_device; /* draws that the device makes */
    bool is_decode;                       /* one token, row and draw a sequence, as the forward pass replays them */
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
    int32_t *free_places; /* stack */
    int32_t n_free_places;
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

/* Sizes and plan of a session for a described model. memory->free_bytes: beside its weights and adapters. */
qrun_status qr_session_size(qrun_model *model, const qrun_session_params *params, const qr_device_memory *memory,
                            qr_session_sizes *sizes, qr_plan *plan, qr_error *err);

/* scheduler.c: moves sequences between waiting and running, reserves pages, and sets n_step of those that take part.
 * False when nothing can be computed. */
bool qr_schedule(qrun_session *session);
void qr_sequence_enqueue(qrun_session *session, qr_sequence *sequence); /* into waiting, at its place */
/* A place for a sequence that runs from now on; false when all are taken. */
bool qr_sequence_take_place(qrun_session *session, qr_sequence *sequence);
/* All running sequences wait again, and what they have is computed anew: after a step that failed. */
void qr_put_back_all(qrun_session *session);
/* Gives place and pages back; the caller sets the new state. */
void qr_sequence_leave(qrun_session *session, qr_sequence *sequence);

#endif
