/* What every kernel here is written with: the launch, and on top of intrinsics.cuh sums of a block and conversions. A
 * kernel uses threadIdx, blockIdx, blockDim, gridDim, __syncthreads and these two headers, and nothing else of CUDA's:
 * tests/simt (QR_SIMT) then executes it on the CPU.
 *
 * Discipline, so that kernels are right on the GPU and testable without one:
 *   - shared memory is the launch's (shared_memory<T>()), never static;
 *   - collectives are called by all 32 lanes of a warp; a warp's lanes leave a kernel together where one follows;
 *   - compiled with -fmad=false: products and sums round as written, fmaf where a fused one is meant. So tests/simt
 *     computes the same bits, except for the functions of libm and the sums inside tensor cores. */
#ifndef QR_KERNELS_CUDA_DEVICE_CUH
#define QR_KERNELS_CUDA_DEVICE_CUH

#include <stdint.h>
#include <string.h>

#include "kernels/cuda/device/api.h"

#ifdef QR_SIMT
#include "simt.h"
#else
#include <cuda_runtime.h>
#endif

#define QR_DEVICE __device__ __forceinline__
#define QR_HOST_DEVICE static __host__ __device__ inline
#define QR_DEVICE_CALLED static __device__ __noinline__ /* compiled once a file, not once a call */

extern "C" {
#include "base/half.h"
#include "base/sizes.h"
}

enum { WARP_LANES = 32 };

/* --- Launching --- */

/* Starts kernel on a grid of blocks of n_threads (a multiple of 32) with shared_bytes of shared memory each. */
#define QR_LAUNCH(device, err, kernel, grid, n_threads, shared_bytes, ...) \
    qr_launch(device, #kernel, kernel, {grid, n_threads, shared_bytes, false, 1}, err, __VA_ARGS__)

/* The same in clusters of so many blocks along x, which run at the same time and reach each other's shared memory
 * (sm_90). */
#define QR_LAUNCH_CLUSTERS(device, err, kernel, cluster, grid, n_threads, shared_bytes, ...) \
    qr_launch(device, #kernel, kernel, {grid, n_threads, shared_bytes, false, cluster}, err, __VA_ARGS__)

/* The same for a kernel that may begin while the one before it still runs, where the GPU can do that (programmatic
 * dependent launch, sm_90). Before await_previous() it may run at the same time as the kernels back to the last one
 * launched by QR_LAUNCH, and must not touch what they write. Every thread calls await_previous() once before it
 * returns: then all earlier launches are complete and visible, also for the kernels after this one. */
#define QR_LAUNCH_EARLY(device, err, kernel, grid, n_threads, shared_bytes, ...) \
    qr_launch(device, #kernel, kernel, {grid, n_threads, shared_bytes, true, 1}, err, __VA_ARGS__)

struct qr_launch_shape {
    dim3 grid;
    unsigned n_threads;
    size_t shared_bytes;
    bool early;
    unsigned cluster; /* blocks */
};

QR_DEVICE unsigned lane_index() { return threadIdx.x % WARP_LANES; }
QR_DEVICE unsigned warp_index() { return threadIdx.x / WARP_LANES; }

QR_DEVICE float f32_from_bits(uint32_t bits) { return __uint_as_float(bits); }
QR_DEVICE uint32_t f32_to_bits(float value) { return __float_as_uint(value); }

QR_DEVICE float bf16_to_f32(uint16_t value) { return __uint_as_float(static_cast<uint32_t>(value) << 16); }

QR_DEVICE uint32_t pack16(uint16_t low, uint16_t high) { return static_cast<uint32_t>(high) << 16 | low; }

QR_DEVICE uint4 pack_words(const uint32_t words[4]) { return make_uint4(words[0], words[1], words[2], words[3]); }

QR_DEVICE void unpack_words(uint32_t words[4], const uint4 &v) {
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}

#ifdef QR_SIMT
#include "intrinsics_simt.h"
#else
#include "kernels/cuda/device/intrinsics.cuh"
#endif

/* warp_index(), of which the compiler knows that it is the same in all lanes: what follows from it is then kept in
 * uniform registers, and loops over it need no care for lanes that part. All lanes call it. */
QR_DEVICE unsigned uniform_warp_index() { return warp_shuffle(warp_index(), 0); }

/* body(n, i) for the four sums i of each of N fragments, unrolled. */
template <int N, typename F> QR_DEVICE void for_each_sum(const F &body) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) { body(n, i); }
    }
}

