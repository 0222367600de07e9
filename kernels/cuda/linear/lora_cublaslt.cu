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
 * B. */
#include "kernels/cuda/linear/ops_cublaslt.cuh"

#include "kernels/cuda/device/bf16x2_tiles.cuh"
#include "kernels/cuda/device/cublaslt.h"
#include "kernels/cuda/device/vec4.cuh"

enum {
    THREADS = 256,
    EIGHT = 8,  /* 16 bytes of 16-bit elements */
    COPIES = 3, /* of a factor or of a row: two high parts, one low */
    PARTS = 2,  /* high and low */
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
    uint16_t *a; /* [3 · length, in]: high, high, low of A */
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
        if (r < factor.rank) { load_vec8(v, factor.a + r * p.in, c, p.in, vec4_aligned(factor.a, 0)); }
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

/* rows [n_rows, 3 · length], `stride` apart = high, low, high of the sums of the halves of halves [n_rows, 2 · length].
 */
__global__ void lora_rows_kernel(const float *halves, int64_t n_rows, int64_t length, uint16_t *rows, int64_t stride) {
    const int64_t per_row = length / EIGHT, at = global_thread(), row = at / per_row, r = at % per_row * EIGHT;
    if (row >= n_rows) { return; }
    const float *src = halves + row * PARTS * length + r;
    float v[EIGHT], second[EIGHT];
    load_vec8(v, src, 0, EIGHT, true);
    load_vec8(second, src + length, 0, EIGHT, true);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) { v[i] += second[i]; }
    uint16_t *dst = rows + row * stride + r;
    put_split(v, dst, dst + 2 * length, dst + length);
}

/* da [rank, in] and db [out, rank] += the sums of their halves, [2 · length, in] and [out, 2 · length]. */
struct lora_gradients {
    const float *da_halves, *db_halves;
    float *da, *db;
    int64_t in, out, rank, length;
    float scale; /* of db */
};

__global__ void lora_gradients_kernel(lora_gradients g) {
    const int64_t n_a = g.rank * g.in, at = global_thread();
    if (at < n_a) {
        g.da[at] += g.da_halves[at] + g.da_halves[at + g.length * g.in];
    } else if (at - n_a < g.out * g.rank) {
        const int64_t o = (at - n_a) / g.rank, r = (at - n_a) % g.rank;
        const float *src = g.db_halves + o * PARTS * g.length + r;
        float *dst = g.db + at - n_a;
        *dst = fmaf(g.scale, src[0] + src[g.length], *dst);
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
    return {in, out, length, a, b, COPIES * length, 0};
}

static qrun_status put_factors(qr_cuda_backend &cuda, const lora_adapter &adapter, const lora_factors &factors,
                               qr_error *err) {
    const int64_t n = factors.length / EIGHT * (factors.in + factors.out);
    return QR_LAUNCH(cuda.device, err, lora_factors_kernel, blocks_for(n, THREADS), THREADS, 0, adapter, factors);
}

static qrun_status put_rows(qr_cuda_backend &cuda, const float *halves, int64_t n_rows, int64_t length, uint16_t *rows,
                            int64_t stride, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, lora_rows_kernel, blocks_for(n_rows * length / EIGHT, THREADS), THREADS, 0,
                     halves, n_rows, length, rows, stride);
}

static qr_cublaslt_operand as_it_lies(const void *data, int64_t stride) { return {data, stride, false}; }
static qr_cublaslt_operand transposed(const void *data, int64_t stride) { return {data, stride, true}; }

struct lora_result {
    float *c;
    int64_t stride;
    bool accumulate;
};

/* c [m, n] = a [m, k] · b [k, n]. */
static qrun_status multiply(qr_cuda_backend &cuda, int64_t m, int64_t n, int64_t k, const qr_cublaslt_operand &a,
                            const qr_cublaslt_operand &b, const lora_result &result, void *library, qr_error *err) {
    qr_cublaslt_product product = {};
    product.dtype = QR_DTYPE_BF16;
    product.m = m, product.n = n, product.k = k, product.a = a, product.b = b;
    product.c = result.c, product.c_stride = result.stride, product.accumulate = result.accumulate;
    return qr_cublaslt_multiply(cuda.device, &product, library, err);
}

/* --- lora --- */

struct lora_scratch {
    lora_factors factors;
    float *halves;  /* of t, [n_rows, 2 · length] */
    uint16_t *rows; /* of t, [n_rows, 3 · length] */
};

static lora_scratch lay_out(const qr_lora_args &args, lora_memory &memory) {
    const int64_t length = length_of(args.max_rank);
    lora_scratch scratch;
    scratch.factors = take_factors(memory, args.in, args.out, args.max_rank);
    scratch.halves = take<float>(memory, args.n_rows * PARTS * length);
    scratch.rows = take<uint16_t>(memory, args.n_rows * COPIES * length);
    return scratch;
}

