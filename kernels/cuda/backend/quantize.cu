/* Quantisation and conversion of weights while they are loaded, with the bits of quant/ (NaN stays NaN; which one it is
 * may differ in BF16 and F16). The bus brings an element in about the time that one multiprocessor takes for it here,
 * so nothing is vectorised. */
#include "kernels/cuda/backend/staging.h"
#include "kernels/cuda/device/device.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP_LANES };

/* The code nearest to x: as many midpoints as x is above. */
static QR_DEVICE unsigned encode_nf4(float x, const float *midpoints) {
    unsigned code = 0;
#pragma unroll
    for (int i = 0; i < 15; i++) { code += x > midpoints[i] ? 1 : 0; }
    return code;
}

/* A warp a block; a lane makes whole bytes. The spare nibble of an odd n is 7. */
static __global__ void __launch_bounds__(THREADS)
    quantize_nf4(const void *src, qr_dtype dtype, int64_t n, int block, const qr_cuda_tables *tables, uint8_t *codes,
                 float *absmax) {
    const int64_t number = global_thread() / WARP_LANES, first = number * block;
    if (first >= n) { return; }
    const int64_t end = first + block < n ? first + block : n;
    float midpoints[15], largest = 0.0F;
#pragma unroll
    for (int i = 0; i < 15; i++) { midpoints[i] = tables->nf4_midpoints[i]; }
    for (int64_t i = first + lane_index(); i < end; i += WARP_LANES) {
        largest = fmaxf(largest, fabsf(load_as_f32(src, dtype, i)));
    }
    largest = warp_max(largest);
    const float inverse = largest > 0.0F ? 1.0F / largest : 0.0F;
    if (lane_index() == 0) { absmax[number] = largest; }
    for (int64_t i = first + 2 * lane_index(); i < end; i += 2 * WARP_LANES) {
        const unsigned high = encode_nf4(load_as_f32(src, dtype, i) * inverse, midpoints);
        const unsigned low = i + 1 < end ? encode_nf4(load_as_f32(src, dtype, i + 1) * inverse, midpoints) : 7;
        codes[i / 2] = static_cast<uint8_t>(high << 4 | low);
    }
}

static QR_DEVICE float load_as_f16(const void *src, qr_dtype dtype, int64_t index) {
    return f16_to_f32(f32_to_f16(load_as_f32(src, dtype, index)));
}

/* A block a row. */
static __global__ void __launch_bounds__(THREADS)
    quantize_int8(const void *src, qr_dtype dtype, int64_t cols, int8_t *codes, float *row_absmax) {
    const int64_t first = blockIdx.x * cols, end = first + cols;
    float largest = 0.0F;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        largest = fmaxf(largest, fabsf(load_as_f16(src, dtype, i)));
    }
    largest = block_max(largest, shared_memory<float>());
    const float scale = largest > 0.0F ? 127.0F * (1.0F / largest) : 0.0F;
    if (threadIdx.x == 0) { row_absmax[blockIdx.x] = largest; }
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        const float scaled = load_as_f16(src, dtype, i) * scale;
        codes[i] = static_cast<int8_t>(scaled == scaled ? rintf(scaled) : 0.0F);
    }
}

static __global__ void __launch_bounds__(THREADS)
    convert_elements(const void *src, qr_dtype dtype, int64_t n, void *dst, qr_dtype dst_dtype) {
    const int64_t i = global_thread();
    if (i < n) { store_from_f32(dst, dst_dtype, i, load_as_f32(src, dtype, i)); }
}

/* --- Host --- */

static qr_dtype dtype_of(qr_weight_format format) {
    return format == QR_WEIGHT_F32 ? QR_DTYPE_F32 : format == QR_WEIGHT_F16 ? QR_DTYPE_F16 : QR_DTYPE_BF16;
}

qrun_status qr_cuda_quantize(qr_cuda_backend *cuda, qr_weight *weight, int64_t first, int64_t n, qr_dtype dtype,
                             const void *src, float *absmax, qr_error *err) {
    const qr_weight_desc *desc = &weight->desc;
    unsigned char *data = static_cast<unsigned char *>(weight->data);
    float *scales = reinterpret_cast<float *>(data + qr_cuda_layout_of(desc).scales_offset);
    if (desc->format == QR_WEIGHT_INT8) {
        return QR_LAUNCH(cuda->device, err, quantize_int8, dim3(static_cast<unsigned>(n / desc->cols)), THREADS,
                         WARPS * sizeof(float), src, dtype, desc->cols, reinterpret_cast<int8_t *>(data) + first,
                         scales + first / desc->cols);
    }
    if (qr_weight_is_nf4(desc->format)) {
        float *block_absmax = desc->format == QR_WEIGHT_NF4 ? scales + first / desc->block : absmax;
        return QR_LAUNCH(cuda->device, err, quantize_nf4, blocks_for(qr_ceil_div(n, desc->block), WARPS), THREADS, 0,
                         src, dtype, n, desc->block, cuda->tables, data + first / 2, block_absmax);
    }
    const qr_dtype to = dtype_of(desc->format);
    return QR_LAUNCH(cuda->device, err, convert_elements, blocks_for(n, THREADS), THREADS, 0, src, dtype, n,
                     data + static_cast<size_t>(first) * qr_dtype_bytes(to), to);
}
