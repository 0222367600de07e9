/* lora_backward: h = A x and dh = scale · dy B as lora's t, dx += dh A as lora's y, and the sums over tokens db and da
 * by column. The tokens are cut into SPLITS · WARPS runs by their number alone. Each is summed in order by a warp, and
 * the runs' sums are added in order. Where the caller permits bf16x2 splits, lora_cublaslt.cu is faster. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/linear/lora_rows.cuh"
#include "kernels/cuda/linear/ops_cublaslt.cuh"

enum {
    DOT_THREADS = 128,
    DOT_WARPS = DOT_THREADS / WARP_LANES,
    THREADS = 256,
    WARPS = THREADS / WARP_LANES,
    SPLITS = 8,
    BLOCK_COLS = VEC4 * WARP_LANES, /* of a sum over tokens */
};

/* dst [n_rows, rank tiles] = alpha · x factorᵀ. */
__global__ void lora_dots_kernel(lora_dots d, int64_t n_rows, float alpha, float *dst, int64_t dst_stride) {
    const int64_t row = (static_cast<int64_t>(blockIdx.x) * DOT_WARPS + warp_index()) * LORA_DOT_ROWS;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * LORA_RANKS;
    if (row >= n_rows) { return; }
    const int n = static_cast<int>(n_rows - row < LORA_DOT_ROWS ? n_rows - row : int64_t{LORA_DOT_ROWS});
    float sums[LORA_DOT_ROWS][LORA_RANKS];
    lora_dots_of<LORA_RANKS>(d, row, n, first, sums);
    lora_put_dots<LORA_RANKS>(sums, alpha, d.n, row, n, first, dst, dst_stride);
}

/* dst [rank, n] = src [n, rank], so that dy B reads its factor along dy. */
__global__ void lora_transpose_kernel(const float *src, int64_t n, int64_t rank, float *dst) {
    const int64_t i = global_thread();
    if (i < n * rank) { dst[i] = src[i % n * rank + i / n]; }
}

/* dx += dh A: a thread a column of 16 rows. */
__global__ void lora_dx_kernel(qr_lora_backward_args a, const float *dh, int64_t dh_stride) {
    const int64_t n_blocks = (a.in + THREADS - 1) / THREADS;
    const int64_t c = blockIdx.x % n_blocks * THREADS + threadIdx.x, row = blockIdx.x / n_blocks * LORA_UP_ROWS;
    if (c >= a.in) { return; }
    const int n = static_cast<int>(a.n_rows - row < LORA_UP_ROWS ? a.n_rows - row : int64_t{LORA_UP_ROWS});
    float sums[LORA_UP_ROWS];
    lora_up_of<true>(dh + row * dh_stride, dh_stride, n, a.a, a.rank, a.in, c, false, sums);
#pragma unroll
    for (int i = 0; i < LORA_UP_ROWS; i++) {
        if (i < n) { a.dx[(row + i) * a.dx_stride + c] += sums[i]; }
    }
}

/* sums[c, r] = sum over tokens of rows[i, c] · t[i, r]. */
struct token_sums {
    const void *rows; /* [n_tokens, n_cols] of any act type */
    qr_dtype dtype;
    int64_t stride, n_tokens, n_cols;
    bool aligned;
    const float *t; /* [n_tokens, t_stride] */
    int64_t t_stride, rank;
    float *partial; /* [SPLITS, t_stride, n_cols] */
    float *dst;     /* element (c, r) at c · col_stride + r · rank_stride; added to */
    int64_t col_stride, rank_stride;
    float alpha;
};

/* This block's split: a warp's run of tokens, four columns a lane. 64 sums a lane want one load of its own and four
 * that all lanes share for 64 multiply-adds. Shared memory: [LORA_RANKS][32] times four columns. */
