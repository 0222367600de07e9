/* linear and lora.
 *
 * Bound of a sum of n products in F32, whatever the order and with or without fused operations: each term is rounded
 * at most n times on its way into the sum and once as a product, so |y − ref| ≤ (n + c) · u · Σ|x||w| with a small c
 * for the rounding of weights, bias and the row's scale, each of which is also a term of the sum. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"

/* Rows of x and y begin anywhere, or, where their length allows it, at multiples of 16 bytes. */
enum { X_GAP = 3, X_ALIGNED_GAP = 8, Y_GAP = 5, Y_ALIGNED_GAP = 4, MAX_ROWS = 65 };

typedef struct linear_case {
    const op_weight *weight;
    qr_dtype x_dtype;
    const void *x; /* [n_rows, in + x_gap] */
    int64_t x_gap;
    const float *bias, *y; /* NULL: none; y [n_rows, out]: what is accumulated onto */
    int64_t y_gap;
    bool any_order;
} linear_case;

static void exec_linear(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const linear_case *c = data;
    const int64_t in = c->weight->desc.cols, n_out = c->weight->desc.rows, x_stride = in + c->x_gap;
    const size_t x_bytes = qr_dtype_bytes(c->x_dtype);
    const unsigned char *x = (const unsigned char *)c->x + (size_t)(first * x_stride) * x_bytes;
    const qr_linear_args args = {
        .weight = op_run_weight(run, c->weight),
        .bias = op_input(run, c->bias, (size_t)n_out * sizeof(float)),
        .x = op_input(run, x, (size_t)((n_rows - 1) * x_stride + in) * x_bytes),
        .x_dtype = c->x_dtype,
        .y = op_output(run, c->y != NULL ? c->y + first * n_out : NULL, n_rows, (size_t)n_out * sizeof(float),
                       (size_t)(n_out + c->y_gap) * sizeof(float)),
        .n_rows = n_rows,
        .x_stride = x_stride,
        .y_stride = n_out + c->y_gap,
        .accumulate = c->y != NULL,
        .any_order = c->any_order,
    };
    op_call(run, QR_OP_linear, &args);
    op_read(run, args.y, out);
}

static void linear_bound(const linear_case *c, int64_t n_rows, double *bound) {
    const int64_t in = c->weight->desc.cols, n_out = c->weight->desc.rows;
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t o = 0; o < n_out; o++) {
            double sum = 0.0;
            for (int64_t k = 0; k < in; k++) {
                sum += fabs(op_from_dtype(c->x, c->x_dtype, i * (in + c->x_gap) + k) *
                            (double)c->weight->values[o * in + k]);
            }
            /* The values are those before rounding to x's type, which adds at most 2^-8 of each. */
            sum *= c->x_dtype != QR_DTYPE_F32 ? 1.0 + 0x1p-8 : 1.0;
            if (c->bias != NULL) { sum += fabs((double)c->bias[o]); }
            if (c->y != NULL) { sum += fabs((double)c->y[i * n_out + o]); }
            bound[i * n_out + o] = (double)(in + 5) * OP_U * sum;
        }
    }
}

/* `kind` picks plain, bias, accumulate or both, and ANY_ORDER: then the bits of a row are those of the whole call. */
enum { BIAS = 1, ACCUMULATE = 2, ANY_ORDER = 4, SAME_EVERYWHERE = 8, NOT_ALONE = 16 };

static void check_linear(qr_weight_desc desc, qr_dtype x_dtype, int64_t n_rows, unsigned kind) {
    const uint64_t stream = (uint64_t)(desc.rows * 10007 + desc.cols * 31) + kind;
    op_weight *weight = op_weight_create(desc, stream);
    const bool any_order = (kind & ANY_ORDER) != 0;
    const bool anywhere = (kind & BIAS) != 0 && !any_order && (kind & SAME_EVERYWHERE) == 0;
    const int64_t x_gap = anywhere ? X_GAP : X_ALIGNED_GAP, n_x = n_rows * (desc.cols + x_gap);
    float *x = op_normals(n_x, stream + 1, 1.0), *bias = op_normals(desc.rows, stream + 2, 1.0);
    float *y = op_normals(n_rows * desc.rows, stream + 3, 1.0);
    void *x_typed = op_to_dtype(x, n_x, x_dtype);
    double *bound = op_doubles(n_rows * desc.rows);
    const linear_case data = {
        .weight = weight,
        .x_dtype = x_dtype,
        .x = x_typed,
        .x_gap = x_gap,
        .bias = (kind & BIAS) != 0 ? bias : NULL,
        .y = (kind & ACCUMULATE) != 0 ? y : NULL,
        .y_gap = any_order ? Y_ALIGNED_GAP : Y_GAP,
        .any_order = any_order,
    };
    op_case c = {.n_rows = n_rows,
                 .row = desc.rows,
                 .exec = exec_linear,
                 .data = &data,
                 .bound = bound,
                 .whole = any_order || (kind & NOT_ALONE) != 0,
                 .same_everywhere = (kind & SAME_EVERYWHERE) != 0};
    snprintf(c.label, sizeof c.label, "linear %s block %d [%lld, %lld] x %s rows %lld%s%s%s",
             qr_weight_format_name(desc.format), desc.block, (long long)desc.rows, (long long)desc.cols,
             qr_dtype_name(x_dtype), (long long)n_rows, data.bias != NULL ? " bias" : "",
             data.y != NULL ? " accumulate" : "", any_order ? " any order" : "");
    linear_bound(&data, n_rows, bound);
    op_check_case(&c, QR_DTYPE_F32);
    op_weight_destroy(weight);
    qr_free(x);
    qr_free(bias);
    qr_free(y);
    qr_free(x_typed);
    qr_free(bound);
}

