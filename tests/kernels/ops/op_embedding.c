/* embedding, gather_rows and quantize. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"
#include "quant/int8.h"
#include "quant/nf4.h"

enum { N_ROWS = 65, N_SAMPLED = 9 };

typedef struct embedding_case {
    const op_weight *table;
    const int32_t *ids;
    const qr_sampled *sampled; /* [n_sampled] that negative ids name; NULL: there are none */
    int64_t n_sampled;
    const float *dst; /* NULL: not accumulated */
    float scale;
    bool first_beyond;
} embedding_case;

static void exec_embedding(op_run *run, const void *data, int64_t first, int64_t n_tokens, qr_dtype dtype, void *out) {
    (void)dtype;
    const embedding_case *c = data;
    const int64_t dim = c->table->desc.cols;
    const qr_embedding_args args = {
        .table = op_run_weight(run, c->table),
        .ids = op_input(run, c->ids + first, (size_t)n_tokens * sizeof(int32_t)),
        .sampled = c->sampled != NULL ? op_input(run, c->sampled, (size_t)c->n_sampled * sizeof *c->sampled) : NULL,
        .n_sampled = c->n_sampled,
        .dst = op_output(run, c->dst != NULL ? c->dst + first * dim : NULL, n_tokens, (size_t)dim * sizeof(float),
                         (size_t)dim * sizeof(float)),
        .n_tokens = n_tokens,
        .scale = c->scale,
        .accumulate = c->dst != NULL,
        .first_beyond = c->first_beyond,
    };
    op_call(run, QR_OP_embedding, &args);
    op_read(run, args.dst, out);
}

/* A float table times the scale is one rounding of an exact number, hence bit-equal. INT8 has three products and may
 * fold the constants; adding is one more rounding, or none when fused. */
static void check_embedding(qr_weight_format format, int64_t vocab, int64_t dim, float scale, bool accumulate,
                            bool is_sampled, bool first_beyond) {
    op_weight *table = op_weight_create((qr_weight_desc){.format = format, .rows = vocab, .cols = dim}, 9);
    float *dst = op_normals(N_ROWS * dim, 10, 1.0);
    double *bound = op_doubles(N_ROWS * dim);
    int32_t ids[N_ROWS], tokens[N_ROWS];
    qr_sampled sampled[N_SAMPLED];
    for (int64_t k = 0; k < N_SAMPLED; k++) {
        sampled[k] = (qr_sampled){.token = (int32_t)op_below(12, k, vocab), .is_finite = 1, .logprob = -1.0F};
    }
    sampled[N_SAMPLED - 1].token = 0;
    for (int64_t i = 0; i < N_ROWS; i++) { ids[i] = tokens[i] = (int32_t)op_below(11, i, vocab); }
    ids[0] = tokens[0] = (int32_t)(vocab - 1);
    for (int64_t i = 1; is_sampled && i < N_ROWS; i += 2) { /* known ids and others side by side, the last included */
        ids[i] = (int32_t)(-1 - (N_ROWS - i) / 2 % N_SAMPLED);
        tokens[i] = sampled[-1 - ids[i]].token;
    }
    for (int64_t i = 0; first_beyond && i < N_ROWS; i += 3) { /* of what a table has no row for, known and sampled */
        if (ids[i] >= 0) { ids[i] = (int32_t)(vocab + i), tokens[i] = 0; }
    }
    for (int64_t k = 0; first_beyond && k < N_SAMPLED; k += 2) { sampled[k].token = (int32_t)(vocab + 7 * k); }
    for (int64_t i = 0; first_beyond && i < N_ROWS; i++) {
        if (ids[i] < 0 && sampled[-1 - ids[i]].token >= vocab) { tokens[i] = 0; }
    }
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        const double value = fabs((double)table->values[tokens[i / dim] * dim + i % dim] * (double)scale);
        const double product = format == QR_WEIGHT_INT8 ? 6.0 * OP_U * value : 0.0;
        bound[i] = accumulate ? product + 2.0 * OP_U * (value + fabs((double)dst[i])) : product;
    }
    const embedding_case data = {.table = table,
                                 .ids = ids,
                                 .dst = accumulate ? dst : NULL,
                                 .scale = scale,
                                 .sampled = is_sampled ? sampled : NULL,
                                 .n_sampled = is_sampled ? N_SAMPLED : 0,
                                 .first_beyond = first_beyond};
    op_case c = {.n_rows = N_ROWS, .row = dim, .exec = exec_embedding, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "embedding %s [%lld, %lld] x %g%s%s%s", qr_weight_format_name(format),
             (long long)vocab, (long long)dim, (double)scale, accumulate ? ", accumulate" : "",
             is_sampled ? ", sampled" : "", first_beyond ? ", the first for others" : "");
    op_check_case(&c, QR_DTYPE_F32);
    op_weight_destroy(table);
    qr_free(dst);
    qr_free(bound);
}

