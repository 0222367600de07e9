/* linear with x in BF16 or F16, on the tensor cores: the weights are the 16-row operand, rows of x the 8 columns, so
 * one row of x costs what eight do and the bits of a row do not depend on how many there are.
 *
 * The columns are cut into SEGMENTS runs of whole chunks of 64, by the number of columns alone. Each segment is summed
 * by products in order, 16 columns a product; the segments' sums are then added in order. A block's eight warps take a
 * segment each, and meet in shared memory.
 *
 * A product sums over its 16 columns in whatever order, so a lane may bring any columns as long as it brings the same
 * ones of both operands: lane t of a group of four takes columns [16t, 16t + 16) of a chunk, four a product, and its
 * codes are then 16 neighbours: 8 bytes of NF4, 16 of INT8, 32 of BF16 and F16. */
#include "kernels/cuda/linear.cuh"

enum {
    SEGMENTS = LINEAR_SEGMENTS,
    THREADS = SEGMENTS * WARP_LANES,
    STEPS = 4,       /* products a chunk */
    OUTPUTS = 16,    /* rows of the weights, in one block */
    TILE_ROWS = 8,   /* rows of x in one product */
};

/* Columns [col, col + 16) of a row of x; zeros outside. `whole`: every such run is in the matrix and at 16 bytes. */
static __device__ void load_x(const qr_linear_args &a, int64_t n_cols, bool whole, int64_t row, int64_t col,
                              uint32_t pairs[LANE_COLS / 2]) {
    const uint16_t *x = static_cast<const uint16_t *>(a.x) + row * a.x_stride;
    if (row < a.n_rows && whole) {
        const uint4 *src = reinterpret_cast<const uint4 *>(x + col);
        const uint4 first = src[0], second = src[1];
        pairs[0] = first.x, pairs[1] = first.y, pairs[2] = first.z, pairs[3] = first.w;
        pairs[4] = second.x, pairs[5] = second.y, pairs[6] = second.z, pairs[7] = second.w;
        return;
    }
    for (int i = 0; i < LANE_COLS / 2; i++) {
        const int64_t c = col + 2 * i;
        const bool first = row < a.n_rows && c < n_cols, second = row < a.n_rows && c + 1 < n_cols;
        pairs[i] = pack16(first ? x[c] : static_cast<uint16_t>(0), second ? x[c + 1] : static_cast<uint16_t>(0));
    }
}

/* Adds the segments' sums in order and stores them: shared `sums` [SEGMENTS][tiles][OUTPUTS][TILE_ROWS]. */
template <int tiles> static __device__ void store_sums(const qr_linear_args &a, const matrix &w, const float *sums) {
    enum { TILE = OUTPUTS * TILE_ROWS };
    for (unsigned i = threadIdx.x; i < tiles * TILE; i += THREADS) {
        const int64_t o = static_cast<int64_t>(blockIdx.x) * OUTPUTS + i / TILE_ROWS % OUTPUTS;
        const int64_t row = (static_cast<int64_t>(blockIdx.y) * tiles + i / TILE) * TILE_ROWS + i % TILE_ROWS;
        float sum = sums[i];
        for (unsigned s = 1; s < SEGMENTS; s++) { sum += sums[s * tiles * TILE + i]; }
        if (o < w.rows && row < a.n_rows) { store_linear(a, linear_output_of(a, w, o), row, o, sum); }
    }
}