/* What F16 cannot hold is infinite, and goes on as such: infinity times zero, and infinities of both signs, are NaN.
 * The rest are small integers, whose sums are exact. */
static void check_linear_overflow(qr_weight_format format) {
    enum { IN = 70, OUT = 17 };
    op_weight *weight = op_weight_create((qr_weight_desc){.format = format, .rows = OUT, .cols = IN}, 9);
    float x[MAX_ROWS * (IN + X_GAP)], w[OUT * IN];
    for (int i = 0; i < OUT * IN; i++) { w[i] = (float)(op_below(1, i, 17) - 8); }
    for (size_t i = 0; i < QR_COUNT_OF(x); i++) { x[i] = (float)(op_below(2, (int64_t)i, 17) - 8); }
    w[3 * IN + 5] = w[4 * IN + 69] = 65536.0F;
    w[4 * IN + 1] = -1e6F;
    w[5 * IN] = 65504.0F;
    x[IN + X_GAP + 5] = 0.0F;
    x[2 * (IN + X_GAP) + 31] = INFINITY;
    const qr_dtype dtype = format == QR_WEIGHT_F32 ? QR_DTYPE_F32 : QR_DTYPE_BF16;
    void *codes = op_to_dtype(w, OUT * IN, dtype), *x_typed = op_to_dtype(x, (int64_t)QR_COUNT_OF(x), QR_DTYPE_F16);
    memcpy(weight->codes, codes, qr_weight_code_bytes(&weight->desc));
    const linear_case data = {.weight = weight, .x_dtype = QR_DTYPE_F16, .x = x_typed, .x_gap = X_GAP, .y_gap = Y_GAP};
    op_case c = {.n_rows = MAX_ROWS, .row = OUT, .exec = exec_linear, .data = &data};
    snprintf(c.label, sizeof c.label, "linear %s x F16, infinities", qr_weight_format_name(format));
    op_check_case(&c, QR_DTYPE_F32);
    op_weight_destroy(weight);
    qr_free(codes);
    qr_free(x_typed);
}

/* Past the edges of one tile of 128 rows, of 64, and of 256; and of the 512 rows that a task of the CPU takes. */
enum { MANY_ROWS = 131, FEWER_ROWS = 100, MOST_ROWS = 260, CHUNK_ROWS = 525 };

/* More rows than one tile of any kernel takes, and outputs past a tile's edge: 1 … 64 of these rows, by the harness,
 * have the bits that they have among all. */
static void check_linear_many_rows(void) {
    static const int64_t shapes[][2] = {{130, 64}, {17, 1152}, {200, 320}};
    static const qr_dtype dtypes[] = {QR_DTYPE_BF16, QR_DTYPE_F16};
    for (unsigned i = 0; i < QR_WEIGHT_FORMAT_COUNT * QR_COUNT_OF(shapes); i++) {
        const qr_weight_format format = (qr_weight_format)(i / QR_COUNT_OF(shapes));
        const int64_t *shape = shapes[i % QR_COUNT_OF(shapes)];
        const int block = qr_weight_is_nf4(format) ? (i % 2 == 0 ? QR_NF4_BLOCK : 32) : 0;
        const qr_weight_desc desc = {.format = format, .block = block, .rows = shape[0], .cols = shape[1]};
        /* x at multiples of 16 bytes, with and without accumulating. */
        check_linear(desc, format == QR_WEIGHT_BF16 ? QR_DTYPE_BF16 : dtypes[i % 2], MANY_ROWS,
                     i / 2 % 2 == 0 ? 0 : ACCUMULATE);
        if (format == QR_WEIGHT_F16) { check_linear(desc, QR_DTYPE_F16, MANY_ROWS, 0); }
    }
    static const qr_weight_format formats[] = {QR_WEIGHT_NF4, QR_WEIGHT_INT8, QR_WEIGHT_BF16};
    for (size_t i = 0; i < QR_COUNT_OF(formats); i++) {
        const int block = qr_weight_is_nf4(formats[i]) ? QR_NF4_BLOCK : 0;
        const qr_weight_desc desc = {.format = formats[i], .block = block, .rows = 35, .cols = i == 1 ? 160 : 64};
        check_linear(desc, QR_DTYPE_BF16, CHUNK_ROWS, i % 2 == 0 ? BIAS : 0);
    }
}

