/* gated_delta_backward. A key head of a sequence is a task: its value heads add to the same gradients, in order. */
#include "kernels/cpu/delta_step.h"
#include "kernels/cpu/norm_sums.h"
#include "kernels/cpu/simd/vec_slopes.h"

struct call {
    const qr_gated_delta_backward_args *args;
    qr_delta_tokens tokens;
    float *sums; /* [n_seqs, n_value_heads, 1 + qr_delta_decays]: da_log, ddt_bias */
    float *scratch;
};

/* A value head of a sequence. */
struct head_task {
    const struct call *call;
    qr_delta_backward_scratch s;
    int64_t first, n; /* tokens */
    int32_t head, key_head;
    float *da_log, *ddt_bias; /* [1], [qr_delta_decays] */
};

static int64_t state_floats(const qr_gated_delta_args *f) { return (int64_t)f->key_dim * f->value_dim; }

/* ---- States, computed again -------------------------------------------------------------------------------------- */

static void step(const struct head_task *h, int64_t token, const float *before, float *after, float *error) {
    const qr_gated_delta_args *f = &h->call->args->forward;
    const delta_token in = delta_token_at(f, &h->call->tokens, token, h->head);
    const float *v =
        f->qkv + token * f->qkv_stride + 2 * (int64_t)f->n_key_heads * f->key_dim + (int64_t)h->head * f->value_dim;
    delta_columns(&in, f->key_dim, before, after, f->value_dim, v, NULL, error, f->value_dim);
}

/* The state before each block, from which its other states follow. */
static void keep_borders(const struct head_task *h) {
    const int64_t state = state_floats(&h->call->args->forward);
    float *at = h->s.borders;
    memset(at, 0, (size_t)state * sizeof *at);
    for (int64_t first = 0; first + QR_DELTA_BLOCK_TOKENS < h->n; first += QR_DELTA_BLOCK_TOKENS) {
        float *next = at + state;
        step(h, h->first + first, at, next, NULL);
        for (int64_t t = 1; t < QR_DELTA_BLOCK_TOKENS; t++) { step(h, h->first + first + t, next, next, NULL); }
        at = next;
    }
}

static void fill_block(const struct head_task *h, int64_t block, int64_t n) {
    const qr_gated_delta_args *f = &h->call->args->forward;
    const int64_t state = state_floats(f), first = h->first + block * QR_DELTA_BLOCK_TOKENS;
    memcpy(h->s.states, h->s.borders + block * state, (size_t)state * sizeof(float));
    for (int64_t t = 0; t < n; t++) {
        step(h, first + t, h->s.states + t * state, h->s.states + (t + 1) * state, h->s.errors + t * f->value_dim);
    }
}

/* ---- A token ----------------------------------------------------------------------------------------------------- */

/* Sum over a row, in an order that its length alone decides. */
static float dot(const float *x, const float *y, int64_t n) {
    qr_vec sum = qr_vec_zero();
    for (int64_t j = 0; j < n; j += QR_VEC) {
        sum = qr_vec_fma(qr_vec_load_n(x + j, n - j), qr_vec_load_n(y + j, n - j), sum);
    }
    return qr_vec_sum(sum);
}

/* dst [n] = x · factor */
static void scale_row(const float *x, float factor, int64_t n, float *dst) {
    const qr_vec by = qr_vec_set1(factor);
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec_store_n(dst + j, qr_vec_mul(qr_vec_load_n(x + j, n - j), by), n - j);
    }
}

