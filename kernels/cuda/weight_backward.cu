/* weight_backward and lora_backward: products in F32 (product.cuh), sums over tokens in their order. */
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

/* h = A x and dh = scale · dy B, both [n_rows, rank]. */
static size_t lora_workspace(const qr_lora_backward_args &args) {
    return 2 * static_cast<size_t>(args.n_rows * args.rank) * sizeof(float);
}

static qrun_status run_lora_backward(qr_cuda_backend &cuda, const qr_lora_backward_args &args, void *workspace,
                                     qr_error *err) {
    const int64_t n = args.n_rows, rank = args.rank, in = args.in, out = args.out;
    float *h = static_cast<float *>(workspace), *dh = h + n * rank;
    const operand x = {args.x, args.x_dtype, args.x_stride, 1}, dy = operand_f32(args.dy, args.dy_stride, 1);
    const operand dy_t = operand_f32(args.dy, 1, args.dy_stride), dh_t = operand_f32(dh, 1, rank);
    const product products[] = {
        {x, operand_f32(args.a, 1, in), n, rank, in, h, rank, 1.0F, false},
        {dy, operand_f32(args.b, rank, 1), n, rank, out, dh, rank, args.scale, false},
        {dy_t, operand_f32(h, rank, 1), out, rank, n, args.db, rank, args.scale, true},
        {dh_t, x, rank, in, n, args.da, in, 1.0F, true},
        {operand_f32(dh, rank, 1), operand_f32(args.a, in, 1), n, in, rank, args.dx, args.dx_stride, 1.0F, true},
    };
    const size_t n_products = args.dx != NULL ? 5 : 4;
    for (size_t i = 0; i < n_products; i++) {
        const qrun_status status = qr_cuda_product(cuda, products[i], err);
        if (status != QRUN_OK) { return status; }
    }
    return QRUN_OK;
}

QR_CUDA_OP(weight_backward, no_workspace<qr_weight_backward_args>, run_weight_backward)
QR_CUDA_OP(lora_backward, lora_workspace, run_lora_backward)
