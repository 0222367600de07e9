/* The ops of ops_streams.h. Those with sums over a row: a block for a row. Others: a thread for four elements of every
 * stream. */
#include "kernels/cuda/streams.cuh"

__global__ void stream_coefs_kernel(qr_stream_coefs_args a) {
    await_previous();
    admit_next();
    const int64_t row = blockIdx.x;
    float m[QR_MAX_STREAMS];
    route_row(a, row, shared_memory<float>(), m);
    if (threadIdx.x >= static_cast<unsigned>(a.n_coefs)) { return; }
    float sum = 0.0F;
    for (int j = 0; j < a.n_streams; j++) {
        sum = fmaf(a.mixes[static_cast<int>(threadIdx.x) * a.n_streams + j], m[j], sum);
    }
    a.dst[row * a.n_coefs + threadIdx.x] = sum;
}

__global__ void stream_predict_kernel(qr_stream_predict_args a, bool aligned) {
    await_previous();
    admit_next();
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        const int n = a.n_streams;
        const float *coefs = a.coefs + row * n * n;
        float *streams = a.streams + row * n * a.dim;
        float x[QR_MAX_STREAMS][VEC4];
        for (int s = 0; s < n; s++) { load_vec4(x[s], streams + s * a.dim, j, a.dim, aligned); }
        for (int b = 0; b < n; b++) {
            float sum[VEC4];
            for (int k = 0; k < VEC4; k++) {
                sum[k] = x[b][k];
                for (int s = 0; s < n; s++) { sum[k] = fmaf(coefs[b * n + s], x[s][k], sum[k]); }
            }
            store_vec4(streams + b * a.dim, j, a.dim, aligned, sum);
            if (b == 0) { store_vec4(a.active + row * a.dim, j, a.dim, aligned, sum); }
        }
    });
}

__global__ void stream_correct_kernel(qr_stream_correct_args a, bool aligned) {
    await_previous();
    admit_next();
    for_each_vec4(a.n_rows, a.dim, [&](int64_t row, int64_t j) {
        float *streams = a.streams + row * a.n_streams * a.dim;
        float change[VEC4], first[VEC4], scale[VEC4] = {1.0F, 1.0F, 1.0F, 1.0F};
        load_vec4(change, a.x + row * a.dim, j, a.dim, aligned);
        load_vec4(first, streams, j, a.dim, aligned);
        if (a.scale != nullptr) { load_vec4(scale, a.scale, j, a.dim, aligned); }
        for (int k = 0; k < VEC4; k++) { change[k] -= first[k]; }
        for (int b = 0; b < a.n_streams; b++) {
            const float factor = 1.0F + a.coefs[row * a.n_streams + b];
            float x[VEC4];
            load_vec4(x, streams + b * a.dim, j, a.dim, aligned);
            for (int k = 0; k < VEC4; k++) { x[k] = fmaf(factor, change[k], x[k]); }
            store_vec4(streams + b * a.dim, j, a.dim, aligned, x);
            if (b > 0) { continue; }
            for (int k = 0; k < VEC4; k++) { x[k] *= scale[k]; }
            store_vec4(a.dst, a.dst_dtype, row * a.dim, j, a.dim, aligned, x);
        }
    });
}

__global__ void stream_level_kernel(qr_stream_level_args a) {
    await_previous();
    admit_next();
    float *scratch = shared_memory<float>();
    float *streams = a.streams + blockIdx.x * a.n_streams * a.dim;
    const float target = sqrtf(mean_of_squares(streams, a.dim, scratch));
    for (int b = 1; b < a.n_streams; b++) {
        float *x = streams + b * a.dim;
        const float factor = target / stream_size(mean_of_squares(x, a.dim, scratch));
        for (int64_t d = threadIdx.x; d < a.dim; d += VEC4_THREADS) { x[d] *= factor; }
    }
}

__global__ void gaussian_topk_kernel(qr_gaussian_topk_args a) {
    await_previous();
    admit_next();
    const float *x = a.x + blockIdx.x * a.x_stride;
    float *dst = a.dst + blockIdx.x * a.dst_stride;
    const gate_moments m = gate_moments_of(x, a.dim, shared_memory<float>());
    const float cutoff = fmaf(a.quantile, m.deviation, m.mean);
    for (int64_t j = threadIdx.x; j < a.dim; j += VEC4_THREADS) {
        const float above = x[j] - cutoff;
        dst[j] = above < 0.0F ? 0.0F : above; /* NaN stays */
    }
}

static qrun_status run_stream_coefs(qr_cuda_backend &cuda, const qr_stream_coefs_args &args, void *, qr_error *err) {
    return QR_LAUNCH_EARLY(cuda.device, err, stream_coefs_kernel, row_blocks(args.n_rows), VEC4_THREADS, ROW_SCRATCH,
                           args);
}

static qrun_status run_stream_predict(qr_cuda_backend &cuda, const qr_stream_predict_args &args, void *,
                                      qr_error *err) {
    const bool aligned = vec4_aligned(args.streams, args.dim) && vec4_aligned(args.active, args.dim);
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, stream_predict_kernel, args.n_rows, args.dim, args, aligned);
}

static qrun_status run_stream_correct(qr_cuda_backend &cuda, const qr_stream_correct_args &args, void *,
                                      qr_error *err) {
    const bool aligned = vec4_aligned(args.streams, args.dim) && vec4_aligned(args.x, args.dim) &&
                         vec4_aligned(args.scale, 0) &&
                         vec4_aligned(args.dst, args.dim, qr_dtype_bytes(args.dst_dtype));
    return QR_LAUNCH_VEC4_EARLY(cuda.device, err, stream_correct_kernel, args.n_rows, args.dim, args, aligned);
}

static qrun_status run_stream_level(qr_cuda_backend &cuda, const qr_stream_level_args &args, void *, qr_error *err) {
    return QR_LAUNCH_EARLY(cuda.device, err, stream_level_kernel, row_blocks(args.n_rows), VEC4_THREADS, ROW_SCRATCH,
                           args);
}

static qrun_status run_gaussian_topk(qr_cuda_backend &cuda, const qr_gaussian_topk_args &args, void *, qr_error *err) {
    return QR_LAUNCH_EARLY(cuda.device, err, gaussian_topk_kernel, row_blocks(args.n_rows), VEC4_THREADS, ROW_SCRATCH,
                           args);
}

QR_CUDA_OP(stream_coefs, no_workspace<qr_stream_coefs_args>, run_stream_coefs)
QR_CUDA_OP(stream_predict, no_workspace<qr_stream_predict_args>, run_stream_predict)
QR_CUDA_OP(stream_correct, no_workspace<qr_stream_correct_args>, run_stream_correct)
QR_CUDA_OP(stream_level, no_workspace<qr_stream_level_args>, run_stream_level)
QR_CUDA_OP(gaussian_topk, no_workspace<qr_gaussian_topk_args>, run_gaussian_topk)
