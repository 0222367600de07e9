#include "runtime/grammar/automaton.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

/* ---- Building ---------------------------------------------------------------------------------------------------- */

void qr_automaton_builder_free(qr_automaton_builder *builder) {
    qr_free(builder->states);
    qr_free(builder->edges);
    qr_free(builder->rules);
    *builder = (qr_automaton_builder){0};
}

/* Whether there is room for one more; else the builder has failed. */
static bool grow(qr_automaton_builder *builder, void *array, size_t *capacity, size_t n, size_t most, size_t size,
                 const char *what) {
    if (builder->status != QRUN_OK) { return false; }
    if (n == most) {
        builder->status =
            qr_fail(builder->err, QRUN_ERROR_UNSUPPORTED,
                    "the schema is too large: its grammar would have more than %zu %s; fewer parts and listed "
                    "values, or smaller \"maxLength\", \"maxItems\" and repetitions in \"pattern\", make it "
                    "smaller",
                    most, what);
        return false;
    }
    builder->status = qr_array_grow(array, capacity, n + 1, size, "a grammar", builder->err);
    return builder->status == QRUN_OK;
}

int32_t qr_automaton_add_state(qr_automaton_builder *builder) {
    if (!grow(builder, &builder->states, &builder->states_capacity, builder->n_states, QR_GRAMMAR_MAX_STATES,
              sizeof *builder->states, "states")) {
        return 0;
    }
    builder->states[builder->n_states] = (qr_built_state){.last_edge = -1};
    return (int32_t)builder->n_states++;
}

int32_t qr_automaton_add_rule(qr_automaton_builder *builder) {
    const int32_t start = qr_automaton_add_state(builder), end = qr_automaton_add_state(builder);
    if (!grow(builder, &builder->rules, &builder->rules_capacity, builder->n_rules, QR_GRAMMAR_MAX_RULES,
              sizeof *builder->rules, "rules")) {
        return 0;
    }
    builder->rules[builder->n_rules] = (qr_grammar_rule){start, end};
    return (int32_t)builder->n_rules++;
}

static void add_edge(qr_automaton_builder *builder, int32_t from, qr_grammar_edge edge) {
    if (!grow(builder, &builder->edges, &builder->edges_capacity, builder->n_edges, QR_GRAMMAR_MAX_EDGES,
              sizeof *builder->edges, "edges")) {
        return;
    }
    builder->edges[builder->n_edges] = (qr_built_edge){edge, builder->states[from].last_edge};
    builder->states[from].last_edge = (int32_t)builder->n_edges++;
}

void qr_automaton_add_bytes(qr_automaton_builder *builder, int32_t from, uint8_t low, uint8_t high, int32_t to) {
    add_edge(builder, from, (qr_grammar_edge){.target = to, .rule = QR_EDGE_BYTES, .low = low, .high = high});
}

void qr_automaton_add_empty(qr_automaton_builder *builder, int32_t from, int32_t to) {
    add_edge(builder, from, (qr_grammar_edge){.target = to, .rule = QR_EDGE_EMPTY});
}

void qr_automaton_add_call(qr_automaton_builder *builder, int32_t from, int32_t rule, int32_t to) {
    add_edge(builder, from, (qr_grammar_edge){.target = to, .rule = rule});
}

void qr_automaton_set_plain_room(qr_automaton_builder *builder, int32_t state, int64_t n) {
    if (builder->status == QRUN_OK) { builder->states[state].plain_room = (uint16_t)qr_min(n, UINT16_MAX); }
}

void qr_automaton_set_character(qr_automaton_builder *builder, int32_t state) {
    if (builder->status == QRUN_OK) { builder->states[state].is_character = true; }
}

void qr_automaton_add_text(qr_automaton_builder *builder, int32_t from, const char *text, int32_t to) {
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        const int32_t next = c[1] == '\0' ? to : qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, from, *c, *c, next);
        from = next;
    }
}

void qr_automaton_add_text_or_none(qr_automaton_builder *builder, int32_t from, const char *text, int32_t to) {
    if (text[0] == '\0') {
        qr_automaton_add_empty(builder, from, to);
    } else {
        qr_automaton_add_text(builder, from, text, to);
    }
}

