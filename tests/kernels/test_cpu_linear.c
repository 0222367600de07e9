/* linear and lora of the CPU backend, for every instruction set of this machine. Weights survive packing, and products
 * agree with float64 sums over the dequantised weights, rounded as the instruction set does. A row's bits depend on
 * nothing but the row: not on how many rows there are, on their order, nor on the number of threads. */
#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"
#include "base/sizes.h"
#include "check.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/int16_sum.h"
#include "kernels/tile_sum.h"
#include "quant/int8.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

enum { MAX_ROWS = 100, SEED = 20 };

static const int64_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 23, 47, 48, 64, 100};

/* A matrix in canonical form, and what it stands for. */
typedef struct matrix {
    qr_weight_desc desc;
    void *codes;
    float *row_absmax, *absmax, *nested_absmax;
    uint8_t *absmax_codes;
    float nested_offset;
    float *values; /* [rows, cols], dequantised; INT8: the codes */
} matrix;

static float random_value(uint64_t stream, int64_t i) { return (float)qr_random_normal(SEED, stream, (uint64_t)i); }

static void fill_nf4(matrix *m, const float *src) {
    const int64_t n = qr_weight_elements(&m->desc), n_blocks = qr_weight_blocks(&m->desc);
    m->absmax = qr_alloc_array((size_t)n_blocks, sizeof(float));
    qr_nf4_quantize(src, n, m->desc.block, m->codes, m->absmax);
    if (m->desc.format == QR_WEIGHT_NF4_DQ) {
        m->absmax_codes = qr_alloc((size_t)n_blocks);
        m->nested_absmax = qr_alloc_array((size_t)qr_ceil_div(n_blocks, QR_NESTED_BLOCK), sizeof(float));
        m->nested_offset = qr_nf4_nested_offset(m->absmax, n_blocks);
        qr_nf4_nest(m->absmax, n_blocks, m->nested_offset, m->absmax_codes, m->nested_absmax);
        qr_nf4_unnest(m->absmax_codes, m->nested_absmax, m->nested_offset, 0, n_blocks, m->absmax);
    }
    qr_nf4_dequantize(m->codes, m->absmax, m->desc.block, 0, n, m->values);
}

/* Codes and scales at random. */
static void fill_mxfp4(matrix *m, uint64_t stream) {
    const int64_t n = qr_weight_elements(&m->desc), n_blocks = qr_weight_blocks(&m->desc);
    uint8_t *codes = m->codes;
    m->absmax_codes = qr_alloc((size_t)n_blocks);
    for (size_t i = 0; i < qr_weight_code_bytes(&m->desc); i++) {
        codes[i] = (uint8_t)(256 * qr_random_uniform(SEED, stream, i));
    }
    for (int64_t i = 0; i < n_blocks; i++) {
        m->absmax_codes[i] = (uint8_t)(119 + 6 * qr_random_uniform(SEED, stream + 1, (uint64_t)i));
    }
    qr_mxfp4_dequantize(codes, m->absmax_codes, 0, n, m->values);
}

static void fill_elements(matrix *m, const float *src) {
    const int64_t n = qr_weight_elements(&m->desc);
    for (int64_t i = 0; i < n; i++) {
        switch (m->desc.format) {
            case QR_WEIGHT_F32: ((float *)m->codes)[i] = m->values[i] = src[i]; break;
            case QR_WEIGHT_F16: m->values[i] = qr_f16_to_f32(((qr_f16 *)m->codes)[i] = qr_f32_to_f16(src[i])); break;
            default: m->values[i] = qr_bf16_to_f32(((qr_bf16 *)m->codes)[i] = qr_f32_to_bf16(src[i])); break;
        }
    }
}

static void fill_int8(matrix *m, const float *src) {
    m->row_absmax = qr_alloc_array((size_t)m->desc.rows, sizeof(float));
    for (int64_t r = 0; r < m->desc.rows; r++) {
        int8_t *codes = (int8_t *)m->codes + r * m->desc.cols;
        m->row_absmax[r] = qr_int8_quantize_row(src + r * m->desc.cols, m->desc.cols, codes);
        for (int64_t c = 0; c < m->desc.cols; c++) { m->values[r * m->desc.cols + c] = (float)codes[c]; }
    }
}

static uint64_t matrix_number; /* matrices of different numbers have different values */

static void matrix_create(matrix *m, qr_weight_format format, int block, int64_t rows, int64_t cols) {
    *m = (matrix){.desc = {format, qr_weight_is_nf4(format) ? block : 0, rows, cols}};
    const int64_t n = rows * cols;
    float *src = qr_alloc_array((size_t)n, sizeof(float));
    for (int64_t i = 0; i < n; i++) { src[i] = random_value((uint64_t)format + 1000 * matrix_number, i) * 0.05F; }
    m->codes = qr_alloc_zeroed(qr_weight_code_bytes(&m->desc));
    m->values = qr_alloc_array((size_t)n, sizeof(float));
    if (qr_weight_is_nf4(format)) {
        fill_nf4(m, src);
    } else if (format == QR_WEIGHT_MXFP4) {
        fill_mxfp4(m, 2000 + 2 * matrix_number);
    } else if (format == QR_WEIGHT_INT8) {
        fill_int8(m, src);
    } else {
        fill_elements(m, src);
    }
    qr_free(src);
}

static void matrix_destroy(matrix *m) {
    qr_free(m->codes);
    qr_free(m->row_absmax);
    qr_free(m->absmax);
    qr_free(m->nested_absmax);
    qr_free(m->absmax_codes);
    qr_free(m->values);
}

