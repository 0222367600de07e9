/* linear with x in BF16 or F16 for 9 to 64 rows: the sums of linear_mma.cu, the same products in the same order, with x
 * in shared memory and weights dequantised once for all rows.
 *
 * A block is the only one of its multiprocessor: sixteen warps, `groups` of which share a segment of the columns. Each
 * of those has m_tiles products of 16 outputs, so a tile has groups · m_tiles · 16 outputs. Where the warps have fewer
 * than eight segments, the block sweeps over them, and keeps the sum of those before in shared memory. The warps of a
 * segment bring their 64 columns of x by cp.async, STAGES - 1 chunks ahead, and
 * meet at a barrier of their own. Codes come as in linear_mma.cu, into registers. What a sweep begins with is under
 * way before the sums of the one before are added.
 *
 * x is read from the second cache once a tile, and for 32 rows those are as many bytes as the codes of 128 outputs. So
 * tiles are as large as the multiprocessors can be filled with: staged_cost has what both cost. Of a pair (gate and up)
 * half of a segment's warps have outputs of the first and the other half the same ones of the second. */
#include "kernels/cuda/linear/linear_mma.cuh"
#include "kernels/cuda/linear/linear_tile.cuh"

template <int n_groups, int n_products, int n_row_tiles> struct staged_shape {
    enum {
        GROUPS = n_groups,
        M_TILES = n_products,
        N_TILES = n_row_tiles,
        WARPS = 16,
        THREADS = WARPS * WARP_LANES,
        AT_ONCE = WARPS / GROUPS, /* segments */
        SWEEPS = LINEAR_SEGMENTS / AT_ONCE,
        PRODUCTS = GROUPS * M_TILES,
        TILE_OUTPUTS = PRODUCTS * OUTPUTS,
        ROWS = N_TILES * TILE_ROWS,
        STAGE = ROWS * CHUNK,
        STAGES = 4,
    };
};

/* Shared memory. x: of each segment at once, its stages; total: the sum of the segments of sweeps before. */
template <weights_path path, class shape> struct staged_memory {
    mma_memory<path, shape::M_TILES, shape::WARPS, 1> mma;
    float total[shape::SWEEPS > 1 ? shape::ROWS *shape::TILE_OUTPUTS : 4];
    uint16_t x[shape::AT_ONCE][shape::STAGES][shape::STAGE];
};

/* The chunks of a segment number, as segment_chunks_of has them of a warp's. */
static QR_DEVICE segment_chunks chunks_of_segment(int n_chunks, int segment) {
    const int per_segment = static_cast<int>(linear_segment_chunks(n_chunks)), begin = segment * per_segment;
    return {begin < n_chunks ? begin : n_chunks, begin + per_segment < n_chunks ? begin + per_segment : n_chunks};
}

/* x of a segment, brought by the warps that multiply it: each thread has some pieces of every chunk. Rows past the last
 * one repeat it, and sixteen that are all past it are not brought. */
