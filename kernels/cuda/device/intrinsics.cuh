/* The part of device.cuh that is CUDA and PTX: launches, the primitives of a warp, conversions, tensor cores and
 * asynchronous copies. tests/simt/intrinsics_simt.h has the same functions for the CPU. Kernels include device.cuh. */
#ifndef QR_KERNELS_CUDA_INTRINSICS_CUH
#define QR_KERNELS_CUDA_INTRINSICS_CUH

/* --- Launching: QR_LAUNCH and QR_LAUNCH_EARLY of device.cuh --- */

qrun_status qr_device_launch_prepare(qr_device *device, const void *kernel, size_t shared_bytes, qr_error *err);
qrun_status qr_device_launch_check(const qr_device *device, cudaError_t result, const char *kernel, qr_error *err);
cudaStream_t qr_device_stream(const qr_device *device);

template <typename... P, typename... A>
qrun_status qr_launch(qr_device *device, const char *name, void (*kernel)(P...), const qr_launch_shape &shape,
                      qr_error *err, const A &...args) {
    const void *address = reinterpret_cast<const void *>(kernel);
    QR_RETURN_IF_ERROR(qr_device_launch_prepare(device, address, shape.shared_bytes, err));
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.attrs = attributes;
    if (shape.early && qr_device_launches_early(device)) {
        cudaLaunchAttribute &early = attributes[config.numAttrs++];
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
        cudaLaunchAttribute &cluster = attributes[config.numAttrs++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim.x = shape.cluster;
        cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    }
    config.gridDim = shape.grid;
    config.blockDim = dim3(shape.n_threads);
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = qr_device_stream(device);
    return qr_device_launch_check(device, cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), name, err);
}

/* In a kernel that is launched early: see QR_LAUNCH_EARLY. In any other it does nothing. */
QR_DEVICE void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel, if it is launched early, may begin once every block has called this or has ended. It changes no
 * result. */
QR_DEVICE void admit_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

template <typename T> QR_DEVICE T *shared_memory() {
    extern __shared__ __align__(16) unsigned char qr_dynamic_shared[];
    return reinterpret_cast<T *>(qr_dynamic_shared);
}

/* Barriers 1 to 15 of a block, for n_threads of it in whole warps: sync waits until as many have come, arrive only
 * counts. What a thread wrote before it came is visible after a sync. */
QR_DEVICE void barrier_sync(unsigned number, unsigned n_threads) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(number), "r"(n_threads) : "memory");
}
QR_DEVICE void barrier_arrive(unsigned number, unsigned n_threads) {
    asm volatile("bar.arrive %0, %1;\n" ::"r"(number), "r"(n_threads) : "memory");
}

/* --- Warps --- */

QR_DEVICE void warp_sync() { __syncwarp(); }
template <typename T> QR_DEVICE T warp_shuffle(T value, unsigned lane) {
    return __shfl_sync(0xFFFFFFFFU, value, static_cast<int>(lane));
}
/* Of lane i of the four that this one is among. */
template <typename T> QR_DEVICE T quad_shuffle(T value, unsigned i) {
    return __shfl_sync(0xFFFFFFFFU, value, static_cast<int>(i), 4);
}
template <typename T> QR_DEVICE T warp_shuffle_xor(T value, unsigned mask) {
    return __shfl_xor_sync(0xFFFFFFFFU, value, static_cast<int>(mask));
}
QR_DEVICE bool warp_all(bool value) { return __all_sync(0xFFFFFFFFU, value) != 0; }
/* Butterflies: every lane gets the same bits, in an order that is always the same. */
template <typename T> QR_DEVICE T warp_sum(T value) {
    for (unsigned mask = WARP_LANES / 2; mask > 0; mask /= 2) { value += warp_shuffle_xor(value, mask); }
    return value;
}
QR_DEVICE float warp_max(float value) {
    for (unsigned mask = WARP_LANES / 2; mask > 0; mask /= 2) { value = fmaxf(value, warp_shuffle_xor(value, mask)); }
    return value;
}

/* Adds one to a counter in shared memory and returns its value before that. Which thread gets which value is open, so
 * results must not depend on it. */
QR_DEVICE unsigned count_up(unsigned *counter) { return atomicAdd(counter, 1U); }

