/* The timeline of a context, as qrun.h has it. */
#include "kernels/timeline/timeline.h"

#include <string.h>

#include "base/alloc.h"
#include "base/params.h"
#include "runtime/engine/context.h"

/* What is lent. */
struct qr_timeline_copy {
    qrun_timeline_event *events;
    qrun_timeline_tensor *tensors;
    qrun_timeline_life *lives;
    char (*names)[QR_TIMELINE_NAME_BYTES]; /* of the tensors, which may go */
    qrun_timeline_memory memory[QR_TIMELINE_MOST_CATEGORIES];
};

static void free_copy(struct qr_timeline_copy *copy) {
    if (copy == NULL) { return; }
    qr_free(copy->events);
    qr_free(copy->tensors);
    qr_free(copy->lives);
    qr_free(copy->names);
    qr_free(copy);
}

static qrun_phases take_phases(const double seconds[QR_PHASE_COUNT]) {
    return (qrun_phases){
#define QR_X(name) .name = seconds[QR_PHASE_##name],
        QR_PHASES(QR_X)
#undef QR_X
    };
}

qrun_phases qr_context_phases(const qrun_context *context) {
    const double *seconds = qr_timeline_phases(context->backend);
    return seconds != NULL ? take_phases(seconds) : (qrun_phases){0};
}

static void copy_events(const qr_timeline *t, qrun_timeline_event *events) {
    for (int64_t i = 0; i < t->n_events; i++) {
        const qr_timeline_event *event = &t->events[i];
        events[i] = (qrun_timeline_event){.name = event->name,
                                          .phase = qr_phase_name(event->phase),
                                          .spent_on = qr_phase_name(event->spent_on),
                                          .part = qr_part_name(event->part),
                                          .layer = event->layer,
                                          .begin = event->begin,
                                          .seconds = event->seconds,
                                          .bytes = event->bytes,
                                          .workspace_bytes = (int64_t)event->workspace};
        qr_op_write_shape(&event->extent, events[i].shape);
    }
}

/* The lowest address of each category. */
static void find_begins(const qr_timeline *t, uintptr_t begins[QR_TIMELINE_MOST_CATEGORIES]) {
    for (int i = 0; i < QR_TIMELINE_MOST_CATEGORIES; i++) { begins[i] = UINTPTR_MAX; }
    for (int32_t i = 0; i < t->n_tensors; i++) {
        uintptr_t *begin = &begins[t->tensors[i].category];
        const uintptr_t own = (uintptr_t)t->tensors[i].address;
        *begin = own < *begin ? own : *begin;
    }
}

static void copy_tensors(const qr_timeline *t, struct qr_timeline_copy *copy) {
    uintptr_t begins[QR_TIMELINE_MOST_CATEGORIES];
    find_begins(t, begins);
    for (int32_t i = 0; i < t->n_tensors; i++) {
        const qr_timeline_tensor *tensor = &t->tensors[i];
        memcpy(copy->names[i], tensor->name, sizeof tensor->name);
        copy->tensors[i] =
            (qrun_timeline_tensor){.name = copy->names[i],
                                   .category = tensor->category,
                                   .layer = tensor->layer,
                                   .bytes = (int64_t)tensor->n_bytes,
                                   .offset = (int64_t)((uintptr_t)tensor->address - begins[tensor->category]),
                                   .lives = tensor->lives};
    }
}

static void copy_rest(const qr_timeline *t, struct qr_timeline_copy *copy) {
    for (int64_t i = 0; i < t->n_lives; i++) {
        const qr_timeline_life *life = &t->lives[i];
        copy->lives[i] = (qrun_timeline_life){life->tensor, life->layer, life->first, life->last, life->kept};
    }
    for (int i = 0; i < QR_TIMELINE_MOST_CATEGORIES; i++) {
        const qr_timeline_category *category = &t->categories[i];
        copy->memory[i] = (qrun_timeline_memory){category->name, category->bytes, category->lives, category->apart};
    }
}

static qrun_status make_copy(const qr_timeline *t, struct qr_timeline_copy **copy, qr_error *err) {
    struct qr_timeline_copy *made = qr_alloc_zeroed(sizeof *made);
    *copy = NULL;
    if (made == NULL) { return qr_fail_memory(err, "a timeline", sizeof *made); }
    made->events = qr_alloc_array((size_t)t->n_events + 1, sizeof *made->events);
    made->tensors = qr_alloc_array((size_t)t->n_tensors + 1, sizeof *made->tensors);
    made->names = qr_alloc_array((size_t)t->n_tensors + 1, sizeof *made->names);
    made->lives = qr_alloc_array((size_t)t->n_lives + 1, sizeof *made->lives);
    if (made->events == NULL || made->tensors == NULL || made->names == NULL || made->lives == NULL) {
        free_copy(made);
        return qr_fail_memory(err, "a timeline", (size_t)t->n_events * sizeof(qrun_timeline_event));
    }
    copy_events(t, made->events);
    copy_tensors(t, made);
    copy_rest(t, made);
    *copy = made;
    return QRUN_OK;
}

qrun_status qrun_context_timeline_begin(qrun_context *context, int64_t max_events, qrun_error *error) {
    qr_compute_lock(context);
    const qrun_status status = qr_timeline_begin(context->backend, max_events, error);
    qr_compute_unlock(context);
    return status;
}

void qrun_context_timeline_end(qrun_context *context) {
    qr_compute_lock(context);
    qr_timeline_end(context->backend);
    free_copy(context->timeline);
    context->timeline = NULL;
    qr_compute_unlock(context);
}

static qrun_status get(qrun_context *context, qrun_timeline *timeline, qr_error *err) {
    const qr_timeline *t;
    struct qr_timeline_copy *copy;
    QR_RETURN_IF_ERROR(qr_timeline_get(context->backend, &t, err));
    if (t == NULL) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "there is no timeline; begin one first"); }
    QR_RETURN_IF_ERROR(make_copy(t, &copy, err));
    free_copy(context->timeline);
    context->timeline = copy;
    *timeline = (qrun_timeline){.struct_size = sizeof *timeline,
                                .events = copy->events,
                                .n_events = t->n_events,
                                .n_dropped = t->n_dropped,
                                .memory = copy->memory,
                                .n_memory = QR_TIMELINE_MOST_CATEGORIES,
                                .tensors = copy->tensors,
                                .n_tensors = t->n_tensors,
                                .n_unnamed = t->n_unnamed,
                                .lives = copy->lives,
                                .n_lives = t->n_lives,
                                .seconds = t->seconds,
                                .phases = take_phases(t->phase_seconds)};
    return QRUN_OK;
}

qrun_status qrun_context_timeline_get(qrun_context *context, qrun_timeline *timeline, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_timeline, timeline, error));
    qr_compute_lock(context);
    const qrun_status status = get(context, timeline, error);
    qr_compute_unlock(context);
    return status;
}
