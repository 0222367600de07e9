/* Which tensors lie where, and from when until when each holds something. */
#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"
#include "kernels/timeline/recorder.h"

void qr_timeline_put_category(qr_backend *backend, int32_t category, const qr_timeline_category *entry) {
    if (backend->timeline == NULL || category < 0 || category >= QR_TIMELINE_MOST_CATEGORIES) { return; }
    backend->timeline->timeline.categories[category] = *entry;
}

void qr_timeline_put_tensor(qr_backend *backend, const qr_timeline_tensor *tensor) {
    qr_recorder *recorder = backend->timeline;
    if (recorder == NULL || tensor->address == NULL || tensor->n_bytes == 0) { return; }
    qr_timeline *timeline = &recorder->timeline;
    if (timeline->n_tensors == QR_TIMELINE_MOST_TENSORS) {
        timeline->n_unnamed++;
        return;
    }
    recorder->states[timeline->n_tensors] = (qr_tensor_state){0};
    timeline->tensors[timeline->n_tensors++] = *tensor;
    recorder->sorted = false;
}

void qr_timeline_drop_tensors(qr_backend *backend, const void *memory, size_t n_bytes) {
    qr_recorder *recorder = backend->timeline;
    if (recorder == NULL) { return; }
    qr_timeline *timeline = &recorder->timeline;
    const uintptr_t begin = (uintptr_t)memory;
    int32_t n = 0;
    for (int32_t i = 0; i < timeline->n_tensors; i++) {
        const uintptr_t at = (uintptr_t)timeline->tensors[i].address;
        if (memory == NULL || (at >= begin && at - begin < n_bytes)) { continue; }
        if (n != i) { timeline->tensors[n] = timeline->tensors[i]; }
        n++;
    }
    if (n == timeline->n_tensors) { return; }
    timeline->n_tensors = n;
    recorder->sorted = false;
    timeline->n_lives = 0; /* they name tensors by their number */
    qr_tensors_forget_lives(recorder);
}

void qr_tensors_forget_lives(qr_recorder *recorder) {
    memset(recorder->states, 0, (size_t)recorder->timeline.n_tensors * sizeof *recorder->states);
}

/* ---- By address -------------------------------------------------------------------------------------------------- */

static uintptr_t begin_of(const qr_recorder *recorder, int32_t tensor) {
    return (uintptr_t)recorder->timeline.tensors[tensor].address;
}

static uintptr_t end_of(const qr_recorder *recorder, int32_t tensor) {
    return begin_of(recorder, tensor) + recorder->timeline.tensors[tensor].n_bytes;
}

/* Entered almost in order, each goes to its place from the end. */
static void insert_sorted(qr_recorder *recorder, int32_t tensor) {
    int32_t i = recorder->n_sorted++;
    const uintptr_t begin = begin_of(recorder, tensor);
    for (; i > 0 && begin_of(recorder, recorder->by_address[i - 1]) > begin; i--) {
        recorder->by_address[i] = recorder->by_address[i - 1];
    }
    recorder->by_address[i] = tensor;
}

static void sort_tensors(qr_recorder *recorder) {
    recorder->sorted = true;
    recorder->n_sorted = 0;
    for (int32_t i = 0; i < recorder->timeline.n_tensors; i++) {
        if (recorder->timeline.tensors[i].lives) { insert_sorted(recorder, i); }
    }
    uintptr_t end = 0;
    for (int32_t i = 0; i < recorder->n_sorted; i++) {
        const uintptr_t own = end_of(recorder, recorder->by_address[i]);
        end = own > end ? own : end;
        recorder->end_before[i] = end;
    }
}

/* How many of them begin at an address or before it. */
static int32_t count_up_to(const qr_recorder *recorder, uintptr_t address) {
    int32_t low = 0, high = recorder->n_sorted;
    if (high > 0 && address >= recorder->end_before[high - 1]) { return 0; } /* beyond all of them */
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (begin_of(recorder, recorder->by_address[middle]) <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The tensor that an address is of: of several, that of the part that runs, or else the one that is of all parts; −1:
 * of none. */
static int32_t find_tensor(qr_recorder *recorder, uintptr_t address) {
    int32_t found = -1;
    if (!recorder->sorted) { sort_tensors(recorder); }
    if (recorder->n_sorted == 0 || address < begin_of(recorder, recorder->by_address[0])) { return found; }
    for (int32_t i = count_up_to(recorder, address); i-- > 0 && recorder->end_before[i] > address;) {
        const int32_t tensor = recorder->by_address[i];
        const qr_part part = recorder->timeline.tensors[tensor].part;
        if (end_of(recorder, tensor) <= address) { continue; }
        if (part != QR_PART_NONE && part == recorder->part) { return tensor; }
        if (part == QR_PART_NONE && found < 0) { found = tensor; }
    }
    return found;
}

/* ---- Lives ------------------------------------------------------------------------------------------------------- */

static void end_life(qr_recorder *recorder, int32_t tensor) {
    qr_timeline *timeline = &recorder->timeline;
    qr_tensor_state *state = &recorder->states[tensor];
    state->alive = false;
    if (timeline->n_lives == timeline->max_lives) { return; }
    const int32_t own_layer = timeline->tensors[tensor].layer;
    const bool read_back = state->last_phase == QR_PHASE_backward || state->last_phase == QR_PHASE_recompute;
    timeline->lives[timeline->n_lives++] = (qr_timeline_life){
        .tensor = tensor,
        .layer = own_layer >= 0 ? own_layer : state->layer,
        .first = state->first,
        .last = state->last,
        .kept = read_back && state->first_phase == QR_PHASE_forward,
    };
}

static void touch_tensor(qr_recorder *recorder, int32_t tensor, uintptr_t address, bool overwrites, int64_t event) {
    qr_tensor_state *state = &recorder->states[tensor];
    if (overwrites && state->alive && state->first_address == address) { end_life(recorder, tensor); }
    if (!state->alive) {
        *state = (qr_tensor_state){.alive = true,
                                   .first_address = overwrites ? address : begin_of(recorder, tensor),
                                   .first = overwrites ? event : 0, /* what is only read was there before */
                                   .layer = recorder->layer,
                                   .first_phase = recorder->phase};
    }
    state->last = event;
    state->last_phase = recorder->phase;
}

void qr_tensors_touch(qr_recorder *recorder, const void *address, bool overwrites, int64_t event) {
    const int32_t tensor = find_tensor(recorder, (uintptr_t)address);
    if (tensor >= 0) { touch_tensor(recorder, tensor, (uintptr_t)address, overwrites, event); }
}

/* What is read is touched first: an op may read a tensor to whose beginning it writes. */
void qr_tensors_touch_arguments(qr_recorder *recorder, qr_op op, const void *args, int64_t event) {
    qr_op_tensors tensors;
    qr_op_list_tensors(op, args, &tensors);
    for (int i = 0; i < tensors.n_reads; i++) { qr_tensors_touch(recorder, tensors.reads[i], false, event); }
    for (int i = 0; i < tensors.n_writes; i++) { qr_tensors_touch(recorder, tensors.writes[i], true, event); }
}

void qr_tensors_end_lives(qr_recorder *recorder) {
    for (int32_t i = 0; i < recorder->timeline.n_tensors; i++) {
        if (recorder->states[i].alive) { end_life(recorder, i); }
    }
}
