/* Matrix products on the tensor cores of F32 values as bf16x2 splits: x = high + low, two BF16 values, within 2^-17 of
 * x and with F32's range. A product of two splits is high · high + low · high + high · low. A value that BF16 holds
 * exactly is a high alone, and its products have one term fewer. Sums are F32.
 *
 * A tile is rows of DIM elements (a multiple of 32) in shared memory; highs and lows are separate arrays. Rows are a
 * power of two of elements apart, their 16-byte chunks at chunk ^ row % 8, so that the eight rows of a matrix that one
 * instruction loads are in different banks. */
#ifndef QR_KERNELS_CUDA_BF16X2_TILES_CUH
#define QR_KERNELS_CUDA_BF16X2_TILES_CUH

#include "kernels/cuda/device/device.cuh"

enum { TILE_CHUNK = 8 }; /* elements in 16 bytes */

/* Two values, each as a high and a low part. */
QR_DEVICE void split_bf16x2(float first, float second, uint32_t &high, uint32_t &low) {
    high = f32_to_bf16x2(first, second);
    low = f32_to_bf16x2(first - f32_from_bits(high << 16), second - f32_from_bits(high & 0xFFFF0000U));
}

/* Eight values, each as a high and a low part. */
QR_DEVICE void split_vec8(const float v[TILE_CHUNK], uint4 &high, uint4 &low) {
    uint32_t highs[TILE_CHUNK / 2], lows[TILE_CHUNK / 2];
#pragma unroll
    for (int i = 0; i < TILE_CHUNK / 2; i++) { split_bf16x2(v[2 * i], v[2 * i + 1], highs[i], lows[i]); }
    high = pack_words(highs), low = pack_words(lows);
}

struct split_tile {
    uint16_t *high, *low; /* low: only of split values */
};

