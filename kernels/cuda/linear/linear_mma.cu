/* linear with x in BF16 or F16 for up to 64 rows, and for any number of them where linear_tile.cu cannot: bound by
 * reading the weights. A block computes m_tiles · 16 outputs of n_tiles · 8 rows; its eight warps take a segment of the
 * columns each, and meet in shared memory, where the segments' sums are added in order (linear.cuh).
 *
 * What an H100 needs for this, per SM and cycle, to read NF4 at its memory's datasheet rate (3.35 TB/s / 132 SMs / 1.75
 * GHz = 14.5 bytes: 29 weights):
 *   - Bytes under way: 14.5 · 1.75 GHz · ~1 µs of latency, some 25 KB at least, 40 with slack. A warp has its next
 *     DEPTH chunks in registers, 512 bytes each of NF4: 49 KB with three blocks of eight warps (80 registers). Wider
 *     loads would need another order of columns: a quad reads the 32 bytes of a row and chunk, a sector, with 8 a lane.
 *   - Lookups: shared memory gives 32 words a cycle. A weight takes one (F32, since code · absmax is rounded to F32
 *     before it is rounded to 16 bits), which is room for 32 weights; two come with one load of 8 bytes, by the byte
 *     that holds both codes, from a table of 256 pairs in 16 copies, one for each lane of a half warp, so that no two
 *     lanes meet in a bank.
 *   - Instructions: 128 lanes, 4.4 a weight. A warp's 1,024 weights of a chunk are 114 to 118 in sm_90a's code for one
 *     row, 3.6 to 3.7 a weight (bench/cuda_static.py): 2.75 of them are the address, load, products and rounding of
 *     pairs. A table of the 16 products (weights16.cuh) would spare the loads, but is a block's, and a lane has a
 *     quarter of a block's row: made for 16 weights it costs two instructions a weight. Codes and x are read through
 *     pointers that move once a group, so that a load is one instruction.
 *   - absmax: a quad's four lanes load those of four chunks ahead, one each, and hand them on by shuffles.
 *   - x: a warp reads its own segment alone, so a block reads x once a tile. For one row that is a quarter of the bytes
 * of NF4 codes; for eight rows twice as much, though from L2 (or L1, which the codes pass by). Hence the tiles of 32
 * and 64 outputs, where there are enough of them for all multiprocessors. Blocks stay and take tile after tile, so that
 * the table is made once, and load for the next before they add up. The kernel is launched early: its first loads
 * overlap the short kernels that decode has between two linears. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/linear/linear.cuh"
#include "kernels/cuda/norm.cuh"

enum {
    THREADS = LINEAR_SEGMENTS * WARP_LANES,
    OUTPUTS = 16,       /* of one product */
    TILE_ROWS = 8,      /* rows of x in one product */
    GROUP = 4,          /* chunks whose absmax the lanes of a quad hold */
    SUMS_PITCH = 20,    /* of a row of a product's 16 sums: the lanes that write together meet 32 banks */
    MOST_PRODUCTS = 16, /* of a tile */
    PAIRS = 256,
    PAIR_COPIES = WARP_LANES / 2,
};

/* Matrices of one format that multiply the same x: their tiles are numbered one matrix after the other. Of a pair (gate
 * and up) a tile has eight outputs of the first in its upper rows and the same eight of the second in its lower ones,
 * so that a block has both factors of what it computes of them. */
struct mma_group {
    qr_linear_args args[LINEAR_GROUP_MOST];
    matrix weights[LINEAR_GROUP_MOST];
    unsigned first_tile[LINEAR_GROUP_MOST]; /* of those that are not there: more than there are */
    unsigned n_tiles;
    qr_rms_norm_args norm; /* that makes x; src NULL: x is there */
    qr_gate_args gate;     /* of a pair */
};