/* Whole tiles of 256 rows, one row more, and one less, with a bias: more chunks than a GPU has stages for, and fewer.
 */
static void check_linear_most_rows(int64_t n_outputs, unsigned flags) {
    static const struct {
        qr_weight_format format;
        qr_dtype dtype;
        int64_t n_rows, cols;
    } cases[] = {{QR_WEIGHT_NF4, QR_DTYPE_BF16, 511, 320},
                 {QR_WEIGHT_NF4_DQ, QR_DTYPE_F16, 257, 192},
                 {QR_WEIGHT_INT8, QR_DTYPE_BF16, 256, 576},
                 {QR_WEIGHT_BF16, QR_DTYPE_BF16, 257, 192},
                 {QR_WEIGHT_F16, QR_DTYPE_F16, 511, 64}};
    for (unsigned i = 0; i < QR_COUNT_OF(cases); i++) {
        const qr_weight_desc desc = {.format = cases[i].format,
                                     .block = qr_weight_is_nf4(cases[i].format) ? QR_NF4_BLOCK : 0,
                                     .rows = n_outputs,
                                     .cols = cases[i].cols};
        check_linear(desc, cases[i].dtype, cases[i].n_rows, flags | BIAS | (i % 2 == 0 ? ACCUMULATE : 0U));
    }
}

/* Segments of one chunk, of an odd and of an even number, the last one shorter, and empty ones. */
void op_linear_same_bits(int64_t n_outputs, bool alone) {
    static const int64_t cols[] = {64, 320, 1088, 1664};
    static const qr_dtype dtypes[] = {QR_DTYPE_BF16, QR_DTYPE_F16};
    for (unsigned i = 0; i < QR_WEIGHT_FORMAT_COUNT * QR_COUNT_OF(cols) * QR_COUNT_OF(dtypes); i++) {
        const unsigned width = i / QR_COUNT_OF(dtypes) % QR_COUNT_OF(cols);
        const qr_weight_format format = (qr_weight_format)(i / QR_COUNT_OF(dtypes) / QR_COUNT_OF(cols));
        const qr_dtype dtype = dtypes[i % QR_COUNT_OF(dtypes)];
        const bool is_16 = format == QR_WEIGHT_BF16 || format == QR_WEIGHT_F16;
        if (format == QR_WEIGHT_F32 || (is_16 && (format == QR_WEIGHT_BF16) != (dtype == QR_DTYPE_BF16))) { continue; }
        const qr_weight_desc desc = {.format = format,
                                     .block = !qr_weight_is_nf4(format) ? 0
                                              : width == 1              ? 128
                                                                        : QR_NF4_BLOCK,
                                     .rows = n_outputs,
                                     .cols = cols[width]};
        const unsigned flags = SAME_EVERYWHERE | (alone ? 0U : NOT_ALONE) | (width % 2 == 0 ? 0U : ACCUMULATE);
        check_linear(desc, dtype, MANY_ROWS, flags);
        if (width == 2) { check_linear(desc, dtype, FEWER_ROWS, flags); }
        if (width == 1) { check_linear(desc, dtype, MOST_ROWS, flags); }
    }
    check_linear_most_rows(n_outputs, SAME_EVERYWHERE | (alone ? 0U : NOT_ALONE));
}

void op_linear_most_rows(int64_t n_outputs) { check_linear_most_rows(n_outputs, SAME_EVERYWHERE | NOT_ALONE); }

