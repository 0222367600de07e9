/* dora_norm, dora and dora_backward. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

/* --- dora_norm: sums over all of a row; a row of output is norm and ratio --- */

typedef struct norm_case {
    const op_weight *weight;
    const float *a, *b, *magnitude;
    int32_t rank;
    bool wants_ratio, in_place; /* ratio takes magnitude's place */
} norm_case;

#define SCALE 1.7F

static void exec_norm(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)first, (void)dtype;
    const norm_case *c = data;
    const size_t n_bytes = (size_t)n_rows * sizeof(float), in_bytes = (size_t)c->weight->desc.cols * sizeof(float);
    float *ratio = op_output(run, c->in_place ? c->magnitude : NULL, 1, n_bytes, n_bytes);
    const qr_dora_norm_args args = {
        .weight = op_run_weight(run, c->weight),
        .a = op_input(run, c->a, (size_t)c->rank * in_bytes),
        .b = op_input(run, c->b, (size_t)c->rank * n_bytes),
        .rank = c->rank,
        .scale = SCALE,
        .magnitude = !c->wants_ratio ? NULL
                     : c->in_place   ? ratio
                                     : op_input(run, c->magnitude, n_bytes),
        .norm = op_output(run, NULL, 1, n_bytes, n_bytes),
        .ratio = c->wants_ratio ? ratio : NULL,
    };
    op_call(run, QR_OP_dora_norm, &args);
    float *parts = qr_alloc_zeroed(2 * n_bytes);
    op_read(run, args.norm, parts);
    if (c->wants_ratio) { op_read(run, ratio, parts + n_rows); }
    for (int64_t i = 0; i < 2 * n_rows; i++) { ((float *)out)[i % n_rows * 2 + i / n_rows] = parts[i]; }
    qr_free(parts);
}

/* An element of the sum errs by (rank + 3) u of the magnitudes of its terms, its square by twice that times the
 * element; squares are added in F32 for a few terms and then in F64. The ratio errs by as much, relatively. */
static void norm_bound(const norm_case *c, double *bound) {
    const int64_t in = c->weight->desc.cols;
    for (int64_t o = 0; o < c->weight->desc.rows; o++) {
        double squares = 0.0, error = 0.0;
        for (int64_t k = 0; k < in; k++) {
            double element = (double)c->weight->values[o * in + k], terms = fabs(element);
            for (int32_t r = 0; r < c->rank; r++) {
                const double term = (double)SCALE * (double)c->b[o * c->rank + r] * (double)c->a[r * in + k];
                element += term;
                terms += fabs(term);
            }
            squares += element * element;
            error += 2.0 * fabs(element) * (double)(c->rank + 3) * OP_U * terms + 8.0 * OP_U * element * element;
        }
        const double norm = sqrt(squares), relative = error / (2.0 * squares) + 2.0 * OP_U;
        bound[2 * o] = relative * norm;
        bound[2 * o + 1] = c->wants_ratio ? 2.0 * relative * fabs((double)c->magnitude[o]) / norm : 0.0;
    }
}

static void check_norm(qr_weight_desc desc, int32_t rank, int kind) {
    op_weight *weight = op_weight_create(desc, (uint64_t)(desc.rows * 1009 + desc.cols));
    float *a = op_normals(rank * desc.cols, 601, 0.3), *b = op_normals(desc.rows * rank, 602, 0.3);
    float *magnitude = op_normals(desc.rows, 603, 2.0);
    double *bound = op_doubles(2 * desc.rows);
    const norm_case data = {.weight = weight,
                            .a = a,
                            .b = b,
                            .magnitude = magnitude,
                            .rank = rank,
                            .wants_ratio = kind != 0,
                            .in_place = kind == 2};
    op_case c = {.n_rows = desc.rows, .row = 2, .exec = exec_norm, .data = &data, .bound = bound, .whole = true};
    snprintf(c.label, sizeof c.label, "dora_norm %s block %d [%lld, %lld] rank %d", qr_weight_format_name(desc.format),
             desc.block, (long long)desc.rows, (long long)desc.cols, (int)rank);
    norm_bound(&data, bound);
    op_check_case(&c, QR_DTYPE_F32);
    op_weight_destroy(weight);
    qr_free(a);
    qr_free(b);
    qr_free(magnitude);
    qr_free(bound);
}