/* Shared memory. The table and the map are NF4's. After it, where there is a norm, x: [n_rows, cols]. */
template <weights_path path, int m_tiles> struct mma_memory {
    float sums[LINEAR_SEGMENTS][m_tiles][TILE_ROWS * SUMS_PITCH];
    float2 pairs[path == PATH_NF4 ? PAIRS * PAIR_COPIES : 1];
    float map[path == PATH_NF4 ? 256 : 1];
};

/* What the absmax of one matrix are made of. */
struct absmax_source {
    const float *scales;  /* NF4: the absmax; NF4_DQ: the nested ones */
    const uint8_t *codes; /* NF4_DQ */
    float offset;
};

static QR_DEVICE absmax_source absmax_source_of(const matrix &m) {
    return {m.format != QR_WEIGHT_NF4 ? m.nested_absmax : m.scales, m.absmax_codes, m.nested_offset};
}

/* matrix_absmax_parts and matrix_absmax_of, without branches and by 32-bit offsets: of NF4 a path's matrix has fewer
 * than 2^32 blocks. */
static QR_DEVICE absmax_parts absmax_parts_of(const absmax_source &source, bool nested, uint32_t block) {
    return {source.scales[nested ? block / QR_NESTED_BLOCK : block], nested ? source.codes[block] : 0U};
}

static QR_DEVICE float absmax_of(const absmax_source &source, bool nested, const absmax_parts &parts,
                                 const float *map) {
    return nested ? map[parts.code] * parts.scale + source.offset : parts.scale;
}

/* Where the pair of a byte's codes is in the table, in copies: byte mod 128 and then its highest bit, so that the four
 * bytes of a word become places by one mask and one permutation each. */
static QR_DEVICE unsigned pair_place(unsigned byte) { return (byte % 128 * 2 + byte / 128) * PAIR_COPIES; }

/* The places of the four bytes of a word of codes, for pair_of: their low bytes, of which lane_offsets has this lane's
 * 8 · (lane mod 16) four times, and their high ones. */
struct pair_places {
    uint32_t low, high;
};

static QR_DEVICE pair_places pair_places_of(uint32_t codes, uint32_t lane_offsets) {
    return {(codes & 0x80808080U) | lane_offsets, codes & 0x7F7F7F7FU};
}

/* Both weights of byte i. The upper half of a place is a sign of its high byte, which is 0. */
static QR_DEVICE float2 pair_of(const float2 *pairs, const pair_places &places, unsigned i) {
    const uint32_t place = permute_bytes(places.high, places.low, 0x8804U + 0x1111U * i);
    return *reinterpret_cast<const float2 *>(reinterpret_cast<const unsigned char *>(pairs) + place);
}

/* Sixteen weights as eight packed pairs. */
template <typename type, weights_path path>
static QR_DEVICE void convert(const lane_codes<path> &codes, float absmax, const float2 *pairs, uint32_t lane_offsets,
                              uint32_t dst[LANE_COLS / 2]) {
    if (path == PATH_NF4) {
        const uint4 &both = codes.vectors[0];
        const pair_places places[2] = {pair_places_of(both.x, lane_offsets), pair_places_of(both.y, lane_offsets)};
#pragma unroll
        for (unsigned i = 0; i < LANE_COLS / 2; i++) {
            const float2 two = pair_of(pairs, places[i / 4], i % 4);
            dst[i] = type::pack(two.x * absmax, two.y * absmax);
        }
    } else {
#pragma unroll
        for (unsigned step = 0; step < CHUNK_STEPS; step++) { lane_step<type, path>(codes, step, dst + 2 * step); }
    }
}

/* Sixteen columns of a row of x from `src` on, of which `n_left` are in the row; of PATH_ANY, zeros after the last one.
 */
