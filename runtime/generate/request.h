/* A request and its samples. Everything is checked, copied and allocated at submission; generating allocates nothing.
 */
#ifndef QR_RUNTIME_GENERATE_REQUEST_H
#define QR_RUNTIME_GENERATE_REQUEST_H

#include <stdatomic.h>

#include "runtime/generate/answer.h"
#include "runtime/generate/kv_cache.h"
#include "runtime/generate/penalties.h"
#include "runtime/model/model.h"

enum { QR_MAX_TOP_LOGPROBS = 20, QR_MAX_SAMPLES = 256, QR_MAX_STOPS = 64 };

typedef enum qr_sequence_state {
    QR_SEQUENCE_HELD,    /* a further sample that waits for the first one's prompt */
    QR_SEQUENCE_WAITING, /* for a slot and pages; its tokens must be (re)computed */
    QR_SEQUENCE_RUNNING,
    QR_SEQUENCE_DONE
} qr_sequence_state;

typedef struct qr_request qr_request;

/* One sample. */
typedef struct qr_sequence {
    qr_request *request;
    int32_t sample;
    qr_sequence_state state;
    int32_t *tokens;  /* [capacity]: the prompt, then the answer */
    int64_t n_tokens; /* known; kv.n_tokens of them are in the cache */
    qr_kv_sequence kv;
    int32_t slot;     /* while running: one of the session's, and of the rotary tables; −1: none */
    int64_t n_step;   /* tokens of the step being built */
    int64_t n_cached; /* prompt tokens found in the cache when it first ran */
    qr_answer answer;
    bool has_run;  /* was admitted before: what it finds in the cache again may be its own */
    bool has_rope; /* the rotary frequencies of its slot are set */
    double first_token_time;
    struct qr_sequence *next; /* in the waiting list, in order of arrival */
} qr_sequence;

struct qr_request {
    uint64_t id; /* also the order of arrival */
    qr_sampling sampling;
    bool ignore_eos;
    int32_t logprobs;           /* −1: none */
    int64_t n_prompt, capacity; /* tokens: of the prompt; prompt and answer at most */
    int64_t rope_tokens;        /* what fixes the rotary parameters */
    const struct qrun_adapter *adapter;
    char **stops;
    int32_t n_stops;
    qrun_event_fn on_event;
    void *user;
    double submit_time, start_time; /* start_time 0: has not run yet */
    atomic_bool cancelled;
    atomic_bool over;          /* no sample is open any more */
    int32_t n_samples, n_open; /* not DONE yet */
    bool started;              /* the prompt is computed: the other samples are no longer held */
    qr_sequence *sequences;    /* [n_samples] */
    qr_request *next;          /* in the inbox or among the live requests */
};

/* What a session allows. */
typedef struct qr_request_limits {
    int64_t context_tokens; /* longest sequence by the model or the session's parameters */
    int64_t pool_tokens;    /* longest sequence that the page pool can hold */
    bool kv_is_smallest;    /* K/V already have the smallest type */
} qr_request_limits;

/* Checks, tokenises and copies. QRUN_ERROR_ARGUMENT for values out of range, QRUN_ERROR_MEMORY for a request that can
 * never fit, with what would help. */
qrun_status qr_request_create(const qrun_model *model, qr_kv_cache *cache, const qr_request_limits *limits,
                              const qrun_request_params *params, qr_request **request, qr_error *err);
/* Releases its pages too. NULL is fine. */
void qr_request_destroy(qr_request *request, qr_kv_cache *cache);

#endif
