/* head_gate_backward, conv1d_causal_backward and gated_delta_backward. */
#include <math.h>
#include <string.h>

#include "kernels/ref/delta.h"

void qr_ref_head_gate_backward(const qr_head_gate_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_head_gate_args *f = &args->forward;
    for (int64_t i = 0; i < f->n_rows; i++) {
        for (int64_t h = 0; h < f->n_heads; h++) {
            const int64_t at = (i * f->n_heads + h) * f->dim, gate_at = i * f->gate_stride + h * f->gate_head_stride;
            double dgate = 0.0;
            for (int64_t j = 0; j < f->dim; j++) {
                const int64_t g = gate_at + (f->gate_dim == 1 ? 0 : j);
                const double gate = (double)f->gate[g], dy = (double)args->dy[at + j];
                const double sigmoid = qr_ref_sigmoid(gate);
                const double open = f->by_softplus ? qr_ref_softplus(gate) : sigmoid;
                const double slope = f->by_softplus ? sigmoid : sigmoid * qr_ref_sigmoid(-gate);
                const double term = dy * (double)qr_ref_load(f->x, f->dtype, at + j) * slope;
                dgate = f->gate_dim == 1 ? dgate + term : term;
                args->dgate[g] = (float)dgate;
                args->dx[at + j] = (float)(dy * open);
            }
        }
    }
}

/* ---- conv1d_causal_backward -------------------------------------------------------------------------------------- */

/* The gradient of the sum at row t of sequence s, channel c; 0 after the sequence. */
static double conv_dsum(const qr_conv1d_causal_backward_args *args, int32_t s, int64_t t, int64_t n, int64_t c) {
    const qr_conv1d_causal_args *f = &args->forward;
    if (t >= n) { return 0.0; }
    const double sum = qr_ref_conv_sum(f, s, t, c);
    return (double)args->dy[(f->sequences.start[s] + t) * f->dim + c] * qr_ref_act_derivative(f->fn, sum);
}

/* One channel of sequence s; dweight [kernel] and *dbias grow. */
static void conv_channel(const qr_conv1d_causal_backward_args *args, int32_t s, int64_t c, double *dweight,
                         double *dbias) {
    const qr_conv1d_causal_args *f = &args->forward;
    const int64_t first = f->sequences.start[s], n = f->sequences.start[s + 1] - first;
    for (int64_t t = 0; t < n; t++) {
        const double dsum = conv_dsum(args, s, t, n, c);
        double dx = 0.0;
        *dbias += dsum;
        for (int32_t j = 0; j < f->kernel; j++) {
            const int64_t from = t - f->kernel + 1 + j;
            if (from >= 0) { dweight[j] += dsum * (double)f->x[(first + from) * f->x_stride + c]; }
            dx += (double)f->weight[c * f->kernel + j] * conv_dsum(args, s, t + f->kernel - 1 - j, n, c);
        }
        args->dx[(first + t) * args->dx_stride + c] = (float)dx;
    }
}

void qr_ref_conv1d_causal_backward(const qr_conv1d_causal_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_conv1d_causal_args *f = &args->forward;
    for (int64_t c = 0; c < f->dim; c++) {
        double dweight[QR_CONV_MAX_KERNEL] = {0}, dbias = 0.0;
        for (int32_t s = 0; s < f->sequences.n_seqs; s++) { conv_channel(args, s, c, dweight, &dbias); }
        if (args->dbias != NULL) { args->dbias[c] = (float)((double)args->dbias[c] + dbias); }
        for (int32_t j = 0; args->dweight != NULL && j < f->kernel; j++) {
            float *dst = &args->dweight[c * f->kernel + j];
            *dst = (float)((double)*dst + dweight[j]);
        }
    }
}

/* ---- gated_delta_backward ---------------------------------------------------------------------------------------- */

/* The workspace: of one value head of one sequence, the state before every token, [n + 1, key_dim, value_dim], and the
 * gradient of the state after the one that runs. */
typedef struct delta_head {
    const qr_gated_delta_backward_args *args;
    int32_t head;
    float *states;
    double *dstate;                 /* [key_dim, value_dim] */
    double *delta, *ddelta, *error; /* [value_dim] */
    double *ddecay;                 /* [key_dim]: of the rows of the state */
    qr_ref_delta_decay *decays;     /* [qr_delta_decays], as the next */
    double *ddt_bias;
    double da_log;
} delta_head;

static int64_t state_elements(const qr_gated_delta_args *f) { return (int64_t)f->key_dim * f->value_dim; }

