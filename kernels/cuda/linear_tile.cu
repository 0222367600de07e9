/* linear with x in BF16 or F16 for many rows: a block computes a tile of outputs × rows, 64 columns at a time, with x
 * and the weights in shared memory as 16-bit numbers. The sums are those of linear_mma.cu to the bit: the same products
 * in the same order, the same eight segments of columns, their sums added in order.
 *
 * A row of a stage is 128 bytes, eight pieces of 16; piece p of row r lies at place p ^ (r mod 8). The lanes that read
 * together (two rows, pieces 2t or 2t + 1), that write together by cp.async (the pieces of one row) and that write
 * dequantised weights together (one piece each of four rows' halves) then meet 32 banks each.
 *
 * x arrives by cp.async two chunks ahead; so do weights of x's type. Quantised weights are loaded to registers two
 * chunks ahead and dequantised one ahead, a run of 32 columns a thread, once a block: between the products, so that the
 * tensor cores do not wait.
 *
 * What bounds a tile of 128 × 128: per chunk the warps read 8 · (32 + 64) · 128 bytes of operands, 96 KB, and write
 * 32 KB, which take an SM 1,024 cycles at 128 bytes a cycle; its tensor cores take 512 (H100) or 1,024 (A100) for the
 * 2^20 multiply-adds by this instruction at their peak. Larger tiles of a warp would read less, but a thread holds a
 * segment's sum and the total of each of its 64 results already. Those 128 registers are also why one block of 256
 * threads lies on an SM and not two, and why the work between barriers is laid out for a block alone. */
#include "kernels/cuda/linear.cuh"

/* A warp computes 32 outputs × 8 · n_tiles rows. */
template <int out_warps, int row_warps, int n_row_tiles> struct tile_shape {
    enum {
        ROW_WARPS = row_warps,
        N_TILES = n_row_tiles,
        THREADS = out_warps * row_warps * WARP_LANES,
        OUTPUTS = out_warps * 32,
        ROWS = row_warps * n_row_tiles * 8,
        BLOCKS = n_row_tiles > 4 ? 1 : 3, /* on a multiprocessor, by registers */
    };
};

typedef tile_shape<4, 2, 8> large_tile; /* 128 × 128 */
typedef tile_shape<2, 2, 4> small_tile; /* 64 × 64 */

enum { M_TILES = 2, PIECES = CHUNK / PIECE_COLS, X_STAGES = 3 };

/* Weights that cp.async brings need as many stages as x; dequantised ones are written one chunk ahead. */
template <weights_path path, class shape> struct tile_memory {
    enum { W_STAGES = path == PATH_16 ? 3 : 2 };
    uint16_t x[X_STAGES][shape::ROWS * CHUNK];
    uint16_t w[W_STAGES][shape::OUTPUTS * CHUNK];
    float map[path == PATH_NF4 ? 256 : 4]; /* the signed dynamic map; unused by other formats */
};

static __device__ __forceinline__ unsigned place_of(unsigned row, unsigned piece) {
    return (row * PIECES + (piece ^ (row % PIECES))) * PIECE_COLS;
}

static __device__ __forceinline__ uint4 piece_at(const uint16_t *stage, unsigned row, unsigned piece) {
    return *reinterpret_cast<const uint4 *>(stage + place_of(row, piece));
}

/* Rows [first, first + n_stage_rows) of a matrix of n_rows, columns [col, col + 64); zeros behind the last row. */
template <int n_stage_rows, int n_threads>
static __device__ __forceinline__ void copy_rows(uint16_t *stage, const void *src, int64_t stride, int64_t first,
                                                 int64_t n_rows, int64_t col) {
    const uint16_t *rows = static_cast<const uint16_t *>(src);
#pragma unroll
    for (unsigned i = 0; i < n_stage_rows * PIECES / n_threads; i++) {
        const unsigned index = threadIdx.x + i * n_threads, row = index / PIECES, piece = index % PIECES;
        const bool inside = first + row < n_rows;
        const int64_t at = (inside ? (first + row) * stride : 0) + col + piece * PIECE_COLS;
        copy_async_16(stage + place_of(row, piece), rows + at, inside ? 16 : 0);
    }
}

