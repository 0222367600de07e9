/* linear_backward: dx = dy · W. With dy in 16 bits on the tensor cores: columns of dx are the 16-row operand, rows the
 * 8 columns, and the sum over the outputs runs 16 at a time, in order, whatever the number of rows. With dy in F32, and
 * of INT8 weights with dy in F16 (whose scaled dy is F32), by a thread a column. */
#include "kernels/cuda/linear_panel.cuh"
#include "kernels/cuda/weights16.cuh"

/* --- F32 --- */

enum { F32_THREADS = 128, F32_ROWS = 8 };

__global__ void linear_backward_f32_kernel(qr_linear_backward_args a, matrix w) {
    const int64_t c = global_thread(), row = static_cast<int64_t>(blockIdx.y) * F32_ROWS;
    if (c >= w.cols) { return; }
    const int64_t n_rows = a.n_rows - row;
    float sums[F32_ROWS] = {};
    for (int64_t o = 0; o < w.rows; o++) {
        const float factor = matrix_row_factor(w, o), code = matrix_code(w, o * w.cols + c);
        /* Weights are rounded to dy's type; INT8's codes are exact in it. */
        const float value = a.dy_dtype == QR_DTYPE_F16 ? f16_to_f32(f32_to_f16(code)) : code;
#pragma unroll
        for (int i = 0; i < F32_ROWS; i++) {
            if (i >= n_rows) { continue; }
            const float dy = load_as_f32(a.dy, a.dy_dtype, (row + i) * a.dy_stride + o);
            sums[i] = fmaf(dy * factor, value, sums[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < F32_ROWS; i++) {
        if (i >= n_rows) { continue; }
        float *dx = &a.dx[(row + i) * a.dx_stride + c];
        *dx = a.accumulate ? *dx + sums[i] : sums[i];
    }
}

/* --- 16 bits --- */

enum {
    WARPS = 4,
    THREADS = WARPS * WARP_LANES,
    COLS = WARPS * 16,  /* of dx, in one block: a chunk */
    DEPTH = 32,         /* outputs at a time */
    TILE_ROWS = 8,      /* rows of dx in one product */
    W_PITCH = COLS + 8, /* 16-bit elements: 8 more, so that rows begin in other banks */
    DY_PITCH = DEPTH + 8,
};

template <int tiles> struct backward_tiles {
    uint16_t w[DEPTH][W_PITCH];
    uint16_t dy[tiles * TILE_ROWS][DY_PITCH];
    float book[BOOK_FLOATS];
};

/* The weights of outputs [o, o + DEPTH) and the block's columns; a run of 16 columns a thread. */
template <typename type, weights_path path>
static __device__ void load_w(uint16_t dst[DEPTH][W_PITCH], const matrix &w, const float *book, int64_t o,
                              int64_t col) {
    for (unsigned i = threadIdx.x; i < DEPTH * COLS / LANE_COLS; i += THREADS) {
        const unsigned row = i / (COLS / LANE_COLS), run = i % (COLS / LANE_COLS);
        uint32_t pairs[LANE_COLS / 2];
        load_weights<type, path>(w, o + row, col + run * LANE_COLS, book, pairs);
        uint32_t *to = reinterpret_cast<uint32_t *>(&dst[row][run * LANE_COLS]);
#pragma unroll
        for (int j = 0; j < LANE_COLS / 2; j++) { to[j] = pairs[j]; }
    }
}

/* dy of the block's rows and outputs [o, o + DEPTH); INT8: times the output's factor, rounded. Zeros outside. */
template <typename type, int tiles>
static __device__ void load_dy(uint16_t dst[][DY_PITCH], const qr_linear_backward_args &a, const matrix &w, int64_t row,
                               int64_t o) {
    const uint16_t *dy = static_cast<const uint16_t *>(a.dy);
    for (unsigned i = threadIdx.x; i < tiles * TILE_ROWS * DEPTH; i += THREADS) {
        const unsigned r = i / DEPTH, d = i % DEPTH;
        uint16_t value = 0;
        if (row + r < a.n_rows && o + d < w.rows) {
            value = dy[(row + r) * a.dy_stride + o + d];
            if (w.format == QR_WEIGHT_INT8) { value = f32_to_bf16(bf16_to_f32(value) * matrix_row_factor(w, o + d)); }
        }
        dst[r][d] = value;
    }
}

template <typename type, weights_path path, int tiles>
__global__ void linear_backward_mma_kernel(qr_linear_backward_args a, matrix w) {
    backward_tiles<tiles> *shared = shared_memory<backward_tiles<tiles>>();
    const int64_t first_col = static_cast<int64_t>(blockIdx.x) * COLS;
    const int64_t first_row = static_cast<int64_t>(blockIdx.y) * tiles * TILE_ROWS;
    const unsigned group = lane_index() / 4, quad = lane_index() % 4, col = warp_index() * 16 + group;
    if (path == PATH_NF4) { fill_book(w, shared->book); }
    __syncthreads();
    float d[tiles][4] = {};
    for (int64_t o = 0; o < w.rows; o += DEPTH) {
        load_w<type, path>(shared->w, w, shared->book, o, first_col);
        load_dy<type, tiles>(shared->dy, a, w, first_row, o);
        __syncthreads();
#pragma unroll
        for (unsigned step = 0; step < DEPTH; step += 16) {
            uint32_t left[4];
            for (unsigned i = 0; i < 4; i++) {
                const unsigned k = step + 2 * quad + i / 2 * 8, c = col + i % 2 * 8;
                left[i] = pack16(shared->w[k][c], shared->w[k + 1][c]);
            }
#pragma unroll
            for (int t = 0; t < tiles; t++) {
                const uint16_t *dy = &shared->dy[t * TILE_ROWS + group][step + 2 * quad];
                const uint32_t right[2] = {*reinterpret_cast<const uint32_t *>(dy),
                                           *reinterpret_cast<const uint32_t *>(dy + 8)};
                type::mma(d[t], left, right);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < tiles; t++) {
        for (unsigned i = 0; i < 4; i++) {
            const int64_t c = first_col + col + i / 2 * 8, row = first_row + t * TILE_ROWS + 2 * quad + i % 2;
            if (c >= w.cols || row >= a.n_rows) { continue; }
            float *dx = &a.dx[row * a.dx_stride + c];
            *dx = a.accumulate ? *dx + d[t][i] : d[t][i];
        }
    }
}

/* --- Launching --- */

static qrun_status launch_f32(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                              qr_error *err) {
    dim3 grid = blocks_for(w.cols, F32_THREADS);
    grid.y = static_cast<unsigned>(qr_ceil_div(args.n_rows, F32_ROWS));
    return QR_LAUNCH(cuda.device, err, linear_backward_f32_kernel, grid, F32_THREADS, 0, args, w);
}

template <typename type, weights_path path, int tiles>
static qrun_status launch(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w, qr_error *err) {
    dim3 grid = blocks_for(w.cols, COLS);
    grid.y = static_cast<unsigned>(qr_ceil_div(args.n_rows, tiles * TILE_ROWS));
    return QR_LAUNCH(cuda.device, err, (linear_backward_mma_kernel<type, path, tiles>), grid, THREADS,
                     sizeof(backward_tiles<tiles>), args, w);
}

template <typename type, weights_path path>
static qrun_status launch_rows(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                               qr_error *err) {
    return args.n_rows <= TILE_ROWS ? launch<type, path, 1>(cuda, args, w, err)
                                    : launch<type, path, 8>(cuda, args, w, err);
}

template <typename type>
static qrun_status launch_mma(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                              qr_error *err) {
    switch (path_of(w, args.dy_dtype)) {
    case PATH_NF4: return launch_rows<type, PATH_NF4>(cuda, args, w, err);
    case PATH_INT8: return launch_rows<type, PATH_INT8>(cuda, args, w, err);
    case PATH_16: return launch_rows<type, PATH_16>(cuda, args, w, err);
    default: return launch_rows<type, PATH_ANY>(cuda, args, w, err);
    }
}

static qrun_status launch_part(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                               qr_error *err) {
    if (args.dy_dtype == QR_DTYPE_BF16) { return launch_mma<of_bf16>(cuda, args, w, err); }
    if (args.dy_dtype == QR_DTYPE_F16 && w.format != QR_WEIGHT_INT8) { return launch_mma<of_f16>(cuda, args, w, err); }
    return launch_f32(cuda, args, w, err);
}

static qrun_status run_linear_backward(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                                       qr_error *err) {
    if (qr_cuda_linear_backward_panel_takes(cuda, args)) {
        return qr_cuda_linear_backward_panel(cuda, args, workspace, err);
    }
    enum { LAUNCH_ROWS = 1 << 18 }; /* the y dimension of a grid ends at 65535 */
    const matrix w = matrix_of(cuda, *args.weight);
    const int64_t dy_bytes = args.dy_stride * static_cast<int64_t>(qr_dtype_bytes(args.dy_dtype));
    for (int64_t row = 0; row < args.n_rows; row += LAUNCH_ROWS) {
        qr_linear_backward_args part = args;
        part.n_rows = qr_min(LAUNCH_ROWS, args.n_rows - row);
        part.dy = static_cast<const unsigned char *>(args.dy) + row * dy_bytes;
        part.dx = args.dx + row * args.dx_stride;
        const qrun_status status = launch_part(cuda, part, w, err);
        if (status != QRUN_OK) { return status; }
    }
    return QRUN_OK;
}

QR_CUDA_OP_SIZED(linear_backward, qr_cuda_linear_backward_panel_workspace, run_linear_backward)