/* The gradient dy of the output enters that of the state; ddelta [value_dim] = dstateᵀ k'. */
static void enter(const struct head_task *h, const delta_token *in, const float *dy) {
    const qr_gated_delta_args *f = &h->call->args->forward;
    const int64_t n = f->value_dim;
    memset(h->s.ddelta, 0, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < f->key_dim; i++) {
        const qr_vec q = qr_vec_set1(in->q[i]), k = qr_vec_set1(in->k[i]);
        float *row = h->s.dstate + i * n;
        for (int64_t j = 0; j < n; j += QR_VEC) {
            const int64_t left = n - j;
            const qr_vec dstate = qr_vec_fma(q, qr_vec_load_n(dy + j, left), qr_vec_load_n(row + j, left));
            qr_vec_store_n(row + j, dstate, left);
            qr_vec_store_n(h->s.ddelta + j, qr_vec_fma(k, dstate, qr_vec_load_n(h->s.ddelta + j, left)), left);
        }
    }
}

/* The gradients of q', k' and decay, and that of the state before the token. Returns ddecay, or by_channel fills
 * s.ddecays. */
QR_INLINE float leave(const struct head_task *h, const delta_token *in, const float *before, const float *dy,
                      bool by_channel) {
    const qr_gated_delta_args *f = &h->call->args->forward;
    const int64_t n = f->value_dim;
    const qr_vec of_all = qr_vec_set1(in->decay);
    float ddecay = 0.0F;
    for (int64_t i = 0; i < f->key_dim; i++) {
        const qr_vec k = qr_vec_set1(in->k[i]), decay = by_channel ? qr_vec_set1(in->decays[i]) : of_all;
        const float *old_row = before + i * n;
        float *row = h->s.dstate + i * n;
        qr_vec dq = qr_vec_zero(), dk = qr_vec_zero(), dd = qr_vec_zero();
        for (int64_t j = 0; j < n; j += QR_VEC) {
            const int64_t left = n - j;
            const qr_vec old = qr_vec_load_n(old_row + j, left), dstate = qr_vec_load_n(row + j, left);
            const qr_vec delta = qr_vec_load_n(h->s.delta + j, left), dread = qr_vec_load_n(h->s.dread + j, left);
            const qr_vec decayed = qr_vec_mul(decay, old), ddecayed = qr_vec_fma(k, dread, dstate);
            dq = qr_vec_fma(qr_vec_fma(k, delta, decayed), qr_vec_load_n(dy + j, left), dq);
            dk = qr_vec_fma(dstate, delta, qr_vec_fma(decayed, dread, dk));
            dd = qr_vec_fma(old, ddecayed, dd);
            qr_vec_store_n(row + j, qr_vec_mul(decay, ddecayed), left);
        }
        h->s.dkeys[i] = qr_vec_sum(dq);
        h->s.dkeys[f->key_dim + i] = qr_vec_sum(dk);
        if (by_channel) {
            h->s.ddecays[i] = qr_vec_sum(dd);
        } else {
            ddecay += qr_vec_sum(dd);
        }
    }
    return ddecay;
}

/* From s.ddecays to the gradients of a, a_log and dt_bias. */
static void channels_backward(const struct head_task *h, const delta_token *in, int64_t token) {
    const qr_gated_delta_backward_args *args = h->call->args;
    const qr_gated_delta_args *f = &args->forward;
    const int64_t dim = f->key_dim, first = h->head * dim;
    const float *a = f->a + token * f->ab_stride + first, *bias = f->dt_bias + first;
    float *da_row = args->da + token * args->dab_stride + first;
    const qr_vec rate = qr_vec_set1(-expf(f->a_log[h->head]));
    qr_vec da_log = qr_vec_zero();
    for (int64_t j = 0; j < dim; j += QR_VEC) {
        const int64_t left = dim - j;
        const qr_vec x = qr_vec_add(qr_vec_load_n(a + j, left), qr_vec_load_n(bias + j, left));
        const qr_vec decay = qr_vec_mul(rate, qr_vec_load_n(in->decays + j, left));
        const qr_vec dsoftplus = qr_vec_mul(decay, qr_vec_load_n(h->s.ddecays + j, left));
        qr_vec rest;
        const qr_vec da = qr_vec_mul(dsoftplus, qr_vec_sigmoid(x, &rest));
        qr_vec_store_n(da_row + j, da, left);
        qr_vec_store_n(h->ddt_bias + j, qr_vec_add(qr_vec_load_n(h->ddt_bias + j, left), da), left);
        da_log = qr_vec_fma(dsoftplus, qr_vec_softplus(x), da_log);
    }
    *h->da_log += qr_vec_sum(da_log);
}

