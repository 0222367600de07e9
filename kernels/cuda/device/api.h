/* The device as this backend's host code sees it: one GPU, one stream, memory and copies. device/api.cu is CUDA's
 * runtime; tests/simt has the same functions over host memory, so that the whole backend exists on machines without a
 * GPU. Only the files of device/ call CUDA's own functions.
 *
 * A failed call names what was asked for. Once one has failed for another reason than a lack of memory, every later one
 * fails with the line of the first: a lost device is reported with its reason, whichever call reports it. */
#ifndef QR_KERNELS_CUDA_DEVICE_API_H
#define QR_KERNELS_CUDA_DEVICE_API_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/device/switches.h"

extern "C" {
#include "kernels/backend.h"
}

struct qr_device;

/* The first GPU that can be used. What is missing is named: the driver, a driver new enough, a GPU, its BF16. */
qrun_status qr_device_open(qr_device **device, qr_error *err);
void qr_device_close(qr_device *device); /* NULL is fine */
/* After a fault that broke CUDA's context of a GPU, and once its device is closed, by the thread that opened it: takes
 * the context away, for the whole process, so that the GPU can be opened again. Where another device of the process has
 * this GPU, nothing is done and the result is false: what it holds would be gone without its knowing. For everything
 * else that uses this context, such as another library of the process, the fault has broken it already. */
bool qr_device_reset(int ordinal);

const char *qr_device_isa(const qr_device *device); /* "sm_90" */
int qr_device_capability(const qr_device *device);  /* 90 */
int qr_device_multiprocessors(const qr_device *device);

struct qr_device_size {
    int ordinal, n_gpus;    /* CUDA's number of it, and how many CUDA_VISIBLE_DEVICES leaves */
    int multiprocessors;    /* 132 of an H100, 128 of an RTX 4090 */
    int shared_bytes;       /* of a multiprocessor: 228 KiB of sm_90, 164 of sm_80, 100 of consumer GPUs */
    int block_shared_bytes; /* that a block may have of it: 1 KiB less */
};

const qr_device_size &qr_device_size_of(const qr_device *device);

enum { QR_DEVICE_RESERVED_BYTES = 1024 }; /* of shared memory, for each block, by CUDA */

/* Blocks with so much shared memory that run at once. at_most: on a multiprocessor, by registers. */
static inline int qr_device_blocks_at_once(const qr_device *device, int at_most, size_t shared_bytes) {
    const qr_device_size &size = qr_device_size_of(device);
    const int by_memory = size.shared_bytes / static_cast<int>(shared_bytes + QR_DEVICE_RESERVED_BYTES);
    return size.multiprocessors * (by_memory < 1 ? 1 : by_memory < at_most ? by_memory : at_most);
}

/* What the environment turned off, and whether kernels are launched early here (QR_LAUNCH_EARLY). */
const qr_device_switches &qr_device_switches_of(const qr_device *device);
bool qr_device_launches_early(const qr_device *device);

/* Shared memory of each of n_blocks that are launched early and run at once: shared_bytes, or more, so that no
 * multiprocessor has room for more of them than its share. Blocks that are there early go where the kernel ahead ends
 * first; without this some multiprocessors would get one more, and all would wait for those. */
static inline size_t qr_device_even_shared_bytes(const qr_device *device, int64_t n_blocks, size_t shared_bytes) {
    const qr_device_size &size = qr_device_size_of(device);
    const int64_t share = (n_blocks + size.multiprocessors - 1) / size.multiprocessors;
    const int64_t too_many = size.shared_bytes / (share + 1) - QR_DEVICE_RESERVED_BYTES; /* one more would fit */
    const int64_t least = (too_many / 16 + 1) * 16;
    const int64_t even = least < size.block_shared_bytes ? least : size.block_shared_bytes;
    const bool is_more = qr_device_launches_early(device) && even > static_cast<int64_t>(shared_bytes);
    return is_more ? static_cast<size_t>(even) : shared_bytes;
}

/* HOST memory is pinned. Not zeroed. */
qrun_status qr_device_memory_create(qr_device *device, qr_memory_kind kind, size_t n_bytes, void **memory,
                                    qr_error *err);
void qr_device_memory_destroy(qr_device *device, qr_memory_kind kind, void *memory);

/* In the stream's order. copy_in and copy_out have finished with the host's memory when they return; copy_in_async,
 * from HOST memory, has not. */
qrun_status qr_device_copy_in(qr_device *device, void *dst, const void *host, size_t n_bytes, qr_error *err);
qrun_status qr_device_copy_in_async(qr_device *device, void *dst, const void *host, size_t n_bytes, qr_error *err);
qrun_status qr_device_copy_out(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err);
qrun_status qr_device_copy_within(qr_device *device, void *dst, const void *src, size_t n_bytes, qr_error *err);
qrun_status qr_device_zero(qr_device *device, void *memory, size_t n_bytes, qr_error *err);
qrun_status qr_device_sync(qr_device *device, qr_error *err);

/* Seconds of device time between two calls; the second one waits. One measurement at a time. */
qrun_status qr_device_timer_start(qr_device *device, qr_error *err);
qrun_status qr_device_timer_stop(qr_device *device, double *seconds, qr_error *err);

#endif
