/* gated_delta and its gradient: against ref, and the same bits however sequences are cut into calls. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "op_sequences.h"

enum { MOST_KEYS = 128 };

typedef struct delta_case {
    int32_t key_heads, value_heads, key_dim, value_dim;
    int32_t n_decays; /* of a head: 1, or key_dim */
    sequences q;
    float *qkv, *ab, *a_log, *dt_bias, *states, *dy, *sums;
    int32_t cut; /* a call computes so many tokens of one sequence; 0: one call for all */
    bool doubles_beta, decays_channels;
    bool without_states; /* as training runs it */
} delta_case;

typedef struct delta_shape {
    int32_t key_heads, value_heads, key_dim, value_dim;
    bool doubles_beta, decays_channels;
} delta_shape;

static int64_t columns_of(const delta_case *c) {
    return 2 * (int64_t)c->key_heads * c->key_dim + (int64_t)c->value_heads * c->value_dim;
}
static int64_t values_of(const delta_case *c) { return (int64_t)c->value_heads * c->value_dim; }
static int64_t state_of(const delta_case *c) { return values_of(c) * c->key_dim; }
static int64_t qkv_stride(const delta_case *c) { return columns_of(c) + 3; }
static int64_t decays_of(const delta_case *c) { return (int64_t)c->value_heads * c->n_decays; }
static int64_t ab_columns(const delta_case *c) { return decays_of(c) + c->value_heads; }
static int64_t ab_stride(const delta_case *c) { return ab_columns(c) + 1; }
static int64_t state_stride(const delta_case *c) { return state_of(c) + 5; }

/* Keys of all sizes; states that decay within some tokens, so that bounds, which add up magnitudes, stay small. */
static delta_case make_case(const delta_shape *shape, int32_t n_seqs, const int32_t *lengths) {
    delta_case c = {.key_heads = shape->key_heads,
                    .value_heads = shape->value_heads,
                    .key_dim = shape->key_dim,
                    .value_dim = shape->value_dim,
                    .n_decays = shape->decays_channels ? shape->key_dim : 1,
                    .doubles_beta = shape->doubles_beta,
                    .decays_channels = shape->decays_channels,
                    .q = sequences_of(n_seqs, lengths)};
    c.qkv = op_normals(c.q.n_tokens * qkv_stride(&c), 1, 1.0);
    c.ab = op_normals(c.q.n_tokens * ab_stride(&c), 2, 1.0);
    c.a_log = op_normals(c.value_heads, 3, 0.3);
    c.dt_bias = op_normals(decays_of(&c), 4, 0.5);
    c.states = op_normals(n_seqs * state_stride(&c), 5, 0.5);
    c.dy = op_normals(c.q.n_tokens * values_of(&c), 6, 1.0);
    c.sums = op_normals(ab_columns(&c), 7, 1.0);
    for (int32_t h = 0; h < c.value_heads; h++) { c.a_log[h] += 0.5F; }
    for (int64_t d = 0; d < decays_of(&c); d++) { c.dt_bias[d] += 0.5F; }
    return c;
}

static void free_case(const delta_case *c) {
    float *const all[] = {c->qkv, c->ab, c->a_log, c->dt_bias, c->states, c->dy, c->sums};
    for (size_t i = 0; i < QR_COUNT_OF(all); i++) { qr_free(all[i]); }
}

