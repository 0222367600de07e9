/* What the ranks of a split model (runtime/model/split.h) send each other while they generate. Rank 0 has the requests:
 * it announces what is computed next, with the tables of the batch, and the others do the same on their shares. So none
 * of them decides anything, and none can come to another decision. In between all gather columns: each sends its own as
 * it computed them, and nothing is added up. */
#ifndef QR_RUNTIME_RANKS_SPLIT_RANKS_H
#define QR_RUNTIME_RANKS_SPLIT_RANKS_H

#include "kernels/collectives.h"
#include "runtime/layers/layer.h"

typedef enum qr_split_action {
    QR_SPLIT_RUN,         /* the layers, of a batch of `sizes`; its tables follow, and those of rotary slots */
    QR_SPLIT_COPY_PAGES,  /* n pairs of pages follow */
    QR_SPLIT_COPY_STATES, /* n pairs of states follow */
    QR_SPLIT_HEAD_ROWS,   /* the output head of n of the batch's rows from `first` on */
    QR_SPLIT_HEAD_TOKENS, /* the same of tokens of the last run */
    QR_SPLIT_KEEP_PAGE,   /* what the store of kept pages does follows (runtime/cache/page_store.h) */
    QR_SPLIT_IDLE,        /* nothing: rank 0 is there, and waits for requests */
    QR_SPLIT_END
} qr_split_action;

enum { QR_SPLIT_SIZES = 5 };

typedef struct qr_split_command {
    int64_t action;                /* a qr_split_action */
    int64_t sizes[QR_SPLIT_SIZES]; /* of a batch */
    int64_t has_adapters;
    int64_t first, n; /* of RUN: the rotary slots that have changed */
} qr_split_command;

typedef struct qr_split_ranks {
    const qrun_model *model;
    qr_backend *backend;
    qr_collectives *ranks;       /* NULL: the model is whole, or this is a plan */
    unsigned char *rows, *parts; /* host, stage_bytes each: all columns of some rows; the same, rank by rank */
    size_t stage_bytes;
} qr_split_ranks;

/* Bytes of a stage for passes of max_tokens rows and logits of one; 0 for a model that is whole. */
size_t qr_split_stage_bytes(const qrun_model *model, int64_t max_tokens);
/* What this rank sends of the columns that it computes, for so many tokens and rows of logits; as qr_collectives counts
 * it. */
int64_t qr_split_sent_bytes(const qrun_model *model, int64_t n_tokens, int64_t n_logit_rows);
/* A qr_gather_fn; arg: qr_split_ranks. */
qrun_status qr_split_gather(void *arg, const qr_gather *gather, qr_error *err);

/* Whether this process has all logits: that of a whole model, and rank 0. */
static inline bool qr_split_leads(const qrun_model *model) { return model->split.rank == 0; }
/* Rank 0 announces what it does next; nothing on others, and where the model is whole. */
qrun_status qr_split_lead(const qr_split_ranks *s, const qr_split_command *command, qr_error *err);
/* What follows a command, from rank 0. */
qrun_status qr_split_share(const qr_split_ranks *s, void *memory, size_t n_bytes, qr_error *err);

#endif