/* Puts the matrix into the backend in two parts, takes it out again and compares. */
static void weight_create(qr_backend *backend, const matrix *m, qr_weight *weight) {
    *weight = (qr_weight){.desc = m->desc};
    const size_t n_bytes = backend->weight_bytes(backend, &m->desc);
    CHECK(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &weight->data, NULL) == QRUN_OK);
    const int64_t first = qr_min(m->desc.rows, QR_WEIGHT_ROW_GROUP), rest = m->desc.rows - first;
    const size_t offset = qr_weight_row_offset(&m->desc, first);
    CHECK(backend->weight_put_rows(backend, weight, 0, first, m->codes, NULL) == QRUN_OK);
    if (rest > 0) {
        CHECK(backend->weight_put_rows(backend, weight, first, rest, (char *)m->codes + offset, NULL) == QRUN_OK);
    }
    const qr_weight_scales scales = {m->row_absmax, m->absmax, m->absmax_codes, m->nested_absmax, m->nested_offset};
    CHECK(backend->weight_put_scales(backend, weight, &scales, NULL) == QRUN_OK);
    const size_t code_bytes = qr_weight_code_bytes(&m->desc);
    void *codes = qr_alloc_zeroed(code_bytes);
    CHECK(backend->weight_get_rows(backend, weight, 0, m->desc.rows, codes, NULL) == QRUN_OK);
    CHECK_MSG(memcmp(codes, m->codes, code_bytes) == 0, "%s [%lld, %lld]: codes do not survive packing",
              qr_weight_format_name(m->desc.format), (long long)m->desc.rows, (long long)m->desc.cols);
    qr_free(codes);
}

/* A workspace of exactly n_bytes, with marks after it that nothing may overwrite. */
enum { MARK_BYTES = 256, MARK = 0xA5 };

static void *workspace_create(qr_backend *backend, size_t n_bytes) {
    void *workspace = NULL;
    CHECK(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes + MARK_BYTES, &workspace, NULL) == QRUN_OK);
    memset((unsigned char *)workspace + n_bytes, MARK, MARK_BYTES);
    return workspace;
}

static void workspace_destroy(qr_backend *backend, unsigned char *workspace, size_t n_bytes) {
    int n_overwritten = 0;
    for (size_t i = 0; i < MARK_BYTES; i++) { n_overwritten += workspace[n_bytes + i] != MARK; }
    CHECK_INT(n_overwritten, 0);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, workspace, n_bytes + MARK_BYTES);
}

static void run_linear(qr_backend *backend, const qr_linear_args *args) {
    qr_error err = {0};
    const size_t n_bytes = qr_linear_workspace(backend, args);
    void *workspace = workspace_create(backend, n_bytes);
    CHECK_MSG(qr_linear(backend, args, (qr_workspace){workspace, n_bytes}, &err) == QRUN_OK, "%s", err.message);
    workspace_destroy(backend, workspace, n_bytes);
}

static double element(const void *x, qr_dtype dtype, int64_t k) {
    switch (dtype) {
        case QR_DTYPE_BF16: return (double)qr_bf16_to_f32(((const qr_bf16 *)x)[k]);
        case QR_DTYPE_F16: return (double)qr_f16_to_f32(((const qr_f16 *)x)[k]);
        default: return (double)((const float *)x)[k];
    }
}

static double rounded(float value, qr_dtype dtype) {
    switch (dtype) {
        case QR_DTYPE_BF16: return (double)qr_bf16_to_f32(qr_f32_to_bf16(value));
        case QR_DTYPE_F16: return (double)qr_f16_to_f32(qr_f32_to_f16(value));
        default: return (double)value;
    }
}

static double product_value(const matrix *m, const void *x, qr_dtype x_dtype, int64_t o, double *magnitude) {
    const float *w = m->values + o * m->desc.cols;
    double sum = 0.0;
    *magnitude = 0.0;
    for (int64_t k = 0; k < m->desc.cols; k++) {
        const double xv = element(x, x_dtype, k), wv = rounded(w[k], x_dtype);
        sum += xv * wv;
        *magnitude += fabs(xv * wv);
    }
    const double factor = m->row_absmax != NULL ? (double)m->row_absmax[o] / 127.0 : 1.0;
    *magnitude *= factor;
    return sum * factor;
}

/* x: [MAX_ROWS, cols] with a stride of cols + 5 and NaN between the rows, which nothing may read. */
typedef struct activations {
    void *data;
    qr_dtype dtype;
    int64_t stride;
} activations;

static const void *x_row(const activations *x, int64_t i) {
    return (const char *)x->data + (size_t)(i * x->stride) * qr_dtype_bytes(x->dtype);
}

static void activations_create(activations *x, qr_dtype dtype, int64_t cols) {
    *x = (activations){.dtype = dtype, .stride = cols + 5};
    const size_t n = (size_t)(MAX_ROWS * x->stride);
    x->data = qr_alloc_array(n, qr_dtype_bytes(dtype));
    for (int64_t i = 0; i < MAX_ROWS; i++) {
        for (int64_t k = 0; k < x->stride; k++) {
            const float value = k < cols ? random_value(100, i * cols + k) : NAN;
            const int64_t at = i * x->stride + k;
            switch (dtype) {
                case QR_DTYPE_BF16: ((qr_bf16 *)x->data)[at] = qr_f32_to_bf16(value); break;
                case QR_DTYPE_F16: ((qr_f16 *)x->data)[at] = qr_f32_to_f16(value); break;
                default: ((float *)x->data)[at] = value; break;
            }
        }
    }
}

/* Whether products are of integers (int16_sum.h). */
static bool by_integers(const qr_backend *backend, const matrix *m, qr_dtype x_dtype) {
    return qr_cpu(backend)->kernels->matmul_int16 != NULL && x_dtype == QR_DTYPE_BF16 && qr_int16_takes(&m->desc);
}

/* The same with weights that are not rounded, and how far products of integers may be from it: by 2^-12.9 of a weight
 * of NF4, and by 2^-15 of the largest x of a block. */
