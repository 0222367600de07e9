/* linear_backward, weight_backward and lora_backward.
 *
 * A case's rows are what the op keeps apart: rows of dx by token, rows of dw and db by output, columns of da by
 * input. Run on a part of them, the op must give the same bits.
 *
 * Bounds as in op_linear.c: a sum of n products in F32 is within (n + c) · u · Σ|terms|; an operand that is itself
 * such a sum (h, dh of LoRA) brings its own error into every term, and ref rounds it to F32 too. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { DY_GAP = 3, DX_GAP = 5, X_GAP = 4, F32_BYTES = sizeof(float) };

/* --- linear_backward --------------------------------------------------------------------------------------------- */

typedef struct linear_case {
    const op_weight *weight;
    qr_dtype dy_dtype;
    const void *dy;  /* [n_rows, out + DY_GAP] */
    const float *dx; /* [n_rows, in]: what is accumulated onto; NULL: nothing */
    int64_t dy_gap, dx_gap;
    bool any_order;
} linear_case;

static void exec_linear(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const linear_case *c = data;
    const int64_t in = c->weight->desc.cols, n_out = c->weight->desc.rows, dy_stride = n_out + c->dy_gap;
    const size_t bytes = qr_dtype_bytes(c->dy_dtype);
    const unsigned char *dy = (const unsigned char *)c->dy + (size_t)(first * dy_stride) * bytes;
    const qr_linear_backward_args args = {
        .weight = op_run_weight(run, c->weight),
        .dy = op_input(run, dy, (size_t)((n_rows - 1) * dy_stride + n_out) * bytes),
        .dy_dtype = c->dy_dtype,
        .dx = op_output(run, c->dx != NULL ? c->dx + first * in : NULL, n_rows, (size_t)in * F32_BYTES,
                        (size_t)(in + c->dx_gap) * F32_BYTES),
        .n_rows = n_rows,
        .dy_stride = dy_stride,
        .dx_stride = in + c->dx_gap,
        .accumulate = c->dx != NULL,
        .any_order = c->any_order,
    };
    op_call(run, QR_OP_linear_backward, &args);
    op_read(run, args.dx, out);
}

static void linear_bound(const linear_case *c, int64_t n_rows, double *bound) {
    const int64_t in = c->weight->desc.cols, n_out = c->weight->desc.rows;
    /* The values are those before rounding, of weights or of scaled dy, which adds at most 2^-8 of each. */
    const double rounding = c->dy_dtype != QR_DTYPE_F32 ? 1.0 + 0x1p-8 : 1.0;
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t k = 0; k < in; k++) {
            double sum = 0.0;
            for (int64_t o = 0; o < n_out; o++) {
                sum += fabs(op_from_dtype(c->dy, c->dy_dtype, i * (n_out + c->dy_gap) + o) *
                            (double)c->weight->values[o * in + k]) *
                       rounding;
            }
            if (c->dx != NULL) { sum += fabs((double)c->dx[i * in + k]); }
            bound[i * in + k] = (double)(n_out + 5) * OP_U * sum;
        }
    }
}

/* With any_order rows begin at multiples of 16 bytes where their lengths allow it, and the bits of a row are those of
 * the whole call. */
static void check_linear(qr_weight_desc desc, qr_dtype dy_dtype, int64_t n_rows, bool accumulate, bool any_order) {
    const uint64_t stream = (uint64_t)(desc.rows * 10007 + desc.cols * 31);
    op_weight *weight = op_weight_create(desc, stream);
    const int64_t dy_gap = any_order ? 8 : DY_GAP + (desc.rows + DY_GAP) % 2, n_dy = n_rows * (desc.rows + dy_gap);
    float *dy = op_normals(n_dy, stream + 1, 1.0), *dx = op_normals(n_rows * desc.cols, stream + 2, 1.0);
    void *dy_typed = op_to_dtype(dy, n_dy, dy_dtype);
    double *bound = op_doubles(n_rows * desc.cols);
    const linear_case data = {.weight = weight,
                              .dy_dtype = dy_dtype,
                              .dy = dy_typed,
                              .dx = accumulate ? dx : NULL,
                              .dy_gap = dy_gap,
                              .dx_gap = any_order ? 4 : DX_GAP,
                              .any_order = any_order};
    op_case c = {
        .n_rows = n_rows, .row = desc.cols, .exec = exec_linear, .data = &data, .bound = bound, .whole = any_order};
    snprintf(c.label, sizeof c.label, "linear_backward %s block %d [%lld, %lld] dy %s rows %lld%s%s",
             qr_weight_format_name(desc.format), desc.block, (long long)desc.rows, (long long)desc.cols,
             qr_dtype_name(dy_dtype), (long long)n_rows, accumulate ? " accumulate" : "",
             any_order ? " any order" : "");
    linear_bound(&data, n_rows, bound);
    op_check_case(&c, QR_DTYPE_F32);
    op_weight_destroy(weight);
    qr_free(dy);
    qr_free(dx);
    qr_free(dy_typed);
    qr_free(bound);
}