void test_op_embedding(void) {
    static const qr_weight_format formats[] = {QR_WEIGHT_F32, QR_WEIGHT_F16, QR_WEIGHT_BF16, QR_WEIGHT_INT8};
    static const int64_t dims[] = {1, 31, 64, 172, 320};
    for (size_t i = 0; i < QR_COUNT_OF(formats) * QR_COUNT_OF(dims); i++) {
        const qr_weight_format format = formats[i % 4];
        const int64_t dim = dims[i / 4];
        check_embedding(format, 103, dim, 1.0F, false, false, false);
        check_embedding(format, 64, dim, 50.5F, false, false, false);
        check_embedding(format, 3, dim, 1.0F, true, false, false);
        check_embedding(format, 103, dim, 1.5F, false, true, false);
        check_embedding(format, 31, dim, 1.5F, true, true, true);
        check_embedding(format, 64, dim, 1.0F, true, true, false);
    }
}

typedef struct gather_case {
    const float *src;
    const int32_t *rows;
    int64_t n_src_rows, dim;
} gather_case;

static void exec_gather_rows(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const gather_case *c = data;
    const size_t row_bytes = (size_t)c->dim * sizeof(float);
    const qr_gather_rows_args args = {
        .src = op_input(run, c->src, (size_t)c->n_src_rows * row_bytes),
        .rows = op_input(run, c->rows + first, (size_t)n_rows * sizeof(int32_t)),
        .dst = op_output(run, NULL, n_rows, row_bytes, row_bytes),
        .n_rows = n_rows,
        .dim = c->dim,
    };
    op_call(run, QR_OP_gather_rows, &args);
    op_read(run, args.dst, out);
}

void test_op_gather_rows(void) {
    static const int64_t dims[] = {1, 3, 31, 64, 321};
    for (size_t s = 0; s < QR_COUNT_OF(dims); s++) {
        int32_t rows[N_ROWS];
        float *src = op_normals(17 * dims[s], 12, 1.0);
        src[0] = NAN;
        for (int64_t i = 0; i < N_ROWS; i++) { rows[i] = (int32_t)op_below(13, i, 17); }
        const gather_case data = {.src = src, .rows = rows, .n_src_rows = 17, .dim = dims[s]};
        op_case c = {.n_rows = N_ROWS, .row = dims[s], .exec = exec_gather_rows, .data = &data};
        snprintf(c.label, sizeof c.label, "gather_rows of %lld", (long long)dims[s]);
        op_check_case(&c, QR_DTYPE_F32);
        qr_free(src);
    }
}

/* --- quantize: host memory in and out, bit-equal to quant/ --- */

/* Ordinary weights with what trips a quantiser: zero blocks, denormals, exact ties, negative zeros, huge values. */
static float *quantize_inputs(int64_t n, qr_dtype dtype) {
    float *values = op_normals(n, 14, 0.02);
    for (int64_t i = 0; i < n; i++) {
        if (i / 64 % 7 == 3) { values[i] = i % 2 == 0 ? 0.0F : -0.0F; }
        if (i / 64 % 7 == 5 && i % 3 == 0) { values[i] = qr_nf4_midpoints[i % 15]; }
        if (i / 64 % 7 == 5 && i % 64 == 1) { values[i] = 1.0F; }
        if (i / 64 % 11 == 6) { values[i] *= 1e-37F; }
        if (i % 1009 == 77) { values[i] = 60000.0F; }
    }
    void *typed = op_to_dtype(values, n, dtype); /* what the source can hold */
    for (int64_t i = 0; i < n; i++) { values[i] = (float)op_from_dtype(typed, dtype, i); }
    qr_free(typed);
    return values;
}

/* Odd rows with an absmax of 127 m and elements (k + 1/2) m, m odd: codes at a tie, where it shows in which order
 * 127 · (1 / SCB) was rounded. */
static void put_int8_ties(float *values, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows * cols; i++) {
        const int64_t row = i / cols, c = i % cols, m = row % 16;
        if (row % 2 == 0) { continue; }
        values[i] = c == cols / 2 ? (float)(127 * m) : (float)((double)(c % 60 - 30) + 0.5) * (float)m;
    }
}

