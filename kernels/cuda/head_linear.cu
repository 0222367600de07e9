/* head_linear: a block for some rows of x, one head and some of its outputs. By row, a warp has an output and its lanes
 * share the columns; by column, a thread has an output and walks down the head's rows. Either reads a weight once for
 * all the block's rows of x. Adapters are a row's own: t = A x, or Bᵀ x', of each row comes first. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/matrix.cuh"

enum {
    THREADS = 128,
    WARPS = THREADS / WARP_LANES,
    MOST_ROWS = 8,
    OUTPUTS_BY_ROW = 32,
    SHARED_FLOATS = 8192, /* x and t of the block's rows; at least one row's */
    MOST_FLOATS = 12288   /* of one row: what every GPU gives a block without being asked */
};

/* What a block has in shared memory: of each of its rows x' [x_dim], then t [max_rank]. */
struct head_block {
    qr_head_linear_args args;
    matrix w;
    int32_t x_dim, row_floats, most_rows;
};

static inline int64_t row_floats_of(const qr_head_linear_args &args) {
    const int64_t x_dim = args.by_column ? args.dim : args.weight->desc.cols;
    return x_dim + (args.factors != NULL ? args.max_rank : 0);
}

/* The rows of x that this block has, and its head. */
struct block_rows {
    int64_t first, head, matrix_row;
    int32_t n;
};

QR_DEVICE block_rows rows_of_block(const head_block &b) {
    block_rows rows;
    rows.head = blockIdx.y;
    rows.matrix_row = b.args.first_row + rows.head * b.args.row_stride;
    rows.first = static_cast<int64_t>(blockIdx.z) * b.most_rows;
    const int64_t left = b.args.n_rows - rows.first;
    rows.n = left < b.most_rows ? static_cast<int32_t>(left) : b.most_rows;
    return rows;
}

/* The adapter of a row of the block; rank 0: none has this matrix. */
QR_DEVICE qr_lora_factor factor_of(const head_block &b, const block_rows &rows, int32_t i) {
    qr_lora_factor none = {};
    if (b.args.factors == NULL) { return none; }
    const int32_t adapter = b.args.row_adapter[rows.first + i];
    return adapter >= 0 ? b.args.factors[adapter] : none;
}

/* What multiplies row o of the head. */
QR_DEVICE float ratio_at(const qr_lora_factor &factor, int64_t row) {
    return factor.rank > 0 && factor.ratio != NULL ? factor.ratio[row] : 1.0F;
}

static __device__ void load_rows(const head_block &b, const block_rows &rows, float *shared) {
    const qr_head_linear_args &a = b.args;
    for (int32_t i = 0; i < rows.n; i++) {
        const qr_lora_factor factor = factor_of(b, rows, i);
        const int64_t first = (rows.first + i) * a.x_stride + rows.head * a.x_head_stride;
        for (int32_t j = static_cast<int32_t>(threadIdx.x); j < b.x_dim; j += THREADS) {
            const float ratio = a.by_column ? ratio_at(factor, rows.matrix_row + j) : 1.0F;
            shared[i * b.row_floats + j] = load_as_f32(a.x, a.x_dtype, first + j) * ratio;
        }
    }
    __syncthreads();
}

/* t of every row that has an adapter, a warp for an element. */
static __device__ void make_t(const head_block &b, const block_rows &rows, float *shared) {
    const qr_head_linear_args &a = b.args;
    if (a.factors == NULL) { return; }
    for (int32_t i = 0; i < rows.n; i++) {
        const qr_lora_factor factor = factor_of(b, rows, i);
        const float *x = shared + i * b.row_floats;
        for (int32_t j = static_cast<int32_t>(warp_index()); j < factor.rank; j += WARPS) {
            float sum = 0.0F;
            for (int32_t k = static_cast<int32_t>(lane_index()); k < b.x_dim; k += WARP_LANES) {
                const float element = a.by_column ? factor.b[(rows.matrix_row + k) * factor.rank + j]
                                                  : factor.a[static_cast<int64_t>(j) * b.w.cols + k];
                sum = fmaf(element, x[k], sum);
            }
            sum = warp_sum(sum);
            if (lane_index() == 0) { shared[i * b.row_floats + b.x_dim + j] = sum; }
        }
    }
    __syncthreads();
}

/* One output of row i, from its sum over the weights. `row` of the matrix, or `col`, is what it belongs to. */
template <bool by_column>
static __device__ void finish(const head_block &b, const block_rows &rows, const float *shared, int32_t i,
                              int64_t output, float sum) {
    const qr_head_linear_args &a = b.args;
    const qr_lora_factor factor = factor_of(b, rows, i);
    const float *t = shared + i * b.row_floats + b.x_dim;
    const int64_t row = rows.matrix_row + output;
    float update = 0.0F;
    for (int32_t j = 0; j < factor.rank; j++) {
        const float element =
            by_column ? factor.a[static_cast<int64_t>(j) * b.w.cols + output] : factor.b[row * factor.rank + j];
        update = fmaf(element, t[j], update);
    }
    if (factor.rank > 0) { sum = fmaf(factor.scale, update, sum); }
    if (!by_column) { sum *= ratio_at(factor, row); }
    store_from_f32(a.y, a.y_dtype, (rows.first + i) * a.y_stride + rows.head * a.y_head_stride + output, sum);
}

