#include "cli/profile/chrome_trace.h"

#include <stdio.h>
#include <string.h>

enum { TRACK_PHASES = 1, TRACK_LAYERS, TRACK_OPS };

static void put_track(text_buffer *out, int track, const char *name) {
    text_format(out,
                "{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}},\n"
                "{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}},\n",
                track, name, track, track);
}

/* Ends with ",\n": the last thing in the file is of another kind. */
static void put_slice(text_buffer *out, int track, const char *name, const char *category, double begin, double end) {
    text_format(out, "{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":", track);
    text_json_string(out, name, strlen(name));
    text_format(out, ",\"cat\":\"%s\",\"ts\":%.3f,\"dur\":%.3f", category, 1e6 * begin,
                end > begin ? 1e6 * (end - begin) : 0.0);
}

static void put_op(text_buffer *out, const qrun_timeline_event *e) {
    put_slice(out, TRACK_OPS, e->name, e->spent_on, e->begin, e->begin + e->seconds);
    text_format(out, ",\"args\":{\"phase\":\"%s\"", e->phase);
    if (e->layer >= 0) { text_format(out, ",\"layer\":%d", (int)e->layer); }
    if (e->part[0] != '\0') { text_format(out, ",\"part\":\"%s\"", e->part); }
    if (e->shape[0] != '\0') { text_format(out, ",\"shape\":\"%s\"", e->shape); }
    if (e->bytes > 0) { text_format(out, ",\"bytes\":%lld", (long long)e->bytes); }
    if (e->workspace_bytes > 0) { text_format(out, ",\"workspace_bytes\":%lld", (long long)e->workspace_bytes); }
    text_puts(out, "}},\n");
}

static bool same_phase(const qrun_timeline_event *a, const qrun_timeline_event *b) {
    return strcmp(a->phase, b->phase) == 0;
}

static bool same_part(const qrun_timeline_event *a, const qrun_timeline_event *b) {
    return same_phase(a, b) && a->layer == b->layer && strcmp(a->part, b->part) == 0;
}

/* Events that follow each other and are alike are one slice. */
static void put_runs(text_buffer *out, const qrun_timeline *t, int track,
                     bool (*alike)(const qrun_timeline_event *, const qrun_timeline_event *)) {
    for (int64_t i = 0, end; i < t->n_events; i = end) {
        const qrun_timeline_event *first = &t->events[i];
        char name[64];
        for (end = i + 1; end < t->n_events && alike(first, &t->events[end]); end++) {}
        const qrun_timeline_event *last = &t->events[end - 1];
        if (track == TRACK_PHASES) {
            (void)snprintf(name, sizeof name, "%s", first->phase);
        } else if (first->layer >= 0) {
            (void)snprintf(name, sizeof name, "layer %d%s%s", (int)first->layer, first->part[0] != '\0' ? " " : "",
                           first->part);
        } else if (first->part[0] != '\0') {
            (void)snprintf(name, sizeof name, "%s", first->part);
        } else {
            continue;
        }
        put_slice(out, track, name, first->phase, first->begin, last->begin + last->seconds);
        text_puts(out, "},\n");
    }
}

static bool changes(const live_memory *m, int64_t event) {
    for (int r = 0; r < m->n_rows; r++) {
        if (event == 0 || m->rows[r].bytes[event] != m->rows[r].bytes[event - 1]) { return true; }
    }
    return false;
}

static void put_counters(text_buffer *out, const qrun_timeline *t, const live_memory *m) {
    for (int64_t e = 0; e < m->n_events; e++) {
        if (!changes(m, e)) { continue; }
        text_format(out, "{\"ph\":\"C\",\"pid\":1,\"name\":\"live bytes\",\"ts\":%.3f,\"args\":{",
                    1e6 * t->events[e].begin);
        for (int r = 0; r < m->n_rows; r++) {
            text_format(out, "%s\"%s\":%lld", r > 0 ? "," : "", m->rows[r].name, (long long)m->rows[r].bytes[e]);
        }
        text_puts(out, "}},\n");
    }
}

void chrome_trace_write(const qrun_timeline *timeline, const live_memory *memory, text_buffer *out) {
    text_puts(out, "{\"traceEvents\":[\n");
    put_track(out, TRACK_PHASES, "phases");
    put_track(out, TRACK_LAYERS, "layers");
    put_track(out, TRACK_OPS, "ops");
    put_runs(out, timeline, TRACK_PHASES, same_phase);
    put_runs(out, timeline, TRACK_LAYERS, same_part);
    for (int64_t e = 0; e < timeline->n_events; e++) { put_op(out, &timeline->events[e]); }
    put_counters(out, timeline, memory);
    text_puts(out, "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"qrun\"}}\n],\n");
    text_format(out,
                "\"displayTimeUnit\":\"ms\",\"otherData\":{\"version\":\"%s\",\"dropped_events\":%lld,"
                "\"planned_bytes\":%lld}}\n",
                qrun_version(), (long long)timeline->n_dropped, (long long)memory->planned_bytes);
}
