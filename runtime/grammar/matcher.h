/* Where a text may be in a grammar: a set of states, each with the calls that it is in. A set is made from the one
 * before and the next byte. Sets live in an arena, one after the other, so that a walk over many texts goes back by
 * forgetting the last ones.
 *
 * The work is counted: a set has at most QR_MATCH_MAX_CONFIGS entries, and an arena does at most so many steps before
 * it is begun again. Beyond that nothing matches any more and `overflow` says why. Neither depends on anything but the
 * grammar and the texts. */
#ifndef QR_RUNTIME_GRAMMAR_MATCHER_H
#define QR_RUNTIME_GRAMMAR_MATCHER_H

#include "runtime/grammar/automaton.h"

enum {
    QR_MATCH_MAX_CONFIGS = 4096,
    QR_MATCH_ARENA_CONFIGS = 1 << 15,
    QR_MATCH_ARENA_CALLS = 1 << 14,
    QR_MATCH_TABLE = 1 << 13,     /* at least twice QR_MATCH_MAX_CONFIGS */
    QR_MATCH_MAX_STEPS = 1 << 25, /* states and edges that are looked at */
};

/* A call under way: where it returns to, and the call that it is in. Equal hashes mean equal chains of calls. */
typedef struct qr_match_call {
    uint64_t hash;
    int32_t state, outer; /* −1: none */
    int32_t depth;        /* 1: no outer one */
} qr_match_call;

typedef struct qr_match_config {
    int32_t state, call; /* −1: none */
} qr_match_config;

/* Of an arena: its entries from begin to before end. */
typedef struct qr_match_set {
    int32_t begin, end;
    int32_t n_calls;  /* of the arena that it may name */
    bool is_complete; /* the text so far is an answer */
} qr_match_set;

typedef struct qr_match_arena {
    const qr_automaton *automaton;
    qr_match_config *configs; /* [QR_MATCH_ARENA_CONFIGS] */
    qr_match_call *calls;     /* [QR_MATCH_ARENA_CALLS] */
    int32_t n_configs, n_calls;
    uint32_t *table; /* [QR_MATCH_TABLE] of the set being made: stamp << 16 | its number in the set */
    uint32_t stamp;
    uint16_t *numbers; /* [QR_MATCH_ARENA_CALLS] of calls that are kept, from 1 */
    int64_t n_steps;
    bool overflow;
} qr_match_arena;

qrun_status qr_match_arena_create(qr_match_arena *arena, qr_error *err);
void qr_match_arena_free(qr_match_arena *arena); /* fine for a zeroed one */

/* Where a text is, kept between tokens. */
typedef struct qr_match_place {
    qr_match_config *configs; /* [QR_MATCH_MAX_CONFIGS] */
    qr_match_call *calls;     /* [QR_MATCH_MAX_CONFIGS] */
    int32_t n_configs, n_calls;
    bool is_complete;
} qr_match_place;

qrun_status qr_match_place_create(qr_match_place *place, qr_error *err);
void qr_match_place_free(qr_match_place *place); /* fine for a zeroed one */

/* Begins the arena again, with the empty text, or with the text of a place. */
qr_match_set qr_match_start(qr_match_arena *arena, const qr_automaton *automaton);
qr_match_set qr_match_restore(qr_match_arena *arena, const qr_automaton *automaton, const qr_match_place *place);
/* The set after one more byte; it lies after all others. Empty and not complete: nothing matches. */
qr_match_set qr_match_step(qr_match_arena *arena, const qr_match_set *set, uint8_t byte);
/* Forgets all sets made after this one. */
void qr_match_return(qr_match_arena *arena, const qr_match_set *set);
/* False: the set takes more room than a place has. */
bool qr_match_keep(qr_match_arena *arena, const qr_match_set *set, qr_match_place *place);

/* The same for sets with the same states in the same calls; two words, so that others differ. */
void qr_match_set_key(const qr_match_arena *arena, const qr_match_set *set, uint64_t key[2]);

/* Characters that stand for themselves in a JSON string: so many may follow in any order. *no_more: and not one more,
 * unless another comes between. */
int32_t qr_match_plain_room(const qr_match_arena *arena, const qr_match_set *set, bool *no_more);

#endif
