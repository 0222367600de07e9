#include "kernels/timeline/timeline.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "kernels/timeline/recorder.h"

const char *qr_phase_name(qr_phase phase) {
    static const char *const names[QR_PHASE_COUNT] = {
#define QR_X(name) #name,
        QR_PHASES(QR_X)
#undef QR_X
    };
    return names[phase];
}

const char *qr_part_name(qr_part part) {
    static const char *const names[] = {[QR_PART_NONE] = "",
                                        [QR_PART_ATTENTION] = "attention",
                                        [QR_PART_DELTA] = "delta rule",
                                        [QR_PART_CONV] = "convolution",
                                        [QR_PART_SPACE] = "state space",
                                        [QR_PART_MLP] = "mlp",
                                        [QR_PART_HEAD] = "head"};
    return names[part];
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static bool has_marks(const qr_recorder *recorder) { return recorder->real.mark != NULL; }

static double elapsed(const qr_recorder *recorder) { return qr_now_seconds() - recorder->began; }

static qr_timeline_event new_event(const qr_recorder *recorder, const char *name, qr_phase spent_on) {
    return (qr_timeline_event){.name = name,
                               .extent = {.format = -1},
                               .layer = recorder->layer,
                               .phase = recorder->phase,
                               .spent_on = spent_on,
                               .part = recorder->part};
}

/* The number that the next event gets; −1: it is not kept. */
static int64_t reserve(qr_recorder *recorder) {
    qr_timeline *timeline = &recorder->timeline;
    if (timeline->n_events < timeline->max_events) { return timeline->n_events++; }
    timeline->n_dropped++;
    return -1;
}

static void keep(qr_recorder *recorder, int64_t index, const qr_timeline_event *event) {
    recorder->timeline.phase_seconds[event->spent_on] += event->seconds;
    if (index >= 0) { recorder->timeline.events[index] = *event; }
}

/* The device is asked for the times of what it has been given, and has nothing to do afterwards. */
static qrun_status collect(qr_backend *backend, qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    if (!has_marks(recorder)) { return QRUN_OK; }
    const int32_t n = recorder->n_pending;
    recorder->n_pending = 0;
    for (int32_t i = 0; i < n; i++) {
        qr_timeline_event *event = &recorder->pending[i];
        double begin = 0.0;
        QR_RETURN_IF_ERROR(recorder->real.mark_seconds(backend, 0, 2 * i + 1, &begin, err));
        QR_RETURN_IF_ERROR(recorder->real.mark_seconds(backend, 2 * i + 1, 2 * i + 2, &event->seconds, err));
        event->begin = recorder->marked + begin;
        keep(recorder, recorder->pending_index[i], event);
    }
    return QRUN_OK;
}

/* From here on the device's clock is read against the host's. */
static qrun_status begin_marks(qr_backend *backend, qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    if (!has_marks(recorder)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(recorder->real.sync(backend, err));
    QR_RETURN_IF_ERROR(recorder->real.marks_begin(backend, 2 * QR_TIMELINE_MOST_PENDING + 1, false, err));
    recorder->marked = elapsed(recorder);
    return recorder->real.mark(backend, 0, err);
}

static qrun_status begin_event(qr_backend *backend, qr_timeline_event *event, qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    event->begin = elapsed(recorder);
    if (!has_marks(recorder)) { return QRUN_OK; }
    if (recorder->n_pending == QR_TIMELINE_MOST_PENDING) {
        QR_RETURN_IF_ERROR(collect(backend, err));
        QR_RETURN_IF_ERROR(begin_marks(backend, err));
    }
    return recorder->real.mark(backend, 2 * recorder->n_pending + 1, err);
}

/* After what it is of has succeeded, or not: then it is forgotten. */
static qrun_status end_event(qr_backend *backend, qr_timeline_event *event, int64_t index, qrun_status status,
                             qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    event->seconds = elapsed(recorder) - event->begin;
    if (!has_marks(recorder)) {
        keep(recorder, index, event);
        return status;
    }
    if (status != QRUN_OK) { return status; }
    QR_RETURN_IF_ERROR(recorder->real.mark(backend, 2 * recorder->n_pending + 2, err));
    recorder->pending[recorder->n_pending] = *event;
    recorder->pending_index[recorder->n_pending++] = index;
    return QRUN_OK;
}

/* ---- In place of the backend's functions ------------------------------------------------------------------------- */

/* Bytes of the planned workspace that an op uses. */
static size_t planned_workspace(const qr_recorder *recorder, const qr_backend *backend, qr_op op, const void *args,
                                const void *workspace) {
    const uintptr_t at = (uintptr_t)workspace, begin = (uintptr_t)recorder->workspace;
    if (recorder->workspace == NULL || at < begin || at - begin >= recorder->workspace_bytes) { return 0; }
    return recorder->real.ops[op].workspace_bytes(backend, args);
}

static qrun_status run_op(qr_backend *backend, qr_op op, const void *args, void *workspace, qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    if (recorder->depth > 0) { return recorder->real.ops[op].run(backend, args, workspace, err); }
    qr_timeline_event event = new_event(recorder, qr_op_name(op), recorder->phase);
    const int64_t index = reserve(recorder);
    event.extent = qr_op_measure(op, args);
    event.workspace = planned_workspace(recorder, backend, op, args, workspace);
    if (index >= 0) { qr_tensors_touch_arguments(recorder, op, args, index); }
    recorder->depth++;
    qrun_status status = begin_event(backend, &event, err);
    if (status == QRUN_OK) {
        status = recorder->real.ops[op].run(backend, args, workspace, err);
        status = end_event(backend, &event, index, status, err);
    }
    recorder->depth--;
    return status;
}

#define QR_X(name)                                                                                         \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        return run_op(backend, QR_OP_##name, args, workspace, err);                                        \
    }
QR_OPS(QR_X)
#undef QR_X

typedef qrun_status (*run_fn)(qr_backend *backend, const void *args, void *workspace, qr_error *err);

static const run_fn runs[QR_OP_COUNT] = {
#define QR_X(name) [QR_OP_##name] = run_##name,
    QR_OPS(QR_X)
#undef QR_X
};

/* A copy, or a wait: what it does to memory, and what it is called. */
typedef struct move {
    const char *name;
    qr_phase spent_on;
    void *written;
    const void *read;
    size_t n_bytes;
    int64_t index;
    qr_timeline_event event;
    bool outermost;
} move;

static qrun_status begin_move(qr_backend *backend, move *m, qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    m->outermost = recorder->depth++ == 0;
    if (!m->outermost) { return QRUN_OK; }
    m->event = new_event(recorder, m->name, m->spent_on);
    m->event.bytes = (int64_t)m->n_bytes;
    m->index = reserve(recorder);
    if (m->index >= 0 && m->n_bytes > 0) {
        if (m->read != NULL) { qr_tensors_touch(recorder, m->read, false, m->index); }
        if (m->written != NULL) { qr_tensors_touch(recorder, m->written, true, m->index); }
    }
    return begin_event(backend, &m->event, err);
}

static qrun_status end_move(qr_backend *backend, move *m, qrun_status status, qr_error *err) {
    backend->timeline->depth--;
    return m->outermost ? end_event(backend, &m->event, m->index, status, err) : status;
}

/* Runs a call of the backend's own between the two. */
#define MOVE(call, ...)                                                   \
    do {                                                                  \
        move m = {__VA_ARGS__};                                           \
        qrun_status status = begin_move(backend, &m, err);                \
        if (status == QRUN_OK) { status = backend->timeline->real.call; } \
        return end_move(backend, &m, status, err);                        \
    } while (0)

static qrun_status copy_in(qr_backend *backend, void *device, const void *host, size_t n_bytes, qr_error *err) {
    MOVE(copy_in(backend, device, host, n_bytes, err), .name = "copy in", .spent_on = QR_PHASE_copies,
         .written = device, .n_bytes = n_bytes);
}

static qrun_status copy_in_async(qr_backend *backend, void *device, const void *host, size_t n_bytes, qr_error *err) {
    MOVE(copy_in_async(backend, device, host, n_bytes, err), .name = "copy in", .spent_on = QR_PHASE_copies,
         .written = device, .n_bytes = n_bytes);
}

static qrun_status copy_out(qr_backend *backend, void *host, const void *device, size_t n_bytes, qr_error *err) {
    MOVE(copy_out(backend, host, device, n_bytes, err), .name = "copy out", .spent_on = QR_PHASE_copies, .read = device,
         .n_bytes = n_bytes);
}

static qrun_status copy_within(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    MOVE(copy_within(backend, dst, src, n_bytes, err), .name = "copy within", .spent_on = QR_PHASE_copies,
         .written = dst, .read = src, .n_bytes = n_bytes);
}

static qrun_status fill_zero(qr_backend *backend, void *device, size_t n_bytes, qr_error *err) {
    MOVE(fill_zero(backend, device, n_bytes, err), .name = "fill zero", .spent_on = QR_PHASE_copies, .written = device,
         .n_bytes = n_bytes);
}

static qrun_status wait_all(qr_backend *backend, qr_error *err) {
    MOVE(sync(backend, err), .name = "wait", .spent_on = QR_PHASE_waiting);
}

static qrun_status transfer_in(qr_backend *backend, void *device, const void *host, size_t n_bytes, uint64_t *ticket,
                               qr_error *err) {
    MOVE(transfer_in(backend, device, host, n_bytes, ticket, err), .name = "transfer in", .spent_on = QR_PHASE_copies,
         .written = device, .n_bytes = n_bytes);
}

static qrun_status transfer_out(qr_backend *backend, void *host, const void *device, size_t n_bytes, uint64_t *ticket,
                                qr_error *err) {
    MOVE(transfer_out(backend, host, device, n_bytes, ticket, err), .name = "transfer out", .spent_on = QR_PHASE_copies,
         .read = device, .n_bytes = n_bytes);
}

static qrun_status transfer_wait(qr_backend *backend, uint64_t ticket, qr_error *err) {
    MOVE(transfer_wait(backend, ticket, err), .name = "wait for a transfer", .spent_on = QR_PHASE_waiting);
}

static void take_functions(qr_backend *backend) {
    backend->copy_in = copy_in;
    backend->copy_in_async = copy_in_async;
    backend->copy_out = copy_out;
    backend->copy_within = copy_within;
    backend->fill_zero = fill_zero;
    backend->sync = wait_all;
    backend->transfer_in = transfer_in;
    backend->transfer_out = transfer_out;
    backend->transfer_wait = transfer_wait;
    for (int op = 0; op < QR_OP_COUNT; op++) { backend->ops[op].run = runs[op]; }
}

static void restore_functions(qr_backend *backend, const qr_backend *real) {
    backend->copy_in = real->copy_in;
    backend->copy_in_async = real->copy_in_async;
    backend->copy_out = real->copy_out;
    backend->copy_within = real->copy_within;
    backend->fill_zero = real->fill_zero;
    backend->sync = real->sync;
    backend->transfer_in = real->transfer_in;
    backend->transfer_out = real->transfer_out;
    backend->transfer_wait = real->transfer_wait;
    for (int op = 0; op < QR_OP_COUNT; op++) { backend->ops[op].run = real->ops[op].run; }
}

/* ---- The timeline ------------------------------------------------------------------------------------------------ */

static void destroy(qr_recorder *recorder) {
    qr_free(recorder->timeline.events);
    qr_free(recorder->timeline.lives);
    qr_free(recorder->timeline.tensors);
    qr_free(recorder->states);
    qr_free(recorder->by_address);
    qr_free(recorder->end_before);
    qr_free(recorder);
}

static qrun_status make(int64_t max_events, qr_recorder **recorder, qr_error *err) {
    qr_recorder *made = qr_alloc_zeroed(sizeof *made);
    *recorder = NULL;
    if (made == NULL) { return qr_fail_memory(err, "a timeline", sizeof *made); }
    qr_timeline *t = &made->timeline;
    t->max_events = t->max_lives = max_events > 0 ? max_events : QR_TIMELINE_DEFAULT_EVENTS;
    t->events = qr_alloc_array((size_t)t->max_events, sizeof *t->events);
    t->lives = qr_alloc_array((size_t)t->max_lives, sizeof *t->lives);
    t->tensors = qr_alloc_array(QR_TIMELINE_MOST_TENSORS, sizeof *t->tensors);
    made->states = qr_alloc_array_zeroed(QR_TIMELINE_MOST_TENSORS, sizeof *made->states);
    made->by_address = qr_alloc_array(QR_TIMELINE_MOST_TENSORS, sizeof *made->by_address);
    made->end_before = qr_alloc_array(QR_TIMELINE_MOST_TENSORS, sizeof *made->end_before);
    const bool complete = t->events != NULL && t->lives != NULL && t->tensors != NULL && made->states != NULL &&
                          made->by_address != NULL && made->end_before != NULL;
    if (!complete) {
        destroy(made);
        return qr_fail_memory(err, "a timeline", (size_t)t->max_events * sizeof *t->events);
    }
    *recorder = made;
    return QRUN_OK;
}

qrun_status qr_timeline_begin(qr_backend *backend, int64_t max_events, qr_error *err) {
    enum { MOST_EVENTS = 1 << 26 };
    qr_recorder *made;
    if (backend->timeline != NULL || backend->profile != NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "ops are being timed already");
    }
    if (max_events < 0 || max_events > MOST_EVENTS) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a timeline has 1 to %d events, not %lld", (int)MOST_EVENTS,
                       (long long)max_events);
    }
    QR_RETURN_IF_ERROR(make(max_events, &made, err));
    made->real = *backend;
    made->layer = -1;
    made->phase = QR_PHASE_other;
    made->began = qr_now_seconds();
    backend->timeline = made;
    const qrun_status status = begin_marks(backend, err);
    if (status != QRUN_OK) {
        backend->timeline = NULL;
        destroy(made);
        return status;
    }
    take_functions(backend);
    return QRUN_OK;
}

