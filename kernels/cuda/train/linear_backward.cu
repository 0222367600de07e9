/* linear_backward: dx = dy · W. With dy in 16 bits on the tensor cores: columns of dx are the 16-row operand, rows the
 * 8 columns, and the sum over the outputs runs 16 at a time, in order, whatever the number of rows. With dy in F32, and
 * of INT8 weights with dy in F16 (whose scaled dy is F32), by a thread a column. Where the caller leaves the order of
 * sums open, linear_cublaslt.cu is faster. */
#include "kernels/cuda/linear/ops_cublaslt.cuh"
#include "kernels/cuda/train/linear_backward.cuh"

__global__ void linear_backward_f32_kernel(qr_linear_backward_args a, matrix w) {
    const int64_t c = global_thread(), row = static_cast<int64_t>(blockIdx.y) * F32_ROWS;
    if (c < w.cols) { backward_f32_sums(a, w, linear_rows(), c, row); }
}

template <typename type, weights_path path, int tiles>
__global__ void __launch_bounds__(THREADS, 4)
    linear_backward_mma_kernel(qr_linear_backward_args a, matrix w, nf4_book book, bool aligned) {
    backward_products<type, path, tiles>(a, w, linear_rows(), book, aligned, static_cast<int64_t>(blockIdx.x) * COLS,
                                         static_cast<int64_t>(blockIdx.y) * tiles * TILE_ROWS);
}

static qrun_status launch_f32(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                              qr_error *err) {
    dim3 grid = blocks_for(w.cols, F32_THREADS);
    grid.y = static_cast<unsigned>(qr_ceil_div(args.n_rows, F32_ROWS));
    return QR_LAUNCH(cuda.device, err, linear_backward_f32_kernel, grid, F32_THREADS, 0, args, w);
}

template <typename type, weights_path path, int tiles>
static qrun_status launch(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w, qr_error *err) {
    dim3 grid = blocks_for(w.cols, COLS);
    grid.y = static_cast<unsigned>(qr_ceil_div(args.n_rows, tiles * TILE_ROWS));
    const bool aligned = reinterpret_cast<uintptr_t>(args.dy) % 16 == 0 && args.dy_stride % PIECE_COLS == 0;
    return QR_LAUNCH(cuda.device, err, (linear_backward_mma_kernel<type, path, tiles>), grid, THREADS,
                     sizeof(backward_tiles<tiles>), args, w, nf4_book_of(w), aligned);
}

template <typename type, weights_path path>
static qrun_status launch_rows(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                               qr_error *err) {
    return args.n_rows <= TILE_ROWS ? launch<type, path, 1>(cuda, args, w, err)
                                    : launch<type, path, 8>(cuda, args, w, err);
}

template <typename type>
static qrun_status launch_mma(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                              qr_error *err) {
    const weights_path path = path_of(w, args.dy_dtype);
    return path == PATH_ANY ? launch_rows<type, PATH_ANY>(cuda, args, w, err)
                            : QR_BY_PATH(path, launch_rows, type, cuda, args, w, err);
}

static qrun_status launch_part(qr_cuda_backend &cuda, const qr_linear_backward_args &args, const matrix &w,
                               qr_error *err) {
    return backward_is_f32(args.dy_dtype, w) ? launch_f32(cuda, args, w, err)
                                             : QR_BY_TYPE(args.dy_dtype, launch_mma, cuda, args, w, err);
}

static qrun_status run_product(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                               qr_error *err) {
    qrun_status status = QRUN_OK;
    if (qr_cuda_by_cublaslt(cuda, args, workspace, &status, err)) { return status; }
    enum { LAUNCH_ROWS = 1 << 18 }; /* the y dimension of a grid ends at 65535 */
    const matrix w = matrix_of(cuda, *args.weight);
    const int64_t dy_bytes = args.dy_stride * static_cast<int64_t>(qr_dtype_bytes(args.dy_dtype));
    for (int64_t row = 0; row < args.n_rows; row += LAUNCH_ROWS) {
        qr_linear_backward_args part = args;
        part.n_rows = qr_min(LAUNCH_ROWS, args.n_rows - row);
        part.dy = static_cast<const unsigned char *>(args.dy) + row * dy_bytes;
        part.dx = args.dx + row * args.dx_stride;
        QR_RETURN_IF_ERROR(launch_part(cuda, part, w, err));
    }
    return QRUN_OK;
}

static size_t linear_backward_workspace(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    return qr_cuda_adapted_workspace(cuda, args, qr_cuda_op_lora_backward);
}

static qrun_status run_linear_backward(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                                       qr_error *err) {
    return qr_cuda_adapted(cuda, args, qr_cuda_op_lora_backward, run_product, workspace, err);
}

QR_CUDA_OP_SIZED(linear_backward, linear_backward_workspace, run_linear_backward)
