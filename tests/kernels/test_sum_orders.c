/* Orders of sums that have a definition, bit for bit: that of AMX tiles (kernels/tile_sum.h), by the instruction
 * itself, on emulated tiles and on the CPU's where it has them; and linear by every kernel that promises this order, or
 * that of products of integers (kernels/int16_sum.h), over formats, awkward sizes, 1 to 512 rows, and one thread or
 * two, against the scalar definition. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/fma.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/cpu/linear/linear_tiles.h"
#include "kernels/int16_sum.h"
#include "kernels/ref/ref.h"
#include "kernels/tile_sum.h"

static bool same_bits(float a, float b) { return qr_f32_bits(a) == qr_f32_bits(b) || (isnan(a) && isnan(b)); }

static uint64_t random_bits(uint64_t stream, int64_t i) {
    const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), (uint32_t)stream, 0};
    uint32_t out[4];
    qr_philox(OP_SEED, counter, out);
    return (uint64_t)out[1] << 32 | out[0];
}

/* --- Values ------------------------------------------------------------------------------------------------------ */

/* How values are distributed: near 1; over many powers of two; at the edge of subnormals; at the edge of infinity; such
 * that sums cancel; any bits at all. */
typedef enum values_kind { ORDINARY, WIDE, SUBNORMAL, OVERFLOWING, CANCELLING, RANDOM, N_KINDS } values_kind;
static const char *const kind_names[N_KINDS] = {"ordinary", "wide", "subnormal", "overflowing", "cancelling", "random"};

static float with_exponent(uint64_t bits, int low, int high) {
    const uint32_t exponent = (uint32_t)(low + (int)(bits >> 40) % (high - low + 1));
    return qr_f32_from_bits(((uint32_t)bits & 0x807FFFFFU) | exponent << 23);
}

/* Exponents are biased by 127. A product of two SUBNORMAL values lies around 2^-126. */
static float value_of(values_kind kind, uint64_t stream, int64_t i) {
    const uint64_t bits = random_bits(stream, i);
    switch (kind) {
        case ORDINARY: return with_exponent(bits, 124, 129);
        case WIDE: return with_exponent(bits, 64, 190);
        case SUBNORMAL: return i % 7 == 0 ? with_exponent(bits, 0, 2) : with_exponent(bits, 50, 72);
        case OVERFLOWING: return with_exponent(bits, 186, 193);
        case CANCELLING: return (i / 32 + i) % 2 == 0 ? 1.0F : -1.0F - (float)(i % 3) * 0x1p-7F;
        default: return qr_f32_from_bits((uint32_t)bits);
    }
}

/* --- FMA --------------------------------------------------------------------------------------------------------- */

static void test_fma_rounds_once(void) {
    enum { N = 400000 };
    int n_different = 0;
    for (int64_t i = 0; i < N; i++) {
        const values_kind kind = (values_kind)(i % N_KINDS);
        const float a = value_of(kind, 1, i), b = value_of(kind, 2, i);
        const float c = i % 5 == 0 ? -a * b : value_of(i % 3 == 0 ? SUBNORMAL : kind, 3, i);
        n_different += !same_bits(qr_fma_f32(a, b, c), fmaf(a, b, c));
    }
    CHECK_INT(n_different, 0);
}

/* --- The instruction --------------------------------------------------------------------------------------------- */

