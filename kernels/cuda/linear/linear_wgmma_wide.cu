/* linear with x in BF16 or F16 for very many rows on Hopper: the sums of linear_wgmma.cu, the same products of the same
 * columns in the same order, in tiles of 128 outputs × 256 rows. One warpgroup, the producer, brings x and dequantises
 * weights into shared memory; two consumers of 64 outputs each multiply from it (wgmma.cuh). So a weight is dequantised
 * once for 256 rows, and nobody who multiplies does anything else.
 *
 * Product `step` of a chunk has columns [16t + 4 · step, + 4) of each lane t of four (linear.cuh), at its positions 2t,
 * 2t + 1, 2t + 8 and 2t + 9, in x and in the weights alike: pair 8t + q of a row's 32 is word t of piece q, which is
 * swizzled. x is copied pair by pair, a warp a row, which meets 32 banks; it takes no registers and arrives a chunk
 * after it was asked for. A producer's thread dequantises a row of 64 weights: of NF4 it makes one table for it.
 *
 * A thread's 128 sums of a segment leave no registers for 128 totals. Some are in registers, the others in shared
 * memory, 16 bytes a thread side by side: they are touched eight times in a whole product.
 *
 * Stages are handed over by barriers 1 to 6. A producer's thread that has stored its weights of a chunk waits for its x
 * of the chunk before it, shows all it wrote to the tensor cores, and arrives for that chunk; a consumer frees a stage
 * when the products of the next chunk have been issued and its own have ended. docs/cuda.md says what bounds it. */
#include "kernels/cuda/linear/linear.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

enum {
    WARPGROUP = 128,
    PRODUCERS = WARPGROUP,
    CONSUMERS = 2 * WARPGROUP,
    THREADS = PRODUCERS + CONSUMERS,
    OUTPUTS = 128,
    ROWS = WGMMA_WIDE_COLUMNS,
    STAGES = 3,
    ROW_BYTES = CHUNK * 2, /* of a row and chunk in shared memory */
    PIECES = CHUNK / PIECE_COLS,
    PAIRS = CHUNK / 2, /* of a row and chunk: a lane each */
    REGISTER_TOTALS = 13,
    SHARED_TOTALS = WGMMA_WIDE_TILES - REGISTER_TOTALS,
    LAUNCH_REGISTERS = 168, /* of each thread before it knows what it is: __launch_bounds__ */
    PRODUCER_REGISTERS = 104,
    CONSUMER_REGISTERS = 200,
    FULL = 1, /* barriers: of stage s, FULL + s and FREE + s */
    FREE = FULL + STAGES,
};
static_assert(PRODUCERS == OUTPUTS, "a producer's thread has a row of the weights");
static_assert(int{PAIRS} == int{WARP_LANES}, "a lane has a pair of a row");
static_assert(PRODUCERS * PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= THREADS * LAUNCH_REGISTERS,
              "consumers would wait for ever for registers that the block does not have");

struct wide_memory {
    uint16_t x[STAGES][ROWS * CHUNK];    /* each a tile as wgmma.cuh has it */
    uint16_t w[STAGES][OUTPUTS * CHUNK]; /* two, one for each consumer */
    float4 totals[SHARED_TOTALS][CONSUMERS];
    float map[256]; /* the signed dynamic map, of NF4_DQ */
};

#if QR_HAS_WGMMA

static QR_DEVICE void multiply(of_bf16, float (&d)[WGMMA_WIDE_TILES][4], const wgmma_tiles &a, unsigned a_tile,
                               const wgmma_tiles &b, unsigned b_tile, unsigned step) {
    wgmma_wide_bf16(d, a, a_tile, b, b_tile, step);
}

static QR_DEVICE void multiply(of_f16, float (&d)[WGMMA_WIDE_TILES][4], const wgmma_tiles &a, unsigned a_tile,
                               const wgmma_tiles &b, unsigned b_tile, unsigned step) {
    wgmma_wide_f16(d, a, a_tile, b, b_tile, step);
}

/* A warp's rows of a chunk, from global memory, those after the last one as zeros: n_rows of them, `stride` bytes
 * apart, of which n_there exist. They begin `first` bytes, a multiple of 1,024, after `tiles`. */
