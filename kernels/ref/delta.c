/* copy_heads, head_gate, conv1d_causal and gated_delta. A state is rounded to F32 after every token, as ops.h has it.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/recurrence.h"
#include "kernels/ref/delta.h"

void qr_ref_copy_heads(const qr_copy_heads_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t h = 0; h < args->n_heads; h++) {
            const int64_t from = i * args->src_stride + h * args->src_head_stride;
            const int64_t to = i * args->dst_stride + h * args->dst_head_stride;
            for (int64_t j = 0; j < args->dim; j++) {
                const float x = args->src != NULL ? qr_ref_load(args->src, args->dtype, from + j) : 0.0F;
                const float y = args->accumulate ? qr_ref_load(args->dst, args->dtype, to + j) + x : x;
                qr_ref_store(args->dst, args->dtype, to + j, (double)y);
            }
        }
    }
}

double qr_ref_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

void qr_ref_head_gate(const qr_head_gate_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t h = 0; h < args->n_heads; h++) {
            const float *gate = args->gate + i * args->gate_stride + h * args->gate_head_stride;
            const int64_t at = (i * args->n_heads + h) * args->dim;
            for (int64_t j = 0; j < args->dim; j++) {
                const double x = (double)qr_ref_load(args->x, args->dtype, at + j);
                const double g = (double)gate[args->gate_dim == 1 ? 0 : j];
                qr_ref_store(args->dst, args->dtype, at + j,
                             x * (args->by_softplus ? qr_ref_softplus(g) : qr_ref_sigmoid(g)));
            }
        }
    }
}

/* ---- conv1d_causal ----------------------------------------------------------------------------------------------- */

/* Row `t` of sequence s, channel c; t may be before the batch's first. */
static float conv_input(const qr_conv1d_causal_args *args, int32_t s, int64_t t, int64_t c) {
    const qr_recurrence *r = &args->sequences;
    if (t >= 0) { return args->x[(r->start[s] + t) * args->x_stride + c]; }
    return qr_recurrence_begins(r, s) ? 0.0F : qr_recurrence_state(r, s)[(t + args->kernel - 1) * args->dim + c];
}

double qr_ref_conv_sum(const qr_conv1d_causal_args *args, int32_t s, int64_t t, int64_t c) {
    double sum = args->bias != NULL ? (double)args->bias[c] : 0.0;
    for (int32_t j = 0; j < args->kernel; j++) {
        sum += (double)args->weight[c * args->kernel + j] * (double)conv_input(args, s, t - args->kernel + 1 + j, c);
    }
    return sum;
}

/* The rows before the next token; from the oldest on, so that none is overwritten before it is read. */
static void keep_conv_state(const qr_conv1d_causal_args *args, int32_t s, int64_t n) {
    float *state = qr_recurrence_state(&args->sequences, s);
    if (state == NULL || n == 0) { return; }
    for (int32_t i = 0; i < args->kernel - 1; i++) {
        for (int64_t c = 0; c < args->dim; c++) {
            state[i * args->dim + c] = conv_input(args, s, n - args->kernel + 1 + i, c);
        }
    }
}

void qr_ref_conv1d_causal(const qr_conv1d_causal_args *args, void *workspace) {
    (void)workspace;
    for (int32_t s = 0; s < args->sequences.n_seqs; s++) {
        const int64_t first = args->sequences.start[s], n = args->sequences.start[s + 1] - first;
        for (int64_t t = 0; t < n; t++) {
            for (int64_t c = 0; c < args->dim; c++) {
                args->dst[(first + t) * args->dim + c] = (float)qr_ref_act_fn(args->fn, qr_ref_conv_sum(args, s, t, c));
            }
        }
        keep_conv_state(args, s, n);
    }
}

/* ---- gated_delta ------------------------------------------------------------------------------------------------- */

