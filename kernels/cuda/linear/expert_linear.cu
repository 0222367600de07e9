/* expert_linear: the products of linear for tiles of slots, each of one expert's matrix; so a row has linear's bits.
 * The grid has a place for every tile that a routing can have (expert_slots.cuh), and blocks without one end at once:
 * nothing is read of an expert without tokens.
 *
 * Few slots are tiles of 8, and where experts have many each, tiles of 64 on linear_tile.cu's products. Hopper's own
 * products (linear_wgmma.cu) are not used. */
#include "kernels/cuda/expert_matrices.cuh"
#include "kernels/cuda/linear/linear_mma.cuh"
#include "kernels/cuda/linear/linear_tile.cuh"

enum {
    F32_THREADS = 256,
    F32_WARPS = F32_THREADS / WARP_LANES,
    TILE_SLOTS = small_tile::ROWS,
    MANY_SLOTS = 24, /* of an expert on average, from which tiles of TILE_SLOTS are used */
};

/* On a multiprocessor, by registers: more than linear's, because a block's matrix is no parameter. */
template <weights_path path, int m_tiles, int n_tiles> struct expert_blocks {
    enum { AT_ONCE = path != PATH_ANY && m_tiles * n_tiles == 1 ? 2 : 1 };
};

/* The call of linear that a tile is; rows of y begin at its first slot. */
static QR_DEVICE qr_linear_args linear_of(const qr_expert_linear_args &a, const slot_tile &tile) {
    qr_linear_args linear = {};
    linear.x = a.x;
    linear.x_dtype = a.x_dtype;
    linear.y = a.y + tile.first * a.y_stride;
    linear.n_rows = tile.n;
    linear.x_stride = a.x_stride;
    linear.y_stride = a.y_stride;
    return linear;
}

/* grid: tiles of slots; outputs. */
__global__ void expert_linear_f32_kernel(qr_expert_linear_args a, expert_matrices matrices) {
    const slot_tile tile = slot_tile_of(a.routing, LINEAR_F32_ROWS, static_cast<int32_t>(blockIdx.x));
    const int64_t o = static_cast<int64_t>(blockIdx.y) * F32_WARPS + warp_index();
    if (!matrices.has(tile) || o >= matrices.like.rows) { return; }
    linear_f32_sums(linear_of(a, tile), matrices.of(tile.expert), slot_rows_of(a.routing, tile, a.gathers), o, 0);
}

/* As linear_mma_kernel, but which codes a block reads depends on what the kernels before it have written. */
template <typename type, weights_path path, int m_tiles, int n_tiles>
__global__ void __launch_bounds__(THREADS, expert_blocks<path, m_tiles, n_tiles>::AT_ONCE)
    expert_linear_mma_kernel(qr_expert_linear_args a, expert_matrices matrices, pair_book book) {
    mma_memory<path, m_tiles> *shared = shared_memory<mma_memory<path, m_tiles>>();
    if (path_has_book<path>) { fill_tables(matrices.like, book, shared->pairs, path == PATH_NF4 ? shared->map : NULL); }
    admit_next();
    await_previous();
    const slot_tile tile = slot_tile_of(a.routing, n_tiles * TILE_ROWS, static_cast<int32_t>(blockIdx.x));
    if (!matrices.has(tile)) { return; }
    __syncthreads();
    mma_group g = {};
    g.args[0] = linear_of(a, tile);
    g.weights[0] = matrices.of(tile.expert);
    g.absmax[0] = absmax_source_of(g.weights[0]);
    g.n_tiles = static_cast<unsigned>((g.weights[0].rows + m_tiles * OUTPUTS - 1) / (m_tiles * OUTPUTS));
    const slot_rows rows = slot_rows_of(a.routing, tile, a.gathers);
    segment_sum<type, path, m_tiles, n_tiles, ONE, slot_rows> segment(g, book, rows, *shared,
                                                                      segment_chunks_of(g.weights[0]));
    segment.start(blockIdx.y);
    segment.run_tiles(static_cast<const uint16_t *>(a.x), a.x_stride, blockIdx.y, gridDim.y);
}

template <typename type, weights_path path>
__global__ void __launch_bounds__(small_tile::THREADS)
    expert_linear_tile_kernel(qr_expert_linear_args a, expert_matrices matrices, nf4_book book) {
    const slot_tile tile = slot_tile_of(a.routing, TILE_SLOTS, static_cast<int32_t>(blockIdx.x));
    if (!matrices.has(tile)) { return; }
    compute_tile<type, path, small_tile>(linear_of(a, tile), matrices.of(tile.expert),
                                         slot_rows_of(a.routing, tile, a.gathers), book);
}

