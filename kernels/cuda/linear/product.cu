/* product.cuh: a block of 256 threads for a tile of 128 × 128, eight by eight a thread (two runs of four, half a tile
 * apart, so that the lanes that read together meet all banks), 8 of k at a time through shared memory, the next 8 on
 * their way to registers. For 64 multiply-adds a thread reads four vectors of shared memory. */
#include "kernels/cuda/linear/product.cuh"

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

/* [DEPTH][PITCH] of each operand, so that a thread's four neighbours are one load. */
struct product_tiles {
    float a[DEPTH][PITCH], b[DEPTH][PITCH];
};

/* One operand's part of a tile, seen with the tile's side as rows. Threads go along what are neighbours in memory. */
struct product_side {
    const operand &src;
    int64_t side_stride, depth_stride, first, n_side, n_depth;
    int side, depth, side_step, depth_step; /* of this thread's first load, and from one to the next */

    __device__ __forceinline__ product_side(const operand &o, int64_t side_stride_, int64_t depth_stride_,
                                            int64_t first_, int64_t n_side_, int64_t n_depth_)
        : src(o), side_stride(side_stride_), depth_stride(depth_stride_), first(first_), n_side(n_side_),
          n_depth(n_depth_) {
        const int thread = static_cast<int>(threadIdx.x);
        const bool along_side = side_stride == 1;
        side = along_side ? thread % TILE : thread / DEPTH, side_step = along_side ? 0 : THREADS / DEPTH;
        depth = along_side ? thread / TILE : thread % DEPTH, depth_step = along_side ? THREADS / TILE : 0;
    }

    /* Zeros outside. */
    __device__ __forceinline__ void load(float values[LOADS], int64_t begin) const {
        int64_t at = (first + side) * side_stride + (begin + depth) * depth_stride;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const bool inside = first + side + i * side_step < n_side && begin + depth + i * depth_step < n_depth;
            values[i] = inside ? load_as_f32(src.data, src.dtype, at) : 0.0F;
            at += side_step * side_stride + depth_step * depth_stride;
        }
    }

    __device__ __forceinline__ void put(const float values[LOADS], float dst[DEPTH][PITCH]) const {
#pragma unroll
        for (int i = 0; i < LOADS; i++) { dst[depth + i * depth_step][side + i * side_step] = values[i]; }
    }
};

/* Eight of a row of a tile: four from `at` on, and four half a tile behind. */
static __device__ __forceinline__ void load_eight(const float row[PITCH], unsigned at, float dst[PER_THREAD]) {
    const float4 low = *reinterpret_cast<const float4 *>(&row[at]);
    const float4 high = *reinterpret_cast<const float4 *>(&row[at + HALF]);
    dst[0] = low.x, dst[1] = low.y, dst[2] = low.z, dst[3] = low.w;
    dst[4] = high.x, dst[5] = high.y, dst[6] = high.z, dst[7] = high.w;
}

static __device__ __forceinline__ void multiply(const product_tiles &tiles, unsigned row, unsigned col, int n_depth,
                                                float sums[PER_THREAD][PER_THREAD]) {
#pragma unroll 1 /* 128 registers: two blocks a multiprocessor */
    for (int d = 0; d < n_depth; d++) {
        float a[PER_THREAD], b[PER_THREAD];
        load_eight(tiles.a[d], row, a);
        load_eight(tiles.b[d], col, b);
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
#pragma unroll
            for (int j = 0; j < PER_THREAD; j++) { sums[i][j] = fmaf(a[i], b[j], sums[i][j]); }
        }
    }
}

__global__ void __launch_bounds__(THREADS, 2) product_kernel(product p) {
    product_tiles &tiles = *shared_memory<product_tiles>();
    const product_side left(p.a, p.a.row_stride, p.a.col_stride, static_cast<int64_t>(blockIdx.y) * TILE, p.m, p.k);
    const product_side right(p.b, p.b.col_stride, p.b.row_stride, static_cast<int64_t>(blockIdx.x) * TILE, p.n, p.k);
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
        /* Not beyond k: a zero times an infinity would be no number. */
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
            float *c = &p.c[r * p.c_stride + o];
            *c = p.accumulate ? fmaf(p.alpha, sums[i][j], *c) : p.alpha * sums[i][j];
        }
    }
}

qrun_status qr_cuda_product(qr_cuda_backend &cuda, const product &p, qr_error *err) {
    enum { LAUNCH_ROWS = 16384 * TILE }; /* the y dimension of a grid ends at 65535 */
    for (int64_t row = 0; row < p.m; row += LAUNCH_ROWS) {
        product part = p;
        const int64_t skipped = row * p.a.row_stride * static_cast<int64_t>(qr_dtype_bytes(p.a.dtype));
        part.a.data = static_cast<const unsigned char *>(p.a.data) + skipped;
        part.c = p.c + row * p.c_stride;
        part.m = qr_min(LAUNCH_ROWS, p.m - row);
        dim3 grid = blocks_for(p.n, TILE);
        grid.y = static_cast<unsigned>(qr_ceil_div(part.m, TILE));
        const qrun_status status =
            QR_LAUNCH(cuda.device, err, product_kernel, grid, THREADS, sizeof(product_tiles), part);
        if (status != QRUN_OK) { return status; }
    }
    return QRUN_OK;
}