/* Every format and type; widths and numbers of outputs at and beside the edges of vectors, NF4 groups and blocks of
 * k; rows that do not fill a tile, and more of them than a task takes. */
void test_op_linear_backward(void) {
    static const int64_t cols[] = {1, 31, 64, 80, 172, 320, 600};
    static const int64_t outs[] = {1, 3, 17, 100, 300};
    static const int blocks[] = {64, 32, 128, 4096};
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_BF16, QR_DTYPE_F16};
    enum { N_DTYPES = QR_COUNT_OF(dtypes) };
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        const bool nf4 = qr_weight_is_nf4((qr_weight_format)format);
        for (unsigned i = 0; i < QR_COUNT_OF(cols) * QR_COUNT_OF(outs) * N_DTYPES; i++) {
            const unsigned shape = i / N_DTYPES;
            if (check_thins() && i % N_DTYPES != shape % N_DTYPES) { continue; } /* types in turn */
            const qr_weight_desc desc = {
                .format = (qr_weight_format)format,
                .block = nf4 ? blocks[(shape + shape / 4) % 4] : 0,
                .cols = cols[shape % QR_COUNT_OF(cols)],
                .rows = outs[shape / QR_COUNT_OF(cols)],
            };
            check_linear(desc, dtypes[i % N_DTYPES], desc.rows * desc.cols > 30000 ? 9 : 31, (shape + i) % 2 == 0,
                         false);
        }
        const qr_weight_desc few = {.format = (qr_weight_format)format, .block = nf4 ? 64 : 0, .rows = 33, .cols = 64};
        const qr_weight_desc some = {.format = few.format, .block = few.block, .rows = 264, .cols = 72};
        check_linear(few, QR_DTYPE_F32, 299, true, false);
        check_linear(few, QR_DTYPE_BF16, 299, false, false);
        check_linear(few, QR_DTYPE_F16, 299, true, false);
        check_linear(few, QR_DTYPE_BF16, 128, true, true);
        check_linear(some, QR_DTYPE_F32, 128, false, true);
        check_linear(some, QR_DTYPE_BF16, 128, false, true);
        check_linear(some, QR_DTYPE_F16, 130, true, true);
        check_linear(some, QR_DTYPE_BF16, 30, false, true);
    }
}

/* --- weight_backward --------------------------------------------------------------------------------------------- */

typedef struct weight_case {
    int64_t n_tokens, in, out;
    qr_dtype x_dtype;
    const void *x;      /* [n_tokens, in + X_GAP] */
    const float *dy;    /* [n_tokens, out + DY_GAP] */
    const float *dw;    /* [out, in]: what is there before */
    const float *dbias; /* [out], or NULL: not wanted */
} weight_case;

static const unsigned char *x_of(const void *x, qr_dtype dtype, int64_t index) {
    return (const unsigned char *)x + (size_t)index * qr_dtype_bytes(dtype);
}

