#include "runtime/grammar/matcher.h"

#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

qrun_status qr_match_arena_create(qr_match_arena *arena, qr_error *err) {
    *arena = (qr_match_arena){0};
    arena->configs = qr_alloc_array(QR_MATCH_ARENA_CONFIGS, sizeof *arena->configs);
    arena->calls = qr_alloc_array(QR_MATCH_ARENA_CALLS, sizeof *arena->calls);
    arena->table = qr_alloc_array_zeroed(QR_MATCH_TABLE, sizeof *arena->table);
    arena->numbers = qr_alloc_array(QR_MATCH_ARENA_CALLS, sizeof *arena->numbers);
    if (arena->configs != NULL && arena->calls != NULL && arena->table != NULL && arena->numbers != NULL) {
        return QRUN_OK;
    }
    qr_match_arena_free(arena);
    return qr_fail_memory(err, "a grammar's arena", QR_MATCH_ARENA_CALLS * sizeof *arena->calls);
}

void qr_match_arena_free(qr_match_arena *arena) {
    qr_free(arena->configs);
    qr_free(arena->calls);
    qr_free(arena->table);
    qr_free(arena->numbers);
    *arena = (qr_match_arena){0};
}

qrun_status qr_match_place_create(qr_match_place *place, qr_error *err) {
    *place = (qr_match_place){0};
    place->configs = qr_alloc_array(QR_MATCH_MAX_CONFIGS, sizeof *place->configs);
    place->calls = qr_alloc_array(QR_MATCH_MAX_CONFIGS, sizeof *place->calls);
    if (place->configs != NULL && place->calls != NULL) { return QRUN_OK; }
    qr_match_place_free(place);
    return qr_fail_memory(err, "a grammar's place", QR_MATCH_MAX_CONFIGS * sizeof *place->calls);
}

void qr_match_place_free(qr_match_place *place) {
    qr_free(place->configs);
    qr_free(place->calls);
    *place = (qr_match_place){0};
}

/* ---- Making a set ------------------------------------------------------------------------------------------------ */

static uint64_t hash_of_call(const qr_match_arena *arena, int32_t call) {
    return call >= 0 ? arena->calls[call].hash : QR_HASH_START;
}

static int32_t depth_of(const qr_match_arena *arena, int32_t call) { return call >= 0 ? arena->calls[call].depth : 0; }

static uint64_t hash_of(uint64_t outer, int32_t state) {
    return qr_hash_mix(outer * 0x9E3779B97F4A7C15U + (uint64_t)(uint32_t)state + 1);
}

static qr_match_set begin_set(qr_match_arena *arena) {
    if (++arena->stamp > UINT16_MAX) {
        memset(arena->table, 0, QR_MATCH_TABLE * sizeof *arena->table);
        arena->stamp = 1;
    }
    return (qr_match_set){.begin = arena->n_configs, .end = arena->n_configs};
}

/* Adds a state to the set being made, once. Dropped where its way to the end would be too deep. */
static void add(qr_match_arena *arena, qr_match_set *set, int32_t state, int32_t call) {
    if (arena->automaton->states[state].need + depth_of(arena, call) > QR_GRAMMAR_MAX_DEPTH) { return; }
    const uint64_t calls = hash_of_call(arena, call);
    uint32_t at = (uint32_t)hash_of(calls, state) % QR_MATCH_TABLE;
    for (; arena->table[at] >> 16 == arena->stamp; at = (at + 1) % QR_MATCH_TABLE) {
        const qr_match_config *seen = &arena->configs[set->begin + (int32_t)(arena->table[at] & 0xFFFF)];
        if (seen->state == state && hash_of_call(arena, seen->call) == calls) { return; }
    }
    const int32_t n = set->end - set->begin;
    if (n == QR_MATCH_MAX_CONFIGS || set->end == QR_MATCH_ARENA_CONFIGS) {
        arena->overflow = true;
        return;
    }
    arena->table[at] = arena->stamp << 16 | (uint32_t)n;
    arena->configs[set->end++] = (qr_match_config){state, call};
}

static void enter_rule(qr_match_arena *arena, qr_match_set *set, const qr_grammar_edge *edge, int32_t outer) {
    const qr_automaton *automaton = arena->automaton;
    const int32_t start = automaton->rule_starts[edge->rule], depth = depth_of(arena, outer) + 1;
    if (depth + automaton->states[start].need > QR_GRAMMAR_MAX_DEPTH ||
        depth - 1 + automaton->states[edge->target].need > QR_GRAMMAR_MAX_DEPTH) {
        return;
    }
    if (arena->n_calls == QR_MATCH_ARENA_CALLS) {
        arena->overflow = true;
        return;
    }
    arena->calls[arena->n_calls] = (qr_match_call){.hash = hash_of(hash_of_call(arena, outer), edge->target),
                                                   .state = edge->target,
                                                   .outer = outer,
                                                   .depth = depth};
    add(arena, set, start, arena->n_calls++);
}

/* All that is reached without a byte; then those that take one stay. */
static void close_set(qr_match_arena *arena, qr_match_set *set) {
    const qr_automaton *automaton = arena->automaton;
    int32_t kept = set->begin;
    for (int32_t i = set->begin; i < set->end; i++) {
        const qr_match_config config = arena->configs[i];
        const qr_grammar_state *state = &automaton->states[config.state];
        arena->n_steps += 1 + state->end_edge - state->first_other;
        for (int32_t e = state->first_other; e < state->end_edge; e++) {
            const qr_grammar_edge *edge = &automaton->edges[e];
            if (edge->rule == QR_EDGE_EMPTY) {
                add(arena, set, edge->target, config.call);
            } else {
                enter_rule(arena, set, edge, config.call);
            }
        }
        if (!state->is_end) { continue; }
        if (config.call < 0) {
            set->is_complete = true;
        } else {
            add(arena, set, arena->calls[config.call].state, arena->calls[config.call].outer);
        }
    }
    for (int32_t i = set->begin; i < set->end; i++) {
        const qr_grammar_state *state = &automaton->states[arena->configs[i].state];
        if (state->first_edge < state->first_other) { arena->configs[kept++] = arena->configs[i]; }
    }
    set->end = kept;
    set->n_calls = arena->n_calls;
    arena->n_configs = kept;
}

