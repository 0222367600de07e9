/* Scratch of state_space and its gradient. */
#ifndef QR_KERNELS_CPU_STATE_SPACE_SCRATCH_H
#define QR_KERNELS_CPU_STATE_SPACE_SCRATCH_H

#include "base/sizes.h"
#include "kernels/ops.h"

/* Columns of a state that are a task of their own: they stay in the first cache. */
enum { QR_SPACE_COLUMNS = 32 };

/* The backward op keeps the states at the borders of blocks of so many tokens, and those of one block. */
enum { QR_SPACE_BLOCK_TOKENS = 64 };

/* Heads share the B and C of their group, and so the gradients of these. A group's heads are cut into so many parts, or
 * one for each head. Each has sums of its own, which are added up in order. */
enum { QR_SPACE_PARTS = 8 };

static inline int64_t qr_space_parts(const qr_state_space_args *a) {
    return qr_min(a->n_heads / a->n_groups, QR_SPACE_PARTS);
}

/* Head of a group that part `part` begins with. */
static inline int64_t qr_space_part_begin(const qr_state_space_args *a, int64_t part) {
    return part * (a->n_heads / a->n_groups) / qr_space_parts(a);
}

/* A thread's columns of a state that has no memory. */
static inline int64_t qr_space_column_floats(const qr_state_space_args *a) {
    return (int64_t)a->state_dim * QR_SPACE_COLUMNS;
}

static inline size_t qr_state_space_bytes(const qr_state_space_args *a, int n_threads) {
    return (size_t)(n_threads * qr_space_column_floats(a)) * sizeof(float);
}

/* Sums of da_log, ddt_bias and dskip of each sequence and head. */
enum { QR_SPACE_SUMS = 3 };

/* What the tasks of the backward op leave for its end. */
typedef struct qr_space_partial {
    float *keys; /* [n_groups, parts, n_tokens, 2, state_dim]: gradients of B and of C */
    float *sums; /* [n_seqs, n_heads, QR_SPACE_SUMS] */
} qr_space_partial;

/* A thread's scratch. */
typedef struct qr_space_scratch {
    float *borders;        /* [n_blocks, state_dim, head_dim]: the state before each block */
    float *states;         /* [QR_SPACE_BLOCK_TOKENS + 1, state_dim, head_dim]: before each token of a block */
    float *dstate;         /* [state_dim, head_dim] */
    float *input, *dinput; /* [head_dim]: step · x, and its gradient */
} qr_space_scratch;

/* The next n floats of a layout that begins at base (NULL: only counts). */
static inline float *qr_space_take(float *base, int64_t *used, int64_t n) {
    float *taken = base != NULL ? base + *used : NULL;
    *used += qr_round_up(n, 16);
    return taken;
}

/* Both return floats. */
static inline int64_t qr_space_partial_lay(const qr_state_space_args *a, float *base, qr_space_partial *p) {
    int64_t n = 0;
    p->keys = qr_space_take(base, &n, a->n_groups * qr_space_parts(a) * a->n_tokens * 2 * a->state_dim);
    p->sums = qr_space_take(base, &n, (int64_t)QR_SPACE_SUMS * a->sequences.n_seqs * a->n_heads);
    return n;
}

static inline int64_t qr_space_scratch_lay(const qr_state_space_args *a, float *base, qr_space_scratch *s) {
    const int64_t state = (int64_t)a->state_dim * a->head_dim;
    int64_t n = 0;
    s->borders = qr_space_take(base, &n, qr_ceil_div(a->sequences.max_seq_tokens, QR_SPACE_BLOCK_TOKENS) * state);
    s->states = qr_space_take(base, &n, (QR_SPACE_BLOCK_TOKENS + 1) * state);
    s->dstate = qr_space_take(base, &n, state);
    s->input = qr_space_take(base, &n, a->head_dim);
    s->dinput = qr_space_take(base, &n, a->head_dim);
    return n;
}

static inline size_t qr_state_space_backward_bytes(const qr_state_space_args *a, int n_threads) {
    qr_space_partial partial;
    qr_space_scratch scratch;
    return (size_t)(qr_space_partial_lay(a, NULL, &partial) + n_threads * qr_space_scratch_lay(a, NULL, &scratch)) *
           sizeof(float);
}

#endif