/* dw and dbias of outputs [first, first + n_out) from tokens [token, token + n_tokens). */
static void run_weight(op_run *run, const weight_case *c, int64_t first, int64_t n_out, float *dw, float *dbias) {
    const int64_t x_stride = c->in + X_GAP, dy_stride = c->out + DY_GAP;
    const size_t x_bytes = (size_t)((c->n_tokens - 1) * x_stride + c->in) * qr_dtype_bytes(c->x_dtype);
    const size_t bias_bytes = (size_t)n_out * F32_BYTES;
    const qr_weight_backward_args args = {
        .x = op_input(run, c->x, x_bytes),
        .x_dtype = c->x_dtype,
        .dy = op_input(run, c->dy + first, (size_t)((c->n_tokens - 1) * dy_stride + n_out) * F32_BYTES),
        .dw = op_output(run, dw, n_out, (size_t)c->in * F32_BYTES, (size_t)c->in * F32_BYTES),
        .dbias = c->dbias != NULL ? op_output(run, dbias, 1, bias_bytes, bias_bytes) : NULL,
        .n_rows = c->n_tokens,
        .in = c->in,
        .out = n_out,
        .x_stride = x_stride,
        .dy_stride = dy_stride,
    };
    op_call(run, QR_OP_weight_backward, &args);
    op_read(run, args.dw, dw);
    if (c->dbias != NULL) { op_read(run, args.dbias, dbias); }
    op_run_end(run);
}

/* A row is dw[o, :], then dbias[o]. */
static void exec_weight(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const weight_case *c = data;
    float *dw = qr_alloc((size_t)(n_rows * c->in) * F32_BYTES), *dbias = qr_alloc((size_t)n_rows * F32_BYTES);
    memcpy(dw, c->dw + first * c->in, (size_t)(n_rows * c->in) * F32_BYTES);
    for (int64_t o = 0; o < n_rows; o++) { dbias[o] = c->dbias != NULL ? c->dbias[first + o] : 0.0F; }
    run_weight(run, c, first, n_rows, dw, dbias);
    for (int64_t o = 0; o < n_rows; o++) {
        float *row = (float *)out + o * (c->in + 1);
        memcpy(row, dw + o * c->in, (size_t)c->in * F32_BYTES);
        row[c->in] = dbias[o];
    }
    qr_free(dw);
    qr_free(dbias);
}

static void weight_bound(const weight_case *c, double *bound) {
    for (int64_t o = 0; o < c->out; o++) {
        for (int64_t k = 0; k <= c->in; k++) {
            double sum = 0.0;
            for (int64_t i = 0; i < c->n_tokens; i++) {
                const double x = k < c->in ? op_from_dtype(c->x, c->x_dtype, i * (c->in + X_GAP) + k) : 1.0;
                sum += fabs((double)c->dy[i * (c->out + DY_GAP) + o] * x);
            }
            if (k < c->in) { sum += fabs((double)c->dw[o * c->in + k]); }
            if (k == c->in && c->dbias != NULL) { sum += fabs((double)c->dbias[o]); }
            bound[o * (c->in + 1) + k] = (double)(c->n_tokens + 3) * OP_U * sum;
        }
    }
}

/* Micro-batches one after the other are one batch, to the bit. Of the CPU kernels: ref rounds once a call. Matrix tiles
 * take 32 tokens at a time. */
static void check_micro_batches(const weight_case *whole, const char *label, bool on_tiles) {
    const int64_t third = whole->n_tokens / 3, n_first = on_tiles ? third / 32 * 32 : third;
    if (n_first == 0) { return; }
    const size_t n = (size_t)(whole->in * whole->out);
    float *one = qr_alloc(n * F32_BYTES), *two = qr_alloc(n * F32_BYTES);
    weight_case first = *whole, second = *whole;
    first.dbias = second.dbias = NULL;
    first.n_tokens = n_first;
    second.n_tokens -= first.n_tokens;
    second.x = x_of(whole->x, whole->x_dtype, first.n_tokens * (whole->in + X_GAP));
    second.dy += first.n_tokens * (whole->out + DY_GAP);
    for (int d = 1; d < op_everything.n_devices; d++) {
        op_run run = {.backend = op_everything.devices[d].backends[d % 2], .label = label};
        if ((strncmp(run.backend->isa, "amx", 3) == 0) != on_tiles) { continue; }
        weight_case all = *whole;
        all.dbias = NULL;
        memcpy(one, whole->dw, n * F32_BYTES);
        memcpy(two, whole->dw, n * F32_BYTES);
        run_weight(&run, &all, 0, whole->out, one, NULL);
        run_weight(&run, &first, 0, whole->out, two, NULL);
        run_weight(&run, &second, 0, whole->out, two, NULL);
        CHECK_MSG(memcmp(one, two, n * F32_BYTES) == 0, "%s: %s: two micro-batches are not one batch",
                  op_everything.devices[d].label, label);
    }
    qr_free(one);
    qr_free(two);
}