/* A prompt's last rows, or a batch that decodes, with few cases for backends that choose their tiles by the GPU. */
void op_linear_few_rows(int64_t n_outputs) {
    static const qr_weight_format formats[] = {QR_WEIGHT_NF4, QR_WEIGHT_NF4_DQ, QR_WEIGHT_INT8, QR_WEIGHT_BF16};
    static const int64_t rows[] = {30, 64};
    for (unsigned i = 0; i < QR_COUNT_OF(formats) * QR_COUNT_OF(rows); i++) {
        const qr_weight_format format = formats[i / QR_COUNT_OF(rows)];
        const qr_weight_desc desc = {
            .format = format, .block = qr_weight_is_nf4(format) ? QR_NF4_BLOCK : 0, .rows = n_outputs, .cols = 1088};
        check_linear(desc, format == QR_WEIGHT_NF4 ? QR_DTYPE_F16 : QR_DTYPE_BF16, rows[i % QR_COUNT_OF(rows)],
                     SAME_EVERYWHERE | NOT_ALONE | (i % 2 == 0 ? 0U : ACCUMULATE));
    }
}

/* The order of sums left open: sizes at which a backend may take another way, and beside them. */
static void check_linear_any_order(void) {
    static const int64_t shapes[][3] = {{136, 72, 128}, {8, 200, 130}, {23, 64, 128}, {136, 128, 30}, {1160, 24, 33}};
    static const qr_dtype dtypes[] = {QR_DTYPE_BF16, QR_DTYPE_F16, QR_DTYPE_F32};
    for (unsigned i = 0; i < QR_WEIGHT_FORMAT_COUNT * QR_COUNT_OF(shapes) * QR_COUNT_OF(dtypes); i++) {
        const unsigned shape = i / QR_COUNT_OF(dtypes) % QR_COUNT_OF(shapes);
        const qr_weight_format format = (qr_weight_format)(i / QR_COUNT_OF(dtypes) / QR_COUNT_OF(shapes));
        const qr_weight_desc desc = {.format = format,
                                     .block = qr_weight_is_nf4(format) ? (shape % 2 == 0 ? QR_NF4_BLOCK : 32) : 0,
                                     .rows = shapes[shape][0],
                                     .cols = shapes[shape][1]};
        check_linear(desc, dtypes[i % QR_COUNT_OF(dtypes)], shapes[shape][2], ANY_ORDER | i % 4);
    }
}

/* Every format, type, width and number of outputs; the rows are 65, and 1 … 64 of them by the harness. The widest
 * matrices take fewer combinations, for time. */
void test_op_linear(void) {
    check_linear_overflow(QR_WEIGHT_F32);
    check_linear_overflow(QR_WEIGHT_BF16);
    check_linear_many_rows();
    check_linear_any_order();
    static const int64_t cols[] = {1, 31, 64, 80, 128, 172, 256, 320, 2112};
    static const int64_t outs[] = {1, 3, 17, 64, 100};
    static const int blocks[] = {64, 32, 128, 4096};
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_BF16, QR_DTYPE_F16};
    enum { N_DTYPES = QR_COUNT_OF(dtypes) };
    /* Every size, with half of its types and blocks in turn, and a third where kernels run thread by thread. Under
     * sanitizers: with one of them. */
    const bool by_threads = strcmp(op_everything.devices[0].backends[0]->isa, "simt") == 0;
    const unsigned every = 1U + (check_thins() ? 1U : 0U) + (by_threads ? 1U : 0U);
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        const bool nf4 = qr_weight_is_nf4((qr_weight_format)format);
        for (unsigned i = 0; i < QR_COUNT_OF(cols) * QR_COUNT_OF(outs) * (nf4 ? 4U : 1U) * N_DTYPES; i++) {
            const unsigned shape = i / N_DTYPES / (nf4 ? 4U : 1U);
            const qr_weight_desc desc = {
                .format = (qr_weight_format)format,
                .block = nf4 ? blocks[i / N_DTYPES % 4] : 0,
                .cols = cols[shape % QR_COUNT_OF(cols)],
                .rows = outs[shape / QR_COUNT_OF(cols)],
            };
            const unsigned type_and_block = i % (N_DTYPES * (nf4 ? 4U : 1U));
            if (CHECK_SANITIZED && type_and_block != shape % (N_DTYPES * (nf4 ? 4U : 1U))) { continue; }
            if (!CHECK_SANITIZED && (type_and_block + shape) % every != 0) { continue; }
            const bool large = desc.cols > 1000 && desc.rows > 17;
            if (large && desc.block != 0 && desc.block != QR_NF4_BLOCK) { continue; }
            check_linear(desc, dtypes[i % N_DTYPES], large ? 17 : MAX_ROWS, (i / N_DTYPES + shape) % 4);
        }
    }
}

typedef struct lora_case {
    int64_t in, out;
    int32_t n_adapters;
    const int32_t *ranks;
    const float *scales;
    float *const *a, *const *b;
    const int32_t *row_adapter;
    qr_dtype x_dtype;
    const void *x; /* [n_rows, in + x_gap] */
    const float *y;
    int64_t n_rows, x_gap, y_gap;
    bool in_pairs;
    const linear_case *matrix; /* the op is linear, which the adapter is part of, with an x of its own; NULL: lora */
} lora_case;