/* Shared memory: the code book [16, 32] (NF4), then the segments' sums. */
template <typename type, weights_path path, int tiles>
__global__ void linear_mma_kernel(qr_linear_args a, matrix w, bool whole) {
    float *book = shared_memory<float>(), *sums = book + (path == PATH_NF4 ? BOOK_FLOATS : 0);
    if (path == PATH_NF4) { fill_book(w, book); }
    __syncthreads();
    const unsigned group = lane_index() / 4, quad = lane_index() % 4;
    const int64_t o = static_cast<int64_t>(blockIdx.x) * OUTPUTS + group;
    const int64_t row = static_cast<int64_t>(blockIdx.y) * tiles * TILE_ROWS + group;
    const int64_t n_chunks = (w.cols + CHUNK - 1) / CHUNK, per_segment = linear_segment_chunks(n_chunks);
    const int64_t begin = warp_index() * per_segment;
    const int64_t end = begin + per_segment < n_chunks ? begin + per_segment : n_chunks;
    float d[tiles][4] = {};
    for (int64_t chunk = begin; chunk < end; chunk++) {
        const int64_t col = chunk * CHUNK + quad * LANE_COLS;
        uint32_t low[LANE_COLS / 2], high[LANE_COLS / 2], x[LANE_COLS / 2];
        load_weights<type, path>(w, o, col, book, low);
        load_weights<type, path>(w, o + OUTPUTS / 2, col, book, high);
#pragma unroll
        for (int t = 0; t < tiles; t++) {
            load_x(a, w.cols, whole, row + t * TILE_ROWS, col, x);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const uint32_t left[4] = {low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1]};
                const uint32_t right[2] = {x[2 * step], x[2 * step + 1]};
                type::mma(d[t], left, right);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < tiles; t++) {
        float *tile = sums + (warp_index() * tiles + t) * OUTPUTS * TILE_ROWS;
        for (unsigned i = 0; i < 4; i++) { tile[(group + i / 2 * 8) * TILE_ROWS + 2 * quad + i % 2] = d[t][i]; }
    }
    __syncthreads();
    store_sums<tiles>(a, w, sums);
}

template <typename type, weights_path path, int tiles>
static qrun_status launch(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, bool whole,
                          qr_error *err) {
    const size_t book_bytes = path == PATH_NF4 ? BOOK_FLOATS * sizeof(float) : 0;
    const size_t shared_bytes = book_bytes + SEGMENTS * tiles * OUTPUTS * TILE_ROWS * sizeof(float);
    dim3 grid = blocks_for(w.rows, OUTPUTS);
    grid.y = static_cast<unsigned>(qr_ceil_div(args.n_rows, tiles * TILE_ROWS));
    return QR_LAUNCH(cuda.device, err, (linear_mma_kernel<type, path, tiles>), grid, THREADS, shared_bytes, args, w,
                     whole);
}

/* A few rows: one tile, the bandwidth of the weights decides. More: four tiles a block, so that weights are dequantised
 * once for 32 rows. */
template <typename type, weights_path path>
static qrun_status launch_rows(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, bool whole,
                               qr_error *err) {
    return args.n_rows <= TILE_ROWS ? launch<type, path, 1>(cuda, args, w, whole, err)
                                    : launch<type, path, 4>(cuda, args, w, whole, err);
}

template <typename type>
static qrun_status launch_path(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    const bool whole = linear_x_is_whole(args);
    switch (path_of(w, args.x_dtype)) {
    case PATH_NF4: return launch_rows<type, PATH_NF4>(cuda, args, w, whole, err);
    case PATH_INT8: return launch_rows<type, PATH_INT8>(cuda, args, w, whole, err);
    case PATH_16: return launch_rows<type, PATH_16>(cuda, args, w, whole, err);
    default: return launch_rows<type, PATH_ANY>(cuda, args, w, whole, err);
    }
}

qrun_status qr_cuda_linear_mma(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    const matrix w = matrix_of(cuda, *args.weight);
    qr_linear_args part = args;
    for (int64_t row = 0; row < args.n_rows; row += LINEAR_LAUNCH_ROWS) {
        part.n_rows = qr_min(LINEAR_LAUNCH_ROWS, args.n_rows - row);
        part.x = static_cast<const uint16_t *>(args.x) + row * args.x_stride;
        part.y = args.y + row * args.y_stride;
        const qrun_status status = args.x_dtype == QR_DTYPE_F16 ? launch_path<of_f16>(cuda, part, w, err)
                                                                : launch_path<of_bf16>(cuda, part, w, err);
        if (status != QRUN_OK) { return status; }
    }
    return QRUN_OK;
}
