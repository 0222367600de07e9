/* linear_backward: dx = dy · W. With dy in 16 bits on the tensor cores: columns of dx are the 16-row operand, rows the
 * 8 columns, and the sum over the outputs runs 16 at a time, in order, whatever the number of rows. With dy in F32, and
 * of INT8 weights with dy in F16 (whose scaled dy is F32), by a thread a column. Where the caller leaves the order of
 * sums open, linear_cublaslt.cu is faster. */
#include "kernels/cuda/linear/ops_cublaslt.cuh"
#include "kernels/cuda/linear/weights16.cuh"

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
    COLS = WARPS * 16, /* of dx, in one block: a chunk */
    DEPTH = 64,        /* outputs at a time: a run of 32 weights a thread */
    STEP = 16,         /* of them in one product */
    TILE_ROWS = 8,     /* rows of dx in one product */
    PITCH = 64 + 8,    /* 16-bit elements: 8 more, so that the eight rows that are read together meet all banks */
};

template <int tiles> struct backward_tiles { uint16_t w[DEPTH][PITCH], dy[tiles * TILE_ROWS][PITCH]; };

/* The weights of outputs [o, o + DEPTH) and the block's columns; two threads for an output. Of PATH_ANY everything
 * happens in put_w. */
template <weights_path path>
static QR_DEVICE void load_w(const matrix &w, int64_t o, int64_t first_col, run_codes<path> &run) {
    if (path == PATH_ANY || o >= w.rows) { return; }
    load_run<path>(w, o + threadIdx.x / 2, first_col + threadIdx.x % 2 * RUN_COLS, run);
}

/* dy is zero after the last output, and weights there must be zero too: a NaN would stay NaN. */
template <typename type, weights_path path>
static QR_DEVICE void put_w(uint16_t dst[DEPTH][PITCH], const matrix &w, const nf4_book &book,
                            const run_codes<path> &run, int64_t o, int64_t first_col) {
    uint4 *to = reinterpret_cast<uint4 *>(&dst[threadIdx.x / 2][threadIdx.x % 2 * RUN_COLS]);
    const int64_t row = o + threadIdx.x / 2, col = first_col + threadIdx.x % 2 * RUN_COLS;
    if constexpr (path == PATH_ANY) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t pairs[LANE_COLS / 2];
            load_any<type>(w, row, col + half * LANE_COLS, pairs);
            to[2 * half] = pack_words(pairs);
            to[2 * half + 1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
        }
    } else {
        nf4_products products = {};
        if (path == PATH_NF4) {
            products = nf4_products_of<type>(book, matrix_absmax_of(w, run.absmax, w.tables->dynamic_map[1]));
        }
#pragma unroll
        for (int piece = 0; piece < RUN_COLS / PIECE_COLS; piece++) {
            to[piece] = row < w.rows ? run_piece<type, path>(run, products, piece) : make_uint4(0, 0, 0, 0);
        }
    }
}

/* dy of the block's rows and outputs [o, o + DEPTH), zeros outside. `aligned`: rows begin at 16 bytes. INT8: times the
 * output's factor, rounded. */
template <int tiles>
static QR_DEVICE void put_dy(uint16_t dst[][PITCH], const qr_linear_backward_args &a, const matrix &w, int64_t row,
                             int64_t o, bool aligned) {
    const uint16_t *dy = static_cast<const uint16_t *>(a.dy);
    for (unsigned i = threadIdx.x; i < tiles * TILE_ROWS * DEPTH / PIECE_COLS; i += THREADS) {
        const unsigned r = i / (DEPTH / PIECE_COLS), d = i % (DEPTH / PIECE_COLS) * PIECE_COLS;
        const uint16_t *src = dy + (row + r) * a.dy_stride + o + d;
        uint4 *to = reinterpret_cast<uint4 *>(&dst[r][d]);
        const bool inside = row + r < a.n_rows;
        if (aligned && o + d + PIECE_COLS <= w.rows && w.format != QR_WEIGHT_INT8) {
            *to = inside ? *reinterpret_cast<const uint4 *>(src) : make_uint4(0, 0, 0, 0);
            continue;
        }
        for (unsigned j = 0; j < PIECE_COLS; j++) {
            uint16_t value = inside && o + d + j < w.rows ? src[j] : uint16_t{0};
            if (w.format == QR_WEIGHT_INT8 && value != 0) {
                value = f32_to_bf16(bf16_to_f32(value) * matrix_row_factor(w, o + d + j));
            }
            dst[r][d + j] = value;
        }
    }
}

