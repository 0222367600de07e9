/* lora and lora_backward by cuBLASLt (device/cublaslt.h), where the caller permits bf16x2 splits: an F32 value as the
 * sum of two of BF16, x = high + low. x and dy are BF16 already.
 *
 * A product of such operands is one product of the library, with the parts next to each other along the dimension that
 * has room for them, since an adapter's rank is short. Either [high | low] are further columns of the result, whose
 * halves are then added; or [high | low | high] against [high | high | low] are further terms of the sum, which leaves
 * low · low out. So a factor is stored three times, as high, high, low, of which the last two are its columns; rows are
 * stored as high, low, high, of which the first two are.
 *
 * `length` is the rank rounded up to 8, so that every part begins at 16 bytes; zeros follow the rank. The scale is in
 * B.
 *
 * Products with the ranks as columns or rows have few results, each a sum of thousands of terms, and would leave most
 * of a GPU idle. So the terms are cut into parts by the sizes and the GPU alone, a batch computes the partial results
 * of all parts, and the kernel that adds the halves adds these before, in order. */
#include "kernels/cuda/linear/ops_cublaslt.cuh"

#include "kernels/cuda/device/bf16x2_tiles.cuh"
#include "kernels/cuda/device/cublaslt.h"
#include "kernels/cuda/device/vec4.cuh"

enum {
    THREADS = 256,
    EIGHT = 8,  /* 16 bytes of 16-bit elements */
    COPIES = 3, /* of a factor or of a row: two high parts, one low */
    PARTS = 2,  /* high and low */

    TILE = 128,        /* of results, in both dimensions, that a multiprocessor computes */
    TERMS = 64,        /* of a sum, that it takes at a time */
    ROWS_THREADS = 64, /* of lora_rows_kernel, which has few */
};

/* --- Pairs --- */

/* An adapter as the host knows it, or as the op's tables have it in device memory. */
struct lora_adapter {
    const qr_lora_factor *factors; /* NULL: known */
    const int32_t *row_adapter;
    qr_lora_factor known;
};

static QR_DEVICE qr_lora_factor adapter_of(const lora_adapter &adapter) {
    if (adapter.factors == NULL) { return adapter.known; }
    const int32_t index = adapter.row_adapter[0];
    qr_lora_factor none = {};
    return index < 0 ? none : adapter.factors[index];
}

struct lora_factors {
    int64_t in, out, length;
    uint16_t *a; /* [3 · length, in]: high, high, low of A from column first_in on, of a_cols */
    int64_t a_cols, first_in;
    uint16_t *b; /* [out, 3 · length], rows b_stride apart: high, high, low of scale · B from row first_out on */
    int64_t b_stride, first_out;
};

/* Eight values as bf16x2 splits, the high parts twice. */
static QR_DEVICE void put_split(const float v[EIGHT], uint16_t *high, uint16_t *high_too, uint16_t *low) {
    uint4 highs, lows;
    split_vec8(v, highs, lows);
    *reinterpret_cast<uint4 *>(high) = *reinterpret_cast<uint4 *>(high_too) = highs;
    *reinterpret_cast<uint4 *>(low) = lows;
}

/* A thread for eight elements of A, along its rows, or of B, along the ranks. */
__global__ void lora_factors_kernel(lora_adapter adapter, lora_factors p) {
    const qr_lora_factor factor = adapter_of(adapter);
    const int64_t per_a = p.in / EIGHT, per_b = p.length / EIGHT, n_a = p.length * per_a, at = global_thread();
    float v[EIGHT] = {};
    if (at < n_a) {
        const int64_t r = at / per_a, c = at % per_a * EIGHT;
        const float *row = factor.a + r * p.a_cols + p.first_in;
        if (r < factor.rank) { load_vec8(v, row, c, p.in, vec4_aligned(row, 0)); }
        uint16_t *dst = p.a + r * p.in + c;
        put_split(v, dst, dst + p.length * p.in, dst + 2 * p.length * p.in);
    } else if (at - n_a < p.out * per_b) {
        const int64_t o = (at - n_a) / per_b, r = (at - n_a) % per_b * EIGHT;
        const float *row = factor.b + (p.first_out + o) * factor.rank;
        if (r < factor.rank) { load_vec8(v, row, r, factor.rank, vec4_aligned(row, 0)); }
#pragma unroll
        for (int i = 0; i < EIGHT; i++) { v[i] *= factor.scale; }
        uint16_t *dst = p.b + o * p.b_stride + r;
        put_split(v, dst, dst + p.length, dst + 2 * p.length);
    }
}

