/* CUDA kernels executed by the CPU, thread by thread, so that their logic is tested on machines without a GPU.
 *
 * The .cu sources are compiled by the host's C++ compiler with QR_SIMT defined; kernels/cuda/device/device.cuh then
 * includes this file in place of CUDA's own. Every thread of a block is a fiber with a stack of its own (guard page
 * below). Blocks, or clusters of them, run one after the other in a seeded random order, and the warps of a block in a
 * random order between barriers. A lane runs alone until it meets the others of its warp in a collective. So a read
 * that no barrier orders after its write sees the old value, and shared memory begins as bytes 0xFF (NaN) and ends
 * where the launch said: under AddressSanitizer every access is checked against it, and against the exact size of every
 * buffer.
 *
 * A collective (shuffle, vote, matrix product) takes all 32 lanes of a warp, which is also the discipline of our
 * kernels. One that waits for a lane that has returned, or a barrier that a thread never reaches, ends the program with
 * a message. Static __shared__ variables do not exist: all shared memory is the launch's.
 *
 * Not imitated: memory order between blocks and between the ways to shared memory (fence.proxy.async), the speed of
 * anything, and the order of additions inside a tensor core. */
#ifndef QR_TESTS_SIMT_H
#define QR_TESTS_SIMT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(8) uint2 {
    unsigned x, y;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace simt {

enum { WARP = 32, MAX_THREADS = 1024, SLOT_BYTES = 64 };

struct place {
    uint3 thread;
    unsigned warp, lane;
};

/* Where the running thread is. One launch at a time. */
struct state {
    const place *here;
    uint3 block;
    dim3 grid_size, block_size;
    unsigned char *shared;
};

extern state now;

/* Runs a kernel's body once for every thread of the grid. `name` is the kernel's, for messages and the list below.
 * Every thread of one that is launched early calls await_previous() once, and none of any other does. `cluster` blocks
 * along x run at the same time, and may reach each other's shared memory as below. Returns whether it ended, or a
 * thread of it trapped. */
bool launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes, bool early, unsigned cluster,
            const std::function<void()> &body);
void await_previous();

/* The order of blocks, warps and lanes follows from this. */
void set_seed(uint64_t seed);

/* Whether a kernel has been launched since the start of the program. */
bool was_launched(const char *kernel, size_t length);

void block_barrier();

/* Barriers 1 to 15, of n_threads of the block: sync waits until as many have come, arrive only counts. */
void barrier_sync(unsigned number, unsigned n_threads);
void barrier_arrive(unsigned number, unsigned n_threads);

/* Every lane of the warp brings n_bytes; when all have, gives the 32 slots, SLOT_BYTES apart, which stay as they are
 * until the lane's next collective. `what` must be the same in all lanes. The last lane to come calls `complete`. */
typedef void (*completion)(unsigned char *slots);
const unsigned char *exchange(const char *what, const void *bytes, size_t n_bytes, completion complete = nullptr);

template <typename T> struct lanes {
    const unsigned char *slots;
    T operator[](unsigned lane) const {
        T value;
        memcpy(&value, slots + lane * SLOT_BYTES, sizeof value);
        return value;
    }
};

template <typename T> lanes<T> exchange(const char *what, const T &value, completion complete = nullptr) {
    static_assert(sizeof(T) <= SLOT_BYTES && std::is_trivially_copyable<T>::value, "a slot holds plain values");
    return {exchange(what, &value, sizeof value, complete)};
}

/* What five steps of a butterfly give, of an operation that commutes: the same bits in every lane. The last lane to
 * come takes the steps for all. */
template <typename T, T (*combine)(T, T)> T reduce(const char *what, const T &value) {
    const completion take_steps = [](unsigned char *slots) {
        const lanes<T> all = {slots};
        T values[WARP];
        for (unsigned i = 0; i < WARP; i++) { values[i] = all[i]; }
        for (unsigned step = WARP / 2; step > 0; step /= 2) {
            for (unsigned i = 0; i < step; i++) { values[i] = combine(values[i], values[i + step]); }
        }
        memcpy(slots, values, sizeof values[0]);
    };
    return exchange(what, value, take_steps)[0];
}

/* mma.sync.aligned.m16n8k16.row.col.f32: d += a · b, the products and their sum in F64, rounded once. */
void mma_bf16_16x8x16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void mma_f16_16x8x16(float d[4], const uint32_t a[4], const uint32_t b[2]);

/* wgmma.mma_async m64n128k16 with a from registers, one warp's sixteen rows of it: d [16][4], a [4], the tile and its
 * step as kernels/cuda/linear/wgmma.cuh says; sums as above. d is NaN until the wait for the last product on it. a and
 * the tile must stay as they are until the wait for their group, which begins after a fence (wgmma_begin). The warps of
 * a warpgroup must issue the same number. */
void wgmma_64x128x16(float *d, const uint32_t *a, const void *tile, unsigned step, bool is_bf16);
/* m64n256k16 with a from a tile of 64 rows. */
void wgmma_64x256x16(float *d, const void *a_tile, const void *tile, unsigned step, bool is_bf16);
void wgmma_begin();
void wgmma_end();
void wgmma_wait(unsigned n_pending);

/* A GPU on which wgmma's sums are mma.sync's, are rounded otherwise, or have terms that are wrong, in
 * all products or in the wide ones. */
enum wgmma_sums { WGMMA_EXACT, WGMMA_ROUNDS, WGMMA_WRONG, WGMMA_WIDE_WRONG };
void set_wgmma_sums(wgmma_sums sums);

/* ldmatrix.x4: r[i] of the matrix whose rows lanes [8i, 8i + 8) name; see device.cuh. */
void load_matrices(uint32_t r[4], const void *row, bool transposed);

/* cp.async of `size` bytes, of which those from n_bytes on are zeros: nothing arrives before the wait. Groups complete
 * in order; wait leaves the newest n_pending unfinished. */
void copy_async(void *dst, const void *src, size_t size, size_t n_bytes);
void copy_async_commit();
void copy_async_wait(unsigned n_pending);

/* Barriers in shared memory that copies complete, as kernels/cuda/linear/bulk_copy.cuh says. A copy's destination is
 * poisoned when it is issued, and its bytes come when somebody waits for a phase in which everyone has arrived and all
 * that was announced is under way. More of either ends the program, and so does a block that ends inside a phase. */
void phase_barrier_create(const void *barrier, unsigned n_threads);
void phase_barrier_arrive(const void *barrier, size_t n_bytes);
void phase_barrier_wait(const void *barrier, unsigned parity);
/* There is no time here: its limit is reached when no thread of the cluster can run. */
void phase_barrier_wait_or_trap(const void *barrier, unsigned parity);
/* From now on, or no longer, a barrier in shared memory does not hear of arrivals that announce bytes. */
void set_lost_arrivals(bool lost);
void copy_bulk(void *dst, const void *src, size_t n_bytes, const void *barrier);

/* What has the place of an address in the shared memory of another block of the cluster. */
void *in_block(const void *shared, unsigned block);

/* Of all threads of a cluster that have not ended. */
void cluster_barrier();

} // namespace simt

#define threadIdx (simt::now.here->thread)
#define blockIdx (simt::now.block)
#define blockDim (simt::now.block_size)
#define gridDim (simt::now.grid_size)

static inline void __syncthreads() { simt::block_barrier(); }

static inline float rsqrtf(float x) { return 1.0F / sqrtf(x); }

static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
