/* copy_heads, head_gate, conv1d_causal and their gradients. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "op_sequences.h"

enum { N_ROWS = 65 };

/* ---- copy_heads, head_gate --------------------------------------------------------------------------------------- */

typedef struct heads_case {
    int64_t n_heads, dim;
    const float *x, *gate, *dy; /* x, dy [N_ROWS, n_heads · dim]; gate [N_ROWS, n_heads, gate_head] with a gap */
    bool in_place, of_gate, accumulate, by_head, by_softplus;
    bool one_for_all, zeros; /* of copy_heads: one head is copied to all; or zeros follow, to the first half of each */
} heads_case;

static int64_t head_stride(const heads_case *c) { return 2 * c->dim + 1; }
static int64_t gate_columns(const heads_case *c) {
    return (c->n_heads - 1) * head_stride(c) + (c->by_head ? 1 : c->dim);
}
static int64_t gate_stride(const heads_case *c) { return c->n_heads * head_stride(c) + 3; }

static void exec_copy_heads(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const heads_case *c = data;
    const int64_t row = c->n_heads * c->dim, apart = c->one_for_all ? 0 : head_stride(c);
    const int64_t n = (n_rows - 1) * gate_stride(c) + (c->n_heads - 1) * apart + c->dim;
    const size_t element = qr_dtype_bytes(dtype);
    void *src = op_to_dtype(c->gate + first * gate_stride(c), n, dtype);
    const qr_copy_heads_args args = {.src = op_input(run, src, (size_t)n * element),
                                     .dst = op_output(run, c->accumulate ? c->x + first * row : NULL, n_rows,
                                                      (size_t)row * element, (size_t)(row + 3) * element),
                                     .dtype = dtype,
                                     .accumulate = c->accumulate,
                                     .n_rows = n_rows,
                                     .n_heads = c->n_heads,
                                     .dim = c->dim,
                                     .src_stride = gate_stride(c),
                                     .src_head_stride = apart,
                                     .dst_stride = row + 3,
                                     .dst_head_stride = c->dim};
    op_call(run, QR_OP_copy_heads, &args);
    if (c->zeros) {
        qr_copy_heads_args half = args;
        half.src = NULL;
        half.dim = (c->dim + 1) / 2;
        op_call(run, QR_OP_copy_heads, &half);
    }
    op_read(run, args.dst, out);
    op_run_end(run); /* before the input that it is compared with goes */
    qr_free(src);
}

static qr_head_gate_args gate_args(op_run *run, const heads_case *c, int64_t first, int64_t n_rows, qr_dtype dtype,
                                   void *dst) {
    const int64_t row = c->n_heads * c->dim, gate_row = gate_columns(c);
    return (qr_head_gate_args){.gate = op_input(run, c->gate + first * gate_stride(c),
                                                (size_t)((n_rows - 1) * gate_stride(c) + gate_row) * sizeof(float)),
                               .x = dst,
                               .dst = dst,
                               .dtype = dtype,
                               .n_rows = n_rows,
                               .n_heads = c->n_heads,
                               .dim = row / c->n_heads,
                               .gate_dim = c->by_head ? 1 : c->dim,
                               .gate_stride = gate_stride(c),
                               .gate_head_stride = head_stride(c),
                               .by_softplus = c->by_softplus};
}

static void exec_head_gate(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const heads_case *c = data;
    const int64_t row = c->n_heads * c->dim;
    const size_t row_bytes = (size_t)row * qr_dtype_bytes(dtype);
    void *x = op_to_dtype(c->x + first * row, n_rows * row, dtype);
    void *dst = op_output(run, c->in_place ? x : NULL, n_rows, row_bytes, row_bytes);
    qr_head_gate_args args = gate_args(run, c, first, n_rows, dtype, dst);
    if (!c->in_place) { args.x = op_input(run, x, (size_t)n_rows * row_bytes); }
    op_call(run, QR_OP_head_gate, &args);
    op_read(run, dst, out);
    op_run_end(run); /* before the input that it is compared with goes */
    qr_free(x);
}