__global__ void __launch_bounds__(THREADS, 2) lora_token_sums_kernel(token_sums s) {
    float4 *shared = shared_memory<float4>();
    const int64_t c = static_cast<int64_t>(blockIdx.x) * BLOCK_COLS + VEC4 * lane_index();
    const int64_t first = static_cast<int64_t>(blockIdx.z) * LORA_RANKS;
    const int64_t per_run = (s.n_tokens + SPLITS * WARPS - 1) / (SPLITS * WARPS);
    const int64_t begin = (static_cast<int64_t>(blockIdx.y) * WARPS + warp_index()) * per_run;
    const int64_t end = begin + per_run < s.n_tokens ? begin + per_run : s.n_tokens;
    float sums[LORA_RANKS][VEC4] = {};
#pragma unroll 2
    for (int64_t i = begin; i < end; i++) {
        float x[VEC4];
        load_vec4_act(x, s.rows, s.dtype, i * s.stride, c, s.n_cols, s.aligned);
#pragma unroll
        for (int r = 0; r < LORA_RANKS; r += VEC4) {
            float t[VEC4];
            load_vec4(t, s.t + i * s.t_stride + first + r);
#pragma unroll
            for (int j = 0; j < VEC4 * VEC4; j++) {
                sums[r + j / VEC4][j % VEC4] = fmaf(t[j / VEC4], x[j % VEC4], sums[r + j / VEC4][j % VEC4]);
            }
        }
    }
    for (unsigned turn = 0; turn < WARPS; turn++) {
        for (int r = 0; turn == warp_index() && r < LORA_RANKS; r++) {
            float4 &sum = shared[r * WARP_LANES + lane_index()];
            const float4 before = turn == 0 ? make_float4(0.0F, 0.0F, 0.0F, 0.0F) : sum;
            sum =
                make_float4(before.x + sums[r][0], before.y + sums[r][1], before.z + sums[r][2], before.w + sums[r][3]);
        }
        __syncthreads();
    }
    const float *all = reinterpret_cast<const float *>(shared);
    for (unsigned i = threadIdx.x; i < LORA_RANKS * BLOCK_COLS; i += THREADS) {
        const int64_t r = first + i / BLOCK_COLS, col = static_cast<int64_t>(blockIdx.x) * BLOCK_COLS + i % BLOCK_COLS;
        if (col < s.n_cols) { s.partial[(blockIdx.y * s.t_stride + r) * s.n_cols + col] = all[i]; }
    }
}

__global__ void lora_add_splits_kernel(token_sums s) {
    const int64_t i = global_thread();
    if (i >= s.rank * s.n_cols) { return; }
    const int64_t r = i / s.n_cols, c = i % s.n_cols;
    float sum = s.partial[r * s.n_cols + c];
    for (int64_t split = 1; split < SPLITS; split++) { sum += s.partial[(split * s.t_stride + r) * s.n_cols + c]; }
    float *dst = &s.dst[c * s.col_stride + r * s.rank_stride];
    *dst = fmaf(s.alpha, sum, *dst);
}

static qrun_status add_token_sums(qr_cuda_backend &cuda, const token_sums &sums, qr_error *err) {
    dim3 grid = blocks_for(sums.n_cols, BLOCK_COLS);
    grid.y = SPLITS;
    grid.z = static_cast<unsigned>(sums.t_stride / LORA_RANKS);
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, lora_token_sums_kernel, grid, THREADS,
                                 LORA_RANKS * WARP_LANES * sizeof(float4), sums));
    return QR_LAUNCH(cuda.device, err, lora_add_splits_kernel, blocks_for(sums.rank * sums.n_cols, THREADS), THREADS, 0,
                     sums);
}

static qrun_status put_dots(qr_cuda_backend &cuda, const lora_dots &dots, int64_t n_rows, float alpha, float *dst,
                            qr_error *err) {
    const int64_t dst_stride = lora_row_length(dots.n);
    dim3 grid = blocks_for(n_rows, DOT_WARPS * LORA_DOT_ROWS);
    grid.y = static_cast<unsigned>(dst_stride / LORA_RANKS);
    return QR_LAUNCH(cuda.device, err, lora_dots_kernel, grid, DOT_THREADS, 0, dots, n_rows, alpha, dst, dst_stride);
}

/* h and dh [n_rows, rank tiles], B transposed, and the splits' sums of whichever of da and db is larger. */
struct lora_scratch {
    float *h, *dh, *b, *partial;
    int64_t n; /* floats of all */
};

static lora_scratch lay_out(const qr_lora_backward_args &args, float *memory) {
    const int64_t length = lora_row_length(args.rank), n_b = qr_round_up(args.rank * args.out, LORA_RANKS);
    const int64_t rows = args.n_rows * length, partial = SPLITS * length * qr_max(args.in, args.out);
    if (memory == NULL) { return {NULL, NULL, NULL, NULL, 2 * rows + n_b + partial}; }
    return {memory, memory + rows, memory + 2 * rows, memory + 2 * rows + n_b, 2 * rows + n_b + partial};
}

