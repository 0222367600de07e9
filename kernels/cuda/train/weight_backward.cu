/* weight_backward: a product in F32 (product.cuh), whose sums over tokens run in their order. */
#include "kernels/cuda/linear/product.cuh"

enum { THREADS = 256, RUNS = THREADS / WARP_LANES };

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
    const product dw = {operand_f32(args.dy, 1, args.dy_stride),
                        {args.x, args.x_dtype, args.x_stride, 1},
                        args.out,
                        args.in,
                        args.n_rows,
                        args.dw,
                        args.in,
                        1.0F,
                        true};
    const qrun_status status = qr_cuda_product(cuda, dw, err);
    if (status != QRUN_OK || args.dbias == NULL) { return status; }
    return QR_LAUNCH(cuda.device, err, dbias_kernel, blocks_for(args.out, WARP_LANES), THREADS, THREADS * sizeof(float),
                     args);
}

QR_CUDA_OP(weight_backward, no_workspace<qr_weight_backward_args>, run_weight_backward)
