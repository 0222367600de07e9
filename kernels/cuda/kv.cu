/* kv_write: a warp for one token's head, of K or of V. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kv_page.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP_LANES };

/* As ops.h has it: the same operations in the same order on every backend, because the bytes must be equal. */
static __device__ void store_int8(int8_t *dst, float *scale, const float *src, int32_t n) {
    float largest = 0.0F;
    for (int32_t j = static_cast<int32_t>(lane_index()); j < n; j += WARP_LANES) {
        largest = fmaxf(largest, fabsf(src[j]));
    }
    largest = warp_max(largest);
    const float inverse = 127.0F / largest;
    if (lane_index() == 0) { *scale = largest / 127.0F; }
    for (int32_t j = static_cast<int32_t>(lane_index()); j < n; j += WARP_LANES) {
        const float scaled = isfinite(inverse) ? src[j] * inverse : 0.0F;
        dst[j] = isnan(scaled) ? static_cast<int8_t>(0) : static_cast<int8_t>(rintf(scaled));
    }
}

__global__ void kv_write_kernel(qr_kv_write_args a, kv_offsets o) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    const int64_t head = index / 2 % a.layout.n_kv_heads, token = index / 2 / a.layout.n_kv_heads;
    const bool is_v = index % 2 != 0;
    if (token >= a.n_tokens || a.token_page[token] < 0) { return; }
    const int64_t slot = head * QR_KV_PAGE_TOKENS + a.position[token] % QR_KV_PAGE_TOKENS;
    unsigned char *part = a.pages + static_cast<size_t>(a.token_page[token]) * a.page_stride_bytes + (is_v ? o.v : 0);
    unsigned char *dst = part + slot * static_cast<int64_t>(o.head_bytes);
    const float *src = (is_v ? a.v + token * a.v_stride : a.k + token * a.k_stride) + head * o.head_dim;
    if (o.format == QR_KV_INT8) {
        store_int8(reinterpret_cast<int8_t *>(dst), reinterpret_cast<float *>(part + o.scales) + slot, src, o.head_dim);
        return;
    }
    const qr_dtype dtype = o.format == QR_KV_BF16 ? QR_DTYPE_BF16 : o.format == QR_KV_F16 ? QR_DTYPE_F16 : QR_DTYPE_F32;
    for (int32_t j = static_cast<int32_t>(lane_index()); j < o.head_dim; j += WARP_LANES) {
        store_from_f32(dst, dtype, j, src[j]);
    }
}

static qrun_status run_kv_write(qr_cuda_backend &cuda, const qr_kv_write_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, kv_write_kernel, blocks_for(args.n_tokens * args.layout.n_kv_heads * 2, WARPS),
                     THREADS, 0, args, kv_offsets_of(&args.layout));
}

QR_CUDA_OP(kv_write, no_workspace<qr_kv_write_args>, run_kv_write)
