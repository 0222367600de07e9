#include "cli/profile/live_memory.h"

#include <stdlib.h>
#include <string.h>

#include "cli/terminal/messages.h"

static bool is_named(const qrun_timeline_memory *m, const char *name) { return strcmp(m->category, name) == 0; }

static live_row *add_row(live_memory *memory, const char *name, int32_t category, bool lives, bool kept) {
    live_row *row = &memory->rows[memory->n_rows++];
    *row = (live_row){.name = name, .category = category, .lives = lives, .kept = kept};
    row->bytes = allocate((size_t)(memory->n_events + 1) * sizeof *row->bytes);
    memset(row->bytes, 0, (size_t)(memory->n_events + 1) * sizeof *row->bytes);
    return row;
}

static void hold(live_memory *memory, const qrun_timeline_memory *m, int32_t category) {
    live_row *row = add_row(memory, m->category, category, false, false);
    for (int64_t e = 0; e < memory->n_events; e++) { row->bytes[e] = m->bytes; }
}

static void make_rows(const qrun_timeline *t, live_memory *memory) {
    for (int32_t c = 0; c < t->n_memory; c++) {
        const qrun_timeline_memory *m = &t->memory[c];
        if (m->category == NULL || m->bytes == 0 || m->is_apart) { continue; }
        memory->planned_bytes += m->bytes;
        if (!m->lives) { hold(memory, m, c); }
    }
    for (int32_t c = 0; c < t->n_memory; c++) {
        const qrun_timeline_memory *m = &t->memory[c];
        if (m->category == NULL || m->bytes == 0 || m->is_apart || !m->lives) { continue; }
        if (is_named(m, "activations")) { (void)add_row(memory, "kept for backward", c, true, true); }
        (void)add_row(memory, m->category, c, true, false);
    }
}

static live_row *row_of(live_memory *memory, int32_t category, bool kept) {
    live_row *found = NULL;
    for (int r = 0; r < memory->n_rows; r++) {
        live_row *row = &memory->rows[r];
        if (row->category == category && (found == NULL || row->kept == kept)) { found = row; }
    }
    return found;
}

/* Rows hold differences from the event before, until they are summed. */
static void add_lives(const qrun_timeline *t, live_memory *memory) {
    for (int64_t i = 0; i < t->n_lives; i++) {
        const qrun_timeline_life *life = &t->lives[i];
        const qrun_timeline_tensor *tensor = &t->tensors[life->tensor];
        live_row *row = row_of(memory, tensor->category, life->kept);
        if (row == NULL || !row->lives) { continue; }
        row->bytes[life->first] += tensor->bytes;
        row->bytes[life->last + 1] -= tensor->bytes;
    }
}

static void sum_lives(const qrun_timeline *t, live_memory *memory) {
    for (int r = 0; r < memory->n_rows; r++) {
        live_row *row = &memory->rows[r];
        if (!row->lives) { continue; }
        for (int64_t e = 1; e < memory->n_events; e++) { row->bytes[e] += row->bytes[e - 1]; }
        if (!is_named(&t->memory[row->category], "workspace")) { continue; }
        for (int64_t e = 0; e < memory->n_events; e++) { row->bytes[e] += t->events[e].workspace_bytes; }
    }
}

static void find_peak(live_memory *memory) {
    memory->peak_event = memory->n_events > 0 ? 0 : -1;
    for (int64_t e = 0; e < memory->n_events; e++) {
        memory->total[e] = 0;
        for (int r = 0; r < memory->n_rows; r++) { memory->total[e] += memory->rows[r].bytes[e]; }
        if (memory->total[e] > memory->total[memory->peak_event]) { memory->peak_event = e; }
    }
}

void live_memory_make(const qrun_timeline *timeline, live_memory *memory) {
    *memory = (live_memory){.n_events = timeline->n_events};
    memory->total = allocate((size_t)(memory->n_events + 1) * sizeof *memory->total);
    make_rows(timeline, memory);
    add_lives(timeline, memory);
    sum_lives(timeline, memory);
    find_peak(memory);
}

void live_memory_free(live_memory *memory) {
    for (int r = 0; r < memory->n_rows; r++) { free(memory->rows[r].bytes); }
    free(memory->total);
    *memory = (live_memory){0};
}