static double integer_product_value(const matrix *m, const void *x, int64_t o, double *magnitude, double *error) {
    const float *w = m->values + o * m->desc.cols;
    const double factor = m->row_absmax != NULL ? (double)m->row_absmax[o] / 127.0 : 1.0;
    double sum = 0.0;
    *magnitude = *error = 0.0;
    for (int64_t first = 0; first < m->desc.cols; first += QR_INT16_COLS) {
        const int64_t end = qr_min(first + QR_INT16_COLS, m->desc.cols);
        double largest = 0.0;
        for (int64_t k = first; k < end; k++) { largest = fmax(largest, fabs(element(x, QR_DTYPE_BF16, k))); }
        for (int64_t k = first; k < end; k++) {
            const double xv = element(x, QR_DTYPE_BF16, k), wv = factor * (double)w[k];
            const bool is_exact = fabs(xv) * 128.0 >= largest;
            sum += xv * wv;
            *magnitude += fabs(xv * wv);
            *error += qr_weight_is_nf4(m->desc.format) ? fabs(xv * wv) * 0.54 * 0x1p-12 : 0.0;
            *error += is_exact ? 0.0 : fabs(wv) * largest * 0x1p-15;
        }
    }
    return sum;
}

static void check_values(const matrix *m, const activations *x, const float *y, const qr_backend *compared) {
    const char *isa = compared->isa;
    for (int64_t i = 0; i < MAX_ROWS; i += 11) {
        for (int64_t o = 0; o < m->desc.rows; o++) {
            double magnitude, error = 0.0;
            const double expected = by_integers(compared, m, x->dtype)
                                        ? integer_product_value(m, x_row(x, i), o, &magnitude, &error)
                                        : product_value(m, x_row(x, i), x->dtype, o, &magnitude);
            const double got = (double)y[i * m->desc.rows + o];
            if (!(fabs(got - expected) <= 1e-6 * magnitude + error + 1e-30)) {
                check_fail(__FILE__, __LINE__, "%s %s x %s K %lld: y[%lld, %lld] = %.9g, expected %.9g", isa,
                           qr_weight_format_name(m->desc.format), qr_dtype_name(x->dtype), (long long)m->desc.cols,
                           (long long)i, (long long)o, got, expected);
                return;
            }
        }
    }
}

/* Every row alone, then in batches of all sizes: the same bits, and nothing written beside them. */
static void check_matrix(qr_backend *const backends[2], const matrix *m, qr_dtype dtype) {
    activations x;
    activations_create(&x, dtype, m->desc.cols);
    qr_weight weight;
    weight_create(backends[0], m, &weight);
    const int64_t rows = m->desc.rows, y_stride = rows + 3;
    float *alone = qr_alloc_array((size_t)(MAX_ROWS * rows), sizeof(float));
    float *y = qr_alloc_array((size_t)(MAX_ROWS * y_stride), sizeof(float));
    for (int64_t i = 0; i < MAX_ROWS; i++) {
        run_linear(backends[0], &(qr_linear_args){.weight = &weight,
                                                  .x = x_row(&x, i),
                                                  .x_dtype = dtype,
                                                  .y = alone + i * rows,
                                                  .n_rows = 1,
                                                  .x_stride = x.stride,
                                                  .y_stride = rows});
    }
    check_values(m, &x, alone, backends[0]);
    int n_different = 0;
    for (size_t c = 0; c < QR_COUNT_OF(row_counts); c++) {
        const int64_t n = row_counts[c], first = MAX_ROWS - n;
        for (int64_t j = 0; j < MAX_ROWS * y_stride; j++) { y[j] = -77.0F; }
        run_linear(backends[c % 2], &(qr_linear_args){.weight = &weight,
                                                      .x = x_row(&x, first),
                                                      .x_dtype = dtype,
                                                      .y = y,
                                                      .n_rows = n,
                                                      .x_stride = x.stride,
                                                      .y_stride = y_stride});
        for (int64_t i = 0; i < n; i++) {
            n_different += memcmp(y + i * y_stride, alone + (first + i) * rows, (size_t)rows * sizeof(float)) != 0;
            for (int64_t o = rows; o < y_stride; o++) { n_different += y[i * y_stride + o] != -77.0F; }
        }
    }
    CHECK_MSG(n_different == 0, "%s %s block %d x %s K %lld: %d rows differ in a batch", backends[0]->isa,
              qr_weight_format_name(m->desc.format), m->desc.block, qr_dtype_name(dtype), (long long)m->desc.cols,
              n_different);
    backends[0]->memory_destroy(backends[0], QR_MEMORY_DEVICE, weight.data,
                                backends[0]->weight_bytes(backends[0], &m->desc));
    qr_free(alone);
    qr_free(y);
    qr_free(x.data);
}

/* --- Every instruction set --------------------------------------------------------------------------------------- */

/* One backend of one thread and one of two, for each instruction set in turn, also the emulated one. */
typedef void (*backend_test)(qr_backend *const backends[2]);

static void with_isa(const char *isa, backend_test test) {
    qr_threads *threads[2];
    qr_backend *backends[2];
    for (int t = 0; t < 2; t++) {
        REQUIRE(qr_threads_create(t + 1, &threads[t], NULL) == QRUN_OK);
        REQUIRE(qr_backend_cpu_create(isa, threads[t], &backends[t], NULL) == QRUN_OK);
    }
    test(backends);
    for (int t = 0; t < 2; t++) {
        size_t now, peak;
        backends[t]->memory_held(backends[t], &now, &peak);
        CHECK(now == 0);
        qr_backend_destroy(backends[t]);
        qr_threads_destroy(threads[t]);
    }
}

static void with_every_isa(backend_test test) {
    for (const char *const *isa = qr_backend_cpu_isas(); *isa != NULL; isa++) { with_isa(*isa, test); }
    qr_backend *emulated;
    if (qr_backend_cpu_create("amx-bf16-emulated", NULL, &emulated, NULL) == QRUN_OK) {
        qr_backend_destroy(emulated);
        with_isa("amx-bf16-emulated", test);
    }
}