static qr_gated_delta_args inputs_of(op_run *run, const delta_case *c) {
    const float *ab = op_input(run, c->ab, (size_t)(c->q.n_tokens * ab_stride(c)) * sizeof(float));
    return (qr_gated_delta_args){
        .qkv = op_input(run, c->qkv, (size_t)(c->q.n_tokens * qkv_stride(c)) * sizeof(float)),
        .a = ab,
        .b = ab + decays_of(c),
        .a_log = op_input(run, c->a_log, (size_t)c->value_heads * sizeof(float)),
        .dt_bias = op_input(run, c->dt_bias, (size_t)decays_of(c) * sizeof(float)),
        .n_tokens = c->q.n_tokens,
        .qkv_stride = qkv_stride(c),
        .ab_stride = ab_stride(c),
        .n_key_heads = c->key_heads,
        .n_value_heads = c->value_heads,
        .key_dim = c->key_dim,
        .value_dim = c->value_dim,
        .doubles_beta = c->doubles_beta,
        .decays_channels = c->decays_channels,
    };
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static void call_in_parts(op_run *run, const delta_case *c, qr_gated_delta_args args, float *states) {
    static call_tables calls[MAX_CALLS];
    int32_t n_calls;
    const call_tables *tables = list_calls(run, &c->q, c->cut, calls, &n_calls);
    const qr_gated_delta_args all = args;
    for (int32_t i = 0; i < n_calls; i++) {
        const int64_t first = calls[i].first_token;
        args.qkv = all.qkv + first * all.qkv_stride;
        args.a = all.a + first * all.ab_stride;
        args.b = all.b + first * all.ab_stride;
        args.dst = all.dst + first * values_of(c);
        args.n_tokens = calls[i].start[1];
        args.sequences = sequence_of_call(&tables[i], states, state_stride(c));
        op_call(run, QR_OP_gated_delta, &args);
    }
}

static void run_delta(op_run *run, const delta_case *c, float *outputs, float *states) {
    qr_gated_delta_args args = inputs_of(run, c);
    const size_t row_bytes = (size_t)values_of(c) * sizeof(float);
    float *kept = c->without_states ? NULL : states_output(run, &c->q, c->states, state_of(c), state_stride(c));
    args.dst = op_output(run, NULL, c->q.n_tokens, row_bytes, row_bytes);
    if (c->cut > 0) {
        call_in_parts(run, c, args, kept);
    } else {
        args.sequences = whole_sequences(run, &c->q, kept, state_stride(c));
        op_call(run, QR_OP_gated_delta, &args);
    }
    if (outputs != NULL) { op_read(run, args.dst, outputs); }
    if (states != NULL) { op_read(run, kept, states); }
}

static void exec_outputs(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    run_delta(run, data, out, NULL);
}

static void exec_states(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    run_delta(run, data, NULL, out);
}

/* A token of a value head: what enters the recurrence, and magnitudes that its sums add up. */
typedef struct token_sizes {
    double q_scale, k_scale, beta, b_sigmoid, rate;
    double decay[MOST_KEYS], slope[MOST_KEYS], softplus[MOST_KEYS]; /* of every row of the state */
    const float *q, *k, *v;
} token_sizes;

static token_sizes sizes_at(const delta_case *c, int64_t token, int32_t head) {
    const float *row = c->qkv + token * qkv_stride(c), *ab = c->ab + token * ab_stride(c);
    const int64_t keys = (int64_t)c->key_heads * c->key_dim;
    token_sizes t = {.q = row + (int64_t)(head / (c->value_heads / c->key_heads)) * c->key_dim};
    t.k = t.q + keys;
    t.v = row + 2 * keys + (int64_t)head * c->value_dim;
    double q = 1e-6, k = 1e-6;
    for (int32_t i = 0; i < c->key_dim; i++) {
        q += (double)t.q[i] * (double)t.q[i];
        k += (double)t.k[i] * (double)t.k[i];
    }
    t.q_scale = 1.0 / sqrt(q * (double)c->key_dim);
    t.k_scale = 1.0 / sqrt(k);
    t.rate = exp((double)c->a_log[head]);
    for (int32_t i = 0; i < c->key_dim; i++) {
        const int64_t at = (int64_t)head * c->n_decays + (c->decays_channels ? i : 0);
        const double x = (double)ab[at] + (double)c->dt_bias[at];
        t.softplus[i] = log1p(exp(x));
        t.slope[i] = 1.0 / (1.0 + exp(-x));
        t.decay[i] = exp(-t.rate * t.softplus[i]);
    }
    t.b_sigmoid = 1.0 / (1.0 + exp(-(double)ab[decays_of(c) + head]));
    t.beta = t.b_sigmoid * (c->doubles_beta ? 2.0 : 1.0);
    return t;
}

static double q_at(const token_sizes *t, int32_t i) { return fabs((double)t->q[i]) * t->q_scale; }
static double k_at(const token_sizes *t, int32_t i) { return fabs((double)t->k[i]) * t->k_scale; }

/* One token on magnitudes of the state's column j: all terms with their absolute values. Returns that of delta. */
static double grow_column(const delta_case *c, const token_sizes *t, double *state, int32_t j) {
    double read = 0.0;
    for (int32_t i = 0; i < c->key_dim; i++) { read += t->decay[i] * state[i * c->value_dim + j] * k_at(t, i); }
    const double delta = t->beta * (fabs((double)t->v[j]) + read);
    for (int32_t i = 0; i < c->key_dim; i++) {
        double *element = &state[i * c->value_dim + j];
        *element = t->decay[i] * *element + k_at(t, i) * delta;
    }
    return delta;
}

/* Every token adds at most key_dim and a few roundings of the terms that its sums add up, to what the state already
 * errs by. */
static double roundings(const delta_case *c, int64_t token) {
    return (double)(c->key_dim + 32) * (double)(token + 2) * OP_U;
}

static void forward_bounds(const delta_case *c, double *outputs, double *states) {
    double *state = op_doubles(state_of(c) / c->value_heads);
    for (int32_t s = 0; s < c->q.n_seqs; s++) {
        const bool has_slot = !c->without_states && c->q.slot[s] >= 0;
        for (int32_t h = 0; h < c->value_heads; h++) {
            const int64_t n = (int64_t)c->key_dim * c->value_dim;
            const float *initial = c->states + (has_slot ? c->q.slot[s] : 0) * state_stride(c) + h * n;
            const bool goes_on = has_slot && c->q.first_position[s] > 0;
            for (int64_t i = 0; i < n; i++) { state[i] = goes_on ? fabs((double)initial[i]) : 0.0; }
            for (int64_t t = c->q.start[s]; t < c->q.start[s + 1]; t++) {
                const token_sizes sizes = sizes_at(c, t, h);
                for (int32_t j = 0; j < c->value_dim; j++) {
                    (void)grow_column(c, &sizes, state, j);
                    double out = 0.0;
                    for (int32_t i = 0; i < c->key_dim; i++) { out += state[i * c->value_dim + j] * q_at(&sizes, i); }
                    outputs[t * values_of(c) + h * c->value_dim + j] = 2.0 * roundings(c, t - c->q.start[s]) * out;
                }
            }
            for (int64_t i = 0; has_slot && i < n; i++) {
                states[c->q.slot[s] * state_of(c) + h * n + i] =
                    roundings(c, c->q.start[s + 1] - c->q.start[s]) * state[i];
            }
        }
    }
    qr_free(state);
}

/* Each device: sequences in calls of `cut` tokens have the bits of one call for all. */
static void check_cuts(const delta_case *whole, int32_t cut) {
    const size_t out_bytes = (size_t)(whole->q.n_tokens * values_of(whole)) * sizeof(float);
    const size_t state_bytes = (size_t)(whole->q.n_seqs * state_of(whole)) * sizeof(float);
    float *outputs[2] = {qr_alloc(out_bytes), qr_alloc(out_bytes)};
    float *states[2] = {qr_alloc(state_bytes), qr_alloc(state_bytes)};
    for (int d = -1; d < op_everything.n_devices; d++) {
        for (int i = 0; i < 2; i++) {
            delta_case c = *whole;
            c.cut = i == 0 ? 0 : cut;
            op_run run = {.backend = d < 0 ? op_everything.ref : op_everything.devices[d].backends[1],
                          .label = "gated_delta in parts"};
            run_delta(&run, &c, outputs[i], states[i]);
            op_run_end(&run);
        }
        const char *label = d < 0 ? "ref" : op_everything.devices[d].label;
        CHECK_MSG(memcmp(outputs[0], outputs[1], out_bytes) == 0, "%s: calls of %d tokens give other outputs", label,
                  cut);
        CHECK_MSG(memcmp(states[0], states[1], state_bytes) == 0, "%s: calls of %d tokens give other states", label,
                  cut);
    }
    for (int i = 0; i < 2; i++) {
        qr_free(outputs[i]);
        qr_free(states[i]);
    }
}

static void check_gated_delta(delta_case c) {
    double *outputs = op_doubles(c.q.n_tokens * values_of(&c)), *states = op_doubles(c.q.n_seqs * state_of(&c));
    op_case oc = {.n_rows = c.q.n_tokens,
                  .row = values_of(&c),
                  .exec = exec_outputs,
                  .data = &c,
                  .bound = outputs,
                  .whole = true};
    snprintf(oc.label, sizeof oc.label, "gated_delta %d heads of %d and %d of %d, %d tokens%s%s", c.key_heads,
             c.key_dim, c.value_heads, c.value_dim, c.q.n_tokens, c.decays_channels ? ", by channel" : "",
             c.without_states ? ", no states" : "");
    forward_bounds(&c, outputs, states);
    op_check_case(&oc, QR_DTYPE_F32);
    if (!c.without_states) {
        oc.n_rows = c.q.n_seqs;
        oc.row = state_of(&c);
        oc.exec = exec_states;
        oc.bound = states;
        op_check_case(&oc, QR_DTYPE_F32);
    }
    qr_free(outputs);
    qr_free(states);
}

static const delta_shape shapes[] = {
    {1, 1, 1, 1, false, false},   {2, 6, 5, 7, false, false},     {3, 3, 24, 17, false, false},
    {1, 2, 64, 80, false, false}, {2, 4, 128, 128, false, false}, {2, 2, 20, 40, true, false},
    {1, 1, 1, 1, false, true},    {2, 6, 5, 7, false, true},      {3, 3, 33, 17, true, true},
    {1, 2, 64, 80, false, true},  {2, 2, 128, 128, false, true}};

void test_op_gated_delta(void) {
    static const int32_t lengths[] = {33, 7, 1, 20};
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) {
        delta_case c = make_case(&shapes[i], shapes[i].key_dim == 1 ? 1 : 4, lengths);
        check_gated_delta(c);
        c.without_states = true;
        check_gated_delta(c);
        c.without_states = false;
        for (int32_t cut = 1; cut <= 16; cut *= 4) { check_cuts(&c, cut); }
        free_case(&c);
    }
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

typedef enum delta_gradient { OF_QKV, OF_AB, OF_SUMS } delta_gradient;

typedef struct backward_case {
    const delta_case *c;
    delta_gradient which;
} backward_case;

static void exec_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    const backward_case *b = data;
    const delta_case *c = b->c;
    const size_t qkv_bytes = (size_t)columns_of(c) * sizeof(float), ab_bytes = (size_t)ab_columns(c) * sizeof(float);
    float *dqkv = op_output(run, NULL, c->q.n_tokens, qkv_bytes, qkv_bytes + 12);
    float *dab = op_output(run, NULL, c->q.n_tokens, ab_bytes, ab_bytes + 4);
    float *sums = op_output(run, c->sums, 1, ab_bytes, ab_bytes);
    qr_gated_delta_backward_args args = {.forward = inputs_of(run, c),
                                         .dy = op_input(run, c->dy, (size_t)(c->q.n_tokens * values_of(c)) * 4),
                                         .dqkv = dqkv,
                                         .da = dab,
                                         .db = dab + decays_of(c),
                                         .da_log = sums,
                                         .ddt_bias = sums + c->value_heads,
                                         .dqkv_stride = columns_of(c) + 3,
                                         .dab_stride = ab_stride(c)};
    args.forward.sequences = whole_sequences(run, &c->q, NULL, 0);
    op_call(run, QR_OP_gated_delta_backward, &args);
    op_read(run, b->which == OF_QKV ? dqkv : b->which == OF_AB ? dab : sums, out);
}

