/* The products of linear_mma.cu, for the matrices of linear and of experts (expert_linear.cu). */
#ifndef QR_KERNELS_CUDA_LINEAR_MMA_CUH
#define QR_KERNELS_CUDA_LINEAR_MMA_CUH

#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/kv_page.cuh"
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

/* What else is done with the outputs of q, k and v, in heads: the rotation of q and k, and the writing of k and v. A
 * product has eight outputs of a head in its upper rows, and in its lower ones those that they are rotated with; where
 * they are not rotated, the next eight. So a block has both of a pair. */
struct mma_heads {
    unsigned n_products;              /* of a head */
    uint32_t inverse;                 /* of that, in 2^-28, rounded up */
    unsigned half[LINEAR_GROUP_MOST]; /* as qr_rope_args has it; 0: not rotated */
    const float *cos_table[LINEAR_GROUP_MOST], *sin_table[LINEAR_GROUP_MOST];
    qr_kv_write_args write;
    kv_offsets offsets;
};

/* What the absmax of one matrix are made of: map[code] · scale + offset, without branches and by 32-bit numbers (of NF4
 * a path's matrix has fewer than 2^32 chunks). NF4 has its absmax for scales: its map is ones, its offset −0, and of
 * codes there is the first byte of what is there, which changes nothing. Of MXFP4 only `codes` is used. */
struct absmax_source {
    const float *scales;
    const uint8_t *codes;
    float offset;
    unsigned scale_shift, code_shift; /* from a chunk's number to those of its scale and its code */
};

QR_HOST_DEVICE absmax_source absmax_source_of(const matrix &m) {
    const bool nested = m.format != QR_WEIGHT_NF4;
    const unsigned of_block = m.block_shift > 6 ? static_cast<unsigned>(m.block_shift) - 6 : 0;
    static_assert(QR_NESTED_BLOCK == 1 << 8, "the shift of a scale");
    return {nested ? m.nested_absmax : m.scales, m.absmax_codes, nested ? m.nested_offset : -0.0F,
            nested ? of_block + 8 : of_block, nested ? of_block : 31};
}

/* Matrices of one format that multiply the same x: their tiles are numbered one matrix after the other. Of a pair (gate
 * and up) a tile has eight outputs of the first in its upper rows and the same eight of the second in its lower ones,
 * so that a block has both factors of what it computes of them. */
struct mma_group {
    qr_linear_args args[LINEAR_GROUP_MOST];
    matrix weights[LINEAR_GROUP_MOST];
    absmax_source absmax[LINEAR_GROUP_MOST]; /* of formats with a book; their shifts are alike */
    unsigned first_tile[LINEAR_GROUP_MOST];  /* of those that are not there: more than there are */
    unsigned n_tiles;
    qr_rms_norm_args norm; /* that makes x; src NULL: x is there */
    qr_gate_args gate;     /* of a pair */
    mma_heads heads;       /* of HEADS */
};

/* What a kernel is made for: one matrix, those of a group by the tile, q, k and v in heads likewise, or a pair. */
enum mma_matrices { ONE, SEVERAL, HEADS, A_PAIR };

/* Eight outputs of a product from `first` on, and eight from first + apart. */
struct product_outputs {
    int64_t first, apart;
};

/* The chunks of a warp's segment. */
struct segment_chunks {
    int begin, end;
};

static QR_DEVICE segment_chunks segment_chunks_of(const matrix &w) {
    const int n_chunks = static_cast<int>((w.cols + CHUNK - 1) / CHUNK);
    const int per_segment = static_cast<int>(linear_segment_chunks(n_chunks));
    const int begin = static_cast<int>(uniform_warp_index()) * per_segment;
    return {begin, begin + per_segment < n_chunks ? begin + per_segment : n_chunks};
}

/* Shared memory. The table is NF4's and MXFP4's, the map NF4's. After it, where there is a norm, x: [n_rows, cols]. A
 * block that takes tile after tile has two sets of sums in turn: the one is read while the other is written. */
