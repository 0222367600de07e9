/* What every kernel here is written with: the launch, and the warp, matrix and copy primitives that tests/simt executes
 * on the processor (QR_SIMT). A kernel uses threadIdx, blockIdx, blockDim, gridDim, __syncthreads and the functions of
 * this file, and nothing else of CUDA's.
 *
 * Discipline, so that kernels are right on the GPU and testable without one:
 *   - shared memory is the launch's (shared_memory<T>()), never static;
 *   - collectives are called by all 32 lanes of a warp; a warp's lanes leave a kernel together where one follows;
 *   - compiled with -fmad=false: products and sums round as written, fmaf where a fused one is meant, so the bits of a
 *     result are those that tests/simt computes but for the functions of libm and the tensor cores' sums. */
#ifndef QR_KERNELS_CUDA_DEVICE_CUH
#define QR_KERNELS_CUDA_DEVICE_CUH

#include <stdint.h>
#include <string.h>

#include "kernels/cuda/device/api.h"

#ifdef QR_SIMT
#include "simt.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

extern "C" {
#include "base/half.h"
#include "base/sizes.h"
}

enum { WARP_LANES = 32 };

/* --- Launching --- */

/* Starts kernel on a grid of blocks of n_threads (a multiple of 32) with shared_bytes of shared memory each. */
#define QR_LAUNCH(device, err, kernel, grid, n_threads, shared_bytes, ...) \
    qr_launch(device, #kernel, kernel, {grid, n_threads, shared_bytes, false}, err, __VA_ARGS__)

/* The same for a kernel that may begin while the one before it still runs, where the GPU can do that (programmatic
 * dependent launch, sm_90). What such a kernel does before await_previous() runs beside the end of those before it,
 * back to the last one that was launched the plain way, and may touch nothing that they write. Every thread calls
 * await_previous(), once, before it returns: then all that was launched before is done and seen, and so it is for
 * whoever comes after this kernel. */
#define QR_LAUNCH_EARLY(device, err, kernel, grid, n_threads, shared_bytes, ...) \
    qr_launch(device, #kernel, kernel, {grid, n_threads, shared_bytes, true}, err, __VA_ARGS__)

struct qr_launch_shape {
    dim3 grid;
    unsigned n_threads;
    size_t shared_bytes;
    bool early;
};

#ifdef QR_SIMT

qrun_status qr_device_use(qr_device *device, qr_error *err); /* fails once the device is lost */
bool qr_device_is_recording(const qr_device *device);
void qr_device_keep(qr_device *device, std::function<qrun_status(qr_error *err)> call); /* of a recording */

template <typename... P, typename... A>
qrun_status qr_launch(qr_device *device, const char *name, void (*kernel)(P...), const qr_launch_shape &shape,
                      qr_error *err, const A &...args) {
    if (qr_device_is_recording(device)) {
        qr_device_keep(device, [=](qr_error *why) { return qr_launch(device, name, kernel, shape, why, args...); });
        return QRUN_OK;
    }
    const qrun_status status = qr_device_use(device, err);
    if (status != QRUN_OK) { return status; }
    simt::launch(name, shape.grid, dim3(shape.n_threads), shape.shared_bytes, shape.early, [&] { kernel(args...); });
    return QRUN_OK;
}

inline void await_previous() { simt::await_previous(); }
inline void admit_next() {}

template <typename T> T *shared_memory() { return reinterpret_cast<T *>(simt::now.shared); }

#else

qrun_status qr_device_launch_prepare(qr_device *device, const void *kernel, size_t shared_bytes, qr_error *err);
qrun_status qr_device_launch_check(const qr_device *device, cudaError_t result, const char *kernel, qr_error *err);
bool qr_device_launches_early(const qr_device *device);
cudaStream_t qr_device_stream(const qr_device *device);

template <typename... P, typename... A>
qrun_status qr_launch(qr_device *device, const char *name, void (*kernel)(P...), const qr_launch_shape &shape,
                      qr_error *err, const A &...args) {
    const qrun_status status =
        qr_device_launch_prepare(device, reinterpret_cast<const void *>(kernel), shape.shared_bytes, err);
    if (status != QRUN_OK) { return status; }
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = shape.grid;
    config.blockDim = dim3(shape.n_threads);
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = qr_device_stream(device);
    config.attrs = &early;
    config.numAttrs = shape.early && qr_device_launches_early(device) ? 1 : 0;
    return qr_device_launch_check(device, cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), name, err);
}

/* In a kernel that is launched early: see there. In any other: nothing. */
__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The kernel behind this one, if it is launched early, may begin once every block has come here or has ended. Nothing
 * that is computed changes by it. */
__device__ __forceinline__ void admit_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

template <typename T> __device__ __forceinline__ T *shared_memory() {
    extern __shared__ __align__(16) unsigned char qr_dynamic_shared[];
    return reinterpret_cast<T *>(qr_dynamic_shared);
}

#endif

/* The number of this thread in a grid of one-dimensional blocks. */
__device__ __forceinline__ int64_t global_thread() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/* Blocks of n_threads that cover n elements, one each. */
static inline dim3 blocks_for(int64_t n, unsigned n_threads) {
    return dim3(static_cast<unsigned>(qr_ceil_div(n, n_threads)));
}

/* --- Warps --- */

__device__ __forceinline__ unsigned lane_index() { return threadIdx.x % WARP_LANES; }
__device__ __forceinline__ unsigned warp_index() { return threadIdx.x / WARP_LANES; }

#ifdef QR_SIMT

inline void warp_sync() { simt::exchange("warp_sync", nullptr, 0); }
template <typename T> T warp_shuffle(T value, unsigned lane) { return simt::exchange("shuffle", value)[lane]; }
template <typename T> T warp_shuffle_xor(T value, unsigned mask) {
    return simt::exchange("shuffle_xor", value)[lane_index() ^ mask];
}
template <typename T> T warp_sum(T value) {
    return simt::reduce("sum", value, [](T a, T b) { return a + b; });
}
inline bool warp_all(bool value) {
    return simt::reduce("all", value, [](bool a, bool b) { return a && b; });
}
inline float warp_max(float value) {
    return simt::reduce("max", value, [](float a, float b) { return fmaxf(a, b); });
}

#else

__device__ __forceinline__ void warp_sync() { __syncwarp(); }
template <typename T> __device__ __forceinline__ T warp_shuffle(T value, unsigned lane) {
    return __shfl_sync(0xFFFFFFFFU, value, static_cast<int>(lane));
}
template <typename T> __device__ __forceinline__ T warp_shuffle_xor(T value, unsigned mask) {
    return __shfl_xor_sync(0xFFFFFFFFU, value, static_cast<int>(mask));
}
__device__ __forceinline__ bool warp_all(bool value) { return __all_sync(0xFFFFFFFFU, value) != 0; }
/* Butterflies: every lane gets the same bits, in an order that is always the same. */
template <typename T> __device__ __forceinline__ T warp_sum(T value) {
    for (unsigned mask = WARP_LANES / 2; mask > 0; mask /= 2) { value += warp_shuffle_xor(value, mask); }
    return value;
}
__device__ __forceinline__ float warp_max(float value) {
    for (unsigned mask = WARP_LANES / 2; mask > 0; mask /= 2) { value = fmaxf(value, warp_shuffle_xor(value, mask)); }
    return value;
}

#endif

/* The sum over a block, in every thread; `scratch` is shared memory for one T a warp. All threads call it. */
template <typename T> __device__ __forceinline__ T block_sum(T value, T *scratch) {
    const T of_warp = warp_sum(value);
    if (lane_index() == 0) { scratch[warp_index()] = of_warp; }
    __syncthreads();
    T sum = scratch[0];
    for (unsigned w = 1; w < blockDim.x / WARP_LANES; w++) { sum += scratch[w]; }
    __syncthreads();
    return sum;
}

__device__ __forceinline__ float block_max(float value, float *scratch) {
    const float of_warp = warp_max(value);
    if (lane_index() == 0) { scratch[warp_index()] = of_warp; }
    __syncthreads();
    float largest = scratch[0];
    for (unsigned w = 1; w < blockDim.x / WARP_LANES; w++) { largest = fmaxf(largest, scratch[w]); }
    __syncthreads();
    return largest;
}

/* The counter's value before it grew by one. Which thread gets which is open, so what is done with them must not depend
 * on it. Shared memory. */
__device__ __forceinline__ unsigned count_up(unsigned *counter) {
#ifdef QR_SIMT
    return (*counter)++;
#else
    return atomicAdd(counter, 1U);
#endif
}

/* --- Numbers of 16 bits --- */

__device__ __forceinline__ float f32_from_bits(uint32_t bits) { return __uint_as_float(bits); }

__device__ __forceinline__ float bf16_to_f32(uint16_t value) {
    return __uint_as_float(static_cast<uint32_t>(value) << 16);
}

#ifdef QR_SIMT
inline uint16_t f32_to_bf16(float value) { return qr_f32_to_bf16(value); }
inline float f16_to_f32(uint16_t value) { return qr_f16_to_f32(value); }
inline uint16_t f32_to_f16(float value) { return qr_f32_to_f16(value); }
#else
__device__ __forceinline__ uint16_t f32_to_bf16(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
__device__ __forceinline__ float f16_to_f32(uint16_t value) { return __half2float(__ushort_as_half(value)); }
__device__ __forceinline__ uint16_t f32_to_f16(float value) { return __half_as_ushort(__float2half_rn(value)); }
#endif

__device__ __forceinline__ uint32_t pack16(uint16_t low, uint16_t high) {
    return static_cast<uint32_t>(high) << 16 | low;
}

/* Two F32 rounded to BF16, in one register. */
__device__ __forceinline__ uint32_t f32_to_bf16x2(float low, float high) {
#ifdef QR_SIMT
    return pack16(f32_to_bf16(low), f32_to_bf16(high));
#else
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return pack16(__bfloat16_as_ushort(both.x), __bfloat16_as_ushort(both.y));
#endif
}

__device__ __forceinline__ uint32_t f32_to_f16x2(float low, float high) {
#ifdef QR_SIMT
    return pack16(f32_to_f16(low), f32_to_f16(high));
#else
    const __half2 both = __floats2half2_rn(low, high);
    return pack16(__half_as_ushort(both.x), __half_as_ushort(both.y));
#endif
}

/* Four bytes out of the eight of low (0 to 3) and high (4 to 7): byte i of the result is the one that bits 4i to 4i + 2
 * of the selector name; bit 4i + 3 is 0. */
__device__ __forceinline__ uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
#ifdef QR_SIMT
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    uint32_t result = 0;
    for (unsigned i = 0; i < 4; i++) {
        result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7U) * 8 & 0xFFU) << 8 * i;
    }
    return result;
