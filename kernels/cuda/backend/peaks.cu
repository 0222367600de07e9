/* What the device can do at most: streaming reads, matrix products of BF16 and fused multiply-adds from registers. The
 * products are measured with what reaches most where it is there: a large one by cuBLASLt, else Hopper's own from
 * shared memory, else mma.sync, which on Hopper is about six tenths of that. Their operands are random: products of
 * zeros take less power, and so are faster. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/cublaslt.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

enum { THREADS = 256, BLOCKS_PER_MULTIPROCESSOR = 8, MAX_ROUNDS = 50, MIN_ROUNDS = 3 };

#ifdef QR_SIMT
enum { READ_BYTES = 64 << 10, CHAIN = 4, SIDE = 64 };
#else
enum { READ_BYTES = 1 << 30, CHAIN = 4096, SIDE = 8192 };
#endif

/* Of a product of SIDE by SIDE: two operands of 16 bits, and the result, which is as large as both. */
static const int64_t SQUARE_BYTES = int64_t{SIDE} * SIDE * 2;
static const int64_t PRODUCT_BYTES = 4 * SQUARE_BYTES + QR_CUBLASLT_WORKSPACE_BYTES;
static const int64_t MEMORY_BYTES = (PRODUCT_BYTES < READ_BYTES ? int64_t{READ_BYTES} : PRODUCT_BYTES) + 64;

/* Independent sums a thread, so that no unit waits for its last result. */
enum { SUMS = 8, TILES = 4 };

/* The sum of everything read, so that nothing is left out. */
__global__ void read_kernel(const uint4 *src, int64_t n, unsigned *dst) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    unsigned sum = 0;
    for (int64_t i = global_thread(); i < n; i += step) { sum += src[i].x ^ src[i].y ^ src[i].z ^ src[i].w; }
    if (sum == 0x12345678U) { *dst = sum; }
}

/* Two BF16 from 1 to 2 of either sign, by the finaliser of MurmurHash3. */
static QR_DEVICE uint32_t random_bf16x2(uint32_t number) {
    uint32_t bits = (number + 1) * 0x9E3779B9U;
    bits = (bits ^ bits >> 16) * 0x85EBCA6BU;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35U;
    return ((bits ^ bits >> 16) & 0x807F807FU) | 0x3F803F80U;
}

__global__ void random_kernel(uint32_t *dst, int64_t n) {
    const int64_t i = global_thread();
    if (i < n) { dst[i] = random_bf16x2(static_cast<uint32_t>(i)); }
}

__global__ void mma_peak_kernel(int rounds, float *dst) {
    uint32_t a[4], b[2];
    float d[TILES][4] = {};
    for (int i = 0; i < 4; i++) { a[i] = random_bf16x2(threadIdx.x * 8 + static_cast<unsigned>(i)); }
    for (int i = 0; i < 2; i++) { b[i] = random_bf16x2(threadIdx.x * 8 + 4 + static_cast<unsigned>(i)); }
    for (int i = 0; i < rounds; i++) {
#pragma unroll
        for (int t = 0; t < TILES; t++) { mma_bf16(d[t], a, b); }
    }
    float sum = 0.0F;
    for (int t = 0; t < TILES; t++) { sum += d[t][0] + d[t][1] + d[t][2] + d[t][3]; }
    if (sum < 0.0F) { *dst = sum; }
}

enum { WGMMA_BLOCKS = 1, WGMMA_STEPS = 4 }; /* blocks of THREADS a multiprocessor; products of a tile */