static void head_decay_backward(const struct head_task *h, const delta_token *in, int64_t token, float ddecay) {
    const qr_gated_delta_args *f = &h->call->args->forward;
    const float x = f->a[token * f->ab_stride + h->head] + f->dt_bias[h->head];
    const float dsoftplus = -expf(f->a_log[h->head]) * in->decay * ddecay, da = dsoftplus * recurrence_sigmoid(x);
    h->call->args->da[token * h->call->args->dab_stride + h->head] = da;
    *h->da_log += dsoftplus * recurrence_softplus(x);
    *h->ddt_bias += da;
}

static void token_backward(const struct head_task *h, int64_t token, const float *before, const float *error) {
    const qr_gated_delta_backward_args *args = h->call->args;
    const qr_gated_delta_args *f = &args->forward;
    const int64_t n = f->value_dim, keys = (int64_t)f->n_key_heads * f->key_dim;
    const delta_token in = delta_token_at(f, &h->call->tokens, token, h->head);
    const float *dy = args->dy + (token * f->n_value_heads + h->head) * n;
    float *dq = args->dqkv + token * args->dqkv_stride + (int64_t)h->key_head * f->key_dim, *dk = dq + keys;
    enter(h, &in, dy);
    scale_row(error, in.beta, n, h->s.delta);
    scale_row(h->s.ddelta, -in.beta, n, h->s.dread);
    scale_row(h->s.ddelta, in.beta, n, args->dqkv + token * args->dqkv_stride + 2 * keys + (int64_t)h->head * n);
    const float dbeta = dot(h->s.ddelta, error, n);
    const float shut = recurrence_sigmoid(-f->b[token * f->ab_stride + h->head]);
    args->db[token * args->dab_stride + h->head] = dbeta * in.beta * shut;
    if (f->decays_channels) {
        (void)leave(h, &in, before, dy, true);
        channels_backward(h, &in, token);
    } else {
        head_decay_backward(h, &in, token, leave(h, &in, before, dy, false));
    }
    for (int64_t i = 0; i < f->key_dim; i++) {
        dq[i] += h->s.dkeys[i];
        dk[i] += h->s.dkeys[f->key_dim + i];
    }
}