/* t = A x as rows, `stride` apart. factors.a is there. */
static qrun_status put_t(qr_cuda_backend &cuda, const qr_lora_args &args, const lora_factors &factors, float *halves,
                         uint16_t *rows, int64_t stride, void *library, qr_error *err) {
    const int64_t n = args.n_rows, twice = PARTS * factors.length;
    const uint16_t *a_parts = factors.a + factors.length * args.in;
    QR_RETURN_IF_ERROR(multiply(cuda, n, twice, args.in, as_it_lies(args.x, args.x_stride),
                                transposed(a_parts, args.in), {halves, twice, false}, library, err));
    return put_rows(cuda, halves, n, factors.length, rows, stride, err);
}

size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_lora_args &args) {
    if (!args.in_pairs || !takes(cuda, args.x_dtype, args.n_rows, args.in, args.out)) { return 0; }
    lora_memory memory = memory_of(NULL);
    (void)lay_out(args, memory);
    return workspace_of(memory);
}

bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_lora_args &args) {
    return qr_cuda_cublaslt_workspace(cuda, args) > 0 && is_aligned(args.x, args.x_stride, sizeof(uint16_t)) &&
           is_aligned(args.y, args.y_stride, sizeof(float));
}

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_lora_args &args, void *workspace, qr_error *err) {
    void *library = qr_cublaslt_aligned(workspace);
    lora_memory memory = memory_of(library);
    const lora_scratch scratch = lay_out(args, memory);
    const lora_factors &factors = scratch.factors;
    const int64_t thrice = COPIES * factors.length;
    const lora_adapter adapter = {args.factors, args.row_adapter, {}};
    QR_RETURN_IF_ERROR(put_factors(cuda, adapter, factors, err));
    QR_RETURN_IF_ERROR(put_t(cuda, args, factors, scratch.halves, scratch.rows, thrice, library, err));
    return multiply(cuda, args.n_rows, args.out, thrice, as_it_lies(scratch.rows, thrice),
                    transposed(factors.b, thrice), {args.y, args.y_stride, true}, library, err);
}

/* --- lora as further terms of a matrix's sums --- */

static lora_scratch lay_out_terms(const qr_lora_args &args, lora_memory &memory) {
    const int64_t length = length_of(args.max_rank);
    lora_scratch scratch = {};
    scratch.factors = {args.in, 0, length, take<uint16_t>(memory, COPIES * length * args.in), NULL, 0, 0};
    scratch.halves = take<float>(memory, args.n_rows * PARTS * length);
    return scratch;
}

size_t qr_cuda_lora_terms_bytes(const qr_lora_args &args) {
    lora_memory memory = {NULL, 0};
    (void)lay_out_terms(args, memory);
    return memory.n_bytes;
}

qrun_status qr_cuda_lora_put_t(qr_cuda_backend &cuda, const qr_lora_args &args, uint16_t *rows, int64_t stride,
                               unsigned char *scratch_memory, void *library, qr_error *err) {
    lora_memory memory = {scratch_memory, 0};
    const lora_scratch scratch = lay_out_terms(args, memory);
    QR_RETURN_IF_ERROR(put_factors(cuda, {args.factors, args.row_adapter, {}}, scratch.factors, err));
    return put_t(cuda, args, scratch.factors, scratch.halves, rows, stride, library, err);
}

qrun_status qr_cuda_lora_put_b(qr_cuda_backend &cuda, const qr_lora_args &args, int64_t first_out, int64_t n_out,
                               uint16_t *rows, int64_t stride, qr_error *err) {
    const lora_factors factors = {0, n_out, length_of(args.max_rank), NULL, rows, stride, first_out};
    return put_factors(cuda, {args.factors, args.row_adapter, {}}, factors, err);
}

/* --- lora_backward --- */

struct lora_backward_scratch {
    lora_factors factors;
    float *halves;                /* of h, then of dh, [n_rows, 2 · length] each; later reused for those below */
    float *da_halves, *db_halves; /* [2 · length, in], [out, 2 · length] */
    uint16_t *h, *dh;             /* [n_rows, 3 · length] each; dh's rows dh_stride apart */
    int64_t dh_stride;
};

/* dh: where its rows are wanted; NULL: in the workspace. */
static lora_backward_scratch lay_out(const qr_lora_backward_args &args, uint16_t *dh, int64_t dh_stride,
                                     lora_memory &memory) {
    const int64_t length = length_of(args.rank), rows = args.n_rows * COPIES * length;
    lora_backward_scratch scratch;
    scratch.factors = take_factors(memory, args.in, args.out, args.rank);
    scratch.h = take<uint16_t>(memory, rows);
    uint16_t *own = take<uint16_t>(memory, rows);
    scratch.dh = dh != NULL ? dh : own;
    scratch.dh_stride = dh != NULL ? dh_stride : COPIES * length;
    lora_memory gradients = memory; /* in the same memory: the halves of h and dh are no longer needed by then */
    scratch.halves = take<float>(memory, 2 * args.n_rows * PARTS * length);
    scratch.da_halves = take<float>(gradients, PARTS * length * args.in);
    scratch.db_halves = take<float>(gradients, PARTS * length * args.out);
    memory.n_bytes = gradients.n_bytes > memory.n_bytes ? gradients.n_bytes : memory.n_bytes;
    return scratch;
}

