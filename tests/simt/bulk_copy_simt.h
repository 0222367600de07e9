/* kernels/cuda/linear/bulk_copy.cuh for the CPU, by simt.h. Included there where QR_SIMT is defined. */
#ifndef QR_TESTS_BULK_COPY_SIMT_H
#define QR_TESTS_BULK_COPY_SIMT_H

inline void phase_barrier_create(phase_barrier &barrier, unsigned n_threads) {
    simt::phase_barrier_create(&barrier, n_threads);
}
inline void phase_barriers_show() {}
inline void phase_barrier_expect(phase_barrier &barrier, unsigned n_bytes) {
    simt::phase_barrier_arrive(&barrier, n_bytes);
}
inline void phase_barrier_wait(const phase_barrier &barrier, unsigned parity) {
    simt::phase_barrier_wait(&barrier, parity);
}
inline void phase_barrier_wait_or_trap(const phase_barrier &barrier, unsigned parity) {
    simt::phase_barrier_wait_or_trap(&barrier, parity);
}
inline void copy_bulk(void *shared, const void *global, unsigned n_bytes, phase_barrier &barrier) {
    simt::copy_bulk(shared, global, n_bytes, &barrier);
}
inline void cluster_sync() { simt::cluster_barrier(); }
inline void phase_barrier_arrive_in(phase_barrier &barrier, unsigned block) {
    simt::phase_barrier_arrive(simt::in_block(&barrier, block), 0);
}
inline void copy_bulk_to_both(void *shared, const void *global, unsigned n_bytes, phase_barrier &barrier) {
    for (unsigned block = 0; block < 2; block++) {
        simt::copy_bulk(simt::in_block(shared, block), global, n_bytes, simt::in_block(&barrier, block));
    }
}

#endif
