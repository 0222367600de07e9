/* The tiles of linear_tile.cu, for the matrices of linear and of experts (expert_linear.cu). */
#ifndef QR_KERNELS_CUDA_LINEAR_TILE_CUH
#define QR_KERNELS_CUDA_LINEAR_TILE_CUH

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
template <class shape, class rows_type>
static QR_DEVICE void copy_x(uint16_t *stage, const qr_linear_args &a, const rows_type &rows, int64_t first,
                             int64_t col) {
    const uint16_t *x = static_cast<const uint16_t *>(a.x);
#pragma unroll
    for (unsigned i = 0; i < shape::ROWS * PIECES / shape::THREADS; i++) {
        const unsigned index = threadIdx.x + i * shape::THREADS, row = index / PIECES, piece = index % PIECES;
        const bool inside = first + row < a.n_rows;
        const int64_t at = (inside ? rows.of_x(first + row) * a.x_stride : 0) + col + piece * PIECE_COLS;
        copy_async_16(stage + place_of(row, piece), x + at, inside ? 16 : 0);
    }
}

/* rows_type: linear_rows, or one like it. */
template <typename type, weights_path path, class shape, class rows_type> struct tile {
    const qr_linear_args &a;
    const matrix &w;
    const rows_type &rows;
    tile_memory<shape> &shared;
    const int first_output;
    const int64_t first_row;
    run_codes<path> run; /* of this thread, loaded for the chunk after this one */
    float d[M_TILES][shape::N_TILES][4], total[M_TILES][shape::N_TILES][4];

    __device__ tile(const qr_linear_args &args, const matrix &weight, const rows_type &rows_,
                    tile_memory<shape> &memory)
        : a(args), w(weight), rows(rows_), shared(memory), first_output(static_cast<int>(blockIdx.y * shape::OUTPUTS)),
          first_row(rows.first(shape::ROWS, blockIdx.x)) {
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
        if (chunk < n_chunks) { copy_x<shape>(shared.x[chunk % X_STAGES], a, rows, first_row, int64_t{chunk} * CHUNK); }
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

/* A block's tile. */
template <typename type, weights_path path, class shape, class rows_type>
static QR_DEVICE void compute_tile(const qr_linear_args &a, const matrix &w, const rows_type &rows,
                                   const nf4_book &book) {
    tile<type, path, shape, rows_type> t(a, w, rows, *shared_memory<tile_memory<shape>>());
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

#endif
