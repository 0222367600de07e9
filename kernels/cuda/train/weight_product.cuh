/* The product of weight_backward and expert_weight_backward: dw += dyᵀ · x in F32, so that gradients are as exact as
 * their sums. Sums over tokens run in their order, whatever the matrix's sizes are.
 *
 * A block of 256 threads computes a tile of 128 × 128 of dw, eight by eight a thread: two runs of four, half a tile
 * apart, so that the lanes that read together meet all banks. 8 tokens at a time go through shared memory while the
 * next 8 are loaded to registers. For 64 multiply-adds a thread reads four vectors of shared memory. */
#ifndef QR_KERNELS_CUDA_TRAIN_WEIGHT_PRODUCT_CUH
#define QR_KERNELS_CUDA_TRAIN_WEIGHT_PRODUCT_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

enum {
    TILE = 128,
    HALF = TILE / 2,
    DEPTH = 8,
    SIDE = 16,
    PER_THREAD = 8,
    THREADS = SIDE * SIDE,
    PITCH = TILE + 4,
    LOADS = TILE * DEPTH / THREADS, /* a thread, of each operand */
};

/* Elements of F32, BF16 or F16; (i along the side of the result, token) at i · side_stride + token · depth_stride. */
struct gemm_operand {
    const void *data;
    qr_dtype dtype;
    int64_t side_stride, depth_stride;
    /* Of an expert's slots in the place of tokens: the row of each, and what it is multiplied by. NULL: the slots
     * themselves, and 1. */
    const int32_t *source = nullptr;
    const float *factor = nullptr;
};

/* c [m, n] += a [m, k] · b [k, n] */
struct gemm_f32 {
    gemm_operand a, b;
    int64_t m, n, k;
    float *c;
};

/* [DEPTH][PITCH] of each operand, so that a thread's four neighbours are one load. */
struct gemm_tiles {
    float a[DEPTH][PITCH], b[DEPTH][PITCH];
};

/* One operand's part of a tile, seen with the tile's side as rows. Neighbouring threads load neighbours in memory. */
template <bool of_slots> struct gemm_side {
    const gemm_operand &src;
    int64_t first, n_side, n_depth;
    int side, depth, side_step, depth_step; /* of this thread's first load, and from one to the next */

    QR_DEVICE gemm_side(const gemm_operand &operand, unsigned tile, int64_t side_length, int64_t depth_length)
        : src(operand), first(static_cast<int64_t>(tile) * TILE), n_side(side_length), n_depth(depth_length) {
        const int thread = static_cast<int>(threadIdx.x);
        const bool along_side = src.side_stride == 1;
        side = along_side ? thread % TILE : thread / DEPTH, side_step = along_side ? 0 : THREADS / DEPTH;
        depth = along_side ? thread / TILE : thread % DEPTH, depth_step = along_side ? THREADS / TILE : 0;
    }

    /* Through the rows of slots, which are together nowhere. */
    QR_DEVICE float load_slot(int64_t i, int64_t slot) const {
        const int64_t row = src.source != nullptr ? src.source[slot] : slot;
        const float value = load_as_f32(src.data, src.dtype, i * src.side_stride + row * src.depth_stride);
        return src.factor != nullptr ? src.factor[slot] * value : value;
    }

    /* Zeros outside. */
    QR_DEVICE void load(float values[LOADS], int64_t begin) const {
        int64_t at = (first + side) * src.side_stride + (begin + depth) * src.depth_stride;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int64_t of_side = first + side + i * side_step, token = begin + depth + i * depth_step;
            const bool inside = of_side < n_side && token < n_depth;
            if (of_slots) {
                values[i] = inside ? load_slot(of_side, token) : 0.0F;
            } else {
                values[i] = inside ? load_as_f32(src.data, src.dtype, at) : 0.0F;
            }
            at += side_step * src.side_stride + depth_step * src.depth_stride;
        }
    }

    QR_DEVICE void put(const float values[LOADS], float dst[DEPTH][PITCH]) const {
#pragma unroll
        for (int i = 0; i < LOADS; i++) { dst[depth + i * depth_step][side + i * side_step] = values[i]; }
    }
};

/* Eight of a row of a tile: four from `at` on, and four half a tile later. */
static QR_DEVICE void load_eight(float dst[PER_THREAD], const float row[PITCH], unsigned at) {
    load_vec4(dst, &row[at]);
    load_vec4(dst + VEC4, &row[at + HALF]);
}

static QR_DEVICE void multiply(const gemm_tiles &tiles, unsigned row, unsigned col, int n_depth,
                               float sums[PER_THREAD][PER_THREAD]) {
#pragma unroll 1 /* 128 registers: two blocks a multiprocessor */
    for (int d = 0; d < n_depth; d++) {
        float a[PER_THREAD], b[PER_THREAD];
        load_eight(a, tiles.a[d], row);
        load_eight(b, tiles.b[d], col);
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
#pragma unroll
            for (int j = 0; j < PER_THREAD; j++) { sums[i][j] = fmaf(a[i], b[j], sums[i][j]); }
        }
    }
}

/* A block's tile, by blockIdx.x and y. */
template <bool of_slots> static QR_DEVICE void add_product(const gemm_f32 &p) {
    gemm_tiles &tiles = *shared_memory<gemm_tiles>();
    const gemm_side<of_slots> left(p.a, blockIdx.y, p.m, p.k), right(p.b, blockIdx.x, p.n, p.k);
    const unsigned row = threadIdx.x / SIDE * 4, col = threadIdx.x % SIDE * 4;
    float sums[PER_THREAD][PER_THREAD] = {}, next_a[LOADS], next_b[LOADS];
    left.load(next_a, 0);
    right.load(next_b, 0);
    for (int64_t depth = 0; depth < p.k; depth += DEPTH) {
        left.put(next_a, tiles.a);
        right.put(next_b, tiles.b);
        __syncthreads();
        left.load(next_a, depth + DEPTH);
        right.load(next_b, depth + DEPTH);
        /* Not beyond k: a zero times an infinity would be NaN. */
        const int n_depth = p.k - depth < DEPTH ? static_cast<int>(p.k - depth) : static_cast<int>(DEPTH);
        const bool wanted = left.first + row < p.m && right.first + col < p.n;
        if (wanted) { multiply(tiles, row, col, n_depth, sums); }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            const int64_t r = left.first + row + i % 4 + i / 4 * HALF, o = right.first + col + j % 4 + j / 4 * HALF;
            if (r >= p.m || o >= p.n) { continue; }
            p.c[r * p.n + o] += sums[i][j];
        }
    }
}

#endif