#else
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
#endif
}

/* Two BF16 at once: a · b + c, rounded once. */
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
#ifdef QR_SIMT
    const auto one = [&](unsigned shift) {
        const auto number = [&](uint32_t two) { return bf16_to_f32(static_cast<uint16_t>(two >> shift)); };
        return f32_to_bf16(fmaf(number(a), number(b), number(c)));
    };
    return pack16(one(0), one(16));
#else
    uint32_t result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
#endif
}

/* Bytes `first` and `second` of a word, INT8, as two BF16: exact. With b the low seven bits of x, 128 + b is a BF16
 * whose last digit is 1, and x is that less 128, or less 256 where x is negative. */
template <unsigned first, unsigned second> __device__ __forceinline__ uint32_t int8_to_bf16x2(uint32_t word) {
    const uint32_t bytes = permute_bytes(word, 0, first | 4U << 4 | second << 8 | 4U << 12), one = 0x3F803F80U;
    const uint32_t shifted = (bytes & 0x007F007FU) | 0x43004300U, less = (bytes & 0x00800080U) | 0xC300C300U;
    return fma_bf16x2(shifted, one, less);
}

/* Loads of what is read once: it leaves no trace in the first cache, which is x's. Addresses are multiples of the
 * size. */
__device__ __forceinline__ uint2 load_once_8(const void *src) {
#ifdef QR_SIMT
    return *static_cast<const uint2 *>(src);
#else
    uint2 value;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(src));
    return value;