/* Rows of x at multiples of four elements, but where its length is none. */
enum { N_ADAPTERS = 4, LORA_ROWS = 65, MAX_RANK = 64, LORA_GAP = 4 };

static int32_t max_rank_of(const lora_case *c) {
    int32_t most = 1;
    for (int i = 0; i < c->n_adapters; i++) { most = c->ranks[i] > most ? c->ranks[i] : most; }
    return most;
}

/* The matrix's x has the rows and the gap of the adapter's. */
static void call_with_matrix(op_run *run, const lora_case *c, int64_t first, int64_t n_rows, const qr_lora_args *lora) {
    const linear_case *m = c->matrix;
    const size_t x_bytes = qr_dtype_bytes(m->x_dtype);
    const unsigned char *x = (const unsigned char *)m->x + (size_t)(first * lora->x_stride) * x_bytes;
    const qr_linear_args args = {
        .weight = op_run_weight(run, m->weight),
        .bias = op_input(run, m->bias, (size_t)c->out * sizeof(float)),
        .x = op_input(run, x, (size_t)((n_rows - 1) * lora->x_stride + c->in) * x_bytes),
        .x_dtype = m->x_dtype,
        .y = lora->y,
        .n_rows = n_rows,
        .x_stride = lora->x_stride,
        .y_stride = lora->y_stride,
        .accumulate = m->y != NULL,
        .any_order = m->any_order,
        .lora = lora,
    };
    op_call(run, QR_OP_linear, &args);
}

static void exec_lora(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const lora_case *c = data;
    const size_t x_bytes = qr_dtype_bytes(c->x_dtype);
    qr_lora_factor factors[N_ADAPTERS] = {{0}};
    for (int i = 0; i < c->n_adapters; i++) {
        factors[i] = (qr_lora_factor){
            .a = op_input(run, c->a[i], (size_t)(c->ranks[i] * c->in) * sizeof(float)),
            .b = op_input(run, c->b[i], (size_t)(c->ranks[i] * c->out) * sizeof(float)),
            .rank = c->ranks[i],
            .scale = c->scales[i],
        };
    }
    const unsigned char *x = (const unsigned char *)c->x + (size_t)(first * (c->in + c->x_gap)) * x_bytes;
    const float *y = c->matrix != NULL ? c->matrix->y : c->y;
    const qr_lora_args args = {
        .factors = op_input(run, factors, sizeof factors),
        .row_adapter = op_input(run, c->row_adapter + first, (size_t)n_rows * sizeof(int32_t)),
        .x = op_input(run, x, (size_t)((n_rows - 1) * (c->in + c->x_gap) + c->in) * x_bytes),
        .x_dtype = c->x_dtype,
        .y = op_output(run, y != NULL ? y + first * c->out : NULL, n_rows, (size_t)c->out * sizeof(float),
                       (size_t)(c->out + c->y_gap) * sizeof(float)),
        .n_rows = n_rows,
        .in = c->in,
        .out = c->out,
        .x_stride = c->in + c->x_gap,
        .y_stride = c->out + c->y_gap,
        .n_adapters = c->n_adapters,
        .max_rank = max_rank_of(c),
        .in_pairs = c->in_pairs,
    };
    if (c->matrix != NULL) {
        call_with_matrix(run, c, first, n_rows, &args);
    } else {
        op_call(run, QR_OP_lora, &args);
    }
    op_read(run, args.y, out);
    op_run_end(run); /* before the factors on this stack go */
}

/* t = A x with an error of (in + 2) u Σ|a||x|; then a sum of rank products of t and b, scaled, added to y. In pairs the
 * sums are of up to twice and three times as many products; A moves t by 2^-17 Σ|a||x|, and the pairs of t and scale ·
 * b, whose low parts (2^-8 of them at most) are not multiplied, y by 2^-17 + 2^-17 + 2^-16 of Σ|scale · b||t|. With a
 * matrix all of its products may be in the same sum: c->y then holds what these add up to, of their absolute values. */
