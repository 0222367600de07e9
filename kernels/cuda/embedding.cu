/* embedding and gather_rows: a thread an element, neighbours in a row. */
#include "kernels/cuda/matrix.cuh"

enum { THREADS = 256 };

/* INT8: dequantised as quant/int8.h does. */
static __device__ __forceinline__ float table_element(const matrix &table, int64_t row, int64_t col) {
    const float code = matrix_code(table, row * table.cols + col);
    return table.format == QR_WEIGHT_INT8 ? code * table.scales[row] * (1.0F / 127.0F) : code;
}

__global__ void embedding_kernel(qr_embedding_args a, matrix table) {
    const int64_t i = global_thread();
    if (i >= a.n_tokens * table.cols) { return; }
    const float value = table_element(table, a.ids[i / table.cols], i % table.cols) * a.scale;
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

QR_CUDA_OP(embedding, no_workspace<qr_embedding_args>, run_embedding)
QR_CUDA_OP(gather_rows, no_workspace<qr_gather_rows_args>, run_gather_rows)
