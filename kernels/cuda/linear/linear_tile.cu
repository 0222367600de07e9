/* linear with x in BF16 or F16 for many rows: a block computes a tile of outputs × rows, 64 columns at a time, with x
 * and the weights in shared memory as 16-bit values. The sums are those of linear_mma.cu to the bit: the same products
 * in the same order, the same eight segments of columns, their sums added in order.
 *
 * A row of a stage is 128 bytes, eight pieces of 16; piece p of row r is stored at position p ^ (r mod 8). In a row of
 * x pieces are as they come, and lane t of four reads its 16 columns as pieces 2t and 2t + 1. A row of the weights is
 * transposed: piece q holds the q-th pair of each lane's columns, so that load_matrices gives a lane the four registers
 * that a product wants (gathered from 16 columns of two rows they would cost as many moves as there are products). The
 * lanes that read or write together meet 32 banks each in all of these.
 *
 * x arrives by cp.async two chunks ahead. Weights are loaded to registers two chunks ahead and dequantised one ahead, a
 * run of 32 columns a thread, once a block: between the products, so that the tensor cores do not wait.
 *
 * What bounds a tile of 128 × 128, an SM and a chunk: its warps read 8 · (32 + 64) · 128 bytes of operands and write
 * 2 · 16 KB, which takes shared memory 1,024 cycles at 128 bytes each; they issue some 470 instructions each, two warps
 * a scheduler; the tensor cores' datasheet rate for the 2^20 multiply-adds is 512 cycles (H100) or 1,024 (A100). Larger
 * tiles of a warp would read less, but a thread holds a segment's sum and the total of each of its 64 results already:
 * 221 to 255 registers (sm_90a), so that one block of 256 threads lies on an SM and not two, and the work between
 * barriers is laid out for a block alone. A small tile's 128 threads have up to 168: three blocks. */
#include "kernels/cuda/linear/linear.cuh"

/* A warp computes 32 outputs × 8 · n_tiles rows. */
template <int out_warps, int row_warps, int n_row_tiles> struct tile_shape {
    enum {
        ROW_WARPS = row_warps,
        N_TILES = n_row_tiles,
        THREADS = out_warps * row_warps * WARP_LANES,
        OUTPUTS = out_warps * 32,
        ROWS = row_warps * n_row_tiles * 8,
    };
};

typedef tile_shape<4, 2, 8> large_tile; /* 128 × 128 */
typedef tile_shape<2, 2, 4> small_tile; /* 64 × 64 */

enum { M_TILES = 2, STEPS = 4, PIECES = CHUNK / PIECE_COLS, X_STAGES = 3, W_STAGES = 2 };

template <class shape> struct tile_memory {
    uint16_t x[X_STAGES][shape::ROWS * CHUNK];
    uint16_t w[W_STAGES][shape::OUTPUTS * CHUNK];
    float map[256]; /* the signed dynamic map, of NF4_DQ */
};

static QR_DEVICE unsigned place_of(unsigned row, unsigned piece) {
    return (row * PIECES + (piece ^ (row % PIECES))) * PIECE_COLS;
}

/* Starts copies of rows [first, first + shape::ROWS) of x, columns [col, col + 64); zeros after the last row. */
template <class shape>
static QR_DEVICE void copy_x(uint16_t *stage, const qr_linear_args &a, int64_t first, int64_t col) {
    const uint16_t *x = static_cast<const uint16_t *>(a.x);
#pragma unroll
    for (unsigned i = 0; i < shape::ROWS * PIECES / shape::THREADS; i++) {
        const unsigned index = threadIdx.x + i * shape::THREADS, row = index / PIECES, piece = index % PIECES;
        const bool inside = first + row < a.n_rows;
        const int64_t at = (inside ? (first + row) * a.x_stride : 0) + col + piece * PIECE_COLS;
        copy_async_16(stage + place_of(row, piece), x + at, inside ? 16 : 0);
    }
}

