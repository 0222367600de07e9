/* linear with x in BF16 or F16 for many rows on Hopper: the sums of linear_mma.cu and linear_tile.cu by wgmma
 * (wgmma.cuh), the same products of the same columns in the same order. A block computes 128 outputs × 128 rows, its
 * two warpgroups 64 outputs each. Weights go from their codes to the registers of a product, x through shared memory.
 *
 * Lane t of four has columns [16t, 16t + 16) of a chunk of the weights, four a product (linear.cuh), at positions 2t,
 * 2t + 1, 2t + 8 and 2t + 9 of its 16. So pair 8t + 2 · step + h of a row of x is stored at position 8 · step + 4h + t
 * in shared memory (then swizzled): lane t of four brings 8t + 4q to 8t + 4q + 3, one load of 16 bytes, and stores them
 * one by one. The eight lanes of a row read 128 bytes in one piece, and the 32 that store together meet 32 banks: as
 * many cycles of shared memory as plain copies of x would take, for 20 instructions a thread and chunk in place of 4. A
 * pass that puts x in this order beforehand would read and write all of it once more, in a workspace of its size: for
 * 4,096 rows and outputs of 14,336 columns a seventh of what the product takes at the datasheet rates of an H100.
 *
 * While the products of a chunk run, the next chunk's weights are dequantised, its x is stored, and x and codes of the
 * chunks after it are loaded; the products of the next chunk are issued before these have ended. What bounds a chunk,
 * in cycles of an SM of an H100: the tensor cores' datasheet rate for the 2^20 multiply-adds is 512. Products read x
 * twice from shared memory, 256, which takes it in at 128, and NF4's tables by 14 shuffles a warp, 112: 496. A
 * scheduler issues for two warps; sm_90a's code has some 230 instructions for NF4, 180 for INT8, 140 for weights of 16
 * bits: 460, 360 and 280. Of NF4's some 115 are integer instructions, at half that rate: 460. So NF4's weights are on
 * the edge. At the end of a segment, every eighth chunk of 4,096 columns, products must have ended, and 128
 * instructions pass before the next. 240 registers (NF4), no spills: one block an SM. */
#include "kernels/cuda/linear/linear.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

enum {
    THREADS = 256,
    OUTPUTS = 128,
    ROWS = WGMMA_COLUMNS,
    ABSMAX_CHUNKS = 4,               /* whose absmax the lanes of a quad hold, one each */
    X_STAGES = 4,                    /* a power of two; products read two while another chunk arrives */
    PIECES = CHUNK / PIECE_COLS,     /* of a row and chunk of x */
    ROWS_AT_ONCE = THREADS / PIECES, /* of x, in one load of all threads */
    X_LOADS = ROWS / ROWS_AT_ONCE,
};

struct wgmma_memory {
    uint16_t x[X_STAGES][ROWS * CHUNK]; /* each a tile as wgmma.cuh has it */
    float map[256];                     /* the signed dynamic map, of NF4_DQ */
};

#if QR_HAS_WGMMA

static QR_DEVICE void multiply(of_bf16, float (&d)[WGMMA_TILES][4], const uint32_t (&a)[4], const wgmma_tiles &b,
                               unsigned tile, unsigned step) {
    wgmma_bf16(d, a, b, tile, step);
}

static QR_DEVICE void multiply(of_f16, float (&d)[WGMMA_TILES][4], const uint32_t (&a)[4], const wgmma_tiles &b,
                               unsigned tile, unsigned step) {
    wgmma_f16(d, a, b, tile, step);
}

