/* state_space and its gradient: against ref, and the same bits however sequences are cut into calls. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "op_sequences.h"

typedef struct space_case {
    int32_t heads, groups, state_dim, head_dim;
    sequences q;
    float *xbc, *dt, *a_log, *dt_bias, *skip, *states, *dy, *sums;
    int32_t cut;         /* a call computes so many tokens of one sequence; 0: one call for all */
    bool without_states; /* as training runs it */
} space_case;

static int64_t values_of(const space_case *c) { return (int64_t)c->heads * c->head_dim; }
static int64_t keys_of(const space_case *c) { return (int64_t)c->groups * c->state_dim; }
static int64_t columns_of(const space_case *c) { return values_of(c) + 2 * keys_of(c); }
static int64_t state_of(const space_case *c) { return values_of(c) * c->state_dim; }
static int64_t xbc_stride(const space_case *c) { return columns_of(c) + 3; }
static int64_t dt_stride(const space_case *c) { return c->heads + 2; }
static int64_t state_stride(const space_case *c) { return state_of(c) + 5; }

enum { N_SUMS = 3 }; /* da_log, ddt_bias, dskip */

/* States decay within some tokens, so that bounds, which add up magnitudes, stay small. */
static space_case make_case(int32_t heads, int32_t groups, int32_t state_dim, int32_t head_dim, int32_t n_seqs,
                            const int32_t *lengths) {
    space_case c = {.heads = heads,
                    .groups = groups,
                    .state_dim = state_dim,
                    .head_dim = head_dim,
                    .q = sequences_of(n_seqs, lengths)};
    c.xbc = op_normals(c.q.n_tokens * xbc_stride(&c), 1, 1.0);
    c.dt = op_normals(c.q.n_tokens * dt_stride(&c), 2, 1.0);
    c.a_log = op_normals(heads, 3, 0.3);
    c.dt_bias = op_normals(heads, 4, 0.5);
    c.skip = op_normals(heads, 5, 1.0);
    c.states = op_normals(n_seqs * state_stride(&c), 6, 0.5);
    c.dy = op_normals(c.q.n_tokens * values_of(&c), 7, 1.0);
    c.sums = op_normals((int64_t)N_SUMS * heads, 8, 1.0);
    return c;
}

static void free_case(const space_case *c) {
    float *const all[] = {c->xbc, c->dt, c->a_log, c->dt_bias, c->skip, c->states, c->dy, c->sums};
    for (size_t i = 0; i < QR_COUNT_OF(all); i++) { qr_free(all[i]); }
}

static qr_state_space_args inputs_of(op_run *run, const space_case *c) {
    const size_t head_bytes = (size_t)c->heads * sizeof(float);
    return (qr_state_space_args){
        .xbc = op_input(run, c->xbc, (size_t)(c->q.n_tokens * xbc_stride(c)) * sizeof(float)),
        .dt = op_input(run, c->dt, (size_t)(c->q.n_tokens * dt_stride(c)) * sizeof(float)),
        .a_log = op_input(run, c->a_log, head_bytes),
        .dt_bias = op_input(run, c->dt_bias, head_bytes),
        .skip = op_input(run, c->skip, head_bytes),
        .n_tokens = c->q.n_tokens,
        .xbc_stride = xbc_stride(c),
        .dt_stride = dt_stride(c),
        .n_heads = c->heads,
        .n_groups = c->groups,
        .head_dim = c->head_dim,
        .state_dim = c->state_dim,
    };
}