template <weights_path path>
static QR_DEVICE void load_x(const uint16_t *src, int64_t n_left, uint32_t pairs[LANE_COLS / 2]) {
    if constexpr (path != PATH_ANY) {
        const uint4 *vectors = reinterpret_cast<const uint4 *>(src);
        unpack_words(pairs, vectors[0]);
        unpack_words(pairs + 4, vectors[1]);
    } else {
#pragma unroll
        for (int i = 0; i < LANE_COLS / 2; i++) {
            pairs[i] =
                pack16(2 * i < n_left ? src[2 * i] : uint16_t{0}, 2 * i + 1 < n_left ? src[2 * i + 1] : uint16_t{0});
        }
    }
}

/* What a warp does: its segment of one tile of outputs after the other. */
template <typename type, weights_path path, int m_tiles, int n_tiles, bool paired> struct segment_sum {
    enum {
        /* Chunks of codes in registers; a divisor of GROUP. Some 64 bytes a lane, at least two chunks. */
        DEPTH = path == PATH_NF4 && m_tiles * n_tiles < 4     ? 4
                : path == PATH_INT8 && m_tiles * n_tiles == 1 ? 4
                                                              : 2,
        CHUNK_BYTES = lane_codes<path>::CHUNK_BYTES,
        /* Of matrices by tile; the largest tiles have no registers left for where one is. */
        SEVERAL = !paired && m_tiles * n_tiles < MOST_PRODUCTS,
    };
    /* What a group of chunks loads for those after it: all, as there are enough; none, as it is the last; or what there
     * is. The first two ask nothing in their loop. */
    enum ahead_loads { LOAD_ALL, LOAD_NONE, LOAD_CHECKED };
    const mma_group &g;
    mma_memory<path, m_tiles> &shared;
    const int begin, end;        /* chunks */
    const uint32_t lane_offsets; /* in a table of pairs */
    absmax_source absmax_here;   /* of this tile's matrix, where there are several */
    /* Of this lane's two rows of the weights in each product, the first chunk's number in the flattened matrix (whose
     * 2^38 elements would be 128 GB); of PATH_ANY, the row. */
    uint32_t at[m_tiles][2];
    const unsigned char *next[m_tiles][2]; /* this lane's codes of the chunk that is loaded at the begin of a group */
    lane_codes<path> codes[DEPTH][m_tiles][2];
    absmax_parts ahead[m_tiles][2]; /* of the group after this one, in it of the chunk with this lane's number */
    float absmax[m_tiles][2];       /* of this group */
    float d[m_tiles][n_tiles][4];

    __device__ segment_sum(const mma_group &group, mma_memory<path, m_tiles> &memory, int first_chunk, int end_chunk)
        : g(group), shared(memory), begin(first_chunk), end(end_chunk),
          /* By a shuffle, so that the compiler does not compute it at each of its uses. */
          lane_offsets(warp_shuffle(lane_index() % PAIR_COPIES * 0x08080808U, lane_index())), absmax_here() {}

    QR_DEVICE bool is_nested() const { return g.weights[0].format != QR_WEIGHT_NF4; }

    QR_DEVICE absmax_source absmax_at(int side) const {
        return SEVERAL ? absmax_here : absmax_source_of(g.weights[paired ? side : 0]);
    }

    QR_DEVICE int matrix_of_tile(unsigned tile) const {
        int i = 0;
        while (SEVERAL && i + 1 < LINEAR_GROUP_MOST && tile >= g.first_tile[i + 1]) { i++; }
        return i;
    }

    /* The first of eight outputs of a tile, as its matrix counts them. */
    static QR_DEVICE int64_t output_of(unsigned tile_of_matrix, int m, int side) {
        const int64_t product = int64_t{tile_of_matrix} * m_tiles + m;
        return paired ? product * (OUTPUTS / 2) : product * OUTPUTS + side * (OUTPUTS / 2);
    }

    /* This lane's row of x in a product, at its columns of the segment's first chunk. Rows past the last one repeat it;
     * their results are not stored. */
    QR_DEVICE const uint16_t *first_x(const uint16_t *x, int64_t x_stride, int n) const {
        const int64_t row = (static_cast<int64_t>(blockIdx.y) * n_tiles + n) * TILE_ROWS + lane_index() / 4;
        const int64_t n_rows = g.args[0].n_rows;
        return x + (row < n_rows ? row : n_rows - 1) * x_stride + int64_t{begin} * CHUNK + lane_index() % 4 * LANE_COLS;
    }

    template <typename F> static QR_DEVICE void for_each_row(F apply) {
#pragma unroll
        for (int m = 0; m < m_tiles; m++) {
#pragma unroll
            for (int side = 0; side < 2; side++) { apply(m, side); }
        }
    }

    QR_DEVICE void load_absmax(int group) {
        if (path != PATH_NF4) { return; }
        const int mine = group + static_cast<int>(lane_index() % 4);
        const uint32_t chunk = static_cast<uint32_t>(mine < end ? mine : end - 1);
        for_each_row([&](int m, int side) {
            ahead[m][side] =
                absmax_parts_of(absmax_at(side), is_nested(), (at[m][side] + chunk) >> (g.weights[0].block_shift - 6));
        });
    }

    /* The codes of the i-th chunk after `next`. */
    QR_DEVICE void load(int i, lane_codes<path> dst[m_tiles][2]) const {
        if (path == PATH_ANY) { return; }
        for_each_row([&](int m, int side) { load_codes(next[m][side] + i * CHUNK_BYTES, dst[m][side]); });
    }

    /* Sets off for a tile. Rows past the last one repeat it. */
    QR_DEVICE void start(unsigned tile) {
        const int which = matrix_of_tile(tile);
        if (SEVERAL) { absmax_here = absmax_source_of(g.weights[which]); }
        for_each_row([&](int m, int side) {
            const matrix &w = g.weights[paired ? side : which];
            const int64_t o = output_of(tile - g.first_tile[which], m, side) + lane_index() / 4;
            const int64_t row = o < w.rows ? o : w.rows - 1;
            at[m][side] = static_cast<uint32_t>(path == PATH_ANY ? row : row * (w.cols / CHUNK));
        });
        if (path == PATH_ANY || begin >= end) { return; }
        load_absmax(begin);
        for_each_row([&](int m, int side) {
            next[m][side] = g.weights[paired ? side : which].codes +
                            uint64_t{at[m][side] + static_cast<uint32_t>(begin)} * CHUNK_BYTES +
                            lane_index() % 4 * (CHUNK_BYTES / 4);
        });
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            if (begin + i < end) { load(i, codes[i]); }
        }
        for_each_row([&](int m, int side) { next[m][side] += DEPTH * CHUNK_BYTES; });
    }

    /* This lane's 16 weights of chunk number i of a group. All lanes call it. */
    QR_DEVICE void weights_of(int m, int side, unsigned i, int64_t col, uint32_t dst[LANE_COLS / 2]) const {
        if (path == PATH_ANY) {
            load_any<type>(g.weights[0], at[m][side], col, dst);
        } else {
            const float scale = path == PATH_NF4 ? warp_shuffle(absmax[m][side], lane_index() / 4 * 4 + i) : 0.0F;
            convert<type, path>(codes[i % DEPTH][m][side], scale, shared.pairs, lane_offsets, dst);
        }
    }

    /* Chunk number i of a group, whose x begins at x_at. */
    template <ahead_loads loads> QR_DEVICE void multiply(int chunk, unsigned i, const uint16_t *const x_at[n_tiles]) {
        const int64_t col = int64_t{chunk} * CHUNK + lane_index() % 4 * LANE_COLS;
        uint32_t x[n_tiles][LANE_COLS / 2];
#pragma unroll
        for (int n = 0; n < n_tiles; n++) { load_x<path>(x_at[n] + i * CHUNK, g.weights[0].cols - col, x[n]); }
#pragma unroll
        for (int m = 0; m < m_tiles; m++) {
            uint32_t low[LANE_COLS / 2], high[LANE_COLS / 2];
            weights_of(m, 0, i, col, low);
            weights_of(m, 1, i, col, high);
#pragma unroll
            for (int step = 0; step < CHUNK_STEPS; step++) {
                const uint32_t left[4] = {low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1]};
#pragma unroll
                for (int n = 0; n < n_tiles; n++) { type::mma(d[m][n], left, &x[n][2 * step]); }
            }
        }
        const bool is_there = loads == LOAD_ALL || (loads == LOAD_NONE && i + DEPTH < GROUP) ||
                              (loads == LOAD_CHECKED && chunk + DEPTH < end);
        if (is_there) { load(static_cast<int>(i), codes[i % DEPTH]); }
    }

    template <ahead_loads loads> QR_DEVICE void multiply_group(int group, const uint16_t *x_at[n_tiles]) {
        if (path == PATH_NF4) {
            for_each_row([&](int m, int side) {
                absmax[m][side] = absmax_of(absmax_at(side), is_nested(), ahead[m][side], shared.map);
            });
        }
        if (loads == LOAD_ALL || (loads == LOAD_CHECKED && group + GROUP < end)) { load_absmax(group + GROUP); }
#pragma unroll
        for (unsigned i = 0; i < GROUP; i++) {
            if (loads != LOAD_CHECKED || group + static_cast<int>(i) < end) {
                multiply<loads>(group + static_cast<int>(i), i, x_at);
            }
        }
#pragma unroll
        for (int n = 0; n < n_tiles; n++) { x_at[n] += GROUP * CHUNK; }
        if (path != PATH_ANY) {
            for_each_row([&](int m, int side) { next[m][side] += GROUP * CHUNK_BYTES; });
        }
    }

    QR_DEVICE void run(const uint16_t *all_x, int64_t x_stride) {
        for_each_sum<m_tiles * n_tiles>([&](int n, int i) { d[n / n_tiles][n % n_tiles][i] = 0.0F; });
        const uint16_t *x_at[n_tiles];
#pragma unroll
        for (int n = 0; n < n_tiles; n++) { x_at[n] = first_x(all_x, x_stride, n); }
        int group = begin;
        if constexpr (path != PATH_ANY &&
                      m_tiles * n_tiles == 1) { /* more would be three times as much code for little */
            for (; group + GROUP + DEPTH <= end; group += GROUP) { multiply_group<LOAD_ALL>(group, x_at); }
            if (group + GROUP == end) {
                multiply_group<LOAD_NONE>(group, x_at);
                return;
            }
        }
        for (; group < end; group += GROUP) { multiply_group<LOAD_CHECKED>(group, x_at); }
    }

    /* This segment's sums of 8 rows: [m_tiles][8][16]. */
    QR_DEVICE void put_sums(int n) const {
        const unsigned group = lane_index() / 4, quad = lane_index() % 4;
#pragma unroll
        for (int m = 0; m < m_tiles; m++) {
            float *sums = shared.sums[warp_index()][m];
            for (unsigned i = 0; i < 4; i++) { sums[(2 * quad + i % 2) * SUMS_PITCH + group + i / 2 * 8] = d[m][n][i]; }
        }
    }

    /* The sums of all segments for a row of x and an output of a product, added in order. */
    QR_DEVICE float sum_of(unsigned m, unsigned row, unsigned output) const {
        const unsigned place = row * SUMS_PITCH + output;
        float sum = shared.sums[0][m][place];
        for (unsigned s = 1; s < LINEAR_SEGMENTS; s++) { sum += shared.sums[s][m][place]; }
        return sum;
    }

    QR_DEVICE float store_sum(int matrix_index, int64_t row, int64_t o, float sum) const {
        const qr_linear_args &a = g.args[matrix_index];
        return store_linear(a, linear_output_of(a, g.weights[matrix_index], o), row, o, sum);
    }

    QR_DEVICE void store(unsigned tile, int n) const {
        enum { HERE = paired ? OUTPUTS / 2 : +OUTPUTS };
        const int64_t first_row = (static_cast<int64_t>(blockIdx.y) * n_tiles + n) * TILE_ROWS;
        const int first = matrix_of_tile(tile);
        for (unsigned i = threadIdx.x; i < m_tiles * HERE * TILE_ROWS; i += THREADS) {
            const unsigned m = i / HERE % m_tiles, place = i / HERE / m_tiles, output = i % HERE;
            const int64_t o = output_of(tile - g.first_tile[first], static_cast<int>(m), 0) + output;
            const int64_t row = first_row + place;
            if (o >= g.weights[first].rows || row >= g.args[0].n_rows) { continue; }
            const float value = store_sum(first, row, o, sum_of(m, place, output));
            if constexpr (paired) {
                const float factor = store_sum(1, row, o, sum_of(m, place, output + HERE));
                store_from_f32(g.gate.dst, g.gate.dst_dtype, row * g.gate.dim + o, act_fn(g.gate.fn, value) * factor);
            }
        }
    }
};