static void check_weight(int64_t n_tokens, int64_t in, int64_t out, qr_dtype x_dtype, bool bias) {
    float *x = op_normals(n_tokens * (in + X_GAP), 401, 1.0), *dy = op_normals(n_tokens * (out + DY_GAP), 402, 1.0);
    float *dw = op_normals(out * in, 403, 1.0), *dbias = op_normals(out, 404, 1.0);
    void *x_typed = op_to_dtype(x, n_tokens * (in + X_GAP), x_dtype);
    double *bound = op_doubles(out * (in + 1));
    const weight_case data = {.n_tokens = n_tokens,
                              .in = in,
                              .out = out,
                              .x_dtype = x_dtype,
                              .x = x_typed,
                              .dy = dy,
                              .dw = dw,
                              .dbias = bias ? dbias : NULL};
    op_case c = {.n_rows = out, .row = in + 1, .exec = exec_weight, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "weight_backward [%lld, %lld] x %s tokens %lld%s", (long long)out, (long long)in,
             qr_dtype_name(x_dtype), (long long)n_tokens, bias ? " bias" : "");
    weight_bound(&data, bound);
    op_check_case(&c, QR_DTYPE_F32);
    check_micro_batches(&data, c.label, false);
    check_micro_batches(&data, c.label, true);
    qr_free(x);
    qr_free(dy);
    qr_free(dw);
    qr_free(dbias);
    qr_free(x_typed);
    qr_free(bound);
}

void test_op_weight_backward(void) {
    static const int64_t tokens[] = {1, 2, 17, 128, 131, 300};
    static const int64_t ins[] = {1, 31, 64, 300};
    static const int64_t outs[] = {1, 23, 280};
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_BF16, QR_DTYPE_F32, QR_DTYPE_F16};
    for (unsigned i = 0; i < QR_COUNT_OF(tokens) * QR_COUNT_OF(ins) * QR_COUNT_OF(outs); i++) {
        const int64_t n = tokens[i % QR_COUNT_OF(tokens)], in = ins[i / QR_COUNT_OF(tokens) % QR_COUNT_OF(ins)];
        const int64_t out = outs[i / QR_COUNT_OF(tokens) / QR_COUNT_OF(ins)];
        if (n * in * out > 4000000) { continue; }
        check_weight(n, in, out, dtypes[i % QR_COUNT_OF(dtypes)], i % 3 == 0);
    }
}

/* --- lora_backward ----------------------------------------------------------------------------------------------- */

typedef enum lora_part { LORA_DX, LORA_DA, LORA_DB } lora_part;

typedef struct lora_case {
    lora_part part;
    int64_t n_tokens, in, out, rank;
    float scale;
    qr_dtype x_dtype;
    const void *x;                     /* [n_tokens, in + x_gap] */
    const float *dy;                   /* [n_tokens, out + DY_GAP] */
    const float *a, *b, *da, *db, *dx; /* dx [n_tokens, in] */
    const double *h, *dh;              /* [n_tokens, rank]: Σ|a||x|, |scale| Σ|dy||b| */
    int64_t x_gap, dx_gap;
    bool in_pairs;
    const void *dy_rounded; /* [n_tokens, out + dy_room]; NULL: none */
    double dy_error;        /* of it, of each element */
    int64_t dy_room;
    const linear_case *matrix; /* the op is linear_backward, which the adapter is part of; NULL: lora_backward */
    const double *of_matrix;   /* [n_tokens, in]: what its products add up to, of their absolute values */
} lora_case;

static int64_t lora_rows(const lora_case *c) {
    return c->part == LORA_DX ? c->n_tokens : c->part == LORA_DA ? c->in : c->out;
}
static int64_t lora_row(const lora_case *c) { return c->part == LORA_DX ? c->in : c->rank; }

/* Columns [first, first + n) of rows of `stride` elements. */
static float *columns_of(const float *src, int64_t n_rows, int64_t stride, int64_t first, int64_t n) {
    float *dst = qr_alloc((size_t)(n_rows * n) * F32_BYTES);
    for (int64_t r = 0; r < n_rows; r++) { memcpy(dst + r * n, src + r * stride + first, (size_t)n * F32_BYTES); }
    return dst;
}

