/* Replay of steps: the backend records the first step of a shape, and later ones of that shape are one call instead of
 * a launch for every op. Where the backend cannot record, or fails to, steps are issued op by op as usual. */
#ifndef QR_RUNTIME_GENERATE_REPLAY_H
#define QR_RUNTIME_GENERATE_REPLAY_H

#include "kernels/backend.h"

/* The ops of a step and their arguments depend on nothing else. */
typedef struct qr_replay_key {
    int32_t n_rows, table_stride;
    int32_t adapters; /* 0: none; else which kinds of rows there are */
} qr_replay_key;

enum { QR_REPLAY_MOST = 24, QR_REPLAY_REASON_BYTES = 128 };

typedef struct qr_replay_stats {
    int64_t n_recorded, n_replayed, n_dropped;
    char reason[QR_REPLAY_REASON_BYTES]; /* why nothing is recorded any more; empty otherwise */
} qr_replay_stats;

typedef struct qr_replay_entry {
    qr_replay_key key;
    qr_recording *recording; /* NULL: free */
    int64_t last_use;
} qr_replay_entry;

/* A fixed number of recordings; the least recently used one makes room. Begin from {.backend = …}. */
typedef struct qr_replay {
    qr_backend *backend;
    qr_replay_entry entries[QR_REPLAY_MOST];
    int64_t clock;
    qr_replay_stats stats;
} qr_replay;

/* Issues a step: the same calls with the same arguments for equal keys. */
typedef qrun_status (*qr_replay_issue)(void *arg, qr_error *err);

/* Nothing is recorded, for this reason. */
void qr_replay_refuse(qr_replay *replay, const char *reason);
/* Ops are timed: issued one by one, steps one after the other. */
bool qr_replay_is_timed(const qr_replay *replay);
bool qr_replay_is_possible(const qr_replay *replay);

/* Computes a step. The first of its key is issued, and recorded while the device computes it, so a recording that fails
 * costs only its use. */
qrun_status qr_replay_step(qr_replay *replay, const qr_replay_key *key, qr_replay_issue issue, void *arg,
                           qr_error *err);

/* Destroys all recordings. */
void qr_replay_clear(qr_replay *replay);

#endif
