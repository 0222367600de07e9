/* The forward pass, written once against ops: a ragged batch of tokens in, K/V into pages, logits of chosen rows out.
 * Prompt chunks, decode steps and evaluation are the same thing here.
 *
 * T tokens of S sequences, concatenated; sequence s owns rows [q_start[s], q_start[s + 1]) at consecutive positions. */
#ifndef QR_RUNTIME_FORWARD_H
#define QR_RUNTIME_FORWARD_H

#include "runtime/model.h"

/* What a forward pass is made for: fixes the sizes of its buffers. */
typedef struct qr_forward_limits {
    int64_t max_tokens;      /* T of one step */
    int64_t max_sequences;   /* S of one step */
    int64_t max_blocks;      /* entries of a sequence's block table */
    int64_t max_logit_rows;  /* rows through the output head at once */
    int64_t n_rope_slots;    /* sets of rotary frequencies held */
    qr_kv_format kv_format;
} qr_forward_limits;

/* The description of one step, in host memory; it is copied to the device by qr_forward_run. */
typedef struct qr_batch {
    int64_t n_tokens, n_sequences;
    const int32_t *ids;             /* [T] */
    const int32_t *position;        /* [T] */
    const int32_t *rope_slot;       /* [T] */
    const int32_t *row_adapter;     /* [T], −1: none */
    bool has_adapters;              /* any of row_adapter ≥ 0 */
    const int32_t *q_start;         /* [S + 1] */
    const int32_t *first_position;  /* [S] */
    const int32_t *const *token_page; /* [n_kv_groups] of [T]: the page each token is written to */
    const int32_t *const *block_table; /* [n_kv_groups] of [S, table_stride] */
    int64_t table_stride;
} qr_batch;

typedef struct qr_forward qr_forward;

/* Adds what a forward pass of these limits takes to the plan: activations, workspace, tables, logits. */
void qr_forward_plan(qrun_model *model, const qr_forward_limits *limits, qr_plan *plan);

/* `pages` is the pool's memory (device): page p begins at pages + p · qr_page_bytes. */
qrun_status qr_forward_create(qrun_model *model, const qr_forward_limits *limits, void *pages, qr_forward **forward,
                              qr_error *err);
void qr_forward_destroy(qr_forward *forward); /* NULL is fine */

/* Sets the rotary frequencies of one slot for sequences of at most total_tokens (rope.h). */
qrun_status qr_forward_set_rope(qr_forward *forward, int64_t slot, int64_t total_tokens, qr_error *err);

/* Runs the layers: K/V of every token is in its page afterwards, and the last hidden states stay until the next run. */
qrun_status qr_forward_run(qr_forward *forward, const qr_batch *batch, qr_error *err);

/* Logits of n_rows (≤ max_logit_rows) rows of the last run, into host memory [n_rows, V]; rows index its tokens. */
qrun_status qr_forward_logits(qr_forward *forward, const int32_t *rows, int64_t n_rows, float *logits, qr_error *err);

/* The same, but only the negative log-likelihood of one target id per row: nll [n_rows]. */
qrun_status qr_forward_nll(qr_forward *forward, const int32_t *rows, const int32_t *targets, int64_t n_rows, float *nll,
                           qr_error *err);

/* Bytes of a page: group_layers × one layer's part. */
size_t qr_page_bytes(const qrun_model *model, qr_kv_format format);

#endif