static void check_dot(const char *isa, const qr_cpu_tiles_kernel *kernel, values_kind kind, int64_t round) {
    uint16_t a[16 * 32], b[16 * 32];
    float c[16 * 16], expected[16 * 16], x[32], w[32];
    const uint64_t stream = (uint64_t)(100 + N_KINDS * round + (int64_t)kind);
    for (int64_t i = 0; i < 16 * 32; i++) {
        a[i] = (uint16_t)(qr_f32_bits(value_of(kind, stream, i)) >> 16);
        b[i] = (uint16_t)(qr_f32_bits(value_of(kind, stream + 5000, i)) >> 16);
    }
    for (int64_t i = 0; i < 16 * 16; i++) { c[i] = i % 4 == 0 ? 0.0F : value_of(kind, stream + 10000, i); }
    for (int m = 0; m < 16; m++) {
        for (int n = 0; n < 16; n++) {
            for (int k = 0; k < 32; k++) {
                w[k] = qr_bf16_to_f32(a[32 * m + k]);
                x[k] = qr_bf16_to_f32(b[32 * (k / 2) + 2 * n + k % 2]);
            }
            expected[16 * m + n] = qr_tile_sum(c[16 * m + n], w, x, 32);
        }
    }
    kernel->dot(c, a, b);
    for (int i = 0; i < 16 * 16; i++) {
        if (same_bits(c[i], expected[i])) { continue; }
        check_fail(__FILE__, __LINE__, "%s, %s values: element %d is %a, expected %a", isa, kind_names[kind], i,
                   (double)c[i], (double)expected[i]);
        return;
    }
}

/* A sum just below 2^-126 that rounds up to it is normal in the grid of subnormals and zero by the definition. */
static void check_smallest_normal(const char *isa, const qr_cpu_tiles_kernel *kernel) {
    uint16_t a[16 * 32] = {0}, b[16 * 32] = {0};
    float c[16 * 16] = {0};
    /* 2^-126 − 2^-150, of three products; then 2^-126 − 2^-151, which rounds to a normal number. */
    static const float w[2][3] = {{0x1p-63F, -0x1p-75F, 0.0F}, {0x1p-63F, -0x1p-75F, 0.0F}};
    static const float x[2][3] = {{0x1p-63F, 0x1p-75F, 0.0F}, {0x1p-63F, 0x1p-76F, 0.0F}};
    for (int n = 0; n < 2; n++) {
        for (int p = 0; p < 3; p++) {
            a[2 * p] = qr_f32_to_bf16(w[n][p]);
            b[32 * p + 2 * n] = qr_f32_to_bf16(x[n][p]);
        }
    }
    kernel->dot(c, a, b);
    CHECK_MSG(same_bits(c[0], 0.0F), "%s: %a", isa, (double)c[0]);
    CHECK_MSG(same_bits(c[1], FLT_MIN), "%s: %a", isa, (double)c[1]);
}

static void check_instruction(const char *isa) {
    qr_backend *backend;
    qr_error refused = {0};
    if (qr_backend_cpu_create(isa, NULL, &backend, &refused) != QRUN_OK) {
        printf("%s left out: %s\n", isa, refused.message);
        return;
    }
    const qr_cpu_tiles_kernel *kernel = qr_cpu(backend)->kernels->matmul_bf16->tiles;
    for (int64_t round = 0; round < 60; round++) {
        for (int kind = 0; kind < N_KINDS; kind++) { check_dot(isa, kernel, (values_kind)kind, round); }
    }
    check_smallest_normal(isa, kernel);
    qr_backend_destroy(backend);
}

static void test_instruction(void) {
    check_instruction("amx-bf16-emulated");
    check_instruction("amx-bf16");
}

/* --- linear ------------------------------------------------------------------------------------------------------ */

enum { MAX_ROWS = 512, X_GAP = 5, Y_GAP = 3 };

typedef struct linear_data {
    op_weight *weight;
    uint16_t *x;                     /* [MAX_ROWS, cols + X_GAP], NaN in the gaps */
    float *bias, *before, *expected; /* before, expected [MAX_ROWS, rows] */
} linear_data;

static qr_linear_args linear_args(const linear_data *d, const qr_weight *weight, int64_t first, int64_t n_rows,
                                  float *y, int64_t y_stride) {
    const int64_t x_stride = weight->desc.cols + X_GAP;
    return (qr_linear_args){
        .weight = weight,
        .bias = d->bias,
        .x = d->x + first * x_stride,
        .x_dtype = QR_DTYPE_BF16,
        .y = y,
        .n_rows = n_rows,
        .x_stride = x_stride,
        .y_stride = y_stride,
        .accumulate = d->before != NULL,
    };
}

