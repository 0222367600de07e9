/* attention_packed and attention_packed_backward. A row of a case is a sequence, filled up with zeros to the longest:
 * alone, or among any others, it gives the same bits. q, k and v are parts of one fused matrix, and so are their
 * gradients. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"

enum { N_SEQS = 7, MAX_TOKENS = 130 };

/* The second are around tiles of 16, 32 and 64. */
static const int32_t few_tokens[N_SEQS] = {19, 1, 33, 70, 2, 16, 11};
static const int32_t more_tokens[N_SEQS] = {65, 15, MAX_TOKENS, 17, 64, 1, 63};

typedef struct packed_case {
    int32_t n_heads, n_kv_heads, head_dim, window;
    float scale, softcap;
    qr_dtype kv_dtype;         /* what k and v are rounded to */
    const int32_t *seq_tokens; /* [N_SEQS] */
    int64_t gap;               /* elements between the rows of q, k and v and of their gradients */
    bool bf16_products;
    bool has_sinks;
    const float *sinks;        /* [n_heads] or NULL */
    const float *dsinks;       /* [n_heads]: what is added to */
    int64_t start[N_SEQS + 1]; /* rows of each sequence in the matrices below */
    const float *qkv;          /* [n_tokens, qkv_row + gap] */
    const float *qkv_rounded;  /* the same, with k and v rounded */
    const float *dout;         /* [n_tokens, n_heads · head_dim] */
    qr_dtype out_dtype;        /* of what the forward op wrote */
    const void *out;           /* [n_tokens, n_heads · head_dim] */
    const float *lse;          /* [n_tokens, n_heads] */
} packed_case;

static int64_t out_row(const packed_case *c) { return (int64_t)c->n_heads * c->head_dim; }
static int64_t qkv_row(const packed_case *c) { return (int64_t)(c->n_heads + 2 * c->n_kv_heads) * c->head_dim; }

/* What both ops take of sequences [first, first + n): starts is filled in and must outlive the run. */
static qr_attention_packed_args packed_args(op_run *run, const packed_case *c, int64_t first, int64_t n,
                                            int32_t *starts) {
    const int64_t stride = qkv_row(c) + c->gap, begin = c->start[first], n_tokens = c->start[first + n] - begin;
    int32_t longest = 0;
    for (int64_t s = 0; s <= n; s++) { starts[s] = (int32_t)(c->start[first + s] - begin); }
    for (int64_t s = 0; s < n; s++) { longest = (int32_t)qr_max(longest, starts[s + 1] - starts[s]); }
    const float *qkv =
        op_input(run, c->qkv + begin * stride, (size_t)((n_tokens - 1) * stride + qkv_row(c)) * sizeof(float));
    return (qr_attention_packed_args){
        .q = qkv,
        .k = qkv + out_row(c),
        .v = qkv + out_row(c) + (int64_t)c->n_kv_heads * c->head_dim,
        .seq_start = op_input(run, starts, (size_t)(n + 1) * sizeof *starts),
        .n_tokens = n_tokens,
        .qkv_stride = stride,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .n_seqs = (int32_t)n,
        .max_seq_tokens = longest,
        .scale = c->scale,
        .softcap = c->softcap,
        .window = c->window,
        .sinks = op_input(run, c->sinks, c->sinks != NULL ? (size_t)c->n_heads * sizeof(float) : 0),
        .round_kv = c->kv_dtype != QR_DTYPE_F32,
        .bf16_products = c->bf16_products,
    };
}

/* Moves packed rows of `src`, [n_tokens, width], to columns [at, at + width) of their sequences' rows in out. */
static void place(const packed_case *c, int64_t first, int64_t n, const void *src, int64_t width, size_t size,
                  int64_t at, int64_t token_row, void *out) {
    for (int64_t s = 0; s < n; s++) {
        for (int64_t t = 0; t < c->seq_tokens[first + s]; t++) {
            const int64_t from = (c->start[first + s] - c->start[first] + t) * width;
            const int64_t to = (s * MAX_TOKENS + t) * token_row + at;
            memcpy((unsigned char *)out + (size_t)to * size, (const unsigned char *)src + (size_t)from * size,
                   (size_t)width * size);
        }
    }
}

/* --- Forward --- */