static void call_with_matrix(op_run *run, const lora_case *c, const qr_lora_backward_args *lora) {
    const linear_case *m = c->matrix;
    const qr_linear_backward_args args = {
        .weight = op_run_weight(run, m->weight),
        .dy = lora->dy_rounded,
        .dy_dtype = m->dy_dtype,
        .dx = lora->dx,
        .n_rows = lora->n_rows,
        .dy_stride = lora->dy_rounded_stride,
        .dx_stride = lora->dx_stride,
        .dy_room = c->dy_room,
        .accumulate = m->dx != NULL,
        .any_order = m->any_order,
        .lora = lora,
    };
    op_call(run, QR_OP_linear_backward, &args);
}

/* Rows of dy_rounded must be as they were, but for their room. */
static void check_dy_rounded(op_run *run, const lora_case *c, const void *dy_rounded) {
    const size_t element = qr_dtype_bytes(c->x_dtype), stride = (size_t)(c->out + c->dy_room) * element;
    unsigned char *now = qr_alloc((size_t)c->n_tokens * stride);
    op_read(run, dy_rounded, now);
    for (int64_t i = 0; i < c->n_tokens; i++) {
        const size_t at = (size_t)i * stride;
        CHECK_MSG(memcmp(now + at, (const unsigned char *)c->dy_rounded + at, (size_t)c->out * element) == 0,
                  "%s: row %lld of dy has changed", run->label, (long long)i);
    }
    qr_free(now);
}

/* Of the part that the case is about, rows [first, first + n_rows); of the others everything. */
static void exec_lora(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *dst) {
    (void)dtype;
    const lora_case *c = data;
    const int64_t token = c->part == LORA_DX ? first : 0, n_tokens = c->part == LORA_DX ? n_rows : c->n_tokens;
    const int64_t col = c->part == LORA_DA ? first : 0, in = c->part == LORA_DA ? n_rows : c->in;
    const int64_t o = c->part == LORA_DB ? first : 0, out = c->part == LORA_DB ? n_rows : c->out;
    const int64_t x_stride = c->in + c->x_gap, dy_stride = c->out + DY_GAP;
    const size_t in_bytes = (size_t)in * F32_BYTES, rank_bytes = (size_t)c->rank * F32_BYTES;
    const bool wants_dx = c->part == LORA_DX || c->rank % 2 == 0 || c->matrix != NULL;
    const bool adds_dx = c->matrix == NULL || c->matrix->dx != NULL;
    const int64_t rounded_stride = out + c->dy_room;
    const size_t rounded_bytes = (size_t)rounded_stride * qr_dtype_bytes(c->x_dtype);
    float *a = columns_of(c->a, c->rank, c->in, col, in), *da = columns_of(c->da, c->rank, c->in, col, in);
    float *dx = columns_of(c->dx + token * c->in, n_tokens, c->in, col, in);
    const qr_lora_backward_args args = {
        .a = op_input(run, a, (size_t)c->rank * in_bytes),
        .b = op_input(run, c->b + o * c->rank, (size_t)out * rank_bytes),
        .da = op_output(run, da, c->rank, in_bytes, in_bytes),
        .db = op_output(run, c->db + o * c->rank, out, rank_bytes, rank_bytes),
        .x = op_input(run, x_of(c->x, c->x_dtype, token * x_stride + col),
                      (size_t)((n_tokens - 1) * x_stride + in) * qr_dtype_bytes(c->x_dtype)),
        .x_dtype = c->x_dtype,
        .dy = op_input(run, c->dy + token * dy_stride + o, (size_t)((n_tokens - 1) * dy_stride + out) * F32_BYTES),
        .dy_rounded = c->matrix != NULL ? op_output(run, c->dy_rounded, n_tokens, rounded_bytes, rounded_bytes)
                                        : op_input(run, c->dy_rounded, (size_t)n_tokens * rounded_bytes),
        .dx = wants_dx
                  ? op_output(run, adds_dx ? dx : NULL, n_tokens, in_bytes, in_bytes + (size_t)c->dx_gap * F32_BYTES)
                  : NULL,
        .n_rows = n_tokens,
        .in = in,
        .out = out,
        .x_stride = x_stride,
        .dy_stride = dy_stride,
        .dy_rounded_stride = rounded_stride,
        .dx_stride = in + c->dx_gap,
        .rank = (int32_t)c->rank,
        .scale = c->scale,
        .in_pairs = c->in_pairs,
    };
    if (c->matrix != NULL) {
        call_with_matrix(run, c, &args);
        check_dy_rounded(run, c, args.dy_rounded);
    } else {
        op_call(run, QR_OP_lora_backward, &args);
    }
    if (c->part == LORA_DX) { op_read(run, args.dx, dst); }
    if (c->part == LORA_DB) { op_read(run, args.db, dst); }
    if (c->part == LORA_DA) {
        op_read(run, args.da, da);
        for (int64_t i = 0; i < in * c->rank; i++) { ((float *)dst)[i] = da[i % c->rank * in + i / c->rank]; }
    }
    op_run_end(run); /* before its inputs go */
    qr_free(a);
    qr_free(da);
    qr_free(dx);
}