template <weights_path path, int m_tiles, int n_warps = LINEAR_SEGMENTS, int n_turns = 2> struct mma_memory {
    float sums[n_turns][n_warps][m_tiles][TILE_ROWS * SUMS_PITCH];
    float2 pairs[path_has_book<path> ? PAIRS * PAIR_COPIES : 1];
    float map[path == PATH_NF4 ? 256 : 1];
};

/* Where the pair of a byte's codes is in the table, in copies. */
static QR_DEVICE unsigned pair_place(unsigned byte) { return byte * PAIR_COPIES; }

/* The code book, and what makes byte i of a word of codes its place in the table, in bytes: dot_bytes(word, place[i],
 * 0). Parameters of the kernel, since the instruction takes them from uniform registers, but not from itself. */
struct pair_book : nf4_book {
    uint32_t place[4];
};

static inline pair_book pair_book_of(const matrix &w) {
    constexpr uint32_t pitch = PAIR_COPIES * sizeof(float2);
    static_assert(pitch < 256, "a byte");
    pair_book book = {nf4_book_of(w), {}};
    for (unsigned i = 0; i < 4; i++) { book.place[i] = pitch << 8 * i; }
    return book;
}

/* Where a lane finds pairs: its copies of the table are lane_offset bytes after the first one. */
struct pair_table {
    const float2 *pairs;
    uint32_t lane_offset;
    const pair_book &book;
};

/* Both weights of byte i of a word of codes. */
static QR_DEVICE float2 pair_of(const pair_table &table, uint32_t codes, unsigned i) {
    const uint32_t place = dot_bytes(codes, table.book.place[i], table.lane_offset);
    return *reinterpret_cast<const float2 *>(reinterpret_cast<const unsigned char *>(table.pairs) + place);
}

/* Eight of sixteen weights, the first (part 0) or the second half of them (1), as four packed pairs. */
template <typename type, weights_path path>
static QR_DEVICE void convert_half(const lane_codes<path> &codes, float absmax, const pair_table &table, unsigned part,
                                   uint32_t dst[LANE_COLS / 4]) {
    if (path_has_book<path>) {
        const uint4 &both = codes.vectors[0];
        const uint32_t word = part == 0 ? both.x : both.y;
#pragma unroll
        for (unsigned i = 0; i < LANE_COLS / 4; i++) {
            const float2 two = pair_of(table, word, i);
            dst[i] = type::pack(two.x * absmax, two.y * absmax);
        }
    } else {
#pragma unroll
        for (unsigned i = 0; i < CHUNK_STEPS / 2; i++) {
            lane_step<type, path>(codes, part * (CHUNK_STEPS / 2) + i, dst + 2 * i);
        }
    }
}

/* All sixteen. */
template <typename type, weights_path path>
static QR_DEVICE void convert(const lane_codes<path> &codes, float absmax, const pair_table &table,
                              uint32_t dst[LANE_COLS / 2]) {
    convert_half<type, path>(codes, absmax, table, 0, dst);
    convert_half<type, path>(codes, absmax, table, 1, dst + LANE_COLS / 4);
}

/* Sixteen columns of a row of x from `src` on, of which `n_left` are in the row; of PATH_ANY, zeros after the last one.
 * Zeros where the row is not there: then nothing is loaded. */
template <weights_path path>
static QR_DEVICE void load_x(const uint16_t *src, bool is_there, int64_t n_left, uint32_t pairs[LANE_COLS / 2]) {
    if constexpr (path != PATH_ANY) {
        const uint4 *vectors = reinterpret_cast<const uint4 *>(src);
        const uint4 zeros = make_uint4(0, 0, 0, 0);
        unpack_words(pairs, is_there ? vectors[0] : zeros);
        unpack_words(pairs + 4, is_there ? vectors[1] : zeros);
    } else {
#pragma unroll
        for (int i = 0; i < LANE_COLS / 2; i++) {
            pairs[i] =
                pack16(2 * i < n_left ? src[2 * i] : uint16_t{0}, 2 * i + 1 < n_left ? src[2 * i + 1] : uint16_t{0});
        }
    }
}

/* Chunks of codes in registers; a divisor of GROUP. Some 64 bytes a lane, at least two chunks. */
template <weights_path path, int m_tiles, int n_tiles>
constexpr int mma_depth = path_has_book<path> &&m_tiles *n_tiles < 4  ? 4
                          : path == PATH_INT8 &&m_tiles *n_tiles == 1 ? 4
                                                                      : 2;