/* A token of a row: the heads' outputs, then their lse (in the type of the output). Into F32 k and v are rounded to
 * BF16 or not at all: what rounding to F16 must give is computed from values that are rounded already. */
static void exec_packed(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    packed_case rounded = *(const packed_case *)data;
    rounded.qkv = rounded.qkv_rounded;
    rounded.kv_dtype = QR_DTYPE_F32;
    const packed_case *c = data;
    if (c->kv_dtype == QR_DTYPE_F16 && dtype == QR_DTYPE_F32) { c = &rounded; }
    int32_t starts[N_SEQS + 1];
    qr_attention_packed_args args = packed_args(run, c, first, n, starts);
    const size_t size = qr_dtype_bytes(dtype), row_bytes = (size_t)out_row(c) * size;
    const size_t lse_bytes = (size_t)c->n_heads * sizeof(float);
    args.dst_dtype = dtype;
    args.dst = op_output(run, NULL, args.n_tokens, row_bytes, row_bytes);
    args.lse = op_output(run, NULL, args.n_tokens, lse_bytes, lse_bytes);
    op_call(run, QR_OP_attention_packed, &args);
    void *dst = qr_alloc((size_t)args.n_tokens * row_bytes);
    float *lse = qr_alloc((size_t)args.n_tokens * lse_bytes);
    op_read(run, args.dst, dst);
    op_read(run, args.lse, lse);
    void *lse_typed = op_to_dtype(lse, args.n_tokens * c->n_heads, dtype);
    const int64_t token_row = out_row(c) + c->n_heads;
    memset(out, 0, (size_t)(n * MAX_TOKENS * token_row) * size);
    place(c, first, n, dst, out_row(c), size, 0, token_row, out);
    place(c, first, n, lse_typed, c->n_heads, size, out_row(c), token_row, out);
    op_run_end(run); /* before the starts on this stack go */
    qr_free(dst);
    qr_free(lse);
    qr_free(lse_typed);
}

/* What n products may err by more, of the sum of their absolute values, where dst is of 16 bits and operands may be
 * sums of two BF16 numbers (ops_train.h): each of the two is within 2^-17 of its number, the product of the two low
 * parts, which is left out, below 2^-16 of the whole, and a sum three times as long has 2 n more roundings. */
static double pairs_error(double n, qr_dtype dst_dtype) {
    return dst_dtype == QR_DTYPE_F32 ? 0.0 : 0x1p-15 + 2.0 * n * OP_U;
}

/* With bf16_products the operands may instead be rounded to BF16, all of them. What that does to a number that the test
 * knows is counted as it is; a number that comes out of the op is within 2^-8 of itself. */
static bool rounds_products(const packed_case *c, qr_dtype dst_dtype) {
    return c->bf16_products && dst_dtype == QR_DTYPE_BF16;
}

static double rounding_error(const packed_case *c, qr_dtype dst_dtype) {
    return rounds_products(c, dst_dtype) ? 0x1p-8 : 0.0;
}

static double as_operand(double x, bool rounds) {
    return rounds ? (double)qr_bf16_to_f32(qr_f32_to_bf16((float)x)) : x;
}

/* One query head of one token and everything it sees. */
typedef struct pairs {
    int64_t first, n;                            /* rows [first, first + n) */
    double score[MAX_TOKENS], error[MAX_TOKENS]; /* after the soft-cap; F32 error of each */
    double raw_error[MAX_TOKENS];                /* before it */
    double moved[MAX_TOKENS];                    /* how far rounding q and k moves a score, at most */
    double lse;
} pairs;

static double kv_at(const packed_case *c, int64_t token, int64_t head, int64_t j, bool is_v) {
    const int64_t kv_head = head / (c->n_heads / c->n_kv_heads) + (is_v ? c->n_kv_heads : 0);
    return (double)c->qkv_rounded[token * (qkv_row(c) + c->gap) + out_row(c) + kv_head * c->head_dim + j];
}

static double q_at(const packed_case *c, int64_t token, int64_t head, int64_t j) {
    return (double)c->qkv[token * (qkv_row(c) + c->gap) + head * c->head_dim + j];
}