void test_op_dora_norm(void) {
    static const int64_t cols[] = {1, 31, 64, 172, 192, 320, 2112};
    static const int64_t rows[] = {1, 17, 64, 100};
    static const int32_t ranks[] = {1, 5, 16, 33};
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        const bool nf4 = qr_weight_is_nf4((qr_weight_format)format);
        for (unsigned i = 0; i < QR_COUNT_OF(cols) * QR_COUNT_OF(rows); i++) {
            const qr_weight_desc desc = {
                .format = (qr_weight_format)format,
                .block = nf4 ? (i % 3 == 0 ? 32 : 64) : 0,
                .cols = cols[i % QR_COUNT_OF(cols)],
                .rows = rows[i / QR_COUNT_OF(cols)],
            };
            check_norm(desc, ranks[i % QR_COUNT_OF(ranks)], (int)(i % 3));
        }
    }
}

/* --- dora --- */

enum { N_ADAPTERS = 3, N_ROWS = 33 }; /* the second adapter is plain LoRA */

typedef struct dora_case {
    int64_t dim;
    const float *src, *dst, *bias, *ratios; /* bias NULL: none; ratios [N_ADAPTERS, dim] */
    const int32_t *row_adapter;
    float minus;
    bool accumulate, in_place;
} dora_case;

static void exec_dora(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const dora_case *c = data;
    const size_t row_bytes = (size_t)c->dim * sizeof(float);
    qr_lora_factor factors[N_ADAPTERS] = {{0}};
    for (int i = 0; i < N_ADAPTERS; i++) {
        factors[i].ratio = i != 1 ? op_input(run, c->ratios + i * c->dim, row_bytes) : NULL;
    }
    const int64_t src_stride = c->dim + op_gap(c->dim), dst_stride = c->dim + op_gap(c->dim) + 4;
    float *dst = op_output(run, c->dst + first * c->dim, n_rows, row_bytes, (size_t)dst_stride * sizeof(float));
    const size_t src_bytes = (size_t)((n_rows - 1) * src_stride + c->dim) * sizeof(float);
    const qr_dora_args args = {
        .factors = op_input(run, factors, sizeof factors),
        .row_adapter = op_input(run, c->row_adapter + first, (size_t)n_rows * sizeof(int32_t)),
        .src = c->in_place ? dst : op_input(run, c->src + first * src_stride, src_bytes),
        .bias = c->bias != NULL ? op_input(run, c->bias, row_bytes) : NULL,
        .dst = dst,
        .n_rows = n_rows,
        .dim = c->dim,
        .src_stride = c->in_place ? dst_stride : src_stride,
        .dst_stride = dst_stride,
        .n_adapters = N_ADAPTERS,
        .minus = c->minus,
        .accumulate = c->accumulate,
    };
    op_call(run, QR_OP_dora, &args);
    op_read(run, dst, out);
    op_run_end(run); /* before the factors on this stack go */
}

static void check_dora(int64_t dim, unsigned kind) {
    float *src = op_normals(N_ROWS * (dim + op_gap(dim)), 611, 1.0), *dst = op_normals(N_ROWS * dim, 612, 1.0);
    float *bias = op_normals(dim, 613, 1.0), *ratios = op_normals(N_ADAPTERS * dim, 614, 1.0);
    double *bound = op_doubles(N_ROWS * dim);
    int32_t row_adapter[N_ROWS];
    for (int64_t i = 0; i < N_ROWS; i++) { row_adapter[i] = (int32_t)op_below(615, i, N_ADAPTERS + 1) - 1; }
    const dora_case data = {.dim = dim,
                            .src = src,
                            .dst = dst,
                            .bias = (kind & 1U) != 0 ? bias : NULL,
                            .ratios = ratios,
                            .row_adapter = row_adapter,
                            .minus = (kind & 2U) != 0 ? 1.0F : 0.0F,
                            .accumulate = (kind & 4U) != 0,
                            .in_place = (kind & 8U) != 0};
    for (int64_t i = 0; i < N_ROWS * dim; i++) {
        const int64_t row = i / dim, o = i % dim;
        const int32_t adapter = row_adapter[row];
        if (adapter < 0 || adapter == 1) { continue; } /* left alone: no error at all */
        const double x = data.in_place ? fabs((double)dst[i]) : fabs((double)src[row * (dim + op_gap(dim)) + o]);
        const double term = (fabs((double)ratios[adapter * dim + o]) + 1.0) * (x + fabs((double)bias[o]));
        bound[i] = 4.0 * OP_U * term + OP_U * (data.accumulate ? term + fabs((double)dst[i]) : 0.0);
    }
    op_case c = {.n_rows = N_ROWS, .row = dim, .exec = exec_dora, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "dora %lld, kind %u", (long long)dim, kind);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(src);
    qr_free(dst);
    qr_free(bias);
    qr_free(ratios);
    qr_free(bound);
}

