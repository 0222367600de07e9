/* How much memory the device has, and what its driver takes of it for this process: the context, the kernels' code, the
 * stream. device/memory.cu asks CUDA and NVML; tests/simt/device_memory.cc has sizes that a test sets. */
#ifndef QR_KERNELS_CUDA_DEVICE_MEMORY_H
#define QR_KERNELS_CUDA_DEVICE_MEMORY_H

#include "kernels/cuda/device/api.h"

/* Asks what is free while there is no context yet: qr_device_open calls it. */
void qr_device_memory_before_context(qr_device *device);

/* Measures what the context takes, after everything that it will hold has been loaded: all kernels are loaded first,
 * which CUDA would otherwise do at their first launch. */
qrun_status qr_device_memory_measure_context(qr_device *device, qr_error *err);

/* free_bytes: what allocations can have now. context_bytes as in qr_backend_memory. */
qrun_status qr_device_memory_info(const qr_device *device, int64_t *total_bytes, int64_t *free_bytes,
                                  int64_t *context_bytes, qr_error *err);

#endif
