/* A grammar over bytes, as an automaton with calls. A state has edges that take a byte of a range, edges that take
 * nothing, and calls: a call runs a rule from its start to its end and then continues in the state that it names. So
 * rules may nest and recurse. A text matches if it leads from the start of the first rule to its end.
 *
 * The builder keeps its first error: after one, its calls do nothing, and qr_automaton_finish returns it. */
#ifndef QR_RUNTIME_GRAMMAR_AUTOMATON_H
#define QR_RUNTIME_GRAMMAR_AUTOMATON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
    QR_GRAMMAR_MAX_STATES = 1 << 16,
    QR_GRAMMAR_MAX_EDGES = 1 << 18,
    QR_GRAMMAR_MAX_RULES = 1 << 12,
    QR_GRAMMAR_MAX_DEPTH = 64, /* calls within calls; a text that would need more is no match */
};

enum { QR_EDGE_BYTES = -1, QR_EDGE_EMPTY = -2 }; /* in the place of a rule */

typedef struct qr_grammar_edge {
    int32_t target; /* of a call: the state after it */
    int32_t rule;
    uint8_t low, high; /* of BYTES */
} qr_grammar_edge;

/* What a state is. Its edges are edges[first_edge, first_other), which take bytes, and those up to end_edge. */
typedef struct qr_grammar_state {
    int32_t first_edge, first_other, end_edge;
    uint16_t plain_room; /* characters of a JSON string that need no escape, as many as may follow here; 65535: any */
    uint8_t need;        /* calls within calls that the shortest way to the end of the rule takes */
    bool is_end;         /* of its rule */
    bool is_character;   /* one of a JSON string begins here, for a state with plain room that has called */
} qr_grammar_state;

typedef struct qr_automaton {
    qr_grammar_state *states; /* [n_states]; 0 is the start of the first rule */
    qr_grammar_edge *edges;   /* [n_edges] */
    int32_t *rule_starts;     /* [n_rules] */
    int32_t n_states, n_edges, n_rules;
    int64_t n_bytes; /* of memory */
} qr_automaton;

/* While it is built: edges of a state are a list. */
typedef struct qr_built_state {
    int32_t last_edge; /* −1: none */
    uint16_t plain_room;
    bool is_character;
} qr_built_state;

typedef struct qr_built_edge {
    qr_grammar_edge edge;
    int32_t previous; /* of the same state; −1: none */
} qr_built_edge;

typedef struct qr_grammar_rule {
    int32_t start, end;
} qr_grammar_rule;

typedef struct qr_automaton_builder {
    qr_built_state *states;
    qr_built_edge *edges;
    qr_grammar_rule *rules;
    size_t n_states, n_edges, n_rules;
    size_t states_capacity, edges_capacity, rules_capacity;
    qrun_status status;
    qr_error *err;
} qr_automaton_builder;

void qr_automaton_builder_free(qr_automaton_builder *builder);

int32_t qr_automaton_add_state(qr_automaton_builder *builder);
/* A rule with a start and an end of its own; its number. */
int32_t qr_automaton_add_rule(qr_automaton_builder *builder);
void qr_automaton_add_bytes(qr_automaton_builder *builder, int32_t from, uint8_t low, uint8_t high, int32_t to);
void qr_automaton_add_empty(qr_automaton_builder *builder, int32_t from, int32_t to);
/* No rule that is called matches the empty text. */
void qr_automaton_add_call(qr_automaton_builder *builder, int32_t from, int32_t rule, int32_t to);
void qr_automaton_set_plain_room(qr_automaton_builder *builder, int32_t state, int64_t n);
void qr_automaton_set_character(qr_automaton_builder *builder, int32_t state);

/* The text in new states from `from` to `to`. */
void qr_automaton_add_text(qr_automaton_builder *builder, int32_t from, const char *text, int32_t to);
/* The same, where the text may be empty. */
void qr_automaton_add_text_or_none(qr_automaton_builder *builder, int32_t from, const char *text, int32_t to);
/* The same where texts share their beginnings: `root` and what lies below it have nothing but texts added this way. */
void qr_automaton_merge_text(qr_automaton_builder *builder, int32_t root, const char *text, int32_t to);
/* The target of the edge that takes exactly this byte; −1: there is none. */
int32_t qr_automaton_find_byte(const qr_automaton_builder *builder, int32_t from, uint8_t byte);

/* Leaves out edges that lead to no end. QRUN_ERROR_INPUT where nothing matches. *made is the caller's. */
qrun_status qr_automaton_finish(qr_automaton_builder *builder, qr_automaton *made, qr_error *err);
void qr_automaton_free(qr_automaton *automaton); /* fine for a zeroed one */

#endif
