/* activation_backward, gate_backward, clamped_gate_backward, dropout, round_act and store_weight: a thread for four
 * elements. xielu_backward: a block for a row. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

__global__ void activation_backward_kernel(qr_activation_backward_args a, bool aligned) {
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float x[VEC4], dy[VEC4];
        load_vec4(x, a.x + row * a.x_stride, j, a.dim, aligned);
        load_vec4(dy, a.dy + row * a.dy_stride, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { dy[k] *= act_derivative(a.fn, x[k]); }
        store_vec4(a.dx + row * a.dx_stride, j, a.dim, aligned, dy);
    });
}

__global__ void gate_backward_kernel(qr_gate_backward_args a, bool aligned) {
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float g[VEC4], u[VEC4], dy[VEC4];
        load_vec4(g, a.g + row * a.g_stride, j, a.dim, aligned);
        load_vec4(u, a.u + row * a.u_stride, j, a.dim, aligned);
        load_vec4(dy, a.dy + row * a.dim, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) {
            u[k] = dy[k] * u[k] * act_derivative(a.fn, g[k]);
            dy[k] *= act_fn(a.fn, g[k]);
        }
        store_vec4(a.dg + row * a.dg_stride, j, a.dim, aligned, u);
        store_vec4(a.du + row * a.du_stride, j, a.dim, aligned, dy);
    });
}

/* What x · (1 − sigmoid(x)) loses beyond 128 is nothing, and an infinite x must not make it NaN. */
__global__ void clamped_gate_backward_kernel(qr_clamped_gate_backward_args a, bool aligned) {
    const qr_clamped_gate_args &f = a.forward;
    for_each_vec4(f.n_rows, f.dim, [&](int64_t row, int64_t j) {
        float g[VEC4], u[VEC4], dy[VEC4];
        load_vec4(g, f.g + row * f.stride, j, f.dim, aligned);
        load_vec4(u, f.u + row * f.stride, j, f.dim, aligned);
        load_vec4(dy, a.dy + row * f.dim, j, f.dim, aligned);
        for (int k = 0; k < VEC4; k++) {
            const float held = at_most(g[k], f.limit), x = f.alpha * held, open = sigmoid(x);
            const float slope = open * (1.0F + held_to(x, 128.0F) * sigmoid(-x));
            const float to_g = g[k] > f.limit ? 0.0F : dy[k] * (held_to(u[k], f.limit) + 1.0F) * slope;
            dy[k] = fabsf(u[k]) > f.limit ? 0.0F : dy[k] * (held * open);
            g[k] = to_g;
        }
        store_vec4(a.dg + row * a.dgu_stride, j, f.dim, aligned, g);
        store_vec4(a.du + row * a.dgu_stride, j, f.dim, aligned, dy);
    });
}

struct xielu_scratch {
    float p[VEC4_WARPS], n[VEC4_WARPS];
};

/* A block for a row. sums: what it adds to either alpha's gradient, but for a factor; NULL: not wanted. */
__global__ void xielu_backward_kernel(qr_xielu_backward_args a, float *sums) {
    xielu_scratch *scratch = shared_memory<xielu_scratch>();
    const qr_xielu_args &f = a.forward;
    const int64_t row = blockIdx.x;
    const float above = xielu_above(f), below = xielu_below(f), beta = f.beta[0], eps = f.eps[0];
    float p = 0.0F, n = 0.0F;
    for (int64_t j = threadIdx.x; j < f.dim; j += VEC4_THREADS) {
        const float x = f.x[row * f.x_stride + j], dy = a.dy[row * a.dy_stride + j];
        const float grows = x < eps ? expm1f(x) : x - x - 1.0F;
        if (x > 0.0F) {
            p = fmaf(dy, x * x, p);
        } else {
            n = fmaf(dy, xielu_curve(x, eps), n);
        }
        a.dx[row * a.dx_stride + j] = dy * ((x > 0.0F ? 2.0F * above * x : below * grows) + beta);
    }
    if (sums == nullptr) { return; }
    p = block_sum(p, scratch->p);
    n = block_sum(n, scratch->n);
    if (threadIdx.x == 0) { sums[2 * row] = p, sums[2 * row + 1] = n; }
}