/* Partial results [rows, cols] of a product, n of them, one after the other. */
struct lora_partial {
    const float *data;
    int n;
    int64_t distance; /* in elements: rows · cols */
};

/* The sum over the partial results of their elements `at`, in order. */
static QR_DEVICE float add_partial(const lora_partial &of, int64_t at) {
    float sum = of.data[at];
#pragma unroll 4
    for (int i = 1; i < of.n; i++) { sum += of.data[i * of.distance + at]; }
    return sum;
}

/* rows [n_rows, 3 · length], `stride` apart = high, low, high of the sums of the halves of halves [n_rows, 2 · length].
 */
__global__ void lora_rows_kernel(lora_partial halves, int64_t n_rows, int64_t length, uint16_t *rows, int64_t stride) {
    const int64_t per_row = length / EIGHT, at = global_thread(), row = at / per_row, r = at % per_row * EIGHT;
    if (row >= n_rows) { return; }
    const float *src = halves.data + row * PARTS * length + r;
    float v[EIGHT], second[EIGHT];
    load_vec8(v, src, 0, EIGHT, true);
    load_vec8(second, src + length, 0, EIGHT, true);
#pragma unroll 4
    for (int part = 1; part < halves.n; part++) {
        float next[EIGHT], next_second[EIGHT];
        load_vec8(next, src + part * halves.distance, 0, EIGHT, true);
        load_vec8(next_second, src + part * halves.distance + length, 0, EIGHT, true);
#pragma unroll
        for (int i = 0; i < EIGHT; i++) { v[i] += next[i], second[i] += next_second[i]; }
    }
#pragma unroll
    for (int i = 0; i < EIGHT; i++) { v[i] += second[i]; }
    uint16_t *dst = rows + row * stride + r;
    put_split(v, dst, dst + 2 * length, dst + length);
}

/* da [rank, in] and db [out, rank] += the sums of their halves, [2 · length, in] and [out, 2 · length]. */
struct lora_gradients {
    lora_partial da_halves, db_halves;
    float *da, *db;
    int64_t in, out, rank, length;
    float scale; /* of db */
};

__global__ void lora_gradients_kernel(lora_gradients g) {
    const int64_t n_a = g.rank * g.in, at = global_thread();
    if (at < n_a) {
        g.da[at] += add_partial(g.da_halves, at) + add_partial(g.da_halves, at + g.length * g.in);
    } else if (at - n_a < g.out * g.rank) {
        const int64_t o = (at - n_a) / g.rank, src = o * PARTS * g.length + (at - n_a) % g.rank;
        float *dst = g.db + at - n_a;
        *dst = fmaf(g.scale, add_partial(g.db_halves, src) + add_partial(g.db_halves, src + g.length), *dst);
    }
}

/* --- What both ops share --- */

/* The workspace, taken piece by piece. Without a beginning, only counted. */
struct lora_memory {
    unsigned char *begin;
    size_t n_bytes;
};

template <typename T> static T *take(lora_memory &memory, int64_t n) {
    void *piece = memory.begin != NULL ? memory.begin + memory.n_bytes : NULL;
    memory.n_bytes += qr_round_up(n * static_cast<int64_t>(sizeof(T)), QR_CUBLASLT_ALIGNMENT);
    return static_cast<T *>(piece);
}

/* The library's part comes first. */
static lora_memory memory_of(void *library) {
    return {static_cast<unsigned char *>(library), QR_CUBLASLT_WORKSPACE_BYTES};
}