/* The larger of both: which kernels run depends on the rows' addresses too. */
static size_t lora_workspace(const qr_cuda_backend &cuda, const qr_lora_backward_args &args) {
    const size_t of_products = qr_cuda_cublaslt_workspace(cuda, args);
    const size_t of_rows = static_cast<size_t>(lay_out(args, NULL).n) * sizeof(float);
    return of_products > of_rows ? of_products : of_rows;
}

/* h and dh, which all else is made of. */
static qrun_status run_down(qr_cuda_backend &cuda, const qr_lora_backward_args &args, const lora_scratch &scratch,
                            qr_error *err) {
    const bool x_aligned = vec4_aligned(args.x, args.x_stride, qr_dtype_bytes(args.x_dtype));
    lora_dots h = {};
    h.x = args.x, h.x_dtype = args.x_dtype, h.x_stride = args.x_stride, h.k = args.in;
    h.factor = args.a, h.n = args.rank;
    h.x_aligned = x_aligned, h.factor_aligned = vec4_aligned(args.a, args.in);
    lora_dots dh = {};
    dh.x = args.dy, dh.x_dtype = QR_DTYPE_F32, dh.x_stride = args.dy_stride, dh.k = args.out;
    dh.factor = scratch.b, dh.n = args.rank;
    dh.x_aligned = vec4_aligned(args.dy, args.dy_stride), dh.factor_aligned = vec4_aligned(scratch.b, args.out);
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, lora_transpose_kernel, blocks_for(args.rank * args.out, THREADS),
                                 THREADS, 0, args.b, args.out, int64_t{args.rank}, scratch.b));
    QR_RETURN_IF_ERROR(put_dots(cuda, h, args.n_rows, 1.0F, scratch.h, err));
    QR_RETURN_IF_ERROR(put_dots(cuda, dh, args.n_rows, args.scale, scratch.dh, err));
    return QRUN_OK;
}

static qrun_status run_lora_backward(qr_cuda_backend &cuda, const qr_lora_backward_args &args, void *workspace,
                                     qr_error *err) {
    qrun_status status = QRUN_OK;
    if (qr_cuda_by_cublaslt(cuda, args, workspace, &status, err)) { return status; }
    const lora_scratch scratch = lay_out(args, static_cast<float *>(workspace));
    token_sums db = {}, da = {};
    db.n_tokens = da.n_tokens = args.n_rows;
    db.t_stride = da.t_stride = lora_row_length(args.rank);
    db.rank = da.rank = args.rank;
    db.partial = da.partial = scratch.partial;
    db.rows = args.dy, db.dtype = QR_DTYPE_F32, db.stride = args.dy_stride, db.n_cols = args.out;
    db.aligned = vec4_aligned(args.dy, args.dy_stride);
    db.t = scratch.h, db.alpha = args.scale;
    db.dst = args.db, db.col_stride = args.rank, db.rank_stride = 1;
    da.rows = args.x, da.dtype = args.x_dtype, da.stride = args.x_stride, da.n_cols = args.in;
    da.aligned = vec4_aligned(args.x, args.x_stride, qr_dtype_bytes(args.x_dtype));
    da.t = scratch.dh, da.alpha = 1.0F;
    da.dst = args.da, da.col_stride = 1, da.rank_stride = args.in;
    QR_RETURN_IF_ERROR(run_down(cuda, args, scratch, err));
    QR_RETURN_IF_ERROR(add_token_sums(cuda, db, err));
    QR_RETURN_IF_ERROR(add_token_sums(cuda, da, err));
    if (args.dx != NULL) {
        const int64_t n_blocks = qr_ceil_div(args.in, THREADS) * qr_ceil_div(args.n_rows, LORA_UP_ROWS);
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, lora_dx_kernel, dim3(static_cast<unsigned>(n_blocks)), THREADS,
                                     0, args, scratch.dh, da.t_stride));
    }
    return QRUN_OK;
}

QR_CUDA_OP_SIZED(lora_backward, lora_workspace, run_lora_backward)