template <typename type, weights_path path> struct wgmma_tile {
    enum { DEPTH = path == PATH_NF4 ? 2 : 1 }; /* chunks of codes in registers */
    const qr_linear_args &a;
    const matrix &w;
    wgmma_memory &shared;
    const wgmma_tiles tiles; /* the stages of x */
    const uint32_t n_chunks;
    const int first_output;
    const int64_t first_row;
    const unsigned char *const x, *const codes_first; /* the block's first rows of x and of codes; bytes from there: */
    uint32_t x_at[X_LOADS];                           /* of this thread's pieces of x in chunk 0, */
    uint32_t codes_at[2];             /* and of this lane's codes of its two rows of the weights, in chunk 0 */
    uint32_t at[2];                   /* chunks of the flattened matrix before these rows */
    uint32_t x_place;                 /* where in a stage the first pair of a piece is stored */
    uint4 x_pieces[X_LOADS];          /* of the chunk after the one that arrives in shared memory next */
    lane_codes<path> codes[DEPTH][2]; /* of the next chunk to dequantise and those after it */
    absmax_parts ahead[2];            /* of the next ABSMAX_CHUNKS, */
    float absmax[2];                  /* and of these, in it of the chunk with this lane's number */
    float codebook[4];                /* this lane's quarter */
    nf4_order order;                  /* of the tables that quads make */
    uint32_t left[2][CHUNK_STEPS][4]; /* weights of the chunk that is multiplied, and of the next one */
    float d[WGMMA_TILES][4], total[WGMMA_TILES][4];

    QR_DEVICE wgmma_tile(const qr_linear_args &args, const matrix &weight, wgmma_memory &memory, const nf4_book &book)
        : a(args), w(weight), shared(memory), tiles(wgmma_tiles_at(memory.x)),
          n_chunks(static_cast<uint32_t>(weight.cols / CHUNK)), first_output(static_cast<int>(blockIdx.y * OUTPUTS)),
          first_row(static_cast<int64_t>(blockIdx.x) * ROWS),
          x(reinterpret_cast<const unsigned char *>(static_cast<const uint16_t *>(a.x) + first_row * a.x_stride)),
          codes_first(w.codes + int64_t{first_output} * n_chunks * lane_codes<path>::CHUNK_BYTES) {
        const unsigned quad = lane_index() % 4;
        place_x();
        place_weights(quad);
        order = {quad % 2 == 0 ? 0U : 0x44444444U, quad < 2 ? 0x32103210U : 0x76547654U};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            codebook[i] = quad == 0   ? book.value[i]
                          : quad == 1 ? book.value[4 + i]
                          : quad == 2 ? book.value[8 + i]
                                      : book.value[12 + i];
        }
        for_each_sum<WGMMA_TILES>([&](int n, int i) { d[n][i] = 0.0F, total[n][i] = -0.0F; }); /* see linear_tile.cu */
    }

    /* Rows past the last one repeat it, of x and of the weights; their results are not stored. */
    QR_DEVICE void place_x() {
        const unsigned row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES, lane = piece / 2;
        x_place = row * (CHUNK * 2) + (piece % 2 * 4 ^ row % PIECES) * 16 + lane * 4;
        const int64_t last = a.n_rows - 1 - first_row;
#pragma unroll
        for (unsigned i = 0; i < X_LOADS; i++) {
            const int64_t r = row + i * ROWS_AT_ONCE;
            x_at[i] = static_cast<uint32_t>((r < last ? r : last) * a.x_stride * 2 + piece * 16);
        }
    }

    QR_DEVICE void place_weights(unsigned quad) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t o = first_output + warp_index() * 16 + lane_index() / 4 + half * 8;
            const int64_t row = o < w.rows ? o : w.rows - 1;
            at[half] = static_cast<uint32_t>(row * n_chunks);
            codes_at[half] = static_cast<uint32_t>((row - first_output) * n_chunks * lane_codes<path>::CHUNK_BYTES +
                                                   quad * (lane_codes<path>::CHUNK_BYTES / 4));
        }
    }

    /* --- x: from global memory to registers, a chunk later to shared memory, in the columns' order --- */

    QR_DEVICE void load_x(uint32_t chunk) {
        if (chunk >= n_chunks) { return; }
#pragma unroll
        for (int i = 0; i < X_LOADS; i++) {
            x_pieces[i] = *reinterpret_cast<const uint4 *>(x + chunk * (CHUNK * 2) + x_at[i]);
        }
    }

    QR_DEVICE void store_x(uint32_t chunk) {
        if (chunk >= n_chunks) { return; }
        unsigned char *stage = reinterpret_cast<unsigned char *>(shared.x[chunk % X_STAGES]);
#pragma unroll
        for (unsigned pair = 0; pair < 4; pair++) {
            unsigned char *dst = stage + (x_place ^ pair * 16);
#pragma unroll
            for (int i = 0; i < X_LOADS; i++) {
                const uint4 &v = x_pieces[i];
                *reinterpret_cast<uint32_t *>(dst + i * (ROWS_AT_ONCE * CHUNK * 2)) = pair == 0   ? v.x
                                                                                      : pair == 1 ? v.y
                                                                                      : pair == 2 ? v.z
                                                                                                  : v.w;
            }
        }
    }

    /* --- Weights: codes to registers, and to the operands of products --- */

    template <int side> QR_DEVICE void load_weights(uint32_t chunk) {
        if (chunk >= n_chunks) { return; }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            load_codes(codes_first + uint64_t{chunk} * lane_codes<path>::CHUNK_BYTES + codes_at[half],
                       codes[side % DEPTH][half]);
        }
    }

    /* Of ABSMAX_CHUNKS chunks from this one on. */
    QR_DEVICE void load_absmax(uint32_t chunk) {
        if (chunk >= n_chunks) { return; }
        const uint32_t mine = chunk + lane_index() % 4, last = n_chunks - 1;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            ahead[half] = matrix_absmax_parts(w, (at[half] + (mine < last ? mine : last)) >> (w.block_shift - 6));
        }
    }

    /* The sixteen weights of a block, of which each lane of a quad makes four: word i of a lane is that of lane ^ i. */
    QR_DEVICE nf4_products products_of(float scale) const {
        const uint32_t first = type::pack(codebook[0] * scale, codebook[1] * scale);
        const uint32_t second = type::pack(codebook[2] * scale, codebook[3] * scale);
        nf4_products products;
        products.low[0] = permute_bytes(first, second, 0x6420U);
        products.high[0] = permute_bytes(first, second, 0x7531U);
#pragma unroll
        for (int i = 1; i < 4; i++) {
            const unsigned other = i == 1 ? 1 : 2;
            products.low[i] = warp_shuffle_xor(products.low[i - other], other);
            products.high[i] = warp_shuffle_xor(products.high[i - other], other);
        }
        return products;
    }

    QR_DEVICE void next_absmax(uint32_t chunk) {
        if (chunk % ABSMAX_CHUNKS != 0) { return; }
#pragma unroll
        for (int half = 0; half < 2; half++) { absmax[half] = matrix_absmax_of(w, ahead[half], shared.map); }
        load_absmax(chunk + ABSMAX_CHUNKS);
    }

    /* A chunk's weights to operands, and the load of those DEPTH chunks later into the same registers. */
    template <int side> QR_DEVICE void dequantize(uint32_t chunk) {
        if (chunk >= n_chunks) { return; }
        if (path == PATH_NF4) { next_absmax(chunk); }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_codes<path> &row = codes[side % DEPTH][half];
            nf4_products products = {};
            if (path == PATH_NF4) { products = products_of(quad_shuffle(absmax[half], chunk % ABSMAX_CHUNKS)); }
#pragma unroll
            for (unsigned step = 0; step < CHUNK_STEPS; step += 2) {
                uint32_t pairs[4];
                if (path == PATH_NF4) {
                    nf4_lookup(products, step == 0 ? row.vectors[0].x : row.vectors[0].y, pairs, order);
                } else {
                    lane_step<type, path>(row, step, pairs);
                    lane_step<type, path>(row, step + 1, pairs + 2);
                }
                left[side][step][half] = pairs[0], left[side][step][half + 2] = pairs[1];
                left[side][step + 1][half] = pairs[2], left[side][step + 1][half + 2] = pairs[3];
            }
        }
        load_weights<side>(chunk + DEPTH);
    }

    /* --- Products --- */

    QR_DEVICE void start() {
        if (path == PATH_NF4) { load_absmax(0); }
        load_weights<0>(0);
        if (DEPTH > 1) { load_weights<1>(1); }
        load_x(0);
        store_x(0);
        wgmma_show();
        load_x(1);
        dequantize<0>(0);
    }

    /* Issues the products of a chunk, and prepares the weights of the next one and x of the next two meanwhile. */
    template <int side> QR_DEVICE void step(uint32_t chunk) {
        __syncthreads(); /* the chunk is here, and no product before the last chunk's is under way */
        wgmma_begin();
#pragma unroll
        for (unsigned i = 0; i < CHUNK_STEPS; i++) { multiply(type(), d, left[side][i], tiles, chunk % X_STAGES, i); }
        wgmma_end();
        wgmma_wait<1>();
        store_x(chunk + 1);
        wgmma_show(); /* before loads, for which it would wait */
        load_x(chunk + 2);
        dequantize<1 - side>(chunk + 1);
    }

    QR_DEVICE void end_segment() {
        wgmma_wait<0>();
        for_each_sum<WGMMA_TILES>([&](int n, int i) { total[n][i] += d[n][i], d[n][i] = 0.0F; });
    }

    /* After an odd number of chunks the next one is on side 1 and belongs on side 0. */
    QR_DEVICE void turn() {
#pragma unroll
        for (int i = 0; i < CHUNK_STEPS * 4; i++) { left[0][i / 4][i % 4] = left[1][i / 4][i % 4]; }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_codes<path> first = codes[0][half];
            codes[0][half] = codes[DEPTH - 1][half], codes[DEPTH - 1][half] = first; /* of one, nothing */
        }
    }

    QR_DEVICE void run() {
        const uint32_t per_segment = static_cast<uint32_t>(linear_segment_chunks(n_chunks));
        uint32_t chunk = 0;
        for (uint32_t segment = 1; segment <= LINEAR_SEGMENTS; segment++) {
            const uint32_t end = segment * per_segment < n_chunks ? segment * per_segment : n_chunks;
            const bool odd = (end - chunk) % 2 != 0;
            for (; chunk < end; chunk += 2) {
                step<0>(chunk);
                if (chunk + 1 < end) { step<1>(chunk + 1); }
            }
            chunk = end;
            end_segment();
            if (odd) { turn(); }
        }
    }
};

