/* What state_space and its gradient share: one token of one head. */
#ifndef QR_KERNELS_REF_STATE_SPACE_H
#define QR_KERNELS_REF_STATE_SPACE_H

#include "kernels/ref/ref.h"

typedef struct qr_ref_state_space_inputs {
    const float *x, *b, *c;   /* as they come */
    int64_t x_at, b_at, c_at; /* their columns */
    double step, slope;       /* softplus of dt + dt_bias, and its derivative */
    double rate;              /* exp(a_log) */
    double decay;
} qr_ref_state_space_inputs;

void qr_ref_state_space_token(const qr_state_space_args *args, int64_t token, int32_t head,
                              qr_ref_state_space_inputs *in);

/* Column j of a token: the state moves on, and stateᵀ C is returned. */
double qr_ref_state_space_column(const qr_state_space_args *args, const qr_ref_state_space_inputs *in, float *state,
                                 int32_t j);

#endif