static void lora_sums(const lora_case *c, double *h, double *dh) {
    for (int64_t j = 0; j < c->n_tokens * c->rank; j++) {
        const int64_t i = j / c->rank, r = j % c->rank;
        for (int64_t k = 0; k < c->in; k++) {
            h[j] += fabs((double)c->a[r * c->in + k] * op_from_dtype(c->x, c->x_dtype, i * (c->in + c->x_gap) + k));
        }
        for (int64_t o = 0; o < c->out; o++) {
            dh[j] += fabs((double)c->scale * (double)c->dy[i * (c->out + DY_GAP) + o] * (double)c->b[o * c->rank + r]);
        }
    }
}

/* One element: the terms' magnitudes, what was there, the lengths of the sum and of its operand's sum. In pairs sums
 * have up to three times as many products; what is a pair moves its term by 2^-17, and two that are multiplied without
 * their low parts (2^-8 of them at most) by 2^-15: that is `pairs`. With a matrix, its products may be in the same sum
 * of dx, and are part of `before`. */
static double lora_error(const lora_case *c, double terms, double before, int64_t n, int64_t n_operand, double pairs) {
    const bool in_pairs = c->in_pairs && c->x_dtype == QR_DTYPE_BF16;
    const double of_matrix = c->matrix != NULL && c->part == LORA_DX ? (double)c->out + 5 : 0.0;
    const double rounded = (double)(n_operand * (in_pairs ? 2 : 1) + 6) * terms +
                           ((double)(n * (in_pairs ? 3 : 1) + 5) + of_matrix) * (terms + fabs(before));
    return OP_U * rounded + (in_pairs ? (pairs + c->dy_error) * (1.0 + 0x1p-7) * terms : 0.0);
}

static double lora_bound(const lora_case *c, int64_t row, int64_t j) {
    double terms = 0.0;
    switch (c->part) {
        case LORA_DX:
            for (int64_t r = 0; r < c->rank; r++) {
                terms += c->dh[row * c->rank + r] * fabs((double)c->a[r * c->in + j]);
            }
            return lora_error(c, terms,
                              c->matrix != NULL ? c->of_matrix[row * c->in + j] : (double)c->dx[row * c->in + j],
                              c->rank, c->out, 0x1p-15 + 0x1p-17);
        case LORA_DA:
            for (int64_t i = 0; i < c->n_tokens; i++) {
                terms += c->dh[i * c->rank + j] * fabs(op_from_dtype(c->x, c->x_dtype, i * (c->in + c->x_gap) + row));
            }
            return lora_error(c, terms, (double)c->da[j * c->in + row], c->n_tokens, c->out, 0x1p-16);
        default:
            for (int64_t i = 0; i < c->n_tokens; i++) {
                terms += fabs((double)c->scale * (double)c->dy[i * (c->out + DY_GAP) + row]) * c->h[i * c->rank + j];
            }
            return lora_error(c, terms, (double)c->db[row * c->rank + j], c->n_tokens, c->in, 0x1p-16);
    }
}

static void check_lora_part(lora_case *data, lora_part part) {
    static const char *const names[] = {"dx", "da", "db"};
    data->part = part;
    double *bound = op_doubles(lora_rows(data) * lora_row(data));
    for (int64_t i = 0; i < lora_rows(data) * lora_row(data); i++) {
        bound[i] = lora_bound(data, i / lora_row(data), i % lora_row(data));
    }
    op_case c = {.n_rows = lora_rows(data),
                 .row = lora_row(data),
                 .exec = exec_lora,
                 .data = data,
                 .bound = bound,
                 .whole = data->dy_rounded != NULL};
    snprintf(c.label, sizeof c.label, "%s %s [%lld, %lld] rank %lld x %s tokens %lld%s%s",
             data->matrix != NULL ? "linear_backward with lora" : "lora_backward", names[part], (long long)data->out,
             (long long)data->in, (long long)data->rank, qr_dtype_name(data->x_dtype), (long long)data->n_tokens,
             data->in_pairs ? " pairs" : "", data->dy_error > 0 ? " dy rounded" : "");
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(bound);
}