#endif
}

__device__ __forceinline__ uint4 load_once_16(const void *src) {
#ifdef QR_SIMT
    return *static_cast<const uint4 *>(src);
#else
    uint4 value;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(src));
    return value;
#endif
}

/* Element `index` of an array of F32, BF16 or F16. */
__device__ __forceinline__ float load_as_f32(const void *src, qr_dtype dtype, int64_t index) {
    switch (dtype) {
        case QR_DTYPE_BF16: return bf16_to_f32(static_cast<const uint16_t *>(src)[index]);
        case QR_DTYPE_F16: return f16_to_f32(static_cast<const uint16_t *>(src)[index]);
        default: return static_cast<const float *>(src)[index];
    }
}

__device__ __forceinline__ void store_from_f32(void *dst, qr_dtype dtype, int64_t index, float value) {
    switch (dtype) {
        case QR_DTYPE_BF16: static_cast<uint16_t *>(dst)[index] = f32_to_bf16(value); break;
        case QR_DTYPE_F16: static_cast<uint16_t *>(dst)[index] = f32_to_f16(value); break;
        default: static_cast<float *>(dst)[index] = value; break;
    }
}

/* --- Matrix products of a warp: d [16, 8] += a [16, 16] · b [16, 8], fragments as PTX lays them out for
 * mma.m16n8k16: with g = lane / 4 and t = lane % 4, a[0] holds row g, columns 2t and 2t + 1, a[1] row g + 8, a[2] and
 * a[3] the same rows, columns + 8; b[0] column g, rows 2t and 2t + 1, b[1] rows + 8; d[0] and d[1] row g, columns 2t
 * and 2t + 1, d[2] and d[3] row g + 8. --- */

