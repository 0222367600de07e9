/* The backward ops of ops_streams.h: a block for a row. Sums over rows by chunks of them (column_sums.cuh), a thread
 * for an element. */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/streams.cuh"

/* ---- stream_coefs_backward --------------------------------------------------------------------------------------- */

/* Of a row, kept for the sums over rows: m[j], and the gradients of the sums that they are made of. */
struct stream_route {
    float m[QR_MAX_STREAMS], dsum[QR_MAX_STREAMS];
};

__global__ void stream_coefs_backward_kernel(qr_stream_coefs_backward_args a, stream_route *rows) {
    const qr_stream_coefs_args &f = a.forward;
    const int64_t row = blockIdx.x;
    stream_route route;
    route_row(f, row, shared_memory<float>(), route.m);
    for (int j = 0; j < f.n_streams; j++) {
        float sum = 0.0F;
        for (int c = 0; c < f.n_coefs; c++) {
            sum = fmaf(f.mixes[c * f.n_streams + j], a.dcoefs[row * f.n_coefs + c], sum);
        }
        route.dsum[j] = sum * (1.0F - route.m[j] * route.m[j]) / static_cast<float>(f.dim);
    }
    if (threadIdx.x == 0) { rows[row] = route; }
    for (int64_t d = threadIdx.x; d < f.dim; d += VEC4_THREADS) {
        float dx = 0.0F;
        for (int j = 0; j < f.n_streams; j++) { dx = fmaf(f.router[j * f.dim + d], route.dsum[j], dx); }
        a.dx[row * f.dim + d] = dx;
    }
}

/* sums [n_chunks, n_streams, dim]. */
__global__ void router_sums_kernel(qr_stream_coefs_args f, const stream_route *rows, int64_t chunk_rows, float *sums) {
    const int64_t i = global_thread(), j = i / f.dim, d = i - j * f.dim;
    if (j >= f.n_streams) { return; }
    float sum = 0.0F;
    for_chunk(f.n_rows, chunk_rows, [&](int64_t row) { sum = fmaf(f.x[row * f.dim + d], rows[row].dsum[j], sum); });
    sums[blockIdx.y * f.n_streams * f.dim + i] = sum;
}

/* sums [n_chunks, n_coefs, n_streams]. */
__global__ void mixes_sums_kernel(qr_stream_coefs_backward_args a, const stream_route *rows, int64_t chunk_rows,
                                  float *sums) {
    const qr_stream_coefs_args &f = a.forward;
    const int64_t i = global_thread(), c = i / f.n_streams, j = i - c * f.n_streams;
    if (c >= f.n_coefs) { return; }
    float sum = 0.0F;
    for_chunk(f.n_rows, chunk_rows,
              [&](int64_t row) { sum = fmaf(a.dcoefs[row * f.n_coefs + c], rows[row].m[j], sum); });
    sums[blockIdx.y * f.n_coefs * f.n_streams + i] = sum;
}

static size_t route_bytes(int64_t n_rows) {
    return static_cast<size_t>(qr_round_up(n_rows * static_cast<int64_t>(sizeof(stream_route)), 64));
}

/* The sums of either weight take turns. */
static size_t stream_coefs_backward_workspace(const qr_stream_coefs_backward_args &args) {
    const qr_stream_coefs_args &f = args.forward;
    const int64_t widest = qr_max(f.n_streams * f.dim, static_cast<int64_t>(f.n_coefs) * f.n_streams);
    return route_bytes(f.n_rows) + static_cast<size_t>(n_chunks_of(f.n_rows) * widest) * sizeof(float);
}

/* A thread for each of n elements, chunks of rows in the y dimension. */
static dim3 element_chunks(int64_t n_rows, int64_t n) {
    dim3 grid = blocks_for(n, VEC4_THREADS);
    grid.y = static_cast<unsigned>(n_chunks_of(n_rows));
    return grid;
}

static qrun_status run_stream_coefs_backward(qr_cuda_backend &cuda, const qr_stream_coefs_backward_args &args,
                                             void *workspace, qr_error *err) {
    const qr_stream_coefs_args &f = args.forward;
    stream_route *rows = static_cast<stream_route *>(workspace);
    float *sums = reinterpret_cast<float *>(static_cast<unsigned char *>(workspace) + route_bytes(f.n_rows));
    const int64_t chunk_rows = chunk_rows_of(f.n_rows), n_chunks = n_chunks_of(f.n_rows);
    const int64_t n_router = f.n_streams * f.dim, n_mixes = static_cast<int64_t>(f.n_coefs) * f.n_streams;
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, stream_coefs_backward_kernel, row_blocks(f.n_rows), VEC4_THREADS,
                                 ROW_SCRATCH, args, rows));
    if (args.drouter != nullptr) {
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, router_sums_kernel, element_chunks(f.n_rows, n_router),
                                     VEC4_THREADS, 0, f, rows, chunk_rows, sums));
        QR_RETURN_IF_ERROR(qr_cuda_add_chunks(cuda, args.drouter, sums, n_chunks, n_router, err));
    }
    if (args.dmixes == nullptr) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, mixes_sums_kernel, element_chunks(f.n_rows, n_mixes), VEC4_THREADS,
                                 0, args, rows, chunk_rows, sums));
    return qr_cuda_add_chunks(cuda, args.dmixes, sums, n_chunks, n_mixes, err);
}