/* What a warp does: its segment of one tile of outputs after the other. rows_type: linear_rows, or one like it. */
template <typename type, weights_path path, int m_tiles, int n_tiles, mma_matrices kind, class rows_type,
          int n_warps = LINEAR_SEGMENTS, int depth = mma_depth<path, m_tiles, n_tiles>, int n_turns = 2>
struct segment_sum {
    enum { DEPTH = depth, CHUNK_BYTES = lane_codes<path>::CHUNK_BYTES };
    static constexpr bool paired = kind == A_PAIR, several = kind == SEVERAL || kind == HEADS;
    /* What a group of chunks loads for those after it: all, as there are enough; none, as it is the last; or what there
     * is. The first two ask nothing in their loop. */
    enum ahead_loads { LOAD_ALL, LOAD_NONE, LOAD_CHECKED };
    const mma_group &g;
    const rows_type &rows;
    mma_memory<path, m_tiles, n_warps, n_turns> &shared;
    int begin, end; /* chunks */
    const pair_table table;
    absmax_source absmax_here; /* of this tile's matrix, where there are several */
    /* Of this lane's two rows of the weights in each product, the first chunk's number in the flattened matrix (whose
     * 2^38 elements would be 128 GB), plus this lane's number in its quad: the chunk whose
     * absmax it loads next. Of PATH_ANY, the row. */
    uint32_t at[m_tiles][2];
    const unsigned char *next[m_tiles][2]; /* this lane's codes of the chunk that is loaded at the begin of a group */
    lane_codes<path> codes[DEPTH][m_tiles][2];
    absmax_parts ahead[m_tiles][2]; /* of the group after this one, in it of the chunk with this lane's number */
    float absmax[m_tiles][2];       /* of this group; of MXFP4 the bits of two scales in E8M0, of 32 columns each */
    float d[m_tiles][n_tiles][4];
    bool has_x[n_tiles]; /* whether this lane's rows of x are there */
    unsigned turn;       /* of the sums in shared memory: which are written next */

    __device__ segment_sum(const mma_group &group, const pair_book &book, const rows_type &rows_,
                           mma_memory<path, m_tiles, n_warps, n_turns> &memory, const segment_chunks &chunks)
        : g(group), rows(rows_), shared(memory), begin(chunks.begin), end(chunks.end),
          /* The offset by a shuffle, so that the compiler does not compute it at each of its uses. */
          table{memory.pairs, warp_shuffle(lane_index() % PAIR_COPIES * uint32_t{sizeof(float2)}, lane_index()), book},
          absmax_here(), turn(0) {}

    QR_DEVICE absmax_source absmax_at(int side) const { return several ? absmax_here : g.absmax[paired ? side : 0]; }

    QR_DEVICE int matrix_of_tile(unsigned tile) const {
        int i = 0;
        while (several && i + 1 < LINEAR_GROUP_MOST && tile >= g.first_tile[i + 1]) { i++; }
        return i;
    }

    /* A quotient without a division, as long as there are fewer than 2^28 / n_products products. */
    QR_DEVICE unsigned head_of(unsigned product) const {
        return static_cast<unsigned>(uint64_t{product} * g.heads.inverse >> 28);
    }

    /* The outputs of product m of a tile, as its matrix counts them; of a pair those of either matrix. */
    QR_DEVICE product_outputs outputs_of(int which, unsigned tile_of_matrix, int m) const {
        const unsigned product = tile_of_matrix * m_tiles + static_cast<unsigned>(m);
        if (paired) { return {int64_t{product} * (OUTPUTS / 2), 0}; }
        if (kind != HEADS) { return {int64_t{product} * OUTPUTS, OUTPUTS / 2}; }
        const unsigned of_head = product - head_of(product) * g.heads.n_products, half = g.heads.half[which];
        const bool rotated = of_head * (OUTPUTS / 2) < half;
        return {int64_t{product - of_head} * OUTPUTS + of_head * (rotated ? OUTPUTS / 2 : +OUTPUTS),
                rotated ? half : OUTPUTS / 2};
    }

