/* Products of matrices in F32, for gradients that must be as exact as their sums: c [m, n] += alpha · a [m, k] · b
 * [k, n], or = where it is not accumulated. Operands are views with two strides, so a transposed one costs nothing to
 * say. Sums run over k in order, whatever m and n are. */
#ifndef QR_KERNELS_CUDA_PRODUCT_CUH
#define QR_KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/device.cuh"

/* Element (row, col) at row · row_stride + col · col_stride. */
struct operand {
    const void *data;
    qr_dtype dtype;
    int64_t row_stride, col_stride;
};

static inline operand operand_f32(const float *data, int64_t row_stride, int64_t col_stride) {
    return {data, QR_DTYPE_F32, row_stride, col_stride};
}

struct product {
    operand a, b;
    int64_t m, n, k;
    float *c; /* rows c_stride apart */
    int64_t c_stride;
    float alpha;
    bool accumulate;
};

/* product.cu */
qrun_status qr_cuda_product(qr_cuda_backend &cuda, const product &p, qr_error *err);

#endif