static void with_weight(qr_backend *backend, const linear_data *d,
                        void (*run)(qr_backend *, const linear_data *, const qr_weight *, int64_t, int64_t),
                        int64_t first, int64_t n_rows) {
    const size_t n_bytes = backend->weight_bytes(backend, &d->weight->desc);
    void *data = NULL;
    qr_weight weight;
    REQUIRE(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &data, NULL) == QRUN_OK);
    REQUIRE(op_weight_put(backend, d->weight, data, &weight, NULL));
    run(backend, d, &weight, first, n_rows);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, data, n_bytes);
}

static void run_once(qr_backend *backend, const qr_linear_args *args, size_t missing_bytes, qrun_status expected) {
    enum { MARK_BYTES = 64, MARK = 0xA5 };
    const size_t n_bytes = qr_linear_workspace(backend, args);
    void *workspace = NULL;
    REQUIRE(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes + MARK_BYTES, &workspace, NULL) == QRUN_OK);
    memset((unsigned char *)workspace + n_bytes, MARK, MARK_BYTES);
    qr_error err = {0};
    const qrun_status status = qr_linear(backend, args, (qr_workspace){workspace, n_bytes - missing_bytes}, &err);
    CHECK_MSG(status == expected, "%s", err.message);
    for (size_t i = 0; i < MARK_BYTES; i++) { CHECK(((unsigned char *)workspace)[n_bytes + i] == MARK); }
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, workspace, n_bytes + MARK_BYTES);
}

static void fill_expected(qr_backend *ref, const linear_data *d, const qr_weight *weight, int64_t first,
                          int64_t n_rows) {
    const int64_t n_out = weight->desc.rows;
    if (d->before != NULL) { memcpy(d->expected, d->before, (size_t)(n_rows * n_out) * sizeof(float)); }
    const qr_linear_args args = linear_args(d, weight, first, n_rows, d->expected, n_out);
    run_once(ref, &args, 0, QRUN_OK);
}

static void check_rows(qr_backend *backend, const linear_data *d, const qr_weight *weight, int64_t first,
                       int64_t n_rows) {
    const int64_t n_out = weight->desc.rows, y_stride = n_out + Y_GAP;
    float *y = qr_alloc_array((size_t)(n_rows * y_stride), sizeof *y);
    for (int64_t i = 0; i < n_rows * y_stride; i++) { y[i] = -77.0F; }
    for (int64_t i = 0; i < n_rows && d->before != NULL; i++) {
        memcpy(y + i * y_stride, d->before + (first + i) * n_out, (size_t)n_out * sizeof *y);
    }
    const qr_linear_args args = linear_args(d, weight, first, n_rows, y, y_stride);
    run_once(backend, &args, 1, QRUN_ERROR_INTERNAL);
    run_once(backend, &args, 0, QRUN_OK);
    int64_t n_different = 0, n_gaps = 0, row = -1, output = -1;
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t o = 0; o < n_out; o++) {
            if (same_bits(y[i * y_stride + o], d->expected[(first + i) * n_out + o])) { continue; }
            if (n_different++ == 0) { row = i, output = o; }
        }
        for (int64_t o = n_out; o < y_stride; o++) { n_gaps += y[i * y_stride + o] != -77.0F; }
    }
    CHECK_MSG(n_different == 0 && n_gaps == 0,
              "%s, %d threads, %s block %d [%lld, %lld], %lld rows: %lld values differ (first: row %lld, output %lld), "
              "%lld written beside them",
              backend->isa, qr_threads_count(backend->threads), qr_weight_format_name(weight->desc.format),
              weight->desc.block, (long long)n_out, (long long)weight->desc.cols, (long long)n_rows,
              (long long)n_different, (long long)row, (long long)output, (long long)n_gaps);
    qr_free(y);
}

/* Every backend of the world, with 1 to max_rows of these rows: half of the numbers, which the next matrix has not. */
static void check_linear_data(const linear_data *d, int64_t max_rows) {
    static const int64_t counts[] = {1,  2,  3,  4,  7,  8,   15,  16,  17,  24,  31,  32,
                                     33, 48, 63, 64, 65, 100, 128, 255, 256, 257, 511, 512};
    static size_t turn;
    turn++;
    with_weight(op_everything.ref, d, fill_expected, 0, max_rows);
    for (int device = 0; device < op_everything.n_devices; device++) {
        for (size_t c = 0; c < QR_COUNT_OF(counts); c++) {
            const int64_t n = counts[c];
            if (n > max_rows ||
                (check_thins() && (c / 2 + (size_t)device + turn + (size_t)d->weight->desc.format) % 2 != 0)) {
                continue;
            }
            with_weight(op_everything.devices[device].backends[c % 2], d, check_rows, max_rows - n, n);
        }
    }
}

