/* kernels/cuda/device/intrinsics.cuh for the CPU, by simt.h. Included by device.cuh where QR_SIMT is defined. */
#ifndef QR_TESTS_INTRINSICS_SIMT_H
#define QR_TESTS_INTRINSICS_SIMT_H

extern "C" {
#include "base/half.h"
}

qrun_status qr_device_use(qr_device *device, qr_error *err); /* fails once the device is lost */
qrun_status qr_device_may_run(qr_device *device, const char *kernel, qr_error *err);
qrun_status qr_device_trapped(qr_device *device, const char *kernel, qr_error *err);
bool qr_device_is_recording(const qr_device *device);
void qr_device_keep(qr_device *device, std::function<qrun_status(qr_error *err)> call); /* of a recording */

template <typename... P, typename... A>
qrun_status qr_launch(qr_device *device, const char *name, void (*kernel)(P...), const qr_launch_shape &shape,
                      qr_error *err, const A &...args) {
    if (qr_device_is_recording(device)) {
        qr_device_keep(device, [=](qr_error *why) { return qr_launch(device, name, kernel, shape, why, args...); });
        return QRUN_OK;
    }
    QR_RETURN_IF_ERROR(qr_device_use(device, err));
    QR_RETURN_IF_ERROR(qr_device_may_run(device, name, err));
    const bool ended = simt::launch(name, shape.grid, dim3(shape.n_threads), shape.shared_bytes, shape.early,
                                    shape.cluster, [&] { kernel(args...); });
    return ended ? QRUN_OK : qr_device_trapped(device, name, err);
}

inline void await_previous() { simt::await_previous(); }
inline void admit_next() {}

template <typename T> T *shared_memory() { return reinterpret_cast<T *>(simt::now.shared); }

inline void barrier_sync(unsigned number, unsigned n_threads) { simt::barrier_sync(number, n_threads); }
inline void barrier_arrive(unsigned number, unsigned n_threads) { simt::barrier_arrive(number, n_threads); }

inline void warp_sync() { simt::exchange("warp_sync", nullptr, 0); }
template <typename T> T warp_shuffle(T value, unsigned lane) { return simt::exchange("shuffle", value)[lane]; }
template <typename T> T quad_shuffle(T value, unsigned i) {
    return simt::exchange("quad_shuffle", value)[lane_index() / 4 * 4 + i];
}
template <typename T> T warp_shuffle_xor(T value, unsigned mask) {
    return simt::exchange("shuffle_xor", value)[lane_index() ^ mask];
}
template <typename T> T sum_of(T a, T b) { return a + b; }
template <typename T> T warp_sum(T value) { return simt::reduce<T, sum_of<T>>("sum", value); }
inline bool both(bool a, bool b) { return a && b; }
inline bool warp_all(bool value) { return simt::reduce<bool, both>("all", value); }
inline float larger(float a, float b) { return fmaxf(a, b); }
inline float warp_max(float value) { return simt::reduce<float, larger>("max", value); }

inline unsigned count_up(unsigned *counter) { return (*counter)++; }

inline uint16_t f32_to_bf16(float value) { return qr_f32_to_bf16(value); }
inline float f16_to_f32(uint16_t value) { return qr_f16_to_f32(value); }
inline uint16_t f32_to_f16(float value) { return qr_f32_to_f16(value); }

inline uint32_t f32_to_bf16x2(float low, float high) { return pack16(f32_to_bf16(low), f32_to_bf16(high)); }

inline uint32_t f32_to_f16x2(float low, float high) { return pack16(f32_to_f16(low), f32_to_f16(high)); }

inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    uint32_t result = 0;
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t byte = static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7U) * 8 & 0xFFU);
        const bool sign_alone = (selector >> 4 * i & 8U) != 0;
        result |= (sign_alone ? (byte >> 7) * 0xFFU : byte) << 8 * i;
    }
    return result;
}

inline uint32_t dot_bytes(uint32_t a, uint32_t b, uint32_t c) {
    for (unsigned shift = 0; shift < 32; shift += 8) { c += (a >> shift & 0xFFU) * (b >> shift & 0xFFU); }
    return c;
}

inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    const auto one = [&](unsigned shift) {
        const auto number = [&](uint32_t two) { return bf16_to_f32(static_cast<uint16_t>(two >> shift)); };
        return f32_to_bf16(fmaf(number(a), number(b), number(c)));
    };
    return pack16(one(0), one(16));
}

inline uint32_t add_f16x2(uint32_t a, uint32_t b) {
    const auto number = [](uint32_t two, unsigned shift) { return f16_to_f32(static_cast<uint16_t>(two >> shift)); };
    return pack16(f32_to_f16(number(a, 0) + number(b, 0)), f32_to_f16(number(a, 16) + number(b, 16)));
}

inline uint2 load_once_8(const void *src) { return *static_cast<const uint2 *>(src); }

inline uint4 load_once_16(const void *src) { return *static_cast<const uint4 *>(src); }

inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) { simt::mma_bf16_16x8x16(d, a, b); }
inline void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) { simt::mma_f16_16x8x16(d, a, b); }

inline void load_matrices(uint32_t r[4], const void *row) { simt::load_matrices(r, row, false); }
inline void load_matrices_transposed(uint32_t r[4], const void *row) { simt::load_matrices(r, row, true); }

inline float exp2_flushed(float x) { return x < -126.0F ? 0.0F : exp2f(x); }

inline float reciprocal_flushed(float x) { return fabsf(x) > 0x1p126F ? 0.0F : 1.0F / x; }

inline void copy_async_16(void *shared, const void *global, unsigned n_bytes) {
    simt::copy_async(shared, global, 16, n_bytes);
}

inline void copy_async_8(void *shared, const void *global, unsigned n_bytes) {
    simt::copy_async(shared, global, 8, n_bytes);
}

inline void copy_async_4(void *shared, const void *global, unsigned n_bytes) {
    simt::copy_async(shared, global, 4, n_bytes);
}

inline void copy_async_commit() { simt::copy_async_commit(); }

template <unsigned n_pending> void copy_async_wait() { simt::copy_async_wait(n_pending); }

#endif
