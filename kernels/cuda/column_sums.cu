/* The second stage of sums over rows. */
#include "kernels/cuda/column_sums.cuh"

__global__ void add_chunks_kernel(float *dst, const float *sums, int64_t n_chunks, int64_t dim, bool aligned) {
    for_each_vec4(1, dim, [&](int64_t, int64_t j) {
        float total[VEC4] = {}, x[VEC4];
        for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
            load_vec4(x, sums + chunk * dim, j, dim, aligned);
            for (int k = 0; k < VEC4; k++) { total[k] += x[k]; }
        }
        load_vec4(x, dst, j, dim, aligned);
        for (int k = 0; k < VEC4; k++) { x[k] += total[k]; }
        store_vec4(dst, j, dim, aligned, x);
    });
}

qrun_status qr_cuda_add_chunks(qr_cuda_backend &cuda, float *dst, const float *sums, int64_t n_chunks, int64_t dim,
                               qr_error *err) {
    const bool aligned = vec4_aligned(dst, dim) && vec4_aligned(sums, dim);
    return QR_LAUNCH_VEC4(cuda.device, err, add_chunks_kernel, 1, dim, dst, sums, n_chunks, dim, aligned);
}