static bool by_integers; /* the order that is tested: by integers, of the formats that these take, or that of tiles */

static void check_linear(qr_weight_desc desc, values_kind kind, int64_t max_rows, bool with_bias, bool accumulates) {
    if (by_integers && !qr_int16_takes(&desc)) { return; }
    const uint64_t stream = (uint64_t)(desc.rows * 1009 + desc.cols);
    const int64_t x_stride = desc.cols + X_GAP, n_out = desc.rows;
    linear_data d = {.weight = op_weight_create(desc, stream)};
    d.x = qr_alloc_array((size_t)(max_rows * x_stride), sizeof *d.x);
    for (int64_t i = 0; i < max_rows * x_stride; i++) {
        d.x[i] = i % x_stride < desc.cols ? (uint16_t)(qr_f32_bits(value_of(kind, stream + 1, i)) >> 16) : 0x7FC0;
    }
    if (kind != ORDINARY && (desc.format == QR_WEIGHT_BF16 || desc.format == QR_WEIGHT_F32)) {
        const size_t element = desc.format == QR_WEIGHT_BF16 ? 2 : 4;
        for (int64_t i = 0; i < qr_weight_elements(&desc); i++) { /* the upper bytes of a little-endian F32 */
            const uint32_t bits = qr_f32_bits(value_of(kind, stream + 2, i)) >> (element == 2 ? 16 : 0);
            memcpy(d.weight->codes + (size_t)i * element, &bits, element);
        }
    }
    if (with_bias) { d.bias = op_normals(n_out, stream + 3, 1.0); }
    if (accumulates) { d.before = op_normals(max_rows * n_out, stream + 4, 1.0); }
    d.expected = qr_alloc_array((size_t)(max_rows * n_out), sizeof *d.expected);
    check_linear_data(&d, max_rows);
    op_weight_destroy(d.weight);
    qr_free(d.x);
    qr_free(d.bias);
    qr_free(d.before);
    qr_free(d.expected);
}

/* Odd sizes; tails of groups, runs and panels; several panels, K blocks and super-blocks; rows too long to stream. */
static void test_formats_and_sizes(void) {
    static const int64_t shapes[][3] = {{1, 1, 40},     {17, 31, 512},   {33, 64, 70},   {70, 96, 70},
                                        {145, 128, 70}, {49, 192, 70},   {64, 512, 512}, {96, 1024, 70},
                                        {40, 1088, 70}, {272, 640, 300}, {65, 3072, 70}, {16, 16512, 33}};
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        for (size_t s = 0; s < QR_COUNT_OF(shapes); s++) {
            const bool nf4 = qr_weight_is_nf4((qr_weight_format)format);
            check_linear((qr_weight_desc){(qr_weight_format)format, nf4 ? QR_NF4_BLOCK : 0, shapes[s][0], shapes[s][1]},
                         ORDINARY, shapes[s][2], s % 2 == 1, s % 3 == 1);
        }
    }
}

static void test_block_sizes(void) {
    static const int blocks[] = {32, 128, 256, 4096};
    for (size_t b = 0; b < QR_COUNT_OF(blocks); b++) {
        check_linear((qr_weight_desc){QR_WEIGHT_NF4, blocks[b], 80, 640}, ORDINARY, 70, false, false);
        check_linear((qr_weight_desc){QR_WEIGHT_NF4_DQ, blocks[b], 80, 1024}, ORDINARY, 70, false, true);
    }
}