template <class shape> struct staged_x {
    enum {
        AT_ONCE = shape::GROUPS * WARP_LANES,
        COPIES = shape::ROWS * PIECES / AT_ONCE,
        STEP = AT_ONCE / PIECES,
        ELEMENT_BYTES = 2
    };
    static_assert(STEP % PIECES == 0, "a thread's pieces have one place in their rows");
    uint16_t *const stages;
    const unsigned char *src; /* of the segment's first chunk of a group */
    uint32_t row[COPIES];     /* bytes from there to this thread's pieces */
    unsigned place;
    const unsigned barrier;
    const int n_rows;

    /* Of the `index`-th segment that is computed at once. */
    QR_DEVICE staged_x(uint16_t *memory, const qr_linear_args &a, unsigned index)
        : stages(memory), src(NULL), barrier(1 + index), n_rows(static_cast<int>(a.n_rows)) {
        const unsigned thread = threadIdx.x % AT_ONCE, first = thread / PIECES, piece = thread % PIECES;
#pragma unroll
        for (unsigned i = 0; i < COPIES; i++) {
            const unsigned r = first + i * STEP, last = static_cast<unsigned>(n_rows - 1);
            row[i] = ((r < last ? r : last) * static_cast<uint32_t>(a.x_stride) + piece * PIECE_COLS) * ELEMENT_BYTES;
        }
        place = place_of(first, piece);
    }

    /* Starts the copies of chunk number i of a group to stage i mod STAGES. */
    QR_DEVICE void bring(unsigned i) const {
        uint16_t *stage = stages + i % shape::STAGES * shape::STAGE + place;
#pragma unroll
        for (int c = 0; c < COPIES; c++) {
            if (c * STEP / 16 * 16 < n_rows) {
                copy_async_16(stage + c * STEP * CHUNK, src + row[c] + i * CHUNK * ELEMENT_BYTES, 16);
            }
        }
    }

    QR_DEVICE void meet() const { barrier_sync(barrier, AT_ONCE); }

    /* Sets off for a segment, when nobody reads the one before any more. */
    QR_DEVICE void start(const qr_linear_args &a, int begin, int end) {
        src = static_cast<const unsigned char *>(a.x) + int64_t{begin} * CHUNK * ELEMENT_BYTES;
#pragma unroll
        for (unsigned i = 0; i + 1 < shape::STAGES; i++) {
            if (begin + static_cast<int>(i) < end) { bring(i); }
            copy_async_commit();
        }
    }

    /* Chunk number i of a group, when it is there; `n_left` are left of the segment with it. Brings one more. */
    QR_DEVICE const uint16_t *take(unsigned i, int n_left) const {
        copy_async_wait<shape::STAGES - 2>();
        meet(); /* and nobody reads the chunk before it any more */
        if (n_left >= shape::STAGES) { bring(i + shape::STAGES - 1); }
        copy_async_commit();
        return stages + i * shape::STAGE;
    }
};
static_assert(int{staged_shape<2, 1, 4>::STAGES} == int{GROUP}, "a chunk's number in its group is its stage");

/* Chunks of codes in registers: 64 bytes a lane or less. */
template <weights_path path, int m_tiles>
constexpr int staged_depth = path == PATH_NF4                   ? (m_tiles == 1 ? 4 : 2)
                             : path == PATH_INT8 &&m_tiles == 1 ? 2
                                                                : 1;