/* A score errs by (d + 4) u |scale| Σ|q||k| and pairs_error, under a soft-cap also by 4 u · cap and 4 u of itself. */
static pairs pairs_of(const packed_case *c, int s, int64_t t, int64_t h, qr_dtype dst_dtype) {
    const double relative = (double)(c->head_dim + 4) * OP_U + pairs_error((double)c->head_dim, dst_dtype);
    const bool rounds = rounds_products(c, dst_dtype);
    pairs all = {.first = c->window > 0 ? qr_max(c->start[s], t - c->window + 1) : c->start[s]};
    const double sink = c->sinks != NULL ? (double)c->sinks[h] : -INFINITY;
    double largest = sink;
    all.n = t - all.first + 1;
    for (int64_t i = 0; i < all.n; i++) {
        double sum = 0.0, sum_abs = 0.0, rounded = 0.0;
        for (int64_t j = 0; j < c->head_dim; j++) {
            const double q = q_at(c, t, h, j), k = kv_at(c, all.first + i, h, j, false);
            sum += q * k * (double)c->scale;
            sum_abs += fabs(q * k * (double)c->scale);
            rounded += as_operand(q, rounds) * as_operand(k, rounds) * (double)c->scale;
        }
        all.moved[i] = fabs(rounded - sum);
        const bool capped = c->softcap > 0.0F;
        all.score[i] = capped ? (double)c->softcap * tanh(sum / (double)c->softcap) : sum;
        all.raw_error[i] = relative * sum_abs;
        all.error[i] = all.raw_error[i] + (capped ? 4.0 * OP_U * ((double)c->softcap + fabs(all.score[i])) : 0.0);
        largest = fmax(largest, all.score[i]);
    }
    double total = exp(sink - largest);
    for (int64_t i = 0; i < all.n; i++) { total += exp(all.score[i] - largest); }
    all.lse = largest + log(total);
    return all;
}

/* As op_attention.c derives it: with E the largest error of a score, a softmax weight errs by 4 E of itself, and by 3 n
 * u through the sums and changes of the running maximum. The lse errs by E, by n u through its sum, and by its
 * rounding. Where rounding moves no score by more than M, it moves a weight by e^2M − 1 of itself at most, and the lse
 * by M; then the weight is rounded, and v. */
static void forward_bound(const packed_case *c, int s, int64_t t, int64_t h, qr_dtype dst_dtype, double *out,
                          double *lse) {
    const pairs all = pairs_of(c, s, t, h, dst_dtype);
    const bool rounds = rounds_products(c, dst_dtype);
    double error = 0.0, magnitude = 0.0, moved = 0.0;
    for (int64_t i = 0; i < all.n; i++) {
        moved = fmax(moved, all.moved[i]);
        error = fmax(error, all.error[i]);
        magnitude = fmax(magnitude, fabs(all.score[i]));
    }
    if (c->sinks != NULL) { magnitude = fmax(magnitude, fabs((double)c->sinks[h])); }
    error += 2.0 * OP_U * magnitude;
    const double sum_error = (3.0 * (double)all.n + 32.0) * OP_U + pairs_error((double)all.n, dst_dtype);
    const double relative = 4.0 * error + sum_error + exp(2.0 * moved) * (1.0 + rounding_error(c, dst_dtype)) - 1.0;
    for (int64_t i = 0; i < all.n; i++) {
        const double weight = exp(all.score[i] - all.lse);
        for (int64_t j = 0; j < c->head_dim; j++) {
            const double v = kv_at(c, all.first + i, h, j, true), v_moved = fabs(as_operand(v, rounds) - v);
            out[j] += weight * (relative * fabs(v) + (1.0 + relative) * v_moved);
        }
    }
    *lse = error + moved + ((double)all.n + 12.0) * OP_U + 2.0 * OP_U * fabs(all.lse);
}

static void check_forward_into(const packed_case *c, const char *label, qr_dtype dst_dtype) {
    const int64_t token_row = out_row(c) + c->n_heads;
    double *bound = op_doubles(N_SEQS * MAX_TOKENS * token_row);
    for (int s = 0; s < N_SEQS; s++) {
        for (int64_t t = 0; t < c->seq_tokens[s]; t++) {
            double *row = bound + (s * MAX_TOKENS + t) * token_row;
            for (int64_t h = 0; h < c->n_heads; h++) {
                forward_bound(c, s, c->start[s] + t, h, dst_dtype, row + h * c->head_dim, row + out_row(c) + h);
            }
        }
    }
    op_case whole = {.n_rows = N_SEQS, .row = MAX_TOKENS * token_row, .exec = exec_packed, .data = c, .bound = bound};
    snprintf(whole.label, sizeof whole.label, "attention_packed %s", label);
    op_check_case(&whole, dst_dtype);
    qr_free(bound);
}