static void check_shape(qr_backend *const backends[2], qr_weight_format format, int block, int64_t rows, int64_t cols) {
    matrix m;
    matrix_create(&m, format, block, rows, cols);
    check_matrix(backends, &m, QR_DTYPE_F32);
    check_matrix(backends, &m, QR_DTYPE_BF16);
    check_matrix(backends, &m, QR_DTYPE_F16);
    matrix_destroy(&m);
}

static void formats_and_sizes(qr_backend *const backends[2]) {
    static const int64_t cols[] = {1, 31, 64, 80, 172, 192, 2048 + 64, 8192};
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        for (size_t c = 0; c < QR_COUNT_OF(cols); c++) {
            check_shape(backends, (qr_weight_format)format, 64, cols[c] > 1000 ? 21 : 83, cols[c]);
        }
    }
}
static void test_formats_and_sizes(void) { with_every_isa(formats_and_sizes); }

static void block_sizes(qr_backend *const backends[2]) {
    static const int blocks[] = {32, 128, 256, 4096};
    for (size_t b = 0; b < QR_COUNT_OF(blocks); b++) {
        check_shape(backends, QR_WEIGHT_NF4, blocks[b], 130, 320);
        check_shape(backends, QR_WEIGHT_NF4_DQ, blocks[b], 130, 320);
    }
}
static void test_block_sizes(void) { with_every_isa(block_sizes); }

/* --- bias, accumulate -------------------------------------------------------------------------------------------- */

/* y + (sum + bias), in that order, and the sum by itself. */
static void bias_and_accumulate(qr_backend *const backends[2]) {
    enum { ROWS = 70, COLS = 96, N = 9 };
    matrix m;
    matrix_create(&m, QR_WEIGHT_INT8, 0, ROWS, COLS);
    activations x;
    activations_create(&x, QR_DTYPE_BF16, COLS);
    qr_weight weight;
    weight_create(backends[1], &m, &weight);
    float bias[ROWS], plain[N * ROWS], with_both[N * ROWS];
    for (int o = 0; o < ROWS; o++) { bias[o] = random_value(300, o); }
    for (int i = 0; i < N * ROWS; i++) { with_both[i] = random_value(301, i); }
    qr_linear_args args = {.weight = &weight,
                           .x = x.data,
                           .x_dtype = x.dtype,
                           .y = plain,
                           .n_rows = N,
                           .x_stride = x.stride,
                           .y_stride = ROWS};
    run_linear(backends[1], &args);
    args.bias = bias;
    args.accumulate = true;
    args.y = with_both;
    run_linear(backends[1], &args);
    int n_different = 0;
    for (int i = 0; i < N * ROWS; i++) {
        const float sum = plain[i] + bias[i % ROWS];
        n_different += with_both[i] != sum + random_value(301, i);
    }
    CHECK_INT(n_different, 0);
    backends[1]->memory_destroy(backends[1], QR_MEMORY_DEVICE, weight.data,
                                backends[1]->weight_bytes(backends[1], &m.desc));
    qr_free(x.data);
    matrix_destroy(&m);
}
static void test_bias_and_accumulate(void) { with_every_isa(bias_and_accumulate); }

/* --- lora -------------------------------------------------------------------------------------------------------- */

enum { LORA_OUT = 75, LORA_ADAPTERS = 4, LORA_MAX_RANK = 96 };

/* Adapter 1 leaves the module alone; rows take −1, 0, 1, 2, 3, −1, … in turn. */
static const int32_t lora_ranks[LORA_ADAPTERS] = {5, 0, 16, LORA_MAX_RANK};

static void lora_factors_create(qr_lora_factor factors[LORA_ADAPTERS], int64_t in) {
    for (int a = 0; a < LORA_ADAPTERS; a++) {
        const int64_t n_a = lora_ranks[a] * in, n_b = (int64_t)LORA_OUT * lora_ranks[a];
        float *down = qr_alloc_array((size_t)n_a, sizeof(float)), *up = qr_alloc_array((size_t)n_b, sizeof(float));
        for (int64_t i = 0; i < n_a; i++) { down[i] = random_value(400 + (uint64_t)a, i) * 0.1F; }
        for (int64_t i = 0; i < n_b; i++) { up[i] = random_value(500 + (uint64_t)a, i) * 0.1F; }
        factors[a] = (qr_lora_factor){.a = down, .b = up, .rank = lora_ranks[a], .scale = 0.5F + (float)a};
    }
}

static void run_lora(qr_backend *backend, const qr_lora_args *args) {
    qr_error err = {0};
    const size_t n_bytes = qr_lora_workspace(backend, args);
    void *workspace = workspace_create(backend, n_bytes);
    CHECK_MSG(qr_lora(backend, args, (qr_workspace){workspace, n_bytes}, &err) == QRUN_OK, "%s", err.message);
    workspace_destroy(backend, workspace, n_bytes);
}

/* y0 + scale · B A x in float64, and the sum of the magnitudes that went into it. */
static double lora_value(const qr_lora_factor *factor, const activations *x, int64_t i, int64_t in, int64_t o,
                         double y0, double *magnitude) {
    double sum = 0.0;
    *magnitude = fabs(y0);
    for (int32_t r = 0; r < factor->rank; r++) {
        double t = 0.0, t_magnitude = 0.0;
        for (int64_t k = 0; k < in; k++) {
            const double value = element(x_row(x, i), x->dtype, k);
            t += (double)factor->a[r * in + k] * value;
            t_magnitude += fabs((double)factor->a[r * in + k] * value);
        }
        sum += (double)factor->b[o * factor->rank + r] * t;
        *magnitude += (double)factor->scale * fabs((double)factor->b[o * factor->rank + r]) * t_magnitude;
    }
    return y0 + (double)factor->scale * sum;
}