template <typename type, weights_path path, class shape> struct tile {
    const qr_linear_args &a;
    const matrix &w;
    tile_memory<shape> &shared;
    const int first_output;
    const int64_t first_row;
    run_codes<path> run; /* of this thread, loaded for the chunk after this one */
    float d[M_TILES][shape::N_TILES][4], total[M_TILES][shape::N_TILES][4];

    __device__ tile(const qr_linear_args &args, const matrix &weight, tile_memory<shape> &memory)
        : a(args), w(weight), shared(memory), first_output(static_cast<int>(blockIdx.y * shape::OUTPUTS)),
          first_row(static_cast<int64_t>(blockIdx.x) * shape::ROWS) {
        /* −0 is the number that added to any other leaves it, sign of zero included: the first segment's sum. */
        for_each_result([this](int m, int n, int i) { d[m][n][i] = 0.0F, total[m][n][i] = -0.0F; });
    }

    template <typename F> static QR_DEVICE void for_each_result(const F &apply) {
        for_each_sum<M_TILES * shape::N_TILES>([&](int n, int i) { apply(n / shape::N_TILES, n % shape::N_TILES, i); });
    }

    QR_DEVICE void end_segment() {
        for_each_result([this](int m, int n, int i) { total[m][n][i] += d[m][n][i], d[m][n][i] = 0.0F; });
    }

    /* Starts the copies of a chunk; of none, an empty group of them. */
    QR_DEVICE void copy(int chunk, int n_chunks) const {
        if (chunk < n_chunks) { copy_x<shape>(shared.x[chunk % X_STAGES], a, first_row, int64_t{chunk} * CHUNK); }
        copy_async_commit();
    }

    /* Two threads for a row of the weights. */
    QR_DEVICE void load(int chunk, int n_chunks) {
        if (chunk >= n_chunks) { return; }
        const int64_t col = int64_t{chunk} * CHUNK + threadIdx.x % 2 * RUN_COLS;
        load_run<path>(w, first_output + static_cast<int>(threadIdx.x / 2), col, run);
    }

    /* Half of a run to shared memory: pairs [4 · part, 4 · part + 4) of its two lanes' columns, side by side. */
    QR_DEVICE void dequantize(int chunk, const run_codes<path> &codes, const nf4_products &products, int part) const {
        const uint4 one = run_piece<type, path>(codes, products, part);
        const uint4 two = run_piece<type, path>(codes, products, part + 2);
        const uint2 pairs[4] = {{one.x, two.x}, {one.y, two.y}, {one.z, two.z}, {one.w, two.w}};
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const unsigned place = place_of(threadIdx.x / 2, static_cast<unsigned>(part) * 4 + i);
            reinterpret_cast<uint2 *>(&shared.w[chunk % W_STAGES][place])[threadIdx.x % 2] = pairs[i];
        }
    }

    QR_DEVICE nf4_products products_of(const run_codes<path> &codes, const nf4_book &book) const {
        if (path != PATH_NF4) { return nf4_products(); }
        return nf4_products_of<type>(book, matrix_absmax_of(w, codes.absmax, shared.map));
    }

    /* The weights of a chunk, and the load of the next one. */
    QR_DEVICE void prepare(int chunk, int n_chunks, const nf4_book &book) {
        const nf4_products products = products_of(run, book);
        for (int part = 0; part < 2; part++) { dequantize(chunk, run, products, part); }
        load(chunk + 1, n_chunks);
    }

    /* Products 2 · part and 2 · part + 1 of a chunk. */
    QR_DEVICE void multiply(int chunk, unsigned part) {
        const uint16_t *x = shared.x[chunk % X_STAGES], *weights = shared.w[chunk % W_STAGES];
        const unsigned lane = lane_index(), output = warp_index() / shape::ROW_WARPS * 32 + lane % 16;
        const unsigned row = warp_index() % shape::ROW_WARPS * shape::N_TILES * 8 + lane / 4;
        uint32_t left[M_TILES][STEPS / 2][4];
#pragma unroll
        for (unsigned m = 0; m < M_TILES; m++) {
#pragma unroll
            for (unsigned i = 0; i < STEPS / 2; i++) {
                const unsigned piece = part * 4 + i * 2 + lane / 16;
                load_matrices(left[m][i], weights + place_of(output + m * 16, piece));
            }
        }
#pragma unroll
        for (unsigned n = 0; n < shape::N_TILES; n++) {
            const uint16_t *piece = x + place_of(row + n * 8, lane % 4 * 2 + part);
            const uint4 b = *reinterpret_cast<const uint4 *>(piece);
            const uint32_t right[STEPS / 2][2] = {{b.x, b.y}, {b.z, b.w}};
#pragma unroll
            for (int i = 0; i < STEPS / 2; i++) {
#pragma unroll
                for (int m = 0; m < M_TILES; m++) { type::mma(d[m][n], left[m][i], right[i]); }
            }
        }
    }

    /* A chunk's products, and the weights of the next one: NF4's, which take as many instructions as all else, between
     * the products; the others', of which a run is many registers, before them. */
    QR_DEVICE void step(int chunk, int n_chunks, const nf4_book &book) {
        const bool more = chunk + 1 < n_chunks;
        if (path != PATH_NF4) {
            if (more) { prepare(chunk + 1, n_chunks, book); }
            multiply(chunk, 0);
            multiply(chunk, 1);
            return;
        }
        const run_codes<path> codes = run;
        load(chunk + 2, n_chunks);
        const nf4_products products = products_of(codes, book);
        if (more) { dequantize(chunk + 1, codes, products, 0); }
        multiply(chunk, 0);
        if (more) { dequantize(chunk + 1, codes, products, 1); }
        multiply(chunk, 1);
    }

    QR_DEVICE void store() const {
        const int64_t output = first_output + warp_index() / shape::ROW_WARPS * 32;
        const int64_t row = first_row + warp_index() % shape::ROW_WARPS * shape::N_TILES * 8;
#pragma unroll
        for (int m = 0; m < M_TILES; m++) { store_linear_tiles(a, w, output + m * 16, row, total[m]); }
    }
};

template <typename type, weights_path path, class shape>
__global__ void __launch_bounds__(shape::THREADS) linear_tile_kernel(qr_linear_args a, matrix w, nf4_book book) {
    tile<type, path, shape> t(a, w, *shared_memory<tile_memory<shape>>());
    const int n_chunks = static_cast<int>(w.cols / CHUNK);
    const int per_segment = static_cast<int>(linear_segment_chunks(n_chunks));
    t.copy(0, n_chunks);
    t.copy(1, n_chunks);
    t.load(0, n_chunks);
    if (path == PATH_NF4) {
        for (unsigned i = threadIdx.x; i < 256; i += shape::THREADS) { t.shared.map[i] = w.tables->dynamic_map[1][i]; }
        __syncthreads();
    }
    t.prepare(0, n_chunks, book);
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
                     (sizeof(tile_memory<shape>)), args, w, nf4_book_of());
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
static qrun_status launch_path(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    return QR_BY_PATH(path_of(w, args.x_dtype), launch_shape, type, cuda, args, w, err);
}

bool qr_cuda_linear_tile_takes(const qr_linear_args &args, const matrix &w) {
    return args.n_rows > LINEAR_MMA_ROWS && linear_x_is_whole(args) && path_of(w, args.x_dtype) != PATH_ANY;
}

qrun_status qr_cuda_linear_tile(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    return QR_BY_TYPE(args.x_dtype, launch_path, cuda, args, matrix_of(cuda, *args.weight), err);
}