template <unsigned n_rows>
static QR_DEVICE void copy_rows(unsigned char *tiles, uint32_t first, const unsigned char *src, uint32_t stride,
                                int n_there) {
    const uint32_t place = first + lane_index() % PIECES * 16 + lane_index() / PIECES * 4;
    const auto copy_eight = [&](unsigned row, bool all) {
#pragma unroll
        for (unsigned i = 0; i < PIECES; i++, src += stride) {
            copy_async_4(tiles + (place ^ i * 16) + i * ROW_BYTES, src,
                         all || static_cast<int>(row + i) < n_there ? 4 : 0);
        }
        tiles += PIECES * ROW_BYTES;
    };
#pragma unroll 1 /* all at once would be addresses for more registers than there are */
    for (unsigned row = 0; row < n_rows; row += PIECES) {
        if (static_cast<int>(row + PIECES) <= n_there) {
            copy_eight(row, true);
        } else {
            copy_eight(row, false);
        }
    }
}

/* What a thread of the producer does: a row of the weights and, with its warp, a quarter of the rows of x. */
template <typename type, weights_path path> struct producer {
    enum {
        CHUNK_BYTES = lane_codes<path>::CHUNK_BYTES,
        VECTORS = path == PATH_16 ? 1 : CHUNK_BYTES / 16, /* of codes; 16-bit weights are copied as x is */
        X_ROWS = ROWS / 4,
        W_ROWS = OUTPUTS / 4,
    };
    struct row_codes {
        uint4 vectors[VECTORS];
        absmax_parts absmax;
    };
    const matrix &w;
    const nf4_book &book;
    wide_memory &shared;
    const uint32_t n_chunks, x_stride;
    const unsigned char *x, *codes; /* of chunk 0: this lane's pair of its warp's first row, and this row's codes */
    int x_there, w_there;           /* rows of this warp's that exist */
    uint32_t block;                 /* chunks of the flattened matrix before this row */
    row_codes next, after;          /* of the next chunk to dequantise, and of the one after it */

    QR_DEVICE producer(const qr_linear_args &a, const matrix &weight, const nf4_book &code_book, wide_memory &memory)
        : w(weight), book(code_book), shared(memory), n_chunks(static_cast<uint32_t>(weight.cols / CHUNK)),
          x_stride(static_cast<uint32_t>(a.x_stride * 2)) {
        const int64_t x_row = static_cast<int64_t>(blockIdx.x) * ROWS + warp_index() * X_ROWS;
        const int64_t w_row =
            static_cast<int64_t>(blockIdx.y) * OUTPUTS + (path == PATH_16 ? warp_index() * W_ROWS : threadIdx.x);
        const int64_t row = w_row < w.rows ? w_row : w.rows - 1; /* past the last one they repeat it */
        x = static_cast<const unsigned char *>(a.x) + x_row * x_stride + lane_index() * 4;
        x_there = static_cast<int>(a.n_rows - x_row < X_ROWS ? a.n_rows - x_row : int64_t{X_ROWS});
        codes = w.codes + (path == PATH_16 ? w_row * w.cols * 2 + lane_index() * 4 : row * n_chunks * CHUNK_BYTES);
        w_there = static_cast<int>(w.rows - w_row < W_ROWS ? w.rows - w_row : int64_t{W_ROWS});
        block = static_cast<uint32_t>(row * n_chunks);
    }

    QR_DEVICE void load(uint32_t chunk, row_codes &dst) const {
        if constexpr (path != PATH_16) {
            if (chunk >= n_chunks) { return; }
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                dst.vectors[i] = load_once_16(codes + uint64_t{chunk} * CHUNK_BYTES + 16 * i);
            }
            if (path == PATH_NF4) { dst.absmax = matrix_absmax_parts(w, (block + chunk) >> (w.block_shift - 6)); }
        }
    }

    /* Starts the copies of a chunk. */
    QR_DEVICE void copy(uint32_t chunk) const {
        const uint32_t stage = chunk % STAGES, warp = warp_index();
        copy_rows<X_ROWS>(reinterpret_cast<unsigned char *>(shared.x), (stage * ROWS + warp * X_ROWS) * ROW_BYTES,
                          x + uint64_t{chunk} * ROW_BYTES, x_stride, x_there);
        if (path == PATH_16) {
            copy_rows<W_ROWS>(reinterpret_cast<unsigned char *>(shared.w),
                              (stage * OUTPUTS + warp * W_ROWS) * ROW_BYTES, codes + uint64_t{chunk} * ROW_BYTES,
                              static_cast<uint32_t>(w.cols * 2), w_there);
        }
        copy_async_commit();
    }

    /* Eight weights, pairs 4 · word to 4 · word + 3. */
    static QR_DEVICE void convert(const row_codes &row, const nf4_products &products, int word, uint32_t pairs[4]) {
        if (path == PATH_NF4) {
            const uint4 &v = row.vectors[word / 4];
            nf4_lookup(products, word % 4 == 0 ? v.x : word % 4 == 1 ? v.y : word % 4 == 2 ? v.z : v.w, pairs);
        } else {
            const uint4 &v = row.vectors[word / 2 % VECTORS];
            int8_convert<type>(word % 2 == 0 ? v.x : v.z, pairs);
            int8_convert<type>(word % 2 == 0 ? v.y : v.w, pairs + 2);
        }
    }

    /* Pairs q, 8 + q, 16 + q and 24 + q of the row become piece q. */
    QR_DEVICE void dequantize(uint32_t chunk) {
        if (path == PATH_16) { return; }
        nf4_products products = {};
        if (path == PATH_NF4) { products = nf4_products_of<type>(book, matrix_absmax_of(w, next.absmax, shared.map)); }
        unsigned char *tiles = reinterpret_cast<unsigned char *>(shared.w);
        const uint32_t place =
            (chunk % STAGES * OUTPUTS + threadIdx.x) * ROW_BYTES + threadIdx.x % PIECES * 16; /* of piece 0 */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t pairs[4][4];
#pragma unroll
            for (int lane = 0; lane < 4; lane++) { convert(next, products, 2 * lane + half, pairs[lane]); }
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                *reinterpret_cast<uint4 *>(tiles + (place ^ (4 * half + i) * 16)) =
                    make_uint4(pairs[0][i], pairs[1][i], pairs[2][i], pairs[3][i]);
            }
        }
        next = after;
        load(chunk + 2, after);
    }

    QR_DEVICE void hand_over(uint32_t chunk) const {
        wgmma_show();
        barrier_arrive(FULL + chunk % STAGES, THREADS);
    }

    QR_DEVICE void run() {
        load(0, next);
        load(1, after);
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
            if (chunk >= STAGES) { barrier_sync(FREE + chunk % STAGES, THREADS); }
            copy(chunk);
            dequantize(chunk);
            copy_async_wait<1>();
            if (chunk > 0) { hand_over(chunk - 1); }
        }
        copy_async_wait<0>();
        hand_over(n_chunks - 1);
    }
};

