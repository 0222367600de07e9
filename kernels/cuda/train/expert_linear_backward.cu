/* expert_linear_backward: the products of linear_backward for tiles of slots, each of one expert's matrix. */
#include "kernels/cuda/expert_matrices.cuh"
#include "kernels/cuda/train/linear_backward.cuh"

/* The call of linear_backward that a tile is; rows of dx begin at its first slot. */
static QR_DEVICE qr_linear_backward_args backward_of(const qr_expert_linear_backward_args &a, const slot_tile &tile) {
    qr_linear_backward_args linear = {};
    linear.dy = a.dy;
    linear.dy_dtype = a.dy_dtype;
    linear.dx = a.dx + tile.first * a.dx_stride;
    linear.n_rows = tile.n;
    linear.dy_stride = a.dy_stride;
    linear.dx_stride = a.dx_stride;
    linear.accumulate = a.accumulate;
    return linear;
}

/* grid: tiles of slots; columns. */
__global__ void expert_linear_backward_f32_kernel(qr_expert_linear_backward_args a, expert_matrices matrices) {
    const slot_tile tile = slot_tile_of(a.routing, F32_ROWS, static_cast<int32_t>(blockIdx.x));
    const int64_t c = static_cast<int64_t>(blockIdx.y) * F32_THREADS + threadIdx.x;
    if (!matrices.has(tile) || c >= matrices.like.cols) { return; }
    backward_f32_sums(backward_of(a, tile), matrices.of(tile.expert), slot_rows_of(a.routing, tile, a.gathers), c, 0);
}

template <typename type, weights_path path, int tiles>
__global__ void __launch_bounds__(THREADS)
    expert_linear_backward_mma_kernel(qr_expert_linear_backward_args a, expert_matrices matrices, nf4_book book,
                                      bool aligned) {
    const slot_tile tile = slot_tile_of(a.routing, tiles * TILE_ROWS, static_cast<int32_t>(blockIdx.x));
    if (!matrices.has(tile)) { return; }
    backward_products<type, path, tiles>(backward_of(a, tile), matrices.of(tile.expert),
                                         slot_rows_of(a.routing, tile, a.gathers), book, aligned,
                                         static_cast<int64_t>(blockIdx.y) * COLS, 0);
}

static dim3 grid_of(const qr_expert_linear_backward_args &args, int n_slots, int64_t n_cols) {
    return dim3(static_cast<unsigned>(slot_tile_numbers(args.routing, n_slots)),
                static_cast<unsigned>(qr_ceil_div(args.weights->desc.cols, n_cols)));
}

template <typename type, weights_path path, int tiles>
static qrun_status launch(qr_cuda_backend &cuda, const qr_expert_linear_backward_args &args,
                          const expert_matrices &matrices, qr_error *err) {
    const bool aligned = reinterpret_cast<uintptr_t>(args.dy) % 16 == 0 && args.dy_stride % PIECE_COLS == 0;
    return QR_LAUNCH(cuda.device, err, (expert_linear_backward_mma_kernel<type, path, tiles>),
                     grid_of(args, tiles * TILE_ROWS, COLS), THREADS, sizeof(backward_tiles<tiles>), args, matrices,
                     nf4_book_of(matrices.like), aligned);
}

template <typename type, weights_path path>
static qrun_status launch_rows(qr_cuda_backend &cuda, const qr_expert_linear_backward_args &args,
                               const expert_matrices &matrices, qr_error *err) {
    return slot_tiles_by_pair(args.routing) ? launch<type, path, 1>(cuda, args, matrices, err)
                                            : launch<type, path, 8>(cuda, args, matrices, err);
}

template <typename type>
static qrun_status launch_mma(qr_cuda_backend &cuda, const qr_expert_linear_backward_args &args,
                              const expert_matrices &matrices, qr_error *err) {
    const weights_path path = path_of(matrices.like, args.dy_dtype);
    return path == PATH_ANY ? launch_rows<type, PATH_ANY>(cuda, args, matrices, err)
                            : QR_BY_PATH(path, launch_rows, type, cuda, args, matrices, err);
}

static qrun_status run_expert_linear_backward(qr_cuda_backend &cuda, const qr_expert_linear_backward_args &args, void *,
                                              qr_error *err) {
    return experts_by_launches(cuda, args.weights, args.routing.n_experts, [&](const expert_matrices &matrices) {
        if (backward_is_f32(args.dy_dtype, matrices.like)) {
            return QR_LAUNCH(cuda.device, err, expert_linear_backward_f32_kernel, grid_of(args, F32_ROWS, F32_THREADS),
                             F32_THREADS, 0, args, matrices);
        }
        return QR_BY_TYPE(args.dy_dtype, launch_mma, cuda, args, matrices, err);
    });
}

QR_CUDA_OP(expert_linear_backward, no_workspace<qr_expert_linear_backward_args>, run_expert_linear_backward)