/* d += the products of a stage: a warp's 16 columns, all rows. */
template <typename type, int tiles>
static QR_DEVICE void multiply(const backward_tiles<tiles> &shared, float d[tiles][4]) {
    const unsigned lane = lane_index(), col = warp_index() * 16 + lane / 8 % 2 * 8;
#pragma unroll
    for (unsigned step = 0; step < DEPTH; step += 2 * STEP) {
        uint32_t left[2][4];
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            load_matrices_transposed(left[i], &shared.w[step + i * STEP + lane % 8 + lane / 16 * 8][col]);
        }
#pragma unroll
        for (int t = 0; t < tiles; t++) {
            uint32_t right[4];
            load_matrices(right, &shared.dy[t * TILE_ROWS + static_cast<int>(lane % 8)][step + lane / 8 * 8]);
            type::mma(d[t], left[0], right);
            type::mma(d[t], left[1], right + 2);
        }
    }
}

template <typename type, weights_path path, int tiles>
__global__ void __launch_bounds__(THREADS, 4)
    linear_backward_mma_kernel(qr_linear_backward_args a, matrix w, nf4_book book, bool aligned) {
    backward_tiles<tiles> &shared = *shared_memory<backward_tiles<tiles>>();
    const int64_t first_col = static_cast<int64_t>(blockIdx.x) * COLS;
    const int64_t first_row = static_cast<int64_t>(blockIdx.y) * tiles * TILE_ROWS;
    const unsigned group = lane_index() / 4, quad = lane_index() % 4, col = warp_index() * 16 + group;
    run_codes<path> run; /* of the stage after this one */
    float d[tiles][4] = {};
    load_w<path>(w, 0, first_col, run);
    for (int64_t o = 0; o < w.rows; o += DEPTH) {
        put_w<type, path>(shared.w, w, book, run, o, first_col);
        put_dy<tiles>(shared.dy, a, w, first_row, o, aligned);
        __syncthreads();
        load_w<path>(w, o + DEPTH, first_col, run);
        multiply<type, tiles>(shared, d);
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
    const bool aligned = reinterpret_cast<uintptr_t>(args.dy) % 16 == 0 && args.dy_stride % PIECE_COLS == 0;
    return QR_LAUNCH(cuda.device, err, (linear_backward_mma_kernel<type, path, tiles>), grid, THREADS,
                     sizeof(backward_tiles<tiles>), args, w, nf4_book_of(), aligned);
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
    const weights_path path = path_of(w, args.dy_dtype);
    return path == PATH_ANY ? launch_rows<type, PATH_ANY>(cuda, args, w, err)
                            : QR_BY_PATH(path, launch_rows, type, cuda, args, w, err);
}

static qrun_status launch_part(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                               qr_error *err) {
    const bool f32 = args.dy_dtype == QR_DTYPE_F32 || (args.dy_dtype == QR_DTYPE_F16 && w.format == QR_WEIGHT_INT8);
    return f32 ? launch_f32(cuda, args, w, err) : QR_BY_TYPE(args.dy_dtype, launch_mma, cuda, args, w, err);
}

static qrun_status run_linear_backward(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                                       qr_error *err) {
    qrun_status status = QRUN_OK;
    if (qr_cuda_by_cublaslt(cuda, args, workspace, &status, err)) { return status; }
    enum { LAUNCH_ROWS = 1 << 18 }; /* the y dimension of a grid ends at 65535 */
    const matrix w = matrix_of(cuda, *args.weight);
    const int64_t dy_bytes = args.dy_stride * static_cast<int64_t>(qr_dtype_bytes(args.dy_dtype));
    for (int64_t row = 0; row < args.n_rows; row += LAUNCH_ROWS) {
        qr_linear_backward_args part = args;
        part.n_rows = qr_min(LAUNCH_ROWS, args.n_rows - row);
        part.dy = static_cast<const unsigned char *>(args.dy) + row * dy_bytes;
        part.dx = args.dx + row * args.dx_stride;
        QR_RETURN_IF_ERROR(launch_part(cuda, part, w, err));
    }
    return QRUN_OK;
}

QR_CUDA_OP_SIZED(linear_backward, qr_cuda_cublaslt_workspace, run_linear_backward)