template <typename type, weights_path path, class shape> struct tile {
    const qr_linear_args &a;
    const matrix &w;
    tile_memory<path, shape> &shared;
    int64_t first_output, first_row;
    run_codes<path> run; /* of this thread: the chunk that is dequantised next */
    float d[M_TILES][shape::N_TILES][4], total[M_TILES][shape::N_TILES][4];

    __device__ tile(const qr_linear_args &args, const matrix &weight, tile_memory<path, shape> &memory)
        : a(args), w(weight), shared(memory), first_output(static_cast<int64_t>(blockIdx.y) * shape::OUTPUTS),
          first_row(static_cast<int64_t>(blockIdx.x) * shape::ROWS) {
        /* −0 is the number that added to any other leaves it, sign of zero included: the first segment's sum. */
        for_each_result([this](int m, int n, int i) { d[m][n][i] = 0.0F, total[m][n][i] = -0.0F; });
    }

    template <typename F> static __device__ __forceinline__ void for_each_result(F apply) {
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
#pragma unroll
            for (int n = 0; n < shape::N_TILES; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) { apply(m, n, i); }
            }
        }
    }

    __device__ __forceinline__ void end_segment() {
        for_each_result([this](int m, int n, int i) { total[m][n][i] += d[m][n][i], d[m][n][i] = 0.0F; });
    }

    /* Starts the copies of a chunk; of none, an empty group of them. */
    __device__ __forceinline__ void copy(int chunk, int n_chunks) {
        if (chunk < n_chunks) {
            copy_rows<shape::ROWS, shape::THREADS>(shared.x[chunk % X_STAGES], a.x, a.x_stride, first_row, a.n_rows,
                                                   chunk * CHUNK);
            if (path == PATH_16) {
                copy_rows<shape::OUTPUTS, shape::THREADS>(shared.w[chunk % X_STAGES], w.codes, w.cols, first_output,
                                                          w.rows, chunk * CHUNK);
            }
        }
        copy_async_commit();
    }

    /* Two threads for a row of the weights. */
    __device__ __forceinline__ void load(int chunk, int n_chunks) {
        if (path == PATH_16 || chunk >= n_chunks) { return; }
        load_run<path>(w, first_output + threadIdx.x / 2, chunk * CHUNK + threadIdx.x % 2 * RUN_COLS, run);
    }

    __device__ __forceinline__ nf4_products products_of_run(const nf4_book &book) const {
        if (path != PATH_NF4) { return nf4_products(); }
        return nf4_products_of<type>(book, matrix_absmax_of(w, run.absmax, shared.map));
    }

    __device__ __forceinline__ void dequantize(uint16_t *stage, const nf4_products &products, int piece) const {
        const unsigned place = place_of(threadIdx.x / 2, threadIdx.x % 2 * RUN_PIECES + static_cast<unsigned>(piece));
        *reinterpret_cast<uint4 *>(stage + place) = run_piece<type, path>(run, products, piece);
    }

    /* Products 2 · half and 2 · half + 1 of a chunk. */
    __device__ __forceinline__ void multiply(const uint16_t *x, const uint16_t *weights, unsigned half) {
        const unsigned group = lane_index() / 4, piece = lane_index() % 4 * 2 + half;
        const unsigned output = warp_index() / shape::ROW_WARPS * 32 + group;
        const unsigned row = warp_index() % shape::ROW_WARPS * shape::N_TILES * 8 + group;
        uint4 low[M_TILES], high[M_TILES];
#pragma unroll
        for (unsigned m = 0; m < M_TILES; m++) {
            low[m] = piece_at(weights, output + m * 16, piece);
            high[m] = piece_at(weights, output + m * 16 + 8, piece);
        }
#pragma unroll
        for (unsigned n = 0; n < shape::N_TILES; n++) {
            const uint4 b = piece_at(x, row + n * 8, piece);
            const uint32_t first[2] = {b.x, b.y}, second[2] = {b.z, b.w};
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                const uint32_t left[4] = {low[m].x, high[m].x, low[m].y, high[m].y};
                type::mma(d[m][n], left, first);
            }
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                const uint32_t left[4] = {low[m].z, high[m].z, low[m].w, high[m].w};
                type::mma(d[m][n], left, second);
            }
        }
    }

    /* A chunk's products, and between them the dequantisation of the next one. */
    __device__ __forceinline__ void step(int chunk, int n_chunks, const nf4_book &book) {
        const uint16_t *x = shared.x[chunk % X_STAGES], *weights = shared.w[chunk % tile_memory<path, shape>::W_STAGES];
        uint16_t *next = shared.w[(chunk + 1) % tile_memory<path, shape>::W_STAGES];
        const bool dequantizes = path != PATH_16 && chunk + 1 < n_chunks;
        const nf4_products products = products_of_run(book);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (dequantizes) {
                dequantize(next, products, 2 * half);
                dequantize(next, products, 2 * half + 1);
            }
            multiply(x, weights, static_cast<unsigned>(half));
        }
        load(chunk + 2, n_chunks);
    }

    __device__ __forceinline__ void store() const {
        const unsigned group = lane_index() / 4, quad = lane_index() % 4;
        const int64_t output = first_output + warp_index() / shape::ROW_WARPS * 32 + group;
        const int64_t row = first_row + warp_index() % shape::ROW_WARPS * shape::N_TILES * 8 + 2 * quad;
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
#pragma unroll
            for (int high = 0; high < 2; high++) {
                const int64_t o = output + m * 16 + high * 8;
                if (o >= w.rows) { continue; }
                const linear_output out = linear_output_of(a, w, o);
#pragma unroll
                for (int i = 0; i < shape::N_TILES * 2; i++) {
                    const int64_t r = row + i / 2 * 8 + i % 2;
                    if (r < a.n_rows) { store_linear(a, out, r, o, total[m][i / 2][high * 2 + i % 2]); }
                }
            }
        }
    }
};

