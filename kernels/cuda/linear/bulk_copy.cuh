/* Bulk copies from global to shared memory and the barriers that they complete (sm_90), for kernels that have a variant
 * that runs on every GPU.
 *
 * A phase barrier lies in shared memory. A phase is complete when as many threads have arrived as it was created for,
 * and as many bytes as they announced have come; then the next phase begins. Phases have parities 0, 1, 0, 1 …, and
 * phase_barrier_wait(barrier, p) waits while the barrier is in a phase of parity p. A thread that arrives for a stage
 * of shared memory has ended its own reads of it; what was copied is visible after the wait.
 *
 * Where an arrival is missing, phase_barrier_wait never ends. So one thread of each block waits for all that the others
 * do, to the last phase, by phase_barrier_wait_or_trap: after some seconds the kernel traps. That ends all its blocks
 * and breaks CUDA's context; the host gets an error with its next calls. To give up and return would not be sound: a
 * copy or an arrival that comes later, also from the other block of the cluster, would write to shared memory that
 * another block has by then.
 *
 * One thread creates the barriers and calls phase_barriers_show before the barrier of the block or cluster.
 *
 * The two blocks of a cluster reach what has the same place in each other's shared memory: they copy to both, and
 * arrive in either. They meet before the first such access and after the last one (cluster_sync).
 *
 * tests/simt executes all of it but the instructions. */
#ifndef QR_KERNELS_CUDA_BULK_COPY_CUH
#define QR_KERNELS_CUDA_BULK_COPY_CUH

#include "kernels/cuda/linear/wgmma.cuh"

struct phase_barrier {
    uint64_t state;
};

#ifdef QR_SIMT
#include "bulk_copy_simt.h"
#elif QR_HAS_WGMMA

QR_DEVICE uint32_t shared_address(const void *memory) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

/* QR_GPU_ONLY: instructions, fences and clock of bulk_copy.cuh: phase_barrier*, copy_bulk*, cluster_sync */
QR_DEVICE void phase_barrier_create(phase_barrier &barrier, unsigned n_threads) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(&barrier)), "r"(n_threads)
                 : "memory");
}

/* To the unit that copies. */
QR_DEVICE void phase_barriers_show() {
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;\n" ::
                     : "memory");
}

/* Arrives, and announces so many bytes of copies that follow. */
QR_DEVICE void phase_barrier_expect(phase_barrier &barrier, unsigned n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(&barrier)),
                 "r"(n_bytes)
                 : "memory");
}

QR_DEVICE void phase_barrier_wait(const phase_barrier &barrier, unsigned parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_address(&barrier)),
                 "r"(parity)
                 : "memory");
}

/* Whether that phase is over. Where it is not, the GPU may take some time to say so. */
QR_DEVICE bool phase_barrier_is_over(uint32_t barrier, unsigned parity) {
    uint32_t is_over;
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, over;\n"
                 "}\n"
                 : "=r"(is_over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return is_over != 0;
}

/* Of the multiprocessor, modulo 2^32. */
QR_DEVICE uint32_t clock_cycles() {
    uint32_t cycles;
    asm volatile("mov.u32 %0, %%clock;\n" : "=r"(cycles)::"memory");
    return cycles;
}

/* 2^34 cycles are 9 s at 1.98 GHz, and more at a slower clock. They are counted in intervals of 2^24: what another
 * process or a debugger takes between two looks at the clock is one interval at most. */
QR_DEVICE void phase_barrier_wait_or_trap(const phase_barrier &barrier, unsigned parity) {
    enum { TRIES = 16, INTERVAL_CYCLES = 1 << 24, INTERVALS = 1 << 10 };
    const uint32_t address = shared_address(&barrier);
    if (phase_barrier_is_over(address, parity)) { return; }
    uint32_t begin = clock_cycles();
    for (unsigned n_left = INTERVALS; n_left > 0;) {
#pragma unroll 1
        for (int i = 0; i < TRIES; i++) {
            if (phase_barrier_is_over(address, parity)) { return; }
        }
        const uint32_t now = clock_cycles();
        if (now - begin >= INTERVAL_CYCLES) { begin = now, n_left--; }
    }
    asm volatile("trap;\n");
}

/* Addresses and sizes are multiples of 16. */
QR_DEVICE void copy_bulk(void *shared, const void *global, unsigned n_bytes, phase_barrier &barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(n_bytes), "r"(shared_address(&barrier))
                 : "memory");
}

/* To the same place in both blocks of the cluster, and counted by the same barrier of each. */
QR_DEVICE void copy_bulk_to_both(void *shared, const void *global, unsigned n_bytes, phase_barrier &barrier) {
    const uint16_t both = 3;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1], %2, [%3], %4;\n" ::"r"(shared_address(shared)),
                 "l"(global), "r"(n_bytes), "r"(shared_address(&barrier)), "h"(both)
                 : "memory");
}

/* Arrives at the barrier that has this one's place in a block of the cluster, 0 or 1. It says that reads have ended,
 * and shows the other block nothing that this one wrote: that would be a fence of the whole GPU. */
QR_DEVICE void phase_barrier_arrive_in(phase_barrier &barrier, unsigned block) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(shared_address(&barrier)),
                 "r"(block)
                 : "memory");
}

/* All threads of the cluster that have not ended: what they wrote is visible after it. */
QR_DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;\n" ::
                     : "memory");
}

#endif

#endif