static dim3 grid_of(const qr_expert_linear_args &args, int n_slots, int64_t n_outputs) {
    return dim3(static_cast<unsigned>(slot_tile_numbers(args.routing, n_slots)),
                static_cast<unsigned>(qr_ceil_div(args.weights->desc.rows, n_outputs)));
}

static qrun_status launch_f32(qr_cuda_backend &cuda, const qr_expert_linear_args &args, const expert_matrices &matrices,
                              qr_error *err) {
    return QR_LAUNCH(cuda.device, err, expert_linear_f32_kernel, grid_of(args, LINEAR_F32_ROWS, F32_WARPS), F32_THREADS,
                     0, args, matrices);
}

/* Where every slot is another expert's, blocks for as many tiles of outputs as the GPU computes at once. */
template <typename type, weights_path path, int m_tiles, int n_tiles>
static qrun_status launch_mma(qr_cuda_backend &cuda, const qr_expert_linear_args &args, const expert_matrices &matrices,
                              qr_error *err) {
    dim3 grid = grid_of(args, n_tiles * TILE_ROWS, m_tiles * OUTPUTS);
    const int at_once = qr_device_blocks_at_once(cuda.device, expert_blocks<path, m_tiles, n_tiles>::AT_ONCE,
                                                 sizeof(mma_memory<path, m_tiles>));
    grid.y = static_cast<unsigned>(qr_min(grid.y, qr_ceil_div(at_once, grid.x)));
    return QR_LAUNCH_EARLY(cuda.device, err, (expert_linear_mma_kernel<type, path, m_tiles, n_tiles>), grid, THREADS,
                           (sizeof(mma_memory<path, m_tiles>)), args, matrices, pair_book_of(matrices.like));
}

template <typename type, weights_path path>
static qrun_status launch_rows(qr_cuda_backend &cuda, const qr_expert_linear_args &args,
                               const expert_matrices &matrices, qr_error *err) {
    enum { MORE = path_has_book<path> || path == PATH_INT8 ? 2 : 1 };
    if (slot_tiles_by_pair(args.routing)) { return launch_mma<type, path, 1, 1>(cuda, args, matrices, err); }
    if constexpr (path != PATH_ANY) {
        constexpr weights_path tile_path = path == PATH_MXFP4 ? PATH_NF4 : path;
        if (qr_routing_slots(&args.routing) / args.routing.n_experts >= MANY_SLOTS) {
            return QR_LAUNCH(cuda.device, err, (expert_linear_tile_kernel<type, tile_path>),
                             grid_of(args, TILE_SLOTS, small_tile::OUTPUTS), small_tile::THREADS,
                             sizeof(tile_memory<small_tile>), args, matrices, nf4_book_of(matrices.like));
        }
    }
    return launch_mma<type, path, MORE, 4>(cuda, args, matrices, err);
}

template <typename type>
static qrun_status launch_path(qr_cuda_backend &cuda, const qr_expert_linear_args &args,
                               const expert_matrices &matrices, qr_error *err) {
    qr_linear_args x = {};
    x.weight = args.weights, x.x = args.x, x.x_dtype = args.x_dtype, x.x_stride = args.x_stride;
    const weights_path path = mma_path_of(x, matrices.like);
    if (matrices.like.format == QR_WEIGHT_MXFP4 && linear_x_is_whole(x)) {
        return launch_rows<type, PATH_MXFP4>(cuda, args, matrices, err);
    }
    return path == PATH_ANY ? launch_rows<type, PATH_ANY>(cuda, args, matrices, err)
                            : QR_BY_PATH(path, launch_rows, type, cuda, args, matrices, err);
}

static qrun_status run_expert_linear(qr_cuda_backend &cuda, const qr_expert_linear_args &args, void *, qr_error *err) {
    return experts_by_launches(cuda, args.weights, args.routing.n_experts, [&](const expert_matrices &matrices) {
        if (args.x_dtype == QR_DTYPE_F32) { return launch_f32(cuda, args, matrices, err); }
        return QR_BY_TYPE(args.x_dtype, launch_path, cuda, args, matrices, err);
    });
}

QR_CUDA_OP(expert_linear, no_workspace<qr_expert_linear_args>, run_expert_linear)