void qr_timeline_end(qr_backend *backend) {
    qr_recorder *recorder = backend->timeline;
    if (recorder == NULL) { return; }
    restore_functions(backend, &recorder->real);
    backend->timeline = NULL;
    destroy(recorder);
}

qrun_status qr_timeline_restart(qr_backend *backend, qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    if (recorder == NULL) { return QRUN_OK; }
    qr_timeline *timeline = &recorder->timeline;
    timeline->n_events = timeline->n_dropped = timeline->n_lives = 0;
    timeline->seconds = 0;
    memset(timeline->phase_seconds, 0, sizeof timeline->phase_seconds);
    qr_tensors_forget_lives(recorder);
    recorder->n_pending = 0;
    recorder->depth = 0;
    recorder->layer = -1;
    recorder->phase = QR_PHASE_other;
    recorder->part = QR_PART_NONE;
    recorder->began = qr_now_seconds();
    return begin_marks(backend, err);
}

/* What nothing accounts for: the host's own work, and a device that waits for it. */
static void count_rest(qr_timeline *timeline) {
    double known = 0;
    for (int i = 0; i < QR_PHASE_COUNT; i++) { known += i != QR_PHASE_other ? timeline->phase_seconds[i] : 0; }
    timeline->phase_seconds[QR_PHASE_other] = timeline->seconds > known ? timeline->seconds - known : 0;
}