/* The number of this thread in a grid of one-dimensional blocks. */
QR_DEVICE int64_t global_thread() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

/* Blocks of n_threads that cover n elements, one each. */
static inline dim3 blocks_for(int64_t n, unsigned n_threads) {
    return dim3(static_cast<unsigned>(qr_ceil_div(n, n_threads)));
}

/* The largest number s, below n_numbers, whose n(s) is at most `index`; n does not fall, n(0) = 0. */
template <typename F> QR_DEVICE int32_t last_at_or_before(int32_t n_numbers, int32_t index, const F &n) {
    int32_t low = 0, high = n_numbers - 1;
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (n(middle) <= index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* Reduces a value over a block, in every thread: over each warp by warp(value), over the warps in order by
 * combine(a, b). `scratch` is shared memory for one T a warp. All threads call it. */
template <typename T, typename W, typename C>
QR_DEVICE T block_reduce(T value, T *scratch, const W &warp, const C &combine) {
    const T of_warp = warp(value);
    if (lane_index() == 0) { scratch[warp_index()] = of_warp; }
    __syncthreads();
    T result = scratch[0];
    for (unsigned w = 1; w < blockDim.x / WARP_LANES; w++) { result = combine(result, scratch[w]); }
    __syncthreads();
    return result;
}

template <typename T> QR_DEVICE T block_sum(T value, T *scratch) {
    return block_reduce(
        value, scratch, [](T x) { return warp_sum(x); }, [](T a, T b) { return a + b; });
}

QR_DEVICE float block_max(float value, float *scratch) {
    return block_reduce(
        value, scratch, [](float x) { return warp_max(x); }, [](float a, float b) { return fmaxf(a, b); });
}

/* --- Elements of 16 bits and less --- */

/* Bytes `first` and `second` of a word, INT8, as two BF16: exact. With b the low seven bits of x, 128 + b is a BF16
 * whose last digit is 1, and x is that minus 128, or minus 256 where x is negative. Both are parts of one word, so that
 * each takes one mask. */
template <unsigned first, unsigned second> QR_DEVICE uint32_t int8_to_bf16x2(uint32_t word) {
    constexpr uint32_t selector = first | 4U << 4 | second << 8 | 4U << 12, minus_one = 0xBF80BF80U;
    const uint32_t both = permute_bytes(word, 0x43434343U, selector);
    return fma_bf16x2(both & 0x43804380U, minus_one, both & 0x437F437FU);
}

/* The same as two F16: a byte, its highest bit flipped, is the low end of 1024 + 128 + x. */
template <unsigned first, unsigned second> QR_DEVICE uint32_t int8_to_f16x2(uint32_t word) {
    constexpr uint32_t selector = first | 4U << 4 | second << 8 | 4U << 12;
    return add_f16x2(permute_bytes(word ^ 0x80808080U, 0x64646464U, selector), 0xE480E480U);
}

/* Element `index` of an array of F32, BF16 or F16. */
QR_DEVICE float load_as_f32(const void *src, qr_dtype dtype, int64_t index) {
    switch (dtype) {
        case QR_DTYPE_BF16: return bf16_to_f32(static_cast<const uint16_t *>(src)[index]);
        case QR_DTYPE_F16: return f16_to_f32(static_cast<const uint16_t *>(src)[index]);
        default: return static_cast<const float *>(src)[index];
    }
}

QR_DEVICE void store_from_f32(void *dst, qr_dtype dtype, int64_t index, float value) {
    switch (dtype) {
        case QR_DTYPE_BF16: static_cast<uint16_t *>(dst)[index] = f32_to_bf16(value); break;
        case QR_DTYPE_F16: static_cast<uint16_t *>(dst)[index] = f32_to_f16(value); break;
        default: static_cast<float *>(dst)[index] = value; break;
    }
}

#endif
