/* kernels/cuda/linear/bulk_copy.cuh for the CPU, by simt.h. Included there where QR_SIMT is defined. */
#ifndef QR_TESTS_BULK_COPY_SIMT_H
#define QR_TESTS_BULK_COPY_SIMT_H

inline void phase_barrier_create(phase_barrier &barrier, unsigned n_threads) {
    simt::phase_barrier_create(&barrier, n_threads);
}
inline void phase_barriers_show() {}
inline void phase_barrier_arrive(phase_barrier &barrier) { simt::phase_barrier_arrive(&barrier, 0); }
inline void phase_barrier_expect(phase_barrier &barrier, unsigned n_bytes) {
    simt::phase_barrier_arrive(&barrier, n_bytes);
}
inline void phase_barrier_wait(const phase_barrier &barrier, unsigned parity) {
    simt::phase_barrier_wait(&barrier, parity);
}
inline void copy_bulk(void *shared, const void *global, unsigned n_bytes, phase_barrier &barrier) {
    simt::copy_bulk(shared, global, n_bytes, &barrier);
}

#endif
