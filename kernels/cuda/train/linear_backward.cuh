/* The products of linear_backward, for its matrix and for those of experts (expert_linear_backward.cu). rows_type:
 * linear_rows, or one like it (linear.cuh), of dy. */
#ifndef QR_KERNELS_CUDA_LINEAR_BACKWARD_CUH
#define QR_KERNELS_CUDA_LINEAR_BACKWARD_CUH

#include "kernels/cuda/linear/linear.cuh"

/* --- F32 --- */

static inline bool backward_is_f32(qr_dtype dy_dtype, const matrix &w) {
    return dy_dtype == QR_DTYPE_F32 || (dy_dtype == QR_DTYPE_F16 && w.format == QR_WEIGHT_INT8);
}

enum { F32_THREADS = 128, F32_ROWS = 8 };

/* Column c of dx, rows [row, row + F32_ROWS). */
template <class rows_type>
static QR_DEVICE void backward_f32_sums(const qr_linear_backward_args &a, const matrix &w, const rows_type &rows,
                                        int64_t c, int64_t row) {
    const int64_t n_rows = a.n_rows - row;
    float sums[F32_ROWS] = {};
    for (int64_t o = 0; o < w.rows; o++) {
        const float factor = matrix_row_factor(w, o), code = matrix_code(w, o * w.cols + c);
        /* Weights are rounded to dy's type; INT8's codes are exact in it. */
        const float value = a.dy_dtype == QR_DTYPE_F16 ? f16_to_f32(f32_to_f16(code)) : code;
#pragma unroll
        for (int i = 0; i < F32_ROWS; i++) {
            if (i >= n_rows) { continue; }
            const float dy = load_as_f32(a.dy, a.dy_dtype, rows.of_x(row + i) * a.dy_stride + o);
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
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const lane_pairs loaded = load_any<type>(w, row, col + half * LANE_COLS);
            to[2 * half] = pack_words(loaded.pair);
            to[2 * half + 1] = pack_words(loaded.pair + 4);
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
template <int tiles, class rows_type>
static QR_DEVICE void put_dy(uint16_t dst[][PITCH], const qr_linear_backward_args &a, const matrix &w,
                             const rows_type &rows, int64_t row, int64_t o, bool aligned) {
    const uint16_t *dy = static_cast<const uint16_t *>(a.dy);
    for (unsigned i = threadIdx.x; i < tiles * TILE_ROWS * DEPTH / PIECE_COLS; i += THREADS) {
        const unsigned r = i / (DEPTH / PIECE_COLS), d = i % (DEPTH / PIECE_COLS) * PIECE_COLS;
        const bool inside = row + r < a.n_rows;
        const uint16_t *src = dy + (inside ? rows.of_x(row + r) : 0) * a.dy_stride + o + d;
        uint4 *to = reinterpret_cast<uint4 *>(&dst[r][d]);
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

/* A block's columns of dx, from first_col on, and tiles · TILE_ROWS rows. */
template <typename type, weights_path path, int tiles, class rows_type>
static QR_DEVICE void backward_products(const qr_linear_backward_args &a, const matrix &w, const rows_type &rows,
                                        const nf4_book &book, bool aligned, int64_t first_col, int64_t first_row) {
    backward_tiles<tiles> &shared = *shared_memory<backward_tiles<tiles>>();
    const unsigned group = lane_index() / 4, quad = lane_index() % 4, col = warp_index() * 16 + group;
    run_codes<path> run; /* of the stage after this one */
    float d[tiles][4] = {};
    load_w<path>(w, 0, first_col, run);
    for (int64_t o = 0; o < w.rows; o += DEPTH) {
        put_w<type, path>(shared.w, w, book, run, o, first_col);
        put_dy<tiles>(shared.dy, a, w, rows, first_row, o, aligned);
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

#endif
