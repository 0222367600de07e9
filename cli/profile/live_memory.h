/* The memory that is held at every event of a timeline, by category, as stacked rows. */
#ifndef QRUN_CLI_PROFILE_LIVE_MEMORY_H
#define QRUN_CLI_PROFILE_LIVE_MEMORY_H

#include "qrun.h"

enum { LIVE_ROWS_MAX = 24 };

typedef struct live_row {
    const char *name; /* "weights", "kept for backward", "activations" … */
    int32_t category; /* of the timeline's memory */
    bool lives;       /* what it has changes; else it is held always */
    bool kept;        /* of the activations, those that wait for their backward pass */
    int64_t *bytes;   /* [n_events] */
} live_row;

typedef struct live_memory {
    live_row rows[LIVE_ROWS_MAX]; /* held ones first */
    int n_rows;
    int64_t n_events;
    int64_t *total;        /* [n_events], of device memory */
    int64_t peak_event;    /* the first with the most; −1: there are none */
    int64_t planned_bytes; /* of device memory */
} live_memory;

/* Released by live_memory_free. */
void live_memory_make(const qrun_timeline *timeline, live_memory *memory);
void live_memory_free(live_memory *memory);

/* Whether a life has its tensor at an event. */
static inline bool life_covers(const qrun_timeline_life *life, int64_t event) {
    return life->first <= event && event <= life->last;
}

#endif
