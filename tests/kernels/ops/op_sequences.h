/* Sequences for the tests of recurrences: how a case's tokens divide into them, and one call cut into several. */
#ifndef OP_SEQUENCES_H
#define OP_SEQUENCES_H

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "op_harness.h"

enum { MAX_SEQS = 4, MAX_CALLS = 64 };

typedef struct sequences {
    int32_t n_seqs, n_tokens, longest, start[MAX_SEQS + 1], first_position[MAX_SEQS], slot[MAX_SEQS];
} sequences;

/* Every other sequence continues from a state. The slots are in another order than the sequences, and one has none. */
static inline sequences sequences_of(int32_t n_seqs, const int32_t *lengths) {
    sequences q = {.n_seqs = n_seqs};
    for (int32_t s = 0; s < n_seqs; s++) {
        q.start[s + 1] = q.start[s] + lengths[s];
        q.longest = (int32_t)qr_max(q.longest, lengths[s]);
        q.first_position[s] = s % 2 == 0 ? 0 : 5 + s;
        q.slot[s] = s == 2 ? -1 : n_seqs - 1 - s;
    }
    q.n_tokens = q.start[n_seqs];
    return q;
}

/* The states of a call, that many elements each and `stride` apart, with the values of `states`. */
static inline float *states_output(op_run *run, const sequences *q, const float *states, int64_t n, int64_t stride) {
    const size_t n_bytes = (size_t)n * sizeof(float);
    float *packed = qr_alloc((size_t)q->n_seqs * n_bytes + 1);
    for (int32_t s = 0; s < q->n_seqs; s++) { memcpy(packed + s * n, states + s * stride, n_bytes); }
    float *kept = op_output(run, packed, q->n_seqs, n_bytes, (size_t)stride * sizeof(float));
    qr_free(packed);
    return kept;
}

/* The tables of one call for all; states NULL: without. */
static inline qr_recurrence whole_sequences(op_run *run, const sequences *q, float *states, int64_t stride) {
    const size_t n_bytes = (size_t)q->n_seqs * sizeof(int32_t);
    qr_recurrence r = {.n_seqs = q->n_seqs, .max_seq_tokens = q->longest, .state_stride = stride};
    r.start = op_input(run, q->start, n_bytes + sizeof(int32_t));
    if (states == NULL) { return r; }
    r.states = states;
    r.first_position = op_input(run, q->first_position, n_bytes);
    r.slot = op_input(run, q->slot, n_bytes);
    return r;
}

/* The tables of one call of several, in a buffer that all calls share. */
typedef struct call_tables {
    int32_t start[2], first_position, slot, first_token;
} call_tables;

/* The calls, sequence by sequence and `cut` tokens at a time; what has no slot cannot be cut. Writes their tables to
 * `calls`, and to the device: returned. */
static inline const call_tables *list_calls(op_run *run, const sequences *q, int32_t cut, call_tables calls[MAX_CALLS],
                                            int32_t *n_calls) {
    *n_calls = 0;
    for (int32_t s = 0; s < q->n_seqs; s++) {
        const int32_t n = q->start[s + 1] - q->start[s], step = q->slot[s] < 0 ? n : cut;
        for (int32_t first = 0; first < n; first += step) {
            assert(*n_calls < MAX_CALLS);
            const int32_t here = first + step < n ? step : n - first;
            calls[(*n_calls)++] =
                (call_tables){{0, here}, q->first_position[s] + first, q->slot[s], q->start[s] + first};
        }
    }
    return op_input(run, calls, (size_t)*n_calls * sizeof *calls);
}

/* The sequence of a call, by its tables on the device. */
static inline qr_recurrence sequence_of_call(const call_tables *tables, float *states, int64_t stride) {
    return (qr_recurrence){.n_seqs = 1,
                           .start = tables->start,
                           .first_position = &tables->first_position,
                           .slot = &tables->slot,
                           .states = states,
                           .state_stride = stride};
}

#endif
