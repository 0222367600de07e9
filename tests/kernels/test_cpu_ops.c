/* What the CPU backend's own ops promise beyond agreement with the reference, for every instruction set of this
 * machine. Vector functions are accurate over their whole range, and quantisers equal to the bit for awkward input. The
 * bits of attention do not depend on how a sequence is cut, on its neighbours, on garbage in pages or on threads, and
 * those of matrix tiles do not depend on whether they are emulated. */
#include <float.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"
#include "base/sizes.h"
#include "check.h"
#include "cpu_backends.h"
#include "kernels/backend.h"
#include "quant/int8.h"
#include "quant/nf4.h"

enum { SEED = 7 };

static qr_backend *reference;
static qr_backend *emulated; /* of emulated tiles, while tiles are tested; else NULL */

static float normal(uint64_t stream, uint64_t i) { return (float)qr_random_normal(SEED, stream, i); }

static void *memory(size_t n_bytes) {
    void *block = aligned_alloc(64, (n_bytes + 127) & ~(size_t)63);
    if (block == NULL) { abort(); }
    memset(block, 0xFF, n_bytes);
    return block;
}

/* --- Elementary functions --- */

/* Error in units in the last place of the exact value, or of 2^-126 below that. */
static double ulps(float actual, double exact) {
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)actual - exact) / ldexp(1.0, (exponent < -125 ? -125 : exponent) - FLT_MANT_DIG);
}