static void check_lora(qr_backend *const backends[2], qr_dtype dtype, int64_t in) {
    qr_lora_factor factors[LORA_ADAPTERS];
    lora_factors_create(factors, in);
    activations x;
    activations_create(&x, dtype, in);
    int32_t adapters[MAX_ROWS];
    float *alone = qr_alloc_array(MAX_ROWS * LORA_OUT, sizeof(float)),
          *y = qr_alloc_array(MAX_ROWS * LORA_OUT, sizeof(float));
    for (int i = 0; i < MAX_ROWS * LORA_OUT; i++) { alone[i] = random_value(600, i); }
    for (int i = 0; i < MAX_ROWS; i++) {
        adapters[i] = i % (LORA_ADAPTERS + 1) - 1;
        run_lora(backends[0], &(qr_lora_args){.factors = factors,
                                              .row_adapter = adapters + i,
                                              .x = x_row(&x, i),
                                              .x_dtype = dtype,
                                              .y = alone + i * LORA_OUT,
                                              .n_rows = 1,
                                              .in = in,
                                              .out = LORA_OUT,
                                              .x_stride = x.stride,
                                              .y_stride = LORA_OUT,
                                              .n_adapters = LORA_ADAPTERS,
                                              .max_rank = LORA_MAX_RANK});
    }
    int n_wrong = 0, n_different = 0;
    for (int64_t i = 0; i < MAX_ROWS; i += 3) {
        for (int64_t o = 0; o < LORA_OUT; o++) {
            const double y0 = (double)random_value(600, i * LORA_OUT + o);
            double magnitude, expected = y0;
            if (adapters[i] >= 0) { expected = lora_value(&factors[adapters[i]], &x, i, in, o, y0, &magnitude); }
            n_wrong += adapters[i] < 0 || factors[adapters[i]].rank == 0
                           ? (double)alone[i * LORA_OUT + o] != y0
                           : !(fabs((double)alone[i * LORA_OUT + o] - expected) <= 1e-6 * magnitude);
        }
    }
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < MAX_ROWS * LORA_OUT; i++) { y[i] = random_value(600, i); }
        run_lora(backends[t], &(qr_lora_args){.factors = factors,
                                              .row_adapter = adapters,
                                              .x = x.data,
                                              .x_dtype = dtype,
                                              .y = y,
                                              .n_rows = MAX_ROWS,
                                              .in = in,
                                              .out = LORA_OUT,
                                              .x_stride = x.stride,
                                              .y_stride = LORA_OUT,
                                              .n_adapters = LORA_ADAPTERS,
                                              .max_rank = LORA_MAX_RANK});
        n_different += memcmp(y, alone, MAX_ROWS * LORA_OUT * sizeof(float)) != 0;
    }
    CHECK_MSG(n_wrong == 0 && n_different == 0, "%s lora x %s in %lld: %d values wrong, %d batches differ",
              backends[0]->isa, qr_dtype_name(dtype), (long long)in, n_wrong, n_different);
    for (int a = 0; a < LORA_ADAPTERS; a++) {
        qr_free((void *)(uintptr_t)factors[a].a);
        qr_free((void *)(uintptr_t)factors[a].b);
    }
    qr_free(alone);
    qr_free(y);
    qr_free(x.data);
}

static void lora(qr_backend *const backends[2]) {
    static const int64_t ins[] = {1, 31, 172, 1024 + 64};
    for (size_t i = 0; i < QR_COUNT_OF(ins); i++) {
        check_lora(backends, QR_DTYPE_F32, ins[i]);
        check_lora(backends, QR_DTYPE_BF16, ins[i]);
        check_lora(backends, QR_DTYPE_F16, ins[i]);
    }
}
static void test_lora(void) { with_every_isa(lora); }

/* --- linear with an adapter -------------------------------------------------------------------------------------- */

/* As one op, and as linear and then lora: the same bits, whether the adapter is added to the sums or afterwards. */
static void check_linear_with_lora(qr_backend *const backends[2], qr_weight_format format, qr_dtype dtype, int32_t rank,
                                   int64_t n_rows, bool accumulate) {
    enum { IN = 1024 + 64, Y_STRIDE = LORA_OUT + 3 };
    matrix m;
    matrix_create(&m, format, 64, LORA_OUT, IN);
    activations x;
    activations_create(&x, dtype, IN);
    qr_weight weight;
    weight_create(backends[0], &m, &weight);
    float *a = qr_alloc_array((size_t)(rank * IN), sizeof *a),
          *b = qr_alloc_array((size_t)(LORA_OUT * rank), sizeof *b);
    float bias[LORA_OUT], y[2][MAX_ROWS * Y_STRIDE];
    int32_t adapters[MAX_ROWS] = {0};
    for (int64_t i = 0; i < rank * IN; i++) { a[i] = random_value(700, i) * 0.1F; }
    for (int64_t i = 0; i < LORA_OUT * rank; i++) { b[i] = random_value(701, i) * 0.1F; }
    for (int64_t i = 0; i < LORA_OUT; i++) { bias[i] = random_value(702, i); }
    const qr_lora_factor factor = {.a = a, .b = b, .rank = rank, .scale = 1.7F};
    for (int once = 0; once < 2; once++) {
        for (int64_t i = 0; i < MAX_ROWS * Y_STRIDE; i++) { y[once][i] = random_value(703, i); }
        const qr_lora_args lora = {.factors = &factor,
                                   .row_adapter = adapters,
                                   .x = x.data,
                                   .x_dtype = dtype,
                                   .y = y[once],
                                   .n_rows = n_rows,
                                   .in = IN,
                                   .out = LORA_OUT,
                                   .x_stride = x.stride,
                                   .y_stride = Y_STRIDE,
                                   .n_adapters = 1,
                                   .max_rank = rank};
        run_linear(backends[once], &(qr_linear_args){.weight = &weight,
                                                     .bias = accumulate ? bias : NULL,
                                                     .x = x.data,
                                                     .x_dtype = dtype,
                                                     .y = y[once],
                                                     .n_rows = n_rows,
                                                     .x_stride = x.stride,
                                                     .y_stride = Y_STRIDE,
                                                     .accumulate = accumulate,
                                                     .lora = once ? &lora : NULL});
        if (!once) { run_lora(backends[0], &lora); }
    }
    CHECK_MSG(memcmp(y[0], y[1], sizeof y[0]) == 0, "%s %s x %s rank %d rows %lld: other bits as one op",
              backends[0]->isa, qr_weight_format_name(format), qr_dtype_name(dtype), (int)rank, (long long)n_rows);
    backends[0]->memory_destroy(backends[0], QR_MEMORY_DEVICE, weight.data,
                                backends[0]->weight_bytes(backends[0], &m.desc));
    matrix_destroy(&m);
    qr_free(a);
    qr_free(b);
    qr_free(x.data);
}