/* `kind`: the plain op; or with dy_rounded, which is dy or what it rounds to, with or without leave to use pairs. */
typedef enum lora_kind { LORA_PLAIN, LORA_PAIRS, LORA_PAIRS_ROUNDED, LORA_REFUSED } lora_kind;

/* An adapter that is part of its matrix's op. */
typedef struct lora_matrix {
    qr_weight_desc desc;
    int64_t dy_room;
    bool accumulate;
} lora_matrix;

static void check_parts(lora_case *data, const lora_matrix *m) {
    double *sums = NULL;
    linear_case matrix;
    op_weight *weight = NULL;
    if (m != NULL) {
        const int64_t n = data->n_tokens * data->in;
        weight = op_weight_create(m->desc, 510);
        matrix = (linear_case){.weight = weight,
                               .dy_dtype = data->x_dtype,
                               .dy = data->dy_rounded,
                               .dx = m->accumulate ? data->dx : NULL,
                               .dy_gap = data->dy_room,
                               .any_order = true};
        sums = op_doubles(n);
        linear_bound(&matrix, data->n_tokens, sums);
        for (int64_t i = 0; i < n; i++) { sums[i] /= (double)(data->out + 5) * OP_U; }
        data->matrix = &matrix;
        data->of_matrix = sums;
    }
    check_lora_part(data, LORA_DX);
    check_lora_part(data, LORA_DA);
    check_lora_part(data, LORA_DB);
    if (weight != NULL) { op_weight_destroy(weight); }
    qr_free(sums);
}

/* Rows at multiples of 16 bytes, where their length allows it, for all kinds but the plain one. */
static void check_lora_of(int64_t n_tokens, int64_t in, int64_t out, int64_t rank, qr_dtype x_dtype, lora_kind kind,
                          const lora_matrix *matrix) {
    const int64_t x_gap = kind == LORA_PLAIN ? X_GAP : 8, dy_stride = out + DY_GAP;
    float *x = op_normals(n_tokens * (in + x_gap), 501, 1.0), *dy = op_normals(n_tokens * dy_stride, 502, 1.0);
    const int64_t dy_room = matrix != NULL ? matrix->dy_room : 0, rounded_stride = out + dy_room;
    float *dy_packed = op_normals(n_tokens * rounded_stride, 508, 1.0);
    for (int64_t i = 0; i < n_tokens * out; i++) {
        float *at = &dy[i / out * dy_stride + i % out];
        if (kind == LORA_PAIRS) { *at = (float)op_below(509, i, 255) * 0x1p-6F - 2.0F; } /* exact in BF16 */
        dy_packed[i / out * rounded_stride + i % out] = *at;
    }
    void *dy_rounded = op_to_dtype(dy_packed, n_tokens * rounded_stride, x_dtype);
    float *a = op_normals(rank * in, 503, 0.1), *b = op_normals(out * rank, 504, 0.1);
    float *da = op_normals(rank * in, 505, 1.0), *db = op_normals(out * rank, 506, 1.0);
    float *dx = op_normals(n_tokens * in, 507, 0.1);
    void *x_typed = op_to_dtype(x, n_tokens * (in + x_gap), x_dtype);
    double *h = op_doubles(n_tokens * rank), *dh = op_doubles(n_tokens * rank);
    lora_case data = {.n_tokens = n_tokens,
                      .in = in,
                      .out = out,
                      .rank = rank,
                      .scale = 1.7F,
                      .x_dtype = x_dtype,
                      .x = x_typed,
                      .dy = dy,
                      .a = a,
                      .b = b,
                      .da = da,
                      .db = db,
                      .dx = dx,
                      .h = h,
                      .dh = dh,
                      .x_gap = x_gap,
                      .dx_gap = kind == LORA_PLAIN ? DX_GAP : 4,
                      .in_pairs = kind == LORA_PAIRS || kind == LORA_PAIRS_ROUNDED,
                      .dy_rounded = kind == LORA_PLAIN ? NULL : dy_rounded,
                      .dy_error = kind == LORA_PAIRS_ROUNDED ? 0x1p-8 : 0.0,
                      .dy_room = dy_room};
    lora_sums(&data, h, dh);
    check_parts(&data, matrix);
    float *const floats[] = {x, dy, dy_packed, a, b, da, db, dx};
    for (size_t i = 0; i < QR_COUNT_OF(floats); i++) { qr_free(floats[i]); }
    qr_free(x_typed);
    qr_free(dy_rounded);
    qr_free(h);
    qr_free(dh);
}