/* Each of two warpgroups multiplies what is in its registers by a tile that both read. */
__global__ void __launch_bounds__(THREADS, WGMMA_BLOCKS) wgmma_peak_kernel(int rounds, float *dst) {
#if QR_HAS_WGMMA
    uint32_t *tile = wgmma_shared_memory<uint32_t>(), a[WGMMA_STEPS][4];
    float d[WGMMA_TILES][4] = {}, sum = 0.0F;
    for (unsigned i = threadIdx.x; i < WGMMA_TILE_BYTES / sizeof *tile; i += THREADS) { tile[i] = random_bf16x2(i); }
#pragma unroll
    for (int i = 0; i < WGMMA_STEPS * 4; i++) {
        a[i / 4][i % 4] = random_bf16x2(threadIdx.x * 16 + static_cast<unsigned>(i));
    }
    wgmma_show();
    __syncthreads();
    const wgmma_tiles tiles = wgmma_tiles_at(tile);
    for (int round = 0; round < rounds; round++) {
        wgmma_begin();
#pragma unroll
        for (unsigned i = 0; i < WGMMA_STEPS; i++) { wgmma_bf16(d, a[i], tiles, 0, i); }
        wgmma_end();
        wgmma_wait<0>();
    }
    for_each_sum<WGMMA_TILES>([&](int n, int i) { sum += d[n][i]; });
    if (sum == 0x1p100F) { *dst = sum; }
#endif
}

__global__ void fma_peak_kernel(int rounds, float x, float *dst) {
    float sums[SUMS] = {};
    for (int i = 0; i < rounds; i++) {
#pragma unroll
        for (int j = 0; j < SUMS; j++) { sums[j] = fmaf(x, sums[j], x); }
    }
    float sum = 0.0F;
    for (int j = 0; j < SUMS; j++) { sum += sums[j]; }
    if (sum < 0.0F) { *dst = sum; }
}

/* Shortest of the runs that fit into `seconds`. */
template <typename F>
static qrun_status shortest_run(qr_device *device, double seconds, double *best, qr_error *err, F launch) {
    double total = 0.0;
    *best = 1e30;
    for (int round = 0; round < MIN_ROUNDS || (round < MAX_ROUNDS && total < seconds); round++) {
        double taken = 0.0;
        QR_RETURN_IF_ERROR(qr_device_timer_start(device, err));
        QR_RETURN_IF_ERROR(launch());
        QR_RETURN_IF_ERROR(qr_device_timer_stop(device, &taken, err));
        total += taken;
        if (taken < *best) { *best = taken; }
    }
    return QRUN_OK;
}