static void check_forward(const packed_case *c, const char *label) {
    if (c->kv_dtype == QR_DTYPE_F16) {
        check_forward_into(c, label, QR_DTYPE_F16);
    } else {
        check_forward_into(c, label, QR_DTYPE_F32);
        check_forward_into(c, label, QR_DTYPE_BF16);
    }
}

/* --- Backward --- */

/* dqkv [n_tokens, qkv_row], packed; dsinks NULL: not wanted. */
static void run_backward(op_run *run, const packed_case *c, int64_t first, int64_t n, int32_t *starts, float *packed,
                         float *dsinks) {
    qr_attention_packed_backward_args args = {.forward = packed_args(run, c, first, n, starts)};
    const int64_t n_tokens = args.forward.n_tokens, begin = c->start[first], row = out_row(c);
    const size_t out_size = qr_dtype_bytes(c->out_dtype);
    float *dqkv = op_output(run, NULL, n_tokens, (size_t)qkv_row(c) * sizeof(float),
                            (size_t)(qkv_row(c) + c->gap) * sizeof(float));
    args.forward.dst_dtype = c->out_dtype;
    args.forward.dst = op_input(run, (const unsigned char *)c->out + (size_t)(begin * row) * out_size,
                                (size_t)(n_tokens * row) * out_size);
    args.forward.lse = op_input(run, c->lse + begin * c->n_heads, (size_t)(n_tokens * c->n_heads) * sizeof(float));
    args.dout = op_input(run, c->dout + begin * row, (size_t)(n_tokens * row) * sizeof(float));
    args.dq = dqkv;
    args.dk = dqkv + row;
    args.dv = dqkv + row + (int64_t)c->n_kv_heads * c->head_dim;
    args.dqkv_stride = qkv_row(c) + c->gap;
    const size_t sinks_bytes = (size_t)c->n_heads * sizeof(float);
    if (dsinks != NULL) { args.dsinks = op_output(run, c->dsinks, 1, sinks_bytes, sinks_bytes); }
    op_call(run, QR_OP_attention_packed_backward, &args);
    op_read(run, dqkv, packed);
    if (dsinks != NULL) { op_read(run, args.dsinks, dsinks); }
}

/* A token of a row: dq, dk, dv side by side. */
static void exec_packed_backward(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype;
    const packed_case *c = data;
    int32_t starts[N_SEQS + 1];
    const int64_t n_tokens = c->start[first + n] - c->start[first];
    float *packed = qr_alloc((size_t)(n_tokens * qkv_row(c)) * sizeof(float));
    run_backward(run, c, first, n, starts, packed, NULL);
    memset(out, 0, (size_t)(n * MAX_TOKENS * qkv_row(c)) * sizeof(float));
    place(c, first, n, packed, qkv_row(c), sizeof(float), 0, qkv_row(c), out);
    op_run_end(run); /* before the starts on this stack go */
    qr_free(packed);
}

static void exec_dsinks(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype, (void)first, (void)n;
    const packed_case *c = data;
    int32_t starts[N_SEQS + 1];
    float *packed = qr_alloc((size_t)(c->start[N_SEQS] * qkv_row(c)) * sizeof(float));
    run_backward(run, c, 0, N_SEQS, starts, packed, out);
    op_run_end(run);
    qr_free(packed);
}

/* What dp − delta of a query and a key is, and how it errs, without the factor of the probability. */
typedef struct dp_bound {
    double value, magnitude; /* of the sums' terms */
    double moved;            /* by rounding dout */
} dp_bound;

static dp_bound dp_of(const packed_case *c, int64_t t, int64_t token, int64_t h) {
    const bool rounds = rounds_products(c, c->out_dtype);
    const int64_t at = (t * c->n_heads + h) * c->head_dim;
    dp_bound dp = {0};
    double dp_moved = 0.0, delta_moved = 0.0;
    for (int64_t j = 0; j < c->head_dim; j++) {
        const double dout = (double)c->dout[at + j], moved = as_operand(dout, rounds) - dout;
        const double v = kv_at(c, token, h, j, true), out = op_from_dtype(c->out, c->out_dtype, at + j);
        dp.value += dout * (v - out);
        dp.magnitude += fabs(dout * v) + fabs(dout * out);
        dp_moved += moved * v;
        delta_moved += moved * out;
    }
    dp.moved = fabs(dp_moved) + fabs(delta_moved);
    return dp;
}

