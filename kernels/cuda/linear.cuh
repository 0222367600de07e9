/* What the variants of linear share. */
#ifndef QR_KERNELS_CUDA_LINEAR_CUH
#define QR_KERNELS_CUDA_LINEAR_CUH

#include "kernels/cuda/matrix.cuh"

/* Rows of x a launch takes: the y dimension of a grid ends at 65535. */
enum { LINEAR_LAUNCH_ROWS = 1 << 18 };

/* y[row, o] from the sum of products: the row's factor, the bias, and what was there, in this order. */
__device__ __forceinline__ void store_linear(const qr_linear_args &a, const matrix &w, int64_t row, int64_t o,
                                             float sum) {
    float *y = &a.y[row * a.y_stride + o];
    float value = w.format == QR_WEIGHT_INT8 ? sum * matrix_row_factor(w, o) : sum;
    if (a.bias != NULL) { value += a.bias[o]; }
    *y = a.accumulate ? *y + value : value;
}

/* x in BF16 or F16 (linear_mma.cu). */
qrun_status qr_cuda_linear_mma(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err);

#endif