static void linear_with_lora(qr_backend *const backends[2]) {
    static const int32_t ranks[] = {5, 16, 64, LORA_MAX_RANK};
    static const int64_t row_counts_here[] = {9, 65, MAX_ROWS};
    for (size_t i = 0; i < QR_COUNT_OF(ranks) * QR_COUNT_OF(row_counts_here); i++) {
        const int32_t rank = ranks[i % QR_COUNT_OF(ranks)];
        const int64_t n_rows = row_counts_here[i / QR_COUNT_OF(ranks)];
        check_linear_with_lora(backends, QR_WEIGHT_NF4_DQ, QR_DTYPE_BF16, rank, n_rows, false);
        check_linear_with_lora(backends, QR_WEIGHT_INT8, QR_DTYPE_BF16, rank, n_rows, true);
        check_linear_with_lora(backends, QR_WEIGHT_BF16, QR_DTYPE_F32, rank, n_rows, i % 2 == 0);
    }
}
static void test_linear_with_lora(void) { with_every_isa(linear_with_lora); }

/* --- Experts ----------------------------------------------------------------------------------------------------- */

/* Experts with no token, one, a few, a tile's edge and more than a tile; 71 rows of two slots each. */
enum { N_EXPERTS = 6, EXPERT_ROWS = 70, EXPERT_COLS = 192, N_SLOTS = 142 };

static const int32_t expert_starts[N_EXPERTS + 1] = {0, 1, 1, 5, 22, 38, N_SLOTS};

/* The bits of every slot are those of linear with its expert's matrix. */
static void check_experts(qr_backend *backend, const qr_weight *weights, qr_dtype dtype, bool gathers) {
    activations x;
    activations_create(&x, dtype, EXPERT_COLS);
    static int32_t slot_row[N_SLOTS], starts[N_EXPERTS + 1];
    static float y[N_SLOTS * EXPERT_ROWS], expected[EXPERT_ROWS];
    memcpy(starts, expert_starts, sizeof starts);
    for (int p = 0; p < N_SLOTS; p++) { slot_row[p] = p * 29 % 71; }
    const qr_expert_linear_args args = {
        .weights = weights,
        .routing = {.slot_row = slot_row, .expert_start = starts, .n_rows = 71, .n_experts = N_EXPERTS, .top_k = 2},
        .x = x.data,
        .x_dtype = dtype,
        .y = y,
        .x_stride = gathers ? x.stride : 0,
        .y_stride = EXPERT_ROWS,
        .gathers = gathers};
    qr_expert_linear_args call = args;
    qr_error err = {0};
    unsigned char *slots = qr_alloc((size_t)(N_SLOTS * EXPERT_COLS) * sizeof(float));
    const size_t row_bytes = (size_t)EXPERT_COLS * qr_dtype_bytes(dtype);
    for (int p = 0; p < N_SLOTS; p++) {
        memcpy(slots + (size_t)p * row_bytes,
               (const unsigned char *)x.data + (size_t)(slot_row[p] * x.stride) * qr_dtype_bytes(dtype), row_bytes);
    }
    if (!gathers) { call.x = slots, call.x_stride = EXPERT_COLS; }
    const size_t n_bytes = qr_expert_linear_workspace(backend, &call);
    void *workspace = workspace_create(backend, n_bytes);
    CHECK_MSG(qr_expert_linear(backend, &call, (qr_workspace){workspace, n_bytes}, &err) == QRUN_OK, "%s", err.message);
    workspace_destroy(backend, workspace, n_bytes);
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        for (int32_t p = starts[e]; p < starts[e + 1]; p++) {
            const qr_linear_args row = {.weight = &weights[e],
                                        .x = slots + (size_t)p * row_bytes,
                                        .x_dtype = dtype,
                                        .y = expected,
                                        .n_rows = 1,
                                        .x_stride = EXPERT_COLS,
                                        .y_stride = EXPERT_ROWS};
            run_linear(backend, &row);
            CHECK_MSG(memcmp(expected, y + p * EXPERT_ROWS, sizeof expected) == 0,
                      "%s, %s, %s: slot %d of expert %d has other bits", backend->isa,
                      qr_weight_format_name(weights[0].desc.format), qr_dtype_name(dtype), (int)p, (int)e);
        }
    }
    qr_free(slots);
    qr_free(x.data);
}