/* Adds what one query head of one token errs by to the bounds of dq, and of dk and dv of all it sees. The probability
 * exp(score − lse) errs by the score's error and the rounding of the difference; dp and delta by (d + 2) u of their
 * magnitudes; the slope of the soft-cap by twice the error of tanh. n is the largest number of terms of a sum. With
 * operands as pairs, all products err by pairs_error, and lse and scores by two roundings more (units of log 2). Where
 * operands are rounded, p_most and ds_most are what the probability and ds become at most, rounded themselves. */
static void backward_bound(const packed_case *c, int s, int64_t t, int64_t h, double n, double *bound) {
    const bool pairs_too = c->out_dtype != QR_DTYPE_F32, rounds = rounds_products(c, c->out_dtype);
    const pairs all = pairs_of(c, s, t, h, c->out_dtype);
    const double terms_error = (n + 3.0) * OP_U + pairs_error(n, c->out_dtype);
    const double dots_error = pairs_error((double)c->head_dim, c->out_dtype);
    const double rounding = 1.0 + rounding_error(c, c->out_dtype);
    const int64_t d = c->head_dim, at = (t * c->n_heads + h) * d, kv_head = h / (c->n_heads / c->n_kv_heads);
    const double cap = (double)c->softcap, lse = (double)c->lse[t * c->n_heads + h], scale = fabs((double)c->scale);
    double *sequence = bound + (int64_t)s * MAX_TOKENS * qkv_row(c); /* its first token's row */
    for (int64_t i = 0; i < all.n; i++) {
        const int64_t token = all.first + i;
        const dp_bound dp = dp_of(c, t, token, h);
        const double p = exp(all.score[i] - lse), p_most = p * exp(all.moved[i]) * rounding;
        const double p_error = all.error[i] + ((pairs_too ? 3.0 : 1.0) * (fabs(all.score[i]) + fabs(lse)) + 8.0) * OP_U;
        const double slope = cap > 0.0 ? 1.0 - all.score[i] / cap * (all.score[i] / cap) : 1.0;
        const double slope_error = cap > 0.0 ? 2.0 * all.raw_error[i] / cap + 20.0 * OP_U : 0.0;
        const double slope_most = slope + (cap > 0.0 ? 2.0 * all.moved[i] / cap : 0.0);
        const double ds = scale * p * fabs(dp.value) * slope;
        const double ds_most = scale * p_most * (fabs(dp.value) + dp.moved) * slope_most;
        const double ds_terms = scale * p * dp.magnitude;
        const double ds_error =
            ds_terms * (slope * ((double)(d + 8) * OP_U + dots_error + p_error + terms_error) + slope_error) + ds_most -
            ds;
        double *dq = sequence + (t - c->start[s]) * qkv_row(c) + h * d;
        double *dk = sequence + (token - c->start[s]) * qkv_row(c) + out_row(c) + kv_head * d;
        double *dv = dk + c->n_kv_heads * d;
        for (int64_t j = 0; j < d; j++) {
            const double q = q_at(c, t, h, j), dout = (double)c->dout[at + j];
            dq[j] += ds_error * fabs(kv_at(c, token, h, j, false));
            dk[j] += ds_error * fabs(q) + ds_most * fabs(as_operand(q, rounds) - q);
            dv[j] += ((p_error + terms_error) * p + p_most - p) * fabs(dout) +
                     p_most * fabs(as_operand(dout, rounds) - dout);
        }
    }
}

/* A sum over tokens of what is there and of exp(sink − lse) · delta: the exponential errs by its argument's rounding
 * and 3 u, delta by (d + 2) u of its terms. delta is of dout as given. */