static size_t workspace_of(const lora_memory &memory) { return memory.n_bytes + QR_CUBLASLT_ALIGNMENT; }

static int64_t length_of(int64_t rank) { return qr_round_up(rank, EIGHT); }

static bool takes(const qr_cuda_backend &cuda, qr_dtype x_dtype, int64_t n_rows, int64_t in, int64_t out) {
    return x_dtype == QR_DTYPE_BF16 && n_rows >= qr_cublaslt_min_rows(cuda.device) && in % EIGHT == 0 &&
           out % EIGHT == 0 && qr_cublaslt_is_there(cuda.device);
}

static bool is_aligned(const void *rows, int64_t stride, size_t element_bytes) {
    return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && stride * static_cast<int64_t>(element_bytes) % 16 == 0;
}

static lora_factors take_factors(lora_memory &memory, int64_t in, int64_t out, int64_t rank) {
    const int64_t length = length_of(rank);
    uint16_t *a = take<uint16_t>(memory, COPIES * length * in), *b = take<uint16_t>(memory, COPIES * length * out);
    return {in, out, length, a, in, 0, b, COPIES * length, 0};
}

static qrun_status put_factors(qr_cuda_backend &cuda, const lora_adapter &adapter, const lora_factors &factors,
                               qr_error *err) {
    const int64_t n = factors.length / EIGHT * (factors.in + factors.out);
    return QR_LAUNCH(cuda.device, err, lora_factors_kernel, blocks_for(n, THREADS), THREADS, 0, adapter, factors);
}

static qrun_status put_rows(qr_cuda_backend &cuda, const lora_partial &halves, int64_t n_rows, int64_t length,
                            uint16_t *rows, int64_t stride, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, lora_rows_kernel, blocks_for(n_rows * length / EIGHT, ROWS_THREADS),
                     ROWS_THREADS, 0, halves, n_rows, length, rows, stride);
}

static qr_cublaslt_operand as_it_lies(const void *data, int64_t stride) { return {data, stride, false}; }
static qr_cublaslt_operand transposed(const void *data, int64_t stride) { return {data, stride, true}; }

struct lora_result {
    float *c;
    int64_t stride;
    bool accumulate;
};

/* c [m, n] = a [m, k] · b [k, n]. */
static qr_cublaslt_product product_of(int64_t m, int64_t n, int64_t k, const qr_cublaslt_operand &a,
                                      const qr_cublaslt_operand &b, const lora_result &result) {
    qr_cublaslt_product product = {};
    product.dtype = QR_DTYPE_BF16;
    product.m = m, product.n = n, product.k = k, product.a = a, product.b = b;
    product.c = result.c, product.c_stride = result.stride, product.accumulate = result.accumulate;
    return product;
}

/* --- Few long sums --- */

/* Parts of a sum, and the terms of each; what is left is added to the first part. */
struct lora_parts {
    int64_t n, terms;
};

/* As many as fill the GPU once: as equal as the terms allow, else with less than 8 terms a part left. */
static lora_parts parts_by_sizes(const qr_cuda_backend &cuda, int64_t m, int64_t n, int64_t k) {
    const int64_t n_tiles = qr_ceil_div(m, TILE) * qr_ceil_div(n, TILE);
    const int64_t most = qr_min(qr_device_multiprocessors(cuda.device) / n_tiles, k / TERMS);
    if (most <= 1) { return {1, k}; }
    for (int64_t n_parts = most; n_parts > most / 2; n_parts--) {
        if (k % (n_parts * TERMS) == 0) { return {n_parts, k / n_parts}; }
    }
    return {most, k / most / EIGHT * EIGHT};
}

/* Elements that the partial results of m · n sums need at most: tiles · parts are no more than the multiprocessors. */
static int64_t room_of_parts(const qr_cuda_backend &cuda, int64_t m, int64_t n) {
    return qr_max(m * n, qr_min(m, TILE) * qr_min(n, TILE) * qr_device_multiprocessors(cuda.device));
}