/* A warp, of which two threads have an alpha each, row after row. */
__global__ void xielu_sums_kernel(qr_xielu_backward_args a, const float *sums) {
    const int which = static_cast<int>(threadIdx.x);
    float *dst = which == 0 ? a.dalpha_p : a.dalpha_n;
    if (which > 1 || dst == nullptr) { return; }
    const float factor = sigmoid(which == 0 ? a.forward.alpha_p[0] : a.forward.alpha_n[0]);
    float sum = dst[0];
    for (int64_t i = 0; i < a.forward.n_rows; i++) { sum = fmaf(sums[2 * i + which], factor, sum); }
    dst[0] = sum;
}

/* Philox 4x32-10, as base/random.h has it. */
struct philox_words {
    uint32_t x, y, z, w;
};

static QR_DEVICE philox_words philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t first = static_cast<uint64_t>(0xD2511F53U) * c0;
        const uint64_t second = static_cast<uint64_t>(0xCD9E8D57U) * c2;
        c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(second);
        c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(first);
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    return {c0, c1, c2, c3};
}

/* threshold = ⌈p · 2³²⌉: a random word below it drops the element. */
__global__ void dropout_kernel(qr_dropout_args a, uint32_t threshold, float kept) {
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        const uint64_t row_key = static_cast<uint64_t>(a.row_key[row]);
        const philox_words random = philox(a.key, static_cast<uint32_t>(j / VEC4), static_cast<uint32_t>(row_key),
                                           static_cast<uint32_t>(row_key >> 32), 0);
        const uint32_t words[VEC4] = {random.x, random.y, random.z, random.w};
#pragma unroll
        for (int k = 0; k < VEC4; k++) {
            if (j + k >= a.dim) { return; }
            const float x = load_as_f32(a.x, a.x_dtype, row * a.x_stride + j + k);
            store_from_f32(a.dst, a.x_dtype, row * a.dst_stride + j + k, words[k] < threshold ? 0.0F : x / kept);
        }
    });
}

__global__ void round_act_kernel(qr_round_act_args a, bool aligned) {
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float x[VEC4];
        load_vec4(x, a.src + row * a.src_stride, j, a.dim, aligned);
        store_vec4(a.dst, a.dst_dtype, row * a.dst_stride, j, a.dim, aligned, x);
    });
}

__global__ void store_weight_kernel(const float *src, void *dst, qr_dtype dtype, int64_t n, bool aligned) {
    for_each_vec4(1, n, [&](int64_t, int64_t j) {
        float x[VEC4];
        load_vec4(x, src, j, n, aligned);
        store_vec4(dst, dtype, 0, j, n, aligned, x);
    });
}

static qrun_status run_activation_backward(qr_cuda_backend &cuda, const qr_activation_backward_args &args, void *,
                                           qr_error *err) {
    const bool aligned = vec4_aligned(args.x, args.x_stride) && vec4_aligned(args.dy, args.dy_stride) &&
                         vec4_aligned(args.dx, args.dx_stride);
    return QR_LAUNCH_VEC4(cuda.device, err, activation_backward_kernel, args.n_rows, args.dim, args, aligned);
}

static qrun_status run_gate_backward(qr_cuda_backend &cuda, const qr_gate_backward_args &args, void *, qr_error *err) {
    const bool aligned = vec4_aligned(args.g, args.g_stride) && vec4_aligned(args.u, args.u_stride) &&
                         vec4_aligned(args.dy, args.dim) && vec4_aligned(args.dg, args.dg_stride) &&
                         vec4_aligned(args.du, args.du_stride);
    return QR_LAUNCH_VEC4(cuda.device, err, gate_backward_kernel, args.n_rows, args.dim, args, aligned);
}