int32_t qr_automaton_find_byte(const qr_automaton_builder *builder, int32_t from, uint8_t byte) {
    if (builder->status != QRUN_OK) { return -1; }
    for (int32_t i = builder->states[from].last_edge; i >= 0; i = builder->edges[i].previous) {
        const qr_grammar_edge *edge = &builder->edges[i].edge;
        if (edge->rule == QR_EDGE_BYTES && edge->low == byte && edge->high == byte) { return edge->target; }
    }
    return -1;
}

void qr_automaton_merge_text(qr_automaton_builder *builder, int32_t root, const char *text, int32_t to) {
    int32_t at = root;
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        int32_t next = qr_automaton_find_byte(builder, at, *c);
        if (next < 0) {
            next = qr_automaton_add_state(builder);
            qr_automaton_add_bytes(builder, at, *c, *c, next);
        }
        at = next;
    }
    qr_automaton_add_empty(builder, at, to);
}

/* ---- What the way to the end needs ------------------------------------------------------------------------------- */

enum { NEED_NONE = UINT8_MAX }; /* no end can be reached */

/* Edges by the state that they lead to. */
typedef struct backward_edges {
    int32_t *first;   /* [n_states + 1] into items */
    int32_t *sources; /* of edges */
    int32_t *items;   /* edges */
    int32_t *queue;   /* [n_states] */
} backward_edges;

static void free_backward(backward_edges *backward) {
    qr_free(backward->first);
    qr_free(backward->sources);
    qr_free(backward->items);
    qr_free(backward->queue);
}

static qrun_status make_backward(const qr_automaton_builder *builder, backward_edges *backward, qr_error *err) {
    const size_t n_states = builder->n_states, n_edges = builder->n_edges;
    backward->first = qr_alloc_array_zeroed(n_states + 2, sizeof *backward->first);
    backward->sources = qr_alloc_array(n_edges + 1, sizeof *backward->sources);
    backward->items = qr_alloc_array(n_edges + 1, sizeof *backward->items);
    backward->queue = qr_alloc_array(n_states, sizeof *backward->queue);
    if (backward->first == NULL || backward->sources == NULL || backward->items == NULL || backward->queue == NULL) {
        return qr_fail_memory(err, "a grammar", n_edges * 8);
    }
    int32_t *first = backward->first + 1; /* while they are filled: where the next item goes, one further */
    for (size_t i = 0; i < n_edges; i++) { first[builder->edges[i].edge.target + 1]++; }
    for (size_t s = 0; s < n_states; s++) { first[s + 1] += first[s]; }
    for (size_t s = 0; s < n_states; s++) {
        for (int32_t i = builder->states[s].last_edge; i >= 0; i = builder->edges[i].previous) {
            backward->sources[i] = (int32_t)s;
            backward->items[first[builder->edges[i].edge.target]++] = i;
        }
    }
    return QRUN_OK;
}

/* Adds to needs the states that reach their end with `level` calls within calls and not with fewer. Returns how many.
 */
static size_t add_level(const qr_automaton_builder *builder, const backward_edges *backward, int level,
                        uint8_t *needs) {
    size_t n = 0, n_new = 0;
    for (size_t s = 0; s < builder->n_states; s++) {
        if (needs[s] != NEED_NONE) { backward->queue[n++] = (int32_t)s; }
    }
    for (size_t k = 0; k < n; k++) {
        const int32_t state = backward->queue[k];
        for (int32_t j = backward->first[state]; j < backward->first[state + 1]; j++) {
            const qr_grammar_edge *edge = &builder->edges[backward->items[j]].edge;
            const int32_t source = backward->sources[backward->items[j]];
            const bool fits = edge->rule < 0 || needs[builder->rules[edge->rule].start] < level;
            if (needs[source] != NEED_NONE || !fits) { continue; }
            needs[source] = (uint8_t)level;
            backward->queue[n++] = source;
            n_new++;
        }
    }
    return n_new;
}