/* Values that round, vanish, overflow and cancel, in the weights too where the format has them. */
static void test_values(void) {
    static const qr_weight_format formats[] = {QR_WEIGHT_F32, QR_WEIGHT_BF16, QR_WEIGHT_INT8, QR_WEIGHT_NF4_DQ};
    for (size_t f = 0; f < QR_COUNT_OF(formats); f++) {
        for (int kind = WIDE; kind < N_KINDS; kind++) {
            const bool nf4 = qr_weight_is_nf4(formats[f]);
            check_linear((qr_weight_desc){formats[f], nf4 ? QR_NF4_BLOCK : 0, 50, 256}, (values_kind)kind, 40, false,
                         false);
        }
    }
}

/* --- linear_backward on tiles ------------------------------------------------------------------------------------ */

/* dx [n_rows, in] += dy · W, 32 rows of W at a time, ascending. */
static void fill_dx(const float *w, const uint16_t *dy, int64_t n_rows, int64_t out, int64_t in, float *dx) {
    for (int64_t i = 0; i < n_rows * in; i++) {
        for (int64_t o = 0; o < out; o += QR_TILE_K) {
            const int64_t n = qr_min(out - o, QR_TILE_K);
            float column[QR_TILE_K], row[QR_TILE_K];
            for (int64_t k = 0; k < n; k++) {
                column[k] = qr_bf16_to_f32(qr_tile_weight(w[(o + k) * in + i % in]));
                row[k] = qr_bf16_to_f32(dy[i / in * out + o + k]);
            }
            dx[i] = qr_tile_sum(dx[i], column, row, n);
        }
    }
}

static void check_backward(qr_backend *backend, const op_weight *w, int64_t n_rows, bool accumulates) {
    const int64_t out = w->desc.rows, in = w->desc.cols, n = n_rows * in;
    float *dy = op_normals(n_rows * out, 51, 1.0), *dx = op_normals(n, 52, accumulates ? 1.0 : 0.0);
    float *expected = op_normals(n, 52, accumulates ? 1.0 : 0.0);
    uint16_t *dy_bf16 = op_to_dtype(dy, n_rows * out, QR_DTYPE_BF16);
    for (int64_t i = 0; i < n && !accumulates; i++) { expected[i] = 0.0F; }
    fill_dx(w->values, dy_bf16, n_rows, out, in, expected);
    const size_t weight_bytes = backend->weight_bytes(backend, &w->desc);
    void *data = NULL, *workspace = NULL;
    qr_weight weight;
    REQUIRE(backend->memory_create(backend, QR_MEMORY_DEVICE, weight_bytes, &data, NULL) == QRUN_OK);
    REQUIRE(op_weight_put(backend, w, data, &weight, NULL));
    const qr_linear_backward_args args = {.weight = &weight,
                                          .dy = dy_bf16,
                                          .dy_dtype = QR_DTYPE_BF16,
                                          .dx = dx,
                                          .n_rows = n_rows,
                                          .dy_stride = out,
                                          .dx_stride = in,
                                          .accumulate = accumulates};
    const size_t n_bytes = qr_linear_backward_workspace(backend, &args);
    REQUIRE(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &workspace, NULL) == QRUN_OK);
    CHECK(qr_linear_backward(backend, &args, (qr_workspace){workspace, n_bytes}, NULL) == QRUN_OK);
    int64_t n_different = 0;
    for (int64_t i = 0; i < n; i++) { n_different += !same_bits(dx[i], expected[i]); }
    CHECK_MSG(n_different == 0, "%s, dy [%lld, %lld] by [%lld, %lld]: %lld values differ", backend->isa,
              (long long)n_rows, (long long)out, (long long)out, (long long)in, (long long)n_different);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, workspace, n_bytes);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, data, weight_bytes);
    qr_free(dy);
    qr_free(dx);
    qr_free(expected);
    qr_free(dy_bf16);
}

