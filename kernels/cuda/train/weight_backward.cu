/* weight_backward: the product of weight_product.cuh, and dbias. */
#include "kernels/cuda/train/weight_product.cuh"

enum { RUNS = THREADS / WARP_LANES }; /* of tokens, in dbias_kernel */

__global__ void __launch_bounds__(THREADS, 2) gemm_f32_kernel(gemm_f32 p) { add_product<false>(p); }

/* A lane a column, a warp a run of tokens; the runs' sums are added in order. */
__global__ void dbias_kernel(qr_weight_backward_args a) {
    float *sums = shared_memory<float>(); /* [RUNS][32] */
    const int64_t o = static_cast<int64_t>(blockIdx.x) * WARP_LANES + lane_index();
    const int64_t per_run = (a.n_rows + RUNS - 1) / RUNS, begin = warp_index() * per_run;
    const int64_t end = begin + per_run < a.n_rows ? begin + per_run : a.n_rows;
    float sum = 0.0F;
#pragma unroll 4
    for (int64_t i = begin; i < end; i++) { sum += o < a.out ? a.dy[i * a.dy_stride + o] : 0.0F; }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP_LANES || o >= a.out) { return; }
    for (unsigned run = 1; run < RUNS; run++) { sum += sums[run * WARP_LANES + threadIdx.x]; }
    a.dbias[o] += sum;
}

static qrun_status run_weight_backward(qr_cuda_backend &cuda, const qr_weight_backward_args &args, void *,
                                       qr_error *err) {
    enum { LAUNCH_ROWS = 16384 * TILE }; /* the y dimension of a grid ends at 65535 */
    for (int64_t o = 0; o < args.out; o += LAUNCH_ROWS) {
        const gemm_f32 dw = {
            .a = {.data = args.dy + o, .dtype = QR_DTYPE_F32, .side_stride = 1, .depth_stride = args.dy_stride},
            .b = {.data = args.x, .dtype = args.x_dtype, .side_stride = 1, .depth_stride = args.x_stride},
            .m = qr_min(LAUNCH_ROWS, args.out - o),
            .n = args.in,
            .k = args.n_rows,
            .c = args.dw + o * args.in};
        dim3 grid = blocks_for(dw.n, TILE);
        grid.y = static_cast<unsigned>(qr_ceil_div(dw.m, TILE));
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, gemm_f32_kernel, grid, THREADS, sizeof(gemm_tiles), dw));
    }
    if (args.dbias == NULL) { return QRUN_OK; }
    return QR_LAUNCH(cuda.device, err, dbias_kernel, blocks_for(args.out, WARP_LANES), THREADS, THREADS * sizeof(float),
                     args);
}

QR_CUDA_OP(weight_backward, no_workspace<qr_weight_backward_args>, run_weight_backward)