static qrun_status find_needs(const qr_automaton_builder *builder, uint8_t *needs, qr_error *err) {
    backward_edges backward = {0};
    qrun_status status;
    memset(needs, NEED_NONE, builder->n_states);
    for (size_t r = 0; r < builder->n_rules; r++) { needs[builder->rules[r].end] = 0; }
    QR_TRY(make_backward(builder, &backward, err));
    for (int level = 0; level <= QR_GRAMMAR_MAX_DEPTH; level++) {
        if (add_level(builder, &backward, level, needs) == 0 && level > 0) { break; }
    }
    if (needs[builder->rules[0].start] == NEED_NONE) {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT,
                       "no finite JSON value fits the schema, or only one of more than %d levels",
                       QR_GRAMMAR_MAX_DEPTH));
    }
out:
    free_backward(&backward);
    return status;
}

/* ---- The finished automaton -------------------------------------------------------------------------------------- */

static qrun_status allocate(const qr_automaton_builder *builder, qr_automaton *made, qr_error *err) {
    made->states = qr_alloc_array_zeroed(builder->n_states, sizeof *made->states);
    made->edges = qr_alloc_array(builder->n_edges + 1, sizeof *made->edges);
    made->rule_starts = qr_alloc_array(builder->n_rules, sizeof *made->rule_starts);
    made->n_bytes = (int64_t)(builder->n_states * sizeof *made->states + (builder->n_edges + 1) * sizeof *made->edges +
                              builder->n_rules * sizeof *made->rule_starts);
    if (made->states != NULL && made->edges != NULL && made->rule_starts != NULL) { return QRUN_OK; }
    return qr_fail_memory(err, "a grammar", (unsigned long long)made->n_bytes);
}

/* The edges of a state that can lead to an end, those that take bytes or the others. */
static void copy_edges(const qr_automaton_builder *builder, const uint8_t *needs, int32_t state, bool of_bytes,
                       qr_automaton *made) {
    for (int32_t i = builder->states[state].last_edge; i >= 0; i = builder->edges[i].previous) {
        const qr_grammar_edge *edge = &builder->edges[i].edge;
        const bool ends = needs[edge->target] != NEED_NONE &&
                          (edge->rule < 0 || needs[builder->rules[edge->rule].start] != NEED_NONE);
        if ((edge->rule == QR_EDGE_BYTES) == of_bytes && ends) { made->edges[made->n_edges++] = *edge; }
    }
}

qrun_status qr_automaton_finish(qr_automaton_builder *builder, qr_automaton *made, qr_error *err) {
    *made = (qr_automaton){0};
    if (builder->status != QRUN_OK) { return builder->status; }
    uint8_t *needs = qr_alloc(builder->n_states);
    qrun_status status = QRUN_OK;
    if (needs == NULL) { return qr_fail_memory(err, "a grammar", builder->n_states); }
    QR_TRY(find_needs(builder, needs, err));
    QR_TRY(allocate(builder, made, err));
    for (size_t s = 0; s < builder->n_states; s++) {
        qr_grammar_state *state = &made->states[s];
        state->first_edge = made->n_edges;
        copy_edges(builder, needs, (int32_t)s, true, made);
        state->first_other = made->n_edges;
        copy_edges(builder, needs, (int32_t)s, false, made);
        state->end_edge = made->n_edges;
        state->need = needs[s];
        state->plain_room = builder->states[s].plain_room;
        state->is_character = builder->states[s].is_character;
    }
    for (size_t r = 0; r < builder->n_rules; r++) {
        made->rule_starts[r] = builder->rules[r].start;
        made->states[builder->rules[r].end].is_end = true;
    }
    made->n_states = (int32_t)builder->n_states;
    made->n_rules = (int32_t)builder->n_rules;
out:
    qr_free(needs);
    if (status != QRUN_OK) { qr_automaton_free(made); }
    return status;
}

void qr_automaton_free(qr_automaton *automaton) {
    qr_free(automaton->states);
    qr_free(automaton->edges);
    qr_free(automaton->rule_starts);
    *automaton = (qr_automaton){0};
}
