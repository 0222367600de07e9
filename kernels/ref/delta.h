/* What gated_delta and its gradient share: one token of one value head. */
#ifndef QR_KERNELS_REF_DELTA_H
#define QR_KERNELS_REF_DELTA_H

#include "kernels/ref/ref.h"

#define QR_REF_DELTA_EPS 1e-6

typedef struct qr_ref_delta_decay {
    double softplus, slope; /* of a + dt_bias, and its derivative */
    double decay;
} qr_ref_delta_decay;

typedef struct qr_ref_delta_inputs {
    const float *q, *k, *v;     /* as they come */
    int64_t q_at, k_at, v_at;   /* their columns */
    double q_scale, k_scale;    /* q' = q_scale · q, k' = k_scale · k */
    double rate;                /* exp(a_log) */
    qr_ref_delta_decay *decays; /* [qr_delta_decays] */
    double decay;               /* of all rows of the state; 1 where each has its own */
    double beta, b_sigmoid;
} qr_ref_delta_inputs;

/* What row i of the state decays by, beside in->decay. */
static inline double qr_ref_delta_row_decay(const qr_gated_delta_args *args, const qr_ref_delta_inputs *in, int32_t i) {
    return args->decays_channels ? in->decays[i].decay : 1.0;
}

double qr_ref_sigmoid(double x);

/* in->decays is the caller's. */
void qr_ref_delta_token(const qr_gated_delta_args *args, int64_t token, int32_t head, qr_ref_delta_inputs *in);

/* Column j of a token: the state moves on, the output is returned; *error = v − (decay · state)ᵀ k'. */
double qr_ref_delta_column(const qr_gated_delta_args *args, const qr_ref_delta_inputs *in, float *state, int32_t j,
                           double *error);

/* The sum of conv1d_causal before its function: channel c of row t of sequence s. */
double qr_ref_conv_sum(const qr_conv1d_causal_args *args, int32_t s, int64_t t, int64_t c);

#endif
