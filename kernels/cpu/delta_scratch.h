/* Scratch of gated_delta and its gradient. */
#ifndef QR_KERNELS_CPU_DELTA_SCRATCH_H
#define QR_KERNELS_CPU_DELTA_SCRATCH_H

#include "base/sizes.h"
#include "kernels/ops.h"

/* Columns of a state that are worked on at once: they, and the keys, stay in the first cache. A block of columns is a
 * task of its own. */
enum { QR_DELTA_COLUMNS = 64 };

/* The backward op keeps the states at the borders of blocks of so many tokens, and those of one block. */
enum { QR_DELTA_BLOCK_TOKENS = 64 };

/* What is computed once for each token, for all the tasks that read it. */
typedef struct qr_delta_tokens {
    float *q, *k; /* [n_tokens, n_key_heads, key_dim]: q', k' */
    float *qk;    /* [n_tokens, n_key_heads]: q' · k' */
    float *decay; /* [n_tokens, n_value_heads, qr_delta_decays] */
    float *beta;  /* [n_tokens, n_value_heads] */
} qr_delta_tokens;

/* The next n floats of a layout that begins at base (NULL: only counts). */
static inline float *qr_delta_take(float *base, int64_t *used, int64_t n) {
    float *taken = base != NULL ? base + *used : NULL;
    *used += n;
    return taken;
}

/* Returns the bytes, a multiple of 64. */
static inline size_t qr_delta_tokens_lay(const qr_gated_delta_args *a, float *base, qr_delta_tokens *tokens) {
    const int64_t keys = a->n_tokens * a->n_key_heads, values = a->n_tokens * a->n_value_heads;
    int64_t n = 0;
    tokens->q = qr_delta_take(base, &n, keys * a->key_dim);
    tokens->k = qr_delta_take(base, &n, keys * a->key_dim);
    tokens->qk = qr_delta_take(base, &n, keys);
    tokens->decay = qr_delta_take(base, &n, values * qr_delta_decays(a));
    tokens->beta = qr_delta_take(base, &n, values);
    return (size_t)qr_round_up(n, 16) * sizeof(float);
}

/* A thread's columns of a state that has no memory. */
static inline int64_t qr_delta_column_floats(const qr_gated_delta_args *a) {
    return (int64_t)a->key_dim * QR_DELTA_COLUMNS;
}

static inline size_t qr_gated_delta_bytes(const qr_gated_delta_args *a, int n_threads) {
    qr_delta_tokens tokens;
    return qr_delta_tokens_lay(a, NULL, &tokens) + (size_t)(n_threads * qr_delta_column_floats(a)) * sizeof(float);
}

/* A thread's scratch of the backward op. */
typedef struct qr_delta_backward_scratch {
    float *borders;                /* [n_blocks, key_dim, value_dim]: the state before each block */
    float *states;                 /* [QR_DELTA_BLOCK_TOKENS + 1, key_dim, value_dim]: before each token of a block */
    float *dstate;                 /* [key_dim, value_dim] */
    float *errors;                 /* [QR_DELTA_BLOCK_TOKENS, value_dim]: v − (decay · state)ᵀ k' */
    float *delta, *ddelta, *dread; /* [value_dim] */
    float *dkeys;                  /* [2, key_dim]: of q' and k' */
    float *ddecays;                /* [key_dim]: of decays, where each channel has its own */
} qr_delta_backward_scratch;

/* Returns the floats, a multiple of 16. */
static inline int64_t qr_delta_backward_scratch_lay(const qr_gated_delta_args *a, float *base,
                                                    qr_delta_backward_scratch *s) {
    const int64_t state = (int64_t)a->key_dim * a->value_dim, values = a->value_dim;
    const int64_t n_blocks = qr_ceil_div(a->sequences.max_seq_tokens, QR_DELTA_BLOCK_TOKENS);
    int64_t n = 0;
    s->borders = qr_delta_take(base, &n, n_blocks * state);
    s->states = qr_delta_take(base, &n, (QR_DELTA_BLOCK_TOKENS + 1) * state);
    s->dstate = qr_delta_take(base, &n, state);
    s->errors = qr_delta_take(base, &n, QR_DELTA_BLOCK_TOKENS * values);
    s->delta = qr_delta_take(base, &n, values);
    s->ddelta = qr_delta_take(base, &n, values);
    s->dread = qr_delta_take(base, &n, values);
    s->dkeys = qr_delta_take(base, &n, 2 * (int64_t)a->key_dim);
    s->ddecays = qr_delta_take(base, &n, a->decays_channels ? a->key_dim : 0);
    return qr_round_up(n, 16);
}

/* Sums of da_log and ddt_bias of each sequence and value head: one, and qr_delta_decays. */
static inline int64_t qr_delta_sums_floats(const qr_gated_delta_args *a) {
    return qr_round_up((1 + (int64_t)qr_delta_decays(a)) * a->sequences.n_seqs * a->n_value_heads, 16);
}

static inline size_t qr_gated_delta_backward_bytes(const qr_gated_delta_args *a, int n_threads) {
    qr_delta_tokens tokens;
    qr_delta_backward_scratch scratch;
    const int64_t floats = qr_delta_sums_floats(a) + n_threads * qr_delta_backward_scratch_lay(a, NULL, &scratch);
    return qr_delta_tokens_lay(a, NULL, &tokens) + (size_t)floats * sizeof(float);
}

#endif