/* ---- stream_predict_backward, stream_correct_backward ------------------------------------------------------------ */

__global__ void stream_predict_backward_kernel(qr_stream_predict_backward_args a) {
    float *scratch = shared_memory<float>();
    const int n = a.n_streams;
    const int64_t row = blockIdx.x;
    const float *coefs = a.coefs + row * n * n, *streams = a.streams + row * n * a.dim;
    float *dstreams = a.dstreams + row * n * a.dim;
    float sums[QR_MAX_STREAM_COEFS] = {};
    for (int64_t d = threadIdx.x; d < a.dim; d += VEC4_THREADS) {
        float dy[QR_MAX_STREAMS];
        for (int b = 0; b < n; b++) { dy[b] = dstreams[b * a.dim + d]; }
        dy[0] += a.dactive[row * a.dim + d];
        for (int s = 0; s < n; s++) {
            const float x = streams[s * a.dim + d];
            float dx = dy[s];
            for (int b = 0; b < n; b++) {
                dx = fmaf(coefs[b * n + s], dy[b], dx);
                sums[b * n + s] = fmaf(x, dy[b], sums[b * n + s]);
            }
            dstreams[s * a.dim + d] = dx;
        }
    }
    for (int c = 0; c < n * n; c++) {
        const float sum = block_sum(sums[c], scratch);
        if (threadIdx.x == 0) { a.dcoefs[row * n * n + c] = sum; }
    }
}

__global__ void stream_correct_backward_kernel(qr_stream_correct_backward_args a) {
    float *scratch = shared_memory<float>();
    const int n = a.n_streams;
    const int64_t row = blockIdx.x;
    float *dstreams = a.dstreams + row * n * a.dim;
    float sums[QR_MAX_STREAMS] = {};
    for (int64_t d = threadIdx.x; d < a.dim; d += VEC4_THREADS) {
        const int64_t at = row * a.dim + d;
        const float change = a.x[at] - a.active[at], scale = a.scale != nullptr ? a.scale[d] : 1.0F;
        const float first = fmaf(a.dy[at], scale, dstreams[d]);
        float dchange = 0.0F;
        for (int b = 0; b < n; b++) {
            const float through = b == 0 ? first : dstreams[b * a.dim + d];
            dchange = fmaf(1.0F + a.coefs[row * n + b], through, dchange);
            sums[b] = fmaf(change, through, sums[b]);
        }
        dstreams[d] = first - dchange;
        a.dx[at] = dchange;
    }
    for (int b = 0; b < n; b++) {
        const float sum = block_sum(sums[b], scratch);
        if (threadIdx.x == 0) { a.dcoefs[row * n + b] = sum; }
    }
}

/* sums [n_chunks, dim] of dscale, for which stream 0 is computed again. */
__global__ void stream_scale_sums_kernel(qr_stream_correct_backward_args a, int64_t chunk_rows, float *sums) {
    const int64_t d = global_thread();
    if (d >= a.dim) { return; }
    float sum = 0.0F;
    for_chunk(a.n_rows, chunk_rows, [&](int64_t row) {
        const int64_t at = row * a.dim + d;
        const float left = fmaf(1.0F + a.coefs[row * a.n_streams], a.x[at] - a.active[at], a.active[at]);
        sum = fmaf(a.dy[at], left, sum);
    });
    sums[blockIdx.y * a.dim + d] = sum;
}

static qrun_status run_stream_predict_backward(qr_cuda_backend &cuda, const qr_stream_predict_backward_args &args,
                                               void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, stream_predict_backward_kernel, row_blocks(args.n_rows), VEC4_THREADS,
                     ROW_SCRATCH, args);
}

static size_t stream_correct_backward_workspace(const qr_stream_correct_backward_args &args) {
    return args.dscale != nullptr ? static_cast<size_t>(n_chunks_of(args.n_rows) * args.dim) * sizeof(float) : 0;
}