/* Elements from row to row, of a tile and of the matrices that tiles are copied from. */
static __host__ QR_DEVICE constexpr int tile_row_pitch(int dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

template <int DIM> QR_DEVICE unsigned tile_offset(unsigned row, unsigned chunk) {
    return row * tile_row_pitch(DIM) + (chunk ^ row % 8) * TILE_CHUNK;
}

/* The same of a lane's row and chunk, both below 16, of a matrix at (row, chunk), row a multiple of 8 and chunk one of
 * 2: what depends on the lane is computed once, and what depends on the matrix is a constant in an unrolled loop. */
template <int DIM>
QR_DEVICE unsigned tile_offset(unsigned row, unsigned chunk, unsigned lane_row, unsigned lane_chunk) {
    return (tile_offset<DIM>(lane_row, lane_chunk) ^ chunk * TILE_CHUNK) + row * tile_row_pitch(DIM);
}

/* Rows [0, ROWS) of a tile from a matrix; zeros from row n_rows on. By all n_threads of a block, asynchronously: the
 * caller commits and waits. */
template <int DIM, int ROWS, int n_threads> QR_DEVICE void copy_tile(uint16_t *tile, const uint16_t *src, int n_rows) {
    enum { CHUNKS = DIM / TILE_CHUNK, N = ROWS * CHUNKS };
#pragma unroll
    for (unsigned i = 0; i < N; i += n_threads) {
        const unsigned at = i + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        if (N % n_threads != 0 && at >= N) { break; }
        copy_async_16(tile + tile_offset<DIM>(row, chunk), src + row * tile_row_pitch(DIM) + chunk * TILE_CHUNK,
                      static_cast<int>(row) < n_rows ? 16 : 0);
    }
}

/* Operands of m16n8k16 (device.cuh). */
struct split_a {
    uint32_t high[4], low[4];
};

struct split_b {
    uint32_t high[2], low[2];
};

/* Rows [row, row + 16) of a tile, elements [16 · step, 16 · step + 16), as the left operand. */
template <int DIM, bool is_split> QR_DEVICE split_a load_left(const split_tile &tile, unsigned row, unsigned step) {
    const unsigned at = tile_offset<DIM>(row, 2 * step, lane_index() % 16, lane_index() / 16);
    split_a a = {};
    load_matrices(a.high, tile.high + at);
    if (is_split) { load_matrices(a.low, tile.low + at); }
    return a;
}

/* Two right operands from four matrices [8, 8] at `at`, as they are stored or transposed. */
template <bool transposed, bool is_split> QR_DEVICE void load_right(split_b b[2], const split_tile &tile, unsigned at) {
    const auto load = [](uint32_t r[4], const uint16_t *row) {
        transposed ? load_matrices_transposed(r, row) : load_matrices(r, row);
    };
    uint32_t r[4];
    load(r, tile.high + at);
    b[0].high[0] = r[0], b[0].high[1] = r[1], b[1].high[0] = r[2], b[1].high[1] = r[3];
    if (!is_split) { return; }
    load(r, tile.low + at);
    b[0].low[0] = r[0], b[0].low[1] = r[1], b[1].low[0] = r[2], b[1].low[1] = r[3];
}

/* The same rows and elements as two right operands: a row of the tile is a column, eight of them an operand. */
template <int DIM, bool is_split>
QR_DEVICE void load_rows(split_b b[2], const split_tile &tile, unsigned row, unsigned step) {
    const unsigned lane_row = lane_index() / 16 * 8 + lane_index() % 8;
    load_right<false, is_split>(b, tile, tile_offset<DIM>(row, 2 * step, lane_row, lane_index() / 8 % 2));
}

/* Rows [row, row + 16) as the rows of two right operands, whose columns are elements [8 · chunk, 8 · chunk + 16). */
template <int DIM, bool is_split>
QR_DEVICE void load_columns(split_b b[2], const split_tile &tile, unsigned row, unsigned chunk) {
    load_right<true, is_split>(b, tile, tile_offset<DIM>(row, chunk, lane_index() % 16, lane_index() / 16));
}

/* d[n] += a · b[n]. Neighbouring products have different sums, so that none waits for the one before it. */
template <bool a_is_split, bool b_is_split, int N>
QR_DEVICE void mma_split(float (*d)[4], const split_a &a, const split_b *b) {
#pragma unroll
    for (int n = 0; n < N; n++) { mma_bf16(d[n], a.high, b[n].high); }
#pragma unroll
    for (int n = 0; n < N && a_is_split; n++) { mma_bf16(d[n], a.low, b[n].high); }
#pragma unroll
    for (int n = 0; n < N && b_is_split; n++) { mma_bf16(d[n], a.high, b[n].low); }
}

/* 16 · M rows of a tile as the left operands of many products, in registers where these suffice. */
template <int DIM, bool is_split, bool in_registers, int M = 1> struct left_rows {
    split_tile tile;
    unsigned row;
    split_a kept[M][in_registers ? DIM / 16 : 1];

    /* With in_registers: once, when the tile is there. */
    QR_DEVICE void keep() {
#pragma unroll
        for (unsigned i = 0; i < M * DIM / 16 && in_registers; i++) {
            const unsigned step = i % (DIM / 16);
            kept[i / (DIM / 16)][in_registers ? step : 0] =
                load_left<DIM, is_split>(tile, row + i / (DIM / 16) * 16, step);
        }
    }
    QR_DEVICE split_a operator()(unsigned m, unsigned step) const {
        return in_registers ? kept[m][in_registers ? step : 0] : load_left<DIM, is_split>(tile, row + 16 * m, step);
    }
};

/* dots [M][16, 8 · N] += left [M][16, DIM] · tileᵀ, of the first 8 · N rows of the tile. */
template <bool b_is_split, int M, int N, int DIM, bool a_is_split, bool in_registers>
QR_DEVICE void add_dots(float (&dots)[M][N][4], const left_rows<DIM, a_is_split, in_registers, M> &left,
                        const split_tile &tile) {
#pragma unroll
    for (unsigned step = 0; step < DIM / 16; step++) {
        split_a a[M];
        split_b right[N];
#pragma unroll
        for (unsigned m = 0; m < M; m++) { a[m] = left(m, step); }
#pragma unroll
        for (unsigned n = 0; n < N; n += 2) { load_rows<DIM, b_is_split>(right + n, tile, 8 * n, step); }
#pragma unroll
        for (unsigned m = 0; m < M; m++) { mma_split<a_is_split, b_is_split, N>(dots[m], a[m], right); }
    }
}

/* Weights of rows [16 · step, 16 · step + 16) of a tile as a left operand, split or rounded. */
template <bool is_split> QR_DEVICE split_a left_of_weights(const float (*weights)[4], unsigned step) {
    split_a left = {};
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        const float *two = weights[2 * step + i / 2] + i % 2 * 2;
        if (is_split) {
            split_bf16x2(two[0], two[1], left.high[i], left.low[i]);
        } else {
            left.high[i] = f32_to_bf16x2(two[0], two[1]);
        }
    }
    return left;
}

