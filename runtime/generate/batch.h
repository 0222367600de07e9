/* A batch: the tables that describe one step to the device. They are one block, laid out alike in host and device
 * memory as a function of the sizes alone. So a step is one copy, and equal sizes mean equal addresses.
 *
 * T tokens of S sequences, concatenated; sequence s owns rows [q_start[s], q_start[s + 1]) at consecutive positions. R
 * of the rows want logits, from which the device samples N tokens. */
#ifndef QR_RUNTIME_GENERATE_BATCH_H
#define QR_RUNTIME_GENERATE_BATCH_H

#include "runtime/cache/kv_cache.h"

typedef struct qr_batch_sizes {
    int64_t n_tokens, n_sequences, n_rows, n_samples; /* T, S, R, N */
    int64_t table_stride;                             /* entries of a sequence's block table */
} qr_batch_sizes;

typedef struct qr_batch {
    qr_batch_sizes sizes;
    int64_t n_tokens, n_sequences, n_rows, n_samples; /* added so far */
    int32_t n_kv_groups;
    bool has_adapters;         /* any of row_adapter ≥ 0 */
    int32_t *ids;              /* [T]; −1 − k: the token of sample k of the step before (qr_embedding_args) */
    int32_t *position;         /* [T] */
    int32_t *rope_slot;        /* [T] */
    int32_t *row_adapter;      /* [T], −1: none */
    int32_t *row_dora;         /* [T] of row_adapter, what is DoRA, else −1; qr_forward_run fills it */
    int32_t *row_plain;        /* [T] the others, likewise */
    int32_t *q_start;          /* [S + 1] */
    int32_t *first_position;   /* [S] */
    int32_t *state_slot;       /* [S] of the sequence's state, where the model has such; −1: none is kept */
    int32_t *token_page;       /* [n_kv_groups, T]: the page each token is written to, −1: none */
    int32_t *rows;             /* [R] rows that want logits */
    qr_sample_params *samples; /* [N]; `row` counts from the first row whose logits are held */
    int32_t *block_table;      /* [n_kv_groups, S, table_stride] */
} qr_batch;

/* Places the tables of these sizes at base (64-byte aligned; NULL: only counts). Returns the bytes of the block, which
 * grow with every size. */
size_t qr_batch_lay(const qr_batch_sizes *sizes, int32_t n_kv_groups, void *base, qr_batch *batch);

/* Adds tokens [first, first + n) of a sequence, whose pages are reserved; the last n_logits of them want logits.
 * slot: of its rotary tables and of its state. Rows
 * of one sequence may also be added one by one, at rising positions: each then counts as a sequence of the batch. */
void qr_batch_add(qr_batch *batch, const qr_kv_sequence *kv, const int32_t *tokens, int64_t first, int64_t n,
                  int32_t slot, int32_t adapter, int64_t n_logits);

/* Fills what is left of a decode step's sizes (T = S = R = N) with rows that belong to no sequence: they write no page,
 * read page 0, and their results are not read. */
void qr_batch_pad(qr_batch *batch);

#endif
