/* activation, gate, clamped_gate, xielu, add, scale, scale_columns and softcap: a thread for four elements. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

__global__ void activation_kernel(qr_activation_args a, bool aligned) {
    await_previous();
    admit_next();
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float x[VEC4];
        load_vec4(x, a.x + row * a.x_stride, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { x[k] = act_fn(a.fn, x[k]); }
        store_vec4(a.dst, a.dst_dtype, row * a.dim, j, a.dim, aligned, x);
    });
}

__global__ void gate_kernel(qr_gate_args a, bool aligned) {
    await_previous();
    admit_next();
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float g[VEC4], u[VEC4];
        load_vec4(g, a.g + row * a.g_stride, j, a.dim, aligned);
        load_vec4(u, a.u + row * a.u_stride, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) { g[k] = act_fn(a.fn, g[k]) * u[k]; }
        store_vec4(a.dst, a.dst_dtype, row * a.dim, j, a.dim, aligned, g);
    });
}

__global__ void clamped_gate_kernel(qr_clamped_gate_args a, bool aligned) {
    await_previous();
    admit_next();
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float g[VEC4], u[VEC4];
        load_vec4(g, a.g + row * a.stride, j, a.dim, aligned);
        load_vec4(u, a.u + row * a.stride, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) {
            const float held = at_most(g[k], a.limit);
            g[k] = held * sigmoid(a.alpha * held) * (held_to(u[k], a.limit) + 1.0F);
        }
        store_vec4(a.dst, a.dst_dtype, row * a.dim, j, a.dim, aligned, g);
    });
}

__global__ void xielu_kernel(qr_xielu_args a, bool aligned) {
    await_previous();
    admit_next();
    const float above = xielu_above(a), below = xielu_below(a), beta = a.beta[0], eps = a.eps[0];
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float x[VEC4];
        load_vec4(x, a.x + row * a.x_stride, j, a.dim, aligned);
        for (int k = 0; k < VEC4; k++) {
            x[k] = (x[k] > 0.0F ? above * x[k] * x[k] : below * xielu_curve(x[k], eps)) + beta * x[k];
        }
        store_vec4(a.dst, a.dst_dtype, row * a.dim, j, a.dim, aligned, x);
    });
}

__global__ void add_kernel(qr_add_args a, bool aligned) {
    await_previous();
    admit_next();
    for_each_vec4(1, a.n, [&](int64_t, int64_t j) {
        float x[VEC4], y[VEC4];
        load_vec4(x, a.x, j, a.n, aligned);
        load_vec4(y, a.y, j, a.n, aligned);
        for (int k = 0; k < VEC4; k++) { x[k] += y[k]; }
        store_vec4(a.x, j, a.n, aligned, x);
    });
}

__global__ void scale_kernel(qr_scale_args a, bool aligned) {
    await_previous();
    admit_next();
    const float factor = a.by != NULL ? a.factor * a.by[0] : a.factor;
    for_each_vec4(1, a.n, [&](int64_t, int64_t j) {
        float x[VEC4];
        load_vec4(x, a.x, j, a.n, aligned);
        for (int k = 0; k < VEC4; k++) { x[k] *= factor; }
        store_vec4(a.x, j, a.n, aligned, x);
    });
}

static QR_DEVICE float column_factor(const qr_scale_columns_args &a, int64_t j) {
    int64_t end = 0;
    for (int p = 0; p < QR_MAX_SCALED_PARTS; p++) {
        end += a.parts[p].n;
        if (j < end) { return a.parts[p].factor; }
    }
    return 1.0F;
}

__global__ void scale_columns_kernel(qr_scale_columns_args a, int64_t dim, bool aligned) {
    await_previous();
    admit_next();
    for_each_vec4(a.n_rows, dim, [&](int64_t row, int64_t j) {
        float x[VEC4];
        load_vec4(x, a.x + row * a.x_stride, j, dim, aligned);
        for (int k = 0; k < VEC4; k++) { x[k] *= column_factor(a, j + k); }
        store_vec4(a.x + row * a.x_stride, j, dim, aligned, x);
    });
}

__global__ void softcap_kernel(qr_softcap_args a, bool aligned) {
    for_each_vec4(1, a.n, [&](int64_t, int64_t j) {
        float x[VEC4];
        load_vec4(x, a.x, j, a.n, aligned);
        for (int k = 0; k < VEC4; k++) { x[k] = softcap_value(x[k], a.cap); }
        store_vec4(a.x, j, a.n, aligned, x);
    });
}

static qrun_status run_activation(qr_cuda_backend &cuda, const qr_activation_args &args, void *, qr_error *err) {
    const bool aligned =
        vec4_aligned(args.x, args.x_stride) && vec4_aligned(args.dst, args.dim, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, activation_kernel, args.n_rows, args.dim, args, aligned);
}

static qrun_status run_gate(qr_cuda_backend &cuda, const qr_gate_args &args, void *, qr_error *err) {
    const bool aligned = vec4_aligned(args.g, args.g_stride) && vec4_aligned(args.u, args.u_stride) &&
                         vec4_aligned(args.dst, args.dim, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, gate_kernel, args.n_rows, args.dim, args, aligned);
}

static qrun_status run_clamped_gate(qr_cuda_backend &cuda, const qr_clamped_gate_args &args, void *, qr_error *err) {
    const bool aligned = vec4_aligned(args.g, args.stride) && vec4_aligned(args.u, args.stride) &&
                         vec4_aligned(args.dst, args.dim, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, clamped_gate_kernel, args.n_rows, args.dim, args, aligned);
}

static qrun_status run_xielu(qr_cuda_backend &cuda, const qr_xielu_args &args, void *, qr_error *err) {
    const bool aligned =
        vec4_aligned(args.x, args.x_stride) && vec4_aligned(args.dst, args.dim, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, xielu_kernel, args.n_rows, args.dim, args, aligned);
}

static qrun_status run_add(qr_cuda_backend &cuda, const qr_add_args &args, void *, qr_error *err) {
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, add_kernel, 1, args.n, args,
                                vec4_aligned(args.x, 0) && vec4_aligned(args.y, 0));
}

static qrun_status run_scale(qr_cuda_backend &cuda, const qr_scale_args &args, void *, qr_error *err) {
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, scale_kernel, 1, args.n, args, vec4_aligned(args.x, 0));
}

static qrun_status run_scale_columns(qr_cuda_backend &cuda, const qr_scale_columns_args &args, void *, qr_error *err) {
    int64_t dim = 0;
    for (const qr_scaled_part &part : args.parts) { dim += part.n; }
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, scale_columns_kernel, args.n_rows, dim, args, dim,
                                vec4_aligned(args.x, args.x_stride));
}

static qrun_status run_softcap(qr_cuda_backend &cuda, const qr_softcap_args &args, void *, qr_error *err) {
    return QR_LAUNCH_VEC4(cuda.device, err, softcap_kernel, 1, args.n, args, vec4_aligned(args.x, 0));
}

QR_CUDA_OP(activation, no_workspace<qr_activation_args>, run_activation)
QR_CUDA_OP(gate, no_workspace<qr_gate_args>, run_gate)
QR_CUDA_OP(clamped_gate, no_workspace<qr_clamped_gate_args>, run_clamped_gate)
QR_CUDA_OP(xielu, no_workspace<qr_xielu_args>, run_xielu)
QR_CUDA_OP(add, no_workspace<qr_add_args>, run_add)
QR_CUDA_OP(scale, no_workspace<qr_scale_args>, run_scale)
QR_CUDA_OP(scale_columns, no_workspace<qr_scale_columns_args>, run_scale_columns)
QR_CUDA_OP(softcap, no_workspace<qr_softcap_args>, run_softcap)