    /* This lane's row of x in a product. Of those past the last one, results are not stored. */
    QR_DEVICE int64_t x_row(int n) const {
        return rows.first(n_tiles * TILE_ROWS, blockIdx.y) + n * TILE_ROWS + lane_index() / 4;
    }

    /* That row at its columns of the segment's first chunk; past the last one, the last one. */
    QR_DEVICE const uint16_t *first_x(const uint16_t *x, int64_t x_stride, int n) const {
        const int64_t row = x_row(n), n_rows = g.args[0].n_rows;
        return x + rows.of_x(row < n_rows ? row : n_rows - 1) * x_stride + int64_t{begin} * CHUNK +
               lane_index() % 4 * LANE_COLS;
    }

    template <typename F> static QR_DEVICE void for_each_row(F apply) {
#pragma unroll
        for (int m = 0; m < m_tiles; m++) {
#pragma unroll
            for (int side = 0; side < 2; side++) { apply(m, side); }
        }
    }

    /* Of the next group, of which `left` chunks are there, or all (`whole`): lanes without one take the last. */
    QR_DEVICE void load_absmax(int left, bool whole) {
        if (!path_has_book<path>) { return; }
        const int beyond = left - 1 - static_cast<int>(lane_index() % 4);
        const uint32_t back = static_cast<uint32_t>(whole || beyond > 0 ? 0 : beyond);
        for_each_row([&](int m, int side) {
            const absmax_source source = absmax_at(side);
            const uint32_t chunk = at[m][side] + back;
            at[m][side] += GROUP;
            if (path == PATH_MXFP4) {
                ahead[m][side].code = reinterpret_cast<const uint16_t *>(source.codes)[chunk];
                return;
            }
            ahead[m][side].scale = source.scales[chunk >> g.absmax[0].scale_shift];
            ahead[m][side].code = source.codes[chunk >> g.absmax[0].code_shift];
        });
    }

    /* The codes of the i-th chunk after `next`. */
    QR_DEVICE void load(int i, lane_codes<path> dst[m_tiles][2]) const {
        if (path == PATH_ANY) { return; }
        for_each_row([&](int m, int side) { load_codes(next[m][side] + i * CHUNK_BYTES, dst[m][side]); });
    }

