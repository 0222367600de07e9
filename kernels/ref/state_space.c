/* state_space. A state is rounded to F32 after every token, as ops.h has it. */
#include "kernels/ref/state_space.h"

#include <math.h>
#include <string.h>

#include "kernels/recurrence.h"
#include "kernels/ref/delta.h"

void qr_ref_state_space_token(const qr_state_space_args *args, int64_t token, int32_t head,
                              qr_ref_state_space_inputs *in) {
    const int64_t values = (int64_t)args->n_heads * args->head_dim, keys = (int64_t)args->n_groups * args->state_dim;
    const int64_t group = head / (args->n_heads / args->n_groups);
    const float *row = args->xbc + token * args->xbc_stride;
    in->x_at = (int64_t)head * args->head_dim;
    in->b_at = values + group * args->state_dim;
    in->c_at = in->b_at + keys;
    in->x = row + in->x_at;
    in->b = row + in->b_at;
    in->c = row + in->c_at;
    const double dt = (double)args->dt[token * args->dt_stride + head] + (double)args->dt_bias[head];
    in->step = dt > 0.0 ? dt + log1p(exp(-dt)) : log1p(exp(dt));
    in->slope = qr_ref_sigmoid(dt);
    in->rate = exp((double)args->a_log[head]);
    in->decay = exp(-in->rate * in->step);
}

double qr_ref_state_space_column(const qr_state_space_args *args, const qr_ref_state_space_inputs *in, float *state,
                                 int32_t j) {
    double out = 0.0;
    for (int32_t i = 0; i < args->state_dim; i++) {
        float *element = &state[i * args->head_dim + j];
        const double after = in->decay * (double)*element + (double)in->b[i] * in->step * (double)in->x[j];
        *element = (float)after;
        out += after * (double)in->c[i];
    }
    return out;
}

/* One head of one sequence; state [state_dim, head_dim]. */
static void run_head(const qr_state_space_args *args, int32_t s, int32_t head, float *state) {
    for (int64_t t = args->sequences.start[s]; t < args->sequences.start[s + 1]; t++) {
        qr_ref_state_space_inputs in;
        qr_ref_state_space_token(args, t, head, &in);
        float *dst = args->dst + (t * args->n_heads + head) * args->head_dim;
        for (int32_t j = 0; j < args->head_dim; j++) {
            dst[j] =
                (float)(qr_ref_state_space_column(args, &in, state, j) + (double)args->skip[head] * (double)in.x[j]);
        }
    }
}

size_t qr_ref_state_space_workspace(const qr_state_space_args *args) {
    return (size_t)args->state_dim * (size_t)args->head_dim * sizeof(float);
}

void qr_ref_state_space(const qr_state_space_args *args, void *workspace) {
    const qr_recurrence *r = &args->sequences;
    const size_t n_bytes = qr_ref_state_space_workspace(args);
    float *state = workspace;
    for (int32_t s = 0; s < r->n_seqs; s++) {
        float *kept = qr_recurrence_state(r, s);
        for (int32_t h = 0; h < args->n_heads && r->start[s] < r->start[s + 1]; h++) {
            float *of_head = kept != NULL ? kept + (int64_t)h * args->state_dim * args->head_dim : NULL;
            if (qr_recurrence_begins(r, s)) {
                memset(state, 0, n_bytes);
            } else {
                memcpy(state, of_head, n_bytes);
            }
            run_head(args, s, h, state);
            if (of_head != NULL) { memcpy(of_head, state, n_bytes); }
        }
    }
}
