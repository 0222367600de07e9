/* What happens on a backend over time: every op, copy and wait with its begin and end, and which of the planned tensors
 * hold something that is still needed meanwhile.
 *
 * A timeline takes the place of the backend's functions while it is there, so that nothing is asked for and nothing
 * costs where there is none. Its memory is made once, for a number of events that is given; what comes after these is
 * counted in the times of phases and not kept.
 *
 * Whether a tensor is needed is found from the ops' arguments: op_tensors.h says which of them an op reads, and which
 * it overwrites. A life begins where a tensor is overwritten from its first address on, and ends with the last op that
 * touches it before that happens again. Sizes are those of the plan, however few of its rows a micro-batch has. */
#ifndef QR_KERNELS_TIMELINE_TIMELINE_H
#define QR_KERNELS_TIMELINE_TIMELINE_H

#include "kernels/backend.h"
#include "kernels/op_bytes.h"

/* What time is spent on. An event is of the phase that runs, but copies and waits are phases of their own. */
#define QR_PHASES(X) \
    X(data)          \
    X(forward)       \
    X(loss)          \
    X(backward)      \
    X(recompute)     \
    X(optimizer)     \
    X(prefill)       \
    X(decode)        \
    X(sample)        \
    X(copies)        \
    X(waiting)       \
    X(other)

typedef enum qr_phase {
#define QR_X(name) QR_PHASE_##name,
    QR_PHASES(QR_X)
#undef QR_X
        QR_PHASE_COUNT
} qr_phase;

const char *qr_phase_name(qr_phase phase); /* "forward" */

/* The part of a layer, or of a pass, that runs. Tensors in one place are told apart by it. */
typedef enum qr_part {
    QR_PART_NONE,
    QR_PART_ATTENTION,
    QR_PART_DELTA,
    QR_PART_CONV,
    QR_PART_SPACE,
    QR_PART_MLP,
    QR_PART_HEAD
} qr_part;

const char *qr_part_name(qr_part part); /* "attention"; "" of NONE */

typedef struct qr_timeline_event {
    const char *name;      /* static: of an op, "copy in", "wait" … */
    double begin, seconds; /* since the timeline began */
    int64_t bytes;         /* moved; of an op 0 */
    size_t workspace;      /* bytes that an op has of the planned workspace */
    qr_op_extent extent;   /* of an op; else rows 0 */
    int32_t layer;         /* −1: of none */
    qr_phase phase;        /* that runs, also of copies and waits */
    qr_phase spent_on;
    qr_part part;
} qr_timeline_event;

enum { QR_TIMELINE_NAME_BYTES = 96, QR_TIMELINE_MOST_CATEGORIES = 16, QR_TIMELINE_MOST_TENSORS = 1 << 14 };

/* A range of memory with a name. */
typedef struct qr_timeline_tensor {
    char name[QR_TIMELINE_NAME_BYTES];
    const void *address;
    size_t n_bytes;
    int32_t category, layer; /* layer −1: of none */
    qr_part part;            /* in which it is the one that is meant, of those in its place; NONE: in all others */
    bool lives;              /* holds something at times; else always */
} qr_timeline_tensor;

/* Memory by category, as planned. */
typedef struct qr_timeline_category {
    const char *name; /* NULL: there is none of this number */
    int64_t bytes;
    bool lives; /* it is what its tensors hold, of these bytes; else all of it is held always */
    bool apart; /* not device memory */
} qr_timeline_category;

/* A tensor from the event that fills it to the last that touches it. */
typedef struct qr_timeline_life {
    int32_t tensor, layer; /* layer: that ran when it began, or the tensor's own */
    int64_t first, last;   /* events */
    bool kept;             /* from a forward pass until its backward pass, or until it is recomputed from */
} qr_timeline_life;

typedef struct qr_timeline {
    int64_t n_events, max_events, n_dropped;
    qr_timeline_event *events;
    qr_timeline_tensor *tensors; /* [n_tensors], in no order */
    int32_t n_tensors, n_unnamed;
    qr_timeline_life *lives;
    int64_t n_lives, max_lives;
    qr_timeline_category categories[QR_TIMELINE_MOST_CATEGORIES];
    double seconds; /* from its begin to qr_timeline_stop */
    double phase_seconds[QR_PHASE_COUNT];
} qr_timeline;

enum { QR_TIMELINE_DEFAULT_EVENTS = 1 << 17 };

/* Begins one, of at most max_events (0: QR_TIMELINE_DEFAULT_EVENTS). QRUN_ERROR_ARGUMENT: there is one already. Memory
 * that is laid out from now on gives its tensors to it. Only the thread that issues work calls this and the next. */
qrun_status qr_timeline_begin(qr_backend *backend, int64_t max_events, qr_error *err);
/* The backend is as before. Nothing where there is none. */
void qr_timeline_end(qr_backend *backend);

/* Forgets the events, not the tensors: a step begins. Nothing where there is no timeline, as in all that follow. */
qrun_status qr_timeline_restart(qr_backend *backend, qr_error *err);
/* A step ends: `seconds`, and what has not been accounted for as the phase "other". Waits. */
qrun_status qr_timeline_stop(qr_backend *backend, qr_error *err);
/* What there is so far; waits. NULL where there is no timeline. Lives that have not ended, end with the last event. */
qrun_status qr_timeline_get(qr_backend *backend, const qr_timeline **timeline, qr_error *err);
/* Of the last step that stopped. */
const double *qr_timeline_phases(const qr_backend *backend); /* [QR_PHASE_COUNT]; NULL where there is no timeline */

/* Memory that a plan describes. A tensor without bytes, or without an address, is not entered. */
void qr_timeline_put_category(qr_backend *backend, int32_t category, const qr_timeline_category *entry);
void qr_timeline_put_tensor(qr_backend *backend, const qr_timeline_tensor *tensor);
/* Tensors in [memory, memory + n_bytes) are there no longer; memory NULL: none are. */
void qr_timeline_drop_tensors(qr_backend *backend, const void *memory, size_t n_bytes);
/* The workspace that is planned for ops: what an op has of it is part of its event. */
void qr_timeline_set_workspace(qr_backend *backend, const void *memory, size_t n_bytes);

qr_phase qr_timeline_set_phase(qr_backend *backend, qr_phase phase); /* the one before */
void qr_timeline_set_layer(qr_backend *backend, int64_t layer);
void qr_timeline_set_part(qr_backend *backend, qr_part part);
/* What the host does between `begin` (qr_timeline_now) and now. */
double qr_timeline_now(const qr_backend *backend);
void qr_timeline_put_host(qr_backend *backend, const char *name, qr_phase spent_on, double begin);

/* The phase, layer and part that ops issued from now on are of. Returns the phase before. */
static inline qr_phase qr_timeline_phase(qr_backend *backend, qr_phase phase) {
    return backend->timeline != NULL ? qr_timeline_set_phase(backend, phase) : phase;
}
static inline void qr_timeline_layer(qr_backend *backend, int64_t layer) {
    if (backend->timeline != NULL) { qr_timeline_set_layer(backend, layer); }
}
static inline void qr_timeline_part(qr_backend *backend, qr_part part) {
    if (backend->timeline != NULL) { qr_timeline_set_part(backend, part); }
}

#endif
