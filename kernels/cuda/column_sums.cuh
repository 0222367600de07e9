/* Sums over the rows of a matrix, a thread for some columns: first over chunks of rows, so that there are enough
 * threads, then over the chunks in order. The number of chunks, and with it the order of every sum, follows from the
 * number of rows alone. */
#ifndef QR_KERNELS_CUDA_COLUMN_SUMS_CUH
#define QR_KERNELS_CUDA_COLUMN_SUMS_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

enum { CHUNK_ROWS = 64, MOST_CHUNKS = 256 }; /* at least so many rows in a chunk, at most so many chunks */

static inline int64_t chunk_rows_of(int64_t n_rows) { return qr_max(CHUNK_ROWS, qr_ceil_div(n_rows, MOST_CHUNKS)); }
static inline int64_t n_chunks_of(int64_t n_rows) { return qr_ceil_div(n_rows, chunk_rows_of(n_rows)); }

/* Threads for four columns each, chunks in the grid's y dimension. */
static inline dim3 chunks_grid(int64_t n_rows, int64_t dim) {
    dim3 grid = vec4_grid(1, dim);
    grid.y = static_cast<unsigned>(n_chunks_of(n_rows));
    return grid;
}

/* body(row) for the rows of this block's chunk, in order. */
template <typename F> QR_DEVICE void for_chunk(int64_t n_rows, int64_t chunk_rows, const F &body) {
    const int64_t first = blockIdx.y * chunk_rows, end = n_rows - first < chunk_rows ? n_rows : first + chunk_rows;
    for (int64_t row = first; row < end; row++) { body(row); }
}

/* dst [dim] += the sum of the rows of sums [n_chunks, dim], in order. */
qrun_status qr_cuda_add_chunks(qr_cuda_backend &cuda, float *dst, const float *sums, int64_t n_chunks, int64_t dim,
                               qr_error *err);

#endif