static void exec_head_gate_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                    void *out) {
    (void)dtype;
    const heads_case *c = data;
    const int64_t row = c->n_heads * c->dim, gate_row = gate_columns(c);
    const size_t row_bytes = (size_t)row * sizeof(float), bytes = (size_t)n_rows * row_bytes;
    float *dx = op_output(run, c->in_place ? c->dy + first * row : NULL, n_rows, row_bytes, row_bytes);
    float *zeros = qr_alloc_zeroed((size_t)(n_rows * gate_row) * sizeof(float)); /* between heads nothing is written */
    float *dgate =
        op_output(run, zeros, n_rows, (size_t)gate_row * sizeof(float), (size_t)gate_stride(c) * sizeof(float));
    qr_head_gate_backward_args args = {.forward = gate_args(run, c, first, n_rows, QR_DTYPE_F32, NULL),
                                       .dy = c->in_place ? dx : op_input(run, c->dy + first * row, bytes),
                                       .dx = dx,
                                       .dgate = dgate};
    args.forward.x = op_input(run, c->x + first * row, bytes);
    op_call(run, QR_OP_head_gate_backward, &args);
    op_read(run, c->of_gate ? dgate : dx, out);
    qr_free(zeros);
}

/* A sigmoid and its complement err by 6 u of themselves: an exponential, a sum, a quotient, a product.
 * Softplus is an exponential, and the logarithm of a sum. */
static void gate_bounds(const heads_case *c, double *y, double *dx, double *dgate) {
    const int64_t row = c->n_heads * c->dim, gate_row = gate_columns(c);
    for (int64_t i = 0; i < N_ROWS * row; i++) {
        const int64_t r = i / row, h = i % row / c->dim, j = c->by_head ? 0 : i % c->dim;
        const double gate = (double)c->gate[r * gate_stride(c) + h * head_stride(c) + j];
        const double on = 1.0 / (1.0 + exp(-gate)), off = 1.0 / (1.0 + exp(gate));
        const double x = fabs((double)c->x[i]), dy = fabs((double)c->dy[i]);
        const double open = c->by_softplus ? log1p(exp(gate)) : on, slope = c->by_softplus ? on : on * off;
        y[i] = 8.0 * OP_U * x * open;
        dx[i] = 8.0 * OP_U * dy * open;
        const double n_terms = c->by_head ? (double)c->dim : 0.0;
        dgate[r * gate_row + h * head_stride(c) + j] += (18.0 + n_terms) * OP_U * dy * x * slope;
    }
}

/* Values that 16 bits hold, so that every type computes with the same. */
static float *bf16_normals(int64_t n, uint64_t stream) {
    float *x = op_normals(n, stream, 1.0);
    void *rounded = op_to_dtype(x, n, QR_DTYPE_BF16);
    for (int64_t i = 0; i < n; i++) { x[i] = (float)op_from_dtype(rounded, QR_DTYPE_BF16, i); }
    qr_free(rounded);
    return x;
}

static const struct { int64_t n_heads, dim; } heads[] = {{1, 1}, {3, 24}, {5, 17}, {2, 64}, {1, 300}};

static heads_case make_heads(size_t i) {
    heads_case c = {.n_heads = heads[i].n_heads, .dim = heads[i].dim};
    const int64_t row = c.n_heads * c.dim;
    c.x = bf16_normals(N_ROWS * row, 1);
    c.gate = op_normals(N_ROWS * gate_stride(&c), 2, 3.0);
    c.dy = op_normals(N_ROWS * row, 3, 1.0);
    c.in_place = i % 2 == 0;
    return c;
}

static void free_heads(const heads_case *c) {
    const float *const all[] = {c->x, c->gate, c->dy};
    for (size_t i = 0; i < QR_COUNT_OF(all); i++) { qr_free((void *)(uintptr_t)all[i]); }
}

static void check_heads(void (*exec)(op_run *, const void *, int64_t, int64_t, qr_dtype, void *), const char *name,
                        heads_case *c, const double *bound, int64_t row, bool all_types) {
    op_case oc = {.n_rows = N_ROWS, .row = row, .exec = exec, .data = c, .bound = bound};
    snprintf(oc.label, sizeof oc.label, "%s %lld x %lld%s", name, (long long)c->n_heads, (long long)c->dim,
             c->in_place ? ", in place" : "");
    op_check_case(&oc, QR_DTYPE_F32);
    if (!all_types) { return; }
    op_check_case(&oc, QR_DTYPE_BF16);
    op_check_case(&oc, QR_DTYPE_F16);
}

