/* What the device can do at most: streaming reads, matrix products of BF16 and fused multiply-adds from registers. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/device.cuh"

enum { THREADS = 256, BLOCKS_PER_MULTIPROCESSOR = 8, MAX_ROUNDS = 50, MIN_ROUNDS = 3 };

#ifdef QR_SIMT
enum { READ_BYTES = 64 << 10, CHAIN = 4 };
#else
enum { READ_BYTES = 1 << 30, CHAIN = 4096 };
#endif

/* Independent sums a thread, so that no unit waits for its last result. */
enum { SUMS = 8, TILES = 4 };

/* The sum of everything read, so that nothing is left out. */
__global__ void read_kernel(const uint4 *src, int64_t n, unsigned *dst) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    unsigned sum = 0;
    for (int64_t i = global_thread(); i < n; i += step) { sum += src[i].x ^ src[i].y ^ src[i].z ^ src[i].w; }
    if (sum == 0x12345678U) { *dst = sum; }
}

__global__ void mma_peak_kernel(int rounds, float *dst) {
    const uint32_t one = 0x3F803F80U, a[4] = {one, one, one, one}, b[2] = {one, one};
    float d[TILES][4] = {};
    for (int i = 0; i < rounds; i++) {
#pragma unroll
        for (int t = 0; t < TILES; t++) { mma_bf16(d[t], a, b); }
    }
    float sum = 0.0F;
    for (int t = 0; t < TILES; t++) { sum += d[t][0] + d[t][1] + d[t][2] + d[t][3]; }
    if (sum < 0.0F) { *dst = sum; }
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

/* limits.cu's working memory: what is read, then room for a result. */
static qrun_status measure(qr_device *device, unsigned char *memory, double seconds, qr_backend_limits *limits,
                           qr_error *err) {
    const unsigned n_blocks = static_cast<unsigned>(qr_device_multiprocessors(device) * BLOCKS_PER_MULTIPROCESSOR);
    const double n_warps = static_cast<double>(n_blocks) * THREADS / WARP_LANES;
    unsigned char *result = memory + READ_BYTES;
    double best = 0.0;
    QR_RETURN_IF_ERROR(shortest_run(device, seconds / 3.0, &best, err, [&] {
        return QR_LAUNCH(device, err, read_kernel, dim3(n_blocks), THREADS, 0, reinterpret_cast<const uint4 *>(memory),
                         static_cast<int64_t>(READ_BYTES / sizeof(uint4)), reinterpret_cast<unsigned *>(result));
    }));
    limits->read_bytes_per_second = READ_BYTES / best;
    QR_RETURN_IF_ERROR(shortest_run(device, seconds / 3.0, &best, err, [&] {
        return QR_LAUNCH(device, err, mma_peak_kernel, dim3(n_blocks), THREADS, 0, static_cast<int>(CHAIN),
                         reinterpret_cast<float *>(result));
    }));
    limits->bf16_flops = n_warps * CHAIN * TILES * 2.0 * 16 * 8 * 16 / best;
    QR_RETURN_IF_ERROR(shortest_run(device, seconds / 3.0, &best, err, [&] {
        return QR_LAUNCH(device, err, fma_peak_kernel, dim3(n_blocks), THREADS, 0, static_cast<int>(CHAIN), 0.5F,
                         reinterpret_cast<float *>(result));
    }));
    limits->f32_flops = n_warps * WARP_LANES * CHAIN * SUMS * 2.0 / best;
    return QRUN_OK;
}

qrun_status qr_cuda_measure_limits(qr_backend *backend, double seconds, qr_backend_limits *limits, qr_error *err) {
    qr_device *device = qr_cuda(backend)->device;
    void *memory = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_memory_create(device, QR_MEMORY_DEVICE, READ_BYTES + 64, &memory, err));
    QR_TRY(qr_device_zero(device, memory, READ_BYTES + 64, err));
    QR_TRY(measure(device, static_cast<unsigned char *>(memory), seconds, limits, err));
out:
    qr_device_memory_destroy(device, QR_MEMORY_DEVICE, memory);
    return status;
}
