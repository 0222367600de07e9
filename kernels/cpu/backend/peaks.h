/* The two peaks of a machine that the backend's speed is measured against. */
#ifndef QR_KERNELS_CPU_BACKEND_PEAKS_H
#define QR_KERNELS_CPU_BACKEND_PEAKS_H

#include "kernels/backend.h"

/* Bytes a second that all threads together read from memory (a buffer of 512 MiB, the best of the passes that fit into
 * `seconds`, of at least three). */
qrun_status qr_cpu_measure_read_bandwidth(qr_threads *threads, double seconds, double *bytes_per_second, qr_error *err);

/* Operations a second (a multiply-add is two) that all threads together reach, in an instruction set's
 * multiply-accumulate on registers alone. Its sources are of `dtype` (BF16 or F32: what linear uses for x of that
 * type). isa is a name as qr_backend_cpu_create takes it. */
qrun_status qr_cpu_measure_matrix_peak(qr_threads *threads, const char *isa, qr_dtype dtype, double seconds,
                                       double *flops, qr_error *err);

/* Both, as qr_backend.measure_peaks: half of the time measures memory. */
qrun_status qr_cpu_measure_peaks(qr_backend *backend, double seconds, qr_backend_peaks *peaks, qr_error *err);

#endif
