/* embedding and gather_rows, and their gradients: a thread an element, neighbours in a row. */
#include "kernels/cuda/matrix.cuh"

enum { THREADS = 256 };

__global__ void embedding_kernel(qr_embedding_args a, matrix table) {
    const int64_t i = global_thread();
    if (i >= a.n_tokens * table.cols) { return; }
    const int32_t id = a.ids[i / table.cols], token = id >= 0 ? id : a.sampled[-1 - id].token;
    const int32_t row = a.first_beyond && token >= table.rows ? 0 : token;
    const float value = matrix_element(table, row, i % table.cols) * a.scale;
    a.dst[i] = a.accumulate ? a.dst[i] + value : value;
}

__global__ void gather_rows_kernel(qr_gather_rows_args a) {
    const int64_t i = global_thread();
    if (i < a.n_rows * a.dim) { a.dst[i] = a.src[a.rows[i / a.dim] * a.dim + i % a.dim]; }
}

static qrun_status run_embedding(qr_cuda_backend &cuda, const qr_embedding_args &args, void *, qr_error *err) {
    const matrix table = matrix_of(cuda, *args.table);
    return QR_LAUNCH(cuda.device, err, embedding_kernel, blocks_for(args.n_tokens * table.cols, THREADS), THREADS, 0,
                     args, table);
}

static qrun_status run_gather_rows(qr_cuda_backend &cuda, const qr_gather_rows_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, gather_rows_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS, 0,
                     args);
}

/* Blocks of the y dimension divide the vocabulary, so that every row of the table belongs to one thread, which adds its
 * tokens' gradients in order. */
__global__ void embedding_backward_kernel(qr_embedding_backward_args a) {
    const int64_t j = global_thread();
    if (j >= a.dim) { return; }
    for (int64_t i = 0; i < a.n_tokens; i++) {
        const int32_t id = a.first_beyond && a.ids[i] >= a.vocab ? 0 : a.ids[i];
        if (static_cast<unsigned>(id) % gridDim.y != blockIdx.y) { continue; }
        float *dst = &a.dtable[id * a.dim + j];
        *dst = fmaf(a.dy[i * a.dim + j], a.scale, *dst);
    }
}

__global__ void scatter_rows_kernel(qr_scatter_rows_args a) {
    const int64_t i = global_thread();
    if (i < a.n_rows * a.dim) { a.dst[a.rows[i / a.dim] * a.dim + i % a.dim] = a.src[i]; }
}

static qrun_status run_embedding_backward(qr_cuda_backend &cuda, const qr_embedding_backward_args &args, void *,
                                          qr_error *err) {
    enum { SHARES = 16 };
    dim3 grid = blocks_for(args.dim, THREADS);
    grid.y = SHARES;
    return QR_LAUNCH(cuda.device, err, embedding_backward_kernel, grid, THREADS, 0, args);
}

static qrun_status run_scatter_rows(qr_cuda_backend &cuda, const qr_scatter_rows_args &args, void *, qr_error *err) {
    const size_t n_bytes = static_cast<size_t>(args.n_dst_rows * args.dim) * sizeof(float);
    QR_RETURN_IF_ERROR(qr_device_zero(cuda.device, args.dst, n_bytes, err));
    return QR_LAUNCH(cuda.device, err, scatter_rows_kernel, blocks_for(args.n_rows * args.dim, THREADS), THREADS, 0,
                     args);
}

QR_CUDA_OP(embedding_backward, no_workspace<qr_embedding_backward_args>, run_embedding_backward)
QR_CUDA_OP(scatter_rows, no_workspace<qr_scatter_rows_args>, run_scatter_rows)
QR_CUDA_OP(embedding, no_workspace<qr_embedding_args>, run_embedding)
QR_CUDA_OP(gather_rows, no_workspace<qr_gather_rows_args>, run_gather_rows)