template <typename type, weights_path path, class shape>
struct staged_sum : segment_sum<type, path, shape::M_TILES, shape::N_TILES, SEVERAL, linear_rows, shape::WARPS,
                                staged_depth<path, shape::M_TILES>, 1> {
    typedef segment_sum<type, path, shape::M_TILES, shape::N_TILES, SEVERAL, linear_rows, shape::WARPS,
                        staged_depth<path, shape::M_TILES>, 1>
        base;
    enum { M_TILES = shape::M_TILES, N_TILES = shape::N_TILES, DEPTH = base::DEPTH };
    using base::g;
    staged_memory<path, shape> &memory;
    const int n_rows;

    __device__ staged_sum(const mma_group &group, const pair_book &book, const linear_rows &rows_,
                          staged_memory<path, shape> &memory_)
        : base(group, book, rows_, memory_.mma, {0, 0}), memory(memory_),
          n_rows(static_cast<int>(group.args[0].n_rows)) {}

    QR_DEVICE bool is_pair() const { return g.gate.dst != NULL; }

    /* Sets off for a sweep of a tile. */
    QR_DEVICE void start_sweep(unsigned tile, int sweep) {
        const unsigned warp = uniform_warp_index(), group = warp % shape::GROUPS;
        const segment_chunks chunks =
            chunks_of_segment(static_cast<int>(g.weights[0].cols / CHUNK),
                              sweep * shape::AT_ONCE + static_cast<int>(warp / shape::GROUPS));
        this->begin = chunks.begin, this->end = chunks.end;
        if (is_pair()) {
            this->start_in(static_cast<int>(group / (shape::GROUPS / 2)),
                           tile * (shape::GROUPS / 2) + group % (shape::GROUPS / 2));
        } else {
            const int which = this->matrix_of_tile(tile);
            this->start_in(which, (tile - g.first_tile[which]) * shape::GROUPS + group);
        }
    }

    /* Half of chunk number i of a group: part 0 or 1, of products 2 · part and 2 · part + 1. */
    QR_DEVICE void multiply_half(unsigned i, unsigned part, const float (&scales)[M_TILES][2], const uint16_t *x) {
        uint32_t left[M_TILES][CHUNK_STEPS / 2][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            uint32_t pairs[2][LANE_COLS / 4];
#pragma unroll
            for (int side = 0; side < 2; side++) {
                convert_half<type, path>(this->codes[i % DEPTH][m][side], scales[m][side], this->table, part,
                                         pairs[side]);
            }
#pragma unroll
            for (int step = 0; step < CHUNK_STEPS / 2; step++) {
                left[m][step][0] = pairs[0][2 * step], left[m][step][1] = pairs[1][2 * step];
                left[m][step][2] = pairs[0][2 * step + 1], left[m][step][3] = pairs[1][2 * step + 1];
            }
        }
        const unsigned lane = lane_index();
#pragma unroll
        for (unsigned n = 0; n < N_TILES; n++) {
            if (n / 2 > 0 && static_cast<int>(n / 2 * 2 * TILE_ROWS) >= n_rows) { break; }
            const uint4 b =
                *reinterpret_cast<const uint4 *>(x + place_of(n * TILE_ROWS + lane / 4, lane % 4 * 2 + part));
            const uint32_t right[CHUNK_STEPS / 2][2] = {{b.x, b.y}, {b.z, b.w}};
#pragma unroll
            for (int step = 0; step < CHUNK_STEPS / 2; step++) {
#pragma unroll
                for (int m = 0; m < M_TILES; m++) { type::mma(this->d[m][n], left[m][step], right[step]); }
            }
        }
    }

    /* This warp's segment of the sweep that was set off for. */
    QR_DEVICE void run_sweep(staged_x<shape> &x) {
        this->clear();
        for (int group = this->begin; group < this->end; group += GROUP) {
            this->template take_absmax<base::LOAD_CHECKED>(this->end - group);
#pragma unroll
            for (unsigned i = 0; i < GROUP; i++) {
                const int chunk = group + static_cast<int>(i);
                if (chunk >= this->end) { break; }
                const uint16_t *stage = x.take(i, this->end - chunk);
                float scales[M_TILES][2];
                this->for_each_row([&](int m, int side) { scales[m][side] = this->scale_of(m, side, i); });
                multiply_half(i, 0, scales, stage);
                multiply_half(i, 1, scales, stage);
                if (chunk + DEPTH < this->end) { this->load(static_cast<int>(i), this->codes[i % DEPTH]); }
            }
            this->for_each_row([&](int m, int side) { this->next[m][side] += GROUP * base::CHUNK_BYTES; });
            x.src += GROUP * CHUNK * x.ELEMENT_BYTES;
        }
    }

    QR_DEVICE float &total_at(int row, unsigned product, unsigned output) const {
        return memory.total[(row * shape::PRODUCTS + product) * OUTPUTS + output];
    }

    /* The sums of this sweep's segments, added in order to what the sweeps before have. */
    QR_DEVICE float sum_with(int sweep, int first_row, unsigned product, unsigned place, unsigned output) const {
        const unsigned slot = place * SUMS_PITCH + output, group = product / M_TILES, m = product % M_TILES;
        float sum = this->shared.sums[0][group][m][slot];
        if (sweep > 0) { sum = total_at(first_row + static_cast<int>(place), product, output) + sum; }
        for (unsigned s = 1; s < shape::AT_ONCE; s++) {
            sum += this->shared.sums[0][s * shape::GROUPS + group][m][slot];
        }
        return sum;
    }

    /* Of eight rows, what the sums in shared memory become: totals, or after the last sweep y. */
    QR_DEVICE void add_sums(unsigned tile, int sweep, int first_row) const {
        const bool last = sweep + 1 == shape::SWEEPS, pair = last && is_pair();
        const unsigned n_products = pair ? shape::PRODUCTS / 2 : +shape::PRODUCTS;
        const int which = this->matrix_of_tile(tile);
        for (unsigned i = threadIdx.x; i < n_products * OUTPUTS * TILE_ROWS; i += shape::THREADS) {
            const unsigned output = i % OUTPUTS, product = i / OUTPUTS % n_products, place = i / OUTPUTS / n_products;
            const int row = first_row + static_cast<int>(place);
            const float sum = sum_with(sweep, first_row, product, place, output);
            if (!last) { total_at(row, product, output) = sum; }
            const int64_t o = (int64_t{tile - g.first_tile[which]} * n_products + product) * OUTPUTS + output;
            if (!last || o >= g.weights[which].rows || row >= n_rows) { continue; }
            const float value = this->store_sum(which, row, o, sum);
            if (!pair) { continue; }
            const float factor =
                this->store_sum(1, row, o, sum_with(sweep, first_row, product + n_products, place, output));
            store_from_f32(g.gate.dst, g.gate.dst_dtype, row * g.gate.dim + o, act_fn(g.gate.fn, value) * factor);
        }
    }

    QR_DEVICE void run_tiles(staged_x<shape> &x) {
        for (unsigned tile = blockIdx.x; tile < g.n_tiles; tile += gridDim.x) {
            for (int sweep = 0; sweep < shape::SWEEPS; sweep++) {
                run_sweep(x);
                const bool last = sweep + 1 == shape::SWEEPS;
                const unsigned after = last ? tile + gridDim.x : tile;
                if (after < g.n_tiles) {
                    start_sweep(after, last ? 0 : sweep + 1);
                    x.meet();
                    x.start(g.args[0], this->begin, this->end);
                }
                for (int n = 0; n < N_TILES && n * TILE_ROWS < n_rows; n++) {
                    put(n);
                    __syncthreads();
                    add_sums(tile, sweep, n * TILE_ROWS);
                    __syncthreads();
                }
            }
        }
    }

    /* put_sums of a number that is not known when this is compiled, without an array of sums in memory. */
    QR_DEVICE void put(int number) const {
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            if (n == number) { this->put_sums(n); }
        }
    }
};

