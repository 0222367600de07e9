/* The ops of experts that are no product: fetching them, sums of a token's experts, biases, and the share of an expert
 * that every token goes to. A thread has four elements. */
#include "kernels/cuda/experts.cuh"

__global__ void expert_sum_kernel(qr_expert_sum_args a, bool aligned) {
    await_previous();
    admit_next();
    const qr_routing &r = a.routing;
    for_each_vec4(r.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float sums[VEC4] = {}, x[VEC4];
        for (int32_t k = 0; k < r.top_k; k++) {
            const int64_t slot = r.slot[row * r.top_k + k];
            const float share = a.by_share ? r.share[slot] : 1.0F;
            load_vec4(x, a.src + slot * a.dim, j, a.dim, aligned);
            for (int i = 0; i < VEC4; i++) { sums[i] = fmaf(x[i], share, sums[i]); }
        }
        if (a.accumulate) {
            load_vec4(x, a.dst + row * a.dst_stride, j, a.dim, aligned);
            for (int i = 0; i < VEC4; i++) { sums[i] = x[i] + sums[i]; }
        }
        store_vec4(a.dst + row * a.dst_stride, j, a.dim, aligned, sums);
    });
}

/* A row of blocks for an expert; a thread has 16 bytes at a time. The host's memory is read where it is. */
__global__ void expert_fetch_kernel(qr_expert_fetch_args a) {
    await_previous();
    admit_next();
    for (int64_t e = blockIdx.y; e < a.routing.n_experts; e += gridDim.y) {
        if (a.routing.expert_start[e] == a.routing.expert_start[e + 1]) { continue; }
        const int64_t n = a.n_bytes / static_cast<int64_t>(sizeof(uint4)), step = int64_t{gridDim.x} * blockDim.x;
        const uint4 *from = static_cast<const uint4 *>(a.host) + e * n;
        uint4 *to = static_cast<uint4 *>(a.device) + e * n;
        for (int64_t i = global_thread(); i < n; i += step) { to[i] = from[i]; }
    }
}

__global__ void expert_bias_kernel(qr_expert_bias_args a, int64_t n_slots, bool aligned) {
    await_previous();
    admit_next();
    for_each_vec4(n_slots, a.dim, [&](int64_t slot, int64_t j) {
        float y[VEC4], bias[VEC4];
        load_vec4(y, a.y + slot * a.y_stride, j, a.dim, aligned);
        load_vec4(bias, a.bias + expert_of_slot(a.routing, slot) * a.dim, j, a.dim, aligned);
        for (int i = 0; i < VEC4; i++) { y[i] += bias[i]; }
        store_vec4(a.y + slot * a.y_stride, j, a.dim, aligned, y);
    });
}

__global__ void share_rows_kernel(qr_share_rows_args a) {
    await_previous();
    admit_next();
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        const float share = static_cast<float>(share_of_gate(a.g[row]));
        for (int64_t i = j; i < j + VEC4 && i < a.dim; i++) {
            const float x = load_as_f32(a.x, a.x_dtype, row * a.dim + i);
            store_from_f32(a.x, a.x_dtype, row * a.dim + i, x * share);
        }
    });
}

static qrun_status run_expert_sum(qr_cuda_backend &cuda, const qr_expert_sum_args &args, void *, qr_error *err) {
    const bool aligned = vec4_aligned(args.src, args.dim) && vec4_aligned(args.dst, args.dst_stride);
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, expert_sum_kernel, args.routing.n_rows, args.dim, args, aligned);
}

enum { FETCH_THREADS = 256, FETCH_BLOCKS = 8 }; /* of an expert: 32 KiB on their way */

static qrun_status run_expert_fetch(qr_cuda_backend &cuda, const qr_expert_fetch_args &args, void *, qr_error *err) {
    const unsigned n_rows = static_cast<unsigned>(qr_min(args.routing.n_experts, 65535));
    return QR_LAUNCH_EARLY(cuda.device, err, expert_fetch_kernel, dim3(FETCH_BLOCKS, n_rows), FETCH_THREADS, 0, args);
}

static qrun_status run_expert_bias(qr_cuda_backend &cuda, const qr_expert_bias_args &args, void *, qr_error *err) {
    const int64_t n_slots = qr_routing_slots(&args.routing);
    const bool aligned = vec4_aligned(args.bias, args.dim) && vec4_aligned(args.y, args.y_stride);
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, expert_bias_kernel, n_slots, args.dim, args, n_slots, aligned);
}

static qrun_status run_share_rows(qr_cuda_backend &cuda, const qr_share_rows_args &args, void *, qr_error *err) {
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, share_rows_kernel, args.n_rows, args.dim, args);
}

QR_CUDA_OP(expert_sum, no_workspace<qr_expert_sum_args>, run_expert_sum)
QR_CUDA_OP(expert_fetch, no_workspace<qr_expert_fetch_args>, run_expert_fetch)
QR_CUDA_OP(expert_bias, no_workspace<qr_expert_bias_args>, run_expert_bias)
QR_CUDA_OP(share_rows, no_workspace<qr_share_rows_args>, run_share_rows)
