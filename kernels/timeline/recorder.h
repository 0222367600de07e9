/* Inside a timeline: its recorder, and what the files of this folder share. timeline.c takes the place of the backend's
 * functions and notes events; tensors.c knows what lies where and which lives there are. */
#ifndef QR_KERNELS_TIMELINE_RECORDER_H
#define QR_KERNELS_TIMELINE_RECORDER_H

#include "kernels/timeline/op_tensors.h"
#include "kernels/timeline/timeline.h"

/* What a tensor holds at the moment. */
typedef struct qr_tensor_state {
    bool alive;
    uintptr_t first_address; /* that the life's first overwrite began at */
    int64_t first, last;     /* events */
    int32_t layer;
    qr_phase first_phase, last_phase;
} qr_tensor_state;

enum { QR_TIMELINE_MOST_PENDING = 2048 };

struct qr_recorder {
    qr_timeline timeline;
    /* The backend's own functions. */
    qr_backend real;
    int depth; /* of its functions that call others of its */
    double began;
    qr_phase phase;
    int32_t layer;
    qr_part part;
    /* Tensors with lives, by address. */
    qr_tensor_state *states; /* [n_tensors] */
    int32_t *by_address;     /* [n_sorted] */
    uintptr_t *end_before;   /* [n_sorted]: the highest end of those up to here */
    int32_t n_sorted;
    bool sorted;
    const unsigned char *workspace; /* planned, of ops; NULL: none */
    size_t workspace_bytes;
    /* On a device with a clock of its own: events whose times it has not told yet. Event i is between marks 2 · i + 1
     * and 2 · i + 2, and mark 0 is when `marked` was. */
    int32_t n_pending;
    double marked;
    qr_timeline_event pending[QR_TIMELINE_MOST_PENDING];
    int64_t pending_index[QR_TIMELINE_MOST_PENDING]; /* in events; −1: not kept */
};

/* Begins with no tensor alive. */
void qr_tensors_forget_lives(qr_recorder *recorder);
/* An event touches what lies at an address: overwrites it, or not. */
void qr_tensors_touch(qr_recorder *recorder, const void *address, bool overwrites, int64_t event);
/* The arguments of an op. */
void qr_tensors_touch_arguments(qr_recorder *recorder, qr_op op, const void *args, int64_t event);
/* Ends what is alive with its last touch. */
void qr_tensors_end_lives(qr_recorder *recorder);

#endif
