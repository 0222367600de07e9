/* expert_lora_backward: h, dh and dx by a block a tile of slots, then the gradients of the factors by a thread an
 * element, over the slots of its expert in order. There are no atomic additions, so the bits are always the same. */
#include "kernels/cuda/expert_lora.cuh"

enum { FACTOR_THREADS = 256 };

/* dh [rank] = scale · Bᵀ dy. */
static QR_DEVICE void expert_lora_up_backward(const float *b, int32_t rank, int64_t out, const float *dy, float scale,
                                              float *dh) {
    for (int32_t j = static_cast<int32_t>(warp_index()); j < rank; j += EXPERT_LORA_WARPS) {
        float sum = 0.0F;
        for (int64_t o = lane_index(); o < out; o += WARP_LANES) { sum = fmaf(b[o * rank + j], dy[o], sum); }
        sum = warp_sum(sum);
        if (lane_index() == 0) { dh[j] = scale * sum; }
    }
}

/* h, dh: [n_slots, rank]. */
__global__ void expert_lora_slots_kernel(qr_expert_lora_backward_args a, float *h, float *dh) {
    float *of_slot = shared_memory<float>(); /* [rank] */
    const qr_routing &r = a.routing;
    const slot_tile tile = slot_tile_of(r, EXPERT_LORA_SLOTS, static_cast<int32_t>(blockIdx.x));
    const float *down = a.a + static_cast<int64_t>(tile.expert) * a.rank * a.in;
    const float *up = a.b + static_cast<int64_t>(tile.expert) * a.out * a.rank;
    for (int32_t slot = tile.first; slot < tile.first + tile.n; slot++) {
        const int64_t row = r.slot_row[slot], at = static_cast<int64_t>(slot) * a.rank;
        expert_lora_down(down, a.rank, a.in, a.x, a.x_dtype, (a.gathers ? row : slot) * a.x_stride, h + at);
        expert_lora_up_backward(up, a.rank, a.out, a.dy + (a.shares ? row : slot) * a.dy_stride, a.scale, of_slot);
        __syncthreads();
        for (int64_t c = threadIdx.x; c < a.in; c += EXPERT_LORA_THREADS) {
            float sum = 0.0F;
            for (int32_t j = 0; j < a.rank; j++) { sum = fmaf(of_slot[j], down[j * a.in + c], sum); }
            a.dx[slot * a.dx_stride + c] += sum;
        }
        for (int32_t j = static_cast<int32_t>(threadIdx.x); j < a.rank; j += EXPERT_LORA_THREADS) {
            dh[at + j] = of_slot[j];
        }
        __syncthreads();
    }
}

/* grid: elements of an expert's factor; experts. */
__global__ void expert_lora_db_kernel(qr_expert_lora_backward_args a, const float *h) {
    const qr_routing &r = a.routing;
    const int64_t index = global_thread(), e = blockIdx.y, o = index / a.rank, j = index % a.rank;
    if (o >= a.out) { return; }
    float *db = a.db + e * a.out * a.rank + index, sum = *db;
    for (int64_t slot = r.expert_start[e]; slot < r.expert_start[e + 1]; slot++) {
        const float dy = a.dy[(a.shares ? r.slot_row[slot] : slot) * a.dy_stride + o];
        const float factor = a.shares ? a.scale * r.share[slot] : a.scale;
        sum = fmaf(factor * dy, h[slot * a.rank + j], sum);
    }
    *db = sum;
}

__global__ void expert_lora_da_kernel(qr_expert_lora_backward_args a, const float *dh) {
    const qr_routing &r = a.routing;
    const int64_t index = global_thread(), e = blockIdx.y, j = index / a.in, c = index % a.in;
    if (j >= a.rank) { return; }
    float *da = a.da + e * a.rank * a.in + index, sum = *da;
    for (int64_t slot = r.expert_start[e]; slot < r.expert_start[e + 1]; slot++) {
        const int64_t row = a.gathers ? r.slot_row[slot] : slot;
        const float share = a.shares ? r.share[slot] : 1.0F;
        sum = fmaf(share * dh[slot * a.rank + j], load_as_f32(a.x, a.x_dtype, row * a.x_stride + c), sum);
    }
    *da = sum;
}

static size_t expert_lora_backward_workspace(const qr_expert_lora_backward_args &args) {
    return 2 * static_cast<size_t>(qr_routing_slots(&args.routing) * args.rank) * sizeof(float);
}

static qrun_status run_expert_lora_backward(qr_cuda_backend &cuda, const qr_expert_lora_backward_args &args,
                                            void *workspace, qr_error *err) {
    float *h = static_cast<float *>(workspace), *dh = h + qr_routing_slots(&args.routing) * args.rank;
    const dim3 tiles(static_cast<unsigned>(slot_tile_numbers(args.routing, EXPERT_LORA_SLOTS)));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, expert_lora_slots_kernel, tiles, EXPERT_LORA_THREADS,
                                 static_cast<size_t>(args.rank) * sizeof(float), args, h, dh));
    dim3 grid = blocks_for(args.out * args.rank, FACTOR_THREADS);
    grid.y = static_cast<unsigned>(args.routing.n_experts);
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, expert_lora_db_kernel, grid, FACTOR_THREADS, 0, args, h));
    grid.x = blocks_for(args.in * args.rank, FACTOR_THREADS).x;
    return QR_LAUNCH(cuda.device, err, expert_lora_da_kernel, grid, FACTOR_THREADS, 0, args, dh);
}

QR_CUDA_OP(expert_lora_backward, expert_lora_backward_workspace, run_expert_lora_backward)