static void dsinks_bound(const packed_case *c, double *bound) {
    const int64_t n_tokens = c->start[N_SEQS];
    const double terms = ((double)n_tokens + 3.0) * OP_U;
    for (int64_t h = 0; h < c->n_heads; h++) {
        bound[h] = terms * fabs((double)c->dsinks[h]);
        for (int64_t t = 0; t < n_tokens; t++) {
            const int64_t at = (t * c->n_heads + h) * c->head_dim;
            const double from_lse = (double)c->sinks[h] - (double)c->lse[t * c->n_heads + h], p = exp(from_lse);
            double magnitude = 0.0;
            for (int64_t j = 0; j < c->head_dim; j++) {
                magnitude += fabs((double)c->dout[at + j] * op_from_dtype(c->out, c->out_dtype, at + j));
            }
            bound[h] += p * magnitude * (fabs(from_lse) * OP_U + (double)(c->head_dim + 5) * OP_U + terms);
        }
    }
}

static void check_dsinks(const packed_case *c, const char *label) {
    double *bound = op_doubles(c->n_heads);
    dsinks_bound(c, bound);
    op_case sums = {.n_rows = 1, .row = c->n_heads, .exec = exec_dsinks, .data = c, .bound = bound, .whole = true};
    snprintf(sums.label, sizeof sums.label, "attention_packed_backward of sinks, %s", label);
    op_check_case(&sums, QR_DTYPE_F32);
    qr_free(bound);
}

static void check_backward(const packed_case *c, const char *label) {
    double *bound = op_doubles(N_SEQS * MAX_TOKENS * qkv_row(c));
    for (int s = 0; s < N_SEQS; s++) {
        const double n = (double)c->seq_tokens[s] * (double)(c->n_heads / c->n_kv_heads);
        for (int64_t t = c->start[s]; t < c->start[s + 1]; t++) {
            for (int64_t h = 0; h < c->n_heads; h++) { backward_bound(c, s, t, h, n, bound); }
        }
    }
    op_case whole = {
        .n_rows = N_SEQS, .row = MAX_TOKENS * qkv_row(c), .exec = exec_packed_backward, .data = c, .bound = bound};
    snprintf(whole.label, sizeof whole.label, "attention_packed_backward %s", label);
    op_check_case(&whole, QR_DTYPE_F32);
    qr_free(bound);
    if (c->sinks != NULL) { check_dsinks(c, label); }
}

/* --- Cases --- */

/* What ref's forward op writes, for the backward op to read. */
static void run_forward(const packed_case *c, void *out, float *lse) {
    op_run run = {.backend = op_everything.ref, .label = "the forward pass"};
    int32_t starts[N_SEQS + 1];
    qr_attention_packed_args args = packed_args(&run, c, 0, N_SEQS, starts);
    const size_t row_bytes = (size_t)out_row(c) * qr_dtype_bytes(c->out_dtype);
    const size_t lse_bytes = (size_t)c->n_heads * sizeof(float);
    args.dst_dtype = c->out_dtype;
    args.dst = op_output(&run, NULL, args.n_tokens, row_bytes, row_bytes);
    args.lse = op_output(&run, NULL, args.n_tokens, lse_bytes, lse_bytes);
    op_call(&run, QR_OP_attention_packed, &args);
    op_read(&run, args.dst, out);
    op_read(&run, args.lse, lse);
    op_run_end(&run);
}

static float *with_rounded_kv(const packed_case *c, int64_t n_tokens) {
    const int64_t stride = qkv_row(c) + c->gap;
    float *rounded = qr_alloc((size_t)(n_tokens * stride) * sizeof(float));
    for (int64_t i = 0; i < n_tokens * stride; i++) {
        void *typed = op_to_dtype(c->qkv + i, 1, i % stride >= out_row(c) ? c->kv_dtype : QR_DTYPE_F32);
        rounded[i] = (float)op_from_dtype(typed, i % stride >= out_row(c) ? c->kv_dtype : QR_DTYPE_F32, 0);
        qr_free(typed);
    }
    return rounded;
}

