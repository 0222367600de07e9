/* What a machine must have for this backend, and how it says what is missing. */
#ifndef QR_KERNELS_CUDA_DEVICE_REQUIREMENTS_H
#define QR_KERNELS_CUDA_DEVICE_REQUIREMENTS_H

extern "C" {
#include "base/status.h"
}

/* BF16 products and cp.async came with compute capability 8.0. */
enum { QR_DEVICE_LEAST_MAJOR = 8 };

/* Versions as CUDA numbers them, 1000 · major + 10 · minor; driver 0: there is none. */
static inline qrun_status qr_device_check_driver(int driver, int runtime, qr_error *err) {
    if (driver == 0) { return qr_fail(err, QRUN_ERROR_DEVICE, "cuda: there is no NVIDIA driver on this machine"); }
    if (driver / 1000 >= runtime / 1000) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_DEVICE,
                   "cuda: the NVIDIA driver is too old: it supports CUDA %d.%d, and this build needs %d.0 or newer",
                   driver / 1000, driver % 1000 / 10, runtime / 1000);
}

static inline qrun_status qr_device_fail_no_gpu(qr_error *err) {
    return qr_fail(err, QRUN_ERROR_DEVICE, "cuda: the driver knows of no GPU (or CUDA_VISIBLE_DEVICES hides it)");
}

/* Of the GPU, or the last of several of which none will do. */
static inline qrun_status qr_device_check_capability(int major, int minor, qr_error *err) {
    if (major >= QR_DEVICE_LEAST_MAJOR) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_DEVICE,
                   "cuda: the GPU has compute capability %d.%d, without BF16; %d.0 (Ampere) or newer is needed", major,
                   minor, static_cast<int>(QR_DEVICE_LEAST_MAJOR));
}

/* Which of the GPUs that can be used: each rank of a machine has its own, as long as there are enough. */
static inline int qr_device_choose(int n_usable, int local_rank) {
    return n_usable > 0 && local_rank > 0 ? local_rank % n_usable : 0;
}

/* Of `device=cuda:N`: whether there is such a GPU. */
static inline qrun_status qr_device_check_ordinal(int n_gpus, int ordinal, qr_error *err) {
    if (ordinal < n_gpus) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_DEVICE,
                   "cuda: there is no `device=cuda:%d`: the driver knows of %d GPU%s, numbered from 0 "
                   "(CUDA_VISIBLE_DEVICES may hide others)",
                   ordinal, n_gpus, n_gpus == 1 ? "" : "s");
}

#endif