static void lora_bound(const lora_case *c, double *bound) {
    const bool pairs = c->in_pairs && c->x_dtype == QR_DTYPE_BF16;
    const double more = 1.0 + 0x1p-8; /* products of two of these errors */
    for (int64_t i = 0; i < c->n_rows; i++) {
        const int32_t adapter = c->row_adapter[i];
        double t[MAX_RANK] = {0}, t_error[MAX_RANK] = {0}, t_moved[MAX_RANK];
        const int32_t rank = adapter < 0 ? 0 : c->ranks[adapter];
        for (int32_t r = 0; r < rank; r++) {
            double sum = 0.0;
            for (int64_t k = 0; k < c->in; k++) {
                const double product =
                    op_from_dtype(c->x, c->x_dtype, i * (c->in + c->x_gap) + k) * (double)c->a[adapter][r * c->in + k];
                sum += fabs(product);
                t[r] += product;
            }
            t_error[r] = (double)(c->in * (pairs ? 2 : 1) + 2) * OP_U * sum;
            t_moved[r] = pairs ? 0x1p-17 * sum : 0.0;
        }
        for (int64_t o = 0; o < c->out && rank > 0; o++) {
            double error = 0.0, sum = 0.0, moved = 0.0;
            for (int32_t r = 0; r < rank; r++) {
                const double factor = fabs((double)c->b[adapter][o * rank + r] * (double)c->scales[adapter]);
                error += factor * t_error[r];
                sum += factor * (fabs(t[r]) + t_error[r]);
                moved += factor * (t_moved[r] + (pairs ? 0x1p-15 : 0.0) * fabs(t[r])) * more;
            }
            sum += fabs((double)c->y[i * c->out + o]);
            const double n_products = (double)rank * (pairs ? 3 : 1) + (c->matrix != NULL ? (double)c->in + 5 : 0);
            bound[i * c->out + o] = moved + 2.0 * error + (n_products + 5) * OP_U * sum; /* ref rounds t too */
        }
    }
}

/* Rows with adapters in no order, or nearly all of them with one. */
static void check_lora(int64_t in, int64_t out, qr_dtype x_dtype, bool one_adapter) {
    static const int32_t ranks[N_ADAPTERS] = {8, 0, 33, 1};
    static const float scales[N_ADAPTERS] = {2.0F, 1.0F, 0.5F, -1.5F};
    float *a[N_ADAPTERS], *b[N_ADAPTERS];
    int32_t row_adapter[LORA_ROWS];
    for (int i = 0; i < N_ADAPTERS; i++) {
        a[i] = op_normals(ranks[i] * in + 1, (uint64_t)(100 + i), 0.1);
        b[i] = op_normals(ranks[i] * out + 1, (uint64_t)(200 + i), 0.1);
    }
    for (int64_t i = 0; i < LORA_ROWS; i++) {
        row_adapter[i] = one_adapter ? (i != 40 ? 2 : -1) : (int32_t)op_below(300, i, N_ADAPTERS + 1) - 1;
    }
    float *x = op_normals(LORA_ROWS * (in + LORA_GAP), 301, 1.0), *y = op_normals(LORA_ROWS * out, 302, 1.0);
    void *x_typed = op_to_dtype(x, LORA_ROWS * (in + LORA_GAP), x_dtype);
    double *bound = op_doubles(LORA_ROWS * out);
    const lora_case data = {
        .in = in,
        .out = out,
        .n_adapters = N_ADAPTERS,
        .ranks = ranks,
        .scales = scales,
        .a = a,
        .b = b,
        .row_adapter = row_adapter,
        .x_dtype = x_dtype,
        .x = x_typed,
        .y = y,
        .n_rows = LORA_ROWS,
        .x_gap = LORA_GAP,
        .y_gap = Y_GAP,
    };
    op_case c = {.n_rows = LORA_ROWS, .row = out, .exec = exec_lora, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "lora [%lld, %lld] x %s%s", (long long)out, (long long)in, qr_dtype_name(x_dtype),
             one_adapter ? " one adapter" : "");
    lora_bound(&data, bound);
    op_check_case(&c, QR_DTYPE_F32);
    for (int i = 0; i < N_ADAPTERS; i++) {
        qr_free(a[i]);
        qr_free(b[i]);
    }
    qr_free(x);
    qr_free(y);
    qr_free(x_typed);
    qr_free(bound);
}