static void keep_states(const delta_head *h, int64_t first, int64_t n) {
    const qr_gated_delta_args *f = &h->args->forward;
    const size_t n_bytes = (size_t)state_elements(f) * sizeof(float);
    memset(h->states, 0, n_bytes);
    for (int64_t t = 0; t < n; t++) {
        float *after = h->states + (t + 1) * state_elements(f);
        qr_ref_delta_inputs in = {.decays = h->decays};
        qr_ref_delta_token(f, first + t, h->head, &in);
        memcpy(after, after - state_elements(f), n_bytes);
        for (int32_t j = 0; j < f->value_dim; j++) { (void)qr_ref_delta_column(f, &in, after, j, &h->error[j]); }
    }
}

/* From the gradient of x' = scale · x, scale = c / sqrt(sum x² + eps), to that of x; added to dx. */
static void norm_backward(const float *x, double scale, double inverse_square, const double *dnormed, int32_t n,
                          float *dx) {
    double dot = 0.0;
    for (int32_t i = 0; i < n; i++) { dot += dnormed[i] * (double)x[i]; }
    for (int32_t i = 0; i < n; i++) {
        dx[i] = (float)((double)dx[i] + scale * (dnormed[i] - (double)x[i] * inverse_square * dot));
    }
}

/* The gradient of the output enters that of the state; delta and its gradient follow. Returns dbeta. */
static double enter_token(delta_head *h, const qr_ref_delta_inputs *in, const float *before, const float *dy) {
    const qr_gated_delta_args *f = &h->args->forward;
    double dbeta = 0.0;
    for (int32_t j = 0; j < f->value_dim; j++) {
        double read = 0.0, ddelta = 0.0;
        for (int32_t i = 0; i < f->key_dim; i++) {
            double *dstate = &h->dstate[i * f->value_dim + j];
            *dstate += (double)in->q[i] * in->q_scale * (double)dy[j];
            const double decayed = qr_ref_delta_row_decay(f, in, i) * (double)before[i * f->value_dim + j];
            read += decayed * (double)in->k[i] * in->k_scale;
            ddelta += (double)in->k[i] * in->k_scale * *dstate;
        }
        h->error[j] = (double)in->v[j] - in->decay * read;
        h->delta[j] = in->beta * h->error[j];
        h->ddelta[j] = ddelta;
        dbeta += ddelta * h->error[j];
    }
    return dbeta;
}

/* Row i of the state: the gradients of q'[i] and k'[i], and that of the state before. Returns that of its decay. */
static double leave_row(delta_head *h, const qr_ref_delta_inputs *in, const float *before, const float *dy, int32_t i,
                        double *dq, double *dk) {
    const qr_gated_delta_args *f = &h->args->forward;
    const double k = (double)in->k[i] * in->k_scale, decay = in->decay * qr_ref_delta_row_decay(f, in, i);
    double ddecay = 0.0;
    *dq = *dk = 0.0;
    for (int32_t j = 0; j < f->value_dim; j++) {
        const double old = (double)before[i * f->value_dim + j], dread = -in->beta * h->ddelta[j];
        double *dstate = &h->dstate[i * f->value_dim + j];
        *dq += (decay * old + k * h->delta[j]) * (double)dy[j];
        *dk += *dstate * h->delta[j] + decay * old * dread;
        const double ddecayed = *dstate + k * dread;
        ddecay += old * ddecayed;
        *dstate = decay * ddecayed;
    }
    return ddecay;
}

/* From h->ddecay to the gradients of a, a_log and dt_bias. */
static void decays_backward(delta_head *h, const qr_ref_delta_inputs *in, int64_t token) {
    const qr_gated_delta_args *f = &h->args->forward;
    const int32_t n_decays = qr_delta_decays(f);
    for (int32_t d = 0; d < n_decays; d++) {
        const qr_ref_delta_decay *decay = &in->decays[d];
        double ddecay = f->decays_channels ? h->ddecay[d] : 0.0;
        for (int32_t i = 0; !f->decays_channels && i < f->key_dim; i++) { ddecay += h->ddecay[i]; }
        const double dsoftplus = -in->rate * decay->decay * ddecay, da = dsoftplus * decay->slope;
        h->args->da[token * h->args->dab_stride + (int64_t)h->head * n_decays + d] = (float)da;
        h->da_log += dsoftplus * decay->softplus;
        h->ddt_bias[d] += da;
    }
}