template <typename type, weights_path path, class shape>
__global__ void __launch_bounds__(shape::THREADS, 1) linear_staged_kernel(mma_group g, pair_book book) {
    staged_memory<path, shape> *shared = shared_memory<staged_memory<path, shape>>();
    const linear_rows rows;
    staged_sum<type, path, shape> sum(g, book, rows, *shared);
    /* As in linear_mma_kernel: codes are under way and the table is filled when x is there. */
    sum.start_sweep(blockIdx.x, 0);
    admit_next();
    if (path == PATH_NF4) {
        if (threadIdx.x < THREADS) { fill_tables(g.weights[0], book, shared->mma.pairs, shared->mma.map); }
        __syncthreads();
    }
    await_previous();
    const unsigned segment = uniform_warp_index() / shape::GROUPS;
    staged_x<shape> x(shared->x[segment][0], g.args[0], segment);
    x.start(g.args[0], sum.begin, sum.end);
    sum.run_tiles(x);
}

/* What a tile may be. `fills` up to 32 rows and more. */
typedef staged_shape<2, 1, 4> staged_32x32;
typedef staged_shape<2, 2, 4> staged_64x32;
typedef staged_shape<4, 2, 4> staged_128x32;
typedef staged_shape<4, 1, 8> staged_64x64;
typedef staged_shape<8, 1, 8> staged_128x64;

static int64_t tiles_of(group_launch &l, int n_outputs) {
    number_tiles(l, n_outputs);
    return l.group.n_tiles;
}

