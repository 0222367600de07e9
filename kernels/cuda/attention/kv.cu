/* kv_write: a warp for one token's head, of K or of V; a lane for four elements at a time. */
#include "kernels/cuda/attention/kv_page.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP_LANES };

template <typename F> static QR_DEVICE void for_each_vec4(int32_t n, F visit) {
    for (int32_t j = static_cast<int32_t>(lane_index()) * VEC4; j < n; j += WARP_LANES * VEC4) { visit(j); }
}

static QR_DEVICE uint32_t code_of(float x, float inverse) {
    const float scaled = isfinite(inverse) ? x * inverse : 0.0F;
    return static_cast<uint8_t>(isnan(scaled) ? static_cast<int8_t>(0) : static_cast<int8_t>(rintf(scaled)));
}

/* As ops.h has it: the same operations in the same order on every backend, because the bytes must be equal. */
static __device__ void store_int8(unsigned char *dst, float *scale, const float *src, int32_t n, bool aligned) {
    float largest = 0.0F, x[VEC4];
    for_each_vec4(n, [&](int32_t j) {
        load_vec4(x, src, j, n, aligned);
        for (int k = 0; k < VEC4; k++) { largest = fmaxf(largest, fabsf(x[k])); }
    });
    largest = warp_max(largest);
    const float inverse = 127.0F / largest;
    if (lane_index() == 0) { *scale = largest / 127.0F; }
    for_each_vec4(n, [&](int32_t j) {
        load_vec4(x, src, j, n, aligned);
        uint32_t codes = 0;
        for (int k = 0; k < VEC4; k++) { codes |= code_of(x[k], inverse) << 8 * k; }
        if (aligned) {
            *reinterpret_cast<uint32_t *>(dst + j) = codes;
            return;
        }
        for (int k = 0; k < VEC4; k++) {
            if (j + k < n) { dst[j + k] = static_cast<unsigned char>(codes >> 8 * k); }
        }
    });
}

__global__ void kv_write_kernel(qr_kv_write_args a, kv_offsets o, bool aligned) {
    await_previous();
    admit_next();
    const int64_t index = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index();
    const int64_t head = index / 2 % a.layout.n_kv_heads, token = index / 2 / a.layout.n_kv_heads;
    const bool is_v = index % 2 != 0;
    if (token >= a.n_tokens || a.token_page[token] < 0) { return; }
    const int64_t slot = head * QR_KV_PAGE_TOKENS + a.position[token] % QR_KV_PAGE_TOKENS;
    unsigned char *part = a.pages + static_cast<size_t>(a.token_page[token]) * a.page_stride_bytes + (is_v ? o.v : 0);
    unsigned char *dst = part + slot * static_cast<int64_t>(o.head_bytes);
    const float *src = (is_v ? a.v + token * a.v_stride : a.k + token * a.k_stride) + head * o.head_dim;
    if (o.format == QR_KV_INT8) {
        store_int8(dst, reinterpret_cast<float *>(part + o.scales) + slot, src, o.head_dim, aligned);
        return;
    }
    const qr_dtype dtype = o.format == QR_KV_BF16 ? QR_DTYPE_BF16 : o.format == QR_KV_F16 ? QR_DTYPE_F16 : QR_DTYPE_F32;
    for_each_vec4(o.head_dim, [&](int32_t j) {
        float x[VEC4];
        load_vec4(x, src, j, o.head_dim, aligned);
        store_vec4(dst, dtype, 0, j, o.head_dim, aligned, x);
    });
}

static qrun_status run_kv_write(qr_cuda_backend &cuda, const qr_kv_write_args &args, void *, qr_error *err) {
    const bool aligned = args.layout.head_dim % VEC4 == 0 && vec4_aligned(args.k, args.k_stride) &&
                         vec4_aligned(args.v, args.v_stride) && vec4_aligned(args.pages, 0);
    return QR_LAUNCH_EARLY(cuda.device, err, kv_write_kernel,
                           blocks_for(args.n_tokens * args.layout.n_kv_heads * 2, WARPS), THREADS, 0, args,
                           kv_offsets_of(&args.layout), aligned);
}

QR_CUDA_OP(kv_write, no_workspace<qr_kv_write_args>, run_kv_write)
