/* The products of linear_mma.cu, for the matrices of linear and of experts (expert_linear.cu). */
#ifndef QR_KERNELS_CUDA_LINEAR_MMA_CUH
#define QR_KERNELS_CUDA_LINEAR_MMA_CUH

#include "kernels/cuda/linear/linear.cuh"

enum {
    THREADS = LINEAR_SEGMENTS * WARP_LANES,
    OUTPUTS = 16,    /* of one product */
    TILE_ROWS = 8,   /* rows of x in one product */
    GROUP = 4,       /* chunks whose absmax the lanes of a quad hold */
    SUMS_PITCH = 20, /* of a row of a product's 16 sums: the lanes that write together meet 32 banks */
    PAIRS = 256,
    PAIR_COPIES = WARP_LANES / 2,
};

/* Shared memory. The table and the map are NF4's. */
template <weights_path path, int m_tiles> struct mma_memory {
    float sums[LINEAR_SEGMENTS][m_tiles][TILE_ROWS * SUMS_PITCH];
    float2 pairs[path == PATH_NF4 ? PAIRS * PAIR_COPIES : 1];
    float map[path == PATH_NF4 ? 256 : 1];
};

/* matrix_absmax_parts without branches and by 32-bit offsets: of NF4 a path's matrix has fewer than 2^32 blocks. */
static QR_DEVICE absmax_parts absmax_parts_of(const matrix &m, uint32_t block) {
    const bool nested = m.format != QR_WEIGHT_NF4;
    const float *scales = nested ? m.nested_absmax : m.scales;
    return {scales[nested ? block / QR_NESTED_BLOCK : block], nested ? m.absmax_codes[block] : 0U};
}

/* Both weights of byte i of a word of codes: they are at byte · 128 + lane_offset, where lane_offset is 8 · (lane mod
 * 16). */
static QR_DEVICE float2 pair_of(const float2 *pairs, uint32_t lane_offset, uint32_t codes, unsigned i) {
    const uint32_t scaled = i == 0 ? codes << 7 : codes >> (8 * i - 7);
    const uint32_t place = (scaled & 0x7F80U) | lane_offset;
    return *reinterpret_cast<const float2 *>(reinterpret_cast<const unsigned char *>(pairs) + place);
}