void test_op_copy_heads(void) {
    for (size_t i = 0; i < QR_COUNT_OF(heads); i++) {
        heads_case c = make_heads(i);
        const int64_t row = c.n_heads * c.dim;
        check_heads(exec_copy_heads, "copy_heads", &c, NULL, row, true);
        c.one_for_all = true;
        check_heads(exec_copy_heads, "copy_heads, one for all", &c, NULL, row, true);
        c.accumulate = true;
        check_heads(exec_copy_heads, "copy_heads, one added to all", &c, NULL, row, false);
        c.one_for_all = false;
        check_heads(exec_copy_heads, "copy_heads, added", &c, NULL, row, false);
        c.accumulate = false;
        c.zeros = true;
        if (c.dim > 1) { check_heads(exec_copy_heads, "copy_heads, zeros", &c, NULL, row, true); }
        free_heads(&c);
    }
}

static void check_gates(bool backward, bool by_head, bool by_softplus) {
    for (size_t i = 0; i < QR_COUNT_OF(heads); i++) {
        heads_case c = make_heads(i);
        c.by_head = by_head;
        c.by_softplus = by_softplus;
        const int64_t row = c.n_heads * c.dim, gate_row = gate_columns(&c);
        double *y = op_doubles(N_ROWS * row), *dx = op_doubles(N_ROWS * row), *dgate = op_doubles(N_ROWS * gate_row);
        gate_bounds(&c, y, dx, dgate);
        if (backward) {
            check_heads(exec_head_gate_backward, by_head ? "head_gate_backward by heads" : "head_gate_backward", &c, dx,
                        row, false);
            c.of_gate = true;
            check_heads(exec_head_gate_backward, "head_gate_backward's gate", &c, dgate, gate_row, false);
        } else {
            check_heads(exec_head_gate, by_head ? "head_gate by heads" : "head_gate", &c, y, row, true);
        }
        qr_free(y);
        qr_free(dx);
        qr_free(dgate);
        free_heads(&c);
    }
}

void test_op_head_gate(void) {
    for (int i = 0; i < 4; i++) { check_gates(false, i % 2 == 1, i / 2 == 1); }
}

void test_op_head_gate_backward(void) {
    for (int i = 0; i < 4; i++) { check_gates(true, i % 2 == 1, i / 2 == 1); }
}

/* ---- conv1d_causal ----------------------------------------------------------------------------------------------- */

typedef struct conv_case {
    qr_act_fn fn;
    int64_t dim;
    int32_t kernel;
    sequences q;
    float *x, *weight, *bias, *states, *dy, *dweight, *dbias; /* bias and dbias NULL: none */
    int32_t cut;
    bool without_states;
} conv_case;

static int64_t x_stride(const conv_case *c) { return c->dim + 5; }
static int64_t state_floats(const conv_case *c) { return (c->kernel - 1) * c->dim; }
static int64_t state_stride(const conv_case *c) { return state_floats(c) + 3; }

static conv_case make_conv(int64_t dim, int32_t kernel, qr_act_fn fn, bool biased) {
    static const int32_t lengths[MAX_SEQS] = {33, 2, 1, 20};
    conv_case c = {.fn = fn, .dim = dim, .kernel = kernel, .q = sequences_of(MAX_SEQS, lengths)};
    c.x = op_normals(c.q.n_tokens * x_stride(&c), 1, 1.0);
    c.weight = op_normals(dim * kernel, 2, 1.0);
    c.states = op_normals(MAX_SEQS * state_stride(&c), 3, 1.0);
    c.dy = op_normals(c.q.n_tokens * dim, 4, 1.0);
    c.dweight = op_normals(dim * kernel, 5, 1.0);
    if (biased) {
        c.bias = op_normals(dim, 6, 1.0);
        c.dbias = op_normals(dim, 7, 1.0);
    }
    return c;
}

static void free_conv(const conv_case *c) {
    float *const all[] = {c->x, c->weight, c->bias, c->states, c->dy, c->dweight, c->dbias};
    for (size_t i = 0; i < QR_COUNT_OF(all); i++) { qr_free(all[i]); }
}