static void head_backward(const struct head_task *h) {
    const qr_gated_delta_args *f = &h->call->args->forward;
    const int64_t state = state_floats(f), n_blocks = qr_ceil_div(h->n, QR_DELTA_BLOCK_TOKENS);
    memset(h->s.dstate, 0, (size_t)state * sizeof(float));
    keep_borders(h);
    for (int64_t b = n_blocks; b-- > 0;) {
        const int64_t first = b * QR_DELTA_BLOCK_TOKENS, n = qr_min(h->n - first, QR_DELTA_BLOCK_TOKENS);
        fill_block(h, b, n);
        for (int64_t t = n; t-- > 0;) {
            token_backward(h, h->first + first + t, h->s.states + t * state, h->s.errors + t * f->value_dim);
        }
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

/* In place, from the gradient of x' = factor · x / sqrt(sum x² + eps) to that of x. */
static void norm_backward(const float *x, float factor, int64_t n, float *dx) {
    const float inverse = 1.0F / sqrtf(sum_row(x, n, 0.0F, true) + QR_DELTA_EPS);
    const qr_vec scale = qr_vec_set1(factor * inverse), along = qr_vec_set1(inverse * inverse * dot(x, dx, n));
    for (int64_t j = 0; j < n; j += QR_VEC) {
        const qr_vec across = qr_vec_sub(qr_vec_load_n(dx + j, n - j), qr_vec_mul(qr_vec_load_n(x + j, n - j), along));
        qr_vec_store_n(dx + j, qr_vec_mul(scale, across), n - j);
    }
}

static void clear_keys(const qr_gated_delta_backward_args *args, int64_t first, int64_t n, int64_t key_head) {
    const qr_gated_delta_args *f = &args->forward;
    const size_t n_bytes = (size_t)f->key_dim * sizeof(float);
    for (int64_t t = first; t < first + n; t++) {
        float *dq = args->dqkv + t * args->dqkv_stride + key_head * f->key_dim;
        memset(dq, 0, n_bytes);
        memset(dq + (int64_t)f->n_key_heads * f->key_dim, 0, n_bytes);
    }
}

static void finish_keys(const qr_gated_delta_backward_args *args, int64_t first, int64_t n, int64_t key_head) {
    const qr_gated_delta_args *f = &args->forward;
    const int64_t dim = f->key_dim, keys = f->n_key_heads * dim;
    for (int64_t t = first; t < first + n; t++) {
        const float *q = f->qkv + t * f->qkv_stride + key_head * dim;
        float *dq = args->dqkv + t * args->dqkv_stride + key_head * dim;
        norm_backward(q, 1.0F / sqrtf((float)dim), dim, dq);
        norm_backward(q + keys, 1.0F, dim, dq + keys);
    }
}

static void run_task(void *arg, int64_t index, int worker) {
    const struct call *call = arg;
    const qr_gated_delta_args *f = &call->args->forward;
    const int64_t s = index / f->n_key_heads, key_head = index % f->n_key_heads;
    const int32_t per_key = f->n_value_heads / f->n_key_heads;
    struct head_task h = {.call = call, .first = f->sequences.start[s], .key_head = (int32_t)key_head};
    const int64_t n_floats = qr_delta_backward_scratch_lay(f, NULL, &h.s);
    (void)qr_delta_backward_scratch_lay(f, call->scratch + worker * n_floats, &h.s);
    h.n = f->sequences.start[s + 1] - h.first;
    clear_keys(call->args, h.first, h.n, key_head);
    for (int32_t i = 0; i < per_key; i++) {
        h.head = (int32_t)key_head * per_key + i;
        h.da_log = call->sums + (s * f->n_value_heads + h.head) * (1 + qr_delta_decays(f));
        h.ddt_bias = h.da_log + 1;
        memset(h.da_log, 0, (1 + (size_t)qr_delta_decays(f)) * sizeof(float));
        head_backward(&h);
    }
    finish_keys(call->args, h.first, h.n, key_head);
}

void QR_ISA(qr_cpu_gated_delta_backward)(const qr_backend *backend, const qr_gated_delta_backward_args *args,
                                         void *workspace) {
    const qr_gated_delta_args *f = &args->forward;
    struct call call = {.args = args};
    const size_t n_bytes = qr_delta_tokens_lay(f, workspace, &call.tokens);
    call.sums = (float *)(void *)((unsigned char *)workspace + n_bytes);
    call.scratch = call.sums + qr_delta_sums_floats(f);
    QR_ISA(qr_cpu_delta_prepare)(backend, f, &call.tokens);
    qr_threads_run(backend->threads, (int64_t)f->sequences.n_seqs * f->n_key_heads, run_task, &call);
    const int64_t n_decays = qr_delta_decays(f);
    for (int64_t i = 0; i < (int64_t)f->sequences.n_seqs * f->n_value_heads; i++) {
        const float *sums = call.sums + i * (1 + n_decays);
        const int64_t head = i % f->n_value_heads;
        if (args->da_log != NULL) { args->da_log[head] += sums[0]; }
        for (int64_t d = 0; args->ddt_bias != NULL && d < n_decays; d++) {
            args->ddt_bias[head * n_decays + d] += sums[1 + d];
        }
    }
}
