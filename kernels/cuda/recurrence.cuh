/* What the ops along sequences share: the states of a batch's sequences, and softplus, which makes their rates. */
#ifndef QR_KERNELS_CUDA_RECURRENCE_CUH
#define QR_KERNELS_CUDA_RECURRENCE_CUH

#include "kernels/cuda/cuda.h"

/* The state of sequence s; NULL: it has no memory. */
QR_DEVICE float *state_of(const qr_recurrence &r, int64_t s) {
    return r.slot != NULL && r.slot[s] >= 0 ? r.states + r.slot[s] * r.state_stride : NULL;
}

QR_DEVICE bool begins_from_zero(const qr_recurrence &r, int64_t s) {
    return state_of(r, s) == NULL || r.first_position == NULL || r.first_position[s] == 0;
}

QR_DEVICE float softplus(float x) { return x > 0.0F ? x + log1pf(expf(-x)) : log1pf(expf(x)); }

#endif