static const int64_t dims[] = {1, 3, 16, 17, 64, 100, 1000};

void test_op_dora(void) {
    for (size_t i = 0; i < QR_COUNT_OF(dims); i++) {
        for (unsigned kind = 0; kind < 16; kind++) { check_dora(dims[i], kind); }
    }
}

/* --- dora_backward: sums over the rows of dy; a row of output is a column --- */

typedef struct backward_case {
    int64_t n_rows, dim;
    const float *dy, *z, *norm, *dmagnitude;
} backward_case;

static void exec_backward(op_run *run, const void *data, int64_t first, int64_t n, qr_dtype dtype, void *out) {
    (void)dtype;
    const backward_case *c = data;
    const int64_t dy_stride = c->dim + op_gap(c->dim), z_stride = c->dim + op_gap(c->dim) + 4;
    const size_t n_bytes = (size_t)n * sizeof(float);
    const qr_dora_backward_args args = {
        .dy = op_input(run, c->dy + first, (size_t)((c->n_rows - 1) * dy_stride + n) * sizeof(float)),
        .z = op_input(run, c->z + first, (size_t)((c->n_rows - 1) * z_stride + n) * sizeof(float)),
        .norm = op_input(run, c->norm + first, n_bytes),
        .dmagnitude = op_output(run, c->dmagnitude + first, 1, n_bytes, n_bytes),
        .n_rows = c->n_rows,
        .dim = n,
        .dy_stride = dy_stride,
        .z_stride = z_stride,
    };
    op_call(run, QR_OP_dora_backward, &args);
    op_read(run, args.dmagnitude, out);
}

static void check_backward(int64_t n_rows, int64_t dim) {
    float *dy = op_normals(n_rows * (dim + op_gap(dim)), 621, 1.0),
          *z = op_normals(n_rows * (dim + op_gap(dim) + 4), 622, 1.0);
    float *norm = op_normals(dim, 623, 1.0), *dmagnitude = op_normals(dim, 624, 1.0);
    double *bound = op_doubles(dim);
    for (int64_t o = 0; o < dim; o++) {
        norm[o] = 0.5F + fabsf(norm[o]);
        double sum = 0.0;
        for (int64_t i = 0; i < n_rows; i++) {
            sum += fabs((double)dy[i * (dim + op_gap(dim)) + o] * (double)z[i * (dim + op_gap(dim) + 4) + o]);
        }
        sum /= (double)norm[o];
        bound[o] = (double)(n_rows + 2) * OP_U * sum + OP_U * (sum + fabs((double)dmagnitude[o]));
    }
    const backward_case data = {.n_rows = n_rows, .dim = dim, .dy = dy, .z = z, .norm = norm, .dmagnitude = dmagnitude};
    op_case c = {.n_rows = dim, .row = 1, .exec = exec_backward, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "dora_backward [%lld, %lld]", (long long)n_rows, (long long)dim);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(dy);
    qr_free(z);
    qr_free(norm);
    qr_free(dmagnitude);
    qr_free(bound);
}

void test_op_dora_backward(void) {
    static const int64_t rows[] = {1, 2, 17, 300};
    for (size_t i = 0; i < QR_COUNT_OF(dims) * QR_COUNT_OF(rows); i++) {
        check_backward(rows[i % QR_COUNT_OF(rows)], dims[i / QR_COUNT_OF(rows)]);
    }
}