static void call_in_parts(op_run *run, const conv_case *c, qr_conv1d_causal_args args, float *states) {
    static call_tables calls[MAX_CALLS];
    int32_t n_calls;
    const call_tables *tables = list_calls(run, &c->q, c->cut, calls, &n_calls);
    const qr_conv1d_causal_args all = args;
    for (int32_t i = 0; i < n_calls; i++) {
        args.x = all.x + calls[i].first_token * all.x_stride;
        args.dst = all.dst + calls[i].first_token * all.dim;
        args.n_tokens = calls[i].start[1];
        args.sequences = sequence_of_call(&tables[i], states, state_stride(c));
        op_call(run, QR_OP_conv1d_causal, &args);
    }
}

static qr_conv1d_causal_args conv_inputs(op_run *run, const conv_case *c) {
    return (qr_conv1d_causal_args){.fn = c->fn,
                                   .x = op_input(run, c->x, (size_t)(c->q.n_tokens * x_stride(c)) * sizeof(float)),
                                   .weight = op_input(run, c->weight, (size_t)(c->dim * c->kernel) * sizeof(float)),
                                   .bias = op_input(run, c->bias, (size_t)c->dim * sizeof(float)),
                                   .n_tokens = c->q.n_tokens,
                                   .dim = c->dim,
                                   .x_stride = x_stride(c),
                                   .kernel = c->kernel};
}

/* out: the outputs, or with `states` those. */
static void run_conv(op_run *run, const conv_case *c, float *outputs, float *states) {
    const size_t row_bytes = (size_t)c->dim * sizeof(float);
    float *kept = c->without_states ? NULL : states_output(run, &c->q, c->states, state_floats(c), state_stride(c));
    qr_conv1d_causal_args args = conv_inputs(run, c);
    args.dst = op_output(run, NULL, c->q.n_tokens, row_bytes, row_bytes);
    if (c->cut > 0) {
        call_in_parts(run, c, args, kept);
    } else {
        args.sequences = whole_sequences(run, &c->q, kept, state_stride(c));
        op_call(run, QR_OP_conv1d_causal, &args);
    }
    if (outputs != NULL) { op_read(run, args.dst, outputs); }
    if (states != NULL) { op_read(run, kept, states); }
}

static void exec_conv(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    run_conv(run, data, out, NULL);
}

static void exec_conv_states(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)n_rows, (void)dtype;
    run_conv(run, data, NULL, out);
}

/* Row `t` of sequence s, which may be before the call. */
static double input_at(const conv_case *c, int32_t s, int32_t t, int64_t channel) {
    if (t >= 0) { return (double)c->x[(c->q.start[s] + t) * x_stride(c) + channel]; }
    if (c->without_states || c->q.slot[s] < 0 || c->q.first_position[s] == 0) { return 0.0; }
    return (double)c->states[c->q.slot[s] * state_stride(c) + (t + c->kernel - 1) * c->dim + channel];
}

/* What a sum errs by; *sum is its value. */
static double sum_bound(const conv_case *c, int32_t s, int32_t t, int64_t channel, double *sum) {
    *sum = c->bias != NULL ? (double)c->bias[channel] : 0.0;
    double magnitude = fabs(*sum);
    for (int32_t j = 0; j < c->kernel; j++) {
        const double term = (double)c->weight[channel * c->kernel + j] * input_at(c, s, t - c->kernel + 1 + j, channel);
        *sum += term;
        magnitude += fabs(term);
    }
    return (double)(c->kernel + (c->bias != NULL ? 2 : 1)) * OP_U * magnitude;
}

/* Activation functions rise by less than 1.2 of what their argument rises. */
static void conv_bounds(const conv_case *c, double *bound) {
    for (int32_t s = 0; s < c->q.n_seqs; s++) {
        for (int32_t t = 0; t < c->q.start[s + 1] - c->q.start[s]; t++) {
            for (int64_t i = 0; i < c->dim; i++) {
                double sum;
                const double error = sum_bound(c, s, t, i, &sum);
                bound[(c->q.start[s] + t) * c->dim + i] = op_act_bound(c->fn, sum) + 1.2 * error;
            }
        }
    }
}