/* The table of pairs and the map, in shared memory; the block must meet before they are read. */
static QR_DEVICE void fill_tables(const matrix &w, const nf4_book &book, float2 *pairs, float *map) {
    for (unsigned i = threadIdx.x; i < 256; i += THREADS) { map[i] = w.tables->dynamic_map[1][i]; }
    /* A thread has one byte in 16 for its own: 16 of them, with the same low half. */
    const unsigned copy = threadIdx.x % PAIR_COPIES;
    const float second = w.tables->nf4[threadIdx.x / PAIR_COPIES];
#pragma unroll
    for (unsigned i = 0; i < 16; i++) {
        pairs[pair_place(i * 16 + threadIdx.x / PAIR_COPIES) + copy] = make_float2(book.value[i], second);
    }
}

/* On a multiprocessor, by registers. */
template <weights_path path, int m_tiles, int n_tiles> struct mma_blocks {
    enum { AT_ONCE = path == PATH_ANY ? 1 : m_tiles * n_tiles == 1 ? 3 : m_tiles * n_tiles < 8 ? 2 : 1 };
};

/* x [n_rows, dim] by the norm, in shared memory and, by the first block, where its op has it. `team` is what the op
 * itself has for a row; all warps compute one that is a warp's. */
template <bool is_block> static QR_DEVICE void put_normed(const qr_rms_norm_args &norm, float *scratch, uint16_t *x) {
    const row_team<is_block> team = {scratch};
    for (int64_t row = 0; row < norm.n_rows; row++) {
        rms_norm_row(team, norm, norm.src + row * norm.src_stride, true, [&](int64_t j, const float four[VEC4]) {
            if (!is_block && warp_index() != 0) { return; }
            store_vec4(x, norm.dst_dtype, row * norm.dim, j, norm.dim, true, four);
            if (blockIdx.x == 0) {
                store_vec4(norm.dst, norm.dst_dtype, row * norm.dst_stride, j, norm.dim, true, four);
            }
        });
    }
    __syncthreads();
}

