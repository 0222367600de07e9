#include "cli/profile/memory_snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "cli/profile/pickle.h"
#include "cli/terminal/messages.h"

enum { CATEGORY_SHIFT = 44 }; /* more than any device has */

static int64_t begin_of_category(int32_t category) { return ((int64_t)category + 1) << CATEGORY_SHIFT; }

/* What is drawn: device memory that the plan knows. */
static bool is_drawn(const qrun_timeline_memory *m) { return m->category != NULL && m->bytes > 0 && !m->is_apart; }

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

static void put_frame(text_buffer *out, const char *name, const char *file, int64_t line) {
    pickle_dict_begin(out);
    pickle_text_member(out, "name", name);
    pickle_text_member(out, "filename", file);
    pickle_int_member(out, "line", line);
    pickle_dict_end(out);
}

/* event NULL: it was there before the first. */
static void put_frames(text_buffer *out, const char *name, const char *category, int64_t layer,
                       const qrun_timeline_event *event) {
    pickle_text(out, "frames");
    pickle_list_begin(out);
    put_frame(out, name, category, layer >= 0 ? layer : 0);
    if (event != NULL) { put_frame(out, event->name, event->phase, event->layer >= 0 ? event->layer : 0); }
    pickle_list_end(out);
}

/* ---- What is held always ----------------------------------------------------------------------------------------- */

/* Of a category that is held, a named tensor or the rest of it. */
typedef struct held_block {
    const char *name;
    int64_t address, bytes, layer;
} held_block;

typedef void (*held_fn)(text_buffer *out, const qrun_timeline_memory *m, const held_block *block);

/* The blocks of a category, one after the other, which fill it. */
static void each_held(text_buffer *out, const qrun_timeline *t, int32_t category, held_fn put) {
    const qrun_timeline_memory *m = &t->memory[category];
    int64_t used = 0;
    for (int32_t i = 0; i < t->n_tensors; i++) {
        const qrun_timeline_tensor *tensor = &t->tensors[i];
        if (tensor->category != category || tensor->bytes > m->bytes - used) { continue; }
        put(out, m, &(held_block){tensor->name, begin_of_category(category) + used, tensor->bytes, tensor->layer});
        used += tensor->bytes;
    }
    if (used == m->bytes) { return; }
    put(out, m,
        &(held_block){used > 0 ? "the rest" : m->category, begin_of_category(category) + used, m->bytes - used, -1});
}

static void put_block(text_buffer *out, const qrun_timeline_memory *m, const held_block *block) {
    pickle_dict_begin(out);
    pickle_int_member(out, "address", block->address);
    pickle_int_member(out, "size", block->bytes);
    pickle_int_member(out, "requested_size", block->bytes);
    pickle_text_member(out, "state", m->lives ? "inactive" : "active_allocated");
    put_frames(out, block->name, m->category, block->layer, NULL);
    pickle_dict_end(out);
}

static void put_segment(text_buffer *out, const qrun_timeline *t, int32_t category) {
    const qrun_timeline_memory *m = &t->memory[category];
    const int64_t active = m->lives ? 0 : m->bytes, begin = begin_of_category(category);
    pickle_dict_begin(out);
    pickle_int_member(out, "device", 0);
    pickle_int_member(out, "address", begin);
    pickle_int_member(out, "total_size", m->bytes);
    pickle_int_member(out, "allocated_size", active);
    pickle_int_member(out, "active_size", active);
    pickle_int_member(out, "requested_size", active);
    pickle_int_member(out, "stream", 0);
    pickle_text_member(out, "segment_type", "large");
    pickle_text(out, "is_expandable");
    pickle_bool(out, false);
    pickle_text(out, "frames");
    pickle_list_begin(out);
    pickle_list_end(out);
    pickle_text(out, "blocks");
    pickle_list_begin(out);
    if (m->lives) {
        put_block(out, m, &(held_block){m->category, begin, m->bytes, -1});
    } else {
        each_held(out, t, category, put_block);
    }
    pickle_list_end(out);
    pickle_dict_end(out);
}

/* ---- The trace --------------------------------------------------------------------------------------------------- */

static void put_action(text_buffer *out, const char *action, int64_t address, int64_t bytes, double seconds) {
    pickle_text_member(out, "action", action);
    pickle_int_member(out, "addr", address);
    pickle_int_member(out, "size", bytes);
    pickle_int_member(out, "stream", 0);
    pickle_int_member(out, "time_us", (int64_t)(1e6 * seconds));
}

static void put_held_alloc(text_buffer *out, const qrun_timeline_memory *m, const held_block *block) {
    pickle_dict_begin(out);
    put_action(out, "alloc", block->address, block->bytes, 0);
    put_frames(out, block->name, m->category, block->layer, NULL);
    pickle_dict_end(out);
}

static void put_free(text_buffer *out, int64_t address, int64_t bytes, double seconds) {
    static const char *const actions[] = {"free_requested", "free_completed"};
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        pickle_dict_begin(out);
        put_action(out, actions[i], address, bytes, seconds);
        pickle_text(out, "frames");
        pickle_list_begin(out);
        pickle_list_end(out);
        pickle_dict_end(out);
    }
}