static void check_conv_cuts(const conv_case *whole, int32_t cut) {
    const size_t out_bytes = (size_t)(whole->q.n_tokens * whole->dim) * sizeof(float);
    const size_t state_bytes = (size_t)(whole->q.n_seqs * state_floats(whole)) * sizeof(float);
    float *outputs[2] = {qr_alloc(out_bytes), qr_alloc(out_bytes)};
    float *states[2] = {qr_alloc(state_bytes), qr_alloc(state_bytes)};
    for (int d = -1; d < op_everything.n_devices; d++) {
        for (int i = 0; i < 2; i++) {
            conv_case c = *whole;
            c.cut = i == 0 ? 0 : cut;
            op_run run = {.backend = d < 0 ? op_everything.ref : op_everything.devices[d].backends[1],
                          .label = "conv1d_causal in parts"};
            run_conv(&run, &c, outputs[i], states[i]);
            op_run_end(&run);
        }
        CHECK_MSG(memcmp(outputs[0], outputs[1], out_bytes) == 0 && memcmp(states[0], states[1], state_bytes) == 0,
                  "%s: a convolution of %d in calls of %d tokens has other bits",
                  d < 0 ? "ref" : op_everything.devices[d].label, whole->kernel, cut);
    }
    for (int i = 0; i < 2; i++) {
        qr_free(outputs[i]);
        qr_free(states[i]);
    }
}

static const struct {
    int64_t dim;
    int32_t kernel;
    qr_act_fn fn;
    bool biased;
} convs[] = {{1, 4, QR_ACT_SILU, false},      {37, 4, QR_ACT_GELU_ERF, true}, {64, 2, QR_ACT_SILU, true},
             {172, 3, QR_ACT_GELU_ERF, true}, {1030, 4, QR_ACT_SILU, true},   {1030, 4, QR_ACT_SILU, false},
             {20, 8, QR_ACT_GELU_ERF, false}, {171, 3, QR_ACT_NONE, false},   {1030, 7, QR_ACT_NONE, true},
             {37, 8, QR_ACT_NONE, true},      {1, 4, QR_ACT_SILU, true}};

static conv_case conv_of(size_t i) { return make_conv(convs[i].dim, convs[i].kernel, convs[i].fn, convs[i].biased); }

static void print_conv(const conv_case *c, char label[], size_t n_bytes, const char *what) {
    snprintf(label, n_bytes, "%s %lld, kernel %d%s%s", what, (long long)c->dim, c->kernel,
             c->bias != NULL ? ", bias" : "", c->without_states ? ", no states" : "");
}

void test_op_conv1d_causal(void) {
    for (size_t i = 0; i < QR_COUNT_OF(convs); i++) {
        conv_case c = conv_of(i);
        double *bound = op_doubles(c.q.n_tokens * c.dim);
        op_case oc = {
            .n_rows = c.q.n_tokens, .row = c.dim, .exec = exec_conv, .data = &c, .bound = bound, .whole = true};
        for (int without = 0; without < 2; without++) {
            c.without_states = without == 1;
            print_conv(&c, oc.label, sizeof oc.label, "conv1d_causal");
            conv_bounds(&c, bound);
            op_check_case(&oc, QR_DTYPE_F32);
        }
        c.without_states = false;
        op_case states = {
            .n_rows = c.q.n_seqs, .row = state_floats(&c), .exec = exec_conv_states, .data = &c, .whole = true};
        print_conv(&c, states.label, sizeof states.label, "conv1d_causal's states");
        op_check_case(&states, QR_DTYPE_F32);
        for (int32_t cut = 1; cut <= 9; cut += 4) { check_conv_cuts(&c, cut); }
        qr_free(bound);
        free_conv(&c);
    }
}

typedef enum conv_gradient { OF_X, OF_WEIGHT, OF_BIAS } conv_gradient;

typedef struct backward_case {
    const conv_case *c;
    conv_gradient which;
} backward_case;