/* `shape`: what is to be tested; the matrices are made here. */
static void check_shape(packed_case shape, bool backward) {
    packed_case data = shape;
    data.scale = (float)(1.0 / sqrt((double)shape.head_dim));
    data.out_dtype = shape.kv_dtype;
    for (int s = 0; s < N_SEQS; s++) { data.start[s + 1] = data.start[s] + data.seq_tokens[s]; }
    const int64_t n_tokens = data.start[N_SEQS];
    float *qkv = op_normals(n_tokens * (qkv_row(&data) + data.gap), 1, 1.5);
    float *dout = op_normals(n_tokens * out_row(&data), 2, 1.0);
    void *out = qr_alloc((size_t)(n_tokens * out_row(&data)) * sizeof(float));
    float *lse = qr_alloc((size_t)(n_tokens * data.n_heads) * sizeof(float));
    float *sinks = op_normals(data.n_heads, 3, 4.0);
    data.sinks = shape.has_sinks ? sinks : NULL;
    float *dsinks = op_normals(data.n_heads, 4, 1.0);
    data.dsinks = dsinks;
    data.qkv = qkv;
    float *qkv_rounded = with_rounded_kv(&data, n_tokens);
    data.qkv_rounded = qkv_rounded;
    data.dout = dout;
    char label[160];
    snprintf(label, sizeof label, "%d over %d heads of %d, window %d, softcap %g, K/V %s, %d tokens first%s",
             (int)data.n_heads, (int)data.n_kv_heads, (int)data.head_dim, (int)data.window, (double)data.softcap,
             qr_dtype_name(data.kv_dtype), (int)data.seq_tokens[0], data.bf16_products ? ", BF16 products" : "");
    if (data.has_sinks) { snprintf(label + strlen(label), sizeof label - strlen(label), ", sinks"); }
    if (backward) {
        run_forward(&data, out, lse);
        data.out = out;
        data.lse = lse;
        check_backward(&data, label);
    } else {
        check_forward(&data, label);
    }
    qr_free(sinks);
    qr_free(dsinks);
    qr_free(qkv);
    qr_free(qkv_rounded);
    qr_free(dout);
    qr_free(out);
    qr_free(lse);
}

/* With BF16 also rounding all products to it. */
static void check_packed(packed_case shape, bool backward) {
    check_shape(shape, backward);
    if (shape.kv_dtype != QR_DTYPE_BF16) { return; }
    shape.bf16_products = true;
    check_shape(shape, backward);
}

/* Head sizes with groupings, windows and soft-caps in turn; groupings x windows on a small head; then, in the types
 * that tensor cores take, sequences around tiles with windows that begin inside of one, large heads, and a permission
 * that the types do not go with. Rows are at multiples of 16 bytes in some and not in others. */
