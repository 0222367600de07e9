/* kv_write: a warp for one token's head, of K or of V; a lane for four elements at a time. And all that a layer does
 * between the products for q, k and v and attention: a warp for one token's head of q, k or v norms it, rotates it and
 * writes it to its page. */
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/rope.cuh"

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

/* One token's head of K or V, by a warp. */
static QR_DEVICE void write_head(const qr_kv_write_args &a, const kv_offsets &o, int64_t token, int64_t head, bool is_v,
                                 bool aligned) {
    const kv_place place = kv_place_of(a, o, token, head, is_v);
    if (place.part == NULL) { return; }
    unsigned char *dst = place.part + place.index * static_cast<int64_t>(o.head_bytes);
    const float *src = (is_v ? a.v + token * a.v_stride : a.k + token * a.k_stride) + head * o.head_dim;
    if (o.format == QR_KV_INT8) {
        store_int8(dst, reinterpret_cast<float *>(place.part + o.scales) + place.index, src, o.head_dim, aligned);
        return;
    }
    const qr_dtype dtype = kv_dtype_of(o.format);
    for_each_vec4(o.head_dim, [&](int32_t j) {
        float x[VEC4];
        load_vec4(x, src, j, o.head_dim, aligned);
        store_vec4(dst, dtype, 0, j, o.head_dim, aligned, x);
    });
}

/* K and V, or K alone. */
QR_HOST_DEVICE int64_t parts_of(const qr_kv_layout &layout) { return layout.keys_are_values ? 1 : 2; }

__global__ void kv_write_kernel(qr_kv_write_args a, kv_offsets o, bool aligned) {
    await_previous();
    admit_next();
    const int64_t index = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index(), n_parts = parts_of(a.layout);
    const int64_t head = index / n_parts % a.layout.n_kv_heads, token = index / n_parts / a.layout.n_kv_heads;
    if (token >= a.n_tokens) { return; }
    write_head(a, o, token, head, index % n_parts != 0, aligned);
}

/* The heads of q or of k of a token, as they are made ready. */
struct heads_part {
    qr_rms_norm_args norm; /* of each head; src NULL: none */
    rotation rope;
    bool norm_aligned, rope_aligned;
};

/* One head, in place. */
static QR_DEVICE void prepare_head(const heads_part &part, int64_t token, int64_t head) {
    if (part.norm.src != NULL) {
        float *dst = static_cast<float *>(part.norm.dst) + token * part.norm.dst_stride + head * part.norm.dim;
        const row_team<false> team = {NULL};
        const row_norm<false> norm(team, part.norm, part.norm_aligned);
        norm.run(part.norm.src + token * part.norm.src_stride + head * part.norm.dim,
                 [&](int64_t j, const float x[VEC4]) { store_vec4(dst, j, part.norm.dim, part.norm_aligned, x); });
        warp_sync();
    }
    for_each_vec4(static_cast<int32_t>(part.rope.n_pairs),
                  [&](int32_t j) { rotate_vec4(part.rope, token, head, j, part.rope_aligned); });
}

__global__ void heads_kernel(heads_part q, heads_part k, qr_kv_write_args a, kv_offsets o, bool aligned) {
    await_previous();
    admit_next();
    const int64_t n_kv = a.layout.n_kv_heads, n_heads = q.rope.n_heads + 2 * n_kv;
    const int64_t index = static_cast<int64_t>(blockIdx.x) * WARPS + warp_index(), token = index / n_heads;
    const int64_t head = index - token * n_heads - q.rope.n_heads;
    if (token >= a.n_tokens) { return; }
    if (head < 0) {
        prepare_head(q, token, head + q.rope.n_heads);
    } else if (head < n_kv) {
        prepare_head(k, token, head);
        warp_sync();
        write_head(a, o, token, head, false, aligned);
    } else {
        write_head(a, o, token, head - n_kv, true, aligned);
    }
}

static bool is_aligned(const qr_kv_write_args &args) {
    return args.layout.head_dim % VEC4 == 0 && vec4_aligned(args.k, args.k_stride) &&
           (args.layout.keys_are_values || vec4_aligned(args.v, args.v_stride)) && vec4_aligned(args.pages, 0);
}

static heads_part part_of(const qr_rms_norm_args *norm, const qr_rope_args &rope) {
    heads_part part = {};
    if (norm != NULL) {
        part.norm = *norm;
        part.norm_aligned = rms_norm_is_aligned(*norm);
    }
    part.rope = rotation_of(rope, rope.x, rope.x_stride, 1.0F);
    part.rope_aligned = rotation_is_aligned(part.rope);
    return part;
}

qrun_status qr_cuda_heads(qr_cuda_backend &cuda, const heads_ops &ops, qr_error *err) {
    const qr_kv_write_args &write = *ops.write;
    const int64_t n_heads = ops.q.rope->n_heads + 2 * static_cast<int64_t>(write.layout.n_kv_heads);
    return QR_LAUNCH_EARLY(cuda.device, err, heads_kernel, blocks_for(write.n_tokens * n_heads, WARPS), THREADS, 0,
                           part_of(ops.q.norm, *ops.q.rope), part_of(ops.k.norm, *ops.k.rope), write,
                           kv_offsets_of(&write.layout), is_aligned(write));
}

static qrun_status run_kv_write(qr_cuda_backend &cuda, const qr_kv_write_args &args, void *, qr_error *err) {
    return QR_LAUNCH_EARLY(cuda.device, err, kv_write_kernel,
                           blocks_for(args.n_tokens * args.layout.n_kv_heads * parts_of(args.layout), WARPS), THREADS,
                           0, args, kv_offsets_of(&args.layout), is_aligned(args));
}

QR_CUDA_OP(kv_write, no_workspace<qr_kv_write_args>, run_kv_write)