#ifdef QR_SIMT
inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) { simt::mma_bf16_16x8x16(d, a, b); }
inline void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) { simt::mma_f16_16x8x16(d, a, b); }
#else
#define QR_MMA(type)                                                                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "      \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) { QR_MMA("bf16"); }
__device__ __forceinline__ void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) { QR_MMA("f16"); }
#undef QR_MMA
#endif

/* Four matrices [8, 8] of 16-bit elements from shared memory, as the fragments above want them (ldmatrix). Lane i gives
 * the address of row i % 8 of matrix i / 8: 8 elements, at a multiple of 16 bytes. r[i] is then of matrix i row g,
 * columns 2t and 2t + 1; of load_matrices_transposed, column g, rows 2t and 2t + 1. */
#ifdef QR_SIMT
inline void load_matrices(uint32_t r[4], const void *row) { simt::load_matrices(r, row, false); }
inline void load_matrices_transposed(uint32_t r[4], const void *row) { simt::load_matrices(r, row, true); }
#else
#define QR_LDMATRIX(variant)                                                                     \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" variant ".shared.b16 {%0, %1, %2, %3}, [%4];\n" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                \
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))                     \
                 : "memory")
__device__ __forceinline__ void load_matrices(uint32_t r[4], const void *row) { QR_LDMATRIX(""); }
__device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *row) { QR_LDMATRIX(".trans"); }
#undef QR_LDMATRIX
#endif

/* 2^x within 2^-22 of itself; results below 2^-126 are 0. */
__device__ __forceinline__ float exp2_flushed(float x) {
#ifdef QR_SIMT
    return x < -126.0F ? 0.0F : exp2f(x);
#else
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#endif
}

/* 1 / x within 2^-23 of itself; 0 of what is too large for that. */
__device__ __forceinline__ float reciprocal_flushed(float x) {
#ifdef QR_SIMT
    return fabsf(x) > 0x1p126F ? 0.0F : 1.0F / x;
#else
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#endif
}

/* --- Copies from global to shared memory that the thread does not wait for --- */

/* 16 bytes, both addresses multiples of 16; those behind n_bytes are zeros (n_bytes 0 reads nothing). */
__device__ __forceinline__ void copy_async_16(void *shared, const void *global, unsigned n_bytes) {
#ifdef QR_SIMT
    simt::copy_async(shared, global, 16, n_bytes);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(global), "r"(n_bytes)
                 : "memory");
#endif
}

/* The same of 8 bytes. */
__device__ __forceinline__ void copy_async_8(void *shared, const void *global, unsigned n_bytes) {
#ifdef QR_SIMT
    simt::copy_async(shared, global, 8, n_bytes);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(address), "l"(global), "r"(n_bytes) : "memory");
#endif
}

__device__ __forceinline__ void copy_async_commit() {
#ifdef QR_SIMT
    simt::copy_async_commit();
#else
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

/* This thread's copies but those of the newest n_pending groups have arrived; a barrier then shows them to others. */
template <unsigned n_pending> __device__ __forceinline__ void copy_async_wait() {
#ifdef QR_SIMT
    simt::copy_async_wait(n_pending);
#else
    asm volatile("cp.async.wait_group %0;\n" ::"n"(n_pending) : "memory");
#endif
}

#endif