template <typename type, weights_path path, int m_tiles, int n_tiles, bool paired>
__global__ void __launch_bounds__(THREADS, mma_blocks<path, m_tiles, n_tiles>::AT_ONCE)
    linear_mma_kernel(mma_group g, nf4_book book) {
    mma_memory<path, m_tiles> *shared = shared_memory<mma_memory<path, m_tiles>>();
    static_assert(sizeof *shared % 16 == 0, "x follows");
    const int n_chunks = static_cast<int>((g.weights[0].cols + CHUNK - 1) / CHUNK);
    const int per_segment = static_cast<int>(linear_segment_chunks(n_chunks));
    const int begin = static_cast<int>(warp_index()) * per_segment;
    segment_sum<type, path, m_tiles, n_tiles, paired> segment(
        g, *shared, begin, begin + per_segment < n_chunks ? begin + per_segment : n_chunks);
    /* This overlaps the end of the kernel that writes x: weights are being loaded and the table is filled when x is
     * there. */
    segment.start(blockIdx.x);
    admit_next();
    if (path == PATH_NF4) {
        fill_tables(g.weights[0], book, shared->pairs, shared->map);
        __syncthreads();
    }
    await_previous();
    const uint16_t *x = static_cast<const uint16_t *>(g.args[0].x);
    int64_t x_stride = g.args[0].x_stride;
    if (path != PATH_ANY && m_tiles * n_tiles == 1 && g.norm.src != NULL) {
        uint16_t *normed = reinterpret_cast<uint16_t *>(shared + 1);
        float *scratch = &shared->sums[0][0][0];
        g.norm.dim > VEC4_BLOCK_DIM ? put_normed<true>(g.norm, scratch, normed)
                                    : put_normed<false>(g.norm, scratch, normed);
        x = normed;
        x_stride = g.norm.dim;
    }
    for (unsigned tile = blockIdx.x; tile < g.n_tiles; tile += gridDim.x) {
        segment.run(x, x_stride);
        if (tile + gridDim.x < g.n_tiles) { segment.start(tile + gridDim.x); }
        for (int t = 0; t < n_tiles; t++) {
            segment.put_sums(t);
            __syncthreads();
            segment.store(tile, t);
            __syncthreads();
        }
    }
}