/* ---- Sets -------------------------------------------------------------------------------------------------------- */

static void begin_again(qr_match_arena *arena, const qr_automaton *automaton) {
    arena->automaton = automaton;
    arena->n_configs = arena->n_calls = 0;
    arena->n_steps = 0;
    arena->overflow = false;
}

qr_match_set qr_match_start(qr_match_arena *arena, const qr_automaton *automaton) {
    begin_again(arena, automaton);
    qr_match_set set = begin_set(arena);
    add(arena, &set, automaton->rule_starts[0], -1);
    close_set(arena, &set);
    return set;
}

qr_match_set qr_match_restore(qr_match_arena *arena, const qr_automaton *automaton, const qr_match_place *place) {
    begin_again(arena, automaton);
    memcpy(arena->configs, place->configs, (size_t)place->n_configs * sizeof *place->configs);
    memcpy(arena->calls, place->calls, (size_t)place->n_calls * sizeof *place->calls);
    arena->n_configs = place->n_configs;
    arena->n_calls = place->n_calls;
    return (qr_match_set){0, place->n_configs, place->n_calls, place->is_complete};
}

qr_match_set qr_match_step(qr_match_arena *arena, const qr_match_set *set, uint8_t byte) {
    qr_match_set next = begin_set(arena);
    const qr_automaton *automaton = arena->automaton;
    if (arena->n_steps > QR_MATCH_MAX_STEPS) { arena->overflow = true; }
    for (int32_t i = set->begin; i < set->end && !arena->overflow; i++) {
        const qr_match_config config = arena->configs[i];
        const qr_grammar_state *state = &automaton->states[config.state];
        arena->n_steps += 1 + state->first_other - state->first_edge;
        for (int32_t e = state->first_edge; e < state->first_other; e++) {
            const qr_grammar_edge *edge = &automaton->edges[e];
            if (edge->low <= byte && byte <= edge->high) { add(arena, &next, edge->target, config.call); }
        }
    }
    close_set(arena, &next);
    if (!arena->overflow) { return next; }
    arena->n_configs = next.begin;
    return (qr_match_set){.begin = next.begin, .end = next.begin, .n_calls = next.n_calls};
}

void qr_match_return(qr_match_arena *arena, const qr_match_set *set) {
    arena->n_configs = set->end;
    arena->n_calls = set->n_calls;
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

/* Calls come after those that they are in, so one pass down marks what is needed and one up numbers it. */
bool qr_match_keep(qr_match_arena *arena, const qr_match_set *set, qr_match_place *place) {
    int32_t n = 0;
    if (set->end - set->begin > QR_MATCH_MAX_CONFIGS) { return false; }
    uint16_t *numbers = arena->numbers;
    memset(numbers, 0, (size_t)set->n_calls * sizeof *numbers);
    for (int32_t i = set->begin; i < set->end; i++) {
        if (arena->configs[i].call >= 0) { numbers[arena->configs[i].call] = 1; }
    }
    for (int32_t c = set->n_calls; c-- > 0;) {
        if (numbers[c] != 0 && arena->calls[c].outer >= 0) { numbers[arena->calls[c].outer] = 1; }
    }
    for (int32_t c = 0; c < set->n_calls; c++) {
        if (numbers[c] == 0) { continue; }
        if (n == QR_MATCH_MAX_CONFIGS) { return false; }
        place->calls[n] = arena->calls[c];
        if (place->calls[n].outer >= 0) { place->calls[n].outer = numbers[place->calls[n].outer] - 1; }
        numbers[c] = (uint16_t)++n;
    }
    place->n_calls = n;
    place->n_configs = set->end - set->begin;
    for (int32_t i = 0; i < place->n_configs; i++) {
        const qr_match_config config = arena->configs[set->begin + i];
        place->configs[i] = (qr_match_config){config.state, config.call >= 0 ? numbers[config.call] - 1 : -1};
    }
    place->is_complete = set->is_complete;
    return true;
}

void qr_match_set_key(const qr_match_arena *arena, const qr_match_set *set, uint64_t key[2]) {
    key[0] = (uint64_t)(set->end - set->begin) << 1 | set->is_complete;
    key[1] = 0;
    for (int32_t i = set->begin; i < set->end; i++) {
        const uint64_t hash = hash_of(hash_of_call(arena, arena->configs[i].call), arena->configs[i].state);
        key[0] += hash;
        key[1] += qr_hash_mix(hash ^ 0xD1B54A32D192ED03U);
    }
}

int32_t qr_match_plain_room(const qr_match_arena *arena, const qr_match_set *set, bool *no_more) {
    int32_t most = 0;
    *no_more = true;
    for (int32_t i = set->begin; i < set->end; i++) {
        const qr_match_config config = arena->configs[i];
        const qr_grammar_state *state = &arena->automaton->states[config.state];
        /* characters of several bytes are calls, and there may be no room for these */
        const bool is_deep = depth_of(arena, config.call) == QR_GRAMMAR_MAX_DEPTH;
        *no_more = *no_more && (state->is_character || (state->plain_room > 0 && !is_deep));
        if (!is_deep) { most = (int32_t)qr_max(most, state->plain_room); }
    }
    return most;
}