/* The fastest gradients of a CPU with AMX: rows, columns and k at and beside whole tiles, blocks and tasks. */
static void test_backward(void) {
    static const char *const isas[] = {"amx-bf16-emulated", "amx-bf16"};
    static const int64_t shapes[][3] = {{70, 320, 30}, {1, 64, 1},    {33, 31, 17},  {31, 96, 16},
                                        {300, 48, 32}, {64, 272, 65}, {520, 80, 271}};
    for (size_t i = 0; i < 2 * QR_COUNT_OF(isas); i++) {
        qr_backend *backend;
        if (qr_backend_cpu_create(isas[i / 2], op_everything.threads[i % 2], &backend, NULL) != QRUN_OK) { continue; }
        for (size_t s = 0; s < QR_COUNT_OF(shapes); s++) {
            static const qr_weight_format formats[] = {QR_WEIGHT_NF4, QR_WEIGHT_BF16, QR_WEIGHT_NF4_DQ};
            const qr_weight_format format = formats[s % QR_COUNT_OF(formats)];
            const int block = qr_weight_is_nf4(format) ? QR_NF4_BLOCK : 0;
            op_weight *weight = op_weight_create((qr_weight_desc){format, block, shapes[s][0], shapes[s][1]}, s);
            check_backward(backend, weight, shapes[s][2], s % 2 == 1);
            op_weight_destroy(weight);
        }
        qr_backend_destroy(backend);
    }
}

/* --- weight_backward on tiles ------------------------------------------------------------------------------------ */

/* What is left of a value after `part` parts of it, rounded to BF16. */
static float part_of(float value, int part) {
    for (int i = 0; i < part; i++) { value -= qr_bf16_to_f32(qr_f32_to_bf16(value)); }
    return qr_bf16_to_f32(qr_f32_to_bf16(value));
}

/* dw [out, in] += dyᵀ · x, 32 tokens at a time: the three parts of dy one after the other. The last tokens of the three
 * lie together, each an even number. */
static void fill_dw(const float *dy, const uint16_t *x, int64_t n, int64_t out, int64_t in, float *dw) {
    enum { N_PARTS = 3 };
    for (int64_t i = 0; i < out * in; i++) {
        for (int64_t t = 0; t < n; t += QR_TILE_K) {
            const int64_t n_tokens = qr_min(n - t, QR_TILE_K), n_k = qr_round_up(n_tokens, 2);
            float column[N_PARTS * QR_TILE_K] = {0}, row[N_PARTS * QR_TILE_K] = {0};
            for (int64_t k = 0; k < N_PARTS * n_k; k++) {
                const int64_t token = t + k % n_k;
                if (token >= n) { continue; }
                column[k] = part_of(dy[token * out + i / in], (int)(k / n_k));
                row[k] = qr_bf16_to_f32(x[token * in + i % in]);
            }
            for (int64_t k = 0; k < N_PARTS * n_k; k += QR_TILE_K) {
                dw[i] = qr_tile_sum(dw[i], column + k, row + k, qr_min(N_PARTS * n_k - k, QR_TILE_K));
            }
        }
    }
}

static void check_weight_backward(qr_backend *backend, int64_t n, int64_t out, int64_t in) {
    float *dy = op_normals(n * out, 61, 1.0), *x = op_normals(n * in, 62, 1.0);
    float *dw = op_normals(out * in, 63, 1.0), *expected = op_normals(out * in, 63, 1.0);
    uint16_t *x_bf16 = op_to_dtype(x, n * in, QR_DTYPE_BF16);
    fill_dw(dy, x_bf16, n, out, in, expected);
    const qr_weight_backward_args args = {.x = x_bf16,
                                          .x_dtype = QR_DTYPE_BF16,
                                          .dy = dy,
                                          .dw = dw,
                                          .n_rows = n,
                                          .in = in,
                                          .out = out,
                                          .x_stride = in,
                                          .dy_stride = out};
    const size_t n_bytes = qr_weight_backward_workspace(backend, &args);
    void *workspace = NULL;
    REQUIRE(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &workspace, NULL) == QRUN_OK);
    CHECK(qr_weight_backward(backend, &args, (qr_workspace){workspace, n_bytes}, NULL) == QRUN_OK);
    int64_t n_different = 0;
    for (int64_t i = 0; i < out * in; i++) { n_different += !same_bits(dw[i], expected[i]); }
    CHECK_MSG(n_different == 0, "%s, dw [%lld, %lld] of %lld tokens: %lld values differ", backend->isa, (long long)out,
              (long long)in, (long long)n, (long long)n_different);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, workspace, n_bytes);
    void *const made[] = {dy, x, dw, expected, x_bf16};
    for (size_t i = 0; i < QR_COUNT_OF(made); i++) { qr_free(made[i]); }
}

