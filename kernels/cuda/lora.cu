/* lora: t = A x for every row by a warp a (row, rank), then y += scale · B t by a thread an element. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP_LANES };

/* t [n_rows, max_rank]; rows without an adapter and ranks that it lacks are left alone. */
__global__ void lora_down_kernel(qr_lora_args a, float *t) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    const int64_t row = index / a.max_rank, r = index % a.max_rank;
    if (row >= a.n_rows || a.row_adapter[row] < 0) { return; }
    const qr_lora_factor factor = a.factors[a.row_adapter[row]];
    if (r >= factor.rank) { return; }
    float sum = 0.0F;
    for (int64_t c = lane_index(); c < a.in; c += WARP_LANES) {
        sum = fmaf(factor.a[r * a.in + c], load_as_f32(a.x, a.x_dtype, row * a.x_stride + c), sum);
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) { t[index] = sum; }
}

__global__ void lora_up_kernel(qr_lora_args a, const float *t) {
    const int64_t index = global_thread();
    const int64_t row = index / a.out, o = index % a.out;
    if (row >= a.n_rows || a.row_adapter[row] < 0) { return; }
    const qr_lora_factor factor = a.factors[a.row_adapter[row]];
    if (factor.rank == 0) { return; }
    float sum = 0.0F;
    for (int32_t r = 0; r < factor.rank; r++) {
        sum = fmaf(factor.b[o * factor.rank + r], t[row * a.max_rank + r], sum);
    }
    a.y[row * a.y_stride + o] += factor.scale * sum;
}

static size_t lora_workspace(const qr_lora_args &args) {
    return static_cast<size_t>(args.n_rows * args.max_rank) * sizeof(float);
}

static qrun_status run_lora(qr_cuda_backend &cuda, const qr_lora_args &args, void *workspace, qr_error *err) {
    float *t = static_cast<float *>(workspace);
    const qrun_status status = QR_LAUNCH(cuda.device, err, lora_down_kernel,
                                         blocks_for(args.n_rows * args.max_rank, WARPS), THREADS, 0, args, t);
    if (status != QRUN_OK) { return status; }
    return QR_LAUNCH(cuda.device, err, lora_up_kernel, blocks_for(args.n_rows * args.out, THREADS), THREADS, 0, args,
                     t);
}

QR_CUDA_OP(lora, lora_workspace, run_lora)
