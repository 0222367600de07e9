/* Philox 4x32-10 on the device, as base/random.h has it. */
#ifndef QR_KERNELS_CUDA_PHILOX_CUH
#define QR_KERNELS_CUDA_PHILOX_CUH

#include "kernels/cuda/device/device.cuh"

struct philox_numbers {
    uint32_t x, y, z, w;
};

__device__ __forceinline__ philox_numbers philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t first = static_cast<uint64_t>(0xD2511F53U) * c0;
        const uint64_t second = static_cast<uint64_t>(0xCD9E8D57U) * c2;
        c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(second);
        c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(first);
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    return {c0, c1, c2, c3};
}

#endif