static void check_all_packed(bool backward) {
    static const int32_t head_dims[] = {8, 16, 64, 80, 17, 128, 1};
    static const int32_t groups[] = {1, 3, 4, 2};
    static const int32_t windows[] = {0, 1, 16, 20, 33};
    static const qr_dtype kv_dtypes[] = {QR_DTYPE_F32, QR_DTYPE_BF16, QR_DTYPE_F16};
    for (int i = 0; i < 2 * (int)QR_COUNT_OF(head_dims); i++) {
        const int32_t n_kv_heads = i % 3 == 0 ? 2 : 1;
        const packed_case shape = {.n_heads = n_kv_heads * groups[i % 4],
                                   .n_kv_heads = n_kv_heads,
                                   .head_dim = head_dims[i / 2],
                                   .window = i % 2 == 0 ? 0 : windows[i / 2 % 5],
                                   .softcap = i % 4 < 2 ? 0.0F : 20.0F,
                                   .kv_dtype = kv_dtypes[i % 3],
                                   .seq_tokens = few_tokens,
                                   .gap = i % 2 == 0 ? 3 : 4};
        check_packed(shape, backward);
    }
    for (int i = 0; i < (int)(QR_COUNT_OF(groups) * QR_COUNT_OF(windows)); i++) {
        if (check_thins() && i % 4 >= 2) { continue; } /* with every group and window */
        const packed_case shape = {.n_heads = 2 * groups[i / 5],
                                   .n_kv_heads = 2,
                                   .head_dim = 16,
                                   .window = windows[i % 5],
                                   .softcap = i % 2 == 0 ? 0.0F : 5.0F,
                                   .kv_dtype = kv_dtypes[i % 3],
                                   .seq_tokens = few_tokens,
                                   .gap = i % 2 == 0 ? 4 : 5};
        check_packed(shape, backward);
    }
    static const packed_case others[] = {
        {.n_heads = 3, .n_kv_heads = 1, .head_dim = 32, .kv_dtype = QR_DTYPE_BF16, .seq_tokens = more_tokens, .gap = 4},
        {.n_heads = 2,
         .n_kv_heads = 1,
         .head_dim = 96,
         .softcap = 9.0F,
         .kv_dtype = QR_DTYPE_BF16,
         .seq_tokens = few_tokens,
         .gap = 4},
        {.n_heads = 1,
         .n_kv_heads = 1,
         .head_dim = 88,
         .window = 30,
         .kv_dtype = QR_DTYPE_F16,
         .seq_tokens = few_tokens,
         .gap = 3},
        {.n_heads = 4,
         .n_kv_heads = 2,
         .head_dim = 48,
         .window = 66,
         .kv_dtype = QR_DTYPE_BF16,
         .seq_tokens = more_tokens,
         .gap = 4},
        {.n_heads = 2,
         .n_kv_heads = 1,
         .head_dim = 16,
         .window = 40,
         .softcap = 3.0F,
         .kv_dtype = QR_DTYPE_F16,
         .seq_tokens = more_tokens,
         .gap = 4},
        {.n_heads = 1, .n_kv_heads = 1, .head_dim = 256, .kv_dtype = QR_DTYPE_BF16, .seq_tokens = few_tokens, .gap = 4},
        {.n_heads = 2, .n_kv_heads = 1, .head_dim = 512, .kv_dtype = QR_DTYPE_BF16, .seq_tokens = few_tokens, .gap = 4},
        {.n_heads = 1,
         .n_kv_heads = 1,
         .head_dim = 264,
         .window = 20,
         .softcap = 9.0F,
         .kv_dtype = QR_DTYPE_F16,
         .seq_tokens = few_tokens,
         .gap = 3},
        {.n_heads = 2,
         .n_kv_heads = 2,
         .head_dim = 511,
         .window = 33,
         .kv_dtype = QR_DTYPE_F32,
         .seq_tokens = few_tokens,
         .gap = 1},
        {.n_heads = 2,
         .n_kv_heads = 1,
         .head_dim = 192,
         .window = 21,
         .kv_dtype = QR_DTYPE_F16,
         .seq_tokens = few_tokens,
         .gap = 4},
        {.n_heads = 3,
         .n_kv_heads = 1,
         .head_dim = 112,
         .window = 50,
         .softcap = 30.0F,
         .kv_dtype = QR_DTYPE_BF16,
         .seq_tokens = few_tokens,
         .gap = 4},
        {.n_heads = 1,
         .n_kv_heads = 1,
         .head_dim = 104,
         .window = 70,
         .kv_dtype = QR_DTYPE_BF16,
         .seq_tokens = more_tokens,
         .gap = 4},
        {.n_heads = 2,
         .n_kv_heads = 1,
         .head_dim = 24,
         .kv_dtype = QR_DTYPE_F16,
         .seq_tokens = few_tokens,
         .gap = 4,
         .bf16_products = true},
        {.n_heads = 2,
         .n_kv_heads = 1,
         .head_dim = 24,
         .kv_dtype = QR_DTYPE_F32,
         .seq_tokens = few_tokens,
         .gap = 4,
         .bf16_products = true},
    };
    for (size_t i = 0; i < QR_COUNT_OF(others); i++) { check_packed(others[i], backward); }
    static const packed_case with_sinks[] = {
        {.n_heads = 6,
         .n_kv_heads = 3,
         .head_dim = 24,
         .kv_dtype = QR_DTYPE_F32,
         .seq_tokens = few_tokens,
         .gap = 3,
         .has_sinks = true},
        {.n_heads = 4,
         .n_kv_heads = 1,
         .head_dim = 64,
         .window = 7,
         .kv_dtype = QR_DTYPE_BF16,
         .seq_tokens = more_tokens,
         .gap = 4,
         .has_sinks = true},
        {.n_heads = 1,
         .n_kv_heads = 1,
         .head_dim = 17,
         .softcap = 20.0F,
         .kv_dtype = QR_DTYPE_F16,
         .seq_tokens = few_tokens,
         .gap = 4,
         .has_sinks = true},
    };
    for (size_t i = 0; i < QR_COUNT_OF(with_sinks); i++) { check_packed(with_sinks[i], backward); }
}

void test_op_attention_packed(void) { check_all_packed(false); }

void test_op_attention_packed_backward(void) { check_all_packed(true); }