__global__ void head_linear_by_row_kernel(head_block b) {
    float *shared = shared_memory<float>();
    const block_rows rows = rows_of_block(b);
    load_rows(b, rows, shared);
    make_t(b, rows, shared);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * OUTPUTS_BY_ROW;
    for (int64_t o = first + warp_index(); o < first + OUTPUTS_BY_ROW && o < b.args.dim; o += WARPS) {
        const int64_t row = rows.matrix_row + o;
        float sums[MOST_ROWS] = {};
        with_matrix_code(b.w, [&](const auto &code) {
            for (int64_t c = lane_index(); c < b.w.cols; c += WARP_LANES) {
                const float weight = code(row * b.w.cols + c);
                for (int32_t i = 0; i < MOST_ROWS; i++) {
                    if (i < rows.n) { sums[i] = fmaf(weight, shared[i * b.row_floats + c], sums[i]); }
                }
            }
        });
        for (int32_t i = 0; i < rows.n; i++) {
            const float sum = warp_sum(sums[i]) * matrix_row_factor(b.w, row);
            if (lane_index() == 0) { finish<false>(b, rows, shared, i, o, sum); }
        }
    }
}

__global__ void head_linear_by_column_kernel(head_block b) {
    float *shared = shared_memory<float>();
    const block_rows rows = rows_of_block(b);
    load_rows(b, rows, shared);
    make_t(b, rows, shared);
    const int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (c >= b.w.cols) { return; }
    float sums[MOST_ROWS] = {};
    with_matrix_code(b.w, [&](const auto &code) {
        for (int64_t o = 0; o < b.args.dim; o++) {
            const int64_t row = rows.matrix_row + o;
            const float weight = code(row * b.w.cols + c) * matrix_row_factor(b.w, row);
            for (int32_t i = 0; i < MOST_ROWS; i++) {
                if (i < rows.n) { sums[i] = fmaf(weight, shared[i * b.row_floats + o], sums[i]); }
            }
        }
    });
    for (int32_t i = 0; i < rows.n; i++) { finish<true>(b, rows, shared, i, c, sums[i]); }
}

static qrun_status run_head_linear(qr_cuda_backend &cuda, const qr_head_linear_args &args, void *, qr_error *err) {
    head_block block = {};
    block.args = args;
    block.w = matrix_of(cuda, *args.weight);
    block.x_dim = static_cast<int32_t>(args.by_column ? args.dim : block.w.cols);
    block.row_floats = static_cast<int32_t>(row_floats_of(args));
    block.most_rows = static_cast<int32_t>(qr_max(qr_min(SHARED_FLOATS / block.row_floats, MOST_ROWS), 1));
    const int64_t n_outputs = args.by_column ? block.w.cols : args.dim;
    const dim3 grid(static_cast<unsigned>(qr_ceil_div(n_outputs, args.by_column ? THREADS : OUTPUTS_BY_ROW)),
                    static_cast<unsigned>(args.n_heads),
                    static_cast<unsigned>(qr_ceil_div(args.n_rows, block.most_rows)));
    const size_t shared_bytes = static_cast<size_t>(block.most_rows * block.row_floats) * sizeof(float);
    if (args.by_column) {
        return QR_LAUNCH(cuda.device, err, head_linear_by_column_kernel, grid, THREADS, shared_bytes, block);
    }
    return QR_LAUNCH(cuda.device, err, head_linear_by_row_kernel, grid, THREADS, shared_bytes, block);
}

static bool supports_head_linear(const qr_head_linear_args &args, qr_error *err) {
    const int64_t n_floats = row_floats_of(args);
    if (n_floats > MOST_FLOATS) {
        qr_fail(err, QRUN_ERROR_ARGUMENT, "head_linear: rows of %lld elements are too long; at most %d",
                static_cast<long long>(n_floats), static_cast<int>(MOST_FLOATS));
        return false;
    }
    if (qr_ceil_div(args.n_rows, qr_max(qr_min(SHARED_FLOATS / n_floats, MOST_ROWS), 1)) > 65535) {
        qr_fail(err, QRUN_ERROR_ARGUMENT, "head_linear: %lld rows are too many; make the steps smaller",
                static_cast<long long>(args.n_rows));
        return false;
    }
    return true;
}

QR_CUDA_OP_IF(head_linear, supports_head_linear, no_workspace<qr_head_linear_args>, run_head_linear)