static qr_cublaslt_product in_parts(const qr_cublaslt_product &whole, const lora_parts &parts) {
    qr_cublaslt_product batch = whole;
    batch.k = parts.n * parts.terms, batch.n_parts = parts.n;
    return batch;
}

/* One where the library does not take a batch. */
static lora_parts parts_of(qr_cuda_backend &cuda, const qr_cublaslt_product &whole) {
    const lora_parts parts = parts_by_sizes(cuda, whole.m, whole.n, whole.k);
    const qr_cublaslt_product batch = in_parts(whole, parts);
    return parts.n == 1 || qr_cublaslt_takes(cuda.device, &batch) ? parts : lora_parts{1, whole.k};
}

static lora_partial partial_of(qr_cuda_backend &cuda, const qr_cublaslt_product &whole) {
    return {whole.c, static_cast<int>(parts_of(cuda, whole).n), whole.m * whole.c_stride};
}

/* An operand without its first n terms. */
static qr_cublaslt_operand after_terms(const qr_cublaslt_operand &of, int64_t n, bool terms_are_rows) {
    return {static_cast<const uint16_t *>(of.data) + (terms_are_rows ? n * of.stride : n), of.stride, of.transposed};
}

/* The partial results of a product that does not accumulate. */
static qrun_status multiply_parts(qr_cuda_backend &cuda, const qr_cublaslt_product &whole, void *library,
                                  qr_error *err) {
    const qr_cublaslt_product batch = in_parts(whole, parts_of(cuda, whole));
    QR_RETURN_IF_ERROR(qr_cublaslt_multiply(cuda.device, &batch, library, err));
    if (batch.k == whole.k) { return QRUN_OK; }
    qr_cublaslt_product rest = whole;
    rest.k = whole.k - batch.k, rest.accumulate = true;
    rest.a = after_terms(whole.a, batch.k, whole.a.transposed);
    rest.b = after_terms(whole.b, batch.k, !whole.b.transposed);
    return qr_cublaslt_multiply(cuda.device, &rest, library, err);
}

/* --- lora --- */

struct lora_scratch {
    lora_factors factors;
    float *halves;  /* of t, partial results of [n_rows, 2 · length] */
    uint16_t *rows; /* of t, [n_rows, 3 · length] */
};

static lora_scratch lay_out(const qr_cuda_backend &cuda, const qr_lora_args &args, lora_memory &memory) {
    const int64_t length = length_of(args.max_rank);
    lora_scratch scratch;
    scratch.factors = take_factors(memory, args.in, args.out, args.max_rank);
    scratch.halves = take<float>(memory, room_of_parts(cuda, args.n_rows, PARTS * length));
    scratch.rows = take<uint16_t>(memory, args.n_rows * COPIES * length);
    return scratch;
}

/* t = A x as rows, `stride` apart. factors.a is there. */
static qrun_status put_t(qr_cuda_backend &cuda, const qr_lora_args &args, const lora_factors &factors, float *halves,
                         uint16_t *rows, int64_t stride, void *library, qr_error *err) {
    const int64_t n = args.n_rows, twice = PARTS * factors.length;
    const uint16_t *a_parts = factors.a + factors.length * args.in;
    const qr_cublaslt_product t = product_of(n, twice, args.in, as_it_lies(args.x, args.x_stride),
                                             transposed(a_parts, args.in), {halves, twice, false});
    QR_RETURN_IF_ERROR(multiply_parts(cuda, t, library, err));
    return put_rows(cuda, partial_of(cuda, t), n, factors.length, rows, stride, err);
}

size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_lora_args &args) {
    if (!args.in_pairs || !takes(cuda, args.x_dtype, args.n_rows, args.in, args.out)) { return 0; }
    lora_memory memory = memory_of(NULL);
    (void)lay_out(cuda, args, memory);
    return workspace_of(memory);
}

bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_lora_args &args) {
    return qr_cuda_cublaslt_workspace(cuda, args) > 0 && is_aligned(args.x, args.x_stride, sizeof(uint16_t)) &&
           is_aligned(args.y, args.y_stride, sizeof(float));
}

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_lora_args &args, void *workspace, qr_error *err) {
    void *library = qr_cublaslt_aligned(workspace);
    lora_memory memory = memory_of(library);
    const lora_scratch scratch = lay_out(cuda, args, memory);
    const lora_factors &factors = scratch.factors;
    const int64_t thrice = COPIES * factors.length;
    const lora_adapter adapter = {args.factors, args.row_adapter, {}};
    QR_RETURN_IF_ERROR(put_factors(cuda, adapter, factors, err));
    QR_RETURN_IF_ERROR(put_t(cuda, args, factors, scratch.halves, scratch.rows, thrice, library, err));
    const qr_cublaslt_product y = product_of(args.n_rows, args.out, thrice, as_it_lies(scratch.rows, thrice),
                                             transposed(factors.b, thrice), {args.y, args.y_stride, true});
    return qr_cublaslt_multiply(cuda.device, &y, library, err);
}

/* --- lora as further terms of a matrix's sums --- */

static lora_scratch lay_out_terms(const qr_cuda_backend &cuda, const qr_lora_args &args, lora_memory &memory) {
    const int64_t length = length_of(args.max_rank);
    lora_scratch scratch = {};
    scratch.factors = {args.in, 0, length, take<uint16_t>(memory, COPIES * length * args.in), args.in, 0, NULL, 0, 0};
    scratch.halves = take<float>(memory, room_of_parts(cuda, args.n_rows, PARTS * length));
    return scratch;
}

size_t qr_cuda_lora_terms_bytes(const qr_cuda_backend &cuda, const qr_lora_args &args) {
    lora_memory memory = {NULL, 0};
    (void)lay_out_terms(cuda, args, memory);
    return memory.n_bytes;
}

qrun_status qr_cuda_lora_put_t(qr_cuda_backend &cuda, const qr_lora_args &args, uint16_t *rows, int64_t stride,
                               unsigned char *scratch_memory, void *library, qr_error *err) {
    lora_memory memory = {scratch_memory, 0};
    const lora_scratch scratch = lay_out_terms(cuda, args, memory);
    QR_RETURN_IF_ERROR(put_factors(cuda, {args.factors, args.row_adapter, {}}, scratch.factors, err));
    return put_t(cuda, args, scratch.factors, scratch.halves, rows, stride, library, err);
}

qrun_status qr_cuda_lora_put_b(qr_cuda_backend &cuda, const qr_lora_args &args, int64_t first_out, int64_t n_out,
                               uint16_t *rows, int64_t stride, qr_error *err) {
    const lora_factors factors = {0, n_out, length_of(args.max_rank), NULL, 0, 0, rows, stride, first_out};
    return put_factors(cuda, {args.factors, args.row_adapter, {}}, factors, err);
}

/* --- lora_backward --- */

struct lora_backward_scratch {
    lora_factors factors;
    /* Partial results of [n_rows, 2 · length] each, and later, in the same memory, of [2 · length, in] and
     * [out, 2 · length]. */
    float *h_halves, *dh_halves, *da_halves, *db_halves;
    uint16_t *h, *dh; /* [n_rows, 3 · length] each; dh's rows dh_stride apart */
    int64_t dh_stride;
};

