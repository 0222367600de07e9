/* The two limits of a machine that the backend's speed is measured against. */
#ifndef QR_KERNELS_CPU_CPU_LIMITS_H
#define QR_KERNELS_CPU_CPU_LIMITS_H

#include "base/dtype.h"
#include "base/status.h"
#include "base/threads.h"

/* Bytes a second that all threads together read from memory (a buffer of 512 MiB, the best of several passes). Takes
 * about a second. */
qrun_status qr_cpu_measure_read_bandwidth(qr_threads *threads, double *bytes_per_second, qr_error *err);

/* Operations a second (a multiply-add is two) that all threads together reach in an instruction set's multiply-accumulate
 * on registers alone, with sources of `dtype` (BF16 or F32: what linear uses for x of that type). isa is a name as
 * qr_backend_cpu_create takes it. */
qrun_status qr_cpu_measure_matrix_peak(qr_threads *threads, const char *isa, qr_dtype dtype, double *flops, qr_error *err);

#endif
