/* head_linear. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_ADAPTERS = 3, X_HEAD_GAP = 5, Y_HEAD_GAP = 3, X_GAP = 4, Y_GAP = 7 };

static const float LORA_SCALE = 1.25F;

typedef struct head_case {
    const op_weight *weight;
    int64_t first_row, row_stride, n_heads, dim, x_dim, y_dim;
    bool by_column, has_adapters;
    qr_dtype x_dtype;
    const void *x; /* [n_rows, x_stride] */
    int64_t x_stride;
    int32_t rank[N_ADAPTERS]; /* the last adapter has ratios, where it has a rank */
    const float *a, *b;       /* for the highest rank: those of a lower one begin alike */
    const float *ratio;       /* [rows] */
    const int32_t *row_adapter;
} head_case;

static const qr_lora_factor *put_factors(op_run *run, const head_case *c, qr_lora_factor *factors) {
    const qr_weight_desc *desc = &c->weight->desc;
    for (int i = 0; i < N_ADAPTERS; i++) {
        const size_t rank_bytes = (size_t)c->rank[i] * sizeof(float);
        factors[i] = (qr_lora_factor){
            .a = op_input(run, c->a, rank_bytes * (size_t)desc->cols),
            .b = op_input(run, c->b, rank_bytes * (size_t)desc->rows),
            .rank = c->rank[i],
            .scale = LORA_SCALE,
            .ratio = i == N_ADAPTERS - 1 ? op_input(run, c->ratio, (size_t)desc->rows * sizeof(float)) : NULL};
    }
    return op_input(run, factors, N_ADAPTERS * sizeof *factors);
}

static void exec_heads(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const head_case *c = data;
    const size_t y_bytes = qr_dtype_bytes(dtype), x_bytes = qr_dtype_bytes(c->x_dtype);
    const int64_t y_row = (c->n_heads - 1) * (c->y_dim + Y_HEAD_GAP) + c->y_dim;
    const int64_t x_row = (c->n_heads - 1) * (c->x_dim + X_HEAD_GAP) + c->x_dim;
    qr_lora_factor factors[N_ADAPTERS];
    const unsigned char *x = (const unsigned char *)c->x + (size_t)(first * c->x_stride) * x_bytes;
    /* Between heads nothing may change. */
    unsigned char *before = qr_alloc((size_t)(n_rows * y_row) * y_bytes);
    unsigned char *after = qr_alloc((size_t)(n_rows * y_row) * y_bytes);
    memset(before, 0xA5, (size_t)(n_rows * y_row) * y_bytes);
    const qr_head_linear_args args = {
        .weight = op_run_weight(run, c->weight),
        .first_row = c->first_row,
        .row_stride = c->row_stride,
        .n_heads = c->n_heads,
        .dim = c->dim,
        .by_column = c->by_column,
        .x = op_input(run, x, (size_t)((n_rows - 1) * c->x_stride + x_row) * x_bytes),
        .x_dtype = c->x_dtype,
        .y = op_output(run, before, n_rows, (size_t)y_row * y_bytes, (size_t)(y_row + Y_GAP) * y_bytes),
        .y_dtype = dtype,
        .n_rows = n_rows,
        .x_stride = c->x_stride,
        .x_head_stride = c->x_dim + X_HEAD_GAP,
        .y_stride = y_row + Y_GAP,
        .y_head_stride = c->y_dim + Y_HEAD_GAP,
        .factors = c->has_adapters ? put_factors(run, c, factors) : NULL,
        .row_adapter = c->has_adapters ? op_input(run, c->row_adapter + first, (size_t)n_rows * sizeof(int32_t)) : NULL,
        .n_adapters = N_ADAPTERS,
        .max_rank = c->rank[0]};
    op_call(run, QR_OP_head_linear, &args);
    op_read(run, args.y, after);
    const size_t head_bytes = (size_t)c->y_dim * y_bytes, stride_bytes = (size_t)(c->y_dim + Y_HEAD_GAP) * y_bytes;
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t h = 0; h < c->n_heads; h++) {
            const size_t at = (size_t)(i * y_row) * y_bytes + (size_t)h * stride_bytes;
            memcpy((unsigned char *)out + (size_t)(i * c->n_heads + h) * head_bytes, after + at, head_bytes);
            if (h + 1 == c->n_heads) { continue; }
            CHECK_MSG(memcmp(after + at + head_bytes, before + at + head_bytes, stride_bytes - head_bytes) == 0,
                      "%s: wrote between heads", run->label);
        }
    }
    op_run_end(run); /* before the factors on this stack go */
    qr_free(before);
    qr_free(after);
}