static size_t xielu_backward_workspace(const qr_xielu_backward_args &args) {
    return static_cast<size_t>(args.forward.n_rows) * 2 * sizeof(float);
}

static qrun_status run_xielu_backward(qr_cuda_backend &cuda, const qr_xielu_backward_args &args, void *workspace,
                                      qr_error *err) {
    const bool wants_sums = args.dalpha_p != nullptr || args.dalpha_n != nullptr;
    float *sums = wants_sums ? static_cast<float *>(workspace) : nullptr;
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, xielu_backward_kernel,
                                 dim3(static_cast<unsigned>(args.forward.n_rows)), VEC4_THREADS, sizeof(xielu_scratch),
                                 args, sums));
    return wants_sums ? QR_LAUNCH(cuda.device, err, xielu_sums_kernel, dim3(1), WARP_LANES, 0, args, sums) : QRUN_OK;
}

static qrun_status run_clamped_gate_backward(qr_cuda_backend &cuda, const qr_clamped_gate_backward_args &args, void *,
                                             qr_error *err) {
    const qr_clamped_gate_args &f = args.forward;
    const bool aligned = vec4_aligned(f.g, f.stride) && vec4_aligned(f.u, f.stride) && vec4_aligned(args.dy, f.dim) &&
                         vec4_aligned(args.dg, args.dgu_stride) && vec4_aligned(args.du, args.dgu_stride);
    return QR_LAUNCH_VEC4(cuda.device, err, clamped_gate_backward_kernel, f.n_rows, f.dim, args, aligned);
}

static qrun_status run_dropout(qr_cuda_backend &cuda, const qr_dropout_args &args, void *, qr_error *err) {
    const double p = static_cast<double>(args.p);
    return QR_LAUNCH_VEC4(cuda.device, err, dropout_kernel, args.n_rows, args.dim, args,
                          static_cast<uint32_t>(ceil(p * 0x1p32)), static_cast<float>(1.0 - p));
}

static qrun_status run_round_act(qr_cuda_backend &cuda, const qr_round_act_args &args, void *, qr_error *err) {
    const bool aligned = vec4_aligned(args.src, args.src_stride) &&
                         vec4_aligned(args.dst, args.dst_stride, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_VEC4(cuda.device, err, round_act_kernel, args.n_rows, args.dim, args, aligned);
}

static qrun_status run_store_weight(qr_cuda_backend &cuda, const qr_store_weight_args &args, void *, qr_error *err) {
    const qr_weight_desc *desc = &args.weight->desc;
    const qr_dtype dtype = desc->format == QR_WEIGHT_F32   ? QR_DTYPE_F32
                           : desc->format == QR_WEIGHT_F16 ? QR_DTYPE_F16
                                                           : QR_DTYPE_BF16;
    const int64_t n = qr_weight_elements(desc);
    return QR_LAUNCH_VEC4(cuda.device, err, store_weight_kernel, 1, n, args.src, args.weight->data, dtype, n,
                          vec4_aligned(args.src, 0) && vec4_aligned(args.weight->data, 0, qr_dtype_bytes(dtype)));
}

QR_CUDA_OP(activation_backward, no_workspace<qr_activation_backward_args>, run_activation_backward)
QR_CUDA_OP(gate_backward, no_workspace<qr_gate_backward_args>, run_gate_backward)
QR_CUDA_OP(xielu_backward, xielu_backward_workspace, run_xielu_backward)
QR_CUDA_OP(clamped_gate_backward, no_workspace<qr_clamped_gate_backward_args>, run_clamped_gate_backward)
QR_CUDA_OP(dropout, no_workspace<qr_dropout_args>, run_dropout)
QR_CUDA_OP(round_act, no_workspace<qr_round_act_args>, run_round_act)
QR_CUDA_OP(store_weight, no_workspace<qr_store_weight_args>, run_store_weight)