/* sums [M][16, 8 · C] += weights [M][16, 8 · N] · tile. */
template <bool a_is_split, bool b_is_split, int M, int C, int N>
QR_DEVICE void add_weighted_rows(float (&sums)[M][C][4], const float (&weights)[M][N][4], const split_tile &tile) {
    enum { DIM = 8 * C, AT_ONCE = 4 /* right operands */ };
#pragma unroll
    for (unsigned step = 0; step < N / 2; step++) {
        split_a left[M];
#pragma unroll
        for (unsigned m = 0; m < M; m++) { left[m] = left_of_weights<a_is_split>(weights[m], step); }
#pragma unroll
        for (unsigned c = 0; c < C; c += AT_ONCE) {
            split_b right[AT_ONCE];
            load_columns<DIM, b_is_split>(right, tile, 16 * step, c);
            load_columns<DIM, b_is_split>(right + 2, tile, 16 * step, c + 2);
#pragma unroll
            for (unsigned m = 0; m < M; m++) {
                mma_split<a_is_split, b_is_split, AT_ONCE>(sums[m] + c, left[m], right);
            }
        }
    }
}

/* For i of [0, n_tiles): first(i) and second(i), on tiles that load_first(i) and load_second(i) start the copies of,
 * each into memory of its own. The copies of one overlap the work on the other. All threads of a block. */
template <typename LF, typename LS, typename F, typename S>
QR_DEVICE void through_two_tiles(int n_tiles, const LF &load_first, const LS &load_second, const F &first,
                                 const S &second) {
    if (n_tiles > 0) { load_first(0); }
    copy_async_commit();
    for (int i = 0; i < n_tiles; i++) {
        copy_async_wait<0>();
        __syncthreads(); /* first's tile is there, and the last second's is no longer read */
        load_second(i);
        copy_async_commit();
        first(i);
        copy_async_wait<0>();
        __syncthreads(); /* second's is there, and first's is no longer read */
        if (i + 1 < n_tiles) { load_first(i + 1); }
        copy_async_commit();
        second(i);
    }
}

/* For i of [0, n_tiles): load(i, stage) starts the copies of tile i into one of `stages` buffers, work(i, stage) uses
 * them. With two buffers the copies of a tile overlap the work on the one before it. All threads of a block. */
template <int stages, typename L, typename W> QR_DEVICE void through_tiles(int n_tiles, const L &load, const W &work) {
    if (n_tiles > 0) { load(0, 0); }
    copy_async_commit();
    for (int i = 0; i < n_tiles; i++) {
        copy_async_wait<0>();
        __syncthreads(); /* the tile is there, and the one before it is no longer read */
        if (stages == 2 && i + 1 < n_tiles) { load(i + 1, (i + 1) % 2); }
        copy_async_commit();
        work(i, i % stages);
        if (stages == 1 && i + 1 < n_tiles) {
            __syncthreads();
            load(i + 1, 0);
            copy_async_commit();
        }
    }
}

#endif