static void token_backward(delta_head *h, int64_t token, const float *before, double *dnormed) {
    const qr_gated_delta_backward_args *args = h->args;
    const qr_gated_delta_args *f = &args->forward;
    const float *dy = args->dy + (token * f->n_value_heads + h->head) * f->value_dim;
    float *row = args->dqkv + token * args->dqkv_stride;
    double *dq = dnormed, *dk = dnormed + f->key_dim;
    qr_ref_delta_inputs in = {.decays = h->decays};
    qr_ref_delta_token(f, token, h->head, &in);
    const double dbeta = enter_token(h, &in, before, dy);
    for (int32_t i = 0; i < f->key_dim; i++) { h->ddecay[i] = leave_row(h, &in, before, dy, i, &dq[i], &dk[i]); }
    const double q_inverse_square = in.q_scale * in.q_scale * (double)f->key_dim;
    norm_backward(in.q, in.q_scale, q_inverse_square, dq, f->key_dim, row + in.q_at);
    norm_backward(in.k, in.k_scale, in.k_scale * in.k_scale, dk, f->key_dim, row + in.k_at);
    for (int32_t j = 0; j < f->value_dim; j++) { row[in.v_at + j] = (float)(in.beta * h->ddelta[j]); }
    args->db[token * args->dab_stride + h->head] = (float)(dbeta * in.beta * (1.0 - in.b_sigmoid));
    decays_backward(h, &in, token);
}

static void clear_keys(const qr_gated_delta_backward_args *args) {
    const qr_gated_delta_args *f = &args->forward;
    const size_t n_bytes = 2 * (size_t)f->n_key_heads * (size_t)f->key_dim * sizeof(float);
    for (int64_t t = 0; t < f->n_tokens; t++) { memset(args->dqkv + t * args->dqkv_stride, 0, n_bytes); }
}

void qr_ref_gated_delta_backward(const qr_gated_delta_backward_args *args, void *workspace) {
    const qr_gated_delta_args *f = &args->forward;
    const int64_t n_state = state_elements(f);
    const int32_t n_decays = qr_delta_decays(f);
    double *dstate = workspace, *vectors = dstate + n_state, *dnormed = vectors + 3 * (int64_t)f->value_dim;
    double *ddecay = dnormed + 2 * (int64_t)f->key_dim, *ddt_bias = ddecay + f->key_dim;
    qr_ref_delta_decay *decays = (qr_ref_delta_decay *)(ddt_bias + n_decays);
    clear_keys(args);
    for (int32_t head = 0; head < f->n_value_heads; head++) {
        delta_head h = {.args = args,
                        .head = head,
                        .dstate = dstate,
                        .delta = vectors,
                        .ddelta = vectors + f->value_dim,
                        .error = vectors + 2 * (int64_t)f->value_dim,
                        .ddecay = ddecay,
                        .decays = decays,
                        .ddt_bias = ddt_bias,
                        .states = (float *)(decays + n_decays)};
        for (int32_t d = 0; d < n_decays; d++) { ddt_bias[d] = 0.0; }
        for (int32_t s = 0; s < f->sequences.n_seqs; s++) {
            const int64_t first = f->sequences.start[s], n = f->sequences.start[s + 1] - first;
            keep_states(&h, first, n);
            memset(dstate, 0, (size_t)n_state * sizeof *dstate);
            for (int64_t t = n; t-- > 0;) { token_backward(&h, first + t, h.states + t * n_state, dnormed); }
        }
        if (args->da_log != NULL) { args->da_log[head] = (float)((double)args->da_log[head] + h.da_log); }
        for (int32_t d = 0; args->ddt_bias != NULL && d < n_decays; d++) {
            float *dst = &args->ddt_bias[(int64_t)head * n_decays + d];
            *dst = (float)((double)*dst + ddt_bias[d]);
        }
    }
}

size_t qr_ref_gated_delta_backward_workspace(const qr_gated_delta_backward_args *args) {
    const qr_gated_delta_args *f = &args->forward;
    const int64_t n_state = state_elements(f), n_tokens = f->sequences.max_seq_tokens;
    const int64_t n_decays = qr_delta_decays(f);
    const int64_t n_doubles = n_state + 3 * (int64_t)f->value_dim + 3 * (int64_t)f->key_dim + n_decays;
    return (size_t)n_doubles * sizeof(double) + (size_t)n_decays * sizeof(qr_ref_delta_decay) +
           (size_t)((n_tokens + 1) * n_state) * sizeof(float);
}