static void print_shape(const space_case *c, char label[], size_t n_bytes, const char *what) {
    snprintf(label, n_bytes, "%s %d heads of %d in %d groups of %d, %d tokens%s", what, c->heads, c->head_dim,
             c->groups, c->state_dim, c->q.n_tokens, c->without_states ? ", no states" : "");
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static void call_in_parts(op_run *run, const space_case *c, qr_state_space_args args, float *states) {
    static call_tables calls[MAX_CALLS];
    int32_t n_calls;
    const call_tables *tables = list_calls(run, &c->q, c->cut, calls, &n_calls);
    const qr_state_space_args all = args;
    for (int32_t i = 0; i < n_calls; i++) {
        const int64_t first = calls[i].first_token;
        args.xbc = all.xbc + first * all.xbc_stride;
        args.dt = all.dt + first * all.dt_stride;
        args.dst = all.dst + first * values_of(c);
        args.n_tokens = calls[i].start[1];
        args.sequences = sequence_of_call(&tables[i], states, state_stride(c));
        op_call(run, QR_OP_state_space, &args);
    }
}

static void run_space(op_run *run, const space_case *c, float *outputs, float *states) {
    qr_state_space_args args = inputs_of(run, c);
    const size_t row_bytes = (size_t)values_of(c) * sizeof(float);
    float *kept = c->without_states ? NULL : states_output(run, &c->q, c->states, state_of(c), state_stride(c));
    args.dst = op_output(run, NULL, c->q.n_tokens, row_bytes, row_bytes);
    if (c->cut > 0) {
        call_in_parts(run, c, args, kept);
    } else {
        args.sequences = whole_sequences(run, &c->q, kept, state_stride(c));
        op_call(run, QR_OP_state_space, &args);
    }
    if (outputs != NULL) { op_read(run, args.dst, outputs); }
    if (states != NULL) { op_read(run, kept, states); }
}

static void exec_outputs(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    run_space(run, data, out, NULL);
}

static void exec_states(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    run_space(run, data, NULL, out);
}

/* A token of a head: what enters the recurrence. */
typedef struct token_sizes {
    double step, decay, rate, slope, skip;
    const float *x, *b, *c;
} token_sizes;

static token_sizes sizes_at(const space_case *c, int64_t token, int32_t head) {
    const int64_t group = head / (c->heads / c->groups);
    token_sizes t = {.x = c->xbc + token * xbc_stride(c) + (int64_t)head * c->head_dim,
                     .rate = exp((double)c->a_log[head]),
                     .skip = fabs((double)c->skip[head])};
    t.b = c->xbc + token * xbc_stride(c) + values_of(c) + group * c->state_dim;
    t.c = t.b + keys_of(c);
    const double x = (double)c->dt[token * dt_stride(c) + head] + (double)c->dt_bias[head];
    t.step = log1p(exp(x));
    t.slope = 1.0 / (1.0 + exp(-x));
    t.decay = exp(-t.rate * t.step);
    return t;
}

static double size_of(const float *x, int32_t i) { return fabs((double)x[i]); }

/* One token on magnitudes of the state's column j: all terms with their absolute values. Returns that of stateᵀ C. */
static double grow_column(const space_case *c, const token_sizes *t, double *state, int32_t j) {
    double out = 0.0;
    for (int32_t i = 0; i < c->state_dim; i++) {
        double *element = &state[i * c->head_dim + j];
        *element = t->decay * *element + size_of(t->b, i) * t->step * size_of(t->x, j);
        out += *element * size_of(t->c, i);
    }
    return out;
}

/* A state errs by at most 32 roundings of itself for each of its tokens: the decay's exponent is the product of two
 * functions, and at most 16 of its roundings count, for where it is large the decay is nothing. An output adds
 * state_dim terms. */
static double roundings(int64_t terms, int64_t token) { return ((double)terms + 32.0 * (double)(token + 1)) * OP_U; }

static void head_bounds(const space_case *c, int32_t s, int32_t head, double *state, double *outputs) {
    for (int64_t t = c->q.start[s]; t < c->q.start[s + 1]; t++) {
        const token_sizes sizes = sizes_at(c, t, head);
        const double factor = roundings(c->state_dim + 2, t - c->q.start[s]);
        for (int32_t j = 0; j < c->head_dim; j++) {
            const double out = grow_column(c, &sizes, state, j) + sizes.skip * size_of(sizes.x, j);
            outputs[t * values_of(c) + (int64_t)head * c->head_dim + j] = factor * out;
        }
    }
}

static void forward_bounds(const space_case *c, double *outputs, double *states) {
    const int64_t n = (int64_t)c->state_dim * c->head_dim;
    double *state = op_doubles(n);
    for (int32_t i = 0; i < c->q.n_seqs * c->heads; i++) {
        const int32_t s = i / c->heads, head = i % c->heads;
        const bool has_slot = !c->without_states && c->q.slot[s] >= 0;
        const bool continues = has_slot && c->q.first_position[s] > 0;
        const float *initial = c->states + (has_slot ? c->q.slot[s] : 0) * state_stride(c) + head * n;
        for (int64_t k = 0; k < n; k++) { state[k] = continues ? fabs((double)initial[k]) : 0.0; }
        head_bounds(c, s, head, state, outputs);
        for (int64_t k = 0; has_slot && k < n; k++) {
            states[c->q.slot[s] * state_of(c) + head * n + k] =
                roundings(0, c->q.start[s + 1] - c->q.start[s]) * state[k];
        }
    }
    qr_free(state);
}

/* Each device: sequences in calls of `cut` tokens have the bits of one call for all. */
static void check_cuts(const space_case *whole, int32_t cut) {
    const size_t out_bytes = (size_t)(whole->q.n_tokens * values_of(whole)) * sizeof(float);
    const size_t state_bytes = (size_t)(whole->q.n_seqs * state_of(whole)) * sizeof(float);
    float *outputs[2] = {qr_alloc(out_bytes), qr_alloc(out_bytes)};
    float *states[2] = {qr_alloc(state_bytes), qr_alloc(state_bytes)};
    for (int d = -1; d < op_everything.n_devices; d++) {
        for (int i = 0; i < 2; i++) {
            space_case c = *whole;
            c.cut = i == 0 ? 0 : cut;
            op_run run = {.backend = d < 0 ? op_everything.ref : op_everything.devices[d].backends[1],
                          .label = "state_space in parts"};
            run_space(&run, &c, outputs[i], states[i]);
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

static void check_state_space(space_case c) {
    double *outputs = op_doubles(c.q.n_tokens * values_of(&c)), *states = op_doubles(c.q.n_seqs * state_of(&c));
    op_case oc = {.n_rows = c.q.n_tokens,
                  .row = values_of(&c),
                  .exec = exec_outputs,
                  .data = &c,
                  .bound = outputs,
                  .whole = true};
    print_shape(&c, oc.label, sizeof oc.label, "state_space");
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

/* The last but one has more heads in a group than the backward ops make parts of it. */
static const struct {
    int32_t heads, groups, state_dim, head_dim;
} shapes[] = {{1, 1, 1, 1}, {6, 2, 5, 7}, {3, 1, 24, 17}, {4, 2, 64, 80}, {10, 1, 128, 64}, {2, 1, 256, 40}};

static const int32_t short_ones[MAX_SEQS] = {33, 7, 1, 20}, long_ones[MAX_SEQS] = {150, 65, 64, 1};

void test_op_state_space(void) {
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) {
        space_case c = make_case(shapes[i].heads, shapes[i].groups, shapes[i].state_dim, shapes[i].head_dim,
                                 i == 0 ? 1 : 4, i == 1 ? long_ones : short_ones);
        check_state_space(c);
        c.without_states = true;
        check_state_space(c);
        c.without_states = false;
        for (int32_t cut = i == 1 ? 4 : 1; cut <= 16; cut *= 4) { check_cuts(&c, cut); }
        free_case(&c);
    }
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

typedef enum space_gradient { OF_XBC, OF_DT, OF_SUMS } space_gradient;

typedef struct backward_case {
    const space_case *c;
    space_gradient which;
} backward_case;

/* Sums that are not read are not wanted, or one of them. */
static void exec_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    const backward_case *b = data;
    const space_case *c = b->c;
    const size_t xbc_bytes = (size_t)columns_of(c) * sizeof(float), dt_bytes = (size_t)c->heads * sizeof(float);
    float *dxbc = op_output(run, NULL, c->q.n_tokens, xbc_bytes, xbc_bytes + 12);
    float *ddt = op_output(run, NULL, c->q.n_tokens, dt_bytes, dt_bytes + 4);
    float *sums = op_output(run, c->sums, 1, N_SUMS * dt_bytes, N_SUMS * dt_bytes);
    qr_state_space_backward_args args = {.forward = inputs_of(run, c),
                                         .dy = op_input(run, c->dy, (size_t)(c->q.n_tokens * values_of(c)) * 4),
                                         .dxbc = dxbc,
                                         .ddt = ddt,
                                         .da_log = b->which == OF_SUMS ? sums : NULL,
                                         .ddt_bias = b->which == OF_SUMS ? sums + c->heads : NULL,
                                         .dskip = b->which != OF_XBC ? sums + (int64_t)2 * c->heads : NULL,
                                         .dxbc_stride = columns_of(c) + 3,
                                         .ddt_stride = c->heads + 1};
    args.forward.sequences = whole_sequences(run, &c->q, NULL, 0);
    op_call(run, QR_OP_state_space_backward, &args);
    op_read(run, b->which == OF_XBC ? dxbc : b->which == OF_DT ? ddt : sums, out);
}

/* The gradient on magnitudes: every term of ref/backward_state_space.c with its absolute value. */
typedef struct magnitudes {
    const space_case *c;
    double *states;          /* [longest + 1, state_dim, head_dim] */
    double *dstate;          /* [state_dim, head_dim] */
    double *xbc, *dt, *sums; /* results */
} magnitudes;

static void token_magnitudes(const magnitudes *m, int32_t s, int64_t t, int32_t head) {
    const space_case *c = m->c;
    const int64_t n = (int64_t)c->state_dim * c->head_dim, token = c->q.start[s] + t;
    const token_sizes in = sizes_at(c, token, head);
    const double *before = m->states + t * n, *after = before + n;
    const float *dy = c->dy + token * values_of(c) + (int64_t)head * c->head_dim;
    double *row = m->xbc + token * columns_of(c), *db = row + (in.b - c->xbc - token * xbc_stride(c));
    double ddecay = 0.0, dstep = 0.0;
    for (int32_t j = 0; j < c->head_dim; j++) {
        double dinput = 0.0;
        for (int32_t i = 0; i < c->state_dim; i++) {
            const int64_t at = (int64_t)i * c->head_dim + j;
            m->dstate[at] += size_of(in.c, i) * size_of(dy, j);
            db[i] += m->dstate[at] * in.step * size_of(in.x, j);
            db[keys_of(c) + i] += after[at] * size_of(dy, j);
            dinput += m->dstate[at] * size_of(in.b, i);
            ddecay += m->dstate[at] * before[at];
            m->dstate[at] *= in.decay;
        }
        row[(int64_t)head * c->head_dim + j] = in.step * dinput + in.skip * size_of(dy, j);
        dstep += dinput * size_of(in.x, j);
        m->sums[2 * c->heads + head] += size_of(in.x, j) * size_of(dy, j);
    }
    const double dexponent = in.decay * ddecay * in.rate, ddt = (dstep + dexponent) * in.slope;
    m->dt[token * c->heads + head] = ddt;
    m->sums[head] += dexponent * in.step;
    m->sums[c->heads + head] += ddt;
}

static void backward_bounds(const space_case *c, double *xbc, double *dt, double *sums) {
    const int64_t n = (int64_t)c->state_dim * c->head_dim;
    const magnitudes m = {.c = c,
                          .states = op_doubles((c->q.longest + 1) * n),
                          .dstate = op_doubles(n),
                          .xbc = xbc,
                          .dt = dt,
                          .sums = sums};
    for (int32_t i = 0; i < c->q.n_seqs * c->heads; i++) {
        const int32_t s = i / c->heads, head = i % c->heads, n_tokens = c->q.start[s + 1] - c->q.start[s];
        memset(m.states, 0, (size_t)n * sizeof(double));
        memset(m.dstate, 0, (size_t)n * sizeof(double));
        for (int64_t t = 0; t < n_tokens; t++) {
            const token_sizes sizes = sizes_at(c, c->q.start[s] + t, head);
            memcpy(m.states + (t + 1) * n, m.states + t * n, (size_t)n * sizeof(double));
            for (int32_t j = 0; j < c->head_dim; j++) { (void)grow_column(c, &sizes, m.states + (t + 1) * n, j); }
        }
        for (int64_t t = n_tokens; t-- > 0;) { token_magnitudes(&m, s, t, head); }
    }
    /* Both recurrences err as the forward one, and sums run over rows, columns and heads of a group. */
    const double factor = roundings(c->state_dim + c->head_dim + c->heads / c->groups + 8, 2 * (c->q.longest + 1));
    for (int64_t i = 0; i < c->q.n_tokens * columns_of(c); i++) { xbc[i] *= factor; }
    for (int64_t i = 0; i < (int64_t)c->q.n_tokens * c->heads; i++) { dt[i] *= factor; }
    for (int64_t i = 0; i < (int64_t)N_SUMS * c->heads; i++) {
        const double of_tokens = (double)(c->q.n_tokens + 4) * OP_U;
        sums[i] = (factor + of_tokens) * sums[i] + of_tokens * fabs((double)c->sums[i]);
    }
    qr_free(m.states);
    qr_free(m.dstate);
}

static void check_state_space_backward(const space_case *c) {
    const int64_t rows[] = {c->q.n_tokens, c->q.n_tokens, 1};
    const int64_t row[] = {columns_of(c), c->heads, (int64_t)N_SUMS * c->heads};
    double *bounds[] = {op_doubles(rows[OF_XBC] * row[OF_XBC]), op_doubles(rows[OF_DT] * row[OF_DT]),
                        op_doubles(rows[OF_SUMS] * row[OF_SUMS])};
    backward_bounds(c, bounds[OF_XBC], bounds[OF_DT], bounds[OF_SUMS]);
    for (int which = OF_XBC; which <= OF_SUMS; which++) {
        static const char *const names[] = {"state_space_backward", "state_space_backward's dt",
                                            "state_space_backward's sums"};
        const backward_case data = {c, (space_gradient)which};
        op_case oc = {.n_rows = rows[which],
                      .row = row[which],
                      .exec = exec_backward,
                      .data = &data,
                      .bound = bounds[which],
                      .whole = true};
        print_shape(c, oc.label, sizeof oc.label, names[which]);
        op_check_case(&oc, QR_DTYPE_F32);
        qr_free(bounds[which]);
    }
}

/* Sequences of several blocks of states, of one, and of less. */
void test_op_state_space_backward(void) {
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) {
        const space_case c = make_case(shapes[i].heads, shapes[i].groups, shapes[i].state_dim, shapes[i].head_dim,
                                       i == 0 ? 1 : 4, i < 3 ? long_ones : short_ones);
        check_state_space_backward(&c);
        free_case(&c);
    }
}
