/* weight_backward: a product in F32 (product.cuh), sums over tokens in their order. */
#include "kernels/cuda/product.cuh"

enum { THREADS = 128 };

__global__ void dbias_kernel(qr_weight_backward_args a) {
    const int64_t o = global_thread();
    if (o >= a.out) { return; }
    float sum = 0.0F;
    for (int64_t i = 0; i < a.n_rows; i++) { sum += a.dy[i * a.dy_stride + o]; }
    a.dbias[o] += sum;
}

static qrun_status run_weight_backward(qr_cuda_backend &cuda, const qr_weight_backward_args &args, void *,
                                       qr_error *err) {
    const product dw = {operand_f32(args.dy, 1, args.dy_stride), {args.x, args.x_dtype, args.x_stride, 1},
                        args.out, args.in, args.n_rows, args.dw, args.in, 1.0F, true};
    const qrun_status status = qr_cuda_product(cuda, dw, err);
    if (status != QRUN_OK || args.dbias == NULL) { return status; }
    return QR_LAUNCH(cuda.device, err, dbias_kernel, blocks_for(args.out, THREADS), THREADS, 0, args);
}

QR_CUDA_OP(weight_backward, no_workspace<qr_weight_backward_args>, run_weight_backward)
