/* Routings for the tests of experts' ops: what the tokens of a case choose, as route leaves it. */
#ifndef OP_ROUTING_H
#define OP_ROUTING_H

#include <string.h>

#include "op_harness.h"

enum { MOST_EXPERTS = 70, MOST_ROWS = 150, MOST_SLOTS = 4 * MOST_ROWS, GAP = 3, F32_BYTES = sizeof(float) };

/* --- Routings ---------------------------------------------------------------------------------------------------- */

/* What the tokens of a case choose, on the host: of every row top_k different experts. */
typedef struct choices {
    int64_t n_rows;
    int32_t n_experts, top_k;
    int32_t expert[MOST_SLOTS];
    float share[MOST_SLOTS]; /* of a row and its choices */
} choices;

/* Some experts have many tokens and others, where there are enough, none. */
static inline choices choose(int64_t n_rows, int32_t n_experts, int32_t top_k, uint64_t stream) {
    choices c = {.n_rows = n_rows, .n_experts = n_experts, .top_k = top_k};
    for (int64_t pair = 0; pair < n_rows * top_k; pair++) {
        const int64_t k = pair % top_k;
        int64_t wanted = op_below(stream, pair, 4) > 0 ? k : op_below(stream + 1, pair, n_experts);
        for (int64_t before = 0; before < k; before++) {
            if (c.expert[pair - 1 - before] != wanted) { continue; }
            wanted = (wanted + 1) % n_experts;
            before = -1;
        }
        c.expert[pair] = (int32_t)wanted;
        c.share[pair] = op_normal(stream + 2, pair);
    }
    return c;
}

/* The same as route leaves it, for rows [first, first + n_rows). */
typedef struct host_routing {
    int32_t expert[MOST_SLOTS], slot[MOST_SLOTS], slot_row[MOST_SLOTS], expert_start[MOST_EXPERTS + 1];
    float share[MOST_SLOTS];
    int64_t n_slots;
} host_routing;

static inline host_routing routing_of(const choices *c, int64_t first, int64_t n_rows) {
    host_routing r = {.n_slots = n_rows * c->top_k};
    int32_t n = 0;
    for (int32_t e = 0; e < c->n_experts; e++) {
        r.expert_start[e] = n;
        for (int64_t pair = 0; pair < r.n_slots; pair++) {
            const int64_t at = first * c->top_k + pair;
            r.expert[pair] = c->expert[at];
            if (c->expert[at] != e) { continue; }
            r.slot[pair] = n;
            r.slot_row[n] = (int32_t)(pair / c->top_k);
            r.share[n++] = c->share[at];
        }
    }
    r.expert_start[c->n_experts] = n;
    return r;
}

static inline qr_routing put_routing(op_run *run, const choices *c, const host_routing *r) {
    const size_t n_bytes = (size_t)r->n_slots * sizeof(int32_t);
    return (qr_routing){.expert = op_input(run, r->expert, n_bytes),
                        .slot = op_input(run, r->slot, n_bytes),
                        .slot_row = op_input(run, r->slot_row, n_bytes),
                        .share = op_input(run, r->share, n_bytes),
                        .expert_start = op_input(run, r->expert_start, (size_t)(c->n_experts + 1) * sizeof(int32_t)),
                        .n_rows = r->n_slots / c->top_k,
                        .n_experts = c->n_experts,
                        .top_k = c->top_k};
}

/* Rows of slots in the order of the pairs, and back. */
static inline void by_pairs(const host_routing *r, const void *slots, size_t row_bytes, void *pairs) {
    for (int64_t pair = 0; pair < r->n_slots; pair++) {
        memcpy((unsigned char *)pairs + (size_t)pair * row_bytes,
               (const unsigned char *)slots + (size_t)r->slot[pair] * row_bytes, row_bytes);
    }
}

static inline void by_slots(const host_routing *r, const void *pairs, size_t row_bytes, void *slots) {
    for (int64_t pair = 0; pair < r->n_slots; pair++) {
        memcpy((unsigned char *)slots + (size_t)r->slot[pair] * row_bytes,
               (const unsigned char *)pairs + (size_t)pair * row_bytes, row_bytes);
    }
}

/* Input rows, `stride` elements apart with a gap between them, as an op takes them: of tokens, or of slots. */
static inline void *put_rows(op_run *run, const choices *c, const void *x, qr_dtype dtype, bool gathers,
                             const host_routing *r, int64_t first, int64_t stride, int64_t gap, unsigned char *slots) {
    const size_t row_bytes = (size_t)stride * qr_dtype_bytes(dtype), gap_bytes = (size_t)gap * qr_dtype_bytes(dtype);
    const int64_t n_rows = r->n_slots / c->top_k;
    if (gathers) {
        return op_input(run, (const unsigned char *)x + (size_t)first * row_bytes,
                        (size_t)n_rows * row_bytes - gap_bytes);
    }
    by_slots(r, (const unsigned char *)x + (size_t)(first * c->top_k) * row_bytes, row_bytes, slots);
    return op_input(run, slots, (size_t)r->n_slots * row_bytes - gap_bytes);
}

#endif