/* With dx no other gradient is wanted; with that of the bias the weight's too. */
static void exec_conv_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                               void *out) {
    (void)first, (void)n_rows, (void)dtype;
    const backward_case *b = data;
    const conv_case *c = b->c;
    const size_t row_bytes = (size_t)c->dim * sizeof(float), weight_bytes = row_bytes * (size_t)c->kernel;
    float *dx = op_output(run, NULL, c->q.n_tokens, row_bytes, row_bytes + 12), *dweight = NULL, *dbias = NULL;
    if (b->which != OF_X) { dweight = op_output(run, c->dweight, 1, weight_bytes, weight_bytes); }
    if (b->which == OF_BIAS) { dbias = op_output(run, c->dbias, 1, row_bytes, row_bytes); }
    qr_conv1d_causal_backward_args args = {.forward = conv_inputs(run, c),
                                           .dy = op_input(run, c->dy, (size_t)c->q.n_tokens * row_bytes),
                                           .dx = dx,
                                           .dweight = dweight,
                                           .dbias = dbias,
                                           .dx_stride = c->dim + 3};
    args.forward.sequences = whole_sequences(run, &c->q, NULL, 0);
    op_call(run, QR_OP_conv1d_causal_backward, &args);
    op_read(run, b->which == OF_X ? dx : b->which == OF_WEIGHT ? dweight : dbias, out);
}

/* The slope of an activation function errs by 32 u and by less than 1.3 of what its argument does; it is below 1.2. */
static void conv_backward_bounds(const conv_case *c, double *dx, double *dweight, double *dbias) {
    const double n = (double)(c->q.n_tokens + 4) * OP_U;
    for (int64_t i = 0; i < c->dim * c->kernel; i++) { dweight[i] = n * fabs((double)c->dweight[i]); }
    for (int64_t i = 0; c->dbias != NULL && i < c->dim; i++) { dbias[i] = n * fabs((double)c->dbias[i]); }
    for (int32_t s = 0; s < c->q.n_seqs; s++) {
        for (int32_t t = 0; t < c->q.start[s + 1] - c->q.start[s]; t++) {
            for (int64_t i = 0; i < c->dim; i++) {
                double sum;
                const double dy = fabs((double)c->dy[(c->q.start[s] + t) * c->dim + i]);
                const double error = dy * (1.3 * sum_bound(c, s, t, i, &sum) + 32.0 * OP_U);
                dbias[i] += error + n * 1.2 * dy;
                for (int32_t j = 0; j < c->kernel; j++) {
                    const int32_t from = t - c->kernel + 1 + j;
                    if (from < 0) { continue; }
                    const double weight = fabs((double)c->weight[i * c->kernel + j]);
                    dx[(c->q.start[s] + from) * c->dim + i] +=
                        weight * (error + (double)(c->kernel + 1) * OP_U * 1.2 * dy);
                    dweight[i * c->kernel + j] += fabs(input_at(c, s, from, i)) * (error + n * 1.2 * dy);
                }
            }
        }
    }
}

void test_op_conv1d_causal_backward(void) {
    static const char *const names[] = {"conv1d_causal_backward", "conv1d_causal_backward's weight",
                                        "conv1d_causal_backward's bias"};
    for (size_t i = 0; i < QR_COUNT_OF(convs); i++) {
        conv_case c = conv_of(i);
        c.without_states = true;
        const int64_t rows[] = {c.q.n_tokens, 1, 1}, row[] = {c.dim, c.dim * c.kernel, c.dim};
        double *bounds[] = {op_doubles(rows[OF_X] * row[OF_X]), op_doubles(row[OF_WEIGHT]), op_doubles(row[OF_BIAS])};
        conv_backward_bounds(&c, bounds[OF_X], bounds[OF_WEIGHT], bounds[OF_BIAS]);
        for (int which = OF_X; which <= (c.bias != NULL ? OF_BIAS : OF_WEIGHT); which++) {
            const backward_case data = {&c, (conv_gradient)which};
            op_case oc = {.n_rows = rows[which],
                          .row = row[which],
                          .exec = exec_conv_backward,
                          .data = &data,
                          .bound = bounds[which],
                          .whole = true};
            print_conv(&c, oc.label, sizeof oc.label, names[which]);
            op_check_case(&oc, QR_DTYPE_F32);
        }
        for (int which = OF_X; which <= OF_BIAS; which++) { qr_free(bounds[which]); }
        free_conv(&c);
    }
}