qrun_status qr_timeline_stop(qr_backend *backend, qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    if (recorder == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(collect(backend, err));
    recorder->timeline.seconds = elapsed(recorder);
    count_rest(&recorder->timeline);
    return begin_marks(backend, err);
}

qrun_status qr_timeline_get(qr_backend *backend, const qr_timeline **timeline, qr_error *err) {
    qr_recorder *recorder = backend->timeline;
    *timeline = NULL;
    if (recorder == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(collect(backend, err));
    QR_RETURN_IF_ERROR(begin_marks(backend, err));
    qr_tensors_end_lives(recorder);
    *timeline = &recorder->timeline;
    return QRUN_OK;
}

const double *qr_timeline_phases(const qr_backend *backend) {
    return backend->timeline != NULL ? backend->timeline->timeline.phase_seconds : NULL;
}

qr_phase qr_timeline_set_phase(qr_backend *backend, qr_phase phase) {
    const qr_phase before = backend->timeline->phase;
    backend->timeline->phase = phase;
    return before;
}
void qr_timeline_set_layer(qr_backend *backend, int64_t layer) { backend->timeline->layer = (int32_t)layer; }
void qr_timeline_set_part(qr_backend *backend, qr_part part) { backend->timeline->part = part; }

void qr_timeline_set_workspace(qr_backend *backend, const void *memory, size_t n_bytes) {
    if (backend->timeline == NULL) { return; }
    backend->timeline->workspace = memory;
    backend->timeline->workspace_bytes = n_bytes;
}

double qr_timeline_now(const qr_backend *backend) { return backend->timeline != NULL ? elapsed(backend->timeline) : 0; }

void qr_timeline_put_host(qr_backend *backend, const char *name, qr_phase spent_on, double begin) {
    qr_recorder *recorder = backend->timeline;
    if (recorder == NULL) { return; }
    qr_timeline_event event = new_event(recorder, name, spent_on);
    event.begin = begin;
    event.seconds = elapsed(recorder) - begin;
    keep(recorder, reserve(recorder), &event);
}
