/* The states of a batch's sequences, as qr_recurrence has them. */
#ifndef QR_KERNELS_RECURRENCE_H
#define QR_KERNELS_RECURRENCE_H

#include "kernels/ops.h"

/* The state of sequence s; NULL: it has no memory. */
static inline float *qr_recurrence_state(const qr_recurrence *r, int64_t s) {
    return r->slot != NULL && r->slot[s] >= 0 ? r->states + r->slot[s] * r->state_stride : NULL;
}

static inline bool qr_recurrence_begins(const qr_recurrence *r, int64_t s) {
    return qr_recurrence_state(r, s) == NULL || r->first_position == NULL || r->first_position[s] == 0;
}

#endif