static double exact_tanh(double x) { return tanh(x); }
static double exact_silu(double x) { return x / (1.0 + exp(-x)); }
static double exact_gelu_tanh(double x) {
    return x / (1.0 + exp(-2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double exact_gelu_erf(double x) { return 0.5 * x * erfc(-x / sqrt(2.0)); }

static double exact_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

static double exact_relu2(double x) { return x < 0.0 ? 0.0 : x * x; }

typedef void (*apply_fn)(float *x, int64_t n, int which);

static void apply_softcap(float *x, int64_t n, int which) {
    (void)which;
    const qr_softcap_args args = {.x = x, .n = n, .cap = 1.0F};
    CHECK(qr_softcap(backend, &args, QR_NO_WORKSPACE, NULL) == QRUN_OK);
}

static void apply_activation(float *x, int64_t n, int which) {
    const qr_activation_args args = {
        .fn = (qr_act_fn)which, .x = x, .dst = x, .dst_dtype = QR_DTYPE_F32, .n_rows = 1, .dim = n, .x_stride = n};
    CHECK(qr_activation(backend, &args, QR_NO_WORKSPACE, NULL) == QRUN_OK);
}

/* The largest error over F32 numbers spread evenly in their bits, of either sign, with |x| ≤ limit. */
static void check_function(const char *name, apply_fn apply, int which, double (*exact)(double), float limit,
                           double most) {
    enum { N = 1 << 20, STEP = 1021 };
    float *x = memory(N * sizeof *x), *y = memory(N * sizeof *y);
    int64_t n = 0;
    for (uint32_t bits = 0; bits <= qr_f32_bits(limit) && n + 1 < N; bits += STEP * 4) {
        x[n++] = qr_f32_from_bits(bits);
        x[n++] = -qr_f32_from_bits(bits + STEP);
    }
    memcpy(y, x, (size_t)n * sizeof *y);
    apply(y, n, which);
    double worst = 0.0;
    float worst_at = 0.0F;
    for (int64_t i = 0; i < n; i++) {
        const double error = ulps(y[i], exact((double)x[i]));
        if (!(error <= worst)) { worst = error, worst_at = x[i]; }
    }
    CHECK_MSG(worst <= most, "%s on %s: %.2f ulp at %.9g", name, backend->isa, worst, (double)worst_at);
    free(x);
    free(y);
}

static void test_functions(void) {
    check_function("tanh", apply_softcap, 0, exact_tanh, 100.0F, 2.0);
    check_function("silu", apply_activation, QR_ACT_SILU, exact_silu, 87.0F, 3.0);
    /* The exponent carries the rounding of its argument: |2u| · 2^-24 relative, here up to 25 of them. */
    check_function("gelu_tanh", apply_activation, QR_ACT_GELU_TANH, exact_gelu_tanh, 4.0F, 30.0);
    check_function("gelu_erf", apply_activation, QR_ACT_GELU_ERF, exact_gelu_erf, 12.0F, 8.0);
    check_function("sigmoid", apply_activation, QR_ACT_SIGMOID, exact_sigmoid, 87.0F, 3.0);
    check_function("relu2", apply_activation, QR_ACT_RELU2, exact_relu2, 1e19F, 0.5);
}

static void test_functions_at_the_ends(void) {
    float x[6] = {NAN, INFINITY, -INFINITY, 0.0F, -0.0F, FLT_MAX};
    apply_softcap(x, 6, 0);
    CHECK(isnan(x[0]) && x[1] == 1.0F && x[2] == -1.0F && x[3] == 0.0F && signbit(x[4]) && x[5] == 1.0F);
    for (int fn = QR_ACT_SILU; fn <= QR_ACT_GELU_ERF; fn++) {
        float y[5] = {NAN, INFINITY, 1e4F, -1e4F, 0.0F};
        apply_activation(y, 5, fn);
        CHECK(isnan(y[0]) && y[1] == INFINITY && y[2] == 1e4F && y[3] == 0.0F && y[4] == 0.0F);
    }
    float y[6] = {NAN, INFINITY, -INFINITY, -3.0F, -0.0F, 3.0F};
    apply_activation(y, 6, QR_ACT_RELU2);
    CHECK(isnan(y[0]) && y[1] == INFINITY && y[2] == 0.0F && y[3] == 0.0F && y[4] == 0.0F && y[5] == 9.0F);
    float z[5] = {NAN, INFINITY, -INFINITY, 0.0F, -0.0F};
    apply_activation(z, 5, QR_ACT_SIGMOID);
    CHECK(isnan(z[0]) && z[1] == 1.0F && z[2] == 0.0F && z[3] == 0.5F && z[4] == 0.5F);
    apply_activation(x, 6, QR_ACT_NONE);
    CHECK(isnan(x[0]) && x[1] == 1.0F && x[2] == -1.0F && x[3] == 0.0F && signbit(x[4]) && x[5] == 1.0F);
}

/* --- quantize --- */

static const float awkward[] = {0.0F,     -0.0F,    NAN,      INFINITY, -INFINITY, 1e-45F, -3e-39F, 1.2e-38F, FLT_MAX,
                                -FLT_MAX, 65504.0F, 65520.0F, 1e-7F,    6e-8F,     3e-8F,  1.0F,    -1.0F};

/* kind 0: normal numbers; 1: with awkward ones among them; 2: exact midpoints and their neighbours, scaled by 1; 3:
 * zeros; 4: very small ones. */
static float source_value(int kind, uint64_t i) {
    const uint64_t pick = (uint64_t)(qr_random_uniform(SEED, 50, i) * 1000.0);
    switch (kind) {
        case 0: return 0.02F * normal(51, i);
        case 1: return pick < 60 ? awkward[pick % QR_COUNT_OF(awkward)] : normal(52, i);
        case 2: {
            const float midpoint = qr_nf4_midpoints[pick % 15];
            return i % 32 == 0 ? 1.0F : pick % 2 == 0 ? midpoint : nextafterf(midpoint, pick % 3 == 0 ? 2.0F : -2.0F);
        }
        case 3: return 0.0F;
        default: return 1e-39F * normal(53, i);
    }
}

static void put_source(void *src, qr_dtype dtype, int64_t i, float x) {
    switch (dtype) {
        case QR_DTYPE_F32: ((float *)src)[i] = x; break;
        case QR_DTYPE_F16: ((qr_f16 *)src)[i] = qr_f32_to_f16(x); break;
        default: ((qr_bf16 *)src)[i] = qr_f32_to_bf16(x); break;
    }
}

static float get_source(const void *src, qr_dtype dtype, int64_t i) {
    switch (dtype) {
        case QR_DTYPE_F32: return ((const float *)src)[i];
        case QR_DTYPE_F16: return qr_f16_to_f32(((const qr_f16 *)src)[i]);
        default: return qr_bf16_to_f32(((const qr_bf16 *)src)[i]);
    }
}

static void expect_quantized(const qr_quantize_args *args, const float *values, uint8_t *codes, float *absmax) {
    const int64_t n = args->n_rows * args->cols;
    if (args->format == QR_WEIGHT_NF4) {
        qr_nf4_quantize(values, n, args->block, codes, absmax);
        return;
    }
    for (int64_t row = 0; row < args->n_rows; row++) {
        absmax[row] = qr_int8_quantize_row(values + row * args->cols, args->cols, (int8_t *)codes + row * args->cols);
    }
}

static void check_quantize(qr_weight_format format, int block, qr_dtype dtype, int64_t n_rows, int64_t cols, int kind) {
    const int64_t n = n_rows * cols;
    const size_t code_bytes = format == QR_WEIGHT_INT8 ? (size_t)n : (size_t)(n + 1) / 2;
    const size_t n_scales = format == QR_WEIGHT_INT8 ? (size_t)n_rows : (size_t)qr_ceil_div(n, block);
    /* Exact sizes, so that a sanitizer sees a byte too far; the source at an odd address, as in a mapped file. */
    const size_t src_bytes = (size_t)n * qr_dtype_bytes(dtype);
    void *aligned = malloc(src_bytes);
    unsigned char *src = malloc(src_bytes + 1);
    float *values = memory((size_t)n * sizeof *values);
    uint8_t *codes = malloc(code_bytes), *expected = malloc(code_bytes);
    float *absmax = malloc(n_scales * sizeof *absmax), *expected_absmax = malloc(n_scales * sizeof *absmax);
    REQUIRE(aligned != NULL && src != NULL && codes != NULL && expected != NULL && absmax != NULL &&
            expected_absmax != NULL);
    for (int64_t i = 0; i < n; i++) {
        put_source(aligned, dtype, i, source_value(kind, (uint64_t)i));
        values[i] = get_source(aligned, dtype, i);
    }
    memcpy(src + 1, aligned, src_bytes);
    const qr_quantize_args args = {.format = format,
                                   .block = block,
                                   .src_dtype = dtype,
                                   .src = src + 1,
                                   .n_rows = n_rows,
                                   .cols = cols,
                                   .codes = codes,
                                   .absmax = absmax};
    expect_quantized(&args, values, expected, expected_absmax);
    qr_error err = {0};
    CHECK_MSG(qr_quantize(backend, &args, QR_NO_WORKSPACE, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(memcmp(codes, expected, code_bytes) == 0 &&
                  memcmp(absmax, expected_absmax, n_scales * sizeof *absmax) == 0,
              "%s: %s block %d from %s, %lld × %lld, kind %d", backend->isa, qr_weight_format_name(format), block,
              qr_dtype_name(dtype), (long long)n_rows, (long long)cols, kind);
    free(aligned), free(src), free(values), free(codes), free(expected), free(absmax), free(expected_absmax);
}

static void test_quantize_is_bit_equal(void) {
    static const qr_dtype dtypes[] = {QR_DTYPE_F32, QR_DTYPE_F16, QR_DTYPE_BF16};
    static const int64_t shapes[][2] = {{1, 1}, {1, 2}, {3, 33}, {5, 64}, {7, 172}, {64, 172}, {1, 9001}, {2, 4096}};
    static const int blocks[] = {32, 64, 128, 256, 4096};
    for (size_t d = 0; d < 3; d++) {
        for (size_t s = 0; s < QR_COUNT_OF(shapes); s++) {
            for (int kind = 0; kind < 5; kind++) {
                for (size_t b = 0; b < QR_COUNT_OF(blocks); b++) {
                    check_quantize(QR_WEIGHT_NF4, blocks[b], dtypes[d], shapes[s][0], shapes[s][1], kind);
                }
                check_quantize(QR_WEIGHT_INT8, 0, dtypes[d], shapes[s][0], shapes[s][1], kind);
            }
        }
    }
}

/* --- attention --- */

enum { MAX_SEQS = 4 };

/* A few sequences in pages: what is stored, and the query rows of all their positions. With dst in F16 a backend may
 * take q and the weights as pairs of BF16 (ops.h): more bits of a result show than with dst in BF16. */
typedef struct world {
    qr_kv_layout layout;
    int32_t n_heads, n_seqs, window;
    int32_t length[MAX_SEQS]; /* positions stored */
    float softcap;
    bool dst_f16, has_sinks;
    float sinks[8]; /* of has_sinks: n_heads ≤ 8 */
    int64_t row, table_stride;
    size_t page_stride;
    int32_t *table; /* [n_seqs, table_stride] */
    unsigned char *pages;
    float *q[MAX_SEQS]; /* [length, n_heads, head_dim] */
} world;

static void fill_pages(world *w, int garbage) {
    const int64_t kv_row = (int64_t)w->layout.n_kv_heads * w->layout.head_dim;
    for (int32_t s = 0; s < w->n_seqs; s++) {
        const int64_t n = w->length[s];
        float *k = memory((size_t)(n * kv_row) * sizeof *k), *v = memory((size_t)(n * kv_row) * sizeof *v);
        int32_t *position = memory((size_t)n * sizeof *position), *page = memory((size_t)n * sizeof *page);
        for (int64_t i = 0; i < n * kv_row; i++) {
            k[i] = normal(100 + (uint64_t)s, (uint64_t)i);
            v[i] = normal(200 + (uint64_t)s, (uint64_t)i);
        }
        for (int64_t i = 0; i < n; i++) {
            position[i] = (int32_t)i;
            page[i] = w->table[s * w->table_stride + i / QR_KV_PAGE_TOKENS];
        }
        const qr_kv_write_args args = {.layout = w->layout,
                                       .k = k,
                                       .v = v,
                                       .n_tokens = n,
                                       .k_stride = kv_row,
                                       .v_stride = kv_row,
                                       .token_page = page,
                                       .position = position,
                                       .pages = w->pages,
                                       .page_stride_bytes = w->page_stride};
        CHECK(qr_kv_write(garbage ? backend : reference, &args, QR_NO_WORKSPACE, NULL) == QRUN_OK);
        free(k), free(v), free(position), free(page);
    }
}

static void world_make(world *w, int garbage) {
    int32_t longest = 0, n_pages = 0;
    for (int32_t s = 0; s < w->n_seqs; s++) { longest = w->length[s] > longest ? w->length[s] : longest; }
    w->row = (int64_t)w->n_heads * w->layout.head_dim;
    w->table_stride = qr_ceil_div(longest, QR_KV_PAGE_TOKENS) + 1;
    w->page_stride = qr_kv_layer_bytes(&w->layout) + 64;
    w->table = memory((size_t)(w->n_seqs * w->table_stride) * sizeof *w->table); /* −1 everywhere */
    for (int32_t page = 0; page < w->table_stride - 1; page++) { /* pages of the sequences lie among each other */
        for (int32_t s = 0; s < w->n_seqs; s++) {
            if (page * QR_KV_PAGE_TOKENS < w->length[s]) { w->table[s * w->table_stride + page] = n_pages++; }
        }
    }
    w->pages = memory((size_t)n_pages * w->page_stride);
    memset(w->pages, garbage, (size_t)n_pages * w->page_stride); /* 0xFF is NaN */
    fill_pages(w, garbage);
    for (int i = 0; i < 8; i++) { w->sinks[i] = 2.0F * normal(400, (uint64_t)i); }
    for (int32_t s = 0; s < w->n_seqs; s++) {
        const int64_t n = w->length[s] * w->row;
        w->q[s] = memory((size_t)n * sizeof(float));
        for (int64_t i = 0; i < n; i++) { w->q[s][i] = normal(300 + (uint64_t)s, (uint64_t)i); }
    }
}

static void world_free(world *w) {
    for (int32_t s = 0; s < w->n_seqs; s++) { free(w->q[s]); }
    free(w->table), free(w->pages);
}

/* Runs positions [begin[s], end[s]) of every sequence in one call; dst[s] [length, row] receives their rows. */
static void attend(qr_backend *on, const world *w, const int32_t *begin, const int32_t *end, float *const *dst) {
    int32_t q_start[MAX_SEQS + 1] = {0};
    for (int32_t s = 0; s < w->n_seqs; s++) { q_start[s + 1] = q_start[s] + end[s] - begin[s]; }
    const int64_t n = q_start[w->n_seqs];
    float *q = memory((size_t)(n * w->row) * sizeof *q), *out = memory((size_t)(n * w->row) * sizeof *out);
    uint16_t *out_f16 = memory((size_t)(n * w->row) * sizeof *out_f16);
    for (int32_t s = 0; s < w->n_seqs; s++) {
        memcpy(q + q_start[s] * w->row, w->q[s] + begin[s] * w->row,
               (size_t)((end[s] - begin[s]) * w->row) * sizeof *q);
    }
    const qr_attention_args args = {.layout = w->layout,
                                    .q = q,
                                    .dst = w->dst_f16 ? (void *)out_f16 : out,
                                    .dst_dtype = w->dst_f16 ? QR_DTYPE_F16 : QR_DTYPE_F32,
                                    .n_tokens = n,
                                    .q_stride = w->row,
                                    .n_heads = w->n_heads,
                                    .n_seqs = w->n_seqs,
                                    .q_start = q_start,
                                    .first_position = begin,
                                    .block_table = w->table,
                                    .table_stride = w->table_stride,
                                    .pages = w->pages,
                                    .page_stride_bytes = w->page_stride,
                                    .scale = 1.0F / sqrtf((float)w->layout.head_dim),
                                    .softcap = w->softcap,
                                    .window = w->window,
                                    .sinks = w->has_sinks ? w->sinks : NULL};
    qr_error err = {0};
    REQUIRE(qr_supports_attention(on, &args, &err));
    const size_t n_bytes = qr_attention_workspace(on, &args);
    const qr_workspace workspace = {memory(n_bytes), n_bytes};
    CHECK(qr_attention(on, &args, workspace, &err) == QRUN_OK);
    for (int64_t i = 0; w->dst_f16 && i < n * w->row; i++) { out[i] = qr_f16_to_f32(out_f16[i]); }
    for (int32_t s = 0; s < w->n_seqs; s++) {
        memcpy(dst[s] + begin[s] * w->row, out + q_start[s] * w->row,
               (size_t)((end[s] - begin[s]) * w->row) * sizeof *q);
    }
    free(q), free(out), free(out_f16), free(workspace.memory);
}

typedef struct outputs {
    float *rows[MAX_SEQS];
} outputs;

static outputs outputs_make(const world *w) {
    outputs out = {{NULL}};
    for (int32_t s = 0; s < w->n_seqs; s++) { out.rows[s] = memory((size_t)(w->length[s] * w->row) * sizeof(float)); }
    return out;
}

static void outputs_free(outputs *out) {
    for (int s = 0; s < MAX_SEQS; s++) { free(out->rows[s]); }
}

static void check_same(const world *w, const outputs *a, const outputs *b, const char *what) {
    for (int32_t s = 0; s < w->n_seqs; s++) {
        CHECK_MSG(memcmp(a->rows[s], b->rows[s], (size_t)(w->length[s] * w->row) * sizeof(float)) == 0,
                  "%s: %s: sequence %d (format %d, %d/%d heads of %d, window %d)", backend->isa, what, s,
                  w->layout.format, w->n_heads, w->layout.n_kv_heads, w->layout.head_dim, w->window);
    }
}

/* Steps of `chunk` positions, all sequences side by side. */
static void attend_in_chunks(qr_backend *on, const world *w, int32_t chunk, const outputs *out) {
    int32_t begin[MAX_SEQS] = {0}, end[MAX_SEQS];
    for (;;) {
        bool any = false;
        for (int32_t s = 0; s < w->n_seqs; s++) {
            end[s] = (int32_t)qr_min(begin[s] + chunk, w->length[s]);
            any = any || end[s] > begin[s];
        }
        if (!any) { return; }
        attend(on, w, begin, end, out->rows);
        memcpy(begin, end, sizeof begin);
    }
}

/* Against the reference; F32 sums of up to `length` terms of weights that add up to 1. In F16: what rounding takes, and
 * more for pairs of BF16, whose exact bound is in op_attention.c. */
static void check_close(const world *w, const outputs *a, const outputs *exact) {
    for (int32_t s = 0; s < w->n_seqs; s++) {
        double worst = 0.0;
        for (int64_t i = 0; i < w->length[s] * w->row; i++) {
            const double value = (double)exact->rows[s][i], allowed = w->dst_f16 ? fabs(value) * 0x1p-10 + 1e-4 : 0.0;
            const double error = fabs((double)a->rows[s][i] - value) - allowed;
            if (!(error <= worst)) { worst = error; }
        }
        CHECK_MSG(worst <= 4e-6, "%s: error %g (format %d, heads of %d)", backend->isa, worst, w->layout.format,
                  w->layout.head_dim);
    }
}

static void check_attention(world w) {
    world_make(&w, 0xFF);
    outputs whole = outputs_make(&w), other = outputs_make(&w);
    const int32_t zeros[MAX_SEQS] = {0};
    attend(backend, &w, zeros, w.length, whole.rows);
    attend(reference, &w, zeros, w.length, other.rows);
    check_close(&w, &whole, &other);
    if (emulated != NULL) {
        attend(emulated, &w, zeros, w.length, other.rows);
        check_same(&w, &whole, &other, "emulated tiles");
    }
    attend(lonely, &w, zeros, w.length, other.rows);
    check_same(&w, &whole, &other, "one thread");
    attend_in_chunks(backend, &w, 37, &other);
    check_same(&w, &whole, &other, "in chunks of 37");
    attend_in_chunks(backend, &w, 1, &other); /* few rows: positions are split among the threads */
    check_same(&w, &whole, &other, "one at a time");
    attend_in_chunks(lonely, &w, 1, &other);
    check_same(&w, &whole, &other, "one at a time, one thread");
    outputs_free(&whole), outputs_free(&other);
    world_free(&w);
}

static void test_attention_bits_and_values(void) {
    check_attention((world){.layout = {QR_KV_BF16, 2, 64}, .n_heads = 8, .n_seqs = 3, .length = {150, 1, 67}});
    check_attention((world){.layout = {QR_KV_F32, 1, 8}, .n_heads = 1, .n_seqs = 1, .length = {1100}});
    check_attention(
        (world){.layout = {QR_KV_BF16, 1, 80}, .n_heads = 5, .n_seqs = 2, .length = {330, 97}, .window = 70});
    check_attention(
        (world){.layout = {QR_KV_INT8, 2, 72}, .n_heads = 6, .n_seqs = 2, .length = {90, 33}, .softcap = 20.0F});
    check_attention((world){.layout = {QR_KV_INT8, 1, 33}, .n_heads = 3, .n_seqs = 1, .length = {600}, .window = 16});
    check_attention((world){.layout = {QR_KV_BF16, 1, 15}, .n_heads = 71, .n_seqs = 1, .length = {70}, .window = 1});
    check_attention(
        (world){.layout = {QR_KV_F32, 3, 256}, .n_heads = 3, .n_seqs = 1, .length = {70}, .softcap = 50.0F});
    check_attention((world){.layout = {QR_KV_BF16, 1, 24}, .n_heads = 2, .n_seqs = 1, .length = {1030}, .window = 600});
}

/* Of matrix tiles, where there are any: head sizes that fill no whole tile, groups of every number of lanes, chunks
 * that begin inside a block, and splits. */
static void test_attention_in_16_bits(void) {
    static const int32_t dims[] = {8, 17, 40, 64, 80, 96, 128, 256, 512}, groups[] = {1, 3, 4, 7, 8};
    static const int32_t windows[] = {0, 0, 33, 0, 5, 70};
    const bool on_tiles = strncmp(isa_name, "amx", 3) == 0;
    if (strcmp(isa_name, "amx-bf16") == 0) {
        CHECK(qr_backend_cpu_create("amx-bf16-emulated", pool, &emulated, NULL) == QRUN_OK);
    }
    unsigned i = 0;
    for (size_t d = 0; d < QR_COUNT_OF(dims); d++) {
        for (size_t g = 0; g < QR_COUNT_OF(groups); g++, i++) {
            if ((CHECK_SANITIZED || !on_tiles) && i % 4 != 0) { continue; } /* for time */
            check_attention((world){.layout = {i % 3 == 1 ? QR_KV_INT8 : QR_KV_BF16, 1, dims[d]},
                                    .n_heads = groups[g],
                                    .n_seqs = 2,
                                    .length = {70 + (int32_t)(i % 7) * 9, 23},
                                    .window = windows[i % 6],
                                    .softcap = i % 5 == 2 ? 20.0F : 0.0F,
                                    .has_sinks = i % 4 == 1,
                                    .dst_f16 = true});
        }
    }
    check_attention(
        (world){.layout = {QR_KV_BF16, 2, 64}, .n_heads = 8, .n_seqs = 2, .length = {1030, 530}, .dst_f16 = true});
    check_attention((world){
        .layout = {QR_KV_INT8, 1, 48}, .n_heads = 2, .n_seqs = 1, .length = {620}, .window = 550, .dst_f16 = true});
    check_attention(
        (world){.layout = {QR_KV_BF16, 1, 16}, .n_heads = 71, .n_seqs = 1, .length = {70}, .dst_f16 = true});
    qr_backend_destroy(emulated);
    emulated = NULL;
}

/* Pages that fell out of the window may be gone. */
static void check_pages_outside_the_window(bool dst_f16) {
    world w = {
        .layout = {QR_KV_BF16, 1, 16}, .n_heads = 2, .n_seqs = 1, .length = {700}, .window = 40, .dst_f16 = dst_f16};
    world_make(&w, 0);
    outputs before = outputs_make(&w), after = outputs_make(&w);
    const int32_t begin[MAX_SEQS] = {690}, end[MAX_SEQS] = {700};
    attend(backend, &w, begin, end, before.rows);
    for (int32_t page = 0; (page + 1) * QR_KV_PAGE_TOKENS <= 690 - 39; page++) { w.table[page] = -1; }
    attend(backend, &w, begin, end, after.rows);
    check_same(&w, &before, &after, "pages given back");
    outputs_free(&before), outputs_free(&after);
    world_free(&w);
}

static void test_attention_reads_no_page_outside_the_window(void) {
    check_pages_outside_the_window(false);
    check_pages_outside_the_window(true);
}

static void run_tests(void) {
    CHECK_RUN(test_functions);
    CHECK_RUN(test_functions_at_the_ends);
    CHECK_RUN(test_quantize_is_bit_equal);
    CHECK_RUN(test_attention_bits_and_values);
    CHECK_RUN(test_attention_in_16_bits);
    CHECK_RUN(test_attention_reads_no_page_outside_the_window);
}

static void run_tests_on_tiles(void) {
    CHECK_RUN(test_attention_in_16_bits);
    CHECK_RUN(test_attention_reads_no_page_outside_the_window);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qr_error err = {0};
    if (qr_backend_ref_create(NULL, &reference, &err) != QRUN_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    const bool ok = run_for_every_isa(run_tests, run_tests_on_tiles);
    qr_backend_destroy(reference);
    return ok ? check_end() : 1;
}