#endif

template <typename type, weights_path path>
__global__ void __launch_bounds__(THREADS, 1) linear_wgmma_kernel(qr_linear_args a, matrix w, nf4_book book) {
#if QR_HAS_WGMMA
    wgmma_memory &shared = *wgmma_shared_memory<wgmma_memory>();
    if (path == PATH_NF4) {
        shared.map[threadIdx.x] = w.tables->dynamic_map[1][threadIdx.x];
        __syncthreads();
    }
    wgmma_tile<type, path> tile(a, w, shared, book);
    tile.start();
    tile.run();
    store_linear_tiles(a, w, tile.first_output + static_cast<int64_t>(warp_index()) * 16, tile.first_row, tile.total);
#endif
}

template <typename type, weights_path path>
static qrun_status launch(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    dim3 grid = blocks_for(args.n_rows, ROWS);
    grid.y = static_cast<unsigned>(qr_ceil_div(w.rows, OUTPUTS));
    return QR_LAUNCH(cuda.device, err, (linear_wgmma_kernel<type, path>), grid, THREADS,
                     sizeof(wgmma_memory) + WGMMA_ALIGNMENT, args, w, nf4_book_of(w));
}

template <typename type>
static qrun_status launch_path(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    return QR_BY_PATH(path_of(w, args.x_dtype), launch, type, cuda, args, w, err);
}

/* Where the tiles fill half of the GPU: what bounds small tiles (linear_tile.cu) takes three times as long. A lane has
 * one absmax for its chunk, and reaches its rows of x and of codes in 32 bits. */
bool qr_cuda_linear_wgmma_takes(const qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w) {
    const int64_t n_tiles = qr_ceil_div(w.rows, OUTPUTS) * qr_ceil_div(args.n_rows, ROWS);
    return cuda.has_wgmma && qr_cuda_linear_tile_takes(args, w) &&
           n_tiles * 2 >= qr_device_multiprocessors(cuda.device) &&
           !(path_of(w, args.x_dtype) == PATH_NF4 && w.block_shift < 6) && args.x_stride <= INT64_C(1) << 24 &&
           w.cols <= INT64_C(1) << 24;
}

qrun_status qr_cuda_linear_wgmma(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    return QR_BY_TYPE(args.x_dtype, launch_path, cuda, args, matrix_of(cuda, *args.weight), err);
}
