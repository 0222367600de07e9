/* adafactor: moments of rows (a warp each) and of columns (sums over chunks of rows, then over those in order: how many
 * follows from the number of rows alone); the mean of the rows' moments; the update and its squares (a warp a row);
 * their sum; then the parameters. Sums are F64. */
#include "kernels/cuda/column_sums.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP_LANES };

/* Workspace: these two, the squares of each row's updates [rows] and of each chunk's columns [n_chunks, cols] in F64,
 * and 1 / sqrt of the columns' moments [cols]. */
struct totals {
    double row_mean, squares;
};

struct adafactor_work {
    totals *total;
    double *squares, *chunk_squares;
    float *col_scale;
};

static adafactor_work work_of(const qr_adafactor_args &args, void *workspace) {
    adafactor_work work;
    work.total = static_cast<totals *>(workspace);
    work.squares = reinterpret_cast<double *>(work.total + 1);
    work.chunk_squares = work.squares + args.rows;
    work.col_scale = reinterpret_cast<float *>(work.chunk_squares + n_chunks_of(args.rows) * args.cols);
    return work;
}

static size_t adafactor_workspace(const qr_adafactor_args &args) {
    const int64_t n_squares = args.rows + n_chunks_of(args.rows) * args.cols;
    return sizeof(totals) + static_cast<size_t>(n_squares) * sizeof(double) +
           static_cast<size_t>(args.cols) * sizeof(float);
}

/* A moment after a mean of squares; every square has eps1 added. */
static QR_DEVICE float moved(const qr_adafactor_args &a, double keep, float old, double mean) {
    return static_cast<float>(keep * static_cast<double>(old) + (1.0 - keep) * (mean + static_cast<double>(a.eps1)));
}

static QR_DEVICE double squared(float x) { return static_cast<double>(x) * static_cast<double>(x); }

__global__ void row_moment_kernel(qr_adafactor_args a, double keep) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    if (row >= a.rows) { return; }
    double sum = 0.0;
    for (int64_t c = lane_index(); c < a.cols; c += WARP_LANES) {
        sum += squared(a.g[row * a.cols + c] * a.grad_scale);
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) { a.row_moment[row] = moved(a, keep, a.row_moment[row], sum / static_cast<double>(a.cols)); }
}

/* Chunks in the y dimension of the grid. */
__global__ void col_squares_kernel(qr_adafactor_args a, int64_t chunk_rows, double *chunk_squares) {
    const int64_t c = global_thread();
    if (c >= a.cols) { return; }
    double sum = 0.0;
    for_chunk(a.rows, chunk_rows, [&](int64_t row) { sum += squared(a.g[row * a.cols + c] * a.grad_scale); });
    chunk_squares[blockIdx.y * a.cols + c] = sum;
}

/* The plain moments, kept in row_moment, where there is one row. */
__global__ void col_moment_kernel(qr_adafactor_args a, double keep, const double *chunk_squares, int64_t n_chunks,
                                  float *col_scale) {
    const int64_t c = global_thread();
    if (c >= a.cols) { return; }
    double sum = 0.0;
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) { sum += chunk_squares[chunk * a.cols + c]; }
    float *moment = a.rows == 1 ? &a.row_moment[c] : &a.col_moment[c];
    *moment = moved(a, keep, *moment, sum / static_cast<double>(a.rows));
    col_scale[c] = static_cast<float>(1.0 / sqrt(static_cast<double>(*moment)));
}

/* *dst = the sum of n values, divided. One block. */
template <typename T> __global__ void mean_kernel(const T *values, int64_t n, double divisor, double *dst) {
    double *scratch = shared_memory<double>();
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) { sum += static_cast<double>(values[i]); }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) { *dst = sum / divisor; }
}

__global__ void update_kernel(qr_adafactor_args a, adafactor_work work) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    if (row >= a.rows) { return; }
    float row_scale = 1.0F;
    if (a.rows > 1) {
        row_scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.row_moment[row]) / work.total->row_mean));
    }
    double sum = 0.0;
    for (int64_t c = lane_index(); c < a.cols; c += WARP_LANES) {
        const float update = a.g[row * a.cols + c] * a.grad_scale * row_scale * work.col_scale[c];
        a.update[row * a.cols + c] = update;
        sum += squared(update);
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) { work.squares[row] = sum; }
}

__global__ void move_parameters_kernel(qr_adafactor_args a, const totals *total, float decay) {
    const int64_t i = global_thread(), n = a.rows * a.cols;
    if (i >= n) { return; }
    const double rms = sqrt(total->squares / static_cast<double>(n));
    const double clip = fmax(1.0, rms / static_cast<double>(a.clip_threshold));
    a.p[i] = fmaf(a.update[i], static_cast<float>(-static_cast<double>(a.lr) / clip), a.p[i] * decay);
}

static qrun_status run_adafactor(qr_cuda_backend &cuda, const qr_adafactor_args &args, void *workspace, qr_error *err) {
    const adafactor_work work = work_of(args, workspace);
    const double keep = 1.0 - pow(static_cast<double>(args.step), static_cast<double>(args.decay_rate));
    const double decay = 1.0 - static_cast<double>(args.lr) * static_cast<double>(args.weight_decay);
    const size_t scratch_bytes = WARPS * sizeof(double);
    if (args.rows > 1) {
        QR_RETURN_IF_ERROR(
            QR_LAUNCH(cuda.device, err, row_moment_kernel, blocks_for(args.rows, WARPS), THREADS, 0, args, keep));
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, mean_kernel<float>, dim3(1), THREADS, scratch_bytes,
                                     args.row_moment, args.rows, static_cast<double>(args.rows),
                                     &work.total->row_mean));
    }
    const int64_t n_chunks = n_chunks_of(args.rows);
    const dim3 columns = blocks_for(args.cols, THREADS), chunks(columns.x, static_cast<unsigned>(n_chunks));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, col_squares_kernel, chunks, THREADS, 0, args,
                                 chunk_rows_of(args.rows), work.chunk_squares));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, col_moment_kernel, columns, THREADS, 0, args, keep,
                                 work.chunk_squares, n_chunks, work.col_scale));
    QR_RETURN_IF_ERROR(
        QR_LAUNCH(cuda.device, err, update_kernel, blocks_for(args.rows, WARPS), THREADS, 0, args, work));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, mean_kernel<double>, dim3(1), THREADS, scratch_bytes, work.squares,
                                 args.rows, 1.0, &work.total->squares));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, move_parameters_kernel, blocks_for(args.rows * args.cols, THREADS),
                                 THREADS, 0, args, work.total, static_cast<float>(decay)));
    return QRUN_OK;
}

QR_CUDA_OP(adafactor, adafactor_workspace, run_adafactor)
