/* state_space_backward. */
#include <math.h>
#include <string.h>

#include "kernels/ref/state_space.h"

/* The workspace: of one head of one sequence, the state before every token, [n + 1, state_dim, head_dim], and the
 * gradient of the state after the one that runs. */
typedef struct space_head {
    const qr_state_space_backward_args *args;
    int32_t head;
    float *states;
    double *dstate; /* [state_dim, head_dim] */
    double da_log, ddt_bias, dskip;
} space_head;

static int64_t state_elements(const qr_state_space_args *f) { return (int64_t)f->state_dim * f->head_dim; }

static void keep_states(const space_head *h, int64_t first, int64_t n) {
    const qr_state_space_args *f = &h->args->forward;
    const size_t n_bytes = (size_t)state_elements(f) * sizeof(float);
    memset(h->states, 0, n_bytes);
    for (int64_t t = 0; t < n; t++) {
        float *after = h->states + (t + 1) * state_elements(f);
        qr_ref_state_space_inputs in;
        qr_ref_state_space_token(f, first + t, h->head, &in);
        memcpy(after, after - state_elements(f), n_bytes);
        for (int32_t j = 0; j < f->head_dim; j++) { (void)qr_ref_state_space_column(f, &in, after, j); }
    }
}

/* Row i of the state after the token: the gradients of B[i] and C[i] grow, and so does `dinput`, that of step · x. The
 * gradient of the state becomes that of the one before. Returns the row's part of ddecay. */
static double row_backward(space_head *h, const qr_ref_state_space_inputs *in, const float *before, const float *dy,
                           int32_t i, double *dinput, float *row) {
    const qr_state_space_args *f = &h->args->forward;
    double db = 0.0, dc = 0.0, ddecay = 0.0;
    for (int32_t j = 0; j < f->head_dim; j++) {
        const int64_t at = (int64_t)i * f->head_dim + j;
        const double input = in->step * (double)in->x[j], old = (double)before[at];
        double *dstate = &h->dstate[at];
        *dstate += (double)in->c[i] * (double)dy[j];
        dc += (in->decay * old + (double)in->b[i] * input) * (double)dy[j];
        db += *dstate * input;
        dinput[j] += *dstate * (double)in->b[i];
        ddecay += *dstate * old;
        *dstate *= in->decay;
    }
    row[in->b_at + i] = (float)((double)row[in->b_at + i] + db);
    row[in->c_at + i] = (float)((double)row[in->c_at + i] + dc);
    return ddecay;
}

static void token_backward(space_head *h, int64_t token, const float *before, double *dinput) {
    const qr_state_space_backward_args *args = h->args;
    const qr_state_space_args *f = &args->forward;
    const float *dy = args->dy + (token * f->n_heads + h->head) * f->head_dim;
    float *row = args->dxbc + token * args->dxbc_stride;
    double ddecay = 0.0, dstep = 0.0;
    qr_ref_state_space_inputs in;
    qr_ref_state_space_token(f, token, h->head, &in);
    memset(dinput, 0, (size_t)f->head_dim * sizeof *dinput);
    for (int32_t i = 0; i < f->state_dim; i++) { ddecay += row_backward(h, &in, before, dy, i, dinput, row); }
    for (int32_t j = 0; j < f->head_dim; j++) {
        row[in.x_at + j] = (float)(in.step * dinput[j] + (double)f->skip[h->head] * (double)dy[j]);
        dstep += dinput[j] * (double)in.x[j];
        h->dskip += (double)in.x[j] * (double)dy[j];
    }
    const double dexponent = in.decay * ddecay; /* of −rate · step */
    const double ddt = (dstep - in.rate * dexponent) * in.slope;
    args->ddt[token * args->ddt_stride + h->head] = (float)ddt;
    h->da_log -= dexponent * in.rate * in.step;
    h->ddt_bias += ddt;
}

/* B and C of a group are all its heads'. */
static void clear_keys(const qr_state_space_backward_args *args) {
    const qr_state_space_args *f = &args->forward;
    const size_t n_bytes = 2 * (size_t)f->n_groups * (size_t)f->state_dim * sizeof(float);
    const int64_t values = (int64_t)f->n_heads * f->head_dim;
    for (int64_t t = 0; t < f->n_tokens; t++) { memset(args->dxbc + t * args->dxbc_stride + values, 0, n_bytes); }
}

static void add_to(float *sums, int32_t head, double x) {
    if (sums != NULL) { sums[head] = (float)((double)sums[head] + x); }
}

void qr_ref_state_space_backward(const qr_state_space_backward_args *args, void *workspace) {
    const qr_state_space_args *f = &args->forward;
    const int64_t n_state = state_elements(f);
    double *dstate = workspace, *dinput = dstate + n_state;
    clear_keys(args);
    for (int32_t head = 0; head < f->n_heads; head++) {
        space_head h = {
            .args = args, .head = head, .dstate = dstate, .states = (float *)(dinput + (int64_t)f->head_dim)};
        for (int32_t s = 0; s < f->sequences.n_seqs; s++) {
            const int64_t first = f->sequences.start[s], n = f->sequences.start[s + 1] - first;
            keep_states(&h, first, n);
            memset(dstate, 0, (size_t)n_state * sizeof *dstate);
            for (int64_t t = n; t-- > 0;) { token_backward(&h, first + t, h.states + t * n_state, dinput); }
        }
        add_to(args->da_log, head, h.da_log);
        add_to(args->ddt_bias, head, h.ddt_bias);
        add_to(args->dskip, head, h.dskip);
    }
}

size_t qr_ref_state_space_backward_workspace(const qr_state_space_backward_args *args) {
    const qr_state_space_args *f = &args->forward;
    const int64_t n_state = state_elements(f), n_tokens = f->sequences.max_seq_tokens;
    return (size_t)(n_state + f->head_dim) * sizeof(double) + (size_t)((n_tokens + 1) * n_state) * sizeof(float);
}