/* Every term of an output is rounded once for each of its products, and on its way into the sums of both. */
static void heads_bound(const head_case *c, int64_t n_rows, double *bound) {
    const int64_t cols = c->weight->desc.cols;
    for (int64_t i = 0; i < n_rows; i++) {
        const int32_t adapter = c->has_adapters ? c->row_adapter[i] : -1;
        const int32_t rank = adapter >= 0 ? c->rank[adapter] : 0;
        const bool scaled = rank > 0 && adapter == N_ADAPTERS - 1;
        for (int64_t h = 0; h < c->n_heads; h++) {
            const int64_t row = c->first_row + h * c->row_stride,
                          x_first = i * c->x_stride + h * (c->x_dim + X_HEAD_GAP);
            for (int64_t out = 0; out < c->y_dim; out++) {
                double sum = 0.0;
                for (int64_t k = 0; k < c->x_dim; k++) {
                    const int64_t o = row + (c->by_column ? k : out), col = c->by_column ? out : k;
                    double weight = fabs((double)c->weight->values[o * cols + col]);
                    for (int32_t j = 0; j < rank; j++) {
                        weight += (double)LORA_SCALE * fabs((double)c->b[o * rank + j] * (double)c->a[j * cols + col]);
                    }
                    if (scaled) { weight *= fabs((double)c->ratio[o]); }
                    sum += weight * fabs(op_from_dtype(c->x, c->x_dtype, x_first + k));
                }
                bound[(i * c->n_heads + h) * c->y_dim + out] = (double)(c->x_dim + 2 * rank + 10) * OP_U * sum;
            }
        }
    }
}

typedef struct head_shape {
    int64_t n_heads, dim, gap; /* of the matrix's rows between heads; half of them come before the first */
    int64_t cols;
} head_shape;

static void check_heads(qr_weight_format format, head_shape shape, int64_t n_rows, int32_t rank, bool by_column,
                        qr_dtype x_dtype, qr_dtype y_dtype) {
    const int64_t row_stride = shape.dim + shape.gap, rows = shape.n_heads * row_stride;
    const qr_weight_desc desc = {.format = format,
                                 .block = qr_weight_is_nf4(format) ? (rank % 2 == 0 ? 64 : 32) : 0,
                                 .rows = rows,
                                 .cols = shape.cols};
    const uint64_t stream = (uint64_t)(rows * 131 + shape.cols * 7 + n_rows);
    op_weight *weight = op_weight_create(desc, stream);
    const int64_t x_dim = by_column ? shape.dim : shape.cols;
    const int64_t x_stride = shape.n_heads * (x_dim + X_HEAD_GAP) + X_GAP, n_x = n_rows * x_stride;
    int32_t row_adapter[128];
    for (int64_t i = 0; i < n_rows; i++) { row_adapter[i] = (int32_t)(i + 2) % (N_ADAPTERS + 1) - 1; }
    float *x = op_normals(n_x, stream + 1, 1.0), *ratio = op_normals(rows, stream + 2, 1.0);
    float *a = op_normals(rank * shape.cols, stream + 3, 0.5), *b = op_normals(rows * rank, stream + 4, 0.5);
    void *typed = op_to_dtype(x, n_x, x_dtype);
    const head_case data = {.weight = weight,
                            .first_row = shape.gap / 2,
                            .row_stride = row_stride,
                            .n_heads = shape.n_heads,
                            .dim = shape.dim,
                            .x_dim = x_dim,
                            .y_dim = by_column ? shape.cols : shape.dim,
                            .by_column = by_column,
                            .has_adapters = rank > 0,
                            .x_dtype = x_dtype,
                            .x = typed,
                            .x_stride = x_stride,
                            .rank = {rank, 0, rank > 0 ? rank - 1 : 0},
                            .a = a,
                            .b = b,
                            .ratio = ratio,
                            .row_adapter = row_adapter};
    double *bound = op_doubles(n_rows * shape.n_heads * data.y_dim);
    op_case c = {
        .n_rows = n_rows, .row = shape.n_heads * data.y_dim, .exec = exec_heads, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "head_linear%s %s, %lld heads of %lld of %lld columns, %lld rows, rank %d, x %s",
             by_column ? " by column" : "", qr_weight_format_name(format), (long long)shape.n_heads,
             (long long)shape.dim, (long long)shape.cols, (long long)n_rows, (int)rank, qr_dtype_name(x_dtype));
    heads_bound(&data, n_rows, bound);
    op_check_case(&c, y_dtype);
    void *const made[] = {x, ratio, a, b, typed, bound};
    for (size_t i = 0; i < QR_COUNT_OF(made); i++) { qr_free(made[i]); }
    op_weight_destroy(weight);
}

void test_op_head_linear(void) {
    static const head_shape shapes[] = {
        {1, 1, 0, 1}, {3, 8, 5, 16}, {2, 17, 0, 31}, {3, 24, 16, 64}, {2, 70, 32, 192}, {1, 16, 16, 576},
    };
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_BF16, QR_DTYPE_F16};
    static const int64_t n_rows[] = {1, 5, 9, 70};
    static const int32_t ranks[] = {0, 3, 16};
    unsigned kind = 0;
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        for (unsigned s = 0; s < QR_COUNT_OF(shapes); s++, kind++) {
            const int64_t n = n_rows[kind % QR_COUNT_OF(n_rows)];
            const int32_t rank = ranks[kind / 2 % QR_COUNT_OF(ranks)];
            check_heads((qr_weight_format)format, shapes[s], n, rank, false, dtypes[kind % 3], dtypes[(kind + s) % 3]);
            check_heads((qr_weight_format)format, shapes[s], n, rank, true, dtypes[(kind + 1) % 3], dtypes[s % 3]);
        }
    }
}