/* Conversions, as instructions: CUDA's headers for 16-bit types take a third of the time of compiling a small file. */
QR_DEVICE uint16_t f32_to_bf16(float value) {
    uint16_t result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}
QR_DEVICE float f16_to_f32(uint16_t value) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
    return result;
}
QR_DEVICE uint16_t f32_to_f16(float value) {
    uint16_t result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

/* Two F32 rounded to BF16, in one register. */
QR_DEVICE uint32_t f32_to_bf16x2(float low, float high) {
    uint32_t result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

QR_DEVICE uint32_t f32_to_f16x2(float low, float high) {
    uint32_t result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

/* Four bytes out of the eight of low (0 to 3) and high (4 to 7): byte i of the result is the one that bits 4i to 4i + 2
 * of the selector name or, where bit 4i + 3 is 1, eight times that byte's highest bit. */
QR_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
}

/* c, and the products of the bytes of a by those of b at the same place; bytes are 0 to 255. */
QR_DEVICE uint32_t dot_bytes(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

/* Two BF16 at once: a · b + c, rounded once. */
QR_DEVICE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

/* Two F16 at once: a + b. */
QR_DEVICE uint32_t add_f16x2(uint32_t a, uint32_t b) {
    uint32_t result;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

/* Loads of what is read once: they leave the L1 cache to x. Addresses are multiples of the size. */
QR_DEVICE uint2 load_once_8(const void *src) {
    uint2 value;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(src));
    return value;
}

QR_DEVICE uint4 load_once_16(const void *src) {
    uint4 value;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(src));
    return value;
}

/* --- Matrix products of a warp: d [16, 8] += a [16, 16] · b [16, 8], fragments as PTX lays them out for
 * mma.m16n8k16: with g = lane / 4 and t = lane % 4, a[0] holds row g, columns 2t and 2t + 1, a[1] row g + 8, a[2] and
 * a[3] the same rows, columns + 8; b[0] column g, rows 2t and 2t + 1, b[1] rows + 8; d[0] and d[1] row g, columns 2t
 * and 2t + 1, d[2] and d[3] row g + 8. --- */

#define QR_MMA(type)                                                                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "      \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
QR_DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) { QR_MMA("bf16"); }
QR_DEVICE void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) { QR_MMA("f16"); }
#undef QR_MMA

/* Four matrices [8, 8] of 16-bit elements from shared memory, as the fragments above want them (ldmatrix). Lane i gives
 * the address of row i % 8 of matrix i / 8: 8 elements, at a multiple of 16 bytes. r[i] is then of matrix i row g,
 * columns 2t and 2t + 1; of load_matrices_transposed, column g, rows 2t and 2t + 1. */
#define QR_LDMATRIX(variant)                                                                     \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" variant ".shared.b16 {%0, %1, %2, %3}, [%4];\n" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                \
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))                     \
                 : "memory")
QR_DEVICE void load_matrices(uint32_t r[4], const void *row) { QR_LDMATRIX(""); }
QR_DEVICE void load_matrices_transposed(uint32_t r[4], const void *row) { QR_LDMATRIX(".trans"); }
#undef QR_LDMATRIX

/* 2^x with a relative error of 2^-22; results below 2^-126 are 0. */
QR_DEVICE float exp2_flushed(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/* 1 / x with a relative error of 2^-23; 0 where the result would be below 2^-126. */
QR_DEVICE float reciprocal_flushed(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/* --- Copies from global to shared memory that the thread does not wait for --- */

/* 16 bytes, both addresses multiples of 16; those from n_bytes on are zeros (n_bytes 0 reads nothing). */
QR_DEVICE void copy_async_16(void *shared, const void *global, unsigned n_bytes) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(global), "r"(n_bytes)
                 : "memory");
}

/* The same of 8 bytes. */
QR_DEVICE void copy_async_8(void *shared, const void *global, unsigned n_bytes) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(address), "l"(global), "r"(n_bytes) : "memory");
}

/* The same of 4 bytes. */
QR_DEVICE void copy_async_4(void *shared, const void *global, unsigned n_bytes) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(address), "l"(global), "r"(n_bytes) : "memory");
}

QR_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

/* Waits for this thread's copies, except for the newest n_pending groups; a barrier then shows them to others. */
template <unsigned n_pending> QR_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(n_pending) : "memory");
}

#endif