static void experts(qr_backend *const backends[2]) {
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        matrix matrices[N_EXPERTS];
        qr_weight weights[N_EXPERTS];
        for (int e = 0; e < N_EXPERTS; e++) {
            matrix_number = (uint64_t)e;
            matrix_create(&matrices[e], (qr_weight_format)format, 64, EXPERT_ROWS, EXPERT_COLS);
            weight_create(backends[1], &matrices[e], &weights[e]);
        }
        matrix_number = 0;
        for (int gathers = 0; gathers < 2; gathers++) {
            check_experts(backends[1], weights, QR_DTYPE_F32, gathers == 1);
            check_experts(backends[1], weights, QR_DTYPE_BF16, gathers == 1);
            check_experts(backends[1], weights, QR_DTYPE_F16, gathers == 1);
        }
        for (int e = 0; e < N_EXPERTS; e++) {
            const size_t n_bytes = backends[1]->weight_bytes(backends[1], &weights[e].desc);
            backends[1]->memory_destroy(backends[1], QR_MEMORY_DEVICE, weights[e].data, n_bytes);
            matrix_destroy(&matrices[e]);
        }
    }
}
static void test_experts(void) { with_every_isa(experts); }

/* --- Rows of dy, in place or not --------------------------------------------------------------------------------- */

/* How far rows of dy are apart, and where they begin, decides how they are read. The bits are the same. */
static void strides_of_dy(qr_backend *const backends[2]) {
    enum { OUT = 514, IN = 96, ROWS = 270, MAX_STRIDE = 768 };
    static const int64_t strides[] = {OUT, OUT + 1, 520, MAX_STRIDE};
    static qr_bf16 dy[ROWS * MAX_STRIDE + 1];
    static float dx[2][ROWS * IN];
    qr_backend *backend = backends[1];
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        matrix m;
        qr_weight weight;
        matrix_create(&m, (qr_weight_format)format, 32, OUT, IN);
        weight_create(backend, &m, &weight);
        for (size_t i = 0; i < 2 * QR_COUNT_OF(strides); i++) {
            const int64_t stride = strides[i / 2], first = (int64_t)(i % 2);
            for (int64_t k = 0; k < ROWS * OUT; k++) {
                dy[first + k / OUT * stride + k % OUT] = qr_f32_to_bf16(random_value(800, k));
            }
            const qr_linear_backward_args args = {.weight = &weight,
                                                  .dy = dy + first,
                                                  .dy_dtype = QR_DTYPE_BF16,
                                                  .dx = dx[i > 0],
                                                  .n_rows = ROWS,
                                                  .dy_stride = stride,
                                                  .dx_stride = IN};
            const size_t n_bytes = qr_linear_backward_workspace(backend, &args);
            void *workspace = workspace_create(backend, n_bytes);
            CHECK(qr_linear_backward(backend, &args, (qr_workspace){workspace, n_bytes}, NULL) == QRUN_OK);
            workspace_destroy(backend, workspace, n_bytes);
            CHECK_MSG(memcmp(dx[i > 0], dx[0], sizeof dx[0]) == 0, "%s, %s: other bits with rows %d apart, from %d on",
                      backend->isa, qr_weight_format_name(m.desc.format), (int)stride, (int)first);
        }
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, weight.data, backend->weight_bytes(backend, &m.desc));
        matrix_destroy(&m);
    }
}
static void test_strides_of_dy(void) { with_every_isa(strides_of_dy); }

/* --- Every scale of MXFP4 ---------------------------------------------------------------------------------------- */

/* dy is the unit matrix, so dx is the matrix: its values to the bit, but for the sign of zeros. In BF16 subnormals are
 * zeros. Scales from 253 on have products beyond F32. */
static void every_scale(qr_backend *const backends[2]) {
    enum { ROWS = 3, COLS = 127 * 64, SCALES = 253 };
    static float dx[ROWS * COLS];
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_BF16};
    static const float unit_f32[ROWS * ROWS] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    static const qr_bf16 unit_bf16[ROWS * ROWS] = {0x3F80, 0, 0, 0, 0x3F80, 0, 0, 0, 0x3F80};
    qr_backend *backend = backends[1];
    matrix m;
    qr_weight weight;
    matrix_create(&m, QR_WEIGHT_MXFP4, 0, ROWS, COLS);
    for (int64_t i = 0; i < qr_weight_blocks(&m.desc); i++) { m.absmax_codes[i] = (uint8_t)(i % SCALES); }
    qr_mxfp4_dequantize(m.codes, m.absmax_codes, 0, ROWS * COLS, m.values);
    weight_create(backend, &m, &weight);
    for (size_t d = 0; d < QR_COUNT_OF(dtypes); d++) {
        const bool is_bf16 = dtypes[d] == QR_DTYPE_BF16;
        const qr_linear_backward_args args = {.weight = &weight,
                                              .dy = is_bf16 ? (const void *)unit_bf16 : unit_f32,
                                              .dy_dtype = dtypes[d],
                                              .dx = dx,
                                              .n_rows = ROWS,
                                              .dy_stride = ROWS,
                                              .dx_stride = COLS};
        const size_t n_bytes = qr_linear_backward_workspace(backend, &args);
        void *workspace = workspace_create(backend, n_bytes);
        CHECK(qr_linear_backward(backend, &args, (qr_workspace){workspace, n_bytes}, NULL) == QRUN_OK);
        workspace_destroy(backend, workspace, n_bytes);
        int n_different = 0;
        for (int64_t i = 0; i < ROWS * COLS; i++) {
            const float expected = is_bf16 ? qr_tile_flush(m.values[i]) : m.values[i];
            n_different += dx[i] != expected;
        }
        CHECK_MSG(n_different == 0, "%s, %s: %d values differ", backend->isa, qr_dtype_name(dtypes[d]), n_different);
    }
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, weight.data, backend->weight_bytes(backend, &m.desc));
    matrix_destroy(&m);
}
static void test_every_scale_of_mxfp4(void) { with_every_isa(every_scale); }

/* --- Scales of NF4 of any size ----------------------------------------------------------------------------------- */