    /* Sets off for a tile, of the matrix `which` its number `tile_of_matrix`. Rows past the last one repeat it. */
    QR_DEVICE void start_in(int which, unsigned tile_of_matrix) {
        if (several) { absmax_here = g.absmax[which]; }
        for_each_row([&](int m, int side) {
            const matrix &w = g.weights[paired ? side : which];
            const product_outputs outputs = outputs_of(which, tile_of_matrix, m);
            const int64_t o = outputs.first + side * outputs.apart + lane_index() / 4;
            const int64_t row = o < w.rows ? o : w.rows - 1;
            if (path == PATH_ANY) {
                at[m][side] = static_cast<uint32_t>(row);
                return;
            }
            const uint32_t chunk = static_cast<uint32_t>(row * (w.cols / CHUNK)) + static_cast<uint32_t>(begin);
            at[m][side] = chunk + lane_index() % 4;
            next[m][side] = w.codes + uint64_t{chunk} * CHUNK_BYTES + lane_index() % 4 * (CHUNK_BYTES / 4);
        });
        if (path == PATH_ANY || begin >= end) { return; }
        load_absmax(end - begin, false);
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            if (begin + i < end) { load(i, codes[i]); }
        }
        for_each_row([&](int m, int side) { next[m][side] += DEPTH * CHUNK_BYTES; });
    }

    QR_DEVICE void start(unsigned tile) {
        const int which = matrix_of_tile(tile);
        start_in(which, tile - g.first_tile[which]);
    }

    /* The scale of this lane's 16 columns of chunk number i of a group. All lanes call it. */
    QR_DEVICE float scale_of(int m, int side, unsigned i) const {
        if (!path_has_book<path>) { return 0.0F; }
        const float of_chunk = quad_shuffle(absmax[m][side], i);
        if (path == PATH_NF4) { return of_chunk; }
        return e8m0_to_f32(f32_to_bits(of_chunk) >> (lane_index() % 4 / 2 * 8) & 255U);
    }

    /* This lane's 16 weights of chunk number i of a group. All lanes call it. */
    QR_DEVICE void weights_of(int m, int side, unsigned i, int64_t col, uint32_t dst[LANE_COLS / 2]) const {
        if constexpr (path == PATH_ANY) {
            const lane_pairs loaded = load_any<type>(g.weights[0], at[m][side], col);
#pragma unroll
            for (int j = 0; j < LANE_COLS / 2; j++) { dst[j] = loaded.pair[j]; }
        } else {
            convert<type, path>(codes[i % DEPTH][m][side], scale_of(m, side, i), table, dst);
        }
    }

    /* Chunk number i of a group, whose x begins at x_at; `left` are left of the segment with it. */
    template <ahead_loads loads> QR_DEVICE void multiply(int left, unsigned i, const uint16_t *const x_at[n_tiles]) {
        const int64_t col = int64_t{end - left} * CHUNK + lane_index() % 4 * LANE_COLS;
        uint32_t x[n_tiles][LANE_COLS / 2];
#pragma unroll
        for (int n = 0; n < n_tiles; n++) {
            load_x<path>(x_at[n] + i * CHUNK, has_x[n], g.weights[0].cols - col, x[n]);
        }
#pragma unroll
        for (int m = 0; m < m_tiles; m++) {
            uint32_t low[LANE_COLS / 2], high[LANE_COLS / 2];
            weights_of(m, 0, i, col, low);
            weights_of(m, 1, i, col, high);
#pragma unroll
            for (int step = 0; step < CHUNK_STEPS; step++) {
                const uint32_t w[4] = {low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1]};
#pragma unroll
                for (int n = 0; n < n_tiles; n++) { type::mma(d[m][n], w, &x[n][2 * step]); }
            }
        }
        const bool is_there =
            loads == LOAD_ALL || (loads == LOAD_NONE && i + DEPTH < GROUP) || (loads == LOAD_CHECKED && left > DEPTH);
        if (is_there) { load(static_cast<int>(i), codes[i % DEPTH]); }
    }

    /* The absmax of a group of chunks, loaded before, and loads of the next one's. `left` as multiply_group has it. */
    template <ahead_loads loads> QR_DEVICE void take_absmax(int left) {
        if (path == PATH_MXFP4) {
            for_each_row([&](int m, int side) { absmax[m][side] = f32_from_bits(ahead[m][side].code); });
        }
        if (path == PATH_NF4) {
            for_each_row([&](int m, int side) {
                absmax[m][side] = shared.map[ahead[m][side].code] * ahead[m][side].scale + absmax_at(side).offset;
            });
        }
        if (loads == LOAD_ALL || (loads == LOAD_CHECKED && left > GROUP)) {
            load_absmax(left - GROUP, loads == LOAD_ALL && DEPTH >= +GROUP);
        }
    }

    /* A group of chunks; `left` are left of the segment with them. */
    template <ahead_loads loads> QR_DEVICE void multiply_group(int left, const uint16_t *x_at[n_tiles]) {
        take_absmax<loads>(left);
#pragma unroll(path == PATH_ANY ? 1 : GROUP)
        for (unsigned i = 0; i < GROUP; i++) {
            if (loads != LOAD_CHECKED || left > static_cast<int>(i)) {
                multiply<loads>(left - static_cast<int>(i), i, x_at);
            }
        }
#pragma unroll
        for (int n = 0; n < n_tiles; n++) { x_at[n] += GROUP * CHUNK; }
        if (path != PATH_ANY) {
            for_each_row([&](int m, int side) { next[m][side] += GROUP * CHUNK_BYTES; });
        }
    }

    QR_DEVICE void clear() {
        for_each_sum<m_tiles * n_tiles>([&](int n, int i) { d[n / n_tiles][n % n_tiles][i] = 0.0F; });
    }

    QR_DEVICE void run(const uint16_t *all_x, int64_t x_stride) {
        clear();
        const uint16_t *x_at[n_tiles];
#pragma unroll
        for (int n = 0; n < n_tiles; n++) {
            x_at[n] = first_x(all_x, x_stride, n);
            has_x[n] = x_row(n) < g.args[0].n_rows;
        }
        int left = end - begin;
        if constexpr (path != PATH_ANY &&
                      m_tiles * n_tiles == 1) { /* more would be three times as much code for little */
#pragma unroll 1
            for (; left >= GROUP + DEPTH; left -= GROUP) { multiply_group<LOAD_ALL>(left, x_at); }
            if (left == GROUP) {
                multiply_group<LOAD_NONE>(left, x_at);
                return;
            }
        }
#pragma unroll 1
        for (; left > 0; left -= GROUP) { multiply_group<LOAD_CHECKED>(left, x_at); }
    }

    /* This segment's sums of 8 rows: [m_tiles][8][16]. */
    QR_DEVICE void put_sums(int n) const {
        const unsigned group = lane_index() / 4, quad = lane_index() % 4;
#pragma unroll
        for (int m = 0; m < m_tiles; m++) {
            float *sums = shared.sums[turn][warp_index()][m];
            for (unsigned i = 0; i < 4; i++) { sums[(2 * quad + i % 2) * SUMS_PITCH + group + i / 2 * 8] = d[m][n][i]; }
        }
    }

    /* The sums of all segments for a row of x and an output of a product, added in order. */
    QR_DEVICE float sum_of(unsigned m, unsigned row, unsigned output) const {
        const unsigned place = row * SUMS_PITCH + output;
        float sum = shared.sums[turn][0][m][place];
        for (unsigned s = 1; s < LINEAR_SEGMENTS; s++) { sum += shared.sums[turn][s][m][place]; }
        return sum;
    }

    QR_DEVICE float store_sum(int matrix_index, int64_t row, int64_t o, float sum) const {
        const qr_linear_args &a = g.args[matrix_index];
        return store_linear(a, linear_output_of(a, g.weights[matrix_index], o), row, o, sum);
    }

    /* Both outputs of a pair, of q, k or v, and k's and v's in their pages. The products and sums are those of rope. */
    QR_DEVICE void store_heads(unsigned tile, int n) const {
        const int which = matrix_of_tile(tile);
        const unsigned tile_of_matrix = tile - g.first_tile[which];
        const int64_t first_row = rows.first(n_tiles * TILE_ROWS, blockIdx.y) + n * TILE_ROWS;
        const qr_linear_args &a = g.args[which];
        const mma_heads &heads = g.heads;
        for (unsigned i = threadIdx.x; i < m_tiles * OUTPUTS / 2 * TILE_ROWS; i += THREADS) {
            const unsigned output = i % (OUTPUTS / 2), m = i / (OUTPUTS / 2) % m_tiles,
                           place = i / (OUTPUTS / 2) / m_tiles;
            const product_outputs outputs = outputs_of(which, tile_of_matrix, static_cast<int>(m));
            const int64_t o = outputs.first + output, other = o + outputs.apart, row = first_row + place;
            if (o >= g.weights[which].rows || row >= a.n_rows) { continue; }
            float value[2] = {
                linear_value(linear_output_of(a, g.weights[which], o), sum_of(m, place, output)),
                linear_value(linear_output_of(a, g.weights[which], other), sum_of(m, place, output + OUTPUTS / 2))};
            const unsigned head = head_of(tile_of_matrix * m_tiles + m);
            const int64_t j = o - int64_t{head * heads.n_products} * OUTPUTS, half = heads.half[which];
            if (j < half) {
                const float c = heads.cos_table[which][row * half + j], s = heads.sin_table[which][row * half + j];
                const float before = value[0];
                value[0] = before * c - value[1] * s;
                value[1] = value[1] * c + before * s;
            }
            a.y[row * a.y_stride + o] = value[0];
            a.y[row * a.y_stride + other] = value[1];
            if (which == 0) { continue; }
            const kv_place page = kv_place_of(heads.write, heads.offsets, row, head, which == 2);
            if (page.part == NULL) { continue; }
            unsigned char *dst = page.part + page.index * static_cast<int64_t>(heads.offsets.head_bytes);
            store_from_f32(dst, kv_dtype_of(heads.offsets.format), j, value[0]);
            store_from_f32(dst, kv_dtype_of(heads.offsets.format), j + outputs.apart, value[1]);
        }
    }

    QR_DEVICE void store(unsigned tile, int n) const {
        enum { HERE = paired ? OUTPUTS / 2 : +OUTPUTS };
        const int64_t first_row = rows.first(n_tiles * TILE_ROWS, blockIdx.y) + n * TILE_ROWS;
        const int first = matrix_of_tile(tile);
        for (unsigned i = threadIdx.x; i < m_tiles * HERE * TILE_ROWS; i += THREADS) {
            const unsigned m = i / HERE % m_tiles, place = i / HERE / m_tiles, output = i % HERE;
            const int64_t o = outputs_of(first, tile - g.first_tile[first], static_cast<int>(m)).first + output;
            const int64_t row = first_row + place;
            if (o >= g.weights[first].rows || row >= g.args[0].n_rows) { continue; }
            const float value = store_sum(first, row, o, sum_of(m, place, output));
            if constexpr (paired) {
                const float factor = store_sum(1, row, o, sum_of(m, place, output + HERE));
                store_from_f32(g.gate.dst, g.gate.dst_dtype, row * g.gate.dim + o, act_fn(g.gate.fn, value) * factor);
            }
        }
    }

    /* Tiles `first`, which has been set off for, first + step, … of the group. */
    QR_DEVICE void run_tiles(const uint16_t *x, int64_t x_stride, unsigned first, unsigned step) {
        for (unsigned tile = first; tile < g.n_tiles; tile += step) {
            run(x, x_stride);
            if (tile + step < g.n_tiles) { start(tile + step); }
            for (int t = 0; t < n_tiles; t++) {
                put_sums(t);
                __syncthreads(); /* and all have read the other sums, which are written next */
                if constexpr (kind == HEADS) {
                    store_heads(tile, t);
                } else {
                    store(tile, t);
                }
                turn ^= 1U;
            }
        }
    }
};

