/* linear with x in BF16 or F16 for many rows: a block computes a tile of outputs × rows, 64 columns at a time, with x
 * and the weights in shared memory as 16-bit values. The sums are those of linear_mma.cu to the bit: the same products
 * in the same order, the same eight segments of columns, their sums added in order.
 *
 * A row of a stage is 128 bytes, eight pieces of 16; piece p of row r is stored at position p ^ (r mod 8). In a row of
 * x pieces are as they come, and lane t of four reads its 16 columns as pieces 2t and 2t + 1. A row of the weights is
 * transposed: piece q holds the q-th pair of each lane's columns, so that load_matrices gives a lane the four registers
 * that a product wants (gathered from 16 columns of two rows they would cost as many moves as there are products). The
 * lanes that read or write together meet 32 banks each in all of these.
 *
 * x arrives by cp.async two chunks ahead. Weights are loaded to registers two chunks ahead and dequantised one ahead, a
 * run of 32 columns a thread, once a block: between the products, so that the tensor cores do not wait.
 *
 * What bounds a tile of 128 × 128, an SM and a chunk: its warps read 8 · (32 + 64) · 128 bytes of operands and write
 * 2 · 16 KB, which takes shared memory 1,024 cycles at 128 bytes each; they issue some 470 instructions each, two warps
 * a scheduler; the tensor cores' datasheet rate for the 2^20 multiply-adds is 512 cycles (H100) or 1,024 (A100). Larger
 * tiles of a warp would read less, but a thread holds a segment's sum and the total of each of its 64 results already:
 * 221 to 255 registers (sm_90a), so that one block of 256 threads lies on an SM and not two, and the work between
 * barriers is laid out for a block alone. A small tile's 128 threads have up to 168: three blocks. */
#include "kernels/cuda/linear/linear_tile.cuh"

template <typename type, weights_path path, class shape>
__global__ void __launch_bounds__(shape::THREADS) linear_tile_kernel(qr_linear_args a, matrix w, nf4_book book) {
    compute_tile<type, path, shape>(a, w, linear_rows(), book);
}

template <typename type, weights_path path, class shape>
static qrun_status launch(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    dim3 grid = blocks_for(args.n_rows, shape::ROWS);
    grid.y = static_cast<unsigned>(qr_ceil_div(w.rows, shape::OUTPUTS));
    return QR_LAUNCH(cuda.device, err, (linear_tile_kernel<type, path, shape>), grid, shape::THREADS,
                     (sizeof(tile_memory<shape>)), args, w, nf4_book_of(w));
}

/* Large tiles read less, small ones are more: while large ones do not fill the GPU. */
template <typename type, weights_path path>
static qrun_status launch_shape(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    const int64_t n_large = qr_ceil_div(w.rows, large_tile::OUTPUTS) * qr_ceil_div(args.n_rows, large_tile::ROWS);
    const bool large = args.n_rows > small_tile::ROWS * 2 && n_large >= qr_device_multiprocessors(cuda.device);
    return large ? launch<type, path, large_tile>(cuda, args, w, err)
                 : launch<type, path, small_tile>(cuda, args, w, err);
}

template <typename type>
static qrun_status launch_path(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    return QR_BY_PATH(path_of(w, args.x_dtype), launch_shape, type, cuda, args, w, err);
}

bool qr_cuda_linear_tile_takes(const qr_linear_args &args, const matrix &w) {
    return args.n_rows > LINEAR_MMA_ROWS && linear_x_is_whole(args) && path_of(w, args.x_dtype) != PATH_ANY;
}

qrun_status qr_cuda_linear_tile(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    return QR_BY_TYPE(args.x_dtype, launch_path, cuda, args, matrix_of(cuda, *args.weight), err);
}
