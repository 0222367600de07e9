/* expert_lora: a block for a tile of slots of one expert, slot by slot: h = A x by a warp an element, then y by a
 * thread an output. The tile's slots read the same factors, from caches. */
#include "kernels/cuda/expert_lora.cuh"

__global__ void expert_lora_kernel(qr_expert_lora_args a) {
    float *h = shared_memory<float>(); /* [rank] */
    const qr_routing &r = a.routing;
    const slot_tile tile = slot_tile_of(r, EXPERT_LORA_SLOTS, static_cast<int32_t>(blockIdx.x));
    for (int32_t slot = tile.first; slot < tile.first + tile.n; slot++) {
        const int32_t row = r.slot_row[slot], adapter = a.row_adapter[row];
        if (adapter < 0) { continue; }
        const qr_lora_factor factor = a.factors[adapter];
        const int32_t rank = factor.rank;
        if (rank == 0) { continue; }
        expert_lora_down(factor.a + static_cast<int64_t>(tile.expert) * rank * a.in, rank, a.in, a.x, a.x_dtype,
                         (a.gathers ? row : slot) * a.x_stride, h);
        __syncthreads();
        const float *b = factor.b + static_cast<int64_t>(tile.expert) * a.out * rank;
        for (int64_t o = threadIdx.x; o < a.out; o += EXPERT_LORA_THREADS) {
            float sum = 0.0F;
            for (int32_t j = 0; j < rank; j++) { sum = fmaf(b[o * rank + j], h[j], sum); }
            a.y[slot * a.y_stride + o] += factor.scale * sum;
        }
        __syncthreads();
    }
}

static qrun_status run_expert_lora(qr_cuda_backend &cuda, const qr_expert_lora_args &args, void *, qr_error *err) {
    const dim3 grid(static_cast<unsigned>(slot_tile_numbers(args.routing, EXPERT_LORA_SLOTS)));
    return QR_LAUNCH(cuda.device, err, expert_lora_kernel, grid, EXPERT_LORA_THREADS,
                     QR_MAX_EXPERT_LORA_RANK * sizeof(float), args);
}

QR_CUDA_OP(expert_lora, no_workspace<qr_expert_lora_args>, run_expert_lora)