/* What a thread of a consumer does. */
template <typename type> struct consumer {
    wide_memory &shared;
    const wgmma_tiles x_tiles, w_tiles;
    const uint32_t n_chunks;
    const unsigned thread, group; /* of the consumers */
    float d[WGMMA_WIDE_TILES][4], total[REGISTER_TOTALS][4];

    QR_DEVICE consumer(const matrix &w, wide_memory &memory)
        : shared(memory), x_tiles(wgmma_tiles_at(memory.x)), w_tiles(wgmma_tiles_at(memory.w)),
          n_chunks(static_cast<uint32_t>(w.cols / CHUNK)), thread(threadIdx.x - PRODUCERS), group(thread / WARPGROUP) {
        /* −0: see linear_tile.cu */
        for_each_sum<WGMMA_WIDE_TILES>([&](int n, int i) { d[n][i] = 0.0F; });
        for_each_sum<REGISTER_TOTALS>([&](int n, int i) { total[n][i] = -0.0F; });
#pragma unroll
        for (int n = 0; n < SHARED_TOTALS; n++) { shared.totals[n][thread] = {-0.0F, -0.0F, -0.0F, -0.0F}; }
    }

    /* The stage of a chunk whose products have ended. */
    QR_DEVICE void free_stage(uint32_t chunk) const {
        if (chunk + STAGES < n_chunks) { barrier_arrive(FREE + chunk % STAGES, THREADS); }
    }

    QR_DEVICE void segment(uint32_t begin, uint32_t end) {
#pragma unroll 1
        for (uint32_t chunk = begin; chunk < end; chunk++) {
            const unsigned stage = chunk % STAGES;
            barrier_sync(FULL + stage, THREADS);
            wgmma_begin();
#pragma unroll
            for (unsigned i = 0; i < CHUNK_STEPS; i++) {
                multiply(type(), d, w_tiles, stage * 2 + group, x_tiles, stage, i);
            }
            wgmma_end();
            wgmma_wait<1>();
            if (chunk > begin) { free_stage(chunk - 1); }
        }
        wgmma_wait<0>();
        if (begin < end) { free_stage(end - 1); }
    }

    QR_DEVICE void add_to_totals() {
        for_each_sum<REGISTER_TOTALS>([&](int n, int i) { total[n][i] += d[n][i]; });
#pragma unroll
        for (int n = 0; n < SHARED_TOTALS; n++) {
            const float(&sum)[4] = d[REGISTER_TOTALS + n];
            const float4 was = shared.totals[n][thread];
            shared.totals[n][thread] = {was.x + sum[0], was.y + sum[1], was.z + sum[2], was.w + sum[3]};
        }
        for_each_sum<WGMMA_WIDE_TILES>([&](int n, int i) { d[n][i] = 0.0F; });
    }

    /* The last segment's sums become the results. */
    QR_DEVICE void add_totals() {
        for_each_sum<REGISTER_TOTALS>([&](int n, int i) { d[n][i] = total[n][i] + d[n][i]; });
#pragma unroll
        for (int n = 0; n < SHARED_TOTALS; n++) {
            float(&sum)[4] = d[REGISTER_TOTALS + n];
            const float4 was = shared.totals[n][thread];
            sum[0] = was.x + sum[0], sum[1] = was.y + sum[1], sum[2] = was.z + sum[2], sum[3] = was.w + sum[3];
        }
    }

    QR_DEVICE void run() {
        const uint32_t per_segment = static_cast<uint32_t>(linear_segment_chunks(n_chunks));
        uint32_t chunk = 0;
#pragma unroll 1
        for (int i = 1;; i++) {
            const uint32_t end = chunk + per_segment < n_chunks ? chunk + per_segment : n_chunks;
            segment(chunk, end);
            chunk = end;
            if (i == LINEAR_SEGMENTS) { break; }
            add_to_totals();
        }
        add_totals();
    }
};

