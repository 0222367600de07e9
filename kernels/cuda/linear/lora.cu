/* lora: t = A x by a warp four rows of x and a tile of ranks, then y += scale · B t by a thread a column of 16 rows.
 * Rows that share an adapter go together; others one by one, with the same bits. Where the caller permits bf16x2
 * splits, lora_cublaslt.cu is faster. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/linear/lora_rows.cuh"
#include "kernels/cuda/linear/ops_cublaslt.cuh"

enum { DOWN_THREADS = 128, DOWN_WARPS = DOWN_THREADS / WARP_LANES, UP_THREADS = 256, FEW_ROWS = 64 };

/* Whether rows [row, row + n) have one adapter. */
static QR_DEVICE bool one_adapter(const qr_lora_args &a, int64_t row, int n) {
    bool same = true;
    for (int i = 1; i < n; i++) { same = same && a.row_adapter[row + i] == a.row_adapter[row]; }
    return same;
}

/* t [n_rows, t_stride]; rows without an adapter and tiles of ranks that it lacks are left alone. */
template <int n_ranks>
static __device__ void put_down(const qr_lora_args &a, int64_t row, int n_rows, int64_t first, bool x_aligned, float *t,
                                int64_t t_stride) {
    if (a.row_adapter[row] < 0) { return; }
    const qr_lora_factor factor = a.factors[a.row_adapter[row]];
    if (first >= (factor.rank + LORA_RANKS - 1) / LORA_RANKS * LORA_RANKS) { return; }
    const bool aligned = vec4_aligned(factor.a, a.in);
    lora_dots dots = {};
    dots.x = a.x, dots.x_dtype = a.x_dtype, dots.x_stride = a.x_stride, dots.k = a.in;
    dots.factor = factor.a, dots.n = factor.rank;
    dots.x_aligned = x_aligned, dots.factor_aligned = aligned;
    float sums[LORA_DOT_ROWS][n_ranks];
    lora_dots_of<n_ranks>(dots, row, n_rows, first, sums);
    lora_put_dots<n_ranks>(sums, 1.0F, factor.rank, row, n_rows, first, t, t_stride);
}

template <int n_ranks> __global__ void lora_down_kernel(qr_lora_args a, bool x_aligned, float *t, int64_t t_stride) {
    const int64_t row = (static_cast<int64_t>(blockIdx.x) * DOWN_WARPS + warp_index()) * LORA_DOT_ROWS;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * n_ranks;
    if (row >= a.n_rows) { return; }
    const int n = static_cast<int>(a.n_rows - row < LORA_DOT_ROWS ? a.n_rows - row : int64_t{LORA_DOT_ROWS});
    if (one_adapter(a, row, n)) {
        put_down<n_ranks>(a, row, n, first, x_aligned, t, t_stride);
        return;
    }
    for (int i = 0; i < n; i++) { put_down<n_ranks>(a, row + i, 1, first, x_aligned, t, t_stride); }
}

/* Column o of rows [row, row + n) of y, which have one adapter. */
static __device__ void put_up(const qr_lora_args &a, const float *t, int64_t t_stride, int64_t row, int n, int64_t o) {
    if (a.row_adapter[row] < 0) { return; }
    const qr_lora_factor factor = a.factors[a.row_adapter[row]];
    if (factor.rank == 0) { return; }
    const bool aligned = vec4_aligned(factor.b, factor.rank);
    float sums[LORA_UP_ROWS];
    lora_up_of<false>(t + row * t_stride, t_stride, n, factor.b, factor.rank, a.out, o, aligned, sums);
#pragma unroll
    for (int i = 0; i < LORA_UP_ROWS; i++) {
        if (i < n) { a.y[(row + i) * a.y_stride + o] += factor.scale * sums[i]; }
    }
}

__global__ void lora_up_kernel(qr_lora_args a, const float *t, int64_t t_stride) {
    const int64_t n_blocks = (a.out + UP_THREADS - 1) / UP_THREADS;
    const int64_t o = blockIdx.x % n_blocks * UP_THREADS + threadIdx.x, row = blockIdx.x / n_blocks * LORA_UP_ROWS;
    if (o >= a.out) { return; }
    const int n = static_cast<int>(a.n_rows - row < LORA_UP_ROWS ? a.n_rows - row : int64_t{LORA_UP_ROWS});
    if (one_adapter(a, row, n)) {
        put_up(a, t, t_stride, row, n, o);
        return;
    }
    for (int i = 0; i < n; i++) { put_up(a, t, t_stride, row + i, 1, o); }
}

/* The larger of both: which kernels run depends on the rows' addresses too. */
static size_t lora_workspace(const qr_cuda_backend &cuda, const qr_lora_args &args) {
    const size_t of_products = qr_cuda_cublaslt_workspace(cuda, args);
    const size_t of_rows = static_cast<size_t>(args.n_rows * lora_row_length(args.max_rank)) * sizeof(float);
    return of_products > of_rows ? of_products : of_rows;
}

template <int n_ranks>
static qrun_status launch_down(qr_cuda_backend &cuda, const qr_lora_args &args, float *t, qr_error *err) {
    const int64_t t_stride = lora_row_length(args.max_rank);
    dim3 grid = blocks_for(args.n_rows, DOWN_WARPS * LORA_DOT_ROWS);
    grid.y = static_cast<unsigned>(t_stride / n_ranks);
    return QR_LAUNCH(cuda.device, err, (lora_down_kernel<n_ranks>), grid, DOWN_THREADS, 0, args,
                     vec4_aligned(args.x, args.x_stride, qr_dtype_bytes(args.x_dtype)), t, t_stride);
}

static qrun_status run_lora(qr_cuda_backend &cuda, const qr_lora_args &args, void *workspace, qr_error *err) {
    qrun_status status = QRUN_OK;
    if (qr_cuda_by_cublaslt(cuda, args, workspace, &status, err)) { return status; }
    float *t = static_cast<float *>(workspace);
    /* Few rows: fewer ranks a warp, so that there are more warps. */
    QR_RETURN_IF_ERROR(args.n_rows > FEW_ROWS ? launch_down<LORA_RANKS>(cuda, args, t, err)
                                              : launch_down<2>(cuda, args, t, err));
    const int64_t n_blocks = qr_ceil_div(args.out, UP_THREADS) * qr_ceil_div(args.n_rows, LORA_UP_ROWS);
    return QR_LAUNCH(cuda.device, err, lora_up_kernel, dim3(static_cast<unsigned>(n_blocks)), UP_THREADS, 0, args, t,
                     lora_row_length(args.max_rank));
}

QR_CUDA_OP_SIZED(lora, lora_workspace, run_lora)