/* A life by the event that it begins or ends with. */
typedef struct turn {
    int64_t event, life;
} turn;

static int compare_turns(const void *a, const void *b) {
    const turn *x = a, *y = b;
    if (x->event != y->event) { return x->event < y->event ? -1 : 1; }
    return (x->life > y->life) - (x->life < y->life);
}

/* In their order, [n_lives]; released by free. */
static turn *list_turns(const qrun_timeline *t, bool of_ends) {
    turn *turns = allocate(((size_t)t->n_lives + 1) * sizeof *turns);
    for (int64_t i = 0; i < t->n_lives; i++) { turns[i] = (turn){of_ends ? t->lives[i].last : t->lives[i].first, i}; }
    qsort(turns, (size_t)t->n_lives, sizeof *turns, compare_turns);
    return turns;
}

static int64_t address_of(const qrun_timeline_tensor *tensor) {
    return begin_of_category(tensor->category) + tensor->offset;
}

static void put_life(text_buffer *out, const qrun_timeline *t, const qrun_timeline_life *life) {
    const qrun_timeline_tensor *tensor = &t->tensors[life->tensor];
    const qrun_timeline_event *event = &t->events[life->first];
    const char *category = life->kept ? "kept for backward" : t->memory[tensor->category].category;
    pickle_dict_begin(out);
    put_action(out, "alloc", address_of(tensor), tensor->bytes, event->begin);
    put_frames(out, tensor->name, category, life->layer, event);
    pickle_dict_end(out);
}

static int32_t category_called(const qrun_timeline *t, const char *name) {
    for (int32_t c = 0; c < t->n_memory; c++) {
        if (is_drawn(&t->memory[c]) && strcmp(t->memory[c].category, name) == 0) { return c; }
    }
    return -1;
}

/* What an op has of the workspace, while it runs. */
static void put_workspace(text_buffer *out, const qrun_timeline_event *event, int32_t category) {
    const int64_t address = begin_of_category(category);
    if (category < 0 || event->workspace_bytes == 0) { return; }
    pickle_dict_begin(out);
    put_action(out, "alloc", address, event->workspace_bytes, event->begin);
    put_frames(out, "workspace", "workspace", event->layer, event);
    pickle_dict_end(out);
    put_free(out, address, event->workspace_bytes, event->begin + event->seconds);
}

static void put_end(text_buffer *out, const qrun_timeline *t, int32_t tensor, double seconds) {
    put_free(out, address_of(&t->tensors[tensor]), t->tensors[tensor].bytes, seconds);
}

/* A life ends before those of the next event begin; that of a tensor which the same op fills again, before that. */
static void put_lives(text_buffer *out, const qrun_timeline *t) {
    const int32_t workspace = category_called(t, "workspace");
    turn *begins = list_turns(t, false), *ends = list_turns(t, true);
    int64_t *active = allocate(((size_t)t->n_tensors + 1) * sizeof *active); /* the life of a tensor now, plus 1 */
    int64_t next = 0, ended = 0;
    memset(active, 0, ((size_t)t->n_tensors + 1) * sizeof *active);
    for (int64_t e = 0; e < t->n_events; e++) {
        const qrun_timeline_event *event = &t->events[e];
        for (; next < t->n_lives && begins[next].event == e; next++) {
            const qrun_timeline_life *life = &t->lives[begins[next].life];
            if (active[life->tensor] > 0) { put_end(out, t, life->tensor, event->begin); }
            put_life(out, t, life);
            active[life->tensor] = begins[next].life + 1;
        }
        put_workspace(out, event, workspace);
        for (; ended < t->n_lives && ends[ended].event == e; ended++) {
            const int32_t tensor = t->lives[ends[ended].life].tensor;
            if (active[tensor] != ends[ended].life + 1) { continue; } /* it has been filled again */
            put_end(out, t, tensor, event->begin + event->seconds);
            active[tensor] = 0;
        }
    }
    free(active);
    free(begins);
    free(ends);
}

void memory_snapshot_write(const qrun_timeline *timeline, text_buffer *out) {
    pickle_begin(out);
    pickle_dict_begin(out);
    pickle_text(out, "segments");
    pickle_list_begin(out);
    for (int32_t i = 0; i < timeline->n_memory; i++) {
        if (is_drawn(&timeline->memory[i])) { put_segment(out, timeline, i); }
    }
    pickle_list_end(out);
    pickle_text(out, "device_traces");
    pickle_list_begin(out);
    pickle_list_begin(out);
    for (int32_t i = 0; i < timeline->n_memory; i++) {
        const qrun_timeline_memory *m = &timeline->memory[i];
        if (is_drawn(m) && !m->lives) { each_held(out, timeline, i, put_held_alloc); }
    }
    put_lives(out, timeline);
    pickle_list_end(out);
    pickle_list_end(out);
    pickle_text(out, "allocator_settings");
    pickle_dict_begin(out);
    pickle_text_member(out, "written_by", "qrun");
    pickle_dict_end(out);
    pickle_dict_end(out);
    pickle_end(out);
}
