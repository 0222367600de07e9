/* product.cuh: a block of 256 threads for a tile of 64 × 64, four by four a thread, 16 of k at a time through shared
 * memory. */
#include "kernels/cuda/product.cuh"

enum { TILE = 64, DEPTH = 16, SIDE = 16, PER_THREAD = 4, THREADS = SIDE * SIDE, PITCH = TILE + 4 };

/* [DEPTH][PITCH] of each operand, so that a thread's four neighbours are one load. */
struct product_tiles {
    float a[DEPTH][PITCH], b[DEPTH][PITCH];
};

/* dst[d][i] = element (first + i, depth + d) of the operand seen with the tile's side as rows; zeros outside. Threads
 * go along the side whose elements are neighbours in memory. */
static __device__ void load_tile(float dst[DEPTH][PITCH], const operand &src, int64_t side_stride, int64_t depth_stride,
                                 int64_t first, int64_t n_side, int64_t depth, int64_t n_depth) {
    const bool along_side = side_stride == 1;
    for (int i = static_cast<int>(threadIdx.x); i < TILE * DEPTH; i += THREADS) {
        const int side = along_side ? i % TILE : i / DEPTH, d = along_side ? i / TILE : i % DEPTH;
        float value = 0.0F;
        if (first + side < n_side && depth + d < n_depth) {
            value = load_as_f32(src.data, src.dtype, (first + side) * side_stride + (depth + d) * depth_stride);
        }
        dst[d][side] = value;
    }
}

__global__ void product_kernel(product p) {
    product_tiles *tiles = shared_memory<product_tiles>();
    const int64_t first_row = static_cast<int64_t>(blockIdx.y) * TILE;
    const int64_t first_col = static_cast<int64_t>(blockIdx.x) * TILE;
    const unsigned row = threadIdx.x / SIDE * PER_THREAD, col = threadIdx.x % SIDE * PER_THREAD;
    float sums[PER_THREAD][PER_THREAD] = {};
    for (int64_t depth = 0; depth < p.k; depth += DEPTH) {
        load_tile(tiles->a, p.a, p.a.row_stride, p.a.col_stride, first_row, p.m, depth, p.k);
        load_tile(tiles->b, p.b, p.b.col_stride, p.b.row_stride, first_col, p.n, depth, p.k);
        __syncthreads();
        /* Not beyond k: a zero times an infinity would be no number. */
        const int n_depth = p.k - depth < DEPTH ? static_cast<int>(p.k - depth) : static_cast<int>(DEPTH);
        for (int d = 0; d < n_depth; d++) {
            const float4 left = *reinterpret_cast<const float4 *>(&tiles->a[d][row]);
            const float4 right = *reinterpret_cast<const float4 *>(&tiles->b[d][col]);
            const float a[PER_THREAD] = {left.x, left.y, left.z, left.w};
            const float b[PER_THREAD] = {right.x, right.y, right.z, right.w};
#pragma unroll
            for (int i = 0; i < PER_THREAD; i++) {
#pragma unroll
                for (int j = 0; j < PER_THREAD; j++) { sums[i][j] = fmaf(a[i], b[j], sums[i][j]); }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            if (first_row + row + i >= p.m || first_col + col + j >= p.n) { continue; }
            float *c = &p.c[(first_row + row + i) * p.c_stride + first_col + col + j];
            *c = p.accumulate ? fmaf(p.alpha, sums[i][j], *c) : p.alpha * sums[i][j];
        }
    }
}

qrun_status qr_cuda_product(qr_cuda_backend &cuda, const product &p, qr_error *err) {
    enum { LAUNCH_ROWS = 32768 * TILE }; /* the y dimension of a grid ends at 65535 */
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