/* dh: where its rows are wanted; NULL: in the workspace. */
static lora_backward_scratch lay_out(const qr_cuda_backend &cuda, const qr_lora_backward_args &args, uint16_t *dh,
                                     int64_t dh_stride, lora_memory &memory) {
    const int64_t length = length_of(args.rank), twice = PARTS * length, rows = args.n_rows * COPIES * length;
    lora_backward_scratch scratch;
    scratch.factors = take_factors(memory, args.in, args.out, args.rank);
    scratch.h = take<uint16_t>(memory, rows);
    uint16_t *own = take<uint16_t>(memory, rows);
    scratch.dh = dh != NULL ? dh : own;
    scratch.dh_stride = dh != NULL ? dh_stride : COPIES * length;
    lora_memory gradients = memory; /* in the same memory: the halves of h and dh are no longer needed by then */
    scratch.h_halves = take<float>(memory, room_of_parts(cuda, args.n_rows, twice));
    scratch.dh_halves = take<float>(memory, room_of_parts(cuda, args.n_rows, twice));
    scratch.da_halves = take<float>(gradients, room_of_parts(cuda, args.in, twice));
    scratch.db_halves = take<float>(gradients, room_of_parts(cuda, args.out, twice));
    memory.n_bytes = gradients.n_bytes > memory.n_bytes ? gradients.n_bytes : memory.n_bytes;
    return scratch;
}

size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_lora_backward_args &args) {
    if (!args.in_pairs || !takes(cuda, args.x_dtype, args.n_rows, args.in, args.out)) { return 0; }
    lora_memory memory = memory_of(NULL);
    (void)lay_out(cuda, args, NULL, 0, memory);
    return workspace_of(memory);
}

bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_lora_backward_args &args) {
    return qr_cuda_cublaslt_workspace(cuda, args) > 0 && args.dy_rounded != NULL &&
           is_aligned(args.x, args.x_stride, sizeof(uint16_t)) &&
           is_aligned(args.dy_rounded, args.dy_rounded_stride, sizeof(uint16_t)) &&
           (args.dx == NULL || is_aligned(args.dx, args.dx_stride, sizeof(float)));
}

static lora_adapter adapter_of(const qr_lora_backward_args &args) {
    return {.factors = NULL,
            .row_adapter = NULL,
            .known = {.a = args.a, .b = args.b, .rank = args.rank, .scale = args.scale, .ratio = NULL}};
}

/* h = A x and dh = scale · dy B, as rows. */
static qrun_status run_down(qr_cuda_backend &cuda, const qr_lora_backward_args &args,
                            const lora_backward_scratch &scratch, void *library, qr_error *err) {
    const lora_factors &factors = scratch.factors;
    const int64_t n = args.n_rows, twice = PARTS * factors.length;
    const uint16_t *a_parts = factors.a + factors.length * args.in, *b_parts = factors.b + factors.length;
    QR_RETURN_IF_ERROR(put_factors(cuda, adapter_of(args), factors, err));
    const qr_cublaslt_product h = product_of(n, twice, args.in, as_it_lies(args.x, args.x_stride),
                                             transposed(a_parts, args.in), {scratch.h_halves, twice, false});
    const qr_cublaslt_product dh =
        product_of(n, twice, args.out, as_it_lies(args.dy_rounded, args.dy_rounded_stride),
                   as_it_lies(b_parts, COPIES * factors.length), {scratch.dh_halves, twice, false});
    QR_RETURN_IF_ERROR(multiply_parts(cuda, h, library, err));
    QR_RETURN_IF_ERROR(multiply_parts(cuda, dh, library, err));
    QR_RETURN_IF_ERROR(put_rows(cuda, partial_of(cuda, h), n, factors.length, scratch.h, COPIES * factors.length, err));
    return put_rows(cuda, partial_of(cuda, dh), n, factors.length, scratch.dh, scratch.dh_stride, err);
}

static qr_cublaslt_product da_product(const qr_lora_backward_args &args, const lora_backward_scratch &scratch) {
    return product_of(PARTS * scratch.factors.length, args.in, args.n_rows, transposed(scratch.dh, scratch.dh_stride),
                      as_it_lies(args.x, args.x_stride), {scratch.da_halves, args.in, false});
}

static qr_cublaslt_product db_product(const qr_lora_backward_args &args, const lora_backward_scratch &scratch) {
    const int64_t length = scratch.factors.length;
    return product_of(args.out, PARTS * length, args.n_rows, transposed(args.dy_rounded, args.dy_rounded_stride),
                      as_it_lies(scratch.h, COPIES * length), {scratch.db_halves, PARTS * length, false});
}