static qrun_status run_stream_correct_backward(qr_cuda_backend &cuda, const qr_stream_correct_backward_args &args,
                                               void *workspace, qr_error *err) {
    float *sums = static_cast<float *>(workspace);
    if (args.dscale != nullptr) {
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, stream_scale_sums_kernel, element_chunks(args.n_rows, args.dim),
                                     VEC4_THREADS, 0, args, chunk_rows_of(args.n_rows), sums));
        QR_RETURN_IF_ERROR(qr_cuda_add_chunks(cuda, args.dscale, sums, n_chunks_of(args.n_rows), args.dim, err));
    }
    return QR_LAUNCH(cuda.device, err, stream_correct_backward_kernel, row_blocks(args.n_rows), VEC4_THREADS,
                     ROW_SCRATCH, args);
}

/* ---- stream_level_backward, gaussian_topk_backward --------------------------------------------------------------- */

__global__ void stream_level_backward_kernel(qr_stream_level_backward_args a) {
    float *scratch = shared_memory<float>();
    const float *streams = a.streams + blockIdx.x * a.n_streams * a.dim, dim = static_cast<float>(a.dim);
    float *dstreams = a.dstreams + blockIdx.x * a.n_streams * a.dim, dtarget = 0.0F;
    const float target = sqrtf(mean_of_squares(streams, a.dim, scratch));
    for (int b = 1; b < a.n_streams; b++) {
        const float *x = streams + b * a.dim;
        float *dx = dstreams + b * a.dim;
        const float square = mean_of_squares(x, a.dim, scratch), along = dot_row(x, dx, a.dim, scratch);
        const float size = stream_size(square), factor = target / size;
        const float back = square < STREAM_LEAST_SQUARE ? 0.0F : along / square / dim;
        dtarget += along / size;
        for (int64_t d = threadIdx.x; d < a.dim; d += VEC4_THREADS) { dx[d] = (dx[d] - x[d] * back) * factor; }
    }
    const float factor = target == 0.0F ? 0.0F : dtarget / target / dim;
    for (int64_t d = threadIdx.x; d < a.dim; d += VEC4_THREADS) { dstreams[d] = fmaf(streams[d], factor, dstreams[d]); }
}

__global__ void gaussian_topk_backward_kernel(qr_gaussian_topk_backward_args a) {
    float *scratch = shared_memory<float>();
    const qr_gaussian_topk_args &f = a.forward;
    const float *x = f.x + blockIdx.x * f.x_stride, *dy = a.dy + blockIdx.x * a.dy_stride;
    float *dx = a.dx + blockIdx.x * a.dx_stride, sum = 0.0F;
    const gate_moments m = gate_moments_of(x, f.dim, scratch);
    const float cutoff = fmaf(f.quantile, m.deviation, m.mean);
    for (int64_t j = threadIdx.x; j < f.dim; j += VEC4_THREADS) { sum += x[j] > cutoff ? dy[j] : 0.0F; }
    const float share = block_sum(sum, scratch) / static_cast<float>(f.dim);
    const float steep = m.deviation == 0.0F ? 0.0F : share * f.quantile / m.deviation;
    for (int64_t j = threadIdx.x; j < f.dim; j += VEC4_THREADS) {
        const float own = x[j] > cutoff ? dy[j] : 0.0F;
        dx[j] = own - fmaf(x[j] - m.mean, steep, share);
    }
}

static qrun_status run_stream_level_backward(qr_cuda_backend &cuda, const qr_stream_level_backward_args &args, void *,
                                             qr_error *err) {
    return QR_LAUNCH(cuda.device, err, stream_level_backward_kernel, row_blocks(args.n_rows), VEC4_THREADS, ROW_SCRATCH,
                     args);
}

static qrun_status run_gaussian_topk_backward(qr_cuda_backend &cuda, const qr_gaussian_topk_backward_args &args, void *,
                                              qr_error *err) {
    return QR_LAUNCH(cuda.device, err, gaussian_topk_backward_kernel, row_blocks(args.forward.n_rows), VEC4_THREADS,
                     ROW_SCRATCH, args);
}

QR_CUDA_OP(stream_coefs_backward, stream_coefs_backward_workspace, run_stream_coefs_backward)
QR_CUDA_OP(stream_predict_backward, no_workspace<qr_stream_predict_backward_args>, run_stream_predict_backward)
QR_CUDA_OP(stream_correct_backward, stream_correct_backward_workspace, run_stream_correct_backward)
QR_CUDA_OP(stream_level_backward, no_workspace<qr_stream_level_backward_args>, run_stream_level_backward)
QR_CUDA_OP(gaussian_topk_backward, no_workspace<qr_gaussian_topk_backward_args>, run_gaussian_topk_backward)
