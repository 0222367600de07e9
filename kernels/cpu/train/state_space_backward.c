/* state_space_backward. Heads of a group add to the same gradients of B and C, so a part of them is a task: it has sums
 * of its own, and the op's end adds those up. */
#include "kernels/cpu/state_space_step.h"

struct call {
    const qr_state_space_backward_args *args;
    qr_space_partial partial;
    float *scratch;
};

/* A head of a sequence. */
struct head_task {
    const struct call *call;
    qr_space_scratch s;
    int64_t first, n; /* tokens */
    int32_t head;
    float *keys; /* [n_tokens, 2, state_dim] of its part */
    float da_log, ddt_bias, dskip;
};

static int64_t state_floats(const qr_state_space_args *f) { return (int64_t)f->state_dim * f->head_dim; }

/* ---- States, computed again -------------------------------------------------------------------------------------- */

static void step(const struct head_task *h, int64_t token, const float *before, float *after) {
    const qr_state_space_args *f = &h->call->args->forward;
    const space_token in = space_token_at(f, token, h->head);
    space_columns(&in, f->state_dim, before, after, f->head_dim, 0, NULL, f->head_dim);
}

/* The state before each block, from which its other states follow. */
static void keep_borders(const struct head_task *h) {
    const int64_t state = state_floats(&h->call->args->forward);
    float *at = h->s.borders;
    memset(at, 0, (size_t)state * sizeof *at);
    for (int64_t first = 0; first + QR_SPACE_BLOCK_TOKENS < h->n; first += QR_SPACE_BLOCK_TOKENS) {
        float *next = at + state;
        step(h, h->first + first, at, next);
        for (int64_t t = 1; t < QR_SPACE_BLOCK_TOKENS; t++) { step(h, h->first + first + t, next, next); }
        at = next;
    }
}

static void fill_block(const struct head_task *h, int64_t block, int64_t n) {
    const int64_t state = state_floats(&h->call->args->forward);
    memcpy(h->s.states, h->s.borders + block * state, (size_t)state * sizeof(float));
    for (int64_t t = 0; t < n; t++) {
        step(h, h->first + block * QR_SPACE_BLOCK_TOKENS + t, h->s.states + t * state, h->s.states + (t + 1) * state);
    }
}

/* ---- A token ----------------------------------------------------------------------------------------------------- */

/* The gradient of the state becomes that of the one before; keys grow, and so does dinput. Returns ddecay. */
static float rows_backward(const struct head_task *h, const space_token *in, const float *before, const float *dy,
                           float *keys) {
    const qr_state_space_args *f = &h->call->args->forward;
    const int64_t n = f->head_dim, n_rows = f->state_dim;
    const float *after = before + state_floats(f);
    const qr_vec decay = qr_vec_set1(in->decay);
    qr_vec ddecay = qr_vec_zero();
    for (int64_t i = 0; i < n_rows; i++) {
        const qr_vec b = qr_vec_set1(in->b[i]), c = qr_vec_set1(in->c[i]);
        qr_vec db = qr_vec_zero(), dc = qr_vec_zero();
        for (int64_t j = 0; j < n; j += QR_VEC) {
            const int64_t at = i * n + j, left = n - j;
            const qr_vec of_y = qr_vec_load_n(dy + j, left);
            const qr_vec dstate = qr_vec_fma(c, of_y, qr_vec_load_n(h->s.dstate + at, left));
            dc = qr_vec_fma(qr_vec_load_n(after + at, left), of_y, dc);
            db = qr_vec_fma(dstate, qr_vec_load_n(h->s.input + j, left), db);
            ddecay = qr_vec_fma(dstate, qr_vec_load_n(before + at, left), ddecay);
            qr_vec_store_n(h->s.dinput + j, qr_vec_fma(dstate, b, qr_vec_load_n(h->s.dinput + j, left)), left);
            qr_vec_store_n(h->s.dstate + at, qr_vec_mul(decay, dstate), left);
        }
        keys[i] += qr_vec_sum(db);
        keys[n_rows + i] += qr_vec_sum(dc);
    }
    return qr_vec_sum(ddecay);
}

static void token_backward(struct head_task *h, int64_t token, const float *before) {
    const qr_state_space_backward_args *args = h->call->args;
    const qr_state_space_args *f = &args->forward;
    const int64_t n = f->head_dim;
    const space_token in = space_token_at(f, token, h->head);
    const float *dy = args->dy + (token * f->n_heads + h->head) * n;
    float *dx = args->dxbc + token * args->dxbc_stride + (int64_t)h->head * n;
    const qr_vec by_step = qr_vec_set1(in.step), by_skip = qr_vec_set1(in.skip);
    qr_vec dstep = qr_vec_zero(), dskip = qr_vec_zero();
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec_store_n(h->s.input + j, qr_vec_mul(by_step, qr_vec_load_n(in.x + j, n - j)), n - j);
        qr_vec_store_n(h->s.dinput + j, qr_vec_zero(), n - j);
    }
    const float ddecay = rows_backward(h, &in, before, dy, h->keys + token * 2 * f->state_dim);
    for (int64_t j = 0; j < n; j += QR_VEC) {
        const qr_vec x = qr_vec_load_n(in.x + j, n - j), dinput = qr_vec_load_n(h->s.dinput + j, n - j);
        const qr_vec of_y = qr_vec_load_n(dy + j, n - j);
        qr_vec_store_n(dx + j, qr_vec_fma(by_skip, of_y, qr_vec_mul(by_step, dinput)), n - j);
        dstep = qr_vec_fma(dinput, x, dstep);
        dskip = qr_vec_fma(of_y, x, dskip);
    }
    const float rate = expf(f->a_log[h->head]), dexponent = in.decay * ddecay; /* of −rate · step */
    const float slope = recurrence_sigmoid(f->dt[token * f->dt_stride + h->head] + f->dt_bias[h->head]);
    const float ddt = (qr_vec_sum(dstep) - rate * dexponent) * slope;
    args->ddt[token * args->ddt_stride + h->head] = ddt;
    h->da_log -= dexponent * rate * in.step;
    h->ddt_bias += ddt;
    h->dskip += qr_vec_sum(dskip);
}