/* All rows with the adapter `with`, in pairs or not. What lies at multiples of 16 bytes may go another way. */
static void check_lora_pairs(int64_t n_rows, int64_t in, int64_t out, const int32_t ranks[2], int32_t with,
                             qr_dtype x_dtype, bool aligned, bool in_pairs) {
    static const float scales[2] = {1.7F, -0.3F};
    const int64_t x_gap = aligned ? X_ALIGNED_GAP : LORA_GAP, y_gap = aligned ? Y_ALIGNED_GAP : Y_GAP;
    float *a[2], *b[2];
    int32_t *row_adapter = qr_alloc((size_t)n_rows * sizeof *row_adapter);
    for (int i = 0; i < 2; i++) {
        a[i] = op_normals(ranks[i] * in + 1, (uint64_t)(110 + i), 0.1);
        b[i] = op_normals(ranks[i] * out + 1, (uint64_t)(210 + i), 0.1);
    }
    for (int64_t i = 0; i < n_rows; i++) { row_adapter[i] = with; }
    float *x = op_normals(n_rows * (in + x_gap), 303, 1.0), *y = op_normals(n_rows * out, 304, 0.1);
    void *x_typed = op_to_dtype(x, n_rows * (in + x_gap), x_dtype);
    double *bound = op_doubles(n_rows * out);
    const lora_case data = {
        .in = in,
        .out = out,
        .n_adapters = 2,
        .ranks = ranks,
        .scales = scales,
        .a = a,
        .b = b,
        .row_adapter = row_adapter,
        .x_dtype = x_dtype,
        .x = x_typed,
        .y = y,
        .n_rows = n_rows,
        .x_gap = x_gap,
        .y_gap = y_gap,
        .in_pairs = in_pairs,
    };
    op_case c = {.n_rows = n_rows, .row = out, .exec = exec_lora, .data = &data, .bound = bound, .whole = in_pairs};
    snprintf(c.label, sizeof c.label, "lora [%lld, %lld] rank %d of %d x %s rows %lld%s%s", (long long)out,
             (long long)in, with < 0 ? 0 : (int)ranks[with], (int)max_rank_of(&data), qr_dtype_name(x_dtype),
             (long long)n_rows, aligned ? "" : " anywhere", in_pairs ? " pairs" : "");
    lora_bound(&data, bound);
    op_check_case(&c, QR_DTYPE_F32);
    for (int i = 0; i < 2; i++) {
        qr_free(a[i]);
        qr_free(b[i]);
    }
    void *const made[] = {row_adapter, x, y, x_typed, bound};
    for (size_t i = 0; i < QR_COUNT_OF(made); i++) { qr_free(made[i]); }
}

/* Ranks, widths and numbers of rows at which a backend may take pairs, and beside them; the same without permission. */
static void check_lora_permission(void) {
    static const int32_t ranks[][2] = {{1, 16}, {8, 8}, {16, 4}, {20, 0}, {MAX_RANK, 1}};
    static const int64_t sizes[][3] = {{128, 72, 136}, {300, 200, 24}, {33, 8, 200}, {31, 64, 64},
                                       {1, 128, 8},    {130, 31, 64},  {129, 64, 23}};
    for (size_t i = 0; i < QR_COUNT_OF(ranks) * QR_COUNT_OF(sizes); i++) {
        const int32_t *rank = ranks[i % QR_COUNT_OF(ranks)];
        const int64_t *size = sizes[i / QR_COUNT_OF(ranks)];
        check_lora_pairs(size[0], size[1], size[2], rank, (int32_t)(i / 3 % 2), QR_DTYPE_BF16, true, true);
        if (i % 4 != 0) { continue; }
        check_lora_pairs(size[0], size[1], size[2], rank, 0, QR_DTYPE_BF16, true, false);
        check_lora_pairs(size[0], size[1], size[2], rank, 0, i % 8 == 0 ? QR_DTYPE_F16 : QR_DTYPE_F32, true, true);
        check_lora_pairs(size[0], size[1], size[2], rank, 0, QR_DTYPE_BF16, false, true);
        check_lora_pairs(size[0], size[1], size[2], rank, -1, QR_DTYPE_BF16, true, true);
    }
}