#endif

template <typename type, weights_path path>
__global__ void __launch_bounds__(THREADS, 1) linear_wgmma_wide_kernel(qr_linear_args a, matrix w, nf4_book book) {
#if QR_HAS_WGMMA
    wide_memory &shared = *wgmma_shared_memory<wide_memory>();
    if (path == PATH_NF4) {
        if (threadIdx.x < 256) { shared.map[threadIdx.x] = w.tables->dynamic_map[1][threadIdx.x]; }
        __syncthreads();
    }
    if (threadIdx.x < PRODUCERS) {
        wgmma_leave_registers<PRODUCER_REGISTERS>();
        producer<type, path> p(a, w, book, shared);
        p.run();
    } else {
        wgmma_take_registers<CONSUMER_REGISTERS>();
        consumer<type> c(w, shared);
        c.run();
        store_linear_tiles(a, w, static_cast<int64_t>(blockIdx.y) * OUTPUTS + c.thread / WARP_LANES * 16,
                           static_cast<int64_t>(blockIdx.x) * ROWS, c.d);
    }
#endif
}

template <typename type, weights_path path>
static qrun_status launch(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    dim3 grid = blocks_for(args.n_rows, ROWS);
    grid.y = static_cast<unsigned>(qr_ceil_div(w.rows, OUTPUTS));
    return QR_LAUNCH(cuda.device, err, (linear_wgmma_wide_kernel<type, path>), grid, THREADS,
                     sizeof(wide_memory) + WGMMA_ALIGNMENT, args, w, nf4_book_of(w));
}

template <typename type>
static qrun_status launch_path(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    return QR_BY_PATH(path_of(w, args.x_dtype), launch, type, cuda, args, w, err);
}

/* Of what linear_wgmma.cu takes, what costs no more in wide tiles: one takes as long as two of those, and the GPU
 * computes them in rounds. */
bool qr_cuda_linear_wgmma_wide_takes(const qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w) {
    const int64_t n_sm = qr_device_multiprocessors(cuda.device), n_outputs = qr_ceil_div(w.rows, OUTPUTS);
    const int64_t wide = qr_ceil_div(n_outputs * qr_ceil_div(args.n_rows, ROWS), n_sm);
    const int64_t narrow = qr_ceil_div(n_outputs * qr_ceil_div(args.n_rows, WGMMA_COLUMNS), n_sm);
    return cuda.has_wgmma_wide && qr_cuda_linear_wgmma_takes(cuda, args, w) && wide * 2 <= narrow;
}

qrun_status qr_cuda_linear_wgmma_wide(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    return QR_BY_TYPE(args.x_dtype, launch_path, cuda, args, matrix_of(cuda, *args.weight), err);
}