/* A group as it is launched, on the way to its tiles. */
struct group_launch {
    mma_group group;
    int n; /* matrices */
    int64_t n_rows, n_outputs;
};

template <typename type, weights_path path, int m_tiles, int n_tiles, bool paired>
static qrun_status launch(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    mma_group &g = l.group;
    g.n_tiles = 0;
    for (int i = 0; i < LINEAR_GROUP_MOST; i++) {
        const bool has_tiles = i < (paired ? 1 : l.n);
        g.first_tile[i] = i == 0 || has_tiles ? g.n_tiles : UINT32_MAX;
        if (has_tiles) {
            g.n_tiles += blocks_for(g.weights[i].rows, paired ? m_tiles * OUTPUTS / 2 : m_tiles * OUTPUTS).x;
        }
    }
    dim3 grid(g.n_tiles, static_cast<unsigned>(qr_ceil_div(l.n_rows, n_tiles * TILE_ROWS)));
    const int at_once = qr_device_multiprocessors(cuda.device) * mma_blocks<path, m_tiles, n_tiles>::AT_ONCE;
    grid.x = static_cast<unsigned>(qr_min(grid.x, qr_ceil_div(at_once, grid.y)));
    const size_t x_bytes = g.norm.src != NULL ? static_cast<size_t>(g.norm.n_rows * g.norm.dim) * sizeof(uint16_t) : 0;
    return QR_LAUNCH_EARLY(cuda.device, err, (linear_mma_kernel<type, path, m_tiles, n_tiles, paired>), grid, THREADS,
                           (sizeof(mma_memory<path, m_tiles>) + x_bytes), g, nf4_book_of());
}