static void check_lora(int64_t n_tokens, int64_t in, int64_t out, int64_t rank, qr_dtype x_dtype, lora_kind kind) {
    check_lora_of(n_tokens, in, out, rank, x_dtype, kind, NULL);
}

/* Sizes at which a backend may make one product of dx, in one panel of the weights and in several, and beside them:
 * tokens, in, out, rank. Room for the adapter, more, too little, and none. */
static void check_lora_with_matrix(void) {
    static const int64_t sizes[][4] = {{128, 72, 136, 16}, {33, 24, 1160, 8}, {300, 8, 8, 20},    {64, 200, 264, 1},
                                       {30, 72, 136, 8},   {128, 31, 64, 8},  {40, 1160, 24, 16}, {33, 1280, 8, 8}};
    for (unsigned i = 0; i < QR_WEIGHT_FORMAT_COUNT * QR_COUNT_OF(sizes); i++) {
        const int64_t *s = sizes[i % QR_COUNT_OF(sizes)], room = qr_lora_room((int32_t)s[3]);
        const qr_weight_format format = (qr_weight_format)(i / QR_COUNT_OF(sizes));
        const int block = qr_weight_is_nf4(format) ? (i % 2 == 0 ? QR_NF4_BLOCK : 32) : 0;
        const lora_matrix matrix = {.desc = {.format = format, .block = block, .rows = s[2], .cols = s[1]},
                                    .dy_room = i % 5 == 3   ? room - 8
                                               : i % 5 == 4 ? 0
                                                            : room + (i % 5 == 2 ? 8 : 0),
                                    .accumulate = i % 2 == 1};
        check_lora_of(s[0], s[1], s[2], s[3], QR_DTYPE_BF16, i % 3 == 0 ? LORA_PAIRS_ROUNDED : LORA_PAIRS, &matrix);
    }
}

/* Ranks, widths and numbers of tokens at which a backend may take pairs, and beside them; the same without permission.
 */
static void check_lora_permission(void) {
    static const int64_t sizes[][4] = {
        {128, 72, 136, 1}, {300, 24, 40, 8}, {33, 200, 24, 16}, {129, 8, 200, 20}, {128, 64, 64, 64},
        {31, 72, 136, 4},  {1, 64, 64, 16},  {130, 31, 64, 8},  {130, 64, 23, 8},
    };
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        const int64_t *s = sizes[i];
        check_lora(s[0], s[1], s[2], s[3], QR_DTYPE_BF16, LORA_PAIRS);
        check_lora(s[0], s[1], s[2], s[3], QR_DTYPE_BF16, LORA_PAIRS_ROUNDED);
        if (i % 3 == 0) { check_lora(s[0], s[1], s[2], s[3], QR_DTYPE_BF16, LORA_REFUSED); }
        if (i % 3 == 1) { check_lora(s[0], s[1], s[2], s[3], i == 1 ? QR_DTYPE_F16 : QR_DTYPE_F32, LORA_PAIRS); }
    }
}

void test_op_lora_backward(void) {
    check_lora_with_matrix();
    check_lora_permission();
    static const int64_t sizes[][4] = {
        /* tokens, in, out, rank */
        {1, 1, 1, 1},     {7, 31, 17, 3},     {65, 64, 100, 8},  {40, 172, 64, 16},
        {300, 48, 33, 5}, {130, 300, 280, 4}, {19, 320, 80, 33}, {12, 64, 64, 300},
    };
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        check_lora(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], QR_DTYPE_F32, LORA_PLAIN);
        check_lora(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], i % 2 == 0 ? QR_DTYPE_BF16 : QR_DTYPE_F16,
                   LORA_PLAIN);
    }
}