/* dhᵀ x and dyᵀ h, in halves. */
static qrun_status multiply_gradients(qr_cuda_backend &cuda, const qr_lora_backward_args &args,
                                      const lora_backward_scratch &scratch, void *library, qr_error *err) {
    QR_RETURN_IF_ERROR(multiply_parts(cuda, da_product(args, scratch), library, err));
    return multiply_parts(cuda, db_product(args, scratch), library, err);
}

/* da += dhᵀ x and db += scale · dyᵀ h. */
static qrun_status add_gradients(qr_cuda_backend &cuda, const qr_lora_backward_args &args,
                                 const lora_backward_scratch &scratch, qr_error *err) {
    const int64_t length = scratch.factors.length, n = args.rank * (args.in + args.out);
    lora_gradients gradients = {};
    gradients.da_halves = partial_of(cuda, da_product(args, scratch));
    gradients.db_halves = partial_of(cuda, db_product(args, scratch));
    gradients.da = args.da, gradients.db = args.db;
    gradients.in = args.in, gradients.out = args.out, gradients.rank = args.rank, gradients.length = length;
    gradients.scale = args.scale;
    return QR_LAUNCH(cuda.device, err, lora_gradients_kernel, blocks_for(n, THREADS), THREADS, 0, gradients);
}

/* All but dx. What can be refused comes before the gradients are touched. */
static qrun_status run_factors(qr_cuda_backend &cuda, const qr_lora_backward_args &args,
                               const lora_backward_scratch &scratch, void *library, qr_error *err) {
    QR_RETURN_IF_ERROR(run_down(cuda, args, scratch, library, err));
    return multiply_gradients(cuda, args, scratch, library, err);
}

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_lora_backward_args &args, void *workspace, qr_error *err) {
    void *library = qr_cublaslt_aligned(workspace);
    lora_memory memory = memory_of(library);
    const lora_backward_scratch scratch = lay_out(cuda, args, NULL, 0, memory);
    const int64_t thrice = COPIES * scratch.factors.length;
    QR_RETURN_IF_ERROR(run_factors(cuda, args, scratch, library, err));
    if (args.dx != NULL) {
        const qr_cublaslt_product dx =
            product_of(args.n_rows, args.in, thrice, as_it_lies(scratch.dh, scratch.dh_stride),
                       as_it_lies(scratch.factors.a, args.in), {args.dx, args.dx_stride, true});
        QR_RETURN_IF_ERROR(qr_cublaslt_multiply(cuda.device, &dx, library, err));
    }
    return add_gradients(cuda, args, scratch, err);
}

/* --- lora_backward as further terms of a matrix's dx --- */

size_t qr_cuda_lora_backward_terms_bytes(const qr_cuda_backend &cuda, const qr_lora_backward_args &args) {
    lora_memory memory = {NULL, 0};
    (void)lay_out(cuda, args, NULL, 0, memory);
    return memory.n_bytes;
}

qrun_status qr_cuda_lora_put_dh(qr_cuda_backend &cuda, const qr_lora_backward_args &args, uint16_t *rows,
                                int64_t stride, unsigned char *scratch_memory, void *library, qr_error *err) {
    lora_memory memory = {scratch_memory, 0};
    return run_factors(cuda, args, lay_out(cuda, args, rows, stride, memory), library, err);
}

qrun_status qr_cuda_lora_put_a(qr_cuda_backend &cuda, const qr_lora_backward_args &args, int64_t first_in, int64_t n_in,
                               uint16_t *rows, qr_error *err) {
    const lora_factors factors = {n_in, 0, length_of(args.rank), rows, args.in, first_in, NULL, 0, 0};
    return put_factors(cuda, adapter_of(args), factors, err);
}

qrun_status qr_cuda_lora_add_gradients(qr_cuda_backend &cuda, const qr_lora_backward_args &args,
                                       unsigned char *scratch_memory, qr_error *err) {
    lora_memory memory = {scratch_memory, 0};
    return add_gradients(cuda, args, lay_out(cuda, args, NULL, 0, memory), err);
}