void qr_ref_delta_token(const qr_gated_delta_args *args, int64_t token, int32_t head, qr_ref_delta_inputs *in) {
    const int32_t key_head = head / (args->n_value_heads / args->n_key_heads), dim = args->key_dim;
    const int64_t keys = (int64_t)args->n_key_heads * dim;
    const float *row = args->qkv + token * args->qkv_stride;
    double q_squares = 0.0, k_squares = 0.0;
    in->q_at = (int64_t)key_head * dim;
    in->k_at = in->q_at + keys;
    in->v_at = 2 * keys + (int64_t)head * args->value_dim;
    in->q = row + in->q_at;
    in->k = row + in->k_at;
    in->v = row + in->v_at;
    for (int32_t i = 0; i < dim; i++) {
        q_squares += (double)in->q[i] * (double)in->q[i];
        k_squares += (double)in->k[i] * (double)in->k[i];
    }
    in->q_scale = 1.0 / sqrt(q_squares + QR_REF_DELTA_EPS) / sqrt((double)dim);
    in->k_scale = 1.0 / sqrt(k_squares + QR_REF_DELTA_EPS);
    in->rate = exp((double)args->a_log[head]);
    const int32_t n_decays = qr_delta_decays(args);
    for (int32_t i = 0; i < n_decays; i++) {
        const int64_t at = (int64_t)head * n_decays + i;
        const double x = (double)args->a[token * args->ab_stride + at] + (double)args->dt_bias[at];
        qr_ref_delta_decay *decay = &in->decays[i];
        decay->softplus = x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x));
        decay->slope = qr_ref_sigmoid(x);
        decay->decay = exp(-in->rate * decay->softplus);
    }
    in->decay = args->decays_channels ? 1.0 : in->decays[0].decay;
    in->b_sigmoid = qr_ref_sigmoid((double)args->b[token * args->ab_stride + head]);
    in->beta = in->b_sigmoid * (args->doubles_beta ? 2.0 : 1.0);
}

double qr_ref_delta_column(const qr_gated_delta_args *args, const qr_ref_delta_inputs *in, float *state, int32_t j,
                           double *error) {
    double read = 0.0, out = 0.0;
    for (int32_t i = 0; i < args->key_dim; i++) {
        const double decayed = qr_ref_delta_row_decay(args, in, i) * (double)state[i * args->value_dim + j];
        read += decayed * (double)in->k[i] * in->k_scale;
    }
    *error = (double)in->v[j] - in->decay * read;
    for (int32_t i = 0; i < args->key_dim; i++) {
        float *element = &state[i * args->value_dim + j];
        const double decay = in->decay * qr_ref_delta_row_decay(args, in, i);
        const double after = decay * (double)*element + (double)in->k[i] * in->k_scale * in->beta * *error;
        *element = (float)after;
        out += after * (double)in->q[i] * in->q_scale;
    }
    return out;
}

/* One value head of one sequence; state [key_dim, value_dim]. */
static void run_head(const qr_gated_delta_args *args, int32_t s, int32_t head, qr_ref_delta_decay *decays,
                     float *state) {
    for (int64_t t = args->sequences.start[s]; t < args->sequences.start[s + 1]; t++) {
        qr_ref_delta_inputs in = {.decays = decays};
        qr_ref_delta_token(args, t, head, &in);
        float *dst = args->dst + (t * args->n_value_heads + head) * args->value_dim;
        for (int32_t j = 0; j < args->value_dim; j++) {
            double error;
            dst[j] = (float)qr_ref_delta_column(args, &in, state, j, &error);
        }
    }
}

static int64_t state_elements(const qr_gated_delta_args *args) { return (int64_t)args->key_dim * args->value_dim; }

void qr_ref_gated_delta(const qr_gated_delta_args *args, void *workspace) {
    const qr_recurrence *r = &args->sequences;
    const size_t n_bytes = (size_t)state_elements(args) * sizeof(float);
    qr_ref_delta_decay *decays = workspace;
    float *state = (float *)(decays + qr_delta_decays(args));
    for (int32_t s = 0; s < r->n_seqs; s++) {
        float *kept = qr_recurrence_state(r, s);
        for (int32_t h = 0; h < args->n_value_heads && r->start[s] < r->start[s + 1]; h++) {
            float *of_head = kept != NULL ? kept + h * state_elements(args) : NULL;
            if (qr_recurrence_begins(r, s)) {
                memset(state, 0, n_bytes);
            } else {
                memcpy(state, of_head, n_bytes);
            }
            run_head(args, s, h, decays, state);
            if (of_head != NULL) { memcpy(of_head, state, n_bytes); }
        }
    }
}

size_t qr_ref_gated_delta_workspace(const qr_gated_delta_args *args) {
    return (size_t)qr_delta_decays(args) * sizeof(qr_ref_delta_decay) + (size_t)state_elements(args) * sizeof(float);
}