static void head_backward(struct head_task *h) {
    const int64_t state = state_floats(&h->call->args->forward);
    memset(h->s.dstate, 0, (size_t)state * sizeof(float));
    keep_borders(h);
    for (int64_t block = qr_ceil_div(h->n, QR_SPACE_BLOCK_TOKENS); block-- > 0;) {
        const int64_t first = block * QR_SPACE_BLOCK_TOKENS, n = qr_min(h->n - first, QR_SPACE_BLOCK_TOKENS);
        fill_block(h, block, n);
        for (int64_t t = n; t-- > 0;) { token_backward(h, h->first + first + t, h->s.states + t * state); }
    }
}

/* ---- The op ------------------------------------------------------------------------------------------------------ */

/* A part of the heads of a group of a sequence. */
static void run_task(void *arg, int64_t index, int worker) {
    const struct call *call = arg;
    const qr_state_space_args *f = &call->args->forward;
    const int64_t parts = qr_space_parts(f), part = index % parts, group = index / parts % f->n_groups;
    const int64_t s = index / parts / f->n_groups, per_group = f->n_heads / f->n_groups;
    struct head_task h = {.call = call,
                          .first = f->sequences.start[s],
                          .keys = call->partial.keys + (group * parts + part) * f->n_tokens * 2 * f->state_dim};
    const int64_t n_floats = qr_space_scratch_lay(f, NULL, &h.s);
    (void)qr_space_scratch_lay(f, call->scratch + worker * n_floats, &h.s);
    h.n = f->sequences.start[s + 1] - h.first;
    memset(h.keys + h.first * 2 * f->state_dim, 0, (size_t)(h.n * 2 * f->state_dim) * sizeof(float));
    for (int64_t i = qr_space_part_begin(f, part); i < qr_space_part_begin(f, part + 1); i++) {
        h.head = (int32_t)(group * per_group + i);
        h.da_log = h.ddt_bias = h.dskip = 0.0F;
        head_backward(&h);
        float *sums = call->partial.sums + (s * f->n_heads + h.head) * QR_SPACE_SUMS;
        sums[0] = h.da_log;
        sums[1] = h.ddt_bias;
        sums[2] = h.dskip;
    }
}

/* B and C of a token's groups: the parts' sums in order. */
static void add_keys(const void *arg, int64_t begin, int64_t end) {
    const struct call *call = arg;
    const qr_state_space_args *f = &call->args->forward;
    const int64_t parts = qr_space_parts(f), n = f->state_dim, values = (int64_t)f->n_heads * f->head_dim;
    for (int64_t t = begin; t < end; t++) {
        float *row = call->args->dxbc + t * call->args->dxbc_stride + values;
        for (int64_t i = 0; i < 2 * (int64_t)f->n_groups; i++) {
            const int64_t group = i % f->n_groups, of_c = i / f->n_groups;
            float *dst = row + i * n;
            for (int64_t j = 0; j < n; j += QR_VEC) {
                qr_vec sum = qr_vec_zero();
                for (int64_t part = 0; part < parts; part++) {
                    const int64_t at = ((group * parts + part) * f->n_tokens + t) * 2 + of_c;
                    sum = qr_vec_add(sum, qr_vec_load_n(call->partial.keys + at * n + j, n - j));
                }
                qr_vec_store_n(dst + j, sum, n - j);
            }
        }
    }
}

static void add_sums(const struct call *call) {
    const qr_state_space_backward_args *a = call->args;
    float *const dst[QR_SPACE_SUMS] = {a->da_log, a->ddt_bias, a->dskip};
    for (int64_t i = 0; i < (int64_t)a->forward.sequences.n_seqs * a->forward.n_heads; i++) {
        for (int k = 0; k < QR_SPACE_SUMS; k++) {
            if (dst[k] != NULL) { dst[k][i % a->forward.n_heads] += call->partial.sums[i * QR_SPACE_SUMS + k]; }
        }
    }
}

void QR_ISA(qr_cpu_state_space_backward)(const qr_backend *backend, const qr_state_space_backward_args *args,
                                         void *workspace) {
    const qr_state_space_args *f = &args->forward;
    const int64_t parts = qr_space_parts(f), groups = f->n_groups;
    struct call call = {.args = args};
    call.scratch = (float *)workspace + qr_space_partial_lay(f, workspace, &call.partial);
    qr_threads_run(backend->threads, f->sequences.n_seqs * groups * parts, run_task, &call);
    qr_cpu_run_ranges(backend, f->n_tokens, 2 * groups * parts * f->state_dim, add_keys, &call);
    add_sums(&call);
}
