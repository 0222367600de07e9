/* expert_weight_backward: the product of weight_product.cuh for each expert over its slots, and dbias. A launch has
 * blocks for every expert, so a recorded one serves every routing; those of an expert without slots end at once. */
#include "kernels/cuda/train/weight_product.cuh"

enum { BIAS_THREADS = 128 };

__global__ void __launch_bounds__(THREADS, 2) expert_weight_kernel(qr_expert_weight_backward_args a) {
    const qr_routing &r = a.routing;
    const int64_t e = blockIdx.z, first = r.expert_start[e], x_first = a.gathers ? 0 : first * a.x_stride;
    const float *dy = a.shares ? a.dy : a.dy + first * a.dy_stride;
    const bool wide = a.x_dtype == QR_DTYPE_F32;
    const void *x = wide ? static_cast<const void *>(static_cast<const float *>(a.x) + x_first)
                         : static_cast<const uint16_t *>(a.x) + x_first;
    const gemm_f32 dw = {.a = {.data = dy,
                               .dtype = QR_DTYPE_F32,
                               .side_stride = 1,
                               .depth_stride = a.dy_stride,
                               .source = a.shares ? r.slot_row + first : nullptr,
                               .factor = a.shares ? r.share + first : nullptr},
                         .b = {.data = x,
                               .dtype = a.x_dtype,
                               .side_stride = 1,
                               .depth_stride = a.x_stride,
                               .source = a.gathers ? r.slot_row + first : nullptr,
                               .factor = nullptr},
                         .m = a.out,
                         .n = a.in,
                         .k = r.expert_start[e + 1] - first,
                         .c = a.dw + e * a.dw_stride};
    if (dw.k > 0) { add_product<true>(dw); }
}

/* A thread an output. grid: outputs; experts. */
__global__ void expert_dbias_kernel(qr_expert_weight_backward_args a) {
    const qr_routing &r = a.routing;
    const int64_t o = global_thread(), e = blockIdx.y;
    if (o >= a.out) { return; }
    float sum = a.dbias[e * a.out + o];
    for (int64_t p = r.expert_start[e]; p < r.expert_start[e + 1]; p++) {
        const float dy = a.dy[(a.shares ? r.slot_row[p] : p) * a.dy_stride + o];
        sum = fmaf(a.shares ? r.share[p] : 1.0F, dy, sum);
    }
    a.dbias[e * a.out + o] = sum;
}

static qrun_status run_expert_weight_backward(qr_cuda_backend &cuda, const qr_expert_weight_backward_args &args, void *,
                                              qr_error *err) {
    enum { LAUNCH_ROWS = 16384 * TILE }; /* the y dimension of a grid ends at 65535 */
    for (int64_t o = 0; o < args.out; o += LAUNCH_ROWS) {
        qr_expert_weight_backward_args part = args;
        part.dy += o;
        part.dw += o * args.in;
        part.out = qr_min(LAUNCH_ROWS, args.out - o);
        dim3 grid = blocks_for(args.in, TILE);
        grid.y = static_cast<unsigned>(qr_ceil_div(part.out, TILE));
        grid.z = static_cast<unsigned>(args.routing.n_experts);
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, expert_weight_kernel, grid, THREADS, sizeof(gemm_tiles), part));
    }
    if (args.dbias == NULL) { return QRUN_OK; }
    dim3 of_bias = blocks_for(args.out, BIAS_THREADS);
    of_bias.y = static_cast<unsigned>(args.routing.n_experts);
    return QR_LAUNCH(cuda.device, err, expert_dbias_kernel, of_bias, BIAS_THREADS, 0, args);
}

QR_CUDA_OP(expert_weight_backward, no_workspace<qr_expert_weight_backward_args>, run_expert_weight_backward)