/* Whether tiles of this many outputs are neither half empty nor too few for the GPU. */
static bool fills(const qr_cuda_backend &cuda, const group_launch &l, int n_outputs) {
    return l.n_outputs > n_outputs / 2 &&
           qr_ceil_div(l.n_outputs, n_outputs) * 8 >= int64_t{7} * qr_device_multiprocessors(cuda.device);
}

/* One row or two: the smallest tile, as x is little. More, up to 8: twice the outputs. Then 32 rows at a time, so that
 * weights are dequantised once for them. */
template <typename type, weights_path path, bool paired>
static qrun_status launch_tiles(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    /* What registers allow. */
    enum {
        FEW = path == PATH_ANY ? 1 : 2,
        MORE = path == PATH_NF4 || path == PATH_INT8 ? 2 : 1,
        MOST = path == PATH_NF4 ? 4 : MORE
    };
    const bool few = l.n_rows <= TILE_ROWS, two = fills(cuda, l, 2 * OUTPUTS), four = fills(cuda, l, 4 * OUTPUTS);
    if (few && l.n_rows > LINEAR_NORM_ROWS && two) { return launch<type, path, FEW, 1, paired>(cuda, l, err); }
    if (few) { return launch<type, path, 1, 1, paired>(cuda, l, err); }
    if (four && (paired || l.n == 1)) { return launch<type, path, MOST, 4, paired>(cuda, l, err); }
    return two ? launch<type, path, MORE, 4, paired>(cuda, l, err) : launch<type, path, 1, 4, paired>(cuda, l, err);
}

