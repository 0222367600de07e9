/* A request and its samples. Submission checks and copies: a request that waits holds little more than its prompt. What
 * generating needs is allocated when it starts; a step or a token allocates nothing. */
#ifndef QR_RUNTIME_GENERATE_REQUEST_H
#define QR_RUNTIME_GENERATE_REQUEST_H

#include <stdatomic.h>

#include "runtime/cache/kv_cache.h"
#include "runtime/generate/answer.h"
#include "runtime/generate/speculation.h"
#include "runtime/grammar/grammar_shelf.h"
#include "runtime/model/model.h"
#include "runtime/sampling/penalties.h"

enum { QR_MAX_TOP_LOGPROBS = 20, QR_MAX_SAMPLES = 256, QR_MAX_STOPS = 64, QR_MAX_ANSWER_FORMS = 256 };

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
    int64_t n_tokens; /* known; kv.n_tokens of them are in the cache, the last of the answer never */
    qr_kv_sequence kv;
    int32_t slot;     /* while running: one of the session's, and of the rotary tables; −1: none */
    int64_t n_step;   /* tokens of the step being built, drafts included */
    bool goes_ahead;  /* it has one token in the step after that one, which is issued ahead */
    qr_drafts drafts; /* of that step; while it is built their tokens lie after the known ones */
    int64_t n_cached; /* prompt tokens found in the cache when it first ran */
    qr_answer answer;
    qr_match_place place; /* of the answer so far in the request's grammar, where it has one */
    bool has_run;         /* was admitted before: what it finds in the cache again may be its own */
    bool has_rope;        /* the rotary frequencies of its slot are set, for the length class of kv.key */
    double first_token_time;
} qr_sequence;

/* What the rows of a prompt give besides K/V (prompt_rows.h). */
typedef struct qr_prompt_results {
    int64_t n_taken;  /* rows before it give nothing more */
    double *pooled;   /* [D] sums of the rows taken; NULL: not wanted */
    float *embedding; /* [D] likewise */
    qr_answer text;   /* of the PROMPT events */
} qr_prompt_results;

struct qr_request {
    uint64_t id; /* also the order of arrival */
    qr_sampling sampling;
    qr_generation_rules *own_rules; /* sampling.rules, unless these are the model's */
    qr_grammar *grammar;            /* of the answers; NULL: none */
    bool ignore_eos;
    int32_t logprobs, prompt_logprobs; /* −1: none */
    bool prompt_only;                  /* nothing is generated */
    qrun_pooling pooling;
    int64_t n_prompt, capacity; /* tokens: of the prompt; prompt and answer at most. All but the last are computed */
    int64_t rope_tokens;        /* of these the most that fix rotary frequencies */
    const struct qrun_adapter *adapter;
    char **stops; /* NULL: none */
    int32_t n_stops;
    int32_t *stop_ids; /* [n_stop_ids] that end it, beside the model's end tokens; NULL: none */
    int32_t n_stop_ids;
    qrun_event_fn on_event;
    void *user;
    double submit_time, start_time; /* start_time 0: has not run yet */
    atomic_bool cancelled;
    bool is_waiting;                    /* in the queue, for its start; under the session's lock */
    int64_t waiting_bytes;              /* held until it starts */
    int32_t *prompt;                    /* [n_prompt] until it starts */
    int32_t n_samples, n_open;          /* not DONE yet */
    int32_t n_waiting;                  /* of its sequences */
    bool started;                       /* the prompt is computed: the other samples are no longer held */
    qr_prompt_results *results;         /* NULL: the prompt gives K/V alone, or has not started */
    qr_sequence *sequences;             /* [n_samples]; NULL until it starts */
    struct qr_request *previous, *next; /* in a list of the session */
    struct qr_request *left, *right;    /* in the tree of numbers (request_queue.h) */
};

/* What a session allows. */
typedef struct qr_request_limits {
    int64_t context_tokens;     /* longest sequence by the model or the session's parameters */
    int64_t pool_tokens;        /* longest sequence that the page pool can hold */
    bool kv_is_smallest;        /* K/V already have the smallest type */
    qr_grammar_shelf *grammars; /* that were made for other requests */
} qr_request_limits;

/* Checks, tokenises and copies. QRUN_ERROR_ARGUMENT for values out of range, QRUN_ERROR_MEMORY for a request that can
 * never fit, with what would help. overrides (NULL: none) is an object that may have members of generation_json, which
 * then count instead of those; `what` names it. */
qrun_status qr_request_create(const qrun_model *model, const qr_request_limits *limits,
                              const qrun_request_params *params, const qr_json *overrides, const char *what,
                              qr_request **request, qr_error *err);

/* Allocates what its samples need: the first one waits, the others are held. After an error it has no samples.
 * `grammars` may be NULL for a request without a grammar. */
qrun_status qr_request_start(const qrun_model *model, qr_kv_cache *cache, const qr_grammar_room *grammars,
                             qr_request *request, qr_error *err);

/* Releases its pages too. NULL is fine. */
void qr_request_destroy(qr_request *request, qr_kv_cache *cache);

#endif