/* The table of pairs and the map (NULL: of MXFP4), in shared memory, by THREADS threads; the block must meet before
 * they are read. */
static QR_DEVICE void fill_tables(const matrix &w, const nf4_book &book, float2 *pairs, float *map) {
    for (unsigned i = threadIdx.x; map != NULL && i < 256; i += THREADS) {
        map[i] = w.format == QR_WEIGHT_NF4 ? 1.0F : w.tables->dynamic_map[1][i]; /* see absmax_source */
    }
    /* A thread has one byte in 16 for its own: 16 of them, with the same low half. */
    const unsigned copy = threadIdx.x % PAIR_COPIES;
    const float second = matrix_code_values(w)[threadIdx.x / PAIR_COPIES];
#pragma unroll
    for (unsigned i = 0; i < 16; i++) {
        pairs[pair_place(i * 16 + threadIdx.x / PAIR_COPIES) + copy] = make_float2(book.value[i], second);
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

/* A group of matrices as it is launched, on the way to its tiles. */
struct group_launch {
    mma_group group;
    int n; /* matrices */
    int64_t n_rows, n_outputs;
};

/* Numbers the tiles of n_outputs outputs, of a pair half as many of each. */
static inline void number_tiles(group_launch &l, int n_outputs) {
    mma_group &g = l.group;
    const bool paired = g.gate.dst != NULL;
    g.n_tiles = 0;
    for (int i = 0; i < LINEAR_GROUP_MOST; i++) {
        const bool has_tiles = i < (paired ? 1 : l.n);
        g.first_tile[i] = i == 0 || has_tiles ? g.n_tiles : UINT32_MAX;
        if (has_tiles) { g.n_tiles += blocks_for(g.weights[i].rows, paired ? n_outputs / 2 : n_outputs).x; }
    }
}

/* The same for 9 to LINEAR_MMA_ROWS rows, of a path but PATH_ANY, where shared memory has room (linear_staged.cu). */
bool qr_cuda_linear_staged_takes(const qr_cuda_backend &cuda, const group_launch &l);
qrun_status qr_cuda_linear_staged(qr_cuda_backend &cuda, group_launch &l, qr_error *err);

#endif