/* Sixteen weights as eight packed pairs. */
template <typename type, weights_path path>
static QR_DEVICE void convert(const lane_codes<path> &codes, float absmax, const float2 *pairs, uint32_t lane_offset,
                              uint32_t dst[LANE_COLS / 2]) {
    if (path == PATH_NF4) {
        const uint4 &both = codes.vectors[0];
#pragma unroll
        for (unsigned i = 0; i < LANE_COLS / 2; i++) {
            const float2 two = pair_of(pairs, lane_offset, i < 4 ? both.x : both.y, i % 4);
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

/* What a warp does: its segment of one tile of outputs after the other. rows_type: linear_rows, or one like it. */
template <typename type, weights_path path, int m_tiles, int n_tiles, class rows_type> struct segment_sum {
    enum {
        /* Chunks of codes in registers; a divisor of GROUP. Some 64 bytes a lane, at least two chunks. */
        DEPTH = path == PATH_NF4 && m_tiles * n_tiles < 4     ? 4
                : path == PATH_INT8 && m_tiles * n_tiles == 1 ? 4
                                                              : 2,
        CHUNK_BYTES = lane_codes<path>::CHUNK_BYTES,
    };
    const qr_linear_args &a;
    const matrix &w;
    const rows_type &rows;
    mma_memory<path, m_tiles> &shared;
    const int begin, end;       /* chunks */
    const uint32_t lane_offset; /* in a table of pairs */
    /* Of this lane's two rows of the weights in each product, the first chunk's number in the flattened matrix (whose
     * 2^38 elements would be 128 GB); of PATH_ANY, the row. */
    uint32_t at[m_tiles][2];
    const unsigned char *next[m_tiles][2]; /* this lane's codes of the chunk that is loaded at the begin of a group */
    lane_codes<path> codes[DEPTH][m_tiles][2];
    absmax_parts ahead[m_tiles][2]; /* of the group after this one, in it of the chunk with this lane's number */
    float absmax[m_tiles][2];       /* of this group */
    float d[m_tiles][n_tiles][4];

    __device__ segment_sum(const qr_linear_args &args, const matrix &weight, const rows_type &rows_,
                           mma_memory<path, m_tiles> &memory, int first_chunk, int end_chunk)
        : a(args), w(weight), rows(rows_), shared(memory), begin(first_chunk), end(end_chunk),
          /* By a shuffle, so that the compiler does not compute it at each of its uses. */
          lane_offset(warp_shuffle(lane_index() % PAIR_COPIES * 8, lane_index())) {}

    /* This lane's row of x in a product, at its columns of the segment's first chunk. Rows past the last one repeat it;
     * their results are not stored. */
    QR_DEVICE const uint16_t *first_x(int n) const {
        const int64_t row = rows.first(n_tiles * TILE_ROWS, blockIdx.y) + n * TILE_ROWS + lane_index() / 4;
        return static_cast<const uint16_t *>(a.x) + rows.of_x(row < a.n_rows ? row : a.n_rows - 1) * a.x_stride +
               int64_t{begin} * CHUNK + lane_index() % 4 * LANE_COLS;
    }

    template <typename F> static QR_DEVICE void for_each_row(F apply) {
#pragma unroll
        for (int m = 0; m < m_tiles; m++) {
#pragma unroll
            for (int side = 0; side < 2; side++) { apply(m, side); }
        }
    }

    QR_DEVICE void load_absmax(int group) {
        if (path != PATH_NF4 || group >= end) { return; }
        const int mine = group + static_cast<int>(lane_index() % 4);
        const uint32_t chunk = static_cast<uint32_t>(mine < end ? mine : end - 1);
        for_each_row([&](int m, int side) {
            ahead[m][side] = absmax_parts_of(w, (at[m][side] + chunk) >> (w.block_shift - 6));
        });
    }

    /* The codes of a chunk, the i-th after `next`. */
    QR_DEVICE void load(int chunk, int i, lane_codes<path> dst[m_tiles][2]) const {
        if (path == PATH_ANY || chunk >= end) { return; }
        for_each_row([&](int m, int side) { load_codes(next[m][side] + i * CHUNK_BYTES, dst[m][side]); });
    }

    /* Sets off for a tile. Rows past the last one repeat it. */
    QR_DEVICE void start(unsigned tile) {
        for_each_row([&](int m, int side) {
            const int64_t o = int64_t{tile} * m_tiles * OUTPUTS + m * OUTPUTS + side * (OUTPUTS / 2) + lane_index() / 4;
            const int64_t row = o < w.rows ? o : w.rows - 1;
            at[m][side] = static_cast<uint32_t>(path == PATH_ANY ? row : row * (w.cols / CHUNK));
        });
        load_absmax(begin);
        if (path == PATH_ANY) { return; }
        for_each_row([&](int m, int side) {
            next[m][side] = w.codes + uint64_t{at[m][side] + static_cast<uint32_t>(begin)} * CHUNK_BYTES +
                            lane_index() % 4 * (CHUNK_BYTES / 4);
        });
#pragma unroll
        for (int i = 0; i < DEPTH; i++) { load(begin + i, i, codes[i]); }
        for_each_row([&](int m, int side) { next[m][side] += DEPTH * CHUNK_BYTES; });
    }

    /* This lane's 16 weights of chunk number i of a group. All lanes call it. */
    QR_DEVICE void weights_of(int m, int side, unsigned i, int64_t col, uint32_t dst[LANE_COLS / 2]) const {
        if (path == PATH_ANY) {
            load_any<type>(w, at[m][side], col, dst);
        } else {
            const float scale = path == PATH_NF4 ? warp_shuffle(absmax[m][side], lane_index() / 4 * 4 + i) : 0.0F;
            convert<type, path>(codes[i % DEPTH][m][side], scale, shared.pairs, lane_offset, dst);
        }
    }

    /* Chunk number i of a group, whose x begins at x_at. */
    QR_DEVICE void multiply(int chunk, unsigned i, const uint16_t *const x_at[n_tiles]) {
        const int64_t col = int64_t{chunk} * CHUNK + lane_index() % 4 * LANE_COLS;
        uint32_t x[n_tiles][LANE_COLS / 2];
#pragma unroll
        for (int n = 0; n < n_tiles; n++) { load_x<path>(x_at[n] + i * CHUNK, w.cols - col, x[n]); }
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
        load(chunk + DEPTH, static_cast<int>(i), codes[i % DEPTH]);
    }

    QR_DEVICE void run() {
        for_each_sum<m_tiles * n_tiles>([&](int n, int i) { d[n / n_tiles][n % n_tiles][i] = 0.0F; });
        const uint16_t *x_at[n_tiles];
#pragma unroll
        for (int n = 0; n < n_tiles; n++) { x_at[n] = first_x(n); }
        for (int group = begin; group < end; group += GROUP) {
            if (path == PATH_NF4) {
                for_each_row(
                    [&](int m, int side) { absmax[m][side] = matrix_absmax_of(w, ahead[m][side], shared.map); });
            }
            load_absmax(group + GROUP);
#pragma unroll
            for (unsigned i = 0; i < GROUP; i++) {
                if (group + static_cast<int>(i) < end) { multiply(group + static_cast<int>(i), i, x_at); }
            }
#pragma unroll
            for (int n = 0; n < n_tiles; n++) { x_at[n] += GROUP * CHUNK; }
            if (path != PATH_ANY) {
                for_each_row([&](int m, int side) { next[m][side] += GROUP * CHUNK_BYTES; });
            }
        }
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

    /* The sums of all segments, added in order. */
    QR_DEVICE void store(unsigned tile, int n) const {
        const int64_t first_row = rows.first(n_tiles * TILE_ROWS, blockIdx.y) + n * TILE_ROWS;
        for (unsigned i = threadIdx.x; i < m_tiles * OUTPUTS * TILE_ROWS; i += THREADS) {
            const unsigned m = i / OUTPUTS % m_tiles, row = i / OUTPUTS / m_tiles;
            const unsigned place = row * SUMS_PITCH + i % OUTPUTS;
            const int64_t o = int64_t{tile} * m_tiles * OUTPUTS + m * OUTPUTS + i % OUTPUTS;
            if (o >= w.rows || first_row + row >= a.n_rows) { continue; }
            float sum = shared.sums[0][m][place];
            for (unsigned s = 1; s < LINEAR_SEGMENTS; s++) { sum += shared.sums[s][m][place]; }
            store_linear(a, linear_output_of(a, w, o), first_row + row, o, sum);
        }
    }

    /* Tiles `first`, which has been set off for, first + step, … below n_outputs / (m_tiles · OUTPUTS). */
    QR_DEVICE void run_tiles(unsigned first, unsigned step) {
        const unsigned n = static_cast<unsigned>((w.rows + m_tiles * OUTPUTS - 1) / (m_tiles * OUTPUTS));
        for (unsigned tile = first; tile < n; tile += step) {
            run();
            if (tile + step < n) { start(tile + step); }
            for (int t = 0; t < n_tiles; t++) {
                put_sums(t);
                __syncthreads();
                store(tile, t);
                __syncthreads();
            }
        }
    }
};

/* The chunks of a warp's segment. */
struct segment_chunks {
    int begin, end;
};

static QR_DEVICE segment_chunks segment_chunks_of(const matrix &w) {
    const int n_chunks = static_cast<int>((w.cols + CHUNK - 1) / CHUNK);
    const int per_segment = static_cast<int>(linear_segment_chunks(n_chunks));
    const int begin = static_cast<int>(warp_index()) * per_segment;
    return {begin, begin + per_segment < n_chunks ? begin + per_segment : n_chunks};
}

/* The table of pairs and the map, in shared memory; the block must meet before they are read. */
static QR_DEVICE void fill_tables(const matrix &w, const nf4_book &book, float2 *pairs, float *map) {
    for (unsigned i = threadIdx.x; i < 256; i += THREADS) { map[i] = w.tables->dynamic_map[1][i]; }
    /* A thread has one byte in 16 for its own: 16 of them, with the same low half. */
    const unsigned copy = threadIdx.x % PAIR_COPIES;
    const float second = w.tables->nf4[threadIdx.x / PAIR_COPIES];
#pragma unroll
    for (unsigned i = 0; i < 16; i++) {
        pairs[(i * 16 + threadIdx.x / PAIR_COPIES) * PAIR_COPIES + copy] = make_float2(book.value[i], second);
    }
}

/* On a multiprocessor, by registers. */
template <weights_path path, int m_tiles, int n_tiles> struct mma_blocks {
    enum { AT_ONCE = path == PATH_ANY ? 1 : m_tiles * n_tiles == 1 ? 3 : m_tiles * n_tiles < 8 ? 2 : 1 };
};

/* A lane has one absmax for the chunk of its quad: blocks of 32 go element by element, as does an x that is not
 * aligned. */
static inline weights_path mma_path_of(const qr_linear_args &args, const matrix &w) {
    const weights_path path = path_of(w, args.x_dtype);
    return !linear_x_is_whole(args) || (path == PATH_NF4 && w.block_shift < 6) ? PATH_ANY : path;
}

#endif
