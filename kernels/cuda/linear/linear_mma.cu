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
 *   - Instructions: 128 lanes, 4.4 a weight. A warp's 1,024 weights of a chunk are 132 in sm_90a's code for one row,
 *     4.1 a weight (bench/cuda_static.py): three of them are the address, load, products and rounding of pairs. A table
 *     of the 16 products (weights16.cuh) would spare the loads, but is a block's, and a lane has a quarter of a block's
 *     row: made for 16 weights it costs two instructions a weight. Codes and x are read through pointers that move once
 *     a group, so that a load is one instruction.
 *   - absmax: a quad's four lanes load those of four chunks ahead, one each, and hand them on by shuffles.
 *   - x: a warp reads its own segment alone, so a block reads x once a tile. For one row that is a quarter of the bytes
 * of NF4 codes; for eight rows twice as much, though from L2 (or L1, which the codes pass by). Hence the tiles of 32
 * and 64 outputs, where there are enough of them for all multiprocessors. Blocks stay and take tile after tile, so that
 * the table is made once, and load for the next before they add up. The kernel is launched early: its first loads
 * overlap the short kernels that decode has between two linears. */
#include "kernels/cuda/linear/linear_mma.cuh"

template <typename type, weights_path path, int m_tiles, int n_tiles>
__global__ void __launch_bounds__(THREADS, mma_blocks<path, m_tiles, n_tiles>::AT_ONCE)
    linear_mma_kernel(qr_linear_args a, matrix w, nf4_book book) {
    mma_memory<path, m_tiles> *shared = shared_memory<mma_memory<path, m_tiles>>();
    const segment_chunks chunks = segment_chunks_of(w);
    const linear_rows rows;
    segment_sum<type, path, m_tiles, n_tiles, linear_rows> segment(a, w, rows, *shared, chunks.begin, chunks.end);
    /* This overlaps the end of the kernel that writes x: weights are being loaded and the table is filled when x is
     * there. */
    segment.start(blockIdx.x);
    admit_next();
    if (path == PATH_NF4) {
        fill_tables(w, book, shared->pairs, shared->map);
        __syncthreads();
    }
    await_previous();
    segment.run_tiles(blockIdx.x, gridDim.x);
}

template <typename type, weights_path path, int m_tiles, int n_tiles>
static qrun_status launch(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    dim3 grid = blocks_for(w.rows, m_tiles * OUTPUTS);
    grid.y = static_cast<unsigned>(qr_ceil_div(args.n_rows, n_tiles * TILE_ROWS));
    const int at_once = qr_device_multiprocessors(cuda.device) * mma_blocks<path, m_tiles, n_tiles>::AT_ONCE;
    grid.x = static_cast<unsigned>(qr_min(grid.x, qr_ceil_div(at_once, grid.y)));
    return QR_LAUNCH_EARLY(cuda.device, err, (linear_mma_kernel<type, path, m_tiles, n_tiles>), grid, THREADS,
                           (sizeof(mma_memory<path, m_tiles>)), args, w, nf4_book_of());
}

/* Whether tiles of this many outputs are neither half empty nor too few for the GPU. */
static bool fills(const qr_cuda_backend &cuda, const matrix &w, int n_outputs) {
    return w.rows > n_outputs / 2 &&
           qr_ceil_div(w.rows, n_outputs) * 8 >= int64_t{7} * qr_device_multiprocessors(cuda.device);
}

/* One row or two: the smallest tile, as x is little. More, up to 8: twice the outputs. Then 32 rows at a time, so that
 * weights are dequantised once for them. */
template <typename type, weights_path path>
static qrun_status launch_tiles(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    /* What registers allow. */
    enum {
        FEW = path == PATH_ANY ? 1 : 2,
        MORE = path == PATH_NF4 || path == PATH_INT8 ? 2 : 1,
        MOST = path == PATH_NF4 ? 4 : MORE
    };
    const bool few = args.n_rows <= TILE_ROWS, two = fills(cuda, w, 2 * OUTPUTS), four = fills(cuda, w, 4 * OUTPUTS);
    if (few && args.n_rows > 2 && two) { return launch<type, path, FEW, 1>(cuda, args, w, err); }
    if (few) { return launch<type, path, 1, 1>(cuda, args, w, err); }
    if (four) { return launch<type, path, MOST, 4>(cuda, args, w, err); }
    return two ? launch<type, path, MORE, 4>(cuda, args, w, err) : launch<type, path, 1, 4>(cuda, args, w, err);
}

template <typename type>
static qrun_status launch_path(qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w, qr_error *err) {
    const weights_path path = mma_path_of(args, w);
    return path == PATH_ANY ? launch_tiles<type, PATH_ANY>(cuda, args, w, err)
                            : QR_BY_PATH(path, launch_tiles, type, cuda, args, w, err);
}

qrun_status qr_cuda_linear_mma(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    const matrix w = matrix_of(cuda, *args.weight);
    return linear_by_launches(
        args, [&](const qr_linear_args &part) { return QR_BY_TYPE(part.x_dtype, launch_path, cuda, part, w, err); });
}