/* The gradient on magnitudes: every term of ref/backward_delta.c with its absolute value. */
typedef struct magnitudes {
    const delta_case *c;
    double *states; /* [longest + 1, key_dim, value_dim] */
    double *deltas; /* [longest, value_dim] */
    double *dstate;
    double *qkv, *ab, *sums; /* results */
} magnitudes;

static void add_normed(const float *x, double scale, double inverse_square, const double *dnormed, int32_t n,
                       double *dx) {
    double dot = 0.0;
    for (int32_t i = 0; i < n; i++) { dot += fabs((double)x[i]) * dnormed[i]; }
    for (int32_t i = 0; i < n; i++) { dx[i] += scale * (dnormed[i] + fabs((double)x[i]) * inverse_square * dot); }
}

static void token_magnitudes(magnitudes *m, int32_t s, int64_t t, int32_t head, double *dq, double *dk) {
    const delta_case *c = m->c;
    const int64_t n = (int64_t)c->key_dim * c->value_dim, token = c->q.start[s] + t;
    const token_sizes in = sizes_at(c, token, head);
    const double *before = m->states + t * n;
    const float *dy = c->dy + token * values_of(c) + (int64_t)head * c->value_dim,
                *row = c->qkv + token * qkv_stride(c);
    double dbeta = 0.0, ddecay[MOST_KEYS] = {0};
    for (int32_t i = 0; i < c->key_dim; i++) { dq[i] = dk[i] = 0.0; }
    for (int32_t j = 0; j < c->value_dim; j++) {
        const double delta = m->deltas[t * c->value_dim + j], out = fabs((double)dy[j]);
        double ddelta = 0.0;
        for (int32_t i = 0; i < c->key_dim; i++) {
            m->dstate[i * c->value_dim + j] += q_at(&in, i) * out;
            ddelta += k_at(&in, i) * m->dstate[i * c->value_dim + j];
        }
        dbeta += ddelta * delta / in.beta;
        m->qkv[token * columns_of(c) + (in.v - row) + j] = in.beta * ddelta;
        for (int32_t i = 0; i < c->key_dim; i++) {
            double *dstate = &m->dstate[i * c->value_dim + j];
            const double old = before[i * c->value_dim + j], dread = in.beta * ddelta;
            dq[i] += (in.decay[i] * old + k_at(&in, i) * delta) * out;
            dk[i] += *dstate * delta + in.decay[i] * old * dread;
            ddecay[i] += old * (*dstate + k_at(&in, i) * dread);
            *dstate = in.decay[i] * (*dstate + k_at(&in, i) * dread);
        }
    }
    double *dqkv = m->qkv + token * columns_of(c);
    add_normed(in.q, in.q_scale, in.q_scale * in.q_scale * (double)c->key_dim, dq, c->key_dim, dqkv + (in.q - row));
    add_normed(in.k, in.k_scale, in.k_scale * in.k_scale, dk, c->key_dim, dqkv + (in.k - row));
    m->ab[token * ab_columns(c) + decays_of(c) + head] = dbeta * in.beta * (1.0 - in.b_sigmoid);
    for (int32_t i = 0; i < c->key_dim; i++) {
        const int64_t at = (int64_t)head * c->n_decays + (c->decays_channels ? i : 0);
        const double dsoftplus = in.rate * in.decay[i] * ddecay[i];
        m->ab[token * ab_columns(c) + at] += dsoftplus * in.slope[i];
        m->sums[head] += dsoftplus * in.softplus[i];
        m->sums[c->value_heads + at] += dsoftplus * in.slope[i];
    }
}