/* A matrix and its adapter as one op. The adapter has the matrix's x, or another one, as dropout leaves it. */
static void check_linear_with_lora(qr_weight_desc desc, qr_dtype x_dtype, int64_t n_rows, int32_t rank, unsigned kind,
                                   bool other_x) {
    enum { ONE = 1 };
    const int64_t in = desc.cols, out = desc.rows, n_x = n_rows * (in + X_ALIGNED_GAP);
    const int32_t ranks[ONE] = {rank};
    const float scales[ONE] = {1.7F};
    op_weight *weight = op_weight_create(desc, 400);
    float *a[ONE] = {op_normals(rank * in, 401, 0.1)}, *b[ONE] = {op_normals(rank * out, 402, 0.1)};
    float *x = op_normals(n_x, 403, 1.0), *second = op_normals(n_x, 404, 1.0), *y = op_normals(n_rows * out, 405, 1.0);
    float *bias = op_normals(out, 406, 1.0), *sums = qr_alloc((size_t)(n_rows * out) * sizeof *sums);
    void *x_typed = op_to_dtype(x, n_x, x_dtype), *second_typed = op_to_dtype(second, n_x, x_dtype);
    int32_t *row_adapter = qr_alloc_zeroed((size_t)n_rows * sizeof *row_adapter);
    double *bound = op_doubles(n_rows * out), *of_matrix = op_doubles(n_rows * out);
    const linear_case matrix = {.weight = weight,
                                .x_dtype = x_dtype,
                                .x = x_typed,
                                .x_gap = X_ALIGNED_GAP,
                                .bias = (kind & BIAS) != 0 ? bias : NULL,
                                .y = (kind & ACCUMULATE) != 0 ? y : NULL,
                                .y_gap = Y_ALIGNED_GAP,
                                .any_order = true};
    linear_bound(&matrix, n_rows, of_matrix);
    for (int64_t i = 0; i < n_rows * out; i++) { sums[i] = (float)(of_matrix[i] / ((double)(in + 5) * OP_U)); }
    const lora_case data = {.in = in,
                            .out = out,
                            .n_adapters = ONE,
                            .ranks = ranks,
                            .scales = scales,
                            .a = a,
                            .b = b,
                            .row_adapter = row_adapter,
                            .x_dtype = x_dtype,
                            .x = other_x ? second_typed : x_typed,
                            .y = sums,
                            .n_rows = n_rows,
                            .x_gap = X_ALIGNED_GAP,
                            .y_gap = Y_ALIGNED_GAP,
                            .in_pairs = true,
                            .matrix = &matrix};
    lora_bound(&data, bound);
    for (int64_t i = 0; i < n_rows * out; i++) { bound[i] += of_matrix[i]; }
    op_case c = {.n_rows = n_rows, .row = out, .exec = exec_lora, .data = &data, .bound = bound, .whole = true};
    snprintf(c.label, sizeof c.label, "linear %s [%lld, %lld] x %s rows %lld with lora of rank %d%s%s%s",
             qr_weight_format_name(desc.format), (long long)out, (long long)in, qr_dtype_name(x_dtype),
             (long long)n_rows, (int)rank, matrix.bias != NULL ? " bias" : "", matrix.y != NULL ? " accumulate" : "",
             other_x ? ", its own x" : "");
    op_check_case(&c, QR_DTYPE_F32);
    op_weight_destroy(weight);
    void *const made[] = {a[0], b[0], x, second, y, bias, sums, x_typed, second_typed, row_adapter, bound, of_matrix};
    for (size_t i = 0; i < QR_COUNT_OF(made); i++) { qr_free(made[i]); }
}

/* Widths, ranks and numbers of rows at which a backend may make one product of both, in one panel of the weights and in
 * several, and beside them. */
static void check_linear_with_lora_sizes(void) {
    static const int64_t sizes[][4] = {{136, 72, 128, 16}, {264, 40, 33, 1}, {8, 8, 300, 20},
                                       {1160, 24, 33, 8},  {24, 200, 64, 4}, {136, 72, 30, 16},
                                       {64, 31, 128, 8},   {23, 64, 128, 8}, {1280, 8, 33, 8}};
    for (unsigned i = 0; i < QR_WEIGHT_FORMAT_COUNT * QR_COUNT_OF(sizes); i++) {
        const int64_t *s = sizes[i % QR_COUNT_OF(sizes)];
        const qr_weight_format format = (qr_weight_format)(i / QR_COUNT_OF(sizes));
        const int block = qr_weight_is_nf4(format) ? (i % 2 == 0 ? QR_NF4_BLOCK : 32) : 0;
        const qr_weight_desc desc = {.format = format, .block = block, .rows = s[0], .cols = s[1]};
        const qr_dtype other = i % 2 == 0 ? QR_DTYPE_F16 : QR_DTYPE_F32;
        check_linear_with_lora(desc, QR_DTYPE_BF16, s[2], (int32_t)s[3], i % 4, i % 3 == 0);
        if (i % 4 == 1) { check_linear_with_lora(desc, other, s[2], (int32_t)s[3], i / 4 % 4, false); }
    }
}

void test_op_lora(void) {
    check_linear_with_lora_sizes();
    check_lora_permission();
    static const int64_t ins[] = {1, 31, 64, 172, 320, 2112};
    static const int64_t outs[] = {1, 17, 100};
    for (size_t i = 0; i < QR_COUNT_OF(ins) * QR_COUNT_OF(outs); i++) {
        const int64_t in = ins[i / QR_COUNT_OF(outs)], out = outs[i % QR_COUNT_OF(outs)];
        check_lora(in, out, QR_DTYPE_F32, i % 3 == 0);
        check_lora(in, out, QR_DTYPE_BF16, i % 3 != 0);
        check_lora(in, out, QR_DTYPE_F16, i % 3 == 2);
    }
}