/* Thousandths of a cycle that tiles of a shape take for a column, of what may bound them: the second cache, which gives
 * a multiprocessor some 24 bytes a cycle, where all tiles read codes and x; and a block's shared memory, which gives
 * 128, where each weight is looked up, a product's x read and a tile's x copied. */
template <weights_path path, class shape> static int64_t staged_cost(const qr_cuda_backend &cuda, group_launch &l) {
    const int64_t n = tiles_of(l, shape::TILE_OUTPUTS), n_sm = qr_device_multiprocessors(cuda.device), thousand = 1000;
    const int64_t half_bytes = path == PATH_NF4 ? 1 : path == PATH_INT8 ? 2 : 4; /* of a code */
    const int64_t cache = n * (shape::TILE_OUTPUTS * half_bytes / 2 + l.n_rows * 2) * thousand / (n_sm * 24);
    const int64_t row_bytes = l.n_rows * 2 / (OUTPUTS * shape::M_TILES);
    const int64_t tile_bytes = shape::TILE_OUTPUTS * (4 + row_bytes) + l.n_rows * 2;
    const int64_t block = qr_ceil_div(n, n_sm) * tile_bytes * thousand / 128;
    return qr_max(cache, block);
}

template <typename type, weights_path path, class shape>
static qrun_status launch(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    const int64_t n = tiles_of(l, shape::TILE_OUTPUTS);
    const dim3 grid(static_cast<unsigned>(qr_min(n, qr_device_multiprocessors(cuda.device))));
    return QR_LAUNCH_EARLY(cuda.device, err, (linear_staged_kernel<type, path, shape>), grid, shape::THREADS,
                           (sizeof(staged_memory<path, shape>)), l.group, pair_book_of(l.group.weights[0]));
}

template <typename type, weights_path path>
static qrun_status launch_path(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    const bool few = l.n_rows <= staged_32x32::ROWS;
    if constexpr (path == PATH_16) { /* codes are as many bytes as x of the same size */
        return few ? launch<type, path, staged_32x32>(cuda, l, err) : launch<type, path, staged_64x64>(cuda, l, err);
    } else if (few) {
        const int64_t small = staged_cost<path, staged_32x32>(cuda, l),
                      middle = staged_cost<path, staged_64x32>(cuda, l),
                      large = staged_cost<path, staged_128x32>(cuda, l);
        if (large <= small && large <= middle) { return launch<type, path, staged_128x32>(cuda, l, err); }
        return middle <= small ? launch<type, path, staged_64x32>(cuda, l, err)
                               : launch<type, path, staged_32x32>(cuda, l, err);
    } else {
        const bool large = staged_cost<path, staged_128x64>(cuda, l) <= staged_cost<path, staged_64x64>(cuda, l);
        return large ? launch<type, path, staged_128x64>(cuda, l, err) : launch<type, path, staged_64x64>(cuda, l, err);
    }
}

template <typename type> static qrun_status launch_type(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    return QR_BY_PATH(path_of(l.group.weights[0], l.group.args[0].x_dtype), launch_path, type, cuda, l, err);
}

bool qr_cuda_linear_staged_takes(const qr_cuda_backend &cuda, const group_launch &l) {
    enum { MOST_STRIDE = 1 << 24 }; /* staged_x counts the bytes of all rows in 32 bits */
    const size_t most = sizeof(staged_memory<PATH_NF4, staged_64x32>),
                 other = sizeof(staged_memory<PATH_NF4, staged_64x64>);
    return l.n_rows > TILE_ROWS && l.n_rows <= LINEAR_MMA_ROWS && l.group.args[0].x_stride <= MOST_STRIDE &&
           qr_device_size_of(cuda.device).block_shared_bytes >= static_cast<int>(most > other ? most : other);
}

qrun_status qr_cuda_linear_staged(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    return QR_BY_TYPE(l.group.args[0].x_dtype, launch_type, cuda, l, err);
}