/* A lane has one absmax for the chunk of its quad: blocks of 32 go element by element, as does an x that is not
 * aligned. */
static weights_path mma_path_of(const qr_linear_args &args, const matrix &w) {
    const weights_path path = path_of(w, args.x_dtype);
    return !linear_x_is_whole(args) || (path == PATH_NF4 && w.block_shift < 6) ? PATH_ANY : path;
}

template <typename type, weights_path path>
static qrun_status launch_group(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    return l.group.gate.dst != NULL ? launch_tiles<type, path, true>(cuda, l, err)
                                    : launch_tiles<type, path, false>(cuda, l, err);
}

template <typename type> static qrun_status launch_path(qr_cuda_backend &cuda, group_launch &l, qr_error *err) {
    const weights_path path = mma_path_of(l.group.args[0], l.group.weights[0]);
    return path == PATH_ANY ? launch_tiles<type, PATH_ANY, false>(cuda, l, err)
                            : QR_BY_PATH(path, launch_group, type, cuda, l, err);
}

static void add_matrix(group_launch &l, const qr_cuda_backend &cuda, const qr_linear_args &args) {
    l.group.args[l.n] = args;
    l.group.weights[l.n] = matrix_of(cuda, *args.weight);
    l.n_rows = args.n_rows;
    l.n_outputs += l.group.weights[l.n++].rows;
}

qrun_status qr_cuda_linear_mma(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    return linear_by_launches(args, [&](const qr_linear_args &part) {
        group_launch l = {};
        add_matrix(l, cuda, part);
        return QR_BY_TYPE(part.x_dtype, launch_path, cuda, l, err);
    });
}

/* x in shared memory leaves room for three blocks on sm_90. */
static bool takes_norm(const qr_rms_norm_args &norm) {
    enum { MOST_BYTES = 32 << 10 };
    return norm.n_rows <= LINEAR_NORM_ROWS && norm.n_rows * norm.dim <= int64_t{MOST_BYTES / sizeof(uint16_t)} &&
           rms_norm_is_aligned(norm);
}

bool qr_cuda_linear_group_takes(const qr_cuda_backend &cuda, const qr_linear_args *const *args, int n,
                                const linear_with &with) {
    if (args[0]->x_dtype == QR_DTYPE_F32 || args[0]->n_rows > LINEAR_MMA_ROWS) { return false; }
    const weights_path path = mma_path_of(*args[0], matrix_of(cuda, *args[0]->weight));
    for (int i = 0; i < n; i++) {
        const qr_weight_desc &desc = args[i]->weight->desc;
        const bool fits = !args[i]->any_order && mma_path_of(*args[i], matrix_of(cuda, *args[i]->weight)) == path &&
                          desc.format == args[0]->weight->desc.format && desc.block == args[0]->weight->desc.block;
        if (path == PATH_ANY || !fits) { return false; }
    }
    return with.norm == NULL || takes_norm(*with.norm);
}

qrun_status qr_cuda_linear_group(qr_cuda_backend &cuda, const qr_linear_args *const *args, int n,
                                 const linear_with &with, qr_error *err) {
    group_launch l = {};
    for (int i = 0; i < n; i++) { add_matrix(l, cuda, *args[i]); }
    if (with.norm != NULL) { l.group.norm = *with.norm; }
    if (with.gate != NULL) { l.group.gate = *with.gate; }
    return QR_BY_TYPE(args[0]->x_dtype, launch_path, cuda, l, err);
}