size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_lora_backward_args &args) {
    if (!args.in_pairs || !takes(cuda, args.x_dtype, args.n_rows, args.in, args.out)) { return 0; }
    lora_memory memory = memory_of(NULL);
    (void)lay_out(args, NULL, 0, memory);
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
    QR_RETURN_IF_ERROR(multiply(cuda, n, twice, args.in, as_it_lies(args.x, args.x_stride),
                                transposed(a_parts, args.in), {scratch.halves, twice, false}, library, err));
    QR_RETURN_IF_ERROR(multiply(cuda, n, twice, args.out, as_it_lies(args.dy_rounded, args.dy_rounded_stride),
                                as_it_lies(b_parts, COPIES * factors.length),
                                {scratch.halves + n * twice, twice, false}, library, err));
    QR_RETURN_IF_ERROR(put_rows(cuda, scratch.halves, n, factors.length, scratch.h, COPIES * factors.length, err));
    return put_rows(cuda, scratch.halves + n * twice, n, factors.length, scratch.dh, scratch.dh_stride, err);
}

/* dhᵀ x and dyᵀ h, in halves. */
static qrun_status multiply_gradients(qr_cuda_backend &cuda, const qr_lora_backward_args &args,
                                      const lora_backward_scratch &scratch, void *library, qr_error *err) {
    const int64_t length = scratch.factors.length, twice = PARTS * length, thrice = COPIES * length;
    QR_RETURN_IF_ERROR(multiply(cuda, twice, args.in, args.n_rows, transposed(scratch.dh, scratch.dh_stride),
                                as_it_lies(args.x, args.x_stride), {scratch.da_halves, args.in, false}, library, err));
    return multiply(cuda, args.out, twice, args.n_rows, transposed(args.dy_rounded, args.dy_rounded_stride),
                    as_it_lies(scratch.h, thrice), {scratch.db_halves, twice, false}, library, err);
}

/* da += dhᵀ x and db += scale · dyᵀ h. */
static qrun_status add_gradients(qr_cuda_backend &cuda, const qr_lora_backward_args &args,
                                 const lora_backward_scratch &scratch, qr_error *err) {
    const int64_t length = scratch.factors.length, n = args.rank * (args.in + args.out);
    lora_gradients gradients = {};
    gradients.da_halves = scratch.da_halves, gradients.db_halves = scratch.db_halves;
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
    const lora_backward_scratch scratch = lay_out(args, NULL, 0, memory);
    const int64_t thrice = COPIES * scratch.factors.length;
    QR_RETURN_IF_ERROR(run_factors(cuda, args, scratch, library, err));
    if (args.dx != NULL) {
        QR_RETURN_IF_ERROR(multiply(cuda, args.n_rows, args.in, thrice, as_it_lies(scratch.dh, scratch.dh_stride),
                                    as_it_lies(scratch.factors.a, args.in), {args.dx, args.dx_stride, true}, library,
                                    err));
    }
    return add_gradients(cuda, args, scratch, err);
}

/* --- lora_backward as further terms of a matrix's dx --- */

size_t qr_cuda_lora_backward_terms_bytes(const qr_lora_backward_args &args) {
    lora_memory memory = {NULL, 0};
    (void)lay_out(args, NULL, 0, memory);
    return memory.n_bytes;
}

qrun_status qr_cuda_lora_put_dh(qr_cuda_backend &cuda, const qr_lora_backward_args &args, uint16_t *rows,
                                int64_t stride, unsigned char *scratch_memory, void *library, qr_error *err) {
    lora_memory memory = {scratch_memory, 0};
    return run_factors(cuda, args, lay_out(args, rows, stride, memory), library, err);
}

qrun_status qr_cuda_lora_put_a(qr_cuda_backend &cuda, const qr_lora_backward_args &args, uint16_t *rows,
                               qr_error *err) {
    return put_factors(cuda, adapter_of(args), {args.in, 0, length_of(args.rank), rows, NULL, 0, 0}, err);
}

qrun_status qr_cuda_lora_add_gradients(qr_cuda_backend &cuda, const qr_lora_backward_args &args,
                                       unsigned char *scratch_memory, qr_error *err) {
    lora_memory memory = {scratch_memory, 0};
    return add_gradients(cuda, args, lay_out(args, NULL, 0, memory), err);
}
