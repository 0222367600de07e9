/* linear with x in F32, a warp for an output and 8 rows (linear.cuh). linear_mma.cu, linear_tile.cu and linear_wgmma.cu
 * have x in 16 bits. */
#include "kernels/cuda/linear/linear.cuh"
#include "kernels/cuda/linear/ops_cublaslt.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP_LANES };

__global__ void linear_f32_kernel(qr_linear_args a, matrix w) {
    const int64_t o = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    const int64_t row = static_cast<int64_t>(blockIdx.y) * LINEAR_F32_ROWS;
    if (o >= w.rows) { return; }
    linear_f32_sums(a, w, linear_rows(), o, row);
}

static qrun_status launch_f32(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err) {
    const matrix w = matrix_of(cuda, *args.weight);
    return linear_by_launches(args, [&](const qr_linear_args &part) {
        dim3 grid = blocks_for(w.rows, WARPS);
        grid.y = static_cast<unsigned>(qr_ceil_div(part.n_rows, LINEAR_F32_ROWS));
        return QR_LAUNCH(cuda.device, err, linear_f32_kernel, grid, THREADS, 0, part, w);
    });
}

static qrun_status run_product(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err) {
    if (args.x_dtype == QR_DTYPE_F32) { return launch_f32(cuda, args, err); }
    qrun_status status = QRUN_OK;
    if (qr_cuda_by_cublaslt(cuda, args, workspace, &status, err)) { return status; }
    const matrix w = matrix_of(cuda, *args.weight);
    if (qr_cuda_linear_wgmma_wide_takes(cuda, args, w)) {
        return qr_cuda_linear_wgmma_wide(cuda, args, workspace, err);
    }
    if (qr_cuda_linear_wgmma_takes(cuda, args, w)) { return qr_cuda_linear_wgmma(cuda, args, err); }
    return qr_cuda_linear_tile_takes(args, w) ? qr_cuda_linear_tile(cuda, args, err)
                                              : qr_cuda_linear_mma(cuda, args, err);
}

static size_t linear_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    const size_t adapted = qr_cuda_adapted_workspace(cuda, args, qr_cuda_op_lora);
    const size_t wide = qr_cuda_linear_wgmma_wide_workspace(cuda, args);
    return adapted > wide ? adapted : wide;
}

static qrun_status run_linear(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err) {
    return qr_cuda_adapted(cuda, args, qr_cuda_op_lora, run_product, workspace, err);
}

QR_CUDA_OP_SIZED(linear, linear_workspace, run_linear)
