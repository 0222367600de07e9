/* What a session takes of memory, decided before anything is allocated. */
#ifndef QR_RUNTIME_GENERATE_SESSION_SIZES_H
#define QR_RUNTIME_GENERATE_SESSION_SIZES_H

#include "runtime/engine/device_memory.h"
#include "runtime/generate/draft_model.h"
#include "runtime/generate/forward.h"

enum { QR_MAX_SESSION_SEQUENCES = 4096 };

/* Sizes that follow from model and parameters, before anything is allocated. */
typedef struct qr_session_sizes {
    qr_forward_limits forward;
    int64_t max_sequences; /* that run at once */
    qr_draft_sizes draft;  /* of the draft model, where there is one */
    int64_t n_draft_rows;  /* rows of a step that decode, with drafts, at most; 0: no drafts */
    int64_t context_tokens;
    int64_t pool_tokens;
    int64_t n_pages;
    size_t page_bytes;
    int64_t state_floats;    /* of a sequence's state; 0: the model has none */
    int64_t n_snapshots;     /* of states, besides one of every sequence that may run */
    int64_t snapshot_tokens; /* one is taken after so many tokens of a prompt, and again */
    bool share_prefixes;
    int64_t n_kept_pages;      /* in host memory, after they have left the pool */
    bool keeps_pages;          /* there, or in files */
    int64_t budget_bytes;      /* of the whole plan; 0: not reached */
    int64_t max_waiting_bytes; /* of requests that have not started */
} qr_session_sizes;

/* Sizes and plan of a session for a described model, and a draft model (NULL: none). memory->free_bytes: after their
 * weights and adapters. If it does not fit (QRUN_ERROR_MEMORY, and sizes->budget_bytes is set), they are those of the
 * smallest such session. */
qrun_status qr_session_size(qrun_model *model, qrun_model *draft, const qrun_session_params *params,
                            const qr_device_memory *memory, qr_session_sizes *sizes, qr_plan *plan, qr_error *err);

/* The longest sequence, of `context` tokens at most, that n_pages hold while a step computes step_tokens. */
int64_t qr_session_longest(const qrun_model *model, int64_t n_pages, int64_t context, int64_t step_tokens);

#endif
