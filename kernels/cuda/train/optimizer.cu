/* adamw and sgd, a thread an element; adamw8bit, a block for a block of 256 states. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/device.cuh"

enum { THREADS = 256, STATES = 256, WARPS = STATES / WARP_LANES };

/* p = p · decay − step_size · m / (sqrt(v) · root_scale + eps). The factors hold the step's bias corrections; the host
 * computes them in F64. Rounded and fused as in kernels/cpu/train/optimizer.c: gradients in host memory are updated
 * from there, and the result is the same to the bit. */
struct adamw_factors {
    float add_m, add_v, decay, step_size, root_scale;
};

__global__ void adamw_kernel(qr_adamw_args a, adamw_factors f) {
    const int64_t i = global_thread();
    if (i >= a.n) { return; }
    const float g = a.g[i] * a.grad_scale;
    const float m = fmaf(a.beta1, a.m[i], f.add_m * g);
    const float v = fmaf(a.beta2, a.v[i], f.add_v * g * g);
    a.m[i] = m;
    a.v[i] = v;
    a.p[i] = fmaf(m / fmaf(sqrtf(v), f.root_scale, a.eps), -f.step_size, a.p[i] * f.decay);
}

/* bitsandbytes' factors of an update (kernels/ref/optimizer.c): p += step_size · m / (sqrt(v) + eps), all of it F32. */
struct bnb_factors {
    float step_size, eps;
};

static bnb_factors bnb_factors_of(float lr, float beta1, float beta2, float eps, int64_t step) {
    const float correction1 = 1.0F - static_cast<float>(pow(static_cast<double>(beta1), static_cast<double>(step)));
    const float correction2 =
        sqrtf(1.0F - static_cast<float>(pow(static_cast<double>(beta2), static_cast<double>(step))));
    return {-lr * correction2 / correction1, correction2 * eps};
}

static QR_DEVICE float bnb_parameter(float p, float m, float v, bnb_factors f, float lr, float weight_decay) {
    p += f.step_size * (m / (sqrtf(v) + f.eps));
    return weight_decay > 0.0F ? p * (1.0F - lr * weight_decay) : p;
}

__global__ void adamw_of_8bit_kernel(qr_adamw_args a, bnb_factors f) {
    const int64_t i = global_thread();
    if (i >= a.n) { return; }
    const float g = a.g[i] * a.grad_scale;
    const float m = a.m[i] * a.beta1 + (1.0F - a.beta1) * g;
    const float v = a.v[i] * a.beta2 + (1.0F - a.beta2) * (g * g);
    a.m[i] = m;
    a.v[i] = v;
    a.p[i] = bnb_parameter(a.p[i], m, v, f, a.lr, a.weight_decay);
}

/* The nearest code (quant/dynamic8.h): as many as there are bounds below x. */
static __device__ uint8_t dynamic8_encode(const float *bounds, float x) {
    int code = 0;
#pragma unroll
    for (int step = 128; step > 0; step /= 2) { code += x > bounds[code + step - 1] ? step : 0; }
    return static_cast<uint8_t>(code);
}

/* The nearest code, or its neighbour where the nearest one has the other sign than m. */
static __device__ uint8_t encode_signed(const qr_cuda_tables *tables, float m, float absmax) {
    const uint8_t code = dynamic8_encode(tables->dynamic_bounds[1], m / absmax);
    const bool same_sign = signbit(tables->dynamic_map[1][code]) == signbit(m);
    return same_sign ? code : static_cast<uint8_t>(m > 0.0F ? code + 1 : code - 1);
}

/* Every product and sum is rounded in the order of kernels/ref/optimizer.c, because codes are equal everywhere. */
__global__ void adamw8bit_kernel(qr_adamw8bit_args a, bnb_factors f, const qr_cuda_tables *tables) {
    float *scratch = shared_memory<float>();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * STATES + threadIdx.x;
    const bool inside = i < a.n, counts = inside && isfinite(a.g[i]);
    float m = 0.0F, v = 0.0F;
    if (counts) {
        const float g = a.g[i] * a.grad_scale;
        v = tables->dynamic_map[0][a.v[i]] * a.v_absmax[blockIdx.x] * a.beta2 + (1.0F - a.beta2) * g * g;
        m = tables->dynamic_map[1][a.m[i]] * a.m_absmax[blockIdx.x] * a.beta1 + (1.0F - a.beta1) * g;
        a.p[i] = bnb_parameter(a.p[i], m, v, f, a.lr, a.weight_decay);
    }
    const float m_absmax = block_max(fabsf(m), scratch), v_absmax = block_max(fabsf(v), scratch);
    if (inside) {
        a.m[i] = encode_signed(tables, m, m_absmax);
        a.v[i] = dynamic8_encode(tables->dynamic_bounds[0], v / v_absmax);
    }
    if (threadIdx.x == 0) { /* block_max was the last to need the old ones */
        a.m_absmax[blockIdx.x] = m_absmax;
        a.v_absmax[blockIdx.x] = v_absmax;
    }
}

__global__ void sgd_kernel(qr_sgd_args a) {
    const int64_t i = global_thread();
    if (i >= a.n) { return; }
    const float g = fmaf(a.weight_decay, a.p[i], a.g[i] * a.grad_scale);
    const float m = a.step == 1 ? g : fmaf(a.momentum, a.m[i], g);
    a.p[i] = fmaf(-a.lr, m, a.p[i]);
    a.m[i] = m;
}

static qrun_status run_adamw(qr_cuda_backend &cuda, const qr_adamw_args &args, void *, qr_error *err) {
    if (args.of_8bit) {
        return QR_LAUNCH(cuda.device, err, adamw_of_8bit_kernel, blocks_for(args.n, THREADS), THREADS, 0, args,
                         bnb_factors_of(args.lr, args.beta1, args.beta2, args.eps, args.step));
    }
    const double lr = static_cast<double>(args.lr), step = static_cast<double>(args.step);
    const double beta1 = static_cast<double>(args.beta1), beta2 = static_cast<double>(args.beta2);
    const adamw_factors factors = {
        static_cast<float>(1.0 - beta1),
        static_cast<float>(1.0 - beta2),
        static_cast<float>(1.0 - lr * static_cast<double>(args.weight_decay)),
        static_cast<float>(lr / (1.0 - pow(beta1, step))),
        static_cast<float>(1.0 / sqrt(1.0 - pow(beta2, step))),
    };
    return QR_LAUNCH(cuda.device, err, adamw_kernel, blocks_for(args.n, THREADS), THREADS, 0, args, factors);
}

static qrun_status run_adamw8bit(qr_cuda_backend &cuda, const qr_adamw8bit_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, adamw8bit_kernel, blocks_for(args.n, STATES), STATES, WARPS * sizeof(float),
                     args, bnb_factors_of(args.lr, args.beta1, args.beta2, args.eps, args.step), cuda.tables);
}

static qrun_status run_sgd(qr_cuda_backend &cuda, const qr_sgd_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, sgd_kernel, blocks_for(args.n, THREADS), THREADS, 0, args);
}

QR_CUDA_OP(adamw, no_workspace<qr_adamw_args>, run_adamw)
QR_CUDA_OP(adamw8bit, no_workspace<qr_adamw8bit_args>, run_adamw8bit)
QR_CUDA_OP(sgd, no_workspace<qr_sgd_args>, run_sgd)