static void expect_quantized(const qr_quantize_args *args, const float *values, unsigned char *codes, float *absmax) {
    const int64_t n = args->n_rows * args->cols;
    if (qr_weight_is_nf4(args->format)) {
        qr_nf4_quantize(values, n, args->block, codes, absmax);
    } else if (args->format == QR_WEIGHT_INT8) {
        for (int64_t r = 0; r < args->n_rows; r++) {
            absmax[r] = qr_int8_quantize_row(values + r * args->cols, args->cols, (int8_t *)codes + r * args->cols);
        }
    } else {
        const qr_dtype dtype = args->format == QR_WEIGHT_F32   ? QR_DTYPE_F32
                               : args->format == QR_WEIGHT_F16 ? QR_DTYPE_F16
                                                               : QR_DTYPE_BF16;
        void *converted = op_to_dtype(values, n, dtype);
        memcpy(codes, converted, (size_t)n * qr_dtype_bytes(dtype));
        qr_free(converted);
    }
}

enum { MARGIN = 64 };

static void check_quantize(qr_weight_desc desc, qr_dtype src_dtype) {
    const int64_t n = qr_weight_elements(&desc);
    const size_t code_bytes = qr_weight_code_bytes(&desc);
    const size_t n_absmax = desc.format == QR_WEIGHT_INT8 ? (size_t)desc.rows : (size_t)qr_weight_blocks(&desc);
    float *values = quantize_inputs(n, src_dtype);
    if (desc.format == QR_WEIGHT_INT8 && src_dtype != QR_DTYPE_BF16) { put_int8_ties(values, desc.rows, desc.cols); }
    void *src = op_to_dtype(values, n, src_dtype);
    unsigned char *expected = qr_alloc(code_bytes), *codes = qr_alloc(code_bytes + MARGIN);
    float *expected_absmax = qr_alloc_array(n_absmax, sizeof(float));
    float *absmax = qr_alloc_array(n_absmax + MARGIN, sizeof(float));
    qr_quantize_args args = {.format = desc.format,
                             .block = desc.block,
                             .src_dtype = src_dtype,
                             .src = src,
                             .n_rows = desc.rows,
                             .cols = desc.cols,
                             .codes = codes,
                             .absmax = absmax};
    expect_quantized(&args, values, expected, expected_absmax);
    for (int d = 0; d < op_everything.n_devices; d++) {
        qr_backend *backend = op_everything.devices[d].backends[1];
        qr_error err = {0};
        memset(codes, 0xA5, code_bytes + MARGIN);
        memset(absmax, 0xA5, (n_absmax + MARGIN) * sizeof(float));
        CHECK_MSG(qr_supports_quantize(backend, &args, &err), "%s", err.message);
        CHECK_INT(qr_quantize_workspace(backend, &args), 0);
        op_note_call(backend, QR_OP_quantize, 0);
        CHECK_MSG(qr_quantize(backend, &args, QR_NO_WORKSPACE, &err) == QRUN_OK, "%s", err.message);
        const bool same =
            memcmp(codes, expected, code_bytes) == 0 && memcmp(absmax, expected_absmax, n_absmax * sizeof(float)) == 0;
        const bool inside = codes[code_bytes] == 0xA5 && ((unsigned char *)(absmax + n_absmax))[0] == 0xA5;
        CHECK_MSG(same && inside, "%s: quantize %s to %s block %d [%lld, %lld]: %s", op_everything.devices[d].label,
                  qr_dtype_name(src_dtype), qr_weight_format_name(desc.format), desc.block, (long long)desc.rows,
                  (long long)desc.cols, inside ? "not the bits of quant/" : "wrote past the end");
    }
    qr_free(values);
    qr_free(src);
    qr_free(expected);
    qr_free(codes);
    qr_free(expected_absmax);
    qr_free(absmax);
}

void test_op_quantize(void) {
    static const int64_t shapes[][2] = {{1, 1}, {1, 2112}, {3, 31}, {64, 64}, {65, 80}, {17, 172}, {64, 7}, {5, 4099}};
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_F16, QR_DTYPE_BF16};
    static const int blocks[] = {64, 32, 128, 4096};
    for (int format = 0; format < QR_WEIGHT_MXFP4; format++) { /* which nothing is quantised to */
        const size_t n_blocks = qr_weight_is_nf4((qr_weight_format)format) ? QR_COUNT_OF(blocks) : 1;
        for (size_t i = 0; i < QR_COUNT_OF(shapes) * QR_COUNT_OF(dtypes) * n_blocks; i++) {
            const int64_t *shape = shapes[i / n_blocks / QR_COUNT_OF(dtypes)];
            check_quantize((qr_weight_desc){.format = (qr_weight_format)format,
                                            .block = n_blocks > 1 ? blocks[i % n_blocks] : 0,
                                            .rows = shape[0],
                                            .cols = shape[1]},
                           dtypes[i / n_blocks % QR_COUNT_OF(dtypes)]);
        }
    }
}