static qrun_status measure_cublaslt(qr_device *device, unsigned char *memory, double seconds, double *flops,
                                    qr_error *err) {
    const int64_t n_words = 2 * SQUARE_BYTES / 4;
    double best = 0.0;
    qr_cublaslt_product product = {};
    product.dtype = QR_DTYPE_BF16;
    product.m = product.n = product.k = SIDE;
    product.a = {memory, SIDE, false};
    product.b = {memory + SQUARE_BYTES, SIDE, true};
    product.c = reinterpret_cast<float *>(memory + 2 * SQUARE_BYTES);
    product.c_stride = SIDE;
    if (!qr_cublaslt_takes(device, &product)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(QR_LAUNCH(device, err, random_kernel, blocks_for(n_words, THREADS), THREADS, 0,
                                 reinterpret_cast<uint32_t *>(memory), n_words));
    const qrun_status status = shortest_run(device, seconds, &best, err, [&] {
        return qr_cublaslt_multiply(device, &product, memory + 4 * SQUARE_BYTES, err);
    });
    if (status == QR_CUBLASLT_REFUSED) { return QRUN_OK; }
    *flops = 2.0 * SIDE * SIDE * SIDE / best;
    return status;
}

static qrun_status measure_wgmma(qr_device *device, float *result, double seconds, double *flops, qr_error *err) {
    const unsigned n_blocks = static_cast<unsigned>(qr_device_multiprocessors(device) * WGMMA_BLOCKS);
    double best = 0.0;
    QR_RETURN_IF_ERROR(shortest_run(device, seconds, &best, err, [&] {
        return QR_LAUNCH(device, err, wgmma_peak_kernel, dim3(n_blocks), THREADS, WGMMA_TILE_BYTES + WGMMA_ALIGNMENT,
                         static_cast<int>(CHAIN), result);
    }));
    *flops = 2.0 * n_blocks * (THREADS / 128) * CHAIN * WGMMA_STEPS * WGMMA_OUTPUTS * WGMMA_COLUMNS * 16 / best;
    return QRUN_OK;
}

static qrun_status measure_mma(qr_device *device, float *result, double seconds, double *flops, qr_error *err) {
    const unsigned n_blocks = static_cast<unsigned>(qr_device_multiprocessors(device) * BLOCKS_PER_MULTIPROCESSOR);
    double best = 0.0;
    QR_RETURN_IF_ERROR(shortest_run(device, seconds, &best, err, [&] {
        return QR_LAUNCH(device, err, mma_peak_kernel, dim3(n_blocks), THREADS, 0, static_cast<int>(CHAIN), result);
    }));
    *flops = static_cast<double>(n_blocks) * THREADS / WARP_LANES * CHAIN * TILES * 2.0 * 16 * 8 * 16 / best;
    return QRUN_OK;
}

/* The most that any of them reaches. */
static qrun_status measure_products(qr_cuda_backend *cuda, unsigned char *memory, double seconds, double *flops,
                                    qr_error *err) {
    float *result = reinterpret_cast<float *>(memory);
    double of_cublaslt = 0.0, of_wgmma = 0.0, of_mma = 0.0;
    QR_RETURN_IF_ERROR(measure_mma(cuda->device, result, seconds / 3.0, &of_mma, err));
    QR_RETURN_IF_ERROR(measure_cublaslt(cuda->device, memory, seconds / 3.0, &of_cublaslt, err));
    if (cuda->has_wgmma) { QR_RETURN_IF_ERROR(measure_wgmma(cuda->device, result, seconds / 3.0, &of_wgmma, err)); }
    *flops = fmax(of_mma, fmax(of_cublaslt, of_wgmma));
    return QRUN_OK;
}

/* peaks.cu's working memory: what is read, then room for a result. */
static qrun_status measure(qr_cuda_backend *cuda, unsigned char *memory, double seconds, qr_backend_peaks *peaks,
                           qr_error *err) {
    qr_device *device = cuda->device;
    const unsigned n_blocks = static_cast<unsigned>(qr_device_multiprocessors(device) * BLOCKS_PER_MULTIPROCESSOR);
    const double n_warps = static_cast<double>(n_blocks) * THREADS / WARP_LANES;
    unsigned char *result = memory + MEMORY_BYTES - 64;
    double best = 0.0;
    QR_RETURN_IF_ERROR(shortest_run(device, seconds / 3.0, &best, err, [&] {
        return QR_LAUNCH(device, err, read_kernel, dim3(n_blocks), THREADS, 0, reinterpret_cast<const uint4 *>(memory),
                         static_cast<int64_t>(READ_BYTES / sizeof(uint4)), reinterpret_cast<unsigned *>(result));
    }));
    peaks->read_bytes_per_second = READ_BYTES / best;
    QR_RETURN_IF_ERROR(measure_products(cuda, memory, seconds / 3.0, &peaks->bf16_flops, err));
    QR_RETURN_IF_ERROR(shortest_run(device, seconds / 3.0, &best, err, [&] {
        return QR_LAUNCH(device, err, fma_peak_kernel, dim3(n_blocks), THREADS, 0, static_cast<int>(CHAIN), 0.5F,
                         reinterpret_cast<float *>(result));
    }));
    peaks->f32_flops = n_warps * WARP_LANES * CHAIN * SUMS * 2.0 / best;
    return QRUN_OK;
}

qrun_status qr_cuda_measure_peaks(qr_backend *backend, double seconds, qr_backend_peaks *peaks, qr_error *err) {
    qr_device *device = qr_cuda(backend)->device;
    void *memory = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_memory_create(device, QR_MEMORY_DEVICE, MEMORY_BYTES, &memory, err));
    QR_TRY(qr_device_zero(device, memory, MEMORY_BYTES, err));
    QR_TRY(measure(qr_cuda(backend), static_cast<unsigned char *>(memory), seconds, peaks, err));
out:
    qr_device_memory_destroy(device, QR_MEMORY_DEVICE, memory);
    return status;
}
