/* head_gate_backward, conv1d_causal_backward. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/device/vec4.cuh"

/* What a gate lets through, and the slope of that. */
QR_DEVICE float open_gate(const qr_head_gate_args &f, float gate, float *slope) {
    const float on = sigmoid(gate);
    *slope = f.by_softplus ? on : on * sigmoid(-gate);
    return f.by_softplus ? softplus(gate) : on;
}

__global__ void head_gate_backward_kernel(qr_head_gate_backward_args a) {
    const qr_head_gate_args &f = a.forward;
    for_each_vec4(f.n_rows * f.n_heads, f.dim, [&](int64_t i, int64_t j) {
        const int64_t gate_at = i / f.n_heads * f.gate_stride + i % f.n_heads * f.gate_head_stride;
        float gate[VEC4], dy[VEC4], dgate[VEC4];
        load_vec4(gate, f.gate + gate_at, j, f.dim, false);
        load_vec4(dy, a.dy + i * f.dim, j, f.dim, false);
        for (int k = 0; k < VEC4; k++) {
            const float x = j + k < f.dim ? load_as_f32(f.x, f.dtype, i * f.dim + j + k) : 0.0F;
            float slope;
            const float open = open_gate(f, gate[k], &slope);
            dgate[k] = dy[k] * x * slope;
            dy[k] = dy[k] * open;
        }
        store_vec4(a.dgate + gate_at, j, f.dim, false, dgate);
        store_vec4(a.dx + i * f.dim, j, f.dim, false, dy);
    });
}

enum { HEAD_THREADS = 128, HEAD_WARPS = HEAD_THREADS / WARP_LANES };

/* One gate for a head: a warp for each. */
__global__ void whole_head_gate_backward_kernel(qr_head_gate_backward_args a) {
    const qr_head_gate_args &f = a.forward;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * HEAD_WARPS + warp_index();
    if (i >= f.n_rows * f.n_heads) { return; }
    const int64_t gate_at = i / f.n_heads * f.gate_stride + i % f.n_heads * f.gate_head_stride;
    float slope, sum = 0.0F;
    const float open = open_gate(f, f.gate[gate_at], &slope);
    for (int64_t j = lane_index(); j < f.dim; j += WARP_LANES) {
        const float dy = a.dy[i * f.dim + j];
        sum = fmaf(dy, load_as_f32(f.x, f.dtype, i * f.dim + j), sum);
        a.dx[i * f.dim + j] = dy * open;
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) { a.dgate[gate_at] = sum * slope; }
}

/* One channel of one sequence. rows: x of the kernel tokens up to the one that runs; dsums: the gradients of their
 * sums; both oldest first. dweight [kernel] and *dbias grow. */
QR_DEVICE void conv_channel_backward(const qr_conv1d_causal_backward_args &a, const float *weight, int64_t c,
                                     int64_t begin, int64_t end, float *dweight, float *dbias) {
    const qr_conv1d_causal_args &f = a.forward;
    const int32_t kernel = f.kernel;
    float rows[QR_CONV_MAX_KERNEL] = {}, dsums[QR_CONV_MAX_KERNEL] = {};
    for (int64_t t = begin; t < end + kernel - 1; t++) {
        for (int32_t j = 0; j < kernel - 1; j++) {
            rows[j] = rows[j + 1];
            dsums[j] = dsums[j + 1];
        }
        rows[kernel - 1] = dsums[kernel - 1] = 0.0F;
        if (t < end) {
            float sum = f.bias != NULL ? f.bias[c] : 0.0F;
            rows[kernel - 1] = f.x[t * f.x_stride + c];
            for (int32_t j = 0; j < kernel; j++) { sum = fmaf(weight[j], rows[j], sum); }
            const float dsum = a.dy[t * f.dim + c] * act_derivative(f.fn, sum);
            dsums[kernel - 1] = dsum;
            *dbias += dsum;
            for (int32_t j = 0; j < kernel; j++) { dweight[j] = fmaf(dsum, rows[j], dweight[j]); }
        }
        const int64_t done = t - kernel + 1;
        if (done < begin) { continue; }
        float dx = 0.0F;
        for (int32_t j = 0; j < kernel; j++) { dx = fmaf(weight[kernel - 1 - j], dsums[j], dx); }
        a.dx[done * a.dx_stride + c] = dx;
    }
}

__global__ void conv1d_causal_backward_kernel(qr_conv1d_causal_backward_args a) {
    const qr_conv1d_causal_args &f = a.forward;
    const int64_t c = global_thread();
    if (c >= f.dim) { return; }
    float weight[QR_CONV_MAX_KERNEL], dweight[QR_CONV_MAX_KERNEL] = {}, dbias = 0.0F;
    for (int32_t j = 0; j < f.kernel; j++) { weight[j] = f.weight[c * f.kernel + j]; }
    for (int32_t s = 0; s < f.sequences.n_seqs; s++) {
        conv_channel_backward(a, weight, c, f.sequences.start[s], f.sequences.start[s + 1], dweight, &dbias);
    }
    if (a.dbias != NULL) { a.dbias[c] += dbias; }
    for (int32_t j = 0; a.dweight != NULL && j < f.kernel; j++) { a.dweight[c * f.kernel + j] += dweight[j]; }
}

static qrun_status run_head_gate_backward(qr_cuda_backend &cuda, const qr_head_gate_backward_args &args, void *,
                                          qr_error *err) {
    const qr_head_gate_args &f = args.forward;
    if (f.gate_dim == 1) {
        return QR_LAUNCH(cuda.device, err, whole_head_gate_backward_kernel,
                         blocks_for(f.n_rows * f.n_heads, HEAD_WARPS), HEAD_THREADS, 0, args);
    }
    return QR_LAUNCH_VEC4(cuda.device, err, head_gate_backward_kernel, f.n_rows * f.n_heads, f.dim, args);
}

static qrun_status run_conv1d_causal_backward(qr_cuda_backend &cuda, const qr_conv1d_causal_backward_args &args, void *,
                                              qr_error *err) {
    return QR_LAUNCH(cuda.device, err, conv1d_causal_backward_kernel, blocks_for(args.forward.dim, VEC4_THREADS),
                     VEC4_THREADS, 0, args);
}

QR_CUDA_OP(head_gate_backward, no_workspace<qr_head_gate_backward_args>, run_head_gate_backward)
QR_CUDA_OP(conv1d_causal_backward, no_workspace<qr_conv1d_causal_backward_args>, run_conv1d_causal_backward)