/* Tokens, outputs and inputs at and beside tiles, blocks and tasks. */
static void test_weight_backward(void) {
    static const char *const isas[] = {"amx-bf16-emulated", "amx-bf16"};
    static const int64_t shapes[][3] = {{1, 1, 1},    {7, 17, 31},    {32, 16, 16},   {64, 33, 48},
                                        {65, 31, 65}, {513, 23, 300}, {192, 272, 33}, {131, 300, 24}};
    for (size_t i = 0; i < 2 * QR_COUNT_OF(isas); i++) {
        qr_backend *backend;
        if (qr_backend_cpu_create(isas[i / 2], op_everything.threads[i % 2], &backend, NULL) != QRUN_OK) { continue; }
        for (size_t s = 0; s < QR_COUNT_OF(shapes); s++) {
            check_weight_backward(backend, shapes[s][0], shapes[s][1], shapes[s][2]);
        }
        qr_backend_destroy(backend);
    }
}

/* --- Backends ---------------------------------------------------------------------------------------------------- */

/* Every instruction set of this machine with portable numerics, and the emulated one. */
static bool add_devices(qr_error *err) {
    static const char *const isas[] = {"c",        "avx2", "avx512",   "avx512-bf16", "amx-bf16-emulated",
                                       "amx-bf16", "neon", "neon-bf16"};
    for (size_t i = 0; i < QR_COUNT_OF(isas); i++) {
        qr_backend *backends[2] = {NULL, NULL};
        qr_error refused = {0};
        for (int t = 0; t < 2; t++) {
            const qrun_status status =
                qr_backend_cpu_create_portable(isas[i], op_everything.threads[t], &backends[t], &refused);
            if (status != QRUN_OK && i > 0) { break; }
            if (status != QRUN_OK) { return qr_fail(err, status, "%s", refused.message) == QRUN_OK; }
        }
        if (backends[0] == NULL) {
            printf("backend cpu/%s left out: %s\n", isas[i], refused.message);
        } else {
            op_add_device(isas[i], backends[0], backends[1]);
        }
    }
    return true;
}

/* Instruction sets whose fastest kernels are by integers. */
static bool add_devices_by_integers(qr_error *err) {
    (void)err;
    qr_backend *backends[2];
    for (int t = 0; t < 2; t++) {
        if (qr_backend_cpu_create("avx2", op_everything.threads[t], &backends[t], NULL) == QRUN_OK) { continue; }
        printf("backend cpu/avx2 left out\n");
        return true;
    }
    op_add_device("avx2 by integers", backends[0], backends[1]);
    return true;
}

/* The tests of linear, compared with a reference of this order. */
static bool begin_order(bool (*add)(qr_error *err),
                        qrun_status (*create_ref)(qr_threads *, qr_backend **, qr_error *)) {
    if (!op_world_create(add)) { return false; }
    qr_backend_destroy(op_everything.ref);
    return create_ref(NULL, &op_everything.ref, NULL) == QRUN_OK;
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", OP_SEED);
    CHECK_RUN(test_fma_rounds_once);
    CHECK_RUN(test_instruction);
    if (!begin_order(add_devices, qr_backend_ref_create_portable)) { return 1; }
    CHECK_RUN(test_formats_and_sizes);
    CHECK_RUN(test_block_sizes);
    CHECK_RUN(test_values);
    CHECK_RUN(test_backward);
    CHECK_RUN(test_weight_backward);
    op_world_destroy();
    by_integers = true;
    if (!begin_order(add_devices_by_integers, qr_backend_ref_create_int16)) { return 1; }
    if (op_everything.n_devices > 0) {
        CHECK_RUN(test_formats_and_sizes);
        CHECK_RUN(test_block_sizes);
        CHECK_RUN(test_values);
    }
    op_world_destroy();
    return check_end();
}