/* What a row of weights times a single one at column k gives by integers, of blocks of 64. */
static float integer_value(const matrix *m, int64_t row, int64_t k) {
    const int64_t i = row * m->desc.cols + k;
    const unsigned byte = ((const uint8_t *)m->codes)[i / 2];
    const float code = qr_nf4_code[i % 2 == 0 ? byte >> 4 : byte & 15U];
    const float factor = m->absmax[i / 64] * QR_INT16_NF4_UNIT * 0x1p-14F;
    return rintf(code * QR_INT16_NF4_ONE) * 0x1p14F * factor;
}

/* A row of x has a single one, so y is a column of the matrix, to the bit: with one row of x from the codes, with more
 * from panels. The matrix has these scales in turn. */
static void check_scales(qr_backend *const backends[2], const float *scales, size_t n_scales) {
    enum { ROWS = 19, COLS = 10 * 64, N_X = 9 };
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_BF16};
    static float x[N_X * COLS], y[N_X * ROWS];
    static qr_bf16 x_bf16[N_X * COLS];
    matrix m;
    qr_weight weight;
    matrix_create(&m, QR_WEIGHT_NF4, 64, ROWS, COLS);
    for (int64_t i = 0; i < qr_weight_blocks(&m.desc); i++) { m.absmax[i] = scales[(size_t)i % n_scales]; }
    qr_nf4_dequantize(m.codes, m.absmax, 64, 0, ROWS * COLS, m.values);
    weight_create(backends[0], &m, &weight);
    int n_different = 0;
    for (int64_t k = 0; k < COLS; k += 7) {
        for (int64_t i = 0; i < N_X; i++) {
            x[i * COLS + (k + i) % COLS] = 1.0F;
            x_bf16[i * COLS + (k + i) % COLS] = 0x3F80;
        }
        for (int64_t n = 1; n <= N_X; n += N_X - 1) {
            for (size_t d = 0; d < QR_COUNT_OF(dtypes); d++) {
                const bool is_bf16 = dtypes[d] == QR_DTYPE_BF16;
                run_linear(backends[0], &(qr_linear_args){.weight = &weight,
                                                          .x = is_bf16 ? (const void *)x_bf16 : x,
                                                          .x_dtype = dtypes[d],
                                                          .y = y,
                                                          .n_rows = n,
                                                          .x_stride = COLS,
                                                          .y_stride = ROWS});
                for (int64_t j = 0; j < n * ROWS; j++) {
                    const int64_t column = (k + j / ROWS) % COLS;
                    float value = m.values[j % ROWS * COLS + column];
                    if (is_bf16) { value = qr_bf16_to_f32(qr_tile_weight(value)); }
                    if (by_integers(backends[0], &m, dtypes[d])) { value = integer_value(&m, j % ROWS, column); }
                    n_different += y[j] != value;
                }
            }
        }
        memset(x, 0, sizeof x);
        memset(x_bf16, 0, sizeof x_bf16);
    }
    CHECK_MSG(n_different == 0, "%s: %d values differ", backends[0]->isa, n_different);
    backends[0]->memory_destroy(backends[0], QR_MEMORY_DEVICE, weight.data,
                                backends[0]->weight_bytes(backends[0], &m.desc));
    matrix_destroy(&m);
}

/* Products of some scales are subnormal, which are zeros in BF16. */
static void scales_of_any_size(qr_backend *const backends[2]) {
    static const float scales[] = {1.0F,         0.0F,          1e-42F,       0x1p-126F,      0x1.8p-125F,
                                   -0x1.fp-120F, 0x1.4p-100F,   0x1p-99F,     -0x1.23456p-3F, 0x1p99F,
                                   0x1.fp100F,   0x1.ffffp126F, 0x1.234568p0F};
    check_scales(backends, scales, QR_COUNT_OF(scales));
}
static void test_scales_of_nf4(void) { with_every_isa(scales_of_any_size); }

/* The next F32 after `scale` whose product with a code is halfway between two BF16 values, the lower one even. */
static float scale_of_a_half(float scale, float code) {
    do { scale = nextafterf(scale, 2.0F); } while ((qr_f32_bits(code * scale) & 0x1FFFFU) != 0x8000U);
    return scale;
}

/* Values that are rounded to even, among scales that have none. */
static void halves(qr_backend *const backends[2]) {
    float scales[] = {1.0F, 0x1.23456p-3F, 0.0F, 1.0F, 1.0F, 1.0F, 1.0F};
    for (size_t i = 3; i < QR_COUNT_OF(scales); i++) { scales[i] = scale_of_a_half(1.0F, qr_nf4_code[3 + 2 * i]); }
    check_scales(backends, scales, QR_COUNT_OF(scales));
}
static void test_halves_of_nf4(void) { with_every_isa(halves); }

/* --- Choosing an instruction set --------------------------------------------------------------------------------- */

static void test_refused_isa(void) {
    qr_error err = {0};
    qr_backend *backend;
    CHECK(qr_backend_cpu_create("avx1024", NULL, &backend, &err) == QRUN_ERROR_ARGUMENT && backend == NULL);
    CHECK(strstr(err.message, "avx1024") != NULL && strstr(err.message, " c") != NULL);
    const char *const *isas = qr_backend_cpu_isas();
    int n = 0;
    while (isas[n] != NULL) { n++; }
    CHECK_STR(isas[n - 1], "c");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_formats_and_sizes);
    CHECK_RUN(test_block_sizes);
    CHECK_RUN(test_bias_and_accumulate);
    CHECK_RUN(test_lora);
    CHECK_RUN(test_linear_with_lora);
    CHECK_RUN(test_experts);
    CHECK_RUN(test_strides_of_dy);
    CHECK_RUN(test_every_scale_of_mxfp4);
    CHECK_RUN(test_scales_of_nf4);
    CHECK_RUN(test_halves_of_nf4);
    CHECK_RUN(test_refused_isa);
    return check_end();
}