static void backward_bounds(const delta_case *c, double *qkv, double *ab, double *sums) {
    const int64_t n = (int64_t)c->key_dim * c->value_dim;
    magnitudes m = {.c = c,
                    .states = op_doubles((c->q.longest + 1) * n),
                    .deltas = op_doubles((int64_t)c->q.longest * c->value_dim),
                    .dstate = op_doubles(n),
                    .qkv = qkv,
                    .ab = ab,
                    .sums = sums};
    double *dkeys = op_doubles(2 * (int64_t)c->key_dim);
    for (int32_t s = 0; s < c->q.n_seqs; s++) {
        for (int32_t h = 0; h < c->value_heads; h++) {
            const int64_t n_tokens = c->q.start[s + 1] - c->q.start[s];
            memset(m.states, 0, (size_t)n * sizeof(double));
            memset(m.dstate, 0, (size_t)n * sizeof(double));
            for (int64_t t = 0; t < n_tokens; t++) {
                const token_sizes sizes = sizes_at(c, c->q.start[s] + t, h);
                memcpy(m.states + (t + 1) * n, m.states + t * n, (size_t)n * sizeof(double));
                for (int32_t j = 0; j < c->value_dim; j++) {
                    m.deltas[t * c->value_dim + j] = grow_column(c, &sizes, m.states + (t + 1) * n, j);
                }
            }
            for (int64_t t = n_tokens; t-- > 0;) { token_magnitudes(&m, s, t, h, dkeys, dkeys + c->key_dim); }
        }
    }
    const double factor = (double)(c->key_dim + c->value_dim + 48) * (double)(c->q.longest + 4) * OP_U;
    for (int64_t i = 0; i < c->q.n_tokens * columns_of(c); i++) { qkv[i] *= factor; }
    for (int64_t i = 0; i < c->q.n_tokens * ab_columns(c); i++) { ab[i] *= factor; }
    for (int64_t i = 0; i < ab_columns(c); i++) {
        sums[i] = factor * sums[i] + 2.0 * OP_U * (double)c->q.n_tokens * fabs((double)c->sums[i]);
    }
    double *const all[] = {m.states, m.deltas, m.dstate, dkeys};
    for (size_t i = 0; i < QR_COUNT_OF(all); i++) { qr_free(all[i]); }
}