template <typename type, weights_path path, class shape>
__global__ void __launch_bounds__(shape::THREADS, shape::BLOCKS)
    linear_tile_kernel(qr_linear_args a, matrix w, nf4_book book) {
    tile<type, path, shape> t(a, w, *shared_memory<tile_memory<path, shape>>());
    const int n_chunks = static_cast<int>(w.cols / CHUNK);
    const int per_segment = static_cast<int>(linear_segment_chunks(n_chunks));
    t.copy(0, n_chunks);
    t.copy(1, n_chunks);
    t.load(0, n_chunks);
    if (path == PATH_NF4) {
        for (unsigned i = threadIdx.x; i < 256; i += shape::THREADS) { t.shared.map[i] = w.tables->dynamic_map[1][i]; }
        __syncthreads();
    }
    if (path != PATH_16) {
        const nf4_products products = t.products_of_run(book);
        for (int piece = 0; piece < RUN_PIECES; piece++) { t.dequantize(t.shared.w[0], products, piece); }
        t.load(1, n_chunks);
    }
    int chunk = 0;
    for (int segment = 1; segment <= LINEAR_SEGMENTS; segment++) {
        const int end = segment * per_segment < n_chunks ? segment * per_segment : n_chunks;
        for (; chunk < end; chunk++) {
            copy_async_wait<1>();
            __syncthreads(); /* the chunk is here, and nobody reads the one before it */
            t.copy(chunk + 2, n_chunks);
            t.step(chunk, n_chunks, book);
        }
        t.end_segment();
    }
    t.store();
}

template <typename type, weights_path path, class shape>
static qrun_status launch(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    dim3 grid = blocks_for(args.n_rows, shape::ROWS);
    grid.y = static_cast<unsigned>(qr_ceil_div(w.rows, shape::OUTPUTS));
    return QR_LAUNCH(cuda.device, err, (linear_tile_kernel<type, path, shape>), grid, shape::THREADS,
                     (sizeof(tile_memory<path, shape>)), args, w, nf4_book_of());
}

/* Large tiles read less, small ones are more: while large ones do not fill the GPU. */
template <typename type, weights_path path>
static qrun_status launch_shape(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    const int64_t n_large = qr_ceil_div(w.rows, large_tile::OUTPUTS) * qr_ceil_div(args.n_rows, large_tile::ROWS);
    const bool large = args.n_rows > small_tile::ROWS * 2 && n_large >= qr_device_multiprocessors(cuda.device);
    return large ? launch<type, path, large_tile>(cuda, args, w, err)
                 : launch<type, path, small_tile>(cuda, args, w, err);
}

template <typename type>
static qrun_status launch_path(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, weights_path path,
                               qr_error *err) {
    switch (path) {
    case PATH_NF4: return launch_shape<type, PATH_NF4>(cuda, args, w, err);
    case PATH_INT8: return launch_shape<type, PATH_INT8>(cuda, args, w, err);
    default: return launch_shape<type, PATH_16>(cuda, args, w, err);
    }
}

bool qr_cuda_linear_tile_takes(const qr_linear_args &args, const matrix &w) {
    return args.n_rows > LINEAR_MMA_ROWS && linear_x_is_whole(args) && path_of(w, args.x_dtype) != PATH_ANY;
}

qrun_status qr_cuda_linear_tile(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    const matrix w = matrix_of(cuda, *args.weight);
    const weights_path path = path_of(w, args.x_dtype);
    return args.x_dtype == QR_DTYPE_F16 ? launch_path<of_f16>(cuda, args, w, path, err)
                                        : launch_path<of_bf16>(cuda, args, w, path, err);
}