static void check_gated_delta_backward(const delta_case *c) {
    double *bounds[] = {op_doubles(c->q.n_tokens * columns_of(c)), op_doubles(c->q.n_tokens * ab_columns(c)),
                        op_doubles(ab_columns(c))};
    const int64_t rows[] = {c->q.n_tokens, c->q.n_tokens, 1};
    const int64_t row[] = {columns_of(c), ab_columns(c), ab_columns(c)};
    backward_bounds(c, bounds[OF_QKV], bounds[OF_AB], bounds[OF_SUMS]);
    for (int which = OF_QKV; which <= OF_SUMS; which++) {
        const backward_case data = {c, (delta_gradient)which};
        op_case oc = {.n_rows = rows[which],
                      .row = row[which],
                      .exec = exec_backward,
                      .data = &data,
                      .bound = bounds[which],
                      .whole = true};
        snprintf(oc.label, sizeof oc.label, "gated_delta_backward %d of %d heads of %d and %d of %d, %d tokens%s",
                 which, c->key_heads, c->key_dim, c->value_heads, c->value_dim, c->q.n_tokens,
                 c->decays_channels ? ", by channel" : "");
        op_check_case(&oc, QR_DTYPE_F32);
        qr_free(bounds[which]);
    }
}

/* Sequences of several blocks of states, of one, and of less. */
void test_op_gated_delta_backward(void) {
    static const int32_t lengths[] = {33, 1, 20, 5}, long_ones[] = {150, 64, 65};
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) {
        if (shapes[i].key_dim == 1) { continue; }
        const bool is_long = shapes[i].key_dim == 5;
        const delta_case c = make_case(&shapes[i], is_long ? 3 : 4, is_long ? long_ones : lengths);
        check_gated_delta_backward(&c);
        free_case(&c);
    }
}
